"""A sparse classifier with scikit-learn's interface, over items that need not lie together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from densing.efficiency.parallel import sparse as _sparse

    ProxCSL, Store = _sparse.ProxCSL, _sparse.Store

__all__ = ["ProxCSL", "Store"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from densing.core import UnavailableError, install_command
    from densing.efficiency.parallel import sparse

    try:
        return getattr(sparse, name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "sklearn":
            raise
        raise UnavailableError(f"{name} needs scikit-learn; {install_command('explain')}") from error

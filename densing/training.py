"""Three lines in a training loop of your own: wrappers that let ranks communicate less or later.

``CO2``, ``LocalSGD``, ``SlowMo`` and ``DCT`` go around a model and its optimizer; torch is loaded when one is first
asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from densing.efficiency.parallel import CO2, DCT, LocalSGD, SlowMo

__all__ = ["CO2", "DCT", "LocalSGD", "SlowMo"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from densing.core import UnavailableError
    from densing.efficiency import parallel

    try:
        return getattr(parallel, name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UnavailableError(f"{name} needs PyTorch; pip install 'densing[train]'") from error

"""Training: the reference ladder of our own, and wrappers that let ranks communicate less or later.

``CO2``, ``LocalSGD`` and ``SlowMo`` go around a model and its optimizer in a user's own torch loop; they are loaded
when first asked for, torch with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from densing.efficiency.parallel.data_parallel.co2 import CO2
    from densing.efficiency.parallel.data_parallel.local_sgd import LocalSGD
    from densing.efficiency.parallel.data_parallel.slowmo import SlowMo

__all__ = ["CO2", "LocalSGD", "SlowMo"]

_PLACES = {"CO2": "co2", "LocalSGD": "local_sgd", "SlowMo": "slowmo"}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from densing.core.errors import UnavailableError

    try:
        module = import_module(f"densing.efficiency.parallel.data_parallel.{_PLACES[name]}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UnavailableError(f"{name} needs PyTorch; pip install 'densing[train]'") from error
    return getattr(module, name)

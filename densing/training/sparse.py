"""The former place of :class:`densing.training.ProxCSL` and :class:`densing.training.Store`; it warns and goes next."""

from __future__ import annotations

import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    if name not in ("ProxCSL", "Store"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from densing import training

    message = f"densing.training.sparse.{name} is densing.training.{name}; the next version removes the old name"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return getattr(training, name)

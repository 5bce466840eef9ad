"""The former name of :mod:`densing.efficiency.systems`; it warns and goes with the next version."""

from __future__ import annotations

import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    from densing.efficiency import systems

    value = getattr(systems, name)
    message = "densing.efficiency.techniques is densing.efficiency.systems; the next version removes the old name"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return value

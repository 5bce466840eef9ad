"""Throughput: time of a training step on devices that you do not have, calibrated on published measurements."""

import lazy_loader as lazy

from densing.core import renamed

_resolve, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

RENAMED = {"Measured": "MeasuredRuns"}
"""Deprecated names, to be removed in the next version, and their replacements."""
__getattr__ = renamed(__name__, _resolve, RENAMED)

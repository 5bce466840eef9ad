"""The main analysis: from a catalog to a doubling time, with checks."""

import lazy_loader as lazy

from densing.core import renamed

_resolve, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

RENAMED = {"Beside": "ComparisonTrend", "Measured": "LocalEvaluation", "measured_beside": "background_evaluation"}
"""Names of the last version that go with the next one, and what they are called now."""
__getattr__ = renamed(__name__, _resolve, RENAMED)

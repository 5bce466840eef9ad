"""Density: effective parameters per parameter, with a status and an interval for every model."""

import lazy_loader as lazy

from densing.core import renamed

_resolve, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

RENAMED = {
    "RulerComparison": "ReferenceComparison",
    "compare_rulers": "compare_references",
    "ruler_by_families": "reference_by_families",
}
"""Names of the last version that go with the next one, and what they are called now."""
__getattr__ = renamed(__name__, _resolve, RENAMED)

"""Reference families, their shipped fits, and how they were made."""

import lazy_loader as lazy

from densing.core import renamed

_resolve, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

RENAMED = {
    "JointRuler": "JointReference",
    "joint_ruler": "joint_reference",
    "loss_ruler": "loss_reference",
}
"""Names of the last version that go with the next one, and what they are called now."""
__getattr__ = renamed(__name__, _resolve, RENAMED)

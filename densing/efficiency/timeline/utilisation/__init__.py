"""Model and hardware FLOPs utilisation: formulas by name, peaks by device, and a refusal above 100 %."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

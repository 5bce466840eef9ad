"""Density: effective parameters per parameter, with a status and an interval for every model."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

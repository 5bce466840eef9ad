"""A pipeline: layers in stages that work on different micro-batches, with optional compression between stages."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

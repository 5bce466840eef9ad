"""A pipeline: layers in stages that work on different micro-batches; what is sent between them may be made less."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

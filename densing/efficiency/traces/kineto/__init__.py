"""Traces of torch.profiler (Kineto) and others in the Chrome trace format: JSON, plain or compressed."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

"""Throughput: what a training step takes on devices that one does not have, held to published measurements."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

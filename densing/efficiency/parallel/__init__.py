"""The techniques for real, over torch.distributed: the loops they plug into, links, launch."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

"""Start ranks, join them by a real or emulated link, watch them, and gather what they leave."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

"""Start ranks, connect them by a real or emulated link, monitor them, and collect their records."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

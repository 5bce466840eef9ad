"""Codecs that compress a tensor before it is sent: fewer bits, fewer entries, fewer frequencies."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

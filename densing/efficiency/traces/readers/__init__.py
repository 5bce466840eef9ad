"""Readers of trace files: Kineto and Chrome JSON, plain, gzip or zip, to timelines."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

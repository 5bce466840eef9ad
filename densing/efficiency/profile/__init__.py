"""Profiles of a run: the profiles of its ranks merged, aligned, compared and stored."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

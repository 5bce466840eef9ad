"""The joint scale: one statistical model of all scores of the catalog, whoever measured them, with posterior draws."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

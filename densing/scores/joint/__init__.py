"""One scale for every model: all cells of the catalog in one model, whoever measured them, with draws of everything."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

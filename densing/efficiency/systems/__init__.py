"""One folder per published system, and what they share: plans, claims, comparison."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

"""One planner of steps: what the techniques share, with hooks for what they do differently."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

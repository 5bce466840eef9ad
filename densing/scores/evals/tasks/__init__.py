"""The package's task suites: one folder of lm-eval task files each, and the functions that they name."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

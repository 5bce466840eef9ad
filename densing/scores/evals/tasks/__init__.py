"""Task suites that the package brings: folders of lm-eval task files, found by name."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

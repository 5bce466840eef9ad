"""Our own evaluations: benchmarks run on real models by lm-eval, stored, read back and converted to losses."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

"""TACCL: collectives synthesised for a given machine from a sketch, by mixed-integer programs.

Source: Shah et al., NSDI 2023, arXiv 2111.04867, and the released code.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

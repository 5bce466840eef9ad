"""A server that does not wait for the slowest worker: redundancy, partial messages, codes.

Source: Ozfatura, Ulukus and Gunduz, Entropy 2020, arXiv 2004.04948 (abstract first-hand, definitions recalled).
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

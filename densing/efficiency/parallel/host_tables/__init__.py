"""Training on rows of a table in the host's memory, gathered ahead by another process.

Source: Min et al., VLDB 2021, arXiv 2103.03330.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

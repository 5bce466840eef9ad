"""FusionLLM: a pipeline over unequal devices at several sites, cut and compressed according to its links.

Source: Tang et al., arXiv 2410.12707; formulas reconstructed from summaries.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

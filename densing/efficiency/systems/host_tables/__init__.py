"""Tables in the host's memory: rows are gathered by the processor, or read directly by the device.

Source: Min et al., VLDB 2021, arXiv 2103.03330; ``K-Wu/pytorch-direct_dgl``, and of DGL
``IndexSelectMultiKernelAligned``.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

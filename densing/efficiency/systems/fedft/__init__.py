"""Clients and a server: FedAvg and what sends less than it, FedFT's cosine coefficients first of all.

Claims: directions that FedFT's abstract and outline claim, tried on handwritten digits among ten clients with different
digits, in the check itself; beside them what we found that it does not claim. Its tables are not available.

Source: Palihawadana et al., arXiv 2409.05242.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

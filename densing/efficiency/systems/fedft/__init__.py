"""Federated learning: FedAvg and methods that send less, mainly FedFT's cosine coefficients.

Claims: directions claimed in FedFT's abstract and outline, tested in the check itself on handwritten digits among ten
clients with different digits; also findings of ours that it does not claim. Its tables are not available.

Source: Palihawadana et al., arXiv 2409.05242.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

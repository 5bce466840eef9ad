"""A model between a device and a server: where it is left, where it is handed over, in how many bits, and who decides.

Source: Niu, Teng, Han and Zou, "An Adaptive Device-Edge Co-Inference Framework Based on Soft Actor-Critic",
arXiv 2201.02968.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

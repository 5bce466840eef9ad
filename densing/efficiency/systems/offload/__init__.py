"""A model split between a device and a server: exit layer, cut, bits of the state sent, and policies that choose them.

Source: Niu, Teng, Han and Zou, "An Adaptive Device-Edge Co-Inference Framework Based on Soft Actor-Critic",
arXiv 2201.02968.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

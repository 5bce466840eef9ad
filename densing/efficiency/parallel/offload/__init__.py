"""A model between a device and a server: what its layers take, what is sent, and who learns to choose.

Source: Niu, Teng, Han and Zou, arXiv 2201.02968.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

"""Data-parallel methods for a torch loop: DDP, ZeRO, LocalSGD, SlowMo, CO2, clients; and virtual ranks for them."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

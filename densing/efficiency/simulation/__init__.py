"""Simulation of a task graph on a cluster, which gives a timeline; the source of all simulated times."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

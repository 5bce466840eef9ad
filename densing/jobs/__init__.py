"""Executors for the jobs of a plan: this machine, a Slurm cluster, or a back-end of another package."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

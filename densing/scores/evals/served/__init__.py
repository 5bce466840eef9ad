"""Evaluation of a model as it is served: early exit, a cut between two machines, few-bit numbers."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

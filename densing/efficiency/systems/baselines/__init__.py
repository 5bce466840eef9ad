"""Baselines for the other techniques.

No overlap at all (``sequential``); tensor parallelism as in Megatron-LM, with a blocking sum after
attention and after the MLP, and with one sum per layer when both read the same input.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

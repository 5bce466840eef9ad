"""What the other techniques are held against.

Nothing overlaps (``sequential``, the yardstick); tensor parallelism as in Megatron-LM, with a blocking sum after
attention and after the MLP, and with one sum per layer where both read the same input.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

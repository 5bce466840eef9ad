"""What a tensor becomes before it is sent, and what comes back: fewer bits, fewer entries, fewer frequencies.

``sizes`` says without torch what packets weigh; plans and runs use the same functions.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

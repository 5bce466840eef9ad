"""Who computed what, when, and which bytes crossed which link: one rank's facts and metrics.

Names are imported on first use: a command that reads one trace loads no more than that takes.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

"""Result in, plotly Figure out; nothing here shows a figure or computes a statistic."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

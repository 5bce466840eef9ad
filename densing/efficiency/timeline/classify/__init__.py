"""Classification of spans: rules are data in one table (``rules.csv``), users add theirs."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

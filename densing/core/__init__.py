"""What every room uses: errors, notes, records, how they show themselves, arrays, files, tables, processes, words."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

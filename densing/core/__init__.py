"""What all packages share: errors, notes, records and their display, arrays, files, tables, processes, formatting."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

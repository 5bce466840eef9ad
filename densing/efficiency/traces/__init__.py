"""Trace files are read into spans: formats, recording, Perfetto.

``run`` finds the traces of a run and knows which format reads which, ``source`` inflates them; a format is a folder of
its own (``kineto``). In the other direction, ``recording`` records traces and ``perfetto`` writes them with added rows.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

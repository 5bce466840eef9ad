"""One rank's timeline and metrics: what was computed when, and which bytes crossed which link.

``timeline`` holds the spans of ranks, ``classifier`` says what a span is, ``intervals`` counts nanoseconds. ``overlap``
cuts a window and splits it, ``steps`` does so step by step; ``host`` joins device work with the calls that launched it,
and ``idle``, ``critical`` and ``traffic`` say why a device was idle, what limited it and what it moved. Two formulas
need no spans: ``utilisation`` and ``scaling_efficiency``.

Names are imported on first use, so a command that reads one trace loads only what it needs.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

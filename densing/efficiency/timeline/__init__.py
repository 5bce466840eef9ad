"""Who computed what, when, and which bytes crossed which link: one rank's facts and metrics.

``timeline`` holds the spans of ranks, ``classifier`` says what a span is, ``intervals`` counts nanoseconds. ``overlap``
cuts a window and splits it, ``steps`` does so step by step; ``host`` joins device work with the calls that launched it,
and ``idle``, ``critical`` and ``traffic`` say why a device stood still, what bound it and what it moved. Two formulas
need no spans: ``utilisation`` and ``scaling_efficiency``.

Names are imported on first use: a command that reads one trace loads no more than that takes.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

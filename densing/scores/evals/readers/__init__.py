"""Readers of evaluation results, ours or those of other harnesses, into one measurement table.

Accepted are a run folder of ours, lm-eval's results files (current and old schema, with their samples when these
stand beside them), a folder tree of them, lighteval's results and details, inspect's logs, HELM's run
folders, and OpenCompass's summary table and results.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)

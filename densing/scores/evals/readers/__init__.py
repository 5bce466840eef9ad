"""Results of evaluations that ran elsewhere or here, read into one measurement table.

Accepted are a run folder of ours, lm-eval's results files (current and old schema, with their samples when these
stand beside them), a folder tree of them, lighteval's results and details, and OpenCompass's summary table.
"""

from __future__ import annotations

from densing.scores.evals.measurements import Measurements
from densing.scores.evals.readers.files import read_results
from densing.scores.evals.readers.run import read_run

__all__ = ["Measurements", "read_results", "read_run"]

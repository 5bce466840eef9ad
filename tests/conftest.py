"""One thread per process: the tests run side by side, and torch's threads spin while they wait for each other."""

from __future__ import annotations

import os

# Before torch is imported, here and in every process that a test starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Scripts that tests start as processes of their own.
collect_ignore = ["evals_drill.py", "training_runs.py"]

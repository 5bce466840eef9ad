"""One thread per process: the tests run side by side, and torch's threads spin while they wait for each other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from evals_poison import Poisoned

# Before torch is imported, here and in every process that a test starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Scripts that tests start as processes of their own.
collect_ignore = ["evals_drill.py", "tensor_parallel_runs.py", "trace_runs.py", "train_toy.py", "training_runs.py"]


@pytest.fixture
def poisoned(tmp_path: Path) -> Poisoned:
    """A task folder with code beside it, and the marker this code leaves."""
    return Poisoned(tmp_path)


@pytest.fixture
def folder(poisoned: Poisoned) -> Path:
    """The poisoned task folder."""
    return poisoned.folder


@pytest.fixture
def marker(poisoned: Poisoned) -> Path:
    """The file that poisoned code writes when it runs."""
    return poisoned.marker

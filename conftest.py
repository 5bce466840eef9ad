"""What every test and every docstring's example needs before anything is imported, a single file run alone too."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

import pytest

# Before torch is imported, here and in every process that a test starts: tests run side by side, and torch's threads
# spin while they wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Compiled loops say where they leave an array, as Python does; the cache below is not that of users.
os.environ.setdefault("NUMBA_BOUNDSCHECK", "1")
# No test waits for a hub: lm-eval's stand-in model would look for a tokenizer there, a minute long.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# A joint scale that is not shipped takes a quarter of a minute to fit: one process does it, and all others, and the
# next run, read its draws. They are stored under a name that tells what they were fitted to.
owner = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "")
os.environ.setdefault("DENSING_CACHE", str(Path(tempfile.gettempdir()) / f"densing-tests-{owner}"))

ROOT = Path(__file__).parent
SLOW = "mark.slow"
SLOW_HELPERS = [
    path.stem for path in (ROOT / "tests" / "support").glob("*.py") if SLOW in path.read_text(encoding="utf-8")
]
"""Helpers that hold the mark for the tests that import them."""


@cache
def may_be_slow(path: Path) -> bool:
    """Say whether a file can hold a slow test: it names the mark, or a helper that does."""
    text = path.read_text(encoding="utf-8")
    return path.is_relative_to(ROOT / "tests") and any(word in text for word in (SLOW, *SLOW_HELPERS))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files without a slow test unread where only slow ones are asked for: to import all takes a quarter minute.

    A file named on the command line is read in any case.
    """
    test = collection_path.suffix == ".py" and collection_path.name != "conftest.py"
    return True if test and config.option.markexpr == "slow" and not may_be_slow(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a slow test in a file that a run of the slow ones would not read."""
    for item in items:
        if item.get_closest_marker("slow") and not may_be_slow(item.path):
            raise pytest.UsageError(f"{item.nodeid} is slow, and its file does not say so: name pytest.{SLOW} in it")

"""What every test and every docstring's example needs before anything is imported, a single file run alone too."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

# Before torch is imported, here and in every process that a test starts: tests run side by side, and torch's threads
# spin while they wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# No test waits for a hub: lm-eval's stand-in model would look for a tokenizer there, a minute long.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# A joint scale that is not shipped takes a quarter of a minute to fit: one process does it, and all others, and the
# next run, read its draws. They are stored under a name that tells what they were fitted to.
owner = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "")
os.environ.setdefault("DENSING_CACHE", str(Path(tempfile.gettempdir()) / f"densing-tests-{owner}"))

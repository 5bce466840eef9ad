"""The command line as a process of its own: its streams and its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def densing(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200"}
    command = [sys.executable, "-m", "densing", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False, timeout=300)


def answer(*arguments: str, cwd: Path | None = None) -> Any:
    """Return what the command prints with ``--json``."""
    done = densing(*arguments, "--json", cwd=cwd)
    assert done.returncode in (0, 3), done.stderr
    return json.loads(done.stdout)

"""How far a run is, told by rank 0 to whoever watches it."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from densing.efficiency.parallel.distributed import folder

_EVERY_S = 0.2
_last = 0.0


def tell(out: str | Path, rank: int, step: int) -> None:
    """Say that so many steps are done; other ranks than 0, and calls that follow too fast, say nothing."""
    global _last
    now = time.monotonic()
    if rank != 0 or now - _last < _EVERY_S:
        return
    _last = now
    target = folder.progress_file(Path(out))
    # Who only looks on must never stop a run, and nobody needs this after a crash: no fsync.
    with suppress(OSError):
        temporary = target.with_name(".progress")
        temporary.write_text(str(step))
        temporary.replace(target)


def told(out: Path) -> int:
    """Return the steps done, as last told; 0 before the first."""
    with suppress(OSError, ValueError):
        return int(folder.progress_file(out).read_text())
    return 0

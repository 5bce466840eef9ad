"""The folder of a run: the names of its files, its documents, and how far the run is."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from densing.core import ArtefactError, replacing

SPEC, RUN = "spec.json", "run.json"
# What ranks leave does not end in .json: below a run, a file of that kind with a rank in its name is a trace.
_STEP = re.compile(r"step(\d{8,})$")


def record_file(out: Path, rank: int) -> Path:
    """Return the file a rank leaves when it is done."""
    return out / "ranks" / f"rank{rank:05d}.record"


def error_file(out: Path, rank: int) -> Path:
    """Return the file a rank leaves when it failed."""
    return out / "ranks" / f"rank{rank:05d}.error"


def spare_file(out: Path, rank: int) -> Path:
    """Return the file whose space a rank keeps for its reason, for a disk that is full when it fails."""
    return out / "ranks" / f"rank{rank:05d}.spare"


def pid_file(out: Path, rank: int) -> Path:
    """Return the file that says which process a rank is."""
    return out / "ranks" / f"rank{rank:05d}.pid"


def progress_file(out: Path) -> Path:
    """Return the file in which rank 0 says how far it is."""
    return out / "ranks" / "progress"


def met_file(out: Path) -> Path:
    """Return the file that rank 0 leaves once all ranks have found each other."""
    return out / "ranks" / "met"


def rank_log(out: Path, rank: int) -> Path:
    """Return the output of a rank."""
    return out / "logs" / f"rank{rank:05d}.log"


def store_file(out: Path) -> Path:
    """Return the file through which ranks find each other."""
    return out / "ranks" / "store"


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write a document atomically."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(data, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Read a document that this package wrote.

    Raises
    ------
    ArtefactError
        When it is damaged, or cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise ArtefactError(f"{path}: damaged or unreadable ({error}); choose another --out and run again") from error


def checkpoint_file(out: Path, step: int, rank: int) -> Path:
    """Return the file in which a rank keeps its state after ``step`` steps."""
    return out / "checkpoints" / f"step{step:08d}" / f"rank{rank:05d}.pt"


def checkpoint_steps(out: Path) -> list[int]:
    """Return the steps of which some rank has written a checkpoint, in order."""
    matches = (_STEP.match(folder.name) for folder in out.glob("checkpoints/step*"))
    return sorted(int(match[1]) for match in matches if match)


def newest_checkpoint(out: Path, nproc: int) -> int:
    """Return the newest step of which every rank has a checkpoint; -1 if there is none."""
    complete = (
        step
        for step in checkpoint_steps(out)
        if all(checkpoint_file(out, step, rank).is_file() for rank in range(nproc))
    )
    return max(complete, default=-1)


_PROGRESS_EVERY_S = 0.2
_last_progress = 0.0


def write_progress(out: str | Path, rank: int, step: int) -> None:
    """Record the steps done; ranks other than 0, and calls in quick succession, record nothing."""
    global _last_progress
    now = time.monotonic()
    if rank != 0 or now - _last_progress < _PROGRESS_EVERY_S:
        return
    _last_progress = now
    target = progress_file(Path(out))
    # Who only looks on must never stop a run, and nobody needs this after a crash: no fsync.
    with suppress(OSError):
        temporary = target.with_name(".progress")
        temporary.write_text(str(step))
        temporary.replace(target)


def read_progress(out: Path) -> int:
    """Return the steps done, as last written; 0 before the first."""
    with suppress(OSError, ValueError):
        return int(progress_file(out).read_text())
    return 0

"""The record of a stage: one JSON file, whole at every moment, that keeps what was measured whatever happens next.

Loads the standard library only: the stage that installs the rest writes one too.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parents[2]
UNDER_WAY = "under way"
VERSIONED = ("torch", "triton", "transformers", "lm_eval", "numpy", "densing")
SPARE_S = 30.0
"""Seconds before its limit at which a stage that can go on later ends by itself."""


class OutOfTime(Exception):
    """A stage's own time is over; what it measured is kept, and the next call goes on."""


@dataclass
class Record:
    """What a stage measured, and where.

    Attributes
    ----------
    stage : str
    status : {"ok", "partial", "failed", "not run"}
    reason : str
        Why it is not ``ok``, one sentence.
    dry : bool
        Whether it ran in its small size, on a processor.
    device : dict
        Name, memory, driver; see :class:`benchmarks.gpu.device.Device`.
    versions : dict of str to str
    commit : str
        Of the project; ``+`` behind it where files were changed.
    inputs : dict of str to str
        sha256 of what it read, by name.
    began : str
        UTC.
    limit_s, seconds : float
    figures : dict of str to list of dict
        Tables of measurements, a mapping per row.
    log : str
        File beside the record with all that the stage printed.
    """

    stage: str
    status: Literal["ok", "partial", "failed", "not run"] = "partial"
    reason: str = UNDER_WAY
    dry: bool = False
    device: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    commit: str = ""
    inputs: dict[str, str] = field(default_factory=dict)
    began: str = ""
    limit_s: float = 0.0
    seconds: float = 0.0
    figures: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    log: str = ""

    def write(self, out: Path) -> Path:
        """Write it to ``OUT/STAGE.json``, whole or not at all."""
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"{self.stage}.json"
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(_plain(asdict(self)), indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)
        return path


def _plain(value: Any) -> Any:
    """Return what JSON has: null for numbers that are none, text for what else it does not know."""
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def read(out: Path, stage: str) -> Record | None:
    """Return the record of a stage, None where there is none."""
    path = out / f"{stage}.json"
    return Record(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def sha256(path: Path) -> str:
    """Return the digest of a file, or of all files below a folder with their names."""
    digest = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file()):
        digest.update(file.relative_to(path).as_posix().encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def commit() -> str:
    """Return the commit of the project, empty where it is not in git."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        head = git("rev-parse", "HEAD")
        return head + ("+" if head and git("status", "--porcelain", "--untracked-files=no") else "")
    except OSError:
        return ""


def versions(names: Iterable[str] = VERSIONED) -> dict[str, str]:
    """Return the installed versions, of Python too."""
    found = {"python": sys.version.split()[0]}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


class Session:
    """A stage under way: what it runs on, and the record it fills.

    Parameters
    ----------
    stage : str
    out, work : Path
        Folder of records, and of what a later call goes on with (checkpoints, tokens).
    dry : bool
        On a processor, in seconds.
    limit_s : float
    device : dict
        What the record says of it.
    """

    def __init__(self, stage: str, out: Path, work: Path, *, dry: bool, limit_s: float, device: dict[str, Any]) -> None:
        self.out, self.work, self.dry = out, work, dry
        self.torch_device = "cpu" if dry else "cuda"
        self._began = time.monotonic()
        self.record = Record(
            stage, dry=dry, device=device, versions=versions(), commit=commit(), limit_s=limit_s, log=f"{stage}.log",
            began=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        )  # fmt: skip
        self.record.write(out)

    def add(self, table: str, **row: Any) -> None:
        """Keep a measurement, at once."""
        self.record.figures.setdefault(table, []).append(row)
        self.record.seconds = time.monotonic() - self._began
        self.record.write(self.out)

    def read_from(self, name: str, path: Path) -> None:
        """Note what the stage reads."""
        self.record.inputs[name] = sha256(path)

    def size(self, dry: Any, full: Any) -> Any:
        """Return the size for this run."""
        return dry if self.dry else full

    def check_time(self) -> None:
        """Raise :class:`OutOfTime` shortly before the limit."""
        if time.monotonic() - self._began > self.record.limit_s - SPARE_S:
            raise OutOfTime

    def end(self, status: Literal["ok", "partial", "failed", "not run"], reason: str = "") -> Record:
        """Write the record as it stays."""
        self.record.status, self.record.reason = status, reason
        self.record.seconds = time.monotonic() - self._began
        self.record.write(self.out)
        return self.record

"""Where a rank's trace goes: which rank this is, which file is its own, and that none is overwritten."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from densing.core import InputError

SUFFIX = ".pt.trace.json.gz"
_OURS = re.compile(r"rank(\d+)\.pt\.trace\.json(\.gz)?$")
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Destination:
    """Where this process's traces go.

    Parameters
    ----------
    folder : Path
    rank : int
    world_size : int
        -1 unknown.
    source : {"torch.distributed", "environment", "option", "default"}
        How the rank is known.
    numbered : bool
        Whether every cycle of the schedule has a folder of its own.
    """

    folder: Path
    rank: int
    world_size: int
    source: str
    numbered: bool = False

    def file(self, cycle: int) -> Path:
        """Return the file of one cycle.

        Examples
        --------
        >>> Destination(Path("traces"), 3, 8, "default").file(0).as_posix()
        'traces/rank00003.pt.trace.json.gz'
        """
        folder = self.folder / f"cycle{cycle:05d}" if self.numbered else self.folder
        return folder / f"rank{self.rank:05d}{SUFFIX}"

    def to_metadata(self) -> str | None:
        """Return the header's ``distributedInfo`` where torch itself would write none; None if it does or may."""
        if self.source not in ("environment", "option"):
            return None
        world = {"world_size": self.world_size} if self.world_size > 0 else {}
        return json.dumps({"backend": "", "rank": self.rank, **world})


def find_destination(out: Path, rank: int | None, *, numbered: bool = False) -> Destination:
    """Find out which rank this is and where its traces go.

    Raises
    ------
    InputError
        When the rank is contradicted, or the folder cannot be written or holds traces of an earlier run.
    """
    if rank is not None and (isinstance(rank, bool) or not isinstance(rank, int)):
        raise InputError(f"record(rank={rank!r}): a whole number from 0 up is needed")
    known_rank, world, source = _identity()
    if rank is not None:
        if rank < 0 or (source == "torch.distributed" and rank != known_rank):
            known = f"; torch.distributed says {known_rank}" if source == "torch.distributed" else ""
            raise InputError(f"record(rank={rank}): no rank of this run{known}; leave the option out")
        if source != "torch.distributed":
            known_rank, source = rank, "option"
    restart = _count(os.environ.get("TORCHELASTIC_RESTART_COUNT", "")) or 0
    folder = out / f"restart{restart}" if restart else out
    destination = Destination(folder, known_rank, world, source, numbered)
    # A folder where this rank, or a rank that this run does not have, has left traces is refused.
    for file in sorted([*folder.glob("rank*.json*"), *folder.glob("cycle*/rank*.json*")]):
        match = _OURS.match(file.name)
        if match and (int(match[1]) == known_rank or int(match[1]) >= world > 0):
            raise InputError(f"{file}: a trace of an earlier run; choose another folder, or move that one away")
    # One that takes no files is refused now, not after the training has run.
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{folder}: traces cannot be written there ({reason}); choose another folder") from error
    return destination


def settled(destination: Destination) -> Destination:
    """Return a destination with the rank that ``torch.distributed`` tells by now; itself if it tells nothing new.

    Examples
    --------
    >>> destination = Destination(Path("traces"), 3, 8, "environment")
    >>> settled(destination) is destination
    True
    """
    if destination.source == "torch.distributed":
        return destination
    rank, world, source = _identity()
    if source != "torch.distributed":
        return destination
    return replace(destination, rank=rank, world_size=world, source=source)


def save(destination: Destination, cycle: int, export: Callable[[str], Any]) -> Path:
    """Let ``export`` write a trace, compress it and put it in place, whole or not at all.

    Returns
    -------
    Path
        ``destination.file(cycle)``; with ``.again1`` in its name where another process has written as the same rank, so
        that neither trace is lost.

    Raises
    ------
    OSError
        When the disk is full or the folder is gone.
    """
    target = destination.file(cycle)
    target.parent.mkdir(parents=True, exist_ok=True)
    # A dot in front: who looks for traces while one is written finds whole ones only.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".recording-") as folder:
        plain, packed = Path(folder) / "trace.json", Path(folder) / "trace.json.gz"
        export(str(plain))
        _compress(plain, packed)
        number = 0
        while not _claimed(packed, target):
            number += 1
            target = target.with_name(f"rank{destination.rank:05d}.again{number}{SUFFIX}")
    return target


def _claimed(source: Path, target: Path) -> bool:
    """Give a file its name unless another has it."""
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    except OSError:
        # A file system without hard links: two writers at the same moment are told apart by nothing there.
        if target.exists():
            return False
        source.replace(target)
    return True


def _compress(source: Path, target: Path) -> None:
    try:
        from isal import igzip as packer

        level = 2
    except ImportError:
        packer, level = gzip, 4
    with source.open("rb") as plain, packer.open(target, "wb", compresslevel=level) as packed:
        shutil.copyfileobj(plain, packed, _CHUNK)
    with target.open("rb") as packed:
        os.fsync(packed.fileno())


def _identity() -> tuple[int, int, str]:
    try:
        import torch.distributed as dist
    except ImportError:
        dist = None
    if dist is not None and dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size(), "torch.distributed"
    rank, world = (_count(os.environ.get(name, "")) for name in ("RANK", "WORLD_SIZE"))
    if rank is not None:
        return rank, world or -1, "environment"
    return 0, -1, "default"


def _count(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,9}", text) else None

"""What can be wrong with the flags of ``densing profile``, found before hours of traces are read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from densing.core import InputError

if TYPE_CHECKING:
    from densing.cli.profile_out import Wanted
    from densing.cli.profiling import Asked

OF_MFU = ("mfu_pct", "hfu_pct")
"""Figures that a run has where ``--mfu`` is given."""


def check_flags(asked: Asked, wanted: Wanted) -> None:
    """Refuse what cannot work.

    Raises
    ------
    InputError
        The message names the flag and the remedy.
    """
    if asked.jobs is not None and asked.jobs < 1:
        raise InputError(f"--jobs {asked.jobs}: a whole number from 1 up is needed")
    if asked.executor_args and asked.executor is None:
        raise InputError("--executor-arg without --executor; name one, e.g. --executor slurm")
    _check_density(wanted)
    if asked.comm_patterns:
        from densing.efficiency.timeline import Classifier

        Classifier(asked.comm_patterns)
    _check_conditions(wanted)
    if wanted.utilisation is not None:
        from densing.efficiency.profile import parse_spec

        parse_spec(wanted.utilisation)
    _check_outputs(asked, wanted)
    for path in wanted.compare:
        check_source(path)


def _check_conditions(wanted: Wanted) -> None:
    """Refuse conditions on what no run has a figure for."""
    if not wanted.conditions:
        return
    from densing.efficiency.profile import METRICS, check

    hits = check(wanted.conditions, dict.fromkeys((*METRICS, "slowdown", *OF_MFU)))
    named = {name for hit in hits for name in hit.values}
    if wanted.utilisation is None and (without := sorted(named.intersection(OF_MFU))):
        raise InputError(f"--fail-if: {without[0]} is told by --mfu only; give it, e.g. --mfu params=7e9,tokens=4.2e6")


def check_source(path: Path) -> None:
    """Refuse a path at which there are neither traces nor stored results."""
    if not is_store(path):
        from densing.efficiency.traces import find_traces

        find_traces([path])
    elif not path.exists():
        raise InputError(f"{path}: no such file or folder; check the path")


def _check_density(wanted: Wanted) -> None:
    if wanted.density is not None and wanted.device_hours is None:
        raise InputError("--density needs --device-hours: devices times the hours of the model's whole training")
    beside = (wanted.device_hours, wanted.density_model, wanted.density_benchmark)
    if wanted.density is None and any(value is not None for value in beside):
        raise InputError("--device-hours, --density-model and --density-benchmark belong to --density FILE; give it")
    if wanted.density is not None:
        from densing.cli.profile_out import density_of

        density_of(wanted)


def _check_outputs(asked: Asked, wanted: Wanted) -> None:
    """Keep outputs from replacing what is read, each other, or what is no file."""
    outputs = {"--html": wanted.html, "--perfetto": wanted.perfetto}
    named = {flag: path for flag, path in outputs.items() if path is not None}
    if len({path.absolute() for path in named.values()}) < len(named):
        raise InputError("--html and --perfetto name one file; choose two")
    for flag, path in named.items():
        if path.is_dir() or (path.exists() and not path.is_file()):
            raise InputError(f"{flag} {path}: is no regular file; choose another name")
        if path.exists() and any(path.samefile(source) for source in _inputs(asked, wanted)):
            raise InputError(f"{flag} {path}: is one of the files to be read; choose another name")
        _check_place(f"{flag} {path}", path.parent)
    if wanted.perfetto is not None:
        _check_perfetto(asked, wanted.perfetto)


def _check_perfetto(asked: Asked, out: Path) -> None:
    if out.suffix == ".zip":
        raise InputError(f"--perfetto {out}: written as .json or .json.gz; choose such a name")
    if asked.paths and all(map(is_store, asked.paths)):
        raise InputError(f"--perfetto {out}: stored results hold no single spans; give the traces instead")
    folders = [path.resolve() for path in asked.paths if path.is_dir()]
    place = out.resolve().parent
    # Of a folder without traces its subfolders are read.
    among = place in folders or (place.parent in folders and not has_traces(place.parent))
    if among and _is_named(out):
        raise InputError(f"--perfetto {out}: would be read as one more rank next time; choose another folder")


def _check_place(what: str, folder: Path) -> None:
    """Refuse a folder that nothing can be written to; what is missing of it is made when it is time."""
    whole = folder.absolute()
    there = next(place for place in (whole, *whole.parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"{what}: nothing can be written in {there}; check rights and place")


def _inputs(asked: Asked, wanted: Wanted) -> Iterator[Path]:
    """Yield every file that is read, as far as its name tells."""
    more = [wanted.density] if wanted.density is not None else []
    for path in (*asked.paths, *wanted.compare, *more):
        if path.is_dir():
            yield from (inside for inside in path.rglob("*") if inside.is_file())
        elif path.exists():
            yield path


def check_stored(asked: Asked, options: dict[str, object], window: str) -> None:
    """Refuse flags that would need the traces again, where only their stored results are given."""
    held = {"--window": window, "--detail": options.get("detail"), "--comm-pattern": options.get("comm_patterns")}
    given = {
        "--window": asked.window,
        "--detail": None if asked.detail == "auto" else asked.detail,
        "--comm-pattern": list(asked.comm_patterns) or None,
    }
    for flag, value in given.items():
        if value is not None and value != held[flag]:
            raise InputError(f"{flag} {value}: these results were stored with {held[flag]}; give the traces instead")
    unused = {"--rank": asked.ranks, "--out": asked.out, "--executor": asked.executor}
    for flag, needless in unused.items():
        if needless:
            raise InputError(f"{flag}: stored results are only joined, not read from traces; leave the flag out")


def check_store(out: Path, own: set[Path]) -> None:
    """Refuse a folder that holds results of other traces, or traces."""
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out}: is no folder; choose another name")
    _check_place(f"--out {out}", out)
    foreign = sorted(path.name for path in out.glob("*.parquet") if path not in own)
    if foreign:
        raise InputError(f"--out {out}: holds results of other traces ({foreign[0]}, ...); choose a folder of its own")
    if out.is_dir() and has_traces(out):
        raise InputError(f"--out {out}: holds traces; choose a folder of its own for results")


def has_traces(folder: Path) -> bool:
    """Return whether a folder holds files that are read as traces."""
    return any(_is_named(path) for path in folder.iterdir() if path.is_file())


def _is_named(path: Path) -> bool:
    from densing.efficiency.traces import SUFFIXES

    return path.name.endswith(SUFFIXES)


def is_store(path: Path) -> bool:
    """Return whether a path holds stored results: a Parquet file, or a folder of such."""
    if path.is_dir():
        stored = any(path.glob("*.parquet"))
        if stored and has_traces(path):
            raise InputError(f"{path}: holds traces and stored results; name the files of one kind, or part them")
        return stored
    return path.suffix == ".parquet"

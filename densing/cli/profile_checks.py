"""What can be wrong with the flags of ``densing profile``, found before hours of traces are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from densing.errors import InputError

if TYPE_CHECKING:
    from densing.cli.profile_out import Wanted
    from densing.cli.profiling import Asked


def check_flags(asked: Asked, wanted: Wanted) -> None:
    """Refuse what cannot work.

    Raises
    ------
    InputError
        The message names the flag and the remedy.
    """
    if asked.jobs is not None and asked.jobs < 1:
        raise InputError(f"--jobs {asked.jobs}: a whole number from 1 up is needed")
    _check_density(wanted)
    if asked.comm_patterns:
        from densing.timeline.classify import Classifier

        Classifier(asked.comm_patterns)
    if wanted.conditions:
        from densing.profile.conditions import check
        from densing.profile.summary import METRICS

        more = ("slowdown", "mfu_pct", "hfu_pct")
        check(wanted.conditions, dict.fromkeys((*METRICS, *more)))
    if wanted.utilisation is not None:
        from densing.profile.utilisation import parse_spec

        parse_spec(wanted.utilisation)
    _check_outputs(asked, wanted)


def _check_density(wanted: Wanted) -> None:
    if wanted.density is not None and wanted.device_hours is None:
        raise InputError("--density needs --device-hours: devices times the hours of the model's whole training")
    beside = (wanted.device_hours, wanted.density_model, wanted.density_benchmark)
    if wanted.density is None and any(value is not None for value in beside):
        raise InputError("--device-hours, --density-model and --density-benchmark belong to --density FILE; give it")


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
    if wanted.perfetto is not None and wanted.perfetto.suffix == ".zip":
        raise InputError(f"--perfetto {wanted.perfetto}: written as .json or .json.gz; choose such a name")


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
    foreign = sorted(path.name for path in out.glob("*.parquet") if path not in own)
    if foreign:
        raise InputError(f"--out {out}: holds results of other traces ({foreign[0]}, ...); choose a folder of its own")
    if out.is_dir() and has_traces(out):
        raise InputError(f"--out {out}: holds traces; choose a folder of its own for results")


def has_traces(folder: Path) -> bool:
    """Return whether a folder holds files that are read as traces."""
    return any(path.name.endswith((".json", ".gz", ".zip")) for path in folder.iterdir() if path.is_file())

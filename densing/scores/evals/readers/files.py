"""From a path to measurements: which kind of results stands there, and the newest of each in a folder tree."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from densing.core import InputError, Note, read_cells
from densing.scores.evals.disk import read_json
from densing.scores.evals.measurements import Measurements, join
from densing.scores.evals.readers import lighteval, lm_eval, opencompass
from densing.scores.evals.store import is_run, read_run, runs_below

MAX_FILES = 20_000
EXPECTED = (
    "expected lm-eval (an object 'results' with 'configs', or with 'versions' and 'config'), lighteval "
    "('config_general' and 'results') or an OpenCompass summary (.csv with dataset, version, metric, mode)"
)
_STAMP = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}[-:]\d{2}[-:]\d{2}(?:\.\d+)?|\d{8}_\d{6}")
_OURS = frozenset({"unit.json", "run.json"})


def read_results(path: Path | str) -> Measurements:
    """Read results of evaluations: one file, a run of ours, or a folder tree.

    In a tree, of several measurements of one model and task with the same shots the one on most documents counts,
    among equals the newest; the others are named in the notes.

    Parameters
    ----------
    path : path
        A file or folder in one of the accepted forms.

    Raises
    ------
    InputError
        When nothing readable is there; the message says what was found and what was expected.
    """
    place = Path(path)
    try:
        exists, folder = place.exists(), place.is_dir()
    except (OSError, ValueError):
        exists = folder = False
    if not exists:
        raise InputError(
            f"{place}: no such file or folder; give results of densing eval, lm-eval, lighteval or OpenCompass"
        )
    if not folder:
        return _read_file(place)
    return read_run(place) if is_run(place) else _read_tree(place)


class _OtherFileError(InputError):
    """A file that is whole and holds something else than results."""


def _read_file(path: Path) -> Measurements:
    read = _read_content(path)
    if read.measurements.empty:
        first = next((f"; {note.message}" for note in read.notes), "")
        raise InputError(f"{path}: holds no measurement{first}")
    return read


def _read_content(path: Path) -> Measurements:
    if path.suffix == ".csv":
        cells = read_cells(path)
        if not set(opencompass.HEADER) & set(map(str, cells.columns)):
            found, header = ", ".join(map(str, cells.columns))[:200], ", ".join(opencompass.HEADER)
            raise _OtherFileError(f"{path}: columns {found}; an OpenCompass summary has {header} and one per model")
        return opencompass.read(path)
    if path.suffix == ".jsonl":
        raise InputError(
            f"{path}: samples alone do not say which metrics were asked for; give the results_*.json beside it"
        )
    read = read_json(path)
    reader = _reader(read)
    if reader is None:
        raise _OtherFileError(f"{path}: {_found(read)}; {EXPECTED}")
    return reader(read, path)


def _reader(read: Any) -> Any:
    if not isinstance(read, Mapping):
        return None
    if "config_general" in read:
        return lighteval.read
    if "results" in read and ("configs" in read or "config" in read or "versions" in read):
        return lm_eval.read
    return None


def _found(read: Any) -> str:
    if not isinstance(read, Mapping):
        return f"holds a {type(read).__name__}"
    keys = ", ".join(str(key)[:40] for key in list(read)[:8]) or "nothing"
    return f"an object with {keys}"


def _read_tree(folder: Path) -> Measurements:
    runs = runs_below(folder)
    parts = [read_run(run) for run in runs]
    notes: list[Note] = []
    other: list[str] = []
    loose: list[tuple[Measurements, str]] = []
    for path in _candidates(folder, runs):
        try:
            loose.append((_read_file(path), _stamp(path)))
        except _OtherFileError:
            other.append(str(path.relative_to(folder)))
        except InputError as error:
            notes.append(Note("file-unreadable", "warning", str(error), {"file": str(path)}))
    if not loose and not parts:
        raise InputError(f"{folder}: no results found ({_looked_at(folder, other, notes)}); {EXPECTED}")
    if other:
        named = ", ".join(other[:5]) + (", ..." if len(other) > 5 else "")
        message = f"{folder}: {len(other)} files hold no results of an evaluation: {named}"
        notes.append(Note("no-results", "info", message, {"files": other}))
    kept, dropped = _newest(loose)
    return join([*parts, *kept], [*notes, *dropped])


def _looked_at(folder: Path, other: list[str], notes: list[Note]) -> str:
    """Say what stands in a folder without results."""
    said = [f"looked at {', '.join(other[:5])}"] if other else []
    said += [note.message for note in notes[:3]]
    if said:
        return "; ".join(said)
    kinds = Counter(path.suffix or path.name for path in folder.rglob("*") if not path.is_dir())
    named = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(5)) or "nothing"
    samples = "; samples alone do not say which metrics were asked for" if ".jsonl" in kinds else ""
    return f"no .json or .csv file there, but {named}{samples}"


def _candidates(folder: Path, runs: list[Path]) -> list[Path]:
    found = []
    for path in sorted([*folder.rglob("*.json"), *folder.rglob("*.csv")]):
        inside = any(run in path.parents for run in runs)
        if not path.is_dir() and path.name not in _OURS and not inside:
            found.append(path)
    if len(found) > MAX_FILES:
        raise InputError(f"{folder}: more than {MAX_FILES} files; give a folder of results only")
    return found


def _stamp(path: Path) -> str:
    found = _STAMP.search(path.name)
    return re.sub(r"\D", "", found[0]).ljust(20, "0") if found else ""


def _newest(parts: list[tuple[Measurements, str]]) -> tuple[list[Measurements], Iterator[Note]]:
    """Keep one file per model, task and number of shots."""
    best: dict[tuple[Any, ...], tuple[tuple[float, str, str], int]] = {}
    for index, (part, stamp) in enumerate(parts):
        for identity, rank in _ranked(part, stamp):
            if identity not in best or rank > best[identity][0]:
                best[identity] = (rank, index)
    kept, notes = [], []
    for index, (part, stamp) in enumerate(parts):
        lost = {identity for identity, _ in _ranked(part, stamp) if best[identity][1] != index}
        kept.append(_without(part, lost))
        for model, task, shots in sorted(lost, key=str):
            winner = parts[best[model, task, shots][1]][0].measurements["file"].iloc[0]
            loser = part.measurements["file"].iloc[0]
            message = f"{model}, {task} was measured twice: {winner} counts, {loser} does not"
            notes.append(Note("measured-twice", "info", message, {"kept": winner, "dropped": loser}))
    return kept, iter(notes)


def _ranked(part: Measurements, stamp: str) -> Iterator[tuple[tuple[Any, ...], tuple[float, str, str]]]:
    own = part.measurements.fillna({"n_shot": -1.0, "n_items": 0.0})
    for (model, task, shots), rows in own.groupby(["model", "task", "n_shot"], sort=False):
        # A later try on a few documents does not replace a full run.
        unlimited = 0.0 if rows["limit"].notna().any() else 1e12
        yield (model, task, shots), (unlimited + float(rows["n_items"].max()), stamp, str(rows["file"].iloc[0]))


def _without(part: Measurements, lost: set[tuple[Any, ...]]) -> Measurements:
    if not lost:
        return part
    table = part.measurements
    shots = table["n_shot"].fillna(-1.0)
    keep = [key not in lost for key in zip(table["model"], table["task"], shots, strict=True)]
    gone = {(model, task) for model, task, _ in lost}
    items = part.items
    if len(items):
        items = items[[pair not in gone for pair in zip(items["model"], items["task"], strict=True)]]
    return Measurements(table[keep], items, part.models, part.notes)

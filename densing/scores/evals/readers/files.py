"""From a path to measurements: which kind of results stands there, and the newest of each in a folder tree."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from densing.core import InputError, Note, as_address, read_cells, read_json, shown_address, what_instead
from densing.scores.evals.measurements import Measurements, join
from densing.scores.evals.readers import helm, inspect_ai, lighteval, lm_eval, opencompass
from densing.scores.evals.store import is_run, read_run, runs_below
from densing.scores.evals.subjects import with_means


class Reader(Protocol):
    """One form of results: a module with these two functions."""

    def accepts(self, content: Any) -> bool:
        """Whether a file's content, of JSON or the cells of a CSV file, is of this form."""

    def read(self, content: Any, path: Path) -> Measurements:
        """Return what the content measures."""


# The first that accepts a file reads it.
READERS: tuple[Reader, ...] = (inspect_ai, lighteval, lm_eval, helm, opencompass)
MAX_FILES = 20_000
EXPECTED = (
    "expected lm-eval (an object 'results' with 'configs', or with 'versions' and 'config'), lighteval "
    "('config_general' and 'results'), a log of inspect "
    "(.eval, or JSON with 'version' and 'eval'), a run folder of HELM (run_spec.json, stats.json) or OpenCompass's "
    "summary (.csv with dataset, version, metric, mode) or results/MODEL/DATASET.json"
)
_STAMP = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}[-:]\d{2}[-:]\d{2}(?:\.\d+)?|\d{8}_\d{6}")
_OURS = frozenset({"unit.json", "run.json"})


def read_results(path: Path | str | Mapping[str, Any]) -> Measurements:
    """Read results of evaluations: one file, a run of ours, a folder tree, or what lm-eval returned.

    In a tree, of several measurements of one model and task with the same shots the one on most documents counts,
    among equals the newest; the others are named in the notes. MMLU stored by subject gets a row of its mean.

    Parameters
    ----------
    path : path or mapping
        A file or folder in one of the accepted forms, or what ``lm_eval.simple_evaluate`` returned.

    Raises
    ------
    InputError
        When nothing readable is there; the message says what was found and what was expected.

    See Also
    --------
    run_densities, run_plan

    Examples
    --------
    >>> import densing, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     try:
    ...         densing.read_results(folder)
    ...     except densing.DensingError as error:
    ...         print(type(error).__name__)
    InputError
    """
    found = lm_eval.read(path) if isinstance(path, Mapping) else _read(Path(path))
    measurements, notes = with_means(found.measurements)
    return replace(found, measurements=measurements, notes=(*found.notes, *notes))


def _read(path: Path) -> Measurements:
    try:
        exists, folder = path.exists(), path.is_dir()
    except (OSError, ValueError):
        exists = folder = False
    if not exists:
        if address := as_address(path):
            raise InputError(f"{shown_address(address)}: {what_instead(path)}")
        raise InputError(
            f"{path}: no such file or folder; give results of densing eval, lm-eval, lighteval, inspect, HELM "
            "or OpenCompass "
            f"({what_instead(path)})"
        )
    if not folder:
        return _read_file(path)
    if is_run(path):
        return read_run(path)
    runs = runs_below(path)
    files = [
        file
        for file in sorted(file for pattern in ("*.json", "*.csv", "*.eval") for file in path.rglob(pattern))
        if not (file.is_dir() or file.name in _OURS or _is_beside(file) or any(run in file.parents for run in runs))
    ]
    if len(files) > MAX_FILES:
        raise InputError(f"{path}: more than {MAX_FILES} files; give a folder of results only")
    parts = [read_run(run) for run in runs]
    notes: list[Note] = []
    other: list[str] = []
    loose: list[tuple[Measurements, str]] = []
    for file in files:
        try:
            results = _read_file(file)
        except _OtherFileError:
            other.append(str(file.relative_to(path)))
        except InputError as error:
            notes.append(Note("file-unreadable", "warning", str(error), {"file": str(file)}))
        else:
            stamp = _STAMP.search(file.name)
            loose.append((results, re.sub(r"\D", "", stamp[0]).ljust(20, "0") if stamp else ""))
    if not loose and not parts:
        raise InputError(f"{path}: no results found ({_contents(path, other, notes)}); {EXPECTED}")
    if other:
        names = ", ".join(other[:5]) + (", ..." if len(other) > 5 else "")
        message = f"{path}: {len(other)} files contain no evaluation results: {names}"
        notes.append(Note("no-results", "info", message, {"files": other}))
    newest, doubles = _newest(loose)
    return join([*parts, *newest], [*notes, *doubles])


def _is_beside(file: Path) -> bool:
    """Whether a file stands beside results that are read: requests and answers of HELM, answers of OpenCompass."""
    if file.name in helm.COMPANIONS:
        return (file.parent / helm.SPEC).is_file()
    folder = file.parent.parent
    return folder.name == "predictions" and (folder.parent / "results").is_dir()


class _OtherFileError(InputError):
    """A file that is whole and holds something else than results."""


def _read_file(path: Path) -> Measurements:
    if path.suffix == ".jsonl":
        raise InputError(f"{path}: samples alone do not state the requested metrics; add their results_*.json")
    content: Any
    if path.suffix == ".csv":
        content = read_cells(path)
    else:
        content = inspect_ai.header(path) if path.suffix == inspect_ai.SUFFIX else read_json(path)
    reader = next((reader for reader in READERS if reader.accepts(content)), None)
    if reader is None and path.suffix == ".csv":
        columns, header = ", ".join(map(str, content.columns))[:200], ", ".join(opencompass.HEADER)
        raise _OtherFileError(f"{path}: columns {columns}; an OpenCompass summary has {header} and one per model")
    if reader is None and isinstance(content, Mapping):
        keys = ", ".join(str(key)[:40] for key in list(content)[:8]) or "nothing"
        raise _OtherFileError(f"{path}: an object with {keys}; {EXPECTED}")
    if reader is None:
        raise _OtherFileError(f"{path}: holds a {type(content).__name__}; {EXPECTED}")
    results = reader.read(content, path)
    if results.measurements.empty:
        first = next((f"; {note.message}" for note in results.notes), "")
        raise InputError(f"{path}: holds no measurement{first}")
    return results


def _contents(folder: Path, other: list[str], notes: list[Note]) -> str:
    """Say what stands in a folder without results."""
    reasons = [f"looked at {', '.join(other[:5])}"] if other else []
    reasons += [note.message for note in notes[:3]]
    if reasons:
        return "; ".join(reasons)
    kinds = Counter(path.suffix or path.name for path in folder.rglob("*") if not path.is_dir())
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(5)) or "nothing"
    samples = "; samples alone do not state the requested metrics" if ".jsonl" in kinds else ""
    return f"no .json, .csv or .eval file there, but {counts}{samples}"


def _newest(parts: list[tuple[Measurements, str]]) -> tuple[list[Measurements], list[Note]]:
    """Keep one file per model, task and number of shots, of readings with the digits of their time."""
    best: dict[tuple[Any, ...], tuple[tuple[float, str, str], int]] = {}
    for index, (part, stamp) in enumerate(parts):
        for identity, rank in _ranked(part, stamp):
            if identity not in best or rank > best[identity][0]:
                best[identity] = (rank, index)
    newest, notes = [], []
    for index, (part, stamp) in enumerate(parts):
        dropped = {identity for identity, _ in _ranked(part, stamp) if best[identity][1] != index}
        if dropped:
            table, items = part.measurements, part.items
            keys = zip(table["model"], table["task"], table["n_shot"].fillna(-1.0), strict=True)
            rows = table[[key not in dropped for key in keys]]
            if len(items):
                pairs = {(model, task) for model, task, _ in dropped}
                items = items[[pair not in pairs for pair in zip(items["model"], items["task"], strict=True)]]
            newest.append(Measurements(rows, items, part.models, part.notes))
        else:
            newest.append(part)
        for model, task, shots in sorted(dropped, key=str):
            winner = parts[best[model, task, shots][1]][0].measurements["file"].iloc[0]
            loser = part.measurements["file"].iloc[0]
            message = f"{model}, {task} was measured twice: {winner} is used, {loser} is not"
            notes.append(Note("measured-twice", "info", message, {"kept": winner, "dropped": loser}))
    return newest, notes


def _ranked(part: Measurements, stamp: str) -> Iterator[tuple[tuple[Any, ...], tuple[float, str, str]]]:
    """Yield each model, task and number of shots of a file, and what ranks it: documents, then time, then name."""
    own = part.measurements.fillna({"n_shot": -1.0, "n_items": 0.0})
    for (model, task, shots), rows in own.groupby(["model", "task", "n_shot"], sort=False):
        # A later try on a few documents does not replace a full run.
        unlimited = 0.0 if rows["limit"].notna().any() else 1e12
        yield (model, task, shots), (unlimited + float(rows["n_items"].max()), stamp, str(rows["file"].iloc[0]))

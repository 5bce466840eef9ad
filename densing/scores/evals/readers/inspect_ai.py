"""inspect's logs: one evaluation of one task each, read without inspect.

Format: "Log Files" and ``inspect_ai.log.EvalLog`` in the documentation of Inspect (https://inspect.aisi.org.uk, log
version 2). A ``.eval`` file is a zip archive with ``header.json``, the log without its samples; a log in JSON
(``--log-format json``) is the same object. ``eval`` says what was run, ``results.scores`` each scorer's metrics.
Of samples nothing is read: their scores are in the metrics, and they have no log-likelihoods.
"""

from __future__ import annotations

import math
import os
import re
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from densing.core import InputError, Note, parse_json
from densing.scores.evals.harness import is_number, mapping
from densing.scores.evals.measurements import (
    Measurements,
    checked_rows,
    measurement_frame,
    metric_row,
    model_frame,
    task_cells,
)

SUFFIX = ".eval"
# Source: PKWARE, APPNOTE.TXT 6.3.10, 4.4.5. Inspect packs so since 2025.
_ZSTD = 93
HEADER, START = "header.json", "_journal/start.json"
MAX_HEADER = 64 * 1024 * 1024
# Errors of a metric beside it, not metrics.
_ERRORS = ("stderr", "bootstrap_stderr", "std", "var")
# As inspect_evals names some tasks: mmlu_5_shot.
_SHOTS = re.compile(r"_(\d+)_shot$")
# What runs weights here: the name behind it is the model's.
_LOCAL = ("hf", "vllm", "sglang", "llama-cpp-python", "ollama", "transformer_lens", "nnterp")


def accepts(content: Any) -> bool:
    """Whether this is a log of inspect, without its samples or with them."""
    return isinstance(content, Mapping) and {"eval", "version"} <= set(content) and isinstance(content["eval"], Mapping)


def header(path: Path) -> Any:
    """Return the log in a ``.eval`` file, without its samples.

    Raises
    ------
    InputError
        When the file is not such a log.
    """
    import pyarrow as pa

    try:
        with path.open("rb") as stream, zipfile.ZipFile(stream) as archive:
            names = set(archive.namelist())
            name = HEADER if HEADER in names else START
            if name not in names:
                raise InputError(f"{path}: holds neither {HEADER} nor {START}, so it is not an inspect log")
            member = archive.getinfo(name)
            if member.file_size > MAX_HEADER:
                raise InputError(f"{path}: its {name} is larger than {MAX_HEADER >> 20} MiB; it is not an inspect log")
            if member.compress_type == _ZSTD:
                # Of the standard library only Python 3.14's reads it: behind its header, found here, stand the data.
                stream.seek(member.header_offset + 26)
                stream.seek(sum(struct.unpack("<HH", stream.read(4))), os.SEEK_CUR)
                packed = pa.BufferReader(stream.read(member.compress_size))
                data = pa.CompressedInputStream(packed, "zstd").read(member.file_size)
            else:
                data = archive.read(member)
        text = data.decode("utf-8")
    except (zipfile.BadZipFile, struct.error, RuntimeError, ValueError, OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: not readable as a log of inspect ({error}); copy it again") from error
    return parse_json(text, f"{path}:{name}")


def read(content: Any, path: Path) -> Measurements:
    """Return the measurements of one log.

    Parameters
    ----------
    content : mapping
        The log.
    path : path
        Where it stands.

    Raises
    ------
    InputError
        When it holds no results, because the evaluation failed or was stopped.
    """
    about, results = mapping(content.get("eval")), mapping(content.get("results"))
    status, scores = str(content.get("status") or "started"), results.get("scores")
    if not isinstance(scores, list) or not scores:
        error = str(mapping(content.get("error")).get("message") or "")[:160]
        reason = f" ({error})" if error else ""
        raise InputError(
            f"{path}: no results: the evaluation's status is {status}{reason}; finish it with `inspect eval-retry`"
        )
    name, task = _model(about), str(about.get("task") or path.stem).rpartition("/")[2]
    notes = []
    if status != "success":
        message = f"{path}: the evaluation's status is {status}; its results cover the completed samples"
        notes.append(Note("not-finished", "warning", message, {"status": status}))
    total, done = results.get("total_samples"), results.get("completed_samples")
    if is_number(total) and is_number(done) and done < total:
        message = f"{path}: {done} of {total} samples were completed; the others are ignored"
        notes.append(Note("samples-missing", "warning", message, {"completed": done, "total": total}))
    cells = _about(content, about, results, task, path) | {"model": name}
    rows: list[dict[str, Any]] = []
    for score in (mapping(each) for each in scores):
        if is_number(unscored := score.get("unscored_samples")) and unscored > 0:
            message = f"{path}: {unscored} samples have no score of {score.get('name')}; they are ignored"
            notes.append(Note("samples-unscored", "warning", message, {"unscored": unscored}))
        rows += _rows(score, cells, several=len(scores) > 1, path=path)
    rows, doubts = checked_rows(rows)
    facts = {"model": name, "type": "inspect", "args": str(dict(mapping(about.get("model_args"))))}
    return Measurements(measurement_frame(rows), pd.DataFrame(), model_frame([facts]), (*notes, *doubts))


def _rows(score: Mapping[str, Any], cells: Mapping[str, Any], several: bool, path: Path) -> list[dict[str, Any]]:
    """Return a row per metric of one scorer, with the standard error that stands beside them."""
    values = {str(key): mapping(each).get("value") for key, each in mapping(score.get("metrics")).items()}
    errors = [values.get("stderr"), values.get("bootstrap_stderr")]
    error = next((float(each) for each in errors if is_number(each)), math.nan)
    scorer = str(score.get("name") or score.get("scorer") or "")
    items = score.get("scored_samples")
    about = {**cells, "n_items": float(items)} if is_number(items) else cells
    definition = f"samples that inspect's scorer {scorer} takes for right"
    rows: list[dict[str, Any]] = []
    for metric, value in values.items():
        if metric in _ERRORS:
            continue
        if not is_number(value):
            problem = f"{metric} is {str(value)[:40]!r}, expected a number; the file is damaged"
            raise InputError(f"{path}: {scorer}: {problem}")
        # The error beside several metrics is that of the first, which is inspect's order.
        own = error if not rows else math.nan
        told = {"definition": definition} if metric == "accuracy" else {}
        rows.append(metric_row(about, metric, float(value), own, filter=scorer if several else "", **told))
    return rows


def _model(about: Mapping[str, Any]) -> str:
    """Return a model's name without what served it: ``hf/org/name`` is ``org/name``."""
    name = str(about.get("model") or "")
    given = mapping(about.get("model_args"))
    if name.endswith("/local") and (path := given.get("model_path")):
        return Path(str(path)).name
    provider, _, rest = name.partition("/")
    return rest if rest and (provider in _LOCAL or "/" in rest) else name


def _about(
    content: Mapping[str, Any], about: Mapping[str, Any], results: Mapping[str, Any], task: str, path: Path
) -> dict[str, Any]:
    config, given = mapping(about.get("config")), mapping(about.get("task_args"))
    epochs = config.get("epochs")
    done = results.get("completed_samples")
    items = done / epochs if is_number(done) and is_number(epochs) and epochs >= 1 else done
    steps = [str(mapping(step).get("solver")) for step in mapping(content.get("plan")).get("steps") or []]
    params = [mapping(mapping(step).get("params")) for step in mapping(content.get("plan")).get("steps") or []]
    thinks = "chain_of_thought" in steps or any(each.get("cot") is True for each in params)
    named = _SHOTS.search(task)
    shots = next((given[key] for key in ("fewshot", "num_fewshot", "shots") if is_number(given.get(key))), None)
    limit = config.get("limit")
    if isinstance(limit, list) and len(limit) == 2 and all(map(is_number, limit)):
        limit = limit[1] - limit[0]
    return task_cells(
        task=task, benchmark=_SHOTS.sub("", task) if named else "",
        n_items=float(items) if is_number(items) else math.nan,
        n_shot=float(shots) if shots is not None else float(named[1]) if named else math.nan,
        # Answers are generated, of choices their letter.
        form="generate", cot="yes" if thinks else "", limit=float(limit) if is_number(limit) else math.nan,
        task_version=str(about.get("task_version", "")), harness="inspect",
        harness_version=str(mapping(about.get("packages")).get("inspect_ai") or ""),
        date=str(about.get("created") or "")[:10], file=str(path),
    )  # fmt: skip

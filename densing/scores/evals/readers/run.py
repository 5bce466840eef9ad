"""A run folder of ours: every finished unit, with its items; damaged and unfinished ones as notes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from densing.core import InputError, Note
from densing.scores.evals.disk import read_json
from densing.scores.evals.folder import Status, Unit
from densing.scores.evals.harness import check_results, mapping, result_rows
from densing.scores.evals.measurements import MODEL_COLUMNS, Measurements, join, measurement_frame, model_frame
from densing.scores.evals.store import RunStore
from densing.scores.evals.unit import UnitKey, canonical_json


def is_run(folder: Path) -> bool:
    """Whether a folder is a run of ours."""
    return (folder / "units").is_dir()


def runs_below(folder: Path) -> list[Path]:
    """Return the runs of ours at any depth below a folder, sorted."""
    found = sorted(units.parent for units in folder.rglob("units") if units.is_dir())
    return [run for run in found if not any(other in run.parents for other in found)]


def read_run(run: RunStore | Path) -> Measurements:
    """Return measurements, items and models of a run's finished units.

    Two models of one label (other weights, another type) get the start of a digest behind their name, so that no
    table mixes them.

    Parameters
    ----------
    run : RunStore or path
        The run.

    Raises
    ------
    InputError
        When the folder is no run.
    """
    store = run if isinstance(run, RunStore) else RunStore(run)
    if not isinstance(run, RunStore) and not is_run(store.folder):
        raise InputError(f"{store.folder}: no folder of units there; give a run written by densing eval")
    states = store.all_units()
    done = [(unit, unit.manifest) for unit, status in states if status == "done"]
    names = _names(UnitKey.from_dict(manifest["key"]) for _, manifest in done)
    parts = [_read_unit(unit, manifest, names) for unit, manifest in done]
    return join(parts, _state_notes(states))


def _names(keys: Iterator[UnitKey]) -> dict[tuple[str, str], str]:
    models: dict[str, dict[str, None]] = {}
    for key in keys:
        models.setdefault(key.label, {})[_model_digest(key)] = None
    return {
        (label, digest): label if len(digests) == 1 else f"{label}@{digest[:6]}"
        for label, digests in models.items()
        for digest in digests
    }


def _model_digest(key: UnitKey) -> str:
    import hashlib

    return hashlib.sha256(canonical_json(key.model).encode("ascii")).hexdigest()


def _read_unit(unit: Unit, manifest: Mapping[str, Any], names: Mapping[tuple[str, str], str]) -> Measurements:
    import pandas as pd

    key = UnitKey.from_dict(manifest["key"])
    name = names[key.label, _model_digest(key)]
    path = unit.results_path
    read = check_results(read_json(path), str(path))
    stored = unit.items()
    items = pd.DataFrame() if stored is None else stored.assign(model=name)
    rows, notes = result_rows(read, items, model=name, where=str(path), digest=key.digest)
    model = mapping(manifest.get("model"))
    # What holds of the model stands in its row.
    own = [text for text in manifest.get("caveats", []) if text not in (model.get("caveats") or [])]
    caveats = [Note("caveat", "info", f"{name}, {key.task_name}: {text}") for text in own]
    models = model_frame([_model_row(name, key, model)])
    return Measurements(measurement_frame(rows), items, models, (*notes, *caveats))


def _model_row(name: str, key: UnitKey, told: Mapping[str, Any]) -> dict[str, Any]:
    facts = {**key.model, **told}
    row = {column: facts.get(column) for column in MODEL_COLUMNS}
    caveats = facts.get("caveats") or []
    return row | {
        "model": name,
        "args": json.dumps(facts.get("args", {}), sort_keys=True, default=str),
        "caveats": "; ".join(map(str, caveats)) if isinstance(caveats, list | tuple) else str(caveats),
    }


def _state_notes(states: list[tuple[Unit, Status]]) -> Iterator[Note]:
    for unit, status in states:
        if status == "damaged":
            first = unit.problems()[0]
            yield Note(
                "unit-damaged", "error", f"{first}; the unit is left out, evaluate it again", {"unit": str(unit.folder)}
            )
        elif status == "partial":
            yield Note("unit-partial", "warning", f"{unit.folder}: unfinished and left out; run the same plan again",
                       {"unit": str(unit.folder)})  # fmt: skip

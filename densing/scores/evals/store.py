"""The result store: one folder per run, one folder per unit, safe to write from several processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from densing.core import ArtefactError, InputError
from densing.scores.evals.disk import BusyError, locked, new_lock, read_json, utc_now, write_json
from densing.scores.evals.folder import SCHEMA, Status, Unit
from densing.scores.evals.unit import UnitKey, canonical_json

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["BusyError", "RunStore", "Unit", "merge"]
RUN, UNITS = "run.json", "units"


class RunStore:
    """One run's folder. Opening it has no side effects, and it need not exist.

    Parameters
    ----------
    folder : path
        ``results/NAME``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     store = RunStore(Path(place) / "first")
    ...     unit = store.unit(UnitKey({"type": "hf"}, {"name": "piqa"}, {}, "tiny"))
    ...     unit.status, store.units(), store.folder.exists()
    ('absent', [], False)
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)

    def __repr__(self) -> str:
        """Return the folder."""
        return f"RunStore({str(self.folder)!r})"

    def unit(self, key: UnitKey) -> Unit:
        """Return the handle of a unit, done or not."""
        return Unit(self.folder / UNITS / key.folder, key)

    def all_units(self) -> list[tuple[Unit, Status]]:
        """Return every unit that has begun, with its state (files are hashed), in the order of folder names."""
        states = ((unit, unit.status) for unit in self._handles())
        return [(unit, status) for unit, status in states if status != "absent"]

    def units(self) -> list[Unit]:
        """Return the finished units, in the order of folder names."""
        return [unit for unit in self._handles() if unit.done]

    def partial(self) -> list[Unit]:
        """Return units with a journal and no manifest."""
        return [unit for unit in self._handles() if unit.status_of(deep=False) == "partial"]

    def _handles(self) -> list[Unit]:
        place = self.folder / UNITS
        return [Unit(folder) for folder in sorted(place.iterdir()) if folder.is_dir()] if place.is_dir() else []

    @property
    def run(self) -> dict[str, Any]:
        """Content of ``run.json``; empty before the first plan.

        Raises
        ------
        ArtefactError
            When the file is damaged.
        """
        path = self.folder / RUN
        if not path.exists():
            return {}
        try:
            data = read_json(path)
        except InputError as error:
            raise ArtefactError(str(error)) from error
        if not isinstance(data, dict) or data.get("schema") != SCHEMA or not isinstance(data.get("plans"), list):
            raise ArtefactError(f"{path}: not a run file of schema {SCHEMA}; delete it, the units stay")
        return data

    def record_plan(self, plan: Mapping[str, Any]) -> None:
        """Add a plan to ``run.json`` (once, however often it is run); secrets must be stripped before.

        Raises
        ------
        BusyError, InputError, ArtefactError
            When the file is locked for long, cannot be written or is damaged.
        """
        self._record([{"when": utc_now(), "plan": dict(plan)}])

    def _record(self, entries: Iterable[Mapping[str, Any]]) -> None:
        from densing import __version__

        with locked(new_lock(self.folder / "run.lock"), 60.0, str(self.folder / RUN)):
            data = self.run or {"schema": SCHEMA, "densing": __version__, "created": utc_now(), "plans": []}
            known = {canonical_json(entry["plan"]) for entry in data["plans"]}
            fresh = [dict(entry) for entry in entries if canonical_json(entry["plan"]) not in known]
            if fresh or not (self.folder / RUN).exists():
                write_json(self.folder / RUN, {**data, "plans": [*data["plans"], *fresh]})

    def measurements(self) -> pd.DataFrame:
        """Return the measurement table of all finished units (:data:`densing.scores.evals.measurements.COLUMNS`)."""
        return self._read().measurements

    def items(self) -> pd.DataFrame:
        """Return the item tables of all finished units, one below the other."""
        return self._read().items

    def models(self) -> pd.DataFrame:
        """Return what is known of each model of the finished units."""
        return self._read().models

    def _read(self) -> Any:
        from densing.scores.evals.readers import read_run

        return read_run(self)


def merge(stores: Iterable[RunStore], into: Path) -> RunStore:
    """Copy the finished units of several stores into one, each once.

    Parameters
    ----------
    stores : iterable of RunStore
        Where to take units from; partial ones stay behind.
    into : path
        The store to fill; may exist, and may be one of the stores.

    Raises
    ------
    ArtefactError
        When a unit is damaged, or two stores hold different results for one key.
    InputError
        When a store does not exist.
    """
    target = RunStore(into)
    for store in stores:
        if not store.folder.is_dir():
            raise InputError(f"{store.folder}: no such run; name a folder of results/")
        if store.folder.resolve() == target.folder.resolve():
            continue
        for unit, status in store.all_units():
            if status == "partial":
                continue
            key = unit.key
            if key is None:
                raise ArtefactError(f"{unit.folder}: no key")
            target.unit(key).adopt(unit)
        target._record(store.run.get("plans", []))
    return target

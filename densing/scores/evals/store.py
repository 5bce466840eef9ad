"""The result store: one folder per run, one folder per unit, safe to write from several processes.

A unit is either wholly there, with a manifest that vouches for every file, or not done.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from densing.core import (
    ArtefactError,
    DensingError,
    InputError,
    Note,
    move,
    read_json,
    replacing,
    storage_errors,
    sync_folder,
)
from densing.scores.evals.harness import check_results, mapping, result_rows
from densing.scores.evals.identity import UnitKey, canonical_json, file_digest
from densing.scores.evals.items import TEXT_COLUMNS, Tokenizer, items_of_files
from densing.scores.evals.measurements import MODEL_COLUMNS, Measurements, join, measurement_frame, model_frame

if TYPE_CHECKING:
    import pandas as pd
    from filelock import FileLock

SCHEMA = 1
RUN, UNITS = "run.json", "units"
MANIFEST, JOURNAL, ITEMS, LOCK = "unit.json", "journal.sqlite", "items.parquet", "unit.lock"
PRODUCTS = ("results_*.json", "samples_*.jsonl", ITEMS)
FINISH_TIMEOUT = 60.0
Status = Literal["done", "partial", "damaged", "absent"]


class BusyError(DensingError):
    """Another process is writing the same thing; the message names it."""


class Unit:
    """Handle on the folder of one model × task × settings, whether it exists or not.

    Parameters
    ----------
    folder : path
        The unit's folder.
    key : UnitKey, optional
        What the folder is for; read from the manifest when left out.
    """

    def __init__(self, folder: Path, key: UnitKey | None = None) -> None:
        self.folder = Path(folder)
        self._key = key

    def __repr__(self) -> str:
        """Return the folder's name and its state."""
        return f"Unit({self.folder.name}, {self.status})"

    @property
    def key(self) -> UnitKey | None:
        """The unit's key; None for an unfinished folder opened without one."""
        if self._key is None and (self.folder / MANIFEST).is_file():
            self._key = UnitKey.from_dict(self.manifest["key"])
        return self._key

    @property
    def digest(self) -> str:
        """Digest of the key, or the eight characters that the folder's name holds of it."""
        key = self.key
        return self.folder.name.rpartition("__")[2] if key is None else key.digest

    @property
    def journal_path(self) -> Path:
        """Where the runner keeps answers of an unfinished unit."""
        return self.folder / JOURNAL

    @property
    def manifest(self) -> dict[str, Any]:
        """Content of ``unit.json``.

        Raises
        ------
        ArtefactError
            When it is missing or not a manifest of this version.
        """
        path = self.folder / MANIFEST
        try:
            data = read_json(path)
        except InputError as error:
            raise ArtefactError(str(error)) from error
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            schema = data.get("schema") if isinstance(data, dict) else type(data).__name__
            raise ArtefactError(f"{path}: schema {schema!r}, expected {SCHEMA}; written by another version of densing")
        if not isinstance(data.get("key"), Mapping) or not isinstance(data.get("files"), Mapping):
            raise ArtefactError(f"{path}: key or files are missing; delete the folder and evaluate the unit again")
        return data

    @property
    def done(self) -> bool:
        """Whether the manifest is there and every file it names has its size (a cheap look, for polling)."""
        return self.status_of(deep=False) == "done"

    @property
    def status(self) -> Status:
        """``done``, ``partial`` (a journal, no manifest), ``damaged`` or ``absent``; contents are hashed."""
        return self.status_of(deep=True)

    def status_of(self, *, deep: bool) -> Status:
        """Return the state, with or without hashing the files."""
        if not (self.folder / MANIFEST).exists():
            return "partial" if self.journal_path.exists() else "absent"
        return "damaged" if self.problems(deep=deep) else "done"

    @property
    def busy(self) -> bool:
        """Whether another process is writing it just now."""
        try:
            with self.lock(timeout=0):
                return False
        except BusyError:
            return True

    def problems(self, *, deep: bool = True) -> list[str]:
        """Return what is wrong with a unit that has a manifest, one sentence each."""
        try:
            manifest = self.manifest
            key = UnitKey.from_dict(manifest["key"])
        except InputError as error:
            return [str(error)]
        problems = []
        for name, facts in manifest["files"].items():
            path = self.folder / name
            if name != Path(name).name or not isinstance(facts, Mapping):
                problems.append(f"{self.folder / MANIFEST}: names {name[:80]!r}, which is not in the folder")
            elif not path.is_file():
                problems.append(f"{path}: missing")
            elif (size := path.stat().st_size) != facts.get("bytes"):
                problems.append(f"{path}: {size} bytes where the manifest says {facts.get('bytes')}")
            elif deep and file_digest(path) != facts.get("sha256"):
                problems.append(f"{path}: content does not match the manifest")
        expected = key.digest if self._key is None else self._key.digest
        if not manifest.get("digest") == key.digest == expected:
            problems.append(f"{self.folder / MANIFEST}: the digest does not belong to this key")
        return problems

    def lock(self, timeout: float = -1) -> AbstractContextManager[None]:
        """Hold the unit for writing; this handle may take it again while it holds it.

        Raises
        ------
        BusyError
            When another process has locked it after ``timeout`` seconds (below zero: wait for ever).
        """
        return locked(self._lock, timeout, str(self.folder))

    @cached_property
    def _lock(self) -> FileLock:
        return new_lock(self.folder / LOCK)

    @contextmanager
    def stage(self) -> Iterator[Path]:
        """Yield an empty folder beside the final files, for lm-eval to write into; hold the lock meanwhile."""
        with self.lock(FINISH_TIMEOUT):
            with storage_errors(self.folder):
                for leftover in self.folder.glob(".*"):
                    # Of a killed process: only the holder of the lock has hidden files here.
                    shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
                staged = Path(tempfile.mkdtemp(prefix=".staging-", dir=self.folder))
            try:
                yield staged
            finally:
                shutil.rmtree(staged, ignore_errors=True)

    def finish(
        self,
        staged: Path,
        manifest: Mapping[str, Any],
        *,
        tokenizer: Tokenizer | None = None,
        tokenizer_name: str = "",
    ) -> None:
        """Make lm-eval's files the unit's result: move them, derive the items, write the manifest last.

        A unit that is done already stays as it is. A crash at any point leaves it not done, with its journal.

        Parameters
        ----------
        staged : path
            Folder holding one ``results_*.json`` and its ``samples_*.jsonl``, at any depth; emptied.
        manifest : mapping
            What to record: model, versions, started, seconds, requests, counts, caveats.
        tokenizer, tokenizer_name : callable and str, optional
            As in :func:`densing.scores.evals.items.item_table`.

        Raises
        ------
        InputError
            When the folder does not hold exactly one results file, or the place cannot be written to.
        """
        if self._key is None:
            raise InputError(f"{self.folder}: a unit opened without its key cannot be finished")
        with self.lock(FINISH_TIMEOUT), storage_errors(self.folder):
            if self.status == "done":
                self._drop_journal()
                return
            results, samples = staged_files(staged)
            table, problems = items_of_files(
                results, samples, model=self._key.label, tokenizer=tokenizer, tokenizer_name=tokenizer_name
            )
            caveats = [*manifest.get("caveats", ()), *problems]
            if table is not None:
                with replacing(staged / ITEMS) as temporary:
                    table.to_parquet(temporary, index=False)
            products = [results, *samples, *([staged / ITEMS] if table is not None else [])]
            self._install(products, {**manifest, "caveats": caveats, "content": content_digest(results, samples)})

    def adopt(self, other: Unit) -> bool:
        """Copy another store's finished unit with the same key; False when it is here already.

        Raises
        ------
        ArtefactError
            When the other is damaged, or both are done and hold different results.
        """
        if problems := other.problems():
            raise ArtefactError(f"{problems[0]}; evaluate that unit again or delete its folder")
        manifest = other.manifest
        with self.stage() as staged:
            if self.status == "done":
                if self.manifest.get("content") != manifest.get("content"):
                    raise ArtefactError(
                        f"{self.folder} and {other.folder}: one key, different results; delete the wrong one"
                    )
                return False
            copies = [Path(shutil.copy2(other.folder / name, staged / name)) for name in manifest["files"]]
            self._install(copies, manifest)
        return True

    def _install(self, products: Sequence[Path], manifest: Mapping[str, Any]) -> None:
        key = self._key
        assert key is not None
        # First the state becomes "not done", then old files go, then new ones come, then it is done.
        for old in (MANIFEST, *PRODUCTS):
            for path in self.folder.glob(old):
                path.unlink()
        sync_folder(self.folder)
        files = {p.name: {"bytes": p.stat().st_size, "sha256": file_digest(p)} for p in products}
        for product in products:
            move(product, self.folder / product.name)
        entry = {"schema": SCHEMA, "digest": key.digest, "key": key.to_dict()}
        facts = {name: value for name, value in manifest.items() if name not in (*entry, "files")}
        write_json(self.folder / MANIFEST, {**entry, **facts, "files": files})
        self._drop_journal()

    def _drop_journal(self) -> None:
        for path in self.folder.glob(f"{JOURNAL}*"):
            path.unlink(missing_ok=True)

    @property
    def results_path(self) -> Path:
        """The unit's lm-eval results file."""
        return self.folder / next(name for name in self.manifest["files"] if name.startswith("results_"))

    def items(self) -> pd.DataFrame | None:
        """Return the item table, or None when lm-eval stored no samples."""
        if ITEMS not in self.manifest["files"]:
            return None
        import pandas as pd

        # Parquet gives text another type in pandas 3 than in pandas 2.
        return pd.read_parquet(self.folder / ITEMS, engine="pyarrow").astype(dict.fromkeys(TEXT_COLUMNS, "object"))

    def measurements(self, model: str) -> Measurements:
        """Return measurements, items and model of a finished unit, under this name of the model."""
        import pandas as pd

        manifest = self.manifest
        key = UnitKey.from_dict(manifest["key"])
        path = self.results_path
        content = check_results(read_json(path), str(path))
        stored = self.items()
        items = pd.DataFrame() if stored is None else stored.assign(model=model, digest=key.digest)
        rows, notes = result_rows(content, items, model=model, where=str(path), digest=key.digest)
        facts = mapping(manifest.get("model"))
        # What holds of the model stands in its row.
        own = [text for text in manifest.get("caveats", []) if text not in (facts.get("caveats") or [])]
        remarks = [Note("caveat", "info", f"{model}, {key.task_name}: {text}") for text in own]
        facts = {**key.model, **facts}
        caveats = facts.get("caveats") or []
        row = {column: facts.get(column) for column in MODEL_COLUMNS} | {
            "model": model,
            "args": json.dumps(facts.get("args", {}), sort_keys=True, default=str),
            "caveats": "; ".join(map(str, caveats)) if isinstance(caveats, list | tuple) else str(caveats),
        }
        return Measurements(measurement_frame(rows), items, model_frame([row]), (*notes, *remarks))


def staged_files(staged: Path) -> tuple[Path, list[Path]]:
    """Return lm-eval's results file and samples files under a folder.

    Raises
    ------
    InputError
        When there is not exactly one results file.
    """
    results = sorted(staged.rglob("results_*.json"))
    if len(results) != 1:
        names = ", ".join(path.name for path in results) or "none"
        raise InputError(f"{staged}: expected one results_*.json written by lm-eval, found {names}")
    return results[0], sorted(staged.rglob("samples_*.jsonl"))


def content_digest(results: Path, samples: Sequence[Path]) -> str:
    """Return a digest of what was measured: values and samples, without times and paths."""
    content = read_json(results)
    values = {name: content.get(name) for name in ("results", "groups", "versions", "n-shot", "n-samples")}
    lines = sorted(file_digest(path) for path in samples)
    return hashlib.sha256(json.dumps([values, lines], sort_keys=True).encode("ascii")).hexdigest()


@dataclass(frozen=True)
class RunOverview:
    """What a run's folder holds.

    Parameters
    ----------
    run : str
        Its name.
    models, tasks : list of str
        Of the finished units, sorted.
    done, partial, damaged : int
        Number of units.
    megabytes : float
        Size of all files, in 10⁶ bytes.
    date : str
        Day of the first plan, ISO; empty without one, "damaged" when ``run.json`` is.
    """

    run: str
    models: list[str]
    tasks: list[str]
    done: int
    partial: int
    damaged: int
    megabytes: float
    date: str


class RunStore:
    """One run's folder. Opening it has no side effects, and it need not exist.

    Parameters
    ----------
    folder : path
        ``results/NAME``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = RunStore(Path(folder) / "first")
    ...     unit = store.unit(UnitKey({"type": "hf"}, {"name": "piqa"}, {}, "tiny"))
    ...     unit.status, store.units(), store.folder.exists()
    ('absent', [], False)

    See Also
    --------
    run_plan, read_results
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
        units = self.folder / UNITS
        return [Unit(folder) for folder in sorted(units.iterdir()) if folder.is_dir()] if units.is_dir() else []

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
            raise ArtefactError(f"{path}: not a run file of schema {SCHEMA}; delete it, which keeps the units")
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

    def overview(self, name: str = "") -> RunOverview:
        """Return what the run holds, under a name or its folder's."""
        states = self.all_units()
        keys = [unit.key for unit, status in states if status == "done"]
        sizes = [path.stat().st_size for path in self.folder.rglob("*") if path.is_file()]
        try:
            date = str(self.run.get("created", ""))[:10]
        except ArtefactError:
            date = "damaged"
        counts = Counter(status for _, status in states)
        return RunOverview(
            run=name or self.folder.name,
            models=sorted({key.label for key in keys if key}),
            tasks=sorted({key.task_name for key in keys if key}),
            done=counts["done"],
            partial=counts["partial"],
            damaged=counts["damaged"],
            megabytes=round(sum(sizes) / 1e6, 3),
            date=date,
        )

    def measurements(self) -> pd.DataFrame:
        """Return the measurement table of all finished units (:data:`densing.scores.evals.measurements.COLUMNS`)."""
        return read_run(self).measurements

    def items(self) -> pd.DataFrame:
        """Return the item tables of all finished units, one below the other."""
        return read_run(self).items

    def models(self) -> pd.DataFrame:
        """Return what is known of each model of the finished units."""
        return read_run(self).models


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


def is_run(folder: Path) -> bool:
    """Whether a folder is a run of ours."""
    return (folder / UNITS).is_dir()


def runs_below(folder: Path) -> list[Path]:
    """Return the runs of ours at any depth below a folder, sorted."""
    runs = sorted(units.parent for units in folder.rglob(UNITS) if units.is_dir())
    return [run for run in runs if not any(other in run.parents for other in runs)]


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
        When the folder is not a run.
    """
    store = run if isinstance(run, RunStore) else RunStore(run)
    if not isinstance(run, RunStore) and not is_run(store.folder):
        raise InputError(f"{store.folder}: has no folder of units; give a run written by densing eval")
    states = store.all_units()
    done = [(unit, UnitKey.from_dict(unit.manifest["key"])) for unit, status in states if status == "done"]
    models: dict[str, set[str]] = {}
    for _, key in done:
        models.setdefault(key.label, set()).add(key.model_digest)
    parts = []
    for unit, key in done:
        name = key.label if len(models[key.label]) == 1 else f"{key.label}@{key.model_digest[:6]}"
        parts.append(unit.measurements(name))
    notes = []
    for unit, status in states:
        about = {"unit": str(unit.folder)}
        if status == "damaged":
            message = f"{unit.problems()[0]}; the unit is left out, evaluate it again"
            notes.append(Note("unit-damaged", "error", message, about))
        elif status == "partial":
            message = f"{unit.folder}: unfinished and left out; run the same plan again"
            notes.append(Note("unit-partial", "warning", message, about))
    return join(parts, notes)


def utc_now() -> str:
    """Return the present moment as ISO text in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write a JSON file atomically and durably."""
    text = json.dumps(data, indent=1, ensure_ascii=True) + "\n"
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode("ascii"))


def new_lock(path: Path) -> FileLock:
    """Return a lock on a file; the same object may be taken again by whoever holds it."""
    from filelock import FileLock

    return FileLock(path, thread_local=False)


@contextmanager
def locked(lock: FileLock, timeout: float, subject: str) -> Iterator[None]:
    """Hold a lock; beside it stands who holds it.

    Parameters
    ----------
    lock : FileLock
        From :func:`new_lock`.
    timeout : float
        Seconds to wait; below zero for ever.
    subject : str
        What is locked, for the message.

    Raises
    ------
    BusyError
        When another process still holds it after ``timeout``.
    """
    from filelock import Timeout

    path = Path(lock.lock_file)
    owner = path.with_suffix(".owner")
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=timeout)
        except Timeout:
            raise BusyError(f"{subject}: {_holder(owner)}; wait for it to finish, or stop it and try again") from None
    try:
        if lock.lock_counter == 1:
            write_json(owner, {"pid": os.getpid(), "host": socket.gethostname(), "since": utc_now()})
        yield
    finally:
        if lock.lock_counter == 1:
            owner.unlink(missing_ok=True)
        lock.release()


def _holder(owner: Path) -> str:
    """Return who holds a lock, from the file that the holder writes right after it took it: a moment may pass."""
    for _ in range(10):
        with suppress(InputError):
            data = read_json(owner)
            if isinstance(data, Mapping):
                return f"process {data.get('pid')} on {data.get('host')} has locked it since {data.get('since')}"
        time.sleep(0.02)
    return "another process has locked it"

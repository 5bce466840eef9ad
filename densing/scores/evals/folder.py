"""One unit's folder: either wholly there, with a manifest that vouches for every file, or not done."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from densing.core import ArtefactError, InputError, move, replacing, storage_errors, sync_folder
from densing.scores.evals.disk import file_digest, locked, new_lock, read_json, write_json
from densing.scores.evals.unit import UnitKey

if TYPE_CHECKING:
    import pandas as pd

    from densing.scores.evals.losses import Tokenizer

SCHEMA = 1
MANIFEST, JOURNAL, ITEMS, LOCK = "unit.json", "journal.sqlite", "items.parquet", "unit.lock"
PRODUCTS = ("results_*.json", "samples_*.jsonl", ITEMS)
FINISH_TIMEOUT = 60.0
Status = Literal["done", "partial", "damaged", "absent"]


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
            found = data.get("schema") if isinstance(data, dict) else type(data).__name__
            raise ArtefactError(f"{path}: schema {found!r}, expected {SCHEMA}; written by another version of densing")
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

    def problems(self, *, deep: bool = True) -> list[str]:
        """Return what is wrong with a unit that has a manifest, one sentence each."""
        try:
            manifest = self.manifest
            key = UnitKey.from_dict(manifest["key"])
        except InputError as error:
            return [str(error)]
        found = [f"{self.folder / name}: {trouble}" for name, trouble in _file_troubles(self.folder, manifest, deep)]
        asked = key.digest if self._key is None else self._key.digest
        if not manifest.get("digest") == key.digest == asked:
            found.append(f"{self.folder / MANIFEST}: the digest does not belong to this key")
        return found

    def lock(self, timeout: float = -1) -> AbstractContextManager[None]:
        """Hold the unit for writing; this handle may take it again while it holds it.

        Raises
        ------
        BusyError
            When another process holds it after ``timeout`` seconds (below zero: wait for ever).
        """
        return locked(self._lock, timeout, str(self.folder))

    @cached_property
    def _lock(self) -> Any:
        return new_lock(self.folder / LOCK)

    @contextmanager
    def stage(self) -> Iterator[Path]:
        """Yield an empty folder beside the final files, for lm-eval to write into; hold the lock meanwhile."""
        with self.lock(FINISH_TIMEOUT):
            with storage_errors(self.folder):
                for left in self.folder.glob(".*"):
                    # Leftovers of a killed process: only the holder of the lock has hidden files here.
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
                place = Path(tempfile.mkdtemp(prefix=".staging-", dir=self.folder))
            try:
                yield place
            finally:
                shutil.rmtree(place, ignore_errors=True)

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
            As in :func:`densing.scores.evals.losses.item_table`.

        Raises
        ------
        InputError
            When the folder does not hold exactly one results file, or the place cannot be written to.
        """
        from densing.scores.evals.items import items_of_files

        if self._key is None:
            raise InputError(f"{self.folder}: a unit opened without its key cannot be finished")
        with self.lock(FINISH_TIMEOUT), storage_errors(self.folder):
            if self.status == "done":
                self._drop_journal()
                return
            results, samples = staged_files(staged)
            table, troubles = items_of_files(
                results, samples, model=self._key.label, tokenizer=tokenizer, tokenizer_name=tokenizer_name
            )
            caveats = [*manifest.get("caveats", ()), *troubles]
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
        if troubles := other.problems():
            raise ArtefactError(f"{troubles[0]}; evaluate that unit again or delete its folder")
        theirs = other.manifest
        with self.stage() as staged:
            if self.status == "done":
                if self.manifest.get("content") != theirs.get("content"):
                    raise ArtefactError(
                        f"{self.folder} and {other.folder}: one key, different results; delete the wrong one"
                    )
                return False
            copies = [Path(shutil.copy2(other.folder / name, staged / name)) for name in theirs["files"]]
            self._install(copies, theirs)
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
        entry = {"schema": SCHEMA, "digest": key.digest, "key": key.to_dict(), **_without_reserved(manifest)}
        write_json(self.folder / MANIFEST, {**entry, "files": files})
        self._drop_journal()

    def _drop_journal(self) -> None:
        for left in self.folder.glob(f"{JOURNAL}*"):
            left.unlink(missing_ok=True)

    @property
    def results_path(self) -> Path:
        """The unit's lm-eval results file."""
        return self.folder / next(name for name in self.manifest["files"] if name.startswith("results_"))

    def items(self) -> pd.DataFrame | None:
        """Return the item table, or None when lm-eval stored no samples."""
        if ITEMS not in self.manifest["files"]:
            return None
        import pandas as pd

        from densing.scores.evals.losses import TEXT_COLUMNS

        # Parquet gives text another type in pandas 3 than in pandas 2.
        return pd.read_parquet(self.folder / ITEMS, engine="pyarrow").astype(dict.fromkeys(TEXT_COLUMNS, "object"))


def staged_files(staged: Path) -> tuple[Path, list[Path]]:
    """Return lm-eval's results file and samples files under a folder.

    Raises
    ------
    InputError
        When there is not exactly one results file.
    """
    results = sorted(staged.rglob("results_*.json"))
    if len(results) != 1:
        found = ", ".join(path.name for path in results) or "none"
        raise InputError(f"{staged}: expected one results_*.json written by lm-eval, found {found}")
    return results[0], sorted(staged.rglob("samples_*.jsonl"))


def content_digest(results: Path, samples: Sequence[Path]) -> str:
    """Return a digest of what was measured: values and samples, without times and paths."""
    read = read_json(results)
    values = {name: read.get(name) for name in ("results", "groups", "versions", "n-shot", "n-samples")}
    lines = sorted(file_digest(path) for path in samples)
    return hashlib.sha256(json.dumps([values, lines], sort_keys=True).encode("ascii")).hexdigest()


def _without_reserved(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in manifest.items() if name not in ("schema", "digest", "key", "files")}


def _file_troubles(folder: Path, manifest: Mapping[str, Any], deep: bool) -> Iterator[tuple[str, str]]:
    for name, facts in manifest["files"].items():
        path = folder / name
        if name != Path(name).name or not isinstance(facts, Mapping):
            yield MANIFEST, f"names {name[:80]!r}, which is no file of the folder"
        elif not path.is_file():
            yield name, "missing"
        elif path.stat().st_size != facts.get("bytes"):
            yield name, f"{path.stat().st_size} bytes where the manifest says {facts.get('bytes')}"
        elif deep and file_digest(path) != facts.get("sha256"):
            yield name, "content differs from what the manifest vouches for"

"""Adapters that tuning stored (``densing tune``): whose they are, what they were told, and what they may be asked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from densing.core import ArtefactError, InputError, UnavailableError, install_command, parse_json, read_text, write_text
from densing.scores.evals.identity import file_digest

WEIGHTS, CONFIG, MANIFEST = "adapter_model.safetensors", "adapter_config.json", "densing.json"
"""The first two are peft's own names."""
SCHEMA = 1


@dataclass(frozen=True)
class Adapter:
    """Weights beside those of a model, in peft's format.

    Parameters
    ----------
    folder : Path
        Where they are stored.
    manifest : mapping
        ``model`` and its ``revision``, ``settings`` (split, films, passes, rank, rate, batch, seed, dtype), ``told``
        (ids of the films), ``films, tokens, steps, parameters``, ``loss`` at both ends of the training, ``versions``,
        and each file's sha256.
    """

    folder: Path
    manifest: Mapping[str, Any]

    @property
    def split(self) -> str:
        """The split of which films to learn from were told."""
        return str(self.manifest["settings"]["split"])

    @property
    def caveat(self) -> str:
        """What a reader of its numbers must know."""
        settings = self.manifest["settings"]
        return (
            f"tuned (LoRA, rank {settings['rank']}) on {self.manifest['films']} films with their reception, "
            f"training split {self.split}; merged into the weights"
        )

    @property
    def provenance(self) -> dict[str, Any]:
        """The manifest without the list of films: what stands beside each result."""
        return {name: value for name, value in self.manifest.items() if name != "told"}

    def check_splits(self, splits: Iterable[str]) -> None:
        """Refuse questions about films by another split: their reception may have been told.

        Parameters
        ----------
        splits : iterable of str
            Those that a task's films are of; empty for a task about something else.

        Raises
        ------
        InputError
            When one is not the adapter's own.
        """
        if others := sorted(set(splits) - {self.split}):
            raise InputError(
                f"tests on split {others[0]}, but {self.folder} was trained on split {self.split}, which may contain "
                f"the same films; test on that split, or run densing tune --split {others[0]}"
            )


def need_peft() -> None:
    """Say what is missing before a model is loaded.

    Raises
    ------
    UnavailableError
        When peft is not installed.
    """
    if find_spec("peft") is None:
        raise UnavailableError(f"peft is not installed; {install_command('tune')}")


def describe_adapter(folder: Path, about: Mapping[str, Any]) -> None:
    """Write the manifest of an adapter that peft stored; what :func:`read_adapter` reads.

    Parameters
    ----------
    folder : Path
        With peft's two files.
    about : mapping
        The manifest but for the files' digests, see :class:`Adapter`.
    """
    digests = {name: file_digest(folder / name) for name in (CONFIG, WEIGHTS)}
    manifest = {"schema": SCHEMA, "kind": "adapter", **about, "files": digests}
    write_text(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")


def read_adapter(folder: Path, revision: str) -> Adapter:
    """Return the stored adapter of a model.

    Parameters
    ----------
    folder : Path
        As :func:`densing.scores.ladder.tune` wrote it.
    revision : str
        The model's, as :func:`densing.scores.evals.identify_model` says.

    Raises
    ------
    InputError
        When nothing is stored there, or it belongs to another model.
    ArtefactError
        When a file is damaged.
    """
    path = folder / MANIFEST
    if missing := [name for name in (MANIFEST, CONFIG, WEIGHTS) if not (folder / name).is_file()]:
        raise InputError(
            f"{folder}: no adapter of densing tune in it ({missing[0]} is missing); run densing tune --out {folder}; "
            f"an adapter from elsewhere is given by --model_args peft={folder}"
        )
    manifest = parse_json(read_text(path, str(path)), str(path))
    try:
        sound = manifest["kind"] == "adapter" and manifest["schema"] == SCHEMA
        model, tuned, digests = manifest["model"], manifest["revision"], dict(manifest["files"])
        adapter = Adapter(folder, manifest)
        sound = sound and {CONFIG, WEIGHTS} <= set(digests) and bool(adapter.split and adapter.caveat)
    except (KeyError, TypeError, ValueError, AttributeError):
        sound = False
    if not sound:
        raise ArtefactError(f"{path}: not the manifest of an adapter; tune again into another folder")
    if tuned != revision:
        raise InputError(
            f"{folder}: an adapter of {model} ({tuned[:19]}), but this model is {revision[:19]}; tune this "
            "one with densing tune"
        )
    for name in (CONFIG, WEIGHTS):
        if file_digest(folder / name) != digests[name]:
            raise ArtefactError(f"{folder / name}: content does not match {MANIFEST}; tune again into another folder")
    return adapter

"""What makes two evaluations the same one: model, task and settings, under one digest."""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from densing.core import InputError

# Long enough to read, short enough that model, task and digest stay below the 255 bytes of a file name.
NAME_LENGTH = 80
DIGEST8 = 8


@dataclass(frozen=True)
class UnitKey:
    """Identity of one unit of work: one model on one requested task under one set of settings.

    Parameters
    ----------
    model : mapping
        ``{"type", "args", "revision", "dtype"}`` without secrets; ``revision`` is a hash of the weights or a commit.
    task : mapping
        ``{"name", "version", "hash"}``; the hash covers configuration and documents.
    settings : mapping
        Everything else that can change a number: shots, seeds, limit, generation options, chat template.
    label : str
        Name of the model for people and folders; not part of the digest.

    Raises
    ------
    InputError
        When a part holds something that JSON cannot say.

    Examples
    --------
    >>> key = UnitKey({"type": "hf"}, {"name": "piqa"}, {"limit": 40}, "models/tiny")
    >>> key.folder == f"models-tiny__piqa__{key.digest[:8]}"
    True
    >>> key.digest == UnitKey({"type": "hf"}, {"name": "piqa"}, {"limit": 40.0}, "another name").digest
    True
    """

    model: Mapping[str, Any]
    task: Mapping[str, Any]
    settings: Mapping[str, Any]
    label: str

    def __post_init__(self) -> None:
        """Check at once that the key has a digest."""
        _ = self.digest

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON of model, task and settings."""
        parts = {"model": self.model, "task": self.task, "settings": self.settings}
        return hashlib.sha256(canonical_json(parts).encode("ascii")).hexdigest()

    @property
    def task_name(self) -> str:
        """Name of the requested task or group."""
        return str(self.task.get("name", ""))

    @property
    def folder(self) -> str:
        """Name of the unit's folder: readable, safe on every file system, told apart by the digest."""
        return f"{safe_name(self.label)}__{safe_name(self.task_name)}__{self.digest[:DIGEST8]}"

    def to_dict(self) -> dict[str, Any]:
        """Return the key as plain data."""
        parts = {"model": self.model, "task": self.task, "settings": self.settings, "label": self.label}
        return {name: _plain(part) for name, part in parts.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> UnitKey:
        """Rebuild a key written by :meth:`to_dict`.

        Raises
        ------
        InputError
            When a part is missing or of another type.
        """
        parts = [data.get(name) for name in ("model", "task", "settings")]
        maps = [part for part in parts if isinstance(part, Mapping)]
        label = data.get("label")
        if len(maps) == len(parts) and isinstance(label, str):
            return cls(maps[0], maps[1], maps[2], label)
        raise InputError("a unit's key needs mappings model, task and settings, and a text label")


def canonical_json(value: Any) -> str:
    """Return JSON that is the same text for the same content: sorted keys, ASCII, 40.0 written as 40.

    Examples
    --------
    >>> canonical_json({"b": 40.0, "a": (1, None)})
    '{"a":[1,null],"b":40}'
    """
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        # lm-eval's command line says limit 40.0 where its API says 40; they are one setting.
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    raise InputError(
        f"{str(value)[:60]!r} ({type(value).__name__}) cannot be part of a unit's key; pass plain JSON data"
    )


def safe_name(text: str) -> str:
    """Return a name for a file or folder: ASCII letters, digits, ``.``, ``_``, ``-``; never empty, hidden or a path.

    Examples
    --------
    >>> safe_name("../../etc/passwd"), safe_name("modèle 7B"), safe_name("")
    ('etc-passwd', 'modele-7B', 'unnamed')
    """
    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    cleaned = re.sub(r"-*\.\.+-*|[^A-Za-z0-9._-]+", "-", ascii_text)
    return cleaned[:NAME_LENGTH].strip("-.") or "unnamed"

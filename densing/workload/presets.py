"""Named workloads: the models of the papers, each with the step it was measured on, and models of the user's own."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from densing.errors import InputError, UnknownNameError
from densing.workload.hf_config import read_config
from densing.workload.modules import check
from densing.workload.workload import Split, Transformer, Workload

FILE = Path(__file__).with_name("presets.toml")
SPLIT = {"dp": "dp", "tp": "tp", "pp": "pp", "sequence_parallel": "sequence"}
STEP = ("mode", "batch", "sequence", "micro_batches", "dtype_bytes", "recompute", "fused_attention", "dropout")


def workload_names() -> tuple[str, ...]:
    """Return the names of the presets.

    Examples
    --------
    >>> "llama3-70b" in workload_names()
    True
    """
    return tuple(_presets())


def load_workload(name: str | Path, **overrides: Any) -> Workload:
    """Return a preset by name, or read a Hugging Face ``config.json``.

    Parameters
    ----------
    name : str or path
        Of a preset, of a ``config.json``, or of a folder that holds one.
    **overrides
        ``mode``, ``batch``, ``sequence``, ``micro_batches``, ``dtype_bytes``, ``dp``, ``tp``, ``pp``,
        ``sequence_parallel``; None leaves what the preset says.

    Raises
    ------
    UnknownNameError
        For a name that is neither, or another override.
    InputError
        For a file that cannot be read, and for numbers that do not go together.

    Examples
    --------
    >>> load_workload("llama3-70b", mode="decode", batch=4, tp=8).model.kv_heads
    8
    """
    found = _presets().get(str(name)) or Workload(_own(name))
    given = {key: value for key, value in overrides.items() if value is not None}
    for key in given:
        if key not in (*STEP, *SPLIT):
            raise UnknownNameError("override", key, (*STEP, *SPLIT))
    split = replace(found.split, **{SPLIT[key]: value for key, value in given.items() if key in SPLIT})
    changed = replace(found, split=split, **{key: value for key, value in given.items() if key in STEP})
    check(changed)
    return changed


def _own(name: str | Path) -> Transformer:
    path = Path(name)
    if path.suffix != ".json" and len(path.parts) < 2 and not path.is_dir():
        raise UnknownNameError("model (nor a config.json)", str(name), workload_names())
    return read_config(path)


@cache
def _presets() -> dict[str, Workload]:
    data = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return {name: _workload(name, table) for name, table in data.items()}


def _workload(name: str, table: dict[str, Any]) -> Workload:
    step = dict(table.pop("step"))
    split = Split(**{SPLIT[key]: step.pop(key) for key in list(step) if key in SPLIT})
    try:
        return Workload(msgspec.convert({"name": name, **table}, Transformer), split=split, **step)
    except (msgspec.ValidationError, TypeError) as error:
        raise InputError(f"preset {name}: {error}") from error

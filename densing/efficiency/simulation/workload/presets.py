"""Named workloads: the models of the papers, each with the step it was measured on, and models of the user's own."""

from __future__ import annotations

import tomllib
from functools import cache
from math import gcd
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from densing.core import InputError, UnknownNameError
from densing.efficiency.simulation.workload.hf_config import read_config
from densing.efficiency.simulation.workload.modules import check
from densing.efficiency.simulation.workload.workload import Split, Transformer, Workload

FILE = Path(__file__).with_name("presets.toml")
SPLIT = {"dp": "dp", "tp": "tp", "pp": "pp", "sequence_parallel": "sequence"}
OWN: dict[str, Any] = {"batch": 8, "sequence": 2048, "micro_batches": 8}
"""A training step of a model that is no preset: an assumption, as the presets' training steps."""
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
        ``mode``, ``batch``, ``sequence``, ``micro_batches``, ``dtype_bytes``, ``recompute``, ``fused_attention``,
        ``dropout``, ``dp``, ``tp``, ``pp``, ``sequence_parallel``; None leaves what the preset says. Mode ``train``
        takes a training step's batch and sequence where the preset's own step is one of inference. Another batch leaves
        the size of the micro-batches as it is, where it can.

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
    >>> step = load_workload("llama3-70b", mode="train")
    >>> step.batch, step.sequence, step.micro_batches
    (8, 8192, 8)
    """
    given = {key: value for key, value in overrides.items() if value is not None}
    train = given.get("mode", "train") == "train"
    found = (_training() if "mode" in given and train else {}).get(str(name)) or _presets().get(str(name))
    found = found or Workload(_own(name), **(OWN if train else {}))
    for key in given:
        if key not in (*STEP, *SPLIT):
            raise UnknownNameError("override", key, (*STEP, *SPLIT))
    if isinstance(batch := given.get("batch"), int) and batch > 0 and "micro_batches" not in given:
        found = resized(found, batch)
    split = replace(found.split, **{SPLIT[key]: value for key, value in given.items() if key in SPLIT})
    changed = replace(found, split=split, **{key: value for key, value in given.items() if key in STEP})
    check(changed)
    return changed


def resized(workload: Workload, batch: int) -> Workload:
    """Return the step with another batch, in micro-batches of the same size where that divides it, else in as few.

    Examples
    --------
    >>> step = load_workload("llama3-70b", mode="train")
    >>> [resized(step, batch).micro_batches for batch in (1, 4, 64)]
    [1, 4, 64]
    """
    each = max(workload.batch // workload.micro_batches, 1)
    parts = batch // each if workload.micro_batches > 1 and batch % each == 0 else gcd(batch, workload.micro_batches)
    return replace(workload, batch=batch, micro_batches=parts)


def _own(name: str | Path) -> Transformer:
    path = Path(name)
    if path.suffix != ".json" and len(path.parts) < 2 and not path.is_dir():
        raise UnknownNameError("model (nor a config.json)", str(name), workload_names())
    return read_config(path)


@cache
def _presets() -> dict[str, Workload]:
    return {name: _workload(name, table, table["step"]) for name, table in _tables().items()}


@cache
def _training() -> dict[str, Workload]:
    """Those whose own step is one of inference, with a training step on the same split."""
    found = {name: table for name, table in _tables().items() if "train" in table}
    steps = {name: {**table["step"], **table["train"], "mode": "train"} for name, table in found.items()}
    return {name: _workload(name, table, steps[name]) for name, table in found.items()}


def _tables() -> dict[str, dict[str, Any]]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def _workload(name: str, table: dict[str, Any], step: dict[str, Any]) -> Workload:
    table = {key: value for key, value in table.items() if key not in ("step", "train")}
    step = dict(step)
    split = Split(**{SPLIT[key]: step.pop(key) for key in list(step) if key in SPLIT})
    try:
        return Workload(msgspec.convert({"name": name, **table}, Transformer), split=split, **step)
    except (msgspec.ValidationError, TypeError) as error:
        raise InputError(f"preset {name}: {error}") from error

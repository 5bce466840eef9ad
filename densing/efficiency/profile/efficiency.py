"""The two efficiencies of profiled runs: model FLOPs utilisation (MFU) of one, scaling efficiency of several.

The formulas stand in :mod:`densing.efficiency.timeline`; here what the user says of the model or of the work meets what
the traces say of time and devices.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from densing.core import InputError, Note, UnknownNameError
from densing.efficiency.profile.run import RunProfile
from densing.efficiency.timeline import (
    FORMULAS,
    REMEDY,
    Flops,
    Peak,
    Run,
    Scaling,
    Utilisation,
    find_peak,
    formula_inputs,
    given_peak,
    hfu,
    mfu,
    model_flops,
    scaling,
)

_ALIASES = {"params": "parameters", "seq": "sequence"}
_KEYS = {name: key for key, name in _ALIASES.items()}
_WORDS = ("formula", "dtype", "recompute", "device")
_RUN = ("formula", "dtype", "device", "tokens", "peak", "devices")
_SWITCHES = ("attention", "flash")
_ATTENTION = ("layers", "heads", "head_dim", "sequence")
_POWERS = {"k": 3, "m": 6, "b": 9, "g": 9, "t": 12}
_COMMAND_REMEDY = "give the dense peak of one device as peak=TFLOPS in --mfu"


@dataclass(frozen=True)
class RunUtilisation:
    """MFU and, where the formula defines it, HFU of a run; both None where the notes say that the peak is unknown."""

    model: Utilisation | None
    hardware: Utilisation | None
    step_ms: float
    notes: tuple[Note, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; the percentages also by themselves."""
        return {
            "mfu_pct": self.model and self.model.percent,
            "hfu_pct": self.hardware and self.hardware.percent,
            "step_ms": self.step_ms,
            "mfu": self.model and self.model.to_dict(),
            "hfu": self.hardware and self.hardware.to_dict(),
            "notes": [note.to_dict() for note in self.notes],
        }


def parse_spec(text: str) -> dict[str, float | str]:
    """Read ``params=7e9,tokens=4.2e6,dtype=bf16``.

    Raises
    ------
    InputError
        For no part at all, a part that is no ``key=value``, a key that is not known or given twice, and a value that
        is not a number above 0.

    Examples
    --------
    >>> parse_spec("params=7e9, tokens=4194304, dtype=bf16")
    {'parameters': 7000000000.0, 'tokens': 4194304.0, 'dtype': 'bf16'}
    """
    spec: dict[str, float | str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, sign, value = (piece.strip() for piece in part.partition("="))
        name = _ALIASES.get(key, key)
        if not sign or not key or name in spec:
            raise InputError(f"--mfu: {part!r} is not key=value, or repeats a key; write e.g. params=7e9,tokens=4.2e6")
        _known(name, {*_RUN, *(name for formula in FORMULAS for name in formula_inputs(formula))})
        spec[name] = value if name in _WORDS else _number(key, value)
    if not spec:
        raise InputError(f"--mfu {text!r}: add params=NUMBER and tokens=NUMBER (per step, all ranks)")
    return spec


def _known(name: str, known: Iterable[str], of: str = "") -> None:
    """Refuse a key that is not among the known; all by the names that the user writes."""
    keys, key = [_KEYS.get(each, each) for each in known], _KEYS.get(name, name)
    if key not in keys:
        raise InputError(f"--mfu: {of}{UnknownNameError('key', key, keys)}")


def _number(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        # ``7B`` is meant as ``7e9``.
        unit = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*([kmbgt])", text[:64].lower())
        example = f"{unit[1]}e{_POWERS[unit[2]]}" if unit else "e.g. 7e9"
        raise InputError(f"--mfu: {key}={text} is not a number; write {example}") from None
    if key in _SWITCHES and value in (0, 1):
        return value
    if key in _SWITCHES or not math.isfinite(value) or value <= 0 or (key == "devices" and value % 1):
        allowed = "0 or 1" if key in _SWITCHES else "a whole number above 0" if key == "devices" else "a number above 0"
        raise InputError(f"--mfu: {key}={text} is not {allowed}")
    return value


def run_utilisation(run: RunProfile, spec: Mapping[str, float | str]) -> RunUtilisation:
    """Compute MFU and HFU of a run.

    Parameters
    ----------
    run : RunProfile
        Its median step time counts; it needs marked steps.
    spec : mapping
        ``formula`` (palm, megatron or mosaicml; palm by default) with its inputs; ``tokens`` per step over all ranks
        for formulas per token; ``dtype`` (bf16); ``peak`` in TFLOP/s or ``device``, else the trace's own device;
        ``devices``, else the trace's world size, else the ranks profiled.

    Raises
    ------
    InputError
        Without marked steps, for inputs that are missing or that the formula does not take, and above 100 %.
    """
    if run.figures["compute_pct"] is None:
        raise InputError("--mfu: no work was recorded, so the model's time is unknown (see the notes)")
    if not run.figures["steps"]:
        raise InputError("--mfu: the traces have no step marks, so the step time is unknown; record with step() calls")
    options = dict(spec)
    step_ms = float(run.figures["step_ms"] or 0)
    dtype = str(options.pop("dtype", "bf16"))
    with _of_the_command():
        peak, notes = _peak(run, options, dtype)
    count = int(options.pop("devices", 0)) or run.world_size
    tokens = options.pop("tokens", None)
    flops = _flops(str(options.pop("formula", "palm")), options)
    if flops.unit == "token" and tokens is None:
        raise InputError(f"--mfu: formula {flops.formula} counts per token; add tokens=NUMBER (per step, all ranks)")
    if flops.unit != "token" and tokens is not None:
        raise InputError(f"--mfu: formula {flops.formula} counts per {flops.unit}; leave tokens out")
    # Units of work of one step: its tokens, or one iteration.
    rate = (1.0 if tokens is None else float(tokens)) / (step_ms / 1e3)
    if peak is None:
        return RunUtilisation(None, None, step_ms, notes)
    if "devices" not in spec and all(rank.world_size < 1 for rank in run.ranks):
        text = (
            f"--mfu: no trace states the number of ranks; assuming the {count} profiled; otherwise give devices=NUMBER"
        )
        notes = (*notes, Note("devices-assumed", "warning", text, {"devices": count}))
    use = {"rate": rate, "devices": count, "peak": peak}
    with _of_the_command("; to use another peak, add peak=TFLOPS to --mfu"):
        hardware = hfu(flops, **use) if flops.hardware is not None else None  # type: ignore[arg-type]
        return RunUtilisation(mfu(flops, **use), hardware, step_ms, notes)  # type: ignore[arg-type]


@contextmanager
def _of_the_command(remedy: str = "") -> Iterator[None]:
    """Say of an error which option it is about."""
    try:
        yield
    except InputError as error:
        raise InputError(f"--mfu: {error}{remedy}") from error


def _flops(formula: str, options: Mapping[str, float | str]) -> Flops:
    """Count by a formula; whatever does not fit is named by the user's own keys."""
    with _of_the_command():
        known = formula_inputs(formula)
    for name in options:
        _known(name, [*known, *_RUN], f"formula {formula}: ")
    inputs: dict[str, Any] = dict(options)
    inputs.update({name: bool(inputs[name]) for name in _SWITCHES if name in inputs})
    absent = [name for name in _ATTENTION if name not in inputs] if formula == "palm" else []
    if absent:
        # Of the palm formula: without attention the model's shape does not matter, with part of it nothing can be told.
        shape = [name for name in (*_ATTENTION, "attention") if inputs.get(name)]
        if shape and inputs.get("attention", True):
            present = _listed([f"{_KEYS.get(name, name)}={float(inputs[name]):g}" for name in shape])
            raise InputError(f"--mfu: {present} alone: also give {_listed([_KEYS.get(name, name) for name in absent])}")
        inputs |= {"attention": False, **dict.fromkeys(absent, 1)}
    missing = [f"{_KEYS.get(name, name)}=NUMBER" for name, needed in known.items() if needed and name not in inputs]
    if missing:
        raise InputError(f"--mfu: add {_listed(missing)}" + (f" (formula {formula})" if formula != "palm" else ""))
    with _of_the_command():
        return model_flops(formula, **inputs)


def _listed(items: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(items[:-1]), items[-1])))


def _peak(run: RunProfile, options: dict[str, float | str], dtype: str) -> tuple[Peak | None, tuple[Note, ...]]:
    if "peak" in options:
        return given_peak(float(options.pop("peak")), dtype), ()
    device = str(options.pop("device", ""))
    names = [device] if device else list(run.devices) or [""]
    results = [find_peak(name, dtype) for name in names]
    if len({result.peak and result.peak.flops for result in results}) > 1:
        raise InputError(
            f"the traces list several devices ({', '.join(names)}); choose the one whose peak to use: device=NAME"
        )
    peak, note = results[0].peak, results[0].note
    return peak, () if note is None else (replace(note, message=note.message.replace(REMEDY, _COMMAND_REMEDY)),)


def scaling_of(runs: Mapping[str, RunProfile], kind: str, work: Mapping[str, float]) -> Scaling:
    """Compare profiled runs of different size.

    Parameters
    ----------
    runs : mapping of str to RunProfile
        By name.
    kind : {"strong", "weak", "throughput"}
    work : mapping of str to float
        Samples or tokens per step by run; needed for throughput.

    Raises
    ------
    InputError
        When a run marks no steps, or the runs cannot be compared.
    """
    rows = []
    for name, run in runs.items():
        if not run.figures["steps"]:
            raise InputError(f"{name}: has no step marks, so the step time is unknown; record with step() calls")
        seconds = float(run.figures["step_ms"] or 0) / 1e3
        rows.append(Run(run.world_size, seconds, f"median step time, window {run.window}", work.get(name), name))
    return scaling(rows, kind)  # type: ignore[arg-type]


def scaling_notes(runs: Mapping[str, RunProfile]) -> Iterator[Note]:
    """Say where runs differ in more than their size.

    Parameters
    ----------
    runs : mapping of str to RunProfile
        By name.
    """
    # What a run ran on; nothing where its traces name no accelerator although they hold work of one.
    devices = {
        name: ", ".join(run.devices) or "processor"
        for name, run in runs.items()
        if run.devices or all(rank.on_host for rank in run.ranks)
    }
    if len(set(devices.values())) > 1:
        listed = "; ".join(f"{name}: {device}" for name, device in devices.items())
        text = f"runs on different devices ({listed}): efficiency differences are partly due to the devices"
        yield Note("different-devices", "warning", text, devices)
    for name, run in runs.items():
        if all(rank.world_size < 1 for rank in run.ranks):
            text = f"{name}: no trace states the number of ranks; assuming the {run.world_size} profiled"
            yield Note("size-assumed", "warning", text, {"run": name, "devices": run.world_size})

"""Model FLOPs utilisation of a profiled run, from what the user says of the model and what the traces say of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from densing.errors import InputError
from densing.notes import Note
from densing.profile.run import RunProfile
from densing.timeline.mfu import Peak, Utilisation, find_peak, given_peak, hfu, mfu, model_flops

_ALIASES = {"params": "parameters", "seq": "sequence"}
_WORDS = ("formula", "dtype", "recompute", "device")
_ATTENTION = ("layers", "heads", "head_dim", "sequence")


@dataclass(frozen=True)
class RunUtilisation:
    """MFU and, where the formula defines it, HFU of a run; both None with a note where the peak is unknown."""

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
        }


def parse_spec(text: str) -> dict[str, float | str]:
    """Read ``params=7e9,tokens=4.2e6,dtype=bf16``.

    Raises
    ------
    InputError
        For a part that is no ``key=value``, a value that is no number, or a key given twice.

    Examples
    --------
    >>> parse_spec("params=7e9, tokens=4194304, dtype=bf16")
    {'parameters': 7000000000.0, 'tokens': 4194304.0, 'dtype': 'bf16'}
    """
    found: dict[str, float | str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, sign, value = (piece.strip() for piece in part.partition("="))
        name = _ALIASES.get(key, key)
        if not sign or not key or name in found:
            raise InputError(f"--mfu: {part!r} is no key=value, or repeats one; write e.g. params=7e9,tokens=4.2e6")
        try:
            found[name] = value if name in _WORDS else float(value)
        except ValueError:
            raise InputError(f"--mfu: {key} = {value!r} is not a number") from None
    return found


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
        Without marked steps, for missing inputs, and above 100 %.
    """
    if not run.figures["steps"]:
        raise InputError("--mfu: the traces mark no steps, so the time of one is unknown; record with step() calls")
    given = dict(spec)
    step_ms = float(run.figures["step_ms"] or 0)
    dtype = str(given.pop("dtype", "bf16"))
    looked, notes = _peak(run, given, dtype)
    count = int(given.pop("devices", 0)) or max(run.ranks[0].world_size, len(run.ranks))
    tokens = given.pop("tokens", None)
    flops = model_flops(str(given.pop("formula", "palm")), **_inputs(given))
    if flops.unit == "token" and tokens is None:
        raise InputError(f"--mfu: formula {flops.formula} counts per token; add tokens=NUMBER (per step, all ranks)")
    rate = float(tokens or 1) / (step_ms / 1e3)
    if looked is None:
        return RunUtilisation(None, None, step_ms, notes)
    use = {"rate": rate, "devices": count, "peak": looked}
    hardware = hfu(flops, **use) if flops.hardware is not None else None  # type: ignore[arg-type]
    return RunUtilisation(mfu(flops, **use), hardware, step_ms, notes)  # type: ignore[arg-type]


def _inputs(given: Mapping[str, float | str]) -> dict[str, Any]:
    """Complete the inputs of the palm formula without attention: then the model's shape does not matter."""
    inputs: dict[str, Any] = dict(given)
    if set(inputs) <= {"parameters", "recompute"}:
        inputs |= {"attention": False, **dict.fromkeys(_ATTENTION, 1)}
    return inputs


def _peak(run: RunProfile, given: dict[str, float | str], dtype: str) -> tuple[Peak | None, tuple[Note, ...]]:
    if "peak" in given:
        return given_peak(float(given.pop("peak")), dtype), ()
    device = str(given.pop("device", "")) or next((d for rank in run.ranks for d in rank.devices), "")
    found = find_peak(device, dtype)
    return found.peak, (found.note,) if found.note else ()

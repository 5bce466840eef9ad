"""Share of a device's peak that a training step used, by the commonly quoted formulas for floating-point operations.

*Model* FLOPs are those of the forward and backward pass; *hardware* FLOPs add recomputation. Formulas differ in what
they count, so a result always carries the name of its formula and its inputs.

Peak rates are dense, per data type, and never a guess: ``peaks.csv`` has one row per device and data type, with where
the figure was read (in which program, citing what) or ``recalled`` where it was not read again; such a peak says so of
itself. A device is found by its family (the chip's name as a whole word) and, where boards of one family differ, by its
variant. An unknown name stays unknown, an ambiguous one says between what.
"""

from __future__ import annotations

import csv
import inspect
import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from densing.core import InputError, Note, Record, UnknownNameError

RECOMPUTE = ("none", "selective", "full")


class Flops(Record, frozen=True):
    """Floating-point operations per unit of work.

    Attributes
    ----------
    formula : str
        ``palm``, ``megatron`` or ``mosaicml``.
    equation, source : str
    unit : {"token", "iteration"}
        What one unit of work is.
    inputs : mapping
        As given.
    model : float
        Model FLOPs per unit.
    hardware : float or None
        With recomputation; None where the formula does not define it.
    """

    formula: str
    equation: str
    source: str
    unit: str
    inputs: Mapping[str, float | str | bool]
    model: float
    hardware: float | None


def palm_flops(
    parameters: float,
    layers: float,
    heads: float,
    head_dim: float,
    sequence: float,
    attention: bool = True,
    recompute: str = "none",
) -> Flops:
    """FLOPs per token: 6N + 12·L·H·Q·T (the second term is attention's).

    Parameters
    ----------
    parameters : float
        N. PaLM counts all; torchtitan leaves the embedding out unless it is tied. State which.
    layers, heads, head_dim, sequence : float
        L, H, Q (per head), T (tokens).
    attention : bool
        False leaves the second term out.
    recompute : {"none", "full"}
        ``full`` recomputes one forward pass: hardware = 4/3 of the model's FLOPs.

    Notes
    -----
    Source: Chowdhery et al., PaLM, arXiv 2204.02311, appendix B.

    Examples
    --------
    >>> palm_flops(1e9, 10, 8, 64, 1024).model
    6062914560.0
    """
    inputs = _checked(parameters=parameters, layers=layers, heads=heads, head_dim=head_dim, sequence=sequence)
    _recomputation("palm", recompute, ("none", "full"))
    model = 6.0 * parameters + (12.0 * layers * heads * head_dim * sequence if attention else 0.0)
    return Flops(
        "palm",
        "6N + 12·L·H·Q·T" if attention else "6N",
        "PaLM, arXiv 2204.02311, appendix B",
        "token",
        {**inputs, "attention": attention, "recompute": recompute},
        model,
        model * (4 / 3 if recompute == "full" else 1),
    )


def megatron_flops(
    batch: float, sequence: float, layers: float, hidden: float, vocabulary: float, recompute: str = "none"
) -> Flops:
    """FLOPs per iteration: 72·B·L·s·h²·(1 + s/6h + V/12hL).

    Parameters
    ----------
    batch, sequence, layers, hidden, vocabulary : float
        B (sequences per iteration, all ranks), s, L, h, V.
    recompute : {"none", "selective", "full"}
        Hardware FLOPs: selective 72·B·L·s·h²·(1 + s/3h + V/12hL); full 96·B·L·s·h²·(1 + s/6h + V/16hL).

    Notes
    -----
    Source: Korthikanti et al., arXiv 2205.05198 (model, selective) and Narayanan et al., SC'21 (full); recalled.

    Examples
    --------
    >>> round(megatron_flops(4, 2048, 48, 6144, 51200).model / 1e15, 4)
    1.1436
    """
    inputs = _checked(batch=batch, sequence=sequence, layers=layers, hidden=hidden, vocabulary=vocabulary)
    _recomputation("megatron", recompute, RECOMPUTE)
    unit = batch * layers * sequence * hidden**2
    long, head = sequence / hidden, vocabulary / (hidden * layers)
    model = 72 * unit * (1 + long / 6 + head / 12)
    hardware = {
        "none": model,
        "selective": 72 * unit * (1 + long / 3 + head / 12),
        "full": 96 * unit * (1 + long / 6 + head / 16),
    }[recompute]
    return Flops(
        "megatron",
        "72·B·L·s·h²·(1 + s/6h + V/12hL)",
        "Korthikanti et al., arXiv 2205.05198; Narayanan et al., SC'21 (recalled)",
        "iteration",
        {**inputs, "recompute": recompute},
        model,
        hardware,
    )


def mosaicml_flops(
    parameters: float,
    layers: float,
    hidden: float,
    sequence: float,
    recompute: str = "none",
    flash: bool = False,
) -> Flops:
    """FLOPs per token: 3·(2N + 4·L·h·T).

    Parameters
    ----------
    parameters, layers, hidden, sequence : float
        N, L, h, T.
    recompute : {"none", "full"}
        ``full``: hardware FLOPs count the forward pass twice, 4·(2N + 4·L·h·T).
    flash : bool
        With ``full``: attention that recomputes its own forward pass counts it three times (5 in place of 4).

    Notes
    -----
    Source: llm-foundry, scripts/train/benchmarking/README.md, sections MFU and HFU.

    Examples
    --------
    >>> flops = mosaicml_flops(1e9, 10, 512, 1024, recompute="full")
    >>> round(flops.hardware / flops.model, 4)
    1.3333
    """
    inputs = _checked(parameters=parameters, layers=layers, hidden=hidden, sequence=sequence)
    _recomputation("mosaicml", recompute, ("none", "full"))
    dense, attention = 2.0 * parameters, 4.0 * layers * hidden * sequence
    passes = (3, 3) if recompute == "none" else (4, 5 if flash else 4)
    return Flops(
        "mosaicml",
        "3·(2N + 4·L·h·T)",
        "llm-foundry, scripts/train/benchmarking/README.md",
        "token",
        {**inputs, "recompute": recompute, "flash": flash},
        3 * (dense + attention),
        passes[0] * dense + passes[1] * attention,
    )


FORMULAS: dict[str, Callable[..., Flops]] = {
    "palm": palm_flops,
    "megatron": megatron_flops,
    "mosaicml": mosaicml_flops,
}


def model_flops(formula: str, **inputs: Any) -> Flops:
    """Count FLOPs by a formula's name.

    Raises
    ------
    UnknownNameError
        For a formula that is not known.
    InputError
        For inputs that are missing, superfluous, not positive, or a recomputation the formula does not define.

    Examples
    --------
    >>> model_flops("palm", parameters=1e9, layers=10, heads=8, head_dim=64, sequence=1024).unit
    'token'
    """
    known = formula_inputs(formula)
    missing = [name for name, required in known.items() if required and name not in inputs]
    unknown = [name for name in inputs if name not in known]
    if missing or unknown:
        wrong = f"{', '.join(unknown)} unknown" if unknown else f"{', '.join(missing)} missing"
        raise InputError(f"formula {formula}: {wrong}; it takes {', '.join(known)}")
    return FORMULAS[formula](**inputs)


def formula_inputs(formula: str) -> dict[str, bool]:
    """Return the inputs of a formula in order, and whether each must be given.

    Raises
    ------
    UnknownNameError
        For a formula that is not known.

    Examples
    --------
    >>> formula_inputs("mosaicml")["hidden"], formula_inputs("mosaicml")["flash"]
    (True, False)
    """
    if formula not in FORMULAS:
        raise UnknownNameError("FLOPs formula", formula, FORMULAS)
    parameters = inspect.signature(FORMULAS[formula]).parameters.values()
    return {one.name: one.default is inspect.Parameter.empty for one in parameters}


def _checked(**inputs: float) -> dict[str, float]:
    for name, value in inputs.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise InputError(f"{name}: {value!r} is not a positive number; give the value of your model")
    return {name: float(value) for name, value in inputs.items()}


def _recomputation(formula: str, recompute: str, known: tuple[str, ...]) -> None:
    if recompute in known:
        return
    if recompute in RECOMPUTE:
        raise InputError(
            f"recompute={recompute}: formula {formula} counts only {' and '.join(known)}; "
            "formula=megatron counts selective too"
        )
    raise UnknownNameError("recomputation", str(recompute), known)


# Peak rates of devices.

REMEDY = "give the dense peak of one device in TFLOP/s as peak"

_ALIASES = {
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float8": "fp8", "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8", "float32": "fp32", "float": "fp32", "float64": "fp64", "double": "fp64",
}  # fmt: skip

# Words that mark a variant of a chip: a slice of it, or other clocks.
_OTHER = re.compile(r"\bMIG\b|\bLaptop\b|\bMax-Q\b|\bMobile\b|\bvGPU\b|\bGRID\b|(?<=\d) D\b", re.I)


class Peak(Record, frozen=True):
    """Peak rate of one device.

    Attributes
    ----------
    device, dtype : str
    flops : float
        Dense FLOP/s; no structured sparsity.
    source : str
    recalled : bool
        True if the figure was recalled, not read for this table.
    """

    device: str
    dtype: str
    flops: float
    source: str
    recalled: bool = False


class Lookup(Record, frozen=True):
    """A peak, or a note on why it is unknown."""

    peak: Peak | None
    note: Note | None = None


class _Row(NamedTuple):
    peak: Peak
    family: re.Pattern[str]
    variant: re.Pattern[str]


def given_peak(tflops: float, dtype: str = "as given") -> Peak:
    """Return a peak that the user states, in TFLOP/s per device.

    Raises
    ------
    InputError
        Unless it is positive and below 10⁶ TFLOP/s (a figure in FLOP/s, by mistake).
    """
    if not math.isfinite(tflops) or not 0 < tflops < 1e6:
        raise InputError(f"peak {tflops!r}: not a rate in TFLOP/s; write 312 for 312 TFLOP/s")
    return Peak("as given", dtype, tflops * 1e12, "given by the user")


def known_peaks() -> tuple[Peak, ...]:
    """Return the whole table."""
    return tuple(row.peak for row in _table())


def find_peak(device: str, dtype: str) -> Lookup:
    """Return the dense peak of a device as its driver names it, or a note that says why it is not known.

    Parameters
    ----------
    device : str
        ``NVIDIA H100 80GB HBM3``, ``AMD Instinct MI300X``, ...
    dtype : str
        Of the matrix multiplications: ``bf16``, ``fp16``, ``tf32``, ``fp8``, ``fp32``, ... or torch's name.

    Raises
    ------
    UnknownNameError
        For a data type that the table does not have.

    Examples
    --------
    >>> find_peak("NVIDIA A100-PG509-200", "bfloat16").peak.flops
    312000000000000.0
    >>> find_peak("NVIDIA H100", "bf16").note.code
    'peak-ambiguous'
    """
    short = dtype.lower().removeprefix("torch.").removeprefix("c10::")
    short = _ALIASES.get(short, short)
    types = {row.peak.dtype for row in _table()}
    if short not in types:
        raise UnknownNameError("data type", dtype, types)
    name = " ".join(device[:200].split())
    if _OTHER.search(name):
        return _unknown(name, short, "a slice or variant of a device has a different peak")
    family = [row for row in _table() if row.family.search(name)]
    if not family:
        return _unknown(name, short, "the table has no row for it")
    exact = [row for row in family if row.variant.pattern and row.variant.search(name)]
    rows = [row.peak for row in exact or family if row.peak.dtype == short]
    if not rows:
        return _unknown(name, short, "the table has no figure for this data type")
    if len({peak.flops for peak in rows}) > 1:
        between = ", ".join(f"{peak.device} {peak.flops / 1e12:g}" for peak in rows)
        message = f"peak of {name!r} in {short} is ambiguous: it may be {between} TFLOP/s; {REMEDY}"
        return Lookup(None, Note("peak-ambiguous", "info", message, {"device": name, "dtype": short}))
    return Lookup(rows[0])


def _unknown(name: str, dtype: str, why: str) -> Lookup:
    message = f"peak of {name or 'an unnamed device'!r} in {dtype} is unknown: {why}; {REMEDY}"
    return Lookup(None, Note("peak-unknown", "info", message, {"device": name, "dtype": dtype}))


@cache
def _table() -> tuple[_Row, ...]:
    text = Path(__file__).with_name("peaks.csv").read_text(encoding="utf-8")
    rows = []
    for cells in csv.DictReader(text.splitlines()):
        rate, recalled = float(cells["tflops"]) * 1e12, cells["evidence"] == "recalled"
        peak = Peak(cells["device"], cells["dtype"], rate, cells["source"], recalled)
        rows.append(_Row(peak, re.compile(cells["family"], re.I), re.compile(cells["variant"], re.I)))
    return tuple(rows)


# Utilisation: operations done over operations that the peak allows.


class Utilisation(Record, frozen=True):
    """A utilisation with its inputs.

    Attributes
    ----------
    kind : {"mfu", "hfu"}
    percent : float
    rate : float
        Units of work (tokens or iterations) per second, all devices together.
    devices : int
    flops : Flops
    peak : Peak
    """

    kind: str
    percent: float
    rate: float
    devices: int
    flops: Flops
    peak: Peak


def mfu(flops: Flops, *, rate: float, devices: int, peak: Peak) -> Utilisation:
    """Model FLOPs utilisation in percent: 100·F·rate ÷ (devices·peak).

    Parameters
    ----------
    flops : Flops
        Per unit of work; its model FLOPs count.
    rate : float
        Units of work per second: tokens per second, or 1 ÷ seconds per iteration, as ``flops.unit`` says.
    devices : int
    peak : Peak
        Of one device, FLOP/s.

    Raises
    ------
    InputError
        For a result above 100 %, which no device reaches: an input is wrong.

    Notes
    -----
    Source: Chowdhery et al., PaLM, arXiv 2204.02311, appendix B.

    Examples
    --------
    >>> from densing.efficiency.timeline import given_peak
    >>> flops = palm_flops(540.35e9, 118, 48, 256, 2048)
    >>> round(mfu(flops, rate=238_300, devices=6144, peak=given_peak(275)).percent, 2)
    46.23
    """
    return _utilisation("mfu", flops, flops.model, rate, devices, peak)


def hfu(flops: Flops, *, rate: float, devices: int, peak: Peak) -> Utilisation:
    """Hardware FLOPs utilisation in percent: as :func:`mfu`, recomputation counted.

    Raises
    ------
    InputError
        Above 100 %, or where the formula defines no hardware FLOPs.
    """
    if flops.hardware is None:
        raise InputError(f"formula {flops.formula} defines no hardware FLOPs; use mfu")
    return _utilisation("hfu", flops, flops.hardware, rate, devices, peak)


def _utilisation(kind: str, flops: Flops, count: float, rate: float, devices: int, peak: Peak) -> Utilisation:
    if not math.isfinite(rate) or rate <= 0:
        raise InputError(f"{flops.unit}s per second: {rate!r} is not a positive number; check the step time")
    if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
        raise InputError(f"devices: {devices!r} is not a whole number above 0")
    percent = 100 * count * rate / (devices * peak.flops)
    if not percent <= 100:
        raise InputError(
            f"{kind.upper()} {percent:.4g} % is above 100 %, which no device reaches: formula {flops.formula}, "
            f"{rate:.6g} {flops.unit}s/s on {devices} devices of {peak.flops / 1e12:g} TFLOP/s "
            f"({peak.device}, {peak.dtype}); check the batch, the data type and the peak"
        )
    return Utilisation(kind, percent, float(rate), devices, flops, peak)

"""Peak rates of accelerators: dense, per data type, and never a guess.

``peaks.csv`` has one row per device and data type, with where the figure was read (in which program, citing what) or
``recalled`` where it was not read again; such a peak says so of itself. A device is found by its family (the chip's
name as a whole word) and, where boards of one family differ, by its variant. An unknown name stays unknown, an
ambiguous one says between what.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from densing.core import InputError, Note, UnknownNameError

REMEDY = "give the dense peak of one device in TFLOP/s as peak"

_ALIASES = {
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float8": "fp8", "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8", "float32": "fp32", "float": "fp32", "float64": "fp64", "double": "fp64",
}  # fmt: skip

# Words that make another device of a chip: a slice of it, or one with other clocks.
_OTHER = re.compile(r"\bMIG\b|\bLaptop\b|\bMax-Q\b|\bMobile\b|\bvGPU\b|\bGRID\b|(?<=\d) D\b", re.I)


@dataclass(frozen=True)
class Peak:
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

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Peak:
        """Rebuild what :meth:`to_dict` wrote."""
        return cls(**data)


@dataclass(frozen=True)
class Lookup:
    """A peak, or the reason why there is none."""

    peak: Peak | None
    note: Note | None = None


@dataclass(frozen=True)
class _Row:
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
        return _unknown(name, short, "a slice or a variant of a device has another peak")
    family = [row for row in _table() if row.family.search(name)]
    if not family:
        return _unknown(name, short, "no row of the table names it")
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
    return tuple(_row(cells) for cells in csv.DictReader(text.splitlines()))


def _row(cells: Mapping[str, str]) -> _Row:
    rate, recalled = float(cells["tflops"]) * 1e12, cells["evidence"] == "recalled"
    peak = Peak(cells["device"], cells["dtype"], rate, cells["source"], recalled)
    return _Row(peak, re.compile(cells["family"], re.I), re.compile(cells["variant"], re.I))

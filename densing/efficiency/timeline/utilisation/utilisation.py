"""The share of a device's peak that a training run used."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from densing.core import InputError
from densing.efficiency.timeline.utilisation.formulas import Flops
from densing.efficiency.timeline.utilisation.peaks import Peak


@dataclass(frozen=True)
class Utilisation:
    """A utilisation with all that it was computed from.

    Attributes
    ----------
    kind : {"mfu", "hfu"}
    percent : float
    flops : Flops
    rate : float
        Units of work (tokens or iterations) per second, all devices together.
    devices : int
    peak : Peak
    """

    kind: str
    percent: float
    flops: Flops
    rate: float
    devices: int
    peak: Peak

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        row = {key: getattr(self, key) for key in ("kind", "percent", "rate", "devices")}
        return {**row, "flops": self.flops.to_dict(), "peak": self.peak.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Utilisation:
        """Rebuild what :meth:`to_dict` wrote."""
        parts = {"flops": Flops.from_dict(data["flops"]), "peak": Peak.from_dict(data["peak"])}
        return cls(**{**data, **parts})


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
    >>> from densing.efficiency.timeline.utilisation import given_peak, palm_flops
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
        raise InputError(f"formula {flops.formula} defines no hardware FLOPs; ask for mfu")
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
    return Utilisation(kind, percent, flops, float(rate), devices, peak)

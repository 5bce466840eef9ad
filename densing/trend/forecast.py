"""When: the frontier carried forward with its fan, and the date at which a score fits into a size.

The frontier is the headline's line lifted to the 0.9 quantile of the models around it (see
:mod:`densing.trend.frontier`). The fan is the spread of that line over draws of families and of the reference law;
single models scatter more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from densing.errors import DomainError
from densing.trend.data import EPOCH
from densing.trend.frontier import frontier_offset
from densing.trend.result import TrendResult
from densing.trend.slopes import DAYS_PER_MONTH

Array = npt.NDArray[Any]
FURTHEST = pd.Timestamp("2150-01-01")
"""Later than this counts as never."""


class FitLike(Protocol):
    """The part of a law fit that a forecast needs."""

    @property
    def law(self) -> Any: ...
    @property
    def theta(self) -> Array: ...
    @property
    def draws(self) -> Array: ...
    @property
    def domain(self) -> Mapping[str, tuple[float, float]]: ...


class ReferenceLike(Protocol):
    """The part of a reference that a forecast needs."""

    @property
    def fit(self) -> FitLike: ...
    @property
    def given(self) -> Mapping[str, float]: ...


@dataclass(frozen=True)
class Arrival:
    """The date at which the frontier reaches a density.

    Parameters
    ----------
    date, lo, hi : pandas.Timestamp
        Best guess and interval; NaT where a date is never reached (``date``, ``hi``) or has no earliest end
        (``lo``).
    density, density_lo, density_hi : float
        What is needed.
    level : float
    note : str
        Caution in words; empty when there is none.
    """

    date: pd.Timestamp
    lo: pd.Timestamp
    hi: pd.Timestamp
    density: float
    density_lo: float
    density_hi: float
    level: float
    note: str

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data; a date never reached is None."""
        days = {
            name: None if pd.isna(stamp) else str(stamp.date())
            for name, stamp in (("date", self.date), ("date_lo", self.lo), ("date_hi", self.hi))
        }
        needs = (self.density, self.density_lo, self.density_hi)
        names = ("density", "density_lo", "density_hi")
        finite = {name: value if np.isfinite(value) else None for name, value in zip(names, needs, strict=True)}
        return {**days, **finite, "level": self.level, "note": self.note}


def forecast(
    trend: TrendResult, horizon_months: float = 24.0, *, start: Any = None, step_months: float = 1.0
) -> pd.DataFrame:
    """Carry the frontier forward.

    rho(t) = exp(a + b t + d).

    Parameters
    ----------
    trend : TrendResult
    horizon_months : float
        From ``start`` on.
    start : datetime-like, optional
        The newest release in the data by default.
    step_months : float

    Returns
    -------
    pandas.DataFrame
        date, mid, lo50, hi50, lo90, hi90: density of the frontier (not its logarithm).

    Examples
    --------
    >>> from densing.trend import estimate_trend
    >>> from densing.trend.simulate import Scenario, simulate
    >>> fan = forecast(estimate_trend(simulate(Scenario(), 1), permutations=99), 12)
    >>> len(fan), bool((fan["lo90"] < fan["mid"]).all())
    (13, True)
    """
    first = pd.Timestamp(trend.data.released.max() if start is None else start).normalize()
    steps = np.arange(0.0, horizon_months + 1e-9, step_months)
    dates = first + pd.to_timedelta(steps * DAYS_PER_MONTH, unit="D").round("D")
    mid, lines = _frontier(trend, np.asarray((dates - EPOCH) / pd.Timedelta(days=1), dtype=float))
    lo90, lo50, hi50, hi90 = np.exp(np.quantile(lines, [0.05, 0.25, 0.75, 0.95], axis=0))
    return pd.DataFrame({"date": dates, "mid": np.exp(mid), "lo50": lo50, "hi50": hi50, "lo90": lo90, "hi90": hi90})


def date_for(trend: TrendResult, density: float, level: float = 0.9) -> Arrival:
    """Say when the frontier reaches a density.

    t = (ln rho - a - d) / b, draw by draw.

    Parameters
    ----------
    trend : TrendResult
    density : float
        Above zero.
    level : float

    Raises
    ------
    DomainError
        For a density of zero or below.
    """
    if not (np.isfinite(density) and density > 0):
        raise DomainError(f"density {density:g}: give a finite number above zero")
    need = np.full(len(trend.draws), np.log(density))
    return _arrival(trend, float(np.log(density)), need, level, "")


def when(trend: TrendResult, score: float, params: float, reference: ReferenceLike, level: float = 0.9) -> Arrival:
    """Say when a score fits into a number of parameters.

    Needed density: rho = N_eff(score) / params; then as :func:`date_for`. Draws of the law are those behind
    the same draws of the line, so its error is not counted twice.

    Source: eq. 4 and 5 of Xiao et al., arXiv 2412.04315.

    Parameters
    ----------
    trend : TrendResult
    score : float
        In [0, 1], on the benchmark of ``reference``.
    params : float
        A count.
    reference : Reference
        The one behind ``trend``.
    level : float

    Raises
    ------
    DomainError
        For a score outside [0, 1] or a size of zero or below.
    """
    if not 0 <= score <= 1:
        raise DomainError(f"score {score:g}: give a share in [0, 1]")
    if not params > 0:
        raise DomainError(f"params {params:g}: give a count above zero")
    fit = reference.fit
    effective, status = fit.law.invert(fit.theta, score, **reference.given)
    rows = trend.fit.law_rows
    if len(rows) == 0 or rows.max() >= len(fit.draws):
        rows = np.arange(len(trend.draws)) % max(len(fit.draws), 1)
    drawn = fit.law.invert(fit.draws[rows], score, **reference.given)[0] if len(fit.draws) else effective
    with np.errstate(divide="ignore"):
        middle = float(np.log(effective)) - np.log(params)
        need = np.log(np.broadcast_to(drawn, trend.draws.shape)) - np.log(params)
    note = _note(str(status), float(np.asarray(effective)), fit.domain)
    return _arrival(trend, middle, need, level, note)


def _offset(trend: TrendResult) -> float:
    return frontier_offset(trend.data, trend.fit.centre, trend.fit.line)


def _frontier(trend: TrendResult, days: Array) -> tuple[Array, Array]:
    """Frontier (n,) and its draws (R, n), in ln(density)."""
    ahead = days - trend.fit.centre
    offset = _offset(trend)
    lines = trend.fit.lines
    return trend.fit.line[0] + trend.fit.line[1] * ahead + offset, lines[:, :1] + lines[:, 1:] * ahead + offset


def _arrival(trend: TrendResult, middle: float, need: Array, level: float, note: str) -> Arrival:
    offset, lines = _offset(trend), trend.fit.lines
    last = float(trend.data.days.max()) - trend.fit.centre
    mid = _crossing(np.array([middle]), trend.fit.line[None], offset, last)[0]
    days = _crossing(need, lines, offset, last)
    ends = [(1 - level) / 2, (1 + level) / 2]
    lo, hi = np.quantile(days, ends, method="inverted_cdf")  # no arithmetic between infinite neighbours
    need_lo, need_hi = np.exp(np.quantile(need, ends, method="inverted_cdf"))
    stamps = [_stamp(value + trend.fit.centre) for value in (mid, lo, hi)]
    notes = [note] if note else []
    if pd.isna(stamps[0]) and mid > 0:
        notes.append("the frontier does not get there")
    elif mid <= last:
        notes.append("the frontier is already there")
    if pd.isna(stamps[2]) and hi > 0 and not pd.isna(stamps[0]):
        notes.append("no latest date: some of the likely trends never get there")
    with np.errstate(over="ignore"):
        density = float(np.exp(middle))
    date, earliest, latest = stamps
    return Arrival(date, earliest, latest, density, float(need_lo), float(need_hi), level, "; ".join(notes))


def _crossing(need: Array, lines: Array, offset: float, last: float) -> Array:
    """Days after the centre at which lines reach ``need``; a falling line is there already or never."""
    gap = need - offset - lines[:, 0]
    slope = lines[:, 1]
    now = need <= offset + lines[:, 0] + slope * last
    with np.errstate(divide="ignore", invalid="ignore"):
        rising = gap / slope
    return np.where(slope > 0, rising, np.where(now, -np.inf, np.inf))


def _stamp(days: float) -> Any:
    """Timestamp of a day count; NaT when it lies before 1970 or counts as never."""
    furthest = (FURTHEST - EPOCH) / pd.Timedelta(days=1)
    earliest = (pd.Timestamp("1970-01-01") - EPOCH) / pd.Timedelta(days=1)
    if not earliest <= days <= furthest:
        return pd.NaT
    return (EPOCH + pd.Timedelta(days=round(days))).normalize()


def _note(status: str, effective: float, domain: Mapping[str, tuple[float, float]]) -> str:
    if status == "below_floor":
        return "the score is at or below the ruler's floor: any size does"
    if status == "above_ceiling":
        return "the score is at or above the ruler's ceiling: no finite reference model reaches it"
    low, high = domain.get("params", (0.0, np.inf))
    if not low / 3 <= effective <= 3 * high:
        return "the score lies beyond the ruler's sizes: extrapolated"
    return ""

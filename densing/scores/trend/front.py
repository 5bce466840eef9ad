r"""The front: how the densest models moved, who set records and how surely, and what a long gap since the last says.

The law of arXiv 2412.04315 speaks of the densest models. A line through record-setters does not estimate their
pace, since records rise where nothing else does (:func:`densing.scores.trend.record_setter_bias`). Three things are
said here instead: the .9 quantile of ln density as a line that bends once a year, with families resampled; how probable
each record is, given how well the densities are known; and how probable it is that no model since the last record came
above it, at a stated pace.

Source: quantile regression, Koenker and Bassett (1978), as a linear programme (Koenker 2005, section 6.2); limits,
Powell (1986), by repeated programmes over the rows whose fitted value can be seen (Buchinsky 1994).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from densing.core import Array, Card, FitError, Listing, Readable, formatting, plain
from densing.scores.trend.data import DAYS_PER_MONTH, DAYS_PER_YEAR, EPOCH, Slope, TrendData, doubling_months
from densing.scores.trend.estimators import MIN_QUANTILE_ROWS, check_loss, record_mask
from densing.scores.trend.listing import RECORDS
from densing.scores.trend.pace import FREEDOM, PaceFit

QUANTILE = 0.9
RESAMPLES = 200
ROUNDS = 8
"""Programmes until the rows that can be seen stay the same; further ones are not tried."""
CONTESTED = 0.05
"""From this probability on a model that is not a record by its middle value is listed."""
GAP_DRAWS = 2000


@dataclass(frozen=True, repr=False)
class Front(Readable):
    """Pace and records of the densest models.

    Parameters
    ----------
    curve : pandas.DataFrame
        The .9 quantile by month: ``date, mid, lo, hi``, ln density.
    window, last_year : Slope
        Mean pace over the window, and over the twelve months up to the newest release.
    records : pandas.DataFrame
        ``model, family, released, density, lo, hi, probability``: models that set a record by their middle value, or
        may have, the earliest first. The probability is the share of joint draws of all densities in which it did; NaN
        where the densities have none.
    gap : pandas.DataFrame
        ``pace, doubling_months, probability``: the probability, at each pace, that no model released since the last
        record is denser than it. Empty if the data cannot support a pace that changes.
    last : str
        The model that holds the record.
    since : pandas.Timestamp
        Its release.
    later : int
        Models released since.

    See Also
    --------
    fit_front

    Examples
    --------
    >>> from densing.scores.trend.coverage import Scenario, simulate
    >>> front = fit_front(simulate(Scenario(), 1), resamples=20)
    >>> front.curve.columns.tolist()
    ['date', 'mid', 'lo', 'hi']
    """

    curve: pd.DataFrame
    window: Slope
    last_year: Slope
    records: pd.DataFrame
    gap: pd.DataFrame
    last: str
    since: pd.Timestamp
    later: int

    @property
    def sentence(self) -> str:
        """Return the front in words: its pace, the last record, and what the time since then implies."""
        over, year = (_pace(slope) for slope in (self.window, self.last_year))
        text = f"The densest tenth of models: {over} over the window, {year} over its last twelve months."
        held = self.records.loc[self.records["model"].eq(self.last), "probability"]
        sure = (
            f" (a record in {formatting.percentage(held.iloc[0])} of draws)" if len(held) and held.notna().all() else ""
        )
        text += f" The last record is {formatting.clean(self.last)} of {formatting.month(self.since)}{sure}"
        if not self.later or self.gap.empty:
            return f"{text}."
        odds = ", ".join(
            f"{formatting.percentage(row.probability)} at {_every(row.doubling_months)}"
            for row in self.gap.itertuples()
        )
        return (
            f"{text}; that none of {formatting.plural(self.later, 'later model')} beat it has a probability of {odds}."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-ready data."""
        names = ("doubling_months", "lo", "hi")
        paces = {part: dict(zip(names, getattr(self, part).doubling, strict=True)) for part in ("window", "last_year")}
        tables = {part: getattr(self, part).to_dict("records") for part in ("records", "gap", "curve")}
        return plain({"sentence": self.sentence, **paces, **tables})

    @property
    def listing(self) -> Listing:
        """The models that set a record of density when they came, or may have."""
        return Listing(
            "Models that set a record of density when they came, or may have.", self.records, RECORDS, "record"
        )

    def card(self) -> Card:
        """Return what is shown: both paces, the gap, and the records."""
        facts = {"window": _pace(self.window), "last twelve months": _pace(self.last_year)}
        return Card(f"Front of {formatting.plural(self.window.n, 'model')}", facts, self.listing)


def _every(months: float) -> str:
    return f"a doubling every {months:.1f} months" if np.isfinite(months) else "no growth"


def _pace(slope: Slope) -> str:
    if not slope.estimable:
        return f"no pace ({slope.reason})"
    low, high = slope.doubling_interval
    if np.isinf(low):
        return "no doubling"
    middle = f"a doubling in {slope.doubling_months:.1f} months" if slope.slope > 0 else "no doubling"
    return f"{middle} ({low:.1f} to {f'{high:.1f}' if np.isfinite(high) else 'none'})"


def fit_front(
    data: TrendData, pace: PaceFit | None = None, level: float = 0.95, *, resamples: int = RESAMPLES, seed: int = 0
) -> Front:
    """Estimate the pace of the densest models and their records.

    Parameters
    ----------
    data : TrendData
    pace : PaceFit, optional
        Fit of the same rows, for the probability of the gap since the last record.
    level : float
        Of all intervals.
    resamples : int
        Of families.
    seed : int

    Raises
    ------
    FitError
        With too few observed rows for a quantile.

    Examples
    --------
    >>> from densing.scores.trend.coverage import Scenario, simulate
    >>> front = fit_front(simulate(Scenario(), 1), resamples=20)
    >>> front.records["released"].is_monotonic_increasing
    True
    """
    data = data.ordered()
    if data.observed.sum() < MIN_QUANTILE_ROWS or np.ptp(data.days[data.observed]) == 0:
        raise FitError(
            f"front: {formatting.plural(int(data.observed.sum()), 'observed model')}; {MIN_QUANTILE_ROWS} on two dates "
            "are needed; widen the window"
        )
    first, last = float(data.days.min()), float(data.days.max())
    # A bend at each whole year before the end, where at least half a year is left before it.
    years = int((last - first) / DAYS_PER_YEAR - 0.5)
    bends = last - DAYS_PER_YEAR * np.arange(years, 0, -1)
    weights = data.resample("family", resamples, np.random.default_rng([seed, 9]))
    lines = quantile_splines(data.days, data.log_density, data.limits, weights, QUANTILE, bends)
    # A resample that holds hardly a model inside the reference has no quantile.
    lines = lines[np.isfinite(lines).all(axis=1) | (np.arange(len(lines)) == 0)]
    tail = (1 - level) / 2
    monthly = np.linspace(first, last, max(2, round((last - first) / DAYS_PER_MONTH)) + 1)
    drawn = lines @ _basis(monthly, bends).T
    lo, hi = np.quantile(drawn[1:], [tail, 1 - tail], axis=0)
    dates = EPOCH + pd.to_timedelta(monthly, unit="D").round("D")
    kind = "quantile line that bends yearly, families resampled"

    def mean_slope(since: float) -> Slope:
        ends = lines @ _basis(np.array([since, last]), bends).T
        paces = (ends[:, 1] - ends[:, 0]) / (last - since)
        low, high = np.quantile(paces[1:], [tail, 1 - tail])
        families = len(set(data.family))
        return Slope(float(paces[0]), float(low), float(high), float(lines[0, 0]), len(data), families, kind, 0)

    # A model known to be denser than its limit sets a record there; one known to be less dense sets none.
    known = data.censor >= 0
    setters = np.flatnonzero(known)[record_mask(data.days[known], data.log_density[known])]
    holder = int(setters[np.argmax(data.days[setters])])
    return Front(
        curve=pd.DataFrame({"date": dates, "mid": drawn[0], "lo": lo, "hi": hi}),
        window=mean_slope(first),
        last_year=mean_slope(max(first, last - DAYS_PER_YEAR)),
        records=_records(data, setters, tail),
        gap=_gap(data, holder, pace, seed),
        last=str(data.model[holder]),
        since=pd.Timestamp(data.released[holder]).normalize(),
        later=int((data.days > data.days[holder]).sum()),
    )


def _basis(days: Array, bends: Array) -> Array:
    return np.column_stack([np.ones(len(days)), days, *(np.maximum(days - bend, 0.0) for bend in bends)])


def quantile_splines(days: Array, values: Array, limits: Array, weights: Array, q: float, bends: Array) -> Array:
    """Return coefficients (B, 2 + K) of weighted quantile lines that bend at given days.

    Parameters
    ----------
    days, values : array, shape (n,)
    limits : array, shape (n, 2)
        Ends between which a row can be seen; infinite where there are none.
    weights : array, shape (B, n)
    q : float
    bends : array, shape (K,)

    Returns
    -------
    array
        NaN where too few rows lie inside their limits.

    Examples
    --------
    >>> days, free = np.arange(5.0), np.tile([-np.inf, np.inf], (5, 1))
    >>> values, bends = np.array([0.0, 1, 2, 2, 2]), np.array([2.0])
    >>> quantile_splines(days, values, free, np.ones((1, 5)), 0.5, bends).round(6).tolist()
    [[0.0, 1.0, -1.0]]
    """
    origin, unit = float(days.mean()), max(float(np.ptp(days)), 1.0)
    # Days as shares of the window keep the programmes well scaled.
    design = _basis((days - origin) / unit, (bends - origin) / unit)
    found = np.full((len(weights), design.shape[1]), np.nan)
    observed = (values > limits[:, 0]) & (values < limits[:, 1])
    for row, weight in enumerate(weights):
        lowest = np.inf
        # With limits the loss is not convex: from all rows and from those observed, the best of the rounds is kept.
        starts = [weight > 0] if observed.all() else [weight > 0, (weight > 0) & observed]
        for seen in starts:
            for _ in range(ROUNDS):
                if seen.sum() <= design.shape[1]:
                    break
                trial = _programme(design[seen], values[seen], weight[seen], q)
                fitted = design @ trial
                loss = float((weight * check_loss(values, fitted, limits, q)).sum())
                if loss < lowest:
                    found[row], lowest = trial, loss
                # A row whose fitted value lies beyond its limits says nothing of where beyond.
                visible = (weight > 0) & (fitted > limits[:, 0]) & (fitted < limits[:, 1])
                if (visible == seen).all():
                    break
                seen = visible
    slopes = found[:, 1:] / unit
    return np.column_stack([found[:, 0] - slopes[:, 0] * origin, slopes])


def _programme(design: Array, values: Array, weight: Array, q: float) -> Array:
    """Solve one quantile regression by its dual: max y'a, X'a = (1 - q) X'w, 0 <= a <= w (Koenker 2005, eq. 6.14)."""
    from scipy.optimize import linprog

    bounds = np.column_stack([np.zeros(len(values)), weight])
    answer = linprog(-values, A_eq=design.T, b_eq=(1 - q) * design.T @ weight, bounds=bounds, method="highs")
    return -np.asarray(answer.eqlin.marginals)


def _records(data: TrendData, setters: Array, tail: float) -> pd.DataFrame:
    drawn = data.draws if data.draws is not None else data.law_draws
    middle = np.zeros(len(data), dtype=bool)
    middle[setters] = True
    lo, hi, share = np.full((3, len(data)), np.nan)
    if drawn is not None:
        known = data.censor >= 0
        share = record_mask(data.days, np.where(known, drawn, -np.inf)).mean(axis=0)
        lo[known], hi[known] = np.exp(np.quantile(drawn[:, known], [tail, 1 - tail], axis=0))
    keep = middle | (np.nan_to_num(share) >= CONTESTED) & (data.censor >= 0)
    table = pd.DataFrame(
        {
            "model": data.model,
            "family": data.family,
            "released": data.released,
            "density": np.exp(data.log_density),
            "bound": np.where(data.censor > 0, "lower", ""),
            "lo": lo,
            "hi": hi,
            "record": middle,
            "probability": share,
        }
    )
    return table[keep].sort_values(["released", "density"], kind="stable", ignore_index=True)


def _gap(data: TrendData, holder: int, pace: PaceFit | None, seed: int) -> pd.DataFrame:
    """Return the probability that no later model beat the record: at the window's pace, at the last year's, without
    growth.

    From the record's date on, the typical model goes on at the stated pace; later models scatter about it by family,
    maker and on their own as the fit found, and the record is as well known as its density. Which records are followed
    by a long gap is not chosen at random: the densest model so far owes part of its place to luck.
    """
    later = data.days > data.days[holder]
    columns = ["pace", "doubling_months", "probability"]
    if pace is None or not later.any():
        return pd.DataFrame(columns=columns)
    rng = np.random.default_rng([seed, 11])
    picks = pace.picks(GAP_DRAWS)
    scales, count = pace.scales.iloc[picks], int(later.sum())
    start = pace.curve(float(data.days[holder]))[picks, 0]
    around = scales["error"].to_numpy()[:, None] * rng.standard_t(FREEDOM, (GAP_DRAWS, count))
    for name, labels in (("family", data.family), ("maker", data.organisation)):
        if name in scales and labels is not None:
            _, codes = np.unique(labels[later], return_inverse=True)
            effects = rng.standard_normal((GAP_DRAWS, codes.max() + 1)) * scales[name].to_numpy()[:, None]
            around += effects[:, codes]
    drawn = data.draws if data.draws is not None else data.law_draws
    record = np.full(GAP_DRAWS, data.log_density[holder])
    if drawn is not None:
        record = drawn[rng.integers(len(drawn), size=GAP_DRAWS), holder]
    ahead = data.days[later] - data.days[holder]
    paces = {"the window's": pace.window.slope, "the last twelve months'": pace.last_year.slope, "none": 0.0}
    rows = []
    for name, slope in paces.items():
        if slope < 0:
            # A front that falls sets no records; what none would say is the last row.
            continue
        # Above a reference that ends below the record nobody would have seen it beaten.
        seen = data.limits[later, 1] > record[:, None]
        beaten = (seen & (start[:, None] + slope * ahead + around > record[:, None])).any(axis=1)
        rows.append((name, doubling_months(slope) if slope else np.inf, float(1 - beaten.mean())))
    return pd.DataFrame(rows, columns=columns)

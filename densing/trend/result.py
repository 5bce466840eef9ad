"""The trend as a result: estimators side by side, a headline, its checks, and the line it draws."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from densing.notes import Note
from densing.trend.data import EPOCH, TrendData
from densing.trend.headline import Headline
from densing.trend.slopes import doubling_months, doubling_text

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class TrendResult:
    """A doubling time with its alternatives, checks and caveats.

    Parameters
    ----------
    data : TrendData
        The rows used.
    estimates : pandas.DataFrame
        One row per estimator: method, label, slope_per_day, slope_lo, slope_hi, doubling_months, lo, hi, n,
        clusters, se_type, dropped, headline. ``hi`` is infinite where the slope's interval reaches zero.
    headline : pandas.Series
        The row of ``estimates`` to quote.
    checks : mapping
        permutation, leave_one_family_out, breakpoint, record_setter_bias, diagnostics, families,
        variance_shares; plain JSON-ready data.
    draws : array, shape (R,)
        Draws of the headline's slope per day.
    options : mapping
        level, seed, permutations, bootstrap, cluster.
    notes : tuple of Note
    fit : Headline
        The line behind the headline, for forecasts.
    why : str
        Why this estimator is the headline.
    """

    data: TrendData
    estimates: pd.DataFrame
    headline: pd.Series
    checks: Mapping[str, Any]
    draws: Array
    options: Mapping[str, Any]
    notes: tuple[Note, ...]
    fit: Headline
    why: str

    def predict(self, dates: Any, level: float | None = None) -> pd.DataFrame:
        """Give the headline's line, ln(density) of a typical model, at dates.

        Parameters
        ----------
        dates : datetime-like, or a sequence of them
        level : float, optional
            Of the band; the trend's own by default.

        Returns
        -------
        pandas.DataFrame
            date, mid, lo, hi: the band of the line, not of single models.
        """
        share = float(self.options["level"]) if level is None else level
        stamps = pd.DatetimeIndex(pd.to_datetime(np.atleast_1d(np.asarray(dates))))
        ahead = np.asarray((stamps - EPOCH) / pd.Timedelta(days=1), dtype=float) - self.fit.centre
        mid = self.fit.line[0] + self.fit.line[1] * ahead
        lines = self.fit.lines[:, :1] + self.fit.lines[:, 1:] * ahead
        lo, hi = np.quantile(lines, [0.5 - share / 2, 0.5 + share / 2], axis=0)
        return pd.DataFrame({"date": stamps, "mid": mid, "lo": lo, "hi": hi})

    @property
    def text(self) -> str:
        """The headline in words."""
        row = self.headline
        return doubling_text(float(row["doubling_months"]), float(row["lo"]), float(row["hi"]))

    def summary(self) -> str:
        """Return headline, estimators, checks and notes as plain text."""
        level = f"{100 * self.options['level']:g} %"
        lines = [f"Doubling time: {self.text}, {level} interval, {self.headline['method']}", self.why, ""]
        lines += [
            f"  {row.method:<14}{doubling_text(row.doubling_months, row.lo, row.hi)}; n {row.n}, dropped {row.dropped}"
            for row in self.estimates.itertuples()
        ]
        lines += ["", *(f"  {sentence}" for sentence in self.sentences())]
        lines += [f"  [{note.severity}] {note.message}" for note in self.notes]
        return "\n".join(lines)

    def sentences(self) -> list[str]:
        """Say in words what the checks found; those that could not run are left out."""
        return [
            sentence
            for make in (_say_permutation, _say_leave_out, _say_bias, _say_break)
            if (sentence := make(self.checks))
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the rows as JSON-ready data; infinite and missing numbers become None."""
        return {
            "headline": clean(self.headline.to_dict()),
            "text": self.text,
            "why": self.why,
            "estimates": clean(self.estimates.to_dict("records")),
            "checks": clean(self.checks),
            "options": clean(self.options),
            "notes": [clean(note.to_dict()) for note in self.notes],
            "n": len(self.data),
        }

    def _repr_html_(self) -> str:
        names = ["method", "doubling_months", "lo", "hi", "n", "clusters", "dropped", "se_type"]
        table = self.estimates[names].to_html(index=False, float_format="{:.2f}".format, escape=True)
        lines = [*self.sentences(), *(note.message for note in self.notes)]
        items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
        return f"<p><b>Doubling time: {html.escape(self.text)}</b></p>{table}<ul>{items}</ul>"


def clean(value: Any) -> Any:
    """Turn nested data into what JSON can hold.

    Examples
    --------
    >>> clean({"hi": float("inf"), "n": np.int64(3), "flags": (True, np.bool_(False))})
    {'hi': None, 'n': 3, 'flags': [True, False]}
    """
    if isinstance(value, Mapping):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [clean(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def doubling_text_short(slope: float) -> str:
    """Say a slope as a doubling time, without interval.

    Examples
    --------
    >>> doubling_text_short(0.007), doubling_text_short(-0.001)
    ('3.3 months', 'no doubling')
    """
    months = doubling_months(slope)
    return f"{months:.1f} months" if math.isfinite(months) else "no doubling"


def _say_permutation(checks: Mapping[str, Any]) -> str:
    test = checks["permutation"]
    named = {
        "envelope": "envelope",
        "headline": "headline",
        "headline_family_blocks": "headline, whole families",
    }
    found = {label: test[key]["p"] for key, label in named.items()}
    parts = [f"{label} p = {p:.3f}" for label, p in found.items() if p is not None]
    return f"Shuffled release dates as steep or steeper: {', '.join(parts)}." if parts else ""


def _say_leave_out(checks: Mapping[str, Any]) -> str:
    found = checks["leave_one_family_out"]
    if found["doubling_min"] is None:
        return ""
    upper = "no doubling" if found["doubling_max"] is None else f"{found['doubling_max']:.1f} months"
    most = found["most_influential"]
    return f"Without one family: {found['doubling_min']:.1f} to {upper} ({most} moves it most)."


def _say_bias(checks: Mapping[str, Any]) -> str:
    null = checks["record_setter_bias"]["no_trend"]
    if not null or null["median_doubling_months"] is None:
        return ""
    share = null["share_at_least_observed"]
    seen = "" if share is None else f"; {100 * share:.0f} % of such series look at least as steep as the data"
    months = f"{null['median_doubling_months']:.1f} months"
    return f"With no trend at all the envelope would report a doubling in {months}{seen}."


def _say_break(checks: Mapping[str, Any]) -> str:
    named = {"stated": "Break at ChatGPT's release", "searched": "Best break found by searching"}
    parts = []
    for key, words in named.items():
        found = checks["breakpoint"][key]
        if found["p"] is not None:
            ends = [doubling_text_short(found[name]) for name in ("slope_before", "slope_after")]
            parts.append(f"{words}, {found['date']}: p = {found['p']:.3f}, {ends[0]} before and {ends[1]} after.")
    return " ".join(parts)

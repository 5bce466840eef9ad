"""The trend as a result: estimators side by side, a headline, its checks, and the line it draws."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from densing.core import Array, Note
from densing.scores.trend import words
from densing.scores.trend.data import EPOCH, TrendData
from densing.scores.trend.headline import Headline
from densing.scores.trend.slopes import doubling_text


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
        permutation, breakpoint (each test with p, size and power), leave_one_family_out,
        leave_one_organisation_out, without_groups, organisations, record_setter_bias, diagnostics, families,
        variance_shares, simulation; plain JSON-ready data.
    draws : array, shape (R,)
        Draws of the headline's slope per day.
    options : mapping
        level, seed, permutations, bootstrap, cluster, worlds.
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
        """The doubling time in words."""
        row = self.headline
        return doubling_text(float(row["doubling_months"]), float(row["lo"]), float(row["hi"]))

    @property
    def title(self) -> str:
        """The headline in words, with its window and its interval."""
        return words.title(self.headline, self.data.released, float(self.options["level"]))

    def summary(self) -> str:
        """Return headline, estimators, checks, the tests that do not lead, and notes as plain text."""
        lines = [f"{self.title}, {self.headline['method']}", self.why, ""]
        lines += [
            f"  {row.method:<14}{doubling_text(row.doubling_months, row.lo, row.hi)}; n {row.n}, dropped {row.dropped}"
            for row in self.estimates.itertuples()
        ]
        lines += ["", *(f"  {sentence}" for sentence in self.sentences())]
        lines += ["", "Details", *(f"  {sentence}" for sentence in self.details())]
        lines += [f"  [{note.severity}] {note.message}" for note in self.notes]
        return "\n".join(lines)

    def sentences(self) -> list[str]:
        """Say in words what the leading checks found; those that could not run are left out."""
        found = (
            words.shuffled(self.checks),
            words.broken(self.checks),
            words.without_groups(self.checks, float(self.headline["doubling_months"])),
            words.left_out(self.checks),
            words.by_organisation(self.checks, float(self.options["level"])),
            _say_bias(self.checks),
        )
        return [sentence for sentence in found if sentence]

    def details(self) -> list[str]:
        """Say what the tests found that have no power or no size on these data."""
        return [words.other_test(row) for row in words.other_tests(self.checks)]

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the rows as JSON-ready data; infinite and missing numbers become None."""
        return {
            "headline": clean(self.headline.to_dict()),
            "text": self.text,
            "title": self.title,
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
        items, details = ("".join(f"<li>{html.escape(line)}</li>" for line in part) for part in (lines, self.details()))
        more = f"<details><summary>Other tests</summary><ul>{details}</ul></details>" if details else ""
        return f"<p><b>{html.escape(self.title)}</b></p>{table}<ul>{items}</ul>{more}"


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


def _say_bias(checks: Mapping[str, Any]) -> str:
    null = checks["record_setter_bias"]["no_trend"]
    if not null or null["median_doubling_months"] is None:
        return ""
    # The share of such series that look as steep is a test without power; it stands in the details with its size.
    months = f"{null['median_doubling_months']:.1f} months"
    return f"With no trend at all the envelope would report a doubling in {months}."

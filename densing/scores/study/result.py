"""Everything the main job found, in one frozen value that the report only arranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from densing.core import Note
from densing.scores.density import DensityResult
from densing.scores.references import Reference
from densing.scores.study.measured import Measured
from densing.scores.trend import TrendResult


@dataclass(frozen=True)
class Study:
    """The main job's results.

    Parameters
    ----------
    options : mapping
        What was asked: reference, benchmark, since, until, denominator, guard, seed.
    selection : str
        Which models the headline uses, as a phrase.
    reference : Reference
        The headline's ruler.
    density : DensityResult
        The headline's models in its window.
    trend : TrendResult
        The headline's doubling time.
    long_reference : Reference, optional
        Ruler of the long window.
    long_density : DensityResult, optional
        The models of the long window.
    long_trend : TrendResult, optional
        The same family over the longest window that a joined series of scores allows.
    apart : DensityResult, optional
        Models outside the selection, with the reason in ``stratum``.
    skills : pandas.DataFrame
        One density per model and skill.
    multiverse : pandas.DataFrame
        Every other reasonable choice of ruler, benchmark, window, denominator and dates.
    split : mapping
        The pace before and after ChatGPT, see :func:`densing.scores.study.split.chatgpt_split`.
    replication : pandas.DataFrame
        The paper's own estimator in its own window, by ruler and benchmark.
    forecast : pandas.DataFrame
        The headline's frontier carried forward as far as back-tests go, as densities: ``date, mid, lo50, hi50, lo90,
        hi90``; dates that have passed are left out.
    long_forecast : pandas.DataFrame, optional
        The long window's frontier, further ahead.
    past_forecast : mapping
        Where the headline's forecast can be scored or has passed: when it was ``made``, its ``end``, and its ``score``
        (see :func:`densing.scores.trend.forecasts.score_forecast`) or None; empty otherwise.
    questions : pandas.DataFrame
        When a score fits in a size, by the trend that reaches furthest: ``score, params, date, date_lo, date_hi,
        level, note``.
    asked_of : Reference
        The ruler behind ``questions`` and ``backtest``.
    backtest : mapping
        How earlier forecasts by that trend would have fared.
    corollaries : pandas.DataFrame
        What follows from the doubling time.
    provenance : pandas.DataFrame
        Sources with licence, attribution and number of rows used.
    versions, hashes : mapping
        What produced the figures, and from what.
    notes : tuple of Note
        What to keep in mind.
    measured : Measured, optional
        A model evaluated here, or why none was.
    """

    options: Mapping[str, Any]
    selection: str
    reference: Reference
    density: DensityResult
    trend: TrendResult
    long_reference: Reference | None
    long_density: DensityResult | None
    long_trend: TrendResult | None
    apart: DensityResult | None
    skills: pd.DataFrame
    multiverse: pd.DataFrame
    split: Mapping[str, Any]
    replication: pd.DataFrame
    forecast: pd.DataFrame
    long_forecast: pd.DataFrame | None
    past_forecast: Mapping[str, Any]
    questions: pd.DataFrame
    asked_of: Reference
    backtest: Mapping[str, Any]
    corollaries: pd.DataFrame
    provenance: pd.DataFrame
    versions: Mapping[str, str]
    hashes: Mapping[str, str]
    notes: tuple[Note, ...] = ()
    measured: Measured | None = None

    def _repr_html_(self) -> str:
        return self.trend._repr_html_()

    @property
    def models(self) -> pd.DataFrame:
        """The density table of all models: the headline's first, then those shown apart."""
        parts = [self.density.table]
        if self.apart is not None:
            parts.append(self.apart.table)
        return pd.concat(parts, ignore_index=True)

"""Did the pace change with ChatGPT? The paper's split on MMLU, with models from before it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pandas as pd

from densing.core import DensingError
from densing.scores.catalog import Catalog, Selection
from densing.scores.density import catalog_densities
from densing.scores.references import Reference, load_reference
from densing.scores.trend import (
    CHATGPT,
    ESTIMATORS,
    HEADLINE,
    PAPER,
    PaperRates,
    SearchedBreak,
    Slope,
    StatedBreak,
    TrendData,
    break_power,
    breakpoint_test,
    estimate_shocks,
)

# Fig. 4 of arXiv 2412.04315v2 runs from GPT-3 (28 May 2020) to September 2024, on MMLU alone.
WINDOW = ("2020-05-28", "2024-09-30")
BENCHMARK = "mmlu"
WORLDS = 100


@dataclass(frozen=True)
class Pace:
    """The pace of one side of the split by one estimator: slope per day, doubling time in months, rows."""

    slope_per_day: float
    slope_lo: float
    slope_hi: float
    doubling_months: float
    lo: float
    hi: float
    n: int

    @classmethod
    def of(cls, slope: Slope) -> Pace:
        """Read it off an estimate."""
        return cls(slope.slope, slope.lo, slope.hi, slope.doubling_months, *slope.doubling_interval, slope.n)


@dataclass(frozen=True)
class SplitSide:
    """The models before, or after, ChatGPT.

    Parameters
    ----------
    n, observed : int
        Models, and those with a value rather than a bound.
    headline, envelope : Pace, optional
        By the headline's estimator and by the paper's.
    reason : str, optional
        Why one of them is missing.
    """

    n: int
    observed: int
    headline: Pace | None = None
    envelope: Pace | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Sides:
    """Both sides of the split."""

    before: SplitSide
    after: SplitSide


@dataclass(frozen=True)
class Split:
    """The pace before and after ChatGPT, or the reason why it cannot be told.

    Parameters
    ----------
    stated : StatedBreak, optional
        The test at ChatGPT's release, with its size, and its power at the paper's rates.
    searched : SearchedBreak, optional
        The best break of a search.
    reason : str, optional
        Why nothing was tested; then all but ``paper`` is None.
    paper : PaperRates
    bootstrap : int, optional
        Worlds behind the p-values.
    sides : Sides, optional
    window : tuple of str, optional
        First and last release date.
    reference, benchmark : str, optional
        The ruler.
    """

    stated: StatedBreak | None = None
    searched: SearchedBreak | None = None
    reason: str | None = None
    paper: PaperRates = field(default_factory=lambda: PAPER)
    bootstrap: int | None = None
    sides: Sides | None = None
    window: tuple[str, str] | None = None
    reference: str | None = None
    benchmark: str | None = None


def chatgpt_split(catalog: Catalog, reference: str, *, seed: int = 0, bootstrap: int = 499) -> Split:
    """Estimate the pace before and after ChatGPT and test the difference.

    Models of 2020 to 2022 were scored by other evaluators than the ruler and their dates are often from general
    knowledge, so this analysis, unlike the headline, pools five-shot MMLU scores of all evaluators and takes
    unverified dates.

    Parameters
    ----------
    catalog : Catalog
        Models and scores.
    reference : str
        A one-step family with an MMLU ruler.
    seed : int
        Seed of bootstrap and intervals.
    bootstrap : int
        Worlds behind the p-value.

    Notes
    -----
    Source: arXiv 2412.04315v2, Fig. 4: A about 0.0048 per day before, about 0.0073 after.
    """
    try:
        ruler = load_reference(reference, BENCHMARK, catalog=catalog)
        if reason := unfit(ruler, BENCHMARK):
            return Split(reason=reason)
        selection = Selection(verified_only=False)
        densities = catalog_densities(catalog, ruler, selection=selection, pool=True, seed=seed)
        data = TrendData.from_density(densities.headline).window(*WINDOW)
        tests = breakpoint_test(data, bootstrap=bootstrap, seed=seed)
        stated, shocks = tests.stated, estimate_shocks(data)
        if shocks is not None and stated.p is not None:
            slope = HEADLINE.fit(data, seed=seed).slope
            share = break_power(data, shocks, slope, split=CHATGPT, worlds=WORLDS, seed=seed)
            stated = replace(stated, size=share.size, power=share.power)
    except DensingError as error:
        return Split(reason=str(error))
    eve = str((CHATGPT - pd.Timedelta(days=1)).date())
    return Split(
        stated=stated,
        searched=tests.searched,
        paper=tests.paper,
        bootstrap=tests.bootstrap,
        sides=Sides(_side(data.window(None, eve), seed), _side(data.window(str(CHATGPT.date()), None), seed)),
        window=WINDOW,
        reference=reference,
        benchmark=BENCHMARK,
    )


def unfit(ruler: Reference, benchmark: str) -> str:
    """Return why a ruler must not be used to read a benchmark's scores; empty when it may."""
    if ruler.benchmark != benchmark:
        return f"reference {ruler.name} was fitted on {ruler.benchmark}, not on {benchmark}"
    return next((note.message for note in ruler.notes if note.severity == "error"), "")


def _side(data: TrendData, seed: int) -> SplitSide:
    side = SplitSide(len(data), int(data.observed.sum()))
    try:
        side = replace(side, headline=Pace.of(HEADLINE.fit(data, seed=seed)))
        return replace(side, envelope=Pace.of(ESTIMATORS["envelope"].fit(data)))
    except DensingError as error:
        return replace(side, reason=str(error))

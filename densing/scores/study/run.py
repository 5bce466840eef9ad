"""The main job: catalog, ruler, densities, doubling time, checks, forecast."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from densing.core import DensingError, once
from densing.scores.catalog import Catalog, Selection, load_catalog
from densing.scores.density import DEFAULT_GUARD, DensityResult, catalog_densities, skill_densities
from densing.scores.references import Reference, available_benchmarks, load_reference
from densing.scores.study.measured import Measured
from densing.scores.study.multiverses import PAPER_WINDOW, Spec, multiverse, replication, window_name
from densing.scores.study.provenance import provenance, versions
from densing.scores.study.result import Study
from densing.scores.study.split import chatgpt_split, unfit
from densing.scores.trend import (
    DAYS_PER_MONTH,
    TrendData,
    TrendResult,
    backtest,
    corollaries,
    estimate_trend,
    forecast,
    score_forecast,
    when,
)

HEADLINE = Selection()
# The headline's fan goes as far as it is back-tested; the long window's, which ends later, may go further.
HORIZON_MONTHS = 6.0
LONG_HORIZON_MONTHS = 18.0
QUESTION_SIZES = (7e9, 3e9, 1e9)
LONG_BENCHMARK = "mmlu"
Step = Callable[[str, float], object]


@dataclass(frozen=True)
class StudyOptions:
    """What the main job is asked.

    Parameters
    ----------
    reference, benchmark : str
        The headline's ruler.
    since, until : str, optional
        Window of release dates; from Llama-1 to the newest scored model by default.
    selection : Selection
        Which models the headline uses.
    denominator : str
        total, active or non_embedding.
    guard : float
        See :func:`densing.scores.density.estimate_density`.
    tokens : float, optional
        D0 of a two-step ruler.
    seed : int
        Seed of everything random.
    today : str, optional
        Forecasts for dates before it are scored or left out; the present day by default.
    """

    reference: str = "qwen1.5"
    benchmark: str = "mean"
    since: str | None = PAPER_WINDOW[0]
    until: str | None = None
    selection: Selection = HEADLINE
    denominator: str = "total"
    guard: float = DEFAULT_GUARD
    tokens: float | None = None
    seed: int = 0
    today: str | None = None


def run_study(
    catalog: Catalog | None = None,
    options: StudyOptions | None = None,
    *,
    measured: Measured | None = None,
    step: Step = lambda label, share: None,
) -> Study:
    """Do the main job on a catalog.

    Parameters
    ----------
    catalog : Catalog, optional
        The embedded one by default.
    options : StudyOptions, optional
        Ruler, window, selection.
    measured : Measured, optional
        A model evaluated here, see :func:`densing.scores.study.place_measured`.
    step : callable
        Called with a label and the share done, for progress bars.

    Returns
    -------
    Study

    Raises
    ------
    DensingError
        When the ruler does not exist or the window holds too few models for a trend.
    """
    catalog = catalog or load_catalog()
    options = options or StudyOptions()
    today = pd.Timestamp(options.today) if options.today is not None else pd.Timestamp.today().normalize()
    step("reference", 0.0)
    ruler = load_reference(options.reference, options.benchmark, tokens=options.tokens, catalog=catalog)
    everyone = _densities(catalog, ruler, options)
    chosen = _in_window(everyone, options)
    density, apart = everyone.subset(chosen), everyone.subset(~chosen)
    step("trend", 0.05)
    trend = estimate_trend(TrendData.from_density(density), seed=options.seed)
    step("long window", 0.1)
    long_ruler, long_density, long_trend = _long(catalog, options)
    step("skills", 0.15)
    skills = _skills(catalog, options)
    universe = _multiverse(catalog, options, density, step)
    step("forecast", 0.97)
    latest, asked_of = (trend, ruler) if long_trend is None or long_ruler is None else (long_trend, long_ruler)
    results = [everyone, *([long_density] if long_density is not None else [])]
    rulers = [ruler, *([long_ruler] if long_ruler is not None else [])]
    return Study(
        options={**_plain(options), "today": str(today.date())},
        selection=options.selection.describe(),
        reference=ruler,
        density=density,
        trend=trend,
        long_reference=long_ruler,
        long_density=long_density,
        long_trend=long_trend,
        apart=apart if len(apart) else None,
        skills=skills,
        multiverse=universe,
        split=chatgpt_split(catalog, options.reference, seed=options.seed),
        replication=replication(universe),
        forecast=forecast(trend, HORIZON_MONTHS, today=today),
        long_forecast=None if long_trend is None else forecast(long_trend, LONG_HORIZON_MONTHS, today=today),
        past_forecast=_past_forecast(trend, everyone, today),
        questions=_questions(latest, asked_of, today),
        asked_of=asked_of,
        backtest=_backtest(latest, options.seed),
        corollaries=corollaries(trend),
        provenance=provenance(catalog, results, rulers),
        versions=versions(),
        hashes={"catalog": catalog.digest, "reference": ruler.fit.data_hash},
        notes=tuple(once((*density.notes, *trend.notes))),
        measured=measured,
    )


def _densities(catalog: Catalog, ruler: Reference, options: StudyOptions) -> DensityResult:
    return catalog_densities(
        catalog,
        ruler,
        selection=options.selection,
        denominator=options.denominator,
        guard=options.guard,
        seed=options.seed,
    )


def _skills(catalog: Catalog, options: StudyOptions) -> pd.DataFrame:
    return skill_densities(
        catalog,
        options.reference,
        selection=options.selection,
        denominator=options.denominator,
        guard=options.guard,
        seed=options.seed,
    )


def _multiverse(catalog: Catalog, options: StudyOptions, density: DensityResult, step: Step) -> pd.DataFrame:
    dates = "sourced" if options.selection.verified_only else "all"
    window = window_name(options.since, options.until, density)
    return multiverse(
        catalog,
        Spec(options.reference, options.benchmark, window, options.denominator, dates),
        selection=options.selection,
        guard=options.guard,
        tokens=options.tokens,
        asked=(options.since, options.until),
        seed=options.seed,
        step=lambda label, share: step(label, 0.2 + 0.75 * share),
    )


def _in_window(result: DensityResult, options: StudyOptions) -> np.ndarray:
    released = result.table["released"]
    keep = result.table["stratum"].eq("headline")
    if options.since is not None:
        keep &= released >= pd.Timestamp(options.since)
    if options.until is not None:
        keep &= released <= pd.Timestamp(options.until)
    outside = result.table["stratum"].eq("headline") & ~keep
    result.table.loc[outside, "stratum"] = "outside the window"
    return keep.to_numpy(dtype=bool)


def _long(catalog: Catalog, options: StudyOptions) -> tuple[Reference | None, DensityResult | None, TrendResult | None]:
    """The same family on the benchmark whose scores two harnesses join, to the newest model."""
    try:
        if LONG_BENCHMARK not in available_benchmarks(options.reference):
            return None, None, None
        ruler = load_reference(options.reference, LONG_BENCHMARK, tokens=options.tokens, catalog=catalog)
        if unfit(ruler, LONG_BENCHMARK) or _is_headline(options):
            return None, None, None
        result = _densities(catalog, ruler, options)
        chosen = result.table["stratum"].eq("headline") & (result.table["released"] >= pd.Timestamp(PAPER_WINDOW[0]))
        kept = result.subset(chosen.to_numpy(dtype=bool))
        return ruler, kept, estimate_trend(TrendData.from_density(kept), seed=options.seed)
    except DensingError:
        return None, None, None


def _is_headline(options: StudyOptions) -> bool:
    """Whether the long window would only repeat the headline."""
    return options.benchmark == LONG_BENCHMARK and options.since == PAPER_WINDOW[0] and options.until is None


def _past_forecast(trend: TrendResult, everyone: DensityResult, today: pd.Timestamp) -> dict[str, Any]:
    """What the headline's own forecast said for dates that have passed, and what came where later models tell."""
    last = pd.Timestamp(trend.data.released.max()).normalize()
    end = last + pd.Timedelta(days=HORIZON_MONTHS * DAYS_PER_MONTH)
    outside = everyone.table["stratum"].eq("outside the window") & (everyone.table["released"] > last)
    later = everyone.subset(outside.to_numpy(dtype=bool))
    score = score_forecast(trend, TrendData.from_density(later), HORIZON_MONTHS) if len(later) else None
    return {"made": last, "end": end.normalize(), "score": score} if score is not None or end < today else {}


def _questions(trend: TrendResult, ruler: Reference, today: pd.Timestamp) -> pd.DataFrame:
    """When what the reference family does at its largest size fits into ordinary sizes."""
    largest = ruler.fit.domain["params"][1]
    x = {"params": np.array([largest]), **{name: np.array([value]) for name, value in ruler.given.items()}}
    score = math.floor(float(ruler.fit.predict(x)[0]) * 100) / 100
    rows = []
    for params in QUESTION_SIZES:
        answer = when(trend, score, params, ruler, today=today)
        found = {"date": answer.date, "date_lo": answer.lo, "date_hi": answer.hi, "level": answer.level}
        rows.append({"score": score, "params": params, **found, "note": answer.note})
    return pd.DataFrame(rows)


def _backtest(trend: TrendResult, seed: int) -> dict[str, Any]:
    try:
        found = backtest(trend.data, seed=seed)
    except DensingError as error:
        return {"n": 0, "why": str(error)}
    return {
        "n": found.n,
        "level": found.level,
        "coverage": found.coverage,
        "median_error": found.median_error,
        "frontier_error": found.frontier_error,
        "standstill_error": found.standstill_error,
        "cuts": found.table,
    }


def _plain(options: StudyOptions) -> dict[str, Any]:
    plain = asdict(options)
    plain["selection"] = options.selection.describe()
    return plain

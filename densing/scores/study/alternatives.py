"""The same question under other choices: the multiverse, the paper's own estimator, its split at ChatGPT.

The multiverse varies reference, benchmark, window, denominator and dates; the sensitivity varies, one at a time, what
the headline of the joint scale rests on; the replication reads the paper's estimator off the multiverse; the split is
the paper's own, on MMLU, with models from before ChatGPT.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from densing.core import DensingError, Field, FitError, Listing, cached, column, formatting, numeric, worst
from densing.scores.catalog import Catalog, Selection
from densing.scores.density import DEFAULT_GUARD, DensityResult, catalog_densities
from densing.scores.joint import JointScale, catalog_scale
from densing.scores.references import (
    JOINT,
    RECENT,
    SKILLS,
    JointReference,
    Reference,
    available_benchmarks,
    family_names,
    fits_folder,
    joint_reference,
    load_reference,
)
from densing.scores.trend import (
    BLOCKS,
    CHATGPT,
    DAYS_PER_MONTH,
    ESTIMATORS,
    FAMILIES,
    LINE,
    MONTHS,
    MONTHS_INTERVAL,
    PAPER,
    YEAR,
    YEAR_INTERVAL,
    PaperRates,
    SearchedBreak,
    Slope,
    StatedBreak,
    TrendData,
    break_power,
    breakpoint_test,
    estimate_shocks,
    fit_pace,
    permutation_test,
    shuffle_power,
)

# The window of Fig. 1 of arXiv 2412.04315v2: Llama-1 to September 2024.
PAPER_WINDOW = ("2023-02-24", "2024-09-30")
PAPER_MONTHS = 3.3
PERMUTATIONS = 199
WORLDS = 200
WINDOWS = {"paper": PAPER_WINDOW, "long": (PAPER_WINDOW[0], None)}
ASKED = "asked"
ENVELOPE = "envelope"
# Non-embedding counts are known for a part of the models only: the choice is shown where it can be made.
DENOMINATORS = ("total", "non_embedding")
COLUMNS = [
    "reference",
    "benchmark",
    "evaluator",
    "window",
    "denominator",
    "dates",
    "method",
    "slope_per_day",
    "doubling_months",
    "lo",
    "hi",
    "n",
    "families",
    "permutation_p",
    "permutation_size",
    "permutation_power",
    "headline",
]
# Fig. 4 of arXiv 2412.04315v2 runs from GPT-3 (28 May 2020) to September 2024, on MMLU alone.
SPLIT_WINDOW = ("2020-05-28", "2024-09-30")
SPLIT_BENCHMARK = "mmlu"
SPLIT_WORLDS = 100
KEPT = 10
"""Tables of one kind that stay in the cache folder."""
SENSITIVITY_COLUMNS = [
    "group",
    "choice",
    "doubling_months",
    "lo",
    "hi",
    "year_months",
    "year_lo",
    "year_hi",
    "n",
    "families",
    "last",
    "headline",
]
EARLY = pd.DateOffset(months=6)
"""How long the beginning of the window is, which is left out once: its models pull the line the most."""
Step = Callable[[str, float], object]
Estimate = Callable[[TrendData], Sequence[Slope]]
"""The pace over the window and, where an estimator knows it, that of the last twelve months."""


@dataclass(frozen=True)
class Spec:
    """One combination of choices."""

    reference: str
    benchmark: str
    window: str
    denominator: str = "total"
    dates: str = "sourced"


def specs(catalog: Catalog, *, joint: bool = False) -> Iterator[Spec]:
    """Yield the combinations: every shipped reference and window; other denominators and dates for the means and MMLU.

    ``joint`` adds the joint scale, its mean and its skills: it must be fitted to the catalog, so it is optional.
    """
    for benchmark in ("mean", *SKILLS) if joint else ():
        for window in WINDOWS:
            yield Spec(JOINT, benchmark, window)
        if benchmark == "mean":
            yield Spec(JOINT, benchmark, "long", denominator="non_embedding")
            yield Spec(JOINT, benchmark, "long", dates="all")
    for reference in family_names():
        for benchmark in available_benchmarks(reference):
            members = load_reference(reference, benchmark).benchmarks
            if benchmark in SKILLS or not catalog.scores["benchmark"].isin(members).any():
                continue
            for window in WINDOWS:
                yield Spec(reference, benchmark, window)
                if benchmark in ("mean", "mmlu"):
                    yield Spec(reference, benchmark, window, denominator="non_embedding")
                    yield Spec(reference, benchmark, window, dates="all")


def window_name(since: str | None, until: str | None, density: DensityResult) -> str:
    """Return the name of a window of release dates: paper, long, or ``asked`` when it is neither."""
    if since != PAPER_WINDOW[0] or until not in (None, PAPER_WINDOW[1]):
        return ASKED
    return "long" if until is None and not _adds_nothing(density) else "paper"


def multiverse(
    catalog: Catalog,
    headline: Spec | None = None,
    *,
    selection: Selection | None = None,
    guard: float = DEFAULT_GUARD,
    tokens: float | None = None,
    asked: tuple[str | None, str | None] = PAPER_WINDOW,
    seed: int = 0,
    keep: bool = False,
    step: Step = lambda label, share: None,
) -> pd.DataFrame:
    """Return the doubling time under every combination of choices.

    Parameters
    ----------
    catalog : Catalog
        Models and scores.
    headline : Spec, optional
        The headline's combination, marked in the table; added if it is not among the usual ones.
    selection : Selection, optional
        Models of every combination; whether their dates must be sourced is varied.
    guard, tokens
        As in :func:`densing.scores.density.estimate_density` and, for two-step references, :func:`load_reference`.
    asked : tuple of str or None
        First and last release date of the window ``asked``.
    seed : int
        Seed of intervals and permutations.
    keep : bool
        Whether the table is cached, and read from the cache for the same catalog, fits and options.
    step : callable
        Called with a label and the share done.

    Returns
    -------
    pandas.DataFrame
        Columns :data:`COLUMNS`; two rows (headline estimator, envelope) per combination that can be estimated.
        ``permutation_p`` shuffles the dates of whole families and judges all models, so it is one for both rows; its
        size, and its power at the paper's 3.3 months, are simulated on the same dates and families. A window
        that adds no model to the paper's is left out, so that no combination counts twice.
    """
    every = list(specs(catalog, joint=headline is not None and headline.reference == JOINT))
    every += [headline] if headline is not None and headline not in every else []
    windows = {**WINDOWS, ASKED: asked}

    def work() -> pd.DataFrame:
        rows: list[dict[str, Any]] = []
        densities: dict[tuple[str, str, str, str], DensityResult | None] = {}
        for number, spec in enumerate(every):
            step(f"{spec.reference} {spec.benchmark}", number / len(every))
            key = (spec.reference, spec.benchmark, spec.denominator, spec.dates)
            if key not in densities:
                verified = replace(selection or Selection(), verified_only=spec.dates == "sourced")
                densities[key] = None
                try:
                    reference = load_reference(spec.reference, spec.benchmark, catalog=catalog)
                    reference = reference.at_tokens(tokens if "tokens" in reference.given else None)
                    models = catalog_densities(
                        catalog, reference, selection=verified, denominator=spec.denominator, guard=guard, seed=seed
                    )
                    densities[key] = None if worst(reference.notes) == "error" else models.headline
                except DensingError:
                    pass  # no such reference, or no model that it reads: one combination less
            result = densities[key]
            if result is not None and not (spec.window == "long" and _adds_nothing(result)):
                rows.extend(_rows(spec, result, windows[spec.window], spec == headline, seed))
        return pd.DataFrame(rows, columns=COLUMNS)

    # A user's own fit is a path, which does not tell what stands there.
    if not keep or not {spec.reference for spec in every} <= set(family_names()):
        return work()
    fits = [path.read_bytes() for path in sorted(fits_folder().rglob("*.json"))]
    inputs = (catalog.digest, fits, every, headline, windows, selection, guard, tokens, seed)
    return cached(work, pd.DataFrame, "multiverse", *inputs, by=multiverse, most=KEPT)


def _adds_nothing(result: DensityResult) -> bool:
    return not (result.table["released"] > pd.Timestamp(PAPER_WINDOW[1])).any()


def _rows(
    spec: Spec, result: DensityResult, window: tuple[str | None, str | None], headline: bool, seed: int
) -> list[dict[str, Any]]:
    data = TrendData.from_density(result).window(*window).ordered()
    try:
        slopes = {name: ESTIMATORS[name].fit(data, seed=seed) for name in (LINE.name, ENVELOPE)}
    except DensingError:
        return []
    permutation = permutation_test(data, permutations=PERMUTATIONS, seed=seed)
    test: dict[str, Any] = {"permutation_p": permutation.headline_family_blocks.p}
    shocks = estimate_shocks(data)
    if shocks is not None:
        pace = {"paper": float(np.log(2)) / PAPER_MONTHS / DAYS_PER_MONTH}
        shares = shuffle_power(data, shocks, pace, tests=(BLOCKS,), worlds=WORLDS, seed=seed)[BLOCKS]
        test |= {"permutation_size": shares.size, "permutation_power": shares.power[0].share}
    rows = []
    for name, slope in slopes.items():
        if slope.estimable:
            low, high = slope.doubling_interval
            rows.append(
                {
                    "reference": spec.reference,
                    "benchmark": spec.benchmark,
                    "evaluator": result.reference.evaluator,
                    "window": spec.window,
                    "denominator": spec.denominator,
                    "dates": spec.dates,
                    "method": name,
                    "slope_per_day": slope.slope,
                    "doubling_months": slope.doubling_months,
                    "lo": low,
                    "hi": high,
                    "n": slope.n,
                    "families": slope.clusters,
                    **test,
                    "headline": headline and name == LINE.name,
                }
            )
    return rows


def sensitivity_listing(table: pd.DataFrame) -> Listing:
    """Return the headline under other choices, of :func:`sensitivity`, as people read it; the headline is marked."""
    fields = (
        Field("Choice", column("choice")),
        MONTHS,
        MONTHS_INTERVAL,
        YEAR,
        YEAR_INTERVAL,
        numeric("Count", "n", formatting.count),
        FAMILIES,
        numeric("Last release", "last", formatting.day),
    )
    title = "The same scale and estimator, one choice another; the marked row is the headline."
    return Listing(title, table, fields, "headline")


def sensitivity(
    catalog: Catalog,
    everyone: DensityResult,
    *,
    window: tuple[str | None, str | None],
    selection: Selection | None = None,
    estimate: Estimate | None = None,
    refit: bool = False,
    seed: int = 0,
    keep: bool = False,
) -> pd.DataFrame:
    """Return the headline's doubling times under alternative choices, changed one at a time.

    Parameters
    ----------
    catalog : Catalog
        The one behind the densities.
    everyone : DensityResult
        All models of the joint scale, the headline's and those apart, read as in the headline.
    window : tuple of str or None
        First and last release date.
    selection : Selection, optional
        Of the headline.
    estimate : callable, optional
        From :class:`TrendData` to one or two slopes: over the window and, for the columns ``year_months, year_lo,
        year_hi``, over the last twelve months. The headline's estimator by default.
    refit : bool
        Also read the scale fitted with makers' scores of their own models; the embedded catalog's is shipped.
    seed : int
        Of the default estimate.
    keep : bool
        Whether the table is kept in the cache folder, and read from there for the same densities and choices; with the
        default estimate only.

    Returns
    -------
    pandas.DataFrame
        Columns :data:`SENSITIVITY_COLUMNS`: the alternative choice, doubling times with their intervals, models and
        families, the last release; the headline's own row first. Empty where the densities are of another reference,
        and without the choices under which nothing could be estimated.

    See Also
    --------
    multiverse
    """
    reference, usual, table = everyone.reference, selection or Selection(), everyone.table
    if not isinstance(reference, JointReference):
        return pd.DataFrame(columns=SENSITIVITY_COLUMNS)
    pace: Estimate = estimate or (lambda data: _both_means(data, seed))
    guard, headline = float(everyone.options["guard"]), table["stratum"].eq("headline")
    traits = int(table.loc[headline, "traits"].max()) if headline.any() else 0
    begun = table["released"].ge(pd.Timestamp(window[0])) if window[0] else table["released"].notna()

    def only(mask: pd.Series) -> TrendData:
        return TrendData.from_density(everyone.subset((headline & mask).to_numpy(dtype=bool)))

    def other(scale: JointScale = reference.scale, guard: float = guard, **options: str) -> TrendData:
        own = joint_reference(catalog, reference.benchmark, scale=scale, seed=reference.fit.options["seed"], **options)
        # The scale is given: none is to be fitted with vendors' figures on the way.
        chosen = {"selection": replace(usual, vendors=False), **everyone.options, "guard": guard}
        return TrendData.from_density(catalog_densities(catalog, own, **chosen).headline)

    def sizes(low: float, high: float) -> str:
        return f"{formatting.size(low)} to {formatting.size(high)}"

    anchor, recent = sizes(*reference.fit.domain["params"]), f"slope since {RECENT.year}"
    choices: list[tuple[str, str, Callable[[], TrendData]]] = [("headline", "the headline", lambda: only(headline))]
    if refit and not usual.vendors:
        choices.append(("scores", "makers' own scores in", lambda: other(catalog_scale(catalog, own="harness"))))
    if np.isfinite(guard):
        members = sizes(
            float(reference.points["params"].min()) / guard, float(reference.points["params"].max()) * guard
        )
        choices.append(("range", f"range {members}", lambda: other(reach="members")))
    if guard != 1:
        choices.append(("range", f"range {anchor}", lambda: other(guard=1.0)))
    choices.append(("slope", recent, lambda: other(slope="random")))
    if guard != 1:
        choices.append(("slope", f"range {anchor}, {recent}", lambda: other(guard=1.0, slope="random")))
    if traits > 1:
        choices.append(("models", f"measured on all {traits} skills", lambda: only(table["traits"].eq(traits))))
    late = ~early(table["released"], headline & begun)
    choices.append(("models", "without the first six months", lambda: only(late)))

    def work() -> pd.DataFrame:
        rows = []
        for group, choice, densities in choices:
            try:
                data = densities().window(*window).ordered()
                slopes = pace(data)
            except DensingError:
                continue
            if slopes[0].estimable:
                ends = [slope.doubling for slope in slopes[:2]]
                last = pd.Timestamp(data.released.max())
                over, year = (*ends, (math.nan,) * 3)[:2]
                rows.append((group, choice, *over, *year, slopes[0].n, slopes[0].clusters, last, group == "headline"))
        return pd.DataFrame(rows, columns=SENSITIVITY_COLUMNS)

    if not keep or estimate is not None:
        return work()
    inputs = (catalog.digest, table, everyone.options, everyone.draws, window, selection, refit, seed)
    return cached(work, pd.DataFrame, "sensitivity", *inputs, by=sensitivity, most=KEPT)


def _both_means(data: TrendData, seed: int) -> tuple[Slope, ...]:
    """Return the mean pace over the window and its last twelve months; of a straight line if the data allow no more."""
    try:
        fit = fit_pace(data, seed=seed)
    except FitError:
        return (LINE.fit(data, seed=seed),)
    return fit.window, fit.last_year


def early(released: pd.Series, mask: pd.Series) -> pd.Series:
    """Mask of the releases of the first six months, counted from the first that the other mask holds."""
    first = released[mask].min()
    return released < first + EARLY if pd.notna(first) else pd.Series(False, index=released.index)


def replication(table: pd.DataFrame) -> pd.DataFrame:
    """Return the paper's estimator in its window, by reference and benchmark, beside the paper's 3.3 months.

    Parameters
    ----------
    table : pandas.DataFrame
        A table of :func:`multiverse`.

    Returns
    -------
    pandas.DataFrame
        ``reference, benchmark, evaluator, window, n, doubling_months, lo, hi, covers_paper, permutation_p,
        permutation_size, permutation_power``; ``n`` counts record-setters.

    Notes
    -----
    Source: 3.3 months is arXiv 2412.04315v2's headline (A about 0.007 per day). Its models, scores and densities are
    not published, so the procedure is replicated, not the figure's points.
    """
    usual = table["denominator"].eq("total") & table["dates"].eq("sourced")
    # The paper knows no skills: of the joint scale, the mean stands beside the means of the families.
    usual &= ~(table["reference"].eq(JOINT) & table["benchmark"].isin(SKILLS))
    records = table[usual & table["window"].eq("paper") & table["method"].eq(ENVELOPE)]
    covers = (records["lo"] <= PAPER_MONTHS) & (records["hi"] >= PAPER_MONTHS)
    columns = ["reference", "benchmark", "evaluator", "window", "n", "doubling_months", "lo", "hi"]
    shuffled = ["permutation_p", "permutation_size", "permutation_power"]
    result = records[columns].assign(covers_paper=covers, **{name: records[name] for name in shuffled})
    return result.sort_values(["reference", "benchmark"], ignore_index=True)


@dataclass(frozen=True)
class Split:
    """The pace before and after ChatGPT, or the reason why it cannot be estimated.

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
        The reference.
    """

    stated: StatedBreak | None = None
    searched: SearchedBreak | None = None
    reason: str | None = None
    paper: PaperRates = PAPER
    bootstrap: int | None = None
    sides: Sides | None = None
    window: tuple[str, str] | None = None
    reference: str | None = None
    benchmark: str | None = None


@dataclass(frozen=True)
class Sides:
    """Both sides of the split."""

    before: SplitSide
    after: SplitSide


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
        """Return the pace of an estimate."""
        return cls(slope.slope, slope.lo, slope.hi, slope.doubling_months, *slope.doubling_interval, slope.n)


def chatgpt_split(catalog: Catalog, reference: str, *, seed: int = 0, bootstrap: int = 499) -> Split:
    """Estimate the pace before and after ChatGPT and test the difference.

    Models of 2020 to 2022 were scored by other evaluators than the reference and their dates are often from general
    knowledge, so this analysis, unlike the headline, pools five-shot MMLU scores of all evaluators and takes
    unverified dates.

    Parameters
    ----------
    catalog : Catalog
        Models and scores.
    reference : str
        A one-step family with an MMLU reference.
    seed : int
        Seed of bootstrap and intervals.
    bootstrap : int
        Worlds behind the p-value.

    Notes
    -----
    Source: arXiv 2412.04315v2, Fig. 4: A about 0.0048 per day before, about 0.0073 after.
    """
    try:
        ref = load_reference(reference, SPLIT_BENCHMARK, catalog=catalog)
        if reason := unfit(ref, SPLIT_BENCHMARK):
            return Split(reason=reason)
        selection = Selection(verified_only=False)
        densities = catalog_densities(catalog, ref, selection=selection, pool=True, seed=seed)
        data = TrendData.from_density(densities.headline).window(*SPLIT_WINDOW)
        tests = breakpoint_test(data, bootstrap=bootstrap, seed=seed)
        stated, shocks = tests.stated, estimate_shocks(data)
        if shocks is not None and stated.p is not None:
            slope = LINE.fit(data, seed=seed).slope
            share = break_power(data, shocks, slope, split=CHATGPT, worlds=SPLIT_WORLDS, seed=seed)
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
        window=SPLIT_WINDOW,
        reference=reference,
        benchmark=SPLIT_BENCHMARK,
    )


def unfit(reference: Reference, benchmark: str) -> str:
    """Return why a reference must not be used for a benchmark's scores; otherwise empty."""
    if reference.benchmark != benchmark:
        return f"reference {reference.name} was fitted on {reference.benchmark}, not on {benchmark}"
    return next((note.message for note in reference.notes if note.severity == "error"), "")


def _side(data: TrendData, seed: int) -> SplitSide:
    side = SplitSide(len(data), int(data.observed.sum()))
    try:
        side = replace(side, headline=Pace.of(LINE.fit(data, seed=seed)))
        return replace(side, envelope=Pace.of(ESTIMATORS[ENVELOPE].fit(data)))
    except DensingError as error:
        return replace(side, reason=str(error))

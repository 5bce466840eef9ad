"""One score per model, with a standard error that knows the test's size and how much evaluators disagree.

Evaluators disagree by what is left of their values once their general offsets are taken out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Literal, TypeVar

import numpy as np
import pandas as pd

from densing.core import Array, InputError, UnknownNameError
from densing.scores.catalog.catalog import Catalog

_Numbers = TypeVar("_Numbers", np.ndarray, pd.Series)

# What the flags of a score mean for its use. A *wrong* value is left out unless asked for; a value of another
# *protocol* is comparable only inside its own series and says nothing about disagreement; a *floor* value is a censored
# observation, so it stays; remarks (implausible, quoted, rounded) inform a reader and change nothing. Values that
# merely look implausible stay in on purpose: leaving out what is low for its size would push densities up.
# erratic_model and erratic_cell are set by the rule of erratic.py alone.
WRONG = frozenset(
    {
        "suspect_copy_of_bbh",
        "suspect_harness_failure",
        "erratic_harness",
        "conflicting_duplicate",
        "intermediate_checkpoint",
        "erratic_model",
        "erratic_cell",
    }
)
# Against the protocol that benchmarks.csv calls usual: another number of examples in the prompt, the letter of an
# option where its text is usual, log-likelihoods divided by length or not, a generated answer where options are
# compared, another set of problems (MBPP of EvalPlus, sanitised MBPP), a judge that accepts more forms of the right
# answer (math-verify), or a rival's figure in a table that quotes some of them, whose protocol nobody states.
OTHER_PROTOCOL = frozenset(
    {
        "multiple_choice_no_cot",
        "math500_subset",
        "unnormalised_acc",
        "normalised_acc",
        "english_only",
        "other_shots",
        "option_letters",
        "generated_answer",
        "other_problem_set",
        "lenient_match",
        "perhaps_quoted",
    }
)
FLOOR = frozenset({"below_chance", "zero_score", "at_floor"})
REMARKS = frozenset(
    {
        "outlier_vs_other_sources",
        "below_smaller_sibling",
        "upstream_wrong_version",
        "vendor_value_not_remeasured",
        "rounded_2dp",
        "recovered_from_normalised",
    }
)
FLAGS = WRONG | OTHER_PROTOCOL | FLOOR | REMARKS

COLUMNS = ["model", "benchmark", "score", "score_se", "n_sources", "evaluator", "source", "flags"]
Combine = Literal["evaluator", "mean"]
# Tables print a tenth of a percentage point, so two values are told apart from the third decimal on.
DECIMALS = 3
# Weight of the pooled variance against a model's own, in degrees of freedom.
PRIOR_DOF = 4.0


@dataclass(frozen=True)
class Disagreement:
    """Residual spread of one benchmark's measurements around model plus evaluator.

    Parameters
    ----------
    benchmark : str
        Benchmark id.
    pooled_variance : float
        Residual sum of squares over its degrees of freedom; 0 where nothing was measured twice.
    dof : int
        Degrees of freedom of the pooled variance; 0 means that it is unknown rather than small.
    models : pandas.DataFrame
        Indexed by model: ``n_sources`` distinct measurements and ``sum_squares`` of their residuals.
    """

    benchmark: str
    pooled_variance: float
    dof: int
    models: pd.DataFrame

    def variances(self, models: Sequence[str]) -> Array:
        """Return the variance of one measurement of each model, shrunk to the pooled one.

        ``(d0 s0^2 + SS_m) / (d0 + k_m - 1)`` with ``d0 = 4``; the pooled ``s0^2`` where ``k_m < 2``. Source:
        own choice; the form is that of moderated variances (Smyth 2004, doi:10.2202/1544-6115.1027).
        """
        if self.dof == 0:
            return np.full(len(models), self.pooled_variance)
        rows = self.models.reindex(models)
        own = (rows["n_sources"] - 1.0).clip(lower=0.0)
        shrunk = (PRIOR_DOF * self.pooled_variance + rows["sum_squares"]) / (PRIOR_DOF + own)
        return shrunk.fillna(self.pooled_variance).to_numpy(dtype=float)


def measurements(catalog: Catalog, benchmark: str) -> pd.DataFrame:
    """Return the distinct, usable measurements of a benchmark under its usual protocol.

    Equal values (to 0.001) of one model are one measurement quoted by several tables; the evaluator with the
    lowest ``preference`` keeps it. Wrong values and values of another protocol are left out.

    Returns
    -------
    pandas.DataFrame
        Columns model, evaluator, score, sorted.
    """
    scores = catalog.scores[catalog.scores["benchmark"] == benchmark]
    usable = scores[~has_flag(scores["flags"], WRONG | OTHER_PROTOCOL)]
    return (
        _distinct(by_preference(usable, catalog))[["model", "evaluator", "score"]]
        .sort_values(["model", "evaluator"])
        .reset_index(drop=True)
    )


def by_preference(scores: pd.DataFrame, catalog: Catalog) -> pd.DataFrame:
    """Return scores ordered by model, then by the preference of their evaluators, then by its name."""
    order = dict(zip(catalog.evaluators["id"], catalog.evaluators["preference"], strict=True))
    ranks = scores["evaluator"].map(order).astype(float)
    return scores.assign(_rank=ranks).sort_values(["model", "_rank", "evaluator"]).drop(columns="_rank")


@lru_cache(maxsize=256)
def fit_disagreement(catalog: Catalog, benchmark: str) -> Disagreement:
    """Fit ``score = model + evaluator`` by least squares and pool the residuals.

    The evaluator's offset is common to all models it measured, the reference family among them, and so
    cancels in a comparison inside one series; what is left is the noise of a single measurement.

    Source: own; an additive two-way layout with unequal numbers.

    Examples
    --------
    >>> from densing.scores.catalog import load_catalog
    >>> 0.005 < fit_disagreement(load_catalog(), "mmlu").pooled_variance ** 0.5 < 0.05
    True
    """
    table = measurements(catalog, benchmark)
    counts = table["model"].value_counts()
    n_sources = pd.DataFrame({"n_sources": counts, "sum_squares": 0.0}).sort_index()
    repeated = table[table["model"].map(counts) > 1]
    if repeated.empty:
        return Disagreement(benchmark, 0.0, 0, n_sources)
    design = np.hstack([pd.get_dummies(repeated[name], dtype=float).to_numpy() for name in ("model", "evaluator")])
    values = repeated["score"].to_numpy()
    solution, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
    squares = (values - design @ solution) ** 2
    dof = len(values) - int(rank)
    pooled = float(squares.sum() / dof) if dof > 0 else 0.0
    # With as many offsets as measurements nothing is left over: unknown, not zero, hence dof 0.
    n_sources["sum_squares"] = pd.Series(squares).groupby(repeated["model"].to_numpy()).sum()
    return Disagreement(benchmark, pooled, max(dof, 0), n_sources.fillna({"sum_squares": 0.0}))


def disagreement(catalog: Catalog) -> pd.DataFrame:
    """Return every (model, benchmark) with several distinct measurements, widest spread first.

    Returns
    -------
    pandas.DataFrame
        Columns model, benchmark, spread (largest minus smallest), n_sources, values (``0.395 (evaluator),
        ...``).

    Examples
    --------
    >>> from densing.scores.catalog import load_catalog
    >>> table = disagreement(load_catalog()).set_index(["model", "benchmark"])
    >>> float(table.loc[("Baichuan-2-13B", "gsm8k"), "spread"].round(3))
    0.307
    """
    rows = []
    for benchmark in sorted(catalog.scores["benchmark"].unique()):
        table = measurements(catalog, benchmark)
        repeated = table[table["model"].duplicated(keep=False)].sort_values(["model", "score", "evaluator"])
        cells = zip(*(repeated[name].tolist() for name in ("model", "score", "evaluator")), strict=True)
        for model, group in groupby(cells, itemgetter(0)):
            found = [(score, evaluator) for _, score, evaluator in group]
            values = ", ".join(f"{score:.3f} ({evaluator})" for score, evaluator in found)
            rows.append((model, benchmark, found[-1][0] - found[0][0], len(found), values))
    frame = pd.DataFrame(rows, columns=["model", "benchmark", "spread", "n_sources", "values"])
    return frame.sort_values(["spread", "model", "benchmark"], ascending=[False, True, True], ignore_index=True)


def binomial_variance(score: _Numbers, items: _Numbers) -> _Numbers:
    """Return the sampling variance of a share of ``items`` right answers.

    ``q (1 - q) / n`` with ``q = (n score + 1/2) / (n + 1)``, which is positive at scores of 0 and 1 too.

    Source: binomial variance at the mean of the posterior under Jeffreys' prior, Beta(1/2, 1/2).

    Parameters
    ----------
    score, items : array or Series, shape (n,)
        Share in [0, 1] and number of items.

    Examples
    --------
    >>> binomial_variance(np.array([0.5, 0.0]), np.array([100.0, 100.0])).round(6).tolist()
    [0.0025, 4.9e-05]
    """
    centre = (items * score + 0.5) / (items + 1.0)
    return centre * (1.0 - centre) / items


def sampling_variance(score: Array, items: Array, stated: Array) -> Array:
    """Return the larger of the binomial variance and the square of the standard error that an evaluator states.

    A stated error may hold more than the sampling of items (several runs), and may hold less: EuroEval's is the spread
    of ten bootstrap samples of one test set over the root of ten, so it shrinks with their number and lacks the
    sampling of the set.

    Parameters
    ----------
    score, items : array, shape (n,)
        As in :func:`binomial_variance`.
    stated : array, shape (n,)
        Standard errors; missing where none is stated.

    Examples
    --------
    >>> half, items = np.full(3, 0.5), np.full(3, 100.0)
    >>> sampling_variance(half, items, np.array([np.nan, 0.1, 0.001])).round(6).tolist()
    [0.0025, 0.01, 0.0025]

    See Also
    --------
    binomial_variance
    """
    return np.asarray(np.fmax(binomial_variance(score, items), stated**2))


def score_table(
    catalog: Catalog,
    benchmark: str,
    *,
    series: str | None = None,
    evaluator: str | None = None,
    include_flagged: bool = False,
    combine: Combine = "evaluator",
) -> pd.DataFrame:
    """Return one score per model on a benchmark, from values that may be compared with each other.

    ``score_se^2 = sampling variance + disagreement variance``. The sampling variance is binomial, or the square of the
    standard error that the evaluator states (column ``stated_se``) where that is larger
    (:func:`sampling_variance`); for the
    disagreement see :func:`fit_disagreement`. All evaluators use the same items, so the disagreement does not contain
    the sampling of items and the two add.

    Parameters
    ----------
    catalog : Catalog
        Where the scores are.
    benchmark : str
        Benchmark id.
    series : str, optional
        Group of comparable values; the benchmark's ``default_series`` if neither series nor evaluator is
        given (for a benchmark without one, the series with most models).
    evaluator : str, optional
        Take this evaluator's values only.
    include_flagged : bool
        Keep values that are very probably wrong (:data:`densing.scores.catalog.WRONG`).
    combine : {"evaluator", "mean"}
        Where a series has several values of a model: that of the evaluator with the lowest ``preference``
        (own harnesses with many models first, then vendors, then collected papers), or the mean of the
        distinct ones.

    Returns
    -------
    pandas.DataFrame
        Sorted by model; columns model, benchmark, score, score_se, n_sources (distinct measurements of this
        model and benchmark anywhere in the catalog), evaluator, source, flags.

    Raises
    ------
    UnknownNameError
        For a benchmark, series or evaluator that has no scores here.

    Examples
    --------
    >>> from densing.scores.catalog import load_catalog
    >>> table = score_table(load_catalog(), "mmlu").set_index("model")
    >>> float(table.loc["Qwen1.5-7B", "score"]), table.loc["Qwen1.5-7B", "evaluator"]
    (0.6197, 'obsscaling')

    See Also
    --------
    mean_table
    """
    chosen = _choose(catalog, benchmark, series, evaluator)
    if not include_flagged:
        chosen = chosen[~has_flag(chosen["flags"], WRONG)]
    ranked = by_preference(chosen, catalog)
    rows = ranked.drop_duplicates("model").reset_index(drop=True)
    rows = rows.assign(stated_se=rows.get("stated_se", np.nan))
    averaged = np.ones(len(rows))
    if combine == "mean":
        groups = _distinct(ranked).groupby("model", sort=True)
        averaged = groups.size().to_numpy(dtype=float)
        rows = rows.assign(
            score=groups["score"].mean().to_numpy(),
            # The mean of several has the sampling error of one of them: their items are the same.
            stated_se=groups["stated_se"].mean().to_numpy() if "stated_se" in ranked.columns else np.nan,
            evaluator=groups["evaluator"].agg(_joined).to_numpy(),
            source=groups["source"].agg(_joined).to_numpy(),
            flags=groups["flags"]
            .agg(lambda cells: _joined(flag for cell in cells if isinstance(cell, str) for flag in cell.split(";")))
            .to_numpy(),
        )
    elif combine != "evaluator":
        raise UnknownNameError("combine", combine, ["evaluator", "mean"])
    usual = float(catalog.benchmarks.set_index("id").loc[benchmark, "items"])
    items = rows["items"].fillna(usual).to_numpy(dtype=float)
    spread = fit_disagreement(catalog, benchmark)
    noise = spread.variances(rows["model"].tolist())
    measured = spread.models["n_sources"].reindex(rows["model"]).fillna(0).to_numpy()
    sampling = sampling_variance(rows["score"].to_numpy(dtype=float), items, rows["stated_se"].to_numpy(dtype=float))
    return rows.assign(
        score_se=np.sqrt(sampling + noise / averaged),
        # A value of another protocol is not a measurement of the usual one, but it is still one value.
        n_sources=np.maximum(measured, averaged).astype(int),
        flags=[flag if isinstance(flag, str) else "" for flag in rows["flags"]],
    )[COLUMNS]


def mean_table(
    catalog: Catalog,
    benchmarks: Sequence[str],
    evaluator: str | None = None,
    *,
    include_flagged: bool = False,
    combine: Combine = "evaluator",
) -> pd.DataFrame:
    """Return the mean score over several benchmarks for every model that has them all.

    ``score_se = sqrt(sum se_b^2) / B``, errors of different benchmarks taken as independent.

    Parameters
    ----------
    catalog, evaluator, include_flagged, combine
        As in :func:`score_table`; without an evaluator each benchmark gives its default series.
    benchmarks : sequence of str
        Benchmark ids, each once.

    Returns
    -------
    pandas.DataFrame
        Columns of :func:`score_table` (benchmark is ``mean``; n_sources the smallest of the parts) and
        ``n_benchmarks``.

    Raises
    ------
    InputError
        For an empty or repeating list of benchmarks.

    Examples
    --------
    >>> from densing.scores.catalog import load_catalog
    >>> table = mean_table(load_catalog(), ["mmlu", "hellaswag"], "obsscaling")
    >>> set(table["n_benchmarks"])
    {2}

    See Also
    --------
    score_table
    """
    names = list(benchmarks)
    if not names or len(set(names)) < len(names):
        raise InputError(f"mean of benchmarks {names}: give at least one, and each only once")
    parts = [
        score_table(catalog, name, evaluator=evaluator, include_flagged=include_flagged, combine=combine)
        for name in sorted(names)
    ]
    stacked = pd.concat([part.assign(variance=part["score_se"] ** 2) for part in parts])
    groups = stacked.groupby("model", sort=True)
    table = groups.agg(
        score=("score", "mean"),
        variance=("variance", "sum"),
        n_sources=("n_sources", "min"),
        evaluator=("evaluator", _joined),
        source=("source", _joined),
        flags=("flags", lambda cells: _joined(flag for cell in cells for flag in cell.split(";") if flag)),
        n_benchmarks=("benchmark", "size"),
    ).reset_index()
    table = table[table["n_benchmarks"] == len(names)].reset_index(drop=True)
    table["benchmark"] = "mean"
    table["score_se"] = np.sqrt(table["variance"]) / len(names)
    return table[[*COLUMNS, "n_benchmarks"]]


def series_list(catalog: Catalog, benchmark: str | None = None) -> pd.DataFrame:
    """Return the series of the catalog: benchmark, series, evaluators, number of models, default or not.

    Examples
    --------
    >>> from densing.scores.catalog import load_catalog
    >>> series_list(load_catalog(), "xwinograd")["series"].tolist()
    ['xwinograd:obsscaling', 'xwinograd:swallow']
    """
    scores = catalog.scores if benchmark is None else catalog.scores[catalog.scores["benchmark"] == benchmark]
    table = scores.groupby(["benchmark", "series"], sort=True).agg(
        evaluators=("evaluator", _joined), models=("model", "nunique")
    )
    default = set(catalog.benchmarks["default_series"].dropna())
    return table.reset_index().assign(default=lambda frame: frame["series"].isin(default))


def _choose(catalog: Catalog, benchmark: str, series: str | None, evaluator: str | None) -> pd.DataFrame:
    known = catalog.benchmarks.set_index("id")["default_series"]
    if benchmark not in known.index:
        raise UnknownNameError("benchmark", benchmark, known.index)
    scores = catalog.scores[catalog.scores["benchmark"] == benchmark]
    if evaluator is not None and evaluator not in set(scores["evaluator"]):
        raise UnknownNameError(f"evaluator of {benchmark}", evaluator, scores["evaluator"].unique())
    if series is None and evaluator is None:
        series = known[benchmark]
        if series not in set(scores["series"]):
            # Ties go to the first name, so that the order of rows does not matter.
            series = scores["series"].value_counts().sort_index().idxmax() if len(scores) else series
    if series is not None and series not in set(scores["series"]):
        raise UnknownNameError(f"series of {benchmark}", str(series), scores["series"].unique())
    scores = scores if series is None else scores[scores["series"] == series]
    return scores if evaluator is None else scores[scores["evaluator"] == evaluator]


def evaluator_table(catalog: Catalog) -> pd.DataFrame:
    """Return what each evaluator measured: how many models, benchmarks and scores, of when, in which languages.

    Returns
    -------
    pandas.DataFrame
        In the order of preference, evaluators without scores left out; columns evaluator, role, who, models,
        benchmarks, scores, first and last (release dates of its models), languages, licence (of its sources), own
        (figures of the organisation's own models), flagged (scores left out of fits).

    Examples
    --------
    >>> from densing.scores.catalog import load_catalog
    >>> table = evaluator_table(load_catalog()).set_index("evaluator")
    >>> [str(cell) for cell in table.loc["falcon_h1_docs", ["models", "benchmarks", "last"]]]
    ['29', '14', '2025-05-21 00:00:00']

    See Also
    --------
    own_figures, series_list
    """
    scores = catalog.scores.assign(
        released=catalog.scores["model"].map(catalog.models.set_index("model")["released"]),
        language=catalog.scores["benchmark"].map(catalog.benchmarks.set_index("id")["language"]),
        licence=catalog.scores["source"].str.partition("#")[0].map(catalog.sources.set_index("id")["licence"]),
        own=own_figures(catalog),
        flagged=has_flag(catalog.scores["flags"], WRONG),
    )
    table = scores.groupby("evaluator").agg(
        models=("model", "nunique"),
        benchmarks=("benchmark", "nunique"),
        scores=("score", "size"),
        first=("released", "min"),
        last=("released", "max"),
        languages=("language", lambda cells: " ".join(sorted(set(cells.dropna())))),
        licence=("licence", lambda cells: "; ".join(sorted(set(cells.dropna())))),
        own=("own", "sum"),
        flagged=("flagged", "sum"),
    )
    people = catalog.evaluators.sort_values(["preference", "id"])[["id", "role", "who"]].rename(
        columns={"id": "evaluator"}
    )
    return people.merge(table.reset_index(), on="evaluator").reset_index(drop=True)


def own_figures(catalog: Catalog) -> pd.Series:
    """Return which scores are an organisation's own figures: whoever ran the evaluation also made the model.

    A maker knows its models' best prompt and chooses what it prints; its figures of rivals lack the first advantage
    and keep the second. So do a maker's harnesses that measure everybody (``falcon_h1_docs`` on Falcon). Names of
    organisations are compared without case; of several, separated by a slash, one in common is enough.

    Returns
    -------
    pandas.Series of bool
        Aligned with ``catalog.scores``; False where either organisation is unknown.

    Examples
    --------
    >>> from densing.scores.catalog import load_catalog
    >>> catalog = load_catalog()
    >>> own = catalog.scores[own_figures(catalog) & (catalog.scores["evaluator"] == "gemma3_report")]
    >>> sorted(set(own["model"]))[:2]
    ['Gemma-2-27B', 'Gemma-2-2B']
    """
    return _own_figures(catalog).copy()


@lru_cache(maxsize=4)
def _own_figures(catalog: Catalog) -> pd.Series:
    makers = _people(catalog.models.set_index("model")["organisation"])
    runners = _people(catalog.evaluators.set_index("id")["organisation"])
    (model, models), (evaluator, evaluators) = (
        pd.factorize(catalog.scores[name], use_na_sentinel=False) for name in ("model", "evaluator")
    )
    # Far fewer pairs than scores.
    pairs, place = np.unique(model * len(evaluators) + evaluator, return_inverse=True)
    nobody: frozenset[str] = frozenset()
    own = [
        bool(makers.get(models[first], nobody) & runners.get(evaluators[second], nobody))
        for first, second in (divmod(pair, len(evaluators)) for pair in pairs.tolist())
    ]
    return pd.Series(np.array(own, dtype=bool)[place], index=catalog.scores.index)


def _people(organisations: pd.Series) -> dict[str, frozenset[str]]:
    """Return the single organisations behind each name, ``Microsoft/NVIDIA`` for one."""
    known = organisations.dropna().items()
    return {str(name): frozenset(part.strip().casefold() for part in str(text).split("/")) for name, text in known}


def has_flag(flags: pd.Series, names: frozenset[str]) -> pd.Series:
    """Return which rows carry at least one of the names flags.

    Parameters
    ----------
    flags : pandas.Series
        Flags separated by ``;``, None or empty for none.
    names : frozenset of str
        Flags to look for.

    Examples
    --------
    >>> has_flag(pd.Series(["zero_score;erratic_harness", None, "zero_score"]), WRONG).tolist()
    [True, False, False]
    """
    rows = [bool(names & set(cell.split(";"))) if isinstance(cell, str) else False for cell in flags]
    return pd.Series(rows, index=flags.index, dtype=bool)


def _distinct(ranked: pd.DataFrame) -> pd.DataFrame:
    """Return the first of equal values (to 0.001) of each model: one measurement, quoted by several tables."""
    return ranked[~ranked.assign(value=ranked["score"].round(DECIMALS)).duplicated(["model", "value"])]


def _joined(cells: Iterable[object]) -> str:
    return ";".join(sorted(set(map(str, cells))))

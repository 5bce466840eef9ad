"""One score per model, with a standard error that knows the test's size and the evaluators' disagreement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import pandas as pd

from densing.core import InputError, UnknownNameError
from densing.scores.catalog.agreement import DECIMALS, Disagreement, by_preference, fit_disagreement
from densing.scores.catalog.flags import WRONG, has_flag
from densing.scores.catalog.store import Catalog

COLUMNS = ["model", "benchmark", "score", "score_se", "n_sources", "evaluator", "source", "flags"]
Combine = Literal["evaluator", "mean"]


def binomial_variance(score: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Return the sampling variance of a share of ``items`` right answers.

    ``q (1 - q) / n`` with ``q = (n score + 1/2) / (n + 1)``, which is positive at scores of 0 and 1 too.

    Source: binomial variance at the mean of the posterior under Jeffreys' prior, Beta(1/2, 1/2).

    Parameters
    ----------
    score, items : array, shape (n,)
        Share in [0, 1] and number of items.

    Examples
    --------
    >>> binomial_variance(np.array([0.5, 0.0]), np.array([100.0, 100.0])).round(6).tolist()
    [0.0025, 4.9e-05]
    """
    centre = (items * score + 0.5) / (items + 1.0)
    return centre * (1.0 - centre) / items


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

    ``score_se^2 = binomial variance + disagreement variance`` (:func:`binomial_variance`,
    :func:`densing.scores.catalog.agreement.fit_disagreement`). All evaluators use the same items, so the
    disagreement does not contain the sampling of items and the two add.

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
        Keep values that are very probably wrong (:data:`densing.scores.catalog.flags.WRONG`).
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
    """
    chosen = _choose(catalog, benchmark, series, evaluator)
    if not include_flagged:
        chosen = chosen[~has_flag(chosen["flags"], WRONG)]
    ranked = by_preference(chosen, catalog)
    spread = fit_disagreement(catalog, benchmark)
    first = ranked.drop_duplicates("model").reset_index(drop=True)
    divisor = np.ones(len(first))
    if combine == "mean":
        first, divisor = _averaged(ranked, first)
    elif combine != "evaluator":
        raise UnknownNameError("combine", combine, ["evaluator", "mean"])
    return _with_errors(first, spread, _items(catalog, first, benchmark), divisor)


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
    """
    names = list(benchmarks)
    if not names or len(set(names)) < len(names):
        raise InputError(f"mean of benchmarks {names}: name at least one, each once")
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
    >>> series_list(load_catalog(), "winogrande")["series"].tolist()
    ['winogrande:obsscaling']
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


def _averaged(ranked: pd.DataFrame, first: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
    """Return the mean of each model's distinct values and how many went into it."""
    distinct = ranked[~ranked.assign(value=ranked["score"].round(DECIMALS)).duplicated(["model", "value"])]
    groups = distinct.groupby("model", sort=True)
    merged = first.assign(
        score=groups["score"].mean().to_numpy(),
        evaluator=groups["evaluator"].agg(_joined).to_numpy(),
        source=groups["source"].agg(_joined).to_numpy(),
        flags=groups["flags"]
        .agg(lambda c: _joined(f for x in c if isinstance(x, str) for f in x.split(";")))
        .to_numpy(),
    )
    return merged, groups.size().to_numpy(dtype=float)


def _items(catalog: Catalog, rows: pd.DataFrame, benchmark: str) -> np.ndarray:
    usual = float(catalog.benchmarks.set_index("id").loc[benchmark, "items"])
    return rows["items"].fillna(usual).to_numpy(dtype=float)


def _with_errors(rows: pd.DataFrame, spread: Disagreement, items: np.ndarray, divisor: np.ndarray) -> pd.DataFrame:
    noise = np.array([spread.variance(model) for model in rows["model"]], dtype=float)
    score = rows["score"].to_numpy(dtype=float)
    counted = spread.models["n_sources"].reindex(rows["model"]).fillna(0).to_numpy()
    return rows.assign(
        score_se=np.sqrt(binomial_variance(score, items) + noise / divisor),
        # A value of another protocol is no measurement of the usual one, but it is still one value.
        n_sources=np.maximum(counted, divisor).astype(int),
        flags=[flag if isinstance(flag, str) else "" for flag in rows["flags"]],
    )[COLUMNS]


def _joined(cells: Iterable[object]) -> str:
    return ";".join(sorted(set(map(str, cells))))

"""How much evaluators disagree about the same model, once their general offsets are taken out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from densing.scores.catalog.flags import OTHER_PROTOCOL, WRONG, has_flag
from densing.scores.catalog.store import Catalog

# Tables print a tenth of a percentage point, so two values are told apart from the third decimal on.
DECIMALS = 3
# Weight of the pooled variance against a model's own, in degrees of freedom.
PRIOR_DOF = 4.0
_SPREAD_COLUMNS = ["model", "benchmark", "spread", "n_sources", "values"]


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

    def variance(self, model: str) -> float:
        """Return the variance of one measurement of this model, shrunk to the pooled one.

        ``(d0 s0^2 + SS_m) / (d0 + k_m - 1)`` with ``d0 = 4``; the pooled ``s0^2`` where ``k_m < 2``. Source:
        own choice; the form is that of moderated variances (Smyth 2004, doi:10.2202/1544-6115.1027).
        """
        if model not in self.models.index or self.dof == 0:
            return self.pooled_variance
        row = self.models.loc[model]
        own = max(float(row["n_sources"]) - 1.0, 0.0)
        return (PRIOR_DOF * self.pooled_variance + float(row["sum_squares"])) / (PRIOR_DOF + own)


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
    ranked = by_preference(usable, catalog)
    kept = ranked[~ranked.assign(value=ranked["score"].round(DECIMALS)).duplicated(["model", "value"])]
    return kept[["model", "evaluator", "score"]].sort_values(["model", "evaluator"]).reset_index(drop=True)


def by_preference(scores: pd.DataFrame, catalog: Catalog) -> pd.DataFrame:
    """Return scores ordered by model, then by the preference of their evaluators, then by its name."""
    order = dict(zip(catalog.evaluators["id"], catalog.evaluators["preference"], strict=True))
    ranks = scores["evaluator"].map(order).astype(float)
    return scores.assign(_rank=ranks).sort_values(["model", "_rank", "evaluator"]).drop(columns="_rank")


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
    >>> disagreement(load_catalog()).loc[0, ["model", "benchmark"]].tolist()
    ['Baichuan-2-13B', 'gsm8k']
    """
    rows = []
    for benchmark in sorted(catalog.scores["benchmark"].unique()):
        table = measurements(catalog, benchmark)
        for model, group in table.groupby("model", sort=True):
            if len(group) < 2:
                continue
            ordered = group.sort_values(["score", "evaluator"])
            values = ", ".join(f"{r.score:.3f} ({r.evaluator})" for r in ordered.itertuples())
            spread = float(ordered["score"].iloc[-1] - ordered["score"].iloc[0])
            rows.append((model, benchmark, spread, len(group), values))
    frame = pd.DataFrame(rows, columns=_SPREAD_COLUMNS)
    return frame.sort_values(["spread", "model", "benchmark"], ascending=[False, True, True], ignore_index=True)

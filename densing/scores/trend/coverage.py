"""Does a 95 % interval hold the truth 95 % of the time? Every estimator, on worlds with a known answer.

``make coverage-table`` measures; the table that it writes says why the headline is the headline.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from densing.core import Column, FitError, Table, read_table, write_csv
from densing.scores.trend.data import Slope, TrendData, doubling_months
from densing.scores.trend.estimators import ESTIMATORS, HEADLINE
from densing.scores.trend.scenarios import Scenario, simulate

FILE = Path(__file__).parent / "data" / "coverage.csv"
SCHEMA = Table(
    "coverage",
    (
        Column("scenario", "text", "simulated world", required=True),
        Column("method", "text", "estimator", required=True),
        Column("reps", "integer", "worlds that gave a slope", required=True, low=1),
        Column("median_doubling_months", "number", "median estimate; the truth is 3.5", required=True),
        Column("coverage", "number", "share of 95 % intervals that hold the truth", required=True, low=0, high=1),
    ),
    key=("scenario", "method"),
)
ORGANISATIONS = f"{HEADLINE.name}-organisations"
"""The headline's estimator with organisations in place of families as clusters."""
RIVALS = {"envelope": "record-setters", "ols-crv3": "least squares without the rows beyond the ruler"}
BASE = Scenario()
SCENARIOS: Mapping[str, Scenario] = {
    "families + ceilings": BASE,
    "families, no ceilings": replace(BASE, ceilings=None),
    "no family shocks, ceilings": replace(BASE, family_sd=0.0, residual_sd=0.8),
    "uniform releases": replace(BASE, accelerating=False),
    "few families": replace(BASE, n=40, families=8),
    "many models": replace(BASE, n=90, families=30),
    "floors and ceilings": replace(BASE, floors=(-1.0, 1.5)),
    "heavy tails": replace(BASE, tail_df=3.0, residual_sd=1.2, floors=(-1.0, 1.5)),
    "noisy reference law": replace(BASE, law_sd=0.1, law_draws=200),
    "labs, generations, sizes": replace(BASE, labs=8, lab_sd=BASE.family_sd),
    "few labs, generations, sizes": replace(BASE, families=18, labs=6, lab_sd=BASE.family_sd),
}
"""True doubling 3.5 months over 24 months in all of them. In the last two labs differ as much as generations."""

METHODS: Mapping[str, Callable[[TrendData], Slope]] = {
    **{name: partial(estimator.fit, bootstrap=300) for name, estimator in ESTIMATORS.items()},
    ORGANISATIONS: partial(HEADLINE.fit, cluster="organisation"),
}


def measure_coverage(scenario: Scenario, reps: int, seed: int = 0, methods: Iterable[str] = METHODS) -> pd.DataFrame:
    """Run estimators on ``reps`` draws of a scenario and count how often their intervals hold the true slope.

    Parameters
    ----------
    scenario : Scenario
    reps : int
    seed : int
    methods : iterable of str
        Keys of ``METHODS``; the one by organisation is left out where there are none.

    Returns
    -------
    pandas.DataFrame
        method, reps (that gave a slope), median_doubling_months, coverage, low, high (99.9 % Clopper-Pearson
        band of the coverage), median_width (of the slope's interval, in units of the true slope).

    Examples
    --------
    >>> measure_coverage(Scenario(), 3, methods=["tobit-crv3"])["reps"].tolist()
    [3]
    """
    names = [name for name in methods if name != ORGANISATIONS or scenario.labs is not None]
    slopes: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    for rng in np.random.default_rng(seed).spawn(reps):
        data = simulate(scenario, rng)
        for name in names:
            try:
                slope = METHODS[name](data)
            except FitError:
                continue
            if np.isfinite(slope.slope):
                slopes[name].append((slope.slope, slope.lo, slope.hi))
    return pd.DataFrame([_summary(name, np.reshape(slopes[name], (-1, 3)), scenario.slope) for name in names])


def coverage_table(
    reps: int, seed: int = 0, methods: Iterable[str] = METHODS, scenarios: Iterable[str] = SCENARIOS
) -> pd.DataFrame:
    """Measure estimators in scenarios, all by default; one row each."""
    chosen = list(methods)
    parts = [measure_coverage(SCENARIOS[name], reps, seed, chosen).assign(scenario=name) for name in scenarios]
    return pd.concat(parts, ignore_index=True)


def _summary(name: str, rows: np.ndarray, truth: float) -> dict[str, object]:
    count = len(rows)
    hits = int(np.sum((rows[:, 1] <= truth) & (truth <= rows[:, 2])))
    band = stats.binomtest(hits, count).proportion_ci(0.999) if count else (np.nan, np.nan)
    return {
        "method": name,
        "reps": count,
        "median_doubling_months": doubling_months(float(np.median(rows[:, 0]))) if count else np.nan,
        "coverage": hits / count if count else np.nan,
        "low": float(band[0]),
        "high": float(band[1]),
        "median_width": float(np.median(rows[:, 2] - rows[:, 1]) / abs(truth)) if count else np.nan,
    }


@cache
def measured() -> pd.DataFrame:
    """Return the table of measured coverages: scenario, method, reps, median_doubling_months, coverage."""
    return read_table(FILE, SCHEMA, FILE.name)


@cache
def why(headline: str) -> str:
    """Return in words how the headline's estimator and its rivals did where the answer was known.

    Examples
    --------
    >>> why("tobit-crv3").startswith("Why this estimator: in simulations with a true 3.5 months")
    True
    """
    table = measured()
    reps = int(table["reps"].max())
    rows = table[table["method"] == headline]
    least = rows.loc[rows["coverage"].idxmin(), "scenario"]
    rivals = "; ".join(f"{name} read {_ranges(table, method)}" for method, name in RIVALS.items())
    by_organisation = table.loc[table["method"] == ORGANISATIONS, "coverage"]
    apart = f" (where organisations as clusters give {_percent(by_organisation)})" if len(by_organisation) else ""
    return (
        f"Why this estimator: in simulations with a true 3.5 months ({table['scenario'].nunique()} kinds of world, "
        f"{reps} of each) it read {_ranges(table, headline)}, least often in worlds with {least}"
        f"{apart}; {rivals}."
    )


def held_truth(method: str) -> str:
    """Return how often a method's 95 % interval held the truth over the simulated worlds; empty where not measured.

    Examples
    --------
    >>> held_truth("a method of one's own")
    ''
    """
    rows = measured()
    shares = rows.loc[rows["method"] == method, "coverage"]
    return _percent(shares) if len(shares) else ""


def _ranges(table: pd.DataFrame, method: str) -> str:
    rows = table[table["method"] == method]
    months = rows["median_doubling_months"]
    return (
        f"{months.min():.1f} to {months.max():.1f} months in the median and its 95 % interval held the truth in "
        f"{_percent(rows['coverage'])} of them"
    )


def _percent(shares: pd.Series) -> str:
    low, high = (f"{100 * share:.0f}" for share in (shares.min(), shares.max()))
    return f"{low} %" if low == high else f"{low} to {high} %"


def main() -> None:
    """Measure all estimators in all scenarios and write the table that the headline's reason is read from.

    Worlds depend on the seed and their scenario alone: with ``--scenario`` the rows of the others stay as they are.
    """
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--reps", type=int, default=1000, help="worlds per scenario")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--scenario", choices=SCENARIOS, action="append", help="measure this one only; repeatable")
    parser.add_argument("--out", type=Path, default=FILE)
    options = parser.parse_args()
    chosen = options.scenario or list(SCENARIOS)
    table = coverage_table(options.reps, options.seed, scenarios=chosen).round(6).assign(seed=options.seed)
    previous = pd.read_csv(options.out) if options.scenario and options.out.exists() else table.head(0)
    table = pd.concat([previous[~previous["scenario"].isin(chosen)], table]).sort_values(
        "scenario", key=lambda names: names.map(list(SCENARIOS).index), kind="stable"
    )
    write_csv(table[["scenario", *(name for name in table.columns if name != "scenario")]], options.out)


if __name__ == "__main__":
    main()

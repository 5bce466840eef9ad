"""Does a 95 % interval hold the truth 95 % of the time? Every estimator, on worlds with a known answer."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from densing.core import FitError, write_csv
from densing.scores.trend.data import TrendData
from densing.scores.trend.envelopes import envelope, running_max
from densing.scores.trend.headline import fit_headline
from densing.scores.trend.quantile import quantile_slope
from densing.scores.trend.reason import ORGANISATIONS
from densing.scores.trend.regressions import mixed, ols_crv3, theil_sen
from densing.scores.trend.simulate import Scenario, simulate
from densing.scores.trend.slopes import Slope, doubling_months

TABLE = Path(__file__).parent / "data" / "coverage.csv"
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

Estimator = Callable[[TrendData], Slope]
ESTIMATORS: Mapping[str, Estimator] = {
    "tobit-crv3": lambda data: fit_headline(data, draws=2).slope,
    ORGANISATIONS: lambda data: fit_headline(data, draws=2, cluster="organisation").slope,
    "ols-crv3": ols_crv3,
    "quantile-0.9": lambda data: quantile_slope(data, bootstrap=300),
    "envelope": envelope,
    "running-max": running_max,
    "theil-sen": theil_sen,
    "mixedlm": mixed,
}


def measure_coverage(scenario: Scenario, reps: int, seed: int = 0, methods: Iterable[str] = ESTIMATORS) -> pd.DataFrame:
    """Run estimators on ``reps`` draws of a scenario and count how often their intervals hold the true slope.

    Parameters
    ----------
    scenario : Scenario
    reps : int
    seed : int
    methods : iterable of str
        Keys of ``ESTIMATORS``; the one by organisation is left out where there are none.

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
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    for rng in np.random.default_rng(seed).spawn(reps):
        data = simulate(scenario, rng)
        for name in names:
            found[name].append(_run(ESTIMATORS[name], data))
    return pd.DataFrame([_summary(name, np.array(found[name]), scenario.slope) for name in names])


def coverage_table(
    reps: int, seed: int = 0, methods: Iterable[str] = ESTIMATORS, scenarios: Iterable[str] = SCENARIOS
) -> pd.DataFrame:
    """Measure estimators in scenarios, all by default; one row each."""
    chosen = list(methods)
    parts = [measure_coverage(SCENARIOS[name], reps, seed, chosen).assign(scenario=name) for name in scenarios]
    return pd.concat(parts, ignore_index=True)


def _run(estimator: Estimator, data: TrendData) -> tuple[float, float, float]:
    try:
        slope = estimator(data)
    except FitError:
        return np.nan, np.nan, np.nan
    return slope.slope, slope.lo, slope.hi


def _summary(name: str, rows: np.ndarray, truth: float) -> dict[str, object]:
    rows = rows[np.isfinite(rows[:, 0])]
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


def main() -> None:
    """Measure all estimators in all scenarios and write the table that the headline's reason is read from.

    Worlds depend on the seed and their scenario alone: with ``--scenario`` the rows of the others stay as they are.
    """
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--reps", type=int, default=1000, help="worlds per scenario")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--scenario", choices=SCENARIOS, action="append", help="measure this one only; repeatable")
    parser.add_argument("--out", type=Path, default=TABLE)
    options = parser.parse_args()
    measured = options.scenario or list(SCENARIOS)
    table = coverage_table(options.reps, options.seed, scenarios=measured).round(6).assign(seed=options.seed)
    kept = pd.read_csv(options.out) if options.scenario and options.out.exists() else table.head(0)
    table = pd.concat([kept[~kept["scenario"].isin(measured)], table]).sort_values(
        "scenario", key=lambda names: names.map(list(SCENARIOS).index), kind="stable"
    )
    write_csv(table[["scenario", *(name for name in table.columns if name != "scenario")]], options.out)


if __name__ == "__main__":
    main()

"""Does a 95 % interval hold the truth 95 % of the time? Every estimator, on made-up worlds with a known pace.

Two truths are asked for: the mean pace from the first release to the last, and that of the last twelve months. A
straight line claims the same for both.

``make coverage-table`` measures and writes the table that :mod:`densing.scores.trend.estimators` reads.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from densing.core import Array, FitError, write_csv
from densing.scores.trend.data import DAYS_PER_MONTH, DAYS_PER_YEAR, EPOCH, Slope, TrendData
from densing.scores.trend.estimators import ESTIMATORS, FILE, LINE, ORGANISATIONS
from densing.scores.trend.front import Front, fit_front
from densing.scores.trend.pace import PaceFit, fit_pace

LN2 = float(np.log(2))
PACE, FRONT = "pace", "front"


@dataclass(frozen=True)
class Scenario:
    """How models are released and measured in a simulated world.

    Parameters
    ----------
    n, families : int
        Models and the families they come from. Every family has at least one model, sizes are unequal.
    months : float
        Length of the window.
    doubling_months : float
        True doubling time; infinite for no trend.
    residual_sd, family_sd : float
        Standard deviations of ln(density) around the trend: per model, and shared by a family.
    labs : int, optional
        Laboratories that share the families evenly as their generations; each enters at a uniform time and releases
        between then and the end. None for independent families.
    lab_sd : float
        Standard deviation of ln(density) shared by all generations of a laboratory.
    tail_df : float
        Degrees of freedom of a t for the models' own scatter, above 2; infinite is normal.
    accelerating : bool
        Release times months * u^(1/3) rather than months * u, u uniform.
    spread_months : float
        Members of a family appear within this time after its first date.
    ceilings : tuple of float, optional
        Range of the row limits of ln(density) above the level at the start: uniform, one per row.
    floors : tuple of float, optional
        The same for the lower limits.
    law_sd : float
        Standard deviation of the reference law's error in the exponent of ln N_eff.
    law_draws : int
        Bootstrap draws of that law passed to the estimators; 0 passes none.
    course : tuple of (float, float)
        Course of the pace: factors on that of ``doubling_months`` at shares of the window, joined by straight lines and
        level beyond them. None for a constant pace.
    lab_pace_sd : float
        Standard deviation, over laboratories, of the factor by which their own pace differs; its mean is 1.
    weaker : float
        How much lower (ln density) a laboratory is for each year of later entry.
    """

    n: int = 50
    families: int = 16
    months: float = 24.0
    doubling_months: float = 3.5
    residual_sd: float = 0.7 * LN2
    family_sd: float = 1.0 * LN2
    labs: int | None = None
    lab_sd: float = 0.0
    tail_df: float = math.inf
    accelerating: bool = True
    spread_months: float = 1.5
    ceilings: tuple[float, float] | None = (2.0, 7.0)
    floors: tuple[float, float] | None = None
    law_sd: float = 0.0
    law_draws: int = 0
    course: tuple[tuple[float, float], ...] | None = None
    lab_pace_sd: float = 0.0
    weaker: float = 0.0

    @property
    def slope(self) -> float:
        """Slope of ln(density) per day where the course of the pace is at 1."""
        return LN2 / self.doubling_months / DAYS_PER_MONTH

    def height(self, days: Array | float) -> Array:
        """Return the true rise of ln(density) from the start of the window to some days."""
        days = np.asarray(days, dtype=float)
        if self.course is None:
            return np.asarray(self.slope * days)
        shares, factors = np.array(self.course).T
        fine = np.linspace(0, 1, 2001)
        pace = np.interp((fine[1:] + fine[:-1]) / 2, shares, factors) * self.slope * self.months * DAYS_PER_MONTH / 2000
        return np.interp(days / (self.months * DAYS_PER_MONTH), fine, np.concatenate([[0.0], np.cumsum(pace)]))

    def truth(self, since: float, until: float) -> float:
        """Return the true mean slope of ln(density) per day between two days of the window."""
        return float(self.height(until) - self.height(since)) / (until - since)


def simulate(scenario: Scenario, seed: int | np.random.Generator = 0) -> TrendData:
    """Draw one data set.

    ln rho_i = t_i ln 2 / T + v_lab(i) + u_family(i) + e_i, seen up to the row's ceiling through a law with error.

    Source: generator of the pilot in the project's design notes, with families that overlap in time.

    Parameters
    ----------
    scenario : Scenario
    seed : int or numpy Generator

    Examples
    --------
    >>> data = simulate(Scenario(n=30, families=8), seed=1)
    >>> len(data), len(np.unique(data.family))
    (30, 8)
    """
    rng = np.random.default_rng(seed)
    family = np.sort(
        np.concatenate([np.arange(scenario.families), rng.choice(scenario.families, scenario.n - scenario.families)])
    )
    # The cube root crowds dates towards the end, as releases did.
    start = rng.random(scenario.families) ** (1 / 3 if scenario.accelerating else 1)
    lab = None
    if scenario.labs is not None:
        lab = np.arange(scenario.families) % scenario.labs
        entry = rng.random(scenario.labs)[lab]
        start = entry + (1 - entry) * rng.random(scenario.families)
    spread = scenario.spread_months * rng.random(scenario.n)
    months = np.minimum(scenario.months * start[family] + spread, scenario.months)
    days = months * DAYS_PER_MONTH
    shared = rng.standard_normal(scenario.families)[family]
    # A model's own errors have unit variance, normal or with heavier tails.
    if math.isinf(scenario.tail_df):
        own = rng.standard_normal(scenario.n)
    else:
        scale = math.sqrt(scenario.tail_df / (scenario.tail_df - 2))
        own = rng.standard_t(scenario.tail_df, scenario.n) / scale
    latent = scenario.height(days) + scenario.family_sd * shared + scenario.residual_sd * own
    if lab is not None:
        latent += scenario.lab_sd * rng.standard_normal(lab.max() + 1)[lab][family]
        if scenario.lab_pace_sd:
            latent += (scenario.lab_pace_sd * rng.standard_normal(lab.max() + 1))[lab][family] * scenario.height(days)
        latent -= scenario.weaker * entry[family] * scenario.months * DAYS_PER_MONTH / DAYS_PER_YEAR
    limits = np.tile([-np.inf, np.inf], (scenario.n, 1))
    if scenario.ceilings is not None:
        limits[:, 1] = rng.uniform(*scenario.ceilings, scenario.n)
    if scenario.floors is not None:
        limits[:, 0] = rng.uniform(*scenario.floors, scenario.n)
    data = _seen(scenario, family, days, latent, limits, rng)
    return data if lab is None else data.replace(organisation=np.array([f"lab-{number}" for number in lab[family]]))


def _seen(
    scenario: Scenario, family: Array, days: Array, latent: Array, limits: Array, rng: np.random.Generator
) -> TrendData:
    """Pass the truth through a law with error and through the ceilings.

    A law whose exponent is off by e turns ln N_eff into (1 + e) ln N_eff around the middle of the reference;
    sizes are drawn uniform in ln N over a factor of 100, as in the catalog.
    """
    size = rng.uniform(0.0, np.log(100.0), scenario.n)
    effective = latent + size - np.median(latent + size)
    error = scenario.law_sd * rng.standard_normal()
    fitted = latent + error * effective
    draws = None
    if scenario.law_draws:
        redrawn = scenario.law_sd * rng.standard_normal(scenario.law_draws)
        draws = fitted + redrawn[:, None] * (effective * (1 + error))
        draws = np.clip(draws, limits[:, 0], limits[:, 1])
    censor = (fitted >= limits[:, 1]).astype(np.int8) - (fitted <= limits[:, 0]).astype(np.int8)
    return TrendData(
        np.array([f"model-{number}" for number in range(scenario.n)]),
        np.array([f"family-{number}" for number in family]),
        np.datetime64(EPOCH, "ns") + (days * 86_400e9).astype("timedelta64[ns]"),
        days,
        np.clip(fitted, limits[:, 0], limits[:, 1]),
        censor,
        law_draws=draws,
        log_limits=limits,
    )


BASE = Scenario()
LONG = replace(
    BASE, n=90, families=40, labs=16, months=36.0, lab_sd=BASE.family_sd, ceilings=(4.0, 9.0), floors=(-2.0, 1.0)
)
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
    "three years, labs": LONG,
    "no trend": replace(LONG, doubling_months=math.inf),
    "pace breaks": replace(LONG, course=((0.5, 1.0), (0.501, 0.3))),
    "pace falls": replace(LONG, course=((0.0, 1.6), (1.0, 0.2))),
    "pace rises": replace(LONG, course=((0.0, 0.4), (1.0, 1.6))),
    "pace stops": replace(LONG, course=((0.65, 1.0), (0.651, 0.0))),
    "labs of different pace": replace(LONG, lab_pace_sd=0.25),
    "later entrants weaker": replace(LONG, weaker=0.5),
}
"""The first eleven last 24 months and have a true doubling time of 3.5; the others last 36. Where there are labs, they
differ as much as generations."""

METHODS: Mapping[str, Callable[[TrendData], Slope | PaceFit | Front]] = {
    **{name: partial(estimator.fit, bootstrap=300) for name, estimator in ESTIMATORS.items() if name != PACE},
    ORGANISATIONS: partial(LINE.fit, cluster="organisation"),
    PACE: partial(fit_pace, sweeps=300, burn=100),
    FRONT: partial(fit_front, resamples=100),
}


def measure_coverage(scenario: Scenario, reps: int, seed: int = 0, methods: Iterable[str] = METHODS) -> pd.DataFrame:
    """Run estimators on ``reps`` draws of a scenario and count how often their intervals contain the true slopes.

    Parameters
    ----------
    scenario : Scenario
    reps : int
    seed : int
    methods : iterable of str
        Keys of ``METHODS``; the one by organisation is left out if there are none.

    Returns
    -------
    pandas.DataFrame
        method, reps (that gave a slope), median (of the window's pace, doublings per year), coverage (of that pace),
        low, high (99.9 % Clopper-Pearson band of the coverage), median_width (of the slope's interval, in doublings per
        year), and of the last twelve months ``coverage_last, median_last, width_last``.

    Examples
    --------
    >>> measure_coverage(Scenario(), 3, methods=["tobit-crv3"])["reps"].tolist()
    [3]
    """
    names = [name for name in methods if name != ORGANISATIONS or scenario.labs is not None]
    found: dict[str, list[tuple[Slope, Slope, float, float]]] = {name: [] for name in names}
    for rng in np.random.default_rng(seed).spawn(reps):
        data = simulate(scenario, rng)
        first, last = float(data.days.min()), float(data.days.max())
        truths = scenario.truth(first, last), scenario.truth(max(first, last - DAYS_PER_YEAR), last)
        for name in names:
            try:
                fit = METHODS[name](data)
            except FitError:
                continue
            pair = (fit, fit) if isinstance(fit, Slope) else (fit.window, fit.last_year)
            if np.isfinite(pair[0].slope):
                found[name].append((*pair, *truths))
    return pd.DataFrame([_summary(name, found[name]) for name in names])


def _summary(name: str, rows: list[tuple[Slope, Slope, float, float]]) -> dict[str, object]:
    count = len(rows)
    if not count:
        return {"method": name, "reps": 0}
    window, last, true_window, true_last = zip(*rows, strict=True)

    def held(slopes: tuple[Slope, ...], truths: tuple[float, ...]) -> int:
        return sum(slope.lo <= truth <= slope.hi for slope, truth in zip(slopes, truths, strict=True))

    def width(slopes: tuple[Slope, ...]) -> float:
        return float(np.median([slope.hi - slope.lo for slope in slopes])) * DAYS_PER_YEAR / LN2

    def middle(slopes: tuple[Slope, ...]) -> float:
        return float(np.median([slope.slope for slope in slopes])) * DAYS_PER_YEAR / LN2

    hits = held(window, true_window)
    band = stats.binomtest(hits, count).proportion_ci(0.999)
    return {
        "method": name,
        "reps": count,
        "median": middle(window),
        "coverage": hits / count,
        "low": float(band[0]),
        "high": float(band[1]),
        "median_width": width(window),
        "coverage_last": held(last, true_last) / count,
        "median_last": middle(last),
        "width_last": width(last),
    }


def coverage_table(
    reps: int, seed: int = 0, methods: Iterable[str] = METHODS, scenarios: Iterable[str] = SCENARIOS
) -> pd.DataFrame:
    """Measure estimators in scenarios, all by default; one row each."""
    chosen = list(methods)
    parts = [measure_coverage(SCENARIOS[name], reps, seed, chosen).assign(scenario=name) for name in scenarios]
    return pd.concat(parts, ignore_index=True)


def main() -> None:
    """Measure all estimators in all scenarios and write the table behind the choice of the headline.

    Worlds depend only on the seed and their scenario: with ``--scenario`` and ``--method`` all other rows keep their
    values.
    """
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--reps", type=int, default=200, help="worlds per scenario")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--scenario", choices=SCENARIOS, action="append", help="measure this one only; repeatable")
    parser.add_argument("--method", choices=METHODS, action="append", help="measure this one only; repeatable")
    parser.add_argument("--out", type=Path, default=FILE)
    options = parser.parse_args()
    worlds, methods = options.scenario or list(SCENARIOS), options.method or list(METHODS)
    table = coverage_table(options.reps, options.seed, methods, worlds).round(6).assign(seed=options.seed)
    partly = (options.scenario or options.method) and options.out.exists()
    previous = pd.read_csv(options.out) if partly else table.head(0)
    anew = previous["scenario"].isin(worlds) & previous["method"].isin(methods)
    table = pd.concat([previous[~anew], table]).sort_values(
        "scenario", key=lambda names: names.map(list(SCENARIOS).index), kind="stable"
    )
    write_csv(table[["scenario", *(name for name in table.columns if name != "scenario")]], options.out)


if __name__ == "__main__":
    main()

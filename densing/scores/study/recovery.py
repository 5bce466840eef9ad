r"""Is a known doubling time found again, from scores that are missing as the catalog's are, in worlds unlike the model?

Truth is made by a generator that the joint model does not describe, on the catalog's own grid: its models with their
sizes, dates and families, its tests, and exactly the cells that it holds.

.. math::
    \theta_{mk} &= b\,(\ln N_m + p_k \ln 2\; t_m / T) + f_{mk} + e_{mk} \\
    s_{mj} &= c_j + (0.97 - c_j)\,L(a_j(\theta_{mk(j)} - d_j) + g_j + h_{e(j)k(j)} + 0.12\, t_3) + \text{items}

Skills rise at paces p of their own (mean 1 over the basket), families have shocks in general and by skill, evaluators
suit skills differently (h), errors have heavy tails, and L is the logistic function of the model
in every third world only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit, logit, ndtr, ndtri

from densing.core import Array, Card, InputError, Note, Readable, formatting, listing_of, named_stream
from densing.scores.catalog import Catalog, Selection, binomial_variance
from densing.scores.density import DensityResult, catalog_densities
from densing.scores.joint import Cells, JointScale, fit_joint, joint_cells
from densing.scores.references import SKILLS, joint_reference
from densing.scores.trend import DAYS_PER_MONTH, HEADLINE, TrendData

SINCE = "2023-02-24"
PACES = (4.0, 8.0)
"""Doubling times of the worlds, in months, in turn."""
SIZE = 0.5
"""Logits per e-fold of size: about what the embedded catalog's families show."""
CEILING = 0.97
FEWEST_ITEMS = 50
# What the headline knows of errors, where there are none.
BARE: dict[str, Any] = {"law_draws": None, "log_limits": None, "draws": None}


def _log_log(share: Array) -> Array:
    return np.asarray((np.log(-np.log1p(-share)) + 0.37) / 0.72)


LINKS: Mapping[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    # The model's own, so that what another link does is told from what the rest does.
    "logistic": (expit, logit),
    # Steeper and with lighter tails than the logistic, scaled to its slope at one half; and its inverse.
    "probit": (lambda z: np.asarray(ndtr(z / 1.6)), lambda share: np.asarray(1.6 * ndtri(share))),
    # Not symmetric: leaves chance slowly, and reaches the top fast.
    "complementary log-log": (lambda z: np.asarray(-np.expm1(-np.exp(0.72 * z - 0.37))), _log_log),
}


@dataclass(frozen=True, repr=False)
class Recovery(Readable):
    """How close the headline comes to a known truth.

    Parameters
    ----------
    table : pandas.DataFrame
        One row per world and group of models (``all`` of the headline, and those ``measured on all skills``): ``link``,
        ``months`` (the world's doubling time), ``known`` (what the headline's estimator gives for the same models when
        densities are known without error: what of the difference is which models there are), ``estimate, lo, hi``
        from the simulated scores, ``held`` (whether the interval holds ``months``), ``models``, ``densities`` (share of
        their 95 % intervals, around the reference's level, that hold the truth).
    notes : tuple of Note

    See Also
    --------
    recover_trend
    """

    table: pd.DataFrame
    notes: tuple[Note, ...] = field(default=())

    @property
    def sentence(self) -> str:
        """Say what the worlds show about the scale, and about models with unmeasured skills."""
        parts = []
        for group, rows in self.table.groupby("group", sort=False):
            ratio = rows["estimate"] / rows["known"]
            parts.append(
                f"{group}: {formatting.number(float(ratio.median()))} times the doubling time that known densities "
                f"give ({formatting.number(float(ratio.min()))} to {formatting.number(float(ratio.max()))}), the 95 % "
                f"interval holding the world's own in {int(rows['held'].sum())} of {len(rows)}"
            )
        shares = self.table.groupby("link", sort=False)["densities"].mean()
        links = formatting.listed(
            f"{formatting.percentage(float(share))} where the link is {link}" for link, share in shares.items()
        )
        return (
            f"In {formatting.plural(self.table['world'].nunique(), 'world')} unlike the model, with the catalog's "
            f"gaps: {'; '.join(parts)}. Of the densities' 95 % intervals, {links} hold the truth: the bend of another "
            "link is not in them."
        )

    def card(self) -> Card:
        """Return what is shown: the sentence and the table."""
        title = "A known doubling time, estimated from simulated scores"
        return Card(title, {"outcome": self.sentence}, listing_of(title, self.table))


def recover_trend(
    catalog: Catalog,
    *,
    worlds: int = 6,
    months: Sequence[float] = PACES,
    seed: int = 0,
    fit: Callable[..., JointScale] = fit_joint,
    step: Callable[[str, float], None] = lambda label, share: None,
) -> Recovery:
    """Simulate scores with a known doubling time on the catalog's cells, and estimate it like the headline.

    Parameters
    ----------
    catalog : Catalog
        Provides models, dates, sizes and cells; its scores only set the difficulty of every test.
    worlds : int
        One fit of the joint scale each, a minute or two for the embedded catalog. Links and paces take turns.
    months : sequence of float
        Doubling times.
    seed : int
    fit : callable
        As :func:`densing.scores.joint.fit_joint`.
    step : callable
        Called with a label and the share done, for progress bars.

    Returns
    -------
    Recovery

    Raises
    ------
    InputError
        For no world, or a doubling time that is none.

    See Also
    --------
    density_today
    """
    if worlds < 1 or not len(months) or not all(np.isfinite(pace) and pace > 0 for pace in months):
        raise InputError(f"{worlds} worlds of {list(months)} months: give one world or more, and months above zero")
    cells = joint_cells(catalog)
    rows: list[dict[str, Any]] = []
    for world in range(worlds):
        link, pace = list(LINKS)[world % len(LINKS)], months[world // len(LINKS) % len(months)]
        step(f"a world of {pace:g} months", world / worlds)
        truth, simulated = _simulate(catalog, cells, link, pace, named_stream(seed, "recovery", link, str(world)))

        def within(label: str, share: float, world: int = world) -> None:
            step(label, (world + share) / worlds)

        scale = fit(simulated, seed=seed + world, step=within)
        result = catalog_densities(catalog, joint_reference(catalog, scale=scale), selection=Selection()).headline
        measured = result.table["traits"].eq(result.table["traits"].max()).to_numpy(dtype=bool)
        groups = {"all": np.ones(len(measured), dtype=bool), "measured on all skills": measured}
        for group, mask in groups.items():
            row = _compared(result.subset(mask), truth, pace)
            rows.append({"world": world + 1, "link": link, "group": group, "months": pace, **row})
    return Recovery(pd.DataFrame(rows))


def _simulate(
    catalog: Catalog, cells: Cells, link: str, months: float, rng: np.random.Generator
) -> tuple[pd.Series, Cells]:
    """Return the true ln(density) of every model, up to a constant, and its scores on the catalog's cells."""
    curve, inverse = LINKS[link]
    table = cells.table
    models = np.unique(table["model"].to_numpy(dtype=str))
    facts = catalog.models.set_index("model").reindex(models)
    log_n = np.log(facts["params_total_b"].astype(float))
    log_n = log_n.fillna(log_n.median()).to_numpy()
    released = pd.to_datetime(facts["released"])
    days = (released - pd.Timestamp(SINCE)) / pd.Timedelta(days=1)
    pace = np.log(2) * days.fillna(days.median()).to_numpy(dtype=float) / DAYS_PER_MONTH / months
    family = pd.factorize(facts["family"].fillna(pd.Series(models, index=models)))[0]
    skills, skill = np.unique(table["skill"].to_numpy(dtype=str), return_inverse=True)
    counted = np.isin(skills, SKILLS)
    counted = counted if counted.any() else np.ones(len(skills), dtype=bool)
    faster = rng.normal(1.0, 0.3, len(skills))
    faster += 1.0 - faster[counted].mean()
    shape = (family.max() + 1, len(skills))
    general = rng.normal(0, 0.4, shape[0])[family] + rng.normal(0, 0.25, len(models))
    own = rng.normal(0, 0.2, shape)[family] + rng.normal(0, 0.15, (len(models), len(skills)))
    ability = SIZE * (log_n[:, None] + pace[:, None] * faster) + general[:, None] + own
    truth = pd.Series(ability[:, counted].mean(axis=1) / SIZE - log_n, index=models)

    model = np.searchsorted(models, table["model"].to_numpy(dtype=str))
    benchmark, benchmarks = table["benchmark"].factorize()
    test, tests = table["test"].factorize()
    pair = table.groupby(["evaluator", "skill"], sort=False).ngroup().to_numpy()
    slope = np.exp(rng.normal(0, 0.2, len(benchmarks)))[benchmark]
    floor = table["floor"].to_numpy(dtype=float)
    # A benchmark is as hard as the catalog's scores say, so that as many models are at its floor as there are.
    share = np.clip((table["score"].to_numpy(dtype=float) - floor) / (CEILING - floor), 0.02, 0.98)
    z = slope * ability[model, skill]
    hard = (np.bincount(benchmark, inverse(share) - z) / np.bincount(benchmark))[benchmark]
    z = z + hard + rng.normal(0, 0.2, len(tests))[test] + rng.normal(0, 0.15, pair.max() + 1)[pair]
    expected = floor + (CEILING - floor) * curve(z + 0.12 * rng.standard_t(3, len(z)))
    observed = table["score"].to_numpy(dtype=float)
    items = observed * (1 - observed) / table["se"].to_numpy(dtype=float) ** 2
    items = np.maximum(np.round(items), FEWEST_ITEMS).astype(int)
    score = rng.binomial(items, expected) / items
    return truth, replace(cells, table=table.assign(score=score, se=np.sqrt(binomial_variance(score, items))))


def _compared(result: DensityResult, truth: pd.Series, months: float) -> dict[str, Any]:
    """Compare the estimate with that from known densities, and the densities with the truth."""
    data = TrendData.from_density(result).window(SINCE, None)
    true = truth.reindex(data.model).to_numpy(dtype=float)
    estimate = HEADLINE.fit(data)
    known = HEADLINE.fit(data.replace(log_density=true, censor=np.zeros(len(true), dtype=np.int8), **BARE))
    low, high = estimate.doubling_interval
    # A level that is common to all models is the reference's choice of density 1.
    inside = np.nan
    if data.draws is not None:
        ends = data.limits
        # A model off the reference is known by a limit: its interval is not one of a value.
        seen = data.observed & (data.draws > ends[:, 0] + 1e-9).any(axis=0)
        draws = data.draws[:, seen] - data.draws[:, seen].mean(axis=1, keepdims=True)
        lower, upper = np.quantile(draws, [0.025, 0.975], axis=0)
        centred = true[seen] - true[seen].mean()
        inside = float(((lower <= centred) & (centred <= upper)).mean())
    return {
        "known": known.doubling_months,
        "estimate": estimate.doubling_months,
        "lo": low,
        "hi": high,
        "held": bool(low <= months <= high),
        "models": len(data),
        "densities": inside,
    }

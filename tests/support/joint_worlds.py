"""Worlds in which the truth of a joint scale is known: one like the fitted model, and one that is not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import expit, logit

from densing.core import Array
from densing.scores.catalog import Catalog
from densing.scores.joint import JointScale, fit_joint, joint_cells
from densing.scores.joint.cells import COLUMNS, ENGLISH, Cells
from densing.scores.joint.posterior import Index
from densing.scores.study import recovery

SKILLS = ("knowledge", "reasoning", "mathematics", "code")
# Those of the package's own simulation, and the fitted model's.
LINKS = {"logistic": expit, **{name: curve for name, (curve, _) in recovery.LINKS.items()}}

SHORT = {"chains": 1, "sweeps": 20, "burn": 10, "draws": 20}
"""One chain that is long enough for everything but figures."""
_FITTED: dict[str, JointScale] = {}


def short(catalog: Catalog) -> JointScale:
    """Return the joint scale of a catalog by one short chain; the same cells are fitted once per process."""
    cells = joint_cells(catalog)
    if cells.digest not in _FITTED:
        _FITTED[cells.digest] = fit_joint(cells, **SHORT)
    return _FITTED[cells.digest]


@dataclass(frozen=True)
class World:
    """Cells, and what an average evaluator would have measured without noise.

    Parameters
    ----------
    cells : Cells
    logits : pandas.DataFrame
        Logit of the share between floor and ceiling, models x benchmarks: whatever the link, an ability on a basket is
        the mean of a row over the basket.
    """

    cells: Cells
    logits: pd.DataFrame


def cells_of(rows: pd.DataFrame) -> Cells:
    """Return cells of a table with ``model, benchmark, evaluator, score``; the other columns have defaults."""
    table = pd.DataFrame({"se": 0.01, "floor": 0.0, "skill": "knowledge", "language": ENGLISH} | dict(rows.items()))
    table["test"] = table["benchmark"] + "@" + table["evaluator"]
    table["trait"] = table["skill"]
    ordered = table.sort_values(["model", "test"], ignore_index=True)[COLUMNS]
    return Cells(ordered, pd.DataFrame(columns=["model", "benchmark", "evaluator", "reason"]))


def plain_world(offsets: dict[str, float], models: int = 30, benchmarks: int = 6, seed: int = 0) -> World:
    """One ability, logistic curves, evaluators that lie a constant apart; every model measured on everything."""
    rng = np.random.default_rng(seed)
    ability = np.linspace(-1.5, 1.5, models)
    difficulty = np.linspace(-0.6, 0.6, benchmarks)
    z = ability[:, None] - difficulty
    names = [f"m{m:02d}" for m in range(models)], [f"b{b}" for b in range(benchmarks)]
    rows = [
        (names[0][m], names[1][b], evaluator, expit(z[m, b] + offset + 0.05 * rng.standard_normal()), SKILLS[b % 4])
        for m in range(models)
        for b in range(benchmarks)
        for evaluator, offset in offsets.items()
    ]
    table = pd.DataFrame(rows, columns=["model", "benchmark", "evaluator", "score", "skill"])
    return World(cells_of(table), pd.DataFrame(z, *names))


def other_world(link: str, seed: int, models: int = 40, benchmarks: int = 12, evaluators: int = 3) -> World:
    """A world that the fitted model does not describe.

    Another link than the logistic; errors with three degrees of freedom; evaluators that suit skills differently
    (a harness that cuts chains of thought is hard on mathematics only); families of four models, of which a fifth were
    distilled: good on two benchmarks beyond all that their other scores tell. Items are counted.
    """
    rng = np.random.default_rng(seed)
    families = np.arange(models) // 4
    general = rng.normal(0, 0.6, families.max() + 1)[families] + 0.35 * (np.arange(models) % 4) - 0.5
    ability = general[:, None] + rng.normal(0, 0.25, (models, len(SKILLS)))
    skill = np.arange(benchmarks) % len(SKILLS)
    slope = np.exp(rng.normal(0, 0.2, benchmarks))
    z = slope * (ability[:, skill] - rng.normal(0, 0.6, benchmarks))
    distilled = rng.random(families.max() + 1) < 0.2
    for family in np.flatnonzero(distilled):
        trained_on = rng.choice(benchmarks, 2, replace=False)
        z[np.ix_(families == family, trained_on)] += 0.5
    share = LINKS[link](z)
    chance = np.where(skill < 2, 0.25, 0.0)
    items = rng.integers(200, 1500, benchmarks)
    names = [f"m{m:02d}" for m in range(models)], [f"b{b:02d}" for b in range(benchmarks)]
    rows = []
    for e in range(evaluators):
        of_benchmark = rng.normal(0, 0.25, benchmarks)
        of_skill = rng.normal(0, 0.15, len(SKILLS))
        measured = rng.random(models) < (0.9, 0.6, 0.4)[e % 3]
        used = rng.random(benchmarks) < 0.8
        for m in np.flatnonzero(measured):
            for b in np.flatnonzero(used):
                shifted = z[m, b] + of_benchmark[b] + of_skill[skill[b]] + 0.12 * rng.standard_t(3)
                expected = chance[b] + (0.97 - chance[b]) * LINKS[link](shifted)
                score = rng.binomial(items[b], expected) / items[b]
                error = max(np.sqrt(score * (1 - score) / items[b]), 1e-4)
                rows.append((names[0][m], names[1][b], f"e{e}", score, error, chance[b], SKILLS[skill[b]]))
    table = pd.DataFrame(rows, columns=["model", "benchmark", "evaluator", "score", "se", "floor", "skill"])
    return World(cells_of(table), pd.DataFrame(logit(share), *names))


def basket_truth(world: World, weights: dict[str, float], models: Array) -> Array:
    """Return the abilities on a basket that an average evaluator would find."""
    return np.asarray(world.logits.loc[models, list(weights)].to_numpy() @ np.array(list(weights.values())))


def few_cells() -> Index:
    """Three models on four tests of two benchmarks, two traits, floors from nothing to a half; two cells are missing.

    Model 2 was measured on one trait, by one evaluator.
    """
    cells = [(model, test) for model in range(3) for test in range(4) if model < 2 or test == 0]
    model, test = (np.array(codes) for codes in zip(*cells, strict=True))
    # Tests 0 and 2 are of one evaluator, 1 and 3 of another; benchmark 0 has tests 0 and 1.
    pair = np.unique(model * 2 + test % 2, return_inverse=True)[1]
    return Index(
        model=model,
        test=test,
        pair=pair,
        benchmark=np.array([0, 0, 1, 1]),
        trait=np.array([0, 0, 1, 1]),
        score=np.linspace(0.3, 0.8, len(model)),
        se=np.full(len(model), 0.02),
        chance=np.array([0.02, 0.25, 0.0, 0.5]),
    )

"""The joint scale as a ruler, in worlds whose slope, level and densities are known."""

from __future__ import annotations

import dataclasses
from functools import lru_cache

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

from densing.core import UnavailableError
from densing.scores.catalog import Catalog, load_catalog
from densing.scores.density import catalog_densities
from densing.scores.joint import JointScale, fit_joint, joint_cells
from densing.scores.references import get_family, joint_ruler, load_reference
from densing.scores.trend import TrendData

SLOPE = 0.5
NOISE = 0.15
BENCHMARKS = ("mmlu", "arc_challenge", "bbh", "drop", "gsm8k", "math", "humaneval", "mbpp")
LEVELS = {"Qwen2.5": 0.0, "Able": 0.7, "Weak": -0.9, "Plain": 0.1, "Other": 0.3, "Sixth": -0.3, "Last": 0.2}


def world(families: dict[str, float] = LEVELS, extra: list[dict[str, object]] | None = None) -> Catalog:
    """Families on parallel lines of ability in ln N; every model on every benchmark, with little noise."""
    rng = np.random.default_rng(1)
    rows = []
    for number, (family, level) in enumerate(families.items()):
        for size in (0.5e9, 2e9, 8e9, 32e9):
            ability = level + SLOPE * np.log(size / 8e9)
            for b, benchmark in enumerate(BENCHMARKS):
                score = 0.97 * expit(ability - 0.2 * (b - 4) + NOISE * rng.standard_normal())
                rows.append(
                    {
                        "model": f"{family}-{size / 1e9:g}B",
                        "family": family,
                        "organisation": family,
                        "params": size,
                        "released": f"2024-{number + 1:02d}-01",
                        "benchmark": benchmark,
                        "score": 0.25 + 0.75 * score if benchmark in ("mmlu", "arc_challenge") else score,
                    }
                )
    return load_catalog(pd.DataFrame(rows + (extra or [])), embedded=False)


@lru_cache(maxsize=4)
def fitted() -> tuple[Catalog, JointScale]:
    catalog = world()
    return catalog, fit_joint(joint_cells(catalog), chains=1, sweeps=400, burn=300, draws=200)


def test_the_slope_of_size_is_that_of_the_world():
    catalog, scale = fitted()
    ruler = joint_ruler(catalog, scale=scale)
    low, high = np.quantile(ruler.fit.draws[:, 1], [0.025, 0.975])
    assert low < SLOPE < high
    # Neither no slope nor twice as much; how narrow it is differs from chain to chain, 0.08 to 0.32 over ten seeds.
    assert low > 0 and high < 2 * SLOPE
    assert ruler.fit.options["anchor"] == "Qwen2.5"


def test_the_anchor_has_density_one_and_others_what_their_level_buys():
    catalog, scale = fitted()
    table = catalog_densities(catalog, joint_ruler(catalog, scale=scale)).table
    table = table[table["status"].eq("ok")]
    truth = table["family"].map(lambda family: np.exp(LEVELS[family] / SLOPE))
    ratio = np.log(table["density"] / truth).groupby(table["family"]).mean()
    assert len(ratio) == len(LEVELS)
    assert ratio.abs().max() < 0.25
    assert ((table["density_lo"] <= truth) & (truth <= table["density_hi"])).mean() > 0.85


def test_draws_reach_the_trend_and_bounds_are_censored():
    catalog, scale = fitted()
    result = catalog_densities(catalog, joint_ruler(catalog, scale=scale))
    assert result.draws.shape == result.law_draws.shape == result.model_draws.shape == (200, len(result))
    spread = result.model_draws.std(axis=0).mean(), result.draws.std(axis=0).mean()
    assert spread[0] >= spread[1] > 0
    data = TrendData.from_density(result.headline)
    assert len(data) == 28
    bounded = result.table["bound"].ne("")
    assert (result.table.loc[bounded, "status"] == "extrapolated").all()


def test_the_order_of_rows_has_no_say():
    catalog, scale = fitted()
    again = joint_ruler(catalog, scale=scale)
    np.testing.assert_array_equal(again.fit.draws, joint_ruler(catalog, scale=scale).fit.draws)
    shuffled = Catalog(
        catalog.models.sample(frac=1, random_state=3).reset_index(drop=True),
        catalog.scores.sample(frac=1, random_state=4).reset_index(drop=True),
        catalog.benchmarks,
        catalog.evaluators,
        catalog.sources,
    )
    assert joint_cells(shuffled).table.equals(joint_cells(catalog).table)
    assert joint_ruler(shuffled, scale=scale).fit.theta.tolist() == again.fit.theta.tolist()


def test_without_the_anchor_another_family_gives_the_level_and_says_so():
    catalog = world({name: level for name, level in LEVELS.items() if name != "Qwen2.5"})
    ruler = joint_ruler(catalog, scale=fit_joint(joint_cells(catalog), chains=1, sweeps=60, burn=60, draws=30))
    assert "other-anchor" in {note.code for note in ruler.notes}
    assert ruler.fit.options["anchor"] in LEVELS


def test_few_families_are_said():
    catalog = world({"Qwen2.5": 0.0, "Able": 0.5})
    ruler = joint_ruler(catalog, scale=fit_joint(joint_cells(catalog), chains=1, sweeps=60, burn=60, draws=30))
    assert "few-families" in {note.code for note in ruler.notes}


def test_without_a_family_of_several_sizes_there_is_no_ruler():
    catalog = world()
    lone = catalog.models.assign(family=catalog.models["model"])
    strangers = dataclasses.replace(catalog, models=lone)
    with pytest.raises(UnavailableError, match="3 sizes"):
        joint_ruler(strangers, scale=fit_joint(joint_cells(strangers), chains=1, sweeps=20, burn=20, draws=10))


def test_the_joint_ruler_is_a_reference_like_the_others():
    assert get_family("joint").kind == "joint"
    ruler = load_reference("joint", "knowledge")
    facts = ruler.describe()
    assert facts["law"] == "log-linear"
    assert facts["n_points"] >= 100
    assert 0.3 < facts["params"]["b"] < 0.9
    assert "Ruler joint, knowledge" in repr(ruler)

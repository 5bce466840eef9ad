"""What the reference adds to a density, with fewer families and with more, where families differ in slope."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import densing
from densing.core.errors import InputError
from densing.scores.catalog import Catalog, load_catalog
from densing.scores.density import catalog_densities, reference_by_families
from densing.scores.joint import joint_cells
from densing.scores.references import joint_reference

BENCHMARKS = ("mmlu", "bbh", "math", "humaneval")
SIZES = np.array([0.5e9, 4e9, 32e9])
FAMILIES, SLOPE, SLOPE_SD, ERROR, DRAWS = 24, 0.5, 0.15, 0.03, 1000


class PlantedScale(SimpleNamespace):
    """Abilities as they are in the world, known to a given error; no chain has to find them."""

    placed = ("a model of a user's",)

    def __len__(self) -> int:
        return len(self.models)

    def ability(self, basket: str) -> np.ndarray:
        return self.draws

    def abilities(self, basket: str, level: float = 0.95) -> pd.DataFrame:
        middle = np.median(self.draws, axis=0)
        return pd.DataFrame({"model": self.models, "ability": middle, "sd": ERROR, "cells": 4, "traits": 4})


@pytest.fixture(scope="module")
def world() -> tuple[Catalog, Any]:
    """Families of three sizes over a factor of 64; the slope of each is its own, and all have the anchor's level."""
    rng = np.random.default_rng(4)
    rows, ability = [], {}
    for number in range(FAMILIES):
        family = f"F{number:02d}" if number else "Qwen2.5"
        slope = SLOPE + SLOPE_SD * rng.standard_normal()
        for size in SIZES:
            model = f"{family}-{size / 1e9:g}B"
            ability[model] = slope * np.log(size / 4e9) + ERROR * rng.standard_normal()
            rows += [
                {"model": model, "family": family, "organisation": family, "params": size, "benchmark": benchmark,
                 "released": f"2024-{number % 12 + 1:02d}-01", "score": 0.5}
                for benchmark in BENCHMARKS
            ]  # fmt: skip
    catalog = load_catalog(pd.DataFrame(rows), embedded=False)
    models = np.array(sorted(ability))
    draws = np.array([ability[model] for model in models]) + ERROR * rng.standard_normal((DRAWS, len(models)))
    return catalog, PlantedScale(models=models, draws=draws, cells=joint_cells(catalog), notes=())


def test_the_references_share_falls_with_families_as_projected_from_fewer(world: tuple[Catalog, Any]) -> None:
    catalog, scale = world
    result = catalog_densities(catalog, joint_reference(catalog, scale=scale))
    found = reference_by_families(catalog, result, parts=(0.25, 0.5), further=(1.0,), resamples=12)
    assert found["families"].tolist() == [6, 12, 24] and found["projected"].tolist() == [False, False, True]
    assert found["sd"].is_monotonic_decreasing and found["share_recipe"].is_monotonic_decreasing
    # What six and twelve families foretell is what twenty-four give, to a quarter.
    inside = result.table["bound"].eq("").to_numpy()
    actual = np.sqrt(result.law_draws[:, inside].var(axis=0).mean())
    assert found["sd"].iloc[-1] == pytest.approx(actual, rel=0.25)
    # The slope is nearly all that errs here, and is known from a quarter of the families half as well.
    assert 1.5 < found["sd"].iloc[0] / actual < 2.4


def test_with_all_families_it_is_the_references_share_of_the_table(world: tuple[Catalog, Any]) -> None:
    catalog, scale = world
    result = catalog_densities(catalog, joint_reference(catalog, scale=scale))
    found = reference_by_families(catalog, result, parts=(0.5, 0.75, 1.0), resamples=2).set_index("families")
    assert found.loc[FAMILIES, "share_recipe"] == pytest.approx(result.shares["ruler"], rel=0.02)
    assert (found["share_recipe"] < found["share_measured"]).all()


def test_a_reference_of_one_family_has_no_families_to_leave_out() -> None:
    catalog = densing.load_catalog()
    result = densing.catalog_densities(catalog, densing.load_reference("qwen1.5", "mmlu"))
    with pytest.raises(InputError, match=r"reference qwen1\.5 is one family"):
        reference_by_families(catalog, result)

"""Two ways to combine benchmarks: one curve on the mean score, or the mean of the logarithms of single densities."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from densing.scores.catalog import load_catalog
from densing.scores.density import DensityResult, catalog_densities, combined_densities
from densing.scores.density.combination import combine_results
from densing.scores.density.inversion import joint_scatter
from densing.scores.references import load_reference

CATALOG = load_catalog()
MEAN = load_reference("qwen1.5", "mean")
PARTS = [load_reference("qwen1.5", name) for name in MEAN.benchmarks]


@pytest.fixture(scope="module")
def combined() -> DensityResult:
    return combined_densities(CATALOG, MEAN, PARTS)


def test_it_is_the_geometric_mean_of_single_densities(combined: DensityResult) -> None:
    singles = [catalog_densities(CATALOG, part).table.set_index("model") for part in PARTS]
    table = combined.table.set_index("model")
    for model in table.index[:20]:
        logs = [np.log(single.loc[model, "density"]) for single in singles]
        assert table.loc[model, "density"] == pytest.approx(np.exp(np.mean(logs)))
        directions = {single.loc[model, "bound"] for single in singles} - {""}
        assert table.loc[model, "bound"] == (directions.pop() if directions else "")


def test_bounds_have_an_open_end_and_mixed_ones_are_named(combined: DensityResult) -> None:
    table = combined.table
    assert (table.loc[table["bound"] == "upper", "density_lo"] == 0).all()
    assert np.isinf(table.loc[table["bound"] == "lower", "density_hi"]).all()
    left = [note for note in combined.notes if note.code == "bounds-both-ways"]
    assert not left or not set(left[0].details["models"]) & set(table["model"])


def test_the_two_ways_differ_but_rank_alike(combined: DensityResult) -> None:
    one = catalog_densities(CATALOG, MEAN).table.set_index("model")["density"]
    two = combined.table.set_index("model")["density"]
    both = one.index.intersection(two.index)
    ratio = np.log(one[both] / two[both])
    assert ratio.std() > 0.01, "inversion is nonlinear: they cannot agree exactly"
    assert one[both].rank().corr(two[both].rank()) > 0.8


def test_draws_and_table_agree(combined: DensityResult) -> None:
    inside = combined.table["bound"].to_numpy() == ""
    middle = np.median(combined.draws[:, inside], axis=0)
    np.testing.assert_allclose(middle, np.log(combined.table["density"][inside]), atol=0.35)


def test_every_column_by_hand(combined: DensityResult) -> None:
    names = ("hellaswag", "arc_challenge", "winogrande")
    parts = [catalog_densities(CATALOG, load_reference("qwen1.5", name), level=0.8, seed=2) for name in names]
    found = combine_results(parts, MEAN)
    shared = sorted(set.intersection(*(set(part.table["model"]) for part in parts)))
    rows = [part.subset(pd.Series(range(len(part)), index=part.table["model"])[shared].to_numpy()) for part in parts]
    bounds = np.array([part.table["bound"] for part in rows])
    upper, lower = (bounds == "upper").any(axis=0), (bounds == "lower").any(axis=0)
    kept = ~(upper & lower)
    table = found.table
    assert table["model"].tolist() == np.array(shared)[kept].tolist()
    upper, lower = upper[kept], lower[kept]
    assert table["bound"].tolist() == np.select([upper, lower], ["upper", "lower"], "").tolist()
    assert table["status"].tolist() == np.where(upper | lower, "extrapolated", "ok").tolist()
    columns = {
        name: np.array([part.table[name].astype(float) for part in rows])[:, kept]
        for name in ("score", "score_se", "density", "n_params")
    }
    np.testing.assert_allclose(table["density"], np.exp(np.log(columns["density"]).mean(axis=0)))
    np.testing.assert_allclose(table["score"], columns["score"].mean(axis=0))
    np.testing.assert_allclose(table["score_se"], np.sqrt((columns["score_se"] ** 2).sum(axis=0)) / 3)
    for name in ("", "_lo", "_hi"):
        np.testing.assert_allclose(table[f"n_eff{name}"], table[f"density{name}"] * columns["n_params"][0])
    # Curves err together as far as their residuals do, and their degrees of freedom add up.
    scatter = joint_scatter([part.reference for part in parts])
    common, freedom = scatter[0].common, 5.0
    wider = np.sqrt((1 - common) * (3 * freedom / (3 * freedom - 2)) / (freedom / (freedom - 2)) + 3 * common)
    law = np.mean([part.law_draws for part in rows], axis=0)[:, kept]
    shift = (wider - 1) * (law - law.mean(axis=0))
    draws = np.mean([part.draws for part in rows], axis=0)[:, kept] + shift
    low, high = np.exp(np.quantile(draws, [0.1, 0.9], axis=0))
    np.testing.assert_allclose(table["density_lo"], np.where(upper, 0, low))
    np.testing.assert_allclose(table["density_hi"], np.where(lower, np.inf, high))
    limits = np.mean([part.log_limits for part in rows], axis=0)[kept]
    value = np.log(table["density"].to_numpy())
    limits[upper, 0], limits[lower, 1] = value[upper], value[lower]
    np.testing.assert_allclose(found.log_limits, limits)
    np.testing.assert_allclose(found.draws, np.clip(draws, limits[:, 0], limits[:, 1]))
    np.testing.assert_allclose(found.law_draws, np.clip(law + shift, limits[:, 0], limits[:, 1]))
    recipe = table["density_hi_recipe"] / table["density_lo_recipe"]
    inside = ~(upper | lower)
    assert np.median(recipe[inside]) > np.median((table["density_hi"] / table["density_lo"])[inside])
    assert found.options["combine"] == "per-benchmark" and set(table["benchmark"]) == {"per-benchmark"}
    left = [note for note in found.notes if note.code == "bounds-both-ways"]
    assert [note.details["models"] for note in left] == ([np.array(shared)[~kept].tolist()] if not kept.all() else [])

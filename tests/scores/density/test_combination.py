"""Two ways to combine benchmarks: one curve on the mean score, or the mean of the logarithms of single densities."""

from __future__ import annotations

import numpy as np
import pytest

from densing.scores.catalog import load_catalog
from densing.scores.density import DensityResult, catalog_densities, combined_densities
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

"""Places among others: counted by hand, honest about limits, and refused across references."""

from __future__ import annotations

import numpy as np
import pytest

import densing
from densing.core import InputError
from densing.scores.density import DensityResult, Ranking


@pytest.fixture(scope="module")
def everyone() -> DensityResult:
    return densing.catalog_densities(densing.load_catalog(), densing.load_reference("qwen1.5", "mmlu"))


@pytest.fixture(scope="module")
def ranking(everyone: DensityResult) -> Ranking:
    names = ["Llama-3-8B", "OPT-1.3B", "Qwen2.5-7B"]
    return densing.rank(everyone.subset(everyone.table["model"].isin(names).to_numpy()), everyone)


def test_a_place_is_one_more_than_the_denser_ones(everyone: DensityResult, ranking: Ranking) -> None:
    others = everyone.table[~everyone.table["model"].isin(ranking.table["model"])]
    for row in ranking.table.itertuples():
        denser = int((others["density"] >= row.density).sum())
        assert (row.rank, row.of) == (1 + denser, len(others) + 1)
        assert row.percentile == pytest.approx(100 * (1 - denser / len(others)))
        assert row.rank_lo <= row.rank <= row.rank_hi and row.percentile_lo <= row.percentile <= row.percentile_hi


def test_a_limit_may_stand_anywhere_beyond_it(ranking: Ranking) -> None:
    limit = ranking.table.set_index("model").loc["OPT-1.3B"]
    assert limit["status"] == "below_floor"
    assert limit["percentile_lo"] == 0 and limit["rank_hi"] == limit["of"]


def test_neighbours_stand_on_both_sides_in_order(ranking: Ranking) -> None:
    near = ranking.neighbours("Llama-3-8B", 3)
    assert near["model"].tolist()[3] == "Llama-3-8B" and len(near) == 7
    assert near["density"].is_monotonic_decreasing
    with pytest.raises(InputError, match=r"no model 'Llama-9'.*Llama-3-8B"):
        ranking.neighbours("Llama-9")


def test_the_densest_has_no_neighbours_above(everyone: DensityResult) -> None:
    top = everyone.subset(np.array([everyone.table["density"].argmax()]))
    near = densing.rank(top, everyone).neighbours(top.table["model"].item(), 2)
    assert len(near) == 3 and near["model"].iloc[0] == top.table["model"].item()


def test_a_table_is_measured_on_the_reference_of_the_others(everyone: DensityResult) -> None:
    rows = [{"model": "mine", "params": 3e9, "released": "2024-06-01", "benchmark": "mmlu", "score": 0.6}]
    place = densing.rank(rows, everyone).table.iloc[0]
    assert place["model"] == "mine" and place["of"] == len(everyone) + 1


def test_references_must_be_one(everyone: DensityResult) -> None:
    other = densing.catalog_densities(densing.load_catalog(), densing.load_reference("llama", "mmlu"))
    with pytest.raises(InputError, match="different references"):
        densing.rank(other, everyone)
    with pytest.raises(InputError, match="no other model"):
        densing.rank(everyone, everyone)


def test_it_says_what_it_is(ranking: Ranking) -> None:
    assert repr(ranking).startswith("3 models among 184 on qwen1.5, mmlu")
    assert "Llama-3-8B" in ranking._repr_html_() and "rank" in ranking.to_latex()


def test_the_level_is_that_of_densities_too_and_no_note_is_lost() -> None:
    mine = [{"model": "mine", "params": 3e9, "released": "2024-06-01", "benchmark": "mmlu", "score": 0.6}]
    reference = densing.load_reference("qwen1.5", "mmlu")
    narrow, wide = (densing.rank(mine, reference=reference, level=level) for level in (0.5, 0.95))
    inside, outside = narrow.table.iloc[0], wide.table.iloc[0]
    assert outside["density_lo"] < inside["density_lo"] < inside["density_hi"] < outside["density_hi"]
    assert {note.message for note in narrow.others.notes} <= {note.message for note in narrow.notes}


def test_the_name_of_a_reference_is_the_reference_on_the_mean() -> None:
    catalog = densing.load_catalog()
    by_name = densing.catalog_densities(catalog, "qwen1.5")
    assert by_name.table.equals(densing.catalog_densities(catalog, densing.load_reference("qwen1.5")).table)
    mine = [{"model": "mine", "params": 3e9, "benchmark": name, "score": 0.6} for name in by_name.reference.benchmarks]
    assert densing.table_densities(mine, "qwen1.5").table["benchmark"].item() == "mean"
    with pytest.raises(densing.DensingError, match=r"unknown reference 'qwen15'; did you mean 'qwen1.5'"):
        densing.table_densities(mine, "qwen15")

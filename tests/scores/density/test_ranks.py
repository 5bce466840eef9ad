"""Places among others: counted by hand, honest about limits, and refused across references."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

import densing
from densing.core import InputError
from densing.scores.density import DensityResult, Ranking, ranks


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
    assert "Llama-3-8B" in ranking._repr_html_() and "Rank" in ranking.to_latex()


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


def small(
    density: list[float], spread: list[float], bound: list[str], name: str = "toy", draws: int = 400
) -> DensityResult:
    """Densities of given size and spread on a reference of this name."""
    reference = dataclasses.replace(densing.load_reference("qwen1.5", "mmlu"), name=name)
    models = (
        [f"{name} {at}" for at in range(len(density))] if name == "mine" else [f"m{at}" for at in range(len(density))]
    )
    logs = np.log(density) + np.array(spread) * np.random.default_rng(len(density)).standard_normal(
        (draws, len(density))
    )
    low, high = np.exp(np.quantile(logs, [0.025, 0.975], axis=0))
    table = pd.DataFrame({
        "model": models, "released": "2024-01-01", "n_params": 1e9, "density": density, "density_lo": low,
        "density_hi": high, "stratum": "headline", "interval": "", "protocol": "same", "protocol_detail": "",
        "density_lo_recipe": low / 1.5, "density_hi_recipe": high * 1.5, "status": "ok", "bound": bound,
    })  # fmt: skip
    return DensityResult(table, logs, logs, logs, np.zeros((len(density), 2)), reference, {"level": 0.95})


@pytest.mark.parametrize("level", [0.95, 0.6])
def test_places_and_their_ends_by_counting(level: float) -> None:
    mine = small([2.0, 5.0, 0.3], [0.5, 0.1, 0.2], ["", "lower", "upper"], "mine")
    others = small([0.5, 1.0, 1.5, 2.5, 3.0, 4.0, 8.0], [0.3] * 7, ["", "upper", "", "", "lower", "", ""], "mine")
    others = dataclasses.replace(others, table=others.table.assign(model=[f"other {at}" for at in range(7)]))
    found = densing.rank(mine, others, level=level).table
    tail = (1 - level) / 2
    for at, row in enumerate(found.itertuples()):
        surely, maybe = [], []
        for draw in range(400):
            own = mine.draws[draw, at]
            low, high = {"": (own, own), "upper": (-np.inf, own), "lower": (own, np.inf)}[mine.table["bound"][at]]
            ends = [
                {"": (x, x), "upper": (-np.inf, x), "lower": (x, np.inf)}[bound]
                for x, bound in zip(others.draws[draw], others.table["bound"], strict=True)
            ]
            surely.append(sum(other[1] < low for other in ends) / 7)
            maybe.append(sum(other[0] < high for other in ends) / 7)
        share = sum(other < row.density for other in others.table["density"]) / 7
        low, high = np.quantile(surely, tail), np.quantile(maybe, 1 - tail)
        assert (row.rank, row.of) == (1 + round(7 * (1 - share)), 8)
        assert row.percentile == pytest.approx(100 * share)
        assert row.percentile_lo == pytest.approx(100 * min(low, share)) and row.percentile_hi == pytest.approx(
            100 * max(high, share)
        )
        assert (row.rank_lo, row.rank_hi) == (1 + np.floor(7 * (1 - high)), 1 + np.ceil(7 * (1 - low)))


def test_models_that_were_measured_again_are_left_out() -> None:
    mine = small([2.0], [0.1], [""], "mine")
    mine = dataclasses.replace(mine, table=mine.table.assign(known_as="m1"))
    others = small([1.0, 1.5, 3.0], [0.1] * 3, [""] * 3, "mine")
    others = dataclasses.replace(others, table=others.table.assign(model=["m0", "m1", "m2"]))
    assert densing.rank(mine, others).table["of"].tolist() == [3]


def test_agreement_of_two_references_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    first = small([1.0, 2.0, 3.0, 4.0, 9.0], [0.01] * 5, ["", "", "", "", "upper"], "a")
    second = small([2.0, 1.9, 6.0, 40.0, 5.0], [0.01] * 5, [""] * 5, "b")
    second.table.loc[4, "density_lo_recipe"] = np.nan
    results = {"qwen1.5": first, "llama": second}
    monkeypatch.setattr(
        ranks, "load_reference", lambda name, *_, **__: dataclasses.replace(results[name].reference, notes=())
    )
    monkeypatch.setattr(
        ranks, "table_densities", lambda models, reference, **_: first if reference.name == "a" else second
    )
    found = densing.compare_references([{"model": "m0"}], ["qwen1.5", "llama"])
    (pair,) = found.correlation.to_dict("records")
    # The last has a bound on the first. Of four, ranks are 4 3 2 1 and 3 4 2 1.
    assert (pair["first"], pair["second"], pair["models"]) == ("qwen1.5", "llama", 4)
    assert pair["spearman"] == pytest.approx(0.8) and pair["median_ratio"] == pytest.approx(0.5)
    # Recipes' intervals reach half as far again on each side: 2 and 1.9 meet, 4 and 40 do not.
    low, high = first.table["density_lo_recipe"][:4], first.table["density_hi_recipe"][:4]
    other_low, other_high = second.table["density_lo_recipe"][:4], second.table["density_hi_recipe"][:4]
    apart = int(((high < other_low) | (other_high < low)).sum())
    assert pair["disjoint"] == apart and 1 <= apart < 4
    table = found.table.set_index(["reference", "model"])
    assert table.loc["qwen1.5", "rank"].tolist()[:4] == [4, 3, 2, 1] and table.loc[("qwen1.5", "m4"), "rank"] is pd.NA
    assert table.loc["llama", "rank"].tolist() == [4, 5, 2, 1, 3]
    assert table.loc["qwen1.5", "ranked"].unique().tolist() == [4] and table.loc[
        "llama", "ranked"
    ].unique().tolist() == [5]
    assert found.wide().columns.tolist() == ["qwen1.5", "llama"] and found.wide().loc["m3"].tolist() == [4.0, 40.0]
    assert [(row["models"], row["ranked"]) for row in found.describe()] == [(5, 4), (5, 5)]
    few = {name: result.subset(np.arange(2)) for name, result in results.items()}
    monkeypatch.setattr(
        ranks, "table_densities", lambda models, reference, **_: few["qwen1.5" if reference.name == "a" else "llama"]
    )
    assert np.isnan(densing.compare_references([{"model": "m0"}], ["qwen1.5", "llama"]).correlation["spearman"].item())
    three = {name: result.subset(np.arange(3)) for name, result in results.items()}
    monkeypatch.setattr(
        ranks, "table_densities", lambda models, reference, **_: three["qwen1.5" if reference.name == "a" else "llama"]
    )
    assert densing.compare_references([{"model": "m0"}], ["qwen1.5", "llama"]).correlation[
        "spearman"
    ].item() == pytest.approx(0.5)

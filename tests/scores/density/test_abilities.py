"""Densities on the joint scale of the embedded catalog, and of a user's own models among them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import densing
from densing.core import InputError
from densing.scores.catalog import own_figures
from densing.scores.density import catalog_densities, reference_by_families
from densing.scores.density.abilities import FEW_CELLS, held_densities, joint_densities
from densing.scores.density.inversion import TABLE_COLUMNS, UNGUARDED, normals, over_sizes, size_shifts
from densing.scores.joint import fit_joint, joint_cells
from densing.scores.references import joint_reference
from tests.support.planted_scale import planted_catalog, planted_scale


@pytest.fixture(scope="module")
def catalog():
    return densing.load_catalog()


@pytest.fixture(scope="module")
def joint(catalog):
    return densing.catalog_densities(catalog, densing.load_reference("joint", catalog=catalog))


def test_columns_are_those_of_every_reference_and_two_more(joint):
    assert [name for name in joint.table.columns if name not in ("cells", "traits")] == list(TABLE_COLUMNS)
    assert (joint.table["cells"] >= 1).all()
    assert joint.table["traits"].between(0, 4).all()


def test_models_of_2026_are_on_the_scale(joint):
    late = joint.headline.table["released"].max()
    assert str(late)[:4] == "2026"


def test_the_anchor_family_has_density_one(joint):
    own = joint.table[joint.table["family"].eq("Qwen2.5")]
    assert len(own) == 7
    assert np.log(own["density"]).mean() == pytest.approx(0.0, abs=0.05)


def test_fewer_scores_give_wider_intervals(joint):
    spread, inside = joint.draws.std(axis=0), joint.table["status"].eq("ok").to_numpy()
    cells, skills = joint.table["cells"].to_numpy(), joint.table["traits"].to_numpy()
    thorough = inside & (cells >= 30) & (skills == 4)
    assert np.median(spread[inside & (cells <= 5)]) > 1.5 * np.median(spread[thorough])


def test_scatter_widens_intervals(joint):
    inside = joint.table["status"].eq("ok").to_numpy()
    ratio = joint.model_draws.std(axis=0)[inside] / joint.draws.std(axis=0)[inside]
    assert np.median(ratio) > 1.2
    # Ends of draws are cut at the guard, and five hundred of them err by a few percent.
    assert (ratio > 0.9).all()


def test_active_sizes_divide_mixtures_of_experts(catalog, joint):
    reference = joint.reference
    active = catalog_densities(catalog, reference, denominator="active").table.set_index("model")["density"]
    total = joint.table.set_index("model")["density"]
    models = catalog.models.set_index("model")
    ratio = models.loc["DeepSeek-V3-Base", "params_total_b"] / models.loc["DeepSeek-V3-Base", "params_active_b"]
    assert active["DeepSeek-V3-Base"] / total["DeepSeek-V3-Base"] == pytest.approx(ratio)


def test_pooling_and_nonsense_are_refused(catalog, joint):
    with pytest.raises(InputError, match="pooling"):
        catalog_densities(catalog, joint.reference, pool=True)
    with pytest.raises(InputError, match="guard"):
        catalog_densities(catalog, joint.reference, guard=0.5)
    free = catalog_densities(catalog, joint.reference, guard=math.inf)
    assert (free.table["bound"] == "").all()


def test_ranks_on_the_joint_scale_are_those_of_the_family_references(catalog, joint):
    mmlu = densing.catalog_densities(catalog, densing.load_reference("qwen1.5", "mmlu")).table
    knowledge = densing.catalog_densities(catalog, densing.load_reference("joint", "knowledge", catalog=catalog)).table
    both = mmlu[mmlu["status"].eq("ok")].merge(knowledge[knowledge["status"].eq("ok")], on="model")
    assert len(both) > 80
    assert both["density_x"].corr(both["density_y"], method="spearman") > 0.9


def test_vendors_own_figures_bring_models_that_nobody_else_measured(catalog, joint):
    # A second fit of the whole catalog would say no more: which cells enter is what the word decides.
    more = set(joint_cells(catalog, own="all").table["model"]) - set(joint.table["model"])
    assert {"Granite-4.1-8B-Base", "Hunyuan-7B-Pretrain"} <= more
    assert "makers' own figures included" in densing.Selection(vendors=True).describe()


def test_a_model_that_only_its_maker_measured_has_a_density_and_no_place_in_the_headline(catalog, joint):
    table = joint.table.set_index("model")
    falcon = table[table["family"].eq("Falcon-H1")]
    assert len(falcon) == 6 and falcon["own"].all() and falcon["evaluator"].eq("falcon_h1_docs").all()
    assert falcon["stratum"].eq("maker's own figures").all() and falcon["density"].gt(0).all()
    assert not joint.headline.table["own"].any() and table["own"].sum() < 20
    # Another reason to stand apart stays the reason.
    assert table.loc["DistilGPT-2-82M", ["own", "stratum"]].tolist() == [True, "compressed"]


def test_models_that_only_their_makers_measured_move_nobody_elses_density(catalog, joint):
    reference = joint.reference
    assert not set(joint.table.loc[joint.table["own"], "model"]) & set(reference.scale.models)
    without = replace(catalog, scores=catalog.scores[~own_figures(catalog)])
    alone = catalog_densities(without, reference).table.set_index("model")["density"]
    pd.testing.assert_series_equal(joint.table.set_index("model")["density"].reindex(alone.index), alone)
    assert len(alone) < len(joint.table)


def test_own_figures_count_where_a_scale_was_fitted_to_them(catalog):
    cells = joint_cells(catalog, own="harness")
    few = replace(cells, table=cells.table[cells.table["evaluator"].eq("falcon_h1_docs")].reset_index(drop=True))
    reference = densing.joint_reference(catalog, scale=fit_joint(few, chains=1, sweeps=60, burn=60, draws=30))
    table = catalog_densities(catalog, reference).table.set_index("model")
    assert table.loc["Falcon-H1-7B", ["own", "stratum"]].tolist() == [True, "headline"]


def test_own_figures_stand_apart_on_the_references_of_one_family_too(catalog):
    reference = densing.load_reference("qwen1.5", "mmlu_pro")
    table = catalog_densities(catalog, reference).table.set_index("model")
    # Hugging Face ran the leaderboard and made SmolLM.
    assert table.loc["SmolLM-1.7B", ["own", "stratum"]].tolist() == [True, "maker's own figures"]
    assert table.loc["Qwen1.5-7B", ["own", "stratum"]].tolist() == [False, "headline"]
    counted = catalog_densities(catalog, reference, selection=densing.Selection(vendors=True)).table.set_index("model")
    assert counted.loc["SmolLM-1.7B", ["own", "stratum"]].tolist() == [True, "headline"]


def test_what_nothing_links_has_a_status_and_no_number(joint):
    """One model's evaluator is taken off the others', first on their benchmarks, then on benchmarks of its own."""
    name = str(joint.headline.table["model"].iloc[-1])
    cells = joint.reference.scale.cells
    own = cells.table["model"].eq(name)
    outcomes = []
    for benchmark in (cells.table["benchmark"], "mine"):
        table = cells.table.assign(
            evaluator=cells.table["evaluator"].mask(own, "me"), benchmark=cells.table["benchmark"].mask(own, benchmark)
        )
        scale = replace(joint.reference.scale, cells=replace(cells, table=table))
        result = held_densities(replace(joint, reference=replace(joint.reference, scale=scale)), [name, "absent"])
        row = result.table.set_index("model").loc[name]
        notes = {note.code: note for note in result.notes}
        outcomes.append((row["status"] == "not linked", math.isnan(row["density"]), notes["not-linked"].severity))
        assert "absent: no score" in notes["not-placed"].message
        others = result.table["model"].ne(name)
        assert result.table[others]["density"].equals(joint.table[others]["density"])
    assert outcomes == [(False, False, "warning"), (True, True, "error")]
    full = replace(cells, table=cells.table.assign(score=cells.table["score"].mask(own, 1.0)))
    scale = replace(joint.reference.scale, cells=full)
    table = held_densities(replace(joint, reference=replace(joint.reference, scale=scale)), [name]).table
    row = table.set_index("model").loc[name]
    # Tests that others share are at their ceiling only if those are, too: a number stays.
    assert row["status"] != "at ceiling" and math.isfinite(row["density"])


def test_a_users_measurement_of_a_known_model_is_a_row_of_its_own_and_never_ranked_beside_it(joint, monkeypatch):
    # The catalog with these rows is fitted anew, here by one short chain: that whole ones converge is tested elsewhere.
    monkeypatch.setattr(
        "densing.scores.joint.catalog_scale",
        lambda catalog: fit_joint(joint_cells(catalog), chains=1, sweeps=20, burn=20, draws=20),
    )
    mine = (("gemma 7b", 8.5e9, 0.62), ("Zeta-7B", 7e9, 0.6))
    of_all = {"released": "2024-05-01", "benchmark": "mmlu", "evaluator": "me"}
    rows = [{"model": name, "params": size, "score": score, **of_all} for name, size, score in mine]
    result = densing.table_densities(rows, joint.reference)
    table = result.table.set_index("model")
    assert set(table.index) == {"gemma 7b", "Zeta-7B"}
    assert table["known_as"].dropna().to_dict() == {"gemma 7b": "Gemma-7B"}
    # The catalog's own row rests on many scores; this one on a score alone, which says less.
    own, theirs = table.loc["gemma 7b"], joint.table.set_index("model").loc["Gemma-7B"]
    assert own["cells"] == 1 < theirs["cells"]
    assert np.log(own["density_hi"] / own["density_lo"]) > 2 * np.log(theirs["density_hi"] / theirs["density_lo"])
    [note] = [note for note in result.notes if note.code == "replaces-catalog"]
    assert "gemma 7b (released 2024-05-01 instead of" in note.message
    assert "Gemma-7B" in set(joint.headline.table["model"])
    headline = joint.headline
    ranking = densing.rank(result, among=replace(headline, draws=headline.draws[: len(result.draws)]))
    assert "Gemma-7B" not in set(ranking.neighbours("gemma 7b", 500)["model"])


@pytest.mark.parametrize("guard", [3.0, 10.0, math.inf])
def test_densities_are_the_line_read_backwards(guard):
    catalog, (scale, _) = planted_catalog(), planted_scale(2)
    reference = joint_reference(catalog, scale=scale)
    result = joint_densities(catalog, reference, guard=guard, level=0.8, seed=5)
    table, fit = result.table, reference.fit
    position = [scale.models.index(model) for model in table["model"]]
    ability, middle = scale.draws[:, position], np.median(scale.draws, axis=0)[position]
    log_n = np.log(table["n_params"].to_numpy(float))
    limits = np.log([0.494e9 / guard, 72.7e9 * guard] if guard < math.inf else UNGUARDED)
    point = (middle - fit.theta[0]) / fit.theta[1]
    np.testing.assert_allclose(np.log(table["density"]) + log_n, np.clip(point, *limits))
    outside = (point < limits[0]) | (point > limits[1])
    assert table["status"].tolist() == np.where(outside, "extrapolated", "ok").tolist()
    assert (
        table["bound"].tolist() == np.select([point <= limits[0], point >= limits[1]], ["upper", "lower"], "").tolist()
    )
    level, slope = fit.draws[:, :1], fit.draws[:, 1:]
    np.testing.assert_allclose(result.law_draws, np.clip((middle - level) / slope, *limits) - log_n)
    shifts = size_shifts(table, len(ability), 5)
    drawn = np.clip((ability - level) / slope, *limits)
    np.testing.assert_allclose(result.draws, over_sizes(drawn, limits, shifts) - log_n)
    noise = reference.scatter[:, None] * normals(len(ability), 5, ("scatter", "joint"), table["model"].tolist())
    drawn = np.clip((ability + noise - level) / slope, *limits)
    np.testing.assert_allclose(result.model_draws, over_sizes(drawn, limits, shifts) - log_n)
    np.testing.assert_allclose(result.log_limits, limits - log_n[:, None])
    low, high = np.quantile(result.draws, [0.1, 0.9], axis=0)
    inside = (low > limits[0] - log_n) & (high < limits[1] - log_n)
    np.testing.assert_allclose(table["density_lo"][inside], np.exp(low[inside]))
    assert table["released"].is_monotonic_increasing
    few = [note for note in result.notes if note.code == "few-cells"]
    assert bool(few) == bool(table["cells"].lt(FEW_CELLS).any())
    with pytest.raises(InputError, match="has a size in params_non_embedding_b"):
        joint_densities(catalog, reference, denominator="non_embedding")


@pytest.mark.parametrize("end", [0, 1])
def test_a_model_on_a_limit_to_the_last_bit_is_within(end):
    catalog, (scale, _) = planted_catalog(), planted_scale(2)
    reference = joint_reference(catalog, scale=scale)
    table = joint_densities(catalog, reference, guard=math.inf).table
    point = (table["score"].to_numpy(float) - reference.fit.theta[0]) / reference.fit.theta[1]
    edge = reference.fit.domain["params"][end]
    place = np.argmax(point) if end else np.argmin(point)
    guard = (math.exp(point[place]) / edge) ** (1 if end else -1)
    near = (guard * (1 + shift * 2.0**-53) for shift in range(-400, 400))
    exact = [guess for guess in near if np.log(edge * guess if end else edge / guess) == point[place]]
    assert exact and exact[0] > 1
    status = joint_densities(catalog, reference, guard=exact[0]).table["status"]
    assert status[place] == "ok"
    assert joint_densities(catalog, reference, guard=exact[0] * 0.999).table["status"][place] == "extrapolated"


def test_models_without_a_size_are_left_out_by_name():
    catalog, (scale, _) = planted_catalog(), planted_scale(2)
    reference = joint_reference(catalog, scale=scale)
    whole = joint_densities(catalog, reference)
    assert not any("parameter count" in note.message for note in whole.notes)
    lost = whole.table["model"].iloc[-1]
    sizes = catalog.models["params_total_b"].mask(catalog.models["model"].eq(lost))
    part = joint_densities(replace(catalog, models=catalog.models.assign(params_total_b=sizes)), reference)
    (note,) = (note for note in part.notes if "parameter count" in note.message)
    assert lost in note.message and set(whole.table["model"]) - set(part.table["model"]) == {lost}


def test_families_that_are_left_out_make_the_reference_less_certain_as_their_number_says():
    catalog, (scale, _) = planted_catalog(), planted_scale(2)
    result = joint_densities(catalog, joint_reference(catalog, scale=scale))
    table = reference_by_families(catalog, result, parts=(0.5, 1.0), further=(2.0,), resamples=2)
    assert table["families"].tolist() == [6, 12, 24] and table["projected"].tolist() == [False, False, True]
    # A line in one over the number of families, for every model, through both; means over the models inside.
    first, second, third = table["sd"] ** 2
    slope = (first - second) / (1 / 6 - 1 / 12)
    assert third == pytest.approx(second + slope * (1 / 24 - 1 / 12), rel=0.2)
    inside = result.table["bound"].eq("").to_numpy()
    assert second == pytest.approx(result.law_draws[:, inside].var(axis=0).mean(), rel=1e-6)
    law, measured = (each[:, inside].var(axis=0) for each in (result.law_draws, result.draws))
    assert table["share_measured"][1] == pytest.approx((law / np.maximum(measured, law)).mean(), rel=1e-6)
    assert (table["share_recipe"] <= table["share_measured"]).all()

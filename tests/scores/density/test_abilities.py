"""Densities on the joint scale of the embedded catalog, and of a user's own models among them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

import densing
from densing.core import InputError
from densing.scores.density import catalog_densities
from densing.scores.density.abilities import held_densities
from densing.scores.density.inversion import TABLE_COLUMNS
from densing.scores.joint import joint_cells


@pytest.fixture(scope="module")
def catalog():
    return densing.load_catalog()


@pytest.fixture(scope="module")
def joint(catalog):
    return densing.catalog_densities(catalog, densing.load_reference("joint", catalog=catalog))


def test_columns_are_those_of_every_ruler_and_two_more(joint):
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
    ruler = joint.reference
    active = catalog_densities(catalog, ruler, denominator="active").table.set_index("model")["density"]
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


def test_ranks_on_the_joint_scale_are_those_of_the_family_rulers(catalog, joint):
    mmlu = densing.catalog_densities(catalog, densing.load_reference("qwen1.5", "mmlu")).table
    knowledge = densing.catalog_densities(catalog, densing.load_reference("joint", "knowledge", catalog=catalog)).table
    both = mmlu[mmlu["status"].eq("ok")].merge(knowledge[knowledge["status"].eq("ok")], on="model")
    assert len(both) > 80
    assert both["density_x"].corr(both["density_y"], method="spearman") > 0.9


def test_vendors_own_figures_bring_models_that_nobody_else_measured(catalog, joint):
    # A second fit of the whole catalog would say no more: which cells enter is what the word decides.
    more = set(joint_cells(catalog, own_vendors=True).table["model"]) - set(joint.table["model"])
    assert {"Granite-4.1-8B-Base", "Hunyuan-7B-Pretrain"} <= more
    assert "vendors' own figures included" in densing.Selection(vendors=True).describe()


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

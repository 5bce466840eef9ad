"""The joint scale: what it must not depend on, what it must find, and what it says when it cannot."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit, logit
from scipy.stats import spearmanr

from densing.core import InputError, Note, UnknownNameError
from densing.scores.joint import scale as joint
from densing.scores.joint.cells import Cells, toy_cells
from densing.scores.joint.scale import GENERAL, Basket, JointDraws, JointScale, fit_joint, joint_baskets
from tests.support.frozen import changeable
from tests.support.joint_worlds import cells_of, plain_world

SHORT = {"chains": 1, "sweeps": 80, "burn": 60, "draws": 80}
LEAST = {"chains": 1, "sweeps": 24, "burn": 24, "draws": 24}
"""For what stands far apart."""
TWO_SHORT = {"chains": 2, "sweeps": 40, "burn": 20, "draws": 41}
OFFSETS = {"high": 0.4, "low": -0.4, "middle": 0.0}


@pytest.fixture(scope="module")
def world() -> JointScale:
    """Three evaluators 0.4 logits apart, everything measured by all."""
    return fit_joint(plain_world(OFFSETS).cells, **SHORT)


def test_offsets_of_evaluators_are_recovered(world: JointScale) -> None:
    table = world.offsets()
    assert len(table) == 18 and (table["lo"] <= table["offset"]).all() and (table["offset"] <= table["hi"]).all()
    mean = table.groupby("evaluator")["offset"].mean()
    # At shares near one half a logit is worth .97 / 4; the mean ability is 0, difficulties lie in ±.6.
    share = expit(np.linspace(-0.6, 0.6, 6))
    between = 0.97 * (expit(np.linspace(-0.6, 0.6, 6) + 0.8) - share).mean() * 0.97
    assert mean["high"] - mean["low"] == pytest.approx(between, abs=0.02)
    assert mean["low"] < mean["middle"] < mean["high"]
    truth = table["evaluator"].map(OFFSETS)
    gap = 0.97 * (expit(truth) - 0.5)
    assert ((table["lo"] - 0.02 <= gap) & (gap <= table["hi"] + 0.02)).mean() > 0.9


def test_abilities_come_in_order_and_in_logits(world: JointScale) -> None:
    table = world.abilities()
    truth = np.linspace(-1.5, 1.5, 30)
    assert spearmanr(table["ability"], truth).statistic > 0.99
    # Slope 1: an ability is the logit of what an average evaluator would measure.
    slope = np.polyfit(truth, table["ability"], 1)[0]
    assert slope == pytest.approx(1.0, abs=0.08)
    assert (table["cells"] == 18).all() and (table["sd"] > 0).all()
    wider = world.abilities(level=0.99)
    assert (wider["hi"] - wider["lo"] > table["hi"] - table["lo"]).all()


@pytest.fixture(scope="module")
def pooled() -> JointScale:
    """Two short chains of the toy."""
    return fit_joint(toy_cells(), **TWO_SHORT)


def test_chains_in_processes_are_those_in_turn(pooled: JointScale, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("densing.scores.joint.scale.SMALL", 0)
    shares: list[float] = []
    again = fit_joint(
        toy_cells(), chains=2, sweeps=40, burn=20, draws=41, step=lambda label, share: shares.append(share)
    )
    for item in fields(JointDraws):
        assert np.array_equal(getattr(again.draws, item.name), getattr(pooled.draws, item.name)), item.name
    assert shares == sorted(shares) and shares[-1] <= 1


def test_draws_take_turns_between_chains(pooled: JointScale) -> None:
    one = fit_joint(toy_cells(), chains=1, sweeps=40, burn=20, draws=21)
    assert np.array_equal(pooled.draws.abilities[::2], one.draws.abilities)
    assert not np.isin(pooled.draws.abilities[1::2], one.draws.abilities).any()
    assert len(pooled.ability()) == 41


def test_convergence_sees_chains_that_stay_apart(pooled: JointScale) -> None:
    rng = np.random.default_rng(0)
    count, models, width = 4000, *pooled.draws.abilities.shape[1:]
    loadings = np.tile(pooled.draws.benchmarks[:1], (count, 1, 1))
    abilities = rng.standard_normal((count, models, width))
    together = replace(pooled, draws=replace(pooled.draws, benchmarks=loadings, abilities=abilities))
    table = joint._convergence(together, 2)
    assert list(table.columns) == ["basket", "model", "r_hat", "ess"] and len(table) == 5 * models
    assert table["r_hat"].iloc[0] == table["r_hat"].max() < 1.01
    assert table["ess"].between(3000, 5000).all()
    # The second of two chains has one model stronger: it leads the table, and no other is blamed.
    step = np.zeros((count, models, width))
    step[count // 2 :, 3] = 2.0
    shifted = replace(together, draws=replace(together.draws, abilities=abilities + step))
    apart = joint._convergence(shifted, 2)
    assert set(apart[apart["r_hat"] > 1.05]["model"]) == {"m3"} and apart["ess"].iloc[0] < 100


def test_convergence_is_that_of_every_sweep_and_not_of_the_draws_kept() -> None:
    few, many = (fit_joint(toy_cells(), chains=2, sweeps=12, burn=8, draws=draws) for draws in (4, 24))
    pd.testing.assert_frame_equal(few.convergence, many.convergence)


def test_chains_that_disagree_are_a_warning_then_an_error_and_chains_that_agree_nothing(pooled: JointScale) -> None:
    def verdict(basket: str = GENERAL, **r_hats: float) -> Note | None:
        rows = [(basket, "m3", r_hats[basket], 30.0) for basket in r_hats]
        table = pd.DataFrame(rows, columns=["basket", "model", "r_hat", "ess"]).sort_values("r_hat", ascending=False)
        return replace(pooled, convergence=table.reset_index(drop=True)).not_mixed(basket)

    assert verdict(general=1.05, code=1.04) is None
    note = verdict(general=1.06, code=1.19)
    assert note is not None and note.severity == "warning" and note.code == "not-mixed"
    assert "disagree on 2 of 2 abilities: R-hat is 1.19 for code of m3, and 1.05 is wanted" in note.message
    assert note.details == {"r_hat": 1.19, "ess": 30.0, "doubtful": 2}
    error, elsewhere, shown = verdict(general=1.21), verdict(general=1.0, code=1.3), verdict("code", code=1.3)
    assert error is not None and error.severity == "error"
    # Of a skill that nobody asked for a warning is enough; shown, it is an error.
    assert elsewhere is not None and elsewhere.severity == "warning"
    assert shown is not None and shown.severity == "error"


def test_a_scale_carries_the_verdict_on_its_chains(pooled: JointScale) -> None:
    verdict = pooled.not_mixed()
    assert verdict is not None and [note for note in pooled.notes if note.code == "not-mixed"] == [verdict]
    worst, fewest = pooled.convergence["r_hat"].max(), pooled.convergence["ess"].min()
    assert f"worst R-hat {worst:.2f}" in pooled.agreement and pooled.agreement.endswith("of 80 sweeps")
    assert f"fewest effective draws {fewest:.0f}" in pooled.agreement


def test_a_handful_of_sweeps_has_no_r_hat() -> None:
    scale = fit_joint(toy_cells(), chains=2, sweeps=7, burn=5, draws=14)
    assert scale.convergence["r_hat"].isna().all() and "not-mixed" not in {note.code for note in scale.notes}


def test_order_of_rows_changes_nothing() -> None:
    cells = toy_cells()
    shuffled = replace(cells, table=cells.table.sample(frac=1, random_state=3).reset_index(drop=True))
    one, other = (fit_joint(table, **LEAST) for table in (cells, shuffled))
    assert one.models.tolist() == other.models.tolist()
    # The same posterior; numbers drawn differ where cells stand elsewhere.
    first, second = one.abilities(), other.abilities()
    assert (np.abs(first["ability"] - second["ability"]) / first["sd"]).median() < 1.0


def test_hostile_names_are_names() -> None:
    cells = toy_cells()
    names = {
        f"m{m}": name
        for m, name in enumerate(["", "a,b", "@", "x@y", "[bold]", "\u202eevil", "0", "nan", "é" * 300, "="])
    }
    renamed = replace(cells, table=cells.table.assign(model=cells.table["model"].map(names)))
    scale = fit_joint(renamed, **LEAST)
    table = scale.abilities().set_index("model")["ability"]
    assert set(table.index) == set(names.values()) and table[names["m0"]] < table[names["m9"]]
    assert "Joint scale of 10 models" in repr(scale)


def test_baskets_weigh_skills_alike_and_benchmarks_within(pooled: JointScale) -> None:
    scale = pooled
    general = scale.basket(GENERAL)
    assert sum(general.weights.values()) == pytest.approx(1) and sum(general.traits.values()) == pytest.approx(1)
    # Six benchmarks, b0 and b4 of knowledge, b1 and b5 of reasoning, one of mathematics and of code.
    assert general.weights["b2"] == pytest.approx(0.25) and general.weights["b0"] == pytest.approx(0.125)
    parts = [scale.ability(skill) for skill in ("knowledge", "reasoning", "mathematics", "code")]
    assert scale.ability(GENERAL) == pytest.approx(np.mean(parts, axis=0), abs=1e-5)
    assert scale.ability(Basket("mine", {"b2": 1.0}, {"mathematics": 1.0})) == pytest.approx(parts[2], abs=1e-5)
    with pytest.raises(UnknownNameError, match="basket of the joint scale"):
        scale.ability("cooking")


def test_the_headlines_basket_is_named_and_what_its_rule_gives(embedded_scale: JointScale) -> None:
    # The headline is an ability over these benchmarks with these weights. A catalog that changes them changes what is
    # measured: look at the headline before this list follows.
    named = {
        **dict.fromkeys(
            ("arc_challenge", "gpqa", "life_in_the_uk", "mmlu", "mmlu_pro", "openbookqa", "triviaqa"), 1 / 28
        ),
        "bbh": 1 / 4,
        **dict.fromkeys(("gsm8k", "math", "math_lvl5"), 1 / 12),
        **dict.fromkeys(("humaneval", "mbpp"), 1 / 8),
    }
    general = embedded_scale.basket(GENERAL)
    assert dict(general.weights) == pytest.approx(named)
    # By the rule, counted by hand: English, one of four skills, measured on a tenth of the models; skills weigh alike.
    cells = embedded_scale.cells.table.to_dict("records")
    took: dict[str, set[str]] = {}
    skill = {}
    for cell in cells:
        took.setdefault(cell["benchmark"], set()).add(cell["model"])
        if cell["language"] == "en" and cell["skill"] in ("knowledge", "reasoning", "mathematics", "code"):
            skill[cell["benchmark"]] = cell["skill"]
    often = [name for name in skill if 10 * len(took[name]) >= len({cell["model"] for cell in cells})]
    alike = [skill[name] for name in often]
    assert {name: 1 / 4 / alike.count(skill[name]) for name in often} == pytest.approx(named)


def test_a_skill_measured_on_few_keeps_its_benchmarks_and_other_languages_have_baskets_of_their_own() -> None:
    cells = toy_cells(30, 6)
    rare = cells.table[(cells.table["benchmark"] == "b2") & cells.table["model"].isin(["m0", "m1"])]
    abroad = cells.table[cells.table["benchmark"] == "b0"].assign(benchmark="b9", language="de")
    few_more = cells.table[cells.table["benchmark"].eq("b1") & cells.table["model"].eq("m3")]
    few_more = few_more.assign(benchmark="b8")
    table = pd.concat([cells.table[cells.table["benchmark"] != "b2"], rare, abroad, few_more])
    table["test"] = table["benchmark"] + "@" + table["evaluator"]
    baskets = joint_baskets(replace(cells, table=table))
    # b2, of two models in thirty, is all there is of mathematics; b8, of one, stands beside two of reasoning.
    assert dict(baskets["mathematics"].weights) == {"b2": 1.0}
    assert dict(baskets["reasoning"].weights) == {"b1": 0.5, "b5": 0.5}
    assert dict(baskets["de"].weights) == dict(baskets["multilingual"].weights) == {"b9": 1.0}
    assert "b9" not in baskets[GENERAL].weights and baskets[GENERAL].weights["b2"] == pytest.approx(0.25)


def test_predictions_carry_the_noise_of_a_measurement(world: JointScale) -> None:
    scale, table = world, world.cells.table
    draws = scale.predict(table)
    low, high = np.quantile(draws, [0.025, 0.975], axis=0)
    assert ((low <= table["score"]) & (table["score"] <= high)).mean() > 0.93
    coarse = scale.predict(table.assign(se=0.1))
    assert coarse.std(axis=0).mean() > 0.1 > draws.std(axis=0).mean()
    assert np.array_equal(scale.predict(table, seed=1), scale.predict(table, seed=1))
    with pytest.raises(UnknownNameError, match="nobody"):
        scale.predict(table.assign(model="nobody"))


def test_a_model_without_a_skill_is_less_known_on_it_where_models_have_skills_of_their_own() -> None:
    def apart(own: float) -> tuple[float, JointScale]:
        """How much less m7 is known in code without a score there, where own is what models have of each skill."""
        cells = toy_cells(14, 12)
        table = cells.table
        skill = pd.MultiIndex.from_frame(table[["model", "skill"]]).factorize()[0]
        shift = own * np.random.default_rng(1).standard_normal(skill.max() + 1)[skill]
        table = table.assign(score=expit(logit(table["score"].to_numpy()) + shift))
        hidden = table["model"].eq("m7") & table["skill"].eq("code")
        scale = fit_joint(replace(cells, table=table[~hidden].reset_index(drop=True)), **SHORT)
        sd = scale.abilities("code").set_index("model")["sd"]
        return float(sd["m7"] / sd.drop("m7").median()), scale

    wider, scale = apart(0.4)
    table = scale.abilities("code").set_index("model")
    assert wider > 1.5 and apart(0.0)[0] < 1.3
    assert table.loc["m7", "traits"] == 0 and table.loc["m6", "traits"] == 1
    assert table.loc["m2", "ability"] < table.loc["m7", "ability"] < table.loc["m12", "ability"]


@pytest.mark.parametrize(("score", "end"), [(0.0, "floor"), (1.0, "ceiling")])
def test_all_at_one_end_is_refused_instead_of_ranked(score: float, end: str) -> None:
    flat = replace(toy_cells(), table=toy_cells().table.assign(score=score))
    with pytest.raises(
        InputError, match=f"all 90 scores are at the {end} of their tests, so they cannot distinguish models"
    ):
        fit_joint(flat, **SHORT)


def test_models_that_score_alike_are_alike() -> None:
    flat = replace(toy_cells(), table=toy_cells().table.assign(score=0.5))
    table = fit_joint(flat, **LEAST).abilities()
    assert table["lo"].max() < table["ability"].median() < table["hi"].min()


def test_one_model_at_the_floor_has_an_interval_that_is_open_downwards() -> None:
    cells = toy_cells()
    mine = cells.table["model"].eq("m4")
    scale = fit_joint(replace(cells, table=cells.table.assign(score=cells.table["score"].mask(mine, 0.0))), **LEAST)
    table = scale.abilities().set_index("model")
    assert np.isfinite(table.to_numpy(dtype=float)).all() and table["ability"].idxmin() == "m4"
    below, above = (
        table.loc["m4", "ability"] - table.loc["m4", "lo"],
        table.loc["m4", "hi"] - table.loc["m4", "ability"],
    )
    assert below > above and table.loc["m4", "sd"] > 2 * table["sd"].drop("m4").median()


def test_one_evaluator_has_no_offsets() -> None:
    rows = toy_cells().table.query("evaluator == 'first'")
    assert fit_joint(Cells(rows, toy_cells().dropped), chains=1, sweeps=12, burn=8, draws=12).offsets().empty


def test_options_and_cells_that_make_no_chain_are_refused() -> None:
    cells = toy_cells()
    for options in ({"draws": 3}, {"draws": 41, "sweeps": 10}, {"chains": 0}, {"burn": -1}):
        with pytest.raises(InputError, match="draws lie between"):
            fit_joint(cells, **options)
    with pytest.raises(InputError, match="1 model cannot be compared"):
        fit_joint(replace(cells, table=cells.table.query("model == 'm1'")))


def test_the_smallest_table_has_a_scale() -> None:
    rows = pd.DataFrame({"model": ["a", "b"], "benchmark": "x", "evaluator": "e", "score": [0.2, 0.8], "se": 0.01})
    table = fit_joint(cells_of(rows), **LEAST).abilities().set_index("model")
    assert table.loc["a", "ability"] < table.loc["b", "ability"]


def test_no_result_can_be_changed_by_who_reads_it() -> None:
    assert changeable("densing.scores.joint") == {"Moves"}, "counted as a chain goes"

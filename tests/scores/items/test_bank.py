"""Banks: whether intervals hold in worlds with planted scores, and what is said where a bank has no answer."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.special import expit

from densing.core import Array, ArtefactError, InputError, TableError, UnknownNameError
from densing.scores.items import AnswerTable, ItemBank, calibrate_items, read_answers
from densing.scores.items.bank import LOOKS
from tests.support.explained_items import explained_run

MODELS, ITEMS, MANY, LATER = 80, 200, 400, 60


def world(kind: str, seed: int, models: int = MODELS + LATER, items: int = ITEMS) -> Array:
    """Answers of models in the order of their dates: as fitted, guessed, drifting, of two skills, or by chance."""
    rng = np.random.default_rng(seed)
    slope, difficulty = rng.lognormal(0.3, 0.4, items), rng.normal(0, 1.2, items)
    date = np.arange(models) / models
    ability = rng.normal(0, 1, models) + date
    logits = slope * (ability[:, None] - difficulty)
    if kind == "drift":
        # The items that tell most become easier for newer models by more than ability says, as if they had leaked.
        logits += 3.0 * date[:, None] * (slope > np.median(slope))
    if kind == "skills":
        second = rng.random(items) < 0.5
        logits[:, second] = (slope * (rng.normal(0, 1, models)[:, None] - difficulty))[:, second]
    p = expit(logits)
    if kind == "guessing":
        p = 0.25 + 0.75 * p
    if kind == "null":
        p = np.full_like(p, 0.5)
    return (rng.random(p.shape) < p).astype(float)


def table_of(answers: Array) -> AnswerTable:
    frame = pd.DataFrame(answers, [f"m{i}" for i in range(len(answers))], [f"q{j}" for j in range(answers.shape[1])])
    released = pd.Series(pd.date_range("2024-01-01", periods=len(frame), freq="7D"), frame.index)
    return AnswerTable(frame, released, pd.DataFrame({"task": "t", "text_hash": ""}, frame.columns))


def tried(kind: str, seed: int, count: int, items: int = ITEMS, **options: Any) -> tuple[float, float, float]:
    """Return the mean absolute error and the bias in points, and the share of intervals that hold, on later models."""
    answers = world(kind, seed, items=items)
    # Which slopes are better is not in question here, and takes a second set of fits to know.
    bank = calibrate_items(table_of(answers[:MODELS]), slopes="each")
    errors, held = [], []
    for at, row in enumerate(answers[MODELS:]):
        known = dict(zip(bank.items["item"], row, strict=True))
        for repeat in range(3):
            if options.get("chosen") == "adaptive":
                if repeat:
                    break
                told: dict[str, float] = {}
                for _ in range(count):
                    told |= {item: known[item] for item in bank.next(told)}
            else:
                told = {
                    item: known[item]
                    for item in bank.choose(count, chosen=options.get("chosen", "stratified"), seed=97 * at + repeat)
                }
            score = bank.estimate(told, **options)
            errors.append(100 * (score.score - row.mean()))
            held.append(score.lo <= row.mean() <= score.hi)
    return float(np.abs(errors).mean()), float(np.mean(errors)), float(np.mean(held))


# Of 180 intervals at 95 % between 89 and 99.5 % hold with a chance of .999; the models are drawn once.
@pytest.mark.parametrize("kind", ["as fitted", "guessing", "drift", "skills", "null"])
def test_intervals_of_stratified_items_hold_whatever_the_world(kind: str) -> None:
    error, bias, held = tried(kind, 11, 60)
    assert 0.89 <= held <= 0.995
    # Residuals correct the curves: no bias beyond four standard errors of the mean of 180 draws.
    assert abs(bias) < 4 * 1.25 * error / math.sqrt(180)
    if kind == "null":
        # Where there is nothing to know, the curves do no harm: the error is that of a mean of 60 of 200 coins.
        coins = 100 * math.sqrt(2 / math.pi * 0.25 / 60 * (1 - 60 / ITEMS))
        assert error < 1.15 * coins


def test_the_control_variate_narrows_the_error() -> None:
    plain, _, held = tried("as fitted", 3, 60, chosen="random", control=False)
    helped, *_ = tried("as fitted", 3, 60, chosen="random")
    # Of a variance of .24 the curves leave .15: the error should be .79 of the mean's, give or take .07 in 180 draws.
    assert helped < 0.93 * plain and 0.89 <= held <= 0.995


@pytest.mark.slow
def test_adaptive_items_tell_more_and_their_intervals_are_calibrated() -> None:
    adaptive, _, held = tried("as fitted", 3, 40, MANY, chosen="adaptive")
    assert adaptive < tried("as fitted", 3, 40, MANY)[0] and held >= 0.88


@pytest.mark.slow
def test_adaptive_scores_are_biased_where_items_drift_and_stratified_ones_are_not() -> None:
    error, bias, _ = tried("drift", 5, 40, MANY, chosen="adaptive")
    sampled_error, sampled_bias, held = tried("drift", 5, 40, MANY)
    assert abs(bias) > 0.7 * error and abs(bias) > 3 * abs(sampled_bias)
    assert abs(sampled_bias) < 4 * 1.25 * sampled_error / math.sqrt(180) and held >= 0.89


def test_drifting_items_are_found() -> None:
    steady = world("as fitted", 5)
    leaked = steady.copy()
    # From the middle date on every model knows the answers of ten items that half of the earlier ones solve.
    half = len(leaked) // 2
    ten = np.abs(steady[:half].mean(0) - 0.5).argsort()[:10]
    leaked[half:, ten] = 1.0
    z = [calibrate_items(table_of(answers), slopes="each").items["drift_z"].to_numpy() for answers in (steady, leaked)]
    assert 0.85 < np.nanstd(z[0]) < 1.15 and abs(np.nanmean(z[0])) < 0.2
    # Also where newer models are abler, which is no drift.
    abler = steady[(steady.mean(1) + np.random.default_rng(1).normal(0, 0.1, len(steady))).argsort()]
    assert 0.85 < np.nanstd(calibrate_items(table_of(abler), slopes="each").items["drift_z"]) < 1.15
    assert (z[1][ten] > 2.5).all() and np.nanstd(np.delete(z[1], ten)) < 1.3


def test_slopes_are_those_that_predict_other_models_better() -> None:
    rng = np.random.default_rng(6)
    kinds = {}
    for kind, slope in (("each", rng.lognormal(0.2, 0.9, MANY)), ("common", np.full(MANY, 1.3))):
        logits = slope * (rng.normal(0, 1, (60, 1)) - rng.normal(0, 1, MANY))
        bank = calibrate_items((rng.random(logits.shape) < expit(logits)).astype(float))
        kinds[kind] = bank.slopes
        assert (np.ptp(bank.slope) < 1e-9) == (bank.slopes == "common")
    assert kinds == {"each": "each", "common": "common"}


def test_a_full_bank_gives_the_score_itself() -> None:
    answers = world("as fitted", 1, items=50)
    bank = calibrate_items(table_of(answers[:MODELS]))
    score = bank.estimate(answers[-1])
    assert score.score == pytest.approx(answers[-1].mean()) and score.hi - score.lo < 1e-6


@pytest.fixture(scope="module")
def bank() -> ItemBank:
    return ItemBank.load("ikp")


def test_flawed_items_are_named() -> None:
    answers = world("as fitted", 2, items=100)
    answers[:, 0], answers[:, 1] = 0.0, 1.0
    answers[:, 2] = (np.random.default_rng(0).random(len(answers)) < 0.5) & (answers.mean(1) < 0.5)
    answers[:, 4] = answers[:, 3]
    table = table_of(answers)
    # Solved by the ablest and the least able models alone.
    rank = answers.mean(1).argsort().argsort() / len(answers)
    table.answers["q5"] = ((rank < 0.3) | (rank > 0.7)).astype(float)
    table.items.loc["q7", "text_hash"] = table.items.loc["q6", "text_hash"] = "same"
    flags = calibrate_items(table).items.set_index("item")["flag"]
    named = {"q0": "none_right", "q1": "all_right", "q2": "not_discriminating", "q3": "", "q4": "duplicate",
             "q5": "misfit", "q6": "", "q7": "duplicate"}  # fmt: skip
    assert flags[list(named)].to_dict() == named
    assert flags.iloc[8:].ne("").sum() <= 6


def test_the_null_has_no_false_alarms() -> None:
    flags = calibrate_items(table_of(world("as fitted", 21))).items["flag"]
    assert flags.isin(["misfit", "drift", "duplicate"]).mean() < 0.02


def test_every_beginning_of_stratified_items_is_spread_over_difficulty(bank: ItemBank) -> None:
    chosen = bank.choose(100, seed=4)
    place = {item: at for at, item in enumerate(bank.items["item"].to_numpy()[bank._order])}

    def uneven(items: list[str]) -> float:
        """The most by which items up to some difficulty are more, or fewer, than their share."""
        up_to = np.sort([place[item] for item in items]) / len(bank) * len(items)
        return float(np.abs(up_to - np.arange(len(items)) - 0.5).max())

    for count in (10, 30, 64, 100):
        assert uneven(chosen[:count]) < 2.5
    assert uneven(bank.choose(100, chosen="random", seed=4)) > 4
    # No item comes early more often than others.
    few = bank.of_items(bank.items["item"][:37])
    times = pd.Series([item for seed in range(600) for item in few.choose(9, seed=seed)]).value_counts()
    assert len(times) == 37 and stats.chisquare(times).pvalue > 0.001
    assert bank.choose(30, seed=4) == chosen[:30] and set(bank.choose(len(bank))) == set(bank.items["item"])
    assert chosen == bank.choose(100, seed=4) != bank.choose(100, seed=5)


def test_the_next_item_is_the_most_informative_at_the_ability_so_far(bank: ItemBank) -> None:
    told: dict[str, float] = {}
    for answer in (1.0, 1.0, 0.0):
        (item,) = bank.next(told)
        told[item] = answer
    ability = bank.estimate(told).ability
    p = expit(bank.slope * ability + bank.intercept)
    information = pd.Series(bank.slope**2 * p * (1 - p), bank.items["item"])
    assert bank.next(told) == [information[~information.index.isin(told)].idxmax()]
    assert not set(bank.next({}, len(bank))) & set(bank.items["item"][bank.items["flag"].isin(["none_right"])])


def test_a_model_beyond_all_calibrated_ones_has_a_limit(bank: ItemBank) -> None:
    best = bank.estimate(dict.fromkeys(bank.choose(60), 1.0))
    assert best.status == "above_range" and "lower limit" in best.sentence and best.score > 0.9
    for answer, status in ((1.0, "above_range"), (0.0, "below_range")):
        told: dict[str, float] = {}
        for _ in range(30):
            told |= dict.fromkeys(bank.next(told), answer)
        limit = bank.estimate(told, chosen="adaptive")
        assert limit.status == status and (limit.hi if answer else limit.lo) == answer


def test_fewer_than_ten_items_have_a_binomial_interval(bank: ItemBank) -> None:
    score = bank.estimate(dict.fromkeys(bank.choose(9), 1.0))
    # Nothing wrong in nine: the lower end is .025^(1/9).
    assert score.status == "few_items" and (score.score, score.hi) == (1.0, 1.0)
    assert score.lo == pytest.approx(0.025 ** (1 / 9)) and "answer 10 or more" in score.sentence


def test_items_with_other_texts_are_left_out_and_named() -> None:
    table = table_of(world("as fitted", 1, items=50))
    table.items["text_hash"] = [f"h{at}" for at in range(50)]
    bank = calibrate_items(table)
    rows = pd.DataFrame({"item": bank.choose(40), "answer": 1.0})
    rows["text_hash"] = bank.items.set_index("item").loc[rows["item"], "text_hash"].to_numpy()
    assert bank.estimate(rows).items == 40
    rows.loc[:4, "text_hash"] = "other"
    score = bank.estimate(rows)
    assert score.items == 35 and [note.code for note in score.notes] == ["other-texts"]
    assert "5 items with other texts" in score.notes[0].message


def test_what_cannot_be_estimated_says_why(bank: ItemBank) -> None:
    item = bank.choose(1)[0]
    cases: list[tuple[type[Exception], str, Any, dict[str, Any]]] = [
        (TableError, "1.5 is not between 0 and 1", {item: 1.5}, {}),
        (TableError, "'x' is not between 0 and 1", {item: "x"}, {}),
        (UnknownNameError, "unknown item of the bank 'IKP_T9'", {"IKP_T9": 1.0}, {}),
        (InputError, "no answers", {}, {}),
        (InputError, "the bank has 1311 items, in its order", np.ones(7), {}),
        (InputError, "calibrated up to 100", dict.fromkeys(bank.choose(120), 1.0), {"chosen": "adaptive"}),
        (InputError, "adaptive items need the curves", {item: 1.0}, {"chosen": "adaptive", "control": False}),
        (InputError, "write stratified, random or adaptive", {item: 1.0}, {"chosen": "best"}),
        (InputError, "a share between 0 and 1", {item: 1.0}, {"level": 95}),
    ]
    for kind, message, answers, options in cases:
        with pytest.raises(kind, match=message):
            bank.estimate(answers, **options)
    with pytest.raises(InputError, match="5 models: a bank is calibrated on 20 or more"):
        calibrate_items(np.ones((5, 50)))


def test_a_bank_comes_back_from_its_file(tmp_path: Path) -> None:
    bank = calibrate_items(table_of(world("as fitted", 1, 60, 40)), name="mine", source="me", licence="CC0")
    again = ItemBank.load(bank.save(tmp_path / "bank.json"))
    answers = dict.fromkeys(bank.choose(20, seed=1)[:12], 1.0) | dict.fromkeys(bank.choose(20, seed=1)[12:], 0.0)
    first, second = bank.estimate(answers), again.estimate(answers)
    assert (second.score, second.lo, second.hi) == (first.score, first.lo, first.hi)
    assert again.choose(20, seed=3) == bank.choose(20, seed=3) and again.corrections == bank.corrections
    pd.testing.assert_frame_equal(again.models, bank.models, check_dtype=False)
    assert (again.name, again.licence, "CC0" in repr(again)) == ("mine", "CC0", True)
    content = json.loads((tmp_path / "bank.json").read_text())
    for damage, message in (
        ({"schema": "x"}, "not a bank of items"),
        ({"schema_version": 9}, "a bank of version 9, not 1"),
        ({"models": 3}, r"\$\.models: 3"),
        ({"items": {**content["items"], "task": ["t"]}}, "columns of different lengths"),
    ):
        (tmp_path / "bad.json").write_text(json.dumps({**content, **damage}))
        with pytest.raises(ArtefactError, match=message):
            ItemBank.load(tmp_path / "bad.json")


def test_the_shipped_bank_is_that_of_its_source(bank: ItemBank) -> None:
    assert len(bank) == 1311 and len(bank.models) == (bank.models["answers"] >= 1000).sum() > 160
    assert bank.licence.startswith("CC BY 4.0") and "Bojie Li" in bank.source
    assert [each.items for each in bank.corrections] == list(LOOKS)


def test_tables_of_any_form_give_the_same_answers(tmp_path: Path) -> None:
    frame = table_of(world("as fitted", 1, 5, 6)).answers
    frame.index.name = "model"
    long = frame.reset_index().melt("model", var_name="item", value_name="correct")
    frame.to_csv(tmp_path / "wide.csv")
    long.to_csv(tmp_path / "long.csv", index=False)
    long.to_parquet(tmp_path / "long.parquet")
    for source in (frame, long, tmp_path / "wide.csv", tmp_path / "long.csv", tmp_path / "long.parquet"):
        found = read_answers(source).answers
        assert found.loc[frame.index, frame.columns].to_numpy().tolist() == frame.to_numpy().tolist()
    assert read_answers(frame.iloc[:2], frame.iloc[2:]).answers.shape == (5, 6)
    with pytest.raises(InputError, match="are there twice, first item 'q0' of model 'm0'"):
        read_answers(frame, frame)
    with pytest.raises(TableError, match="no column answer"):
        read_answers([{"model": "a", "item": "x", "score": 1}])
    with pytest.raises(TableError, match="row 2, column released: 'soon' is not a date"):
        read_answers([{"model": "a", "item": "x", "answer": 1, "released": "soon"}])


def test_runs_of_densing_eval_are_answers(tmp_path: Path) -> None:
    run = explained_run(tmp_path / "run", items=30)
    table = read_answers(run)
    assert sorted(table.answers.index) == ["strong", "weak"] and table.answers.shape == (2, 30)
    assert table.answers.loc["strong"].mean() > table.answers.loc["weak"].mean()
    assert table.items.loc["toy/0", "task"] == "toy" and table.items["text_hash"].nunique() == 30
    others = np.random.default_rng(0).random((25, 30)).round()
    bank = calibrate_items(run, pd.DataFrame(others, [f"m{i}" for i in range(25)], table.answers.columns))
    assert bank.estimate(run, model="weak").score == pytest.approx(table.answers.loc["weak"].mean())
    with pytest.raises(InputError, match="answers of 2 models"):
        bank.estimate(run)

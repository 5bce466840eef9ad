"""From answers to a hundred items of a bank to a density: against the score on all items, and what is left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

import densing
from densing.core.errors import InputError
from densing.scores.density import BankLook, BankRule, bank_measurements, choose_items
from densing.scores.density.stopping import TOLERATED_MISS
from densing.scores.items import AnswerTable, ItemBank, calibrate_items
from tests.support.command import answer
from tests.support.command import densing as command

TASKS = {"olmo_ladder_piqa": 300, "olmo_ladder_csqa": 150}
MODELS, LATER = 60, 40


def planted(seed: int = 0) -> tuple[ItemBank, pd.DataFrame]:
    """A bank of two tasks of the suite, and later models' answers: guessing, and easier items of the second skill."""
    rng = np.random.default_rng(seed)
    names = [f"{task}/{at}" for task, count in TASKS.items() for at in range(count)]
    task = np.repeat(list(TASKS), list(TASKS.values()))
    ability, second = rng.normal(0.3, 1, (2, MODELS + LATER))
    difficulty, slope = rng.normal(0, 1, len(names)), rng.lognormal(0.2, 0.3, len(names))
    skill = np.where(task == "olmo_ladder_csqa", 0.6 * ability[:, None] + 0.6 * second[:, None], ability[:, None])
    share = 0.25 + 0.75 * expit(slope * (skill - difficulty))
    table = pd.DataFrame((rng.random(share.shape) < share) * 1.0, [f"m{i}" for i in range(len(share))], names)
    items = pd.DataFrame({"task": task, "text_hash": ""}, names)
    early = table.iloc[:MODELS]
    answers = AnswerTable(early, pd.Series(pd.NaT, early.index), items)
    return calibrate_items(answers, name="suite", slopes="common"), table.iloc[MODELS:]


@pytest.fixture(scope="module")
def suite() -> tuple[ItemBank, pd.DataFrame]:
    return planted()


def test_scores_by_benchmark_hold_the_score_on_all_items(suite: tuple[ItemBank, pd.DataFrame]) -> None:
    bank, later = suite
    labels = bank.items["task"]
    held, errors = [], []
    for at, (_, row) in enumerate(later.iterrows()):
        for repeat in range(2):
            items = choose_items(bank, 100, seed=2 * at + repeat)
            parts = bank.estimate_parts(row[items], labels)
            assert parts["answered"].tolist() == [50, 50]
            truth = row.groupby(labels.to_numpy()).mean()[parts.index]
            miss = (parts["score"] - truth).to_numpy()
            held.append(np.abs(miss) <= 1.99 * parts["error"].to_numpy())
            errors.append(miss)
    assert 0.92 <= np.mean(held) <= 0.985
    assert np.abs(np.mean(errors, axis=0)).max() < 0.01


def test_all_items_give_what_a_full_evaluation_gives(suite: tuple[ItemBank, pd.DataFrame]) -> None:
    bank, later = suite
    row = later.iloc[0]
    measured = bank_measurements(bank, row, params={"mine": 1e9})
    table = measured.measurements.set_index("benchmark")
    for task, count in TASKS.items():
        share = row[[name for name in row.index if name.startswith(task)]].mean()
        found = table.loc[task.removeprefix("olmo_ladder_")]
        assert found["value"] == pytest.approx(share)
        assert found["stderr"] == pytest.approx(math.sqrt(share * (1 - share) / count))
        assert (found["model"], found["metric"], found["n_items"]) == ("mine", "accuracy", count)


def test_a_density_from_a_hundred_items_is_near_that_of_all(
    suite: tuple[ItemBank, pd.DataFrame], tmp_path: Path
) -> None:
    suite[0].save(f"{tmp_path}/suite.json")
    bank, later = ItemBank.load(f"{tmp_path}/suite.json"), suite[1]
    row = later.loc[later.mean(axis=1).sort_values().index[LATER // 2]]
    sizes = pd.DataFrame([{"model": "model", "params_total": 1e9, "params_non_embedding": 1e9}])
    some, every = (
        densing.run_densities(bank_measurements(bank, row[items]).measurements, sizes).table
        for items in (choose_items(bank, 100), bank.items["item"])
    )
    assert some["benchmark"].tolist() == ["piqa", "csqa", "combined"]
    few, full = some.iloc[-1], every.iloc[-1]
    assert few["density_lo"] <= full["density"] <= few["density_hi"]
    assert math.log(few["density_hi"] / few["density_lo"]) > math.log(full["density_hi"] / full["density_lo"])
    # And through the command.
    answers = row[choose_items(bank, 100)].rename_axis("item").rename("answer")
    answers.to_csv(f"{tmp_path}/a.csv")
    call = ("density", "--items", f"{tmp_path}/a.csv", "--bank", f"{tmp_path}/suite.json", "-r", "olmo-ladder")
    rows = answer(*call, "--params", "mine=1e9", "--denominator", "total")
    assert [each["model"] for each in rows] == ["mine"] * 3
    assert rows[-1]["n_eff"] == pytest.approx(few["n_eff"])
    assert command(*call[:3]).returncode == 2


def test_benchmarks_with_too_few_answers_are_left_out_and_named(suite: tuple[ItemBank, pd.DataFrame]) -> None:
    bank, later = suite
    names = [*bank.items["item"][:40], *bank.items["item"][-2:]]
    measured = bank_measurements(bank, later.iloc[0][names])
    assert measured.measurements["benchmark"].tolist() == ["piqa"]
    assert "fewer than 3 answers to csqa" in measured.notes[0].message
    with pytest.raises(InputError, match="no benchmark of bank suite has 3 answers"):
        bank_measurements(bank, later.iloc[0][names[-2:]])
    with pytest.raises(InputError, match="5 items: bank suite takes 6"):
        choose_items(bank, 5)
    # A small benchmark gives what it has, the other the rest.
    chosen = pd.Series(choose_items(bank, 400)).str.partition("/")[0].value_counts()
    assert chosen.to_dict() == {"olmo_ladder_piqa": 250, "olmo_ladder_csqa": 150}


def asked(rule: BankRule, row: pd.Series) -> list[BankLook]:
    """Every look of a rule at a model that answers as the row says."""
    looks: list[BankLook] = []
    while not looks or not looks[-1].stop:
        last = looks[-1] if looks else None
        values = {task: [row[f"{task}/{at}"] for at in places] for task, places in rule.orders(last).items()}
        assert last is None or sum(map(len, values.values())) == len(set(last.sequence)) == sum(last.ahead.values())
        looks.append(rule.update(values, last))
    return looks


@pytest.mark.slow
def test_asking_stops_where_more_items_no_longer_matter_and_intervals_hold(
    suite: tuple[ItemBank, pd.DataFrame],
) -> None:
    bank, later = suite
    ends = []
    for at, (_, row) in enumerate(later.iloc[::4].iterrows()):
        rule = replace(BankRule.of(bank, TASKS, count=len(bank), target=2.2), seed=at)
        end = asked(rule, row)[-1]
        ends.append((end, abs(end.score - row.mean()) <= end.hi - end.score + 1e-9))
        assert end.total is not None and end.message.startswith(f"{end.items} of 450 items of bank suite")
        if end.reason == "narrow":
            assert end.met and end.total.recipe <= 2.2
        elif end.reason == "settled":
            assert not end.met and 2.2 < end.total.recipe <= TOLERATED_MISS * end.settled
        # What all items would leave is near what they leave in the end.
        if end.reason == "narrow" and end.items < 450:
            every = replace(rule, count=450, reading=replace(rule.reading, target=1e-6)).total(row.to_dict())[0].recipe
            assert every < end.total.recipe and every == pytest.approx(end.settled, rel=0.5)
    reasons = {end.reason for end, _ in ends}
    assert {"narrow", "bound"} <= reasons <= {"narrow", "settled", "bound", "exhausted"}
    assert np.mean([held for _, held in ends]) >= 0.85
    assert min(end.items for end, _ in ends) < 450 and all(end.items >= 100 for end, _ in ends if end.reason == "bound")


def test_adaptive_items_follow_the_answers_and_give_the_density_of_one_benchmark(
    suite: tuple[ItemBank, pd.DataFrame],
) -> None:
    bank, later = suite
    row = later.iloc[1]
    looks = asked(BankRule.of(bank, TASKS, count=35, chosen="adaptive"), row)
    assert [look.items for look in looks] == [10, 20, 30, 35] and looks[-1].met
    told: dict[str, float] = {}
    for look in looks:
        told |= {item: row[item] for item in bank.next(told, look.items - len(told))}
    assert tuple(told) == looks[-1].sequence
    score = bank.estimate(told, chosen="adaptive")
    assert (score.score, score.lo, score.hi) == (looks[-1].score, looks[-1].lo, looks[-1].hi)
    with pytest.raises(InputError, match="not on each of its benchmarks"):
        bank_measurements(bank, told, chosen="adaptive")
    with pytest.raises(InputError, match="not on each of its benchmarks"):
        BankRule.of(bank, TASKS, chosen="adaptive", target=0.5)
    piqa = bank.of_items(row.index[:300])
    told = {item: row[item] for item in piqa.next({}, 40)}
    (measured,) = bank_measurements(piqa, told, chosen="adaptive").measurements.to_dict("records")
    score = piqa.estimate(told, chosen="adaptive")
    assert measured["value"] == score.score
    assert measured["stderr"] == pytest.approx(
        math.hypot(score.error, math.sqrt(score.score * (1 - score.score) / 300))
    )


def test_a_rule_of_a_bank_refuses_what_it_cannot_ask(suite: tuple[ItemBank, pd.DataFrame]) -> None:
    bank, _ = suite
    calls: tuple[tuple[str, Mapping[str, Any], Mapping[str, int]], ...] = (
        ("of another version of the task", {}, {**TASKS, "olmo_ladder_csqa": 149}),
        ("calibrated up to 100", {"chosen": "adaptive", "count": 101}, TASKS),
        ("takes 6", {"count": 5}, TASKS),
        ("does not cover", {"target": 0.5, "reference": "qwen1.5"}, TASKS),
    )
    for problem, options, sizes in calls:
        with pytest.raises(InputError, match=problem):
            BankRule.of(bank, sizes, **options)
    with pytest.raises(InputError, match="too few models"):
        BankRule.of(replace(bank, corrections=()), TASKS, chosen="adaptive")


def test_a_bank_that_no_reference_reads_says_what_it_has() -> None:
    bank = ItemBank.load("ikp")
    answers = {item: float(at % 2) for at, item in enumerate(choose_items(bank, 100))}
    measured = bank_measurements(bank, answers)
    with pytest.raises(InputError, match="ikp_T1"):
        densing.run_densities(measured.measurements, measured.models, "qwen1.5")

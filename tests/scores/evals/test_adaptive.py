"""Evaluation that stops by itself: which items, how often asked, what is stored, and what a crash costs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from densing.core.errors import InputError
from densing.scores.evals.adaptive import item_values, random_order
from densing.scores.evals.plan import Loading, ModelSpec, Plan, Settings, TaskSpec
from densing.scores.evals.store import RunStore
from tests.support import evals_toys as toys
from tests.support.evals_rules import StopAt, stop_at

pytest.importorskip("lm_eval", reason="lm-eval is not installed (pip install densing[eval])")
pytest.importorskip("torch", reason="torch is not installed (pip install densing[eval])")

from densing.scores.evals import adaptive
from densing.scores.evals.adaptive import run_until
from densing.scores.evals.runner import run_plan
from tests.support.command import printed

DOCUMENTS = 120
GROUP = """group: toy_group
task: [toy_choice, toy_small]
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with one model, a task of 120 documents and one of 10, and a group of both."""
    import torch

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("adaptive")
    toys.write_model(folder / "toy", "llama", 1)
    tasks = toys.write_tasks(folder / "tasks", documents=DOCUMENTS)
    lines = (tasks / "toy_choice.jsonl").read_text().splitlines(keepends=True)
    (tasks / "small.jsonl").write_text("".join(lines[:10]))
    yaml = (tasks / "toy_choice.yaml").read_text()
    small = yaml.replace("toy_choice.jsonl", "small.jsonl").replace("task: toy_choice", "task: toy_small")
    (tasks / "toy_small.yaml").write_text(small.replace("version: 1.0", "version: 1.0\n  benchmark: tiny"))
    (tasks / "toy_group.yaml").write_text(GROUP)
    return folder


def plan_of(place, *tasks, **settings):
    model = ModelSpec.of("hf", {"pretrained": str(place / "toy"), "dtype": "float32"})
    specs = tuple(TaskSpec(task) for task in tasks)
    loading = Loading(batch_size="1", device="cpu")
    return Plan((model,), specs, Settings(**settings), loading, include_path=(str(place / "tasks"),))


# What is evaluated ----------------------------------------------------------------------------------------------------


def test_the_unit_is_the_one_lm_eval_gives_for_these_documents(place, tmp_path):
    (stopped,) = run_until(plan_of(place, "toy_choice"), tmp_path / "run", stop_at(40))
    store = RunStore(tmp_path / "run")
    items = store.items()
    ids = sorted(items["doc_id"])
    assert 40 <= len(ids) == stopped.items < 50 and stopped.full == DOCUMENTS
    assert ids != list(range(len(ids))), "the first documents, not a random draw"

    run_plan(plan_of(place, "toy_choice", samples={"toy_choice": tuple(ids)}), tmp_path / "asked")
    asked = RunStore(tmp_path / "asked")
    theirs_too = asked.items()
    assert items["doc_hash"].equals(theirs_too["doc_hash"]) and items["nll"].equals(theirs_too["nll"])
    ours, theirs = (s.measurements().set_index("metric")["value"] for s in (store, asked))
    assert ours.equals(theirs)


def test_every_item_is_asked_once(place, tmp_path, monkeypatch):
    from lm_eval.models.huggingface import HFLM

    asked, own = [], HFLM._loglikelihood_tokens

    def counting(self, requests, *args, **kwargs):
        asked.extend(requests)
        return own(self, requests, *args, **kwargs)

    monkeypatch.setattr(HFLM, "_loglikelihood_tokens", counting)
    (stopped,) = run_until(plan_of(place, "toy_choice"), tmp_path / "run", stop_at(40))
    assert len(asked) == 3 * stopped.items == stopped.units[0].requests
    assert stopped.units[0].state == "evaluated"


def test_the_order_is_the_seeds(place, tmp_path):
    found = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run_until(plan_of(place, "toy_choice"), tmp_path / name, stop_at(16), order_seed=seed)
        found.append(set(RunStore(tmp_path / name).items()["doc_id"]))
    assert found[0] == found[1] != found[2]
    assert not np.array_equal(random_order("a", 50, 0), random_order("b", 50, 0))


def test_the_rule_says_how_many_items_of_each_task_and_the_others_follow(place, tmp_path):
    class Uneven(StopAt):
        """Looks at one of two tasks."""

        def __init__(self, items, benchmarks, sizes):
            super().__init__(items, benchmarks, {"toy_choice": sizes["toy_choice"]})

    made = []

    def make(benchmarks, sizes):
        made.append(Uneven(30, benchmarks, sizes))
        return made[-1]

    (stopped,) = run_until(plan_of(place, "toy_choice", "toy_small"), tmp_path / "run", make)
    assert set(made[0].looks[-1]) == {"toy_choice"} and made[0].looks[-1]["toy_choice"] >= 30
    assert stopped.items == made[0].looks[-1]["toy_choice"] + 10


def test_tasks_are_drawn_equally_until_one_has_no_more(place, tmp_path):
    made = []
    (stopped,) = run_until(plan_of(place, "toy_choice", "toy_small"), tmp_path / "run", stop_at(60, made))
    (rule,) = made
    assert rule.benchmarks == {"toy_choice": "toy_choice", "toy_small": "tiny"}
    assert rule.sizes == {"toy_choice": DOCUMENTS, "toy_small": 10}
    assert rule.looks[0] == {"toy_choice": 8, "toy_small": 8}
    assert rule.looks[-1]["toy_small"] == 10 and rule.looks[-1]["toy_choice"] >= 50
    assert [unit.task for unit in stopped.units] == ["toy_choice", "toy_small"]
    assert stopped.items == sum(rule.looks[-1].values())


def test_a_group_is_one_unit(place, tmp_path):
    (stopped,) = run_until(plan_of(place, "toy_group"), tmp_path / "run", stop_at(40))
    assert [unit.task for unit in stopped.units] == ["toy_group"]
    counts = RunStore(tmp_path / "run").items()["task"].value_counts().to_dict()
    assert counts == {"toy_choice": stopped.items - 10, "toy_small": 10}


def test_the_rule_sees_the_loss_of_the_gold_answer(place, tmp_path):
    seen = []

    class Watch(StopAt):
        def update(self, losses_by_task, earlier=None):
            seen.append({task: list(values) for task, values in losses_by_task.items()})
            return super().update(losses_by_task, earlier)

    run_until(plan_of(place, "toy_choice"), tmp_path / "run", lambda b, s: Watch(20, b, s))
    items = RunStore(tmp_path / "run").items()
    expected = items["nll"] / items["n_bytes"] / np.log(2)
    assert sorted(seen[-1]["toy_choice"]) == pytest.approx(sorted(expected))


@pytest.mark.parametrize(("target", "reason"), [(0.08, "narrow"), (0.01, "unreachable")])
def test_the_real_rule_stops_with_the_interval_it_promises(place, tmp_path, target, reason):
    from densing.scores.density.stopping import POPULATION, SET, StoppingRule
    from tests.support.references import power_reference

    covers = SET if reason == "narrow" else POPULATION

    def make(benchmarks, sizes):
        return StoppingRule(power_reference(list(sizes)), sizes, target=target, covers=covers, minimum=20, guard=1e30)

    (stopped,) = run_until(plan_of(place, "toy_choice"), tmp_path / "run", make)
    assert stopped.look.reason == reason and (stopped.look.half_width <= target) == stopped.look.met
    assert stopped.look.met == (reason == "narrow") and DOCUMENTS / 5 <= stopped.items < DOCUMENTS
    assert math.isfinite(stopped.look.half_width)
    items = RunStore(tmp_path / "run").items()
    assert stopped.look.mean == pytest.approx((items["nll"] / items["n_bytes"] / np.log(2)).mean())
    assert stopped.spared / stopped.seconds == pytest.approx(DOCUMENTS / stopped.items - 1)
    assert stopped.to_dict()["decision"]["reason"] == reason


# What is kept ---------------------------------------------------------------------------------------------------------


def test_a_second_call_loads_nothing_and_says_what_the_first_said(place, tmp_path, monkeypatch):
    (first,) = run_until(plan_of(place, "toy_choice", "toy_small"), tmp_path / "run", stop_at(30))
    monkeypatch.setattr(adaptive, "load_model", None)
    (again,) = run_until(plan_of(place, "toy_choice", "toy_small"), tmp_path / "run", stop_at(30))
    assert again.units[0].state == "skipped" and again.look == first.look
    assert again.items == first.items and again.units[0].digest == first.units[0].digest


def test_a_result_that_the_rule_would_not_stop_at_is_said_without_a_decision(place, tmp_path):
    """As when last digits of another machine stop a run elsewhere: the stored result stays what it is."""
    run_until(plan_of(place, "toy_choice"), tmp_path / "run", stop_at(30))

    class Later(StopAt):
        def describe(self):
            return {**super().describe(), "stop": 30}

    (again,) = run_until(plan_of(place, "toy_choice"), tmp_path / "run", lambda b, s: Later(60, b, s))
    assert again.look is None and again.units[0].state == "skipped" and 30 <= again.items < 60


def test_a_missed_target_is_a_stored_result_with_a_note(place, tmp_path):
    (stopped,) = run_until(plan_of(place, "toy_choice"), tmp_path / "run", stop_at(20, reason="unreachable"))
    (unit,) = RunStore(tmp_path / "run").units()
    assert stopped.look.message == "enough" and len(unit.items()) == stopped.items
    assert [(note.code, note.severity) for note in stopped.notes] == [("target-missed", "warning")]
    assert stopped.to_dict()["notes"][0]["details"] == {"reason": "unreachable"}


def test_items_that_another_release_drew_are_kept_and_named(place, tmp_path):
    class Earlier(StopAt):
        def describe(self):
            return {**super().describe(), "rule": "before"}

    def earlier(benchmarks, sizes):
        return Earlier(30, benchmarks, sizes)

    run_until(plan_of(place, "toy_choice"), tmp_path / "run", earlier)
    run_until(plan_of(place, "toy_small"), tmp_path / "run", stop_at(5))
    (stopped,) = run_until(plan_of(place, "toy_choice"), tmp_path / "run", stop_at(20))
    # The first twenty of these items were answered before.
    assert stopped.units[0].state == "resumed" and stopped.units[0].requests == 0
    assert len(RunStore(tmp_path / "run").units()) == 3
    (note,) = stopped.notes
    assert note.code == "other-rule" and "toy_choice" in note.message and "earlier release" in note.message


def test_another_rule_is_another_unit(place, tmp_path):
    for items in (20, 30):
        run_until(plan_of(place, "toy_choice"), tmp_path / "run", stop_at(items))
    assert len(RunStore(tmp_path / "run").units()) == 2


def test_the_unit_says_how_it_was_stopped(place, tmp_path):
    run_until(plan_of(place, "toy_choice"), tmp_path / "run", stop_at(20))
    (unit,) = RunStore(tmp_path / "run").units()
    assert unit.key.settings["until"]["rule"]["stop"] == 20
    assert any("until a rule stopped" in caveat for caveat in unit.manifest["caveats"])


class Killed(BaseException):
    """Stands for a signal."""


def test_a_killed_run_goes_on_where_it_stopped(place, tmp_path):
    whole = run_until(plan_of(place, "toy_choice"), tmp_path / "whole", stop_at(40))

    def kill(progress):
        if progress.done >= 60:
            raise Killed

    with pytest.raises(Killed):
        run_until(plan_of(place, "toy_choice"), tmp_path / "run", stop_at(40), progress=kill)
    resumed = run_until(plan_of(place, "toy_choice"), tmp_path / "run", stop_at(40))
    assert resumed[0].units[0].state == "resumed"
    assert resumed[0].units[0].requests <= whole[0].units[0].requests - 60
    one, other = (RunStore(tmp_path / name).items() for name in ("whole", "run"))
    assert one["nll"].equals(other["nll"]) and one["doc_id"].equals(other["doc_id"])


def test_a_crash_between_two_units_costs_neither(place, tmp_path, monkeypatch):
    plan = plan_of(place, "toy_choice", "toy_small")
    stored = []

    def once(*args):
        if stored:
            raise Killed
        stored.append(evaluate_unit(*args))
        return stored[-1]

    evaluate_unit = adaptive.evaluate_unit
    monkeypatch.setattr(adaptive, "evaluate_unit", once)
    with pytest.raises(Killed):
        run_until(plan, tmp_path / "run", stop_at(40))
    monkeypatch.setattr(adaptive, "evaluate_unit", evaluate_unit)
    (stopped,) = run_until(plan, tmp_path / "run", stop_at(40))
    assert [unit.state for unit in stopped.units] == ["skipped", "resumed"]
    assert stopped.units[1].requests == 0


# The command ----------------------------------------------------------------------------------------------------------


def test_the_command_says_items_and_time_and_does_nothing_twice(place, tmp_path):
    from typer.testing import CliRunner

    from densing.cli import app

    yaml = (place / "tasks" / "toy_choice.yaml").read_text().replace("task: toy_choice", "task: toy_piqa")
    (tmp_path / "toy_piqa.yaml").write_text(yaml.replace("version: 1.0", "version: 1.0\n  benchmark: piqa"))
    args = [
        "eval",
        "--model_args",
        f"pretrained={place / 'toy'},dtype=float32",
        "--tasks",
        "toy_piqa",
        "--device",
        "cpu",
    ]
    args += ["--include_path", str(tmp_path), "--out", str(tmp_path / "run"), "--until_ci", "0.5"]

    def call(*more):
        return CliRunner().invoke(app, [*args, *more])

    found = printed(call("--json").stdout)["models"][0]
    # Random weights: worse than any size of the ladder, so that the density is a bound after the first look.
    assert found["decision"]["reason"] == "bound" and found["items"] == 100 and found["full"] == DOCUMENTS
    assert not found["decision"]["met"] and found["notes"][0]["code"] == "target-missed"
    again = call()
    assert again.exit_code == 0 and "nothing to do, 100 of 120 items" in again.output
    assert "not met" in again.output and "the density is a bound" in again.output
    for wrong, message in ((["--ci_of", "all"], "neither"), (["--ci_from", "luck"], "choose"), (["-r", "x"], "x")):
        assert message in str(call(*wrong).exception)
    assert "drop --executor" in str(call("--executor", "local").exception)


# What is refused ------------------------------------------------------------------------------------------------------


def test_limit_and_examples_drawn_anew_are_refused(place, tmp_path):
    with pytest.raises(InputError, match="drop one of them"):
        run_until(plan_of(place, "toy_choice", limit=5), tmp_path / "run", stop_at(20))
    with pytest.raises(InputError, match="first_n"):
        run_until(plan_of(place, "toy_choice", num_fewshot=2), tmp_path / "run", stop_at(20))


def test_a_task_without_a_loss_is_refused(place, tmp_path):
    with pytest.raises(InputError, match="no finite loss"):
        run_until(plan_of(place, "toy_text"), tmp_path / "run", stop_at(20))
    with pytest.raises(InputError, match="no accuracy per document"):
        run_until(plan_of(place, "toy_text"), tmp_path / "score", stop_at(20), quantity="score")


@pytest.mark.slow
def test_an_unknown_task_is_an_error_before_anything_is_loaded(place, tmp_path, monkeypatch):
    monkeypatch.setattr(adaptive, "load_model", None)
    with pytest.raises(InputError, match="toy_choise"):
        run_until(plan_of(place, "toy_choise"), tmp_path / "run", stop_at(20))


def test_values_are_looked_up_by_document():
    import pandas as pd

    table = pd.DataFrame({"doc_id": [7, 9], "nll": [2.0, np.inf], "n_bytes": [4, 4], "metric_acc_norm": [1.0, 0.0]})
    assert item_values(table, [7], "loss") == pytest.approx([0.5 / np.log(2)])
    assert item_values(table, [9, 7], "score") == [0.0, 1.0]
    with pytest.raises(InputError, match="document 9"):
        item_values(table, [7, 9], "loss")

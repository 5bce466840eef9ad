"""The journal and the recorder: nothing is asked twice, and a killed run goes on to the same results."""

from __future__ import annotations

import functools
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densing.core.errors import InputError
from densing.scores.evals.evaluation import write_files
from densing.scores.evals.journal import Journal, answered
from densing.scores.evals.store import RunStore
from tests.support import folders

ANSWER = st.one_of(st.text(), st.lists(st.one_of(st.floats(), st.booleans()), max_size=3))


@given(batches=st.lists(st.lists(st.tuples(st.text(max_size=4), ANSWER, st.integers(1, 9)), max_size=4), max_size=5))
@settings(max_examples=30)
def test_answers_come_back_to_the_bit(batches: list[list[tuple[str, Any, int]]], tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal.sqlite"
    with Journal(path, "unit") as journal:
        for batch in batches:
            journal.add(batch)
    expected: dict[str, list[Any]] = {}
    for key, value, _ in (entry for batch in batches for entry in batch):
        expected.setdefault(key, []).append(value)
    with Journal(path, "unit") as journal:
        assert repr({key: journal.answers(key) for key in expected}) == repr(expected)
        assert journal.count == answered(path) == sum(entry[2] for batch in batches for entry in batch)


def test_a_batch_is_whole_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal(path, "unit") as journal:
        journal.add([("a", 1.0, 1)])
        with pytest.raises(TypeError):
            journal.add([("b", 1.0, 1), ("c", object(), 1)])
        assert journal.answers("b") == []
    with Journal(path, "unit") as journal:
        assert (journal.count, journal.answers("a"), journal.answers("b")) == (1, [1.0], [])


@pytest.mark.parametrize("damage", ["noise", "cut", "json", "owner", "schema"])
def test_a_damaged_or_foreign_journal_is_begun_anew(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal(path, "another" if damage == "owner" else "unit") as journal:
        journal.add([("a", 1.0, 1)])
    if damage == "noise":
        path.write_bytes(np.random.default_rng(0).bytes(5000))
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:5000])
    elif damage in ("json", "schema"):
        statement = "UPDATE answers SET value = '[1'" if damage == "json" else "UPDATE facts SET value = '0'"
        with sqlite3.connect(path) as raw:
            raw.execute(statement)
        raw.close()
    with Journal(path, "unit") as journal:
        assert journal.restarted
        assert journal.answers("a") == []


def test_a_full_disk_names_the_journal_and_costs_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal(path, "unit") as journal:
        journal.add([("a", 1.0, 1)])
        pages = journal._connection.execute("PRAGMA page_count").fetchone()[0]
        journal._connection.execute(f"PRAGMA max_page_count={pages}")
        with pytest.raises(
            InputError, match=r"journal\.sqlite: cannot keep answers \(database or disk is full\); check"
        ):
            journal.add([("b", "x" * 20_000, 1)])
        assert (journal.count, journal.answers("b")) == (1, [])
    full = sqlite3.OperationalError("database or disk is full")
    full.sqlite_errorcode = sqlite3.SQLITE_FULL
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "_open", Mock(side_effect=full))
        with pytest.raises(InputError, match="those kept before stay"):
            Journal(path, "unit")
    with Journal(path, "unit") as journal:
        assert journal.answers("a") == [1.0] and not journal.restarted


def test_files_that_lm_eval_cut_short_are_no_result(tmp_path: Path) -> None:
    class Tracker:
        """As lm-eval's on a full disk: the trouble is logged, and part of the file stays."""

        def save_results_aggregated(self, results: Any, samples: Any) -> None:
            (tmp_path / "results_2026.json").write_text("{}")

        def save_results_samples(self, task_name: str, samples: Any) -> None:
            (tmp_path / f"samples_{task_name}_2026.jsonl").write_text('{"doc_id": 0}\n{"doc_')

    with pytest.raises(InputError, match=r"samples_toy_2026\.jsonl: 1 of 3 samples were written \([\d,]+ MB free"):
        write_files(Tracker(), {"configs": {"toy": {}}}, {"toy": [{}, {}, {}]}, tmp_path)


def test_a_journal_nowhere(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((InputError, OSError)):
        Journal(tmp_path / "file" / "journal.sqlite", "unit")
    assert answered(tmp_path / "absent.sqlite") == 0


class Break(Exception):
    """Stands for the end of the process: nothing that was not written is left."""


@dataclass
class Toy:
    """A loaded toy model and how to run one task on it, with a stop before a chosen forward pass."""

    session: Any
    model: Any
    works: dict[str, Any]
    rows: int = 0
    stop_after: int | None = None
    passes: int = 0

    def forward(self, own: Any, inputs: Any = None, **options: Any) -> Any:
        inputs = options.pop("context") if inputs is None else inputs
        if self.stop_after is not None and self.passes >= self.stop_after:
            raise Break
        self.passes += 1
        self.rows += len(inputs)
        return own(inputs, **options)

    def run(self, task: str, store: Path, stop_after: int | None = None) -> Any:
        from densing.scores.evals.evaluation import evaluate_unit
        from densing.scores.evals.session import Work
        from densing.scores.evals.store import RunStore

        self.passes, self.stop_after = 0, stop_after
        work = self.works[task]
        unit = RunStore(store).unit(work.key)
        again = Work(work.requested, work.identity, work.settings, work.key, unit)
        return evaluate_unit(self.session, self.model, again, lambda count: None), unit


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toy]:
    pytest.importorskip("lm_eval")
    pytest.importorskip("torch")
    from densing.scores.evals.evaluation import environment
    from densing.scores.evals.models import load_model
    from densing.scores.evals.plan import Loading, ModelSpec, Plan, TaskSpec
    from densing.scores.evals.session import Session
    from tests.support.evals_toys import TASKS, write_model, write_tasks

    folder = tmp_path_factory.mktemp("toy")
    path = write_model(folder / "toy-llama", "llama")
    sampled = {"gen_kwargs": {"do_sample": True, "temperature": 0.8}}
    plan = Plan(
        (ModelSpec.of("hf", {"pretrained": str(path)}),),
        tuple(TaskSpec(name, sampled if name == "toy_text" else {}) for name in TASKS),
        loading=Loading("3", device="cpu"),
        include_path=(str(write_tasks(folder / "tasks", documents=8)),),
    )
    session = Session(plan, folder / "run")
    with environment(session):
        surveyed = session.survey(0)
        assert surveyed.identity is not None
        model = load_model(plan.models[0], plan.loading, surveyed.identity)
        made = Toy(session, model, {work.identity.name: work for work in surveyed.works})
        for name in ("_model_call", "_model_generate"):
            setattr(model.lm, name, functools.partial(made.forward, getattr(model.lm, name)))
        yield made


def samples(unit: Any) -> bytes:
    (path,) = unit.folder.glob("samples_*")
    return path.read_bytes()


@pytest.mark.parametrize("task", ["toy_choice", "toy_text", "toy_long"])
def test_broken_off_before_every_pass(toy: Toy, tmp_path: Path, task: str) -> None:
    toy.rows = 0
    _, whole = toy.run(task, tmp_path / "whole")
    passes, rows = toy.passes, toy.rows
    assert passes > 2
    for stop in range(passes):
        toy.rows = 0
        store = tmp_path / f"stopped-{stop}"
        with pytest.raises(Break):
            toy.run(task, store, stop_after=stop)
        first = toy.rows
        outcome, unit = toy.run(task, store)
        assert samples(unit) == samples(whole), f"stopped before pass {stop}"
        # The batch before the stop was whole: it is written when the next pass begins, so nothing runs twice.
        assert toy.rows == rows
        assert outcome.state == ("resumed" if first else "evaluated")


def test_broken_off_again_and_again(toy: Toy, tmp_path: Path) -> None:
    _, whole = toy.run("toy_choice", tmp_path / "whole")
    toy.rows = 0
    for _ in range(100):
        try:
            outcome, unit = toy.run("toy_choice", tmp_path / "store", stop_after=1)
        except Break:
            continue
        break
    assert outcome.state == "resumed"
    assert samples(unit) == samples(whole)


class Remote:
    """A model without forward passes of its own, as one behind an API: it reports each answer, or none."""

    def __init__(self, reports: bool, fail_at: int | None = None) -> None:
        self.reports, self.fail_at, self.asked = reports, fail_at, 0
        self.cache_hook: Any = None

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        found = []
        for request in requests:
            if self.asked == self.fail_at:
                raise Break
            self.asked += 1
            found.append((-float(self.asked), False))
            if self.reports:
                self.cache_hook.add_partial("loglikelihood", request.args, found[-1])
        return found

    loglikelihood_rolling = generate_until = loglikelihood


def test_answers_of_an_api_are_written_one_by_one(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    from densing.scores.evals.journal import recorded

    requests = [SimpleNamespace(args=("context", f" {n % 3}")) for n in range(5)]
    with Journal(tmp_path / "journal.sqlite", "unit") as journal:
        first = Remote(reports=True, fail_at=3)
        with pytest.raises(Break), recorded(first, journal):
            first.loglikelihood(requests)
        assert journal.count == 3
        second = Remote(reports=True)
        with recorded(second, journal):
            found = second.loglikelihood(requests)
    # Requests 3 and 4 repeat 0 and 1: asked twice, they are two requests.
    assert found == [(-1.0, False), (-2.0, False), (-3.0, False), (-1.0, False), (-2.0, False)]
    assert second.asked == 2


def test_a_model_that_reports_nothing_is_recorded_at_the_end(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    from densing.scores.evals.journal import recorded

    requests = [SimpleNamespace(args=("context", " a"))] * 2
    counts: list[int] = []
    with Journal(tmp_path / "journal.sqlite", "unit") as journal:
        silent = Remote(reports=False)
        before = dict(vars(silent))
        with recorded(silent, journal, counts.append):
            silent.loglikelihood(requests)
        assert journal.count == 2 and counts == [2]
        assert {**before, "asked": 2} == vars(silent), "the model is as it was"


# ---- SIGKILL at random moments: the results of a run that was never broken, and nothing twice -----------------


BATCH = 4
UNITS = 6
KILLS = 10
VOLATILE = ["date", "file"]


class Drill:
    """The process that forks runs, and the folder they work in."""

    def __init__(self, folder: Path) -> None:
        from tests.support.evals_toys import write_models, write_tasks

        write_models(folder)
        write_tasks(folder / "tasks")
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, str(folders.SUPPORT / "evals_drill.py"), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def __call__(
        self, store: Path, how: str, kill_at: int | None = None, wait: float = 0.0, processes: int = 1
    ) -> dict[str, Any]:
        asked = {"store": str(store), "how": how, "kill_at": kill_at, "wait": wait, "processes": processes}
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def drill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drill]:
    pytest.importorskip("lm_eval")
    pytest.importorskip("torch")
    made = Drill(tmp_path_factory.mktemp("drill"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def unbroken(drill: Drill) -> tuple[Path, dict[str, Any]]:
    store = drill.folder / "unbroken"
    done = drill(store, "runner")
    assert done["codes"] == [0]
    assert len(RunStore(store).units()) == UNITS
    return store, done


def same_results(store: Path, expected: Path) -> None:
    ours, theirs = RunStore(store), RunStore(expected)
    assert [unit.digest for unit in ours.units()] == [unit.digest for unit in theirs.units()]
    pd.testing.assert_frame_equal(
        ours.measurements().drop(columns=VOLATILE), theirs.measurements().drop(columns=VOLATILE), check_exact=True
    )
    pd.testing.assert_frame_equal(ours.items(), theirs.items(), check_exact=True)
    for unit, other in zip(ours.units(), theirs.units(), strict=True):
        (mine,), (its,) = list(unit.folder.glob("samples_*")), list(other.folder.glob("samples_*"))
        assert mine.read_bytes() == its.read_bytes(), unit.folder.name
        assert not list(unit.folder.glob("journal*"))


def moment(rng: np.random.Generator, rows: int, end: int) -> tuple[int, float]:
    """Return when to kill: after how many rows, and how long after; now and then before the first."""
    if rng.random() < 0.1:
        return 0, float(rng.uniform(0, 0.5))
    return int(rng.integers(rows + 1, end + 1)), float(rng.uniform(0, 0.1))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["runner", "worker"])
def test_killed_at_random_moments(drill: Drill, unbroken: tuple[Path, dict[str, Any]], kind: str) -> None:
    expected, whole = unbroken
    rng = np.random.default_rng(2412 if kind == "runner" else 4315)
    parts = ["runner"] if kind == "runner" else ["worker-0", "worker-1"]
    kills = stores = partial = 0
    while kills < KILLS:
        store = drill.folder / f"{kind}-{stores}"
        stores += 1
        broken = rows = 0
        for n, how in enumerate(parts, start=1):
            end = whole["rows"] * n // len(parts)
            for _ in range(5 * KILLS):
                kill_at, wait = moment(rng, rows, max(end, rows + 1)) if kills < KILLS else (None, 0.0)
                done = drill(store, how, kill_at, wait)
                rows = done["rows"]
                assert done["codes"][0] in (0, -9)
                if done["codes"] == [0]:
                    break
                kills += 1
                broken += 1
                partial += bool(RunStore(store).partial())
        same_results(store, expected)
        assert whole["rows"] <= rows <= whole["rows"] + broken * BATCH
    assert partial > KILLS // 2, "too few kills fell in the middle of a unit: the drill drilled nothing"


@pytest.mark.slow
def test_two_runners_share_the_work(drill: Drill, unbroken: tuple[Path, dict[str, Any]]) -> None:
    expected, whole = unbroken
    store = drill.folder / "shared"
    done = drill(store, "runner", processes=2)
    assert done["codes"] == [0, 0]
    assert done["rows"] == whole["rows"]
    same_results(store, expected)


@pytest.mark.slow
def test_again_does_nothing(drill: Drill, unbroken: tuple[Path, dict[str, Any]]) -> None:
    store, whole = unbroken
    stamps = {path: path.stat().st_mtime_ns for path in store.rglob("unit.json")}
    assert drill(store, "runner")["rows"] == whole["rows"]
    assert stamps == {path: path.stat().st_mtime_ns for path in store.rglob("unit.json")}

"""What slow workers cost a job: published results of three jobs, and a recursive second implementation."""

from __future__ import annotations

import functools
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from densing.core.errors import InputError
from densing.efficiency.profile.whatif_job import (
    OP_TYPES,
    OpTrace,
    Replay,
    WhatIf,
    analyse,
    arrange,
    prepare,
    read_ops,
    what_if_job,
)
from densing.efficiency.simulation.engine import simulate
from densing.efficiency.simulation.tasks import Graph
from densing.efficiency.timeline.timeline import Kind
from tests.support import folders

# The smallest of the published jobs travels with the tests; the others are read where they are.
JOBS = next(folder for folder in (folders.RECORDED / "straggler", folders.TRACES / "straggler") if folder.exists())
# The published program computes in float32.
FLOAT32 = 1e-6
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module", params=["AR", "SE", "ST"])
def job(request: pytest.FixtureRequest) -> tuple[str, WhatIf]:
    """One published job, analysed."""
    path = JOBS / f"trace-{request.param}.parquet"
    if not path.exists():
        pytest.skip("only one of the published jobs travels with the tests")
    return request.param, what_if_job(path)


def published(name: str) -> dict[str, Any]:
    """Return a published result."""
    return json.loads((JOBS / name).read_text(encoding="utf-8"))


def test_published_step_times_and_slowdowns(job: tuple[str, WhatIf]) -> None:
    name, mine = job
    theirs = published(f"result-{name}.json")
    for key, times in (("base", mine.recorded_s), ("nodelay", mine.replayed_s), ("noblk", mine.ideal_s)):
        expected = theirs[f"step_t_{key}"]
        assert dict(zip(map(str, mine.steps), times, strict=True)) == pytest.approx(expected, rel=FLOAT32)
    assert mine.slowdown.mean == pytest.approx(theirs["blocking_slowdown"], rel=FLOAT32)
    assert mine.launch_slowdown == pytest.approx(theirs["launch_slowdown"], rel=FLOAT32)
    per_step = dict(zip(map(str, mine.steps), mine.slowdown.per_step, strict=True))
    assert per_step == pytest.approx(theirs["blocking_step_slowdown"], rel=FLOAT32)


@pytest.mark.parametrize("kind", ["optype", "dp_rank", "stage"])
def test_published_decomposition(job: tuple[str, WhatIf], kind: str) -> None:
    name, mine = job
    theirs = published(f"result-{name}.json")
    parts = getattr(mine, f"by_{kind}")
    whole = theirs[f"blocking_decompose_by_{kind}"]
    assert {part: slow.mean for part, slow in parts.items()} == pytest.approx(whole, rel=FLOAT32)
    assert list(parts) == list(whole)
    for step, expected in theirs[f"blocking_decompose_by_{kind}_per_step"].items():
        at = mine.steps.index(int(step))
        assert {part: slow.per_step[at] for part, slow in parts.items()} == pytest.approx(expected, rel=FLOAT32)


def test_published_attribution(job: tuple[str, WhatIf]) -> None:
    name, mine = job
    for key, found in (("mw", mine.workers), ("ms", mine.last_stage)):
        theirs = published(f"{key}-{name}.json")
        assert found.fixed_s == pytest.approx(theirs["trem"], rel=FLOAT32)
        assert found.only_s == pytest.approx(theirs["tadd"], rel=FLOAT32)
        # A share is a difference of such times over another: their errors over T − T_ideal.
        error = 4 * FLOAT32 * theirs["tori"] / (theirs["tori"] - theirs["tideal"])
        assert found.explained == pytest.approx(theirs["rem"], abs=error)
        assert found.alone == pytest.approx(theirs["add"], abs=error)
    assert len(mine.worst_workers) == {"AR": 1, "SE": 2, "ST": 1}[name]
    assert WhatIf.from_dict(json.loads(json.dumps(mine.to_dict()))) == mine


def pipeline(dp: int, stages: int, batches: int, steps: int, seed: int, ahead: int = 1) -> Rows:
    """Make the operations of one-forward-one-backward pipelines, with random times and no regard to dependencies.

    ``ahead`` forwards a stage come before the first backward; with two of them a stage need not wait for the next.
    """
    random = np.random.default_rng(seed)
    rows: Rows = []
    for rank, stage, step in np.ndindex(dp, stages, steps):
        warm = min((stages - 1 - stage) * ahead, batches)
        order = ["F"] * warm + ["F", "B"] * (batches - warm) + ["B"] * warm
        names = ["params-all-gather"]
        for letter in order:
            direction = "forward" if letter == "F" else "backward"
            first, last = (0, stages - 1) if letter == "F" else (stages - 1, 0)
            names += [f"{direction}-recv"] * (stage != first) + [f"{direction}-compute"]
            names += [f"{direction}-send"] * (stage != last)
        names += ["gc", "layernorm-grads-all-reduce"]
        names += ["embedding-grads-all-reduce"] * (stages > 1 and stage in (0, stages - 1))
        names += ["grads-reduce-scatter", "optimizer-clip-main-grad", "optimizer"]
        seen: dict[str, int] = {}
        for at, name in enumerate(names):
            start, took = at + random.random(), random.random()
            rows.append({"dp_rank": rank, "stage": stage, "step": 10 + step, "optype": name, "start_ts": start,
                         "duration": took, "seq_id": seen.setdefault(name, 0), "mc": 0})  # fmt: skip
            seen[name] += 1
    return rows


def trace_of(rows: Rows) -> OpTrace:
    """Arrange rows given as mappings."""
    table = {key: np.array([row[key] for row in rows]) for key in rows[0] if key != "optype"}
    return arrange({**table, "optype": np.array([OP_TYPES.index(row["optype"]) for row in rows])}, "made", {})


Place = tuple[int, int, str, int]


class Recursion:
    """One step by the published rules, one operation at a time from the last backwards."""

    def __init__(self, rows: Rows, dp: int, stages: int, step: int) -> None:
        self.dp, self.stages = dp, stages
        self.at = {(r["dp_rank"], r["stage"], r["optype"], r["seq_id"]): r for r in rows if r["step"] == step}
        plan = {key: row for key, row in self.at.items() if key[0] == 0 and key[2].endswith("compute")}
        self.order = {
            stage: [key[2:] for key in sorted(plan, key=lambda key: plan[key]["start_ts"]) if key[1] == stage]
            for stage in range(stages)
        }
        self.start = functools.cache(self._start)
        self.end = functools.cache(self._end)

    def length(self) -> float:
        """Return when the last operation ends."""
        return max(self.end(*key) for key in self.at)

    def group(self, d: int, stage: int, kind: str, seq: int) -> list[Place]:
        """Return who takes part in a communication."""
        over_dp = ("params-all-gather", "grads-reduce-scatter", "optimizer-clip-main-grad")
        ranks = range(self.dp) if kind in over_dp else [d]
        way, _, role = kind.partition("-")
        if role in ("send", "recv"):
            other = stage + (1 if (way == "forward") == (role == "send") else -1)
            return [(d, stage, kind, seq), (d, other, f"{way}-{'recv' if role == 'send' else 'send'}", seq)]
        if kind == "embedding-grads-all-reduce":
            return [(d, 0, kind, seq), (d, self.stages - 1, kind, seq)]
        places = range(self.stages) if kind == "optimizer-clip-main-grad" else [stage]
        return [(r, s, kind, seq) for r in ranks for s in places]

    def waits_for(self, stage: int, kind: str, seq: int) -> list[tuple[str, int]]:
        """Return what must have ended on the same worker."""
        role = kind.partition("-")[2]
        if role == "compute":
            return self._before_compute(stage, kind, seq)
        if role in ("send", "recv"):
            return self._before_transfer(stage, kind, seq)
        if kind == "params-all-gather":
            return []
        tail = ["gc", "layernorm-grads-all-reduce", "embedding-grads-all-reduce", "grads-reduce-scatter",
                "optimizer-clip-main-grad", "optimizer"]  # fmt: skip
        earlier = [(name, 0) for name in tail[: tail.index(kind)] if (0, stage, name, 0) in self.at]
        gathered = [("params-all-gather", 0)] if kind == "grads-reduce-scatter" else []
        return (earlier[-1:] or self.order[stage][-1:]) + gathered

    def _before_compute(self, stage: int, kind: str, seq: int) -> list[tuple[str, int]]:
        place = self.order[stage].index((kind, seq))
        found = self.order[stage][place - 1 : place] if place else []
        receive = (kind.replace("compute", "recv"), seq)
        found += [receive] if (0, stage, *receive) in self.at else []
        return found + ([("params-all-gather", 0)] if (kind, seq) == ("forward-compute", 0) else [])

    def _before_transfer(self, stage: int, kind: str, seq: int) -> list[tuple[str, int]]:
        way, _, role = kind.partition("-")
        found = [(kind, seq - 1)] if seq else []
        found += [(f"{way}-compute", seq)] if role == "send" else []
        found += [(f"{way}-compute", seq - 1)] if role == "recv" and seq else []
        if way == "backward" and seq == 0:
            warm = [name for name, _ in self.order[stage]].index("backward-compute")
            found += [self.order[stage][warm - 2]] if warm >= 2 else []
        return found

    def _start(self, d: int, stage: int, kind: str, seq: int) -> float:
        return max((self.end(d, stage, *other) for other in self.waits_for(stage, kind, seq)), default=0.0)

    def _end(self, d: int, stage: int, kind: str, seq: int) -> float:
        row = self.at[d, stage, kind, seq]
        if kind.endswith("compute") or kind in ("gc", "optimizer", "layernorm-grads-all-reduce"):
            return self.start(d, stage, kind, seq) + row["duration"]
        members = self.group(d, stage, kind, seq)
        latest = max(self.at[member]["start_ts"] for member in members)
        transfer = max(0.0, row["start_ts"] + row["duration"] - latest)
        return max(self.start(*member) for member in members) + transfer


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.integers(0, 10**6), st.integers(1, 2))
@settings(max_examples=40)
@example(1, 2, 3, 5, 2)
def test_replay_agrees_with_recursion(dp: int, stages: int, batches: int, seed: int, ahead: int) -> None:
    rows = pipeline(dp, stages, batches, 2, seed, ahead)
    replay = prepare(trace_of(rows))
    times = replay.step_times(np.ones((1, 1, 1), bool))[0]
    expected = [Recursion(rows, dp, stages, step).length() for step in (10, 11)]
    assert times.tolist() == pytest.approx(expected, rel=1e-12)


def simulated(replay: Replay, step: int) -> float:
    """One step on the simulator: a task per operation and data-parallel rank, each on a stream of its own."""
    graph = Graph()
    tasks: dict[tuple[int, int], int] = {}
    ranks = range(len(replay.trace.dp_ranks))
    for unit in replay.graph.units:
        # Members of a communication begin when all that any of them waits for has ended.
        for members in [unit.members] if unit.collective else [(member,) for member in unit.members]:
            for group in [ranks] if unit.over_dp else [(rank,) for rank in ranks]:
                after = {tasks[first, rank] for member in members for first in replay.graph.before[member]
                         for rank in group}  # fmt: skip
                for member, rank in itertools.product(members, group):
                    seconds = float(replay.recorded[member, rank, step])
                    tasks[member, rank] = graph.add(
                        "op", Kind.COMPUTE, (0,), f"{member} of {rank}", seconds, after=sorted(after)
                    )
    return simulate(graph).makespan


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.integers(0, 10**6))
@settings(max_examples=20)
def test_replay_agrees_with_the_simulator(dp: int, stages: int, batches: int, seed: int) -> None:
    replay = prepare(trace_of(pipeline(dp, stages, batches, 2, seed)))
    times = replay.step_times(np.ones((1, 1, 1), bool))[0]
    assert times.tolist() == pytest.approx([simulated(replay, step) for step in (0, 1)], rel=1e-12)


def test_choices_replayed_in_turns_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = trace_of(pipeline(3, 3, 4, 2, 5))
    whole = analyse(trace)
    monkeypatch.setattr("densing.efficiency.profile.whatif_job._CELLS", 1)
    assert analyse(trace) == whole


def test_an_even_job_has_no_slowdown() -> None:
    rows = pipeline(2, 2, 3, 2, 0)
    even = [{**row, "start_ts": 0.0, "duration": 0.5} for row in rows]
    found = analyse(trace_of(even))
    assert found.slowdown.mean == 1 and found.waste == 0
    assert found.workers.explained is None


def test_steps_that_lack_operations_are_left_out_and_counted() -> None:
    rows = pipeline(2, 2, 3, 3, 1)
    short = [row for row in rows if not (row["step"] == 11 and row["dp_rank"] == 1 and row["optype"] == "gc")]
    trace = trace_of(short)
    assert trace.steps == (10, 12) and trace.left_out == sum(row["step"] == 11 for row in short)
    with pytest.raises(InputError, match="no step has"):
        trace_of([row for row in rows if not (row["dp_rank"] == 1 and row["optype"] == "gc")])


def test_schedules_nobody_knows_are_errors() -> None:
    rows = pipeline(1, 2, 3, 1, 1)
    lost = [row for row in rows if (row["optype"], row["seq_id"]) != ("forward-send", 2)]
    with pytest.raises(InputError, match="no known pipeline schedule"):
        analyse(trace_of(lost))
    bad = [{**row, "duration": float("nan")} if row["optype"] == "gc" else row for row in rows]
    with pytest.raises(InputError, match="finite"):
        trace_of(bad)
    with pytest.raises(InputError, match="without any duration"):
        analyse(trace_of([{**row, "duration": 0.0, "start_ts": 0.0} for row in rows]))


def test_files_that_are_no_jobs_are_errors(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    with pytest.raises(InputError, match="not a trace of operations"):
        read_ops(tmp_path / "absent.parquet")
    text = tmp_path / "trace-text.parquet"
    text.write_text("hello")
    with pytest.raises(InputError, match="not a trace of operations"):
        read_ops(text)
    rows = pipeline(1, 1, 1, 1, 0)
    pq.write_table(pa.Table.from_pylist([{"stage": 1}]), tmp_path / "trace-few.parquet")
    with pytest.raises(InputError, match="it needs columns"):
        read_ops(tmp_path / "trace-few.parquet")
    pq.write_table(pa.Table.from_pylist([{**row, "optype": "nap"} for row in rows]), tmp_path / "trace-nap.parquet")
    with pytest.raises(InputError, match="unknown operation 'nap'"):
        read_ops(tmp_path / "trace-nap.parquet")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "trace-good.parquet")
    (tmp_path / "meta-good.yaml").write_text("trial_name: X\npp_size: 1\n")
    good = read_ops(tmp_path / "trace-good.parquet")
    assert (good.job, good.sizes) == ("good", {"pp_size": 1})
    assert np.array_equal(good.duration, trace_of(rows).duration)

"""A run damaged in any way gives a result or a refusal, never an internal error: profile, compare, what-ifs, words."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pytest

from densing.cli.profile import screen
from densing.core import DensingError, plain
from densing.efficiency.profile import RunProfile, compare_runs, merge_run
from densing.efficiency.profile.changes import plan
from densing.efficiency.profile.rank import profile_timeline
from densing.efficiency.timeline import Kind, RankTimeline, Step
from tests.support.planted_runs import Planted

DAMAGES = (
    "zero durations", "no time at all", "zero communication", "communication outside", "communication gone",
    "steps gone", "steps of no length", "steps on one rank", "clock shifted", "clock jumps", "inside an earlier span",
    "tiny work", "huge times", "one slow rank", "launches gone", "host gone", "rank gone",
)  # fmt: skip
CHANGES = (
    "link=300mbit", "hide=all_reduce", "co2:tau=2", "link=0.001x,drop-rank=1,overlap=perfect",
    "local-sgd:tau=3,drop-rank=0", "dct:eta=0.9,link=2x", "ladder",
)  # fmt: skip


def _moved(rank: RankTimeline, rows: Any, start: Any, end: Any) -> RankTimeline:
    """Put some spans of the device elsewhere, in order of time again."""
    columns = {"start": rank.work.start.copy(), "end": rank.work.end.copy()}
    columns["start"][rows], columns["end"][rows] = start, np.maximum(end, start)
    work = msgspec.structs.replace(rank.work, **columns)
    return msgspec.structs.replace(rank, work=work.take(np.lexsort((-work.end, work.start))))


def damaged(rank: RankTimeline, damage: str, draw: random.Random) -> RankTimeline:
    """Return a rank with one kind of damage."""
    work, replace = rank.work, msgspec.structs.replace
    some = np.array([draw.random() < 0.5 for _ in range(len(work))], bool)
    comm = work.kind == Kind.COMM
    if damage in ("zero durations", "zero communication", "no time at all"):
        rows = {"zero durations": some, "zero communication": some & comm}.get(damage, some | True)
        return _moved(rank, rows, work.start[rows], work.start[rows])
    if damage == "communication outside":
        by = draw.choice((-(10**9), 10**9, 10**7))
        return _moved(rank, comm, work.start[comm] + by, work.end[comm] + by)
    if damage == "communication gone":
        return replace(rank, work=work.take(~(comm & some)))
    if damage == "steps gone":
        return replace(rank, steps=tuple(step for step in rank.steps if draw.random() < 0.5))
    if damage == "steps of no length":
        return replace(rank, steps=tuple(Step(step.number, step.start, step.start) for step in rank.steps))
    if damage == "steps on one rank":
        return replace(rank, steps=rank.steps if rank.rank else ())
    if damage in ("clock shifted", "huge times", "clock jumps"):
        by = draw.choice((1, 10**6, 10**12))
        times = {"clock shifted": lambda at: at + by * rank.rank, "huge times": lambda at: at * 10**4}
        jump = int(np.median(work.start)) if len(work) else 0
        moved = times.get(damage, lambda at: np.where(np.asarray(at) > jump, np.asarray(at) + by, at))
        tables = {
            name: replace(table, start=moved(table.start), end=moved(table.end))
            for name, table in (("work", rank.work), ("host", rank.host))
        }
        steps = tuple(Step(step.number, int(moved(step.start)), int(moved(step.end))) for step in rank.steps)
        return replace(rank, **tables, steps=steps)
    if damage == "inside an earlier span" and len(work) > 1:
        rows = np.flatnonzero(some)[1:]
        first = work.start[rows - 1] + 1
        return _moved(rank, rows, first, first + (work.end[rows - 1] - first) // 2)
    if damage in ("tiny work", "one slow rank") and (damage == "tiny work" or rank.rank):
        rows = ~comm
        factor = 1000 if damage == "one slow rank" else 0.001
        return _moved(rank, rows, work.start[rows], work.start[rows] + (work.end[rows] - work.start[rows]) * factor)
    if damage == "launches gone":
        return replace(rank, host=rank.host.take(np.array([draw.random() < 0.5 for _ in range(len(rank.host))], bool)))
    if damage == "host gone":
        return replace(rank, host=rank.host.take(slice(0, 0)))
    return replace(rank, work=work.take(slice(0, 0))) if damage == "rank gone" and rank.rank else rank


def damaged_run(seed: int) -> RunProfile:
    """Return the profile of a run of two ranks with up to two kinds of damage."""
    draw = random.Random(seed)
    on_host = draw.random() < 0.5
    ranks = Planted(steps=draw.choice((2, 6)), layers=2, jitter=0.05, slow={1: 1.3} if draw.random() < 0.5 else {},
                    syncs=draw.random() < 0.5).timelines()  # fmt: skip
    for damage in draw.sample(DAMAGES, draw.choice((1, 2))):
        ranks = [damaged(rank, damage, draw) for rank in ranks]
    return merge_run([profile_timeline(msgspec.structs.replace(rank, on_host=on_host)) for rank in ranks])


def outcome(seed: int) -> str:
    """Read a damaged run as the command does; any error that is not a refusal escapes."""
    comparison = None
    try:
        run = damaged_run(seed)
    except DensingError as error:
        return str(error)
    with suppress(DensingError):
        comparison = compare_runs(damaged_run(seed + 1), run)
        json.dumps(comparison.to_dict(), allow_nan=False)
    for change in CHANGES:
        with suppress(DensingError):
            assert plan(run.replay, change).sentence
            assert len(run.what_if_timeline(change).ranks) > 0
    if run.together is not None:
        json.dumps(run.together.what_if.to_dict())
    json.dumps(plain(run.to_dict()))
    return "\n".join(screen(run, None, comparison, 100))


@pytest.mark.parametrize("start", range(0, 24, 12))
def test_damaged_runs_end_in_a_result_or_a_refusal(start: int) -> None:
    for seed in range(start, start + 12):
        assert outcome(seed), seed

"""What ranks take on their own: exact from simulated runs, waits left out, and what cannot be told said."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from densing.efficiency.profile.own_steps import OwnSteps, largest_run, own_seconds
from densing.efficiency.profile.rank import RankProfile, profile_timeline
from densing.efficiency.simulation import Delay
from densing.efficiency.timeline.steps import StepPartition
from densing.efficiency.timeline.timeline import MARK, Kind, Lane, RankTimeline, Spans, Step
from tests.support.delay_runs import WORK_S, delayed_run
from tests.support.straggler_runs import profiles

US = 1_000


def test_a_simulated_run_gives_back_what_delayed_it() -> None:
    delay = Delay("shifted-exp", mu=10.0, lasts="step", seed=4)
    own = own_seconds(delayed_run(delay, 5, 6).ranks)
    expected = WORK_S + np.array([delay.draw(5, step) for step in range(6)]).T
    assert np.allclose(own.seconds, expected, rtol=0, atol=3e-9)
    assert own.ranks == tuple(range(5)) and own.steps == tuple(range(6)) and not own.notes


def test_a_rank_that_waits_does_not_take_longer() -> None:
    """Rank 2 computes 300 µs longer, and all end together: the wait is in the others' all-reduce."""
    own = own_seconds(profiles((0, 0, 300_000)))
    even = own_seconds(profiles((0, 0, 0)))
    assert own.seconds[:2] == even.seconds[:2]
    assert np.allclose(np.subtract(own.seconds[2], even.seconds[2]), 3e-4)


def rank(*host: dict[str, object], on_host: bool = False) -> RankProfile:
    """A step of 100 µs: compute up to 40, an all-reduce from 80 on; nothing runs between."""
    work = [{"start": 0, "end": 40 * US, "kind": Kind.COMPUTE, "name": "gemm"},
            {"start": 80 * US, "end": 100 * US, "kind": Kind.COMM, "name": "nccl_all_reduce"}]  # fmt: skip
    main = Lane("1", "main")
    mark = {"start": 0, "end": 100 * US, "kind": Kind.ANNOTATION, "name": "ProfilerStep#0", "lane": main}
    spans = Spans.build([mark, *({"kind": Kind.ANNOTATION, "lane": main, **row} for row in host)])
    return profile_timeline(RankTimeline(0, Spans.build(work), spans, (Step(0, 0, 100 * US),), on_host=on_host))


@pytest.mark.parametrize("on_host", [False, True])
def test_idle_time_is_own_unless_it_is_marked_as_a_wait(on_host: bool) -> None:
    assert own_seconds([rank(on_host=on_host)]).seconds == ((80e-6,),)
    waiting = rank({"start": 50 * US, "end": 90 * US, "name": MARK}, on_host=on_host)
    # From 80 on the all-reduce counts already.
    assert own_seconds([waiting]).seconds == ((50e-6,),) and waiting.steps[0].waited_ns == 30 * US
    other = rank({"start": 50 * US, "end": 90 * US, "name": MARK, "lane": Lane("1", "loader")}, on_host=on_host)
    assert own_seconds([other]).seconds == ((50e-6 if on_host else 80e-6,),)


def test_a_step_of_an_older_store_waited_for_nothing() -> None:
    row = rank().steps[0].to_dict()
    del row["waited_ns"]
    assert StepPartition.from_dict(row) == rank().steps[0]


def test_only_steps_that_all_ranks_recorded_count() -> None:
    ranks = profiles((0, 0, 0))
    ranks[1] = replace(ranks[1], steps=ranks[1].steps[1:])
    own = own_seconds(ranks)
    assert own.steps == (1, 2, 3) and [note.code for note in own.notes] == ["own-steps-left-out"]
    ranks[0] = replace(ranks[0], steps=ranks[0].steps[:1])
    apart = own_seconds(ranks)
    assert apart.steps == () and apart.notes[0].severity == "warning"
    assert apart.fit().status == "too few" and "own-steps-left-out" in {note.code for note in apart.fit().notes}


def test_ranks_without_steps_are_named() -> None:
    ranks = profiles((0, 0, 0))
    none = own_seconds([replace(rank, steps=()) for rank in ranks])
    assert none.size == 0 and "mark them" in none.notes[0].message and none.fit().status == "too few"
    some = own_seconds([replace(ranks[0], steps=()), *ranks[1:]])
    assert some.ranks == (1, 2) and "rank 0" in some.notes[0].message


def test_runs_are_not_put_together() -> None:
    small, large = OwnSteps((0,), (1,), ((0.5,),)), OwnSteps((0, 1), (1,), ((0.5,), (0.6,)))
    assert largest_run([small, large]).ranks == (0, 1) and largest_run([small]) == small

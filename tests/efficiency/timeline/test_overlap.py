"""Windows and the partition against a second implementation that ticks through the window."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core.errors import InputError
from densing.efficiency.timeline.intervals import length
from densing.efficiency.timeline.overlap import default_window, partition, select, unions
from densing.efficiency.timeline.timeline import Kind, RankTimeline, Spans, Step
from tests.support.spans import interval, ticks

spans = st.lists(
    st.tuples(interval, st.sampled_from([Kind.COMPUTE, Kind.COMM, Kind.MEMCPY, Kind.MEMSET, Kind.CALL, Kind.SYNC])),
    max_size=15,
)


def rank_of(rows, steps=()) -> RankTimeline:
    table = [{"start": pair[0], "end": pair[1], "kind": kind, "name": kind.name} for pair, kind in rows]
    return RankTimeline(0, Spans.build(table), Spans.empty(), steps=tuple(steps))


@given(spans, st.integers(0, 40), st.integers(0, 40))
def test_the_partition_is_what_ticking_through_the_window_gives(rows, start, size):
    rank = rank_of(rows, [Step(1, start, start + size)])
    result = partition(select(rank, "steps"))
    window = ticks([(start, start + size)])

    def of(*kinds):
        return ticks([pair for pair, kind in rows if kind in kinds]) & window

    compute, comm, memory = of(Kind.COMPUTE) - of(Kind.CALL), of(Kind.COMM), of(Kind.MEMCPY, Kind.MEMSET)
    assert result.compute_ns == len(compute)
    assert result.comm_ns == len(comm)
    assert result.memcpy_ns == len(memory)
    assert result.overlap_ns == len(comm & compute)
    assert result.exposed_comm_ns == len(comm - compute)
    assert result.exposed_memcpy_ns == len(memory - comm - compute)
    assert result.idle_ns == len(window - compute - comm - memory)
    parts = result.compute_ns + result.exposed_comm_ns + result.exposed_memcpy_ns + result.idle_ns
    assert parts == result.window_ns == size


def test_ratios_without_communication_are_absent_rather_than_zero():
    result = partition(select(rank_of([((0, 10), Kind.COMPUTE)])))
    assert result.overlap_pct is None and result.achievable_pct is None
    assert result.exposed_pct == 0
    empty = partition(select(rank_of([])))
    assert empty.window_ns == 0 and empty.exposed_pct is None


def test_the_ceiling_of_overlap_is_the_compute_there_is():
    result = partition(select(rank_of([((0, 10), Kind.COMPUTE), ((0, 40), Kind.COMM)])))
    assert result.overlap_pct == result.achievable_pct == 25


@pytest.mark.parametrize("kind", [Kind.UNKNOWN, Kind.SYNC])
def test_what_keeps_nothing_busy_neither_counts_nor_stretches_a_window(kind):
    rank = rank_of([((0, 10), kind), ((20, 30), Kind.COMPUTE), ((40, 90), kind)])
    result = partition(select(rank, "all"))
    assert (result.window_ns, result.span_ns, result.compute_ns, result.idle_ns) == (10, 10, 10, 0)


def launched(correlation, start):
    return {"start": start, "end": start + 1, "kind": Kind.LAUNCH, "name": "launch", "correlation": correlation}


def test_the_hta_window_takes_what_was_launched_before_the_last_step():
    work = Spans.build(
        [
            {"start": 10, "end": 20, "kind": Kind.COMPUTE, "name": "a", "correlation": 1},
            {"start": 110, "end": 150, "kind": Kind.COMPUTE, "name": "b", "correlation": 2},
            {"start": 160, "end": 190, "kind": Kind.COMPUTE, "name": "c", "correlation": 3},
            {"start": 0, "end": 5, "kind": Kind.COMPUTE, "name": "no launch record"},
        ]
    )
    host = Spans.build([launched(1, 2), launched(2, 90), launched(3, 101)])
    rank = RankTimeline(0, work, host, steps=(Step(1, 0, 100), Step(2, 100, 200)))
    window = select(rank, "hta")
    assert (window.start, window.end, len(window.work)) == (10, 150, 2)
    single = RankTimeline(0, work, host, steps=(Step(1, 0, 100),))
    assert len(select(single, "hta").work) == 4


def test_the_default_window_is_the_steps_where_there_are_any():
    rank = rank_of([((0, 10), Kind.COMPUTE)], [Step(3, 2, 8)])
    assert default_window(rank) == select(rank).name == "steps"
    bare = rank_of([((0, 10), Kind.COMPUTE)])
    assert select(bare).name == "all"
    with pytest.raises(InputError, match=r"no ProfilerStep.*--window all"):
        select(bare, "steps")


def test_unions_of_nothing_are_empty():
    assert length(unions(Spans.empty()).busy) == 0

"""Steps: every row equals the partition of that step alone, and spreads agree with the standard library."""

from __future__ import annotations

import json
import statistics

from hypothesis import given
from hypothesis import strategies as st

from densing.efficiency.timeline.overlap import Window, partition, select
from densing.efficiency.timeline.steps import (
    StepPartition,
    StepSpread,
    StepTimes,
    step_partitions,
    step_spread,
    step_times,
)
from densing.efficiency.timeline.timeline import Kind, RankTimeline, Spans, Step

KINDS = [Kind.COMPUTE, Kind.COMM, Kind.MEMCPY, Kind.MEMSET, Kind.SYNC, Kind.CALL, Kind.UNKNOWN]


@st.composite
def spans(draw, kinds=KINDS, top=60):
    rows = draw(st.lists(st.tuples(st.integers(-5, top), st.integers(0, 25), st.sampled_from(kinds)), max_size=14))
    return Spans.build([{"start": s, "end": s + d, "kind": k, "name": "x"} for s, d, k in rows])


@st.composite
def steps(draw):
    rows = draw(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), min_size=1, max_size=6))
    return tuple(Step(n, s, s + d) for n, (s, d) in enumerate(sorted(rows)))


@given(spans(), steps(), st.sampled_from(["steps", "all", "hta"]))
def test_each_step_is_the_partition_of_that_step(work, marks, name):
    rank = RankTimeline(0, work, Spans.empty(), steps=marks)
    window = select(rank, name)
    last = max(step.start for step in marks)
    counted = [step for step in marks if name != "hta" or len(marks) < 2 or step.start < last]
    for step, got in zip(counted, step_partitions(rank, window), strict=True):
        alone = Window(name, step.start, step.end, window.work.within(step.start, step.end))
        assert got == StepPartition(step.number, step.start, step.end, partition(alone))
        assert StepPartition.from_dict(json.loads(json.dumps(got.to_dict()))) == got


def test_a_rank_without_steps_has_no_rows():
    rank = RankTimeline(0, Spans.build([{"start": 0, "end": 5, "kind": Kind.COMPUTE, "name": "x"}]), Spans.empty())
    assert step_partitions(rank, select(rank)) == ()


def test_the_window_of_hta_has_no_row_for_the_step_it_leaves_out():
    work = [{"start": at + 20, "end": at + 60, "kind": Kind.COMPUTE, "name": "x", "correlation": at} for at in (0, 100)]
    host = [{"start": at, "end": at + 5, "kind": Kind.LAUNCH, "name": "x", "correlation": at} for at in (0, 100)]
    two = (Step(4, 0, 100), Step(5, 100, 200))

    def rows(marks, name="hta", on_host=False):
        rank = RankTimeline(0, Spans.build(work), Spans.build(host), steps=marks, on_host=on_host)
        return [(row.number, row.partition.compute_ns) for row in step_partitions(rank, select(rank, name))]

    assert rows(two) == [(4, 40)]
    assert rows(two, "steps") == rows(two, "all") == [(4, 40), (5, 40)]
    assert rows(two, on_host=True) == [(4, 40), (5, 40)], "the window of a run without device leaves nothing out"
    assert rows(two[:1]) == [(4, 40)]
    assert rows((Step(4, 0, 100), Step(4, 100, 200))) == [(4, 40), (4, 40)], "one number is one step: nothing is cut"


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=30))
def test_step_times_agree_with_the_standard_library(times):
    got, median = step_times(times), statistics.median(times)
    assert got.count == len(times) and (got.min_ns, got.max_ns) == (min(times), max(times))
    assert abs(got.median_ns - median) <= 0.5
    assert abs(got.mad_ns - statistics.median(abs(t - median) for t in times)) <= 0.5
    assert (got.max_over_median is None) == (median == 0)
    if len(times) > 1:
        ventiles = statistics.quantiles(times, n=20, method="inclusive")
        assert abs(got.p95_ns - ventiles[-1]) <= 1
    assert StepTimes.from_dict(json.loads(json.dumps(got.to_dict()))) == got


def test_no_steps_no_times():
    assert step_times([]) == StepTimes(0) and step_times([0, 0]).p95_over_median is None


def test_spread_between_ranks_by_hand():
    # Three ranks, step 7: 100, 110, 165 -> (165 - 110)/110; step 8 only on rank 2, and marked twice there.
    rows = step_spread({0: [(7, 100)], 1: [(7, 110)], 2: [(7, 165), (8, 5), (8, 6)]})
    assert rows[0] == StepSpread(7, 0, 3, 110, 165, 2, 0.5)
    rest = [(row.number, row.occurrence, row.ranks, row.spread) for row in rows[1:]]
    assert rest == [
        (8, 0, 1, None),
        (8, 1, 1, None),
    ]
    assert StepSpread.from_dict(json.loads(json.dumps(rows[0].to_dict()))) == rows[0]

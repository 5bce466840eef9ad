"""One rank: its profile as plain data, and what is noted of its trace; the sums and shares of all ranks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.efficiency.profile.rank import (
    METRICS,
    ProfileOptions,
    RankProfile,
    cut_short,
    figures,
    per_step,
    pooled,
    profile_timeline,
    run_collectives,
)
from densing.efficiency.profile.run import merge_run
from densing.efficiency.timeline.overlap import Partition
from densing.efficiency.timeline.timeline import Comm, Kind, Lane, Origin, RankTimeline, Spans, Step
from densing.efficiency.timeline.traffic import CollectiveSummary
from tests.support.spans import mixed_rank
from tests.support.straggler_runs import LAUNCH, profiles, timeline


def test_a_profile_survives_its_plain_form() -> None:
    for profile in (profiles()[1], profile_timeline(mixed_rank(3))):
        stored = json.loads(json.dumps(profile.to_dict()))
        assert json.loads(json.dumps(RankProfile.from_dict(stored).to_dict())) == stored


@pytest.mark.parametrize(
    ("comm", "kind", "on_host", "noted"),
    [
        ("GPU 1", Kind.COMM, False, [["GPU 0", "GPU 1"]]),
        ("GPU 1", Kind.MEMSET, False, [["GPU 0", "GPU 1"]]),
        ("GPU 0", Kind.COMM, False, []),
        ("GPU 1", Kind.SYNC, False, []),
        ("GPU 1", Kind.UNKNOWN, False, []),
        ("worker 2", Kind.COMM, True, []),
    ],
)
def test_work_on_several_devices_in_one_trace_is_noted(comm: str, kind: Kind, on_host: bool, noted: list[str]) -> None:
    first = {"start": 0, "end": 50, "kind": Kind.COMPUTE, "name": "gemm", "lane": Lane("GPU 0", "7")}
    second = {"start": 20, "end": 80, "kind": kind, "name": "x", "lane": Lane(comm, "20")}
    host = Spans.build([{**LAUNCH, "start": 0, "end": 1}])
    rank = RankTimeline(0, Spans.build([first, second]), host, origin=Origin("both.json"), on_host=on_host)
    notes = [note for note in profile_timeline(rank).notes if note.code == "several-devices"]
    assert [note.details["devices"] for note in notes] == noted
    assert all(note.severity == "warning" and "both.json: 2 devices" in note.message for note in notes)


def test_the_window_of_hta_counts_one_step_less() -> None:
    every, cut = (merge_run([profile_timeline(timeline(0), ProfileOptions(name))]) for name in ("all", "hta"))
    assert [len(run.ranks[0].steps) for run in (every, cut)] == [4, 3]
    assert all(step.partition.compute_ns == 400_000 for step in cut.ranks[0].steps)
    assert [run.ranks[0].partition.compute_ns / per_step(run.ranks) for run in (every, cut)] == [400_000, 400_000]


def test_figures_are_those_of_all_ranks_together() -> None:
    result = figures(profiles((0, 0)))
    assert set(result) == set(METRICS)
    assert result["step_ms"] == 1.0
    assert result["compute_pct"] == pytest.approx(40)
    assert result["exposed_pct"] == pytest.approx(49)
    assert result["overlap_pct"] == 0
    assert result["exposed_ms_per_step"] == pytest.approx(0.49)
    assert (result["ranks"], result["steps"]) == (2, 8)


@given(st.lists(st.tuples(*[st.integers(0, 1000)] * 9), min_size=1, max_size=5))
def test_pooling_adds_every_figure_up(rows: list[tuple[int, ...]]) -> None:
    total = pooled([Partition(*row) for row in rows])
    assert (total.window_ns, total.comm_ns, total.idle_ns) == tuple(sum(row[i] for row in rows) for i in (0, 3, 8))


@pytest.mark.parametrize(("sizes", "busbw"), [((2, 2), 4.0), ((4, 4), 6.0), ((2, 4), None)])
def test_groups_of_one_name_and_two_sizes_have_no_bus_bandwidth(sizes: tuple[int, int], busbw: float | None) -> None:
    ranks = []
    for rank, size in enumerate(sizes):
        comm = Comm("all_reduce", "tp", group_size=size, in_elems=100, out_elems=100, dtype="float")
        work = [{"start": 0, "end": 100, "kind": Kind.COMM, "name": "nccl", "comm": comm}]
        ranks.append(profile_timeline(RankTimeline(rank, Spans.build(work), Spans.empty())))
    [row] = merge_run(ranks).collectives
    assert (row.group_size, row.algbw_gbps, row.busbw_gbps) == (max(sizes), 4.0, busbw)


def kind(op: str = "all_reduce", group: str = "tp", **values: Any) -> CollectiveSummary:
    plain = {"group_label": "", "group_size": 4, "count": 1, "count_sized": 1, "bytes": 0, "total_ns": 0,
             "hidden_ns": 0, "exposed_ns": 0, "sum_ns": 0, "algbw_gbps": None, "busbw_gbps": None}  # fmt: skip
    return CollectiveSummary(op, group, **{**plain, **values})


def test_the_ranks_communications_are_summed_by_operation_and_group() -> None:
    first = [
        kind(count=2, bytes=600, algbw_gbps=2.0, exposed_ns=5, total_ns=9, hidden_ns=4, sum_ns=10),
        kind("barrier", "", group_label="7", exposed_ns=50),
    ]
    second = [
        kind(count=3, bytes=400, algbw_gbps=4.0, exposed_ns=7),
        kind("barrier", "", group_label="8", exposed_ns=7),
        kind(group="dp", count_sized=0, exposed_ns=1),
    ]
    rows = run_collectives([first, second])
    assert [(row.op, row.group, row.group_label, row.exposed_ns) for row in rows] == [
        ("barrier", "", "7", 50), ("all_reduce", "tp", "", 12), ("barrier", "", "8", 7), ("all_reduce", "dp", "", 1),
    ]  # fmt: skip
    summed = rows[1]
    assert (summed.count, summed.count_sized, summed.bytes, summed.total_ns, summed.hidden_ns, summed.sum_ns) == (
        5,
        2,
        1000,
        9,
        4,
        10,
    )
    # 600 bytes took 300 ns and 400 took 100; a ring of four sends 3/2 times as much.
    assert summed.algbw_gbps == pytest.approx(1000 / 400) and summed.busbw_gbps == pytest.approx(1.5 * 2.5)
    assert rows[3].algbw_gbps is None
    mixed = run_collectives(
        [[kind(bytes=8, algbw_gbps=1.0, group_size=2)], [kind(bytes=8, algbw_gbps=1.0, group_size=4)]]
    )
    assert mixed[0].algbw_gbps == 1.0 and mixed[0].busbw_gbps is None and mixed[0].group_size == 4
    alone = run_collectives([[kind(bytes=8, algbw_gbps=1.0, group_size=-1)], [kind(bytes=8, algbw_gbps=1.0)]])
    assert alone[0].group_size == 4 and alone[0].busbw_gbps == pytest.approx(1.5)


@pytest.mark.parametrize(("inside", "told"), [(499, (499, 1000)), (500, None), (1000, None)])
def test_less_than_half_of_the_communication_inside_tells_nothing_of_what_is_hidden(
    inside: int, told: tuple[int, int] | None
) -> None:
    work = [{"start": 0, "end": 1000, "kind": Kind.COMM, "name": "nccl_x", "comm": Comm("all_reduce", "0")},
            {"start": 0, "end": 10, "kind": Kind.COMPUTE, "name": "gemm"}]  # fmt: skip
    found = profile_timeline(RankTimeline(0, Spans.build(work), Spans.empty(), (Step(1, 0, inside),)))
    assert cut_short([found]) == told
    assert (figures([found])["overlap_pct"] is None) == (told is not None)

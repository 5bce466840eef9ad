"""The figures of a run: sums and shares over all ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.efficiency.profile.figures import METRICS, figures, pooled
from densing.efficiency.profile.rank import profile_timeline
from densing.efficiency.profile.run import merge_run
from densing.efficiency.timeline.overlap import Partition
from densing.efficiency.timeline.timeline import Comm, Kind, RankTimeline, Spans
from tests.support.straggler_runs import profiles


def test_figures_are_those_of_all_ranks_together() -> None:
    told = figures(profiles((0, 0)))
    assert set(told) == set(METRICS)
    assert told["step_ms"] == 1.0
    assert told["compute_pct"] == pytest.approx(40)
    assert told["exposed_pct"] == pytest.approx(49)
    assert told["overlap_pct"] == 0
    assert told["exposed_ms_per_step"] == pytest.approx(0.49)
    assert (told["ranks"], told["steps"]) == (2, 8)


@given(st.lists(st.tuples(*[st.integers(0, 1000)] * 9), min_size=1, max_size=5))
def test_pooling_adds_every_figure_up(rows: list[tuple[int, ...]]) -> None:
    whole = pooled([Partition(*row) for row in rows])
    assert (whole.window_ns, whole.comm_ns, whole.idle_ns) == tuple(sum(row[i] for row in rows) for i in (0, 3, 8))


@pytest.mark.parametrize(("sizes", "busbw"), [((2, 2), 4.0), ((4, 4), 6.0), ((2, 4), None)])
def test_groups_of_one_name_and_two_sizes_have_no_bus_bandwidth(sizes: tuple[int, int], busbw: float | None) -> None:
    ranks = []
    for rank, size in enumerate(sizes):
        comm = Comm("all_reduce", "tp", group_size=size, in_elems=100, out_elems=100, dtype="float")
        work = [{"start": 0, "end": 100, "kind": Kind.COMM, "name": "nccl", "comm": comm}]
        ranks.append(profile_timeline(RankTimeline(rank, Spans.build(work), Spans.empty())))
    [row] = merge_run(ranks).collectives
    assert (row.group_size, row.algbw_gbps, row.busbw_gbps) == (max(sizes), 4.0, busbw)

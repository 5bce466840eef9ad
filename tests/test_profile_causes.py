"""What costs time, split among causes that never claim more than was lost."""

from __future__ import annotations

import pytest
from test_profile_run import LAUNCH, STREAMS

from densing.profile.rank import RankProfile, profile_timeline
from densing.profile.run import merge_run
from densing.timeline.spans import Comm, Kind, Lane, Spans
from densing.timeline.timeline import RankTimeline, Step


def waiting_rank(rank: int, comm: tuple[int, int], compute: tuple[int, int]) -> RankProfile:
    record = Comm("all_reduce", "0", ranks=(0, 1))
    spans = ((Kind.COMM, comm, record), (Kind.COMPUTE, compute, None))
    work = [{"start": start, "end": end, "kind": kind, "name": "x", "lane": STREAMS[kind], "comm": said}
            for kind, (start, end), said in spans]  # fmt: skip
    return profile_timeline(RankTimeline(rank, Spans.build(work), Spans.empty(), (Step(1, 0, 1000),)))


@pytest.mark.parametrize(("busy_until", "waited"), [(600, 0), (700, 0), (0, 400), (250, 350), (900, 0)])
def test_a_wait_that_compute_covers_costs_nothing(busy_until: int, waited: int) -> None:
    """Rank 0 comes 400 ns before rank 1; the transfer takes the last 300 ns, until 900."""
    early = waiting_rank(0, (200, 900), (0, busy_until))
    late = waiting_rank(1, (600, 900), (0, 600))
    run = merge_run([early, late])
    costs = {code: sum(cause.ms_per_step for cause in run.causes if cause.code == code) for code in
             ("waiting-for-ranks", "exposed-communication")}  # fmt: skip
    exposed = (900 - max(busy_until, 200)) + 300
    assert costs["waiting-for-ranks"] * 2e6 == pytest.approx(waited)
    assert costs["exposed-communication"] * 2e6 == pytest.approx(exposed - waited)
    assert run.together is not None
    assert run.together.waits == {("all_reduce", "0"): 400 / 1000}


def test_copies_at_the_same_time_cost_their_union_only() -> None:
    rows = [{"start": 0, "end": 100, "kind": Kind.MEMCPY, "name": f"Memcpy {way}", "lane": Lane("GPU 0", way)}
            for way in ("HtoD", "DtoH")]  # fmt: skip
    run = merge_run([profile_timeline(RankTimeline(0, Spans.build(rows), Spans.empty()))])
    assert [cause.ms_per_step * 1e6 for cause in run.causes] == pytest.approx([50, 50])


@pytest.mark.parametrize("on_host", [False, True])
def test_idle_time_in_which_a_batch_is_fetched_is_data_loading(on_host: bool) -> None:
    work = [{"start": 0, "end": 10, "kind": Kind.COMPUTE, "name": "a", "correlation": 1},
            {"start": 90, "end": 100, "kind": Kind.COMPUTE, "name": "b", "correlation": 2}]  # fmt: skip
    host = [{"start": 10, "end": 80, "kind": Kind.ANNOTATION,
             "name": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"},
            {**LAUNCH, "start": 0, "end": 1, "correlation": 1},
            {**LAUNCH, "start": 85, "end": 88, "correlation": 2}]  # fmt: skip
    rank = RankTimeline(0, Spans.build(work), Spans.build(host), (Step(1, 0, 100),), on_host=on_host)
    run = merge_run([profile_timeline(rank)])
    [loading] = [cause for cause in run.causes if cause.code == "data-loading"]
    assert loading.ms_per_step * 1e6 == pytest.approx(70)
    assert sum(cause.ms_per_step for cause in run.causes) * 1e6 == pytest.approx(80)

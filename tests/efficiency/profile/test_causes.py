"""What costs time: causes, their order, words and remedies; what they cost is the replay's (test_replay)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from densing.cli.profile import screen
from densing.efficiency.profile.causes import Causes, _remedy, _stands_out
from densing.efficiency.profile.rank import RankProfile, profile_timeline
from densing.efficiency.profile.run import merge_run
from densing.efficiency.timeline.timeline import Comm, Kind, Lane, Origin, RankTimeline, Spans, Step
from densing.report.profile import headline
from tests.support.straggler_runs import LAUNCH, STREAMS, timeline


def waiting_rank(rank: int, comm: tuple[int, int], compute: tuple[int, int]) -> RankProfile:
    record = Comm("all_reduce", "0", ranks=(0, 1))
    spans = ((Kind.COMM, comm, record), (Kind.COMPUTE, compute, None))
    work = [{"start": start, "end": end, "kind": kind, "name": "x", "lane": STREAMS[kind], "comm": said}
            for kind, (start, end), said in spans]  # fmt: skip
    return profile_timeline(RankTimeline(rank, Spans.build(work), Spans.empty(), (Step(1, 0, 1000),)))


@pytest.mark.parametrize(("busy_until", "transfer"), [(600, 300), (700, 300), (0, 300), (250, 300), (900, 0)])
def test_a_transfer_costs_what_compute_does_not_cover(busy_until: int, transfer: int) -> None:
    """Rank 0 comes 400 ns before rank 1; the transfer takes the last 300 ns, until 900; 100 ns of idle time follow."""
    early = waiting_rank(0, (200, 900), (0, busy_until))
    late = waiting_rank(1, (600, 900), (0, 600))
    run = merge_run([early, late])
    costs = {cause.code: 1e6 * cause.gain_ms_per_step for cause in run.causes}
    assert costs.get("exposed-communication", 0) == pytest.approx(transfer)
    assert run.together is not None
    assert run.together.waits == {("all_reduce", "0"): 400 / 1000}


def test_copies_at_the_same_time_are_removed_together() -> None:
    rows = [{"start": 0, "end": 100, "kind": Kind.MEMCPY, "name": f"Memcpy {way}", "lane": Lane("GPU 0", way)}
            for way in ("HtoD", "DtoH")]  # fmt: skip
    run = merge_run([profile_timeline(RankTimeline(0, Spans.build(rows), Spans.empty()))])
    assert [(cause.code, cause.gain_ms_per_step * 1e6) for cause in run.causes] == [("exposed-copies", 100)]


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
    assert loading.gain_ms_per_step * 1e6 == pytest.approx(70)
    # Launches at 5 and 3 ns before the work, or pauses without a device, are what is left of 80 ns of idle time.
    total = sum(cause.gain_ms_per_step for cause in run.causes) + run.interaction_ms_per_step
    assert total * 1e6 == pytest.approx(80)


def test_a_cost_that_nothing_waits_for_is_no_cause() -> None:
    """A long exposed broadcast that nothing waits for gains nothing; the pause behind which all work waits does."""
    lanes = {name: Lane("GPU 0", name) for name in ("7", "20")}
    work = [
        {"start": 0, "end": 100, "kind": Kind.COMPUTE, "name": "a", "lane": lanes["7"], "correlation": 1},
        {"start": 400, "end": 1000, "kind": Kind.COMPUTE, "name": "b", "lane": lanes["7"], "correlation": 2},
        {"start": 100, "end": 300, "kind": Kind.COMM, "name": "nccl_x", "lane": lanes["20"], "correlation": 3},
    ]
    host = [{**LAUNCH, "start": at, "end": at + 5, "correlation": key} for key, at in ((1, 0), (2, 390), (3, 10))]
    # It is recorded when the host waits, and here it never does.
    host.append({**LAUNCH, "start": 396, "end": 398, "name": "cudaDeviceSynchronize"})
    run = merge_run([profile_timeline(RankTimeline(0, Spans.build(work), Spans.build(host), (Step(1, 0, 1000),)))])
    first = run.causes[0]
    assert first.code == "host-stall" and first.gain_ms_per_step * 1e6 == pytest.approx(300)
    assert "exposed-communication" not in {cause.code for cause in run.causes}
    assert headline(run).title.endswith(first.title) and first.rank is None


def test_the_rank_is_named_and_waiting_is_worth_what_even_ranks_gain() -> None:
    run = merge_run([profile_timeline(timeline(rank, late)) for rank, late in enumerate((0, 0, 300_000))])
    assert run.together is not None
    [waiting] = [cause for cause in run.causes if cause.code == "waiting-for-ranks"]
    assert waiting.rank == 2 == run.together.what_if.worst and "rank 2 in 4 of 4 steps" in waiting.message
    assert waiting.title == "ranks wait for rank 2 in all_reduce in group 0"
    found = run.together.what_if
    gain = (found.replayed_ns - found.even_ns) / 4 / 1e6
    assert waiting.gain_ms_per_step == pytest.approx(gain, rel=1e-6) and gain > 0
    even = merge_run([profile_timeline(timeline(rank)) for rank in range(3)])
    assert {cause.rank for cause in even.causes} == {None}


def test_what_causes_gain_together_is_their_sum_and_their_interaction() -> None:
    run = merge_run([profile_timeline(timeline(rank, late)) for rank, late in enumerate((0, 0, 300_000))])
    sum_ms = sum(cause.gain_ms_per_step for cause in run.causes)
    together = sum_ms + run.interaction_ms_per_step
    assert Causes(run.causes, together).interaction_ms_per_step == pytest.approx(run.interaction_ms_per_step)
    # The host that waits for a communication, and what it waits for, claim the same time.
    assert 0 < together < sum_ms
    assert run.to_dict()["replay"]["interaction_ms_per_step"] == run.interaction_ms_per_step
    gains = [cause.gain_ms_per_step for cause in run.causes]
    assert gains == sorted(gains, reverse=True)
    shown = " ".join(screen(run, None, None))
    assert f"without all {len(run.causes)}" in shown


def test_a_recorded_trace_is_not_told_to_be_recorded() -> None:
    work = Spans.build([{"start": 0, "end": 10, "kind": Kind.COMPUTE, "name": "a"}])
    for recorder, told in (("", True), ("1.0", False)):
        rank = RankTimeline(0, work, Spans.empty(), (Step(1, 0, 100),), Origin(recorder=recorder), on_host=True)
        [cause] = merge_run([profile_timeline(rank)]).causes
        assert (cause.code, "densing.timeline.record" in cause.remedy) == ("idle", told)


def test_calls_at_the_same_time_count_as_their_union_and_hidden_is_one_figure() -> None:
    """Three calls of 80 ns at once in a step of 100, 40 of which compute covers: 50 % hidden, in every place."""
    comm = Comm("all_gather", "0")
    work: list[dict[str, Any]] = [
        {"start": 10, "end": 90, "kind": Kind.COMM, "name": "nccl_x", "comm": comm, "lane": Lane("GPU 0", stream)}
        for stream in "abc"
    ]
    work.append({"start": 0, "end": 50, "kind": Kind.COMPUTE, "name": "gemm"})
    run = merge_run([profile_timeline(RankTimeline(0, Spans.build(work), Spans.empty(), (Step(1, 0, 100),)))])
    [row] = run.collectives
    assert (row.total_ns, row.exposed_ns, row.hidden_ns, row.sum_ns) == (80, 40, 40, 240)
    assert row.hidden_pct == run.figures["overlap_pct"] == run.ranks[0].partition.overlap_pct == 50
    assert any("their sum is" in line for line in screen(run, None, None))


def test_work_of_unknown_category_is_said_to_count_as_nothing_only() -> None:
    rows = [{"start": 0, "end": 10, "kind": Kind.COMPUTE, "name": "my_kernel"},
            {"start": 20, "end": 50, "kind": Kind.UNKNOWN, "name": "strange"}]  # fmt: skip
    run = merge_run([profile_timeline(RankTimeline(0, Spans.build(rows), Spans.empty()))])
    told = {line.split(")")[0].rsplit("; ", 1)[1]: line for line in screen(run, None, None) if "No rule" in line}
    assert set(told) == {"my_kernel", "strange"}
    assert "counted as compute" in told["my_kernel"] and "not counted" in told["strange"]
    assert "counted as compute" not in told["strange"] and run.figures["compute_pct"] == 100


def test_wait_and_transfer_count_what_lies_in_the_window() -> None:
    """An all-reduce that begins with the last 100 ns of the step and goes on for 900 more, as CO2's do."""
    ranks = []
    for rank, start in enumerate((900, 950)):
        comm = Comm("all_reduce", "0", ranks=(0, 1))
        work = [{"start": 0, "end": 900, "kind": Kind.COMPUTE, "name": "gemm"},
                {"start": start, "end": 1900, "kind": Kind.COMM, "name": "nccl_x", "comm": comm,
                 "lane": STREAMS[Kind.COMM]}]  # fmt: skip
        ranks.append(profile_timeline(RankTimeline(rank, Spans.build(work), Spans.empty(), (Step(1, 0, 1000),))))
    run = merge_run(ranks)
    assert run.together is not None
    [row] = run.collectives
    told = run.together.waiting["all_reduce", "0"].to_dict()
    assert row.sum_ns == told["matched_ns"] == told["wait_ns"] + told["transfer_ns"] == 150
    assert told["wait_ns"] == 50
    [note] = [note for note in run.notes if note.code == "communication-cut"]
    assert note.details == {"inside_ns": 150, "whole_ns": 1950} and note.severity == "warning"
    lines = screen(run, None, None)
    assert lines[1].startswith("share of hidden communication unknown") and not any("hidden behind" in a for a in lines)
    assert run.figures["overlap_pct"] is None and run.figures["exposed_pct"] == pytest.approx(7.5)


@pytest.mark.parametrize(
    ("row", "remedy"),
    [
        ({"op": "barrier", "count_sized": 1, "bytes": 8}, "remove the barrier"),
        ({"count_sized": 4, "bytes": 3_999_999, "hidden_pct": 50}, "send fewer, larger messages"),
        ({"count_sized": 4, "bytes": 4_000_000, "hidden_pct": 50}, "hide more of it"),
        ({"count_sized": 4, "bytes": 8_000_000, "hidden_pct": 0}, "start it earlier"),
        ({"count_sized": 0, "bytes": 0, "hidden_pct": None}, "start it earlier"),
        ({"count_sized": 0, "bytes": 0, "hidden_pct": 1.0}, "hide more of it"),
    ],
)
def test_the_remedy_of_a_communication_is_that_of_its_size_and_of_what_is_hidden(
    row: dict[str, Any], remedy: str
) -> None:
    assert _remedy(SimpleNamespace(**{"op": "all_reduce", **row})).startswith(remedy)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("of_rank", "rank"),
    [
        ({}, None),
        ({0: 9.0}, None),
        ({0: 1.0, 1: 1.2}, None),  # a tenth over the mean of 1.1 would be 1.21
        ({0: 1.0, 1: 1.23}, 1),
        ({0: 5.0, 1: 5.0, 2: 1.0}, 0),
        ({3: 0.0, 7: 2.0}, 7),
    ],
)
def test_a_rank_stands_out_by_a_tenth_of_the_mean(of_rank: dict[int, float], rank: int | None) -> None:
    assert _stands_out(of_rank) == rank


def test_a_communication_is_told_with_calls_size_speed_and_what_is_hidden() -> None:
    comm = Comm("all_reduce", "0", in_elems=500_000, out_elems=500_000, dtype="float", group_size=4)
    work = [
        {"start": 0, "end": 1_000_000, "kind": Kind.COMM, "name": "nccl_x", "comm": comm, "lane": STREAMS[Kind.COMM]},
        {"start": 0, "end": 250_000, "kind": Kind.COMPUTE, "name": "gemm"},
        {
            "start": 2_000_000,
            "end": 3_000_000,
            "kind": Kind.COMM,
            "name": "nccl_x",
            "comm": comm,
            "lane": STREAMS[Kind.COMM],
        },
    ]
    run = merge_run([profile_timeline(RankTimeline(0, Spans.build(work), Spans.empty(), (Step(1, 0, 4_000_000),)))])
    [cause] = [cause for cause in run.causes if cause.code == "exposed-communication"]
    # 2 MB in a millisecond are 2 GB/s, of which a ring of four sends 3/2 times as much: 3 GB/s.
    assert (
        cause.message
        == "all_reduce in group 0: 2 calls of 2 MB on average at 3 GB/s bus bandwidth, 12 % hidden behind compute"
    )
    # The first hides behind compute for a quarter of a millisecond, which the next does not wait for.
    assert 0 < cause.gain_pct == pytest.approx(100 * cause.gain_ms_per_step / 4)

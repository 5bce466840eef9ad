"""Time by module: what a call or a range launched is its own, what those within it launched is in its total."""

from __future__ import annotations

from pathlib import Path

import pytest

from densing.efficiency.profile.rank import RankProfile
from densing.efficiency.profile.run import merge_run, profile_run
from densing.efficiency.timeline.modules import OUTSIDE, ModuleTime, module_times, summed
from densing.efficiency.timeline.overlap import select
from densing.efficiency.timeline.timeline import Kind, Lane, RankTimeline, Spans
from densing.plots.kernels import plot_modules
from densing.report.profile import profile_page
from tests.support.spans import THREADS, call, span
from tests.support.trace_make import LAYOUTS, Event, event, kernel, write


def frame(start: int, end: int, name: str, kind: Kind = Kind.FRAME, lane: Lane = THREADS[0]) -> dict[str, object]:
    return {"start": start, "end": end, "kind": kind, "name": name, "lane": lane}


HOST = [
    frame(0, 100, "nn.Module: Net_0"),
    frame(10, 40, "nn.Module: Linear_0"),
    frame(50, 80, "nn.Module: Linear_1"),
    frame(55, 60, "loss", Kind.ANNOTATION),
    frame(0, 300, "ProfilerStep#1", Kind.ANNOTATION),
    frame(56, 59, "nccl:all_reduce", Kind.ANNOTATION),
    # Another thread, which is where autograd works, launches within the same times.
    *(call(at, at + 2, number) for at, number in ((12, 1), (20, 2), (45, 3), (57, 4), (120, 5))),
    call(30, 32, 6) | {"lane": THREADS[1]},
]
WORK = [span(200 + 100 * number, 200 + 110 * number, correlation=number) for number in range(1, 7)] + [
    span(900, 905, correlation=99)
]


def test_work_is_own_of_the_innermost_range_that_launched_it() -> None:
    rank = RankTimeline(0, Spans.build(WORK), Spans.build(HOST))
    assert module_times(rank, select(rank, "all")) == (
        ModuleTime((OUTSIDE,), 3, 115, 115),
        ModuleTime(("Net_0",), 1, 30, 100),
        ModuleTime(("Net_0", "Linear_1"), 0, 0, 40),
        ModuleTime(("Net_0", "Linear_1", "loss"), 1, 40, 40),
        ModuleTime(("Net_0", "Linear_0"), 2, 30, 30),
    )


def test_without_modules_and_ranges_there_is_nothing() -> None:
    rank = RankTimeline(0, Spans.build(WORK), Spans.build([row for row in HOST if row["kind"] == Kind.LAUNCH]))
    assert module_times(rank, select(rank, "all")) == ()


def test_on_processors_a_moment_counts_once_however_operators_nest() -> None:
    work = Spans.build([span(10, 30, lane=THREADS[0]), span(15, 20, lane=THREADS[0]), span(95, 110, lane=THREADS[0])])
    rank = RankTimeline(0, work, Spans.build(HOST), on_host=True)
    rows = {row.path: row.own_ns for row in module_times(rank, select(rank, "all"))}
    assert rows == {("Net_0", "Linear_0"): 20, ("Net_0",): 15}


def test_what_is_left_out_of_very_many_stays_in_what_it_lies_in() -> None:
    rows = [ModuleTime(("net", f"layer{number}"), 1, 10 + number, 0) for number in range(50)]
    short = summed(rows, 11)
    assert len(short) == 11 and sum(row.own_ns for row in short) == sum(row.own_ns for row in rows)
    assert short[0] == ModuleTime(("net",), 40, sum(range(10, 50)), sum(range(10, 60)))
    assert summed(summed(rows)) == summed(rows)
    twice = summed([*rows, *rows])
    assert [row.total_ns for row in twice] == [2 * row.total_ns for row in summed(rows)]


def recorded() -> list[Event]:
    rows = [event("python_function", "nn.Module: Net_0", 0, 100, **{"Python id": 3}),
            event("python_function", "train.py(7): step", 0, 150),
            event("python_function", "nn.Module: Linear_0", 10, 30, **{"Python module id": 0})]  # fmt: skip
    for number, at in ((1, 12), (2, 60)):
        rows += [event("cuda_runtime", "cudaLaunchKernel", at, 2, correlation=number),
                 kernel(ts=200 * number, dur=25 * number, correlation=number)]  # fmt: skip
    return rows


@pytest.mark.parametrize("layout", LAYOUTS)
def test_calls_of_modules_are_read_from_a_trace_whatever_its_layout(tmp_path: Path, layout: str) -> None:
    run = profile_run(write(tmp_path / "rank0.json", recorded(), layout))
    assert run.modules == (
        ModuleTime(("Net_0",), 1, 50_000, 75_000),
        ModuleTime(("Net_0", "Linear_0"), 1, 25_000, 25_000),
    )


def test_modules_add_up_over_ranks_and_survive_a_store(tmp_path: Path) -> None:
    one = profile_run(write(tmp_path / "rank0.json", recorded()))
    [rank] = one.ranks
    assert RankProfile.from_dict(rank.to_dict()).modules == rank.modules != ()
    other = RankProfile.from_dict({**rank.to_dict(), "rank": 1})
    assert [row.total_ns for row in merge_run([rank, other]).modules] == [150_000, 50_000]
    listed = list(one.modules_listing().rows or ())
    assert [(row["name"], row["share"]) for row in listed] == [("Net_0", 100.0), ("· Linear_0", pytest.approx(100 / 3))]


def test_the_icicle_hangs_modules_below_what_they_lie_in(tmp_path: Path) -> None:
    run = profile_run(write(tmp_path / "rank0.json", recorded()))
    [icicle] = plot_modules(run.modules).data
    assert icicle.parents[1] == icicle.ids[0] and icicle.parents[0] == ""
    assert list(icicle["values"]) == [75_000, 25_000] and icicle.branchvalues == "total"
    assert "modules" in [section.name for section in profile_page(run).sections]

"""Synthetic runs for the tests of the profile's figures and report: a straggler, hostile names, known lengths.

Every step of every rank: compute, an all-reduce that ends at the same moment everywhere, half of it under compute, a
copy, and a pause. Rank ``late`` begins its all-reduce last.
"""

from __future__ import annotations

from typing import Any

from densing.core.notes import Note
from densing.efficiency.profile.comparison import METRICS, RunSteps
from densing.efficiency.profile.rank import RankProfile, profile_timeline
from densing.efficiency.profile.run import RunProfile, merge_run
from densing.efficiency.timeline.timeline import Comm, Kind, Lane, Origin, RankTimeline, Spans, Step
from densing.tradeoff import DensityCost, join

HOSTILE = "<img src=x onerror=window.hacked=1>"
BREAKOUT = "</script><script>window.hacked=1</script>"
TEMPLATE = "%{x} {{ 7 * 7 }}"
FIGURES = 9
"""Of the report of a run."""
STEP = 1_000_000
"""Nanoseconds of a step; in it 500 µs compute, 300 µs from the first to the last of a common all-reduce, and so on."""
COMPUTE, LATE, EARLY, END, COPY = 500_000, 450_000, 300_000, 700_000, 40_000


def timeline(rank: int, steps: int, world: int, late: int = 1, host: bool = False, gap: int = 0) -> RankTimeline:
    """One rank: compute [0, 500), all-reduce [300 or, on the late rank, 450, 700), a copy [720, 760), then nothing."""
    comm = Comm("all_reduce", HOSTILE, BREAKOUT, world, tuple(range(world)), 1000, 1000, "float")
    streams = (Lane("GPU 0", "7"), Lane("GPU 0", f"20 {HOSTILE}"))
    work: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for number in range(steps):
        at = number * (STEP + gap)
        begin = at + (LATE if rank == late else EARLY)
        spans = [
            {"start": at, "end": at + COMPUTE, "kind": Kind.COMPUTE, "name": f"gemm {HOSTILE}", "lane": streams[0]},
            {"start": begin, "end": at + END, "kind": Kind.COMM, "name": BREAKOUT, "lane": streams[1], "comm": comm},
            {"start": at + 720_000, "end": at + 760_000, "kind": Kind.MEMCPY, "lane": streams[0], "bytes": 8000,
             "name": f"Memcpy HtoD (Pageable -> Device) {TEMPLATE}"},
        ]  # fmt: skip
        for span in spans:
            correlation = len(calls)
            calls.append({"start": span["start"] - 5000, "end": span["start"] - 1000, "kind": Kind.LAUNCH,
                          "name": f"cudaLaunchKernel {HOSTILE}", "correlation": correlation})  # fmt: skip
            work.append({**span, "correlation": correlation})
    marks = tuple(Step(10 + number, number * (STEP + gap), number * (STEP + gap) + STEP) for number in range(steps))
    origin = Origin(f"traces/{HOSTILE}{rank}.json", "file name", world, "nccl", (f"GPU {TEMPLATE}",), BREAKOUT)
    note = Note("repaired", "warning", f"event 7 {HOSTILE} repaired")
    return RankTimeline(
        rank, Spans.build(work), Spans.build(calls), marks, origin, host, events=99, skipped=1, notes=(note,)
    )


def profiles(ranks: int = 4, steps: int = 6, **options: Any) -> list[RankProfile]:
    """Profiles of a run's ranks."""
    return [profile_timeline(timeline(rank, steps, ranks, **options)) for rank in range(ranks)]


def run(ranks: int = 4, steps: int = 6, **options: Any) -> RunProfile:
    """The profile of a run."""
    return merge_run(profiles(ranks, steps, **options), options={"window": None, "comm_patterns": [HOSTILE]})


def joined(profile: RunProfile | None = None) -> DensityCost:
    """The run's model and what its training cost."""
    row = {"model": f"model {HOSTILE}", "benchmark": "mmlu", "n_eff": 7e9}
    densities = {"density": 1.8, "density_lo": 1.5, "density_hi": 2.2}
    return join([{**row, **densities}], profile, device_hours=42_000.0)


def lonely() -> RunProfile:
    """One rank, no steps, no communication, no copies, no launches."""
    work = Spans.build([{"start": 0, "end": 60, "kind": Kind.COMPUTE, "name": "gemm"}])
    return merge_run([profile_timeline(RankTimeline(0, work, Spans.empty()))])


def nothing() -> RunProfile:
    """A trace without any work."""
    return merge_run([profile_timeline(RankTimeline(0, Spans.empty(), Spans.empty()))])


def steps_of(mean: float, count: int = 8) -> RunSteps:
    """Steps of a run to be compared: every metric around one mean, with a noise of a few hundredths."""
    values = tuple(mean + (0, 2e4, 1e4, 3e4, 2e4, 0, 1e4, 3e4)[at % 8] for at in range(count))
    return RunSteps(tuple(range(count)), dict.fromkeys(METRICS, values), 4)

"""Runs of which some ranks come late to every all-reduce, and their profiles."""

from __future__ import annotations

from msgspec.structs import replace

from densing.efficiency.profile.rank import RankProfile, profile_timeline
from densing.efficiency.profile.run import RunProfile, merge_run
from densing.efficiency.timeline.timeline import Comm, Kind, Lane, Origin, RankTimeline, Spans, Step

STREAMS = {Kind.COMPUTE: Lane("GPU 0", "stream 7"), Kind.COMM: Lane("GPU 0", "stream 20")}
LAUNCH = {"kind": Kind.LAUNCH, "name": "cudaLaunchKernel", "lane": Lane("1", "1")}
A100, H100 = "NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3"


def timeline(rank: int, late: int = 0, steps: int = 4, world: int = 3) -> RankTimeline:
    """Steps of 1 ms: 400 µs of compute, then an all-reduce that ends at 900 µs; a late rank computes longer."""
    work, host, marks = [], [], []
    comm = Comm("all_reduce", "0", "default", world, tuple(range(world)), 1000, 1000, "float")
    for step in range(steps):
        at = 1_000_000 * step
        marks.append(Step(step, at, at + 1_000_000))
        for number, (kind, start, end) in enumerate(
            ((Kind.COMPUTE, 10_000, 410_000 + late), (Kind.COMM, 410_000 + late, 900_000))
        ):
            key = 10 * step + number
            row = {"start": at + start, "end": at + end, "kind": kind, "name": f"nccl{kind.name}", "correlation": key}
            work.append({**row, "lane": STREAMS[kind], **({"comm": comm} if kind == Kind.COMM else {})})
            host.append({**LAUNCH, "start": at + number * 1000, "end": at + number * 1000 + 500, "correlation": key})
    origin = Origin(f"rank{rank}.json", "distributedInfo", world, "nccl", ("NVIDIA A100-SXM4-40GB",))
    return RankTimeline(rank, Spans.build(work), Spans.build(host), tuple(marks), origin)


def profiles(lates: tuple[int, ...] = (0, 100_000, 300_000)) -> list[RankProfile]:
    """Profiles of a run of as many ranks as there are delays, in nanoseconds."""
    return [profile_timeline(timeline(rank, late)) for rank, late in enumerate(lates)]


def changed(**fields: tuple[object, ...]) -> RunProfile:
    """Merge ranks of which single fields are replaced, rank by rank."""
    ranks: list[RankProfile] = profiles((0, 0, 0))
    for name, values in fields.items():
        ranks = [replace(rank, **{name: value}) for rank, value in zip(ranks, values, strict=True)]
    return merge_run(ranks)

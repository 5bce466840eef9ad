"""Ranks for tests of collectives: synthetic runs with known answers, and a slow reader of one public set."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from densing.efficiency.timeline.classifier import Classifier
from densing.efficiency.timeline.overlap import WindowName, select, unions
from densing.efficiency.timeline.timeline import Comm, Kind, Lane, Origin, RankTimeline, Spans, Step
from densing.efficiency.timeline.traffic import Collectives, collectives_of
from tests.support import folders

SHARED = folders.SHARED
DLRM = folders.TRACES / "param_dlrm_8rank"


def golden(name: str) -> list[dict[str, str]]:
    """Return the rows of a golden table."""
    return list(csv.DictReader((folders.TRACES / "golden" / name).read_text(encoding="utf-8").splitlines()))


def rank_of(
    rank: int,
    comms: Iterable[tuple[int, int, Comm]],
    compute: Iterable[tuple[int, int]] = (),
    steps: Sequence[tuple[int, int, int]] = (),
    origin: Origin | None = None,
    launches: Mapping[int, int] | None = None,
    lanes: Sequence[str] | None = None,
) -> RankTimeline:
    """Build a rank from (start, end, record) of communications and (start, end) of compute.

    ``launches`` gives, by position of a communication, the start of its launch; ``lanes`` its stream.
    """
    rows: list[dict[str, Any]] = [
        {"start": start, "end": end, "kind": Kind.COMM, "name": f"nccl_{comm.op}", "comm": comm, "correlation": number,
         "lane": Lane("GPU 0", lanes[number] if lanes else "7")}
        for number, (start, end, comm) in enumerate(comms)
    ]  # fmt: skip
    rows += [{"start": start, "end": end, "kind": Kind.COMPUTE, "name": "gemm"} for start, end in compute]
    host = [{"start": start, "end": start + 1, "kind": Kind.LAUNCH, "name": "cudaLaunchKernel", "correlation": number}
            for number, start in (launches or {}).items()]  # fmt: skip
    marks = tuple(Step(*step) for step in steps)
    return RankTimeline(rank, Spans.build(rows), Spans.build(host), marks, origin or Origin())


def collected(rank: RankTimeline, window: WindowName | None = None) -> Collectives:
    """Return the collectives of a rank in a window."""
    chosen = select(rank, window)
    return collectives_of(rank, chosen, unions(chosen.work))


def world(size: int) -> Origin:
    """Return the header of a run with one process group."""
    return Origin(world_size=size, groups={"0": tuple(range(size))})


def dlrm_rank(path: Path) -> RankTimeline:
    """Read one DLRM file with json and Decimal only: what the readers do fast, done slowly.

    Each collective's record is the ``nccl:*`` range inside which its kernel was launched.
    """
    document = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    classifier = Classifier()
    events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    times = {id(event): (int(event["ts"] * 1000), int((event["ts"] + event["dur"]) * 1000)) for event in events}
    ranges = [event for event in events if event["name"].startswith("nccl:")]
    launched = {event["args"].get("correlation"): event for event in events if event["cat"] == "cuda_runtime"}
    work, host, steps = [], [], []
    for event in events:
        start, end = times[id(event)]
        number = event.get("args", {}).get("correlation", -1)
        if event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset"):
            kind = classifier.kind(event["cat"], event["name"])
            lane = Lane("GPU", str(event["args"]["stream"]))
            record = _record(launched[number], ranges, classifier) if kind == Kind.COMM else None
            work.append({"start": start, "end": end, "kind": kind, "name": event["name"], "lane": lane,
                         "correlation": number, "comm": record})  # fmt: skip
        elif event["cat"] == "cuda_runtime":
            host.append({"start": start, "end": end, "kind": Kind.LAUNCH, "name": event["name"], "correlation": number})
        elif event["name"].startswith("ProfilerStep#"):
            steps.append(Step(int(event["name"].partition("#")[2]), start, end))
    info = document["distributedInfo"]
    origin = Origin(str(path), "distributedInfo", info["world_size"], info["backend"])
    return RankTimeline(info["rank"], Spans.build(work), Spans.build(host), tuple(sorted(steps)), origin)


def _record(launch: Mapping[str, Any], ranges: Sequence[Mapping[str, Any]], classifier: Classifier) -> Comm:
    [around] = [
        event
        for event in ranges
        if event["tid"] == launch["tid"] and event["ts"] <= launch["ts"] < event["ts"] + event["dur"]
    ]
    elements = 1
    for side in around["args"]["Input Dims"][0]:
        elements *= side
    return Comm(op=classifier.op(around["name"]), in_elems=elements, dtype=around["args"]["Input type"][0])

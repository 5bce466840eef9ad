"""Small traces made for tests: events by kind, files in the layouts met in the wild."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

from densing.efficiency.timeline.overlap import Partition, partition, select
from densing.efficiency.timeline.timeline import RankTimeline
from densing.efficiency.traces.run import read_rank
from densing.efficiency.traces.source import Limits, TraceFile

Event = dict[str, Any]

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
HEADER = {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2}}


def event(category: str, name: str, ts: Any, dur: Any, **args: Any) -> Event:
    """A complete event."""
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": args}


def kernel(
    name: str = "gemm", ts: Any = 10, dur: Any = 50, stream: int = 7, correlation: int = 5, **args: Any
) -> Event:
    """A kernel."""
    return event("kernel", name, ts, dur, stream=stream, device=0, correlation=correlation, **args)


def good() -> list[Event]:
    """One step of 100 µs: compute 10 to 60, communication 40 to 80."""
    return [
        event("user_annotation", "ProfilerStep#1", 0, 100),
        event("cuda_runtime", "cudaLaunchKernel", 1, 1, correlation=5),
        event("cuda_runtime", "cudaLaunchKernel", 3, 1, correlation=6),
        kernel(),
        kernel(ALL_REDUCE, 40, 40, stream=20, correlation=6),
    ]


# What good() holds, µs: compute, communication, what of it is hidden, what is exposed.
GOOD = (50.0, 40.0, 20.0, 20.0)


def text_of(events: list[Event], header: dict[str, Any] | None = None, layout: str = "minified") -> str:
    """The JSON text of a trace in one of the layouts of LAYOUTS."""
    document = {**(HEADER if header is None else header), "traceEvents": events}
    if layout == "array":
        return json.dumps(events)
    if layout == "indented":
        return json.dumps(document, indent=1)
    if layout == "keys_after":
        return json.dumps({"traceEvents": events, **document, "deviceProperties": [{"name": "A"}, {"name": "B"}]})
    if layout == "sorted":
        return json.dumps(document, sort_keys=True)
    if layout == "shuffled":
        shuffled = [dict(random.Random(i).sample(list(e.items()), len(e))) for i, e in enumerate(events)]
        return json.dumps({**document, "traceEvents": shuffled}, separators=(", ", " : "))
    if layout == "old":
        text = json.dumps(document, indent=2)
        return re.sub(r'"ph": "(.)",\s+"cat": "(\w+)",\s+', r'"ph": "\1", "cat": "\2", ', text)
    return json.dumps(document, separators=(",", ":"))


LAYOUTS = ("minified", "indented", "keys_after", "sorted", "shuffled", "old")


def write(path: Path, events: list[Event] | str | bytes, layout: str = "minified", **header: Any) -> Path:
    """Write a trace; text and bytes go as they are, a name that ends in .gz is compressed."""
    if isinstance(events, list):
        events = text_of(events, {**HEADER, **header}, layout)
    data = events.encode() if isinstance(events, str) else events
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read(path: Path, **options: Any) -> RankTimeline:
    """Read one file; ``chunk`` gives the chunk size."""
    chunk = options.pop("chunk", None)
    if chunk:
        options["limits"] = Limits(chunk_bytes=chunk)
    return read_rank(TraceFile(path), **options)


def parts(timeline: RankTimeline, window: str = "all") -> tuple[float, float, float, float]:
    """Compute, communication, overlap and exposed communication in µs."""
    found: Partition = partition(select(timeline, window))  # type: ignore[arg-type]
    return tuple(  # type: ignore[return-value]
        value / 1000 for value in (found.compute_ns, found.comm_ns, found.overlap_ns, found.exposed_comm_ns)
    )

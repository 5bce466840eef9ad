"""A second reader of traces, by other means: the standard library's parser, exact decimals, one loop per fact.

It knows nothing of chunks, structs or damage; where it and :mod:`densing.efficiency.traces.kineto` differ, one is
wrong.
"""

from __future__ import annotations

import gzip
import json
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

from densing.efficiency.timeline.timeline import Kind, RankTimeline, Spans

Row = tuple[int, int, str, int, int]

DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "mtia_ccp_events", "Kernel", "Memcpy", "Memset"}
LAUNCH = {"cuda_runtime", "cuda_driver", "Runtime", "xpu_runtime", "mtia_runtime", "privateuse1_runtime"}


def ns(microseconds: Any) -> int:
    """Nanoseconds of a decimal number of microseconds, half to even."""
    return int((Decimal(microseconds) * 1000).to_integral_value(rounding=ROUND_HALF_EVEN))


def load(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Events and header."""
    data = path.read_bytes()
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    found = json.loads(text, parse_float=Decimal)
    return (found, {}) if isinstance(found, list) else (found["traceEvents"], found)


def rows(events: list[dict[str, Any]], header: dict[str, Any], categories: set[str]) -> list[Row]:
    """Start, end, name, correlation and bytes of the complete events of some categories, in order of time."""
    base = int(header.get("baseTimeNanoseconds", 0))
    found = []
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in categories:
            start = base + ns(event["ts"])
            args = event.get("args") or {}
            end = start + ns(event["dur"])
            found.append((start, end, event["name"], args.get("correlation", -1), args.get("bytes", -1)))
    return sorted(found)


def steps(events: list[dict[str, Any]], header: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Number, start and end of the host's step marks."""
    marks = [
        event for event in events if event.get("cat") == "user_annotation" and event["name"].startswith("ProfilerStep#")
    ]
    return sorted(
        (
            (int(name.partition("#")[2]), start, end)
            for start, end, name, _, _ in rows(marks, header, {"user_annotation"})
        ),
        key=lambda step: step[1],
    )


def spans_of(spans: Spans) -> list[Row]:
    """The same facts of a span table."""
    names = [spans.names[i] for i in spans.name]
    columns = (spans.start, spans.end, spans.correlation, spans.bytes)
    start, end, correlation, size = (column.tolist() for column in columns)
    return sorted(zip(start, end, names, correlation, size, strict=True))


def differences(path: Path, timeline: RankTimeline) -> list[str]:
    """Say in what a timeline and this reader differ; nothing if they agree."""
    events, header = load(path)
    launches = timeline.host.of(Kind.LAUNCH)
    pairs = {
        "device work": (spans_of(timeline.work), rows(events, header, DEVICE)),
        "launches": (spans_of(launches), [(*row[:4], -1) for row in rows(events, header, LAUNCH)]),
        "ranges": (
            spans_of(timeline.host.of(Kind.ANNOTATION)),
            [(*row[:3], -1, -1) for row in rows(events, header, {"user_annotation"})],
        ),
        "steps": ([tuple(step) for step in timeline.steps], steps(events, header)),
        "events": (timeline.events, len(events)),
    }
    return [f"{what}: {mine} is not {theirs}"[:2000] for what, (mine, theirs) in pairs.items() if mine != theirs]

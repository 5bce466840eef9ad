"""Traces written back with what a profile found, one as it was and several on a common clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from densing.efficiency.profile.rank import ProfileOptions
from densing.efficiency.profile.tracks import write_profiled
from densing.efficiency.traces import TraceFile

EVENTS = [
    {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": {"stream": 7}}
    for name, ts, dur in (("gemm", 10, 50), ("my_ring", 60, 20), ("gemm", 90, 10))
]


def written(folder: Path, count: int, **options: Any) -> tuple[int, list[dict[str, Any]]]:
    """Write so many traces, profile them into one, and return how many ranks it has, and its events."""
    traces = []
    for rank in range(count):
        file = folder / f"rank{rank}.json"
        file.write_text(json.dumps({"distributedInfo": {"rank": rank, "world_size": count}, "traceEvents": EVENTS}))
        traces.append(TraceFile(file))
    number = write_profiled(traces, folder / "out.json", **options)
    return number, json.loads((folder / "out.json").read_text())["traceEvents"]


def rows(events: list[dict[str, Any]]) -> dict[tuple[Any, str], list[tuple[float, float]]]:
    """Return start and duration of the spans of each row laid over, by process and name."""
    named = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    found: dict[tuple[Any, str], list[tuple[float, float]]] = {}
    for event in events:
        name = named.get((event.get("pid"), event.get("tid")), "")
        if event["ph"] == "X" and name in ("exposed communication", "idle"):
            found.setdefault((event["pid"], name), []).append((event["ts"], event["dur"]))
    return found


def test_one_trace_keeps_its_events_and_names_are_read_as_the_options_say(tmp_path: Path) -> None:
    number, events = written(tmp_path, 1)
    assert number == 1 and events[-3:] == EVENTS
    assert [name for _, name in rows(events)] == ["idle"]
    number, events = written(tmp_path, 1, options=ProfileOptions(comm_patterns=("my_ring",)))
    assert list(rows(events).values()) == [[(60, 20)], [(80, 10)]]
    assert [name for _, name in rows(events)] == ["exposed communication", "idle"]


def test_several_traces_are_one_file_with_clocks_put_right(tmp_path: Path) -> None:
    number, plain = written(tmp_path, 3)
    assert number == 3
    gaps = list(rows(plain).values())
    assert len(gaps) == 3 and all(gap == gaps[0] for gap in gaps)
    # The clock of rank 1 is 5 µs ahead: what it recorded happened before.
    _, moved = written(tmp_path, 3, offsets={1: 5_000})
    first, second, third = (gap[0][0] for gap in rows(moved).values())
    assert first == third and first - second == 5

"""Traces written back with what a profile found, one as it was and several on a common clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from densing.efficiency.profile.rank import ProfileOptions
from densing.efficiency.profile.run import profile_run
from densing.efficiency.profile.tracks import write_profiled, write_slice
from densing.efficiency.timeline.timeline import Kind, RankTimeline, Spans, Timeline
from densing.efficiency.traces import TraceFile, read_timeline

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


def test_a_slice_holds_the_gap_and_what_is_near_it(tmp_path: Path) -> None:
    far = [(f"k{i}", 10_000 * i, 100) for i in range(20)]
    rows = [*far, ("late", 900_000, 100)]
    events = [{**EVENTS[0], "name": name, "ts": ts, "dur": dur} for name, ts, dur in rows]
    file = tmp_path / "rank0.json"
    file.write_text(json.dumps({"traceEvents": [*events, {**EVENTS[0], "ts": 9_000_000}]}))
    write_slice(TraceFile(file), tmp_path / "slice.json", 890_000_000, 900_000_000)
    [rank] = read_timeline(tmp_path / "slice.json").ranks
    assert [rank.work.names[name] for name in rank.work.name] == ["late"]
    shown = json.loads((tmp_path / "slice.json").read_text())["traceEvents"]
    assert [event["dur"] for event in shown if event["name"] == "gap" and event["ph"] == "X"] == [10_000]


def test_one_long_gap_is_no_reason_to_fuse_kernels() -> None:
    def advice(starts: list[int]) -> str:
        call = {"kind": Kind.LAUNCH, "name": "cudaLaunchKernel"}
        work = [{"start": at, "end": at + 10**6, "kind": Kind.COMPUTE, "name": "gemm", "correlation": i}
                for i, at in enumerate(starts)]  # fmt: skip
        host = [{**call, "start": i, "end": i + 1, "correlation": i} for i in range(len(starts))]
        run = profile_run(Timeline((RankTimeline(0, Spans.build(work), Spans.build(host)),)))
        return next(cause.message + cause.remedy for cause in run.causes if cause.code == "idle")

    one = advice([10, 10**6 + 20, 464 * 10**6, 465 * 10**6 + 20])
    assert "one gap of 462 ms" in one and "--slice" in one and "fuse" not in one
    many = advice([10 + 2 * i * 10**6 for i in range(40)])
    assert "fuse small kernels" in many and "one gap" not in many

"""Layouts, categories, chunks and joins: the same events give the same timeline however they are written."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densing.efficiency.timeline.timeline import Kind, Lane, RankTimeline, Step
from densing.efficiency.traces.kineto.events import ROLES, Role
from densing.efficiency.traces.kineto.reader import Mark, merge_marks
from tests.support.trace_make import ALL_REDUCE, GOOD, LAYOUTS, event, good, kernel, parts, read, write
from tests.support.trace_oracle import differences

times = st.integers(0, 10**7) | st.decimals(0, 10**7, places=3).map(float)
names = st.sampled_from(["gemm", ALL_REDUCE, "ProfilerStep#3", 'odd "name" \\ {} [] },{"ph":', "é\u2028\x7f", ""])
categories = st.sampled_from([*ROLES, "", "brand_new"])


@st.composite
def events(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Events of all categories with the fields that Kineto writes, some without."""
    found = []
    for i in range(draw(st.integers(1, 40))):
        one = event(
            draw(categories), draw(names), draw(times), draw(times), correlation=i, bytes=draw(st.integers(-1, 99))
        )
        if one["cat"] in ("kernel", "gpu_memcpy"):
            one["args"]["stream"] = draw(st.sampled_from([7, 20]))
        if draw(st.booleans()):
            one["pid"] = draw(st.sampled_from([1, "GPU 0", ""]))
        if not one["cat"]:
            del one["cat"]
        found.append(one)
    found.append({"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7"}})
    return found


def facts(timeline: RankTimeline) -> dict[str, Any]:
    """Everything of a timeline that does not depend on the file's name."""
    # Spans with one start and one end have no order among themselves.
    tables = [
        sorted(
            zip(
                *(getattr(spans, key).tolist() for key in ("start", "end", "kind", "bytes", "correlation")),
                [spans.names[i] for i in spans.name],
                [spans.lanes[i] for i in spans.lane],
                strict=True,
            )
        )
        for spans in (timeline.work, timeline.host)
    ]
    notes = sorted((note.code, note.message.partition(": ")[2].partition(" (")[0]) for note in timeline.notes)
    counts = (timeline.events, timeline.skipped, timeline.repaired, timeline.on_host)
    return {
        "tables": tables,
        "notes": notes,
        "counts": counts,
        "steps": timeline.steps,
        "origin": timeline.origin.groups,
    }


@settings(max_examples=60)
@given(events(), st.sampled_from(LAYOUTS), st.sampled_from([48, 200, 999, 1 << 20]))
def test_layout_and_chunk_do_not_matter(made: list[dict[str, Any]], layout: str, chunk: int) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.json"
        expected = facts(read(write(path, made)))
        assert facts(read(write(path, made, layout), chunk=chunk)) == expected


@settings(max_examples=60)
@given(events(), st.sampled_from(LAYOUTS))
def test_every_layout_against_the_second_reader(made: list[dict[str, Any]], layout: str) -> None:
    """The second reader knows only Kineto's own names of launches; others are left to the table's test."""
    kinds = ("kernel", "gpu_memcpy", "Memset", "cuda_runtime", "Runtime", "user_annotation", "cpu_op", "ac2g")
    kept = [e for e in made if e.get("cat") in kinds] + [kernel()]
    with TemporaryDirectory() as folder:
        path = write(Path(folder) / "rank0.json", kept, layout)
        timeline = read(path, detail="device")
        assert [d for d in differences(path, timeline) if not d.startswith("steps")] == []


@pytest.mark.parametrize("layout", [*LAYOUTS, "array"])
def test_the_good_trace_in_every_layout(tmp_path: Path, layout: str) -> None:
    timeline = read(write(tmp_path / "rank0.json", good(), layout))
    assert (parts(timeline), parts(timeline, "steps"), parts(timeline, "hta")) == (GOOD, GOOD, GOOD)
    assert [tuple(step) for step in timeline.steps] == [(1, 0, 100_000)]
    assert timeline.origin.world_size == (-1 if layout == "array" else 2)


WORK = {
    "kernel": Kind.COMPUTE,
    "Kernel": Kind.COMPUTE,
    "mtia_ccp_events": Kind.COMPUTE,
    "gpu_memcpy": Kind.MEMCPY,
    "Memcpy": Kind.MEMCPY,
    "mlu_memcpy": Kind.MEMCPY,
    "gpu_memset": Kind.MEMSET,
    "Memset": Kind.MEMSET,
    "cuda_sync": Kind.SYNC,
    "xpu_sync": Kind.SYNC,
}


@pytest.mark.parametrize("category", sorted(WORK))
def test_device_categories(tmp_path: Path, category: str) -> None:
    made = [event(category, "matmul", 1, 2, device=1), kernel("other", ts=50)]
    work = read(write(tmp_path / "rank0.json", made)).work
    assert [(work.names[n], Kind(k)) for n, k in zip(work.name, work.kind, strict=True)] == [
        ("matmul", WORK[category]),
        ("other", Kind.COMPUTE),
    ]


@pytest.mark.parametrize(
    "category", [c for c, role in ROLES.items() if role is Role.LAUNCH] + ["gcu_runtime", "mlu_driver"]
)
def test_launch_categories(tmp_path: Path, category: str) -> None:
    timeline = read(write(tmp_path / "rank0.json", [event(category, "launch", 1, 2, correlation=5), kernel()]))
    assert timeline.host.kind.tolist() == [Kind.LAUNCH] and timeline.host.correlation.tolist() == [5]
    assert not timeline.notes or {note.severity for note in timeline.notes} == {"info"}


@pytest.mark.parametrize("category", [c for c, role in ROLES.items() if role is Role.SKIP] + ["mlu_counters"])
def test_categories_without_work(tmp_path: Path, category: str) -> None:
    made = [event(category, "ProfilerStep#1", 1, 2, stream=7, device=0, correlation=9), kernel()]
    timeline = read(write(tmp_path / "rank0.json", made))
    assert (len(timeline.work), len(timeline.host), timeline.steps) == (1, 0, ())


def test_a_gpu_copy_of_the_step_marker_is_no_step(tmp_path: Path) -> None:
    """HTA's third defect in traces.md: the copy on the device's row moves its cut."""
    made = [*good(), event("gpu_user_annotation", "ProfilerStep#1", 500, 100)]
    assert len(read(write(tmp_path / "rank0.json", made)).steps) == 1


def step(number: int | str, ts: float, dur: float, tid: int = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 9, "tid": tid, "ts": ts,
            "dur": dur}  # fmt: skip


MARKS = {
    "as it should be": ([step(1, 0, 10), step(2, 10, 10)], [(1, 0, 10), (2, 10, 20)], 0),
    "two threads, shifted": (
        [step(1, 0, 10), step(2, 10, 10), step(3, 20, 10), step(1, -1, 10, 2), step(2, 9, 10, 2)],
        [(1, 0, 10), (2, 10, 20), (3, 20, 30)],
        2,
    ),
    "two threads, equally many": (
        [step(1, 3, 10), step(2, 11, 10), step(1, 2, 10, 2), step(2, 12, 10, 2)],
        [(1, 2, 12), (2, 12, 22)],
        2,
    ),
    "threads share the steps": ([step(1, 0, 10), step(2, 10, 10, 2)], [(1, 0, 10), (2, 10, 20)], 0),
    "nested": ([step(1, 0, 10), step(7, 1, 8), step(7, 2, 2), step(2, 10, 10)], [(1, 0, 10), (2, 10, 20)], 2),
    "nested at an edge": ([step(1, 0, 10), step(7, 0, 4), step(8, 6, 4)], [(1, 0, 10)], 2),
    "held by an earlier, longer one": ([step(1, 0, 30), step(2, 5, 30), step(3, 20, 10)], [(1, 0, 30), (2, 5, 35)], 1),
    "overlapping": ([step(1, 0, 12), step(2, 10, 10)], [(1, 0, 12), (2, 10, 20)], 0),
    "two recordings": ([step(1, 0, 10), step(1, 50, 10)], [(1, 0, 10), (1, 50, 60)], 0),
}


@pytest.mark.parametrize("case", MARKS)
@pytest.mark.parametrize("backwards", [False, True])
def test_each_step_counts_once(tmp_path: Path, case: str, backwards: bool) -> None:
    marks, expected, left_out = MARKS[case]
    made = [kernel(), *({**mark, "ts": mark["ts"] + 100} for mark in (marks[::-1] if backwards else marks))]
    timeline = read(write(tmp_path / "rank0.json", made))
    assert [(number, start // 1000 - 100, end // 1000 - 100) for number, start, end in timeline.steps] == expected
    told = [note.details["count"] for note in timeline.notes if note.code == "steps-merged"]
    assert told == ([left_out] if left_out else [])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(0, 9), st.integers(0, 2)), max_size=9))
def test_marks_against_every_pair(rows: list[tuple[int, int, int, int]]) -> None:
    marks = sorted((Mark(Step(n, s, s + d), lane) for n, s, d, lane in rows), key=lambda mark: mark.step.start)
    lanes = {mark.lane for mark in marks}

    def rank(lane: int) -> tuple[int, int, int]:
        starts = [mark.step.start for mark in marks if mark.lane == lane]
        return -len(starts), min(starts), lane

    holder = {n: min((x for x in lanes if any(m.lane == x and m.step.number == n for m in marks)), key=rank)
              for n in {mark.step.number for mark in marks}}  # fmt: skip
    alone = [mark.step for mark in marks if mark.lane == holder[mark.step.number]]
    outer = [a for a in alone if not any(b.start <= a.start < b.end >= a.end and b[1:] != a[1:] for b in alone)]
    assert sorted(merge_marks(marks)) == sorted(outer)


def test_an_operator_with_a_stream_is_no_device_work(tmp_path: Path) -> None:
    """HTA's fourth defect: Triton launches are cpu_op with a stream argument."""
    made = [*good(), event("cpu_op", "triton_poi_fused", 200, 50, stream=7, correlation=5)]
    assert parts(read(write(tmp_path / "rank0.json", made))) == GOOD


@pytest.mark.parametrize("count", [1, 500])
def test_unknown_categories_are_listed_never_counted(tmp_path: Path, count: int) -> None:
    made = [event("tpu_op" if i % 2 else "brand_new", f"new{i}", i, 1, stream=3) for i in range(2 * count)]
    timeline = read(write(tmp_path / "rank0.json", [*made, *good()]), chunk=2048)
    assert parts(timeline) == GOOD
    assert len(timeline.work.of(Kind.UNKNOWN)) == 2 * count
    found = {
        note.details["category"]: note.details["count"] for note in timeline.notes if note.code == "category-unknown"
    }
    assert found == {"tpu_op": count, "brand_new": count}


def test_endless_new_categories_make_no_endless_types(tmp_path: Path) -> None:
    made = [event(f"category{i}", "x", i, 1, stream=1) for i in range(300)]
    timeline = read(write(tmp_path / "rank0.json", [*made, *good()]), chunk=1024)
    notes = [note for note in timeline.notes if note.code == "category-unknown"]
    assert sum(note.details["count"] for note in notes) == 300 and len(notes) <= 65
    assert len(timeline.work.of(Kind.UNKNOWN)) == 300


def test_events_without_category_are_counted_in_a_note(tmp_path: Path) -> None:
    bare = [{"ph": "X", "name": "task", "pid": "Ascend Hardware", "tid": 1, "ts": 1, "dur": 2}] * 3
    timeline = read(write(tmp_path / "rank0.json", [*bare, *good()]))
    (note,) = [note for note in timeline.notes if note.code == "category-missing"]
    assert note.details == {"process": "Ascend Hardware", "count": 3} and parts(timeline) == GOOD


def test_begin_and_end_events_are_counted_in_a_note(tmp_path: Path) -> None:
    made = [{**kernel(), "ph": "B"}, {"ph": "E", "ts": 9}, *good()]
    (note,) = [note for note in read(write(tmp_path / "rank0.json", made)).notes if note.code == "phase-unknown"]
    assert note.details["count"] == 2


def test_the_first_profiler_of_autograd(tmp_path: Path) -> None:
    """Its export is an array of events without category; processes tell device from processor."""
    made = [
        {"name": "aten::mm", "ph": "X", "ts": 1.0, "dur": 5.0, "tid": 1, "pid": "CPU functions", "args": {}},
        {"name": "volta_sgemm", "ph": "X", "ts": 10.0, "dur": 50.0, "tid": 0, "pid": "CUDA functions", "args": {}},
    ]
    timeline = read(write(tmp_path / "rank0.json", made, "array"))
    assert parts(timeline) == (50.0, 0.0, 0.0, 0.0)
    assert timeline.work.lanes[timeline.work.lane[0]] == Lane("CUDA functions", "0", "")


def test_work_is_sorted_longer_first_and_typed(tmp_path: Path) -> None:
    made = [kernel("c", ts=5, dur=1), kernel("a", ts=5, dur=9), kernel("b", ts=1, dur=1)]
    work = read(write(tmp_path / "rank0.json", made)).work
    assert [work.names[i] for i in work.name] == ["b", "a", "c"]
    types = {
        key: getattr(work, key).dtype
        for key in ("start", "end", "kind", "name", "lane", "bytes", "correlation", "comm")
    }
    assert types == {
        "start": np.int64,
        "end": np.int64,
        "kind": np.int8,
        "name": np.int32,
        "lane": np.int32,
        "bytes": np.int64,
        "correlation": np.int64,
        "comm": np.int32,
    }

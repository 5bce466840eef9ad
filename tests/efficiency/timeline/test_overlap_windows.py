"""The three windows against a sweep over boundaries, written from the rule alone, on traces of odd make."""

from __future__ import annotations

import itertools
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from densing.efficiency.timeline.overlap import partition, select
from densing.efficiency.timeline.steps import picture, step_partitions
from tests.support.trace_make import LAYOUTS, event, read, write
from tests.support.trace_oracle import ns

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "mtia_ccp_events")
# Correlations of these are no launches; `mtia_ccp_events` is not among them.
NO_LAUNCH = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_sync", "overhead")
NAMES = {
    "gemm": "K",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)": "C",
    "void vllm::cross_device_reduce_1stage<float>": "C",
    "Memcpy HtoD (Pinned -> Device)": "M",
    "__amd_rocclr_fillBufferAligned": "M",
    "elementwise_nccl_cast": "C",
}


class Sweep:
    """What the rule of the reference numbers gives, by its words: one loop over moments, no unions."""

    def __init__(self, events: list[dict[str, Any]], window: str) -> None:
        spans = [(*edges(e), e) for e in events if e["ph"] == "X"]
        marks = [(s, t, e["name"]) for s, t, e in spans
                 if e["cat"] == "user_annotation" and e["name"].startswith("ProfilerStep")]  # fmt: skip
        work = [(s, t, e) for s, t, e in spans if e["cat"] in DEVICE]
        if window == "hta" and len({name for _, _, name in marks}) > 1:
            cut = max(start for start, _, _ in marks)
            launched = {e["args"].get("correlation") for s, _, e in spans if e["cat"] not in NO_LAUNCH and s < cut}
            work = [row for row in work if row[2]["args"].get("correlation", "none") in launched]
        self.steps = bool(marks)
        low = high = 0
        if work:
            low, high = min(s for s, _, _ in work), max(t for _, t, _ in work)
        if window == "steps" and marks:
            low, high = min(s for s, _, _ in marks), max(t for _, t, _ in marks)
        rows = [(max(s, low), min(t, high), kind_of(e)) for s, t, e in work if inside(s, t, low, high, window)]
        self.n_gpu = len(rows)
        self.times = self._sweep(rows, low, high)

    @staticmethod
    def _sweep(rows: list[tuple[int, int, str]], low: int, high: int) -> dict[str, int]:
        moments = sorted({low, high, *(m for s, t, _ in rows for m in (s, t))})
        found = dict.fromkeys(("compute", "comm", "memcpy", "overlap", "exposed_comm", "exposed_memcpy", "idle"), 0)
        for a, b in itertools.pairwise(moments):
            on = {kind for s, t, kind in rows if s <= a and b <= t}
            for name, true in (
                ("compute", "K" in on),
                ("comm", "C" in on),
                ("memcpy", "M" in on),
                ("overlap", {"K", "C"} <= on),
                ("exposed_comm", "C" in on and "K" not in on),
                ("exposed_memcpy", on == {"M"}),
                ("idle", not on),
            ):
                found[name] += (b - a) * true
        span = max(t for _, t, _ in rows) - min(s for s, _, _ in rows) if rows else 0
        return {**{f"{name}_ns": value for name, value in found.items()}, "window_ns": high - low, "span_ns": span}


def edges(made: dict[str, Any]) -> tuple[int, int]:
    """Start and end in ns."""
    start = ns(Decimal(repr(made["ts"])))
    return start, start + ns(Decimal(repr(made["dur"])))


def inside(start: int, end: int, low: int, high: int, window: str) -> bool:
    """Whether a span counts: in the steps, what intersects them; a span without length if it starts in them."""
    return window != "steps" or (start < high and (end > low or start == end >= low))


def kind_of(made: dict[str, Any]) -> str:
    """Class of a device event; copies and fills by their category."""
    return "M" if made["cat"] in ("gpu_memcpy", "gpu_memset") else NAMES[made["name"]]


def time(draw: random.Random, top: int) -> float:
    """Microseconds with at most three decimals, often whole ones so that edges meet."""
    return draw.choice((draw.randint(0, top), round(draw.uniform(0, top), 3)))


def trace(seed: int) -> list[dict[str, Any]]:
    """A trace with launches before, in and after the steps, marks of several threads, nested marks, recordings."""
    draw = random.Random(seed)
    pids: tuple[int | str, ...] = (0, "GPU 0", "")
    made = []
    for recording in range(draw.choice((1, 1, 2))):
        made += marks(draw, 400 * recording)
    for at in range(draw.randint(0, 40)):
        category = draw.choice((*DEVICE[:3], "kernel", "kernel", *(DEVICE[3:] if seed % 3 == 0 else ())))
        one = event(category, draw.choice(tuple(NAMES)), time(draw, 700), time(draw, draw.choice((0, 5, 90))))
        one |= {"pid": draw.choice(pids), "tid": draw.choice((7, "7", 20))}
        one["args"] |= {"stream": one["tid"], "device": 0} if draw.random() < 0.8 else {}
        if draw.random() < 0.9:
            one["args"]["correlation"] = draw.choice((at, at, draw.randint(0, 40)))
        made.append(one)
        if draw.random() < 0.8:
            caller = draw.choice(("cuda_runtime", "cuda_driver", "mtia_runtime", "cuda_runtime"))
            made.append(event(caller, "launch", time(draw, 700), 1, correlation=one["args"].get("correlation", 99)))
        if draw.random() < 0.2:
            other = draw.choice(("cuda_sync", "overhead", "gpu_user_annotation", "mtia_workloadd"))
            name = draw.choice(("ProfilerStep#9", "x"))
            made.append(event(other, name, time(draw, 700), 30, stream=7, correlation=77))
    draw.shuffle(made)
    return made


def marks(draw: random.Random, begin: int) -> list[dict[str, Any]]:
    """Marks of a recording: steps end to end, repeated by another thread, or with others inside."""
    rows = []
    at: float = begin + time(draw, 50)
    for number in range(first := draw.randint(0, 3), first + draw.choice((0, 1, 2, 4))):
        length = time(draw, 150)
        name = draw.choice((f"ProfilerStep#{number}",) * 5 + ("ProfilerStep*",))
        rows.append(event("user_annotation", name, at, length))
        if draw.random() < 0.3:
            rows.append(event("user_annotation", name, round(at + time(draw, 9), 3), length) | {"tid": 8})
        if draw.random() < 0.2:
            rows.append(event("user_annotation", f"ProfilerStep#{number + 70}", at, length / 2))
        at = round(at + length + draw.choice((0, 0, 3.25)), 3)
    return [row | {"dur": round(row["dur"], 3)} for row in rows]


@pytest.mark.parametrize("block", range(10))
def test_every_window_is_what_the_rule_says(tmp_path: Path, block: int) -> None:
    for seed in range(50 * block, 50 * block + 50):
        events = trace(seed)
        if not any(e["cat"] in DEVICE for e in events):
            continue
        rank = read(write(tmp_path / "rank0.json", events, LAYOUTS[seed % len(LAYOUTS)]))
        for window in ("all", "hta", "steps"):
            expected = Sweep(events, window)
            if window == "steps" and not expected.steps:
                continue
            chosen = select(rank, window)
            found = partition(chosen)
            mine = {name: getattr(found, name) for name in expected.times}
            assert (mine, len(chosen.work)) == (expected.times, expected.n_gpu), (seed, window)


def marked(number: int, ts: int, dur: int, tid: int = 7) -> dict[str, Any]:
    return event("user_annotation", f"ProfilerStep#{number}", ts, dur) | {"tid": tid}


def launched(at: int, correlation: int, name: str = "gemm") -> list[dict[str, Any]]:
    """A call, and 10 µs of work 20 µs later."""
    call = event("cuda_runtime", "cudaLaunchKernel", at, 1, correlation=correlation)
    return [call, event("kernel", name, at + 20, 10, stream=7, device=0, correlation=correlation)]


@pytest.mark.parametrize(
    ("marks", "cut"),
    [
        ([marked(1, 0, 100), marked(2, 100, 100), marked(2, 130, 100, tid=8)], 130),
        ([marked(1, 0, 200), marked(2, 150, 20)], 150),
        ([marked(1, 0, 200), marked(1, 150, 20)], 1_000),
        ([marked(1, 0, 100), marked(2, 100, 100)], 100),
    ],
    ids=["of another thread", "nested", "one name", "plain"],
)
def test_every_mark_of_the_host_counts_for_the_cut(tmp_path: Path, marks: list[dict[str, Any]], cut: int) -> None:
    calls = [(10, 1), (110, 2), (140, 3), (160, 4)]
    rank = read(write(tmp_path / "rank0.json", [*marks, *(e for call in calls for e in launched(*call))]))
    window = select(rank, "hta")
    assert window.work.correlation.tolist() == [number for at, number in calls if at < cut]
    assert [step.number for step in step_partitions(rank, window)] == [
        step.number for step in rank.steps if step.start < cut * 1000
    ]


def test_the_steps_reach_over_the_marks_of_all_threads(tmp_path: Path) -> None:
    marks = [marked(1, 10, 100), marked(2, 110, 90), marked(2, 115, 100, tid=8)]
    window = select(read(write(tmp_path / "rank0.json", [*marks, *launched(20, 1)])), "steps")
    assert (window.start, window.end) == (10_000, 215_000)


def test_work_of_mtia_stands_for_its_own_launch(tmp_path: Path) -> None:
    def mtia(ts: int, **args: int) -> dict[str, Any]:
        return event("mtia_ccp_events", "fba_matmul", ts, 10, **args)

    made = [marked(1, 0, 100), marked(2, 100, 100), mtia(30, correlation=4), mtia(130, correlation=4),
            mtia(60), mtia(150, correlation=5), event("mtia_workloadd", "whole", 0, 500, stream=1)]  # fmt: skip
    rank = read(write(tmp_path / "rank0.json", made))
    assert select(rank, "hta").work.start.tolist() == [30_000, 130_000]
    assert partition(select(rank, "all")).compute_ns == 40_000


def test_the_picture_is_of_a_step_that_the_window_counts(tmp_path: Path) -> None:
    made = [marked(1, 0, 100), marked(2, 100, 100), *launched(20, 1), *launched(120, 2)]
    rank = read(write(tmp_path / "rank0.json", made))
    drawn = {name: picture(rank, select(rank, name)) for name in ("steps", "hta")}
    assert {name: (one.step, len(one.boxes)) for name, one in drawn.items()} == {"steps": (2, 1), "hta": (1, 1)}

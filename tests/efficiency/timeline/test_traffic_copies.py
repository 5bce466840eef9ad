"""Copies: each figure is counted again nanosecond by nanosecond; names as the vendors' tracers write them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.efficiency.timeline.overlap import partition, select, unions
from densing.efficiency.timeline.timeline import Kind, RankTimeline, Spans, Step
from densing.efficiency.timeline.traffic import LOADING, Transfers, direction, transfers

NAMES = ["Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pinned)", "dma"]


@pytest.mark.parametrize(("name", "wanted"), [
    ("Memcpy HtoD (Pinned -> Device)", "host_to_device"),
    ("Memcpy DtoH (Device -> Pageable)", "device_to_host"),
    ("Memcpy DtoD (Device -> Device)", "device_to_device"),
    ("Memcpy PtoP (Device -> Device)", "peer"),
    ("Memcpy HtoH (Pinned -> Pageable)", "host_to_host"),
    ("Memcpy DtoA (Device -> Array)", "device_to_device"),
    ("CopyHostToDevice", "host_to_device"),
    ("CopyDeviceToHost", "device_to_host"),
    ("CopyDeviceToDevice", "device_to_device"),
    ("hipMemcpyHostToDevice", "host_to_device"),
    ("MEMORY_COPY_DEVICE_TO_HOST", "device_to_host"),
    ("zeCommandListAppendMemoryCopy(M2D)", "host_to_device"),
    ("zeCommandListAppendMemoryCopy(D2M)", "device_to_host"),
    ("__amd_rocclr_copyBuffer", "unknown"),
    ("", "unknown"),
])  # fmt: skip
def test_direction_from_the_name(name, wanted):
    assert direction(name) == wanted


@pytest.mark.parametrize(("name", "wanted"), [
    ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", True),
    ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", True),
    ("dataloader_next", True),
    ("aten::add", False),
    ("## forward ##", False),
    ("preloaded", False),
])  # fmt: skip
def test_what_counts_as_data_loading(name, wanted):
    assert bool(LOADING(name)) == wanted


@st.composite
def ranks(draw):
    work, host = [], []
    for _ in range(draw(st.integers(0, 9))):
        start, length = draw(st.integers(0, 50)), draw(st.integers(0, 12))
        kind = draw(st.sampled_from([Kind.COMPUTE, Kind.COMM, Kind.MEMCPY, Kind.MEMCPY, Kind.MEMSET]))
        name = draw(st.sampled_from(NAMES)) if kind == Kind.MEMCPY else "k"
        size = draw(st.sampled_from([-1, 0, 100, 4096]))
        work.append({"start": start, "end": start + length, "kind": kind, "name": name, "bytes": size})
    for _ in range(draw(st.integers(0, 4))):
        start, length = draw(st.integers(0, 50)), draw(st.integers(0, 12))
        name = draw(st.sampled_from(["enumerate(DataLoader)#x.__next__", "optimizer"]))
        host.append({"start": start, "end": start + length, "kind": Kind.ANNOTATION, "name": name})
    steps = (Step(0, 5, 30), Step(1, 30, 45)) if draw(st.booleans()) else ()
    return RankTimeline(0, Spans.build(work), Spans.build(host), steps=steps)


def moments(starts, ends, window):
    pairs = zip(starts.tolist(), ends.tolist(), strict=True)
    return {t for s, e in pairs for t in range(max(s, window.start), min(e, window.end))}


@given(ranks())
def test_every_figure_counted_again_moment_by_moment(rank):
    window = select(rank)
    found = transfers(rank, window, unions(window.work))
    assert Transfers.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    work = window.work
    of = {kind: moments(work.start[work.kind == kind], work.end[work.kind == kind], window) for kind in Kind}
    seen = set()
    for row in found.copies:
        if row.direction == "fill":
            chosen = work.kind == Kind.MEMSET
        else:
            chosen = (work.kind == Kind.MEMCPY) & [direction(work.names[n]) == row.direction for n in work.name]
        mine = moments(work.start[chosen], work.end[chosen], window)
        seen |= mine
        assert row.count == chosen.sum() and row.busy_ns == len(mine)
        assert row.hidden_ns == len(mine & of[Kind.COMPUTE])
        assert row.exposed_ns == len(mine - of[Kind.COMPUTE] - of[Kind.COMM])
        sizes = [b for b in work.bytes[chosen].tolist() if b >= 0]
        assert row.bytes == sum(sizes) and row.unsized == row.count - len(sizes)
    assert len(seen) == partition(window).memcpy_ns
    check_loading(rank, window, found.loading, set().union(*of.values()))


def check_loading(rank, window, loading, busy):
    rows = [(s, e) for s, e, n in zip(rank.host.start.tolist(), rank.host.end.tolist(), rank.host.name, strict=True)
            if rank.host.names[n].startswith("enumerate")]  # fmt: skip
    assert (loading is None) == (not rows)
    if loading is not None:
        time = {t for s, e in rows for t in range(max(s, window.start), min(e, window.end))}
        assert loading.total_ns == len(time) and loading.idle_ns == len(time - busy)
        assert list(loading.per_step_ns) == [sum(s.start <= t < s.end for t in time) for s in rank.steps]
        assert list(loading.per_step_idle_ns) == [sum(s.start <= t < s.end for t in time - busy) for s in rank.steps]


def test_rate_and_pageable_share_by_hand():
    # 24 GB/s: 48 bytes in 2 ns, of which the window cuts one; the unsized copy does not dilute the rate.
    name = "Memcpy HtoD (Pageable -> Device)"
    work = Spans.build([{"start": 9, "end": 11, "kind": Kind.MEMCPY, "name": name, "bytes": 48},
                        {"start": 14, "end": 18, "kind": Kind.MEMCPY, "name": NAMES[1]},
                        {"start": 19, "end": 19, "kind": Kind.MEMCPY, "name": NAMES[2], "bytes": 3}])  # fmt: skip
    rank = RankTimeline(0, work, Spans.empty(), steps=(Step(0, 10, 20),))
    window = select(rank)
    up, down = transfers(rank, window, unions(window.work)).copies
    assert (up.count, up.unsized, up.busy_ns, up.exposed_ns, up.gb_per_s, up.pageable) == (2, 1, 5, 5, 24.0, 1)
    assert (down.direction, down.gb_per_s, down.hidden_pct, down.pageable) == ("device_to_host", None, None, 0)


def test_loading_leaves_out_the_step_that_the_window_leaves_out():
    launch = {"start": 2, "end": 3, "kind": Kind.LAUNCH, "name": "cudaLaunchKernel", "correlation": 1}
    work = Spans.build([{"start": 5, "end": 95, "kind": Kind.COMPUTE, "name": "gemm", "correlation": 1}])
    loads = [{"start": s, "end": s + 4, "kind": Kind.ANNOTATION, "name": "enumerate(DataLoader)#x.__next__"}
             for s in (20, 60)]  # fmt: skip
    rank = RankTimeline(0, work, Spans.build([launch, *loads]), steps=(Step(0, 0, 50), Step(1, 50, 100)))
    per_step = {}
    for name in ("steps", "hta"):
        window = select(rank, name)
        per_step[name] = transfers(rank, window, unions(window.work)).loading.per_step_ns
    assert per_step == {"steps": (4, 4), "hta": (4,)}


def test_a_size_that_no_device_holds_is_unknown():
    """Four such sizes sum to 0 in int64."""
    work = [{"start": 10 * at, "end": 10 * at + 5, "kind": Kind.MEMCPY, "name": "Memcpy HtoD", "bytes": 2**62}
            for at in range(4)]  # fmt: skip
    rank = RankTimeline(0, Spans.build(work), Spans.empty())
    window = select(rank)
    [row] = transfers(rank, window, unions(window.work)).copies
    assert (row.count, row.unsized, row.bytes, row.gb_per_s) == (4, 4, 0, None)

"""Idle causes: each nanosecond is judged again, one by one, by the definitions in words."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from densing.efficiency.timeline.idle import CAUSES, IdleCauses, idle_causes
from densing.efficiency.timeline.overlap import partition, select, unions
from densing.efficiency.timeline.timeline import Kind, RankTimeline, Spans, Step
from tests.support.spans import STREAMS, THREADS, call, span

CALLS = ["cudaLaunchKernel", "cudaStreamSynchronize", "cudaMalloc"]
BUSY = (Kind.COMPUTE, Kind.COMM, Kind.MEMCPY, Kind.MEMSET)


@st.composite
def ranks(draw):
    work, host = [], []
    for number in range(draw(st.integers(0, 6))):
        start, length = draw(st.integers(0, 60)), draw(st.integers(0, 8))
        row = {"start": start, "end": start + length, "kind": draw(st.sampled_from([*BUSY, Kind.SYNC])), "name": "k"}
        work.append({**row, "lane": draw(st.sampled_from(STREAMS)), "correlation": number})
        if draw(st.booleans()):
            begin, lane = draw(st.integers(0, 60)), draw(st.sampled_from(THREADS))
            row = {"start": begin, "end": begin + draw(st.integers(0, 9)), "kind": Kind.LAUNCH, "lane": lane}
            host.append({**row, "name": "cudaLaunchKernel", "correlation": number})
    for _ in range(draw(st.integers(0, 4))):
        begin, lane = draw(st.integers(0, 60)), draw(st.sampled_from(THREADS))
        kind = draw(st.sampled_from([Kind.LAUNCH, Kind.ANNOTATION]))
        name = draw(st.sampled_from(CALLS if kind == Kind.LAUNCH else ["gloo:barrier", "load"]))
        host.append({"start": begin, "end": begin + draw(st.integers(0, 25)), "kind": kind, "name": name, "lane": lane})
    steps = (Step(0, 5, 30), Step(1, 30, 55)) if draw(st.booleans()) else ()
    return RankTimeline(0, Spans.build(work), Spans.build(host), steps=steps)


def rows(spans):
    columns = (spans.start, spans.end, spans.kind, spans.name, spans.lane, spans.correlation)
    return [dict(zip(("start", "end", "kind", "name", "lane", "corr"), row, strict=True)) for row in
            ((s, e, Kind(k), spans.names[n], spans.lanes[x], c) for s, e, k, n, x, c in
             zip(*(column.tolist() for column in columns), strict=True))]  # fmt: skip


def by_words(rank, window):
    """Second implementation: moment by moment, from the definitions."""
    pool = [r for r in rows(rank.work if window.name == "steps" else window.work)
            if r["kind"] in BUSY and r["end"] > r["start"]]  # fmt: skip
    host = rows(rank.host)
    counts = dict.fromkeys(CAUSES, 0)
    idle = [t for t in range(window.start, window.end) if not any(r["start"] <= t < r["end"] for r in pool)]
    for t in idle:
        begin, end = t, t + 1
        while begin - 1 in idle:
            begin -= 1
        while end in idle:
            end += 1
        counts[cause_of(t, begin, end, pool, host, window)] += 1
    return counts


def cause_of(t, begin, end, pool, host, window):
    def launcher(span):
        calls = [h for h in host if h["corr"] == span["corr"] >= 0 and h["kind"] == Kind.LAUNCH]
        return min(calls, key=lambda h: (h["start"], -h["end"])) if calls else None

    later = [r for r in pool if r["start"] >= end]
    if not later:
        return "after_last" if pool else "unknown"
    first = min(r["start"] for r in later)
    candidates = [(launcher(r), r) for r in later if r["start"] == first]
    known = [pair for pair in candidates if pair[0] is not None]
    if not known:
        return "before_first" if begin == window.start else "no_launch_record"
    call, following = min(known, key=lambda pair: pair[0]["end"])
    before = [r for r in pool if r["end"] == begin and r["kind"] == Kind.COMM]
    if t < call["end"]:
        own = [h for h in host if h["lane"] == call["lane"]]
        ranged = any(h["name"] == "gloo:barrier" and h["start"] <= t < h["end"] for h in own)
        syncs = [h for h in own if "Synchronize" in h["name"] and h["start"] < begin]
        last = max(syncs, key=lambda h: (h["start"], -h["end"]), default=None)
        return "communication" if ranged or (before and last and t < last["end"]) else "host_bound"
    early = call["end"] <= begin
    if early and before and following["kind"] != Kind.COMM and before[0]["lane"] != following["lane"]:
        return "communication"
    return "kernel_wait"


@given(ranks())
def test_every_idle_nanosecond_has_the_cause_that_the_words_give_it(rank):
    for name in ("all", "steps") if rank.steps else ("all",):
        window = select(rank, name)
        merged = unions(window.work)
        found = idle_causes(rank, window, merged)
        ties = {(r["start"], r["end"]) for r in rows(rank.work)}
        assert sum(found.causes.values()) == found.idle_ns == partition(window, merged).idle_ns
        if len(ties) == len(rank.work):
            comm_ends = rank.work.end[rank.work.kind == Kind.COMM].tolist()
            starts = rank.work.start.tolist()
            if len(set(comm_ends)) == len(comm_ends) and len(set(starts)) == len(starts):
                assert dict(found.causes) == by_words(rank, window)
        assert IdleCauses.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def causes(work, host=(), **options):
    rank = RankTimeline(0, Spans.build(work), Spans.build(host), **options)
    window = select(rank)
    found = idle_causes(rank, window, unions(window.work))
    return {cause: ns for cause, ns in found.causes.items() if ns}, found


def test_a_late_launch_is_the_hosts_and_the_rest_is_waiting():
    found, result = causes([span(0, 10), span(50, 60, correlation=1)],
                           [call(30, 42, 1), call(10, 25, name="cudaMalloc")])  # fmt: skip
    assert found == {"host_bound": 32, "kernel_wait": 8}
    assert {(d.level, d.name): d.ns for d in result.meanwhile} == {
        ("range", ""): 32, ("call", "cudaMalloc"): 15, ("call", "cudaLaunchKernel"): 12, ("call", ""): 5}  # fmt: skip
    assert [(gap.start_ns, gap.end_ns, gap.cause, gap.next_name) for gap in result.longest] == [
        (10, 50, "host_bound", "k")
    ]


def test_of_spans_that_end_a_gap_together_the_one_launched_first_counts():
    work = [span(0, 10), span(50, 70, correlation=1), span(50, 60, correlation=2, lane=STREAMS[1])]
    host = [call(20, 45, 1), call(20, 30, 2)]
    assert causes(work, host)[0] == {"host_bound": 20, "kernel_wait": 20}


def test_waiting_behind_a_communication_of_another_stream():
    comm = span(0, 10, Kind.COMM, lane=STREAMS[1])
    assert causes([comm, span(14, 20, correlation=1)], [call(0, 3, 1)])[0] == {"communication": 4}
    assert causes([comm, span(14, 20, correlation=1, lane=STREAMS[1])], [call(0, 3, 1)])[0] == {"kernel_wait": 4}


def test_a_host_that_stands_in_a_synchronisation_behind_a_communication():
    comm = span(0, 10, Kind.COMM, lane=STREAMS[1])
    host = [call(5, 16, name="cudaStreamSynchronize"), call(18, 20, 1)]
    assert causes([comm, span(21, 30, correlation=1)], host)[0] == {
        "communication": 6,
        "host_bound": 4,
        "kernel_wait": 1,
    }


def test_traces_without_host_rows_and_the_edges_of_the_steps():
    found, _ = causes([span(10, 20), span(25, 30)], steps=(Step(0, 0, 40),))
    assert found == {"before_first": 10, "no_launch_record": 5, "after_last": 10}
    assert causes([], steps=(Step(0, 0, 40),))[0] == {"unknown": 40}


def test_an_edge_gap_with_a_launch_is_judged_like_any_other():
    found, _ = causes([span(10, 20, correlation=1), span(70, 80, correlation=2)], [call(2, 6, 1), call(60, 65, 2)],
                      steps=(Step(0, 0, 40),))  # fmt: skip
    assert found == {"host_bound": 6 + 20, "kernel_wait": 4}


def test_a_run_without_a_device_knows_marked_waits_only():
    mark = {**call(12, 17, name="densing::wait", kind=Kind.ANNOTATION)}
    step = call(0, 30, name="ProfilerStep#0", kind=Kind.ANNOTATION)
    found, result = causes([span(0, 10), span(20, 30)], [mark, step], on_host=True)
    assert found == {"communication": 5, "unknown": 5}
    assert [(d.name, d.ns) for d in result.meanwhile if d.level == "range"] == [("", 5), ("densing::wait", 5)]

"""Critical path: on simulated programs it is the longest path of their graph, found again by brute force."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given, settings

from densing.efficiency.timeline.critical import PATH_KINDS, CriticalPath, critical_path
from densing.efficiency.timeline.overlap import select
from densing.efficiency.timeline.timeline import Kind, RankTimeline, Spans, Step
from tests.support.programs import OTHER, STREAMS, THREAD, Machine, anything, call, machines, node


def longest(machine, goal):
    """All longest paths into ``goal``, as multisets of (kind, name, length); brute force over the explicit graph."""
    reach = {}

    def best(point):
        if point not in reach:
            found = [(length + weight, [*path, (kind, name, weight)])
                     for u, weight, kind, name in machine.edges[point] for length, path in best(u)]  # fmt: skip
            top = max((length for length, _ in found), default=0)
            reach[point] = [row for row in found if row[0] == top] or [(0, [])]
        return reach[point]

    return [Counter({(k, n): sum(w for kk, nn, w in path if (kk, nn) == (k, n)) for k, n, _ in path})
            for _, path in best(goal)]  # fmt: skip


def told(path, names=True):
    rows = zip(path.start.tolist(), path.end.tolist(), path.kind.tolist(), path.name.tolist(), strict=True)
    found = Counter()
    for start, end, kind, name in rows:
        word = PATH_KINDS[kind]
        found[word, path.names[name] if names and word != "host" else ""] += end - start
    return found


@settings(max_examples=400)
@given(machines())
def test_the_path_is_the_longest_path_of_the_explicit_graph(machine):
    last = max(machine.work, key=lambda row: row["end"])
    ends = [row["end"] for row in machine.work]
    starts = [row["start"] for row in machine.work]
    assume(len(set(ends)) == len(ends) and len(set(starts)) == len(starts))
    goal = ("end", int(last["name"][1:]))
    paths = longest(machine, goal)
    assume(len(paths) == 1)
    # A window from the program's start, in which the path ends with the last span.
    rank = machine.rank(steps=(Step(0, 0, last["end"]),))
    path = critical_path(rank, select(rank))
    wanted = Counter({key: ns for key, ns in paths[0].items() if ns})
    assert told(path) == wanted
    assert sum(path.totals.values()) == last["end"] == int((path.end - path.start).sum())
    assert path.totals["idle"] == 0 and path.coverage == 1
    assert np.array_equal(path.start[1:], path.end[:-1])


def test_the_simulated_machine_meets_every_kind_of_edge():
    """The property above would be empty if no path went through waits, synchronisations and streams."""
    machine = Machine(5)
    machine.launch(0, 100, Kind.COMPUTE)
    machine.launch(2, 300, Kind.COMM)
    machine.wait(0, 2)
    machine.launch(0, 50, Kind.COMPUTE)
    machine.sync([0])
    machine.spend(40)
    machine.launch(1, 70, Kind.MEMCPY)
    rank = machine.rank(steps=(Step(0, 0, machine.work[-1]["end"]),))
    path = critical_path(rank, select(rank))
    rows = [(PATH_KINDS[k], path.names[n]) for k, n in zip(path.kind, path.name, strict=True)]
    assert rows == [("host", ""), ("launch", "k1"), ("communication", "k1"), ("compute", "k2"), ("host", ""),
                    ("launch", "k3"), ("memcpy", "k3")]  # fmt: skip
    assert path.totals == {"compute": 50, "communication": 300, "memcpy": 70, "host": 43, "launch": 10, "idle": 0}
    assert path.bound_by == "communication"


def path_of(work, host=(), window=None, **options):
    rank = RankTimeline(0, Spans.build(work), Spans.build(host), **options)
    return critical_path(rank, select(rank, window))


def test_a_trace_of_the_device_alone():
    # Streams 0 and 2: the communication ended last before the second compute began, after an unusual pause.
    path = path_of([node(0, 10), node(10, 20), node(20, 25), node(12, 60, Kind.COMM, 2), node(61, 90)])
    assert path.totals == {"compute": 29 + 10, "communication": 48, "memcpy": 0, "host": 0, "launch": 0, "idle": 3}
    assert path.coverage == pytest.approx(87 / 90)


def test_a_neighbour_in_its_usual_pause_explains_a_start_alone():
    # A communication happens to end within the usual pause of 2 ns between the spans of stream 0.
    work = [node(12 * n, 12 * n + 10) for n in range(8)]
    path = path_of([*work, node(3, 59, Kind.COMM, 2)])
    assert path.totals["communication"] == 0 and path.totals["idle"] == 14


@pytest.mark.parametrize("overlap", [0, 1, 40])
def test_timestamps_that_were_rounded_leave_the_stream_in_turn(overlap):
    """A device that is never idle: an overlap of neighbours must not take one of them off the path."""
    calls, work = [], []
    for number in range(6):
        calls.append({"start": 2 * number, "end": 2 * number + 1, "kind": Kind.LAUNCH, "name": "cudaLaunchKernel",
                      "lane": THREAD, "correlation": number})  # fmt: skip
        work.append({"start": 20 + 100 * number, "end": 120 + 100 * number + overlap, "kind": Kind.COMPUTE,
                     "name": f"k{number}", "lane": STREAMS[0], "correlation": number})  # fmt: skip
    rank = RankTimeline(0, Spans.build(work), Spans.build(calls))
    path = critical_path(rank, select(rank))
    assert path.totals["compute"] == 600 + overlap and path.totals["idle"] == 0


def test_work_that_truly_overlaps_on_a_lane_is_no_chain():
    work = [{"start": 0, "end": 100, "kind": Kind.COMPUTE, "name": "a", "lane": STREAMS[0]},
            {"start": 20, "end": 130, "kind": Kind.COMPUTE, "name": "b", "lane": STREAMS[0]}]  # fmt: skip
    rank = RankTimeline(0, Spans.build(work), Spans.build([]))
    assert critical_path(rank, select(rank)).totals["compute"] == 110


def test_a_thread_is_woken_by_the_synchronisation_of_another():
    # Thread 1 waits for the communication, then thread 2 (silent meanwhile) launches.
    host = [call(0, 2, correlation=1), call(3, 50, "cudaDeviceSynchronize"), call(60, 62, correlation=2, lane=OTHER)]
    work = [node(4, 45, Kind.COMM, 2, correlation=1), node(65, 80, correlation=2)]
    path = path_of(work, host)
    assert path.totals == {"compute": 15, "communication": 41, "memcpy": 0, "host": 15, "launch": 5, "idle": 0}
    # Had thread 2 been busy meanwhile, nothing would have held it: then only its own program explains the start.
    path = path_of(work, [*host, call(20, 22, "cudaEventQuery", lane=OTHER)])
    assert path.totals == {"compute": 15, "communication": 0, "memcpy": 0, "host": 56, "launch": 5, "idle": 0}


def test_a_blocking_copy_holds_the_host():
    work = [node(10, 40), node(40, 50, Kind.MEMCPY, correlation=1), node(70, 90, correlation=2)]
    host = [call(5, 52, "cudaMemcpyAsync", 1), call(60, 63, correlation=2)]
    assert path_of(work, host).totals["memcpy"] == 10
    assert path_of(work, [call(5, 45, "cudaMemcpyAsync", 1), host[1]]).totals["memcpy"] == 0


def test_host_segments_bear_the_name_of_the_range_that_ran():
    host = [call(0, 60, "ProfilerStep#0", kind=Kind.ANNOTATION), call(5, 30, "load", kind=Kind.ANNOTATION),
            call(40, 44, correlation=1)]  # fmt: skip
    path = path_of([node(45, 60, correlation=1)], host, steps=(Step(0, 0, 60),))
    rows = zip(path.start.tolist(), path.end.tolist(), (path.names[n] for n in path.name), strict=True)
    assert list(rows) == [(0, 5, ""), (5, 30, "load"), (30, 40, ""), (40, 45, "k"), (45, 60, "k")]
    assert ("host", "load", 25) in path.top
    assert path.lanes[path.lane[0]] == "100 1" and path.lanes[path.lane[-1]] == "GPU 0 7"


def test_the_hosts_tail_of_the_last_step_is_on_the_path():
    host = [call(0, 90, "ProfilerStep#0", kind=Kind.ANNOTATION), call(0, 2, correlation=1),
            call(10, 52, "cudaStreamSynchronize")]  # fmt: skip
    path = path_of([node(2, 50, correlation=1)], host, steps=(Step(0, 0, 90),))
    assert path.totals == {"compute": 48, "communication": 0, "memcpy": 0, "host": 40, "launch": 2, "idle": 0}


def test_a_recorded_stream_narrows_what_a_call_waited_for():
    host = [call(0, 1, correlation=1), call(1, 2, correlation=2), call(5, 40, "cudaStreamSynchronize", 9),
            call(60, 61, correlation=3)]  # fmt: skip
    work = [node(1, 30, name="a", correlation=1), node(2, 39, name="b", lane=1, correlation=2),
            node(62, 70, name="c", correlation=3)]  # fmt: skip
    assert ("compute", "b", 37) in path_of(work, host).top
    record = {**node(5, 40, Kind.SYNC, 0, "Stream Sync"), "correlation": 9}
    assert ("compute", "a", 29) in path_of([*work, record], host).top


def test_a_processor_waits_for_gloo():
    # Operators nest; the communication on its own thread ends within an unusual pause of the main thread.
    work = [{"start": 0, "end": 50, "kind": Kind.COMPUTE, "name": "aten::linear", "lane": THREAD},
            {"start": 10, "end": 40, "kind": Kind.COMPUTE, "name": "aten::addmm", "lane": THREAD},
            {"start": 50, "end": 60, "kind": Kind.CALL, "name": "c10d::allreduce_", "lane": THREAD},
            {"start": 60, "end": 200, "kind": Kind.COMM, "name": "gloo:all_reduce", "lane": OTHER},
            {"start": 201, "end": 300, "kind": Kind.COMPUTE, "name": "aten::mul", "lane": THREAD}]  # fmt: skip
    path = path_of(work, on_host=True)
    assert path.totals == {"compute": 149, "communication": 140, "memcpy": 0, "host": 10, "launch": 0, "idle": 1}
    assert ("compute", "aten::addmm", 30) in path.top and ("compute", "aten::linear", 20) in path.top


@given(anything())
def test_any_trace_gives_a_path_that_tiles_its_window(rank):
    for name in ("steps", "all", "hta") if rank.steps else ("all", "hta"):
        window = select(rank, name)
        path = critical_path(rank, window)
        length = window.end - window.start
        assert int((path.end - path.start).sum()) == sum(path.totals.values()) == length
        if length:
            assert path.start[0] == window.start and path.end[-1] == window.end
            assert np.array_equal(path.start[1:], path.end[:-1]) and np.all(path.end > path.start)
        # What the path calls work was running.
        for start, end, kind, which in zip(path.start, path.end, path.kind, path.name, strict=True):
            if PATH_KINDS[kind] in ("compute", "communication", "memcpy"):
                at = np.array([rank.work.names[n] == path.names[which] for n in rank.work.name])
                assert np.any(at & (rank.work.start <= start) & (rank.work.end >= end))
        data = json.loads(json.dumps(path.to_dict()))
        assert CriticalPath.from_dict(data).to_dict() == data


def test_a_stored_path_keeps_its_totals_and_says_what_it_left_out():
    machine = Machine(2)
    for number in range(30):
        machine.launch(number % 3, 10 + number, Kind.COMPUTE)
    path = critical_path(machine.rank(), select(machine.rank()))
    short = path.to_dict(segments=4)
    kept = sum(e - s for s, e in zip(short["segments"]["start_ns"], short["segments"]["end_ns"], strict=True))
    assert short["totals"] == path.totals and len(short["segments"]["start_ns"]) == 4
    assert short["left_out"] == len(path.start) - 4
    assert short["left_out_ns"] == sum(path.totals.values()) - kept > 0
    assert CriticalPath.from_dict(short).to_dict(segments=4) == short


def test_it_says_what_the_trace_does_not_record():
    def codes(host, **options):
        return [note.code for note in path_of([node(0, 9, correlation=1)], host, **options).notes]

    assert codes([]) == ["no-launch-records"]
    assert codes([call(0, 1, correlation=1)]) == ["no-synchronisation-records"]
    assert codes([call(0, 1, correlation=1), call(2, 3, "hipDeviceSynchronize")]) == []
    assert codes([], on_host=True) == ["waits-inferred"]


def test_an_empty_window_has_no_bound():
    path = path_of([])
    assert path.bound_by is None and path.coverage is None and sum(path.totals.values()) == 0

"""The simulator: closed forms, what its timelines hold, and what it refuses."""

from __future__ import annotations

import json
from heapq import heappush
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from densing.efficiency.profile.run import profile_run
from densing.efficiency.simulation.engine import Simulation, simulate
from densing.efficiency.simulation.tasks import Graph, busy, critical_path
from densing.efficiency.timeline.timeline import Comm, Kind
from densing.efficiency.traces.perfetto import RankTracks, write_timelines

COMPUTE, COMM = Kind.COMPUTE, Kind.COMM


def layers(count: int, compute: float, comm: float, ranks: tuple[int, ...] = (0,)) -> Graph:
    """Backward passes one after the other, the gradients of each reduced beside the next."""
    graph = Graph()
    graph.step = 0
    for number in range(count):
        passes = [graph.add(f"backward {number}", COMPUTE, (rank,), "compute", compute) for rank in ranks]
        graph.add(f"ncclDevKernel_AllReduce {number}", COMM, ranks, "comm", comm, count=8, after=passes,
                  comm=Comm("all_reduce", "0", group_size=len(ranks), ranks=ranks, seq=number))  # fmt: skip
    return graph


def test_nothing_takes_no_time() -> None:
    run = simulate(Graph(), 2)
    assert run.makespan == 0
    assert [len(rank.work) for rank in run.timeline.ranks] == [0, 0]
    assert simulate(Graph()).timeline.ranks == ()
    assert (critical_path(Graph()), busy(Graph())) == (0.0, {})


def test_chain_and_fork_join() -> None:
    graph = Graph()
    last = graph.add("begin", COMPUTE, (0,), "compute", 1.0)
    parts = [graph.add("part", COMPUTE, (rank,), "compute", 1.0 + rank, after=[last]) for rank in range(4)]
    graph.add("end", COMM, (0,), "comm", 0.5, after=parts)
    run = simulate(graph)
    assert run.makespan == critical_path(graph) == 1.0 + 4.0 + 0.5
    assert run.end.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 5.5]
    assert run.start.tolist() == [0.0, 1.0, 1.0, 1.0, 1.0, 5.0]


@pytest.mark.parametrize(("compute", "comm"), [(1.0, 0.25), (1.0, 1.0), (0.25, 1.0)])
def test_pipelined_communication_is_the_longer_of_both_and_an_end_that_cannot_hide(compute: float, comm: float) -> None:
    graph = layers(6, compute, comm)
    assert simulate(graph).makespan == min(compute, comm) + 6 * max(compute, comm)


@pytest.mark.parametrize(("stages", "micro"), [(2, 2), (4, 8), (3, 3)])
def test_bubble_of_one_forward_one_backward(stages: int, micro: int) -> None:
    """(p-1)/(m+p-1) of the time is idle: the bubble (p-1)/m over the ideal of Narayanan et al., arXiv 2104.04473."""
    forward, backward = 1.0, 2.0
    graph = Graph()
    done: dict[tuple[str, int, int], int] = {}
    orders = []
    for stage in range(stages):
        ahead = min(micro, stages - 1 - stage)
        order = [("f", i) for i in range(ahead)]
        for i in range(micro - ahead):
            order += [("f", ahead + i), ("b", i)]
        orders.append(order + [("b", i) for i in range(micro - ahead, micro)])
    while any(orders):
        for stage, order in enumerate(orders):
            if not order:
                continue
            kind, i = order[0]
            waits = [("f", i, stage - 1)] if kind == "f" else [("f", i, stage), ("b", i, stage + 1)]
            waits = [key for key in waits if 0 <= key[2] < stages]
            if all(key in done for key in waits):
                seconds = forward if kind == "f" else backward
                after = [done[key] for key in waits]
                done[kind, i, stage] = graph.add(kind, COMPUTE, (stage,), "compute", seconds, after=after)
                order.pop(0)
    makespan = simulate(graph).makespan
    assert makespan == (micro + stages - 1) * (forward + backward)
    work = busy(graph)[0, "compute"]
    assert (makespan - work) / makespan == pytest.approx((stages - 1) / (micro + stages - 1))


@pytest.mark.parametrize("seconds", [0.5, 3.0])
def test_one_computation_beside_one_communication(seconds: float) -> None:
    kappa, kappa_comm, compute = 0.25, 0.5, 2.0
    graph = Graph()
    graph.add("gemm", COMPUTE, (0,), "compute", compute)
    graph.add("send", COMM, (0,), "comm", seconds)
    # Whichever ends first was slow throughout; the rest of the other goes alone.
    slow_compute, slow_comm = compute * (1 + kappa), seconds * (1 + kappa_comm)
    first = min(slow_compute, slow_comm)
    expected = (
        first + (compute - first / (1 + kappa) if slow_comm < slow_compute else 0),
        first + (seconds - first / (1 + kappa_comm) if slow_compute < slow_comm else 0),
    )
    assert simulate(graph, kappa=kappa, kappa_comm=kappa_comm).end.tolist() == pytest.approx(expected)


def test_waiting_does_not_disturb_moving_does() -> None:
    graph = Graph()
    late = graph.add("late", COMPUTE, (1,), "compute", 2.0)
    graph.add("beside", COMPUTE, (0,), "compute", 3.0)
    graph.add("all_reduce", COMM, (0, 1), "comm", 1.0, after=[late])
    run = simulate(graph, kappa=1.0)
    # Rank 0 waits in the collective from 0 and moves from 2 to 3: only that second counts half.
    assert run.end.tolist() == [2.0, 3.5, 3.0]
    work = run.timeline.ranks[0].work
    assert [(int(a), int(b)) for a, b in zip(work.start, work.end, strict=True)] == [(0, 3_500_000_000), (0, 3 * 10**9)]


def test_slow_rank_keeps_a_collective_waiting() -> None:
    run = simulate(layers(1, 1.0, 0.5, (0, 1, 2)), speed=(1.0, 0.5, 2.0))
    assert run.start[-1] == 2.0 and run.makespan == 2.5
    began = [int(rank.work.of(COMM).start[0]) for rank in run.timeline.ranks]
    assert began == [10**9, 2 * 10**9, 5 * 10**8]
    assert {int(rank.work.end[-1]) for rank in run.timeline.ranks} == {2_500_000_000}


def test_a_shared_link_serves_first_come_first_served() -> None:
    graph = Graph()
    for rank, seconds in enumerate((0.3, 0.1, 0.1)):
        ready = graph.add("gemm", COMPUTE, (rank,), "compute", seconds)
        graph.add("send", COMM, (rank,), "comm", 1.0, after=[ready], resources=["nic"])
    run = simulate(graph)
    assert run.start[[1, 3, 5]].tolist() == pytest.approx([2.1, 0.1, 1.1])
    assert busy(graph)["nic"] == 3.0
    # A task stands at the link from when its rank is there.
    assert [int(r.work.of(COMM).start[0]) for r in run.timeline.ranks] == [300_000_000, 100_000_000, 100_000_000]


def test_a_task_that_waits_for_one_link_holds_no_other() -> None:
    graph = Graph()
    graph.add("long", COMM, (0,), "comm", 5.0, resources=["a"])
    graph.add("both", COMM, (1,), "comm", 1.0, resources=["a", "b"])
    delay = graph.add("delay", Kind.ANNOTATION, (2,), "host", 1.0)
    graph.add("other", COMM, (2,), "comm", 1.0, resources=["b"], after=[delay])
    assert simulate(graph).start.tolist() == [0.0, 5.0, 0.0, 1.0]


def test_steps_of_a_rank_follow_one_another_and_end_with_their_last_computation() -> None:
    graph = Graph()
    graph.add("load", Kind.ANNOTATION, (0,), "host", 0.5)
    for step in range(3):
        graph.step = step
        gemm = graph.add("gemm", COMPUTE, (0,), "compute", 1.0, after=[0])
        graph.add("ncclDevKernel_AllReduce", COMM, (0,), "comm", 0.75, after=[gemm])
    rank = simulate(graph).timeline.ranks[0]
    assert [(s.number, s.start, s.end) for s in rank.steps] == [
        (0, 500_000_000, 1_500_000_000), (1, 1_500_000_000, 2_500_000_000), (2, 2_500_000_000, 3_500_000_000),
    ]  # fmt: skip
    assert [rank.host.names[name] for name in rank.host.name] == ["load"]
    assert rank.origin.simulated and rank.origin.world_size == 1


def parts(run: Simulation, rank: int) -> list[dict[str, int]]:
    """Compute, exposed and hidden nanoseconds of each step, counted on a grid of 10 microseconds."""
    tick = 10_000
    line = run.timeline.ranks[rank]
    found = []
    for step in line.steps:
        on = {kind: np.zeros((step.end - step.start) // tick, bool) for kind in (COMPUTE, COMM)}
        for kind, grid in on.items():
            spans = line.work.of(kind)
            for start, end in zip(spans.start.tolist(), spans.end.tolist(), strict=True):
                grid[max(start - step.start, 0) // tick : max(end - step.start, 0) // tick] = True
        exposed = on[COMM] & ~on[COMPUTE]
        found.append({"compute": int(on[COMPUTE].sum()) * tick, "exposed": int(exposed.sum()) * tick,
                      "hidden": int((on[COMM] & on[COMPUTE]).sum()) * tick})  # fmt: skip
    return found


def two_steps() -> Graph:
    graph = Graph()
    for step in range(2):
        graph.step = step
        for rank, seconds in ((0, 0.03), (1, 0.05)):
            graph.add("forward", COMPUTE, (rank,), "compute", seconds)
        passes = [len(graph) - 2, len(graph) - 1]
        reduce = graph.add("ncclDevKernel_AllReduce", COMM, (0, 1), "comm", 0.04, count=4096, after=passes,
                           comm=Comm("all_reduce", "0", group_size=2, ranks=(0, 1), seq=step))  # fmt: skip
        for rank in (0, 1):
            graph.add("free", COMPUTE, (rank,), "compute", 0.01)
            graph.add("optimizer", COMPUTE, (rank,), "compute", 0.02, after=[reduce])
    return graph


def test_a_profile_of_a_simulation_says_what_the_simulation_did(tmp_path: Path) -> None:
    run = simulate(two_steps(), kappa=0.25)
    profile = profile_run(run.timeline)
    for rank in profile.ranks:
        expected = parts(run, rank.rank)
        got = [{"compute": s.partition.compute_ns, "exposed": s.partition.exposed_comm_ns,
                "hidden": s.partition.comm_ns - s.partition.exposed_comm_ns} for s in rank.steps]  # fmt: skip
        assert got == expected
        assert all(part["hidden"] and part["exposed"] for part in expected)
    files = []
    for line in run.timeline.ranks:
        files.append(tmp_path / f"rank{line.rank}.json")
        write_timelines([RankTracks(line)], files[-1])
    again = profile_run(files)
    assert [rank.partition for rank in again.ranks] == [rank.partition for rank in profile.ranks]
    assert [[s.partition for s in rank.steps] for rank in again.ranks] == [
        [s.partition for s in rank.steps] for rank in profile.ranks
    ]
    assert json.loads(files[0].read_text())["traceEvents"]


def test_collectives_of_a_simulation_are_matched_across_ranks() -> None:
    graph = layers(3, 0.01, 0.005, (0, 1))
    run = profile_run(simulate(graph, speed=(1.0, 0.5)).timeline)
    late = run.collective_table()
    assert set(late["op"]) == {"all_reduce"}
    assert not [note for note in run.notes if note.severity == "error"]


def test_a_tiny_task_far_into_a_run_ends() -> None:
    """A duration below the resolution of the clock must not stall the queue."""
    graph = Graph()
    first = graph.add("long", COMPUTE, (0,), "compute", 1e9)
    graph.add("tiny", COMPUTE, (0,), "compute", 1e-12, after=[first])
    graph.add("send", COMM, (0,), "comm", 1.0, after=[first], resources=["nic"])
    assert simulate(graph, kappa=0.3, kappa_comm=0.1).makespan == pytest.approx(1e9 + 1)


def test_work_of_the_queue_grows_with_the_tasks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times the tasks are ten times the entries of the queue; seconds would depend on the machine."""
    per_task = []
    for count in (200, 2000):
        entries: list[tuple[float, int]] = []

        def counted(queue: list[Any], entry: Any, entries: list[tuple[float, int]] = entries) -> None:
            entries.append(entry)
            heappush(queue, entry)

        monkeypatch.setattr("densing.efficiency.simulation.engine.heappush", counted)
        # Not the compiled loops, which a process takes to once it has simulated much.
        monkeypatch.setattr("densing.efficiency.simulation.engine.has_numba", lambda: False)
        graph = layers(count, 1.0, 0.9, (0, 1, 2, 3))
        simulate(graph, kappa=0.2)
        per_task.append(len(entries) / len(graph))
    assert per_task[1] < 1.1 * per_task[0] < 5

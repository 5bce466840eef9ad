"""Properties of the simulator, and a slow second one, in exact fractions, that must agree with it."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densing.core.errors import InputError
from densing.efficiency.simulation import loops
from densing.efficiency.simulation.engine import Events, simulate, sweep
from densing.efficiency.simulation.tasks import Graph, Task, busy, columns, critical_path
from densing.efficiency.timeline.timeline import Kind

RANKS = 3
STREAMS = {Kind.COMPUTE: ("compute", "second"), Kind.COMM: ("comm", "p2p"), Kind.MEMCPY: ("copy",),
           Kind.ANNOTATION: ("host", "compute")}  # fmt: skip
# Powers of two: floating point is exact, so that equal times are equal in both simulators.
KAPPAS = st.sampled_from([0.0, 1.0, 3.0])
SPEEDS = st.sampled_from([(), (1.0, 0.5, 2.0)])


QUARTERS = st.integers(0, 8).map(lambda count: count / 4)


@st.composite
def graphs(
    draw: st.DrawFn, links: bool = True, most: int = 12, late: bool = False, times: st.SearchStrategy[float] = QUARTERS
) -> Graph:
    """Draw a graph of up to ``most`` tasks on three ranks; with tasks that need a part, or are given up."""
    graph = Graph()
    for number in range(draw(st.integers(1, most))):
        kind = draw(st.sampled_from(list(STREAMS)))
        several = kind is Kind.COMM or draw(st.integers(0, 9)) == 0
        ranks = draw(st.lists(st.integers(0, RANKS - 1), min_size=1, max_size=RANKS if several else 1, unique=True))
        after = draw(st.lists(st.integers(0, number - 1), max_size=4 if late else 2)) if number else []
        needs = draw(st.lists(st.sampled_from("abc"), max_size=3)) if links and kind is Kind.COMM else []
        graph.step = draw(st.integers(-1, 2))
        graph.add(f"t{number}", kind, ranks, draw(st.sampled_from(STREAMS[kind])),
                  draw(times), after=after, resources=needs)  # fmt: skip
        if late and after and draw(st.booleans()):
            graph.need[number] = draw(st.integers(1, len(set(after))))
    for number in range(len(graph)) if late else ():
        event = draw(st.integers(0, 3 * len(graph)))
        if event < len(graph) and event != number:
            graph.until[number] = event
    return graph


class Slow:
    """Everything recomputed at every moment, from the definitions."""

    def __init__(self, graph: Graph, kappa: float, kappa_comm: float, speed: tuple[float, ...]) -> None:
        tasks: list[Task] = graph.tasks
        self.tasks, self.now = tasks, Fraction(0)
        self.need, self.until, self.given_up = graph.need, graph.until, set[int]()
        self.slowed = {Kind.COMPUTE: 1 + Fraction(kappa), Kind.COMM: 1 + Fraction(kappa_comm)}
        self.left = [Fraction(t.seconds) for t in tasks]
        ranks = [set(task.ranks) for task in tasks]
        self.before = [
            [n for n in range(number) if tasks[n].stream == task.stream and ranks[n] & ranks[number]]
            for number, task in enumerate(tasks)
        ]
        other = {Kind.COMPUTE: Kind.COMM, Kind.COMM: Kind.COMPUTE}
        self.slowing = [
            {n for n in range(len(tasks)) if tasks[n].kind is other.get(task.kind) and ranks[n] & ranks[number]}
            for number, task in enumerate(tasks)
        ]
        for number, task in enumerate(tasks):
            if task.kind is Kind.COMPUTE and speed:
                self.left[number] /= Fraction(min(speed[rank] for rank in task.ranks))
        self.ready: dict[int, Fraction] = {}
        self.start: dict[int, Fraction] = {}
        self.end: dict[int, Fraction] = {}

    def running(self) -> list[int]:
        return [number for number in self.start if number not in self.end]

    def is_ready(self, number: int) -> bool:
        task = self.tasks[number]
        completed = [n for n in set(task.after) if n in self.end and n not in self.given_up]
        enough = len(completed) >= self.need[number] if number in self.need else set(task.after) <= self.end.keys()
        return enough and all(n in self.end for n in self.before[number])

    def close(self) -> bool:
        """End and ready whatever can be now; say whether anything could."""
        moved = False
        for number in self.running():
            if self.left[number] == 0:
                self.end[number], moved = self.now, True
        for number, task in enumerate(self.tasks):
            if number not in self.ready and self.is_ready(number):
                self.ready[number], moved = self.now, True
                if not task.resources:
                    self.start[number] = self.now
        return moved

    def give_up(self) -> bool:
        late = [n for n, event in self.until.items() if event in self.end and n not in self.end]
        for number in late:
            self.given_up.add(number)
            self.ready.setdefault(number, self.now)
            self.start.setdefault(number, self.now)
            self.end[number] = self.now
        return bool(late)

    def grant(self) -> bool:
        granted = False
        for number in sorted(set(self.ready) - set(self.start), key=lambda n: (self.ready[n], n)):
            used = {name for n in self.running() for name in self.tasks[n].resources}
            if not used & set(self.tasks[number].resources):
                self.start[number], granted = self.now, True
        return granted

    def rate(self, number: int) -> Fraction:
        beside = self.slowing[number].intersection(self.running())
        return 1 / self.slowed[self.tasks[number].kind] if beside else Fraction(1)

    def run(self) -> tuple[list[float], list[float]] | None:
        """Beginnings and ends; None where a task waits for ever."""
        while len(self.end) < len(self.tasks):
            while self.close() or self.give_up() or self.grant():
                pass
            if not self.running():
                break
            rates = {number: self.rate(number) for number in self.running()}
            step = min(self.left[number] / rate for number, rate in rates.items())
            self.now += step
            for number, rate in rates.items():
                self.left[number] -= step * rate
        every = range(len(self.tasks))
        if len(self.end) < len(self.tasks):
            return None
        return [float(self.start[n]) for n in every], [float(self.end[n]) for n in every]


@settings(max_examples=150)
@given(graph=graphs(), kappa=KAPPAS, kappa_comm=KAPPAS, speed=SPEEDS)
def test_agrees_with_a_simulator_that_recomputes_everything(
    graph: Graph, kappa: float, kappa_comm: float, speed: tuple[float, ...]
) -> None:
    starts, ends = Slow(graph, kappa, kappa_comm, speed).run() or ([], [])
    run = simulate(graph, RANKS, kappa=kappa, kappa_comm=kappa_comm, speed=speed)
    arrays = loops.events(columns(graph, RANKS, speed), kappa, kappa_comm)
    for start, end in ((run.start, run.end), arrays):
        assert start.tolist() == pytest.approx(starts, abs=1e-12)
        assert end.tolist() == pytest.approx(ends, abs=1e-12)


@settings(max_examples=150)
@given(
    graph=graphs(most=40, times=st.one_of(QUARTERS, st.floats(0, 2))),
    kappa=st.one_of(KAPPAS, st.floats(0, 2)),
    kappa_comm=st.one_of(KAPPAS, st.floats(0, 2)),
    speed=SPEEDS,
)
def test_the_loops_over_arrays_find_the_same_times_to_the_last_bit(
    graph: Graph, kappa: float, kappa_comm: float, speed: tuple[float, ...]
) -> None:
    table = columns(graph, RANKS, speed)
    slow, quick = Events(table, kappa, kappa_comm).run(), loops.events(table, kappa, kappa_comm)
    for one, other in ((slow, quick), (sweep(table), loops.sweep(table))):
        assert [times.tolist() for times in one] == [times.tolist() for times in other]


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", "ab"])), min_size=6, max_size=16),
    st.randoms(use_true_random=False),
    KAPPAS,
)
def test_many_at_one_link_are_served_in_the_same_order(
    ways: list[tuple[int, str]], random: Random, kappa: float
) -> None:
    """As many ranks as ways; several are ready at one moment, and their numbers are not in the order of moments."""
    graph = Graph()
    ready = [graph.add("gemm", Kind.COMPUTE, (rank,), "compute", at / 4) for rank, (at, _) in enumerate(ways)]
    for rank in random.sample(range(len(ways)), len(ways)):
        for _ in range(2):
            graph.add("send", Kind.COMM, (rank,), "comm", 0.25, after=[ready[rank]], resources=list(ways[rank][1]))
    table = columns(graph)
    for one, other in zip(Events(table, kappa, 0.0).run(), loops.events(table, kappa, 0.0), strict=True):
        assert one.tolist() == other.tolist()


@settings(max_examples=300)
@given(graph=graphs(late=True), kappa=KAPPAS, kappa_comm=KAPPAS, speed=SPEEDS)
def test_agrees_about_who_comes_late(graph: Graph, kappa: float, kappa_comm: float, speed: tuple[float, ...]) -> None:
    slow = Slow(graph, kappa, kappa_comm, speed)
    found = slow.run()
    if found is None:
        with pytest.raises(InputError, match="set a smaller need"):
            simulate(graph, RANKS, kappa=kappa, kappa_comm=kappa_comm, speed=speed)
        return
    run = simulate(graph, RANKS, kappa=kappa, kappa_comm=kappa_comm, speed=speed)
    assert run.start.tolist() == pytest.approx(found[0], abs=1e-12)
    assert run.end.tolist() == pytest.approx(found[1], abs=1e-12)
    assert set(run.given_up) == slow.given_up
    # What never began is in no timeline; all else is, in order.
    never = sum(len(graph.tasks[n].ranks) for n in slow.given_up if slow.start[n] == slow.end[n])
    members = sum(len(task.ranks) for task in graph.tasks)
    assert sum(len(rank.work) + len(rank.host) for rank in run.timeline.ranks) == members - never
    for rank in run.timeline.ranks:
        for spans in (rank.work, rank.host):
            assert np.all(spans.end >= spans.start)


@settings(max_examples=60)
@given(graph=graphs(most=20), kappa=KAPPAS)
def test_to_need_all_is_to_wait_for_all(graph: Graph, kappa: float) -> None:
    plain = simulate(graph, RANKS, kappa=kappa)
    graph.need = {number: len(set(task.after)) for number, task in enumerate(graph.tasks) if task.after}
    whole = simulate(graph, RANKS, kappa=kappa)
    assert whole.start.tolist() == plain.start.tolist() and whole.end.tolist() == plain.end.tolist()


@settings(max_examples=60)
@given(graph=graphs(links=False, most=30), speed=SPEEDS)
def test_both_ways_give_the_same_times(graph: Graph, speed: tuple[float, ...]) -> None:
    table = columns(graph, RANKS, speed)
    for quick, slow, arrays in zip(sweep(table), Events(table, 0.0, 0.0).run(), loops.sweep(table), strict=True):
        assert quick.tolist() == slow.tolist() == arrays.tolist()


@settings(max_examples=80)
@given(graph=graphs(most=20), kappa=st.floats(0, 2), kappa_comm=st.floats(0, 2), speed=SPEEDS)
def test_order_is_kept_and_no_bound_is_beaten(
    graph: Graph, kappa: float, kappa_comm: float, speed: tuple[float, ...]
) -> None:
    run = simulate(graph, RANKS, kappa=kappa, kappa_comm=kappa_comm, speed=speed)
    slack = 1e-9
    assert run.makespan >= critical_path(graph, speed or (1.0,) * RANKS) - slack
    assert run.makespan >= max(busy(graph, speed or (1.0,) * RANKS).values()) - slack
    places: dict[object, list[int]] = {}
    for number, task in enumerate(graph.tasks):
        assert all(run.start[number] >= run.end[other] - slack for other in task.after)
        for place in (*((rank, task.stream) for rank in task.ranks), *dict.fromkeys(task.resources)):
            places.setdefault(place, []).append(number)
    for members in places.values():
        order = sorted(members, key=lambda n: (run.start[n], run.end[n]))
        assert all(run.end[a] <= run.start[b] + slack for a, b in pairwise(order))


@settings(max_examples=80)
@given(graph=graphs(most=20), kappa=st.floats(0, 2), kappa_comm=st.floats(0, 2))
def test_work_is_conserved(graph: Graph, kappa: float, kappa_comm: float) -> None:
    """Time at its speed, added up, is the work of every task."""
    run = simulate(graph, RANKS, kappa=kappa, kappa_comm=kappa_comm)
    other = {Kind.COMPUTE: (Kind.COMM, kappa), Kind.COMM: (Kind.COMPUTE, kappa_comm)}
    for number, task in enumerate(graph.tasks):
        side, slowed = other.get(task.kind, (None, 0.0))
        beside = [n for n, t in enumerate(graph.tasks) if t.kind is side and set(t.ranks) & set(task.ranks)]
        moments = sorted({*run.start.tolist(), *run.end.tolist()})
        work = 0.0
        for a, b in pairwise(moments):
            middle = (a + b) / 2
            if run.start[number] <= middle < run.end[number]:
                slow = any(run.start[n] <= middle < run.end[n] for n in beside)
                work += (b - a) / (1 + slowed) if slow else b - a
        assert work == pytest.approx(task.seconds, abs=1e-9)


@settings(max_examples=60)
@given(graph=graphs(most=25))
def test_no_link_stands_idle_while_a_task_could_use_it(graph: Graph) -> None:
    run = simulate(graph, RANKS)
    for number, task in enumerate(graph.tasks):
        if not task.resources:
            continue
        streams = {(rank, task.stream) for rank in task.ranks}
        before = [n for n in range(number) if {(r, graph.tasks[n].stream) for r in graph.tasks[n].ranks} & streams]
        ready = max((run.end[n] for n in (*before, *task.after)), default=0.0)
        others = [n for n, t in enumerate(graph.tasks) if n != number and set(t.resources) & set(task.resources)]
        moments = sorted({ready, run.start[number], *run.start[others], *run.end[others]})
        for a, b in pairwise(moments):
            if ready <= a and b <= run.start[number]:
                assert any(run.start[n] <= a and run.end[n] >= b for n in others)


@settings(max_examples=60)
@given(graph=graphs(links=False, most=25), factor=st.floats(0, 1))
def test_a_faster_network_is_never_slower(graph: Graph, factor: float) -> None:
    faster = Graph()
    faster.tasks = [t._replace(seconds=t.seconds * factor) if t.kind is Kind.COMM else t for t in graph.tasks]
    assert np.all(simulate(faster, RANKS).end <= simulate(graph, RANKS).end + 1e-12)


@settings(max_examples=60)
@given(graph=graphs(most=25), order=st.permutations(range(RANKS)), kappa=KAPPAS)
def test_names_of_ranks_do_not_matter(graph: Graph, order: list[int], kappa: float) -> None:
    renamed = Graph()
    renamed.tasks = [task._replace(ranks=tuple(order[rank] for rank in task.ranks)) for task in graph.tasks]
    first, second = (simulate(g, RANKS, kappa=kappa, kappa_comm=kappa) for g in (graph, renamed))
    assert first.end.tolist() == second.end.tolist()
    for rank in range(RANKS):
        one, other = first.timeline.ranks[rank], second.timeline.ranks[order[rank]]
        assert one.steps == other.steps
        for a, b in ((one.work, other.work), (one.host, other.host)):
            assert all(np.array_equal(getattr(a, key), getattr(b, key)) for key in ("start", "end", "kind", "name"))


@settings(max_examples=60)
@given(graph=graphs(most=25), kappa=st.floats(0, 2))
def test_timelines_keep_order_in_whole_nanoseconds(graph: Graph, kappa: float) -> None:
    run = simulate(graph, RANKS, kappa=kappa)
    assert simulate(graph, RANKS, kappa=kappa).end.tolist() == run.end.tolist()
    members = sum(len(task.ranks) for task in graph.tasks)
    assert sum(len(rank.work) + len(rank.host) for rank in run.timeline.ranks) == members
    for rank in run.timeline.ranks:
        for spans in (rank.work, rank.host):
            assert np.all(spans.end >= spans.start)
            for lane in np.unique(spans.lane):
                rows = spans.take(spans.lane == lane)
                order = np.lexsort((rows.end, rows.start))
                assert np.all(rows.end[order][:-1] <= rows.start[order][1:])
        for step, following in pairwise(rank.steps):
            assert step.end == following.start and step.number < following.number
        assert all(step.end >= step.start for step in rank.steps)

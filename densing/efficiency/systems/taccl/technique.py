"""TACCL: collectives synthesised for the machine at hand, from a sketch, by mixed-integer programs.

:func:`~densing.efficiency.systems.taccl.synthesis.synthesise` makes a schedule; :class:`Synthesised` gives them to
any plan; the technique here is data parallelism (and blocking tensor parallelism) with all of its collectives
synthesised. Source: Shah et al., NSDI 2023, arXiv 2111.04867, and the released code.

Claims: routing optima, schedules and their lead over a ring. The figures in microseconds are a pilot's, measured once
with a first implementation on the profile of NDv2 that the authors ship: they are not figures of the paper. The paper's
own are against NCCL on real machines, and have no answer here. None of the rows goes through the simulator's laws: the
programs are solved on the link costs as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from densing.core import InputError
from densing.efficiency.simulation import Cluster, Graph
from densing.efficiency.systems.claims import Answer, Claim, Physics
from densing.efficiency.systems.planner import BUCKET, CostModel, Maker, Planned, Use
from densing.efficiency.systems.registry import Knob, above_zero, choice, settle, whole
from densing.efficiency.systems.taccl.schedule import Schedule
from densing.efficiency.systems.taccl.synthesis import TOGETHER, Synthesis, compact, synthesise
from densing.efficiency.systems.taccl.topology import Sketch, from_cluster, profile_topology
from densing.efficiency.timeline import Comm, Kind

if TYPE_CHECKING:
    from densing.efficiency.parallel import RunEnv, RunRecord
    from densing.efficiency.simulation import Workload


TOGETHER_KNOB = Knob("together", TOGETHER, "most chunks per message (released code: 6)", whole(1, 64))
TIME_LIMIT = Knob("time_limit", 2.0, "time limit of each routing problem, seconds", above_zero)
OP = Knob(
    "op", "all_gather", "collective of a real run: all_gather or all_reduce", choice(("all_gather", "all_reduce"))
)
BYTES = Knob("bytes", 1 << 20, "bytes that each rank contributes in a real run", whole(4, 1 << 32))
NODES = Knob("nodes", 0, "nodes that a real run assumes for its ranks; 0: two for 4 ranks or more", whole(0, 1024))


class Taccl(Planned):
    """Synthesised collectives under DDP's buckets and blocking tensor-parallel sums.

    A real run makes no training step: each step is one collective, by the synthesised schedule and by torch's own.
    """

    name = "taccl"
    role = "collective"
    paper = "Shah et al., NSDI 2023, arXiv 2111.04867"
    summary = (
        "collectives are synthesised for the machine: routes by a MILP, then an order, then chunks merged into messages"
    )
    knobs = (BUCKET, TOGETHER_KNOB, TIME_LIMIT, OP, BYTES, NODES)
    stand_in = "runs one collective's schedule over isend and irecv, not a training run"
    not_available = ("curves over message size", "topology and end-to-end set-ups behind the speed-ups on models")
    claims_in = __name__

    def check(self, workload: Workload) -> None:
        """Refuse a workload whose ranks do not communicate."""
        super().check(workload)
        if max(workload.split.dp, workload.split.tp) < 2:
            raise InputError("taccl needs ranks that communicate: dp >= 2 or tp >= 2")

    def collectives(self, knobs: Mapping[str, Any]) -> Maker:
        """Return who synthesises the collectives: of groups of at most 64 ranks."""
        return partial(Synthesised, together=knobs["together"], time_limit=knobs["time_limit"])

    def run(self, env: RunEnv, **knobs: Any) -> RunRecord:
        """Run a collective ``env.spec.steps`` times on this rank; each result is compared with torch's own, bit by bit.

        Returns
        -------
        RunRecord
            Without losses. ``step_s``: seconds of the synthesised collective, all of them waited for. ``extra``:
            ``ours_s``, ``builtin_s`` (medians), ``bytes``, ``messages`` of this rank, and ``profile_us``: what the
            schedule takes on the machine it was made for, which is not this one.

        Raises
        ------
        InputError
            When the ranks do not fill the nodes.
        DensingError
            When a result differs.
        """
        from densing.efficiency.systems.taccl.run import run_collective

        settings = settle(self.name, self.knobs, knobs)
        chosen = {name: settings[name] for name in ("op", "nodes", "together", "time_limit")}
        return run_collective(env, count=settings["bytes"], stand_in=self.stand_in, **chosen)


TACCL = Taccl()


MOST_RANKS = 64
"""Largest group; beyond it the search takes longer than its result is worth."""


def collective_schedule(
    op: str,
    count: float,
    cluster: Cluster,
    ranks: Sequence[int],
    *,
    concurrent: int = 1,
    together: int = TOGETHER,
    time_limit: float = 2.0,
) -> Schedule:
    """Synthesise a collective of ``count`` bytes (full buffer) among ranks of a cluster.

    Sizes share a schedule up to a factor of two: it is synthesised once for the nearest power of four of the chunk's
    bytes, kept in memory, and timed anew for the size asked for.

    Parameters
    ----------
    op, count, cluster, ranks, concurrent
        As :func:`densing.efficiency.simulation.costs.collective_seconds` has them.
    together : int
        Most chunks of a message.
    time_limit : float
        Seconds for a routing problem.

    Raises
    ------
    InputError
        When there is nothing to send, the group has more than 64 ranks or does not fill its nodes equally.
    """
    n = len(ranks)
    if not 2 <= n <= MOST_RANKS:
        raise InputError(f"taccl: synthesises collectives of 2 to {MOST_RANKS} ranks, not of {n}; use fewer nodes")
    if not (math.isfinite(count) and count > 0):
        raise InputError(f"taccl: {count} bytes; give a finite number above 0")
    chunk = count if op in ("broadcast", "send_recv") else count / n
    near = 4.0 ** round(math.log(chunk, 4))
    result = synthesise(
        from_cluster(cluster, near, ranks, concurrent=concurrent), op, together=together, time_limit=time_limit
    )
    exact = from_cluster(cluster, chunk, ranks, concurrent=concurrent)
    return replace(compact(result.schedule, exact), topology=cluster.name)


class Synthesised:
    """Provider of collectives (``planner.collectives.Collectives``) that synthesises them.

    Where one rank stands for all of a group, the collective is one task that takes as long as the schedule. Where every
    rank is simulated, its messages are tasks of their two ranks, each pair on a stream of its own: late ranks then hold
    up only what needs them, but ports that several pairs share are left out, so it can end earlier than the schedule.

    Parameters
    ----------
    cluster : Cluster
    use : Use
    together : int
    time_limit : float
        As in :func:`collective_schedule`.

    Examples
    --------
    >>> from densing.efficiency.simulation import Device, Link
    >>> link = Link(0.0, 1e-9)
    >>> cluster = Cluster("toy", 2, 2, Device("toy", 1, 1), intra=link, inter=link, host=link)
    >>> graph = Graph()
    >>> Synthesised(cluster, Use("dp")).add(graph, "gradients", "all_reduce", 1e6, (0, 1), (0,), "comm", ())
    0
    >>> round(graph.tasks[0].seconds, 9)
    0.001
    """

    def __init__(self, cluster: Cluster, use: Use, *, together: int = TOGETHER, time_limit: float = 2.0) -> None:
        self.cluster, self.use, self.together, self.time_limit = cluster, use, together, time_limit
        self._known: dict[tuple[str, float, tuple[int, ...]], Schedule] = {}
        self._simple = CostModel(cluster, use)

    def add(
        self,
        graph: Graph,
        name: str,
        op: str,
        count: float,
        ranks_real: Sequence[int],
        simulated_ranks: Sequence[int],
        stream: str,
        after: Iterable[int],
    ) -> int:
        """Add a collective of ``count`` bytes (full buffer), and return the task whose end is the collective's."""
        real, simulated, waits = tuple(ranks_real), tuple(simulated_ranks), tuple(after)
        if len(real) < 2 or count <= 0 or op == "send_recv":
            return self._simple.add(graph, name, op, count, real, simulated, stream, waits)
        schedule = self.schedule(op, count, real)
        if len(simulated) == len(real):
            return self._messages(graph, name, schedule, count, simulated, stream, waits)
        seconds = schedule.makespan * 1e-6
        return self._simple.place(graph, name, op, count, real, simulated, stream, waits, seconds)

    def schedule(self, op: str, count: float, real: tuple[int, ...]) -> Schedule:
        """Return the schedule of a collective; the same one again for the same question."""
        key = (op, count, real)
        if key not in self._known:
            self._known[key] = collective_schedule(
                op,
                count,
                self.cluster,
                real,
                concurrent=self.use.concurrent,
                together=self.together,
                time_limit=self.time_limit,
            )
        return self._known[key]

    def _messages(
        self,
        graph: Graph,
        name: str,
        schedule: Schedule,
        count: float,
        ranks: tuple[int, ...],
        stream: str,
        waits: tuple[int, ...],
    ) -> int:
        """Each message waits for both its ranks and for what brings its chunks; a last task ends with all of them."""
        chunk = count / (1 if schedule.op == "broadcast" else schedule.n)
        begun = [graph.add(f"{name} begins", Kind.COMM, (rank,), stream, 0.0, after=waits) for rank in ranks]
        brought: dict[tuple[int, int], list[int]] = {}
        tasks: list[int] = []
        for send in schedule.sends:
            a, b = ranks[send.src], ranks[send.dst]
            bringing = {task for c in send.chunks for task in brought.get((send.src, c), [])}
            size = round(chunk * len(send.chunks))
            task = graph.add(
                f"{name} {send.src}>{send.dst}",
                Kind.COMM,
                (a, b),
                f"{stream} {a}>{b}",
                (send.end - send.start) * 1e-6,
                count=size,
                after=(begun[send.src], begun[send.dst], *sorted(bringing)),
                comm=Comm("send_recv", group=self.use.kind, group_size=2, ranks=(a, b), src=a, dst=b),
            )
            for c in send.chunks:
                brought.setdefault((send.dst, c), []).append(task)
            tasks.append(task)
        return graph.add(f"{name} ends", Kind.COMM, ranks, stream, 0.0, after=tasks)


PILOT = "pilot with scipy's HiGHS; costs of the NDv2 profile in github.com/microsoft/taccl"
PAPER = "arXiv 2111.04867, as summarised by others"
PROFILE = "link costs of the NDv2 profile"
QUICKER = "the pilot ordered its routes by one rule; the minimum is 451, four times 107 on the wire and a hop of 23"


@cache
def all_gather(profile: str, nodes: int, per_node: int, sketch: str, together: int = 1) -> Synthesis:
    """Return the all-gather of a row of the pilot's table, by default one chunk per message, as the pilot had it.

    ``sk1``: one sender and one receiver per node. ``sk2``: every device may send, through one shared NIC.
    """
    n = nodes * per_node
    symmetry = ((per_node, n),) if nodes > 1 else ((1, n),)
    relays = ((0, 1),) if sketch == "sk1" else ()
    topology = profile_topology(profile, nodes, per_node, "full")
    return synthesise(topology, "all_gather", Sketch(sketch, relays, symmetry), together=together)


def _bound(nodes: int, per_node: int, sketch: str) -> Callable[[Physics], Answer]:
    def check(_: Physics) -> Answer:
        synthesis = all_gather("ndv2-1mb", nodes, per_node, sketch)
        gap, seconds = f"gap {100 * synthesis.gap:.2g} %", f"{synthesis.solve_s:.1f} s here"
        note = f"{synthesis.binaries} binaries, {synthesis.status}, {gap}, {seconds}"
        return Answer(synthesis.bound, note)

    return check


def _schedule(nodes: int, per_node: int) -> Callable[[Physics], Answer]:
    return lambda _: Answer(all_gather("ndv2-1mb", nodes, per_node, "sk1").makespan)


def _relay(_: Physics) -> Answer:
    merged = all_gather("ndv2-1mb", 2, 4, "sk1", TOGETHER).makespan
    note = f"{QUICKER}; with two chunks as one message {merged:g} us"
    return Answer(all_gather("ndv2-1mb", 2, 4, "sk1").makespan, note)


def _at_most(limit: float) -> Callable[[Physics], Answer]:
    def check(_: Physics) -> Answer:
        makespan = all_gather("ndv2-1mb", 2, 4, "sk2").makespan
        direction = f"at most {limit:g} us" if makespan <= limit else f"{makespan:g} us"
        return Answer(direction, f"{makespan:g} us: {QUICKER}")

    return check


def _lead(_: Physics) -> Answer:
    synthesis = all_gather("ndv2-1mb", 2, 4, "sk1")
    lead = synthesis.ring / synthesis.makespan
    direction = "at least 1.5x" if lead >= 1.5 else f"{lead:.2f}x"
    return Answer(
        direction, f"{lead:.2f}x: {synthesis.ring:g} us against {synthesis.makespan:g}; the pilot had 1.58x and 1.51x"
    )


def _small(_: Physics) -> Answer:
    merged, single = (all_gather("ndv2-1kb", 2, 4, "sk1", together) for together in (TOGETHER, 1))
    note = f"{merged.ring:g} against {merged.makespan:g} (scaled units); one chunk per message "
    return Answer(merged.ring / merged.makespan, note + f"{single.ring / single.makespan:.2f}x")


def _nccl(_: Physics) -> Answer:
    lead = all_gather("ndv2-1kb", 2, 4, "sk1", TOGETHER)
    return Answer(
        None,
        f"measured against NCCL on real machines; the simulator has no NCCL. Ours over a ring of the same costs is "
        f"{lead.ring / lead.makespan:.1f}x at 1 KB: that shows where the lead comes from, not how "
        "large it is over NCCL",
    )


def _pilot(
    number: str, quantity: str, setup: str, published: float | str, check: Callable[[Physics], Answer], unit: str = "us"
) -> Claim:
    tolerance = None if isinstance(published, str) else 0.05
    return Claim(f"TAC-1{number}", quantity, setup, published, unit, "measured", PILOT, check, tolerance, PROFILE,
                 grade="own measurement")  # fmt: skip


def _paper(number: str, quantity: str, setup: str, published: float, check: Callable[[Physics], Answer]) -> Claim:
    return Claim(f"TAC-{number}", quantity, setup, published, "x", "second-hand", PAPER, check)


OPTIMUM, SCHEDULE = "optimum of the routing MILP", "all-gather schedule"

CLAIMS: tuple[Claim, ...] = (
    _pilot("a", OPTIMUM, "1 node x 4, 1 MB", 23.0, _bound(1, 4, "sk2")),
    _pilot("b", SCHEDULE, "1 node x 4, 1 MB", 23.0, _schedule(1, 4)),
    _pilot("c", OPTIMUM, "2 x 2, relay, 1 MB", 214.0, _bound(2, 2, "sk1")),
    _pilot("d", SCHEDULE, "2 x 2, relay, 1 MB", 237.0, _schedule(2, 2)),
    _pilot("e", OPTIMUM, "2 x 4, relay, 1 MB", 428.0, _bound(2, 4, "sk1")),
    _pilot("f", SCHEDULE, "2 x 4, relay, 1 MB", 474.0, _relay),
    _pilot("g", OPTIMUM, "2 x 4, shared NIC, 1 MB", 428.0, _bound(2, 4, "sk2")),
    _pilot("h", SCHEDULE, "2 x 4, shared NIC, 1 MB", "at most 497 us", _at_most(497.0), ""),
    _pilot("i", "lead over a ring", "2 x 4, relay, 1 MB", "at least 1.5x", _lead, ""),
    Claim(
        "TAC-1j",
        "lead over a ring where chunks travel together",
        "2 x 4, relay, 1 KB",
        5.2,
        "x",
        "derived",
        "arithmetic on the NDv2 1 KB profile: 7 x 270 over 260 + 4 x 10.25 + 2 x 32",
        _small,
        0.05,
        PROFILE,
        grade="algebraic",
    ),
    _paper("2", "largest lead over NCCL in micro-benchmarks", "DGX-2 and NDv2", 6.7, _nccl),
    _paper(
        "3",
        "largest end-to-end gain",
        "Transformer-XL and BERT",
        2.36,
        lambda _: Answer(None, "end-to-end times of models with an unpublished share of communication"),
    ),
)

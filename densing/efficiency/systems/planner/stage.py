"""A stage of a plan: events, the computation of a rank and its seconds, and the groups of its ranks.

Ranks are numbered tensor-parallel first, then data-parallel, then by pipeline stage, so that the groups that exchange
most are closest. Equal ranks are simulated as one per stage; where a cluster's ranks differ in speed, or are late, all
are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from densing.core import InputError
from densing.efficiency.simulation import Cluster, Device, Graph, Module, Split, Workload, collective_seconds, span_of
from densing.efficiency.systems.planner.collectives import Collectives, CostModel, Maker, Use
from densing.efficiency.timeline import Comm, Kind

Event = tuple[tuple[int, ...], ...]
"""Tasks that must have ended, for each simulated rank of a stage in turn; empty: nothing to wait for."""

NOTHING: Event = ()


def join(*events: Event) -> Event:
    """Return the event that all of some are done.

    Examples
    --------
    >>> join(((1,), (2,)), NOTHING, ((1, 3), (4,)))
    ((1, 3), (2, 4))
    """
    waits = [event for event in events if event]
    if len(waits) < 2:
        return waits[0] if waits else NOTHING
    return tuple(tuple(dict.fromkeys(chain.from_iterable(each))) for each in zip(*waits, strict=True))


FULL_BYTES = 4
"""Bytes of a parameter's full-precision values: master copy, momentum, variance, anchor."""


class Piece(NamedTuple):
    """Part of the tokens of every sequence, from a share of it to a share."""

    start: float = 0.0
    stop: float = 1.0

    @property
    def share(self) -> float:
        """Of the tokens."""
        return self.stop - self.start


WHOLE = Piece()
BLOCK = ("attention", "mlp")
"""Modules of a layer."""


def tokens(workload: Workload) -> float:
    """Return the tokens of one micro-batch.

    Raises
    ------
    InputError
        When the batch cannot be divided so.

    Examples
    --------
    >>> from densing.efficiency.simulation import Transformer
    >>> toy = Transformer("toy", 2, 8, 2, 2, 4, 16, 64)
    >>> tokens(Workload(toy, batch=4, sequence=16, micro_batches=2)), tokens(Workload(toy, "decode", batch=4))
    (32.0, 4.0)
    """
    if workload.micro_batches < 1 or workload.batch < 1 or workload.batch % workload.micro_batches:
        raise InputError(
            f"batch {workload.batch} in {workload.micro_batches} micro-batches: a micro-batch "
            "must hold whole sequences; choose a divisor of the batch"
        )
    per_sequence = 1 if workload.mode == "decode" else workload.sequence
    return workload.batch / workload.micro_batches * per_sequence / workload.split.cp


def module_seconds(workload: Workload, device: Device, module: Module, phase: str, piece: Piece = WHOLE) -> float:
    """Return the seconds of a pass over a module on one rank.

    A piece of the tokens moves all weights, and of the scores of causal attention it computes the square's difference:
    later tokens attend to more. A backward pass computes once more what was not kept.
    """
    backward = phase == "backward"
    flops = module.backward_flops if backward else module.flops
    moved = module.backward_moved if backward else module.moved
    # The share of an attention's operations that grows with the square of the sequence: all but its projections.
    square = 0.0
    if module.name == "attention" and not workload.model.linear_attention and module.flops:
        square = max(0.0, 1 - 2 * tokens(workload) * module.parameters / module.flops)
    again = 0.0
    if backward and workload.recompute == "full" and module.name in BLOCK:
        again = module_seconds(workload, device, module, "forward", piece)
    elif backward and workload.recompute == "selective" and module.scores:
        again = square * module_seconds(workload, device, module, "forward", piece)
    if piece == WHOLE:
        return device.seconds(flops, moved) + again
    squares = piece.stop**2 - piece.start**2
    # Backward, weights are read for the gradient of the input, and their own gradient is written.
    weights = min(moved, module.parameters * workload.dtype_bytes * (2 if backward else 1))
    return again + device.seconds(
        flops * ((1 - square) * piece.share + square * squares), weights + (moved - weights) * piece.share
    )


def product_share(workload: Workload, module: Module, phase: str) -> float:
    """Return the share of a pass over a module in the product whose output is summed over the tensor-parallel group.

    Forward the output projection and the MLP's second matrix; backward the gradient of the input, of the projections
    to queries, keys and values, of the MLP's first matrices, and of the head. What is recomputed comes before it.
    """
    model, tp = workload.model, workload.split.tp
    last = 0.0
    if module.name == "attention":
        last = model.hidden * model.heads * model.head_dim / tp
    # Of a mixture's experts a token visits a few.
    visited = module.flops / (2 * tokens(workload)) if module.experts else module.parameters
    if module.name == "mlp":
        last = visited / (3 if model.gated else 2)
    matrix = last if phase == "forward" else visited - last
    flops = module.flops if phase == "forward" else module.backward_flops
    if phase == "backward" and workload.recompute == "full" and module.name in BLOCK:
        flops += module.flops
    return min(1.0, 2 * tokens(workload) * matrix / flops) if flops else 0.0


class Edge(NamedTuple):
    """Compression of activations and gradients between two neighbouring stages.

    Attributes
    ----------
    share : float
        Bytes sent over the bytes of all values.
    encode_s, decode_s : float
        Seconds of computation before a packet leaves and after it has come, at speed 1.
    ahead : float
        Bytes of a message before each packet that tells its length; 0: there is none.
    back : Edge, optional
        What becomes of gradients, where that is something else.
    """

    share: float = 1.0
    encode_s: float = 0.0
    decode_s: float = 0.0
    ahead: float = 0.0
    back: Edge | None = None


class Program:
    """A graph in the making.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
    layout : Layout
    maker : Maker
        Of the provider of collectives.
    """

    def __init__(self, workload: Workload, cluster: Cluster, layout: Layout, maker: Maker = CostModel) -> None:
        self.graph = Graph()
        self.workload, self.cluster, self.layout, self.maker = workload, cluster, layout, maker
        self._providers: dict[str, Collectives] = {}
        self._models: dict[str, CostModel] = {}

    def model(self, kind: str) -> CostModel:
        """Return the cost model of a kind of groups, whoever adds their collectives otherwise."""
        if kind not in self._models:
            self._models[kind] = CostModel(self.cluster, self.use(kind))
        return self._models[kind]

    def provider(self, kind: str) -> Collectives:
        """Return who adds the collectives of a kind of groups."""
        if kind not in self._providers:
            self._providers[kind] = self.maker(self.cluster, self.use(kind))
        return self._providers[kind]

    def use(self, kind: str) -> Use:
        """Return what groups of a kind communicate beside; in inference replicas have nothing to say to each other."""
        # A link that two kinds share serves one of them at a time; otherwise each kind's stream orders its own.
        exclusive = self.workload.mode == "train" and self.layout.exclusive(kind)
        return Use(kind, self.layout.concurrent(kind), exclusive)


class Stage:
    """The ranks of one pipeline stage: all do the same, so that a plan reads as if there were one.

    Parameters
    ----------
    program : Program
    index : int
        Interleaved stages come back to the first devices: stage i is on those of place ``i % pp``.
    modules : sequence of Module
    """

    def __init__(self, program: Program, index: int, modules: Sequence[Module]) -> None:
        self.program, self.graph, self.index = program, program.graph, index
        self.place = index % program.workload.split.pp
        self.workload, self.device = program.workload, program.cluster.device
        self.modules = tuple(modules)
        self.ranks = program.layout.ranks(self.place)
        self.parameters = sum(module.parameters for module in modules)
        self.experts = sum(module.experts for module in modules)
        self._groups = {kind: program.layout.groups(kind, self.place) for kind in KINDS}
        self._sends: dict[tuple[int, float], list[tuple[int, float, tuple[str, ...], Comm]]] = {}

    def size(self, kind: str) -> int:
        """Members of a group of a kind."""
        return len(self._groups[kind][0].real)

    def compute(self, name: str, seconds: float, after: Event = NOTHING) -> Event:
        """Add computation on every rank."""
        add = self.graph.add
        return tuple(
            (add(name, Kind.COMPUTE, (rank,), "compute", seconds, after=after[position] if after else ()),)
            for position, rank in enumerate(self.ranks)
        )

    def collective(self, name: str, op: str, count: float, kind: str, after: Event, stream: str = "comm") -> Event:
        """Add a collective in every group of a kind; a group of one has nothing to do.

        Ranks in no group go on with what they waited for.
        """
        done: list[tuple[int, ...]] = list(after) if after else [()] * len(self.ranks)
        for group in self._groups[kind]:
            if len(group.real) > 1 and count > 0:
                waits = _waits(after, group.positions)
                task = self.program.provider(kind).add(
                    self.graph, name, op, count, group.real, group.simulated, stream, waits
                )
                for position in group.positions:
                    done[position] = (task,)
        return tuple(done)

    def part(
        self, name: str, op: str, count: float, share: float, after: Event, *, saved: float = 0.0, stream: str = "comm"
    ) -> Event:
        """Add a share of a tensor-parallel collective, shortened by what is saved; always by the cost model."""
        model = self.program.model("tp")
        done: list[tuple[int, ...]] = [()] * len(self.ranks)
        for group in self._groups["tp"]:
            waits = _waits(after, group.positions)
            task = model.add(
                self.graph, name, op, count, group.real, group.simulated, stream, waits, share, 1 / (1 - saved)
            )
            for position in group.positions:
                done[position] = (task,)
        return tuple(done)

    def sum_seconds(self, op: str, count: float) -> float:
        """Return what a tensor-parallel collective takes in the slowest group, by the cost model."""
        model = self.program.model("tp")
        return max(model.seconds(op, count, group.real) for group in self._groups["tp"])

    def hand_on(self, other: Stage, name: str, count: float, after: Event) -> Event:
        """Send activations to a neighbouring stage, and return when they are there.

        The sender's transfer alone is on the timeline: the receiver has posted its receive long before, and waits idle.
        What a rank sends to both neighbours passes the interface of its node one after the other; within a node every
        pair has its own link, unless the cluster says that it is shared.
        """
        if (other.place, count) not in self._sends:
            self._sends[other.place, count] = [
                self._send(rank, count, source, target)
                for rank, (source, target) in zip(
                    self.ranks, self.program.layout.neighbours(self.place, other.place), strict=True
                )
            ]
        done, stream = [], f"p2p to {other.place}"
        for position, (rank, seconds, resources, comm) in enumerate(self._sends[other.place, count]):
            task = self.graph.add(
                name,
                Kind.COMM,
                (rank,),
                stream,
                seconds,
                count=round(count),
                after=after[position] if after else (),
                resources=resources,
                comm=comm,
            )
            done.append((task,))
        return tuple(done)

    def _send(self, rank: int, count: float, source: int, target: int) -> tuple[int, float, tuple[str, ...], Comm]:
        """Who sends, its seconds, the interface that they take, and what is recorded of it."""
        level = span_of(self.program.cluster, (source, target))
        own = level == "intra" and not self.program.cluster.intra.shared
        seconds = self.program.layout.handing_on(count, source, target)
        comm = Comm("send_recv", "pp", "pp", 2, (source, target), src=source, dst=target)
        return rank, seconds, () if own else (f"{level} of {rank}",), comm


def _waits(after: Event, positions: Sequence[int]) -> tuple[int, ...]:
    return tuple(task for position in positions for task in after[position]) if after else ()


SPANS = ("none", "intra", "inter", "wide")
KINDS = ("tp", "cp", "ep", "expert", "dp", "inner", "outer")
"""Groups of ranks: tensor-parallel ones, those of a sequence's parts, those that experts are dealt out over, those that
hold the same experts, all that hold the same parameters else, and these in two levels where a technique has them."""


class Group(NamedTuple):
    """Ranks that communicate.

    Attributes
    ----------
    positions : tuple of int
        Those that are simulated, by their place among the stage's simulated ranks.
    simulated : tuple of int
        The same by simulated rank.
    real : tuple of int
        All members, by their rank in the cluster.
    """

    positions: tuple[int, ...]
    simulated: tuple[int, ...]
    real: tuple[int, ...]


class Layout:
    """Groups of a split on a cluster.

    Parameters
    ----------
    split : Split
    cluster : Cluster
    inner : int
        Data-parallel ranks in a group that agrees every step, where a technique has such groups.

    Raises
    ------
    InputError
        When the split needs more devices than there are, or is none.

    Examples
    --------
    >>> from densing.efficiency.simulation import Device, Link
    >>> link = Link(0, 1e-9)
    >>> cluster = Cluster("toy", 8, 4, Device("toy", 1, 1), intra=link, inter=link, host=link)
    >>> layout = Layout(Split(dp=4, tp=2), cluster)
    >>> layout.real("tp", 0), layout.real("dp", 0)
    ([(0, 1), (2, 3), (4, 5), (6, 7)], [(0, 2, 4, 6), (1, 3, 5, 7)])
    >>> layout.concurrent("dp")
    2
    """

    def __init__(self, split: Split, cluster: Cluster, inner: int = 1) -> None:
        for name in ("dp", "tp", "pp", "cp", "ep"):
            if getattr(split, name) < 1:
                raise InputError(f"split: {name} = {getattr(split, name)} is not a number of ranks; give 1 or more")
        if split.ranks > cluster.n:
            parts = f" x cp {split.cp}" if split.cp > 1 else ""
            raise InputError(
                f"dp {split.dp} x tp {split.tp} x pp {split.pp}{parts} needs {split.ranks} "
                f"devices, but cluster {cluster.name} has {cluster.n}; split less, or give it "
                "more devices"
            )
        if cluster.speed and not len(cluster.speed) == cluster.n == split.ranks:
            raise InputError(
                f"cluster {cluster.name}: {len(cluster.speed)} speeds for {cluster.n} devices and a split of "
                f"{split.ranks} ranks; split over all of them, or give one speed per rank"
            )
        if split.dp % inner:
            raise InputError(f"inner = {inner} does not divide the {split.dp} data-parallel ranks; choose a divisor")
        self.split, self.cluster, self.inner = split, cluster, inner
        self.every = bool(cluster.speed) or cluster.delay is not None
        self._neighbours: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._groups: dict[tuple[str, int], list[Group]] = {}

    @property
    def simulated(self) -> int:
        """Ranks simulated."""
        return self.split.ranks if self.every else self.split.pp

    @property
    def stands_for(self) -> dict[int, int]:
        """Real ranks that a simulated rank represents."""
        return {} if self.every else dict.fromkeys(range(self.split.pp), self.split.copies * self.split.tp)

    def ranks(self, stage: int) -> tuple[int, ...]:
        """Simulated ranks of a stage."""
        return self.block(stage) if self.every else (stage,)

    def block(self, stage: int) -> tuple[int, ...]:
        """Real ranks of a stage."""
        width = self.split.copies * self.split.tp
        first = self._rank(0, 0, stage)
        return tuple(range(first, first + width))

    def groups(self, kind: str, stage: int) -> list[Group]:
        """Return the groups of a kind that are simulated; a single one stands for all where ranks are equal."""
        if (kind, stage) not in self._groups:
            real, first = self.real(kind, stage), self._rank(0, 0, stage)
            if self.every:
                groups = [Group(tuple(rank - first for rank in ranks), ranks, ranks) for ranks in real]
            else:
                # One group stands for all of them: the one whose ranks lie farthest apart.
                groups = [Group((0,), (stage,), max(real, key=self._spread))]
            self._groups[kind, stage] = groups
        return self._groups[kind, stage]

    def real(self, kind: str, stage: int) -> list[tuple[int, ...]]:
        """Return the members of every group of a kind in a stage."""
        copies, tp = self.split.copies, self.split.tp
        if kind == "tp":
            return [tuple(self._rank(d, t, stage) for t in range(tp)) for d in range(copies)]
        # Of each kind: neighbours of a group of so many, or every so many-th of all copies.
        size = {"cp": self.split.cp, "ep": self.split.ep, "inner": self.inner, "dp": copies}
        width, stride = (size[kind], 1) if kind in size else (copies, self.split.ep if kind == "expert" else self.inner)
        starts = range(stride) if kind == "expert" else range(0, copies, width)
        return [
            tuple(self._rank(d, t, stage) for d in range(start, start + width, stride))
            for t in range(tp)
            for start in starts
        ]

    def neighbours(self, stage: int, other: int) -> list[tuple[int, int]]:
        """Return who hands activations to whom, from a stage to another: real ranks, one pair per simulated rank."""
        if (stage, other) not in self._neighbours:
            copies, tp = self.split.copies, self.split.tp
            pairs = [(self._rank(d, t, stage), self._rank(d, t, other)) for d in range(copies) for t in range(tp)]
            farthest = pairs if self.every else [max(pairs, key=lambda pair: (*self._spread(pair), self._beta(pair)))]
            self._neighbours[stage, other] = farthest
        return self._neighbours[stage, other]

    def handing_on(self, count: float, source: int, target: int) -> float:
        """Return the seconds in which a rank hands on so many bytes, while all of its stage do the same.

        Ranks of a node share its interface, those of a site its uplink, where the link says that it is shared.
        """
        far = span_of(self.cluster, (source, target)) == "wide"
        unit = self.cluster.per_site if far else self.cluster.per_node
        flows = min(unit, self.split.copies * self.split.tp)
        return collective_seconds("send_recv", count, self.cluster, (source, target), concurrent=flows)

    def concurrent(self, kind: str) -> int:
        """Return how many groups of a kind a node has at most: they communicate at the same time."""
        return self._concurrent[kind]

    def level(self, kind: str) -> str:
        """Return the outermost link that groups of a kind use: ``none``, ``intra``, ``inter``, ``wide``."""
        return max((span_of(self.cluster, ranks) for ranks in self.real(kind, 0)), key=SPANS.index)

    def exclusive(self, kind: str) -> bool:
        """Return whether tensor-parallel and data-parallel groups use the same link: then it serves one at a time."""
        others = KINDS[1:] if kind == "tp" else ("tp",)
        return self.level(kind) != "none" and any(self.level(other) == self.level(kind) for other in others)

    @cached_property
    def _concurrent(self) -> dict[str, int]:
        result: dict[str, int] = {}
        for kind in KINDS:
            count = Counter[int]()
            for stage in range(self.split.pp):
                for ranks in self.real(kind, stage):
                    count.update({rank // self.cluster.per_node for rank in ranks})
            result[kind] = max(count.values())
        return result

    def _rank(self, d: int, t: int, stage: int) -> int:
        block = self.split.order[stage] if self.split.order else stage
        return t + self.split.tp * (d + self.split.copies * block)

    def _beta(self, pair: tuple[int, int]) -> float:
        return self.cluster.link(*pair).beta_s_per_byte

    def _spread(self, ranks: Sequence[int]) -> tuple[int, int]:
        return SPANS.index(span_of(self.cluster, ranks)), len({rank // self.cluster.per_node for rank in ranks})

"""A stage of a plan in the making: events, what a rank computes and for how long, and whom its ranks exchange with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from densing.core import InputError
from densing.efficiency.simulation import Cluster, Device, Graph, Module, Workload, collective_seconds
from densing.efficiency.techniques.planner.collectives import Collectives, CostModel, Maker, Use
from densing.efficiency.techniques.planner.layout import Layout
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
"""Of a parameter in full precision: master copy, momentum, variance, anchor."""


class Piece(NamedTuple):
    """Part of the tokens of every sequence, from a share of it to a share."""

    start: float = 0.0
    stop: float = 1.0

    @property
    def share(self) -> float:
        """Of the tokens."""
        return self.stop - self.start


WHOLE = Piece()


def tokens(workload: Workload) -> float:
    """Return the tokens of one micro-batch.

    Raises
    ------
    InputError
        When the batch cannot be divided so.

    Examples
    --------
    >>> from densing.efficiency.simulation.workload import Transformer
    >>> toy = Transformer("toy", 2, 8, 2, 2, 4, 16, 64)
    >>> tokens(Workload(toy, batch=4, sequence=16, micro_batches=2)), tokens(Workload(toy, "decode", batch=4))
    (32.0, 4.0)
    """
    if workload.micro_batches < 1 or workload.batch < 1 or workload.batch % workload.micro_batches:
        raise InputError(
            f"batch {workload.batch} in {workload.micro_batches} micro-batches: they must be whole sequences; choose a "
            "divisor of the batch"
        )
    per_sequence = 1 if workload.mode == "decode" else workload.sequence
    return workload.batch / workload.micro_batches * per_sequence


def module_seconds(workload: Workload, device: Device, module: Module, phase: str, piece: Piece = WHOLE) -> float:
    """Return what a pass over a module takes on one rank.

    A piece of the tokens moves all weights, and of the scores of causal attention it computes the square's difference:
    later tokens attend to more.
    """
    backward = phase == "backward"
    flops = module.backward_flops if backward else module.flops
    moved = module.backward_moved if backward else module.moved
    if piece == WHOLE:
        return device.seconds(flops, moved)
    square = _square_share(workload, module)
    squares = piece.stop**2 - piece.start**2
    # Backward, weights are read for the gradient of the input, and their own gradient is written.
    weights = min(moved, module.parameters * workload.dtype_bytes * (2 if backward else 1))
    return device.seconds(
        flops * ((1 - square) * piece.share + square * squares), weights + (moved - weights) * piece.share
    )


def _square_share(workload: Workload, module: Module) -> float:
    """Share of an attention's operations that grows with the square of the sequence."""
    if module.name != "attention" or workload.model.linear_attention or not module.flops:
        return 0.0
    projections = 2 * tokens(workload) * module.parameters
    return max(0.0, 1 - projections / module.flops)


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
        exclusive = self.workload.mode == "train" and self.layout.exclusive(kind)
        return Use(kind, self.layout.concurrent(kind), exclusive)


class Stage:
    """The ranks of one pipeline stage: all do the same, so that a plan reads as if there were one.

    Parameters
    ----------
    program : Program
    index : int
    modules : sequence of Module
    """

    def __init__(self, program: Program, index: int, modules: Sequence[Module]) -> None:
        self.program, self.graph, self.index = program, program.graph, index
        self.workload, self.device = program.workload, program.cluster.device
        self.modules = tuple(modules)
        self.ranks = program.layout.ranks(index)
        self.parameters = sum(module.parameters for module in modules)
        self._groups = {kind: program.layout.groups(kind, index) for kind in ("tp", "dp", "inner", "outer")}

    def size(self, kind: str) -> int:
        """Members of a group of a kind."""
        return len(self._groups[kind][0].real)

    def compute(self, name: str, seconds: float, after: Event = NOTHING) -> Event:
        """Add computation on every rank."""
        add = self.graph.add
        return tuple(
            (add(name, Kind.COMPUTE, (rank,), "compute", seconds, after=after[place] if after else ()),)
            for place, rank in enumerate(self.ranks)
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
                for place in group.positions:
                    done[place] = (task,)
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
            for place in group.positions:
                done[place] = (task,)
        return tuple(done)

    def hand_on(self, other: Stage, name: str, count: float, after: Event) -> Event:
        """Send activations to a neighbouring stage, and return when they are there.

        The sender's transfer alone is on the timeline: the receiver has posted its receive long before, and waits idle.
        """
        layout, stream = self.program.layout, f"p2p to {other.index}"
        done = []
        for place, (here, there) in enumerate(layout.neighbours(self.index, other.index)):
            seconds = collective_seconds(
                "send_recv", count, self.program.cluster, (here, there), concurrent=layout.concurrent("p2p")
            )
            comm = Comm("send_recv", "pp", "pp", 2, (here, there), src=here, dst=there)
            waits = after[place] if after else ()
            task = self.graph.add(
                name, Kind.COMM, (self.ranks[place],), stream, seconds, count=round(count), after=waits, comm=comm
            )
            done.append((task,))
        return tuple(done)


def _waits(after: Event, positions: Sequence[int]) -> tuple[int, ...]:
    return tuple(task for place in positions for task in after[place]) if after else ()

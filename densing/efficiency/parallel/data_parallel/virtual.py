"""Virtual ranks: 2 to 64 ranks of a data-parallel method in one process, joined by a link that is not a network.

The methods are those of a real run (:class:`~densing.efficiency.systems.CO2` and the others) and do not know. What a
link carries is averaged in the order of the ranks, so a run has the same bits again, and with two ranks those of a run
over gloo, where the order of a sum cannot matter. Bytes are counted as a ring would send them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from typing import Any, Literal, Protocol, TypeVar

import torch

from densing.core import InputError
from densing.efficiency.parallel.data_parallel.link import Combine, Link
from densing.efficiency.parallel.data_parallel.train import Method, Replica
from densing.efficiency.parallel.distributed import comm
from densing.efficiency.simulation import ring_terms, sizes

Result = TypeVar("Result")
MOST_RANKS = 64


class Backward(Protocol):
    """A loss, as far as a method needs it."""

    def backward(self) -> Any:
        """Leave gradients in the parameters."""


class Edge(Protocol):
    """The boundary between two layers of one process: activations pass forward, their gradients backward."""

    sent: int
    dense: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return a micro-batch's activations as received."""


class Arrival(comm.Handle):
    """An operation among virtual ranks, done once all of them have started it."""

    def __init__(self, ranks: VirtualRanks) -> None:
        super().__init__(None)
        self.ranks, self.complete, self.waiting = ranks, False, 0
        self.rows: list[torch.Tensor] = []
        self._made: torch.Tensor | None = None

    def made(self, combine: Combine) -> torch.Tensor:
        """Return the combined rows, computed once."""
        if self._made is None:
            # A copy: the buffers are a rank's own, and it may fill them again before another has read this.
            self._made = combine(self.rows).clone()
        return self._made

    @property
    def seconds(self) -> float | None:
        """None: no wire has carried it, and the other ranks' compute is not time of the link."""
        return None

    def done(self) -> bool:
        """Return whether all ranks have started it."""
        return self.complete

    def wait(self) -> None:
        """Let other ranks go on until all have started it."""
        self.ranks.stand_still(self)


class VirtualLink(Link):
    """One virtual rank's end of the link.

    Parameters
    ----------
    ranks : VirtualRanks
    rank : int

    Attributes
    ----------
    sent : float
        Bytes this rank would have sent in rings of all ranks.
    """

    def __init__(self, ranks: VirtualRanks, rank: int) -> None:
        self.group, self.waiting, self.within = None, nullcontext, None
        self.ranks, self.rank, self.size = ranks, rank, ranks.size
        self.started, self.sent = 0, 0.0

    def start(self, tensor: torch.Tensor, op: comm.Op | Literal["rows"] = "mean") -> comm.Handle:
        """Start to replace ``tensor`` by the ranks' mean or sum, taken in their order, or by all their rows."""
        if op not in ("sum", "mean", "rows"):
            raise InputError(f"op={op!r}: must be sum, mean or rows")
        if self.size == 1:
            return comm.Handle(None)
        ring = ring_terms("all_gather" if op == "rows" else "all_reduce", self.size)
        self.sent += ring.volume * tensor.numel() * tensor.element_size()
        return self.ranks.take_part(self, op, tensor)

    def gathered(self, data: torch.Tensor, combine: Combine) -> torch.Tensor:
        """Return what ``combine`` makes of every rank's row of bytes: the first rank to go on makes it for all."""
        if self.size == 1:
            return combine([data])
        return self._gather(data).made(combine)

    def exchange(self, words: str) -> list[str]:
        """Return the words of this rank alone: an error of one virtual rank ends all of them."""
        return [words]

    def gather(self, data: torch.Tensor) -> list[torch.Tensor]:
        """Return every rank's row of bytes, in the order of the ranks."""
        return [data] if self.size == 1 else self._gather(data).rows

    def _gather(self, data: torch.Tensor) -> Arrival:
        arrival = self.ranks.take_part(self, "gather", data)
        self.wait(arrival)
        # As over a network: lengths first, then rows as long as the longest.
        ring = ring_terms("all_gather", self.size).volume
        self.sent += ring * self.size * (sizes.LENGTH_BYTES + max(len(row) for row in arrival.rows))
        return arrival

    def copy_first(self, tensors: list[torch.Tensor]) -> None:
        """Give every rank the tensors of the first one."""
        for tensor in tensors if self.size > 1 else ():
            self.wait(self.ranks.take_part(self, "first", tensor))


class VirtualRanks:
    """Ranks that take turns in one process: one runs until it must wait for another.

    Parameters
    ----------
    size : int
        Ranks, 1 to 64.
    order : sequence of int, optional
        The order in which tensors are added up; ascending by default. Another one changes sums in their last bits,
        which is what a null test wants.

    Attributes
    ----------
    links : list of VirtualLink
        One per rank, for the methods' ``link``.

    Raises
    ------
    InputError
        When there are too few or too many ranks, or the order is none of them.

    Examples
    --------
    >>> ranks = VirtualRanks(2)
    >>> def work(rank):
    ...     tensor = torch.tensor([float(rank)])
    ...     ranks.links[rank].mean(tensor)
    ...     return float(tensor)
    >>> ranks.run(work)
    [0.5, 0.5]
    >>> ranks.links[0].sent
    4.0
    """

    def __init__(self, size: int, order: Sequence[int] | None = None) -> None:
        if not 1 <= size <= MOST_RANKS:
            raise InputError(f"{size} virtual ranks: one process supports 1 to {MOST_RANKS}")
        self.size, self.order = size, tuple(range(size) if order is None else order)
        if sorted(self.order) != list(range(size)):
            raise InputError(f"order {self.order}: must contain each rank from 0 to {size - 1} once")
        self.links = [VirtualLink(self, rank) for rank in range(size)]
        # Who holds its lock has the turn.
        self._turn = threading.Condition()
        self._pool = ThreadPoolExecutor(size, "virtual-rank") if size > 1 else None
        self._open: dict[int, tuple[str, dict[int, torch.Tensor], Arrival]] = {}
        self._idle = 0
        self._error: BaseException | None = None

    def run(self, work: Callable[[int], Result]) -> list[Result]:
        """Return ``work(rank)`` of every rank; each may wait for the others on its link.

        Raises
        ------
        InputError
            When ranks wait for each other for ever: one of them has ended without taking part.
        """
        if self._pool is None:
            return [work(0)]
        self._idle = 0
        futures = [self._pool.submit(self._take_turn, work, rank) for rank in range(self.size)]
        wait(futures)
        error, self._error = self._error, None
        if error is not None:
            # What was begun is given up, so that the ranks may be run again.
            self._open.clear()
            for link in self.links:
                link.started = 0
            raise error
        return [future.result() for future in futures]

    def take_part(self, link: VirtualLink, op: str, tensor: torch.Tensor) -> Arrival:
        """Add a rank's tensor to its next operation; the last rank carries it out."""
        number, link.started = link.started, link.started + 1
        kind, tensors, arrival = self._open.setdefault(number, (op, {}, Arrival(self)))
        other = next(iter(tensors.values()), tensor)
        alike = other.shape == tensor.shape or op == "gather"
        if kind != op or not alike or other.dtype != tensor.dtype:
            raise InputError(
                f"rank {link.rank} starts {op} of {tuple(tensor.shape)}, but another one {kind} "
                f"of {tuple(other.shape)}; all ranks must start the same operations in the same "
                "order"
            )
        tensors[link.rank] = tensor
        if len(tensors) == self.size:
            del self._open[number]
            if op == "gather":
                arrival.rows = [tensors[rank].clone() for rank in range(self.size)]
            else:
                self._combine(op, tensors)
            arrival.complete, self._idle = True, self._idle - arrival.waiting
            self._turn.notify_all()
        return arrival

    def stand_still(self, arrival: Arrival) -> None:
        """Let the other ranks run until an operation is complete."""
        if arrival.complete:
            return
        arrival.waiting += 1
        self._idle += 1
        self._check()
        self._turn.wait_for(lambda: arrival.complete or self._error is not None)
        if not arrival.complete:
            raise InputError("another virtual rank failed")

    def _take_turn(self, work: Callable[[int], Result], rank: int) -> Result:
        with self._turn:
            try:
                result = work(rank)
                self._idle += 1
                if self._open and any(arrival.waiting for _, _, arrival in self._open.values()):
                    self._check()
                return result
            except BaseException as error:
                # The first one is the cause; what follows in other ranks comes of it.
                self._error = self._error or error
                self._turn.notify_all()
                raise

    def _check(self) -> None:
        if self._idle == self.size:
            raise InputError("virtual ranks wait for one that has already finished; all must take the same steps")

    def _combine(self, op: str, tensors: Mapping[int, torch.Tensor]) -> None:
        with torch.no_grad():
            result = tensors[0 if op == "first" else self.order[0]].detach().clone()
            if op == "rows":
                for rank, tensor in tensors.items():
                    result.view(self.size, -1)[rank] = tensor.view(self.size, -1)[rank]
            elif op != "first":
                for rank in self.order[1:]:
                    result.add_(tensors[rank].detach())
            if op == "mean":
                result.div_(self.size)
            for tensor in tensors.values():
                tensor.detach().copy_(result)


class VirtualMethods:
    """One data-parallel method on virtual ranks: a step of all of them at once.

    Parameters
    ----------
    replicas : sequence of Replica
        One per rank; their links are put in here.
    make : callable
        Makes a method from a replica, as ``DataParallelRun.method`` of a technique does.
    order : sequence of int, optional
        See :class:`VirtualRanks`.

    Attributes
    ----------
    passing : callable, optional
        What becomes of activations between two layers, where it is not nothing.
    """

    passing: Callable[[torch.Tensor, int], torch.Tensor] | None = None

    def __init__(
        self, replicas: Sequence[Replica], make: Callable[[Replica], Method], order: Sequence[int] | None = None
    ) -> None:
        self.ranks = VirtualRanks(len(replicas), order)
        linked = [replica.over(link) for replica, link in zip(replicas, self.ranks.links, strict=True)]
        self.methods = self.ranks.run(lambda rank: make(linked[rank]))

    @property
    def sent(self) -> float:
        """Bytes that one rank would have sent so far."""
        return self.ranks.links[0].sent

    @property
    def personal(self) -> bool:
        """Whether every rank keeps weights of its own."""
        return any(getattr(method, "personal", False) for method in self.methods)

    def figures(self) -> dict[str, float]:
        """Return the methods' figures, mean over the ranks."""
        each = [method.figures() for method in self.methods]
        return {name: sum(figures[name] for figures in each) / len(each) for name in each[0]}

    def backward(self, losses: Sequence[Backward]) -> None:
        """Let every rank run its backward pass, with its method's communication.

        Parameters
        ----------
        losses : sequence
            One per rank; anything whose ``backward()`` leaves gradients.
        """
        self.ranks.run(lambda rank: self.methods[rank].backward(losses[rank]))

    def step(self) -> None:
        """Let every rank update its parameters, with what its method sends meanwhile."""
        self.ranks.run(lambda rank: self.methods[rank].step())

    def finish(self) -> None:
        """Wait for pending operations, and leave all ranks with the same parameters."""
        self.ranks.run(lambda rank: self.methods[rank].finish())

    def state_dict(self) -> dict[str, Any]:
        """Return the methods' states, rank by rank, and the bytes sent."""
        return {"sent": self.sent, "ranks": self.ranks.run(lambda rank: self.methods[rank].state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken."""
        for method, part in zip(self.methods, state["ranks"], strict=True):
            method.load_state_dict(part)
        for link in self.ranks.links:
            link.sent = float(state["sent"])


class VirtualStages(VirtualMethods):
    """A pipeline with a stage for every layer; its micro-batches are the copies whose gradients are averaged.

    Parameters
    ----------
    replicas, make, order
        See :class:`~densing.efficiency.parallel.VirtualMethods`; ``make`` averages gradients.
    edge : callable
        Makes the edge after a layer; see :class:`densing.efficiency.parallel.VirtualEdge`.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        make: Callable[[Replica], Method],
        edge: Callable[[], Edge],
        order: Sequence[int] | None = None,
    ) -> None:
        super().__init__(replicas, make, order)
        self.edge = edge
        self.edges: dict[int, Edge] = {}

    def passing(self, x: torch.Tensor, layer: int) -> torch.Tensor:
        """Return a layer's activations as received.

        Parameters
        ----------
        x : Tensor, shape (micro-batches, tokens, width)
        layer : int
            That hands them on.
        """
        edge = self._after(layer)
        return torch.stack([edge(micro) for micro in x])

    @property
    def sent(self) -> float:
        """Bytes that a stage would have sent so far, mean over the stages."""
        return sum(edge.sent for edge in self.edges.values()) / (1 + len(self.edges))

    def figures(self) -> dict[str, float]:
        """Return the counted share of bytes sent, relative to all values in float32."""
        dense = sum(edge.dense for edge in self.edges.values())
        share = {"sent_share": sum(edge.sent for edge in self.edges.values()) / dense} if dense else {}
        return {**super().figures(), **share}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of what averages, and the bytes of every edge."""
        edges = {layer: [edge.sent, edge.dense] for layer, edge in self.edges.items()}
        return {**super().state_dict(), "edges": edges}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken."""
        super().load_state_dict(state)
        for layer, counts in state["edges"].items():
            edge = self._after(int(layer))
            edge.sent, edge.dense = counts

    def _after(self, layer: int) -> Edge:
        if layer not in self.edges:
            self.edges[layer] = self.edge()
        return self.edges[layer]

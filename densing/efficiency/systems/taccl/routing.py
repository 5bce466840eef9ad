"""Which way each chunk goes: what a collective asks for, routes without a solver, and the routing MILP of TACCL.

The MILP, with relaxed bandwidth, is solved by HiGHS; what a symmetry maps on one another is one variable, not many with
equality rows. Without a solver the tree of each chunk grows by the cheapest channel, counting what others already send.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densing.core import InputError, Record, UnknownNameError
from densing.efficiency.systems.taccl.milp import Rows, minimise
from densing.efficiency.systems.taccl.topology import Channel, Sketch, Topology, distances, leaving, permutation

OPS = ("all_gather", "all_reduce", "all_to_all", "broadcast", "reduce_scatter", "send_recv")
GATHERING = ("all_gather", "all_to_all", "broadcast", "send_recv")
"""Collectives that only copy; the others are these reversed in time."""


class Demand(Record, frozen=True):
    """Chunks of a copying collective: chunk ``c`` is at ``source[c]`` and must come to ``wanted[c]``.

    Parameters
    ----------
    op : str
    n : int
    source : tuple of int
    wanted : tuple of tuple of int
        Without the source.
    part : tuple of int
        Which of its source's (or, in all-to-all, its pair's) chunks it is.
    """

    op: str
    n: int
    source: tuple[int, ...]
    wanted: tuple[tuple[int, ...], ...]
    part: tuple[int, ...]

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return len(self.source)

    def image(self, ranks: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return what each chunk becomes when ranks are renamed; None where the collective then is another one."""
        number = {self.key(c, tuple(range(self.n))): c for c in range(self.chunks)}
        result = tuple(number.get(self.key(c, ranks), -1) for c in range(self.chunks))
        return None if -1 in result else result

    def key(self, chunk: int, ranks: tuple[int, ...]) -> tuple[int, tuple[int, ...], int]:
        """Return what tells a chunk from the others, in renamed ranks."""
        request = tuple(sorted(ranks[rank] for rank in self.wanted[chunk]))
        return ranks[self.source[chunk]], request, self.part[chunk]


def demand(op: str, n: int, parts: int = 1) -> Demand:
    """Return the chunks of a copying collective over ``n`` ranks, each input cut into ``parts``.

    ``broadcast`` begins at rank 0, ``send_recv`` goes from rank 0 to rank 1.

    Raises
    ------
    UnknownNameError

    Examples
    --------
    >>> demand("all_gather", 3).wanted
    ((1, 2), (0, 2), (0, 1))
    >>> demand("all_to_all", 2).wanted
    ((1,), (0,))
    """
    ranks = range(n)
    all_but = {a: tuple(b for b in ranks if b != a) for a in ranks}
    rows: list[tuple[int, tuple[int, ...]]] = []
    if op == "all_gather":
        rows = [(a, all_but[a]) for a in ranks]
    elif op == "all_to_all":
        rows = [(a, (b,)) for a in ranks for b in all_but[a]]
    elif op == "broadcast":
        rows = [(0, all_but[0])]
    elif op == "send_recv":
        rows = [(0, (1,))]
    else:
        raise UnknownNameError("collective", op, GATHERING)
    cut = [(a, request, part) for a, request in rows for part in range(parts)]
    return Demand(op, n, tuple(r[0] for r in cut), tuple(r[1] for r in cut), tuple(r[2] for r in cut))


Trees = tuple[tuple[int, ...], ...]
"""Channels of each chunk, parents before children."""


def greedy_routes(topology: Topology, request: Demand) -> Trees:
    """Return a tree of channels per chunk.

    Raises
    ------
    InputError
        When a chunk cannot come to where it is wanted.
    """
    load: dict[str | int, float] = {}
    out = leaving(topology)
    trees: list[tuple[int, ...]] = []
    for chunk in range(request.chunks):
        into = _grow(topology, out, request, chunk, load)
        tree = pruned(topology, request, chunk, into)
        trees.append(tree)
        for number in tree:
            _carry(load, topology.channels[number], number)
    return tuple(trees)


def _grow(
    topology: Topology, out: list[list[int]], request: Demand, chunk: int, load: dict[str | int, float]
) -> dict[int, int]:
    """The channel by which each rank is reached; to a single rank the shortest way, to many the cheapest tree."""
    single = len(request.wanted[chunk]) == 1
    source, into = request.source[chunk], dict[int, int]()
    heap: list[tuple[float, float, int, int]] = [(0.0, 0.0, -1, source)]
    while heap:
        weight, at, number, rank = heapq.heappop(heap)
        if rank in into:
            continue
        into[rank] = number
        for nxt in out[rank]:
            channel = topology.channels[nxt]
            names: tuple[str | int, ...] = (nxt, *channel.ports)
            busy = max(load.get(name, 0.0) for name in names)
            # To one rank the whole way counts; to many only the next hop, so that branches are shared.
            grown = channel.cost() + busy + (weight if single else 0.0)
            heapq.heappush(heap, (grown, at + channel.cost(), nxt, channel.dst))
    missing = [rank for rank in request.wanted[chunk] if rank not in into]
    if missing:
        raise InputError(f"topology {topology.name!r}: no path leads from rank {source} to rank {missing[0]}")
    return into


def pruned(topology: Topology, request: Demand, chunk: int, into: dict[int, int]) -> tuple[int, ...]:
    """Return the channels that lead to a wanted rank, parents before children, of ``into``: rank -> channel."""
    tree: dict[int, None] = {}
    for rank in request.wanted[chunk]:
        path: list[int] = []
        while rank != request.source[chunk] and into[rank] not in tree:
            path.append(into[rank])
            rank = topology.channels[into[rank]].src
        tree.update(dict.fromkeys(reversed(path)))
    return tuple(tree)


def _carry(load: dict[str | int, float], channel: Channel, number: int) -> None:
    load[number] = load.get(number, 0.0) + channel.cost()
    for port in channel.ports:
        load[port] = load.get(port, 0.0) + channel.held()


def relaxed_time(topology: Topology, trees: Trees) -> float:
    """Return the routing model's time of routes: the busiest channel or port, or the longest way if that is longer."""
    load: dict[str | int, float] = {}
    longest = 0.0
    for tree in trees:
        at: dict[int, float] = {}
        for number in tree:
            channel = topology.channels[number]
            at[channel.dst] = at.get(channel.src, 0.0) + channel.cost()
            _carry(load, channel, number)
        longest = max(longest, *at.values(), 0.0) if at else longest
    return max([longest, *load.values()])


Labels = NDArray[np.int64]


class Classes:
    """Classes of (chunk, channel), (chunk, rank), channels and chunks under a sketch's symmetries.

    Parameters
    ----------
    topology : Topology
    request : Demand
    symmetries : sequence of tuple of int
        Each what every rank becomes; a symmetry that the collective does not have (a broadcast's root) is left out.

    Attributes
    ----------
    sent : int64 (chunks, channels)
    at : int64 (chunks, ranks)
    channel : int64 (channels,)
    chunk : int64 (chunks,)
        Class numbers.
    """

    def __init__(self, topology: Topology, request: Demand, symmetries: Sequence[tuple[int, ...]]) -> None:
        number = {(c.src, c.dst): i for i, c in enumerate(topology.channels)}
        channels, chunks = len(topology.channels), request.chunks
        maps: list[tuple[Labels, Labels, Labels]] = []
        for ranks in symmetries:
            image = request.image(ranks)
            if image is not None:
                try:
                    link = [number[ranks[c.src], ranks[c.dst]] for c in topology.channels]
                except KeyError:
                    raise InputError(f"topology {topology.name!r} does not have the symmetry {ranks}") from None
                maps.append((np.array(image), np.array(link, np.int64), np.array(ranks)))
        self.sent = _joined([image[:, None] * channels + link for image, link, _ in maps], (chunks, channels))
        self.at = _joined([image[:, None] * topology.n + rank for image, _, rank in maps], (chunks, topology.n))
        self.channel = _joined([link for _, link, _ in maps], (channels,))
        self.chunk = _joined([image for image, _, _ in maps], (chunks,))


def _joined(images: Sequence[Labels], shape: tuple[int, ...]) -> Labels:
    """Number the orbits of some maps on ``0 .. size-1``, in order of their first members."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    size = int(np.prod(shape))
    if not images or not size:
        return np.arange(size, dtype=np.int64).reshape(shape)
    to = np.concatenate([image.ravel() for image in images])
    start = np.tile(np.arange(size), len(images))
    # Two cells that some symmetry maps on one another are one orbit: a component of the graph of all its arrows.
    graph: Any = coo_array((np.ones(len(to), np.int8), (start, to)), shape=(size, size))
    labels = connected_components(graph, directed=False)[1]
    first = np.unique(labels, return_inverse=True)[1]
    return np.asarray(first, np.int64).reshape(shape)


LARGEST = 6000
"""Most binary variables of a MILP; above it routes are greedy, and the status says so."""
MU = 0.01
"""Weight of a channel used by a switch (uc-min, uc-max), as in the released code."""


class Routing(Record, frozen=True):
    """Routes, and how good they are in the routing model.

    Parameters
    ----------
    trees : tuple of tuple of int
        By chunk: channels, parents before children.
    time : float
        Microseconds of these routes in the model (bandwidth relaxed: order does not matter).
    bound : float
        No routes (with the sketch's symmetry) are faster in the model.
    gap : float
        ``(time - bound) / time``.
    status : {"optimal", "time limit", "greedy"}
    binaries : int
        Of the model, after joining what is symmetric.
    solve_s : float
        Seconds it took here.
    """

    trees: Trees
    time: float
    bound: float
    gap: float
    status: str
    binaries: int
    solve_s: float


def route(
    topology: Topology,
    request: Demand,
    sketch: Sketch | None = None,
    *,
    time_limit: float = 20.0,
    symmetric: bool = True,
) -> Routing:
    """Find routes by the routing MILP.

    The model (Source: arXiv 2111.04867 and its released code): binaries ``sent[c, channel]``, arrival times
    ``at[c, rank]``; who wants a chunk receives it once, others at most once, nobody sends what has not come; the time
    is at least every arrival, and at least what every channel and every port has to carry in all.
    Here symmetric variables are one variable, arrivals have the shortest path as lower bound, and each node a chunk
    has to enter is a row of its own (without it the relaxation lets a chunk circle where it never came in).

    Parameters
    ----------
    topology : Topology
        With the sketch applied (:func:`~densing.efficiency.systems.taccl.topology.logical`).
    request : Demand
    sketch : Sketch, optional
    time_limit : float
        Seconds; the answer is reproducible unless the limit is hit (``status`` then says so).
    symmetric : bool
        False ignores the sketch's symmetries (as many variables as there are chunks and channels).

    Raises
    ------
    InputError
        When a chunk cannot come to where it is wanted, or the time limit is not positive.
    """
    if not (math.isfinite(time_limit) and time_limit > 0):
        raise InputError(f"time_limit {time_limit}: give seconds above 0")
    began = time.perf_counter()
    greedy = greedy_routes(topology, request)
    ends = zip(request.source, request.wanted, strict=True)
    floor = max((distances(topology, [source])[rank] for source, to in ends for rank in to), default=0.0)
    known = Routing(greedy, relaxed_time(topology, greedy), floor, 0.0, "greedy", 0, 0.0)
    if floor > 0:
        model = _Model(topology, request, sketch or Sketch(""), known.time, symmetric)
        known = model.solve(known, time_limit) if model.binaries <= LARGEST else known
    gap = max(0.0, (known.time - known.bound) / known.time) if known.time else 0.0
    return Routing(known.trees, known.time, known.bound, gap, known.status, known.binaries, time.perf_counter() - began)


class _Model:
    """Columns: sent by class, arrival by class, used channels, time."""

    def __init__(self, topology: Topology, request: Demand, sketch: Sketch, known: float, symmetric: bool) -> None:
        self.topology, self.request, self.sketch = topology, request, sketch
        ranks = [permutation(topology.n, *pair) for pair in sketch.symmetry] if symmetric else []
        self.classes = Classes(topology, request, ranks)
        # In the solver's own scale: its tolerances are absolute.
        self.scale = 100.0 / known
        self.cost = np.array([channel.cost() for channel in topology.channels]) * self.scale
        self.port_cost = np.array([channel.held() for channel in topology.channels]) * self.scale
        self.near = np.array([distances(topology, [source]) for source in request.source]) * self.scale
        self.open = self._open()
        used, self.column = np.unique(self.classes.sent[self.open], return_inverse=True)
        self.binaries = len(used)
        self.sent = np.full(self.open.shape, -1)
        self.sent[self.open] = self.column
        # Routes with the symmetry may take longer than the greedy ones, which know none.
        self.horizon = 200.0 + float(self.cost.max())

    def _open(self) -> Any:
        """Chunk may use channel: both ends lie on a shortest path to somebody who wants it, and it leads onwards."""
        topology, request = self.topology, self.request
        back = topology.reversed()
        towards = np.array([distances(back, [rank]) for rank in range(topology.n)]) * self.scale
        src = np.array([channel.src for channel in topology.channels])
        dst = np.array([channel.dst for channel in topology.channels])
        result = np.zeros((request.chunks, len(src)), bool)
        for chunk, source in enumerate(request.source):
            near, to = self.near[chunk], list(request.wanted[chunk])
            on_path = (near[None, :] + towards[to] <= near[to][:, None] * (1 + 1e-9)).any(axis=0)
            result[chunk] = on_path[src] & on_path[dst] & (dst != source)
        return result

    def rows(self) -> Rows:
        """All rows but those of the objective's second stage."""
        rows = Rows()
        chunks = np.unique(self.classes.chunk, return_index=True)[1]
        for chunk in chunks:
            self._receive(rows, int(chunk))
            self._enter_nodes(rows, int(chunk))
            self._times(rows, int(chunk))
        # Bandwidth is relaxed: the time is at least what each channel and each port has to carry in all.
        shared: dict[str | int, list[int]] = {}
        for number, channel in enumerate(self.topology.channels):
            names: tuple[str | int, ...] = (number, *channel.ports)
            for name in names:
                shared.setdefault(name, []).append(number)
        for name, numbers in shared.items():
            busy = {n: self.cost[n] if isinstance(name, int) else self.port_cost[n] for n in numbers}
            terms = [
                (self.sent[chunk, number], -busy[number])
                for number in numbers
                for chunk in np.flatnonzero(self.open[:, number])
            ]
            rows.add([(self.time, 1.0), *terms], 0.0, math.inf)
        return rows

    def _receive(self, rows: Rows, chunk: int) -> None:
        """Who wants a chunk receives it once, others at most once; nobody sends what has not come."""
        into: dict[int, list[int]] = {rank: [] for rank in range(self.topology.n)}
        for number in np.flatnonzero(self.open[chunk]):
            into[self.topology.channels[number].dst].append(self.sent[chunk, number])
        for rank, columns in into.items():
            if rank != self.request.source[chunk]:
                rows.add(((column, 1.0) for column in columns), float(rank in self.request.wanted[chunk]), 1.0)
        for number in np.flatnonzero(self.open[chunk]):
            src = self.topology.channels[number].src
            if src != self.request.source[chunk]:
                terms = [(column, -1.0) for column in into[src]]
                rows.add([(self.sent[chunk, number], 1.0), *terms], -math.inf, 0.0)

    def _enter_nodes(self, rows: Rows, chunk: int) -> None:
        """A chunk enters every node where it is wanted, and leaves its own: relaxed, it would circle inside a node."""
        size, channels = self.topology.per_node, self.topology.channels
        home = self.request.source[chunk] // size
        away = {rank // size for rank in self.request.wanted[chunk]} - {home}
        crossing = [n for n in np.flatnonzero(self.open[chunk]) if channels[n].src // size != channels[n].dst // size]
        for node in sorted(away):
            inside = [n for n in crossing if channels[n].dst // size == node]
            rows.add(((self.sent[chunk, number], 1.0) for number in inside), 1.0, math.inf)
        if away:
            leaving = [n for n in crossing if channels[n].src // size == home]
            rows.add(((self.sent[chunk, number], 1.0) for number in leaving), 1.0, math.inf)

    def at(self, chunk: int, rank: int) -> int:
        """Column of an arrival time."""
        return self.binaries + int(self.classes.at[chunk, rank])

    @property
    def arrivals(self) -> int:
        return int(self.classes.at.max()) + 1

    @property
    def time(self) -> int:
        """Column of the objective."""
        return self.binaries + self.arrivals

    def used(self, number: int) -> int:
        """Column of whether a channel is used at all."""
        return self.time + 1 + int(self.classes.channel[number])

    def _times(self, rows: Rows, chunk: int) -> None:
        """Where a channel is used, an arrival follows the sender's by its cost; the time is that of the last one."""
        for number in np.flatnonzero(self.open[chunk]):
            channel, cost = self.topology.channels[number], float(self.cost[number])
            # As small as it may be, for a tighter relaxation: no arrival is before the shortest way.
            slack = self.horizon + cost - self.near[chunk, channel.dst]
            terms = [(self.at(chunk, channel.dst), 1.0), (self.at(chunk, channel.src), -1.0)]
            rows.add([*terms, (self.sent[chunk, number], -slack)], cost - slack, math.inf)
        for rank in self.request.wanted[chunk]:
            rows.add([(self.time, 1.0), (self.at(chunk, rank), -1.0)], 0.0, math.inf)

    def solve(self, known: Routing, time_limit: float) -> Routing:
        """Minimise the time; then, at that time, the arrivals (and channels used, where the sketch says so)."""
        rows = self.rows()
        channels = int(self.classes.channel.max()) + 1
        width = self.time + 1 + (channels if self.sketch.policy else 0)
        lower, upper = np.zeros(width), np.full(width, self.horizon)
        upper[: self.binaries] = 1.0
        upper[self.time + 1 :] = 1.0
        np.maximum.at(lower, (self.binaries + self.classes.at).ravel(), self.near.ravel())
        lower[self.time] = known.bound * self.scale
        integral = np.arange(width) < self.binaries
        objective = np.zeros(width)
        objective[self.time] = 1.0
        first = minimise(objective, rows, lower, upper, integral, time_limit=time_limit, mip_rel_gap=1e-6)
        if first.x is None:
            return known
        trees = self._trees(first.x)
        upper[self.time] = max(float(first.x[self.time]), self._time_of(trees) * self.scale) * (1 + 1e-7)
        objective = np.zeros(width)
        for chunk, receivers in enumerate(self.request.wanted):
            for rank in receivers:
                objective[self.at(chunk, rank)] += 1.0
        if self.sketch.policy:
            sign = 1.0 if self.sketch.policy == "uc-min" else -1.0
            # One more channel is worth MU of the arrivals' scale.
            objective[self.time + 1 :] = sign * MU * self.horizon
            rows.use(self.sent, self.used, sign)
        limits = {"time_limit": max(0.5, time_limit / 4), "node_limit": 200, "mip_rel_gap": 1e-2}
        second = minimise(objective, rows, lower, upper, integral, **limits)
        if second.x is not None and self._time_of(self._trees(second.x)) <= self._time_of(trees) * (1 + 1e-6):
            trees = self._trees(second.x)
        if first.status != 0 and known.time < self._time_of(trees):
            trees = known.trees
        bound = min(float(first.mip_dual_bound) / self.scale, self._time_of(trees))
        status = "optimal" if first.status == 0 else "time limit"
        return Routing(trees, self._time_of(trees), bound, 0.0, status, self.binaries, 0.0)

    def _time_of(self, trees: Trees) -> float:
        return relaxed_time(self.topology, trees)

    def _trees(self, x: Sequence[float]) -> Trees:
        chosen = np.asarray(x)[: self.binaries] > 0.5
        trees = []
        for chunk in range(self.request.chunks):
            numbers = [int(n) for n in np.flatnonzero(self.open[chunk]) if chosen[self.sent[chunk, n]]]
            into = {self.topology.channels[number].dst: number for number in numbers}
            trees.append(pruned(self.topology, self.request, chunk, into))
        return tuple(trees)

"""Who computes which partitions of the batch, what is sent when, and which messages give the whole gradient.

N workers hold K partitions; each computes some of them, one after the other, and sends sums of what it has. The server
goes on as soon as what has come suffices. The plan (the simulator's joins) and the run (the server's decoding) read the
same :class:`Scheme`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from densing.core import InputError

Floats = NDArray[np.float64]

WORST_CONDITION = 1e6
"""A decoding that multiplies rounding errors by more is refused."""


class Message(NamedTuple):
    """What a worker sends once it has done so many of its tasks."""

    worker: int
    after: int


class Enough(NamedTuple):
    """So many of some messages suffice."""

    need: int
    of: tuple[int, ...]


@dataclass(frozen=True)
class Scheme:
    """Work, messages, and what suffices.

    Parameters
    ----------
    name : str
    partitions : int
        Of the batch, K.
    tasks : tuple of tuple of int
        By worker: the partitions that it computes, in this order. Of encoded partitions (Lagrange codes) the number
        of the encoded one.
    messages : tuple of Message
        A worker's in the order in which they are sent.
    coefficients : float64 (messages, partitions)
        What a message is the sum of; of Lagrange codes the evaluation itself.
    enough : tuple of tuple of Enough
        The server goes on when of each group one alternative holds.
    decode : callable, optional
        Messages that have come to their weights in the sum; by default, see :meth:`weights`.
    exact : bool
        Whether what the server has then is the whole gradient.
    """

    name: str
    partitions: int
    tasks: tuple[tuple[int, ...], ...]
    messages: tuple[Message, ...]
    coefficients: Floats
    enough: tuple[tuple[Enough, ...], ...]
    decode: Callable[[Sequence[int]], Floats] | None = field(default=None, repr=False)
    exact: bool = True

    @property
    def workers(self) -> int:
        """How many there are, N."""
        return len(self.tasks)

    def satisfied(self, arrived: Collection[int]) -> bool:
        """Return whether the messages that have come suffice."""
        have = set(arrived)
        return all(any(len(have.intersection(way.of)) >= way.need for way in ways) for ways in self.enough)

    def weights(self, arrived: Sequence[int]) -> dict[int, float]:
        """Return the messages to add up, and their weights: their sum is the gradient of all partitions.

        Parameters
        ----------
        arrived : sequence of int
            Messages in the order in which they have come; the earliest that suffice are used.

        Raises
        ------
        InputError
            When they do not suffice, or decoding would multiply rounding errors by more than ``WORST_CONDITION``.
        """
        total: dict[int, float] = {}
        for ways in self.enough:
            chosen = next((way for way in ways if len(set(arrived).intersection(way.of)) >= way.need), None)
            if chosen is None:
                raise InputError(f"{self.name}: {len(set(arrived))} messages do not suffice")
            used = [message for message in dict.fromkeys(arrived) if message in chosen.of][: chosen.need]
            if self.decode is not None:
                found = self.decode(used)
            elif not self.exact:
                found = np.full(len(used), self.partitions / len(used))
            else:
                found = _combination(self.coefficients[used], self._covered(ways))
            size = float(np.abs(found).max(initial=0.0))
            if not size <= WORST_CONDITION:
                raise InputError(
                    f"{self.name}: decoding would multiply rounding errors by {size:.2g}, more than "
                    f"{WORST_CONDITION:.0e}; use fewer workers or partitions"
                )
            total |= dict(zip(used, found.tolist(), strict=True))
        return total

    def condition(self, most: int = 5000, seed: int = 0) -> float:
        """Return the largest weight that any sufficient set of messages needs: rounding errors grow by as much.

        Of every group's alternatives each smallest set; of more than ``most`` of them so many drawn.
        """
        worst = 0.0
        rng = np.random.default_rng(seed)
        for ways in self.enough:
            for way in ways:
                sets: list[tuple[int, ...]] = []
                for subset in combinations(way.of, way.need):
                    sets.append(subset)
                    if len(sets) > most:
                        sets = [tuple(rng.choice(way.of, way.need, replace=False).tolist()) for _ in range(most)]
                        break
                for subset in sets:
                    if self.decode is not None:
                        found = self.decode(subset)
                    elif not self.exact:
                        found = np.ones(1)
                    else:
                        found = _combination(self.coefficients[list(subset)], self._covered(ways))
                    worst = max(worst, float(np.abs(found).max()))
        return worst

    def _covered(self, ways: Sequence[Enough]) -> Floats:
        """Which partitions a group stands for: those of its messages."""
        messages = sorted(set(chain.from_iterable(way.of for way in ways)))
        # An uncoded message covers its own partition alone.
        return (np.abs(self.coefficients[messages]).sum(axis=0) > 0).astype(np.float64)


def _combination(rows: Floats, target: Floats) -> Floats:
    """Return the weights with which rows add up to a target."""
    found, *_ = np.linalg.lstsq(rows.T, target, rcond=None)
    if not np.allclose(rows.T @ found, target, atol=1e-6):
        return np.full(len(rows), np.inf)
    return found


def _cyclic(workers: int, r: int) -> tuple[tuple[int, ...], ...]:
    """Worker i computes partitions i to i + r - 1, round and round."""
    return tuple(tuple((worker + turn) % workers for turn in range(r)) for worker in range(workers))


def _checked(name: str, workers: int, r: int, least: int = 1) -> None:
    if workers < 1:
        raise InputError(f"{name}: {workers} workers; give at least one")
    if not least <= r <= workers:
        why = "a code needs each partition twice" if r < least else f"there are {workers} partitions"
        raise InputError(f"{name}: r = {r} computations per worker; {why}: give {least} to {workers}")


def uncoded(workers: int, r: int) -> Scheme:
    """Return messages after every partition, until each partition has come from one of its r holders (UC-MMC).

    With r = 1 the server waits for all workers.

    Source: Ozfatura, Ulukus and Gunduz, Entropy 2020, arXiv 2004.04948 (definition recalled).

    Examples
    --------
    >>> scheme = uncoded(3, 2)
    >>> scheme.tasks, scheme.satisfied([0, 1]), scheme.satisfied([0, 1, 3])
    (((0, 1), (1, 2), (2, 0)), False, True)
    """
    _checked("uc-mmc", workers, r)
    tasks = _cyclic(workers, r)
    messages = tuple(Message(worker, turn + 1) for worker in range(workers) for turn in range(r))
    coefficients = np.zeros((len(messages), workers))
    holders: list[list[int]] = [[] for _ in range(workers)]
    for number, (worker, after) in enumerate(messages):
        partition = tasks[worker][after - 1]
        coefficients[number, partition] = 1.0
        holders[partition].append(number)
    enough = tuple((Enough(1, tuple(each)),) for each in holders)
    return Scheme("uc-mmc", workers, tasks, messages, coefficients, enough)


def gradient_code(workers: int, r: int, seed: int = 0) -> Scheme:
    """Return one coded message a worker, of which any N - r + 1 give the whole gradient (GC).

    Source: Tandon et al., ICML 2017, Algorithm 2: cyclic code of random parity checks (recalled).

    Examples
    --------
    >>> scheme = gradient_code(4, 2)
    >>> total = scheme.weights([3, 0, 1])
    >>> sum(weight * scheme.coefficients[each] for each, weight in total.items()).round(9).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    scheme = clustered_code(workers, r, 1, (r,), seed=seed)
    return Scheme("gradient-coding", workers, scheme.tasks, scheme.messages, scheme.coefficients, scheme.enough)


def clustered_code(workers: int, r: int, clusters: int = 1, after: Sequence[int] = (), *, seed: int = 0) -> Scheme:
    """Return codes inside clusters of workers, and coded messages of rising redundancy (GC-MMC).

    After ``j`` tasks a worker sends a message of the code with redundancy j, of which any l - j + 1 of its cluster's l
    workers give the cluster's partitions. The server needs one such code complete in every cluster.

    Parameters
    ----------
    workers, r : int
        ``r`` computations each, at most the size of a cluster.
    clusters : int
        A divisor of ``workers``.
    after : sequence of int
        After which of its tasks a worker sends; all of them where it is empty.
    seed : int
        Of the codes.

    Notes
    -----
    Source: Ozfatura, Ulukus and Gunduz, Entropy 2020, arXiv 2004.04948. Their construction could not be read; this is
    ours, of clusters and several coded messages as the abstract names them.
    """
    name = "gc-mmc"
    if clusters < 1 or workers % clusters:
        raise InputError(f"{name}: {clusters} clusters of {workers} workers are not equal; give a divisor")
    size = workers // clusters
    _checked(name, size, r, least=2)
    turns = tuple(after) or tuple(range(1, r + 1))
    if list(turns) != sorted(set(turns)) or turns[0] < 1 or turns[-1] != r:
        raise InputError(f"{name}: messages after {turns} tasks; give rising numbers from 1, the last one r = {r}")
    codes = {turn: _cyclic_code(size, turn, seed) for turn in turns}
    own = _cyclic(size, r)
    tasks = tuple(tuple(cluster * size + partition for partition in row) for cluster in range(clusters) for row in own)
    messages = tuple(Message(worker, turn) for worker in range(workers) for turn in turns)
    coefficients = np.zeros((len(messages), workers))
    groups: list[dict[int, list[int]]] = [{turn: [] for turn in turns} for _ in range(clusters)]
    for number, (worker, turn) in enumerate(messages):
        cluster, place = divmod(worker, size)
        coefficients[number, cluster * size : (cluster + 1) * size] = codes[turn][place]
        groups[cluster][turn].append(number)
    enough = tuple(tuple(Enough(size - turn + 1, tuple(group[turn])) for turn in turns[::-1]) for group in groups)
    return Scheme(name, workers, tasks, messages, coefficients, enough)


def _cyclic_code(workers: int, r: int, seed: int) -> Floats:
    """Return B (workers, workers): row i is non-zero at i to i + r - 1, any N - r + 1 rows span the row of ones."""
    spare = r - 1
    if not spare:
        return np.eye(workers)
    best, least = np.empty((0, 0)), np.inf
    rng = np.random.default_rng([seed, workers, r])
    # Some random codes are much worse conditioned than others: the best of a few.
    for _ in range(8):
        parity = rng.standard_normal((spare, workers))
        parity[:, -1] = -parity[:, :-1].sum(axis=1)
        rows = np.zeros((workers, workers))
        for worker, held in enumerate(_cyclic(workers, r)):
            rows[worker, held[0]] = 1.0
            rows[worker, list(held[1:])] = -np.linalg.solve(parity[:, list(held[1:])], parity[:, held[0]])
        size = float(np.abs(rows).max())
        if size < least:
            best, least = rows, size
    return best


def backup(workers: int, drop: int) -> Scheme:
    """Return the rule that goes on without the slowest ``drop`` workers: their partitions' gradients are lost.

    Source: Chen et al. 2016, arXiv 1604.00981 (recalled).
    """
    if not 0 <= drop < workers:
        raise InputError(f"backup-workers: drop = {drop} of {workers} workers; give 0 to {workers - 1}")
    messages = tuple(Message(worker, 1) for worker in range(workers))
    enough = ((Enough(workers - drop, tuple(range(workers))),),)
    return Scheme("backup-workers", workers, _cyclic(workers, 1), messages, np.eye(workers), enough, exact=not drop)


def lagrange(workers: int, r: int, *, several: bool = True) -> Scheme:
    """Return Lagrange coded computing of least squares, whose gradient is of degree 2 in the data (LCC).

    The partitions' rows are interpolated by a polynomial of degree K - 1; a worker evaluates the gradient at r points
    of it. With a message each (``several``) any 2 K - 1 evaluations give all partitions' gradients. With one message
    a worker (PCR) its r points' partitions are encoded together: any 2 ceil(K / r) - 1 workers suffice.

    Source: Yu et al., AISTATS 2019, arXiv 1806.00939; Li et al. 2018, polynomially coded regression (both recalled).

    Examples
    --------
    >>> lagrange(4, 2).enough[0][0].need, lagrange(20, 4, several=False).enough[0][0].need
    (7, 9)
    """
    _checked("lcc", workers, r)
    groups = workers if several else -(-workers // r)
    need = 2 * groups - 1
    sent = r if several else 1
    count = workers * sent
    if need > count:
        raise InputError(f"lcc: {need} of {count} evaluations would be needed; give r = {-(-need // workers)} or more")
    tasks = tuple(tuple(worker * r + turn for turn in range(r)) for worker in range(workers))
    messages = tuple(Message(worker, turn + 1 if several else r) for worker in range(workers) for turn in range(sent))
    nodes, points = lagrange_points(groups, count)

    def decode(used: Sequence[int]) -> Floats:
        basis = lagrange_basis(points[list(used)], nodes)
        return basis.sum(axis=0)

    return Scheme("lcc", groups, tasks, messages, np.eye(count), ((Enough(need, tuple(range(count))),),), decode)


def lagrange_points(partitions: int, evaluations: int) -> tuple[Floats, Floats]:
    """Return where the polynomial takes the partitions' values, and where it is evaluated.

    Chebyshev points of all of them, partitions evenly among evaluations: the best conditioned that we know of.
    """
    total = partitions + evaluations
    grid = np.cos(np.pi * (np.arange(total) + 0.5) / total)
    at = np.unique(np.round((np.arange(partitions) + 0.5) * total / partitions - 0.5).astype(np.int64))
    rest = np.setdiff1d(np.arange(total), at)
    # Neighbouring evaluations go to different workers' turns, so that any set is spread.
    return grid[at], grid[rest]


def lagrange_basis(nodes: Floats, at: Floats) -> Floats:
    """Return the Lagrange basis polynomials of some nodes at some points, (points, nodes)."""
    found = np.empty((len(at), len(nodes)))
    for column, node in enumerate(nodes):
        others = np.delete(nodes, column)
        found[:, column] = np.prod((at[:, None] - others) / (node - others), axis=1)
    return found

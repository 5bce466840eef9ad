"""Who computes which partitions of the batch, what is sent when, and which messages give the whole gradient.

N workers hold K partitions; each computes some of them, one after the other, and sends sums of what it has. The server
goes on as soon as what has come suffices. The plan (the simulator's joins) and the run (the server's decoding) read the
same :class:`Scheme`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from densing.core import InputError

Floats = NDArray[np.float64]

WORST_CONDITION = 1e6
"""Largest condition number of a decoding system, by which rounding errors may grow; above it decoding is refused."""


class Message(NamedTuple):
    """What a worker sends once it has done so many of its tasks."""

    worker: int
    after: int


class Enough(NamedTuple):
    """So many of some messages suffice."""

    need: int
    of: tuple[int, ...]


class Encoding(NamedTuple):
    """How the data of Lagrange codes is encoded, and what a message is of the unknowns to decode.

    Attributes
    ----------
    data : float64 (evaluations, partitions)
        What encoded data is the sum of.
    system : float64 (evaluations, need)
        A message's gradient in terms of the polynomial's coefficients, which are unknown.
    target : float64 (need,)
        The gradient of all partitions in the same terms.
    """

    data: Floats
    system: Floats
    target: Floats


@dataclass(frozen=True)
class Scheme:
    """Work, messages, and what suffices.

    Parameters
    ----------
    name : str
    partitions : int
        Of the batch, K.
    tasks : tuple of tuple of int
        By worker: the partitions that it computes, in this order. With an ``encoding``: the pieces of encoded data,
        as many of each evaluation, one evaluation after the other.
    messages : tuple of Message
        A worker's in the order in which they are sent.
    coefficients : float64 (messages, partitions), with an encoding (messages, pieces)
        What of its worker's tasks a message is the sum of.
    enough : tuple of tuple of Enough
        The server goes on when of each group one alternative holds.
    encoding : Encoding, optional
        Of codes that encode the data; only a gradient of degree 2 in the data can be decoded then.
    exact : bool
        Whether what the server has then is the whole gradient.
    """

    name: str
    partitions: int
    tasks: tuple[tuple[int, ...], ...]
    messages: tuple[Message, ...]
    coefficients: Floats
    enough: tuple[tuple[Enough, ...], ...]
    encoding: Encoding | None = None
    exact: bool = True

    @property
    def workers(self) -> int:
        """How many there are, N."""
        return len(self.tasks)

    def satisfied(self, arrived: Collection[int]) -> bool:
        """Return whether the messages that have come suffice."""
        return not self.lacking(arrived)

    def lacking(self, arrived: Collection[int]) -> tuple[int, ...]:
        """Return the workers of whom a message would help; none when those that have come suffice.

        Examples
        --------
        >>> uncoded(4, 2).lacking([0, 1, 2, 3])
        (2, 3)
        """
        have = set(arrived)
        workers = {
            self.messages[message].worker
            for ways in self.enough
            if not any(len(have.intersection(way.of)) >= way.need for way in ways)
            for message in chain.from_iterable(way.of for way in ways)
            if message not in have
        }
        return tuple(sorted(workers))

    def weights(self, arrived: Sequence[int]) -> dict[int, float]:
        """Return the messages to add up, in this order, and their weights: the sum is the gradient of all partitions.

        Parameters
        ----------
        arrived : sequence of int
            Messages in the order in which they have come; the earliest that suffice are used. The order in which they
            are added up is another one, the same whoever comes first: uncoded ones in the order of their partitions.

        Raises
        ------
        InputError
            When they do not suffice, or their system is conditioned worse than ``WORST_CONDITION``.
        """
        lacking = self.lacking(arrived)
        if lacking:
            raise InputError(
                f"{self.name}: {len(set(arrived))} messages do not suffice; more messages from "
                f"workers {', '.join(map(str, lacking))} are needed"
            )
        total: dict[int, float] = {}
        for ways in self.enough:
            way = next(way for way in ways if len(set(arrived).intersection(way.of)) >= way.need)
            used = sorted([message for message in dict.fromkeys(arrived) if message in way.of][: way.need])
            if self.exact:
                rows, target = self._system(used, ways)
                self.check_condition(_condition(rows))
                found, *_ = np.linalg.lstsq(rows.T, target, rcond=None)
            else:
                found = np.full(len(used), self.partitions / len(used))
            total |= dict(zip(used, found.tolist(), strict=True))
        return total

    def condition(self, most: int = 5000, seed: int = 0) -> float:
        """Return the worst condition number of a decoding system, in the 2-norm.

        Of every group's alternatives each smallest set of messages that may come, a worker's one after the other; of
        more than ``most`` sets so many drawn. 1 where messages are not coded.
        """
        return max(
            (_condition(self._system(used, ways)[0]) for ways, used in self._sets(most, seed) if self.exact),
            default=1.0,
        )

    def check_condition(self, condition: float) -> None:
        """Refuse to decode where rounding errors may grow too much.

        Raises
        ------
        InputError
        """
        if not condition <= WORST_CONDITION:
            raise InputError(
                f"{self.name}: a decoding system of {self.workers} workers has the condition number {condition:.2g}, "
                f"more than {WORST_CONDITION:.0e}: rounding errors may grow by that factor; use "
                "fewer workers or another r"
            )

    def _system(self, used: Sequence[int], ways: Sequence[Enough]) -> tuple[Floats, Floats]:
        """Return messages in terms of what is unknown (messages, unknowns), and what is asked for in the same terms."""
        if self.encoding is not None:
            return self.encoding.system[list(used)], self.encoding.target
        # A group stands for the partitions of its messages: an uncoded message for its own alone.
        every = sorted(set(chain.from_iterable(way.of for way in ways)))
        covered = np.abs(self.coefficients[every]).sum(axis=0) > 0
        return self.coefficients[list(used)][:, covered], np.ones(int(covered.sum()))

    def _sets(self, most: int, seed: int) -> Iterator[tuple[tuple[Enough, ...], tuple[int, ...]]]:
        rng = np.random.default_rng(seed)
        for ways in self.enough:
            for way in ways:
                own: dict[int, list[int]] = {}
                for message in way.of:
                    own.setdefault(self.messages[message].worker, []).append(message)
                chains = list(own.values())
                some = list(islice(_prefixes(chains, way.need), most + 1))
                if len(some) > most:
                    some = [_interleaved(chains, way.need, rng) for _ in range(most)]
                for used in some:
                    yield ways, used


def _prefixes(chains: Sequence[Sequence[int]], need: int) -> Iterator[tuple[int, ...]]:
    """Yield every set of so many messages in which none is without those its worker sends before.

    Examples
    --------
    >>> list(_prefixes([[0, 1], [2]], 2))
    [(0, 2), (0, 1)]
    """
    if not chains:
        if not need:
            yield ()
        return
    first, rest = chains[0], chains[1:]
    possible = sum(map(len, rest))
    for count in range(max(0, need - possible), min(len(first), need) + 1):
        for others in _prefixes(rest, need - count):
            yield (*first[:count], *others)


def _interleaved(chains: Sequence[Sequence[int]], need: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Draw the messages that come first."""
    order = rng.permutation(np.repeat(np.arange(len(chains)), [len(each) for each in chains]))[:need]
    return tuple(sorted(chain.from_iterable(each[: int((order == at).sum())] for at, each in enumerate(chains))))


def _condition(rows: Floats) -> float:
    """Return the ratio of the largest to the least singular value; infinite where rows depend on each other."""
    values = np.linalg.svd(rows, compute_uv=False)
    return float(values[0] / values[-1]) if values[-1] > 0 else math.inf


def _cyclic(workers: int, r: int) -> tuple[tuple[int, ...], ...]:
    """Worker i computes partitions i to i + r - 1, round and round."""
    return tuple(tuple((worker + turn) % workers for turn in range(r)) for worker in range(workers))


def _checked(name: str, workers: int, r: int, least: int = 1) -> None:
    if workers < 1:
        raise InputError(f"{name}: {workers} workers; give at least one")
    if workers < least:
        raise InputError(f"{name}: a code needs {least} workers or more; there are {workers}")
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
    _checked("gradient-coding", workers, r, least=2)
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
        raise InputError(f"{name}: {clusters} clusters do not divide {workers} workers evenly; give a divisor")
    size = workers // clusters
    _checked(name, size, r, least=2)
    turns = tuple(after) or tuple(range(1, r + 1))
    if list(turns) != sorted(set(turns)) or turns[0] < 1 or turns[-1] != r:
        raise InputError(
            f"{name}: messages after {turns} tasks; give increasing numbers of at least 1 that end with r = {r}"
        )
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


DRAWS, SMALL = 64, 16
"""Number of random codes of which the best is used, and the most workers for which that is worth the time."""


def _cyclic_code(workers: int, r: int, seed: int) -> Floats:
    """Return B (workers, workers): row i is non-zero at i to i + r - 1, any N - r + 1 rows span the row of ones."""
    spare = r - 1
    if not spare:
        return np.eye(workers)
    rng = np.random.default_rng([seed, workers, r])
    best, least = np.empty((0, 0)), np.inf
    for _ in range(DRAWS if workers <= SMALL else 1):
        parity = rng.standard_normal((spare, workers))
        parity[:, -1] = -parity[:, :-1].sum(axis=1)
        rows = np.zeros((workers, workers))
        for worker, held in enumerate(_cyclic(workers, r)):
            rows[worker, held[0]] = 1.0
            rows[worker, list(held[1:])] = -np.linalg.solve(parity[:, list(held[1:])], parity[:, held[0]])
        # Some random codes are conditioned a hundred times worse than others.
        sets = list(islice(combinations(range(workers), workers - spare), 100))
        values = np.linalg.svd(rows[np.array(sets)], compute_uv=False) if workers <= SMALL else np.ones((1, 1))
        worst = float((values[:, 0] / values[:, -1]).max())
        if worst < least:
            best, least = rows, worst
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
    pieces = workers * r
    tasks = tuple(tuple(range(worker * r, (worker + 1) * r)) for worker in range(workers))
    messages = tuple(Message(worker, turn + 1 if several else r) for worker in range(workers) for turn in range(sent))
    coefficients = np.kron(np.eye(count), np.ones(pieces // count)).astype(np.float64)
    nodes, points = lagrange_points(groups, count)
    # A turn takes every so manyth point, the workers now from the left and now from the right: whoever is slow, what
    # the others send is spread.
    turns = points.reshape(workers, sent)
    turns[:, 1::2] = turns[::-1, 1::2].copy()
    points = turns.ravel()
    # Chebyshev polynomials: their values at points like these are conditioned best.
    system, target = (np.polynomial.chebyshev.chebvander(at, need - 1) for at in (points, nodes))
    encoding = Encoding(lagrange_basis(nodes, points), system.astype(np.float64), target.sum(axis=0, dtype=np.float64))
    return Scheme("lcc", groups, tasks, messages, coefficients, ((Enough(need, tuple(range(count))),),), encoding)


def lagrange_points(partitions: int, evaluations: int) -> tuple[Floats, Floats]:
    """Return where the polynomial takes the partitions' values, and where it is evaluated.

    Chebyshev points of all of them, the partitions' evenly among the others, in their order.
    """
    total = partitions + evaluations
    grid = np.cos(np.pi * (np.arange(total) + 0.5) / total)
    at = np.round((np.arange(partitions) + 0.5) * total / partitions - 0.5).astype(np.int64)
    return grid[at], np.delete(grid, at)


def lagrange_basis(nodes: NDArray[Any], at: NDArray[Any]) -> NDArray[Any]:
    """Return the Lagrange basis polynomials of some nodes at some points, (points, nodes); of objects in any field.

    Examples
    --------
    >>> lagrange_basis(np.array([0.0, 1.0]), np.array([0.25]))
    array([[0.75, 0.25]])
    """
    found = np.empty((len(at), len(nodes)), dtype=np.result_type(nodes, at))
    for column in range(len(nodes)):
        others = np.delete(nodes, column)
        # A slice, not a number: objects know no arrays.
        found[:, column] = np.prod((at[:, None] - others) / (nodes[column : column + 1] - others), axis=1)
    return found

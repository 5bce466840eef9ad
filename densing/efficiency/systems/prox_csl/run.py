"""Partitions that lie on ranks: rank 0 is the main machine, the others answer it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace

from densing.core import Array, InputError
from densing.efficiency.parallel import Clock, RunEnv, RunRecord, comm
from densing.efficiency.simulation import NUMBER
from densing.efficiency.systems.prox_csl.corpora import corpus
from densing.efficiency.systems.prox_csl.holders import Here, split_rows
from densing.efficiency.systems.prox_csl.parts import Part
from densing.efficiency.systems.prox_csl.surrogate import Alpha, Start, train_csl

GRADIENT, SOLUTIONS, END = 0, 1, 2
"""What rank 0 requests; for a gradient, the weights follow."""
TOLERANCE = 1e-4
"""Of every problem that is solved; see :func:`densing.efficiency.systems.prox_csl.minimise`."""


class Spread:
    """Partitions over the ranks of the process group; a :class:`Holders` on rank 0, and what it asks of the others.

    A request is a broadcast of an order, and of the weights where a gradient is asked for. A gradient comes back as
    each rank's weighted sum, with the loss behind it; solutions one by one.

    Parameters
    ----------
    parts : sequence of Part
        This rank's, of the same width on all ranks. On rank 0 the first with items of both classes is the main one.
    rank, ranks : int
    penalty : array of shape (d,)
        Of each weight, the same on all ranks.
    clock : Clock
        Waits are marked in it, and a request for a gradient ends a step of rank 0.

    Attributes
    ----------
    main, partitions, width, bytes
        As of :class:`densing.efficiency.systems.prox_csl.Holders`; bytes are what rank 0 sent and received.
    items, skipped : int
        Items, and partitions without a solution of their own, of all ranks.
    """

    def __init__(self, parts: Sequence[Part], rank: int, ranks: int, penalty: Array, clock: Clock) -> None:
        self.own, self.rank, self.ranks, self.penalty, self.clock = Here(parts), rank, ranks, penalty, clock
        self.main, self.width, self.bytes = self.own.main, self.own.width, 0
        counts = torch.tensor([self.own.partitions, self.own.items, self.own.skipped])
        comm.all_reduce(counts, async_op=False)
        self.partitions, self.items, self.skipped = map(int, counts)

    def gradient(self, weights: Array) -> tuple[float, Array]:
        """Return mean loss and gradient over all items."""
        self.clock.step()
        self._tell(GRADIENT, weights)
        total = self._sums(weights)
        sums = torch.zeros(self.width + 1, dtype=torch.float64)
        # They come one at a time over this rank's link.
        for rank in range(1, self.ranks):
            self._wait(comm.irecv(sums, rank))
            self.bytes += NUMBER * sums.numel()
            total += sums.numpy()
        return float(total[-1]), total[:-1]

    def solutions(self, penalty: Array, tol: float) -> list[Array]:
        """Return each partition's own solution, of those with items of both classes, in the order of the ranks."""
        self._tell(SOLUTIONS)
        solved = self.own.solutions(penalty, tol)
        for rank in range(1, self.ranks):
            count = torch.zeros(1, dtype=torch.float64)
            self._wait(comm.irecv(count, rank))
            stacked = torch.zeros(int(count), self.width, dtype=torch.float64)
            if len(stacked):
                self._wait(comm.irecv(stacked, rank))
            self.bytes += NUMBER * (1 + stacked.numel())
            solved += list(stacked.numpy())
        return solved

    def end(self) -> None:
        """Let the others go."""
        self._tell(END)

    def answer(self, tol: float = TOLERANCE) -> None:
        """Answer rank 0 until it lets go: the part of every other rank."""
        order = torch.zeros(1, dtype=torch.int64)
        weights = torch.zeros(self.width, dtype=torch.float64)
        while True:
            self._wait(comm.broadcast(order))
            if int(order) == END:
                return
            if int(order) == GRADIENT:
                self._wait(comm.broadcast(weights))
                self._wait(comm.isend(torch.from_numpy(self._sums(weights.numpy())), 0))
                continue
            solved = self.own.solutions(self.penalty, tol)
            self._wait(comm.isend(torch.tensor([float(len(solved))], dtype=torch.float64), 0))
            if solved:
                self._wait(comm.isend(torch.from_numpy(np.array(solved)), 0))

    def _sums(self, weights: Array) -> Array:
        """Return this rank's share of gradient and loss, one behind the other."""
        loss, gradient = self.own.gradient(weights)
        return np.append(gradient, loss) * (self.own.items / self.items)

    def _tell(self, order: int, weights: Array | None = None) -> None:
        self._wait(comm.broadcast(torch.tensor([order])))
        self.bytes += (self.ranks - 1) * NUMBER
        if weights is not None:
            self._wait(comm.broadcast(torch.from_numpy(weights)))
            self.bytes += (self.ranks - 1) * NUMBER * self.width

    def _wait(self, handle: Any) -> None:
        with self.clock.waiting():
            handle.wait()


def train_sparse(
    env: RunEnv,
    *,
    data: str,
    partitions: int,
    lam: float,
    updates: int,
    alpha: Alpha = 0.0,
    start: Start = "naive",
) -> RunRecord:
    """Train a sparse classifier over partitions on this rank: rank 0 is the main machine.

    Each rank keeps its run of the partitions that ``env.spec.seed`` deals; what comes out is what one process finds, up
    to the order of sums. A step of the record is an update, from the weights that it sends to the next; of a mean it is
    all there is.

    Parameters
    ----------
    env : RunEnv
    data : {"mmlu", "films"}
    partitions : int
        At least one per rank.
    lam : float
        Penalty of every weight.
    updates : int
        0: the start is what is wanted.
    alpha, start
        As of :func:`densing.efficiency.systems.prox_csl.train_csl`.

    Returns
    -------
    RunRecord
        ``losses``: the objective after each update, nats per item. ``final_loss``: mean logistic loss on the fifth that
        is held out. ``extra`` of rank 0: ``objective_start``, ``weights`` that are not zero, ``accuracy`` on the held
        out, ``moved_bytes``, ``partitions_skipped`` for want of a second class, ``start_s`` before the first update.

    Raises
    ------
    InputError
        For fewer partitions than ranks, or more than items.
    UnavailableError
        Without the data's wheel, or scikit-learn.
    """
    check_sparse(env.spec.nproc, partitions)
    words = corpus(data)
    parts = split_rows(words.features, words.labels, partitions, env.spec.seed)
    mine = np.array_split(np.arange(partitions), env.world_size)[env.rank]
    penalty, clock = np.full(words.features.shape[1], lam), Clock()
    holders = Spread([parts[number] for number in mine], env.rank, env.world_size, penalty, clock)
    record = RunRecord(
        env.spec.technique, env.rank, env.world_size, (), (), (), holders.items, 0.0, holders.width,
    )  # fmt: skip
    if env.rank:
        holders.answer()
        return record
    clock.start()
    trained = train_csl(holders, penalty, updates=updates, alpha=alpha, start=start, tol=TOLERANCE)
    holders.end()
    # The first request for a gradient ends the start.
    begun = 1 if updates else 0
    margins = words.test_features @ trained.weights
    return replace(
        record,
        losses=trained.history[begun:],
        step_s=tuple(clock.step_s[begun:]),
        wait_s=tuple(clock.wait_s[begun:]),
        final_loss=Part(words.test_features, words.test_labels).loss(margins),
        extra={
            "objective_start": trained.history[0],
            "start_s": sum(clock.step_s[:begun]),
            "weights": float(np.count_nonzero(trained.weights)),
            "accuracy": float(np.mean((margins > 0) == words.test_labels)),
            "moved_bytes": float(trained.bytes),
            "partitions_skipped": float(holders.skipped),
        },
    )


def check_sparse(ranks: int, partitions: int) -> None:
    """Refuse ranks without a partition.

    Raises
    ------
    InputError
    """
    if ranks > partitions:
        raise InputError(
            f"{ranks} ranks and {partitions} partitions: each rank must hold at least one; give fewer ranks"
        )

"""A recorded run as what can be replayed: local work between communications, and transfers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from densing.profile.clocks import Clocks
from densing.profile.matching import Matched
from densing.timeline.collectives import Collectives
from densing.timeline.spans import Int

Float = NDArray[np.float64]
# Ends held at a time; more choices are replayed in turns.
_CELLS = 2**22


@dataclass(frozen=True, eq=False)
class Segments:
    """Every rank's part in every matched communication, sorted by communication.

    Attributes
    ----------
    ranks : tuple of int
    begins : int64 (communications + 1,)
        Where each communication's entries begin; in an order in which none comes before what it waits for.
    rank : int64 (n,)
        Position in ``ranks``.
    before : int64 (n,)
        Entry of the same rank that ended last before this one starts; n where there is none.
    local_ns : float64 (n,)
        Time since that entry's end (or the beginning).
    transfer_ns : float64 (communications,)
        Time from the last arrival to the end.
    usual_local_ns, usual_transfer_ns : float64 (communications,)
        Local time: mean over the ranks of the communication. Transfer: median over communications of the same
        operation, bytes and number of ranks.
    last : int64 (ranks,)
        Each rank's last entry to end; n where it has none.
    tail_ns : float64 (ranks,)
        Local time after it, up to the window's end.
    recorded_ns : int
        From the beginning to the latest end of a window. Where clocks can be compared, the beginning is the earliest
        start of a window, so a rank that begins later works longer until its first communication; else every rank
        begins with its window.
    """

    ranks: tuple[int, ...]
    begins: Int
    rank: Int
    before: Int
    local_ns: Float
    transfer_ns: Float
    usual_local_ns: Float
    usual_transfer_ns: Float
    last: Int
    tail_ns: Float
    recorded_ns: int

    def run_times(self, keep_local: NDArray[np.bool_], keep_transfer: NDArray[np.bool_]) -> Float:
        """Replay the run: a communication ends when the last member has arrived and the transfer is done.

        Parameters
        ----------
        keep_local : bool (choices, ranks)
            Ranks whose local work takes its recorded time; the others' takes the usual one.
        keep_transfer : bool (choices,)
            Whether transfers take their recorded time.

        Returns
        -------
        float64 (choices,)
            Nanoseconds until the last rank is done.
        """
        at_once = max(1, _CELLS // max(1, len(self.rank)))
        parts = [
            self._run(keep_local[at : at + at_once], keep_transfer[at : at + at_once, None])
            for at in range(0, len(keep_local), at_once)
        ]
        return np.concatenate(parts)

    def _run(self, keep_local: NDArray[np.bool_], keep_transfer: NDArray[np.bool_]) -> Float:
        transfer = np.where(keep_transfer, self.transfer_ns, self.usual_transfer_ns)
        end = np.zeros((len(keep_local), len(self.rank) + 1))  # the last one stands for the beginning
        for number, (first, stop) in enumerate(pairwise(self.begins.tolist())):
            kept = keep_local[:, self.rank[first:stop]]
            local = np.where(kept, self.local_ns[first:stop], self.usual_local_ns[number])
            arrival = end[:, self.before[first:stop]] + local
            end[:, first:stop] = arrival.max(axis=1, keepdims=True) + transfer[:, number, None]
        usual_tail = np.broadcast_to(self.tail_ns.mean(), self.tail_ns.shape)
        return (end[:, self.last] + np.where(keep_local, self.tail_ns, usual_tail)).max(axis=1)


def segments_of(matched: Matched, clocks: Clocks) -> Segments:
    """Cut a run into local work and transfers; needs memory for every rank's part in every communication.

    A transfer is the smallest duration over ranks, which needs no common clock; local work lies between moments of one
    clock. Clocks only decide the order in which communications are replayed.
    """
    ranks = tuple(matched.per_rank)
    order = _order(matched, clocks)
    place = np.empty(len(matched), np.int64)
    place[order] = np.arange(len(matched))
    begin = _begins(matched, clocks)
    parts = [_of_rank(matched, found, place, begin[rank]) for rank, found in matched.per_rank.items()]
    sizes = [len(part.row) for part in parts]
    entry_rank, n = np.repeat(np.arange(len(ranks)), sizes), sum(sizes)
    shifted = list(zip(parts, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
    row = np.concatenate([part.row for part in parts])
    before = np.concatenate([np.where(part.before < 0, n, part.before + at) for part, at in shifted])
    last = np.array([part.last + at if part.last >= 0 else n for part, at in shifted])
    by_row = np.lexsort((entry_rank, place[row]))
    to_new = np.append(np.empty(n, np.int64), n)
    to_new[by_row] = np.arange(n)
    row = row[by_row]
    local = np.concatenate([part.local for part in parts])[by_row].astype(np.float64)
    count = np.bincount(row, minlength=len(matched))
    mean_local = np.bincount(row, local, minlength=len(matched)) / np.maximum(count, 1)
    return Segments(
        ranks,
        np.searchsorted(place[row], np.arange(len(matched) + 1)),
        entry_rank[by_row],
        to_new[before[by_row]],
        local,
        matched.transfer_ns[order].astype(np.float64),
        mean_local[order],
        _usual_transfer(matched)[order],
        to_new[last],
        np.array([part.tail for part in parts], np.float64),
        max(part.window for part in parts),
    )


def _begins(matched: Matched, clocks: Clocks) -> dict[int, int]:
    """Moment, on each rank's own clock, that the replay counts from: the same one where clocks can be compared."""
    starts = {rank: found.window_start_ns - clocks.offset_ns[rank] for rank, found in matched.per_rank.items()}
    earliest = min(starts.values())
    shift = {rank: earliest - start if clocks.comparable else 0 for rank, start in starts.items()}
    return {rank: start + clocks.offset_ns[rank] + shift[rank] for rank, start in starts.items()}


def _usual_transfer(matched: Matched) -> Float:
    usual = np.zeros(len(matched))
    _, which = np.unique(np.stack((matched.op, matched.bytes, matched.n_ranks)), axis=1, return_inverse=True)
    which = which.reshape(-1)
    for kind in range(int(which.max()) + 1):
        usual[which == kind] = np.median(matched.transfer_ns[which == kind])
    return usual


def _order(matched: Matched, clocks: Clocks) -> Int:
    """Communications by latest start, on the best clock there is."""
    latest = np.full(len(matched), np.iinfo(np.int64).min)
    for rank, collectives in matched.per_rank.items():
        own, rows = matched.rows_of(collectives)
        latest[rows] = np.maximum(latest[rows], collectives.start_ns[own] - clocks.measured_ns.get(rank, 0))
    return np.argsort(latest, kind="stable")


@dataclass(frozen=True, eq=False)
class _Part:
    """One rank: rows in ``Matched``; the own entry each waits for (-1 none); local time; last entry, tail, window."""

    row: Int
    before: Int
    local: Int
    last: int
    tail: int
    window: int


def _of_rank(matched: Matched, collectives: Collectives, place: Int, begin: int) -> _Part:
    own, rows = matched.rows_of(collectives)
    start, end = collectives.start_ns[own], collectives.end_ns[own]
    window = collectives.window_end_ns - begin
    if len(rows) == 0:
        return _Part(rows, rows, rows, -1, window, window)
    by_end = np.argsort(end, kind="stable")
    at = np.searchsorted(end[by_end], start, side="right") - 1
    before = np.where(at >= 0, by_end[np.maximum(at, 0)], -1)
    # Clocks that disagree, or a span without length, can put what ended earlier later in the order of replay.
    before[(before >= 0) & (place[rows[before]] >= place[rows])] = -1
    since = np.where(before >= 0, end[before], begin)
    last = int(end.argmax())
    tail = max(0, collectives.window_end_ns - int(end[last]))
    return _Part(rows, before, np.maximum(start - since, 0), last, tail, window)

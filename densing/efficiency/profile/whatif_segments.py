"""A recorded run as what can be replayed: local work between communications, and transfers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from densing.efficiency.profile.clocks import Clocks
from densing.efficiency.profile.matching import Matched
from densing.efficiency.timeline import Collectives, Int

Float = NDArray[np.float64]
# Ends held at a time; more choices are replayed in turns.
_CELLS = 2**22
LOOK_BACK = 64
"""Entries among which the one before is looked for where clocks contradict each other."""


@dataclass(frozen=True, eq=False)
class Segments:
    """Every rank's part in every matched communication, sorted by communication.

    Attributes
    ----------
    ranks : tuple of int
        Those with a part in a communication; what others did cannot be compared.
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
    usual_local_ns : float64 (n,)
        Mean over the ranks that come to this communication from the same one: they do the same work.
    usual_transfer_ns : float64 (communications,)
        Median over communications of the same operation, bytes and number of ranks.
    last : int64 (ranks,)
        Each rank's last entry to end.
    tail_ns, usual_tail_ns : float64 (ranks,)
        Local time after it, up to the window's end; and its mean over the ranks with the same last communication.
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
    usual_tail_ns: Float
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
            local = np.where(kept, self.local_ns[first:stop], self.usual_local_ns[first:stop])
            arrival = end[:, self.before[first:stop]] + local
            end[:, first:stop] = arrival.max(axis=1, keepdims=True) + transfer[:, number, None]
        return (end[:, self.last] + np.where(keep_local, self.tail_ns, self.usual_tail_ns)).max(axis=1)


def segments_of(matched: Matched, clocks: Clocks, spans: Mapping[int, tuple[int, int]] | None = None) -> Segments:
    """Cut a run into local work and transfers; needs memory for every rank's part in every communication.

    Parameters
    ----------
    matched : Matched
    clocks : Clocks
    spans : mapping of int to (int, int), optional
        Per rank, from when to when it is replayed, ns on its own clock; its window by default.

    Notes
    -----
    A transfer is the smallest duration over ranks, which needs no common clock; local work lies between moments of one
    clock. Clocks only decide the order in which communications are replayed.
    """
    order, windows = _surveyed(matched, clocks)
    spans = spans or windows
    place = np.empty(len(matched), np.int64)
    place[order] = np.arange(len(matched))
    begin = _begins(spans, clocks)
    every = {
        rank: _of_rank(matched, found, place, (begin[rank], spans[rank][1])) for rank, found in matched.per_rank.items()
    }
    ranks, parts = zip(*((rank, part) for rank, part in every.items() if len(part.row)), strict=True)
    sizes = [len(part.row) for part in parts]
    entry_rank, n = np.repeat(np.arange(len(ranks)), sizes), sum(sizes)
    shifted = list(zip(parts, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
    row = np.concatenate([part.row for part in parts])
    before = np.concatenate([np.where(part.before < 0, n, part.before + at) for part, at in shifted])
    last = np.array([part.last + at for part, at in shifted])
    tail, ending = np.array([part.tail for part in parts], np.float64), row[last]
    by_row = np.lexsort((entry_rank, place[row]))
    to_new = np.append(np.empty(n, np.int64), n)
    to_new[by_row] = np.arange(n)
    came_from = np.append(row, len(matched))[before[by_row]]
    row = row[by_row]
    local = np.concatenate([part.local for part in parts])[by_row].astype(np.float64)
    return Segments(
        ranks,
        np.searchsorted(place[row], np.arange(len(matched) + 1)),
        entry_rank[by_row],
        to_new[before[by_row]],
        local,
        matched.transfer_ns[order].astype(np.float64),
        _means(local, came_from * len(matched) + row),
        _usual_transfer(matched)[order],
        to_new[last],
        tail,
        _means(tail, ending),
        max(part.window for part in parts),
    )


def _means(values: Float, key: Int) -> Float:
    """Of each value, the mean over those with the same key."""
    _, which = np.unique(key, return_inverse=True)
    return np.asarray((np.bincount(which, values) / np.bincount(which))[which], np.float64)


def _begins(spans: Mapping[int, tuple[int, int]], clocks: Clocks) -> dict[int, int]:
    """Moment, on each rank's own clock, that the replay counts from: the same one where clocks can be compared."""
    starts = {rank: start - clocks.offset_ns[rank] for rank, (start, _) in spans.items()}
    earliest = min(starts.values())
    return {rank: (earliest if clocks.comparable else own) + clocks.offset_ns[rank] for rank, own in starts.items()}


def _usual_transfer(matched: Matched) -> Float:
    """Median over the communications of one kind: as many kinds as there are sizes."""
    _, which = np.unique(np.stack((matched.op, matched.bytes, matched.n_ranks)), axis=1, return_inverse=True)
    which = which.reshape(-1)
    took = matched.transfer_ns[np.lexsort((matched.transfer_ns, which))]
    count = np.bincount(which)
    first = np.cumsum(count) - count
    middle = (took[first + (count - 1) // 2] + took[first + count // 2]) / 2
    return np.asarray(middle[which], np.float64)


def _surveyed(matched: Matched, clocks: Clocks) -> tuple[Int, dict[int, tuple[int, int]]]:
    """Order of the communications by latest start, on the best clock there is; and the ranks' windows."""
    latest = np.full(len(matched), np.iinfo(np.int64).min)
    windows = {}
    for rank, collectives in matched.per_rank.items():
        own, rows = matched.rows_of(collectives)
        latest[rows] = np.maximum(latest[rows], collectives.start_ns[own] - clocks.measured_ns.get(rank, 0))
        windows[rank] = collectives.window_start_ns, collectives.window_end_ns
    return np.argsort(latest, kind="stable"), windows


@dataclass(frozen=True, eq=False)
class _Part:
    """One rank: rows in ``Matched``; the own entry each waits for (-1 none); local time; last entry, tail, window."""

    row: Int
    before: Int
    local: Int
    last: int
    tail: int
    window: int


def _of_rank(matched: Matched, collectives: Collectives, place: Int, span: tuple[int, int]) -> _Part:
    own, rows = matched.rows_of(collectives)
    start, end = collectives.start_ns[own], collectives.end_ns[own]
    begin, until = span
    window = until - begin
    if len(rows) == 0:
        return _Part(rows, rows, rows, -1, window, window)
    before = _before(start, end, place[rows])
    since = np.where(before >= 0, end[before], begin)
    last = int(end.argmax())
    tail = max(0, until - int(end[last]))
    return _Part(rows, before, np.maximum(start - since, 0), last, tail, window)


def _before(start: Int, end: Int, place: Int) -> Int:
    """What ended last before each entry starts, among what is replayed before it; -1 where there is none."""
    by_end = np.argsort(end, kind="stable")
    at = np.searchsorted(end[by_end], start, side="right") - 1
    before = np.where(at >= 0, by_end[np.maximum(at, 0)], -1)
    # Clocks that disagree, or a span without length, can put what ended earlier later in the order of replay.
    for entry in np.flatnonzero((before >= 0) & (place[before] >= place)).tolist():
        earlier = by_end[max(0, at[entry] - LOOK_BACK) : at[entry]][::-1]
        good = earlier[place[earlier] < place[entry]]
        before[entry] = good[0] if len(good) else -1
    return before

"""Cost of slow ranks in a recorded run: a replay as recorded, and one with every rank's local work at the mean.

Between two of its communications a rank works alone for its local time; a communication lasts from the last arrival
for its transfer. The same replay with local times at their mean over ranks, and transfers at their median, is ideal:

.. math:: S = T / T_{ideal}, \\qquad S_r = T_{\\text{only r as recorded}} / T_{ideal}

Source: after the what-if analysis of OSDI'25 (arXiv 2505.05713), whose operations a profiler's trace does not name:
here all that lies between communications is one segment, compared with the same segment on the other ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from densing.core import Note
from densing.efficiency.profile.alignment import Clocks, Matched
from densing.efficiency.profile.rank import RankProfile
from densing.efficiency.timeline import Collectives, Int, occurrences

Float = NDArray[np.float64]
Span = tuple[int, int]
StepKey = tuple[int, int]
"""A step's number, and how often it occurred before."""
MAX_ENTRIES = 10_000_000
SHOWN_RANKS = 64
# Ends held in memory at a time; more choices are replayed in blocks.
_CELLS = 2**22
LOOK_BACK = 64
"""Entries searched for the preceding one where clocks contradict each other."""


@dataclass(frozen=True)
class RecordedWhatIf:
    """What-if analysis of a recorded run; nanoseconds until the last rank is done.

    Attributes
    ----------
    recorded_ns : int
        From the earliest start to the latest end of a window; where clocks cannot be compared, the longest window.
    replayed_ns, ideal_ns : int
        T and T_ideal. A rank that begins its window later than the first works longer until its first communication;
        where clocks cannot be compared, all windows begin at 0 and T may differ from the recorded length.
    slowdown : float or None
        S; None where nothing could be replayed.
    local_slowdown, transfer_slowdown : float or None
        S with only the local work, or only the transfers, as recorded.
    by_rank : mapping of int to float
        S_r, largest first; of many ranks, ``worst`` and those with most local work above the mean.
    worst : int or None
        The rank that the others wait for most (:func:`densing.efficiency.profile.waiting.find_stragglers`), where its
        S_r exceeds 1.
    worst_explains : float or None
        (T − T_without)/(T − T_ideal), with the worst rank's local work at the mean; may leave [0, 1].
    communications : int
        Matched communications replayed.
    notes : tuple of Note
    """

    recorded_ns: int
    replayed_ns: int
    ideal_ns: int
    slowdown: float | None
    local_slowdown: float | None
    transfer_slowdown: float | None
    by_rank: Mapping[int, float]
    worst: int | None
    worst_explains: float | None
    communications: int
    notes: tuple[Note, ...] = ()

    @property
    def waste(self) -> float | None:
        """Share of device time lost to uneven ranks, 1 − 1/S."""
        return None if self.slowdown is None else 1 - 1 / self.slowdown

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; ranks as text, as JSON has it."""
        return {**msgspec.to_builtins(self, str_keys=True), "waste": self.waste}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RecordedWhatIf:
        """Rebuild what :meth:`to_dict` wrote."""
        return msgspec.convert(data, cls, str_keys=True)


def what_if(
    matched: Matched, clocks: Clocks, straggler: int | None, steps: CommonSteps | None = None
) -> RecordedWhatIf:
    """Estimate what a recorded run would gain if no rank were slower than the mean.

    Parameters
    ----------
    matched : Matched
    clocks : Clocks
        Where they can be compared, all ranks are replayed from one moment; else each from its window's start.
    straggler : int or None
        Rank that the others wait for most; None if there is none or the clock error hides it. No other rank is called
        the worst, since equal ranks differ by chance in S_r too.
    steps : CommonSteps, optional
        Where ranks recorded different steps: those that all recorded. Only these are replayed, since a rank whose
        recording began later is not slow; a note says so.

    Returns
    -------
    RecordedWhatIf
        Slowdown None, with a note, for one rank, for a run without matched communications, and for one with more than
        10 million parts of ranks in communications, which take more than a gigabyte.
    """
    notes: tuple[Note, ...] = ()
    if steps is not None:
        notes, matched = (steps.note,), matched.take(_within(matched, steps.spans))
    entries = int(matched.n_ranks.sum())
    refusal = ""
    if len(matched.ranks) < 2:
        refusal = "one rank was recorded; profile all ranks"
    elif steps is not None and not steps.numbers:
        refusal = "no step was recorded by all ranks; record the same steps on each"
    elif len(matched) == 0:
        within = "" if steps is None else " within the steps that all ranks recorded"
        refusal = f"no communication could be matched over ranks{within}"
    elif entries > MAX_ENTRIES:
        refusal = f"{entries} parts in communications exceed the limit of {MAX_ENTRIES}; use a shorter window"
    if refusal:
        return _refused(0, matched, notes, refusal)
    segments = segments_of(matched, clocks, None if steps is None else steps.spans)
    if len(segments.ranks) < len(matched.ranks):
        without = sorted(set(matched.ranks) - set(segments.ranks))
        label = f"rank {without[0]}" if len(without) == 1 else f"{len(without)} ranks ({without[0]}, {without[1]}, ...)"
        text = (
            f"the what-if analysis leaves out {label}, because without a matched communication "
            "their work cannot be compared"
        )
        notes = (*notes, Note("what-if-ranks", "info", text, {"ranks": without}))
    # Ranks whose local work exceeds the mean most, and the straggler.
    excess = np.maximum(segments.local_ns - segments.usual_local_ns, 0)
    total = np.bincount(segments.rank, excess, minlength=len(segments.ranks))
    if straggler in segments.ranks:
        total[segments.ranks.index(straggler)] = np.inf
    candidates = np.argsort(-total, kind="stable")[:SHOWN_RANKS]
    every = np.ones(len(segments.ranks), bool)
    single = np.eye(len(segments.ranks), dtype=bool)[candidates]
    # As recorded: everything, nothing, local work only, transfers only; then one rank's local work at a time.
    local = np.concatenate(([every, ~every, every, ~every], single))
    transfer = np.array([True, False, False, True, *np.zeros(len(candidates), bool)])
    replayed, ideal, only_local, only_transfer, *singles = segments.run_times(local, transfer).tolist()
    if ideal <= 0:
        return _refused(segments.recorded_ns, matched, notes, "nothing in the window has a duration")
    slowdowns = {segments.ranks[index]: time / ideal for index, time in zip(candidates.tolist(), singles, strict=True)}
    by_rank = dict(sorted(slowdowns.items(), key=lambda item: (-item[1], item[0])))
    worst = straggler if straggler is not None and by_rank.get(straggler, 0) > 1 else None
    explains: float | None = None
    if worst is not None and replayed != ideal:
        mask = np.array([[rank != worst for rank in segments.ranks]])
        [fixed] = segments.run_times(mask, np.array([True])).tolist()
        explains = (replayed - fixed) / (replayed - ideal)
    return RecordedWhatIf(
        segments.recorded_ns,
        round(replayed),
        round(ideal),
        replayed / ideal,
        only_local / ideal,
        only_transfer / ideal,
        by_rank,
        worst,
        explains,
        len(matched),
        notes,
    )


def _refused(recorded_ns: int, matched: Matched, notes: tuple[Note, ...], reason: str) -> RecordedWhatIf:
    note = Note("no-what-if", "info", f"no what-if analysis: {reason}")
    return RecordedWhatIf(recorded_ns, 0, 0, None, None, None, {}, None, None, len(matched), (*notes, note))


def _within(matched: Matched, spans: Mapping[int, Span]) -> NDArray[np.bool_]:
    """Return which communications begin within the spans on all their ranks."""
    mask = np.full(len(matched), bool(spans))
    for rank, collectives in matched.per_rank.items() if spans else ():
        own, rows = matched.rows_of(collectives)
        start, (first, until) = collectives.start_ns[own], spans[rank]
        mask[rows[(start < first) | (start >= until)]] = False
    return mask


@dataclass(frozen=True)
class CommonSteps:
    """Steps in a row that all ranks recorded.

    Attributes
    ----------
    numbers : tuple of int
        As marked; empty where no step was recorded by all.
    left_out : int
        Other steps that some rank recorded.
    spans : mapping of int to (int, int)
        Per rank, the start of the first and the end of the last of them, ns on its own clock.
    """

    numbers: tuple[int, ...]
    left_out: int
    spans: Mapping[int, Span]

    @property
    def note(self) -> Note:
        """A note that names the steps analysed; a warning where there are none."""
        numbers = self.numbers
        label = f"step {numbers[0]}" if numbers else "no step"
        if len(numbers) > 1:
            label = f"steps {numbers[0]} to {numbers[-1]}"
        text = f"the what-if analysis covers {label}, recorded by all ranks; {self.left_out} other step(s) are left out"
        details = {"steps": list(numbers), "left_out": self.left_out}
        return Note("what-if-steps", "info" if numbers else "warning", text, details)


def common_steps(ranks: Sequence[RankProfile]) -> CommonSteps | None:
    """Find the longest stretch of steps that all ranks recorded.

    Returns
    -------
    CommonSteps or None
        None where all ranks marked the same steps, or some marked none: then their windows are compared whole.
    """
    positions = [
        {key: position for position, key in enumerate(occurrences(step.number for step in rank.steps))}
        for rank in ranks
    ]
    every = set().union(*positions)
    if not all(positions) or all(position.keys() == every for position in positions):
        return None
    shared = [key for key in positions[0] if all(key in position for position in positions)]
    # Stretches that are consecutive on every rank.
    stretches: list[list[StepKey]] = []
    for index, key in enumerate(shared):
        if index and all(position[key] == position[shared[index - 1]] + 1 for position in positions):
            stretches[-1].append(key)
        else:
            stretches.append([key])
    longest = max(stretches, key=len, default=[])
    if not longest:
        return CommonSteps((), len(every), {})
    spans = {
        rank.rank: (rank.steps[position[longest[0]]].start_ns, rank.steps[position[longest[-1]]].end_ns)
        for rank, position in zip(ranks, positions, strict=True)
    }
    return CommonSteps(tuple(number for number, _ in longest), len(every) - len(longest), spans)


@dataclass(frozen=True, eq=False)
class Segments:
    """Every rank's part in every matched communication, sorted by communication.

    Attributes
    ----------
    ranks : tuple of int
        Those with a matched communication; others cannot be compared.
    begins : int64 (communications + 1,)
        Where each communication's entries begin; in topological order.
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

        All choices go through the communications at once. The simulator
        (:func:`densing.efficiency.simulation.simulate`) gives the same times, one choice at a time and a task per
        entry: for 400 communications of 256 ranks 2.2 s a choice, against 0.4 s for 66 of them here.

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
            recorded = keep_local[:, self.rank[first:stop]]
            local = np.where(recorded, self.local_ns[first:stop], self.usual_local_ns[first:stop])
            arrival = end[:, self.before[first:stop]] + local
            end[:, first:stop] = arrival.max(axis=1, keepdims=True) + transfer[:, number, None]
        return (end[:, self.last] + np.where(keep_local, self.tail_ns, self.usual_tail_ns)).max(axis=1)


def segments_of(matched: Matched, clocks: Clocks, spans: Mapping[int, Span] | None = None) -> Segments:
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
    windows: dict[int, Span] = {}
    # Ordered by latest start, on the best available clock.
    latest = np.full(len(matched), np.iinfo(np.int64).min)
    for rank, table in matched.per_rank.items():
        own, rows = matched.rows_of(table)
        latest[rows] = np.maximum(latest[rows], table.start_ns[own] - clocks.measured_ns.get(rank, 0))
        windows[rank] = table.window_start_ns, table.window_end_ns
    order = np.argsort(latest, kind="stable")
    spans = spans or windows
    position = np.empty(len(matched), np.int64)
    position[order] = np.arange(len(matched))
    # The start of the replay on each rank's own clock: one common moment where clocks can be compared.
    starts = {rank: start - clocks.offset_ns[rank] for rank, (start, _) in spans.items()}
    earliest = min(starts.values())
    begin = {rank: (earliest if clocks.comparable else own) + clocks.offset_ns[rank] for rank, own in starts.items()}
    entries = {
        rank: _of_rank(matched, table, position, (begin[rank], spans[rank][1]))
        for rank, table in matched.per_rank.items()
    }
    ranks, parts = zip(*((rank, part) for rank, part in entries.items() if len(part.row)), strict=True)
    sizes = [len(part.row) for part in parts]
    entry_rank, n = np.repeat(np.arange(len(ranks)), sizes), sum(sizes)
    # Entries of all ranks one after the other; then sorted by communication.
    shifted = list(zip(parts, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
    row = np.concatenate([part.row for part in parts])
    before = np.concatenate([np.where(part.before < 0, n, part.before + at) for part, at in shifted])
    last = np.array([part.last + at for part, at in shifted])
    tail, ending = np.array([part.tail for part in parts], np.float64), row[last]
    by_row = np.lexsort((entry_rank, position[row]))
    to_new = np.append(np.empty(n, np.int64), n)
    to_new[by_row] = np.arange(n)
    came_from = np.append(row, len(matched))[before[by_row]]
    row = row[by_row]
    local = np.concatenate([part.local for part in parts])[by_row].astype(np.float64)
    return Segments(
        ranks,
        np.searchsorted(position[row], np.arange(len(matched) + 1)),
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
    """Return for each value the mean over values with the same key."""
    _, kind = np.unique(key, return_inverse=True)
    return np.asarray((np.bincount(kind, values) / np.bincount(kind))[kind], np.float64)


def _usual_transfer(matched: Matched) -> Float:
    """Return the median over communications of the same operation, size and number of ranks."""
    _, kind = np.unique(np.stack((matched.op, matched.bytes, matched.n_ranks)), axis=1, return_inverse=True)
    kind = kind.reshape(-1)
    # All medians at once: sort transfers within each kind and take the middle one or two.
    transfer = matched.transfer_ns[np.lexsort((matched.transfer_ns, kind))]
    count = np.bincount(kind)
    first = np.cumsum(count) - count
    median = (transfer[first + (count - 1) // 2] + transfer[first + count // 2]) / 2
    return np.asarray(median[kind], np.float64)


@dataclass(frozen=True, eq=False)
class _Part:
    """One rank: rows in ``Matched``; the own entry each waits for (-1 none); local time; last entry, tail, window."""

    row: Int
    before: Int
    local: Int
    last: int
    tail: int
    window: int


def _of_rank(matched: Matched, collectives: Collectives, position: Int, span: Span) -> _Part:
    own, rows = matched.rows_of(collectives)
    start, end = collectives.start_ns[own], collectives.end_ns[own]
    begin, until = span
    window = until - begin
    if len(rows) == 0:
        return _Part(rows, rows, rows, -1, window, window)
    before = _before(start, end, position[rows])
    since = np.where(before >= 0, end[before], begin)
    last = int(end.argmax())
    tail = max(0, until - int(end[last]))
    return _Part(rows, before, np.maximum(start - since, 0), last, tail, window)


def _before(start: Int, end: Int, position: Int) -> Int:
    """Return the entry that ended last before each entry starts, among those replayed before it; -1 for none."""
    by_end = np.argsort(end, kind="stable")
    at = np.searchsorted(end[by_end], start, side="right") - 1
    before = np.where(at >= 0, by_end[np.maximum(at, 0)], -1)
    # Where clocks disagree, or a span has no length, an entry that ended earlier may come later in the replay.
    for entry in np.flatnonzero((before >= 0) & (position[before] >= position)).tolist():
        earlier = by_end[max(0, at[entry] - LOOK_BACK) : at[entry]][::-1]
        good = earlier[position[earlier] < position[entry]]
        before[entry] = good[0] if len(good) else -1
    return before

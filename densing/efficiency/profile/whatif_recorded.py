"""What slow ranks cost a recorded run: replayed as recorded, and with every rank's local work at the ranks' mean.

Between two of its communications a rank works alone for its local time; a communication lasts from the last arrival
for its transfer. The same replay with local times at their mean over ranks, and transfers at their median, is ideal:

.. math:: S = T / T_{ideal}, \\qquad S_r = T_{\\text{only r as recorded}} / T_{ideal}

Source: after the what-if analysis of OSDI'25 (arXiv 2505.05713), whose operations a profiler's trace does not name:
here all that lies between communications is one segment, compared with the same segment on the other ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densing.core import Note
from densing.efficiency.profile.clocks import Clocks
from densing.efficiency.profile.common_steps import CommonSteps
from densing.efficiency.profile.matching import Matched
from densing.efficiency.profile.whatif_segments import Segments, segments_of

MAX_ENTRIES = 10_000_000
SHOWN_RANKS = 64


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
        The rank that the others wait for most (:mod:`densing.efficiency.profile.stragglers`), where its S_r exceeds 1.
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
        by_rank = {str(rank): slow for rank, slow in self.by_rank.items()}
        return {
            **asdict(self),
            "by_rank": by_rank,
            "notes": [note.to_dict() for note in self.notes],
            "waste": self.waste,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RecordedWhatIf:
        """Rebuild what :meth:`to_dict` wrote."""
        given = {key: value for key, value in data.items() if key != "waste"}
        given["by_rank"] = {int(rank): slow for rank, slow in data["by_rank"].items()}
        return cls(**{**given, "notes": tuple(Note.from_dict(note) for note in data["notes"])})


def what_if(matched: Matched, clocks: Clocks, named: int | None, steps: CommonSteps | None = None) -> RecordedWhatIf:
    """Say what a recorded run would gain if no rank were slower than the mean.

    Parameters
    ----------
    matched : Matched
    clocks : Clocks
        Where they can be compared, all ranks are replayed from one moment; else each from its window's start.
    named : int or None
        Rank that the others wait for most, None where nobody is or the clocks' error hides who: no other is called the
        worst, since ranks that are alike differ by chance in S_r too.
    steps : CommonSteps, optional
        Where ranks recorded different steps: those that all recorded. Nothing else is replayed, since a rank whose
        recording began later is not slow; a note tells.

    Returns
    -------
    RecordedWhatIf
        Slowdown None, with a note, for one rank, for a run without matched communications, and for one with more than
        10 million parts of ranks in communications, which take more than a gigabyte.
    """
    notes: tuple[Note, ...] = ()
    if steps is not None:
        notes, matched = (_told(steps),), matched.take(_within(matched, steps.spans))
    why = _refusal(matched, steps)
    if why:
        return _nothing(0, matched, notes, why)
    segments = segments_of(matched, clocks, None if steps is None else steps.spans)
    if len(segments.ranks) < len(matched.ranks):
        notes = (*notes, _alone(segments.ranks, matched.ranks))
    some = _candidates(segments, named)
    ranks, all_ranks = len(segments.ranks), np.ones(len(segments.ranks), bool)
    alone = np.eye(ranks, dtype=bool)[some]
    local = np.concatenate(([all_ranks, ~all_ranks, all_ranks, ~all_ranks], alone))
    transfer = np.array([True, False, False, True, *np.zeros(len(some), bool)])
    replayed, ideal, only_local, only_transfer, *singles = segments.run_times(local, transfer).tolist()
    if ideal <= 0:
        return _nothing(segments.recorded_ns, matched, notes, "nothing in the window takes time")
    slow = {segments.ranks[at]: single / ideal for at, single in zip(some.tolist(), singles, strict=True)}
    by_rank = dict(sorted(slow.items(), key=lambda item: (-item[1], item[0])))
    worst = named if named is not None and by_rank.get(named, 0) > 1 else None
    return RecordedWhatIf(
        segments.recorded_ns,
        round(replayed),
        round(ideal),
        replayed / ideal,
        only_local / ideal,
        only_transfer / ideal,
        by_rank,
        worst,
        None if worst is None else _explained(segments, worst, replayed, ideal),
        len(matched),
        notes,
    )


def _nothing(recorded_ns: int, matched: Matched, notes: tuple[Note, ...], why: str) -> RecordedWhatIf:
    note = Note("no-what-if", "info", f"no what-if analysis: {why}")
    return RecordedWhatIf(recorded_ns, 0, 0, None, None, None, {}, None, None, len(matched), (*notes, note))


def _alone(replayed: Collection[int], ranks: Collection[int]) -> Note:
    alone = sorted(set(ranks) - set(replayed))
    named = f"rank {alone[0]}" if len(alone) == 1 else f"{len(alone)} ranks ({alone[0]}, {alone[1]}, ...)"
    text = f"the what-if analysis leaves out {named}: without a matched communication nothing compares to its work"
    return Note("what-if-ranks", "info", text, {"ranks": alone})


def _told(steps: CommonSteps) -> Note:
    numbers = steps.numbers
    if len(numbers) > 1:
        named = f"steps {numbers[0]} to {numbers[-1]}"
    else:
        named = f"step {numbers[0]}" if numbers else "no step"
    text = f"the what-if analysis is of {named}, recorded by all ranks; {steps.left_out} other step(s) are left out"
    details = {"steps": list(numbers), "left_out": steps.left_out}
    return Note("what-if-steps", "info" if numbers else "warning", text, details)


def _within(matched: Matched, spans: Mapping[int, tuple[int, int]]) -> NDArray[np.bool_]:
    """Return which communications begin within the spans on all their ranks."""
    kept = np.full(len(matched), bool(spans))
    for rank, collectives in matched.per_rank.items() if spans else ():
        own, rows = matched.rows_of(collectives)
        start, (first, until) = collectives.start_ns[own], spans[rank]
        kept[rows[(start < first) | (start >= until)]] = False
    return kept


def _refusal(matched: Matched, steps: CommonSteps | None) -> str:
    if len(matched.ranks) < 2:
        return "one rank was recorded; profile all ranks"
    if steps is not None and not steps.numbers:
        return "no step was recorded by all ranks; record the same steps on each"
    if len(matched) == 0:
        within = "" if steps is None else " within the steps that all ranks recorded"
        return f"no communication could be matched over ranks{within}"
    entries = int(matched.n_ranks.sum())
    if entries > MAX_ENTRIES:
        return f"{entries} parts in communications are too many ({MAX_ENTRIES} are the limit); use a shorter window"
    return ""


def _candidates(segments: Segments, named: int | None) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Ranks whose local work exceeds the mean most, and the one that the others wait for."""
    excess = np.maximum(segments.local_ns - segments.usual_local_ns, 0)
    total = np.bincount(segments.rank, excess, minlength=len(segments.ranks))
    if named in segments.ranks:
        total[segments.ranks.index(named)] = np.inf
    return np.argsort(-total, kind="stable")[:SHOWN_RANKS]


def _explained(segments: Segments, rank: int, replayed: float, ideal: float) -> float | None:
    if replayed == ideal:
        return None
    others = np.array([[other != rank for other in segments.ranks]])
    [fixed] = segments.run_times(others, np.array([True])).tolist()
    return (replayed - fixed) / (replayed - ideal)

"""Cost of slow ranks in a recorded run: its replay as recorded, and with even ranks.

.. math:: S = T / T_{even}, \\qquad S_r = T_{\\text{only r as recorded}} / T_{even}

In the even run each rank's own time between two of its communications is the median over the ranks
(:mod:`densing.efficiency.profile.replay`); transfers stay as recorded.

Source: after the what-if analysis of OSDI'25 (arXiv 2505.05713), whose operations a profiler's trace does not name:
here all that lies between communications is one segment, compared with the same segment on the other ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from densing.core import Note
from densing.efficiency.profile.replay import Change, Replay

SHOWN_RANKS = 8


@dataclass(frozen=True)
class RecordedWhatIf:
    """What a recorded run would take with even ranks; nanoseconds until the last rank is done.

    Attributes
    ----------
    recorded_ns : int
        From the earliest start to the latest end of a window; where clocks cannot be compared, the longest window.
    replayed_ns, even_ns : int
        T and T_even. Where clocks cannot be compared all windows begin at 0, and T may differ from the recorded length.
    slowdown : float or None
        S; None where nothing could be replayed.
    by_rank : mapping of int to float
        S_r, largest first, of the rank that is waited for and of those with most time above the median.
    worst : int or None
        The rank that the others wait for most (:func:`densing.efficiency.profile.waiting.find_stragglers`), where its
        S_r exceeds 1.
    worst_explains : float or None
        (T - T_without)/(T - T_even), with only the worst rank even; may leave [0, 1].
    communications : int
        Matched communications replayed.
    notes : tuple of Note
    """

    recorded_ns: int
    replayed_ns: int
    even_ns: int
    slowdown: float | None
    by_rank: Mapping[int, float]
    worst: int | None
    worst_explains: float | None
    communications: int
    notes: tuple[Note, ...] = ()

    @property
    def waste(self) -> float | None:
        """Share of device time lost to uneven ranks, 1 - 1/S."""
        return None if self.slowdown is None else 1 - 1 / self.slowdown

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; ranks as text, as JSON has it."""
        return {**msgspec.to_builtins(self, str_keys=True), "waste": self.waste}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RecordedWhatIf:
        """Rebuild what :meth:`to_dict` wrote."""
        return msgspec.convert(data, cls, str_keys=True)


def what_if(replay: Replay, straggler: int | None) -> RecordedWhatIf:
    """Estimate what a recorded run would gain if no rank were slower than the median.

    Parameters
    ----------
    replay : Replay
    straggler : int or None
        Rank that the others wait for most; None if there is none or the clock error hides it. No other rank is called
        the worst, since equal ranks differ by chance in S_r too.

    Returns
    -------
    RecordedWhatIf
        Slowdown None, with a note, for one rank and for a run without matched communications.
    """
    number = int(np.sum(np.bincount(replay.communication[replay.joins]) > 0)) if replay.joins.any() else 0
    whole, even = replay.run_ns(), replay.even_ns
    refusal = ""
    if len(replay.ranks) < 2:
        refusal = "one rank was recorded; profile all ranks"
    elif not number:
        refusal = (
            "ranks are replayed each on its own" if replay.apart else "no communication could be matched over ranks"
        )
    elif min(whole, even) <= 0:
        refusal = "nothing in the window has a duration"
    if refusal:
        note = Note("no-what-if", "info", f"no what-if analysis: {refusal}")
        return RecordedWhatIf(replay.recorded_ns, round(whole), 0, None, {}, None, None, number, (note,))
    excess = replay.excess_ns()
    if straggler in replay.ranks:
        excess[replay.ranks.index(straggler)] = np.inf
    slowdowns = {}
    for index in np.argsort(-excess, kind="stable")[:SHOWN_RANKS].tolist():
        mask = np.arange(len(replay.ranks)) != index
        slowdowns[replay.ranks[index]] = replay.run_ns(Change(even=mask)) / even
    by_rank = dict(sorted(slowdowns.items(), key=lambda item: (-item[1], item[0])))
    worst = straggler if straggler is not None and by_rank.get(straggler, 0) > 1 else None
    explains: float | None = None
    if worst is not None and whole != even:
        mask = np.arange(len(replay.ranks)) == replay.ranks.index(worst)
        explains = (whole - replay.run_ns(Change(even=mask))) / (whole - even)
    notes: tuple[Note, ...] = ()
    if not replay.joined.all():
        without = [rank for rank, joined in zip(replay.ranks, replay.joined, strict=True) if not joined]
        label = f"rank {without[0]}" if len(without) == 1 else f"{len(without)} ranks ({without[0]}, {without[1]}, ...)"
        text = f"the replay leaves out {label}: without a matched communication their work cannot be compared"
        notes = (Note("what-if-ranks", "info", text, {"ranks": without}),)
    return RecordedWhatIf(
        replay.recorded_ns, round(whole), round(even), whole / even, by_rank, worst, explains, number, notes
    )

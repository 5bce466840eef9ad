"""Results that need several ranks: matching, clocks, stragglers, slowdown, the critical path across ranks.

A single trace must not pay for loading what compares ranks, so that only :func:`join_ranks` loads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from densing.core import Note
from densing.efficiency.profile.rank import RankProfile
from densing.efficiency.timeline import Collectives

if TYPE_CHECKING:
    from densing.efficiency.profile.alignment import Clocks, Matched
    from densing.efficiency.profile.critical import RunPath
    from densing.efficiency.profile.replay import Replay
    from densing.efficiency.profile.waiting import Stragglers, Waiting
    from densing.efficiency.profile.whatif_run import RecordedWhatIf


@dataclass(frozen=True, eq=False)
class JointProfile:
    """The ranks of a run, joined by their communications.

    Attributes
    ----------
    matched : Matched
    clocks : Clocks
    stragglers : Stragglers
    replay : Replay
    what_if : RecordedWhatIf
        Slowdown by uneven ranks.
    path : RunPath or None
        Critical path across ranks.
    waiting : mapping of (op, group) to Waiting
        How much of the communication was waiting for other ranks.
    notes : tuple of Note
    """

    matched: Matched
    clocks: Clocks
    stragglers: Stragglers
    replay: Replay
    what_if: RecordedWhatIf
    path: RunPath | None
    waiting: Mapping[tuple[str, str], Waiting]
    notes: tuple[Note, ...]

    @property
    def waits(self) -> dict[tuple[str, str], float]:
        """Share of the communication's time, hidden or not, that was waiting for other ranks."""
        return {key: waiting.share for key, waiting in self.waiting.items()}

    @property
    def worst(self) -> str:
        """Who arrives last, in words; empty where nothing tells."""
        stragglers = self.stragglers
        if stragglers.worst is None or not stragglers.of:
            return ""
        return f"rank {stragglers.worst} {stragglers.often or 'most'}"


def join_ranks(ranks: Sequence[RankProfile], tables: Mapping[int, Collectives]) -> JointProfile:
    """Join the ranks of a run.

    Parameters
    ----------
    ranks : sequence of RankProfile
    tables : mapping of int to Collectives
        Their communications; may read them lazily.
    """
    from densing.efficiency.profile.alignment import align_clocks, match_collectives
    from densing.efficiency.profile.critical import run_path
    from densing.efficiency.profile.replay import Replay
    from densing.efficiency.profile.waiting import find_stragglers, waiting_of
    from densing.efficiency.profile.whatif_run import what_if

    matched = match_collectives(tables)
    clocks = align_clocks(matched)
    stragglers = find_stragglers(matched, clocks)
    graphs = {rank.rank: rank.dependencies for rank in ranks}
    replay = Replay(graphs, tables, matched, clocks)
    if (together := replay.fidelity).status == "off":
        # What ranks did to each other is not known, what each did is.
        replay = Replay(graphs, tables, None, clocks, f"together, {together.sentence}")
    even = what_if(replay, stragglers.worst)
    path, path_notes = run_path(replay)
    # That nothing matches is said by the matching's own notes.
    waiting_notes = stragglers.notes if len(matched) else clocks.notes
    notes = (*matched.notes, *waiting_notes, *even.notes, *path_notes)
    return JointProfile(matched, clocks, stragglers, replay, even, path, waiting_of(matched), notes)

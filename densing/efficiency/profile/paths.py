"""The critical path across ranks, from what the ranks' profiles hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from densing.core import Note
from densing.efficiency.profile.clocks import Clocks
from densing.efficiency.profile.critical import RankCollectives, RunPath, run_critical_path
from densing.efficiency.profile.critical_local import blocking, local_of
from densing.efficiency.profile.matching import Matched
from densing.efficiency.profile.rank import RankProfile

MAX_RANKS = 64
"""Ranks whose own critical paths are held in memory."""


def run_path(ranks: Sequence[RankProfile], matched: Matched, clocks: Clocks) -> tuple[RunPath | None, tuple[Note, ...]]:
    """Walk the critical path of a run from rank to rank.

    Returns
    -------
    RunPath or None
        None where there is nothing to walk: one rank, no matched communication, clocks that cannot be compared, or
        more than :data:`MAX_RANKS` ranks; the notes say which.
    tuple of Note
    """
    why = _refusal(ranks, matched, clocks)
    if why:
        return None, (Note("no-run-path", "info", f"no critical path across ranks: {why}"),)
    rows = {rank.rank: _of_rank(rank, matched, clocks.offset_ns[rank.rank]) for rank in ranks}
    shift = {rank.rank: -clocks.offset_ns[rank.rank] for rank in ranks}
    return run_critical_path(rows, local_of({rank.rank: rank.path for rank in ranks}, shift)), _shortened(ranks)


def _refusal(ranks: Sequence[RankProfile], matched: Matched, clocks: Clocks) -> str:
    if len(ranks) < 2:
        return "one rank was recorded"
    if len(matched) == 0:
        return "no communication could be matched"
    if not clocks.comparable:
        return "the ranks' clocks cannot be compared"
    if len(ranks) > MAX_RANKS:
        return f"{len(ranks)} ranks are more than the {MAX_RANKS} whose own paths are held in memory"
    return ""


def _of_rank(rank: RankProfile, matched: Matched, offset: int) -> RankCollectives:
    rows = rank.collectives
    key = np.full(len(rows), -1, np.int64)
    own, found = matched.rows_of(rows)
    key[own] = found
    held = blocking(rank.path, rows.start_ns, rows.end_ns)
    return RankCollectives(
        rank.start_ns - offset, rank.end_ns - offset, key, rows.start_ns - offset, rows.end_ns - offset, held
    )


def _shortened(ranks: Sequence[RankProfile]) -> tuple[Note, ...]:
    """Say where a rank's own path was stored without its shortest segments: they count as idle between ranks."""
    lost = sum(rank.path.left_out_ns for rank in ranks)
    if not lost:
        return ()
    share = 100 * lost / max(sum(rank.end_ns - rank.start_ns for rank in ranks), 1)
    text = f"the critical path across ranks counts {share:.2g} % of the ranks' time as idle: segments too short to keep"
    return (Note("run-path-shortened", "info", text, {"ns": lost}),)

"""The profile of a run: its ranks together, what they waited for, and what cost the most."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from densing.core import InputError, Note, once
from densing.efficiency.profile.causes import Cause, find_causes
from densing.efficiency.profile.frames import collective_frame, rank_frame, step_frame
from densing.efficiency.profile.rank import RankProfile
from densing.efficiency.profile.run_gather import RanksGathered, Stores
from densing.efficiency.profile.run_notes import run_notes
from densing.efficiency.profile.summary import Figures, figures, run_collectives
from densing.efficiency.timeline import Collectives, CollectiveSummary, StepSpread, step_spread

if TYPE_CHECKING:
    import pandas as pd

    from densing.efficiency.profile.together import Together

HELD_RANKS = 64
"""Ranks whose details are held in memory; of more only figures are, and the rest is read again from the store."""


class RunProfile(msgspec.Struct, frozen=True, eq=False):
    """What a run spent, over all its ranks.

    Attributes
    ----------
    ranks : tuple of RankProfile
        By rank. Beyond :data:`HELD_RANKS` their tables of single communications and their own paths' segments are
        empty.
    window : str
        Of all ranks.
    figures : mapping
        The keys of :data:`densing.efficiency.profile.summary.METRICS`, and ``slowdown`` where it could be measured.
    collectives : tuple of CollectiveSummary
        Over all ranks, by operation and group.
    together : Together or None
        What several ranks tell of each other; None for a single rank.
    spread : tuple of StepSpread
    causes : tuple of Cause
        The worst first.
    notes : tuple of Note
    options : mapping
    """

    ranks: tuple[RankProfile, ...]
    window: str
    figures: Figures
    collectives: tuple[CollectiveSummary, ...]
    together: Together | None
    spread: tuple[StepSpread, ...]
    causes: tuple[Cause, ...]
    notes: tuple[Note, ...] = ()
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        """Return one line: all fields would be megabytes in a notebook."""
        told = {key: self.figures.get(key) for key in ("exposed_pct", "overlap_pct", "idle_pct")}
        parts = [f"{key}={value:.4g}" for key, value in told.items() if isinstance(value, float)]
        head = f"ranks={len(self.ranks)}, window={self.window!r}, steps={self.figures['steps']}"
        return f"RunProfile({', '.join([head, *parts])})"

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the accelerators that the ranks' traces list, each once; empty if unknown."""
        return tuple(dict.fromkeys(name for rank in self.ranks for name in rank.devices))

    @property
    def world_size(self) -> int:
        """Number of ranks of the run: as the traces say, at least those profiled."""
        return max(len(self.ranks), *(rank.world_size for rank in self.ranks))

    def table(self) -> pd.DataFrame:
        """Return a row per rank."""
        return rank_frame(self.ranks)

    def step_table(self) -> pd.DataFrame:
        """Return a row per rank and step."""
        return step_frame(self.ranks)

    def collective_table(self) -> pd.DataFrame:
        """Return a row per operation and process group, with transfer and wait where ranks could be matched."""
        return collective_frame(self.collectives, self.together.waiting if self.together else {})

    def to_dict(self) -> dict[str, Any]:
        """Return all but single communications as plain data: what ``densing profile --json`` prints of a run."""
        from densing.efficiency.profile.document import document

        return document(self)


def merge_run(
    rows: Iterable[Mapping[str, Any] | RankProfile],
    *,
    store: Stores | None = None,
    notes: Sequence[Note] = (),
    options: Mapping[str, Any] | None = None,
) -> RunProfile:
    """Join the profiles of a run's ranks.

    Parameters
    ----------
    rows : iterable of RankProfile or of what ``RankProfile.to_dict`` gave
        Read one by one; beyond :data:`HELD_RANKS` ranks details are dropped, and read again from ``store``.
    store : path, optional
        Where the rows are stored; needed for more than :data:`HELD_RANKS` ranks.
    notes : sequence of Note
        What is known already, such as files that could not be read.
    options : mapping, optional

    Raises
    ------
    InputError
        When there are no rows, two files claim one rank, or ranks were cut to different windows.

    Examples
    --------
    >>> from densing.efficiency.profile.rank import profile_timeline
    >>> from densing.efficiency.timeline.spans import Kind, Spans
    >>> from densing.efficiency.timeline.timeline import RankTimeline
    >>> work = Spans.build([{"start": 0, "end": 60, "kind": Kind.COMPUTE, "name": "gemm"}])
    >>> merge_run([profile_timeline(RankTimeline(0, work, Spans.empty()))]).figures["compute_pct"]
    100.0
    """
    gathered = RanksGathered(HELD_RANKS if store is not None else None)
    for row in rows:
        gathered.add(row)
    ranks = gathered.ranks()
    if not ranks:
        raise InputError("no rank could be profiled; give at least one trace")
    window = _one_window(ranks)
    together = _together(ranks, gathered.tables(store))
    parts = gathered.summaries()
    pooled = run_collectives(parts)
    slowdown = together.what_if.slowdown if together else None
    own = [note for rank in ranks for note in rank.notes]
    return RunProfile(
        tuple(ranks),
        window,
        figures(ranks) | {"slowdown": slowdown},
        pooled,
        together,
        step_spread({rank.rank: [(s.number, s.end_ns - s.start_ns) for s in rank.steps] for rank in ranks}),
        find_causes(ranks, parts, together),
        tuple(once([*notes, *own, *run_notes(ranks), *(together.notes if together else ())])),
        dict(options or {}),
    )


def _together(ranks: Sequence[RankProfile], tables: Mapping[int, Collectives]) -> Together | None:
    if len(ranks) < 2:
        return None
    # A single trace must not pay for loading what compares ranks.
    from densing.efficiency.profile.together import join_ranks

    return join_ranks(ranks, tables)


def _one_window(ranks: Sequence[RankProfile]) -> str:
    names = {rank.window: rank for rank in ranks}
    if len(names) > 1:
        told = ", ".join(f"{name} ({rank.source})" for name, rank in names.items())
        raise InputError(f"some traces mark steps and others do not, so windows differ: {told}; use --window all")
    return next(iter(names))

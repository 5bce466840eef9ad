"""The profile of a run: its ranks together, what they waited for, and what cost the most."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np
from msgspec.structs import replace

from densing.errors import InputError
from densing.notes import Note
from densing.profile.causes import Cause, find_causes
from densing.profile.frames import collective_frame, rank_frame, step_frame
from densing.profile.rank import RankProfile
from densing.profile.summary import Figures, figures, run_collectives
from densing.timeline.collective_summary import CollectiveSummary, summary
from densing.timeline.collectives import COLUMNS, Collectives
from densing.timeline.steps import StepSpread, step_spread

if TYPE_CHECKING:
    import pandas as pd

    from densing.profile.together import Together

HELD_RANKS = 64
"""Ranks whose single communications are held in memory; more are read again from the store when needed."""
Stores = Path | str | Sequence[Path | str]
DRAWN_RANKS = 16
"""Ranks whose step is kept to be drawn."""


class RunProfile(msgspec.Struct, frozen=True, eq=False):
    """What a run spent, over all its ranks.

    Attributes
    ----------
    ranks : tuple of RankProfile
        By rank. Beyond :data:`HELD_RANKS` their tables of single communications are empty.
    window : str
        Of all ranks.
    figures : mapping
        The keys of :data:`densing.profile.summary.METRICS`, and ``slowdown`` where it could be measured.
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

    def table(self) -> pd.DataFrame:
        """Return a row per rank."""
        return rank_frame(self.ranks)

    def step_table(self) -> pd.DataFrame:
        """Return a row per rank and step."""
        return step_frame(self.ranks)

    def collective_table(self) -> pd.DataFrame:
        """Return a row per operation and process group."""
        return collective_frame(self.collectives)

    def to_dict(self) -> dict[str, Any]:
        """Return all but single communications as plain data: what ``densing profile --json`` prints of a run."""
        from densing.profile.document import document

        return document(self)


class StoredCollectives(Mapping[int, Collectives]):
    """The ranks' communications, read from a store one rank at a time whenever they are walked through."""

    def __init__(self, store: Stores, ranks: Sequence[int]) -> None:
        self._store, self._ranks = store, frozenset(ranks)

    def __len__(self) -> int:
        return len(self._ranks)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._ranks))

    def __getitem__(self, rank: int) -> Collectives:
        return next(found for key, found in self._pairs() if key == rank)

    def items(self) -> ItemsView[int, Collectives]:
        """Walk through ranks and tables; one table is in memory at a time."""
        return cast("ItemsView[int, Collectives]", self._pairs())

    def values(self) -> ValuesView[Collectives]:
        """Walk through the tables; one is in memory at a time."""
        return cast("ValuesView[Collectives]", (table for _, table in self._pairs()))

    def _pairs(self) -> Iterator[tuple[int, Collectives]]:
        from densing.profile.store import read_profiles

        for row in read_profiles(self._store, ("rank", "collectives")):
            if row["rank"] in self._ranks:
                yield row["rank"], Collectives.from_dict(row["collectives"])


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
        Read one by one; beyond :data:`HELD_RANKS` ranks single communications are dropped, and read again from
        ``store``.
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
    >>> from densing.profile.rank import profile_timeline
    >>> from densing.timeline.spans import Kind, Spans
    >>> from densing.timeline.timeline import RankTimeline
    >>> work = Spans.build([{"start": 0, "end": 60, "kind": Kind.COMPUTE, "name": "gemm"}])
    >>> merge_run([profile_timeline(RankTimeline(0, work, Spans.empty()))]).figures["compute_pct"]
    100.0
    """
    ranks, tables, summaries = _gather(rows, spill=store is not None)
    if not ranks:
        raise InputError("no rank could be profiled; give at least one trace")
    window = _one_window(ranks)
    held = tables if store is None or len(ranks) <= HELD_RANKS else StoredCollectives(store, [r.rank for r in ranks])
    together = _together(ranks, held)
    pooled = run_collectives(summaries)
    waits, worst = (together.waits, together.worst) if together else ({}, "")
    slowdown = together.what_if.slowdown if together else None
    own = [note for rank in ranks for note in rank.notes]
    return RunProfile(
        tuple(ranks),
        window,
        figures(ranks) | {"slowdown": slowdown},
        pooled,
        together,
        step_spread({rank.rank: [(s.number, s.end_ns - s.start_ns) for s in rank.steps] for rank in ranks}),
        find_causes(ranks, pooled, waits, worst),
        tuple(_once([*notes, *own, *_missing_ranks(ranks), *(together.notes if together else ())])),
        dict(options or {}),
    )


def _together(ranks: Sequence[RankProfile], tables: Mapping[int, Collectives]) -> Together | None:
    if len(ranks) < 2:
        return None
    # A single trace must not pay for loading what compares ranks.
    from densing.profile.together import join_ranks

    return join_ranks(ranks, tables)


def _gather(
    rows: Iterable[Mapping[str, Any] | RankProfile], spill: bool
) -> tuple[list[RankProfile], dict[int, Collectives], list[tuple[CollectiveSummary, ...]]]:
    ranks: dict[int, RankProfile] = {}
    tables: dict[int, Collectives] = {}
    summaries = []
    for row in rows:
        one = row if isinstance(row, RankProfile) else RankProfile.from_dict(row)
        if one.rank in ranks:
            raise InputError(
                f"{ranks[one.rank].source} and {one.source}: both say that they are rank {one.rank}; "
                "say which is which with --rank FILE=NUMBER"
            )
        summaries.append(summary(one.collectives))
        tables[one.rank] = one.collectives
        if len(ranks) >= DRAWN_RANKS:
            one = replace(one, picture=replace(one.picture, boxes=()))
        ranks[one.rank] = one
        if spill and len(ranks) > HELD_RANKS:
            tables.clear()
            ranks = {key: _slim(rank) for key, rank in ranks.items()}
    return [ranks[key] for key in sorted(ranks)], {key: tables[key] for key in sorted(tables)}, summaries


def _slim(rank: RankProfile) -> RankProfile:
    if not len(rank.collectives):
        return rank
    nothing: dict[str, Any] = {key: np.empty(0, np.int64) for key in COLUMNS}
    return replace(rank, collectives=replace(rank.collectives, **nothing))


def _one_window(ranks: Sequence[RankProfile]) -> str:
    names = {rank.window: rank for rank in ranks}
    if len(names) > 1:
        told = ", ".join(f"{name} ({rank.source})" for name, rank in names.items())
        raise InputError(f"some traces mark steps and others do not, so windows differ: {told}; use --window all")
    return next(iter(names))


def _missing_ranks(ranks: Sequence[RankProfile]) -> Iterator[Note]:
    """Say that ranks of the run were not profiled."""
    world = max(rank.world_size for rank in ranks)
    if world > len(ranks):
        one = "; one rank says nothing of waiting for others" if len(ranks) == 1 else ""
        text = f"{len(ranks)} of the run's {world} ranks were profiled{one}"
        yield Note("ranks-missing", "info", text, {"profiled": len(ranks), "world_size": world})


def _once(notes: Iterable[Note]) -> Iterator[Note]:
    seen: set[tuple[str, str]] = set()
    for note in notes:
        if (note.code, note.message) not in seen:
            seen.add((note.code, note.message))
            yield note

"""The ranks of a run gathered one by one: what is kept of each, so that memory does not grow with its details."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, Sequence, ValuesView
from pathlib import Path
from typing import Any, cast

import numpy as np
from msgspec.structs import replace

from densing.core import InputError
from densing.efficiency.profile.rank import RankProfile
from densing.efficiency.timeline import COLUMNS, Collectives, CollectiveSummary, Group, NameTotal, summary

Stores = Path | str | Sequence[Path | str]
DRAWN_RANKS = 16
"""Ranks whose step is kept to be drawn: the lowest."""
HELD_ROWS = 300_000
"""Single communications held in memory, 50 MB; where many ranks have more, each pass reads the store again."""


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
        from densing.efficiency.profile.store import read_profiles

        for row in read_profiles(self._store, ("rank", "collectives")):
            if row["rank"] in self._ranks:
                yield row["rank"], Collectives.from_dict(row["collectives"])


_NONE = np.empty(0, np.int64)


class RanksGathered:
    """What is kept of the ranks read so far; the same in whatever order they come.

    Parameters
    ----------
    held : int or None
        Ranks whose own paths are kept, and whose single communications are kept however many they are. With more
        ranks no path is kept, and communications up to :data:`HELD_ROWS`: they can be read again.
    """

    def __init__(self, held: int | None) -> None:
        self._held = held
        self._ranks: dict[int, RankProfile] = {}
        self._summaries: dict[int, tuple[CollectiveSummary, ...]] = {}
        self._tables: dict[int, Collectives] = {}
        self._rows = 0
        self._whole: list[int] = []
        self._drawn: set[int] = set()
        self._texts: dict[str, str] = {}
        self._groups: dict[Group, Group] = {}

    def add(self, row: Mapping[str, Any] | RankProfile) -> None:
        """Take in one rank, or what its ``to_dict`` gave.

        Raises
        ------
        InputError
            When it was there before.
        """
        one = row if isinstance(row, RankProfile) else RankProfile.from_dict(row)
        if one.rank in self._ranks:
            raise InputError(
                f"{self._ranks[one.rank].source} and {one.source}: both say that they are rank {one.rank}; "
                "say which is which with --rank FILE=NUMBER"
            )
        self._summaries[one.rank] = summary(one.collectives)
        self._ranks[one.rank] = one
        # Every rank has the same groups, each a list of its members.
        groups = tuple(self._groups.setdefault(group, group) for group in one.collectives.groups)
        self._tables[one.rank] = replace(one.collectives, groups=groups)
        self._rows += len(one.collectives)
        self._whole.append(one.rank)
        self._draw(one.rank)
        if self._held is not None and len(self._ranks) > self._held:
            for rank in self._whole:
                self._ranks[rank] = self._slim(self._ranks[rank])
            self._whole.clear()
            if self._rows > HELD_ROWS:
                self._tables.clear()

    def ranks(self) -> list[RankProfile]:
        """Return the ranks by number."""
        return [self._ranks[key] for key in sorted(self._ranks)]

    def summaries(self) -> list[tuple[CollectiveSummary, ...]]:
        """Return each rank's communications by operation and group, by rank."""
        return [self._summaries[key] for key in sorted(self._summaries)]

    def tables(self, store: Stores | None) -> Mapping[int, Collectives]:
        """Return each rank's communications, by rank; from the store where they were not kept."""
        if store is None or len(self._tables) == len(self._ranks):
            return {key: self._tables[key] for key in sorted(self._tables)}
        return StoredCollectives(store, list(self._ranks))

    def _draw(self, rank: int) -> None:
        self._drawn.add(rank)
        if len(self._drawn) > DRAWN_RANKS:
            last = max(self._drawn)
            self._drawn.remove(last)
            one = self._ranks[last]
            self._ranks[last] = replace(one, picture=replace(one.picture, boxes=()))

    def _slim(self, rank: RankProfile) -> RankProfile:
        """Leave out what only a few ranks are shown with; texts that ranks share are held once."""
        nothing: dict[str, Any] = dict.fromkeys(COLUMNS, _NONE)
        nothing |= dict.fromkeys(("groups", "names", "lanes", "dtypes"), ())
        path = {key: getattr(rank.path, key)[:0].copy() for key in ("start", "end", "kind", "lane", "name")}
        return replace(
            rank,
            collectives=replace(rank.collectives, **nothing),
            path=replace(rank.path, **path, lanes=(), names=()),
            names=tuple(self._shared(row) for row in rank.names),
        )

    def _shared(self, row: NameTotal) -> NameTotal:
        return replace(row, name=self._texts.setdefault(row.name, row.name))

"""The stretch of steps that every rank of a run recorded: outside it, ranks cannot be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from densing.efficiency.profile.rank import RankProfile
from densing.efficiency.timeline import occurrences

Key = tuple[int, int]
Span = tuple[int, int]


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


def common_steps(ranks: Sequence[RankProfile]) -> CommonSteps | None:
    """Find the longest stretch of steps that all ranks recorded.

    Returns
    -------
    CommonSteps or None
        None where all ranks marked the same steps, or some marked none: then their windows are compared whole.
    """
    places = [_places(rank) for rank in ranks]
    every = set().union(*places)
    if not all(places) or all(place.keys() == every for place in places):
        return None
    shared = [key for key in places[0] if all(key in place for place in places)]
    best = max(_stretches(shared, places), key=len, default=[])
    if not best:
        return CommonSteps((), len(every), {})
    spans = {
        rank.rank: (rank.steps[place[best[0]]].start_ns, rank.steps[place[best[-1]]].end_ns)
        for rank, place in zip(ranks, places, strict=True)
    }
    return CommonSteps(tuple(number for number, _ in best), len(every) - len(best), spans)


def _places(rank: RankProfile) -> dict[Key, int]:
    """Position of each step by its number, and how often that came before."""
    return {key: place for place, key in enumerate(occurrences(step.number for step in rank.steps))}


def _stretches(shared: Sequence[Key], places: Sequence[Mapping[Key, int]]) -> list[list[Key]]:
    """Parts of the shared steps that follow each other on every rank without another step between."""
    found: list[list[Key]] = []
    for at, key in enumerate(shared):
        if at and all(place[key] == place[shared[at - 1]] + 1 for place in places):
            found[-1].append(key)
        else:
            found.append([key])
    return found

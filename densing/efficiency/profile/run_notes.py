"""Remarks on a run as a whole: what is missing of it, and what is unlike between its ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from densing.core import Note
from densing.efficiency.profile.summary import cut_short

if TYPE_CHECKING:
    from densing.efficiency.profile.rank import RankProfile

SHOWN = 3
NAMED = 8
"""Runs of missing ranks that are named; of more the number tells."""


def run_notes(ranks: Sequence[RankProfile]) -> Iterator[Note]:
    """Say what of a run was not profiled, and where its ranks are not alike.

    Parameters
    ----------
    ranks : sequence of RankProfile
        At least one.
    """
    yield from _missing(ranks)
    yield from _world(ranks)
    yield from _steps(ranks)
    yield from _cut(ranks)
    yield from _unlike(ranks, "mixed-devices", "devices", lambda rank: ", ".join(dict.fromkeys(rank.devices)))
    yield from _unlike(ranks, "mixed-work", "kinds of run", lambda rank: "processor" if rank.on_host else "accelerator")


def _missing(ranks: Sequence[RankProfile]) -> Iterator[Note]:
    world = max(rank.world_size for rank in ranks)
    if world > len(ranks):
        gaps = list(_gaps([rank.rank for rank in ranks], world))
        more = f" and {len(gaps) - NAMED} more" if len(gaps) > NAMED else ""
        named = f"; missing: {', '.join(gaps[:NAMED])}{more}"
        alone = "; one rank says nothing of waiting for others" if len(ranks) == 1 else ""
        text = f"{len(ranks)} of the run's {world} ranks were profiled{named}{alone}"
        yield Note("ranks-missing", "info", text, {"profiled": len(ranks), "world_size": world})


def _gaps(known: Sequence[int], world: int) -> Iterator[str]:
    """Yield the ranks below ``world`` that are not known, a run at a time: a header may claim any number of them."""
    bounds = [-1, *sorted(rank for rank in known if rank < world), world]
    for before, after in pairwise(bounds):
        first, last = before + 1, after - 1
        if first == last:
            yield str(first)
        elif first < last:
            yield f"{first}, {last}" if first + 1 == last else f"{first} to {last}"


def _world(ranks: Sequence[RankProfile]) -> Iterator[Note]:
    """Traces of different runs in one folder."""
    known = [rank for rank in ranks if rank.world_size > 0]
    yield from _unlike(known, "mixed-world-sizes", "world sizes", lambda rank: str(rank.world_size))
    beyond = [rank for rank in known if rank.rank >= rank.world_size]
    if beyond:
        first = beyond[0]
        text = f"{first.source}: is rank {first.rank} of a run that has {first.world_size} ranks by its own header"
        yield Note("rank-beyond-world", "warning", f"{text}; check which run it belongs to", {"ranks": len(beyond)})


def _steps(ranks: Sequence[RankProfile]) -> Iterator[Note]:
    """Ranks without steps beside ranks with steps, as a window of everything allows."""
    ranks = [rank for rank in ranks if rank.end_ns > rank.start_ns]
    without = [rank for rank in ranks if not rank.steps]
    if 0 < len(without) < len(ranks):
        text = (
            f"{len(without)} of {len(ranks)} ranks mark no steps ({without[0].source}); figures per step divide the "
            "time of all ranks by the steps of those that do"
        )
        yield Note("mixed-steps", "warning", text, {"ranks": [rank.rank for rank in without[:SHOWN]]})


def _cut(ranks: Sequence[RankProfile]) -> Iterator[Note]:
    """Communication of which the windows hold the smaller part."""
    if cut := cut_short(ranks):
        inside, whole = cut
        text = (
            f"{100 * (whole - inside) / whole:.0f} % of the communication's time lies beyond the window, so what share "
            "of it is hidden is not told; record on until it has ended (a step more than a round of a late all-reduce)"
        )
        yield Note("communication-cut", "warning", text, {"inside_ns": inside, "whole_ns": whole})


def _unlike(ranks: Sequence[RankProfile], code: str, what: str, of: Callable[[RankProfile], str]) -> Iterator[Note]:
    """Say which ranks differ in something; ranks of which it is unknown do not count."""
    found: dict[str, list[RankProfile]] = {}
    for rank in ranks:
        if told := of(rank):
            found.setdefault(told, []).append(rank)
    if len(found) < 2:
        return
    shown = [f"{told} ({len(same)} rank(s), {same[0].source})" for told, same in list(found.items())[:SHOWN]]
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    text = f"ranks are of different {what}: {'; '.join(shown)}{more}; figures over all ranks mix them"
    yield Note(code, "warning", text, {told: len(same) for told, same in found.items()})

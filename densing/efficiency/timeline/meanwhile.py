"""What a host thread did during given stretches of time, by name."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from densing.core import Record
from densing.efficiency.timeline.intervals import Union, covered, length
from densing.efficiency.timeline.launches import named
from densing.efficiency.timeline.nesting import innermost, unbroken
from densing.efficiency.timeline.spans import Kind, Spans

SHOWN = 10


class Doing(Record, frozen=True):
    """Time by name.

    Attributes
    ----------
    level : {"range", "call"}
        Annotations and operators (innermost first, step marks left out), or runtime calls.
    name : str
        Empty for time in which nothing of that level ran.
    ns : int
    """

    level: str
    name: str
    ns: int


def step_mark(name: str) -> bool:
    """Return whether a name marks a step."""
    return name.startswith("ProfilerStep")


def doing(host: Spans, held: Iterable[tuple[int, Union]]) -> tuple[Doing, ...]:
    """Return the names that fill most of some stretches of time: ten ranges and ten runtime calls.

    Parameters
    ----------
    host : Spans
    held : iterable of (lane, union)
        Which stretches to look at, on which thread.

    Examples
    --------
    >>> host = Spans.build([{"start": 0, "end": 80, "kind": Kind.ANNOTATION, "name": "load"},
    ...                     {"start": 20, "end": 30, "kind": Kind.LAUNCH, "name": "cudaMalloc"}])
    >>> doing(host, [(0, (np.array([10]), np.array([100])))])
    (Doing(level='range', name='load', ns=70), Doing(level='range', name='', ns=20),
     Doing(level='call', name='', ns=80), Doing(level='call', name='cudaMalloc', ns=10))
    """
    held = list(held)
    ranges = np.isin(host.kind, (int(Kind.ANNOTATION), int(Kind.OP))) & ~named(host, step_mark)
    return (*_totals("range", host, ranges, held), *_totals("call", host, host.kind == Kind.LAUNCH, held))


def _totals(level: str, host: Spans, rows: NDArray[np.bool_], held: list[tuple[int, Union]]) -> list[Doing]:
    sums = np.zeros(len(host.names), np.int64)
    nothing = 0
    for lane, stretches in held:
        nothing += length(stretches)
        for own in unbroken(host, rows & (host.lane == lane)):
            found = innermost(host.start[own], host.end[own])
            inside = covered(stretches, found.start, found.end)
            np.add.at(sums, host.name[own[found.which]], inside)
            nothing -= int(inside.sum())
    table = [(int(sums[at]), host.names[at]) for at in np.flatnonzero(sums).tolist()]
    if nothing:
        table.append((nothing, ""))
    return [Doing(level, name, ns) for ns, name in sorted(table, key=lambda row: (-row[0], row[1]))[:SHOWN]]

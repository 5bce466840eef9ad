"""When something is done: task numbers per rank, so that one description serves one rank or many."""

from __future__ import annotations

from itertools import chain

Event = tuple[tuple[int, ...], ...]
"""Tasks that must have ended, for each simulated rank of a stage in turn; empty: nothing to wait for."""

NOTHING: Event = ()


def join(*events: Event) -> Event:
    """Return the event that all of some are done.

    Examples
    --------
    >>> join(((1,), (2,)), NOTHING, ((1, 3), (4,)))
    ((1, 3), (2, 4))
    """
    found = [event for event in events if event]
    if len(found) < 2:
        return found[0] if found else NOTHING
    return tuple(tuple(dict.fromkeys(chain.from_iterable(each))) for each in zip(*found, strict=True))

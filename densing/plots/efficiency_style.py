"""How the figures of a profile look: one colour, one pattern and one name per kind of time.

Colours are the house's (:mod:`densing.plots.style`); a pattern tells apart, in grey print too, what a colour does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from densing.plots import style


class Look(NamedTuple):
    """A kind of time: key of its figures, name in the legend, colour, pattern (empty: plain)."""

    key: str
    label: str
    colour: str
    pattern: str = ""

    def marker(self) -> dict[str, Any]:
        """Return plotly's marker for a bar of this kind."""
        line = {"color": style.MUTED, "width": 0.5}
        if not self.pattern:
            return {"color": self.colour, "line": line}
        drawn = {"shape": self.pattern, "fgcolor": style.PAPER, "bgcolor": self.colour, "size": 7, "solidity": 0.28}
        return {"color": self.colour, "line": line, "pattern": drawn}


COMPUTE = Look("compute", "compute", style.BLUE)
HIDDEN = Look("hidden", "compute that hides communication", style.BLUE, "/")
EXPOSED = Look("exposed_comm", "exposed communication", style.VERMILLION, "x")
COPIES = Look("exposed_memcpy", "exposed copies", style.GREEN, ".")
IDLE = Look("idle", "idle", style.GRID)
PARTS = (COMPUTE, HIDDEN, EXPOSED, COPIES, IDLE)
"""A window from what is wanted to what is not; the parts sum to it."""

IDLE_LOOKS = (
    Look("host_bound", "host launches too late", style.VERMILLION),
    Look("communication", "waits for communication", style.PURPLE, "x"),
    Look("kernel_wait", "launched, not begun", style.ORANGE, "/"),
    Look("no_launch_record", "launch not recorded", style.MUTED, "."),
    Look("before_first", "before the first work", style.BLUE, "\\"),
    Look("after_last", "after the last work", style.GREEN, "-"),
    Look("unknown", "not told by the trace", style.GRID),
)
"""Causes of idle time, the keys of :data:`densing.efficiency.timeline.idle.CAUSES`."""

PATTERNS = ("", "/", "x", ".", "\\", "-", "|", "+")


def looks_of(keys: tuple[str, ...], known: tuple[Look, ...]) -> tuple[Look, ...]:
    """Return a look per key: the known one, or one of the house's colours that tells it from the others.

    Examples
    --------
    >>> [look.label for look in looks_of(("idle", "launch_latency"), PARTS)]
    ['idle', 'launch latency']
    """
    by_key = {look.key: look for look in known}
    found = []
    for number, key in enumerate(keys):
        colour = style.CYCLE[number % len(style.CYCLE)]
        pattern = PATTERNS[(number + 1) % len(PATTERNS)]
        found.append(by_key.get(key) or Look(key, key.replace("_", " "), colour, pattern))
    return tuple(found)

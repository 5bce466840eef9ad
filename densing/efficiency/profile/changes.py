"""What a user asks of a recorded run: its step with a faster link, without a rank, with perfect overlap.

Every answer is a replay of the recorded run (:mod:`densing.efficiency.profile.replay`) with the change made.
"""

from __future__ import annotations

import re

import numpy as np

from densing.core import InputError, Record, UnknownNameError, formatting
from densing.efficiency.profile.critical import RunPath, walk
from densing.efficiency.profile.replay import Change, Replay

CHANGES = ("link", "hide", "drop-rank", "overlap")
"""What can be changed: transfers K times as fast, transfers of one operation at no cost, a rank that takes no part,
and communication that nothing but communication waits for."""
_FACTOR = re.compile(r"\d+(\.\d+)?x")


class Bound(Record, frozen=True):
    """What the critical path of a replay consists of most: a rank, a kind of time, and its share of the path."""

    rank: int
    kind: str
    share_pct: float

    def __str__(self) -> str:
        return f"{self.kind} on rank {self.rank} ({formatting.percent(self.share_pct)})"


class Planned(Record, frozen=True):
    """A recorded step, and the same with something changed.

    Attributes
    ----------
    change : str
        As given.
    before_ms, after_ms : float
        The run's time over its steps (the window, where no step is marked).
    low_ms, high_ms : float or None
        Shortest and longest single step of the changed replay; None where steps are not marked or end before the
        device's work.
    gain_pct : float
        Of the time before.
    bound_before, bound_after : Bound
        What the critical path led through most, and what it leads through then: the next bottleneck.
    """

    change: str
    before_ms: float
    after_ms: float
    low_ms: float | None
    high_ms: float | None
    gain_pct: float
    bound_before: Bound
    bound_after: Bound

    @property
    def sentence(self) -> str:
        """The result in words."""
        spread = ""
        if self.low_ms is not None and self.high_ms is not None and self.high_ms > self.low_ms:
            spread = f" (steps {formatting.milliseconds(self.low_ms)} to {formatting.milliseconds(self.high_ms)})"
        gained = f"{abs(self.gain_pct):.1f} % {'less' if self.gain_pct >= 0 else 'more'}"
        return (
            f"{self.change}: {formatting.milliseconds(self.before_ms)} per step become "
            f"{formatting.milliseconds(self.after_ms)}{spread}, {gained}; bound by {self.bound_before} before, "
            f"by {self.bound_after} then"
        )


def parse_changes(text: str) -> list[tuple[str, str]]:
    """Return the parts of a text such as ``link=2x,drop-rank=5``, checked as far as no run is needed.

    Raises
    ------
    InputError
        When a part is unknown or cannot be read; the message says what could.

    Examples
    --------
    >>> parse_changes("link=2x, overlap=perfect")
    [('link', '2x'), ('overlap', 'perfect')]
    """
    parts = []
    for part in text.split(","):
        key, _, value = part.strip().partition("=")
        if key not in CHANGES:
            raise UnknownNameError("change of --what-if", key, CHANGES)
        if key == "link" and not (_FACTOR.fullmatch(value) and float(value[:-1]) > 0):
            raise InputError(f"--what-if {part}: a link is faster by a factor, e.g. link=2x (link=0.5x is slower)")
        if key == "overlap" and value != "perfect":
            raise InputError(f"--what-if {part}: the only overlap that can be assumed is overlap=perfect")
        if key == "drop-rank" and not value.isdecimal():
            raise InputError(f"--what-if {part}: a rank is a number, e.g. drop-rank=5")
        parts.append((key, value))
    return parts


def change_of(replay: Replay, text: str) -> Change:
    """Return the change that a text describes in a run.

    Raises
    ------
    InputError
        When a part cannot be read or means nothing in this run; the message says what would.

    Examples
    --------
    >>> change_of(Replay({}), "overlap=perfect").overlapped
    True
    """
    factor, overlapped, dropped = np.ones(len(replay)), False, list[int]()
    operations = sorted({op for op, _ in replay.operations if op})
    for key, value in parse_changes(text):
        if key == "link":
            factor = factor / float(value[:-1])
        elif key == "hide":
            if value not in operations:
                listed = ", ".join(operations) or "none that the trace names"
                raise InputError(f"--what-if hide={value}: the run has no such communication; it has {listed}")
            codes = [code for code, (op, _) in enumerate(replay.operations) if op == value]
            factor = np.where(np.isin(replay.operation, codes), 0.0, factor)
        elif key == "drop-rank":
            if int(value) not in replay.ranks:
                known = formatting.ranks_of(replay.ranks)
                raise InputError(f"--what-if drop-rank={value}: no such rank was profiled; known are {known}")
            dropped.append(replay.ranks.index(int(value)))
            if len(set(dropped)) == len(replay.ranks):
                raise InputError(f"--what-if {text}: without its last rank there is no run; drop fewer")
        else:
            overlapped = True
    return Change(transfer=factor, overlapped=overlapped, dropped=tuple(dropped))


def plan(replay: Replay, text: str) -> Planned:
    """Replay a run with a change made.

    Raises
    ------
    InputError
        When the change means nothing in this run, or the run has nothing to replay.
    """
    if not len(replay) or not replay.run_ns():
        raise InputError(f"--what-if {text}: nothing was recorded that could be replayed; check the window")
    change = change_of(replay, text)
    steps = replay.steps or 1
    before, after = replay.run_ns(), replay.run_ns(change)
    low, high = replay.step_range_ns(change) or (None, None)
    return Planned(
        text,
        before / steps / 1e6,
        after / steps / 1e6,
        None if low is None else low / 1e6,
        None if high is None else high / 1e6,
        100 * (1 - after / before),
        _bound(walk(replay)),
        _bound(walk(replay, change)),
    )


def _bound(path: RunPath) -> Bound:
    rank, kind = path.bound_by or (-1, "idle")
    ns = path.totals.get(rank, {}).get(kind, 0)
    return Bound(rank, kind, 100 * ns / max(path.end_ns - path.start_ns, 1))

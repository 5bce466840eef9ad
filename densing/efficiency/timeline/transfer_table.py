"""Copies between host and devices, and data loading: how much, how fast, and how much of it was hidden."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from densing.core import Record
from densing.efficiency.timeline.arrays import used
from densing.efficiency.timeline.collective_bytes import MOST_BYTES
from densing.efficiency.timeline.intervals import Union, covered, intersect, length, subtract, union
from densing.efficiency.timeline.launches import named, uncut
from densing.efficiency.timeline.overlap import Unions
from densing.efficiency.timeline.patterns import any_case
from densing.efficiency.timeline.spans import Kind, Spans
from densing.efficiency.timeline.timeline import RankTimeline, Step
from densing.efficiency.timeline.windows import Window, counted_steps

DIRECTIONS = ("host_to_device", "device_to_host", "device_to_device", "peer", "host_to_host", "fill", "unknown")

# Tried in this order. CUPTI writes HtoD, roctracer CopyHostToDevice, Intel's runtimes M2D (malloc to device), MTIA
# MEMORY_COPY_HOST_TO_DEVICE; "Array" is device memory. A name of none of these forms is of unknown direction.
_LETTERS = {"host": "hm", "device": "das"}
_WORDS = {"host": ("host",), "device": ("device", "array")}


def _forms(source: str, target: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """Words that stand alone (``htod``), and texts within longer words (``host_to_device``)."""
    single = frozenset(a + to + b for a in _LETTERS[source] for to in ("to", "2") for b in _LETTERS[target])
    within = product(_WORDS[source], ("_", ""), ("to", "2"), ("_", ""), _WORDS[target])
    return single, tuple(map("".join, within))


_FORMS = {f"{source}_to_{target}": _forms(source, target) for source, target in
          (("host", "device"), ("device", "host"), ("device", "device"), ("host", "host"))}  # fmt: skip
_PEER = any_case("ptop|peer")
LOADING = any_case(r"^enumerate\(dataloader\)|dataloader\w*iter\.__next__|^dataloader(\b|_)")
_PAGEABLE, _MEMORY = any_case("pageable"), any_case("pageable|pinned")


class Copies(Record, frozen=True):
    """The copies of one direction within a window.

    Attributes
    ----------
    direction : str
        One of :data:`DIRECTIONS`; ``fill`` is memset.
    count : int
        Copies that touch the window.
    unsized : int
        Those whose size the trace does not give, or gives as more than a device holds.
    bytes : int
        Of the others, whole copies.
    busy_ns, hidden_ns, exposed_ns : int
        Within the window: the union of these copies; the part under compute; the part under neither compute nor
        communication. The rest is hidden under communication.
    gb_per_s : float or None
        Bytes ÷ sum of the whole durations of the copies of known size, 10⁹ bytes per second.
    pageable : int or None
        Copies from or to pageable host memory; None where no name says what memory it is.
    """

    direction: str
    count: int
    unsized: int
    bytes: int
    busy_ns: int
    hidden_ns: int
    exposed_ns: int
    gb_per_s: float | None
    pageable: int | None

    @property
    def hidden_pct(self) -> float | None:
        """Share of the copying hidden under compute, in percent; None without copies."""
        return 100 * self.hidden_ns / self.busy_ns if self.busy_ns else None

    def to_dict(self) -> dict[str, Any]:
        """Return every figure, the share included, as plain data."""
        return {**super().to_dict(), "hidden_pct": self.hidden_pct}


class Loading(Record, frozen=True):
    """Time that host threads spend fetching the next batch (``enumerate(DataLoader)…__next__``).

    Attributes
    ----------
    count : int
        Ranges that touch the window.
    total_ns, idle_ns : int
        Their union within the window; the part of it in which the device stood idle.
    per_step_ns, per_step_idle_ns : tuple of int
        The same in each step that the window counts, cut to the window.
    """

    count: int
    total_ns: int
    idle_ns: int
    per_step_ns: tuple[int, ...]
    per_step_idle_ns: tuple[int, ...]


class Transfers(Record, frozen=True):
    """Copies by direction, and data loading; ``loading`` is None where no range of the trace names it."""

    copies: tuple[Copies, ...]
    loading: Loading | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {**super().to_dict(), "copies": [row.to_dict() for row in self.copies]}


def direction(name: str) -> str:
    """Return the direction that the name of a copy tells.

    Examples
    --------
    >>> [direction(name) for name in ("Memcpy HtoD (Pinned -> Device)", "CopyDeviceToHost", "Memcpy PtoP", "dma")]
    ['host_to_device', 'device_to_host', 'peer', 'unknown']
    """
    text = name[:1000].lower()
    if _PEER(text):
        return "peer"
    words = set("".join(letter if letter.isalnum() or letter == "_" else " " for letter in text).split())
    for code, (single, within) in _FORMS.items():
        if not words.isdisjoint(single) or any(form in text for form in within):
            return code
    return "unknown"


def transfers(rank: RankTimeline, window: Window, merged: Unions) -> Transfers:
    """Measure the copies of a window by direction, and its data loading.

    Parameters
    ----------
    rank : RankTimeline
    window : Window
    merged : Unions
        Of the window's work.

    Examples
    --------
    >>> from densing.efficiency.timeline.overlap import unions
    >>> from densing.efficiency.timeline.windows import select
    >>> work = Spans.build([{"start": 0, "end": 40, "kind": Kind.COMPUTE, "name": "gemm"},
    ...                     {"start": 30, "end": 50, "kind": Kind.MEMCPY, "name": "Memcpy HtoD (Pageable -> Device)",
    ...                      "bytes": 240}])
    >>> rank = RankTimeline(0, work, Spans.empty())
    >>> window = select(rank)
    >>> row = transfers(rank, window, unions(window.work)).copies[0]
    >>> row.direction, row.hidden_ns, row.exposed_ns, row.gb_per_s, row.pageable
    ('host_to_device', 10, 10, 12.0, 1)
    """
    work = uncut(rank, window).of(Kind.MEMCPY, Kind.MEMSET)
    # Direction of each copy, as a position in DIRECTIONS; each name is looked at once.
    by_name = np.zeros(len(work.names), np.int64)
    for at in used(work.name):
        by_name[at] = DIRECTIONS.index(direction(work.names[at]))
    code = np.where(work.kind == Kind.MEMSET, DIRECTIONS.index("fill"), by_name[work.name])
    rows = [_copies(work.take(code == at), at, window, merged) for at in used(code)]
    return Transfers(tuple(rows), _loading(rank, window, merged))


def _copies(work: Spans, code: int, window: Window, merged: Unions) -> Copies:
    inside = union(np.maximum(work.start, window.start), np.minimum(work.end, window.end))
    hidden = length(intersect(inside, merged.compute))
    exposed = length(subtract(subtract(inside, merged.compute), merged.comm))
    sized = (work.bytes >= 0) & (work.bytes <= MOST_BYTES)
    moved, time = int(work.bytes[sized].sum()), int((work.end - work.start)[sized].sum())
    pageable = int(named(work, _PAGEABLE).sum()) if named(work, _MEMORY).any() else None
    rate = moved / time if time else None
    return Copies(
        DIRECTIONS[code], len(work), int(np.sum(~sized)), moved, length(inside), hidden, exposed, rate, pageable
    )


def _loading(rank: RankTimeline, window: Window, merged: Unions) -> Loading | None:
    rows = rank.host.take(named(rank.host, LOADING) & np.isin(rank.host.kind, (int(Kind.ANNOTATION), int(Kind.OP))))
    if len(rows) == 0:
        return None
    rows = rows.within(window.start, window.end)
    total = union(rows.start, rows.end)
    idle = subtract(total, merged.busy)
    steps = counted_steps(rank, window)
    return Loading(len(rows), length(total), length(idle), _per_step(steps, total), _per_step(steps, idle))


def _per_step(steps: tuple[Step, ...], time: Union) -> tuple[int, ...]:
    starts = np.array([step.start for step in steps], np.int64)
    ends = np.array([step.end for step in steps], np.int64)
    return tuple(covered(time, starts, ends).tolist())

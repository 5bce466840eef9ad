"""Events of the Chrome trace format as text: exact decimal microseconds, every name escaped.

Source: "Trace Event Format" (Google, 2016): complete events (``X``) carry ``ts`` and ``dur`` in microseconds, metadata
events (``M``) name and order processes and threads; events of one thread nest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densing.core import InputError

Int = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Track:
    """A row of intervals to lay over a trace.

    Parameters
    ----------
    name : str
    start, end : int64 (n,)
        Absolute nanoseconds, sorted; intervals may touch but not overlap.
    labels : sequence of str, optional
        Text of each interval; the track's name when left out.

    Raises
    ------
    InputError
        When intervals overlap, or columns differ in length.

    Examples
    --------
    >>> Track("idle", np.array([5, 30]), np.array([10, 40])).labels
    """

    name: str
    start: Int
    end: Int
    labels: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Check the columns."""
        many = {len(self.start), len(self.end), len(self.start if self.labels is None else self.labels)}
        if len(many) > 1:
            raise InputError(f"track {self.name!r}: columns of different length {sorted(many)}")
        if np.any(self.end < self.start) or np.any(self.start[1:] < self.end[:-1]):
            raise InputError(f"track {self.name!r}: intervals overlap or run backwards; split it into several tracks")


@dataclass(frozen=True)
class Axis:
    """How absolute nanoseconds are written: ``ts = (ns + shift − base)/1000``."""

    base_ns: int = 0
    shift_ns: int = 0

    def text(self, moment: int) -> str:
        """Return a moment as ``ts``.

        Examples
        --------
        >>> Axis(1000).text(1_500), Axis(1000).text(995)
        ('0.500', '-0.005')
        """
        return micros(moment + self.shift_ns - self.base_ns)


def micros(ns: int) -> str:
    """Return nanoseconds as microseconds, exactly.

    Examples
    --------
    >>> micros(1_500), micros(-5), micros(0)
    ('1.500', '-0.005', '0.000')
    """
    whole, rest = divmod(abs(ns), 1000)
    return f"{'-' if ns < 0 else ''}{whole}.{rest:03d}"


def quote(text: str) -> str:
    """Return a JSON string of ASCII; whatever is in the text stays text."""
    return json.dumps(plain(text))


def metadata(event: str, pid: int, tid: int, /, **arguments: Any) -> str:
    """Return a metadata event.

    Examples
    --------
    >>> metadata("thread_name", 7, 0, name="idle")
    '{"ph":"M","name":"thread_name","pid":7,"tid":0,"ts":0,"args":{"name":"idle"}}'
    """
    return f'{{"ph":"M","name":{quote(event)},"pid":{pid},"tid":{tid},"ts":0,"args":{arguments_text(arguments)}}}'


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """Return arguments as a JSON object."""
    return json.dumps(arguments, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class Row:
    """The thread that events are drawn on, with its name and place in the order."""

    pid: int
    tid: int
    name: str
    order: int
    category: str = "densing"

    def head(self) -> Iterator[str]:
        """Yield what names and orders the row."""
        yield metadata("thread_name", self.pid, self.tid, name=plain(self.name))
        yield metadata("thread_sort_index", self.pid, self.tid, sort_index=self.order)


def process(pid: int, name: str, order: int) -> Iterator[str]:
    """Yield what names and orders a process."""
    yield metadata("process_name", pid, 0, name=plain(name))
    yield metadata("process_sort_index", pid, 0, sort_index=order)


def track_events(track: Track, row: Row, axis: Axis) -> Iterator[str]:
    """Yield a track's row and intervals."""
    yield from row.head()
    front = f'{{"ph":"X","cat":{quote(row.category)},"pid":{row.pid},"tid":{row.tid},"name":'
    quoted = _Quoted()
    for index, (start, end) in enumerate(zip(track.start.tolist(), track.end.tolist(), strict=True)):
        name = quoted[track.name if track.labels is None else track.labels[index]]
        yield f'{front}{name},"ts":{axis.text(start)},"dur":{micros(end - start)}}}'


class _Quoted(dict[str, str]):
    """Names as JSON, each made once."""

    def __missing__(self, name: str) -> str:
        self[name] = text = quote(name)
        return text


def plain(text: str) -> str:
    """Return text that UTF-8 can hold: what was none in a file name becomes a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")

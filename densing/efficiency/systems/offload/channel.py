"""Bandwidth and load of the device over time: a two-state channel, or a recording."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from densing.core import Array, Column, InputError, Note, Table, as_table, named_stream, read_sheet

MEGABIT = 1e6 / 8
"""Bytes per second."""
PACKET = 1500
"""Bytes that a line of a trace of packets delivers."""
TRACE = Table(
    "trace",
    (
        Column("mbit", "number", "bandwidth at the time of a request, Mbit/s", required=True, low=1e-6,
               high=1e9, remedy="write 0.5 for 500 kbit/s; a link that is down cannot be represented"),
        Column("load", "number", "factor on the device's times", low=1.0, high=1e3, default="1",
               remedy="write 1 if nothing else runs on the device"),
        Column("s", "number", "seconds since the start", remedy="write seconds"),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Markov:
    """A two-state Markov link, and a device that others use at times.

    Parameters
    ----------
    good_mbit, bad_mbit : float
        Median bandwidths, 10^6 bits per second.
    stay : float
        Probability that the link's state stays the same for the next request.
    spread : float
        Standard deviation of ln bandwidth within a state.
    busy : float
        Factor on the device's seconds while others use it; 1: nobody does.
    busy_share : float
        Probability of that; it stays with the probability ``stay`` too.

    Raises
    ------
    InputError
    """

    good_mbit: float = 40.0
    bad_mbit: float = 4.0
    stay: float = 0.9
    spread: float = 0.3
    busy: float = 2.0
    busy_share: float = 0.3

    def __post_init__(self) -> None:
        """Refuse what is not a channel."""
        for field, low, high in (
            ("good_mbit", 1e-3, 1e6), ("bad_mbit", 1e-3, 1e6), ("stay", 0.0, 1.0), ("spread", 0.0, 3.0),
            ("busy", 1.0, 100.0), ("busy_share", 0.0, 1.0),
        ):  # fmt: skip
            value = getattr(self, field)
            if not (math.isfinite(value) and low <= value <= high):
                raise InputError(f"channel: {field}={value}: give a number from {low:g} to {high:g}")

    def draw(self, episodes: int, steps: int, seed: int) -> Conditions:
        """Return bandwidths and loads of independent episodes."""
        stream = named_stream(seed, "channel")
        bad = self._switch(stream, episodes, steps, 0.5)
        noise = np.exp(self.spread * stream.standard_normal((episodes, steps)))
        bandwidth = np.where(bad, self.bad_mbit, self.good_mbit) * MEGABIT * noise
        load = np.where(self._switch(stream, episodes, steps, self.busy_share), self.busy, 1.0)
        return Conditions(bandwidth, load)

    def _switch(self, stream: np.random.Generator, episodes: int, steps: int, share: float) -> np.ndarray:
        """Return a state that stays as it is, and is else drawn anew with a given share."""
        fresh = stream.random((episodes, steps)) < share
        kept = stream.random((episodes, steps)) < self.stay
        kept[:, 0] = False
        since = np.maximum.accumulate(np.where(kept, 0, np.arange(steps)), axis=1)
        return np.take_along_axis(fresh, since, axis=1)


class Conditions(NamedTuple):
    """Conditions of requests: bytes per second and the device's load, each (episodes, steps)."""

    bandwidth: Array
    load: Array


@dataclass(frozen=True)
class Recorded:
    """Recorded bandwidths, one per request; episodes are parts of the recording.

    Parameters
    ----------
    bandwidth : float (n,)
        Bytes per second.
    load : float (n,)
    name : str
    notes : tuple of Note
        What was read otherwise than the file has it.
    """

    bandwidth: Array
    load: Array
    name: str = "trace"
    notes: tuple[Note, ...] = ()

    def draw(self, episodes: int, steps: int, seed: int) -> Conditions:
        """Return parts of the record that begin at random places, going round at its end."""
        starts = named_stream(seed, "channel").integers(0, len(self.bandwidth), (episodes, 1))
        at = (starts + np.arange(steps)) % len(self.bandwidth)
        return Conditions(self.bandwidth[at], self.load[at])


Channel = Markov | Recorded


def read_channel(path: Path, interval_s: float = 1.0) -> Recorded:
    """Read a recorded link: a table, or a trace of packets in Mahimahi's format.

    A table has a column ``mbit`` (10^6 bits per second), and perhaps ``load`` (1: nobody else there). A column ``s`` of
    seconds may say when each was recorded; then it must rise in even steps: a gap would pass for a link that changes
    at once.

    In a trace of packets each line is the millisecond at which the link can deliver 1500 bytes, equal ones where it
    delivers several; the rate that a request finds is the mean over its interval. An interval without a packet has the
    rate of one packet in the pause.

    Parameters
    ----------
    path : path
    interval_s : float
        Between requests, for a trace of packets.

    Raises
    ------
    InputError
        For a file that cannot be read, lacks the column or has fewer than two rows, values that are none, and gaps;
        for a trace of packets that does not span two intervals.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "lte.up")
    >>> _ = path.write_text("0\\n1\\n2\\n3\\n5\\n7\\n8\\n")
    >>> (read_channel(path, interval_s=0.004).bandwidth / MEGABIT).tolist()
    [12.0, 6.0]

    Source: mm-link(1) of Mahimahi (mahimahi.mit.edu), for the format of packets.
    """
    if (packets := _packets(path)) is not None:
        return _by_interval(packets, interval_s, path)
    rows, notes = as_table(read_sheet(path), TRACE)
    if len(rows) < 2:
        raise InputError(f"{path}: {len(rows)} rows; a trace has at least two")
    if rows["s"].notna().all():
        steps = np.diff(rows["s"])
        middle = float(np.median(steps))
        gaps = np.flatnonzero((steps <= 0) | (steps > 1.5 * middle) | (steps < middle / 1.5))
        if len(gaps):
            raise InputError(
                f"{path}: row {int(gaps[0]) + 3}: {steps[gaps[0]]:g} s after the row before, others {middle:g} s; "
                "cut the record at its gaps, or fill them"
            )
    elif rows["s"].notna().any():
        missing = int(rows["s"].isna().to_numpy().argmax())
        raise InputError(
            f"{path}: row {missing + 2}: s is empty and elsewhere it is not; fill it, or leave the column out"
        )
    return Recorded(rows["mbit"].to_numpy() * MEGABIT, rows["load"].to_numpy(), path.name, notes)


def _packets(path: Path) -> list[int] | None:
    """Return the milliseconds of a trace of packets; None for a file that does not begin with a number."""
    try:
        with path.open(encoding="utf-8") as file:
            if not (first := file.readline()).strip().isdecimal():
                return None
            lines = [first, *file]
    except (OSError, UnicodeError):
        return None
    times: list[int] = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text.isdecimal() or (times and int(text) < times[-1]):
            raise InputError(
                f"{path}: line {number}: {text[:20]!r}; a trace of packets has one whole number of milliseconds "
                "a line, none less than the one before"
            )
        times.append(int(text))
    return times


def _by_interval(packets: list[int], interval_s: float, path: Path) -> Recorded:
    """Return the rate of each whole interval of a trace of packets."""
    at = (np.array(packets) - packets[0]) / 1e3
    # Of what follows the last packet nothing is known, so the interval that holds it is not whole.
    number = int(at[-1] / interval_s)
    if number < 2:
        raise InputError(
            f"{path}: {at[-1]:g} s of packets; give at least two intervals between requests ({interval_s:g} s)"
        )
    edges = np.arange(number + 1) * interval_s
    counts = np.diff(np.searchsorted(at, edges)).astype(float)
    empty = counts == 0
    after = np.searchsorted(at, edges[:-1][empty])
    counts[empty] = interval_s / (at[after] - at[after - 1])
    notes: tuple[Note, ...] = ()
    if empty.any():
        pauses = int(empty.sum())
        words = f"{path.name}: {pauses} of {number} intervals have no packet; their rate is one packet in the pause"
        notes = (Note("pauses", "info", words, {"pauses": pauses}),)
    return Recorded(counts * PACKET / interval_s, np.ones(number), path.name, notes)

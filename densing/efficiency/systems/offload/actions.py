"""Choices for a request: exit layer, cut, and bits of the state sent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from densing.core import Array, InputError
from densing.efficiency.simulation import EDGE, Served

MOST = 500


class Turns(NamedTuple):
    """Passes of one token each that follow the first pass, in columns.

    Attributes
    ----------
    number : int
        Output tokens after the first.
    device_s, edge_s, bytes : float (n,)
        Of one token. Bytes are 0 where one side decodes alone.
    """

    number: int
    device_s: Array
    edge_s: Array
    bytes: Array


class Actions(NamedTuple):
    """All choices, in columns.

    Attributes
    ----------
    exits : int (n,)
    cuts : int (n,)
        ``layers + 1`` where the device computes all: nothing is sent.
    bits : int (n,)
    device_s, edge_s, bytes, quality : float (n,)
        Of the first pass. Quality: 1 is the whole model's.
    labels : tuple of str
    turns : Turns, optional
        Where an answer has several tokens.
    """

    exits: np.ndarray
    cuts: np.ndarray
    bits: np.ndarray
    device_s: Array
    edge_s: Array
    bytes: Array
    quality: Array
    labels: tuple[str, ...]
    turns: Turns | None = None

    @property
    def all_bytes(self) -> Array:
        """Bytes of a request with its whole answer, (n,)."""
        return self.bytes if self.turns is None else self.bytes + self.turns.number * self.turns.bytes

    def turn_seconds(self, bandwidth: Array, load: Array, latency_s: float = 0.0) -> Array:
        """Return the seconds of each choice from one output token to the next; 0 where an answer has one."""
        if self.turns is None:
            return np.zeros((*np.shape(load), len(self.labels)))
        return _pass_seconds(self.turns, bandwidth, load, latency_s)

    def seconds(self, bandwidth: Array, load: Array, latency_s: float = 0.0) -> Array:
        """Return the seconds of each choice: (n,) for one bandwidth and load, (..., n) for several.

        ``load`` times the device's seconds, bytes over the bandwidth (bytes per second), the server's seconds; the
        same again for each further token, with the latency where a token crosses the cut.

        Examples
        --------
        >>> one = Actions(*(np.array([x]) for x in (2, 1, 8, 1.0, 0.5, 100.0, 1.0)), labels=("a",))
        >>> one.seconds(np.array(50.0), np.array(2.0))
        array([4.5])
        """
        seconds = _pass_seconds(self, bandwidth, load, latency_s)
        if self.turns is not None:
            seconds = seconds + self.turns.number * self.turn_seconds(bandwidth, load, latency_s)
        return seconds


def _pass_seconds(each: Actions | Turns, bandwidth: Array, load: Array, latency_s: float) -> Array:
    wire = np.where(each.bytes > 0, each.bytes / np.maximum(np.asarray(bandwidth)[..., None], 1e-12) + latency_s, 0.0)
    seconds: Array = np.asarray(load)[..., None] * each.device_s + wire + each.edge_s
    return seconds


def list_actions(
    times: Served,
    choices: Sequence[tuple[int, int | None, int, float]],
    output_tokens: int = 1,
) -> Actions:
    """Return the choices with their times.

    Parameters
    ----------
    times : Served
    choices : sequence of (exit, cut, bits, quality)
        Cut as in :meth:`Served.split`.
    output_tokens : int
        Of an answer. The first comes of the request's pass. For each further one the device sends the state of one
        token and gets back the next one; the server alone goes on without the device.

    Raises
    ------
    InputError
        Without choices, with more than :data:`MOST`, for two that are the same or one whose quality is not a number;
        for several output tokens without the times of one.

    Examples
    --------
    >>> times = Served("toy", (1.0, 1.0), (0.25, 0.25), (0.5, 0.5), (0.125, 0.125), tokens=8, width=4)
    >>> list_actions(times, [(2, None, 16, 1.0), (1, 1, 8, 0.5)]).labels
    ('exit 2 on the device', 'exit 1, cut 1, 8 bits')
    """
    if not 1 <= len(choices) <= MOST:
        raise InputError(f"{len(choices)} ways to serve a request; give 1 to {MOST}")
    if output_tokens < 1:
        raise InputError(f"output_tokens={output_tokens}; an answer has at least one")
    rows: list[tuple[Any, ...]] = []
    for exit_, cut, bits, quality in choices:
        label = label_of(exit_, cut, bits)
        if any(label == row[-1] for row in rows):
            raise InputError(f"{label} occurs twice; list each way to serve a request once")
        if not math.isfinite(quality):
            raise InputError(f"{label}: its quality is {quality}; evaluate it or leave it out")
        device, edge = times.split(exit_, cut)
        place = times.layers + 1 if cut is None else cut
        rows.append((exit_, place, bits, device, edge, float(times.sent(cut, bits)), quality, label))
    *numbers, labels = zip(*rows, strict=True)
    exits, cuts, at, device_s, edge_s, sent, worth = map(np.array, numbers)
    return Actions(exits, cuts, at, device_s, edge_s, sent, worth, labels, _turns(times, choices, output_tokens))


def _turns(times: Served, choices: Sequence[tuple[int, int | None, int, float]], output_tokens: int) -> Turns | None:
    if output_tokens == 1:
        return None
    one = times.one_token
    rows = [(*one.split(exit_, cut), 0 if cut == EDGE else one.sent(cut, bits)) for exit_, cut, bits, _ in choices]
    return Turns(output_tokens - 1, *np.array(rows, float).T)


def whole_bits(ways: Iterable[tuple[int, int | None, float]]) -> float:
    """Return the bits per byte of the whole model, that quality is relative to.

    Parameters
    ----------
    ways : iterable of (exit, cut, bits per byte)
        Evaluated ways to serve; cut as in :meth:`Served.split`.

    Returns
    -------
    float
        Of the last exit without a cut; where that was not evaluated, the least of the last exit. A way that happens to
        score better has a quality above 1.

    Examples
    --------
    >>> whole_bits([(12, None, 3.2), (30, 6, 1.32), (30, None, 1.33)]), whole_bits([(12, None, 3.2), (30, 6, 1.4)])
    (1.33, 1.4)
    """
    rows = list(ways)
    last = [row for row in rows if row[0] == max(exit_ for exit_, _, _ in rows)]
    alone = [row for row in last if row[1] is None or row[1] == EDGE]
    return min(bits for _, _, bits in alone or last)


def label_of(exit_: int, cut: int | None, bits: int) -> str:
    """Return a choice in words."""
    if cut is None:
        return f"exit {exit_} on the device"
    return f"exit {exit_} on the server" if cut == EDGE else f"exit {exit_}, cut {cut}, {bits} bits"

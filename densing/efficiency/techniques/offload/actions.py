"""What can be chosen for a request: where the model is left, where it is handed over, in how many bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from densing.core import Array, InputError

EDGE = -1
"""As a cut: the tokens' numbers are sent, and the server computes everything."""
ID_BYTES = 4
"""Of a token's number on the wire."""
MOST = 500


@dataclass(frozen=True)
class LayerTimes:
    """What a request's layers take on either side.

    Parameters
    ----------
    device_s, edge_s : tuple of float
        Seconds per layer, of all tokens of a request.
    device_ends_s, edge_ends_s : tuple of float
        Seconds of the embedding, and of the last norm and the head.
    tokens : int
        Of a request.
    width : int
        Numbers of a token's state.
    source : str
        How they were measured.

    Raises
    ------
    InputError
        When the two sides do not have the same layers, or a time is none.
    """

    device_s: tuple[float, ...]
    edge_s: tuple[float, ...]
    device_ends_s: tuple[float, float]
    edge_ends_s: tuple[float, float]
    tokens: int
    width: int
    source: str = ""

    def __post_init__(self) -> None:
        """Refuse what no model could take."""
        if len(self.device_s) != len(self.edge_s) or not self.device_s:
            raise InputError(
                f"times: {len(self.device_s)} layers on the device and {len(self.edge_s)} on the server; "
                "measure the same model on both"
            )
        for field in ("device_s", "edge_s", "device_ends_s", "edge_ends_s"):
            bad = [value for value in getattr(self, field) if not (math.isfinite(value) and value >= 0)]
            if bad:
                raise InputError(f"times: {field}: {bad[0]} is no number of seconds from 0 up")
        if min(self.tokens, self.width) < 1:
            raise InputError("times: tokens and width are whole numbers from 1 up")

    @property
    def layers(self) -> int:
        """Layers of the whole model."""
        return len(self.device_s)

    def split(self, exit_: int, cut: int | None) -> tuple[float, float]:
        """Return the seconds of a request on the device and on the server, without the wire.

        Parameters
        ----------
        exit_ : int
            Layers computed.
        cut : int, optional
            Of these the device's; None: all, and nothing is sent; :data:`EDGE`: none, not even the embedding.

        Raises
        ------
        InputError
            When the layers are in another order.

        Examples
        --------
        >>> times = LayerTimes((1.0, 1.0), (0.25, 0.25), (0.5, 0.5), (0.125, 0.125), tokens=8, width=4)
        >>> times.split(2, None), times.split(2, 1), times.split(1, EDGE)
        ((3.0, 0.0), (1.5, 0.375), (0.0, 0.5))
        """
        if not 1 <= exit_ <= self.layers:
            raise InputError(f"exit={exit_}: times are known of {self.layers} layers")
        if cut is None:
            return sum(self.device_s[:exit_]) + sum(self.device_ends_s), 0.0
        if cut == EDGE:
            return 0.0, sum(self.edge_s[:exit_]) + sum(self.edge_ends_s)
        if not 0 <= cut <= exit_:
            raise InputError(f"cut={cut} lies outside 0 to exit={exit_}: what is handed over must still be used")
        device = self.device_ends_s[0] + sum(self.device_s[:cut])
        return device, sum(self.edge_s[cut:exit_]) + self.edge_ends_s[1]


class Actions(NamedTuple):
    """All choices, in columns.

    Attributes
    ----------
    exits : int (n,)
    cuts : int (n,)
        ``layers + 1`` where the device computes all: nothing is sent.
    bits : int (n,)
    device_s, edge_s, bytes, quality : float (n,)
        Quality: 1 is the whole model's.
    labels : tuple of str
    """

    exits: np.ndarray
    cuts: np.ndarray
    bits: np.ndarray
    device_s: Array
    edge_s: Array
    bytes: Array
    quality: Array
    labels: tuple[str, ...]

    def seconds(self, bandwidth: Array, load: Array, latency_s: float = 0.0) -> Array:
        """Return what each choice takes: (n,) for one bandwidth and load, (..., n) for several.

        ``load`` times the device's seconds, bytes over the bandwidth (bytes per second), the server's seconds.

        Examples
        --------
        >>> one = Actions(*(np.array([x]) for x in (2, 1, 8, 1.0, 0.5, 100.0, 1.0)), labels=("a",))
        >>> one.seconds(np.array(50.0), np.array(2.0))
        array([4.5])
        """
        sent = self.bytes > 0
        wire = np.where(sent, self.bytes / np.maximum(np.asarray(bandwidth)[..., None], 1e-12) + latency_s, 0.0)
        seconds: Array = np.asarray(load)[..., None] * self.device_s + wire + self.edge_s
        return seconds


def list_actions(
    times: LayerTimes,
    choices: Sequence[tuple[int, int | None, int, int, float]],
) -> Actions:
    """Return the choices with their times.

    Parameters
    ----------
    times : LayerTimes
    choices : sequence of (exit, cut, bits, bytes_per_token, quality)
        Cut as in :meth:`LayerTimes.split`.

    Raises
    ------
    InputError
        Without choices, with more than :data:`MOST`, for two that are the same or one whose quality is no number.

    Examples
    --------
    >>> times = LayerTimes((1.0, 1.0), (0.25, 0.25), (0.5, 0.5), (0.125, 0.125), tokens=8, width=4)
    >>> list_actions(times, [(2, None, 16, 0, 1.0), (1, 1, 8, 12, 0.5)]).labels
    ('exit 2 on the device', 'exit 1, cut 1, 8 bits')
    """
    if not 1 <= len(choices) <= MOST:
        raise InputError(f"{len(choices)} ways to serve a request; give 1 to {MOST}")
    seen: set[str] = set()
    rows = []
    for exit_, cut, bits, token_bytes, quality in choices:
        label = label_of(exit_, cut, bits)
        if label in seen:
            raise InputError(f"{label} is there twice; give each way to serve a request once")
        seen.add(label)
        if not math.isfinite(quality):
            raise InputError(f"{label}: its quality is {quality}; evaluate it, or leave it out")
        device, edge = times.split(exit_, cut)
        sent = 0 if cut is None else times.tokens * (ID_BYTES if cut == EDGE else token_bytes)
        place = times.layers + 1 if cut is None else cut
        rows.append((exit_, place, bits, device, edge, float(sent), quality))
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return Actions(*columns, labels=tuple(seen_in_order(choices)))


def seen_in_order(choices: Sequence[tuple[int, int | None, int, int, float]]) -> list[str]:
    """Return the labels of choices."""
    return [label_of(*choice[:3]) for choice in choices]


def label_of(exit_: int, cut: int | None, bits: int) -> str:
    """Return a choice in words."""
    if cut is None:
        return f"exit {exit_} on the device"
    return f"exit {exit_} on the server" if cut == EDGE else f"exit {exit_}, cut {cut}, {bits} bits"

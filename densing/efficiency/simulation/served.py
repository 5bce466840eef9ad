"""Requests to a model split between a device and a server, with the seconds of its layers on either side."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from densing.core import InputError, Record
from densing.efficiency.simulation.presets import Presets

EDGE = -1
"""Cut that sends the token ids, so the server computes everything."""
ID_BYTES = 4
"""Bytes of a token id on the wire."""
RANGE_BYTES = 8
"""Bytes of the minimum and the step of a token's state, when its values are quantised to levels."""
STATE_BITS = (2, 4, 8, 16)
"""Bit widths in which a number can be sent."""


class Sides(Record, frozen=True):
    """Seconds of one pass on either side.

    Parameters
    ----------
    device_s, edge_s : tuple of float
        Seconds per layer on the device and on the server.
    device_ends_s, edge_ends_s : tuple of float
        Seconds of the embedding, and of the last norm and the head.
    """

    device_s: tuple[float, ...]
    edge_s: tuple[float, ...]
    device_ends_s: tuple[float, float]
    edge_ends_s: tuple[float, float]


class Served(Record, frozen=True):
    """A request: all tokens in one pass, some layers on the device and the rest on the server.

    The pass gives the first token of the answer (prefill); further ones are decoded one after another, with keys and
    values of earlier tokens cached where each layer is computed.

    Parameters
    ----------
    name : str
    device_s, edge_s : tuple of float
        Seconds per layer on the device and on the server.
    device_ends_s, edge_ends_s : tuple of float
        Seconds of the embedding, and of the last norm and the head.
    tokens : int
        Tokens of a request.
    width : int
        Numbers of a token's state.
    parameters : int
        Parameters of the model.
    source, evidence : str
        How the seconds were measured.
    decode : Sides, optional
        Seconds of a pass of one token behind the request's, which an answer of several tokens needs.

    Examples
    --------
    >>> toy = Served("toy", (1.0, 1.0), (0.25, 0.25), (0.5, 0.5), (0.125, 0.125), tokens=8, width=4)
    >>> toy.split(2, None), toy.split(2, 1), toy.split(1, EDGE)
    ((3.0, 0.0), (1.5, 0.375), (0.0, 0.5))
    >>> toy.sent(None, 16), toy.sent(EDGE, 16), toy.sent(1, 8)
    (0, 32, 96)
    """

    name: str
    device_s: tuple[float, ...]
    edge_s: tuple[float, ...]
    device_ends_s: tuple[float, float]
    edge_ends_s: tuple[float, float]
    tokens: int
    width: int
    parameters: int = 0
    source: str = ""
    evidence: str = ""
    decode: Sides | None = None

    @property
    def one_token(self) -> Served:
        """The pass that decodes one token.

        Raises
        ------
        InputError
            Where its seconds are not known.
        """
        if self.decode is None:
            raise InputError(
                f"{self.name}: decode is missing; an answer of several tokens needs the seconds of a pass of one "
                "token: give a table [decode] with device_s, edge_s, device_ends_s and edge_ends_s, or "
                "measure the model"
            )
        return Served(self.name, tokens=1, width=self.width, **msgspec.structs.asdict(self.decode))

    @property
    def layers(self) -> int:
        """Layers of the whole model."""
        return len(self.device_s)

    def split(self, left_at: int, cut: int | None) -> tuple[float, float]:
        """Return the seconds of a request on the device and on the server, without the wire.

        Parameters
        ----------
        left_at : int
            Layers computed.
        cut : int, optional
            Of these the device's; None: all, and nothing is sent; :data:`EDGE`: none, not even the embedding.

        Raises
        ------
        InputError
            When the model has no such layers, or they are in another order.
        """
        if not 1 <= left_at <= self.layers:
            raise InputError(f"exit={left_at}: {self.name} has {self.layers} layers with known times")
        if cut is None:
            return sum(self.device_s[:left_at]) + sum(self.device_ends_s), 0.0
        if cut == EDGE:
            return 0.0, sum(self.edge_s[:left_at]) + sum(self.edge_ends_s)
        if not 0 <= cut <= left_at:
            raise InputError(f"cut={cut} lies outside 0 to exit={left_at}")
        device = self.device_ends_s[0] + sum(self.device_s[:cut])
        return device, sum(self.edge_s[cut:left_at]) + self.edge_ends_s[1]

    def sent(self, cut: int | None, bits: int) -> int:
        """Return the bytes that a request puts on the wire.

        Below 16 bits a token's numbers are levels, filled to whole bytes, beside its least number and its step.
        """
        if cut is None:
            return 0
        if cut == EDGE:
            return ID_BYTES * self.tokens
        return self.tokens * (2 * self.width if bits == 16 else -(-self.width * bits // 8) + RANGE_BYTES)


def check_served(request: Served) -> None:
    """Refuse an inconsistent request.

    Raises
    ------
    InputError

    Examples
    --------
    >>> check_served(Served("toy", (1.0,), (), (0.0, 0.0), (0.0, 0.0), tokens=8, width=4))
    Traceback (most recent call last):
        ...
    densing.core.errors.InputError: toy: device_s, edge_s: 1 and 0 layers, but both need the same number; measure
    the same model on both sides
    """
    if len(request.device_s) != len(request.edge_s) or not request.device_s:
        raise InputError(
            f"{request.name}: device_s, edge_s: {len(request.device_s)} and {len(request.edge_s)} "
            "layers, but both need the same number; measure the same model on both sides"
        )
    for field in ("device_s", "edge_s", "device_ends_s", "edge_ends_s"):
        bad = [value for value in getattr(request, field) if not (math.isfinite(value) and value >= 0)]
        if bad:
            raise InputError(f"{request.name}: {field}: {bad[0]} is out of range; give seconds from 0 up")
    for field, least in (("tokens", 1), ("width", 1), ("parameters", 0)):
        if getattr(request, field) < least:
            raise InputError(
                f"{request.name}: {field}: {getattr(request, field)} is out of range; give a whole number from {least}"
            )
    if request.decode is not None:
        one = request.one_token
        check_served(one)
        if one.layers != request.layers:
            raise InputError(
                f"{request.name}: decode: {one.layers} layers, but the request has {request.layers}; measure the "
                "same model"
            )


PRESETS = Presets(Served, Path(__file__).with_suffix(".toml"), "request", check_served)
served_names, load_served = PRESETS.names, PRESETS.load

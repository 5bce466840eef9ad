"""The ends of an edge between two stages: activations one way, their gradients the other, each in a packet."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from densing.efficiency.parallel.codecs import (
    Codec,
    Dense,
    Entries,
    Half,
    Int8,
    Packet,
    Reader,
    RowThreshold,
    Sparse,
    TopK,
    pack,
)
from densing.efficiency.parallel.distributed import Handle, comm
from densing.efficiency.parallel.pipeline.coding import MARK_BYTES, Coding

Waiting = Callable[[], AbstractContextManager[None]]
FINE, BAD = 0, 1
"""Start of a packet: whether the sender's values were finite."""


def codec_of(coding: Coding) -> Codec:
    """Return a new codec for activations; ``topk`` and those that send everything serve gradients too.

    Examples
    --------
    >>> type(codec_of(Coding("topk", 1.0))).__name__
    'Dense'
    """
    if coding.sparse:
        return TopK(coding.share) if coding.codec == "topk" else RowThreshold(1 - coding.share, coding.refresh)
    return {"half": Half, "int8": Int8}.get(coding.codec, Dense)()


class Edge:
    """One stage's end of an edge: what it sends to its neighbour, and what it expects from it.

    Packets of a direction arrive in the order of the micro-batches. A receive is posted before it is needed
    (:meth:`expect`), so that a packet travels while this stage computes. Where the codec does not tell a packet's
    length, the length travels first, and the packet once :meth:`expect` has seen it.

    Parameters
    ----------
    coding : Coding
    peer : int
        Rank of the neighbour.
    after : bool
        Whether the neighbour is the stage after this one: it is sent activations and sends gradients.
    like : Tensor
        Of the shape, type and place of a micro-batch's activations; its values do not matter.
    waiting : callable
        Gives a context put around every wait.

    Attributes
    ----------
    sent : int
        Bytes sent, lengths included.
    packets : int
        Packets sent.
    coding_s : float
        Seconds spent on encoding and decoding.
    sound : bool
        Whether what was taken last was finite where it came from.
    """

    def __init__(self, coding: Coding, peer: int, after: bool, like: torch.Tensor, waiting: Waiting) -> None:
        self.coding, self.peer, self.after, self.like, self.waiting = coding, peer, after, like, waiting
        self.codec = codec_of(coding)
        self.sent, self.packets, self.coding_s, self.sound = 0, 0, 0.0, True
        # Which entries of a micro-batch's activations the other side knows of: those its gradients come back for.
        self._shared = isinstance(self.codec, RowThreshold)
        self._places: dict[int, torch.Tensor] = {}
        self._expected: dict[int, _Arrival] = {}
        self._sending: list[tuple[Handle, torch.Tensor]] = []

    def expect(self, micro: int) -> None:
        """Post the receive of a micro-batch's packet, or of its length; those before it are posted."""
        if micro in self._expected or (self.after and self._shared and micro not in self._places):
            return
        if self.codec.drifts and not self.after:
            # Messages are told apart by their order alone: a length comes after the packet before it.
            if all(arrival.advance() for arrival in self._expected.values()):
                self._expected[micro] = _Arrival(self.peer)
        else:
            self._expected[micro] = _Arrival(self.peer, self._most(self._codec(micro, incoming=True)))

    def take(self, micro: int) -> torch.Tensor:
        """Return what has come for a micro-batch; all NaN where the sender's was not finite."""
        self.expect(micro)
        with self.waiting():
            row = self._expected.pop(micro).row()
        began = time.perf_counter()
        codec, reader = self._codec(micro, incoming=True), Reader(row)
        self.sound = int(reader.take(1, torch.int32)) == FINE
        if not self.sound:
            tensor, places = torch.full_like(self.like, math.nan), torch.empty(0, dtype=torch.int64)
        else:
            tensor = codec.decode(reader, self.like)
            places = codec.where if isinstance(codec, Sparse) else torch.empty(0, dtype=torch.int64)
        self._places.pop(micro, None)
        if self._shared and not self.after:
            self._places[micro] = places
        self.coding_s += time.perf_counter() - began
        return tensor

    def send(self, micro: int, tensor: torch.Tensor) -> bool:
        """Start to send a micro-batch's activations or gradients; return whether they are finite."""
        began = time.perf_counter()
        codec = self._codec(micro, incoming=False)
        # One pass over memory: extremes are NaN where anything is.
        fine = bool(torch.stack(torch.aminmax(tensor)).isfinite().all())
        mark = Packet((torch.tensor([FINE if fine else BAD], dtype=torch.int32),))
        # Who cannot go on still takes its turns: the neighbour learns of it from the mark.
        row = pack([mark, codec.encode(tensor)] if fine else [mark])
        if self._shared:
            self._places.pop(micro, None)
            if self.after:
                empty = torch.empty(0, dtype=torch.int64)
                self._places[micro] = codec.where if fine and isinstance(codec, Sparse) else empty
        if codec.drifts:
            self._send(torch.tensor([len(row)], dtype=torch.int64))
        elif len(row) < self._most(codec):
            # As long as the neighbour expects: entries that are 0 are not sent, and a bad mark comes alone.
            row = torch.cat((row, row.new_zeros(self._most(codec) - len(row))))
        self.coding_s += time.perf_counter() - began
        self._send(row)
        self.packets += 1
        return fine

    def finish(self) -> None:
        """Stand still until all that was sent has left."""
        with self.waiting():
            for handle, _ in self._sending:
                handle.wait()
        self._sending.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return what the next packet depends on, between two steps."""
        return {"codec": self.codec.state_dict(), "sent": self.sent, "packets": self.packets}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken."""
        self.codec.load_state_dict(state["codec"])
        self.sent, self.packets = int(state["sent"]), int(state["packets"])

    def _codec(self, micro: int, *, incoming: bool) -> Codec:
        gradients = incoming is self.after
        return Entries(self._places[micro]) if self._shared and gradients else self.codec

    def _most(self, codec: Codec) -> int:
        return MARK_BYTES + codec.bounds(self.like)[1]

    def _send(self, row: torch.Tensor) -> None:
        # The row must live until it has left.
        self._sending.append((comm.isend(row, self.peer), row))
        self.sent += row.numel() * row.element_size()


class _Arrival:
    """A packet that is expected: of a length that is known, or whose length is on its way."""

    def __init__(self, peer: int, length: int | None = None) -> None:
        self.peer = peer
        self._size = torch.empty(1, dtype=torch.int64)
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._known = length is not None
        self._handle = comm.irecv(self._size, peer) if length is None else self._post(length)

    def advance(self) -> bool:
        """Post the packet's receive if its length has come; return whether it is posted."""
        if not self._known and self._handle.done():
            self._measure()
        return self._known

    def row(self) -> torch.Tensor:
        """Wait for the packet."""
        if not self._known:
            self._measure()
        self._handle.wait()
        return self._buffer

    def _measure(self) -> None:
        self._handle.wait()
        self._known = True
        self._handle = self._post(int(self._size))

    def _post(self, length: int) -> Handle:
        self._buffer = torch.empty(length, dtype=torch.uint8)
        return comm.irecv(self._buffer, self.peer)

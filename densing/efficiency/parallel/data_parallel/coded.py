"""The mean over ranks of a vector that travels through codecs: what the data-parallel methods exchange."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Literal

import torch

from densing.core import InputError
from densing.efficiency.parallel.codecs import Codec, Dense, Packet, Reader, pack
from densing.efficiency.parallel.data_parallel.flat import FINE, Flat
from densing.efficiency.parallel.data_parallel.link import Link
from densing.efficiency.simulation import sizes


class NotFiniteError(Exception):
    """A rank's vector holds inf or NaN; every rank learns of it.

    Attributes
    ----------
    rank : int
    tensor : int
        Number of the first bad one among the model's.
    """

    def __init__(self, rank: int, tensor: int) -> None:
        super().__init__(rank, tensor)
        self.rank, self.tensor = rank, tensor


class CodedMean:
    """Every rank's vector is encoded tensor by tensor; all ranks decode the same mean.

    Packets of codecs that add up are summed on the way (an all-reduce). Others are gathered, and added up by every rank
    in the order of the ranks: either their lengths travel first, or, where the mean travels beside training, rows as
    long as the largest packet, because nobody waits for lengths there.

    With error feedback what was not sent is added to the next vector: ``sent + residual == vector + last residual``.

    Parameters
    ----------
    link : Link
    flat : Flat
    codec : Codec, or callable that makes one
        Every tensor gets its own; those below :data:`~densing.efficiency.simulation.sizes.DENSE_BELOW` elements
        are sent as they are.
    fragments : sequence of slice
        Parts of the vector that are sent one at a time; a tensor on a boundary is cut there.
    error_feedback : bool
    by_steps : bool
        Whether ranks weigh as much as they took steps; else all the same.
    overlapped : bool
        Whether the mean travels beside training.

    Raises
    ------
    InputError
        When the codec is none.

    Attributes
    ----------
    work : Tensor
        The vector to be sent; :meth:`encode` overwrites it.
    residual : Tensor
        What this rank kept back, with error feedback.
    op : {"sum", "rows"} or None
        Of the collective that is started with the packets; None: a gather of any lengths, in :meth:`decode`.
    sent : int
        Bytes of this rank's packets so far.
    """

    def __init__(
        self,
        link: Link,
        flat: Flat,
        codec: Codec | Callable[[], Codec],
        fragments: Sequence[slice],
        *,
        error_feedback: bool,
        by_steps: bool = False,
        overlapped: bool = False,
    ) -> None:
        if not (isinstance(codec, Codec) or callable(codec)):
            raise InputError(f"codec={codec!r}: is none; give one of densing.training, such as Int8() or TopK(0.1)")
        make = partial(copy.deepcopy, codec) if isinstance(codec, Codec) else codec
        self.link, self.flat, self.by_steps = link, flat, by_steps
        self.work = flat.zeros()
        self.error_feedback = error_feedback
        self.residual = flat.zeros() if error_feedback else self.work.new_zeros(0)
        self.fragments = fragments
        self.pieces: list[list[tuple[slice, torch.Size]]] = [[] for _ in fragments]
        end = 0
        for tensor in flat.tensors(self.work):
            begin, end = end, end + tensor.numel()
            for part, pieces in zip(fragments, self.pieces, strict=True):
                cut = slice(max(begin, part.start), min(end, part.stop))
                count = cut.stop - cut.start
                if count > 0:
                    pieces.append((cut, tensor.shape if count == tensor.numel() else torch.Size([count])))
        self.codecs = [
            [Dense() if shape.numel() < sizes.DENSE_BELOW else make() for _, shape in pieces] for pieces in self.pieces
        ]
        adds = all(codec.adds for codec in self.all_codecs)
        self.op: Literal["sum", "rows"] | None = "sum" if adds else "rows" if overlapped else None
        self.sent = 0

    @property
    def all_codecs(self) -> list[Codec]:
        """Those of all fragments, in order."""
        return list(chain.from_iterable(self.codecs))

    @property
    def name(self) -> str:
        """Of the codec of tensors that are not small."""
        return next((type(each).__name__ for each in self.all_codecs if not isinstance(each, Dense)), "Dense")

    def encode(self, at: int = 0, count: int = 0, steps: float = 1.0) -> torch.Tensor:
        """Return what travels of a fragment of :attr:`work`, for :attr:`op`; what is left of it stays there.

        Parameters
        ----------
        at : int
            Number of the fragment.
        count, steps : int, float
            Steps of this rank and of all, where ranks weigh by steps.
        """
        part = self.fragments[at]
        if self.error_feedback:
            self.work[part] += self.residual[part]
        bad = self.flat.first_not_finite(self.work)
        if bad != FINE:
            # Who cannot go on still takes part: all others learn of it.
            self.work.zero_()
        views = self._views(self.work, at)
        packets = [
            codec.take(view) if self.error_feedback else codec.encode(view)
            for codec, view in zip(self.codecs[at], views, strict=True)
        ]
        self.sent += sum(packet.bytes for packet in packets)
        if self.op == "sum":
            # Beside the values travels a number of each rank's own.
            marks = torch.zeros(self.link.size, device=self.work.device)
            marks[self.link.rank] = bad - FINE
            values = pack([*packets, Packet((marks,))]).view(torch.float32)
            if self.by_steps:
                values[: -len(marks)].mul_(count / steps)
            return values
        head = torch.tensor([bad, count][: 1 + self.by_steps], dtype=torch.int32, device=self.work.device)
        row = pack([Packet((head,)), *packets])
        if self.op is None:
            return row
        rows = row.new_zeros(self.link.size, self.row_bytes(at))
        rows[self.link.rank, : len(row)] = row
        return rows.view(-1)

    def decode(self, data: torch.Tensor, at: int, out: torch.Tensor, steps: float = 1.0) -> torch.Tensor:
        """Return ``out`` with a fragment of the mean in its place; ``data`` has arrived, unless :attr:`op` is None.

        Raises
        ------
        NotFiniteError
            On all ranks, where any rank's vector was not finite; ``out`` is as it was.
        """
        if self.op == "sum":
            values, marks = data[: -self.link.size], data[-self.link.size :]
            for rank, mark in enumerate(marks.tolist()):
                if mark:
                    raise NotFiniteError(rank, round(mark) + FINE)
            if not self.by_steps:
                values.div_(self.link.size)
            reader = Reader(values.view(torch.uint8))
            for codec, view in zip(self.codecs[at], self._views(out, at), strict=True):
                view.copy_(codec.decode(reader, view))
            return out
        if self.op == "rows":
            return self._add(list(data.view(self.link.size, -1)), at, out, steps)
        mean = self.link.gathered(data, lambda rows: self._add(rows, at, out, steps))
        # Ranks of one process share what the first of them decoded.
        return out if mean is out else out.copy_(mean)

    def row_bytes(self, at: int) -> int:
        """Return the bytes of a rank's row where all rows are of one length."""
        views = self._views(self.work, at)
        return 4 * (1 + self.by_steps) + sum(
            codec.bounds(view)[1] for codec, view in zip(self.codecs[at], views, strict=True)
        )

    def _add(self, rows: Sequence[torch.Tensor], at: int, out: torch.Tensor, steps: float) -> torch.Tensor:
        readers = [Reader(row.cpu()) for row in rows]
        heads = [reader.take(1 + self.by_steps, torch.int32).tolist() for reader in readers]
        for rank, (bad, *_) in enumerate(heads):
            if bad != FINE:
                raise NotFiniteError(rank, bad)
        views = self._views(out, at)
        for view in views:
            view.zero_()
        for reader, head in zip(readers, heads, strict=True):
            weight = head[1] / steps if self.by_steps else 1.0
            for codec, view in zip(self.codecs[at], views, strict=True):
                view.add_(codec.decode(reader, view), alpha=weight)
        if not self.by_steps:
            out[self.fragments[at]].div_(len(rows))
        return out

    def _views(self, vector: torch.Tensor, at: int) -> list[torch.Tensor]:
        return [vector[cut].view(shape) for cut, shape in self.pieces[at]]

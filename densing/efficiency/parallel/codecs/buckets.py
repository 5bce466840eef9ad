"""Many tensors in one row of bytes, and the sum of all ranks' rows without a loop over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from densing.core import InputError
from densing.efficiency.parallel.codecs.codec import Codec, Dense, Int8, Packet, pack
from densing.efficiency.parallel.codecs.sparse import Sparse, unpack_bits
from densing.efficiency.simulation import sizes


class Bucket:
    """Tensors that travel together, each through its codec: whole, as int8, or some entries of it.

    A row holds the same bytes as the packets one after the other, but sorted by kind, so that every part begins where
    its type may begin: counts of entries, then float32 (whole tensors and spacings of int8, then values of entries),
    then indices, then single bytes (levels of int8, masks of places). The sum is the same on all ranks; it is that of
    decoding packet after packet to the last bit for up to three ranks, and to rounding for more.

    Parameters
    ----------
    codecs : sequence of Codec
        :class:`~densing.efficiency.parallel.codecs.codec.Dense`,
        :class:`~densing.efficiency.parallel.codecs.codec.Int8` and
        :class:`~densing.efficiency.parallel.codecs.sparse.Sparse` ones, one for each tensor; of the last two kinds one
        at most.
    lengths : sequence of int
        Elements of the tensors.

    Raises
    ------
    InputError
        When a codec is of another kind, or both kinds are there.

    Examples
    --------
    >>> from densing.efficiency.parallel.codecs.sparse import TopK
    >>> tensors = [torch.tensor([1.0, 2.0]), torch.tensor([0.5, -3.0, 4.0, 0.0])]
    >>> bucket = Bucket([Dense(), TopK(0.25)], [2, 4])
    >>> row = bucket.take(tensors)
    >>> bucket.sum(torch.stack([row, row]))
    tensor([2., 4., 0., 0., 8., 0.])
    >>> tensors
    [tensor([0., 0.]), tensor([ 0.5000, -3.0000,  0.0000,  0.0000])]
    """

    def __init__(self, codecs: Sequence[Codec], lengths: Sequence[int]) -> None:
        self.codecs = list(codecs)
        kinds = [next((kind for kind in (Dense, Int8, Sparse) if isinstance(codec, kind)), None) for codec in codecs]
        if None in kinds or {Int8, Sparse} <= set(kinds):
            names = ", ".join(sorted({type(codec).__name__ for codec in codecs}))
            raise InputError(f"codecs {names}: a bucket takes Dense with Int8 or Dense with codecs of entries only")
        ends = torch.tensor([0, *lengths]).cumsum(0).tolist()
        self.numel = int(ends[-1])
        places = [torch.arange(begin, end) for begin, end in pairwise(ends)]
        self._whole, self._levels, self._sparse = (
            [at for at, each in enumerate(kinds) if each is kind] for kind in (Dense, Int8, Sparse)
        )
        self._whole_places = torch.cat([torch.zeros(0, dtype=torch.long), *(places[at] for at in self._whole)])
        self._level_places = torch.cat([torch.zeros(0, dtype=torch.long), *(places[at] for at in self._levels)])
        # Of every spacing of int8, how many levels it is for.
        shared = [
            each
            for codec, length in zip(codecs, lengths, strict=True)
            if isinstance(codec, Int8)
            for each in codec.shared(length)
        ]
        self._shared = torch.tensor(shared, dtype=torch.long)
        self._sparse_lengths = torch.tensor([lengths[at] for at in self._sparse], dtype=torch.long)
        self._sparse_begins = torch.tensor([ends[at] for at in self._sparse], dtype=torch.long)

    def take(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the row of contiguous float32 tensors, and leave in each what was not sent.

        Returns
        -------
        Tensor of uint8
        """
        packets = [codec.take(tensor).tensors for codec, tensor in zip(self.codecs, tensors, strict=True)]
        some = [packets[at] for at in self._sparse]
        parts = [
            *(head for head, _, _ in some),
            *(packets[at][0] for at in (*self._whole, *self._levels)),
            *(values for _, _, values in some),
            *(where for _, where, _ in some if where.dtype == torch.int32),
            *(packets[at][1] for at in self._levels),
            *(where for _, where, _ in some if where.dtype == torch.uint8),
        ]
        return pack([Packet(tuple(parts))])

    def sum(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the sum over ranks of the tensors, one after the other.

        Parameters
        ----------
        rows : Tensor of uint8, shape (ranks, bytes)
            Rows of :meth:`take`; what follows a row's own bytes is not read.

        Returns
        -------
        Tensor of float32, shape (elements,)
        """
        result = torch.zeros(self.numel, device=rows.device)
        fixed = sizes.COUNT_BYTES * len(self._sparse)
        scales = fixed + sizes.VALUE_BYTES * len(self._whole_places)
        end = scales + sizes.VALUE_BYTES * len(self._shared)
        whole = _columns(rows, fixed, scales, torch.float32)
        result[self._whole_places.to(rows.device)] = whole.sum(0)
        if self._levels:
            spacing = _columns(rows, scales, end, torch.float32)
            spacing = spacing.repeat_interleave(self._shared.to(rows.device), dim=1)
            levels = _columns(rows, end, end + len(self._level_places), torch.int8)
            result[self._level_places.to(rows.device)] = (levels.float() * spacing).sum(0)
        elif self._sparse:
            counts = _columns(rows, 0, fixed, torch.int32).long()
            where, values = self._entries(rows, counts, end)
            # Entry after entry in the order of the ranks; the other one is that on a GPU.
            if rows.is_cuda:
                result.index_put_((where,), values, accumulate=True)
            else:
                result.index_add_(0, where, values)
        return result

    def _entries(self, rows: torch.Tensor, counts: torch.Tensor, begin: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return places and values of all entries, rank by rank and in it tensor by tensor."""
        lengths, begins = self._sparse_lengths.to(rows.device), self._sparse_begins.to(rows.device)
        if bool(((counts < 0) | (counts > lengths)).any()):
            raise InputError(
                "a packet has more entries than its tensor has elements; all ranks must send the same tensors"
            )
        masks = -(-lengths // 8)
        by_mask = masks < sizes.INDEX_BYTES * counts
        at_value = torch.full((len(rows),), begin, device=rows.device)
        at_index = at_value + sizes.VALUE_BYTES * counts.sum(1)
        at_mask = at_index + sizes.INDEX_BYTES * (counts * ~by_mask).sum(1)
        values = _between(rows, at_value, at_index).view(torch.float32)
        indices = _between(rows, at_index, at_mask).view(torch.int32).long()
        bits = unpack_bits(_between(rows, at_mask, at_mask + (masks * by_mask).sum(1)))
        # Every entry's number of its (rank, tensor), and of every mask's bits the place where they begin.
        owner = torch.arange(counts.numel(), device=rows.device).repeat_interleave(counts.flatten())
        tensor = owner % counts.shape[1]
        within = torch.empty_like(owner)
        masked = by_mask.flatten()[owner]
        within[~masked] = indices
        lengths = 8 * (masks * by_mask).flatten()
        within[masked] = bits.nonzero().squeeze(1) - (lengths.cumsum(0) - lengths)[owner[masked]]
        return begins[tensor] + within, values


def _columns(rows: torch.Tensor, begin: int, end: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the elements between the same two places of every row."""
    if rows.shape[1] < end:
        raise InputError(f"a packet ends after {rows.shape[1]} bytes, but {end} were expected")
    # A copy begins where any type may begin.
    part = rows[:, begin:end].clone(memory_format=torch.contiguous_format).view(-1).view(dtype)
    return part.view(len(rows), (end - begin) // dtype.itemsize)


def _between(rows: torch.Tensor, begins: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Return the bytes of every row from its begin to its end, one after the other."""
    if not len(rows):
        return rows.flatten()
    first, last = int(begins.min()), int(ends.max())
    at = torch.arange(first, last, device=rows.device)
    part = rows[:, first:last]
    if part.shape[1] < last - first:
        raise InputError(f"a packet ends after {rows.shape[1]} bytes, but {last} were expected")
    return part[(at >= begins[:, None]) & (at < ends[:, None])]

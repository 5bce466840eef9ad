"""Codecs that send some entries and say which: the largest ones, or those above a threshold that is seldom renewed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch

from densing.core import InputError
from densing.efficiency.parallel.codecs.codec import Codec, Packet, Reader
from densing.efficiency.simulation import sizes

MOST_ELEMENTS = 2**31 - 1
_BITS = torch.tensor([1 << bit for bit in range(8)], dtype=torch.uint8)


class Sparse(Codec):
    """Sends entries with their indices: 32 bits each, or a bit per element if that is smaller.

    Attributes
    ----------
    where : Tensor
        Of the last packet, encoded or decoded: the indices of its entries.
    """

    where: torch.Tensor

    @abstractmethod
    def choose(self, size: torch.Tensor) -> torch.Tensor:
        """Return a mask of the entries to send, from their flat absolute values."""

    def encode(self, tensor: torch.Tensor) -> Packet:
        """Return the number of entries, where they are, and their values; zeros are never sent.

        Raises
        ------
        InputError
            When the tensor has 2**31 elements or more.
        """
        flat = tensor.detach().reshape(-1)
        count = flat.numel()
        if count > MOST_ELEMENTS:
            raise InputError(
                f"a tensor of {count:,} elements: 32-bit indices allow at most {MOST_ELEMENTS:,}; split it"
            )
        size = flat.abs()
        mask = self.choose(size) & (size > 0) if count else torch.zeros(0, dtype=torch.bool)
        return self.packet(flat, mask)

    def take(self, tensor: torch.Tensor) -> Packet:
        """Return the packet of a tensor, and set the sent entries to zero."""
        packet = self.encode(tensor)
        tensor.view(-1)[self.where] = 0
        return packet

    def packet(self, flat: torch.Tensor, mask: torch.Tensor) -> Packet:
        """Return the packet of the masked entries of a flat tensor."""
        self.where = where = mask.nonzero().squeeze(1)
        entries = len(where)
        head = torch.tensor([entries], dtype=torch.int32, device=flat.device)
        return Packet((head, _bits(mask) if _as_bits(len(flat), entries) else where.int(), flat[where]))

    def decode(self, reader: Reader, like: torch.Tensor) -> torch.Tensor:
        """Return the tensor, 0 where nothing was sent."""
        self.where = where = read_places(reader, like.numel())
        result = torch.zeros(like.numel(), dtype=like.dtype, device=where.device)
        result[where] = reader.take(len(where), like.dtype)
        return result.to(like.device).view(like.shape)

    def bounds(self, like: torch.Tensor) -> tuple[int, int]:
        """Return the bytes of a packet without entries, and of one with all."""
        count = like.numel()
        return sizes.sparse_bytes(count, 0), sizes.sparse_bytes(count, count, like.element_size())


def read_places(reader: Reader, count: int) -> torch.Tensor:
    """Return the indices in a sparse packet of ``count`` elements, ascending."""
    entries = int(reader.take(1, torch.int32))
    if not 0 <= entries <= count:
        raise InputError(
            f"a packet has {entries} entries for a tensor of {count}; all ranks must send tensors of the same shape"
        )
    if not _as_bits(count, entries):
        return reader.take(entries, torch.int32).long()
    return unpack_bits(reader.take(sizes.index_bytes(count, entries), torch.uint8))[:count].nonzero().squeeze(1)


def unpack_bits(packed: torch.Tensor) -> torch.Tensor:
    """Return the truth values in bytes, eight in each, the lowest bit first.

    Examples
    --------
    >>> unpack_bits(torch.tensor([5], dtype=torch.uint8)).int().tolist()
    [1, 0, 1, 0, 0, 0, 0, 0]
    """
    return (packed[:, None] & _BITS.to(packed.device)).bool().view(-1)


def _as_bits(count: int, entries: int) -> bool:
    return sizes.index_bytes(count, entries) < sizes.INDEX_BYTES * entries


def _bits(mask: torch.Tensor) -> torch.Tensor:
    padded = torch.zeros(-(-len(mask) // 8) * 8, dtype=torch.uint8, device=mask.device)
    padded[: len(mask)] = mask
    return (padded.view(-1, 8) * _BITS.to(mask.device)).sum(1, dtype=torch.uint8)


class TopK(Sparse):
    """The largest entries of every tensor, chosen anew each time.

    Source: Lin et al., "Deep Gradient Compression", arXiv 1712.01887 (recalled); without its momentum correction and
    warm-up.

    Parameters
    ----------
    share : float
        Of the elements, above 0 and up to 1.

    Examples
    --------
    >>> TopK(0.5).encode(torch.tensor([0.1, -3.0, 2.0, 0.0])).tensors[-1].tolist()
    [-3.0, 2.0]
    """

    def __init__(self, share: float) -> None:
        if not 0 < share <= 1:
            raise InputError(f"share={share!r}: must be a share of the elements, above 0 and at most 1")
        self.share = share

    def choose(self, size: torch.Tensor) -> torch.Tensor:
        """Return the largest; of equal ones as many as the share allows."""
        mask = torch.zeros_like(size, dtype=torch.bool)
        mask[size.topk(sizes.kept(len(size), self.share), sorted=False).indices] = True
        return mask

    def bounds(self, like: torch.Tensor) -> tuple[int, int]:
        """Return the bytes of a packet without entries, and of one with the share."""
        count = like.numel()
        return sizes.sparse_bytes(count, 0), sizes.sparse_bytes(
            count, sizes.kept(count, self.share), like.element_size()
        )


class Threshold(Sparse):
    """Entries from a threshold up, which is the k-th largest one of every ``refresh``-th tensor.

    Between two refreshes more or fewer entries than intended are sent: as many as reach the threshold. Of equal
    entries all are sent. A threshold of 0 is renewed with the next tensor.

    Source: Gupta et al., "Training Recommender Systems at Scale: Communication-Efficient Model and Data Parallelism",
    arXiv 2010.08899 (abstract), after a third-party implementation.

    Parameters
    ----------
    eta : float
        Share that is not sent at a refresh, from 0 to below 1.
    refresh : int
        Packets from one refresh to the next.

    Examples
    --------
    >>> codec = Threshold(eta=0.5, refresh=2)
    >>> [codec.encode(torch.tensor(row)).tensors[-1].tolist() for row in ([1.0, 4.0], [5.0, 6.0], [5.0, 6.0])]
    [[4.0], [5.0, 6.0], [6.0]]
    """

    def __init__(self, eta: float, refresh: int = 1) -> None:
        if not 0 <= eta < 1:
            raise InputError(f"eta={eta!r}: must be the share not sent, at least 0 and below 1")
        if refresh < 1:
            raise InputError(f"refresh={refresh!r}: must be a positive whole number of steps")
        self.eta, self.refresh = eta, refresh
        self.drifts = refresh > 1
        self.count, self.threshold = 0, 0.0

    def choose(self, size: torch.Tensor) -> torch.Tensor:
        """Return the entries from the threshold up."""
        # A threshold of 0 is one of a tensor that was mostly zeros: it is renewed until it tells entries apart.
        if self.count % self.refresh == 0 or not self.threshold:
            entries = sizes.kept(len(size), 1 - self.eta)
            # The k-th largest; where all are sent nothing may be held back until the next refresh either.
            at = len(size) - entries
            self.threshold = float(size.kthvalue(at + 1).values) if at else 0.0
        self.count += 1
        return size >= self.threshold

    def state_dict(self) -> dict[str, Any]:
        """Return threshold and packets so far."""
        return {"count": self.count, "threshold": self.threshold}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue in mid-period."""
        self.count, self.threshold = int(state["count"]), float(state["threshold"])

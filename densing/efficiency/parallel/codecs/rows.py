"""Codecs of activations: entries from a threshold of their own row up, and gradients at places that both sides know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from densing.core import InputError
from densing.efficiency.parallel.codecs.codec import Codec, Packet, Reader
from densing.efficiency.parallel.codecs.sparse import Sparse
from densing.efficiency.simulation import sizes


class RowThreshold(Sparse):
    """Of every row (a token's activations) the entries from the row's threshold up.

    Every ``refresh``-th tensor a row sends its k largest entries, and the threshold is renewed: as a multiple of a
    row's root mean square, the mean over rows of what the k-th largest entry is of it. In between every row sends what
    reaches that multiple of its own root mean square, more entries or fewer.

    Source: Gupta et al., "Training Recommender Systems at Scale: Communication-Efficient Model and Data Parallelism",
    arXiv 2010.08899 (abstract: only the most relevant activations of every sample). The paper's rule for a row is not
    published where we can read it; this one is ours.

    Parameters
    ----------
    eta : float
        Share of a row that is not sent at a refresh, from 0 to below 1.
    refresh : int
        Tensors from one refresh to the next; 1: every row always its own k largest.

    Examples
    --------
    >>> codec = RowThreshold(eta=0.5, refresh=2)
    >>> rows = torch.tensor([[1.0, 4.0], [30.0, -40.0]])
    >>> codec.encode(rows).tensors[-1].tolist()
    [4.0, -40.0]
    >>> round(codec.multiple, 3), codec.encode(torch.tensor([[3.0, 3.0], [1.0, 9.0]])).tensors[-1].tolist()
    (1.252, [9.0])
    """

    def __init__(self, eta: float, refresh: int = 1) -> None:
        if not 0 <= eta < 1:
            raise InputError(f"eta={eta!r}: must be the share not sent, at least 0 and below 1")
        if refresh < 1:
            raise InputError(f"refresh={refresh!r}: must be a positive whole number of packets")
        self.eta, self.refresh = eta, refresh
        self.drifts = refresh > 1
        self.count, self.multiple = 0, 0.0
        self._width = 1

    def encode(self, tensor: torch.Tensor) -> Packet:
        """Return the number of entries, where they are, and their values; the last dimension is a row."""
        self._width = tensor.shape[-1] if tensor.dim() else 1
        return super().encode(tensor)

    def choose(self, size: torch.Tensor) -> torch.Tensor:
        """Return the entries from their row's threshold up."""
        rows = size.view(-1, self._width)
        means = rows.float().square().mean(1).sqrt()
        # Of zeros alone no threshold can be had, and nothing is sent: the next tensor renews it.
        if not bool(means.any()):
            return torch.zeros_like(size, dtype=torch.bool)
        renew = self.count % self.refresh == 0
        self.count += 1
        if not renew:
            return (rows >= self.multiple * means[:, None]).view(-1)
        largest = rows.topk(sizes.kept(self._width, 1 - self.eta), dim=1, sorted=False)
        if self.drifts:
            some = means > 0
            multiples = largest.values.float().amin(1)[some] / means[some]
            # Where all are sent nothing may be held back until the next refresh either.
            self.multiple = float(multiples.mean()) if largest.values.shape[1] < self._width else 0.0
        mask = torch.zeros_like(rows, dtype=torch.bool)
        return mask.scatter_(1, largest.indices, True).view(-1)

    def bounds(self, like: torch.Tensor) -> tuple[int, int]:
        """Return the bytes of a packet without entries, and of one with the share of every row, or with all."""
        count, width = like.numel(), like.shape[-1] if like.dim() else 1
        most = count if self.drifts or not width else count // width * sizes.kept(width, 1 - self.eta)
        return sizes.sparse_bytes(count, 0), sizes.sparse_bytes(count, most, like.element_size())

    def state_dict(self) -> dict[str, Any]:
        """Return the threshold, and packets so far."""
        return {"count": self.count, "multiple": self.multiple}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue in mid-period."""
        self.count, self.multiple = int(state["count"]), float(state["multiple"])


class Entries(Codec):
    """The values at indices that both sides know, sent without indices.

    Parameters
    ----------
    where : Tensor of int64
        Indices into the flat tensor.

    Examples
    --------
    >>> Entries(torch.tensor([0, 2])).encode(torch.tensor([5.0, 6.0, 7.0])).tensors[0].tolist()
    [5.0, 7.0]
    """

    def __init__(self, where: torch.Tensor) -> None:
        self.where = where

    def encode(self, tensor: torch.Tensor) -> Packet:
        """Return the values."""
        flat = tensor.detach().reshape(-1)
        return Packet((flat[self.where.to(flat.device)],))

    def decode(self, reader: Reader, like: torch.Tensor) -> torch.Tensor:
        """Return the tensor, 0 elsewhere."""
        values = reader.take(len(self.where), like.dtype)
        result = values.new_zeros(like.numel())
        result[self.where.to(values.device)] = values
        return result.to(like.device).view(like.shape)

    def bounds(self, like: torch.Tensor) -> tuple[int, int]:
        """Return the bytes of the values."""
        size = len(self.where) * like.element_size()
        return size, size

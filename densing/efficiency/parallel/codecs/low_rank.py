"""A matrix as the product of two thin ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from densing.core import InputError
from densing.efficiency.parallel.codecs.codec import Codec, Packet, Reader
from densing.efficiency.simulation import sizes

SEED = 0


class LowRank(Codec):
    r"""A matrix :math:`M` as :math:`P Q^T`, where P is the orthonormal basis of :math:`M Q'` and :math:`Q = M^T P`.

    Q' is the Q of the last packet, so that a matrix which changes slowly is met ever better; the first one is drawn.
    Vectors, and matrices whose factors would weigh more than half of them, are sent whole.

    Source: Vogels et al., "PowerSGD", arXiv 1905.13727, algorithm 1. There the ranks' sums of :math:`M Q'` and of
    :math:`M^T P` are factors of the mean (:class:`densing.training.PowerSGD`); here each rank's packet holds factors of
    its own matrix, so that packets may be gathered late and in fragments.

    Parameters
    ----------
    rank : int
        Columns of P and Q.

    Raises
    ------
    InputError
        When the rank is no positive whole number.

    Examples
    --------
    >>> from densing.efficiency.parallel.codecs.codec import pack
    >>> matrix = torch.outer(torch.arange(8.0), torch.ones(8))
    >>> codec = LowRank(1)
    >>> packet = codec.encode(matrix)
    >>> packet.bytes, torch.allclose(codec.decode(Reader(pack([packet])), matrix), matrix, atol=1e-5)
    (64, True)
    """

    def __init__(self, rank: int = 1) -> None:
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
            raise InputError(f"rank={rank!r}: must be a positive whole number of columns")
        self.rank = rank
        self.right: torch.Tensor | None = None

    def encode(self, tensor: torch.Tensor) -> Packet:
        """Return P and Q, or the elements."""
        flat = tensor.detach().float()
        if not self._thin(tensor.shape):
            return Packet((flat.reshape(-1),))
        matrix = flat.reshape(len(flat), -1)
        if self.right is None:
            generator = torch.Generator().manual_seed(SEED)
            self.right = torch.randn(matrix.shape[1], self.rank, generator=generator)
        left = torch.linalg.qr(matrix @ self.right.to(matrix.device))[0]
        self.right = matrix.T @ left
        return Packet((left.reshape(-1), self.right.reshape(-1)))

    def decode(self, reader: Reader, like: torch.Tensor) -> torch.Tensor:
        """Return the product, or the tensor."""
        if not self._thin(like.shape):
            return reader.take(like.numel(), torch.float32).to(like.device, like.dtype).view(like.shape)
        rows = len(like)
        left = reader.take(rows * self.rank, torch.float32).view(rows, self.rank)
        right = reader.take(like.numel() // rows * self.rank, torch.float32).view(-1, self.rank)
        return (left @ right.T).to(like.device, like.dtype).view(like.shape)

    def bounds(self, like: torch.Tensor) -> tuple[int, int]:
        """Return the bytes of the factors, or of the elements."""
        size = sizes.VALUE_BYTES * sizes.factors(like.shape, self.rank)
        return size, size

    def state_dict(self) -> dict[str, Any]:
        """Return the last Q."""
        return {} if self.right is None else {"right": self.right.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken."""
        self.right = state["right"].clone() if "right" in state else None

    def _thin(self, shape: Sequence[int]) -> bool:
        return sizes.factors(shape, self.rank) < math.prod(shape)

"""The codec of frequencies: a tensor's cosine coefficients, of which the low or the large ones are sent."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import torch

from densing.core import InputError, UnknownNameError
from densing.efficiency.parallel.codecs.codec import Codec, Packet, Reader
from densing.efficiency.parallel.codecs.sparse import TopK
from densing.efficiency.simulation import sizes

Rule = Literal["prefix", "magnitude"]


def dct4(vector: torch.Tensor) -> torch.Tensor:
    """Return the cosine transform (DCT-IV, orthonormal) of a flat tensor, in float32; it is its own inverse.

    Examples
    --------
    >>> vector = torch.tensor([1.0, 2.0, 3.0])
    >>> [round(float(x), 5) for x in dct4(dct4(vector))]
    [1.0, 2.0, 3.0]
    """
    from scipy.fft import dct

    plain = vector.detach().cpu().float().numpy()
    # Orthonormal transforms of float32 stay float32; an empty one is refused by scipy.
    result = dct(plain, type=4, norm="ortho") if plain.size else plain
    return torch.from_numpy(np.ascontiguousarray(result)).to(vector.device)


class Frequencies(Codec):
    """Cosine coefficients (DCT-IV) of a tensor: the lowest frequencies, or the largest coefficients with their indices.

    Linear, so sums of what is decoded are what the sum of coefficients decodes to: who adds need not decode.

    Source: Palihawadana et al., FedFT, arXiv 2409.05242 (outline). Which coefficients it prunes is not published; both
    rules here are ours to name.

    Parameters
    ----------
    keep : float
        Share of the coefficients, above 0 and up to 1.
    rule : {"prefix", "magnitude"}
    """

    def __init__(self, keep: float, rule: Rule = "prefix") -> None:
        if not 0 < keep <= 1:
            raise InputError(f"keep={keep!r}: must be a share of the coefficients, above 0 and at most 1")
        if rule not in get_args(Rule):
            raise UnknownNameError("rule", str(rule), get_args(Rule))
        self.keep, self.rule = keep, rule
        # Everybody's prefix is of the same frequencies.
        self.adds = rule == "prefix"
        self._largest = TopK(keep)

    def encode(self, tensor: torch.Tensor) -> Packet:
        """Return the kept coefficients."""
        coefficients = dct4(tensor.reshape(-1))
        if self.rule == "magnitude":
            return self._largest.encode(coefficients)
        return Packet((coefficients[: sizes.kept(tensor.numel(), self.keep)],))

    def decode(self, reader: Reader, like: torch.Tensor) -> torch.Tensor:
        """Return the tensor of these coefficients."""
        coefficients = torch.zeros(like.numel(), device=reader.data.device)
        if self.rule == "magnitude":
            coefficients = self._largest.decode(reader, coefficients)
        else:
            entries = sizes.kept(like.numel(), self.keep)
            coefficients[:entries] = reader.take(entries, torch.float32)
        return dct4(coefficients).to(like.device, like.dtype).view(like.shape)

    def bounds(self, like: torch.Tensor) -> tuple[int, int]:
        """Return the bytes of the prefix, or of a packet without entries and one with the share."""
        entries = sizes.kept(like.numel(), self.keep)
        if self.rule == "prefix":
            return sizes.VALUE_BYTES * entries, sizes.VALUE_BYTES * entries
        return sizes.sparse_bytes(like.numel(), 0), sizes.sparse_bytes(like.numel(), entries)

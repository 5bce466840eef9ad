"""Modules of a Llama-style decoder: norm, rotary positions, attention, gated feed-forward."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

ROPE_BASE = 10_000.0
NORM_EPSILON = 1e-6


class RMSNorm(nn.Module):  # type: ignore[misc]
    """Divide by the root mean square over the last dimension, then scale per channel.

    Source: Zhang and Sennrich, arXiv 1910.07467.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` normalised; any shape ``(..., hidden)``."""
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + NORM_EPSILON) * self.weight


def rotary_table(width: int, sequence: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the rotary embedding, each ``(sequence, width)``.

    Source: Su et al., arXiv 2104.09864, in Llama's layout: the two halves of a head form the pairs.
    """
    rates = ROPE_BASE ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = torch.outer(torch.arange(sequence, dtype=torch.float32), rates).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate queries or keys ``(batch, heads, tokens, width)`` by tables ``(tokens, width)``."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):  # type: ignore[misc]
    """Causal self-attention with rotary positions: column linears q, k, v, then a row linear.

    Parameters
    ----------
    hidden, heads, width : int
        Model width, heads held here, channels per head.
    sequence : int
        Longest sequence.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, hidden: int, heads: int, width: int, sequence: int) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(hidden, heads * width, bias=False)
        self.k = nn.Linear(hidden, heads * width, bias=False)
        self.v = nn.Linear(hidden, heads * width, bias=False)
        self.row = nn.Linear(heads * width, hidden, bias=False)
        cos, sin = rotary_table(width, sequence)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    @property
    def columns(self) -> tuple[nn.Linear, ...]:
        """The linears that read the input."""
        return self.q, self.k, self.v

    def split(self, q: Tensor, k: Tensor, v: Tensor, start: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Return projections ``(batch, tokens, heads * width)`` as rotated heads; ``start``: first token's position."""
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (q, k, v))
        here = slice(start, start + q.shape[2])
        cos, sin = self.cos[here], self.sin[here]
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the attended values ``(batch, queries, heads * width)``; queries are the last of the keys' tokens."""
        queries, keys = q.shape[2], k.shape[2]
        mask = None
        if queries < keys:
            mask = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return out.transpose(1, 2).flatten(2)

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return what the row linear reads, from what the column linears gave."""
        return self.attend(*self.split(q, k, v))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output ``(batch, tokens, hidden)``; a part's output is a summand of the whole's."""
        return self.row(self.mix(self.q(x), self.k(x), self.v(x)))


class SwiGLU(nn.Module):  # type: ignore[misc]
    """Gated feed-forward layer: column linears gate and up, then a row linear.

    Source: Shazeer, arXiv 2002.05202, section 2.
    """

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, ffn, bias=False)
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.row = nn.Linear(ffn, hidden, bias=False)

    @property
    def columns(self) -> tuple[nn.Linear, ...]:
        """The linears that read the input."""
        return self.gate, self.up

    def mix(self, gate: Tensor, up: Tensor) -> Tensor:
        """Return what the row linear reads, from what the column linears gave."""
        return functional.silu(gate) * up

    def forward(self, x: Tensor) -> Tensor:
        """Return the output ``(batch, tokens, hidden)``; a part's output is a summand of the whole's."""
        return self.row(self.mix(self.gate(x), self.up(x)))

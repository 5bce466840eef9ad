"""Parallel attention for real: attention and MLP on the same input."""

from __future__ import annotations

from densing.efficiency.parallel import Schedule


class OneSum(Schedule):
    """Attention and MLP read the same input: one sum per layer."""

    wiring = "parallel-attention"

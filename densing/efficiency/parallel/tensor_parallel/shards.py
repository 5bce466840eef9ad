"""Cut a decoder's weights for the ranks of a tensor-parallel group, and join them again.

Source: Shoeybi et al., arXiv 1909.08053, section 3: the linears that read the input are cut by output channels
(attention: by heads), the one behind them by input channels, so that its outputs on the ranks add up to the whole's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

COLUMNS = frozenset({"q", "k", "v", "gate", "up"})


def cut_dimension(name: str) -> int | None:
    """Return along which dimension a weight is cut; None: every rank holds all of it.

    Examples
    --------
    >>> [cut_dimension(name) for name in ("blocks.0.mlp.up.weight", "blocks.0.mlp.row.weight", "norm.weight")]
    [0, 1, None]
    """
    module = name.split(".")[-2]
    if module in COLUMNS:
        return 0
    return 1 if module == "row" else None


def cut(state: Mapping[str, Tensor], rank: int, parts: int) -> dict[str, Tensor]:
    """Return the weights of one rank out of ``parts``, as copies."""
    mine = {}
    for name, whole in state.items():
        dimension = cut_dimension(name)
        mine[name] = (whole if dimension is None else whole.chunk(parts, dimension)[rank]).clone()
    return mine


def join(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the whole weights from those of all ranks, in the order of the ranks."""
    whole = {}
    for name, first in states[0].items():
        dimension = cut_dimension(name)
        whole[name] = first if dimension is None else torch.cat([state[name] for state in states], dimension)
    return whole

"""GraphSAGE with means: a layer joins each node's state with the mean of its drawn neighbours' states.

.. math:: h'_v = W_1 \\, mean_{u \\in N(v)} h_u + b + W_2 h_v

Source: Hamilton, Ying and Leskovec, arXiv 1706.02216, algorithm 1 (mean aggregator, no normalisation).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from densing.efficiency.systems.host_tables.graph import Block

HIDDEN = 16
"""As in DGL's example."""


class SageLayer(nn.Module):  # type: ignore[misc]
    """One layer."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.neighbours = nn.Linear(width, out)
        self.own = nn.Linear(width, out, bias=False)

    def forward(self, states: Tensor, block: Block) -> Tensor:
        """Return the states of the block's targets; a node without neighbours has a mean of zero."""
        counts, sources = torch.from_numpy(block.counts), torch.from_numpy(block.sources)
        counts, sources = counts.to(states.device), sources.to(states.device)
        owner = torch.repeat_interleave(torch.arange(len(counts), device=states.device), counts)
        total = states.new_zeros(len(counts), states.shape[1]).index_add_(0, owner, states[sources])
        mean = total / counts.clamp(min=1)[:, None]
        return self.neighbours(mean) + self.own(states[: len(counts)])


class Sage(nn.Module):  # type: ignore[misc]
    """Two layers with a rectifier between."""

    def __init__(self, width: int, classes: int, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.layers = nn.ModuleList([SageLayer(width, hidden), SageLayer(hidden, classes)])

    def forward(self, states: Tensor, blocks: Sequence[Block]) -> Tensor:
        """Return logits (seeds, classes) from the rows of a neighbourhood."""
        for number, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            states = layer(states if not number else torch.relu(states), block)
        return states

"""A stage: consecutive layers of the small language model, with the embedding or the head at its ends."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from densing.efficiency.parallel.distributed import Decoder, sublayers


class Stage(nn.Module):  # type: ignore[misc]
    """Some layers of a decoder of the standard wiring; parameters are called as in the whole one.

    Parameters
    ----------
    whole : Decoder
        Its modules are taken, not copied; embedding and head share no weights.
    layers : sequence of int
    first, last : bool
        Whether the embedding comes before them, and norm and head after them.
    """

    def __init__(self, whole: Decoder, layers: Sequence[int], first: bool, last: bool) -> None:
        super().__init__()
        self.first, self.last = first, last
        if first:
            self.embedding = whole.embedding
        self.blocks = nn.ModuleDict({str(layer): whole.blocks[layer] for layer in layers})
        if last:
            self.norm, self.head = whole.norm, whole.head

    def forward(self, entering: Tensor) -> Tensor:
        """Return what leaves the stage: the residual stream, or logits; tokens enter the first stage."""
        residual = self.embedding(entering) if self.first else entering
        for block in self.blocks.values():
            for norm, module in sublayers(block):
                residual = residual + module(norm(residual))
        return self.head(self.norm(residual)) if self.last else residual

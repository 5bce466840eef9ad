"""Virtual stages: one model whose layers hand each other packets, although all of them are in one process.

What a codec keeps of activations and gradients decides the weights, wherever the layers are; the wire decides seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from densing.efficiency.parallel.codecs import Codec, Entries, Reader, RowThreshold, pack
from densing.efficiency.parallel.distributed import (
    RunSpec,
    batches,
    build_lm,
    cross_entropy,
    held_out_batches,
    load_bytes,
    mean_loss,
    one_thread,
)
from densing.efficiency.parallel.pipeline.coding import MARK_BYTES, Coding, codings
from densing.efficiency.parallel.pipeline.edges import codec_of
from densing.efficiency.parallel.pipeline.stage import Stage


class VirtualEdge:
    """An edge between two layers of one process: activations pass through a codec, and so do their gradients.

    Parameters
    ----------
    coding : Coding

    Attributes
    ----------
    sent, dense : int
        Bytes of packets, there and back, and of all values in float32.

    Examples
    --------
    >>> edge = VirtualEdge(Coding("topk", 0.5))
    >>> x = torch.tensor([[1.0, -4.0]], requires_grad=True)
    >>> passed = edge(x)
    >>> passed.backward(torch.tensor([[3.0, 2.0]]))
    >>> passed.tolist(), x.grad.tolist(), edge.sent
    ([[0.0, -4.0]], [[3.0, 0.0]], 26)
    """

    def __init__(self, coding: Coding) -> None:
        self.coding, self.codec = coding, codec_of(coding)
        self.sent = self.dense = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return what arrives of a micro-batch's activations (..., width)."""
        passed: torch.Tensor = _Passing.apply(x, self)
        return passed

    def over(self, tensor: torch.Tensor, codec: Codec) -> torch.Tensor:
        """Return what arrives of a tensor, and count its packet."""
        packet = codec.encode(tensor)
        self.sent += MARK_BYTES + (packet.bytes if codec.drifts else codec.bounds(tensor)[1])
        self.dense += tensor.numel() * tensor.element_size()
        return codec.decode(Reader(pack([packet])), tensor)


class _Passing(torch.autograd.Function):  # type: ignore[misc]
    """An edge, there and back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, edge: VirtualEdge) -> torch.Tensor:
        """Send activations."""
        arrived = edge.over(x, edge.codec)
        # Of a threshold's entries alone gradients come back; the codec has forgotten them by then.
        codec = edge.codec
        ctx.back = edge, Entries(codec.where) if isinstance(codec, RowThreshold) else codec
        return arrived

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Send gradients."""
        edge, codec = ctx.back
        return edge.over(gradient, codec), None


class Staged(NamedTuple):
    """What training in virtual stages ends with.

    Attributes
    ----------
    losses : tuple of float
        By step, nats per token, with what the edges keep.
    final_loss : float
        Of the whole model on held-out text, nothing left out between its layers.
    sent : tuple of int
        Bytes by edge, there and back.
    """

    losses: tuple[float, ...]
    final_loss: float
    sent: tuple[int, ...]


@one_thread()
def train_stages(
    spec: RunSpec,
    *,
    micro_batches: int = 4,
    cuts: Sequence[int],
    codec: str = "topk",
    shares: Sequence[float] = (1.0,),
) -> Staged:
    """Train the small language model in stages, in this process: what a run over ranks computes, without its wire.

    Parameters
    ----------
    spec : RunSpec
        Model, batch, sequence, steps, rate, seed, corpus.
    micro_batches, cuts, codec, shares
        See :func:`~densing.efficiency.parallel.train_pipeline`.
    """
    model = build_lm(spec.model, spec.sequence, spec.seed)
    ends = [0, *cuts, spec.model.layers]
    edges = [VirtualEdge(coding) for coding in codings(len(cuts), codec, shares)]
    stages = [
        Stage(model, range(begin, end), first=begin == 0, last=end == spec.model.layers)
        for begin, end in pairwise(ends)
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=spec.lr)
    train, held_out = load_bytes(spec.corpus)
    losses = []
    for step in range(spec.steps):
        batch = torch.from_numpy(batches(train, spec.batch, spec.sequence, spec.seed, 0, step))
        total = 0.0
        for micro in batch.chunk(micro_batches):
            x = micro[:, :-1]
            for number, stage in enumerate(stages):
                x = stage(edges[number - 1](x) if number else x)
            loss = cross_entropy(x, micro[:, 1:]) / micro_batches
            loss.backward()
            total += float(loss.detach())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(total)
    rest = (torch.from_numpy(each) for each in held_out_batches(held_out, spec.batch, spec.sequence))
    final = mean_loss(model, rest, torch.device("cpu"))
    return Staged(tuple(losses), final, tuple(edge.sent for edge in edges))

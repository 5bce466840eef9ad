"""One rank's part of a decoder: cut from the whole, and run by a schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from densing.efficiency.parallel.distributed import Decoder, LmShape, build_lm, cross_entropy
from densing.efficiency.parallel.tensor_parallel.schedules import Schedule
from densing.efficiency.parallel.tensor_parallel.tape import Exchange, Residual, Tape

COLUMNS = frozenset({"q", "k", "v", "gate", "up"})
"""Linear layers that read the input; the one that produces the output is named ``row``."""


def build_part(
    shape: LmShape, sequence: int, seed: int, schedule: Schedule, exchange: Exchange, *, rank: int, parts: int
) -> Decoder:
    """Return a rank's part of the decoder that ``build_lm`` gives for the same shape and seed.

    Called as a module it is trainable with plain autograd, every sum over the group waited for; :func:`train_loss`
    runs it by the schedule.

    Raises
    ------
    InputError
        When the ranks cannot share the heads or the feed-forward channels, or the schedule does not fit the model.
    """
    wiring, layers = schedule.wiring, schedule.ladder_layers
    full = build_lm(shape, sequence, seed, wiring, layers)
    part = Decoder(shape, sequence, wiring, layers, parts=parts, enter=exchange.enter, leave=exchange.leave)
    part.load_state_dict(cut(full.state_dict(), rank, parts))
    return part


class Pass:
    """A forward pass by a schedule, and its backward pass.

    Parameters
    ----------
    decoder : Decoder
        This rank's part.
    schedule : Schedule
    exchange : Exchange
    tokens : Tensor of int64, shape (batch, tokens)
        The same on all ranks of the group.

    Attributes
    ----------
    logits : Tensor, shape (batch, tokens, vocabulary)
    """

    def __init__(self, decoder: Decoder, schedule: Schedule, exchange: Exchange, tokens: Tensor) -> None:
        self._tape = Tape(exchange)
        self._embedded = decoder.embed(tokens)
        self._sizes = schedule.parts(tokens.shape[1])
        self._begin = [Residual(part) for part in self._embedded.detach().split(self._sizes, dim=1)]
        self._end = schedule.run(self._tape, decoder.blocks, list(self._begin))
        last = torch.cat([stream.value for stream in self._end], dim=1)
        self._last = last.requires_grad_(torch.is_grad_enabled())
        self.logits = decoder.predict(self._last)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss of the logits to those of the weights."""
        torch.autograd.backward(loss)
        for stream, gradient in zip(self._end, self._last.grad.split(self._sizes, dim=1), strict=True):
            stream.seed(gradient)
        self._tape.backward()
        torch.autograd.backward(self._embedded, torch.cat([stream.gradient() for stream in self._begin], dim=1))
        self._tape.clear()


def train_loss(decoder: Decoder, schedule: Schedule, exchange: Exchange, batch: Tensor) -> float:
    """Run forward and backward; gradients are added to those of the weights.

    Parameters
    ----------
    decoder, schedule, exchange
        See :class:`Pass`.
    batch : Tensor of int64, shape (batch, tokens + 1)
        The same on all ranks of the group.

    Returns
    -------
    float
        Mean cross-entropy, nats per token.
    """
    run = Pass(decoder, schedule, exchange, batch[:, :-1])
    loss = cross_entropy(run.logits, batch[:, 1:])
    run.backward(loss)
    return float(loss.detach())


def prefill_loss(decoder: Decoder, schedule: Schedule, exchange: Exchange, batch: Tensor) -> float:
    """Run forward only, without gradients; parameters and result as of :func:`train_loss`."""
    with torch.no_grad():
        return float(cross_entropy(Pass(decoder, schedule, exchange, batch[:, :-1]).logits, batch[:, 1:]))


def cut_dimension(name: str) -> int | None:
    """Return along which dimension a weight is cut; None: every rank holds all of it.

    The linears that read the input are cut by output channels (attention: by heads), the one behind them by input
    channels, so that its outputs on the ranks add up to the whole's.

    Source: Shoeybi et al., arXiv 1909.08053, section 3.

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
    for name, weight in state.items():
        dimension = cut_dimension(name)
        mine[name] = (weight if dimension is None else weight.chunk(parts, dimension)[rank]).clone()
    return mine


def join(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the whole weights from those of all ranks, in the order of the ranks."""
    full = {}
    for name, first in states[0].items():
        dimension = cut_dimension(name)
        full[name] = first if dimension is None else torch.cat([state[name] for state in states], dimension)
    return full

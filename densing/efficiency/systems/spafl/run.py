"""SpaFL: clients with weights of their own, of which whole rows are masked; only the rows' thresholds are averaged.

.. code-block:: python

    spafl = densing.training.SpaFL(model, optimizer, tau=50)
    for batch in loader:
        optimizer.zero_grad()
        loss(model, batch).backward()
        spafl.step()  # instead of optimizer.step()
    spafl.finish()  # the model is this client's own, with masked rows
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from densing.core import InputError
from densing.efficiency.parallel import Decoder, Link, Rounds, Waiting, number, whole

MOMENTUM = 0.9
"""Of the thresholds' SGD. Source: the released code."""
RESET = 0.01
"""Share of a tensor's rows at or below which its thresholds are reset to 0. Source: the released code."""


class Rows(NamedTuple):
    """The rows of a tensor that have thresholds.

    Attributes
    ----------
    tensor : int
        Its number among those of the model.
    begin, end : int
        Its thresholds among all.
    fan : int
        What the weight step is divided by: inputs of a linear layer, positions of a convolution's kernel.
    """

    tensor: int
    begin: int
    end: int
    fan: int


class Personal(Rounds):
    """Clients that never share weights: all start from the first one's, and each ends with its own.

    Every rank is a client, and all take part in every round.
    """

    personal = True
    parts: bool
    """For readers of the data: each client has its own part."""

    @property
    def clients(self) -> int:
        """In all: as many as ranks."""
        return self.link.size

    @property
    def home(self) -> tuple[int, ...]:
        """The client of this rank."""
        return (self.link.rank,)

    def _settle(self, buffer: torch.Tensor) -> None:
        """Leave a buffer as it is: this client's own."""


class LocalOnly(Personal):
    """Every client trains alone: the baseline of personalised methods; nothing is sent.

    Parameters
    ----------
    model, optimizer, group, waiting, link
        See :class:`~densing.efficiency.parallel.data_parallel.rounds.Rounds`.
    parts : bool
        For who reads the data.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        parts: bool = False,
        group: dist.ProcessGroup | None = None,
        waiting: Waiting = nullcontext,
        link: Link | None = None,
    ) -> None:
        self.parts = parts
        super().__init__(model, optimizer, 1, group=group, waiting=waiting, link=link)

    def advance(self) -> None:
        """Count a step."""
        self.count += 1

    def finish(self) -> None:
        """Do nothing: each client keeps what it has."""

    def figures(self) -> Mapping[str, float]:
        """Return that nothing was sent."""
        return {"packet_bytes": 0.0}

    def _end_round(self) -> None:
        raise AssertionError("a single client has no rounds")


class SpaFL(Personal):
    """One threshold per row (filter, neuron) decides whether it is there; rounds average thresholds and nothing else.

    Forward and backward pass see ``w_ij m_i`` with ``m_i = 1[mean_j |w_ij| > t_i]``. Gradients pass the step function
    as if it were the identity, so thresholds learn beside the weights, pulled upwards by a penalty::

        loss + lam / (1 + exp(5 - 10 r / ramp)) sum_i exp(-t_i)       r: rounds so far
        end of a round:  D = mean of the clients' t - last mean;  t = mean;  w_ij <- w_ij - sign(sum_j w_ij) D_i / fan

    Of a tensor with at most 1 % of its rows left the thresholds begin at 0 again, which is counted. Masked are tensors
    of two and more dimensions; not norms and biases, and not embeddings or what shares their weights. Between steps the
    model holds masked weights; those behind the masks are :attr:`own`.

    The loss that a caller sees is without the penalty. In a loop of one's own the gradient of what ``backward`` left is
    completed in :meth:`step`; clip before it.

    Source: Kim, Saad, Debbah, Hong, NeurIPS 2024, arXiv 2406.00431, after its released code, FMNIST part:
    straight-through gradients of all rows, sign update, reset and ramp. Theirs is SGD for weights too;
    here weights have the caller's optimizer, and thresholds SGD with a momentum of 0.9.

    Parameters
    ----------
    model, optimizer, tau, group, waiting, link
        See :class:`~densing.efficiency.parallel.data_parallel.rounds.Rounds`.
    lam : float
        Weight of the penalty.
    ramp : int
        Rounds in which it grows: half of it after half of them.
    threshold_lr : float
        Step size of the thresholds; 0 leaves them at 0, and the weights with the masked loss's gradient alone.
    transfer : bool
        Whether weights take the step D at the end of a round.
    parts : bool
        For who reads the data.

    Attributes
    ----------
    thresholds : Tensor
        This client's, of all rows.
    own : Tensor
        All weights of this client, those of masked rows too.
    resets : int
        How often a tensor's thresholds began at 0 again.

    Raises
    ------
    InputError
        When no tensor of the model has rows to mask.

    Examples
    --------
    >>> model = torch.nn.Linear(4, 2, bias=False)
    >>> spafl = SpaFL(model, torch.optim.SGD(model.parameters(), lr=0.1), tau=2)
    >>> for _ in range(4):
    ...     model(torch.ones(1, 4)).square().sum().backward()
    ...     spafl.step()
    >>> spafl.finish()
    >>> spafl.round, len(spafl.thresholds)
    (2, 2)
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        tau: int,
        *,
        lam: float = 2e-3,
        ramp: int = 10,
        threshold_lr: float = 0.01,
        transfer: bool = True,
        parts: bool = False,
        group: dist.ProcessGroup | None = None,
        waiting: Waiting = nullcontext,
        link: Link | None = None,
    ) -> None:
        self.lam, self.ramp = number("lam", lam, 0.0), whole("ramp", ramp, 1)
        self.threshold_lr, self.transfer, self.parts = number("threshold_lr", threshold_lr, 0.0), transfer, parts
        super().__init__(model, optimizer, tau, group=group, waiting=waiting, link=link)
        self.own, self._buffer = self.flat.read(), self.flat.zeros()
        self.rows: list[Rows] = []
        end = 0
        shapes = [tuple(part.shape) for part in self.flat.tensors(self.own)]
        for tensor, shape in enumerate(shapes):
            if len(shape) < 2 or not math.prod(shape) or tensor in self._tables():
                continue
            begin, end = end, end + shape[0]
            self.rows.append(Rows(tensor, begin, end, fan_of(shape)))
        if not self.rows:
            raise InputError("the model has no tensor with rows to mask: only embeddings, norms or biases")
        self.thresholds = torch.zeros(end, device=self.flat.device)
        self.velocity, self._slopes = torch.zeros_like(self.thresholds), torch.zeros_like(self.thresholds)
        self.common = self.thresholds.clone()
        self.resets, self._open, self._stepping = 0, False, False
        self._mask()

    @property
    def penalty(self) -> float:
        """The penalty's weight in this round."""
        return self.lam / (1 + math.exp(5 - 10 * self.round / self.ramp))

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass, and complete the gradients."""
        loss.backward()
        self._unmask()

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Take a step of the optimizer and of the thresholds, and end the round if it was the last one of it.

        Raises
        ------
        InputError
            On all ranks, where a client's weights or thresholds are inf or NaN at the end of a round; with a closure.
        """
        if closure is not None:
            raise InputError("spafl completes gradients before the step; take steps without a closure")
        if not self._open:
            self._unmask()
        result = self.optimizer.step()
        self.velocity.mul_(MOMENTUM).add_(self._slopes)
        self.thresholds.sub_(self.velocity, alpha=self.threshold_lr)
        self._stepping = True
        self.advance()
        self._stepping = False
        self._mask()
        return result

    def advance(self) -> None:
        """Refuse to count a step that the caller has taken: thresholds would have taken none.

        Raises
        ------
        InputError
        """
        if not self._stepping:
            raise InputError(
                "SpaFL: advance() takes no step of the thresholds; take steps with step(), and of a loss without a "
                "scale (bfloat16 needs no scaler)"
            )
        super().advance()

    def finish(self) -> None:
        """End rounds that were begun; every client keeps its own weights, masked rows being 0."""
        self.flat.write(self.own)
        super().finish()
        self._mask()

    def kept_rows(self) -> list[float]:
        """Return the share of rows left of every tensor that has thresholds."""
        return [float(mask.float().mean()) for mask in self._masks()]

    def figures(self) -> Mapping[str, float]:
        """Return rounds, thresholds, bytes sent to the server, parameters left, and how often thresholds began anew."""
        sizes = [part.numel() for part in self.flat.tensors(self.own)]
        kept = sum(share * sizes[rows.tensor] for share, rows in zip(self.kept_rows(), self.rows, strict=True))
        masked = sum(sizes[rows.tensor] for rows in self.rows)
        return {
            **super().figures(),
            "thresholds": float(len(self.thresholds)),
            "packet_bytes": 4.0 * len(self.thresholds) * self.round,
            "kept_parameters": self.flat.numel - masked + kept,
            "kept_share": kept / masked,
            "resets": float(self.resets),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return counters, this client's weights behind the masks, and the thresholds with their momentum."""
        tensors = {name: getattr(self, name) for name in ("own", "thresholds", "velocity", "common")}
        return {**super().state_dict(), **tensors, "resets": self.resets}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken."""
        super().load_state_dict(state)
        for name in ("own", "thresholds", "velocity", "common"):
            self._restore(state, name, getattr(self, name))
        self.resets = int(state["resets"])
        self.flat.write(self.own)
        self._mask()

    def _tables(self) -> set[int]:
        """Return the numbers of the tensors that are embeddings, or share their weights."""
        tables = {id(m.weight) for m in self.model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
        if getattr(self.model, "tensor_shapes", None) is None:
            return {number for number, parameter in enumerate(self.flat.parameters) if id(parameter) in tables}
        return {number for number, name in enumerate(self.model.tensor_names) if "embed" in name}

    def _masks(self) -> list[torch.Tensor]:
        """Return which rows are there, by tensor."""
        parts = self.flat.tensors(self.own)
        return [
            parts[rows.tensor].abs().flatten(1).mean(1) > self.thresholds[rows.begin : rows.end] for rows in self.rows
        ]

    def _mask(self) -> None:
        """Keep the live weights as this client's own, and leave the masked ones in their place."""
        self.flat.read(self.own)
        for rows, mask in zip(self.rows, self._masks(), strict=True):
            if float(mask.float().mean()) <= RESET:
                self.thresholds[rows.begin : rows.end] = 0.0
                self.resets += 1
        self._buffer.copy_(self.own)
        parts = self.flat.tensors(self._buffer)
        for rows, mask in zip(self.rows, self._masks(), strict=True):
            parts[rows.tensor].flatten(1).mul_(mask[:, None])
        self.flat.write(self._buffer)
        self._open = False

    def _unmask(self) -> None:
        """Turn the masked loss's gradients into those of weights and thresholds, and put the own weights back."""
        self.flat.read_gradients(self._buffer)
        gradients, weights = self.flat.tensors(self._buffer), self.flat.tensors(self.own)
        for rows, mask in zip(self.rows, self._masks(), strict=True):
            gradient, weight = gradients[rows.tensor].flatten(1), weights[rows.tensor].flatten(1)
            # Of the mask's step, taken for the identity: down with the threshold, up with the row's mean size.
            slope = (gradient * weight).sum(1)
            own = slice(rows.begin, rows.end)
            self._slopes[own] = -slope - self.penalty * torch.exp(-self.thresholds[own])
            gradient.mul_(mask[:, None])
            if self.threshold_lr:
                gradient.add_(weight.sign().mul_(slope[:, None] / weight.shape[1]))
        self.flat.write_gradients(self._buffer)
        self.flat.write(self.own)
        self._open = True

    def _end_round(self) -> None:
        spoilt = self.flat.not_finite()
        if not spoilt and not bool(torch.isfinite(self.thresholds).all()):
            spoilt = "the thresholds"
        # A client without data in this round takes no part in the mean.
        takes = float(bool(self.count))
        marks = torch.zeros(self.link.size + 1, device=self.flat.device)
        marks[self.link.rank], marks[-1] = float(bool(spoilt)), takes
        values = torch.cat([torch.zeros_like(self.thresholds) if spoilt else self.thresholds * takes, marks])
        handle = self.link.start(values, op="sum")
        self.link.arrive(handle, values)
        self._timed(handle)
        bad = values[len(self.thresholds) : -1].nonzero().flatten().tolist()
        if bad:
            place = f"{spoilt} of this client ({self.link.rank})" if spoilt else f"what client {bad[0]} trained"
            raise InputError(
                f"round {self.round}: {place} holds inf or NaN; lower the learning rate (or clip gradients), and go on "
                "from a checkpoint"
            )
        mean = values[: len(self.thresholds)] / values[-1]
        change, self.common = mean - self.common, mean
        self.thresholds.copy_(mean)
        if not self.transfer:
            return
        weights = self.flat.tensors(self.flat.read(self._buffer))
        for rows in self.rows:
            weight = weights[rows.tensor].flatten(1)
            step = weight.sum(1).sign() * change[rows.begin : rows.end] / rows.fan
            weight.sub_(step[:, None])
        self.flat.write(self._buffer)


def fan_of(shape: tuple[int, ...]) -> int:
    """Return what the weight step of a tensor is divided by.

    Examples
    --------
    >>> fan_of((10, 500)), fan_of((20, 1, 5, 5))
    (500, 25)
    """
    return shape[1] if len(shape) == 2 else math.prod(shape[2:])


def export_pruned(model: Decoder) -> Decoder:
    """Return a copy of a masked decoder without what masked rows have switched off.

    Feed-forward channels whose gate or up row is 0, and heads whose values are all 0, are left out with the columns
    that read them; at least one of each stays. Rows of other matrices write zeros into the residual stream and stay.

    Parameters
    ----------
    model : Decoder
        With masked weights, as :meth:`SpaFL.finish` leaves them.

    Returns
    -------
    Decoder
        With fewer parameters, and the same logits.
    """
    pruned = copy.deepcopy(model)
    for block in pruned.blocks:
        mlp, attention = block.mlp, block.attention
        there = _alive(mlp.gate) & _alive(mlp.up)
        _narrow(there, (mlp.gate, mlp.up), mlp.row)
        width = attention.v.out_features // attention.heads
        heads = _alive(attention.v).view(-1, width).any(1)
        if not bool(heads.any()):
            heads[0] = True
        _narrow(heads.repeat_interleave(width), attention.columns, attention.row)
        attention.heads = int(heads.sum())
    return pruned


def _alive(linear: nn.Linear) -> torch.Tensor:
    return linear.weight.detach().ne(0).any(1)


def _narrow(there: torch.Tensor, writers: tuple[nn.Linear, ...], reader: nn.Linear) -> None:
    """Leave out channels between linear layers."""
    if not bool(there.any()):
        there[0] = True
    for linear in writers:
        linear.weight = nn.Parameter(linear.weight.detach()[there])
        linear.out_features = int(there.sum())
    reader.weight = nn.Parameter(reader.weight.detach()[:, there])
    reader.in_features = int(there.sum())

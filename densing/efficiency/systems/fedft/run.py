"""Clients and a server: tau local steps, then the weighted mean of the encoded differences updates all clients.

.. code-block:: python

    fedft = densing.training.FedFT(model, optimizer, tau=50, keep=0.7, clients=16)
    for step in range(steps):
        batch = next(loaders[fedft.client])  # the client that trains on this rank in this round
        optimizer.zero_grad()
        loss(model, batch).backward()
        fedft.step()  # instead of optimizer.step()
    fedft.finish()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from densing.core import InputError
from densing.efficiency.parallel import (
    Codec,
    Dense,
    Frequencies,
    Int8,
    Outer,
    Packet,
    Reader,
    Rule,
    TopK,
    number,
    whole,
)
from densing.efficiency.simulation import sizes


def home(rank: int, ranks: int, clients: int) -> range:
    """Return the clients of a rank, one of which trains in each round.

    Raises
    ------
    InputError
        When ranks would be home to different numbers of clients, or to none.

    Examples
    --------
    >>> list(home(1, 2, 6))
    [1, 3, 5]
    """
    whole("clients", clients, 1)
    if clients % ranks:
        raise InputError(
            f"clients={clients}: {ranks} of them train per round, one per rank, and all ranks "
            f"hold the same number; give a multiple of {ranks}"
        )
    return range(rank, clients, ranks)


class Federated(Outer):
    """All clients of a round start from the server's weights, take ``tau`` steps and send the difference::

        d_k = w_k - w;   w <- w + sum_k (n_k / n) decode(encode(d_k))

    n_k are the steps that client k took in the round: all batches are of one size. There is no server process: ranks
    exchange packets and compute its sum, each the same. Packets of a codec that ``adds`` are summed on the way (an
    all-reduce; FedFT's server likewise adds in frequency space and never inverts), others are gathered.

    One client per rank takes part in a round. With more ``clients`` each rank hosts equally many, and in every round
    one of them, drawn at random, trains there: a sample without replacement, in which every client is equally likely.
    :attr:`client` names it; the caller provides its data. The optimizer's state stays with the
    rank from round to round, as with :class:`~densing.efficiency.systems.LocalSGD`.

    What a codec does not send is dropped, as in the publications: a client may not be drawn again for long.

    Source: McMahan et al., arXiv 1602.05629, algorithm 1 (weights n_k / n; recalled); mu is the proximal term of
    FedProx, Li et al., arXiv 1812.06127 (recalled): ``mu / 2 |w_k - w|^2`` beside the loss.

    Parameters
    ----------
    model, optimizer, tau, **options
        See :class:`~densing.training.Outer`, of which this is a codec without error feedback, weighted by steps.
    codec : Codec, or callable that makes one
        Every tensor gets its own; those below :data:`~densing.efficiency.simulation.sizes.DENSE_BELOW` elements
        are sent as they are.
    mu : float
        Weight of the proximal term; 0 is FedAvg.
    clients : int, optional
        Total number, a multiple of the ranks; one per rank by default.
    parts : bool
        For who reads the data: each client has a part of its own.
    seed : int
        Seeds the draw of clients.

    Attributes
    ----------
    anchor : Tensor
        The server's weights.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        tau: int,
        *,
        codec: Codec | Callable[[], Codec] = Dense,
        mu: float = 0.0,
        clients: int | None = None,
        parts: bool = False,
        seed: int = 0,
        **options: Any,
    ) -> None:
        self.mu, self.seed, self.parts = number("mu", mu, 0.0), whole("seed", seed, 0), parts
        super().__init__(model, optimizer, tau, codec=codec, error_feedback=False, by_steps=True, **options)
        self.clients = self.link.size if clients is None else clients
        self.home = home(self.link.rank, self.link.size, self.clients)
        self._pulled = self._stepping = False

    @property
    def client(self) -> int:
        """The client that trains on this rank in this round."""
        return self._drawn(self.link.rank)

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass, and pull towards the server's weights."""
        loss.backward()
        self._pull()

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Take a step of the optimizer, and end the round if it was the last one of it.

        Raises
        ------
        InputError
            On all ranks, where a client's weights are inf or NaN at the end of a round; with a closure where mu is
            above 0, because gradients come too late then.
        """
        if closure is not None and self.mu:
            raise InputError(f"mu={self.mu}: the proximal term is added to the gradients; step without a closure")
        if not self._pulled:
            self._pull()
        self._pulled, self._stepping = False, True
        loss = super().step(closure)
        self._stepping = False
        return loss

    def advance(self) -> None:
        """Count a step that the caller has taken, unless a proximal term were left out of it.

        Raises
        ------
        InputError
            Where mu is above 0.
        """
        if self.mu and not self._stepping:
            raise InputError(
                f"{type(self).__name__}: advance() adds no proximal term (mu={self.mu}); take steps with step(), and "
                "of a loss without a scale (bfloat16 needs no scaler)"
            )
        super().advance()

    def _drawn(self, rank: int) -> int:
        clients = home(rank, self.link.size, self.clients)
        if len(clients) == 1:
            return clients[0]
        return clients[int(np.random.default_rng([self.seed, self.round, rank]).integers(len(clients)))]

    def _pull(self) -> None:
        """Add the gradient of the proximal term, where there is one."""
        self._pulled = True
        if not self.mu:
            return
        for parameter, start in zip(self.flat.parameters, self.flat.split(self.anchor), strict=True):
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach() - start, alpha=self.mu)

    def _name(self, rank: int) -> str:
        return f"client {self._drawn(rank)} (rank {rank})"


class FedFT(Federated):
    """Differences as cosine coefficients, of which a share is sent; the server adds in frequency space.

    Source: Palihawadana et al., FedFT, arXiv 2409.05242 (outline: DCT-IV of the difference, pruned, aggregated there).
    Which coefficients are pruned, and the schedule, are not published: the rules are ours to name.

    Parameters
    ----------
    model, optimizer, tau, **options
        See :class:`Federated`.
    keep : float
        Share of a tensor's coefficients, above 0 and up to 1.
    rule : {"prefix", "magnitude"}
        The lowest frequencies, which need no indices and add up; or the largest coefficients.

    Examples
    --------
    >>> model = torch.nn.Linear(64, 8)
    >>> fedft = FedFT(model, torch.optim.SGD(model.parameters(), lr=0.1), tau=2, keep=0.5)
    >>> for _ in range(4):
    ...     model(torch.ones(1, 64)).square().sum().backward()
    ...     fedft.step()
    >>> fedft.finish()
    >>> fedft.round, fedft.figures()["sent_share"] < 0.6
    (2, True)
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        tau: int,
        *,
        keep: float = 0.7,
        rule: Rule = "prefix",
        **options: Any,
    ) -> None:
        super().__init__(model, optimizer, tau, codec=Frequencies(keep, rule), **options)


class TopKDelta(Federated):
    """Differences as their largest entries, and which they are.

    Parameters
    ----------
    model, optimizer, tau, **options
        See :class:`Federated`.
    share : float
        Of a tensor's entries, above 0 and up to 1.
    """

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, tau: int, *, share: float = 0.1, **options: Any
    ) -> None:
        super().__init__(model, optimizer, tau, codec=TopK(share), **options)


class Int8Delta(Federated):
    """Differences at one byte per element.

    Parameters
    ----------
    model, optimizer, tau, **options
        See :class:`Federated`.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, tau: int, **options: Any) -> None:
        super().__init__(model, optimizer, tau, codec=Int8, **options)


class Leading(Codec):
    """The first entries of a tensor: the rule ``prefix`` without the transform, as a control."""

    adds = True

    def __init__(self, keep: float) -> None:
        self.keep = keep

    def encode(self, tensor: torch.Tensor) -> Packet:
        """Return the first entries."""
        return Packet((tensor.detach().reshape(-1)[: sizes.kept(tensor.numel(), self.keep)],))

    def decode(self, reader: Reader, like: torch.Tensor) -> torch.Tensor:
        """Return the tensor, 0 where nothing was sent."""
        entries = sizes.kept(like.numel(), self.keep)
        tensor = torch.zeros(like.numel(), device=reader.data.device)
        tensor[:entries] = reader.take(entries, torch.float32)
        return tensor.view(like.shape)

    def bounds(self, like: torch.Tensor) -> tuple[int, int]:
        """Return the bytes of so many entries."""
        size = sizes.VALUE_BYTES * sizes.kept(like.numel(), self.keep)
        return size, size


class WholeModel(Federated):
    """Sends the weights themselves through the codec instead of their change in a round."""

    def _end_round(self) -> None:
        self.anchor.zero_()
        super()._end_round()

"""What a server and its workers train: pieces of a gradient, one for each task of a scheme."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from densing.efficiency.parallel import Flat, RunSpec, batches, build_lm, cross_entropy, load_bytes, mean_loss
from densing.efficiency.systems.stragglers.schemes import Scheme


def weighted_sum(parts: Iterable[tuple[float, Tensor]]) -> Tensor:
    """Return the sum of weights times tensors, in their order; a weight of 1 leaves a tensor's bits.

    Examples
    --------
    >>> weighted_sum([(1.0, torch.tensor([1.0, 2.0])), (-2.0, torch.tensor([0.0, 1.0]))])
    tensor([1., 0.])
    """
    total: Tensor | None = None
    for weight, tensor in parts:
        part = tensor if weight == 1.0 else tensor * weight
        total = part.clone() if total is None else total.add_(part)
    assert total is not None, "a sum of nothing"
    return total


class Problem(Protocol):
    """A model and a loss that is the mean over partitions.

    Attributes
    ----------
    module : torch.nn.Module
        What is trained.
    dtype : torch.dtype
        Of gradients.
    """

    module: nn.Module
    dtype: torch.dtype

    def read(self) -> Tensor:
        """Return the weights as one vector."""

    def write(self, weights: Tensor) -> None:
        """Take these weights."""

    def write_gradient(self, vector: Tensor) -> None:
        """Take a gradient for the optimizer's."""

    def piece(self, task: int, step: int) -> Tensor:
        """Return a task's gradient as one vector, and behind it the loss."""

    def evaluate(self, batches: Iterable[Tensor]) -> float:
        """Return the mean loss of int64 tokens (batch, sequence + 1)."""


class LanguageModel:
    """The small language model: a partition is one worker's share of a data-parallel batch, whoever computes it."""

    dtype = torch.float32

    def __init__(self, spec: RunSpec, worker: bool) -> None:
        self.spec, self.module = spec, build_lm(spec.model, spec.sequence, spec.seed)
        self.text = load_bytes(spec.corpus)[0] if worker else np.empty(0, dtype=np.uint8)
        self.flat = Flat(self.module)

    def read(self) -> Tensor:
        """Return the weights as one vector."""
        return self.flat.read()

    def write(self, weights: Tensor) -> None:
        """Take these weights."""
        self.flat.write(weights)

    def write_gradient(self, vector: Tensor) -> None:
        """Take a gradient for the optimizer's."""
        self.flat.write_gradients(vector)

    def piece(self, task: int, step: int) -> Tensor:
        """Return a partition's gradient as one vector, and behind it the loss."""
        spec = self.spec
        tokens = torch.from_numpy(batches(self.text, spec.batch, spec.sequence, spec.seed, task, step))
        self.module.zero_grad()
        loss = cross_entropy(self.module(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        vector = self.flat.zeros(extra=1)
        self.flat.read_gradients(vector)
        vector[-1] = loss.detach()
        return vector

    def evaluate(self, batches: Iterable[Tensor]) -> float:
        """Return the mean loss, nats per token."""
        return mean_loss(self.module, batches, torch.device("cpu"))


class LeastSquares:
    """A linear probe: hidden states of the untrained language model, which stays as it is, predict the next byte.

    Half the squared distance to the next byte written as a vector of zeros and a one, mean over tokens; the data are
    every worker's first batch, and the same in every step. Its gradient is of degree 2 in the data, as Lagrange codes
    need it. A worker encodes its data itself, before the first step: that is not sent.
    """

    dtype = torch.float64

    def __init__(self, spec: RunSpec, worker: bool, scheme: Scheme) -> None:
        self.vocabulary = spec.model.vocabulary
        # Without its head the model ends in its hidden states.
        self.features = build_lm(spec.model, spec.sequence, spec.seed).requires_grad_(False)
        self.features.head = nn.Identity()
        self.module = nn.Linear(spec.model.hidden, self.vocabulary, bias=False, dtype=self.dtype)
        nn.init.zeros_(self.module.weight)
        if worker:
            text, workers = load_bytes(spec.corpus)[0], scheme.workers
            rows = [batches(text, spec.batch, spec.sequence, spec.seed, own, 0) for own in range(workers)]
            states, following = self._data(torch.from_numpy(np.concatenate(rows)))
            mixtures = np.eye(scheme.partitions) if scheme.encoding is None else scheme.encoding.data
            self.shares = sum(map(len, scheme.tasks)) // len(mixtures) if scheme.encoding is not None else 1
            # Rows of zeros, which change no gradient, make equal parts of it.
            filled = -len(states) % (scheme.partitions * self.shares)
            self.mixtures = torch.from_numpy(mixtures)
            self.states, self.following = (
                functional.pad(each, (0, 0, 0, filled)).unflatten(0, (scheme.partitions, -1))
                for each in (states, following)
            )
            self.mean = scheme.partitions / len(states)
            self._encoded: dict[int, tuple[Tensor, Tensor]] = {}

    def read(self) -> Tensor:
        """Return the weights as one vector."""
        return self.module.weight.detach().flatten().clone()

    def write(self, weights: Tensor) -> None:
        """Take these weights."""
        with torch.no_grad():
            self.module.weight.copy_(weights.view_as(self.module.weight))

    def write_gradient(self, vector: Tensor) -> None:
        """Take a gradient for the optimizer's."""
        self.module.weight.grad = vector.view_as(self.module.weight).clone()

    def piece(self, task: int, step: int) -> Tensor:
        """Return the gradient on encoded data, or a share of it, as one vector, and behind it the loss."""
        evaluation, share = divmod(task, self.shares)
        if evaluation not in self._encoded:
            mixture = self.mixtures[evaluation]
            self._encoded[evaluation] = (
                torch.tensordot(mixture, self.states, 1),
                torch.tensordot(mixture, self.following, 1),
            )
        states, following = (each.chunk(self.shares)[share] for each in self._encoded[evaluation])
        off = states @ self.module.weight.detach().T - following
        loss = 0.5 * self.mean * off.square().sum()
        return torch.cat([(self.mean * off.T @ states).flatten(), loss.view(1)])

    def evaluate(self, batches: Iterable[Tensor]) -> float:
        """Return half the mean squared error per token."""
        total, tokens = 0.0, 0
        for batch in batches:
            states, following = self._data(batch)
            with torch.no_grad():
                total += 0.5 * float((self.module(states) - following).square().sum())
            tokens += len(states)
        return total / tokens

    def _data(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is known of every token, and what follows it."""
        states = self.features(tokens[:, :-1]).flatten(0, 1).to(self.dtype)
        return states, functional.one_hot(tokens[:, 1:].flatten(), self.vocabulary).to(self.dtype)


PROBLEMS: dict[str, Any] = {"lm": LanguageModel, "least-squares": LeastSquares}
"""Problems that a server can train, by name."""

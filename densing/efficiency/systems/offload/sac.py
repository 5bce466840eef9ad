r"""Soft actor-critic with discrete choices.

.. math::
    y = r + \gamma \pi(s')^T (\min_i Q_i(s') - \alpha \log \pi(s')), \quad
    J_\pi = \pi^T (\alpha \log \pi - \min_i Q_i), \quad
    J_\alpha = -\log \alpha \, (\bar H - H(\pi))

Source: Christodoulou, "Soft Actor-Critic for Discrete Action Settings", arXiv 1910.07207, from general knowledge. Its
target entropy of 0.98 ln|A| keeps a policy of many choices next to uniform; here the share is a parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Protocol

import numpy as np
import torch
from torch import nn

from densing.core import Array

WIDTH = 64


class Surroundings(Protocol):
    """Where a learner acts: many episodes side by side."""

    state: Array

    def take(self, chosen: np.ndarray) -> tuple[Array, Array, Array]:
        """Return rewards (n,), the states reached and the states from which to go on (n, inputs)."""


class DiscreteSac:
    """Two critics, their slow copies, an actor, and a temperature.

    Parameters
    ----------
    inputs, choices : int
    gamma : float
    alpha : float, optional
        Temperature; None: adapted so that the policy's entropy comes to ``entropy_share`` ln(choices).
    entropy_share : float
    lr, tau : float
        Of Adam; share of the critics that goes into their copies after each update.
    batch, memory : int
    seed : int
    """

    def __init__(self, inputs: int, choices: int, *, gamma: float = 0.9, alpha: float | None = None,
                 entropy_share: float = 0.2, lr: float = 1e-3, tau: float = 0.01, batch: int = 256,
                 memory: int = 100_000, seed: int = 0) -> None:  # fmt: skip
        self.gamma, self.tau, self.batch, self.memory = gamma, tau, batch, memory
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor = _network(inputs, choices)
            self.critics = nn.ModuleList([_network(inputs, choices) for _ in range(2)])
        self.slow = deepcopy(self.critics).requires_grad_(False)
        self.log_alpha = torch.tensor(math.log(0.1 if alpha is None else alpha), requires_grad=alpha is None)
        self.target_entropy = entropy_share * math.log(choices)
        self.optimisers = [torch.optim.Adam(part.parameters(), lr) for part in (self.actor, self.critics)]
        if alpha is None:
            self.optimisers.append(torch.optim.Adam([self.log_alpha], lr))
        self.draws = torch.Generator().manual_seed(seed)

    @property
    def alpha(self) -> float:
        """Temperature."""
        return float(self.log_alpha.detach().exp())

    def probabilities(self, states: Array) -> Array:
        """Return the policy, (n, choices)."""
        with torch.no_grad():
            found: Array = self.actor(_tensor(states)).softmax(-1).double().numpy()
        return found

    def likeliest(self, states: Array) -> np.ndarray:
        """Return the likeliest choices, (n,)."""
        return self.probabilities(states).argmax(-1)

    def values(self, states: Array) -> Array:
        """Return the smaller of both critics' values, (n, choices)."""
        with torch.no_grad():
            found: Array = self._least(self.critics, _tensor(states)).double().numpy()
        return found

    def learn(self, around: Surroundings, steps: int, progress: Callable[[float], None] = lambda _share: None) -> None:
        """Act and update, one update per step of all episodes."""
        held = [_Ring(self.memory) for _ in range(4)]
        for step in range(steps):
            state = around.state
            weights = torch.from_numpy(self.probabilities(state))
            chosen = torch.multinomial(weights, 1, generator=self.draws)[:, 0]
            reward, reached, _ = around.take(chosen.numpy())
            for ring, values in zip(held, (_tensor(state), chosen, _tensor(reward), _tensor(reached)), strict=True):
                ring.add(values)
            picked = torch.randint(len(held[0]), (self.batch,), generator=self.draws)
            self.update(*(ring.take(picked) for ring in held))
            if step % 100 == 0:
                progress(step / steps)

    def update(self, state: torch.Tensor, chosen: torch.Tensor, reward: torch.Tensor, reached: torch.Tensor) -> None:
        """Make one step of critics, actor and temperature."""
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            log_next = self.actor(reached).log_softmax(-1)
            soft = (log_next.exp() * (self._least(self.slow, reached) - alpha * log_next)).sum(-1)
            target = reward + self.gamma * soft
        critics = torch.stack([critic(state).gather(1, chosen[:, None])[:, 0] for critic in self.critics])
        _descend(self.optimisers[1], (critics - target).square().mean(1).sum())
        log_policy = self.actor(state).log_softmax(-1)
        policy = log_policy.exp()
        with torch.no_grad():
            least = self._least(self.critics, state)
        _descend(self.optimisers[0], actor_loss(log_policy, least, alpha).mean())
        if len(self.optimisers) > 2:
            entropy = -(policy * log_policy).sum(-1).mean().detach()
            _descend(self.optimisers[2], -self.log_alpha * (self.target_entropy - entropy))
        with torch.no_grad():
            for old, new in zip(self.slow.parameters(), self.critics.parameters(), strict=True):
                old.lerp_(new, self.tau)

    @staticmethod
    def _least(critics: nn.ModuleList, state: torch.Tensor) -> torch.Tensor:
        return torch.minimum(critics[0](state), critics[1](state))


def actor_loss(log_policy: torch.Tensor, values: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    """Return J_pi of each state: the policy's own mean of alpha log pi - Q.

    Examples
    --------
    >>> log_policy = torch.tensor([[0.5, 0.5]]).log()
    >>> round(actor_loss(log_policy, torch.tensor([[1.0, 3.0]]), torch.tensor(0.0)).item(), 6)
    -2.0
    """
    return (log_policy.exp() * (alpha * log_policy - values)).sum(-1)


class _Ring:
    """The newest rows, the oldest of them first."""

    def __init__(self, most: int) -> None:
        self.most, self.added = most, 0

    def __len__(self) -> int:
        return min(self.added, self.most)

    def add(self, rows: torch.Tensor) -> None:
        if not self.added:
            self.values = rows.new_empty((self.most, *rows.shape[1:]))
        self.values[(self.added + torch.arange(len(rows))) % self.most] = rows
        self.added += len(rows)

    def take(self, picked: torch.Tensor) -> torch.Tensor:
        return self.values[(max(self.added - self.most, 0) + picked) % self.most]


def _network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, outputs)
    )


def _tensor(values: Array) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.float32)


def _descend(optimiser: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()

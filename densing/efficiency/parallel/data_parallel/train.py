"""Train the small language model with a data-parallel method, for real: what a technique's ``run`` calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch

from densing.efficiency.parallel.data_parallel.link import Link, Waiting
from densing.efficiency.parallel.data_parallel.options import whole
from densing.efficiency.parallel.distributed import (
    INJECTED,
    Clock,
    Parts,
    RunEnv,
    RunRecord,
    build_lm,
    cross_entropy,
    mean_loss,
    run,
)
from densing.efficiency.simulation import parse_delay

WARMUP_STEPS = 20
"""Warm-up steps, over which the learning rate rises to ``spec.lr``; then it decays as the inverse square root."""


class Method(Protocol):
    """A data-parallel method around a model and its optimizer.

    Attributes
    ----------
    model : torch.nn.Module
        To call in the forward pass.
    optimizer : torch.optim.Optimizer
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass, with the method's communication."""

    def step(self) -> Any:
        """Update the parameters, with the method's communication."""

    def finish(self) -> None:
        """Leave all ranks with the same parameters."""

    def figures(self) -> Mapping[str, float]:
        """Return figures for ``RunRecord.extra``."""

    def state_dict(self) -> dict[str, Any]:
        """Return the method's own state."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state_dict`` was taken."""


@dataclass(frozen=True)
class Replica:
    """Inputs of a method: this rank's copy of the model, and the run's resources.

    Parameters
    ----------
    model : torch.nn.Module
    optimizer : callable
        Makes the run's optimizer from an iterable of parameters.
    waiting : callable
        Gives a context to be put around every wait, so that the run's clock sees it.
    loss : callable
        The loss of a model on a batch of the run's size, for what is tried before the first step.
    link : Link, optional
        The end of a virtual rank; None where ranks are processes.
    seed : int
        Of the run, for what a method draws by chance.
    """

    model: torch.nn.Module
    optimizer: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]
    waiting: Waiting
    loss: Callable[[torch.nn.Module], torch.Tensor]
    link: Link | None = None
    seed: int = 0

    def over(self, link: Link) -> Replica:
        """Return the same replica as a virtual rank."""
        return replace(self, link=link)

    def wrap(self, kind: Callable[..., Method], **knobs: Any) -> Method:
        """Return a method that takes the model and an optimizer of all its parameters, as DDP and CO2 do."""
        if self.link is not None:
            knobs["link"] = self.link
        return kind(self.model, self.optimizer(self.model.parameters()), waiting=self.waiting, **knobs)


MethodMaker = Callable[..., Method]
"""Makes a method from a :class:`Replica` and a run's knobs; called on all ranks."""


class DataParallel:
    """The whole model on every rank; see :class:`densing.efficiency.parallel.distributed.loop.Trainee`."""

    stand_in = ""

    def __init__(self, env: RunEnv, method: MethodMaker, knobs: Mapping[str, Any], clock: Clock) -> None:
        self.lr, self.taken = env.spec.lr, 0
        self.data_ranks = env.world_size
        self.device = torch.device(env.spec.device)
        model = build_lm(env.spec.model, env.spec.sequence, env.spec.seed).to(self.device)
        self.parameters = sum(p.numel() for p in model.parameters())
        self.module = model
        tokens = torch.zeros(env.spec.batch, env.spec.sequence + 1, dtype=torch.int64)
        replica = Replica(
            model,
            partial(torch.optim.AdamW, lr=env.spec.lr),
            clock.waiting,
            lambda trial: self._loss(trial, tokens),
            seed=env.spec.seed,
        )
        self.method = method(replica, **knobs)
        self._rank = env.rank
        self.delay = parse_delay(env.spec.delay) if env.spec.delay else None
        self.slept, self.here = 0.0, 0
        self.data_rank = self._client()
        # Of methods whose clients read parts of the text: how many clients, and which are at home here.
        clients = getattr(self.method, "clients", 0) if getattr(self.method, "parts", False) else 0
        self.parts = Parts(clients, tuple(getattr(self.method, "home", ()))) if clients else None

    def step(self, batch: torch.Tensor) -> float:
        """Apply the injected delay; run forward, backward and update; return this rank's loss."""
        if self.delay is not None:
            self._sleep(float(self.delay.draw(self.data_ranks, self.taken)[self._rank]))
        for group in self.method.optimizer.param_groups:
            group["lr"] = self.lr * inverse_sqrt_factor(self.taken, WARMUP_STEPS)
        self.taken += 1
        self.method.optimizer.zero_grad()
        loss = self._loss(self.method.model, batch)
        self.method.backward(loss)
        self.method.step()
        self.data_rank = self._client()
        return float(loss.detach())

    def finish(self) -> None:
        """Wait for pending operations."""
        self.method.finish()

    def evaluate(self, batches: Iterable[torch.Tensor]) -> float:
        """Return the mean loss in nats per token."""
        return mean_loss(self.module, batches, self.device)

    def figures(self) -> Mapping[str, float]:
        """Return the method's figures, and the injected delays, seconds per step of this process."""
        late = {} if self.delay is None else {"delay_s": self.slept / max(self.here, 1)}
        return {**self.method.figures(), **late}

    def state_dict(self) -> dict[str, Any]:
        """Return model, optimizer, method, and steps taken."""
        return {
            "model": self.module.state_dict(),
            "optimizer": self.method.optimizer.state_dict(),
            "method": self.method.state_dict(),
            "taken": self.taken,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state bit for bit."""
        self.module.load_state_dict(state["model"])
        self.method.optimizer.load_state_dict(state["optimizer"])
        self.method.load_state_dict(state["method"])
        self.taken = int(state["taken"])
        self.data_rank = self._client()

    def _sleep(self, seconds: float) -> None:
        with torch.profiler.record_function(INJECTED):
            time.sleep(seconds)
        self.slept += seconds
        self.here += 1

    def _client(self) -> int:
        """Return the client whose batches come next, for methods with clients."""
        return int(getattr(self.method, "client", self._rank))

    def _loss(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        batch = batch.to(self.device)
        return cross_entropy(model(batch[:, :-1]), batch[:, 1:])


def train_data_parallel(env: RunEnv, method: MethodMaker, **knobs: Any) -> RunRecord:
    """Train the small language model on this rank with a data-parallel method.

    Parameters
    ----------
    env : RunEnv
        The process group is initialised, unless there is one rank only.
    method : callable
        Makes a :class:`Method` from this rank's :class:`Replica` and the knobs: what a technique brings
        (``DataParallelRun.method`` in ``densing.efficiency.systems.planner``).
    **knobs
        Of the method.

    Raises
    ------
    InputError
        When a knob makes no sense, or the run cannot go on.
    """
    return run(env, lambda clock: DataParallel(env, method, knobs, clock))


def inverse_sqrt_factor(step: int, warmup: int) -> float:
    """Return the factor of the learning rate: linear up to 1 over ``warmup`` steps, then falling as 1/sqrt(step).

    Examples
    --------
    >>> [round(inverse_sqrt_factor(step, 4), 3) for step in (0, 1, 3, 4, 15)]
    [0.25, 0.5, 1.0, 0.894, 0.5]
    """
    done = step + 1
    return done / warmup if done <= warmup else (warmup / done) ** 0.5


def inverse_sqrt(optimizer: torch.optim.Optimizer, warmup: int = 2000) -> torch.optim.lr_scheduler.LambdaLR:
    """Return a schedule: warm up over ``warmup`` steps, then fall as the inverse square root; step it after each step.

    Source: script of the released CO2 code, 2000 updates.

    Raises
    ------
    InputError
        When ``warmup`` is not a whole number from 1 up.
    """
    whole("warmup", warmup, 1)
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: inverse_sqrt_factor(step, warmup))

"""The learning rate's warm-up that CO2's released scripts use."""

from __future__ import annotations

import torch

from densing.efficiency.parallel.data_parallel.rounds import whole


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
        When ``warmup`` is no whole number from 1 up.
    """
    whole("warmup", warmup, 1)
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: inverse_sqrt_factor(step, warmup))

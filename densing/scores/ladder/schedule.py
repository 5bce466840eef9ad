"""Warm-up, stable, decay: one stable stage serves every token budget, each with a short decay of its own."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from densing.core import DomainError


@dataclass(frozen=True)
class Budget:
    """One token budget of a run.

    Parameters
    ----------
    branch : int
        Step at which its decay leaves the stable stage.
    end : int
        Step at which it is exported.
    """

    branch: int
    end: int


def budgets(steps: tuple[int, ...], decay: float) -> tuple[Budget, ...]:
    """Return the budgets of a run; the decay is the last ``decay`` share of each.

    Parameters
    ----------
    steps : tuple of int
        Training steps of each budget, ascending.
    decay : float
        Share of a budget's steps, between 0 and 1.

    Raises
    ------
    DomainError
        When the steps are not ascending, or a decay would begin before the previous budget's.

    Examples
    --------
    >>> budgets((100, 200), 0.2)
    (Budget(branch=80, end=100), Budget(branch=160, end=200))
    """
    if not steps or steps[0] < 1 or any(b <= a for a, b in pairwise(steps)):
        raise DomainError(f"budgets {steps}: steps must be positive and ascending")
    if not 0 < decay < 1:
        raise DomainError(f"decay {decay}: a share between 0 and 1 is needed")
    return tuple(Budget(end - max(1, round(end * decay)), end) for end in steps)


def factor(step: int, warmup: int, budget: Budget | None) -> float:
    """Return the share of the peak learning rate at a step.

    min(1, (s + 1) / warmup) while stable; from the branch on 1 - sqrt((s - branch) / (end - branch)).

    Source: WSD schedule, arXiv 2404.06395, section 4; the square-root form of the decay, arXiv 2405.18392, eq. 1.

    Parameters
    ----------
    step : int
        The step about to be taken, from 0.
    warmup : int
        Steps of linear warm-up.
    budget : Budget or None
        The budget whose decay is under way; None in the stable stage.

    Examples
    --------
    >>> [factor(s, 4, None) for s in (0, 3, 50)]
    [0.25, 1.0, 1.0]
    >>> [factor(s, 4, Budget(80, 100)) for s in (80, 85, 99)]
    [1.0, 0.5, 0.02532056...]
    """
    rise = min(1.0, (step + 1) / warmup)
    if budget is None or step < budget.branch:
        return rise
    return float(rise * (1.0 - ((step - budget.branch) / (budget.end - budget.branch)) ** 0.5))

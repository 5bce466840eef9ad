"""LocalSGD and SlowMo around a model and its optimizer: rounds with a blocking average."""

from __future__ import annotations

from typing import Any

import torch

from densing.efficiency.parallel import Outer, SlowMomentum


class LocalSGD(Outer):
    """Average parameters after every ``tau`` steps, blocking: :class:`~densing.training.Outer` without further options.

    Source: Stich, "Local SGD Converges Fast and Communicates Little", arXiv 1805.09767, algorithm 1.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Linear(2, 1)
    >>> local = LocalSGD(model, torch.optim.SGD(model.parameters(), lr=0.1), tau=2)
    >>> for _ in range(4):
    ...     model(torch.ones(1, 2)).sum().backward()
    ...     local.step()
    >>> local.round
    2
    """


class SlowMo(Outer):
    """Every ``tau`` steps: ``u <- beta u + (x_start - mean) / lr``, ``x <- x_start - alpha lr u``, waited for.

    ``lr`` is the learning rate of the optimizer's first group at the end of the round (mean of the ranks, by their
    steps in it). ``slow_lr=1, slow_momentum=0`` is LocalSGD.

    Source: Wang et al., "SlowMo: Improving Communication-Efficient Distributed SGD with Slow Momentum",
    arXiv 1910.00643, algorithm 1 (recalled, not compared with the paper; the optimizer's buffers are kept, of the
    strategies known for them).

    Parameters
    ----------
    model, optimizer, tau, **options
        See :class:`~densing.training.Outer`.
    slow_lr : float
        alpha.
    slow_momentum : float
        beta, from 0 to below 1.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        tau: int,
        *,
        slow_lr: float = 1.0,
        slow_momentum: float = 0.5,
        **options: Any,
    ) -> None:
        super().__init__(model, optimizer, tau, outer_optimizer=SlowMomentum(slow_lr, slow_momentum), **options)

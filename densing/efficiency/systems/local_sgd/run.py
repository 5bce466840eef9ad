"""LocalSGD and SlowMo around a model and its optimizer: rounds with a blocking average."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist

from densing.core import InputError
from densing.efficiency.parallel import Link, Rounds, Waiting, number


class LocalSGD(Rounds):
    """Average parameters after every ``tau`` steps, blocking.

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

    def _end_round(self) -> None:
        self.flat.write(self._average())


class SlowMo(Rounds):
    """Every ``tau`` steps: ``u <- beta u + (x_start - mean) / lr``, ``x <- x_start - alpha lr u``, waited for.

    ``lr`` is the learning rate of the optimizer's first group at the end of the round (mean of the ranks, by their
    steps in it). ``slow_lr=1, slow_momentum=0`` is LocalSGD.

    Source: Wang et al., "SlowMo: Improving Communication-Efficient Distributed SGD with Slow Momentum",
    arXiv 1910.00643, algorithm 1 (recalled, not compared with the paper; the optimizer's buffers are kept, of the
    strategies known for them).

    Parameters
    ----------
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
        group: dist.ProcessGroup | None = None,
        inner_group: dist.ProcessGroup | None = None,
        waiting: Waiting = nullcontext,
        link: Link | None = None,
    ) -> None:
        self.slow_lr = number("slow_lr", slow_lr, 0.0, strict=True)
        self.slow_momentum = number("slow_momentum", slow_momentum, 0.0, 1.0)
        super().__init__(model, optimizer, tau, group=group, inner_group=inner_group, waiting=waiting, link=link)
        self.anchor, self.momentum = self.flat.read(), self.flat.zeros()

    def state_dict(self) -> dict[str, Any]:
        """Return counters, anchor and slow momentum."""
        return {**super().state_dict(), "anchor": self.anchor, "momentum": self.momentum}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken."""
        super().load_state_dict(state)
        self._restore(state, "anchor", self.anchor)
        self._restore(state, "momentum", self.momentum)

    def _end_round(self) -> None:
        mean = self._average()
        self.link.arrive(self._announced, self._state)
        _, steps, rates = self._state.tolist()
        lr = rates / steps
        if lr <= 0.0:
            raise InputError(
                f"slowmo: the learning rate is {lr} at the end of a round; the outer "
                "update divides by it; keep it above 0"
            )
        self.momentum.mul_(self.slow_momentum).add_(torch.sub(self.anchor, mean, out=mean).div_(lr))
        self.anchor.sub_(self.momentum, alpha=self.slow_lr * lr)
        self.flat.write(self.anchor)

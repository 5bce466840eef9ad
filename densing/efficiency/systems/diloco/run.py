"""DiLoCo around a model and its optimizer, whole or in fragments that arrive late."""

from __future__ import annotations

from typing import Any

import torch

from densing.efficiency.parallel import Nesterov, Outer


class DiLoCo(Outer):
    r"""Every ``tau`` steps an outer Nesterov step on the mean change of the parameters, fragment by fragment.

    A fragment x of the anchor, from which all ranks began, and the mean of the ranks' parameters move it:

    .. math:: g = x - \bar y, \qquad m \leftarrow \beta m + g, \qquad x \leftarrow x - \alpha (g + \beta m)

    and every rank goes on from ``mix * y + (1 - mix) * x`` there. With ``fragments=F`` one of F equal parts takes its
    step every tau/F steps, in turn; with ``delay=d`` its mean is waited for d steps after it was sent off.
    ``fragments=1, outer_lr=1, outer_momentum=0`` is :class:`~densing.training.LocalSGD`.

    Source: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", arXiv 2311.08105,
    algorithm 1; fragments, delay and mixing: Douillard et al., "Streaming DiLoCo with overlapping communication",
    arXiv 2501.18512, algorithm 2 (both recalled, not compared with the papers).

    Parameters
    ----------
    model, optimizer, fragments, delay, mix, **options
        See :class:`~densing.training.Outer`; this is that with ``Nesterov``.
    tau : int
        Steps between two outer steps of a parameter; ``fragments`` divides it.
    outer_lr : float
        alpha.
    outer_momentum : float
        beta, from 0 to below 1.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Linear(2, 1)
    >>> diloco = DiLoCo(model, torch.optim.AdamW(model.parameters()), tau=4, fragments=2, delay=1, mix=0.5)
    >>> for _ in range(8):
    ...     model(torch.ones(1, 2)).sum().backward()
    ...     diloco.step()
    >>> diloco.finish()
    >>> diloco.figures()["rounds"]
    4.0
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        tau: int,
        *,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
        **options: Any,
    ) -> None:
        super().__init__(model, optimizer, tau, outer_optimizer=Nesterov(outer_lr, outer_momentum), **options)

"""CO2: parameters averaged behind the next round's compute, one round late, with an outer momentum.

.. code-block:: python

    co2 = densing.training.CO2(model, optimizer, tau=8)
    for batch in loader:
        optimizer.zero_grad()
        loss(model, batch).backward()
        co2.step()  # instead of optimizer.step()
    co2.finish()
"""

from __future__ import annotations

from typing import Any

import torch

from densing.efficiency.parallel import Gap, GapMode, Momentum, Outer


class CO2(Outer):
    """Local steps, and an all-reduce of the parameters that has a whole round's time.

    After round t the parameters are copied into a buffer, and their all-reduce starts; it is waited for at the end of
    round t + 1, when it moves the anchor from which every rank begins its next round::

        m <- outer_momentum * m + (x_{t-1,0} - mean_{t-1}) / gap_t;  m <- clip(m, -clip, clip)
        x_{t+1,0} <- x_{t,0} - outer_lr * m

    The first round has nothing to apply, so the second one starts from the same anchor as the first: anchors are the
    same on all ranks, to the last bit. ``warmup_rounds`` end in an average that is waited for, as in LocalSGD.

    Memory beside model and optimizer: four float32 copies of the trainable parameters (two anchors, momentum, buffer),
    on the parameters' device. The optimizer may be any of torch, ``ZeroRedundancyOptimizer`` too: its state is not
    touched. With mixed precision, let the scaler take the step and call :meth:`advance` instead of :meth:`step`.

    Source: Sun et al., "CO2: Efficient Distributed Training with Full Communication-Computation Overlap", ICLR 2024,
    arXiv 2401.16265, after its released code, without that code's defects: clipping is applied, and the buffer is
    never the live parameters.

    Parameters
    ----------
    model, optimizer, **options
        See :class:`~densing.training.Outer`; this is that with ``delay="round"``, ``Momentum`` and ``Gap``.
    tau : int
        Steps in a round: as many as take longer than an all-reduce of the parameters, and the network costs nothing.
    outer_lr, outer_momentum : float
        Of the anchor's update. The bigger both, the less stable: the update is one round old.
    clip : float, optional
        Largest absolute value of each element of the outer momentum; None leaves it.
    gap : {"aware", "constant"}
        What divides the pseudo-gradient: ``aware`` is ``1 + |x_{t,0} - x_{t-1,0}|`` over the mean of earlier such
        norms (a Gap-Aware form; the paper's own equation is not available to us), ``constant`` is ``gap_penalty``.
    gap_penalty : float
        With ``gap="constant"``; 1 in the released code.
    warmup_rounds : int
        Rounds that end in a blocking average before the first late one.

    Examples
    --------
    >>> model = torch.nn.Linear(2, 1)
    >>> co2 = CO2(model, torch.optim.SGD(model.parameters(), lr=0.1), tau=2)
    >>> for _ in range(4):
    ...     model(torch.ones(1, 2)).square().sum().backward()
    ...     co2.step()
    >>> co2.finish()
    >>> co2.round
    2
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        tau: int,
        *,
        outer_lr: float = 1.0,
        outer_momentum: float = 0.5,
        clip: float | None = None,
        gap: GapMode = "aware",
        gap_penalty: float = 1.0,
        **options: Any,
    ) -> None:
        step, penalty = Momentum(outer_lr, outer_momentum, clip), Gap(gap, gap_penalty)
        super().__init__(model, optimizer, tau, outer_optimizer=step, delay="round", gap=penalty, **options)

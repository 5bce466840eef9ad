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

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist

from densing.core import UnknownNameError
from densing.efficiency.parallel import Handle, Link, Rounds, Waiting, number, whole

GapMode = Literal["aware", "constant"]


class Gap:
    """How stale a late average is: the anchor's last way, against its ways before.

    The penalty is ``1 + |x_{t,0} - x_{t-1,0}| / C_t``, C_t being the mean of earlier such norms.

    While there is no earlier way (or the anchor has not moved) the penalty is 1. This is a Gap-Aware form, after
    Barkai et al., "Gap-Aware Mitigation of Gradient Staleness", arXiv 1909.10802; Eq. 3 of the CO2 paper is not
    available to us.

    Examples
    --------
    >>> gap = Gap()
    >>> [gap.penalty(norm) for norm in (0.0, 2.0, 2.0, 4.0)]
    [1.0, 1.0, 2.0, 3.0]
    """

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def penalty(self, norm: float) -> float:
        """Return the penalty of a norm, and remember the norm."""
        penalty = 1.0 + norm * self.count / self.total if self.count else 1.0
        if norm > 0.0:
            self.total, self.count = self.total + norm, self.count + 1
        return penalty

    def state_dict(self) -> dict[str, Any]:
        """Return sum and number of the norms."""
        return {"total": self.total, "count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with these norms."""
        self.total, self.count = float(state["total"]), int(state["count"])


class CO2(Rounds):
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
    model, optimizer, group, inner_group, waiting, link
        See :class:`~densing.efficiency.parallel.data_parallel.rounds.Rounds`.
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
        warmup_rounds: int = 0,
        group: dist.ProcessGroup | None = None,
        inner_group: dist.ProcessGroup | None = None,
        waiting: Waiting = nullcontext,
        link: Link | None = None,
    ) -> None:
        if gap not in get_args(GapMode):
            raise UnknownNameError("gap", str(gap), get_args(GapMode))
        self.gap: GapMode = gap
        self.outer_lr = number("outer_lr", outer_lr, 0.0, strict=True)
        self.outer_momentum = number("outer_momentum", outer_momentum, 0.0, 1.0)
        self.clip = None if clip is None else number("clip", clip, 0.0, strict=True)
        self.gap_penalty = number("gap_penalty", gap_penalty, 0.0, strict=True)
        self.warmup_rounds = whole("warmup_rounds", warmup_rounds, 0)
        super().__init__(model, optimizer, tau, group=group, inner_group=inner_group, waiting=waiting, link=link)
        self.anchor = self.flat.read()
        self.previous, self.momentum = self.anchor.clone(), self.flat.zeros()
        # One element more: the anchor's last way travels along, so that all ranks divide by the same number.
        self._buffer = self.flat.zeros(1)
        self._handle: Handle | None = None
        self._gaps = Gap()

    @property
    def under_way(self) -> bool:
        """Whether an average has been started and not yet applied."""
        return self._handle is not None

    def state_dict(self) -> dict[str, Any]:
        """Return what continues bit by bit, in mid-round too.

        An average under way is waited for, and stored as it will be applied at the end of the round. Every rank saves
        its own state: ranks differ in mid-round.
        """
        if self._handle is not None:
            self._arrive(self._handle)
            self._handle = Handle(None)
        tensors = {"anchor": self.anchor, "previous": self.previous, "momentum": self.momentum, "average": self._buffer}
        more = {"under_way": self.under_way, "gaps": self._gaps.state_dict()}
        return {**super().state_dict(), **tensors, **more}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken; load model and optimizer as well.

        Raises
        ------
        InputError
            When the state is another method's, or of another tau or model.
        """
        super().load_state_dict(state)
        for name, into in (("anchor", self.anchor), ("previous", self.previous), ("momentum", self.momentum)):
            self._restore(state, name, into)
        self._restore(state, "average", self._buffer)
        self._gaps.load_state_dict(state["gaps"])
        # What was under way had arrived when it was saved: a handle without work is done.
        self._handle = Handle(None) if state["under_way"] else None

    def _end_round(self) -> None:
        if self.round < self.warmup_rounds:
            self.anchor.copy_(self._average())
            self.flat.write(self.anchor)
            return
        self._apply()
        self._live_parameters(self._buffer[:-1])
        self._buffer[-1] = torch.linalg.vector_norm(self.anchor - self.previous)
        self.flat.write(self.anchor)
        self._handle = self.link.start(self._buffer)

    def _drain(self) -> None:
        if self._handle is not None:
            self._apply()
            self.flat.write(self.anchor)

    def _arrive(self, handle: Handle) -> None:
        self.link.arrive(handle, self._buffer)
        self._timed(handle)

    def _apply(self) -> None:
        """Move the anchor by the average started a round ago; keep the anchor that the next average began from."""
        if self._handle is None:
            self.previous.copy_(self.anchor)
            return
        handle, self._handle = self._handle, None
        self._arrive(handle)
        self._check_finite(self._buffer)
        penalty = self.gap_penalty if self.gap == "constant" else self._gaps.penalty(float(self._buffer[-1]))
        # In place of the average, which is no longer needed: no fifth copy.
        pseudo_gradient = torch.sub(self.previous, self._buffer[:-1], out=self._buffer[:-1]).div_(penalty)
        self.momentum.mul_(self.outer_momentum).add_(pseudo_gradient)
        if self.clip is not None:
            self.momentum.clamp_(-self.clip, self.clip)
        # The next average began from this anchor: it is what its pseudo-gradient is taken against, a round from now.
        self.previous.copy_(self.anchor)
        self.anchor.sub_(self.momentum, alpha=self.outer_lr)

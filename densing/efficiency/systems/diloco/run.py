"""DiLoCo around a model and its optimizer, whole or in fragments that arrive late."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist

from densing.core import InputError
from densing.efficiency.parallel import Handle, Link, Rounds, Waiting, number, whole


class DiLoCo(Rounds):
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
    model, optimizer, group, inner_group, waiting, link
        See :class:`~densing.efficiency.parallel.data_parallel.rounds.Rounds`.
    tau : int
        Steps between two outer steps of a parameter; ``fragments`` divides it.
    outer_lr : float
        alpha.
    outer_momentum : float
        beta, from 0 to below 1.
    fragments : int
        F.
    delay : int
        Steps for which a fragment's mean travels, fewer than tau/F.
    mix : float
        Share of its own parameters that a rank keeps when a mean arrives, from 0 to below 1.

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
        fragments: int = 1,
        delay: int = 0,
        mix: float = 0.0,
        group: dist.ProcessGroup | None = None,
        inner_group: dist.ProcessGroup | None = None,
        waiting: Waiting = nullcontext,
        link: Link | None = None,
    ) -> None:
        turn = steps_of_a_turn(tau, fragments, delay)
        self.outer_lr = number("outer_lr", outer_lr, 0.0, strict=True)
        self.outer_momentum = number("outer_momentum", outer_momentum, 0.0, 1.0)
        self.mix = number("mix", mix, 0.0, 1.0)
        self.delay = delay
        super().__init__(model, optimizer, turn, group=group, inner_group=inner_group, waiting=waiting, link=link)
        if fragments > self.flat.numel:
            raise InputError(f"fragments={fragments}: the model has {self.flat.numel} parameters; give fewer")
        self.anchor, self.momentum = self.flat.read(), self.flat.zeros()
        ends = [self.flat.numel * part // fragments for part in range(fragments + 1)]
        self.fragments = [slice(*pair) for pair in pairwise(ends)]
        self._buffer = self.anchor.new_zeros(max(part.stop - part.start for part in self.fragments))
        self._handle: Handle | None = None
        self._at = 0
        """The fragment under way."""

    def advance(self) -> None:
        """Count a step; a mean that has travelled for ``delay`` steps is waited for first."""
        if self._handle is not None and self.count + 1 >= self.delay:
            self._apply()
        super().advance()

    def state_dict(self) -> dict[str, Any]:
        """Return what continues bit by bit, in mid-round too; a mean under way is waited for, and stored as arrived."""
        if self._handle is not None:
            self._arrive(self._handle)
            self._handle = Handle(None)
        tensors = {"anchor": self.anchor, "momentum": self.momentum, "mean": self._buffer}
        under_way = self._at if self._handle is not None else -1
        return {**super().state_dict(), **tensors, "fragments": len(self.fragments), "under_way": under_way}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken; load model and optimizer as well.

        Raises
        ------
        InputError
            When the state is another method's, or of another tau, model or number of fragments.
        """
        super().load_state_dict(state)
        if state.get("fragments") != len(self.fragments):
            raise InputError(
                f"the state was saved with fragments={state.get('fragments')!r}, but this run has "
                f"fragments={len(self.fragments)}"
            )
        for name, into in (("anchor", self.anchor), ("momentum", self.momentum), ("mean", self._buffer)):
            self._restore(state, name, into)
        under_way = int(state["under_way"])
        self._handle, self._at = (Handle(None), under_way) if under_way >= 0 else (None, 0)

    def _end_round(self) -> None:
        # Where others' data end first, a round ends before its mean was due.
        if self._handle is not None:
            self._apply()
        self._at = self.round % len(self.fragments)
        self._mean().copy_(self._live_parameters()[self.fragments[self._at]])
        self._handle = self.link.start(self._mean())
        if not self.delay:
            self._apply()

    def _drain(self) -> None:
        if self._handle is not None:
            self._apply()
        if len(self.fragments) > 1 or self.delay or self.mix:
            # Ranks differ in what took no outer step just now.
            self.flat.write(self._average())

    def _mean(self) -> torch.Tensor:
        part = self.fragments[self._at]
        return self._buffer[: part.stop - part.start]

    def _arrive(self, handle: Handle) -> None:
        self.link.arrive(handle, self._mean())
        self._timed(handle)

    def _apply(self) -> None:
        """Take the outer step of the fragment under way, and put it into the live parameters."""
        assert self._handle is not None
        handle, self._handle = self._handle, None
        self._arrive(handle)
        mean, part = self._mean(), self.fragments[self._at]
        self._check_finite(mean)
        anchor, momentum = self.anchor[part], self.momentum[part]
        change = torch.sub(anchor, mean, out=mean)
        momentum.mul_(self.outer_momentum).add_(change)
        anchor.sub_(change.add_(momentum, alpha=self.outer_momentum), alpha=self.outer_lr)
        live = self.flat.read()
        live[part].mul_(self.mix).add_(anchor, alpha=1.0 - self.mix)
        self.flat.write(live)


def steps_of_a_turn(tau: int, fragments: int, delay: int) -> int:
    """Return the steps between the outer steps of two fragments.

    Raises
    ------
    InputError
        When the fragments do not divide tau, or a mean would travel for longer than that.

    Examples
    --------
    >>> steps_of_a_turn(100, 4, 5)
    25
    """
    whole("tau", tau, 1)
    whole("fragments", fragments, 1)
    whole("delay", delay, 0)
    if tau % fragments:
        raise InputError(f"fragments={fragments}: must divide tau={tau}")
    turn = tau // fragments
    if delay >= turn:
        raise InputError(f"delay={delay}: must be below the {turn} steps between two fragments (tau / fragments)")
    return turn

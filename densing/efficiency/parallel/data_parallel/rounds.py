"""Rounds: tau steps of the user's optimizer, then something with the other ranks.

:class:`Rounds` is what :class:`~densing.efficiency.parallel.Outer` shares with clients that average no weights (SpaFL).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from densing.core import InputError
from densing.efficiency.parallel.data_parallel.flat import floating_buffers
from densing.efficiency.parallel.data_parallel.link import Link, Waiting, start_alike
from densing.efficiency.parallel.data_parallel.options import whole
from densing.efficiency.parallel.data_parallel.state import check_label, label
from densing.efficiency.parallel.distributed import Handle


class Rounds(ABC):
    """Counts steps and ends a round after every ``tau`` of them.

    At construction every rank gets parameters and buffers of the group's first rank. Frozen parameters are left
    alone from then on. Floating-point buffers (running means of batch normalisation) are each rank's own during
    training and are averaged by :meth:`finish`.

    Ranks may have different numbers of batches: each calls :meth:`finish` when it has no more, and takes part in the
    others' rounds until all have come there. So that nobody waits for a rank that trains no more, three numbers travel
    beside every average: ranks that end a round, their steps, and these times the learning rate.

    Parameters
    ----------
    model, optimizer
        The user's own; the optimizer's state is never touched.
    tau : int
        Steps in a round.
    group : ProcessGroup or DeviceMesh, optional
        Ranks that average parameters; all by default. Of a model that is sharded over the other dimension of a mesh
        (``fully_shard``) the ranks with the same shards.
    inner_group : ProcessGroup, optional
        Ranks that average gradients in every step, so that they stay equal; ``group`` then joins this rank with its
        peers of the other inner groups. The first rank of each averages parameters and hands them on. Its ranks need
        as many batches as each other.
    waiting : callable
        Gives a context put around every wait.
    link : Link, optional
        Instead of the group's: the end of a virtual rank.

    Raises
    ------
    InputError
        When tau is not a whole number from 1 up, the model cannot be averaged, or the optimizer is not the model's.
    """

    shards = False
    """Whether the model may be sharded over other ranks than those that average it."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        tau: int,
        *,
        group: dist.ProcessGroup | DeviceMesh | None = None,
        inner_group: dist.ProcessGroup | None = None,
        waiting: Waiting = nullcontext,
        link: Link | None = None,
    ) -> None:
        self.tau = whole("tau", tau, 1)
        if inner_group is not None and group is None:
            raise InputError("inner_group also needs group, this rank's peers in the other inner groups")
        self.model, self.optimizer = model, optimizer
        self.inner = None if inner_group is None else Link(inner_group, waiting)
        self.link = Link(group, waiting, within=self.inner) if link is None else link
        self.round = self.count = 0
        self.seconds: list[float] = []
        self._spoilt, self._inner_agrees = "", False
        links = [each for each in (self.inner, self.link) if each is not None]
        self.flat = start_alike(
            type(self).__name__, model, optimizer, links, sharded=self.shards and inner_group is None
        )
        # One element more: whether the rank takes a step.
        self._gradients = self.flat.zeros(1) if self.inner is not None and self.inner.size > 1 else None

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass; the plain one, kept for a common interface with methods that hook into it."""
        loss.backward()

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Take a step of the optimizer, and end the round after its last step.

        Returns
        -------
        What the optimizer's ``step`` gives.
        """
        if self._gradients is not None:
            self.flat.read_gradients(self._gradients)
            self._inner_mean(self._gradients, steps=True)
            self.flat.write_gradients(self._gradients)
            self._inner_agrees = True
        loss = self.optimizer.step(closure) if closure is not None else self.optimizer.step()
        self.advance()
        return loss

    def advance(self) -> None:
        """Count a step that the caller has taken (with a gradient scaler, say).

        Raises
        ------
        InputError
            With an inner group, whose gradients only :meth:`step` averages.
        """
        if self._gradients is not None and not self._inner_agrees:
            raise InputError(
                f"{type(self).__name__}: advance() averages no gradients inside the inner_group; take steps with "
                "step(), or leave inner_group out"
            )
        self._inner_agrees = False
        self.count += 1
        if self.count == self.tau:
            self._announce(ends=True)
            self._turn()

    def finish(self) -> None:
        """Wait for pending operations, and leave every rank with the same parameters.

        Every rank must call it, when it has no more batches; training may go on afterwards. While others still end
        rounds this rank takes part with the parameters it has, as in torch's ``join``: a rank without data counts as
        one that stays where it is, so every batch weighs the same. Rounds that were begun are ended early, by the same
        rule.

        Raises
        ------
        InputError
            On all ranks of an inner group whose ranks took different numbers of steps.
        """
        if self._gradients is not None:
            self._inner_mean(self._gradients.zero_(), steps=False)
        # As long as any rank ends a round, all take part in its average; a last turn ends rounds that were begun.
        ending = 1.0
        while ending:
            self.link.arrive(self._announce(ends=False), self._state)
            ending, steps = self._state[:2].tolist()
            if steps:
                self._turn()
        self._drain()
        for buffer in floating_buffers(self.model):
            self._settle(buffer)

    def figures(self) -> Mapping[str, float]:
        """Return rounds, tau and the median seconds of an averaging, from its start to its completion."""
        known = {"all_reduce_s": median(self.seconds)} if self.seconds else {}
        return {"rounds": float(self.round), "tau": float(self.tau), **known}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this wrapper; save those of model and optimizer separately.

        Tensors are the living ones, as in a state of torch: save or copy them before the next step.
        """
        counts = {"round": self.round, "count": self.count, "seconds": list(self.seconds)}
        return {**label(self, self.link), **self._settings(), **counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken, in mid-round too; load model and optimizer as well.

        Raises
        ------
        InputError
            When the state is another method's or rank's (on all ranks), or of another tau or model.
        """
        check_label(self, self.link, state)
        for name, value in self._settings().items():
            if state.get(name, value) != value:
                raise InputError(f"the state was saved with {name}={state[name]!r}, but this run has {name}={value!r}")
        self.round, self.count = int(state["round"]), int(state["count"])
        self.seconds = list(state["seconds"])

    def _settings(self) -> dict[str, Any]:
        """Return the options that a state and the run that loads it have in common."""
        return {"tau": self.tau}

    def _announce(self, ends: bool) -> Handle:
        """Start to announce whether this rank ends a round, and after how many steps.

        Whoever ends a round need not wait for it; it goes ahead of the average, which all then take part in.
        """
        steps, lr = float(self.count), float(self.optimizer.param_groups[0].get("lr", 0.0))
        self._state = torch.tensor([float(ends), steps, steps * lr], dtype=torch.float64, device=self.flat.device)
        self._announced = self.link.start(self._state, op="sum")
        return self._announced

    def _inner_mean(self, vector: torch.Tensor, *, steps: bool) -> None:
        assert self.inner is not None
        vector[-1] = float(steps)
        self.inner.mean(vector)
        share = float(vector[-1])
        if share != float(steps):
            stopped = round((1 - share) * self.inner.size)
            raise InputError(
                f"round {self.round}: {stopped} of the {self.inner.size} ranks of an inner group "
                "ran out of batches before the others; gradients of an inner group are averaged "
                "in every step, so give all its ranks the same number of batches (drop the rest)"
            )

    def _turn(self) -> None:
        self.flat.check()
        self._end_round()
        self.round, self.count = self.round + 1, 0

    @abstractmethod
    def _end_round(self) -> None:
        """Perform the method's update after tau steps."""

    def _drain(self) -> None:
        """Complete pending operations; nothing for blocking methods."""
        return

    def _settle(self, buffer: torch.Tensor) -> None:
        """Make a floating-point buffer equal on all ranks."""
        self.link.mean(buffer)

    def _average(self) -> torch.Tensor:
        """Return the mean of all ranks' live parameters (blocking)."""
        vector = self._live_parameters()
        self._timed(self.link.mean(vector))
        self._check_finite(vector)
        return vector

    def _live_parameters(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """Copy the live parameters, and record which are not finite: the next anchor overwrites them."""
        vector = self.flat.read(out)
        self._spoilt = "" if bool(torch.isfinite(vector).all()) else self.flat.not_finite()
        return vector

    def _timed(self, handle: Handle) -> None:
        if self.link.speaks and handle.seconds is not None:
            self.seconds.append(handle.seconds)

    def _check_finite(self, mean: torch.Tensor) -> None:
        """Stop on all ranks in the same round: whoever diverged has spoilt the mean for all."""
        if self.flat.all_finite(mean):
            return
        culprit = f"parameter {self._spoilt} of this rank" if self._spoilt else "the average, through another rank,"
        raise InputError(
            f"round {self.round}: {culprit} holds inf or NaN; lower the learning rate (or clip gradients), and go on "
            "from a checkpoint"
        )

    def _restore(self, state: Mapping[str, Any], name: str, into: torch.Tensor) -> None:
        stored = state.get(name)
        if not isinstance(stored, torch.Tensor) or stored.shape != into.shape:
            shape = tuple(stored.shape) if isinstance(stored, torch.Tensor) else None
            raise InputError(f"{name} of the state has shape {shape}, but this model needs {tuple(into.shape)}")
        into.copy_(stored)

"""PowerSGD: gradients of matrices as two thin factors; torch's own hook does it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from densing.core import InputError
from densing.efficiency.parallel import Link, Waiting, comm, sizes, whole

MEBIBYTE = 1024.0**2


class PowerSGD:
    """torch's ``DistributedDataParallel`` with its PowerSGD hook, error feedback and warm start on.

    The hook speaks with the other ranks by itself, so an emulated link would not see its bytes: it runs without a link
    or over a shaped one. All gradients are one bucket, which is full when the backward pass is over; what is waited for
    then is the hook's communication and its products.

    Source: Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization",
    arXiv 1905.13727, algorithm 1; ``torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook``.

    Parameters
    ----------
    model, optimizer, group, waiting
        See :class:`~densing.efficiency.systems.ddp.run.DDP`.
    rank : int
        Columns of the factors.
    start : int
        Steps that are averaged in full before; 2 or more, as torch demands.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        rank: int = 1,
        start: int = 2,
        group: dist.ProcessGroup | None = None,
        waiting: Waiting = nullcontext,
    ) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hooks

        whole("rank", rank, 1)
        whole("start", start, 2)
        self.optimizer, self.model = optimizer, model
        self.steps = self.resumed_at = 0
        self._shapes = [tuple(p.shape) for p in model.parameters() if p.requires_grad]
        self.rank = rank
        if Link(group, waiting).size > 1:
            if comm.emulated():
                raise InputError(
                    "powersgd: torch's hook bypasses an emulated link; use --link none, or run where interfaces can "
                    "be shaped"
                )
            # The hook waits for one collective within the callback of another, on a thread of gloo's two: two buckets
            # would wait for each other for ever.
            size = sum(p.numel() * p.element_size() for p in model.parameters())
            wrapped = DistributedDataParallel(
                model, process_group=group, bucket_cap_mb=2 + size / MEBIBYTE, gradient_as_bucket_view=True
            )
            state = hooks.PowerSGDState(group, matrix_approximation_rank=rank, start_powerSGD_iter=start)
            wrapped.register_comm_hook(state, _waited_for(hooks.powerSGD_hook, waiting))
            self.model = wrapped

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass, within which the hook exchanges factors."""
        loss.backward()

    def step(self) -> None:
        """Take a step of the optimizer."""
        self.optimizer.step()
        self.steps += 1

    def finish(self) -> None:
        """Do nothing: all ranks are equal after every step."""

    def figures(self) -> Mapping[str, float]:
        """Return what the factors weigh beside the gradients: counted from the shapes, as torch's hook cuts them."""
        full = sum(torch.Size(shape).numel() for shape in self._shapes)
        share = sum(sizes.factors(shape, self.rank) for shape in self._shapes) / full
        # A resumed run is not the unbroken one, and its record says so.
        return {"sent_share": share, **({"residuals_lost_at": float(self.resumed_at)} if self.resumed_at else {})}

    def state_dict(self) -> dict[str, Any]:
        """Return the steps taken; what the hook remembers is laid out by buckets that a new process cuts otherwise."""
        return {"steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with ``start`` full averages once more, and without the residuals: not bit by bit."""
        self.steps = self.resumed_at = int(state["steps"])


def _waited_for(hook: Any, waiting: Waiting) -> Any:
    """Return a hook that stands still itself, where the clock sees it; torch would wait right after it anyway."""

    def reduce(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future: torch.futures.Future[torch.Tensor] = hook(state, bucket)
        with waiting():
            future.wait()
        return future

    # DDP compares annotations as objects; in this module they are texts.
    reduce.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    return reduce

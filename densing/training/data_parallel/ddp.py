"""DDP: gradients averaged bucket by bucket while the backward pass goes on."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from densing.training.data_parallel.link import Link, Waiting
from densing.training.data_parallel.rounds import number
from densing.training.distributed import comm


class DDP:
    """torch's ``DistributedDataParallel``, with its reductions over our link and its wait where it can be seen.

    torch waits for its buckets inside the backward pass, in C++, where neither clock nor trace of gloo show it. Here
    a hook starts the reduction of a bucket, the gradients being views of it, and :meth:`backward` waits for the
    buckets as soon as the backward pass is over: the same operations at the same times, the wait on our side.

    Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", arXiv 2006.15704.

    Parameters
    ----------
    model, optimizer
        The user's own.
    bucket_mb : float
        Size of a bucket in MiB (2**20 bytes); torch's default is 25.
    group : ProcessGroup, optional
    waiting : callable
        Gives a context put around every wait.

    Attributes
    ----------
    model : torch.nn.Module
        To call in the forward pass, instead of the model that was given.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        bucket_mb: float = 25.0,
        group: dist.ProcessGroup | None = None,
        waiting: Waiting = nullcontext,
    ) -> None:
        self.inner, self.optimizer = model, optimizer
        self.link = Link(group, waiting)
        self._handles: list[comm.Handle] = []
        self._sent = 0
        size = number("bucket_mb", bucket_mb, 0.0, strict=True)
        self.model: torch.nn.Module = model
        if self.link.size > 1:
            wrapped = DistributedDataParallel(
                model, process_group=group, bucket_cap_mb=size, gradient_as_bucket_view=True
            )
            wrapped.register_comm_hook(None, _hook(self._start))
            self.model = wrapped

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass, then wait for the buckets that are still under way."""
        loss.backward()
        for handle in self._handles:
            self.link.wait(handle)
        self._sent += len(self._handles)
        self._handles.clear()

    def step(self) -> None:
        """Take a step of the optimizer."""
        self.optimizer.step()

    def finish(self) -> None:
        """Do nothing: all ranks are equal after every step."""

    def figures(self) -> Mapping[str, float]:
        """Return the number of buckets that were reduced."""
        return {"buckets": float(self._sent)}

    def state_dict(self) -> dict[str, Any]:
        """Return the counter; between steps nothing is under way."""
        return {"buckets": self._sent}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken."""
        self._sent = int(state["buckets"])

    def _start(self, bucket: torch.Tensor) -> None:
        bucket.div_(self.link.size)
        self._handles.append(comm.all_reduce(bucket, group=self.link.group))


def _hook(start: Any) -> Any:
    def reduce(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        start(bucket.buffer())
        # The gradients are views of this buffer: DDP has nothing to copy, and need not wait.
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    # DDP compares annotations as objects; in this module they are texts.
    reduce.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    return reduce

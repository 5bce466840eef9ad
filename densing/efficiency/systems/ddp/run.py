"""DDP: gradients averaged bucket by bucket during the backward pass."""

from __future__ import annotations

import copy
import gc
import statistics
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from densing.efficiency.parallel import Flat, Link, Waiting, comm, number


class DDP:
    """torch's ``DistributedDataParallel``, with its reductions over our link and its wait measurable.

    torch waits for its buckets inside the backward pass, in C++, where neither clock nor trace of gloo show it. Here
    a hook starts the reduction of a bucket, the gradients being views of it, and :meth:`backward` waits for the
    buckets as soon as the backward pass is over: the same operations at the same times, the wait on our side.

    Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", arXiv 2006.15704.

    Parameters
    ----------
    model, optimizer
        The user's own.
    bucket_mb : float, optional
        Size of a bucket in MiB (2**20 bytes). None is torch's own: 25, and 1 for the first one, which leaves early. A
        number, 25 too, is for all of them.
    group : ProcessGroup, optional
    waiting : callable
        Returns a context manager for every wait.
    link : Link, optional
        Instead of the group's: the end of a virtual rank, over which the gradients travel in one piece, because torch's
        buckets know process groups only.

    Attributes
    ----------
    model : torch.nn.Module
        The model to call in the forward pass instead of the user's.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        bucket_mb: float | None = None,
        group: dist.ProcessGroup | None = None,
        waiting: Waiting = nullcontext,
        link: Link | None = None,
    ) -> None:
        self.inner, self.optimizer = model, optimizer
        self.link = Link(group, waiting) if link is None else link
        self._handles: list[comm.Handle] = []
        self._sent = 0
        size = None if bucket_mb is None else number("bucket_mb", bucket_mb, 0.0, strict=True)
        self.bucket_mb, self.model = size, model
        self._flat = None if link is None else Flat(model)
        if self._flat is not None:
            self.link.copy_first([parameter.detach() for parameter in self._flat.parameters])
            self._gradients = self._flat.zeros()
        elif self.link.size > 1:
            wrapped = DistributedDataParallel(
                model, process_group=group, bucket_cap_mb=size, gradient_as_bucket_view=True
            )
            # Held weakly: the reducer keeps its hook where no garbage collector sees the circle.
            wrapped.register_comm_hook(None, _hook(weakref.WeakMethod(self._start)))
            self.model = wrapped

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass, then wait for the buckets that are still under way."""
        loss.backward()
        if self._flat is not None:
            self._flat.read_gradients(self._gradients)
            self.link.mean(self._gradients)
            self._flat.write_gradients(self._gradients)
            self._sent += 1
            return
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
        """Return the number of buckets that were reduced, and their size where it is not torch's default."""
        size = {} if self.bucket_mb is None else {"bucket_mb": self.bucket_mb}
        return {"buckets": float(self._sent), **size}

    def state_dict(self) -> dict[str, Any]:
        """Return the counter; between steps nothing is under way."""
        return {"buckets": self._sent}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken."""
        self._sent = int(state["buckets"])

    def _start(self, bucket: torch.Tensor) -> None:
        bucket.div_(self.link.size)
        self._handles.append(comm.all_reduce(bucket, group=self.link.group))


def _hook(start: weakref.WeakMethod[Callable[[torch.Tensor], None]]) -> Any:
    def reduce(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        method = start()
        assert method is not None, "the DDP wrapper was deleted; keep it while its model is trained"
        method(bucket.buffer())
        # The gradients are views of this buffer: DDP has nothing to copy, and need not wait.
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    # DDP compares annotations as objects; in this module they are texts.
    reduce.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    return reduce


def fastest_bucket(
    model: torch.nn.Module,
    loss: Callable[[torch.nn.Module], torch.Tensor],
    sizes: Sequence[float | None],
    *,
    repeats: int = 3,
    group: dist.ProcessGroup | None = None,
) -> float | None:
    """Return the bucket size with the fastest forward and backward pass.

    All ranks must call it. A size's time is the median of its repeats on the slowest rank; the model is left as it is.

    Parameters
    ----------
    model : torch.nn.Module
    loss : callable
        Runs the forward pass of the model it is given, and returns the loss.
    sizes : sequence of float or None
        MiB; None is torch's default.
    repeats : int
        After two passes that do not count: torch cuts its buckets anew after the first.
    group : ProcessGroup, optional
    """
    link = Link(group)
    if link.size == 1:
        return sizes[0]
    took = torch.empty(len(sizes), dtype=torch.float64)
    for at, size in enumerate(sizes):
        trial = DDP(copy.deepcopy(model), torch.optim.SGD([torch.zeros(1)]), bucket_mb=size, group=group)
        seconds = []
        for _ in range(2 + repeats):
            dist.barrier(group)
            began = time.perf_counter()
            trial.backward(loss(trial.model))
            trial.model.zero_grad()
            seconds.append(time.perf_counter() - began)
        took[at] = statistics.median(seconds[2:])
        del trial
        # A wrapped model is a circle; the next one needs its memory.
        gc.collect()
    # The slowest rank decides, and all of them must choose the same size.
    dist.all_reduce(took, dist.ReduceOp.MAX, group=group)
    return sizes[int(took.argmin())]

"""ZeRO stages 1 and 2: every rank keeps the optimizer's state, and from stage 2 gradients, of its own part only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist

from densing.core import InputError
from densing.efficiency.parallel import Link, Waiting, check_label, comm, label, number, start_alike

MIB = 2**20


class Sharded:
    """A sharded optimizer whose gradients are reduced bucket by bucket while the backward pass goes on.

    Each bucket of parameters is cut into equal parts, one per rank. A rank gets the mean gradient of its parts
    (reduce-scatter) and updates them, then the parameters are gathered. Stage 1 keeps a bucket's gradients until the
    update, stage 2 until they are reduced. The optimizer must work element by element (SGD, Adam, AdamW): it sees
    parts of buckets, not whole matrices.

    The parameters become views of their bucket, so that nothing is held twice: move or cast the model before, not
    after. The optimizer's parts are views of it as well where it is in float32, otherwise float32 copies.

    Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
    arXiv 1910.02054, section 5.

    Parameters
    ----------
    model : torch.nn.Module
    make : callable
        Makes the optimizer from an iterable of parameters.
    stage : {1, 2}
    bucket_mb : float
        Size of a bucket in MiB.
    group : ProcessGroup, optional
    waiting : callable
        Gives a context put around every wait.

    Raises
    ------
    InputError
        When the stage is another one, or the model cannot be flattened.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        make: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer],
        *,
        stage: int = 1,
        bucket_mb: float = 25.0,
        group: dist.ProcessGroup | None = None,
        waiting: Waiting = nullcontext,
    ) -> None:
        if stage not in (1, 2):
            raise InputError(f"stage={stage!r}: must be 1 or 2")
        self.model, self.stage, self.link = model, stage, Link(group, waiting)
        flat = start_alike(type(self).__name__, model, None, [self.link])
        limit = number("bucket_mb", bucket_mb, 0.0, strict=True) * MIB
        # Gradients come from the last parameter to the first.
        packed = _packed(reversed(flat.parameters), limit)
        self.buckets = [Bucket(parameters, self.link, keeps=stage == 1) for parameters in packed]
        for bucket in self.buckets:
            bucket.listen(self._reduced)
        self.most = 0
        self.optimizer = make([bucket.shard for bucket in self.buckets])

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass, then wait for the reductions that are still under way."""
        loss.backward()
        for bucket in self.buckets:
            bucket.collect()

    def _reduced(self) -> None:
        """When one more reduction has begun, drop what earlier ones no longer need."""
        bytes_held = sum(bucket.held for bucket in self.buckets)
        self.most = max(self.most, bytes_held)
        if self.stage == 2:
            for bucket in self.buckets:
                bucket.release()

    def step(self) -> None:
        """Update this rank's parts, then gather everyone's."""
        self.optimizer.step()
        for handle in [bucket.gather() for bucket in self.buckets]:
            self.link.wait(handle)

    def finish(self) -> None:
        """Do nothing: all ranks are equal after every step."""

    def figures(self) -> Mapping[str, float]:
        """Return the number of buckets, and the most bytes of gradients that were in buckets at a time."""
        return {"buckets": float(len(self.buckets)), "gradient_bytes": float(self.most)}

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's parts (the optimizer's masters, float32); the optimizer has its own state for them."""
        return {**label(self, self.link), "shards": [bucket.shard.detach() for bucket in self.buckets]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken, on as many ranks."""
        check_label(self, self.link, state)
        for bucket, stored in zip(self.buckets, state["shards"], strict=True):
            bucket.shard.detach().copy_(stored)


class Bucket:
    """Consecutive parameters whose gradients are reduced together; this rank updates one of n equal parts of them.

    Parameters
    ----------
    parameters : list of Parameter
        Of one type; they become views of ``values``.
    link : Link
    keeps : bool
        Keep all gradients until the update, this rank's mean among them.
    """

    def __init__(self, parameters: list[torch.nn.Parameter], link: Link, *, keeps: bool) -> None:
        self.parameters, self.link, self.keeps = parameters, link, keeps
        numel = sum(p.numel() for p in parameters)
        self.part = -(-numel // link.size)
        first = parameters[0]
        self.values = torch.zeros(self.part * link.size, dtype=first.dtype, device=first.device)
        for view, parameter in self._views(self.values):
            view.copy_(parameter.detach())
            parameter.data = view
        self.shard = torch.nn.Parameter(self._mine(self.values).float())
        self._all: torch.Tensor | None = None
        self._mean = self.values[:0]
        self._handle: comm.Handle | None = None
        self._ready = 0

    @property
    def held(self) -> int:
        """Bytes of gradients held now."""
        gradients = self._mean if self._all is None else self._all
        return gradients.numel() * gradients.element_size()

    def listen(self, on_start: Callable[[], None]) -> None:
        """Reduce the bucket as soon as all its gradients are there, and tell when that has begun."""

        def arrived(_: torch.Tensor) -> None:
            self._ready += 1
            if self._ready == len(self.parameters):
                self._reduce()
                on_start()

        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(arrived)

    def release(self) -> None:
        """Drop the whole gradients if they have been reduced."""
        if self._all is not None and self._handle is not None and self._handle.done():
            self._handle.wait()
            # The operation holds its input as well.
            self._mean, self._all, self._handle = self._mean.clone(), None, comm.Handle(None)

    def collect(self) -> None:
        """Wait for the mean of this rank's part, and give it to the optimizer.

        A parameter that took no part in the loss has gradient 0.
        """
        if self._handle is None:
            self._reduce()
        assert self._handle is not None
        self.link.wait(self._handle)
        mean = self._mean if self.keeps or self._all is None else self._mean.clone()
        self.shard.grad, self._handle, self._all, self._mean = mean.float(), None, None, self.values[:0]
        self._ready = 0

    def gather(self) -> comm.Handle:
        """Start to collect all parts of the parameters."""
        mine = self._mine(self.values)
        # In float32 it is the same memory.
        mine.copy_(self.shard.detach())
        if self.link.size == 1:
            return comm.Handle(None)
        return comm.all_gather_into(self.values, mine, group=self.link.group)

    def _reduce(self) -> None:
        self._all = torch.zeros_like(self.values)
        for view, parameter in self._views(self._all):
            if parameter.grad is not None:
                view.copy_(parameter.grad)
            # From here on the gradient lives in the bucket only.
            parameter.grad = None
        self._mean, self._handle = self._mine(self._all), comm.Handle(None)
        if self.link.size > 1:
            self._handle = comm.reduce_scatter_into(self._mean, self._all, op="mean", group=self.link.group)

    def _mine(self, vector: torch.Tensor) -> torch.Tensor:
        return vector[self.link.rank * self.part : (self.link.rank + 1) * self.part]

    def _views(self, vector: torch.Tensor) -> Iterable[tuple[torch.Tensor, torch.nn.Parameter]]:
        begin = 0
        for parameter in self.parameters:
            yield vector[begin : begin + parameter.numel()].view(parameter.shape), parameter
            begin += parameter.numel()


def _packed(parameters: Iterable[torch.nn.Parameter], limit: float) -> list[list[torch.nn.Parameter]]:
    """Put consecutive parameters of a type into buckets of at most ``limit`` bytes, a larger one alone."""
    packed: list[list[torch.nn.Parameter]] = []
    size = limit + 1.0
    for parameter in parameters:
        count = parameter.element_size() * parameter.numel()
        size += count
        if size > limit or parameter.dtype != packed[-1][-1].dtype:
            packed.append([])
            size = count
        packed[-1].append(parameter)
    return packed

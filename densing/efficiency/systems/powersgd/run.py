"""PowerSGD: gradients of matrices as two thin factors; torch's own hook does it."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from densing.core import InputError
from densing.efficiency.parallel import Link, Waiting, check_label, comm, label, start_alike, whole
from densing.efficiency.simulation import sizes

MEBIBYTE = 1024.0**2


class PowerSGD:
    """torch's ``DistributedDataParallel`` with its PowerSGD hook, error feedback and warm start on.

    The hook speaks with the other ranks by itself, so an emulated link would not see its bytes: it runs without a link
    or over a shaped one. All gradients are one bucket, which is full when the backward pass is over; what is waited for
    then is the hook's communication and its products.

    Source: Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization",
    arXiv 1905.13727, algorithm 1; ``torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook``.

    What the hook remembers is stored by tensor, because a resumed process cuts its bucket in another order at first. A
    resumed run is the unbroken one to the last bit between two ranks; between more, the order of a sum may differ in
    the first step.

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
        self.optimizer, self.model, self.rank = optimizer, model, rank
        self.link = Link(group, waiting)
        self.flat = start_alike(type(self).__name__, model, optimizer, [self.link])
        self.steps, self._bad = 0, False
        self._shapes = [tuple(p.shape) for p in self.flat.parameters]
        self._number = {id(parameter): number for number, parameter in enumerate(self.flat.parameters)}
        # The order of tensors in the hook's memory; the scaler, and the scale that is in its residuals.
        self._order = tuple(range(len(self._shapes)))
        self._scaler: torch.amp.GradScaler | None = None
        self._scale = 1.0
        self._hook: Any = None
        if self.link.size > 1:
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
            self._hook = hooks.PowerSGDState(group, matrix_approximation_rank=rank, start_powerSGD_iter=start)
            # Held weakly: the reducer keeps its hook where no garbage collector sees the circle.
            wrapped.register_comm_hook(self._hook, _waited_for(weakref.WeakMethod(self._reduce)))
            self.model = wrapped

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass, within which the hook exchanges factors."""
        loss.backward()

    def step(self, scaler: torch.amp.GradScaler | None = None) -> None:
        """Take a step of the optimizer.

        Parameters
        ----------
        scaler : GradScaler, optional
            Of a loss in half precision, the same in every step; call its ``update`` afterwards. Where any rank's
            gradient overflows the step is skipped on all of them, and the hook's residuals stay as they are.

        Raises
        ------
        InputError
            On all ranks, where any has a gradient that is inf or NaN, without a scaler.
        """
        self._scaler = scaler
        if scaler is not None:
            scaler.step(self.optimizer)
        elif self._bad:
            raise InputError(
                f"step {self.steps}: a rank's gradient holds inf or NaN; lower the learning rate (or clip the loss), "
                "and go on from a checkpoint; of a scaled loss give step() the scaler, which skips the step"
            )
        else:
            self.optimizer.step()
        self.steps += not self._bad

    def finish(self) -> None:
        """Do nothing: all ranks are equal after every step."""

    def figures(self) -> Mapping[str, float]:
        """Return what the factors weigh beside the gradients: counted from the shapes, as torch's hook cuts them."""
        full = sum(torch.Size(shape).numel() for shape in self._shapes)
        return {"sent_share": sum(sizes.factors(shape, self.rank) for shape in self._shapes) / full}

    def state_dict(self) -> dict[str, Any]:
        """Return the steps taken, and what the hook remembers, tensor by tensor; every rank has its own residuals."""
        own: dict[str, Any] = {**label(self, self.link), "steps": self.steps, "scale": self._scale}
        if self._hook is None:
            return own
        kind, keys, position, filled, cached = self._hook.rng.get_state()
        own["random"] = [kind, keys.tolist(), int(position), int(filled), float(cached)]
        own["passes"] = self._hook.iter
        if 0 in self._hook.error_dict:
            own["residuals"] = self._by_tensor(self._hook.error_dict[0], self._order, self._sizes(whole=True))
            own["factors"] = self._by_tensor(self._hook.q_memory_dict[0], self._factors(self._order), self._sizes())
        return own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken; load model and optimizer as well.

        Raises
        ------
        InputError
            When the state is another method's, rank's (on all ranks) or model's.
        """
        check_label(self, self.link, state)
        self.steps, self._scale = int(state["steps"]), float(state["scale"])
        if self._hook is None:
            return
        kind, keys, position, filled, cached = state["random"]
        self._hook.rng.set_state((kind, np.array(keys, dtype=np.uint32), position, filled, cached))
        self._hook.iter = int(state["passes"])
        self._order = tuple(range(len(self._shapes)))
        for memory in (self._hook.error_dict, self._hook.p_memory_dict, self._hook.q_memory_dict):
            memory.clear()
        if "residuals" not in state:
            return
        stored = [part.numel() for part in state["residuals"]], [part.numel() for part in state["factors"]]
        if stored != (self._sizes(whole=True), self._sizes()):
            raise InputError(f"{type(self).__name__}: the state is of another model, or of factors of another rank")
        self._fill(state["residuals"], state["factors"])

    def _reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Run torch's hook, and undo what it remembers of gradients that are not finite."""
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hooks

        memory = self._hook
        order = tuple(self._number[id(parameter)] for parameter in bucket.parameters())
        if order != self._order and 0 in memory.error_dict:
            residuals = self._by_tensor(memory.error_dict[0], self._order, self._sizes(whole=True))
            factors = self._by_tensor(memory.q_memory_dict[0], self._factors(self._order), self._sizes())
            self._order = order
            self._fill(residuals, factors)
        self._order = order
        scale = 1.0 if self._scaler is None else self._scaler.get_scale()
        if scale != self._scale and 0 in memory.error_dict:
            memory.error_dict[0] = memory.error_dict[0] * (scale / self._scale)
        self._scale = scale
        residual, factors = memory.error_dict.get(0), memory.q_memory_dict.get(0)
        kept = None if factors is None else factors.clone()
        future: torch.futures.Future[torch.Tensor] = hooks.powerSGD_hook(memory, bucket)
        with self.link.waiting():
            # Factors and means are sums over all ranks: what one rank spoils is not finite on any.
            self._bad = not bool(torch.isfinite(future.wait()).all())
        if self._bad and residual is not None:
            memory.error_dict[0], memory.q_memory_dict[0] = residual, kept
        elif self._bad:
            for each in (memory.error_dict, memory.p_memory_dict, memory.q_memory_dict):
                each.clear()
        return future

    def _fill(self, residuals: Sequence[torch.Tensor], factors: Sequence[torch.Tensor]) -> None:
        """Lay out what the hook remembers in the order of its bucket."""
        first, memory = self.flat.parameters[0], self._hook
        chosen = [torch.cat([residuals[at].flatten() for at in self._order])]
        chosen.append(torch.cat([first.new_zeros(0), *(factors[at].flatten() for at in self._factors(self._order))]))
        memory.error_dict[0], memory.q_memory_dict[0] = (part.to(first.device, first.dtype) for part in chosen)
        rows = sum(self._matrix(at)[0] * self._columns(at) for at in self._factors(self._order))
        # Written before it is read: only its size is remembered.
        memory.p_memory_dict[0] = first.new_empty(rows)

    def _columns(self, at: int) -> int:
        """Return a tensor's columns of factors; 0 where the hook sends it whole."""
        rows, columns = self._matrix(at)
        rank = min(rows, columns, self.rank)
        return rank if (rows + columns) * rank * self._hook.min_compression_rate < rows * columns else 0

    def _matrix(self, at: int) -> tuple[int, int]:
        """Return the shape in which the hook sees a tensor; a single number has no rows, and is sent whole."""
        shape = self._shapes[at]
        return (shape[0], math.prod(shape[1:])) if shape else (1, 1)

    def _factors(self, order: Sequence[int]) -> list[int]:
        """Return which tensors have factors, in the order in which the hook keeps them: those of a shape together."""
        shapes: dict[tuple[int, int], list[int]] = {}
        for at in order:
            if self._columns(at):
                shapes.setdefault(self._matrix(at), []).append(at)
        return [at for those in shapes.values() for at in those]

    def _sizes(self, *, whole: bool = False) -> list[int]:
        """Return the elements of every tensor, or of its second factor."""
        if whole:
            return [math.prod(shape) for shape in self._shapes]
        return [self._columns(at) * self._matrix(at)[1] for at in range(len(self._shapes))]

    def _by_tensor(self, memory: torch.Tensor, order: Sequence[int], sizes: Sequence[int]) -> list[torch.Tensor]:
        """Return the parts of a memory in the order of the model's tensors; empty where a tensor has none in it."""
        parts = dict(zip(order, memory.split([sizes[at] for at in order]), strict=True))
        return [parts.get(at, memory[:0]).clone() for at in range(len(sizes))]


def _waited_for(reduce_bucket: weakref.WeakMethod[Callable[..., torch.futures.Future[torch.Tensor]]]) -> Any:
    """Return a hook that stands still itself, where the clock sees it; torch would wait right after it anyway."""

    def reduce(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        method = reduce_bucket()
        assert method is not None, "the wrapper was deleted; keep it while its model is trained"
        return method(bucket)

    # DDP compares annotations as objects; in this module they are texts.
    reduce.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    return reduce

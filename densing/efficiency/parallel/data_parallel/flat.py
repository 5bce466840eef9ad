"""The trainable parameters of a model as one vector."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from densing.core import InputError

FINE = -1
"""Stands for a tensor's number if all are finite."""


class Flat:
    """Reads the live parameters into a float32 vector, and writes such a vector back.

    Parameters
    ----------
    model : torch.nn.Module
        Its parameters with ``requires_grad``; shared ones count once.
    across : sequence of int, optional
        Ranks that hold the same shards as this one, where the model may be sharded (``fully_shard``): the vector is
        then of this rank's shards. None: it may not.

    Attributes
    ----------
    sharded : bool
        Whether there are any such parameters.

    Raises
    ------
    InputError
        When nothing can be trained, the model is wrapped by torch's own data parallelism, or parameters lie on several
        devices, are sharded and may not or over ranks of ``across``, or are not real floating-point numbers.

    Examples
    --------
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> flat = Flat(model)
    >>> flat.write(torch.tensor([3.0, 4.0]))
    >>> flat.read()
    tensor([3., 4.])
    """

    def __init__(self, model: nn.Module, across: Sequence[int] | None = None) -> None:
        _refuse_wrapped(model, across)
        self.model = model
        self.parameters = tuple(_trainable(model))
        self.sharded = any(hasattr(parameter, "device_mesh") for parameter in self.parameters)
        self._shapes = self._now(self.parameters)
        self.numel = sum(local(p).numel() for p in self.parameters)
        if not any(p.numel() for p in self.parameters):
            raise InputError("the model has no parameters with requires_grad=True, so there is nothing to average")
        devices = {p.device for p in self.parameters}
        if len(devices) > 1:
            names = ", ".join(sorted(map(str, devices)))
            raise InputError(f"the model lies on {len(devices)} devices ({names}); move it to one device per process")
        odd = {str(p.dtype) for p in self.parameters if not p.dtype.is_floating_point}
        if odd:
            raise InputError(f"parameters of {', '.join(sorted(odd))} cannot be averaged; use a floating-point model")
        self.device = devices.pop()

    def zeros(self, extra: int = 0) -> torch.Tensor:
        """Return a float32 vector as long as all parameters, and ``extra``."""
        return torch.zeros(self.numel + extra, dtype=torch.float32, device=self.device)

    def read(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """Copy the live parameters into ``out``, or into a new vector."""
        out = self.zeros() if out is None else out
        for part, parameter in zip(self.split(out), self.parameters, strict=True):
            part.copy_(local(parameter))
        return out

    def write(self, vector: torch.Tensor) -> None:
        """Copy a vector into the live parameters."""
        with torch.no_grad():
            for part, parameter in zip(self.split(vector), self.parameters, strict=True):
                local(parameter).copy_(part)

    def read_gradients(self, out: torch.Tensor) -> None:
        """Copy the gradients into ``out``; 0 where there is none."""
        for part, parameter in zip(self.split(out), self.parameters, strict=True):
            part.zero_() if parameter.grad is None else part.copy_(parameter.grad)

    def write_gradients(self, vector: torch.Tensor) -> None:
        """Replace the gradients."""
        for part, parameter in zip(self.split(vector), self.parameters, strict=True):
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(part)

    def split(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Return views of a vector, one per parameter and of its shape."""
        views, begin = [], 0
        for shape, _, _ in self._shapes:
            size = torch.Size(shape).numel()
            views.append(vector[begin : begin + size].view(shape))
            begin += size
        return views

    def tensors(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Return views of a vector, one per tensor of the model: of a copy in a stack its matrices, not its one row."""
        shapes = getattr(self.model, "tensor_shapes", None)
        if shapes is None:
            return self.split(vector)
        sizes = [torch.Size(shape).numel() for shape in shapes]
        return [part.view(shape) for part, shape in zip(vector.split(sizes), shapes, strict=True)]

    def tensor_name(self, number: int) -> str:
        """Return the name of one of :meth:`tensors`."""
        if getattr(self.model, "tensor_shapes", None) is not None:
            return str(self.model.tensor_names[number])
        return [name for name, parameter in self.model.named_parameters() if parameter.requires_grad][number]

    def first_not_finite(self, vector: torch.Tensor) -> int:
        """Return which of a vector's :meth:`tensors` is the first to hold inf or NaN; :data:`FINE` where none does."""
        if bool(torch.isfinite(vector).all()):
            return FINE
        return next(at for at, part in enumerate(self.tensors(vector)) if not bool(part.isfinite().all()))

    def check(self) -> None:
        """Refuse a model whose parameters have changed.

        Raises
        ------
        InputError
            When parameters were added, removed, replaced, frozen, moved or given another shape or type.
        """
        now = tuple(_trainable(self.model))
        same = len(now) == len(self.parameters) and all(a is b for a, b in zip(now, self.parameters, strict=True))
        if not same or self._shapes != self._now(now):
            raise InputError(
                "the model's trainable parameters have changed since the start (added, removed, "
                "replaced, frozen, moved or cast); change the model before wrapping it"
            )

    def check_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse an optimizer that trains parameters of another model, or none of this one.

        Raises
        ------
        InputError
        """
        own = {id(p) for p in self.model.parameters()}
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        foreign = sum(id(p) not in own for p in parameters)
        if foreign or not parameters:
            content = f"{foreign} parameter(s) that are not the model's" if foreign else "no parameters"
            raise InputError(f"the optimizer holds {content}; create it from model.parameters() of the same model")

    def not_finite(self) -> str:
        """Return the name of the first parameter that holds inf or NaN; empty if all are finite."""
        names = {id(p): name for name, p in self.model.named_parameters()}
        bad = (p for p in self.parameters if not bool(torch.isfinite(local(p)).all()))
        first = next(bad, None)
        return "" if first is None else names[id(first)]

    def all_finite(self, vector: torch.Tensor) -> bool:
        """Return whether a vector holds no inf or NaN; of a sharded model, on all ranks that hold shards of it."""
        return bool(self._over_shards(torch.isfinite(vector).logical_not().sum().double()) == 0)

    def norm(self, vector: torch.Tensor) -> torch.Tensor:
        """Return a vector's Euclidean norm; of a sharded model that of all shards."""
        if not self.sharded:
            return torch.linalg.vector_norm(vector)
        squares = {True: torch.zeros((), device=self.device), False: torch.zeros((), device=self.device)}
        for part, parameter in zip(self.split(vector), self.parameters, strict=True):
            squares[hasattr(parameter, "device_mesh")] += part.square().sum()
        return (self._over_shards(squares[True]) + squares[False]).sqrt()

    def _over_shards(self, number: torch.Tensor) -> torch.Tensor:
        """Return the sum of a number over the ranks that hold this rank's shards' other parts."""
        if not self.sharded:
            return number
        first: Any = next(parameter for parameter in self.parameters if hasattr(parameter, "device_mesh"))
        for dimension, placement in enumerate(first.placements):
            if placement.is_shard():
                dist.all_reduce(number, group=first.device_mesh.get_group(dimension))
        return number

    def _now(self, parameters: Iterable[nn.Parameter]) -> list[tuple[tuple[int, ...], torch.dtype, torch.device]]:
        return [(tuple(local(p).shape), p.dtype, p.device) for p in parameters]


def floating_buffers(model: nn.Module) -> list[torch.Tensor]:
    """Return buffers that can be averaged (running means of batch normalisation; no counters)."""
    return [b for b in model.buffers() if b.dtype.is_floating_point and b.numel()]


def _refuse_wrapped(model: nn.Module, across: Sequence[int] | None) -> None:
    """Refuse a model whose gradients or parameters torch already spreads over ranks or devices."""
    wrapper = next((m for m in model.modules() if isinstance(m, DataParallel | DistributedDataParallel)), None)
    if wrapper is not None:
        kind = type(wrapper).__name__
        raise InputError(
            f"the model is wrapped in {kind}, whose gradients are averages already: local steps would not be local, "
            f"and gradients would be averaged twice; give the model without {kind}, and call that one in the loop"
        )
    # FSDP2 turns parameters into DTensors; FSDP, a wrapper, hides them in flat ones.
    meshes: list[Any] = [parameter.device_mesh for parameter in model.parameters() if hasattr(parameter, "device_mesh")]
    if type(model).__name__ == "FullyShardedDataParallel" or (meshes and across is None):
        raise InputError(
            "the model is sharded by FSDP, so a rank holds parts of tensors only; give the whole model (with "
            "ZeroRedundancyOptimizer inside a node, and inner_group and group from split_groups, rounds still shard "
            "the optimizer's state), or shard it by fully_shard(model, mesh=mesh['inner']) and take LocalSGD, SlowMo, "
            "CO2, DiLoCo or Outer without a codec and with group=mesh['outer']"
        )
    for mesh in meshes:
        shared = set(mesh.mesh.flatten().tolist()) & set(across or ())
        if len(shared) > 1:
            raise InputError(
                f"the model is sharded over ranks {sorted(shared)}, which are also to average it; make a mesh of two "
                "dimensions, shard over one, fully_shard(model, mesh=mesh['inner']), and give the other one as "
                "group=mesh['outer']"
            )


def local(parameter: torch.Tensor) -> torch.Tensor:
    """Return a parameter's elements on this rank, without gradient: of a DTensor its shard; memory is shared."""
    shard: Any = parameter.detach()
    return shard.to_local() if hasattr(shard, "to_local") else shard


def _trainable(model: Any) -> Iterable[nn.Parameter]:
    return (p for p in model.parameters() if p.requires_grad)

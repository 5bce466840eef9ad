"""States of ranks: whose they are, and all of a rank's in one value, for checkpoints that many ranks share."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from densing.core import InputError
from densing.efficiency.parallel.data_parallel.link import Link


def label(method: Any, link: Link) -> dict[str, Any]:
    """Return what a state says of itself: the method, the rank and the number of ranks it is of."""
    return {"method": type(method).__name__, "rank": link.rank, "ranks": link.size}


def check_label(method: Any, link: Link, state: Mapping[str, Any]) -> None:
    """Refuse a state that is not this rank's own of this method; every rank must call it.

    Raises
    ------
    InputError
        On all ranks, where the state of any is of another method, rank or number of ranks.
    """
    name, problem = type(method).__name__, ""
    if state.get("method") != name:
        problem = f"{name}: the state was saved by {state.get('method') or 'something else'}; load one of {name}"
    elif state.get("ranks") != link.size:
        problem = (
            f"{name}: the state was saved by one of {state.get('ranks')} ranks, and this run has {link.size}; resume "
            "on as many"
        )
    elif state.get("rank") != link.rank:
        problem = (
            f"{name}: rank {link.rank} was given the state of rank {state.get('rank')}. Ranks differ between averages, "
            "and torch.distributed.checkpoint keeps one rank's copy of what all save under one name; save a "
            "densing.training.RankState in place of model, optimizer and method"
        )
    problem = link.agree(problem)
    if problem:
        raise InputError(problem)


class RankState:
    """Model, optimizer and method of this rank as one value under the rank's own name, for shared checkpoints.

    Between two averages ranks have parameters, optimizer states and residuals of their own. What all of them save under
    one name, ``torch.distributed.checkpoint`` takes for copies of one thing, and keeps one of them. This object has
    the interface of its ``Stateful``: give it to ``save`` and ``load``, instead of the three. A run resumed from it is
    the unbroken one to the last bit, in mid-round too, on as many ranks.

    Parameters
    ----------
    method
        A wrapper of :mod:`densing.training`, with its model and its optimizer; or a hook of
        :func:`~densing.training.ddp_hook`, with both among the rest.
    **more
        Whatever else has ``state_dict`` and ``load_state_dict``: a learning rate's schedule, a gradient scaler.

    Examples
    --------
    >>> import torch.distributed.checkpoint as dcp
    >>> from densing.efficiency.systems import CO2
    >>> model = torch.nn.Linear(2, 1)
    >>> co2 = CO2(model, torch.optim.SGD(model.parameters(), lr=0.1), tau=2)
    >>> progress = RankState(co2)
    >>> # dcp.save({"progress": progress}, checkpoint_id="checkpoints/step100")
    >>> # dcp.load({"progress": progress}, checkpoint_id="checkpoints/step100")
    >>> list(progress.state_dict())
    ['rank0']
    """

    def __init__(self, method: Any, **more: Any) -> None:
        self.method = method
        # The method last: it may put parameters of its own in the place of the model's.
        own = {name: getattr(method, name) for name in ("model", "optimizer") if hasattr(method, name)}
        self.parts = {**own, **more, "method": method}

    def state_dict(self) -> dict[str, bytes]:
        """Return everything that the next step depends on, torch's generators of random numbers with it, as bytes."""
        random = {"cpu": torch.get_rng_state()}
        states = {name: part.state_dict() for name, part in self.parts.items()}
        if self._is_sharded:
            states = {name: _localized(state) for name, state in states.items()}
        if torch.cuda.is_initialized():
            random["cuda"] = torch.cuda.get_rng_state()
        stream = io.BytesIO()
        torch.save({"random": random, **states}, stream)
        return {self._name: stream.getvalue()}

    def load_state_dict(self, state: Mapping[str, bytes]) -> None:
        """Continue where :meth:`state_dict` was taken; every rank must call it.

        Raises
        ------
        InputError
            On all ranks, when the state is another method's, model's or number of ranks'.
        """
        missing = f"the checkpoint has no state of {self._name}; resume on as many ranks"
        problem = self.method.link.agree("" if state.get(self._name) else missing)
        if problem:
            raise InputError(problem)
        self.restore(unpacked(state[self._name]))

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continue from a rank's state as :func:`unpacked` returns it; every rank must call it."""
        check_label(self.method, self.method.link, saved["method"])
        for name, part in self.parts.items():
            part.load_state_dict(_sharded(part, saved[name]) if self._is_sharded else saved[name])
        torch.set_rng_state(saved["random"]["cpu"])
        if "cuda" in saved["random"]:
            torch.cuda.set_rng_state(saved["random"]["cuda"])

    @property
    def _name(self) -> str:
        # Where a model is sharded, ranks of several groups have states of their own.
        return f"rank{dist.get_rank() if self._is_sharded else self.method.link.rank}"

    @property
    def _is_sharded(self) -> bool:
        flat = getattr(self.method, "flat", None)
        return flat is not None and bool(flat.sharded)


def unpacked(data: bytes) -> dict[str, Any]:
    """Return a rank's state from the bytes of :meth:`RankState.state_dict`."""
    # Tensors and plain values only: a checkpoint is data, never code.
    saved: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return saved


def _localized(state: Any) -> Any:
    """Return a state with the shard of this rank in place of every DTensor."""
    if isinstance(state, Mapping):
        return {key: _localized(value) for key, value in state.items()}
    if isinstance(state, list):
        return [_localized(value) for value in state]
    return state.to_local() if hasattr(state, "to_local") else state


def _sharded(part: Any, state: Any) -> Any:
    """Return a model's or optimizer's state with DTensors where it has them now; :func:`_localized` backwards."""
    if isinstance(part, torch.nn.Module):
        now = part.state_dict()
        return {name: _like(value, now.get(name)) for name, value in state.items()}
    if not isinstance(part, torch.optim.Optimizer):
        return state
    parameters = [parameter for group in part.param_groups for parameter in group["params"]]
    memory = {
        number: {name: _like(value, parameters[number]) for name, value in each.items()}
        for number, each in state["state"].items()
    }
    return {**state, "state": memory}


def _like(value: Any, other: Any) -> Any:
    """Return a shard as a DTensor like another one; what is no shard of it (a counter of steps) as it is."""
    if not hasattr(other, "to_local") or not isinstance(value, torch.Tensor) or value.shape != other.to_local().shape:
        return value
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        value.to(other.device), other.device_mesh, other.placements, run_check=False, shape=other.shape,
        stride=other.stride(),
    )  # fmt: skip

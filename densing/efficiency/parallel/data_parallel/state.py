"""States of ranks: whose they are, and all of a rank's in one value, for checkpoints that many ranks share."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import torch

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
        if torch.cuda.is_initialized():
            random["cuda"] = torch.cuda.get_rng_state()
        stream = io.BytesIO()
        torch.save({"random": random, **{name: part.state_dict() for name, part in self.parts.items()}}, stream)
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
            part.load_state_dict(saved[name])
        torch.set_rng_state(saved["random"]["cpu"])
        if "cuda" in saved["random"]:
            torch.cuda.set_rng_state(saved["random"]["cuda"])

    @property
    def _name(self) -> str:
        return f"rank{self.method.link.rank}"


def unpacked(data: bytes) -> dict[str, Any]:
    """Return a rank's state from the bytes of :meth:`RankState.state_dict`."""
    # Tensors and plain values only: a checkpoint is data, never code.
    saved: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return saved

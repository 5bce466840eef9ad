"""PowerSGD: gradients of matrices as two thin factors; torch's own hook does it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from densing.core import InputError
from densing.efficiency.parallel.codecs.sizes import factors
from densing.efficiency.parallel.data_parallel.link import Link, Waiting
from densing.efficiency.parallel.data_parallel.rounds import whole
from densing.efficiency.parallel.distributed import comm


class PowerSGD:
    """torch's ``DistributedDataParallel`` with its PowerSGD hook, error feedback and warm start on.

    The hook speaks with the other ranks by itself, inside the backward pass: its waits are not on our clock, and an
    emulated link would not see its bytes, so it runs without a link or over a shaped one.

    Source: Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization",
    arXiv 1905.13727, algorithm 1; ``torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook``.

    Parameters
    ----------
    model, optimizer, group, waiting
        See :class:`~densing.efficiency.parallel.DDP`.
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
        self.steps = 0
        self._shapes = [tuple(p.shape) for p in model.parameters() if p.requires_grad]
        self._state: Any = None
        self.rank, self.start = rank, start
        if Link(group, waiting).size > 1:
            if comm.emulated():
                raise InputError(
                    "powersgd: torch's hook bypasses an emulated link; use --link none, or run where interfaces can "
                    "be shaped"
                )
            wrapped = DistributedDataParallel(model, process_group=group)
            self._state = hooks.PowerSGDState(group, matrix_approximation_rank=rank, start_powerSGD_iter=start)
            wrapped.register_comm_hook(self._state, hooks.powerSGD_hook)
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
        return {"sent_share": sum(factors(shape, self.rank) for shape in self._shapes) / full}

    def state_dict(self) -> dict[str, Any]:
        """Return the hook's memory: residuals, last factors, the count of its steps."""
        if self._state is None:
            return {"steps": self.steps}
        state = self._state
        memory = {name: dict(getattr(state, name)) for name in ("error_dict", "p_memory_dict", "q_memory_dict")}
        _, keys, position, has_gauss, cached = state.rng.get_state()
        random = {
            "keys": torch.from_numpy(keys.astype("int64")),
            "rest": [int(position), int(has_gauss), float(cached)],
        }
        return {"steps": self.steps, "iter": int(state.iter), "random": random, **memory}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken."""
        self.steps = int(state["steps"])
        if self._state is None:
            return
        for name in ("error_dict", "p_memory_dict", "q_memory_dict"):
            getattr(self._state, name).update(state[name])
        self._state.iter = int(state["iter"])
        keys = state["random"]["keys"].numpy().astype("uint32")
        self._state.rng.set_state(("MT19937", keys, *state["random"]["rest"]))

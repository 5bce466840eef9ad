"""Train a small decoder split over all ranks, by any of the tensor-parallel schedules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from densing.core import UnknownNameError
from densing.efficiency.parallel.distributed import Clock, RunEnv, RunRecord, mean_loss, run
from densing.efficiency.parallel.tensor_parallel.model import build_part, cut_dimension, prefill_loss, train_loss
from densing.efficiency.parallel.tensor_parallel.schedules import Schedule
from densing.efficiency.parallel.tensor_parallel.tape import Exchange

Mode = Literal["train", "prefill"]


def train_tensor_parallel(env: RunEnv, schedule: Schedule, *, mode: Mode = "train", stand_in: str = "") -> RunRecord:
    """Train the decoder of ``env.spec``, one part of it on this rank; all ranks are one tensor-parallel group.

    Parameters
    ----------
    env : RunEnv
    schedule : Schedule
        What a technique brings (``TensorParallelRun.schedule`` in ``densing.efficiency.systems.planner``).
    mode : {'train', 'prefill'}
        ``prefill``: forward passes only, as in inference's first one; the weights stay as they were drawn.
    stand_in : str
        What the run is instead of the technique itself; the record says so.

    Returns
    -------
    RunRecord
        ``extra``, per step of this process: ``comm_s`` (seconds from the start to the end of each all-reduce, added
        up; above ``wait_s`` where they ran under compute), ``ar_count``, ``ar_bytes`` (of their buffers);
        ``forward_only`` is 1 with ``prefill``.

    Raises
    ------
    InputError
        When the ranks cannot share the model, or the schedule its sequence.
    """
    if mode not in get_args(Mode):
        raise UnknownNameError("mode", mode, get_args(Mode))
    return run(env, lambda clock: TensorTrainee(env, schedule, clock, mode, stand_in))


class TensorTrainee:
    """This rank's part of a decoder with its optimizer; every rank reads the same data.

    Parameters
    ----------
    env : RunEnv
    schedule : Schedule
    clock : Clock
    mode : {'train', 'prefill'}
    stand_in : str
    """

    data_rank = 0
    data_ranks = 1

    def __init__(self, env: RunEnv, schedule: Schedule, clock: Clock, mode: Mode = "train", stand_in: str = "") -> None:
        spec = env.spec
        schedule.parts(spec.sequence)
        self._schedule, self._mode = schedule, mode
        self._device = torch.device(spec.device)
        self._exchange = Exchange(waiting=clock.waiting, alone=env.world_size == 1)
        # Evaluation goes through the model's own edges, whose all-reduces are not part of any step.
        edges = Exchange(alone=env.world_size == 1)
        part = build_part(spec.model, spec.sequence, spec.seed, schedule, edges, rank=env.rank, parts=env.world_size)
        self._decoder = part.to(self._device)
        self._optimizer = torch.optim.AdamW(self._decoder.parameters(), lr=spec.lr)
        self._steps = 0
        self.parameters = count_parameters(self._decoder.state_dict(), env.world_size)
        self.stand_in = stand_in

    def step(self, batch: Tensor) -> float:
        """Take one step on int64 tokens (batch, sequence + 1); return the loss, nats per token."""
        batch = batch.to(self._device)
        self._steps += 1
        if self._mode == "prefill":
            return prefill_loss(self._decoder, self._schedule, self._exchange, batch)
        loss = train_loss(self._decoder, self._schedule, self._exchange, batch)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return loss

    def finish(self) -> None:
        """Do nothing: no sum outlives its step, and the parts are one model already."""

    def evaluate(self, batches: Iterable[Tensor]) -> float:
        """Return the mean loss over batches, nats per token; NaN without any."""
        return mean_loss(self._decoder, batches, self._device)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's part and its optimizer's state."""
        return {"decoder": self._decoder.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken, on the same rank of as many."""
        self._decoder.load_state_dict(state["decoder"])
        self._optimizer.load_state_dict(state["optimizer"])

    def figures(self) -> Mapping[str, float]:
        """Return the all-reduces' count, bytes and seconds per step, and whether the steps were forward passes only."""
        steps = max(self._steps, 1)
        exchange = self._exchange
        return {
            "comm_s": exchange.seconds / steps,
            "ar_count": exchange.count / steps,
            "ar_bytes": exchange.bytes / steps,
            "forward_only": float(self._mode == "prefill"),
        }


def count_parameters(state: Mapping[str, Tensor], parts: int) -> int:
    """Return the parameters of the whole model, from one rank's part.

    Examples
    --------
    >>> count_parameters({"norm.weight": torch.ones(4), "blocks.0.mlp.up.weight": torch.ones(3, 4)}, parts=2)
    28
    """
    return sum(weight.numel() * (1 if cut_dimension(name) is None else parts) for name, weight in state.items())

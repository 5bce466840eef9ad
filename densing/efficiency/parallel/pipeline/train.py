"""Train a small decoder cut into stages, one per rank: one forward one backward over micro-batches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from densing.core import InputError
from densing.efficiency.parallel.distributed import (
    Clock,
    RunEnv,
    RunRecord,
    build_lm,
    comm,
    cross_entropy,
    run,
    workload_of,
)
from densing.efficiency.parallel.pipeline.coding import codings
from densing.efficiency.parallel.pipeline.edges import Edge
from densing.efficiency.parallel.pipeline.stage import Stage
from densing.efficiency.parallel.pipeline.turns import Turn, one_forward_one_backward
from densing.efficiency.simulation import stages

AHEAD = 2
"""Turns whose input is received ahead: in the steady state the next of each direction."""

FINE = 0.0
ILLS = ("activations", "loss", "gradients")
"""What may first hold inf or NaN, in the order of a pass."""


def train_pipeline(
    env: RunEnv,
    *,
    micro_batches: int = 4,
    cuts: Sequence[int] = (),
    codec: str = "dense",
    shares: Sequence[float] = (1.0,),
    refresh: int = 1,
    order: Sequence[int] = (),
) -> RunRecord:
    """Train the decoder of ``env.spec``, one stage of it on this rank.

    Every stage takes the same batch in micro-batches, one forward one backward in turn, and updates its own layers
    once all have passed. With ``dense`` the gradients are those of one process, up to the order in which micro-batches
    are summed.

    Parameters
    ----------
    env : RunEnv
    micro_batches : int
        Equal parts of the batch.
    cuts : sequence of int
        First layer of every stage after the first; empty: as even as can be.
    codec : str
        Of what is sent between stages: ``dense``, ``half``, ``int8``, ``topk``, ``threshold``; see
        :class:`~densing.efficiency.parallel.pipeline.coding.Coding`.
    shares : sequence of float
        Of the entries sent by ``topk`` and ``threshold``, in (0, 1]: one for all edges, or one each.
    refresh : int
        Packets between two renewals of a threshold.
    order : sequence of int
        The rank of every stage; empty: as numbered.

    Returns
    -------
    RunRecord
        ``extra``: ``packet_bytes``, sent by a rank per step (mean of the ranks that send); ``sent_share``, the same
        over those of all values in float32; ``edge0_activations``, ``edge0_gradients``, ...: bytes per step of an edge
        in a direction; ``coding_s``, seconds per step of encoding and decoding, where either was. ``final_loss`` is the
        whole model's: nothing is left out between its stages.

    Raises
    ------
    InputError
        On all ranks: when stages, cuts, order or micro-batches do not fit the model, the ranks or the batch, or
        something a stage made is inf or NaN.
    UnknownNameError
        For another codec.
    """
    return run(env, lambda clock: PipelineTrainee(env, clock, micro_batches, cuts, codec, shares, refresh, order))


class PipelineTrainee:
    """This rank's stage with its optimizer; every rank reads the same data."""

    data_rank = 0
    data_ranks = 1
    stand_in = ""

    def __init__(
        self,
        env: RunEnv,
        clock: Clock,
        micro_batches: int = 4,
        cuts: Sequence[int] = (),
        codec: str = "dense",
        shares: Sequence[float] = (1.0,),
        refresh: int = 1,
        order: Sequence[int] = (),
    ) -> None:
        spec, self.size = env.spec, env.world_size
        self.order = tuple(order) or tuple(range(self.size))
        if sorted(self.order) != list(range(self.size)):
            raise InputError(f"order {self.order}: must contain each rank from 0 to {self.size - 1} once")
        # What is counted below are stages.
        self.place = self.order.index(env.rank)
        if spec.device != "cpu":
            raise InputError(f"device {spec.device}: stages communicate by gloo, on CPUs only; leave --device out")
        workload = workload_of(
            spec.model, spec.batch, spec.sequence, pp=self.size, cuts=cuts, micro_batches=micro_batches
        )
        layers = [[module.layer for module in stage if module.name == "mlp"] for stage in stages(workload)]
        chosen = codings(self.size - 1, codec, shares, refresh)
        self.layers, self.turns = layers[self.place], one_forward_one_backward(self.place, self.size, micro_batches)
        self.micro_batches, self.waiting = micro_batches, clock.waiting
        whole = build_lm(spec.model, spec.sequence, spec.seed)
        self.parameters = sum(weight.numel() for weight in whole.parameters())
        self.stage = Stage(whole, self.layers, first=self.place == 0, last=self.place == self.size - 1)
        self.optimizer = torch.optim.AdamW(self.stage.parameters(), lr=spec.lr)
        like = torch.empty(spec.batch // micro_batches, spec.sequence, spec.model.hidden)
        self.dense = like.numel() * like.element_size()
        self.before = self.after = None
        if not self.stage.first:
            self.before = Edge(chosen[self.place - 1], self.order[self.place - 1], False, like, self.waiting)
        if not self.stage.last:
            self.after = Edge(chosen[self.place], self.order[self.place + 1], True, like, self.waiting)
        self.taken, self.coding_s, self.here = 0, 0.0, 0

    def step(self, batch: Tensor) -> float:
        """Take one step on int64 tokens (batch, sequence + 1); return the loss of the whole batch, nats per token."""
        passes = _Passes(self, batch.chunk(self.micro_batches))
        for at, turn in enumerate(self.turns):
            for soon in self.turns[at : at + 1 + AHEAD]:
                edge = self.before if soon.phase == "forward" else self.after
                if edge is not None:
                    edge.expect(soon.micro)
            passes.take(turn)
        for edge in self.edges:
            edge.finish()
        loss = self._agree(passes)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.taken += 1
        self.here += 1
        return loss

    @property
    def edges(self) -> list[Edge]:
        """The ends of edges that this stage holds."""
        return [edge for edge in (self.before, self.after) if edge is not None]

    def _agree(self, passes: _Passes) -> float:
        """Tell all ranks the loss, and whether anything went wrong."""
        mine = torch.tensor([passes.loss, passes.ill], dtype=torch.float64)
        every = mine
        if self.size > 1:
            every = mine.new_empty(2 * self.size)
            handle = comm.all_gather_into(every, mine)
            with self.waiting():
                handle.wait()
        losses, ills = every.view(-1, 2)[list(self.order)].t().tolist()
        if any(ill != FINE for ill in ills):
            # Passes go on past what is not finite: of all stages that made some, the first one is to be named.
            origin = min((ill, at if ill < len(ILLS) else -at, at) for at, ill in enumerate(ills) if ill)[-1]
            words = [self._diagnosis(passes.ill) if self.place == origin else ""]
            if self.size > 1:
                dist.broadcast_object_list(words, self.order[origin])
            raise InputError(words[0])
        return float(losses[-1])

    def _diagnosis(self, ill: float) -> str:
        bad = next((name for name, weight in self.stage.named_parameters() if not bool(weight.isfinite().all())), None)
        because = "" if bad is None else f" (its weight {bad} already does)"
        return (
            f"step {self.taken}: stage {self.place}, layers {self.layers[0]} to {self.layers[-1]}: its "
            f"{ILLS[int(ill) - 1]} hold inf or NaN{because}; lower the learning rate (--lr), go on from a checkpoint"
        )

    def finish(self) -> None:
        """Do nothing: no packet outlives its step, and the stages are one model already."""

    def evaluate(self, batches: Iterable[Tensor]) -> float:
        """Return the mean loss over batches, nats per token, the same on all ranks; NaN without any.

        Everything is sent, whatever the codec: it is the loss of the model that was trained, in one piece.
        """
        total, tokens = 0.0, 0
        with torch.no_grad():
            for batch in batches:
                entering = batch[:, :-1]
                if self.before is not None:
                    entering = torch.empty(*entering.shape, self.before.like.shape[-1])
                    comm.irecv(entering, self.before.peer).wait()
                leaving = self.stage(entering)
                if self.after is not None:
                    comm.isend(leaving, self.after.peer).wait()
                else:
                    total += float(cross_entropy(leaving, batch[:, 1:])) * batch[:, 1:].numel()
                tokens += batch[:, 1:].numel()
        mean = torch.tensor([total / tokens if tokens else math.nan], dtype=torch.float64)
        if self.size > 1:
            comm.broadcast(mean, self.order[-1]).wait()
        return float(mean)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's stage, its optimizer's state, and what its edges remember."""
        return {
            "stage": self.stage.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "edges": [edge.state_dict() for edge in self.edges],
            "taken": self.taken,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was taken, on the same rank of as many."""
        self.stage.load_state_dict(state["stage"])
        self.optimizer.load_state_dict(state["optimizer"])
        for edge, own in zip(self.edges, state["edges"], strict=True):
            edge.load_state_dict(own)
        self.taken = int(state["taken"])

    def figures(self) -> Mapping[str, float]:
        """Return bytes sent per step, by edge and direction too, and seconds of encoding and decoding."""
        if not (self.edges and self.taken):
            return {}
        sent = sum(edge.sent for edge in self.edges)
        figures = {
            "packet_bytes": sent / self.taken,
            "sent_share": sent / (self.dense * sum(edge.packets for edge in self.edges)),
            "coding_s": sum(edge.coding_s for edge in self.edges) / max(self.here, 1),
        }
        for edge in self.edges:
            name = f"edge{self.place}_activations" if edge.after else f"edge{self.place - 1}_gradients"
            figures[name] = edge.sent / self.taken
        return figures


class _Passes:
    """The passes of one step: what each micro-batch's forward pass leaves for its backward pass."""

    def __init__(self, trainee: PipelineTrainee, micros: Sequence[Tensor]) -> None:
        self.trainee, self.micros = trainee, micros
        self.loss, self.ill = 0.0, FINE
        self._held: dict[int, tuple[Tensor, Tensor]] = {}

    def take(self, turn: Turn) -> None:
        """Take a turn."""
        if turn.phase == "forward":
            self._forward(turn.micro)
        else:
            self._backward(turn.micro)

    def _forward(self, micro: int) -> None:
        trainee, tokens = self.trainee, self.micros[micro]
        entering = tokens[:, :-1]
        sound = True
        if trainee.before is not None:
            entering = trainee.before.take(micro).requires_grad_()
            sound = trainee.before.sound
        leaving = trainee.stage(entering)
        if trainee.after is not None:
            fine = trainee.after.send(micro, leaving.detach())
            self._note(1, sound and not fine)
        else:
            leaving = cross_entropy(leaving, tokens[:, 1:]) / trainee.micro_batches
            self.loss += float(leaving.detach())
            self._note(2, sound and not math.isfinite(self.loss))
        self._held[micro] = entering, leaving

    def _backward(self, micro: int) -> None:
        trainee = self.trainee
        entering, leaving = self._held.pop(micro)
        if trainee.after is None:
            leaving.backward()
            sound = bool(leaving.detach().isfinite())
        else:
            leaving.backward(trainee.after.take(micro))
            sound = trainee.after.sound
        if trainee.before is not None:
            assert entering.grad is not None
            fine = trainee.before.send(micro, entering.grad)
            self._note(3, sound and not fine)

    def _note(self, ill: int, arises: bool) -> None:
        """Remember the first thing that was not finite although all it was made of was."""
        if arises and self.ill == FINE:
            self.ill = float(ill)

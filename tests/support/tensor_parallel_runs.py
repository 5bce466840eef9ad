"""Ranks of a tensor-parallel group over gloo: a script for :func:`tests.support.gloo_ranks.ranks_of`.

Started with ``compute``: what every schedule computes, saved for comparison with one process; with ``train``: the runs
of ``FOLDER/spec.json``, records beside it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import torch

from densing.efficiency.parallel.distributed.spec import LmShape, RunEnv, RunSpec
from densing.efficiency.parallel.tensor_parallel.model import Pass, build_part, cross_entropy, train_loss
from densing.efficiency.parallel.tensor_parallel.schedules import Schedule
from densing.efficiency.parallel.tensor_parallel.tape import Exchange
from densing.efficiency.systems.registry import get_technique
from tests.support.gloo_ranks import fork_ranks
from tests.support.tensor_schedules import schedule_of

SHAPE = LmShape(layers=3, hidden=48, heads=6, ffn=48, vocabulary=64)
SEQUENCE = 11
SEED = 3
CASES = {
    "tensor-parallel": schedule_of("tensor-parallel"),
    "parallel-attention": schedule_of("parallel-attention"),
    "ladder": schedule_of("ladder"),
    "ladder of two layers": schedule_of("ladder", ladder_layers=2),
    "iso": schedule_of("iso"),
    "iso, uneven": schedule_of("iso", split=0.2),
    "t3, one tile": schedule_of("t3", tiles=1),
    "t3, five tiles": schedule_of("t3", tiles=5),
}


def batch() -> torch.Tensor:
    """The same on all ranks, and in the test."""
    return torch.randint(0, SHAPE.vocabulary, (2, SEQUENCE + 1), generator=torch.Generator().manual_seed(1))


def gradients(decoder: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.grad for name, weight in decoder.named_parameters()}


def case(schedule: Schedule, rank: int, world: int) -> dict[str, Any]:
    """Forward, forward and backward, and the same by plain autograd."""
    exchange = Exchange()
    decoder = build_part(SHAPE, SEQUENCE, SEED, schedule, exchange, rank=rank, parts=world)
    with torch.no_grad():
        logits = Pass(decoder, schedule, exchange, batch()[:, :-1]).logits
    forward = exchange.count, exchange.bytes
    loss = train_loss(decoder, schedule, exchange, batch())
    found = {"logits": logits, "loss": loss, "gradients": gradients(decoder), "forward": forward}
    found["sums"], found["seconds"] = exchange.count - forward[0], exchange.seconds
    decoder.zero_grad(set_to_none=True)
    plain = decoder(batch()[:, :-1])
    cross_entropy(plain, batch()[:, 1:]).backward()
    return {**found, "plain logits": plain.detach(), "plain gradients": gradients(decoder)}


def compute(rank: int, world: int) -> dict[str, Any]:
    torch.save({name: case(one, rank, world) for name, one in CASES.items()}, Path(sys.argv[-1]) / f"{rank}.pt")
    return {}


def trained(rank: int, world: int) -> dict[str, Any]:
    """One run after the other, as ``spec.json`` lists them."""
    folder = Path(sys.argv[-1])
    for number, spec in enumerate(msgspec.json.decode((folder / "spec.json").read_bytes(), type=list[RunSpec])):
        technique: Any = get_technique(spec.technique)
        record = technique.run(RunEnv(spec, rank, world), **spec.knobs)
        (folder / f"record.{number}.{rank}.json").write_bytes(msgspec.json.encode(record))
    return {}


if __name__ == "__main__":
    fork_ranks({"compute": compute, "train": trained}[sys.argv[1]])

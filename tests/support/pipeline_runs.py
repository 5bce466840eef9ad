"""Stages of a pipeline over gloo: a script for :func:`tests.support.gloo_ranks.ranks_of`.

Started with ``train``: the runs of ``FOLDER/spec.json``, records beside it, and steps in which a weight of one stage is
NaN; with ``torch``: the first run again, by ``torch.distributed.pipelining``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import torch

from densing.core.errors import InputError
from densing.efficiency.parallel.distributed.lm import batches, build_lm, cross_entropy, load_bytes
from densing.efficiency.parallel.distributed.loop import Clock
from densing.efficiency.parallel.distributed.spec import RunEnv, RunSpec
from densing.efficiency.parallel.pipeline.stage import Stage
from densing.efficiency.parallel.pipeline.train import PipelineTrainee, train_pipeline
from tests.support.gloo_ranks import fork_ranks

MICRO_BATCHES = 4


def specs() -> list[RunSpec]:
    return msgspec.json.decode((Path(sys.argv[-1]) / "spec.json").read_bytes(), type=list[RunSpec])


def batch_of(spec: RunSpec, step: int) -> torch.Tensor:
    return torch.from_numpy(batches(load_bytes(spec.corpus)[0], spec.batch, spec.sequence, spec.seed, 0, step))


def train(rank: int, world: int) -> dict[str, Any]:
    """One run after the other, as ``spec.json`` lists them; a refusal instead of a record where there is one."""
    said: dict[str, Any] = {}
    for number, spec in enumerate(specs()):
        try:
            record = train_pipeline(RunEnv(spec, rank, world), **spec.knobs)
        except InputError as error:
            said[str(number)] = str(error)
        else:
            (Path(sys.argv[-1]) / f"record.{number}.{rank}.json").write_bytes(msgspec.json.encode(record))
    return {**said, "poison": poison(rank, world)}


def poison(rank: int, world: int) -> dict[str, Any]:
    """Steps of one stage with a NaN among its weights: what every rank says of it."""
    said: dict[str, Any] = {}
    for codec in ("dense", "int8", "topk", "threshold"):
        spec = specs()[0]
        trainee = PipelineTrainee(RunEnv(spec, rank, world), Clock(), MICRO_BATCHES, (), codec, (0.5,), 2)
        trainee.step(batch_of(spec, 0))
        if rank == 1:
            with torch.no_grad():
                next(iter(trainee.stage.blocks.values())).mlp.up.weight[0, 0] = torch.nan
        try:
            trainee.step(batch_of(spec, 1))
        except InputError as error:
            said[codec] = str(error)
    return said


def torchs(rank: int, world: int) -> dict[str, Any]:
    """The losses of torch's own one-forward-one-backward on the same stages and batches, and ours."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    spec = specs()[0]
    ours = train_pipeline(RunEnv(spec, rank, world), **spec.knobs).losses
    per = spec.model.layers // world
    layers = range(rank * per, (rank + 1) * per)
    module = Stage(build_lm(spec.model, spec.sequence, spec.seed), layers, rank == 0, rank == world - 1)
    optimizer = torch.optim.AdamW(module.parameters(), lr=spec.lr)
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=cross_entropy)
    losses = []
    for step in range(spec.steps):
        batch, micros = batch_of(spec, step), []
        arguments = (batch[:, :-1],) if rank == 0 else ()
        schedule.step(*arguments, **({"target": batch[:, 1:], "losses": micros} if rank == world - 1 else {}))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if micros:
            losses.append(float(torch.stack(micros).mean()))
    return {"losses": losses, "ours": ours}


if __name__ == "__main__":
    fork_ranks({"train": train, "torch": torchs}[sys.argv[1]])

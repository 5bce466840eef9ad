"""Tokens per second of training an arm of the ladder: every rank by itself, ranks stacked, several seeds stacked too.

    python benchmarks/ladder.py [--sizes d8 d24] [--seeds 3] [--ranks 4] [--steps 40] [--repeats 3] [--json]

One process, one thread; the ways of a size take turns, and of each the best repeat counts. All train the same runs:
plain, each step a batch shared by the ranks. *One by one* calls a model of transformers for every rank of every seed;
*ranks stacked* is what `densing ladder train --arm` does, one run after the other; *seeds stacked* puts the copies of
all seeds into one tensor program. A ratio is tokens per second over those of the runs with stacked ranks. `apart` is
how far the losses of the stacked seeds are from those of the same runs trained one by one, and says that the work is
the same.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from densing.scores.ladder import Generated, arm_runs, get_preset
from densing.scores.ladder.stack import RowLoss, Stack, StackOptimizer
from densing.scores.ladder.trainer import ArmTrainer, batch_loss, build_model
from densing.tradeoff import read_arms, virtual_ranks

Step = Callable[[], list[float]]


def ranks_stacked(trainers: list[ArmTrainer]) -> Step:
    """Take a step of every run, one after the other, as the ladder does."""

    def step() -> list[float]:
        for trainer in trainers:
            trainer.take_step(0.5)
        return [float(trainer.loss) for trainer in trainers]

    return step


def one_by_one(trainers: list[ArmTrainer]) -> Step:
    """Take a step of every run, each of its ranks a model of transformers with an optimizer of its own."""
    ranks = [[_rank(trainer) for _ in range(trainer.arm.ranks)] for trainer in trainers]

    def step() -> list[float]:
        losses = []
        for trainer, pairs in zip(trainers, ranks, strict=True):
            batches = trainer.batch().chunk(len(pairs))
            each = [batch_loss(model, part, "float32") for (model, _), part in zip(pairs, batches, strict=True)]
            for loss in each:
                loss.backward()
            for together in zip(*(model.parameters() for model, _ in pairs), strict=True):
                mean = torch.stack([one.grad for one in together]).mean(0)
                for one in together:
                    one.grad.copy_(mean)
            for model, optimizer in pairs:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            trainer.taken(torch.stack(each).mean())
            losses.append(float(trainer.loss))
        return losses

    return step


def seeds_stacked(trainers: list[ArmTrainer]) -> Step:
    """Take a step of all runs at once: a row of one stack for every rank of every seed."""
    first = trainers[0]
    copies = first.arm.ranks
    stack = Stack(first.model, first.run.shape, copies * len(trainers), first.run.preset.precision)
    with torch.no_grad():
        stack.vector.copy_(torch.cat([trainer.stack.vector for trainer in trainers]))
    rows = stack.rows()
    optimizer = StackOptimizer(stack, rows, **_options(first))
    parts = [slice(copies * number, copies * (number + 1)) for number in range(len(trainers))]
    ranks = [virtual_ranks(first.arm, rows[part], optimizer.rows[part]) for part in parts]

    def step() -> list[float]:
        optimizer.rate(_rate(first))
        batch = torch.cat([trainer.batch() for trainer in trainers])
        losses = stack.losses(batch.view(len(rows), -1, batch.shape[1]))
        stack.vector.grad = None
        losses.sum().backward()
        gradient = stack.vector.grad
        for one, part in zip(ranks, parts, strict=True):
            one.backward([RowLoss(row, gradient[at]) for at, row in enumerate(rows[part], part.start)])
        optimizer.clip(1.0)
        for one in ranks:
            one.step()
        for trainer, part in zip(trainers, parts, strict=True):
            trainer.taken(losses[part].mean())
        return [float(trainer.loss) for trainer in trainers]

    return step


def _rank(trainer: ArmTrainer) -> tuple[Any, torch.optim.Optimizer]:
    run = trainer.run
    model = build_model(run.shape, run.corpus.vocabulary, run.preset.block, run.seed)
    options = {**_options(trainer), "lr": _rate(trainer)}
    return model, torch.optim.AdamW(model.parameters(), fused=True, **options)


def _options(trainer: ArmTrainer) -> dict[str, Any]:
    preset = trainer.run.preset
    return {"lr": preset.rate(trainer.run.shape), "betas": preset.betas, "weight_decay": preset.weight_decay}


def _rate(trainer: ArmTrainer) -> float:
    return 0.5 * trainer.run.preset.rate(trainer.run.shape)


WAYS = {"one by one": one_by_one, "ranks stacked": ranks_stacked, "seeds stacked": seeds_stacked}


def of_size(size: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the tokens per second of every way to train some seeds of a size."""
    preset, arms = get_preset("cpu"), read_arms(["plain"], options.ranks)
    runs = arm_runs(preset, Generated(), arms, sizes=[size], seeds=range(options.seeds))
    # Each way trains runs of its own, from the first step on.
    steps = {name: way([ArmTrainer(run, maker=virtual_ranks) for run in runs]) for name, way in WAYS.items()}
    for step in steps.values():
        for _ in range(options.warmup):
            step()
    best, losses = dict.fromkeys(WAYS, float("inf")), {}
    for _ in range(options.repeats):
        for name, step in steps.items():
            begin = time.perf_counter()
            for _ in range(options.steps):
                losses[name] = step()
            best[name] = min(best[name], time.perf_counter() - begin)
    tokens = options.steps * len(runs) * runs[0].shape.batch * preset.block
    speed = {name: tokens / seconds for name, seconds in best.items()}
    apart = np.abs(np.subtract(losses["seeds stacked"], losses["ranks stacked"])).max()
    ratios = {name: speed[name] / speed["ranks stacked"] for name in WAYS}
    return {"size": size, "tokens_per_second": speed, "ratio": ratios, "apart": float(apart)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["d8", "d24"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [of_size(size, options) for size in options.sizes]
    if options.json:
        print(json.dumps(rows))
        return
    for row in rows:
        ways = (f"{way} {row['tokens_per_second'][way]:,.0f} (x {row['ratio'][way]:.2f})" for way in WAYS)
        print(f"{row['size']:4} tokens per second: {'; '.join(ways)}; losses {row['apart']:.1e} apart")


if __name__ == "__main__":
    main()

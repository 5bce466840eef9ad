"""A rank that does little: what `launch` is tried with; run as `python -m train_toy OUT/spec.json`."""

from __future__ import annotations

import os
import sys
import time

import torch

from densing.core.errors import InputError
from densing.efficiency.parallel.distributed import comm, folder
from densing.efficiency.parallel.distributed.rank import Part, run_rank
from densing.efficiency.parallel.distributed.spec import RunEnv, RunRecord, RunSpec


def trip(env: RunEnv, step: int) -> None:
    """Fail as the knobs say: {"fail": "raise", "rank": 1, "at": 2}."""
    knobs = env.spec.knobs
    if env.rank != knobs.get("rank", 1) or step != knobs.get("at", 2):
        return
    match knobs.get("fail"):
        case "raise":
            raise ValueError("made to fail\nwith a second line")
        case "input":
            raise InputError("corpus.txt: made to fail; choose another")
        case "hang":
            time.sleep(1000)


def part(env: RunEnv) -> RunRecord:
    """All-reduce once per step."""
    knobs = env.spec.knobs
    tensor = torch.full((int(knobs.get("elements", 1000)),), float(env.rank))
    steps, waits, losses = [], [], []
    for step in range(env.spec.steps):
        began = time.perf_counter()
        trip(env, step)
        handle = comm.all_reduce(tensor, op="mean")
        time.sleep(knobs.get("pause", 0.0))
        waiting = time.perf_counter()
        handle.wait()
        now = time.perf_counter()
        steps.append(now - began)
        waits.append(now - waiting)
        losses.append(float(tensor[0]))
        folder.write_progress(env.spec.out, env.rank, step + 1)
    affinity = sorted(os.sched_getaffinity(0))
    extra = {"core": float(affinity[0]), "cores": float(len(affinity)), "threads": float(torch.get_num_threads())}
    return RunRecord(
        technique="toy",
        rank=env.rank,
        world_size=env.world_size,
        losses=tuple(losses),
        step_s=tuple(steps),
        wait_s=tuple(waits),
        tokens=1,
        final_loss=losses[-1],
        parameters=0,
        extra=extra,
    )


def find(spec: RunSpec) -> Part:
    """Return the part; fail before the ranks have met where the knobs say so."""
    if spec.knobs.get("fail") == "early" and os.environ["RANK"] == str(spec.knobs["rank"]):
        raise ValueError("made to fail before the others are met")
    return part


if __name__ == "__main__":
    run_rank(sys.argv[1], find)

"""Synthesised schedules executed by real gloo ranks, compared bit by bit with torch's own collectives."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from densing.core.errors import InputError
from densing.efficiency.systems.taccl.run import synthesised_for
from densing.efficiency.systems.taccl.schedule import Schedule, program, to_json
from densing.efficiency.systems.taccl.synthesis import synthesise
from densing.efficiency.systems.taccl.topology import Sketch, profile_topology
from tests.support.command import printed

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")

RANK = """
import json, os, sys
import torch, torch.distributed as dist
from datetime import timedelta
from densing.efficiency.systems.taccl import TACCL
from densing.efficiency.systems.taccl.schedule import execute
from densing.efficiency.systems.taccl.schedule import from_json
from densing.efficiency.parallel.distributed import comm
from densing.efficiency.parallel.distributed.spec import RunEnv, RunSpec

torch.set_num_threads(1)
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", timeout=timedelta(seconds=100))
found = {}
for op, count in (("all_gather", 1 << 12), ("all_reduce", 1 << 20)):
    env = RunEnv(RunSpec("taccl", nproc=world, steps=2, seed=7), rank, world)
    record = TACCL.run(env, op=op, bytes=count)
    assert len(record.step_s) == 2 and record.extra["builtin_s"] > 0
    found[f"{op} {count}"] = record.extra
# Lengths that no chunk divides, several chunks per rank, floats that are no whole numbers, and an int64 sum.
for texts, length in zip(json.loads(sys.argv[1]), (1, 1001, 10)):
    gather, reduce = map(from_json, texts)
    mine = torch.randn(length, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)
    gathered = torch.empty(world * length, dtype=torch.float64)
    dist.all_gather_into_tensor(gathered, mine)
    assert torch.equal(execute(gather, rank, mine, comm).view(torch.int64), gathered.view(torch.int64))
    whole = (mine * 1e6).long()
    summed, before = whole.clone(), whole.clone()
    dist.all_reduce(summed)
    assert torch.equal(execute(reduce, rank, whole, comm), summed)
    assert torch.equal(whole, before)
print(json.dumps(found))
dist.barrier()
dist.destroy_process_group()
"""


def ranks(world: int, code: str, argument: str) -> list[subprocess.Popen[str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world)}
    common["OMP_NUM_THREADS"] = "1"
    return [
        subprocess.Popen(
            [sys.executable, "-c", code, argument],
            env={**common, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]


def test_four_gloo_ranks_gather_and_sum_the_same_bits():
    topology = profile_topology("ndv2-1mb", 2, 2, "full")
    sketches = [Sketch("s", ((0, 1),), ((2, 4),), parts) for parts in (1, 2, 3)]
    both = ("all_gather", "all_reduce")
    schedules = [[to_json(synthesise(topology, op, sketch).schedule) for op in both] for sketch in sketches]
    running = ranks(4, RANK, json.dumps(schedules))
    try:
        ended = [process.communicate(timeout=200) for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0] * 4, ended[0][1][-2000:]
    for out, _ in ended:
        for extra in json.loads(out.splitlines()[-1]).values():
            assert extra["ours_s"] > 0
            assert extra["messages"] >= 1


def test_densing_train_runs_it(tmp_path):
    out = tmp_path / "run"
    command = ["train", "--technique", "taccl", "--nproc", "2", "--steps", "2", "--out", str(out), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "densing", *command], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = printed(done.stdout)
    assert found["technique"] == "taccl"
    assert "isend" in found["stand_in"]
    assert found["extra"]["ours_s"] > 0


@pytest.mark.parametrize("op", ["all_gather", "all_reduce"])
@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_programs_of_the_ranks_fit_together(op, world):
    """Replayed without a network: every message has its counterpart, in order, and nobody waits forever."""
    schedule = synthesised_for(op, world, 1 << 20)
    assert isinstance(schedule, Schedule)
    programs = {rank: list(program(schedule, rank)) for rank in range(world)}
    wires: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    place = dict.fromkeys(range(world), 0)
    moved = True
    while moved:
        moved = False
        for rank, steps in programs.items():
            while place[rank] < len(steps):
                step = steps[place[rank]]
                if step.kind == "send":
                    wires.setdefault((rank, step.peer), []).append(step.chunks)
                elif wires.get((step.peer, rank)):
                    assert wires[step.peer, rank].pop(0) == step.chunks
                else:
                    break
                place[rank] += 1
                moved = True
    assert all(place[rank] == len(steps) for rank, steps in programs.items())
    assert not any(wires.values())


def test_ranks_that_do_not_fill_nodes():
    with pytest.raises(InputError, match="nodes that divide them"):
        synthesised_for("all_gather", 4, 1024, nodes=3)
    with pytest.raises(InputError, match="1 ranks"):
        synthesised_for("all_gather", 1, 1024)

"""TACCL's schedules for real: one collective over isend and irecv, beside torch's own."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from densing.core import DensingError, InputError
from densing.efficiency.parallel import RunEnv, RunRecord, comm
from densing.efficiency.systems.taccl.schedule import Schedule, execute, from_json, to_json
from densing.efficiency.systems.taccl.synthesis import TOGETHER, synthesise
from densing.efficiency.systems.taccl.topology import profile_topology


def run_collective(
    env: RunEnv, *, op: str, count: int, nodes: int, together: int, time_limit: float, stand_in: str
) -> RunRecord:
    """Run a collective in every step, by the synthesised schedule and by torch's own, and compare them bit by bit."""
    schedule = _agreed(env, op, count, nodes, together, time_limit)
    elements = max(1, count // 4)
    generator = torch.Generator().manual_seed(env.spec.seed * 100_003 + env.rank)
    own_s, builtin_s = [], []
    for _ in range(max(1, env.spec.steps)):
        # Small whole numbers: sums are exact in any order.
        tensor = torch.randint(-1000, 1000, (elements,), generator=generator).to(torch.float32).to(env.spec.device)
        expected, seconds = _timed(_builtin, op, tensor, env.world_size)
        builtin_s.append(seconds)
        result, seconds = _timed(execute, schedule, env.rank, tensor, comm)
        own_s.append(seconds)
        if not torch.equal(result.view(torch.int32), expected.view(torch.int32)):
            raise DensingError(f"taccl: rank {env.rank}: the synthesised {op} differs from torch's own")
    messages = sum(env.rank in (send.src, send.dst) for send in schedule.sends)
    return RunRecord(
        technique=env.spec.technique,
        rank=env.rank,
        world_size=env.world_size,
        losses=(),
        step_s=tuple(own_s),
        wait_s=tuple(own_s),
        tokens=0,
        final_loss=0.0,
        parameters=0,
        stand_in=stand_in,
        extra={
            "ours_s": statistics.median(own_s),
            "builtin_s": statistics.median(builtin_s),
            "bytes": float(4 * elements),
            "profile_us": schedule.makespan,
            "messages": float(messages),
        },
    )


def synthesised_for(
    op: str, world: int, count: int, nodes: int = 0, together: int = TOGETHER, time_limit: float = 2.0
) -> Schedule:
    """Return the schedule that a run executes: ranks are taken for devices of NDv2 nodes, fast links within a node.

    The profile nearest in size is used; what the machine really is does not enter.

    Raises
    ------
    InputError
        When the nodes do not divide the ranks, or there is one rank only.
    """
    nodes = nodes or (2 if world >= 4 and world % 2 == 0 else 1)
    if world < 2 or world % nodes:
        raise InputError(f"taccl: {world} ranks on {nodes} nodes; give 2 ranks or more, and nodes that divide them")
    name = "ndv2-1kb" if count < 8 << 10 else "ndv2-32kb" if count < 256 << 10 else "ndv2-1mb"
    topology = profile_topology(name, nodes, world // nodes, "full")
    return synthesise(topology, op, together=together, time_limit=time_limit).schedule


def _agreed(env: RunEnv, op: str, count: int, nodes: int, together: int, time_limit: float) -> Schedule:
    """Rank 0 synthesises for all: a time limit may cut searches of different ranks at different points."""
    # A length first: the others make room for the document.
    text = b""
    if env.rank == 0:
        text = to_json(synthesised_for(op, env.world_size, count, nodes, together, time_limit)).encode()
    length = torch.tensor([len(text)], device=env.spec.device)
    comm.broadcast(length).wait()
    body = torch.zeros(int(length), dtype=torch.uint8, device=env.spec.device)
    if env.rank == 0:
        body[:] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    comm.broadcast(body).wait()
    return from_json(bytes(body.cpu().tolist()).decode())


def _builtin(op: str, tensor: torch.Tensor, world: int) -> torch.Tensor:
    if op == "all_reduce":
        result = tensor.clone()
        comm.all_reduce(result).wait()
        return result
    result = tensor.new_empty(world * tensor.numel())
    comm.all_gather_into(result, tensor).wait()
    return result


def _timed(work: Callable[..., torch.Tensor], *arguments: object) -> tuple[torch.Tensor, float]:
    dist.barrier()
    began = time.perf_counter()
    result = work(*arguments)
    return result, time.perf_counter() - began

"""A real run: one synthesised collective, over and over, beside torch's own."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

from densing.core import DensingError, InputError
from densing.efficiency.parallel import RunEnv, RunRecord
from densing.efficiency.techniques.taccl.execute import execute
from densing.efficiency.techniques.taccl.schedule import Schedule, from_json, to_json

if TYPE_CHECKING:
    import torch

STAND_IN = "the schedule of one collective over isend and irecv, not a training run"


def synthesised_for(
    op: str, world: int, count: int, nodes: int = 0, together: int = 6, time_limit: float = 2.0
) -> Schedule:
    """Return the schedule that a run executes: ranks are taken for devices of NDv2 nodes, fast links within a node.

    The profile nearest in size is used; what the machine really is does not enter.

    Raises
    ------
    InputError
        When the nodes do not divide the ranks, or there is one rank only.
    """
    from densing.efficiency.techniques.taccl.profiles import profile_topology
    from densing.efficiency.techniques.taccl.synthesis import synthesise

    nodes = nodes or (2 if world >= 4 and world % 2 == 0 else 1)
    if world < 2 or world % nodes:
        raise InputError(f"taccl: {world} ranks on {nodes} nodes; give 2 ranks or more, and nodes that divide them")
    name = "ndv2-1kb" if count < 8 << 10 else "ndv2-32kb" if count < 256 << 10 else "ndv2-1mb"
    topology = profile_topology(name, nodes, world // nodes, "full")
    return synthesise(topology, op, together=together, time_limit=time_limit).schedule


def run(env: RunEnv, op: str, count: int, nodes: int, together: int, time_limit: float) -> RunRecord:
    """Run the collective ``env.spec.steps`` times on this rank; every result is compared with torch's own, bit by bit.

    Returns
    -------
    RunRecord
        Without losses. ``step_s``: seconds of the synthesised collective, all of them waited for. ``extra``:
        ``ours_s``, ``builtin_s`` (medians), ``bytes``, ``messages`` of this rank, and ``profile_us``: what the schedule
        takes on the machine it was made for, which is not this one.

    Raises
    ------
    InputError
        When the ranks do not fill the nodes.
    DensingError
        When a result differs.
    """
    import torch

    from densing.efficiency.parallel import comm

    schedule = _agreed(env, op, count, nodes, together, time_limit)
    elements = max(1, count // 4)
    generator = torch.Generator().manual_seed(env.spec.seed * 100_003 + env.rank)
    ours, builtin = [], []
    for _ in range(max(1, env.spec.steps)):
        # Small whole numbers: sums are exact in any order.
        tensor = torch.randint(-1000, 1000, (elements,), generator=generator).to(torch.float32).to(env.spec.device)
        expected, seconds = _timed(lambda mine=tensor: _builtin(comm, op, mine, env.world_size))
        builtin.append(seconds)
        found, seconds = _timed(lambda mine=tensor: execute(schedule, env.rank, mine, comm))
        ours.append(seconds)
        if not torch.equal(found.view(torch.int32), expected.view(torch.int32)):
            raise DensingError(f"taccl: rank {env.rank}: the synthesised {op} differs from torch's own")
    messages = sum(env.rank in (send.src, send.dst) for send in schedule.sends)
    return RunRecord(
        technique="taccl",
        rank=env.rank,
        world_size=env.world_size,
        losses=(),
        step_s=tuple(ours),
        wait_s=tuple(ours),
        tokens=0,
        final_loss=0.0,
        parameters=0,
        stand_in=STAND_IN,
        extra={
            "ours_s": statistics.median(ours),
            "builtin_s": statistics.median(builtin),
            "bytes": float(4 * elements),
            "profile_us": schedule.makespan,
            "messages": float(messages),
        },
    )


def _agreed(env: RunEnv, op: str, count: int, nodes: int, together: int, time_limit: float) -> Schedule:
    """Rank 0 synthesises for all: a time limit may cut searches of different ranks at different points."""
    import torch

    from densing.efficiency.parallel import comm

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


def _builtin(comm: Any, op: str, tensor: torch.Tensor, world: int) -> torch.Tensor:
    if op == "all_reduce":
        found = tensor.clone()
        comm.all_reduce(found).wait()
        return found
    found = tensor.new_empty(world * tensor.numel())
    comm.all_gather_into(found, tensor).wait()
    return found


def _timed(work: Any) -> tuple[torch.Tensor, float]:
    import torch.distributed as dist

    dist.barrier()
    began = time.perf_counter()
    found = work()
    return found, time.perf_counter() - began

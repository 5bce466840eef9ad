"""A schedule on real ranks: what each rank does, over isend and irecv, and a run beside torch's own collectives."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

from densing.core import DensingError, InputError, Record
from densing.efficiency.parallel import RunEnv, RunRecord
from densing.efficiency.techniques.taccl.schedule import Schedule, from_json, to_json

if TYPE_CHECKING:
    import torch


class Step(Record, frozen=True):
    """One thing a rank does.

    Parameters
    ----------
    kind : {"send", "recv"}
    peer : int
    chunks : tuple of int
    reduce : bool
        What is received is added.
    needs : tuple of int
        Steps of the same rank (receives) that must have ended before; before a send: what it carries.
    """

    kind: str
    peer: int
    chunks: tuple[int, ...]
    reduce: bool
    needs: tuple[int, ...] = ()


def program(schedule: Schedule, rank: int) -> tuple[Step, ...]:
    """Return what a rank does, in order of the schedule.

    Examples
    --------
    >>> from densing.efficiency.techniques.taccl.schedule import Send
    >>> ring = Schedule("all_gather", "pair", 2, (0, 1), ((1,), (0,)), (Send(0, 1, (0,), 0, 1), Send(1, 0, (1,), 0, 1)))
    >>> [(step.kind, step.peer, step.chunks) for step in program(ring, 0)]
    [('send', 1, (0,)), ('recv', 1, (1,))]
    """
    mine = [send for send in schedule.sends if rank in (send.src, send.dst)]
    # A send of the moment in which its chunks come: the receive first.
    events = sorted(mine, key=lambda s: (s.start, 1) if s.src == rank else (s.end, 0))
    brought: dict[int, list[int]] = {}
    steps: list[Step] = []
    for send in events:
        if send.src == rank:
            needs = sorted({number for chunk in send.chunks for number in brought.get(chunk, [])})
            steps.append(Step("send", send.dst, send.chunks, send.reduce, tuple(needs)))
        else:
            for chunk in send.chunks:
                brought.setdefault(chunk, []).append(len(steps))
            steps.append(Step("recv", send.src, send.chunks, send.reduce))
    return tuple(steps)


def execute(schedule: Schedule, rank: int, tensor: torch.Tensor, comm: Any) -> torch.Tensor:
    """Run a schedule on this rank.

    Every receive is posted first; a send waits for what it carries. Messages between two ranks keep their order, which
    is all that matches them: schedules are such that both sides see the same one.

    Parameters
    ----------
    schedule : Schedule
        ``all_gather`` or ``all_reduce``.
    rank : int
    tensor : torch.Tensor (m,)
        Of this rank; unchanged afterwards.
    comm : module
        :mod:`densing.efficiency.parallel.distributed.comm`, or anything with its ``isend`` and ``irecv``.

    Returns
    -------
    torch.Tensor
        ``(n * m,)``, in the order of the ranks, of an all-gather; ``(m,)``, the sum, of an all-reduce. (An all-reduce
        adds in the order of the schedule: sums of floats agree with others' up to rounding, exactly for integers.)

    Raises
    ------
    InputError
        For another collective.
    """
    import torch

    if schedule.op not in ("all_gather", "all_reduce"):
        raise InputError(f"{schedule.op}: all_gather and all_reduce schedules can be run")
    data, size = _laid_out(schedule, rank, tensor)
    steps = program(schedule, rank)
    inbox = {i: data.new_empty(len(s.chunks) * size) for i, s in enumerate(steps) if s.kind == "recv"}
    posted = {i: comm.irecv(inbox[i], steps[i].peer) for i in inbox}
    open_receives = dict.fromkeys(posted)
    outbox: list[tuple[Any, torch.Tensor]] = []

    def take(number: int) -> None:
        posted[number].wait()
        del open_receives[number]
        came = inbox[number].view(len(steps[number].chunks), size)
        for row, chunk in enumerate(steps[number].chunks):
            data[chunk] = data[chunk] + came[row] if steps[number].reduce else came[row]

    for step in steps:
        if step.kind == "send":
            for need in step.needs:
                if need in open_receives:
                    take(need)
            carried = torch.cat([data[chunk] for chunk in step.chunks])
            outbox.append((comm.isend(carried, step.peer), carried))
    for number in list(open_receives):
        take(number)
    for handle, _ in outbox:
        handle.wait()
    return _result(schedule, data, tensor.numel())


def _laid_out(schedule: Schedule, rank: int, tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Chunks as rows, filled up with zeros; and the elements of a chunk."""
    gather = schedule.op == "all_gather"
    pieces = schedule.chunks_up if gather else len(schedule.home)
    size = -(-max(tensor.numel(), 1) // pieces)
    padded = tensor.new_zeros(pieces * size)
    padded[: tensor.numel()] = tensor.reshape(-1)
    if not gather:
        return padded.view(pieces, size), size
    data = tensor.new_zeros(len(schedule.home), size)
    own = [chunk for chunk, home in enumerate(schedule.home) if home == rank]
    data[own] = padded.view(pieces, size)
    return data, size


def _result(schedule: Schedule, data: torch.Tensor, count: int) -> torch.Tensor:
    if schedule.op == "all_reduce":
        return data.reshape(-1)[:count].clone()
    # Chunks are numbered rank by rank.
    return data.view(schedule.n, -1)[:, :count].reshape(-1)


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
    from densing.efficiency.techniques.taccl.synthesis import synthesise
    from densing.efficiency.techniques.taccl.topology import profile_topology

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
        result, seconds = _timed(lambda mine=tensor: execute(schedule, env.rank, mine, comm))
        ours.append(seconds)
        if not torch.equal(result.view(torch.int32), expected.view(torch.int32)):
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
        result = tensor.clone()
        comm.all_reduce(result).wait()
        return result
    result = tensor.new_empty(world * tensor.numel())
    comm.all_gather_into(result, tensor).wait()
    return result


def _timed(work: Any) -> tuple[torch.Tensor, float]:
    import torch.distributed as dist

    dist.barrier()
    began = time.perf_counter()
    result = work()
    return result, time.perf_counter() - began

"""A schedule as what each rank does: sends as soon as what they carry has come, over isend and irecv."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from densing.core import InputError, Record
from densing.efficiency.techniques.taccl.schedule import Schedule

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

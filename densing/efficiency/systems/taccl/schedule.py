"""A collective as sends in time: the schedule, its check, its JSON, and what each rank does to carry it out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from densing.core import ArtefactError, InputError, Record
from densing.efficiency.systems.taccl.topology import Topology, occupy

if TYPE_CHECKING:
    import torch


FORMAT = "densing.collective/1"
TOLERANCE = 1e-9
"""Rounding tolerance on times, relative to the length of the schedule."""


class Send(Record, frozen=True):
    """One message: some chunks from a rank to another, in microseconds from the start.

    ``reduce``: the receiver adds what comes to what it has, instead of taking it over.
    """

    src: int
    dst: int
    chunks: tuple[int, ...]
    start: float
    end: float
    reduce: bool = False


class Schedule(Record, frozen=True):
    """A synthesised collective.

    Parameters
    ----------
    op : str
    topology : str
        Name of the machine.
    n : int
    home : tuple of int
        By chunk: the rank that has it first (all-gather), or where its sum comes together (reduce-scatter).
    wanted : tuple of tuple of int
        By chunk: the ranks, other than its home, that must end with it; of a reduction empty.
    sends : tuple of Send
        In order of their start.
    chunks_up : int
        Chunks per rank (all-to-all: per pair).
    format : str
    """

    op: str
    topology: str
    n: int
    home: tuple[int, ...]
    wanted: tuple[tuple[int, ...], ...]
    sends: tuple[Send, ...]
    chunks_up: int = 1
    format: str = FORMAT

    @property
    def makespan(self) -> float:
        """Microseconds until the last chunk has come."""
        return max((send.end for send in self.sends), default=0.0)

    @property
    def reducing(self) -> bool:
        """Whether every rank begins with a part of each chunk, to be summed."""
        return self.op in ("reduce_scatter", "all_reduce")


def ordered(sends: list[Send]) -> tuple[Send, ...]:
    """Return sends in order of start, end and ranks."""
    return tuple(sorted(sends, key=lambda s: (s.start, s.end, s.src, s.dst, s.chunks)))


def check(schedule: Schedule, topology: Topology) -> None:
    """Check a schedule against the machine it was made for.

    Every message takes what its channel says; a channel and each of its ports serve one message at a time; a rank
    only sends what it has, a sum only once it is complete at the sender; nothing is added twice; in the end everyone
    who wants a chunk has it, whole.

    Parameters
    ----------
    topology : Topology
        With the sketch applied.

    Raises
    ------
    InputError
        With the message, its ranks and times.
    """
    channels = {(c.src, c.dst): c for c in topology.channels}
    slack = TOLERANCE * max(1.0, schedule.makespan)
    free: dict[object, float] = {}
    for send in sorted(schedule.sends, key=lambda s: (s.start, s.end)):
        channel = channels.get((send.src, send.dst))
        if channel is None:
            raise InputError(f"{_words(send)}: topology {topology.name!r} has no such channel")
        chunks = len(schedule.home)
        finite = math.isfinite(send.start) and math.isfinite(send.end) and send.start >= -slack
        if not finite or not send.chunks or len(set(send.chunks)) != len(send.chunks):
            raise InputError(
                f"{_words(send)}: times must be finite and not negative, with at least one chunk and no chunk twice"
            )
        if any(not 0 <= chunk < chunks for chunk in send.chunks):
            raise InputError(f"{_words(send)}: chunks must lie between 0 and {chunks - 1}")
        cost = channel.cost(len(send.chunks))
        if abs(send.end - send.start - cost) > slack:
            raise InputError(f"{_words(send)}: it takes {send.end - send.start:.6g} us, but its channel {cost:.6g}")
        for name in ((send.src, send.dst), *channel.ports):
            if send.start < free.get(name, 0.0) - slack:
                raise InputError(f"{_words(send)}: {name} is busy until {free[name]:.6g} us")
        occupy(free, (send.src, send.dst), channel, send.start, len(send.chunks))
    _check_contents(schedule, slack)


def _words(send: Send) -> str:
    return f"chunks {send.chunks} from rank {send.src} to {send.dst} at {send.start:.6g} us"


def _check_contents(schedule: Schedule, slack: float) -> None:
    """Follow which ranks' contributions each rank holds of each chunk."""
    n, everyone = schedule.n, frozenset(range(schedule.n))
    contents: dict[tuple[int, int], frozenset[int]] = {}
    for chunk, home in enumerate(schedule.home):
        for rank in range(n) if schedule.reducing else (home,):
            contents[rank, chunk] = frozenset([rank])
    # An arrival counts before a departure of the same moment.
    moments = [(send.end - slack, 0, send) for send in schedule.sends] + [(s.start, 1, s) for s in schedule.sends]
    flying: dict[Send, list[frozenset[int]]] = {}
    forwarded: set[tuple[int, int]] = set()
    for _, leaving, send in sorted(moments, key=lambda m: (m[0], m[1])):
        if leaving:
            for chunk in send.chunks:
                if (send.src, chunk) not in contents:
                    raise InputError(f"{_words(send)}: the sender does not have chunk {chunk} by then")
            flying[send] = [contents[send.src, chunk] for chunk in send.chunks]
            forwarded.update((send.src, chunk) for chunk in send.chunks)
            continue
        for chunk, content in zip(send.chunks, flying.pop(send, []), strict=False):
            before = contents.get((send.dst, chunk), frozenset()) if send.reduce else frozenset()
            if before & content:
                raise InputError(
                    f"{_words(send)}: rank {send.dst} already has parts {sorted(before & content)} of chunk {chunk}"
                )
            if send.reduce and (send.dst, chunk) in forwarded:
                raise InputError(f"{_words(send)}: rank {send.dst} has sent chunk {chunk} on before this part came")
            contents[send.dst, chunk] = before | content
    for chunk, home in enumerate(schedule.home):
        expected = everyone if schedule.reducing else frozenset([home])
        ends = (*schedule.wanted[chunk], home)
        for rank in ends:
            if contents.get((rank, chunk)) != expected:
                raise InputError(f"schedule of {schedule.op}: rank {rank} ends without the whole of chunk {chunk}")


def to_json(schedule: Schedule) -> str:
    """Return the schedule as one JSON document."""
    return msgspec.json.encode(schedule).decode()


def from_json(text: str) -> Schedule:
    """Read what :func:`to_json` wrote.

    Raises
    ------
    ArtefactError
        When it is not a schedule, or one of another version.
    """
    try:
        result = msgspec.json.decode(text, type=Schedule)
    except msgspec.MsgspecError as error:
        raise ArtefactError(f"not a schedule of a collective: {error}") from None
    if result.format != FORMAT:
        raise ArtefactError(f"the schedule has format {result.format!r}; this version reads {FORMAT!r}")
    return result


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
            receives = sorted({number for chunk in send.chunks for number in brought.get(chunk, [])})
            steps.append(Step("send", send.dst, send.chunks, send.reduce, tuple(receives)))
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
        raise InputError(f"{schedule.op}: only all_gather and all_reduce schedules can be run")
    # Every receive is posted before anything is sent: no order of sends can then block for want of a receiver.
    data, size = _laid_out(schedule, rank, tensor)
    steps = program(schedule, rank)
    inbox = {i: data.new_empty(len(s.chunks) * size) for i, s in enumerate(steps) if s.kind == "recv"}
    posted = {i: comm.irecv(inbox[i], steps[i].peer) for i in inbox}
    open_receives = dict.fromkeys(posted)
    outbox: list[tuple[Any, torch.Tensor]] = []

    def take(number: int) -> None:
        posted[number].wait()
        del open_receives[number]
        rows = inbox[number].view(len(steps[number].chunks), size)
        for row, chunk in zip(rows, steps[number].chunks, strict=True):
            data[chunk] = data[chunk] + row if steps[number].reduce else row

    for step in steps:
        if step.kind == "send":
            for need in step.needs:
                if need in open_receives:
                    take(need)
            carried = torch.cat([data[chunk] for chunk in step.chunks])
            outbox.append((comm.isend(carried, step.peer), carried))
    # What nobody here hands on was not waited for above.
    for number in list(open_receives):
        take(number)
    for handle, _ in outbox:
        handle.wait()
    if schedule.op == "all_reduce":
        return data.reshape(-1)[: tensor.numel()].clone()
    # Chunks are numbered rank by rank.
    return data.view(schedule.n, -1)[:, : tensor.numel()].reshape(-1)


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

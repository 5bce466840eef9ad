"""A collective as sends in time: the schedule, its check, and its JSON."""

from __future__ import annotations

import math

import msgspec

from densing.core import ArtefactError, InputError, Record
from densing.efficiency.techniques.taccl.ordering import occupy
from densing.efficiency.techniques.taccl.topology import Channel, Topology

FORMAT = "densing.collective/1"
TOLERANCE = 1e-9
"""By which times may differ by rounding, relative to the length of the schedule."""


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
        _check_message(send, channel, schedule, slack)
        for name in ((send.src, send.dst), *channel.ports):
            if send.start < free.get(name, 0.0) - slack:
                raise InputError(f"{_words(send)}: {name} is busy until {free[name]:.6g} us")
        occupy(free, (send.src, send.dst), channel, send.start, len(send.chunks))
    _check_contents(schedule, slack)


def _words(send: Send) -> str:
    return f"chunks {send.chunks} from rank {send.src} to {send.dst} at {send.start:.6g} us"


def _check_message(send: Send, channel: Channel, schedule: Schedule, slack: float) -> None:
    finite = math.isfinite(send.start) and math.isfinite(send.end) and send.start >= -slack
    chunks = len(schedule.home)
    if not finite or not send.chunks or len(set(send.chunks)) != len(send.chunks):
        raise InputError(f"{_words(send)}: times must be finite from 0 up, chunks different and at least one")
    if any(not 0 <= chunk < chunks for chunk in send.chunks):
        raise InputError(f"{_words(send)}: there are chunks 0 to {chunks - 1}")
    cost = channel.cost(len(send.chunks))
    if abs(send.end - send.start - cost) > slack:
        raise InputError(f"{_words(send)}: it takes {send.end - send.start:.6g} us, its channel {cost:.6g}")


def _check_contents(schedule: Schedule, slack: float) -> None:
    """Follow which ranks' contributions each rank holds of each chunk."""
    n, whole = schedule.n, frozenset(range(schedule.n))
    held: dict[tuple[int, int], frozenset[int]] = {}
    for chunk, home in enumerate(schedule.home):
        for rank in range(n) if schedule.reducing else (home,):
            held[rank, chunk] = frozenset([rank])
    # An arrival counts before a departure of the same moment.
    moments = [(send.end - slack, 0, send) for send in schedule.sends] + [(s.start, 1, s) for s in schedule.sends]
    flying: dict[Send, list[frozenset[int]]] = {}
    sent: set[tuple[int, int]] = set()
    for _, leaving, send in sorted(moments, key=lambda m: (m[0], m[1])):
        if leaving:
            flying[send] = [_taken(held, send, chunk) for chunk in send.chunks]
            sent.update((send.src, chunk) for chunk in send.chunks)
        else:
            for chunk, content in zip(send.chunks, flying.pop(send, []), strict=False):
                _arrive(held, send, chunk, content, sent)
    for chunk, home in enumerate(schedule.home):
        expected = whole if schedule.reducing else frozenset([home])
        ends = (*schedule.wanted[chunk], home)
        for rank in ends:
            if held.get((rank, chunk)) != expected:
                raise InputError(f"schedule of {schedule.op}: rank {rank} ends without the whole of chunk {chunk}")


def _taken(held: dict[tuple[int, int], frozenset[int]], send: Send, chunk: int) -> frozenset[int]:
    if (send.src, chunk) not in held:
        raise InputError(f"{_words(send)}: the sender does not have chunk {chunk} by then")
    return held[send.src, chunk]


def _arrive(
    held: dict[tuple[int, int], frozenset[int]],
    send: Send,
    chunk: int,
    content: frozenset[int],
    sent: set[tuple[int, int]],
) -> None:
    before = held.get((send.dst, chunk), frozenset())
    if not send.reduce:
        held[send.dst, chunk] = content
        return
    if before & content:
        raise InputError(
            f"{_words(send)}: rank {send.dst} already has parts {sorted(before & content)} of chunk {chunk}"
        )
    if (send.dst, chunk) in sent:
        raise InputError(f"{_words(send)}: rank {send.dst} has sent chunk {chunk} on before this part came")
    held[send.dst, chunk] = before | content


def to_json(schedule: Schedule) -> str:
    """Return the schedule as one JSON document."""
    return msgspec.json.encode(schedule).decode()


def from_json(text: str) -> Schedule:
    """Read what :func:`to_json` wrote.

    Raises
    ------
    ArtefactError
        When it is no schedule, or one of another version.
    """
    try:
        result = msgspec.json.decode(text, type=Schedule)
    except msgspec.MsgspecError as error:
        raise ArtefactError(f"no schedule of a collective: {error}") from None
    if result.format != FORMAT:
        raise ArtefactError(f"schedule of format {result.format!r}; this version reads {FORMAT!r}")
    return result

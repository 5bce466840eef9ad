"""Communication of ranks: a thin layer over ``torch.distributed``, plus emulated links.

Every real run communicates through this module. Each function starts an operation and returns a :class:`Handle`;
``handle.wait()`` ends it. What happens between is up to the link: without one, or over a shaped interface,
``torch.distributed`` runs the operation as it is; with an emulated link (:func:`emulate`) the operation is run as it
is too, and is held to be done only when the link would have carried its bytes (:class:`Carrier`).

``DistributedDataParallel`` reduces its gradients by itself. So that it uses the same link, give it
:func:`gradient_hook`: ``ddp.register_comm_hook(None, comm.gradient_hook(group))``.
"""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist

from densing.core import DensingError, InputError
from densing.efficiency.parallel.distributed.network import Rate, slowest
from densing.efficiency.simulation import ring_terms

Op = Literal["sum", "mean"]
AT_ONCE = 2
"""Operations in flight at once; ``threads`` of torch's gloo process group."""

_carrier: Carrier | None = None
_PLACE = re.compile(r"^\[\S+\.(?:cc|cpp|h):\d+\] ")


class PeerError(DensingError, RuntimeError):
    """Another rank is gone, or has not come within the time-out of the process group."""


def emulate(rates: Sequence[Rate] | None) -> None:
    """Route all communication of this process over an emulated link; None ends that.

    Parameters
    ----------
    rates : sequence of Rate, optional
        Bandwidth and latency of every rank's link.
    """
    global _carrier
    if _carrier is not None:
        _carrier.close()
    _carrier = None if rates is None else Carrier(rates)


def emulated() -> bool:
    """Return whether the link of this process is only emulated."""
    return _carrier is not None


class Handle:
    """An operation under way.

    Attributes
    ----------
    started : float
        ``time.perf_counter()`` when it was called.
    ended : float or None
        The same when it was done, if already known: the moment of completion itself for collectives of gloo and on an
        emulated link, else when ``wait()`` returned.
    """

    def __init__(self, work: Any, ticket: Ticket | None = None, after: Callable[[], None] | None = None) -> None:
        self.started = time.perf_counter()
        self.ended: float | None = None
        self._work, self._ticket, self._after = work, ticket, after
        if ticket is None and work is not None:
            _note_end(work, self)

    @property
    def seconds(self) -> float | None:
        """From start to completion; None while it is not known to be done."""
        ended = self.ended if self._ticket is None else self._ticket.ended
        return None if ended is None else ended - self.started

    def done(self) -> bool:
        """Return whether ``wait()`` would return at once."""
        if self._ticket is not None:
            return self._ticket.done()
        return self._work is None or bool(self._work.is_completed())

    def wait(self) -> None:
        """Wait until it is done; may be called again.

        Raises
        ------
        PeerError
            When a peer has gone, or did not answer within the timeout of the process group.
        """
        try:
            if self._ticket is not None:
                self._ticket.wait()
            elif self._work is not None:
                self._work.wait()
        except RuntimeError as error:
            raise _lost(error) from error
        if self.ended is None:
            self.ended = time.perf_counter()
        after, self._after = self._after, None
        if after is not None:
            after()


def _lost(error: RuntimeError) -> PeerError:
    said = _PLACE.sub("", str(error)).strip().partition("\n")[0].partition(". This is typically")[0]
    late = re.search(r"(?i)timed? ?out", said)
    what = "has not come within the time-out of the process group" if late else "has left"
    return PeerError(f"another rank {what} ({said}); start all ranks again, from a checkpoint")


def _note_end(work: Any, handle: Handle) -> None:
    """Have gloo record when the operation is done: its threads finish long before anyone waits."""
    if dist.get_backend() != "gloo":
        return
    try:
        future = work.get_future()
    except RuntimeError:  # messages between two ranks have none
        return

    def ended(_: Any) -> None:
        if handle.ended is None:
            handle.ended = time.perf_counter()

    future.add_done_callback(ended)


def all_reduce(
    tensor: torch.Tensor, *, op: Op = "sum", group: dist.ProcessGroup | None = None, async_op: bool = True
) -> Handle:
    """Replace ``tensor`` on every rank by the sum, or the mean, of all ranks' tensors.

    Parameters
    ----------
    tensor : torch.Tensor
        Of any shape, the same on all ranks; not to be touched before ``wait()``.
    op : {"sum", "mean"}
        The mean is divided within ``wait()``: gloo knows sums only.
    group : ProcessGroup, optional
    async_op : bool
        False: has been waited for when it returns.
    """
    work = dist.all_reduce(tensor, group=group, async_op=True)
    return _start("all_reduce", work, tensor, group, async_op, _division(tensor, op, group))


def all_gather_into(
    output: torch.Tensor, tensor: torch.Tensor, *, group: dist.ProcessGroup | None = None, async_op: bool = True
) -> Handle:
    """Fill ``output``, of n times as many elements, with every rank's ``tensor`` in the order of the ranks."""
    work = _collective("all_gather_single", "all_gather_into_tensor")(output, tensor, group=group, async_op=True)
    return _start("all_gather", work, output, group, async_op)


def reduce_scatter_into(
    output: torch.Tensor,
    tensor: torch.Tensor,
    *,
    op: Op = "sum",
    group: dist.ProcessGroup | None = None,
    async_op: bool = True,
) -> Handle:
    """Give rank r the r-th of n equal parts of the sum, or the mean, of all ranks' ``tensor``."""
    work = _collective("reduce_scatter_single", "reduce_scatter_tensor")(output, tensor, group=group, async_op=True)
    return _start("reduce_scatter", work, tensor, group, async_op, _division(output, op, group))


def broadcast(
    tensor: torch.Tensor, src: int = 0, *, group: dist.ProcessGroup | None = None, async_op: bool = True
) -> Handle:
    """Replace ``tensor`` on every rank by that of global rank ``src``."""
    work = dist.broadcast(tensor, src, group=group, async_op=True)
    return _start("broadcast", work, tensor, group, async_op)


def isend(tensor: torch.Tensor, dst: int, *, group: dist.ProcessGroup | None = None, tag: int = 0) -> Handle:
    """Send ``tensor`` to global rank ``dst``; it may be changed again after ``wait()``."""
    return _start("send", dist.isend(tensor, dst, group=group, tag=tag), tensor, group, True, peer=dst)


def irecv(tensor: torch.Tensor, src: int, *, group: dist.ProcessGroup | None = None, tag: int = 0) -> Handle:
    """Fill ``tensor`` with what global rank ``src`` sends; it is there after ``wait()``."""
    return _start("recv", dist.irecv(tensor, src, group=group, tag=tag), tensor, group, True, peer=src)


def gradient_hook(
    group: dist.ProcessGroup | None = None,
) -> Callable[[Any, dist.GradBucket], torch.futures.Future[torch.Tensor]]:
    """Return a communication hook for ``DistributedDataParallel``: the mean of a bucket, over the current link.

    DDP waits for the futures itself, at the end of the backward pass.
    """
    n = dist.get_world_size(group)

    def reduce(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        tensor = bucket.buffer().div_(n)
        work: Any = dist.all_reduce(tensor, group=group, async_op=True)
        if _carrier is None:
            future: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
            return future
        return _carrier.carry("all_reduce", work, _bytes(tensor), _members(group)).future(tensor)

    # DDP compares annotations as objects; in this module they are texts.
    reduce.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    return reduce


def _collective(name: str, older: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(dist, name, None) or getattr(dist, older)
    return function


def _start(
    op: str,
    work: Any,
    tensor: torch.Tensor,
    group: dist.ProcessGroup | None,
    async_op: bool,
    after: Callable[[], None] | None = None,
    peer: int | None = None,
) -> Handle:
    """Put an operation that torch has begun on the link; ``tensor`` is its full buffer."""
    ticket = None
    if _carrier is not None and work is not None:
        ranks = _members(group) if peer is None else [dist.get_rank(), peer]
        ticket = _carrier.carry(op, work, _bytes(tensor), ranks)
    handle = Handle(work, ticket, after)
    if not async_op:
        handle.wait()
    return handle


def _division(tensor: torch.Tensor, op: Op, group: dist.ProcessGroup | None) -> Callable[[], None] | None:
    if op not in ("sum", "mean"):
        raise InputError(f"op={op!r}: must be sum or mean")
    n = dist.get_world_size(group)

    def divide() -> None:
        tensor.div_(n)

    return divide if op == "mean" and n > 1 else None


def _members(group: dist.ProcessGroup | None) -> list[int]:
    """Return the global ranks of a group."""
    return list(range(dist.get_world_size())) if group is None else dist.get_process_group_ranks(group)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class Ticket:
    """An operation on the link, and when it was done; what it waits for answers, and how long the wire carries it."""

    def __init__(self, op: str, work: Any, latency_s: float, wire_s: float) -> None:
        self.op, self.work, self.latency_s, self.wire_s = op, work, latency_s, wire_s
        self.ended: float | None = None
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._future: torch.futures.Future[Any] | None = None
        self._result: Any = None
        self._lock = threading.Lock()

    def done(self) -> bool:
        """Return whether the link has carried it."""
        return self._over.is_set()

    def wait(self) -> None:
        """Wait until the link has carried it, and raise its errors."""
        self._over.wait()
        if self._error is not None:
            raise self._error

    def future(self, result: Any) -> torch.futures.Future[Any]:
        """Return a future that holds ``result`` once the link has carried it."""
        with self._lock:
            self._future, self._result = torch.futures.Future(), result
            if self.done():
                self._tell()
            return self._future

    def finish(self, error: BaseException | None) -> None:
        """Mark it as done, or as failed."""
        with self._lock:
            self.ended, self._error = time.perf_counter(), error
            self._over.set()
            self._tell()

    def _tell(self) -> None:
        if self._future is None:
            return
        if self._error is None:
            self._future.set_result(self._result)
        else:
            self._future.set_exception(self._error)


class Carrier:
    """The emulated link of one rank: its threads sleep for the time that an operation would take.

    The real operation runs over whatever joins the ranks (the loopback interface, say). It is held to be done
    ``messages * latency + bytes / bandwidth`` (of a ring, :func:`densing.efficiency.simulation.ring_terms`) after that.
    Like a wire the link carries the bytes of one operation after the other in each direction, but latency occupies it
    as little as a wire: two operations wait for answers at once, as many as gloo has threads for a group. Compute goes
    on meanwhile, as beside a real network, but takes no part of the processor's time that a real network stack would: a
    result from such a link is labelled.

    Collectives send and receive alike; they pass through the sending threads. What some ranks do together goes at the
    slowest one's rate.

    Parameters
    ----------
    rates : sequence of Rate
        By rank.
    """

    def __init__(self, rates: Sequence[Rate]) -> None:
        self.rates = rates
        self._lines = {name: queue.SimpleQueue[Ticket | None]() for name in ("out", "in")}
        self._threads = [
            threading.Thread(target=_carry_on, args=(line, wire), name=f"link-{name}-{number}", daemon=True)
            for name, line in self._lines.items()
            for wire in [threading.Lock()]
            for number in range(AT_ONCE)
        ]
        for thread in self._threads:
            thread.start()

    def carry(self, op: str, work: Any, count: float, ranks: Sequence[int]) -> Ticket:
        """Queue an operation that torch has begun, and return its ticket at once.

        Parameters
        ----------
        op : str
            A collective, ``send`` or ``recv``; it takes what a ring of these ranks takes.
        work : torch.distributed.Work
        count : float
            Bytes of the full buffer.
        ranks : sequence of int
            That take part.
        """
        ticket = Ticket(op, work, *self.seconds(op, count, ranks))
        self._lines["in" if op == "recv" else "out"].put(ticket)
        return ticket

    def seconds(self, op: str, count: float, ranks: Sequence[int]) -> tuple[float, float]:
        """Return the seconds for which an operation waits for answers, and for which it occupies the wire."""
        rate = slowest([self.rates[rank] for rank in ranks])
        terms = ring_terms("send_recv" if op in ("send", "recv") else op, len(ranks))
        return terms.messages * rate.latency_s, terms.volume * count / rate.bytes_per_s

    def close(self) -> None:
        """Finish the queue, and end the threads."""
        for line in self._lines.values():
            for _ in range(AT_ONCE):
                line.put(None)
        for thread in self._threads:
            thread.join()


def _carry_on(line: queue.SimpleQueue[Ticket | None], wire: threading.Lock) -> None:
    while (ticket := line.get()) is not None:
        error: BaseException | None = None
        try:
            ticket.work.wait()
            time.sleep(ticket.latency_s)
            with wire:
                time.sleep(ticket.wire_s)
        except Exception as caught:
            error = caught
        ticket.finish(error)

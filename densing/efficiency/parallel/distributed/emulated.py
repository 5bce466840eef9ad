"""A link that is only emulated: what an operation over it would have taken is slept away in a thread of its own.

The real operation runs over whatever joins the ranks (the loopback interface, say). It is held to be done ``messages *
latency + bytes / bandwidth`` (of a ring, :func:`densing.efficiency.simulation.costs.ring_terms`) after that.
Like a wire the link carries the bytes of one operation after the other in each direction, but latency occupies it as
little as a wire: two operations wait for answers at once, as many as gloo has threads for a group. Compute goes on
meanwhile, as beside a real network, but takes no part of the processor's time that a real network stack would: a
result from such a link is labelled.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

import torch

from densing.efficiency.parallel.distributed.rates import Rate
from densing.efficiency.simulation import ring_terms

AT_ONCE = 2
"""Operations under way at once; ``threads`` of torch's gloo process group."""


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
        """Stand still until the link has carried it; what went wrong on the way is raised here."""
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
    """The emulated link of one rank: threads for what it sends and for what it receives.

    Collectives send and receive alike; they pass through the sending threads.
    """

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self._lines = {name: queue.SimpleQueue[Ticket | None]() for name in ("out", "in")}
        self._threads = [
            threading.Thread(target=_drive, args=(line, wire), name=f"link-{name}-{number}", daemon=True)
            for name, line in self._lines.items()
            for wire in [threading.Lock()]
            for number in range(AT_ONCE)
        ]
        for thread in self._threads:
            thread.start()

    def carry(self, op: str, work: Any, count: float, n: int) -> Ticket:
        """Put an operation that torch has begun in line; return its ticket at once.

        Parameters
        ----------
        op : str
            A collective, ``send`` or ``recv``; it takes what a ring of ``n`` ranks takes.
        work : torch.distributed.Work
        count : float
            Bytes of the full buffer.
        n : int
        """
        ticket = Ticket(op, work, *self.seconds(op, count, n))
        self._lines["in" if op == "recv" else "out"].put(ticket)
        return ticket

    def seconds(self, op: str, count: float, n: int) -> tuple[float, float]:
        """Return how long an operation waits for answers, and how long it occupies the wire."""
        terms = ring_terms("send_recv" if op in ("send", "recv") else op, n)
        return terms.messages * self.rate.latency_s, terms.volume * count / self.rate.bytes_per_s

    def close(self) -> None:
        """Carry what is in line, and end the threads."""
        for line in self._lines.values():
            for _ in range(AT_ONCE):
                line.put(None)
        for thread in self._threads:
            thread.join()


def _drive(line: queue.SimpleQueue[Ticket | None], wire: threading.Lock) -> None:
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

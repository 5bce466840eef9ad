"""Work of any kind in processes of this machine: one that dies is known by the item it worked on."""

from __future__ import annotations

import json
import os
import pickle
import select
import socket
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

from densing.core import DensingError, processes
from densing.jobs.attempt import describe

TELL_SECONDS = 0.1
GRACE_SECONDS = 5.0
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Item = TypeVar("Item")
Tell = Callable[[Any], object]
Work = Callable[[Any, Tell], Mapping[str, Any]]


@dataclass(frozen=True)
class Done(Generic[Item]):
    """How one item ended: its row, or why there is none."""

    item: Item
    row: Mapping[str, Any] | None
    reason: str = ""


def in_turn(work: Work, items: Sequence[Item], at: Callable[[Item, Any], object]) -> Iterator[Done[Item]]:
    """Do the work here, one item after the other; same results as :func:`in_processes`.

    Examples
    --------
    >>> [done.row for done in in_turn(lambda item, tell: {"square": item**2}, [1, 2], lambda item, told: None)]
    [{'square': 1}, {'square': 4}]
    """
    for item in items:
        row, reason = _attempt(work, item, lambda done, item=item: at(item, done))  # type: ignore[misc]
        yield Done(item, row, reason)


def in_processes(
    work: Work, items: Sequence[Item], workers: int, at: Callable[[Item, Any], object]
) -> Iterator[Done[Item]]:
    """Do the work in new processes (on Windows in this one, in turn), and yield each item as it ends.

    Parameters
    ----------
    work : callable
        ``work(item, tell)``, a function of a module; it, the items and the rows travel between processes.
    items : sequence
        Taken in order: put the longest first.
    workers : int
        Processes at a time.
    at : callable
        Called here with an item and what its work tells.

    Yields
    ------
    Done
        A process that is killed ends its item with a reason; another takes its place. Whatever ends the iteration,
        no process is left.

    Examples
    --------
    Nothing to do starts no process.

    >>> list(in_processes(print, [], 2, lambda item, told: None))
    []

    See Also
    --------
    in_turn
    """
    if os.name == "nt":
        # A new process inherits no socket there.
        yield from in_turn(work, items, at)
        return
    queue = deque(items)
    crew = [_Worker[Item](work) for _ in range(min(workers, len(items)))]
    try:
        for worker in crew:
            worker.assign(queue.popleft())
        while busy := [worker for worker in crew if worker.item is not None]:
            ready = wait([worker.pipe for worker in busy])
            for worker in busy:
                ended = worker.receive(at) if worker.pipe in ready else None
                if ended is None:
                    continue
                if queue:
                    worker.assign(queue.popleft())
                yield ended
    finally:
        for worker in crew:
            worker.end()


@contextmanager
def beside(work: Work, item: Item) -> Iterator[Callable[[Callable[[Item, Any], object]], Done[Item]]]:
    """Do one piece of work in a process of its own, while this one goes on with something else.

    Parameters
    ----------
    work, item
        As in :func:`in_processes`. Its libraries may use all processors but the one that this process uses.

    Yields
    ------
    callable
        ``wait(at)`` returns how the work ended; ``at`` is called here with the item and what the work tells. Whoever
        leaves without waiting ends it. On Windows the work is done when it is waited for.

    See Also
    --------
    in_processes
    """
    if os.name == "nt":
        yield lambda at: next(in_turn(work, [item], at))
        return
    worker = _Worker[Item](work, threads=max(1, processes.processors() - 1))

    def result(at: Callable[[Item, Any], object]) -> Done[Item]:
        while True:
            if (ended := worker.receive(at)) is not None:
                return ended

    try:
        worker.assign(item)
        yield result
    finally:
        worker.end()


class _Worker(Generic[Item]):
    """A process and the item it works on."""

    def __init__(self, work: Work, threads: int = 1) -> None:
        self._work, self._threads = work, threads
        self.item: Item | None = None
        self._start()

    def _start(self) -> None:
        # Only the process holds the child's end: when it dies, the parent's says so.
        parent, child = socket.socketpair()
        paths = json.dumps(sys.path)
        with child:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BEGIN, paths, str(child.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=[child.fileno()],
                # One thread each where there are as many processes as processors.
                env={**dict.fromkeys(THREADS, str(self._threads)), **os.environ},
                # Ctrl-C is ours; we end it.
                start_new_session=True,
            )
        self.pipe = Connection(parent.detach())
        self._send(self._work)

    def _send(self, content: object) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            # A process that has died is found out by receive().
            self.pipe.send(content)

    def assign(self, item: Item) -> None:
        """Hand over the next item, to a new process if the last one died."""
        if self._process.poll() is not None:
            self.end()
            self._start()
        self.item = item
        self._send(item)

    def receive(self, at: Callable[[Item, Any], object]) -> Done[Item] | None:
        """Take in one message; the end of the item if it is that."""
        assert self.item is not None
        item = self.item
        try:
            kind, *content = self.pipe.recv()
        except (EOFError, OSError):
            self.item = None
            code = self._process.wait()
            death = describe(code) if code < 0 else f"ended early (exit code {code})"
            return Done(item, None, f"its process was {death}")
        if kind == "at":
            at(item, content[0])
            return None
        self.item = None
        if kind == "bug":
            raise content[0]
        return Done(item, *content)

    def end(self) -> None:
        """Leave nothing behind."""
        self.pipe.close()
        self._process.terminate()
        try:
            self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


# Not multiprocessing's spawn: that runs the user's main script again in every process.
_BEGIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from densing.jobs.crew import serve; serve(int(sys.argv[2]), int(sys.argv[3]))"
)


def serve(handle: int, parent: int) -> None:
    """What a process does: receive the work, then work on what comes until nobody listens."""
    processes.die_with_parent(parent)
    pipe = Connection(handle)
    last = 0.0

    def tell(done: Any) -> None:
        nonlocal last
        # Who does not listen for long misses where the work stands; the work does not wait for that.
        if (now := time.monotonic()) - last >= TELL_SECONDS and select.select([], [pipe], [], 0)[1]:
            last = now
            pipe.send(("at", done))

    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            work = pipe.recv()
        except (AttributeError, ImportError) as error:
            # A function that only the main script has.
            pipe.send(("bug", _portable(error)))
            return
        while True:
            item, last = pipe.recv(), 0.0
            try:
                pipe.send(("row", *_attempt(work, item, tell)))
            except (BrokenPipeError, ConnectionResetError):
                raise
            except Exception as error:
                pipe.send(("bug", _portable(error)))


def _attempt(work: Work, item: Any, tell: Tell) -> tuple[Mapping[str, Any] | None, str]:
    try:
        return work(item, tell), ""
    except (DensingError, MemoryError) as error:
        return None, str(error) or "memory is not enough for it"


def _portable(error: Exception) -> Exception:
    """Return an error that survives the way to another process, with where it happened."""
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(repr(error))
    error.add_note(text)
    return error

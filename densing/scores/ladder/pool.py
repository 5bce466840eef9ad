"""Work in several processes that report while they go, and end when the command that started them does."""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from densing.core import DensingError

Item = TypeVar("Item")
Result = TypeVar("Result")
Tell = Callable[..., object]
POLL_SECONDS = 0.5


class WorkerError(DensingError):
    """A worker process ended without saying why."""


def each(
    work: Callable[[Item, Tell], Result], items: Sequence[Item], workers: int, tell: Tell = lambda *_: None
) -> list[Result]:
    """Return ``work(item, tell)`` for every item, in their order.

    Parameters
    ----------
    work : callable
        A function of a module; it and the items travel to other processes.
    items : sequence
        What to work on; taken in order.
    workers : int
        Processes; with one worker or one item everything happens in this one.
    tell : callable
        Called here with whatever the work reports.

    Raises
    ------
    WorkerError
        When a process was killed.
    """
    if min(workers, len(items)) <= 1:
        return [work(item, tell) for item in items]
    context = multiprocessing.get_context("spawn")
    messages: Any = context.Queue()
    pool = ProcessPoolExecutor(min(workers, len(items)), context, _begin, (messages, os.getpid()))
    try:
        parts = [pool.submit(_work, work, item) for item in items]
        waiting = set(parts)
        while waiting:
            finished, waiting = wait(waiting, POLL_SECONDS, FIRST_COMPLETED)
            _pass_on(messages, tell)
            for part in finished:
                part.result()
        results = [part.result() for part in parts]
        pool.shutdown()
        _pass_on(messages, tell)
        return results
    except BrokenProcessPool as error:
        raise WorkerError(
            "a worker process was killed (out of memory?); the same command goes on from there"
        ) from error
    finally:
        # After a failure or Ctrl-C: copied first, because the pool forgets its processes when it shuts down.
        processes = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()


def _pass_on(messages: Any, tell: Tell) -> None:
    while True:
        try:
            tell(*messages.get_nowait())
        except queue.Empty:
            return


_MESSAGES: Any = None


def _begin(messages: Any, parent: int) -> None:
    """Prepare a worker process."""
    global _MESSAGES
    _MESSAGES = messages
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()


def _follow(parent: int) -> None:
    """End this process when its parent is gone: a killed command must not leave workers behind."""
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os._exit(1)


def _work(work: Callable[[Item, Tell], Result], item: Item) -> Result:
    return work(item, lambda *message: _MESSAGES.put(message))

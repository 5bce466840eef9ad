"""Double buffering: one process fills a buffer while another computes on the other."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from densing.core import processes
from densing.efficiency.systems.host_tables.graph import FANOUTS, Block, Task

BUFFERS = 2
_LOOK_S = 0.5
_SPAWN = multiprocessing.get_context("spawn")


class Batch(NamedTuple):
    """Input of a step; rows and blocks are views of a buffer.

    Attributes
    ----------
    nodes : int64 (seeds,)
    rows : float32 (n, width)
    blocks : tuple of Block
    sample_s, gather_s : float
        Seconds of sampling and of gathering.
    """

    nodes: NDArray[np.int64]
    rows: NDArray[np.float32]
    blocks: tuple[Block, ...]
    sample_s: float
    gather_s: float


class Sizes(NamedTuple):
    """Of a buffer: rows at most, their width, whole numbers at most."""

    rows: int
    width: int
    numbers: int

    @classmethod
    def of(cls, task: Task, seeds: int) -> Sizes:
        """Return what the largest neighbourhood of so many seeds needs."""
        nodes, numbers = seeds, 2 + 2 * len(FANOUTS) + seeds
        for fanout in FANOUTS:
            drawn = min(nodes * fanout, len(task.graph.neighbours))
            numbers += nodes + drawn
            nodes = min(nodes + drawn, len(task.labels))
        return cls(nodes, task.table.rows.shape[1], numbers)


class Buffer:
    """Memory that processes share: rows, whole numbers, and two times."""

    def __init__(self, sizes: Sizes, raw: tuple[Any, Any, Any] | None = None) -> None:
        self.sizes = sizes
        self.raw = raw or (
            _SPAWN.RawArray("f", sizes.rows * sizes.width),
            _SPAWN.RawArray("q", sizes.numbers),
            _SPAWN.RawArray("d", 2),
        )
        self.rows = np.frombuffer(self.raw[0], np.float32).reshape(sizes.rows, sizes.width)
        self.numbers = np.frombuffer(self.raw[1], np.int64)
        self.times = np.frombuffer(self.raw[2], np.float64)

    def fill(self, task: Task, seeds: int, seed: int, step: int) -> Batch:
        """Draw the neighbourhood of a step and gather its rows; return the same as :meth:`read`."""
        began = time.perf_counter()
        nodes = task.seeds(seeds, seed, step)
        found = task.neighbourhood(nodes, seed, step)
        sampled = time.perf_counter()
        task.table.gather(found.nodes, self.rows[: len(found.nodes)])
        self.times[:] = sampled - began, time.perf_counter() - sampled
        lengths = [len(part) for block in found.blocks for part in block]
        parts = [[len(nodes), len(found.nodes), *lengths], nodes, *(part for block in found.blocks for part in block)]
        told = np.concatenate([np.asarray(part, np.int64) for part in parts])
        self.numbers[: len(told)] = told
        return self.read()

    def read(self) -> Batch:
        """Return what was filled in last."""
        head = 2 + 2 * len(FANOUTS)
        seeds, rows, *lengths = self.numbers[:head].tolist()
        ends = np.cumsum([head, seeds, *lengths]).tolist()
        nodes, *parts = (self.numbers[a:b] for a, b in pairwise(ends))
        blocks = tuple(Block(counts, sources) for counts, sources in zip(parts[::2], parts[1::2], strict=True))
        return Batch(nodes, self.rows[:rows], blocks, float(self.times[0]), float(self.times[1]))


def produce(
    parent: int, load: Callable[[], Task], raws: list[Any], sizes: Sizes, seeds: int, seed: int, steps: int,
    ready: Any, free: Any, full: Any, cores: frozenset[int],
) -> None:  # fmt: skip
    """Fill buffers in turn; the process that :class:`Ahead` starts."""
    processes.die_with_parent(parent)
    if cores:
        with suppress(OSError):
            os.sched_setaffinity(0, cores)
    task = load()
    buffers = [Buffer(sizes, raw) for raw in raws]
    ready.release()
    for step in range(steps):
        free.acquire()
        buffers[step % BUFFERS].fill(task, seeds, seed, step)
        full.release()


class Ahead:
    """A process that gathers the next step's rows.

    Parameters
    ----------
    load : callable
        Returns the task; called in that process, which has its own copy, so it must be importable.
    sizes : Sizes
    seeds, seed, steps : int
    cores : frozenset of int
        Processors it may run on; those of this process when empty.

    Raises
    ------
    RuntimeError
        When the process ended early; its log has the error.
    """

    def __init__(
        self,
        load: Callable[[], Task],
        sizes: Sizes,
        seeds: int,
        seed: int,
        steps: int,
        cores: frozenset[int] = frozenset(),
    ) -> None:
        self.buffers = [Buffer(sizes) for _ in range(BUFFERS)]
        self.ready, self.free, self.full = _SPAWN.Semaphore(0), _SPAWN.Semaphore(BUFFERS), _SPAWN.Semaphore(0)
        arguments = (
            os.getpid(), load, [buffer.raw for buffer in self.buffers], sizes, seeds, seed, steps,
            self.ready, self.free, self.full, cores,
        )  # fmt: skip
        self.process = _SPAWN.Process(target=produce, args=arguments, daemon=True)
        self.taken = 0

    def __enter__(self) -> Ahead:
        """Start the process, and wait until it has its task."""
        self.process.start()
        self._wait(self.ready)
        return self

    def __exit__(self, *_: object) -> None:
        """End the process, wherever it is."""
        self.process.kill()
        self.process.join()

    def take(self) -> Batch:
        """Return the next step's batch, once it is there; what the step before had may be overwritten from now on."""
        if self.taken:
            self.free.release()
        self._wait(self.full)
        batch = self.buffers[self.taken % BUFFERS].read()
        self.taken += 1
        return batch

    def _wait(self, semaphore: Any) -> None:
        while not semaphore.acquire(timeout=_LOOK_S):
            if not self.process.is_alive() and not semaphore.acquire(block=False):
                raise RuntimeError(f"the process that gathers rows exited with code {self.process.exitcode}")


def free_cores() -> frozenset[int]:
    """Return the processors that this process's parent may use and this process, tied to one, does not."""
    if not hasattr(os, "sched_getaffinity"):
        return frozenset()
    try:
        return frozenset(os.sched_getaffinity(os.getppid()) - os.sched_getaffinity(0))
    except OSError:
        return frozenset()

"""Seconds of work on a device by its own events, or on a processor by its clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch


def synchronize(device: str) -> None:
    """Wait for the device."""
    if device != "cpu":
        torch.cuda.synchronize()


def stream(device: str) -> Any:
    """Return a new stream; None on a processor, which has none."""
    return None if device == "cpu" else torch.cuda.Stream()


def on(one: Any) -> AbstractContextManager[Any]:
    """Return what puts work on a stream."""
    return nullcontext() if one is None else torch.cuda.stream(one)


def seconds(work: Callable[[], object], device: str, repeats: int = 20, warmup: int = 3) -> float:
    """Return the median seconds of one call."""
    for _ in range(warmup):
        work()
    marks = Marks(device)
    for _ in range(repeats):
        with marks.piece("call"):
            work()
    return statistics.median((end - start) / 1e9 for _, start, end in marks.intervals())


class Marks:
    """Pieces of work, each with its stream's own times: what a profile is compared with."""

    def __init__(self, device: str) -> None:
        self.device, self._pieces = device, []  # type: ignore[var-annotated]
        synchronize(device)
        self._base = self._now()

    def _now(self, one: Any = None) -> Any:
        if self.device == "cpu":
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream() if one is None else one)
        return event

    @contextmanager
    def piece(self, kind: str, one: Any = None) -> Iterator[None]:
        """Mark work that is put on a stream meanwhile."""
        start = self._now(one)
        yield
        self._pieces.append((kind, start, self._now(one)))

    def intervals(self) -> list[tuple[str, int, int]]:
        """Return every piece with start and end, ns since these marks began."""
        synchronize(self.device)
        if self.device == "cpu":
            return [(kind, start - self._base, end - self._base) for kind, start, end in self._pieces]
        # elapsed_time gives milliseconds, half a microsecond fine.
        return [
            (kind, round(1e6 * self._base.elapsed_time(start)), round(1e6 * self._base.elapsed_time(end)))
            for kind, start, end in self._pieces
        ]

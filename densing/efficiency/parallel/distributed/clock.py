"""Seconds of every step, and of these the ones in which the training thread stood still for communication."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from densing.efficiency.timeline import MARK


class Clock:
    """Measures steps and waits of one rank.

    On a device ``handle.wait()`` only orders streams, the thread goes on: there the recorded trace tells the exposed
    communication, and ``wait_s`` stays near 0.

    Parameters
    ----------
    now : callable
        Seconds; for tests.

    Attributes
    ----------
    step_s, wait_s : list of float
        Seconds per finished step, and what of them was waiting.

    Examples
    --------
    >>> ticks = iter([0.0, 1.0, 3.0, 4.0, 9.0, 9.5])
    >>> clock = Clock(now=lambda: next(ticks))
    >>> clock.start()
    >>> with clock.waiting():
    ...     pass
    >>> clock.step()
    >>> with clock.paused():
    ...     pass
    >>> clock.step_s, clock.wait_s
    ([4.0], [2.0])
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.step_s: list[float] = []
        self.wait_s: list[float] = []
        self._now, self._began, self._waited, self._depth = now, 0.0, 0.0, 0

    def start(self) -> None:
        """Begin the first step."""
        self._began, self._waited = self._now(), 0.0

    def step(self) -> None:
        """End a step and begin the next one."""
        now = self._now()
        self.step_s.append(now - self._began)
        self.wait_s.append(self._waited)
        self._began, self._waited = now, 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the block as waiting for communication; a wait inside a wait counts once.

        While a profiler records, the block is marked in the trace as ``densing::wait``.
        """
        import torch

        # Waits on an emulated link are none of gloo's, and nobody else marks them.
        recording = torch.autograd._profiler_enabled()
        self._depth += 1
        began = self._now() if self._depth == 1 else 0.0
        try:
            with torch.profiler.record_function(MARK) if recording else nullcontext():
                yield
        finally:
            self._depth -= 1
            if not self._depth:
                self._waited += self._now() - began

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the block out of the step: checkpoints and traces are written for us, not for the training."""
        began = self._now()
        try:
            yield
        finally:
            self._began += self._now() - began

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs."""
        return {"step_s": list(self.step_s), "wait_s": list(self.wait_s)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after a checkpoint."""
        self.step_s, self.wait_s = list(state["step_s"]), list(state["wait_s"])

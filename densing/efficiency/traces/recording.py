"""Record a training loop: one Kineto trace per rank, in three lines of the user's own loop.

.. code-block:: python

    with densing.timeline.record("traces") as step:
        for batch in loader:
            train(batch)
            step()

The same under ``torchrun``: every rank writes its own file, ``traces/rank00003.pt.trace.json.gz``.
"""

from __future__ import annotations

import json
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from densing import __version__
from densing.core import InputError, Note, Severity, UnavailableError
from densing.efficiency.timeline import MARK, RECORDER
from densing.efficiency.traces.destination import Destination, find_destination, save, settled


@dataclass(frozen=True)
class Schedule:
    """Which steps are recorded: ``wait`` left alone, ``warmup`` traced and thrown away, ``active`` kept; repeated.

    Raises
    ------
    InputError
        When a number makes no sense.

    Examples
    --------
    >>> Schedule(wait=1, warmup=1, active=3).needed
    5
    >>> Schedule(active=0)
    Traceback (most recent call last):
        ...
    densing.core.errors.InputError: record(active=0): a whole number from 1 up is needed
    """

    wait: int = 1
    warmup: int = 1
    active: int = 3
    repeat: int = 1

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name, least in (("wait", 0), ("warmup", 0), ("active", 1), ("repeat", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(f"record({name}={value!r}): a whole number from {least} up is needed")

    @property
    def needed(self) -> int:
        """Calls of ``step()`` until the first trace is written."""
        return self.wait + self.warmup + self.active


def record(
    out: str | Path,
    *,
    wait: int = 1,
    warmup: int = 1,
    active: int = 3,
    repeat: int = 1,
    shapes: bool = True,
    stacks: bool = False,
    memory: bool = False,
    rank: int | None = None,
) -> Recorder:
    """Record a training loop with ``torch.profiler``, one trace per rank.

    The rank is that of ``torch.distributed`` if that is initialised before the steps to be recorded, else the
    environment's ``RANK``, else 0. All activities the installation supports are recorded (processor, CUDA, ROCm,
    XPU, ...). On gloo, whose ``work.wait()`` leaves no event, waits from Python are marked as ``densing::wait``.
    Writing happens inside the ``step()`` that ends the active steps and at the end of the block; the training waits
    for it. After the last trace ``step()`` does nothing.

    Parameters
    ----------
    out : path
        Folder for the traces. One that holds traces of an earlier run of this rank, or of ranks this run does not
        have, is refused before anything is recorded. A worker that ``torchrun`` has started again writes into
        ``out/restart1``, and with ``repeat`` other than 1 every trace has a folder ``cycle00000`` of its own, so
        that a folder holds one recording of the run.
    wait, warmup, active, repeat : int
        Steps to skip, to warm up, to record; how often (0: as long as the loop lasts).
    shapes, stacks, memory : bool
        Record shapes of inputs (collectives get their bytes from them), Python stacks, allocations; the last two
        make traces several times as large.
    rank : int, optional
        Where neither ``torch.distributed`` nor the environment knows it.

    Returns
    -------
    Recorder
        A context manager that gives the ``step`` to call after every training step; also usable as a callback of a
        trainer (``start()``, ``step(...)``, ``stop()``).

    Raises
    ------
    InputError
        When the folder cannot be written or holds traces of an earlier run, the rank is contradicted, an option makes
        no sense, or this process is being recorded already.
    UnavailableError
        When torch is not installed.

    Examples
    --------
    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with record(folder, wait=0, active=2) as step:
    ...         for batch in range(3):
    ...             _ = torch.ones(8).sum()
    ...             step()
    ...     [file.name for file in step.files]
    ['rank00000.pt.trace.json.gz']
    """
    options = {"record_shapes": shapes, "with_stack": stacks, "profile_memory": memory}
    return Recorder(Path(out), Schedule(wait, warmup, active, repeat), options, rank)


class Recorder:
    """What :func:`record` returns; call it after every training step.

    Attributes
    ----------
    files : tuple of Path
        Traces written so far.
    notes : tuple of Note
        What went wrong without stopping the training: a loop that was too short, a disk that was full.
    """

    _running: weakref.ref[Recorder] | None = None

    def __init__(self, out: Path, schedule: Schedule, options: dict[str, bool], rank: int | None) -> None:
        self.out, self.schedule = out, schedule
        self.files: tuple[Path, ...] = ()
        self.notes: tuple[Note, ...] = ()
        self._options, self._rank = options, rank
        self._destination: Destination | None = None
        self._profiler: Any = None
        self._stack = ExitStack()
        self._calls = self._cycles = 0

    def __enter__(self) -> Recorder:
        """Start recording."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write what was recorded, also when the loop failed."""
        self.stop(failed=error is not None)

    def start(self) -> Recorder:
        """Check the folder and start; what ``with`` does first."""
        if self._profiler is not None:
            raise InputError(f"record({str(self.out)!r}): has begun already; make a second one for a second loop")
        other = None if Recorder._running is None else Recorder._running()
        if other is not None and other._profiler is not None:
            # torch has one profiler per process: a second one fails in the middle of the training, and ends both.
            raise InputError(
                f"record({str(self.out)!r}): this process is being recorded into {str(other.out)!r}; end that first"
            )
        try:
            import torch
            import torch.profiler
        except ImportError as error:
            raise UnavailableError("recording needs PyTorch; pip install torch") from error
        self._destination = find_destination(self.out, self._rank, numbered=self.schedule.repeat != 1)
        profiler = torch.profiler.profile(
            schedule=torch.profiler.schedule(
                wait=self.schedule.wait,
                warmup=self.schedule.warmup,
                active=self.schedule.active,
                repeat=self.schedule.repeat,
            ),
            on_trace_ready=self._write,
            **self._options,
            **_sync_events(torch),
        )
        if (known := self._destination.to_metadata()) is not None:
            profiler.preset_metadata_json("distributedInfo", known)
        profiler.preset_metadata_json(RECORDER, json.dumps(__version__))
        self._stack.enter_context(waits_marked())
        profiler.start()
        self._profiler = profiler
        Recorder._running = weakref.ref(self)
        return self

    def __call__(self, *_: object, **__: object) -> None:
        """End a training step; arguments that a trainer hands to its callbacks are ignored."""
        if self._profiler is None:
            return
        self._calls += 1
        try:
            self._step()
        except BaseException:
            # Stopping a profiler that failed halfway through a change of state crashes the process (torch 2.13).
            self._profiler = None
            self._stack.close()
            raise
        if 0 < self.schedule.repeat == self._cycles:
            # All is recorded: from here on a step costs nothing.
            self._close()

    def stop(self, *, failed: bool = False) -> None:
        """End the recording; what ``with`` does last. Steps recorded so far are written even if some are missing.

        Parameters
        ----------
        failed : bool
            True when an exception is on its way: then nothing is warned of, only noted.
        """
        if self._profiler is None:
            return
        before = self._cycles
        self._close()
        if self._cycles > before:
            message = (
                f"{self.out}: the loop ended before {self.schedule.active} steps were recorded; the last ProfilerStep "
                "of this trace is no whole step"
            )
            self._remark("recording-cut", "warning", message, quiet=failed)
        elif not self._cycles:
            message = (
                f"{self.out}: no trace, the loop called step() {self._calls} time(s) and the first trace needs "
                f"{self.schedule.needed} (wait {self.schedule.wait} + warmup {self.schedule.warmup} + active "
                f"{self.schedule.active}); choose smaller numbers"
            )
            self._remark("nothing-recorded", "warning", message, quiet=failed)

    def _step(self) -> None:
        self._settle()
        if self.schedule.repeat == 1:
            self._profiler.step()
            return
        with warnings.catch_warnings():
            # That torch forgets a cycle once it is written is what is wanted here.
            warnings.filterwarnings("ignore", ".*Profiler clears events")
            self._profiler.step()

    def _settle(self) -> None:
        """Take the rank of ``torch.distributed`` where it was initialised after the recording began."""
        assert self._destination is not None
        destination = settled(self._destination)
        if destination is not self._destination:
            self._destination = destination
            # From here on torch writes this itself, with the process groups.
            self._profiler.preset_metadata.pop("distributedInfo", None)
            self._stack.enter_context(waits_marked())

    def _close(self) -> None:
        profiler, self._profiler = self._profiler, None
        try:
            profiler.stop()
        finally:
            self._stack.close()

    def _write(self, profiler: Any) -> None:
        """Write one cycle; a full disk must not end a training run."""
        assert self._destination is not None
        began = time.perf_counter()
        try:
            file = save(self._destination, self._cycles, profiler.export_chrome_trace)
        except (InputError, OSError, RuntimeError) as error:
            self._remark("trace-not-written", "error", f"{self.out}: trace of this rank is lost: {error}")
        else:
            self.files += (file,)
            seconds, size = time.perf_counter() - began, file.stat().st_size
            message = f"{file}: {size / 1e6:.1f} MB in {seconds:.1f} s, during which the training stood still"
            self.notes += (Note("trace-written", "info", message, {"bytes": size, "seconds": seconds}),)
        self._cycles += 1

    def _remark(self, code: str, severity: Severity, message: str, *, quiet: bool = False) -> None:
        self.notes += (Note(code, severity, message),)
        if not quiet:
            warnings.warn(message, RuntimeWarning, stacklevel=3)


def _sync_events(torch: Any) -> dict[str, Any]:
    """Ask for synchronisation events where there is a CUDA device: they tell what waited for what."""
    if not torch.cuda.is_available():
        return {}
    make: Callable[..., Any] | None = getattr(torch._C._profiler, "_ExperimentalConfig", None)
    try:
        return {} if make is None else {"experimental_config": make(enable_cuda_sync_events=True)}
    except TypeError:
        # A build of torch without this option records the rest.
        return {}


@contextmanager
def waits_marked() -> Iterator[None]:
    """Put an annotation around every ``work.wait()`` called from Python while a profiler records.

    Only where ``torch.distributed`` runs over gloo: other back-ends' waits do not hold the processor. Waits inside
    C++ (DistributedDataParallel's) stay unmarked. A blocking call, ``all_reduce(x)``, waits from Python too.
    """
    work = _gloo_work()
    if work is None:
        yield
        return
    import torch

    original = work.wait

    def wait(self: Any, *arguments: Any, **options: Any) -> Any:
        if not torch.autograd._profiler_enabled():
            return original(self, *arguments, **options)
        with torch.profiler.record_function(MARK):
            return original(self, *arguments, **options)

    work.wait = wait
    try:
        yield
    finally:
        work.wait = original


def _gloo_work() -> Any | None:
    """Return the class of pending collectives if gloo carries them."""
    try:
        import torch.distributed as dist
    except ImportError:
        return None
    if not dist.is_available() or not dist.is_initialized() or "gloo" not in str(dist.get_backend()):
        return None
    return getattr(dist, "Work", None)

"""Record a training loop: one Kineto trace per rank, in three lines of the user's own loop.

.. code-block:: python

    with densing.timeline.record("traces") as step:
        for batch in loader:
            train(batch)
            step()

The same under ``torchrun``: every rank writes its own file, ``traces/rank00003.pt.trace.json.gz``.

Two parts: the recorder around ``torch.profiler``, and the destination of its traces: which rank this process is, which
file is its own, and how a file gets there whole.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from densing import __version__
from densing.core import InputError, Note, Severity, UnavailableError
from densing.efficiency.timeline import MARK, RECORDER
from densing.efficiency.traces.source import gzip_module

_Method = Callable[..., Any]
SETTLE_S = 30.0
"""Longest wait for operations in flight at the end of a recording; a peer may need a later step of ours to answer."""


@dataclass(frozen=True)
class Schedule:
    """Which steps are recorded: ``wait`` are skipped, ``warmup`` traced and discarded, ``active`` kept; repeated.

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
    densing.core.errors.InputError: record(active=0): must be a whole number from 1 up
    """

    wait: int = 1
    warmup: int = 1
    active: int = 3
    repeat: int = 1

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name, lowest in (("wait", 0), ("warmup", 0), ("active", 1), ("repeat", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
                raise InputError(f"record({name}={value!r}): must be a whole number from {lowest} up")

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
    """Result of :func:`record`; call it after every training step.

    Attributes
    ----------
    files : tuple of Path
        Traces written so far.
    notes : tuple of Note
        Problems that did not stop the training, such as a short loop or a full disk.
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
        self._under_way: weakref.WeakSet[Any] = weakref.WeakSet()
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
            raise InputError(f"record({str(self.out)!r}): has already begun; create a new one for a second loop")
        other = None if Recorder._running is None else Recorder._running()
        if other is not None and other._profiler is not None:
            # torch has one profiler per process: a second one fails in the middle of the training, and ends both.
            raise InputError(
                f"record({str(self.out)!r}): this process is already recorded into {str(other.out)!r}; end that first"
            )
        try:
            import torch
            import torch.profiler
        except ImportError as error:
            raise UnavailableError("recording needs PyTorch; pip install torch") from error
        self._destination = find_destination(self.out, self._rank, numbered=self.schedule.repeat != 1)
        schedule = torch.profiler.schedule(
            wait=self.schedule.wait,
            warmup=self.schedule.warmup,
            active=self.schedule.active,
            repeat=self.schedule.repeat,
        )

        def until_settled(step: int) -> Any:
            # torch asks between the end of a step's mark and the end of a recording.
            if step and schedule(step - 1) == torch.profiler.ProfilerAction.RECORD_AND_SAVE:
                self._settle()
            return schedule(step)

        profiler = torch.profiler.profile(
            schedule=until_settled,
            on_trace_ready=self._write,
            **self._options,
            **_sync_events(torch),
        )
        if (known := self._destination.to_metadata()) is not None:
            profiler.preset_metadata_json("distributedInfo", known)
        profiler.preset_metadata_json(RECORDER, json.dumps(__version__))
        self._stack.enter_context(gloo_followed(self._under_way))
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
            True when an exception is propagating: problems are then noted without a warning.
        """
        if self._profiler is None:
            return
        before = self._cycles
        self._close(failed=failed)
        if self._cycles > before:
            message = (
                f"{self.out}: the loop ended before {self.schedule.active} steps were recorded; the last ProfilerStep "
                "of this trace is not a whole step"
            )
            self._remark("recording-cut", "warning", message, quiet=failed)
        elif not self._cycles:
            message = (
                f"{self.out}: no trace: the loop called step() {self._calls} time(s), but the "
                "first trace needs "
                f"{self.schedule.needed} (wait {self.schedule.wait} + warmup {self.schedule.warmup} + active "
                f"{self.schedule.active}); choose smaller numbers"
            )
            self._remark("nothing-recorded", "warning", message, quiet=failed)

    def _step(self) -> None:
        assert self._destination is not None
        # The rank of torch.distributed, where it was initialised after the recording began.
        destination = settled(self._destination)
        if destination is not self._destination:
            self._destination = destination
            # From here on torch writes this itself, with the process groups.
            self._profiler.preset_metadata.pop("distributedInfo", None)
            self._stack.enter_context(gloo_followed(self._under_way))
        if self.schedule.repeat == 1:
            self._profiler.step()
            return
        with warnings.catch_warnings():
            # That torch forgets a cycle once it is written is what is wanted here.
            warnings.filterwarnings("ignore", ".*Profiler clears events")
            self._profiler.step()

    def _close(self, *, failed: bool = False) -> None:
        profiler, self._profiler = self._profiler, None
        try:
            if not failed:
                self._settle()
            profiler.stop()
        finally:
            self._stack.close()

    def _settle(self) -> None:
        """Wait for gloo operations begun during the recording before it ends.

        torch (2.13) notes an operation's end in the profiler's memory, whether or not that has been freed meanwhile;
        the process may crash at any time later.
        """
        ends = time.monotonic() + SETTLE_S
        while (late := [work for work in self._under_way if not work.is_completed()]) and time.monotonic() < ends:
            time.sleep(1e-3)
        self._under_way.clear()
        if late:
            message = (
                f"{self.out}: {len(late)} operation(s) of gloo were in flight when the recording "
                "ended, which crashes some versions of torch; wait for them before the last "
                "recorded step()"
            )
            self._remark("outlives-recording", "warning", message)

    def _write(self, profiler: Any) -> None:
        """Write one cycle; a full disk must not end a training run."""
        assert self._destination is not None
        began = time.perf_counter()
        try:
            file = save(self._destination, self._cycles, profiler.export_chrome_trace)
        except (InputError, OSError, RuntimeError) as error:
            self._remark("trace-not-written", "error", f"{self.out}: the trace of this rank is lost: {error}")
        else:
            self.files += (file,)
            seconds, size = time.perf_counter() - began, file.stat().st_size
            message = f"{file}: {size / 1e6:.1f} MB in {seconds:.1f} s, during which training was paused"
            self.notes += (Note("trace-written", "info", message, {"bytes": size, "seconds": seconds}),)
        self._cycles += 1

    def _remark(self, code: str, severity: Severity, message: str, *, quiet: bool = False) -> None:
        self.notes += (Note(code, severity, message),)
        if not quiet:
            warnings.warn(message, RuntimeWarning, stacklevel=3)


def _sync_events(torch: Any) -> dict[str, Any]:
    """Request synchronisation events if there is a CUDA device: they show what waited for what."""
    if not torch.cuda.is_available():
        return {}
    make: Callable[..., Any] | None = getattr(torch._C._profiler, "_ExperimentalConfig", None)
    try:
        return {} if make is None else {"experimental_config": make(enable_cuda_sync_events=True)}
    except TypeError:
        # A build of torch without this option records the rest.
        return {}


@contextmanager
def gloo_followed(under_way: weakref.WeakSet[Any]) -> Iterator[None]:
    """Mark every ``work.wait()`` called from Python while a profiler records, and collect the operations begun then.

    Only where ``torch.distributed`` runs over gloo: other back-ends' waits do not hold the processor, and their
    operations end on a device. Waits inside C++ (DistributedDataParallel's) stay unmarked. A blocking call,
    ``all_reduce(x)``, waits from Python too.

    Parameters
    ----------
    under_way : weakref.WeakSet
        Collects the operations, which drop out once their ``Work`` is no longer referenced.
    """
    try:
        import torch.distributed as dist
    except ImportError:
        dist = None
    is_gloo = dist is not None and dist.is_available() and dist.is_initialized() and "gloo" in str(dist.get_backend())
    # The class of pending collectives.
    work = getattr(dist, "Work", None) if is_gloo else None
    if work is None:
        yield
        return
    import torch

    def marked(wait: _Method) -> _Method:
        def call(*arguments: Any, **options: Any) -> Any:
            with torch.profiler.record_function(MARK):
                return wait(*arguments, **options)

        return call

    def collected(begin: _Method) -> _Method:
        def call(*arguments: Any, **options: Any) -> Any:
            begun = begin(*arguments, **options)
            under_way.add(begun)
            return begun

        return call

    with ExitStack() as stack:
        stack.enter_context(_while_recorded(work, "wait", marked))
        for name in COLLECTIVES:
            if name in vars(dist.ProcessGroup):
                stack.enter_context(_while_recorded(dist.ProcessGroup, name, collected))
        yield


COLLECTIVES = (
    *("allreduce", "allreduce_coalesced", "reduce", "broadcast", "barrier", "gather", "scatter"),
    *("allgather", "allgather_coalesced", "allgather_into_tensor_coalesced", "_allgather_base"),
    *("reduce_scatter", "reduce_scatter_tensor_coalesced", "_reduce_scatter_base", "alltoall", "alltoall_base"),
    # Names of torch 2.13 and newer.
    *("all_gather_single", "all_gather_single_coalesced", "all_to_all_single"),
    *("reduce_scatter_single", "reduce_scatter_single_coalesced"),
)
"""Methods of torch's process group that begin a collective; messages report completion only when waited for."""


@contextmanager
def _while_recorded(
    owner: Any, name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Change a method for the calls made while a profiler records."""
    import torch

    original, stored = getattr(owner, name), vars(owner)[name]
    changed = change(original)

    def method(*arguments: Any, **options: Any) -> Any:
        return (changed if torch.autograd._profiler_enabled() else original)(*arguments, **options)

    setattr(owner, name, method)
    try:
        yield
    finally:
        # What the class held: of a C++ method, getattr gives a function that would no longer bind.
        setattr(owner, name, stored)


# Where the traces go: the rank of this process, its file, and how that is written.

SUFFIX = ".pt.trace.json.gz"
_OURS = re.compile(r"rank(\d+)\.pt\.trace\.json(\.gz)?$")
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Destination:
    """Where this process's traces go.

    Parameters
    ----------
    folder : Path
    rank : int
    world_size : int
        -1 unknown.
    source : {"torch.distributed", "environment", "option", "default"}
        Source of the rank.
    numbered : bool
        Whether every cycle of the schedule has its own folder.
    """

    folder: Path
    rank: int
    world_size: int
    source: str
    numbered: bool = False

    def file(self, cycle: int) -> Path:
        """Return the file of one cycle.

        Examples
        --------
        >>> Destination(Path("traces"), 3, 8, "default").file(0).as_posix()
        'traces/rank00003.pt.trace.json.gz'
        """
        folder = self.folder / f"cycle{cycle:05d}" if self.numbered else self.folder
        return folder / f"rank{self.rank:05d}{SUFFIX}"

    def to_metadata(self) -> str | None:
        """Return the header's ``distributedInfo`` where torch itself would write none; None if it does or may."""
        if self.source not in ("environment", "option"):
            return None
        world = {"world_size": self.world_size} if self.world_size > 0 else {}
        return json.dumps({"backend": "", "rank": self.rank, **world})


def find_destination(out: Path, rank: int | None, *, numbered: bool = False) -> Destination:
    """Find out which rank this is and where its traces go.

    Raises
    ------
    InputError
        When the rank is contradicted, or the folder cannot be written or holds traces of an earlier run.
    """
    if rank is not None and (isinstance(rank, bool) or not isinstance(rank, int)):
        raise InputError(f"record(rank={rank!r}): must be a whole number from 0 up")
    known_rank, world, source = _identity()
    if rank is not None:
        if rank < 0 or (source == "torch.distributed" and rank != known_rank):
            known = f"; torch.distributed says {known_rank}" if source == "torch.distributed" else ""
            raise InputError(f"record(rank={rank}): not a rank of this run{known}; leave the option out")
        if source != "torch.distributed":
            known_rank, source = rank, "option"
    restart = _count(os.environ.get("TORCHELASTIC_RESTART_COUNT", "")) or 0
    folder = out / f"restart{restart}" if restart else out
    destination = Destination(folder, known_rank, world, source, numbered)
    # A folder where this rank, or a rank that this run does not have, has left traces is refused.
    for file in sorted([*folder.glob("rank*.json*"), *folder.glob("cycle*/rank*.json*")]):
        match = _OURS.match(file.name)
        if match and (int(match[1]) == known_rank or int(match[1]) >= world > 0):
            raise InputError(f"{file}: is a trace of an earlier run; choose another folder or move it away")
    # One that takes no files is refused now, not after the training has run.
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{folder}: cannot write traces there ({reason}); choose another folder") from error
    return destination


def settled(destination: Destination) -> Destination:
    """Return the destination with the rank now known to ``torch.distributed``; itself if nothing has changed.

    Examples
    --------
    >>> destination = Destination(Path("traces"), 3, 8, "environment")
    >>> settled(destination) is destination
    True
    """
    if destination.source == "torch.distributed":
        return destination
    rank, world, source = _identity()
    if source != "torch.distributed":
        return destination
    return replace(destination, rank=rank, world_size=world, source=source)


def save(destination: Destination, cycle: int, export: Callable[[str], Any]) -> Path:
    """Let ``export`` write a trace, compress it and move it into place atomically.

    Returns
    -------
    Path
        ``destination.file(cycle)``; with ``.again1`` in its name where another process has written as the same rank, so
        that neither trace is lost.

    Raises
    ------
    OSError
        When the disk is full or the folder is gone.
    """
    target = destination.file(cycle)
    target.parent.mkdir(parents=True, exist_ok=True)
    # A dot in front: who looks for traces while one is written finds whole ones only.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".recording-") as folder:
        plain, packed = Path(folder) / "trace.json", Path(folder) / "trace.json.gz"
        export(str(plain))
        _compress(plain, packed)
        number = 0
        while not _claimed(packed, target):
            number += 1
            target = target.with_name(f"rank{destination.rank:05d}.again{number}{SUFFIX}")
    return target


def _claimed(source: Path, target: Path) -> bool:
    """Give a file its name unless another has it."""
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    except OSError:
        # A file system without hard links: two writers at the same moment are told apart by nothing there.
        if target.exists():
            return False
        source.replace(target)
    return True


def _compress(source: Path, target: Path) -> None:
    packer = gzip_module()
    level = 4 if packer.__name__ == "gzip" else 2
    with source.open("rb") as plain, packer.open(target, "wb", compresslevel=level) as packed:
        shutil.copyfileobj(plain, packed, _CHUNK)
    with target.open("rb") as packed:
        os.fsync(packed.fileno())


def _identity() -> tuple[int, int, str]:
    try:
        import torch.distributed as dist
    except ImportError:
        dist = None
    if dist is not None and dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size(), "torch.distributed"
    rank, world = (_count(os.environ.get(name, "")) for name in ("RANK", "WORLD_SIZE"))
    if rank is not None:
        return rank, world or -1, "environment"
    return 0, -1, "default"


def _count(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,9}", text) else None

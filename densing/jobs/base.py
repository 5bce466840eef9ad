"""What an executor is: it starts jobs, restarts those that crash and says how each ended; and executors by name.

A job is a command line. What it did is in the run store, not in the executor: a job that dies is started again
with the same command and finds its own finished work there. So an executor needs no results and no queue of its
own beyond the jobs it was given, and a back-end is one method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from densing.core import InputError, UnavailableError, UnknownNameError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

NO_RETRY = 64
"""Exit code of a job that has said what is wrong and would say it again: it is not restarted."""

LAST_LINES = 20

GROUP = "densing.executors"
"""Entry points under which other packages register executors."""

BUILT_IN = {"local": "densing.jobs.local:LocalExecutor", "slurm": "densing.jobs.slurm:SlurmExecutor"}

EventKind = Literal["queued", "started", "output", "restarted", "finished", "failed"]


@dataclass(frozen=True)
class Job:
    """One command line to run.

    Parameters
    ----------
    argv : tuple of str
        The command; running it again after a crash must be harmless.
    name : str
        For people and log files.
    memory_gb : float, optional
        Memory it needs at its peak, in units of 10^9 bytes; None if unknown (then it is never made to wait).
    devices : int
        Accelerators it needs; 0 for a job on the processor.
    workdir : Path
        Where it runs.
    env : mapping of str to str
        Variables on top of this process's environment. They are handed over in memory and never written to disk.
    logs : Path, optional
        Where an executor that keeps logs puts them.

    Examples
    --------
    >>> Job(("python", "-V"), "version").devices
    0
    """

    argv: tuple[str, ...]
    name: str
    memory_gb: float | None = None
    devices: int = 0
    workdir: Path = field(default_factory=Path.cwd)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    logs: Path | None = None


@dataclass(frozen=True)
class JobEvent:
    """Something that happened to a job; ``message`` is one line for people."""

    job: Job
    kind: EventKind
    message: str = ""
    attempt: int = 1


@dataclass(frozen=True)
class JobResult:
    """How a job ended.

    Parameters
    ----------
    job : Job
    returncode : int or None
        Exit code of the last attempt, negative for a signal; None when it never ran or vanished.
    attempts : int
        How often it was started.
    lines : tuple of str
        The last lines it wrote, secrets removed.
    reason : str
        Why it failed or was restarted, in one sentence; empty if nothing went wrong.

    Examples
    --------
    >>> JobResult(Job(("true",), "nothing"), 0).ok
    True
    """

    job: Job
    returncode: int | None
    attempts: int = 1
    lines: tuple[str, ...] = ()
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether the last attempt ended with exit code 0."""
        return self.returncode == 0


OnEvent = Callable[[JobEvent], object]


def ignore(event: JobEvent) -> None:
    """Listen to events and do nothing."""


@runtime_checkable
class Executor(Protocol):
    """Runs jobs. A back-end of another package registers a factory in the entry points ``densing.executors``."""

    name: str

    def run(self, jobs: Sequence[Job], *, on_event: OnEvent = ignore) -> list[JobResult]:
        """Run every job to its end and return one result per job, in the order given.

        A failed job is a result, not an exception; exceptions say that the executor cannot work at all.
        """
        ...  # pragma: no cover


def executor_names() -> list[str]:
    """Return the names :func:`get_executor` knows.

    Examples
    --------
    >>> {"local", "slurm"} <= set(executor_names())
    True
    """
    return sorted({*BUILT_IN, *_registered()})


def get_executor(name: str, **options: Any) -> Executor:
    """Build the executor of a name; options are its own (``--executor-arg key=value``).

    Raises
    ------
    UnknownNameError
        When nothing is registered under the name.
    InputError
        When the executor has no such option, or a value is none of its.
    UnavailableError
        When it needs a program or package that is missing.

    Examples
    --------
    >>> get_executor("local", workers=1).name
    'local'
    """
    from importlib.metadata import EntryPoint

    if name in BUILT_IN:
        factory = EntryPoint(name, BUILT_IN[name], GROUP).load()
    else:
        points = _registered()
        if name not in points:
            raise UnknownNameError("executor", name, executor_names())
        try:
            factory = points[name].load()
        except Exception as error:
            # Code of another package: whatever it raises, the user needs its name.
            raise UnavailableError(
                f"--executor {name}: {points[name].value} cannot be loaded ({error}); repair or remove that package"
            ) from error
    try:
        executor = factory(**options)
    except TypeError as error:
        # Python's own words name the option: "got an unexpected keyword argument 'partitoin'".
        raise InputError(f"--executor {name}: {str(error).split('() ')[-1]}; check --executor-arg") from error
    if not isinstance(executor, Executor):
        raise InputError(f"--executor {name}: {type(executor).__name__} has no run method, so it is not an executor")
    return executor


def _registered() -> dict[str, EntryPoint]:
    # Slow to load, and few who import the types of this module ask for an executor by name.
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}


def whole_option(name: str, value: int | str, minimum: int) -> int:
    """Return an option as a whole number, or say what it should be."""
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = minimum - 1
    if number < minimum:
        raise InputError(f"--executor-arg {name}={value}: a whole number from {minimum} up is needed")
    return number


def positive_option(name: str, value: float | str) -> float:
    """Return an option as a number above 0, or say what it should be."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number < float("inf"):
        raise InputError(f"--executor-arg {name}={value}: a number above 0 is needed")
    return number

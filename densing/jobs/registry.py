"""Executors by name: the two of this package, and those other packages register."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from densing.core import InputError, UnavailableError, UnknownNameError
from densing.jobs.base import Executor

GROUP = "densing.executors"


BUILT_IN = {"local": "densing.jobs.local:LocalExecutor", "slurm": "densing.jobs.slurm:SlurmExecutor"}


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
    factory = _load(name)
    try:
        executor = factory(**options)
    except TypeError as error:
        # Python's own words name the option: "got an unexpected keyword argument 'partitoin'".
        raise InputError(f"--executor {name}: {str(error).split('() ')[-1]}; check --executor-arg") from error
    if not isinstance(executor, Executor):
        raise InputError(f"--executor {name}: {type(executor).__name__} has no run method; it is no executor")
    return executor


def _registered() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _load(name: str) -> Callable[..., Executor]:
    if name in BUILT_IN:
        factory: Callable[..., Executor] = EntryPoint(name, BUILT_IN[name], GROUP).load()
        return factory
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
    return factory

"""Outcomes of small experiments, shipped so that a claim is checked in no time, and done again on demand.

An outcome is shipped under the hash of the experiment's arguments, the settings that claims choose; with others, and
within :func:`rerun`, the experiment is done. What else it is made of is code: tests do a part of every experiment again
and compare.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from densing.core import read_json, write_text

SHIPPED = Path(__file__).with_name("experiments.json")
T = TypeVar("T")
_AGAIN: ContextVar[bool] = ContextVar("again", default=False)
_made: dict[str, dict[str, Any]] = {}


class Experiment(Generic[T]):
    """A function of plain settings whose outcomes are shipped.

    Parameters
    ----------
    run : callable
        Does it; its name and room name the experiment.
    kind : type
        Of the outcome: plain data, named tuples of it or frozen records.

    Examples
    --------
    >>> @experiment(float)
    ... def half(value: float) -> float:
    ...     return value / 2
    >>> half(3.0), half.inputs(3.0)
    (1.5, '["experiments half", 3.0]')
    """

    def __init__(self, run: Callable[..., T], kind: Any) -> None:
        self.run, self.kind = run, kind
        room = run.__module__.partition("systems.")[2].partition(".")[0]
        self.name = " ".join(part for part in (room, run.__name__) if part)

    def inputs(self, *settings: Any) -> str:
        """Return the experiment with its settings, as they are hashed."""
        return json.dumps([self.name, *settings])

    def __call__(self, *settings: Any) -> T:
        """Return the outcome: what is shipped, or was made in this process, else it is made."""
        inputs = self.inputs(*settings)
        key = hashed(inputs)
        if key not in _made and key in _shipped() and not _AGAIN.get():
            return msgspec.convert(_shipped()[key]["outcome"], self.kind)
        if key not in _made:
            outcome = msgspec.to_builtins(self.run(*settings))
            _made[key] = {"sha256": key, "inputs": json.loads(inputs), "outcome": outcome}
        return msgspec.convert(_made[key]["outcome"], self.kind)


def hashed(inputs: str) -> str:
    """Return the hash under which an outcome is shipped."""
    return hashlib.sha256(inputs.encode()).hexdigest()[:16]


def experiment(kind: Any) -> Callable[[Callable[..., T]], Experiment[T]]:
    """Make a function of plain settings an :class:`Experiment` whose outcome is of some type."""
    return lambda run: Experiment(run, kind)


@contextmanager
def rerun() -> Iterator[None]:
    """Do experiments again, each once, instead of reading what is shipped."""
    token = _AGAIN.set(True)
    _made.clear()
    try:
        yield
    finally:
        _AGAIN.reset(token)


def ship(path: Path = SHIPPED) -> None:
    """Write the outcomes made in this process in place of those shipped."""
    rows = sorted(_made.values(), key=lambda row: json.dumps(row["inputs"]))
    write_text(path, "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    _shipped.cache_clear()


@cache
def _shipped() -> dict[str, dict[str, Any]]:
    rows: list[dict[str, Any]] = read_json(SHIPPED) if SHIPPED.exists() else []
    return {row["sha256"]: row for row in rows}

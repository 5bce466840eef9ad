"""What a run tells while it goes and when it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from densing.core import Note

State = Literal["evaluated", "resumed", "skipped", "failed"]


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Parameters
    ----------
    model, task : str
        What is being evaluated; ``task`` is empty while a model is loaded.
    done, total : float
        Model requests over the whole plan; ``total`` is an estimate until the last unit has begun.
    units_done, units : int
        Finished units and all of them.
    """

    model: str
    task: str
    done: float
    total: float
    units_done: int
    units: int


OnProgress = Callable[[Progress], object]


def ignore(progress: Progress) -> None:
    """Listen to progress and do nothing."""


@dataclass(frozen=True)
class UnitOutcome:
    """What became of one unit.

    Parameters
    ----------
    model, task, digest : str
        Which one; ``digest`` is empty when it failed before it could be identified.
    state : {"evaluated", "resumed", "skipped", "failed"}
        ``resumed``: a journal held some answers. ``skipped``: the store had the result.
    requests : int
        Requests the model answered now.
    error : str
        Why it failed.
    """

    model: str
    task: str
    digest: str
    state: State
    requests: int = 0
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; ``error`` only when there is one."""
        return {name: value for name, value in asdict(self).items() if name != "error" or value}


@dataclass(frozen=True)
class RunSummary:
    """How a run ended.

    Parameters
    ----------
    folder : path
        The store.
    units : tuple of UnitOutcome
        In the order of the plan.
    seconds : float
        Wall time.
    notes : tuple of Note
        Remarks on models and settings.
    """

    folder: Path
    units: tuple[UnitOutcome, ...]
    seconds: float
    notes: tuple[Note, ...] = field(default=())

    @property
    def requests(self) -> int:
        """Requests the models answered in this run."""
        return sum(unit.requests for unit in self.units)

    @property
    def failed(self) -> tuple[UnitOutcome, ...]:
        """Units without a result."""
        return tuple(unit for unit in self.units if unit.state == "failed")

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "run": str(self.folder),
            "units": [unit.to_dict() for unit in self.units],
            "seconds": self.seconds,
            "requests": self.requests,
            "notes": [note.to_dict() for note in self.notes],
        }

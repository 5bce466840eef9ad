"""What stops an evaluation, as the evaluation sees it, and how it ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from densing.core import Note
from densing.scores.evals.progress import UnitOutcome


class Look(Protocol):
    """What a rule answers; :class:`densing.scores.density.stopping.Decision` is one."""

    @property
    def stop(self) -> bool:
        """Whether to stop."""

    @property
    def reason(self) -> str:
        """Why."""

    @property
    def met(self) -> bool:
        """Whether what was asked for was reached."""

    @property
    def items(self) -> int:
        """Items that the decision rests on."""

    @property
    def needed(self) -> float:
        """Items planned in all."""

    @property
    def ahead(self) -> Mapping[str, int]:
        """Items of each task to have at the next look."""

    @property
    def message(self) -> str:
        """The decision in words."""


class Rule(Protocol):
    """What decides; :class:`densing.scores.density.StoppingRule` is one."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """Items in the full set of each task that it looks at."""

    @property
    def first(self) -> Mapping[str, int]:
        """Items of each task at the first look."""

    def update(self, losses_by_task: Mapping[str, Sequence[float]], earlier: Any = None) -> Look:
        """Decide after everything drawn so far, given the decision of the look before."""

    def describe(self) -> Mapping[str, Any]:
        """Return the rule as plain data."""


MakeRule = Callable[[Mapping[str, str], Mapping[str, int]], Rule]
"""Benchmark id and size of each task, to the rule."""


@dataclass(frozen=True)
class Stopped:
    """How the adaptive evaluation of one model ended.

    Parameters
    ----------
    model : str
        Its name.
    units : tuple of UnitOutcome
        One per requested task.
    look : Look, optional
        The last decision; none where the store had the result and its items do not give it again.
    items, full : int
        Items evaluated, and in the full sets.
    seconds, spared : float
        Spent on the items, and what the others would have taken at the same pace (NaN where nothing was evaluated).
    notes : tuple of Note
        What to keep in mind: a target that was missed, items that another rule chose.
    """

    model: str
    units: tuple[UnitOutcome, ...]
    look: Look | None
    items: int
    full: int
    seconds: float
    spared: float
    notes: tuple[Note, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        look = None if self.look is None else dataclasses.asdict(self.look)  # type: ignore[call-overload]
        kept = {name: getattr(self, name) for name in ("model", "items", "full", "seconds", "spared")}
        notes = [note.to_dict() for note in self.notes]
        return {**kept, "units": [unit.to_dict() for unit in self.units], "decision": look, "notes": notes}

"""The plan of DiLoCo, whole or streaming."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from densing.core import InputError
from densing.efficiency.parallel import steps_of_a_turn
from densing.efficiency.systems.planner import CODEC, PIECE, TAU, OuterLocal
from densing.efficiency.systems.registry import Knob, above_zero, number, whole

if TYPE_CHECKING:
    from densing.efficiency.parallel import Method


class Diloco(OuterLocal):
    """Local steps and an outer Nesterov step on their mean change."""

    name = "diloco"
    paper = "Douillard et al., arXiv 2311.08105; in fragments: arXiv 2501.18512"
    role = "baseline"
    summary = (
        "tau local steps, then an outer Nesterov step on the mean change; fragments take it in turn and may arrive late"
    )
    knobs: tuple[Knob, ...] = (
        TAU,
        Knob("outer_lr", 0.7, "step size of the outer update", above_zero, (0.25, 2.0)),
        Knob("outer_momentum", 0.9, "Nesterov momentum of the outer update, below 1", number(0, 0.9999), (0.0, 0.95)),
        Knob("fragments", 1, "equal parts of the model that take the outer update in turn; they divide tau", whole(1)),
        Knob("delay", 0, "steps that the average of a fragment travels, fewer than tau / fragments", whole(0)),
        Knob("mix", 0.0, "share of its own parameters that a replica keeps when an average arrives", number(0, 0.9999)),
        *CODEC,
        PIECE,
    )
    changes_loss = "replicas drift apart between averages, each followed by an outer momentum step"

    def options(self, knobs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fragments, and for how long each travels."""
        try:
            steps_of_a_turn(knobs["tau"], knobs["fragments"], knobs["delay"])
        except InputError as error:
            raise InputError(f"{self.name}: {error}") from None
        return {"fragments": knobs["fragments"], "delay": knobs["delay"]}

    def wrapper(self) -> Callable[..., Method]:
        """Return the optimizer with outer steps."""
        from densing.efficiency.systems.diloco.run import DiLoCo

        return DiLoCo

    def remembered(self, knobs: Mapping[str, Any]) -> float:
        """Return anchor and momentum; and the parameters as a vector, where ranks differ in some at the end."""
        return 3 if knobs["fragments"] > 1 or knobs["delay"] or knobs["mix"] else 2


DILOCO = Diloco()

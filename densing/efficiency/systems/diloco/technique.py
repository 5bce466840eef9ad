"""The plan of DiLoCo, whole or streaming."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from densing.core import InputError
from densing.efficiency.simulation import Workload
from densing.efficiency.systems.planner import (
    FULL_BYTES,
    NOTHING,
    PIECE,
    STATE,
    TAU,
    Event,
    ExchangeMaker,
    Local,
    Rounds,
    Stage,
    join,
    parameters_of,
)
from densing.efficiency.systems.registry import Knob, above_zero, number, whole

if TYPE_CHECKING:
    from densing.efficiency.parallel import Method, Replica


class Fragments(Rounds):
    """At the end of each turn a fragment's average is started; ``delay`` steps later its outer step is taken."""

    def __init__(self, stage: Stage, tau: int, fragments: int, delay: int, bucket_mb: float = 25.0) -> None:
        super().__init__(stage, tau // fragments, bucket_mb)
        self.share, self.delay = 1 / fragments, delay
        self.flying: Event = NOTHING

    @property
    def repeats(self) -> bool:
        """Whether neither this step nor the two before begin or end an average."""
        step = self.stage.graph.step
        return not any(self._ends(each) or self._due(each) for each in (step, step - 1, step - 2))

    def _due(self, step: int) -> bool:
        return step >= self.tau and (step + 1) % self.tau == self.delay

    def finish(self, done: Event) -> None:
        """Update; take the outer step of what arrives, and send off what is next."""
        done = self.update(done)
        if self.delay and self._due(self.stage.graph.step) and self.flying:
            done = self.outer_update(join(done, self.flying), self.share)
            self.flying = NOTHING
        if not self.ends:
            return
        sent = self.average(self.copy(done, self.share), self.bucket_mb, STATE, FULL_BYTES * self.share)
        if self.delay:
            self.flying = sent
        else:
            self.outer_update(sent, self.share)


class Diloco(Local):
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
        PIECE,
    )
    plan_only = ("bucket_mb",)
    changes_loss = "replicas drift apart between averages, each followed by an outer momentum step"

    def exchange(self, knobs: Mapping[str, Any]) -> ExchangeMaker:
        """Return averages of fragments, each with an outer step."""
        tau, fragments, delay = knobs["tau"], knobs["fragments"], knobs["delay"]
        if tau % fragments:
            raise InputError(f"diloco: fragments = {fragments} does not divide tau = {tau}")
        if delay >= tau // fragments:
            raise InputError(f"diloco: delay = {delay} is not below tau / fragments = {tau // fragments}")
        return partial(Fragments, tau=tau, fragments=fragments, delay=delay, bucket_mb=knobs["bucket_mb"])

    def method(self, replica: Replica, **knobs: Any) -> Method:
        """Return the optimizer with outer steps."""
        from densing.efficiency.systems.diloco.run import DiLoCo

        return replica.wrap(DiLoCo, **knobs)

    def extra_bytes(self, workload: Workload, knobs: Mapping[str, Any]) -> float:
        """Return anchor, momentum, the live parameters as a vector and what is averaged, all in full precision."""
        return parameters_of(workload) * (3 + 1 / knobs["fragments"]) * FULL_BYTES


DILOCO = Diloco()

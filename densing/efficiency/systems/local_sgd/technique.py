"""The plans of local SGD and SlowMo."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from densing.efficiency.simulation import Workload
from densing.efficiency.systems.planner import (
    FULL_BYTES,
    PIECE,
    STATE,
    TAU,
    Event,
    ExchangeMaker,
    Local,
    Rounds,
    parameters_of,
)
from densing.efficiency.systems.registry import Knob, above_zero, number

if TYPE_CHECKING:
    from densing.efficiency.parallel import Method, Replica


class Averaged(Rounds):
    """A blocking average of the parameters at the end of a round."""

    def finish(self, done: Event) -> None:
        """Update; at a round's end put the parameters aside, average, and write the average back."""
        updated = self.update(done)
        if self.ends:
            self.copy(self.average(self.copy(updated), self.bucket_mb, STATE))


class LocalSgd(Local):
    """Blocking parameter averages."""

    name = "local-sgd"
    paper = "Stich, ICLR 2019, arXiv 1805.09767"
    role = "baseline"
    summary = "replicas train independently for tau steps, then average their parameters and wait for it"
    knobs: tuple[Knob, ...] = (TAU, PIECE)
    plan_only = ("bucket_mb",)
    changes_loss = "replicas drift apart between averages"

    def exchange(self, knobs: Mapping[str, Any]) -> ExchangeMaker:
        """Return blocking averages."""
        return partial(Averaged, tau=knobs["tau"], bucket_mb=knobs["bucket_mb"])

    def method(self, replica: Replica, **knobs: Any) -> Method:
        """Return the optimizer that averages every ``tau`` steps."""
        from densing.efficiency.systems.local_sgd.run import LocalSGD

        return replica.wrap(LocalSGD, **knobs)

    def extra_bytes(self, workload: Workload, knobs: Mapping[str, Any]) -> float:
        """Return the buffer that is averaged, in full precision."""
        return parameters_of(workload) * FULL_BYTES


LOCAL_SGD = LocalSgd()


class Momentum(Rounds):
    """A blocking average and an outer momentum step at the end of a round."""

    def finish(self, done: Event) -> None:
        """Update; at a round's end average and make the outer step."""
        updated = self.update(done)
        if self.ends:
            self.outer_update(self.average(self.copy(updated), self.bucket_mb, STATE))


class SlowMo(Local):
    """Blocking averages with outer momentum."""

    name = "slowmo"
    paper = "Wang et al., ICLR 2020, arXiv 1910.00643"
    role = "baseline"
    summary = "tau local steps, a blocking average of the parameters, then an outer momentum step on the change"
    knobs: tuple[Knob, ...] = (
        TAU,
        Knob("slow_lr", 1.0, "step size of the outer update", above_zero, (0.25, 2.0)),
        Knob("slow_momentum", 0.5, "momentum of the outer update, below 1", number(0, 0.9999), (0.0, 0.95)),
        PIECE,
    )
    plan_only = ("bucket_mb",)
    changes_loss = "replicas drift apart between averages, each followed by an outer momentum step"

    def exchange(self, knobs: Mapping[str, Any]) -> ExchangeMaker:
        """Return averages with outer momentum."""
        return partial(Momentum, tau=knobs["tau"], bucket_mb=knobs["bucket_mb"])

    def method(self, replica: Replica, **knobs: Any) -> Method:
        """Return the optimizer with slow momentum."""
        from densing.efficiency.systems.local_sgd.run import SlowMo

        return replica.wrap(SlowMo, **knobs)

    def extra_bytes(self, workload: Workload, knobs: Mapping[str, Any]) -> float:
        """Return old parameters, momentum and the buffer that is averaged, all in full precision."""
        return parameters_of(workload) * 3 * FULL_BYTES


SLOWMO = SlowMo()

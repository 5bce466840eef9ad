"""CO2: the average of one round's parameters travels while the next round computes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from densing.efficiency.techniques.planner import (
    FULL_BYTES,
    NOTHING,
    PIECE,
    STATE,
    STREAM,
    TAU,
    Event,
    ExchangeMaker,
    Local,
    Rounds,
    Stage,
    above_zero,
    choice,
    join,
    number,
    optional,
    parameters_of,
    whole,
)
from densing.efficiency.techniques.protocol import Claim, Knob

if TYPE_CHECKING:
    from densing.efficiency.parallel import Method, Replica
    from densing.efficiency.simulation import Workload


class OneRoundLate(Rounds):
    """Starts the average of a round at its end and waits for it at the end of the next.

    There is one buffer: what was sent a round ago is waited for and applied before the parameters are put into it and
    sent off. Within inner groups, if any, gradients are averaged in one piece before every update.
    """

    def __init__(self, stage: Stage, tau: int, bucket_mb: float = 25.0, size: int = FULL_BYTES) -> None:
        super().__init__(stage, tau, bucket_mb)
        self.size = size
        self.flying: Event = NOTHING
        """The average under way."""

    def finish(self, done: Event) -> None:
        """Update; at a round's end apply the average sent a round ago, and send off this round's parameters."""
        stage = self.stage
        if stage.size("inner") > 1:
            count = float(FULL_BYTES * (stage.parameters + 1))
            summed = stage.collective("all_reduce gradients", "all_reduce", count, "inner", self.copy(done), STREAM)
            done = self.copy(summed)
        done = self.update(done)
        if not self.ends:
            return
        if self.flying:
            done = self.outer_update(self.hand_on(join(done, self.flying), 1, self.size))
        self.flying = self.average(self.copy(done), self.bucket_mb, STATE + 1, self.size)


class Co2(Local):
    """Asynchronous parameter averages, one round late.

    Source: Sun et al., ICLR 2024, arXiv 2401.16265; schedule and defaults as in the released class.
    """

    name = "co2"
    role = "exchange"
    paper = "Sun et al., ICLR 2024, arXiv 2401.16265"
    summary = (
        "tau local steps; the average of their parameters travels under the next tau steps, applied one round late"
    )
    knobs: tuple[Knob, ...] = (
        TAU,
        Knob("inner", 1, "replicas that average gradients at every step (a node's, say)", whole(1)),
        Knob("outer_lr", 1.0, "step size of the outer update", above_zero),
        Knob("outer_momentum", 0.5, "momentum of the outer update, below 1", number(0, 0.9999)),
        Knob("clip", None, "bound of each element of the outer momentum; none: not clipped", optional(above_zero)),
        Knob(
            "gap",
            "aware",
            "staleness penalty: constant as released, or Gap-Aware form (paper's Eq. 3 not available)",
            choice(("aware", "constant")),
        ),
        Knob("gap_penalty", 1.0, "the constant penalty", above_zero),
        Knob("warmup_rounds", 0, "rounds at the start that wait for their average; a real run's only", whole(0)),
        Knob(
            "average_bytes",
            FULL_BYTES,
            "of a parameter in an average: 4 as in a run; 2: live parameters of two bytes, as the released class sends",
            whole(1, 8),
        ),
        PIECE,
    )
    plan_only = ("bucket_mb", "inner", "average_bytes")
    changes_loss = "replicas train apart between averages, which arrive one round late"

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Published figures that the simulator can check."""
        from densing.efficiency.techniques.claims.co2 import CLAIMS

        return CLAIMS

    def exchange(self, knobs: Mapping[str, Any]) -> ExchangeMaker:
        """Return averages one round late."""
        return partial(OneRoundLate, tau=knobs["tau"], bucket_mb=knobs["bucket_mb"], size=knobs["average_bytes"])

    def method(self, replica: Replica, **knobs: Any) -> Method:
        """Return the optimizer that averages one round late."""
        from densing.efficiency import parallel

        return replica.wrap(parallel.CO2, **knobs)

    def window(self, knobs: Mapping[str, Any]) -> tuple[int, int]:
        """Return two rounds of warm-up, for the first average arrives at the second's end, and one measured."""
        return 2 * knobs["tau"], knobs["tau"]

    def extra_bytes(self, workload: Workload, knobs: Mapping[str, Any]) -> float:
        """Return two anchors, momentum and the buffer that travels, and with inner groups one more, in full precision.

        Source: :class:`densing.efficiency.parallel.data_parallel.co2.CO2`; the released class likewise keeps two
        copies in full precision and the buffer in flight (reviewers of the paper count at least four copies).
        """
        return parameters_of(workload) * FULL_BYTES * (5 if knobs["inner"] > 1 else 4)


CO2 = Co2()

"""CO2: the average of one round's parameters travels while the next round computes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from densing.techniques.planner.base import parameters_of
from densing.techniques.planner.events import NOTHING, Event, join
from densing.techniques.planner.exchange import Buckets, ExchangeMaker
from densing.techniques.planner.knobs import above_zero, choice, number, optional, whole
from densing.techniques.planner.rounds import PIECE, TAU, Local, Rounds
from densing.techniques.planner.stage import Stage
from densing.techniques.planner.work import FULL_BYTES
from densing.techniques.protocol import Claim, Knob

if TYPE_CHECKING:
    from densing.techniques.planner.passes import Pass
    from densing.workload.workload import Module, Workload


class OneRoundLate(Rounds):
    """Starts the average of a round at its end and waits for it at the end of the next.

    Within inner groups, if any, gradients are averaged at every step as in DDP.
    """

    def __init__(self, stage: Stage, tau: int, bucket_mb: float = 25.0) -> None:
        super().__init__(stage, tau, bucket_mb)
        self.inner = Buckets(stage, bucket_mb, kind="inner")
        self.flying: Event = NOTHING
        """The average under way."""

    def after(self, run: Pass, module: Module, done: Event) -> None:
        """Let the inner group see a module's gradients."""
        self.inner.after(run, module, done)

    def finish(self, done: Event) -> None:
        """Update; at a round's end put the parameters aside, send them off, and apply the average sent a round ago."""
        updated = self.inner.synchronise(done)
        if not self.ends:
            return
        kept = self.copy(updated)
        arrived, self.flying = self.flying, self.average(kept, self.bucket_mb)
        if arrived:
            self.outer_update(join(kept, arrived))


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
        PIECE,
    )
    plan_only = ("bucket_mb", "inner")
    changes_loss = "replicas train apart between averages, which arrive one round late"

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Published figures that the simulator can check."""
        from densing.techniques.claims.co2 import CLAIMS

        return CLAIMS

    def exchange(self, knobs: Mapping[str, Any]) -> ExchangeMaker:
        """Return averages one round late."""
        return partial(OneRoundLate, tau=knobs["tau"], bucket_mb=knobs["bucket_mb"])

    def window(self, knobs: Mapping[str, Any]) -> tuple[int, int]:
        """Return two rounds of warm-up, for the first average arrives at the second's end, and one measured."""
        return 2 * knobs["tau"], knobs["tau"]

    def extra_bytes(self, workload: Workload, knobs: Mapping[str, Any]) -> float:
        """Return old parameters and momentum in full precision, and the buffer that travels.

        Source: the released class keeps two copies in full precision, and the buffer in flight.
        """
        return parameters_of(workload) * (2 * FULL_BYTES + workload.dtype_bytes)


CO2 = Co2()

"""The plan of CO2 and its claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from densing.efficiency.simulation import Cluster, Workload, load_cluster, load_workload
from densing.efficiency.systems.baselines import SEQUENTIAL
from densing.efficiency.systems.claims import (
    FREE,
    PHYSICS,
    Answer,
    Claim,
    Evidence,
    Grade,
    Physics,
    constant_share,
    device_taking,
    link_taking,
    over,
)
from densing.efficiency.systems.plan import SteadyStep
from densing.efficiency.systems.planner import CODEC, FULL_BYTES, PIECE, TAU, OuterLocal
from densing.efficiency.systems.registry import Knob, above_zero, choice, number, optional, whole

if TYPE_CHECKING:
    from densing.efficiency.parallel import Method


class Co2(OuterLocal):
    """Asynchronous parameter averages, one round late.

    Source: Sun et al., ICLR 2024, arXiv 2401.16265; schedule and defaults as in the released class.
    """

    name = "co2"
    role = "exchange"
    paper = "Sun et al., ICLR 2024, arXiv 2401.16265"
    summary = (
        "tau local steps; parameters are averaged during the next tau steps, and the average is applied one round late"
    )
    knobs: tuple[Knob, ...] = (
        TAU,
        Knob("inner", 1, "replicas that average gradients at every step (those of a node, for example)", whole(1)),
        Knob("outer_lr", 1.0, "step size of the outer update", above_zero, (0.25, 2.0)),
        Knob("outer_momentum", 0.5, "momentum of the outer update, below 1", number(0, 0.9999), (0.0, 0.95)),
        Knob("clip", None, "bound on each element of the outer momentum; none: no clipping", optional(above_zero)),
        Knob(
            "gap",
            "aware",
            "staleness penalty: constant as released, or Gap-Aware form (paper's Eq. 3 not available)",
            choice(("aware", "constant")),
        ),
        Knob("gap_penalty", 1.0, "the constant penalty", above_zero),
        Knob("warmup_rounds", 0, "first rounds, which wait for their average (real runs only)", whole(0)),
        *CODEC,
        Knob(
            "average_bytes",
            FULL_BYTES,
            "bytes per averaged parameter: 4 as in a run; 2 for two-byte live parameters, as the "
            "released class sends them",
            whole(1, 8),
        ),
        PIECE,
    )
    plan_only = ("bucket_mb", "inner", "average_bytes")
    changes_loss = "replicas drift apart between averages, which arrive one round late"
    asynchronous = True
    not_available = (
        "the staleness-gap penalty's formula (Eq. 3)",
        "tau for each task of Tables 1 and 2",
        "the rows at 800 Gb/s and at 32 and 64 GPUs",
        "the throughput of SlowMo",
        "CO2's own perplexity on TransNormer-LLM 7B",
        "the full theorem with its constants",
    )
    claims_in = __name__

    def options(self, knobs: Mapping[str, Any]) -> dict[str, Any]:
        """Return averages one round late."""
        return {"delay": "round", "gap": True, "size": knobs["average_bytes"]}

    def wrapper(self) -> Callable[..., Method]:
        """Return the optimizer that averages one round late."""
        from densing.efficiency.systems.co2.run import CO2

        return CO2

    def window(self, knobs: Mapping[str, Any]) -> tuple[int, int]:
        """Return two rounds of warm-up, for the first average arrives at the second's end, and one measured."""
        return 2 * knobs["tau"], knobs["tau"]

    def remembered(self, knobs: Mapping[str, Any]) -> float:
        """Return two anchors and momentum, and with inner groups gradients as a vector.

        Source: :class:`densing.efficiency.systems.co2.run.CO2`; the released class likewise keeps two
        copies in full precision and the buffer in flight (reviewers of the paper count at least four copies).
        """
        return 4 if knobs["inner"] > 1 else 3


CO2 = Co2()


ADAMW = {8: 18_444.0, 16: 3_488.0, 128: 22_810.0}
"""Words per second of AdamW by devices."""

PRESET = "a100x8-tcp"
SETUP = "TransNormer-LLM 7B, A100, 80 Gb/s TCP"
REVIEW = "a review quoting the tables of arXiv 2401.16265"
FITTED = "compute fitted to AdamW's 18 444 words/s on 8 GPUs, the link to AdamW's step on {n} GPUs"
DATA_SHEET = "rates and bandwidths from data sheets (preset a100x8-tcp); batch of 8 x 2048 tokens per GPU (assumed)"
SILENT = "the simulator predicts times, not accuracy"


def workload(n: int, batch: int = 8) -> Workload:
    """Return the 7B model on ``n`` replicas."""
    return load_workload("tnl-7b", dp=n, batch=batch)


@cache
def cluster(physics: Physics, n: int, fitted_to: int | None = None) -> Cluster:
    """Return ``n`` devices with compute fitted to one node, and the link to AdamW's step on ``fitted_to`` devices."""
    preset = load_cluster(PRESET, n=8)
    # One published step cannot tell latency from bandwidth; gradients of 7e9 parameters are a matter of bandwidth.
    wire = replace(preset.inter, alpha_s=0.0)
    quiet = preset.change(intra=FREE, inter=wire, kappa=0.0, kappa_comm=0.0)
    one_node = device_taking(physics, _step(8), SEQUENTIAL, workload(8), quiet)
    several = fitted_to or n
    linked = link_taking(physics, _step(several), "inter", SEQUENTIAL, workload(several), one_node.change(n=several))
    return linked.change(n=n)


def _step(n: int) -> float:
    return words(n) / ADAMW[n]


def words(n: int) -> float:
    """Return the tokens of a step on ``n`` devices; every figure here is a ratio in which they cancel."""
    each = workload(n)
    return float(each.batch * each.sequence * n)


@cache
def co2(physics: Physics, n: int, tau: int, size: int = 2, kappa: float = 0.0) -> SteadyStep:
    """Simulate CO2 on ``n`` devices; the released class sends the live parameters, of two bytes here."""
    contended = cluster(physics, n).change(kappa=kappa)
    return physics.measure(CO2, workload(n), contended, tau=tau, average_bytes=size)


def _tau_min(n: int, physics: Physics) -> Answer:
    step = co2(physics, n, 48)
    return Answer(48 * step.comm_s / step.compute_s, "all-reduce time of a round over compute time of a step")


def _hidden(n: int, tau: int, physics: Physics) -> Answer:
    measured = co2(physics, n, tau)
    exposed, step = measured.exposed_comm_s, measured.step_s
    return Answer("hidden" if exposed < 1e-6 * step else "exposed", f"{exposed * 1e3:.3g} ms of {step * 1e3:.4g} ms")


def _marginal(physics: Physics) -> Answer:
    """Marginal: within a tenth of the least tau that hides all."""
    tau_min = 48 * co2(physics, 128, 48).comm_s / co2(physics, 128, 48).compute_s
    exposed = co2(physics, 128, 12).exposed_comm_s / co2(physics, 128, 12).step_s
    verdict = "marginal" if abs(12 / tau_min - 1) <= 0.1 else "not marginal"
    note = f"'marginal' is our word for a tau within a tenth of the smallest that hides all, {tau_min:.2f}"
    return Answer(verdict, f"{note}; {100 * exposed:.2g} % of a step exposed at tau = 12")


def _throughput(n: int, tau: int, physics: Physics) -> Answer:
    limit = n / 8 * ADAMW[8]
    rate = words(n) / co2(physics, n, tau).step_s
    return Answer(rate, f"the simulator cannot exceed {n / 8:g} times one node, {limit:,.0f}")


def _all_hidden(n: int) -> Answer:
    return Answer(
        words(n) / constant_share(_step(8), _step(n)),
        "all communication hidden: throughput scales with the number of nodes",
    )


def _scaling(tau: int, physics: Physics, size: int = 2, kappa: float = 0.0) -> Answer:
    rates = [words(n) / n / co2(physics, n, tau, size, kappa).step_s for n in (16, 128)]
    return Answer(rates[1] / rates[0], "the simulator cannot exceed 1: only exposed communication slows a step")


def _equal_rates() -> Answer:
    rates = [words(n) / n / constant_share(_step(8), _step(n)) for n in (16, 128)]
    return Answer(rates[1] / rates[0], "all communication hidden: a GPU is as fast at 128 GPUs as at 16")


RING = "a ring over 16 nodes takes 1.9 times as long as over 2; the published step times leave room for 1.25 times"


@cache
def _extrapolated(physics: Physics, faster: float = 1.0) -> float:
    """Return words per second at 128 GPUs; ``faster``: how many times the link that 16 are fitted to."""
    fitted = cluster(physics, 128, fitted_to=16)
    linked = fitted.change(inter=fitted.inter.faster(faster))
    return words(128) / physics.measure(SEQUENTIAL, workload(128), linked).step_s


def _faster_at_128(unit: float) -> dict[str, Callable[[], Answer]]:
    return {
        "any link from 1 to 2 times as fast at 128 GPUs as at 16": over(
            lambda faster: Answer(unit * _extrapolated(PHYSICS, faster)), 1.0, 1.5, 2.0
        ),
        "an all-reduce that takes no longer over 16 nodes than over 2 (a tree)": partial(_as_at_16, unit),
    }


def _varied(tau: int) -> dict[str, Callable[[], Answer]]:
    return {
        "averages of 2 to 4 bytes": over(lambda size: _scaling(tau, PHYSICS, int(size)), 2, 3, 4),
        "compute up to half slower beside an average": over(
            lambda kappa: _scaling(tau, PHYSICS, 2, kappa), 0, 0.25, 0.5
        ),
    }


def _as_at_16(unit: float) -> Answer:
    return Answer(unit * 128 / 16 * ADAMW[16], "a step takes as long at 128 GPUs as at 16")


def _adamw_alone(physics: Physics, batch: int = 8) -> Answer:
    """Words per second and GPU at 128 over those at 16, nothing fitted."""
    steps = {n: physics.measure(SEQUENTIAL, workload(n, batch), load_cluster(PRESET, n=n)).step_s for n in (16, 128)}
    return Answer(steps[16] / steps[128], "communication starts after the backward pass, as in the other rows")


PER_GPU_16 = ADAMW[16] / 16 * 128


def _claims() -> tuple[Claim, ...]:
    both, one = FITTED.format(n="16 and 128"), FITTED.format(n=16)
    calibrated: Grade = "calibrated on other rows"
    wps = "words/s"
    hand: Evidence = "second-hand"
    arithmetic: Evidence = "derived"
    sources = {hand: REVIEW, arithmetic: f"arithmetic on the words/s of {REVIEW}"}

    def row(
        name: str, quantity: str, figure: float | str, unit: str, known: Evidence, check: Callable[[Physics], Answer],
        tolerance: float | None, grade: Grade, inputs: str = both, null: Callable[[], Answer] | None = None,
        assumptions: Mapping[str, Callable[[], Answer]] = MappingProxyType({}),
    ) -> Claim:  # fmt: skip
        return Claim(
            name, quantity, SETUP, figure, unit, known, sources[known], check, tolerance, inputs, grade=grade,
            null=null, assumptions=assumptions,
        )  # fmt: skip

    scaling = "words/s per GPU, 128 over 16"
    return (
        # The published figure is arithmetic on the steps that the link is fitted to.
        row("CO2-1a", "smallest tau that hides all communication, 16 GPUs",
            9.57, "steps", arithmetic, partial(_tau_min, 16), 0.05,
            "fitted"),
        row("CO2-1b", "smallest tau that hides all communication, 128 GPUs",
            11.94, "steps", arithmetic, partial(_tau_min, 128), 0.05,
            "fitted"),
        # 48 and 12 against 11.94.
        row("CO2-1c", "averages at tau = 48, 128 GPUs", "hidden", "", arithmetic, partial(_hidden, 128, 48), None,
            "algebraic"),
        row("CO2-1d", "tau = 12 at 128 GPUs", "marginal", "", arithmetic, _marginal, None, "algebraic"),
        row("CO2-2a", "CO2 tau = 48, 128 GPUs", 304_736.0, wps, hand, partial(_throughput, 128, 48), 0.1, calibrated,
            null=partial(_all_hidden, 128)),
        row("CO2-2b", "CO2 tau = 48, 16 GPUs", 35_936.0, wps, arithmetic, partial(_throughput, 16, 48), 0.1,
            calibrated, null=partial(_all_hidden, 16)),
        # CO2-2a over a figure that went in.
        row("CO2-2c", "CO2 over AdamW, 128 GPUs", 13.36, "times", arithmetic,
            lambda physics: Answer(
                physics.measure(SEQUENTIAL, workload(128), cluster(physics, 128)).step_s / co2(physics, 128, 48).step_s
            ), 0.1, "algebraic"),
        row("CO2-3a", f"{scaling}, tau = 48", 1.06, "", hand, partial(_scaling, 48), 0.05, calibrated,
            null=_equal_rates, assumptions=_varied(48)),
        row("CO2-3b", f"{scaling}, tau = 12", 0.86, "", hand, partial(_scaling, 12), 0.05, calibrated,
            null=_equal_rates, assumptions=_varied(12)),
        row("CO2-4", "AdamW on 128 GPUs, predicted from 16", ADAMW[128], wps, hand,
            lambda physics: Answer(_extrapolated(physics), RING), 0.1, calibrated, one, partial(_as_at_16, 1.0),
            _faster_at_128(1.0)),
        row("CO2-6a", f"{scaling}, AdamW", 0.82, "", hand,
            lambda physics: Answer(_extrapolated(physics) / PER_GPU_16, RING), 0.05, calibrated, one,
            partial(_as_at_16, 1 / PER_GPU_16), _faster_at_128(1 / PER_GPU_16)),
        Claim("CO2-6b", f"{scaling}, AdamW, nothing fitted", SETUP, 0.82, "", hand, REVIEW, _adamw_alone, 0.05,
              DATA_SHEET, assumptions={
                  "batch 4 per GPU": lambda: _adamw_alone(PHYSICS, 4),
                  "batch 32 per GPU": lambda: _adamw_alone(PHYSICS, 32),
              }),
    )  # fmt: skip


QUALITY = (
    ("CO2-5a", "accuracy with CO2 (SGD: 76.92)", "ResNet-50, ImageNet", 77.14, "%"),
    ("CO2-5b", "accuracy with CO2 (AdamW: 81.33)", "ViT-B, ImageNet", 80.95, "%"),
    ("CO2-5c", "validation perplexity with CO2 (SlowMo: 7.34)", "GPT-2 Small", 7.37, "perplexity"),
    ("CO2-5d", "validation perplexity without the gap penalty", "GPT-2 Small", 7.56, "perplexity"),
)

CLAIMS: tuple[Claim, ...] = (
    *_claims(),
    *(
        Claim(name, quantity, setup, figure, unit, "second-hand", REVIEW, lambda _: Answer(None, SILENT))
        for name, quantity, setup, figure, unit in QUALITY
    ),
)

"""The plan of SpaFL and of clients alone, and their claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from densing.core import UnavailableError, install_command
from densing.efficiency.parallel import Outcome
from densing.efficiency.simulation import Cluster, Module, Workload, held_modules, tensor_shapes
from densing.efficiency.systems.claims import Answer, Claim, Evidence, unless_unavailable
from densing.efficiency.systems.experiments import experiment
from densing.efficiency.systems.fedft import CLIENTS
from densing.efficiency.systems.planner import (
    BLOCK,
    FULL_BYTES,
    SHARE,
    STATE,
    STREAM,
    TAU,
    Blocking,
    DataParallelRun,
    Event,
    Exchange,
    ExchangeMaker,
    Local,
    Pass,
    Replicated,
    Rounds,
    TensorSchedule,
    parameters_of,
)
from densing.efficiency.systems.registry import Knob, flag, number, whole

if TYPE_CHECKING:
    from densing.efficiency.parallel import Method, Replica

Shape = tuple[int, ...]
MASKING = 20.0
"""Passes over the parameters, of four bytes each, that masks take in a step: own weights are read, masked and written,
and gradients completed. Counted in the code of :class:`densing.efficiency.systems.SpaFL`."""


def threshold_count(shapes: Sequence[Shape]) -> int:
    """Return the thresholds of layers: one per row (filter, neuron); vectors have none.

    Examples
    --------
    >>> threshold_count([(20, 1, 5, 5), (10, 500), (500,)])
    30
    """
    return sum(shape[0] for shape in shapes if len(shape) > 1)


def traffic_gbit(numbers: int, clients: int, rounds: int) -> float:
    """Return the traffic of so many numbers of 32 bits, up and down for every sampled client and round, in 1e9 bits.

    Examples
    --------
    >>> traffic_gbit(580, 10, 500)
    0.1856
    """
    return 2 * 32 * numbers * clients * rounds / 1e9


class Thresholds(Rounds):
    """Masks in every step; at the end of a round the mean of thresholds."""

    def finish(self, done: Event) -> None:
        """Complete gradients, update, mask; at a round's end average thresholds."""
        stage = self.stage
        masking = stage.parameters * FULL_BYTES * MASKING
        done = self._move("masks", masking, self.update(done))
        if self.ends:
            numbers = stage_thresholds(stage.workload, stage.modules) + stage.size("outer") + 1 + STATE
            stage.collective("all_reduce thresholds", "all_reduce", float(FULL_BYTES * numbers), "outer", done, STREAM)


def stage_thresholds(workload: Workload, modules: Sequence[Module]) -> int:
    """Return the thresholds of a stage: embeddings, and a head that shares their weights, have none."""
    shapes = chain.from_iterable(tensor_shapes(workload, each) for each in modules if each.name != "embedding")
    return threshold_count(list(shapes))


class Kept(Blocking):
    """Attention and MLP compute the share of their channels that is left.

    Parameters
    ----------
    share : float
    """

    def __init__(self, share: float) -> None:
        self.share = share

    def lay(self, run: Pass, after: Event) -> Event:
        """Add the pass's tasks, and return when its output is there."""
        for module in run.modules:
            share = self.share if module.name in BLOCK else 1.0
            after = run.compute(module, after, share * run.seconds(module))
            if run.reduces(module):
                after = run.reduce(module, after)
        return after


PARTS = CLIENTS[1]


class LocalOnly(DataParallelRun, Replicated):
    """Every client alone."""

    name = "local-only"
    role = "baseline"
    paper = "no exchange at all; the usual baseline of personalised methods"
    summary = "every client trains its own weights on its own data, and sends nothing"
    knobs: tuple[Knob, ...] = (PARTS,)
    changes_loss = "clients exchange nothing: each ends with its own model"

    def exchange(self, knobs: Mapping[str, Any]) -> ExchangeMaker:
        """Return none."""
        return Exchange

    def method(self, replica: Replica, **knobs: Any) -> Method:
        """Return the optimizer of a client alone."""
        from densing.efficiency.systems.spafl.run import LocalOnly

        return replica.wrap(LocalOnly, **knobs)


class SpaFl(Local):
    """Masked rows, whose thresholds are averaged.

    Source: Kim et al., arXiv 2406.00431, after the released code.
    """

    name = "spafl"
    role = "exchange"
    paper = "Kim et al., NeurIPS 2024, arXiv 2406.00431"
    summary = "clients keep their own weights and mask whole rows of them; only one threshold per row is averaged"
    knobs: tuple[Knob, ...] = (
        TAU,
        Knob("lam", 2e-3, "weight of the penalty that raises the thresholds", number(0)),
        Knob("ramp", 10, "rounds over which the penalty ramps up (half its weight after half of them)", whole(1)),
        Knob("threshold_lr", 0.01, "step size of the thresholds", number(0)),
        Knob("transfer", True, "whether weights follow the change of the averaged thresholds after a round", flag),
        Knob("kept", 1.0, "share of channels kept, whose operations a plan counts", SHARE),
        PARTS,
    )
    plan_only = ("kept",)
    changes_loss = "every client keeps its own weights, with whole rows masked"
    not_available = ("first-hand accuracies of Table 2",)
    claims_in = __name__

    def tensor(self, workload: Workload, cluster: Cluster, knobs: Mapping[str, Any]) -> TensorSchedule:
        """Return the modules with the channels that are left; zeros in other rows save nothing."""
        return Kept(knobs["kept"])

    def exchange(self, knobs: Mapping[str, Any]) -> ExchangeMaker:
        """Return thresholds at the end of rounds."""
        return partial(Thresholds, tau=knobs["tau"])

    def method(self, replica: Replica, **knobs: Any) -> Method:
        """Return the optimizer that learns masks."""
        from densing.efficiency.systems.spafl.run import SpaFL

        return replica.wrap(SpaFL, **knobs)

    def extra_bytes(self, workload: Workload, knobs: Mapping[str, Any]) -> float:
        """Return the weights behind the masks and a buffer, and thresholds, all in full precision.

        Thresholds: a client's own with momentum and gradient, the common ones, and what travels.
        """
        thresholds = max(stage_thresholds(workload, modules) for modules in held_modules(workload))
        return parameters_of(workload) * 2 * FULL_BYTES + 5 * FULL_BYTES * thresholds


LOCAL_ONLY, SPAFL = LocalOnly(), SpaFl()


LENET: tuple[Shape, ...] = ((20, 1, 5, 5), (50, 20, 5, 5), (500, 800), (10, 500))
CONV4: tuple[Shape, ...] = (
    (64, 3, 5, 5), (64, 64, 5, 5), (128, 64, 5, 5), (128, 128, 5, 5), (128, 512), (128, 128), (10, 128),
)  # fmt: skip


def resnet18(width: int) -> tuple[Shape, ...]:
    """Return the masked layers of the released ResNet-18, whose last layer has no thresholds.

    Examples
    --------
    >>> threshold_count(resnet18(32)), threshold_count(resnet18(64))
    (2400, 4800)
    """
    shapes: list[Shape] = [(width, 3, 3, 3)]
    before = width
    for stage in range(4):
        own = width << stage
        shapes += [(own, before, 3, 3), *[(own, own, 3, 3)] * 3]
        if own != before:
            shapes.append((own, before, 1, 1))
        before = own
    return tuple(shapes)


SAMPLED = 10
CODE = "shapes of the released code of arXiv 2406.00431, read and counted"


def _count(name: str, what: str, setup: str, published: float, unit: str, check: Callable[[], float]) -> Claim:
    return Claim(name, what, setup, published, unit, "derived", CODE, lambda _: Answer(check()), 1e-3, grade="counted")


def _gbit(shapes: Sequence[Shape], rounds: int) -> float:
    return traffic_gbit(threshold_count(shapes), SAMPLED, rounds)


SETUP = "digits of scikit-learn, ten clients, Dirichlet 0.1 over digits, 30 rounds of 10 steps, six seeds"
SEEDS = range(10, 16)
"""Different seeds from those on which penalty and ramp were chosen (0 to 2)."""
T_95 = 2.571
"""Quantile of Student's t with five degrees of freedom."""
REVIEWS = "reviews of arXiv 2406.00431"
PAPER = "arXiv 2406.00431, an arm of its own comparison"


@experiment(Outcome)
def tried(kind: str, seed: int, alpha: float, lam: float) -> Outcome:
    """Return how one seed's experiment ends: ``local-only``, ``fedavg``, ``spafl``, or it without the weight step.

    Raises
    ------
    UnavailableError
        Without PyTorch or scikit-learn.
    """
    try:
        from densing.efficiency.parallel import digits_experiment
        from densing.efficiency.systems.fedft import Federated
        from densing.efficiency.systems.spafl.run import LocalOnly, SpaFL
    except ModuleNotFoundError as error:
        raise UnavailableError(f"the experiment needs PyTorch; {install_command('train')}") from error
    masked = {"tau": 10, "lam": lam, "ramp": 30}
    methods: dict[str, tuple[Callable[..., Method], dict[str, Any]]] = {
        "local-only": (LocalOnly, {}),
        "fedavg": (Federated, {"tau": 10}),
        "spafl": (SpaFL, masked),
        "without": (SpaFL, {**masked, "transfer": False}),
    }
    method, knobs = methods[kind]
    return digits_experiment(lambda replica: replica.wrap(method, **knobs), alpha=alpha, seed=seed)[0]


def _beside(kind: str, other: str, words: str, *, alpha: float = 0.1, lam: float = 0.01) -> Answer:
    """Say ``words`` where the paired difference of the mean client loss lies below 0 with its 95 % interval.

    What is said to be near the other needs no more than an interval that is not above 0.
    """
    ones, others = (
        # What has no masks has no penalty.
        [tried(each, seed, alpha, lam if each in ("spafl", "without") else 0.0) for seed in SEEDS]
        for each in (kind, other)
    )
    dense = tried("fedavg", SEEDS[0], 0.1, 0.0)
    gaps = [one.loss - two.loss for one, two in zip(ones, others, strict=True)]
    mean = sum(gaps) / len(gaps)
    half = T_95 * math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / (len(gaps) - 1) / len(gaps))
    holds = mean - half <= 0 if words.startswith("near") else mean + half < 0
    found = words if holds else f"not: {words}" if mean - half > 0 else "not decided"
    note = (
        f"mean client loss {mean:+.4f} ({mean - half:+.4f} to {mean + half:+.4f}) against {other}; "
        f"{100 * sum(outcome.kept for outcome in ones) / len(gaps):.0f} % of the weights kept; "
        f"{100 * ones[0].sent / dense.sent:.1f} % of fedavg's bytes"
    )
    return Answer(found, note)


CHANGES: Mapping[str, Mapping[str, Any]] = {
    "clients with more in common (Dirichlet 0.5)": {"alpha": 0.5},
    "a penalty of 0.003, not 0.01": {"lam": 0.003},
    "a penalty of 0.03": {"lam": 0.03},
}
"""Settings of ours that the source leaves open."""


def _tried(name: str, what: str, published: str, evidence: Evidence, source: str, kind: str, other: str) -> Claim:
    return Claim(
        name, what, SETUP, published, "", evidence, source,
        unless_unavailable(lambda: _beside(kind, other, published)), grade="measured",
        assumptions={change: partial(_beside, kind, other, published, **made) for change, made in CHANGES.items()},
    )  # fmt: skip


CLAIMS: tuple[Claim, ...] = (
    _count("SPA-1a", "thresholds", "LeNet-5", 580.0, "", lambda: float(threshold_count(LENET))),
    _count("SPA-1b", "weights", "LeNet-5", 430_500.0, "", lambda: float(sum(map(math.prod, LENET)))),
    _count("SPA-1c", "traffic of 500 rounds of 10 clients", "LeNet-5", 0.1856, "Gbit", lambda: _gbit(LENET, 500)),
    _count("SPA-1d", "traffic of weights over traffic of thresholds", "LeNet-5", 742.0, "times",
           lambda: sum(map(math.prod, LENET)) / threshold_count(LENET)),
    _count("SPA-2a", "thresholds", "Conv4 as released", 650.0, "", lambda: float(threshold_count(CONV4))),
    _count("SPA-2b", "traffic of 500 rounds of 10 clients", "Conv4 as released", 0.208, "Gbit",
           lambda: _gbit(CONV4, 500)),
    _count("SPA-2c", "traffic of 1500 rounds of 10 clients", "ResNet-18 as released, of half the width", 2.304, "Gbit",
           lambda: _gbit(resnet18(32), 1500)),
    _tried("SPA-4a", "mean client loss against clients that train alone", "lower than local-only", "second-hand",
           REVIEWS, "spafl", "local-only"),
    _tried("SPA-4b", "mean client loss against one model for all", "near fedavg or lower", "second-hand", REVIEWS,
           "spafl", "fedavg"),
    _tried("SPA-5", "weights that follow the change of the thresholds", "lower than without", "first-hand", PAPER,
           "spafl", "without"),
)  # fmt: skip

"""The plans of the sparse classifiers, and their claims."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from densing.core import InputError
from densing.efficiency.simulation import (
    ENTRY,
    Cluster,
    Convex,
    Graph,
    check_convex,
    collective_seconds,
    span_of,
)
from densing.efficiency.systems.claims import Answer, Claim, unless_unavailable
from densing.efficiency.systems.experiments import experiment
from densing.efficiency.systems.plan import Plan
from densing.efficiency.systems.prox_csl import corpora
from densing.efficiency.systems.prox_csl.holders import Here, split_rows
from densing.efficiency.systems.prox_csl.parts import Part
from densing.efficiency.systems.prox_csl.solver import minimise
from densing.efficiency.systems.prox_csl.surrogate import ADAPTIVE, GUARDED, Start, train_csl
from densing.efficiency.systems.registry import BuiltIn, Knob, choice, kind_of, number, settle, whole
from densing.efficiency.timeline import Comm, Kind

if TYPE_CHECKING:
    from densing.core import Array
    from densing.efficiency.parallel import RunEnv, RunRecord, RunSpec


class SparseClassifier(BuiltIn):
    """A way of training one linear classifier over partitions."""

    paper = "Lu et al., KDD 2024, arXiv 2407.06346"

    def check(self, workload: Any) -> None:
        """Refuse what is not a sparse classifier over partitions."""
        if not isinstance(workload, Convex):
            raise InputError(
                f"{self.name} trains a sparse linear classifier, and this workload is {kind_of(workload)}; it "
                "takes a Convex workload (densing.training.ProxCSL trains one, `densing results explain` uses it)"
            )
        check_convex(workload)
        if workload.loss != "logistic":
            raise InputError(
                f"{self.name}: trains a classifier, and {workload.name} is least squares; compare uc-mmc, "
                "gradient-coding, gc-mmc or lcc"
            )

    def plan(self, workload: Any, cluster: Cluster, **knobs: Any) -> Plan:
        """Return the tasks of some updates; partitions share the ranks evenly.

        Parameters
        ----------
        workload : Convex
        cluster : Cluster
        **knobs
            Those of :attr:`knobs`.

        Raises
        ------
        InputError
            On another workload, or for a knob out of range.
        """
        self.check(workload)
        if cluster.delay is not None:
            raise InputError(f"{self.name}: does not support delays; remove those of the cluster")
        settings = settle(self.name, self.knobs, knobs)
        work = Rounds(workload, cluster, min(workload.partitions, cluster.n))
        warmup, steps = 1, 2
        done: dict[int, int] = {}
        for step in range(warmup + steps):
            work.graph.step = step
            done = self.update(work, settings, done)
        held = ENTRY * workload.nnz / work.ranks
        return Plan(
            work.graph, work.ranks, warmup, steps,
            {"items": held, "weights and gradients": 3.0 * workload.sent},
        )  # fmt: skip

    def update(self, work: Rounds, knobs: Mapping[str, Any], after: dict[int, int]) -> dict[int, int]:
        """Add one step to the graph, and return the last task of each rank."""
        raise NotImplementedError


class Runs(SparseClassifier):
    """One that runs for real: each rank holds partitions of a data set of words, rank 0 the main one."""

    axis: ClassVar[str] = "partitions"
    stand_in: ClassVar[str] = ""
    plan_only: ClassVar[tuple[str, ...]] = ("passes",)
    start: ClassVar[Start] = "naive"

    def check_run(self, spec: RunSpec) -> None:
        """Refuse ranks without a partition, and devices."""
        settings = settle(self.name, self.knobs, spec.knobs)
        if spec.device != "cpu":
            raise InputError(f"{self.name}: device {spec.device}: it runs on CPUs only; leave --device out")
        from densing.efficiency.systems.prox_csl.run import check_sparse

        check_sparse(spec.nproc, settings["partitions"])

    def plan_of_run(self, spec: RunSpec, cluster: Cluster) -> Plan:
        """Return the plan of a run: of its data, over its ranks."""
        settings = settle(self.name, self.knobs, spec.knobs)

        words = corpora.corpus(settings["data"]).features
        workload = Convex(words.shape[0], words.shape[1], int(words.nnz), settings["partitions"])
        return self.plan(workload, cluster.change(n=spec.nproc), **settings)

    def run(self, env: RunEnv, **knobs: Any) -> RunRecord:
        """Train on this rank: its updates, or once."""
        from densing.efficiency.systems.prox_csl.run import train_sparse

        settings = settle(self.name, self.knobs, knobs)
        return train_sparse(
            env,
            data=settings["data"],
            partitions=settings["partitions"],
            lam=settings["lam"],
            updates=settings.get("updates", 0),
            alpha=settings.get("alpha", 0.0),
            start=self.start,
        )


class Rounds:
    """The graph of a plan, and the tasks that all these techniques are made of."""

    def __init__(self, workload: Convex, cluster: Cluster, ranks: int) -> None:
        self.workload, self.cluster, self.ranks, self.graph = workload, cluster, ranks, Graph()
        self.all = tuple(range(ranks))

    def compute(self, name: str, entries: float, after: dict[int, int], ranks: tuple[int, ...]) -> dict[int, int]:
        """Let ranks go over so many stored entries each: once to the margins and once back."""
        seconds = self.cluster.device.seconds(4.0 * entries, 2.0 * ENTRY * entries)
        return after | {
            rank: self.graph.add(name, Kind.COMPUTE, (rank,), "compute", seconds, after=_waits(after, rank))
            for rank in ranks
        }

    def collective(self, name: str, op: str, after: dict[int, int]) -> dict[int, int]:
        """Let all ranks take part in a broadcast or a sum of one vector."""
        if self.ranks == 1:
            return after
        seconds = collective_seconds(op, self.workload.sent, self.cluster, self.all)
        comm = Comm(op, "all", "all", self.ranks, self.all)
        task = self.graph.add(
            name, Kind.COMM, self.all, "comm", seconds, count=self.workload.sent, after=sorted(set(after.values())),
            comm=comm,
        )  # fmt: skip
        return dict.fromkeys(self.all, task)

    def gather(self, name: str, after: dict[int, int]) -> dict[int, int]:
        """Let every rank send one vector to the main one, whose link takes them one at a time."""
        ends = []
        for rank in self.all[1:]:
            seconds = collective_seconds("send_recv", self.workload.sent, self.cluster, (rank, 0))
            ends.append(
                self.graph.add(
                    name,
                    Kind.COMM,
                    (rank,),
                    "comm",
                    seconds,
                    count=self.workload.sent,
                    after=_waits(after, rank),
                    resources=("main machine's link",),
                    comm=Comm("send_recv", "all", "all", 2, (rank, 0), src=rank, dst=0),
                )
            )
        if not ends:
            return after
        level = span_of(self.cluster, (0, self.ranks - 1))
        arrived = self.graph.add(f"arrived over {level}", Kind.COMPUTE, (0,), "compute", 0.0,
                                 after=sorted({*ends, *after.values()}))  # fmt: skip
        return after | {0: arrived}


def _waits(after: Mapping[int, int], rank: int) -> tuple[int, ...]:
    return (after[rank],) if rank in after else ()


def strength(text: str) -> float | str:
    """Read the strength of the proximal term."""
    return text if text in (ADAPTIVE, GUARDED) else number(0.0).parse(text)


PASSES = Knob("passes", 100, "passes over a partition's items until its problem is solved", whole(1))
RUN_KNOBS = (
    Knob(
        "data",
        "mmlu",
        "data of a real run: questions (mmlu) or films, as bags of words",
        choice(tuple(corpora.CORPORA)),
    ),
    Knob("partitions", 16, "partitions of a real run's items", whole(1)),
    Knob("lam", 1e-3, "penalty on every weight, in a real run", number(0.0)),
)
UPDATES = Knob("updates", 2, "rounds of gradients of a real run", whole(1, 100))


class NaiveAverage(Runs):
    """The mean of the partitions' own solutions."""

    name = "naive-average"
    role = "baseline"
    summary = "every partition solves its own problem; one gather averages the solutions"
    knobs: tuple[Knob, ...] = (PASSES, *RUN_KNOBS)
    changes_loss = "the mean of the solutions is not the solution of the whole problem"
    combining: ClassVar[bool] = False

    def update(self, work: Rounds, knobs: Mapping[str, Any], after: dict[int, int]) -> dict[int, int]:
        """Solve everywhere, gather; of OWA one more problem on the main machine."""
        own = work.workload.nnz / work.ranks
        done = work.gather("gather solutions", work.compute("own solution", own * knobs["passes"], after, work.all))
        if self.combining:
            # Margins under every solution, then a dense problem of as many weights as partitions.
            small = work.workload.n / work.workload.partitions
            entries = work.workload.partitions * (own + small * knobs["passes"])
            done = work.compute("combination", entries, done, (0,))
        # The next is not begun before this one is done.
        return dict.fromkeys(work.all, done[0])


class Owa(NaiveAverage):
    """The combination of the partitions' solutions that fits one partition best."""

    name = "owa"
    paper = "Izbicki and Shelton, ECML 2019"
    summary = "as naive-average, but with weights of the mean fitted on one partition's items"
    combining = True
    start = "owa"


class Csl(Runs):
    """Rounds of gradients without a proximal term."""

    name = "csl"
    role = "baseline"
    paper = "Jordan, Lee and Yang, JASA 2019; Wang et al., ICML 2017"
    summary = (
        "an update broadcasts weights and gathers gradients; the main machine then solves "
        "its own problem with the gradient corrected"
    )
    knobs: tuple[Knob, ...] = (PASSES, *RUN_KNOBS, UPDATES)
    changes_loss = "the main machine's items approximate the curvature of all items"

    def update(self, work: Rounds, knobs: Mapping[str, Any], after: dict[int, int]) -> dict[int, int]:
        """Broadcast, gradients, gather, solve on the main machine."""
        own = work.workload.nnz / work.ranks
        done = work.collective("broadcast weights", "broadcast", after)
        done = work.gather("gather gradients", work.compute("gradient", own, done, work.all))
        small = work.workload.nnz / work.workload.partitions
        return work.compute("surrogate", small * knobs["passes"], done, (0,))


class ProxCsl(Csl):
    """Rounds of gradients with a proximal term."""

    name = "prox-csl"
    role = "exchange"
    paper = "Lu et al., KDD 2024, arXiv 2407.06346"
    summary = "as csl, with a proximal term towards the weights sent, whose strength a rule chooses"
    knobs = (
        *Csl.knobs,
        Knob("alpha", ADAPTIVE, "of a real run: strength of the proximal term, the authors' rule (adaptive), "
             "or ours (guarded)", strength),
    )  # fmt: skip
    not_available = ("the tables of accuracy and of run time", "its data file, newsgroups.svm")
    claims_in = __name__


class OwlQn(SparseClassifier):
    """The rival: quasi-Newton steps on the whole problem, a sum of gradients each."""

    name = "owl-qn"
    role = "baseline"
    paper = "Andrew and Gao, ICML 2007"
    summary = (
        "quasi-Newton steps on the whole problem; each step all-reduces a gradient (an update has `iterations` steps)"
    )
    knobs: tuple[Knob, ...] = (Knob("iterations", 50, "steps per update, with one all-reduce each", whole(1)),)

    def update(self, work: Rounds, knobs: Mapping[str, Any], after: dict[int, int]) -> dict[int, int]:
        """Gradients and a sum of them, so many times."""
        for _ in range(knobs["iterations"]):
            after = work.compute("gradient", work.workload.nnz / work.ranks, after, work.all)
            after = work.collective("all_reduce gradient", "all_reduce", after)
        return after


NAIVE_AVERAGE, OWA, CSL, PROX_CSL, OWL_QN = NaiveAverage(), Owa(), Csl(), ProxCsl(), OwlQn()


class Arm(NamedTuple):
    """How one way of training ended: the objective at the start and after each update, then the weights."""

    history: tuple[float, ...]
    alphas: tuple[float, ...]
    weights: Array


@cache
def tried(data: str, partitions: int, lam: float, alpha: float | str, updates: int) -> Arm:
    """Return what training over partitions of a data set gives, from the mean of their solutions."""

    holders, penalty, start = _partitions(data, partitions, lam)
    trained = train_csl(holders, penalty, alpha=alpha, updates=updates, start=start)  # type: ignore[arg-type]
    return Arm(trained.history, trained.alphas, trained.weights)


@cache
def _partitions(data: str, partitions: int, lam: float) -> tuple[Here, Array, Array]:

    corpus = corpora.corpus(data)
    penalty = np.full(corpus.features.shape[1], lam)
    holders = Here(split_rows(corpus.features, corpus.labels, partitions))
    # The start is the same for every strength: it is solved for once.
    return holders, penalty, np.mean(holders.solutions(penalty, 1e-4), axis=0)


@cache
def whole_solution(data: str, lam: float) -> tuple[float, Array]:
    """Return the objective and the weights of the fit of all items."""

    corpus = corpora.corpus(data)
    solution = minimise(Part(corpus.features, corpus.labels), np.full(corpus.features.shape[1], lam), tol=1e-4)
    return solution.objective, solution.weights


def cut(weights: Array, most: int) -> Array:
    """Return the weights without all but the largest so many.

    Examples
    --------
    >>> cut(np.array([0.5, -2.0, 0.0, 1.0]), 2).tolist()
    [0.0, -2.0, 0.0, 1.0]
    """
    kept = np.argsort(-np.abs(weights), kind="stable")[:most]
    few = np.zeros_like(weights)
    few[kept] = weights[kept]
    return few


def told(data: str, path: list[Array], most: int) -> tuple[Array, int]:
    """Return which held-out items a path's best solution tells right with at most so many weights, and how many it has.

    Every solution is cut to its largest weights; the best is the one that then tells most of the items learnt from.
    """

    corpus = corpora.corpus(data)
    solutions = [cut(weights, most) for weights in path]
    best = max(solutions, key=lambda weights: np.sum((corpus.features @ weights > 0) == corpus.labels))
    return (corpus.test_features @ best > 0) == corpus.test_labels, int(np.count_nonzero(best))


QUESTIONS, FILMS = ("mmlu", 16, 1e-3), ("films", 64, 1e-3)
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1)
GAP, SPARSE = 0.02, 1000
LAMBDAS = (5e-3, 2e-3, 1e-3)
"""For smaller penalties the partitions' own solutions take minutes."""
FEW = (30, 100, 300, 1000)


class Gaps(NamedTuple):
    """How far above the objective of all items' solution training ends, as a share of it, and the weights it keeps."""

    start: float
    ends: dict[str, tuple[float, int]]


@experiment(Gaps)
def gaps(data: str, partitions: int, lam: float, updates: int) -> Gaps:
    """Return where training ends for each strength of the proximal term, and by both rules for it."""
    best, _ = whole_solution(data, lam)
    ends = {}
    for alpha in (*STRENGTHS, "adaptive", "guarded"):
        arm = tried(data, partitions, lam, alpha, updates)
        ends[f"{alpha:g}" if isinstance(alpha, float) else alpha] = (
            (arm.history[-1] - best) / best, int(np.count_nonzero(arm.weights))
        )  # fmt: skip
    return Gaps((tried(data, partitions, lam, 0.0, 0).history[0] - best) / best, ends)


def _gap() -> Answer:
    """Say whether two updates reach the solution of all items, for the best strength there is and for the rule's."""
    start, ends = gaps(*QUESTIONS, 2)
    alpha, (gap, weights) = min(
        ((name, end) for name, end in ends.items() if name not in ("adaptive", "guarded")), key=lambda pair: pair[1][0]
    )
    note = (
        f"gap of the mean {start:.1%}, after two updates {gap:.2%} with {weights} weights at the best strength of four "
        f"({alpha}); by the authors' rule {ends['adaptive'][0]:.1%}, guarded {ends['guarded'][0]:.1%}"
    )
    return Answer(WITHIN if gap <= GAP and weights <= SPARSE else f"not: {WITHIN}", note)


@experiment(dict[str, tuple[float, ...]])
def histories(data: str, partitions: int, lam: float, updates: int) -> dict[str, tuple[float, ...]]:
    """Return the objective at the start and after each update, by the strength of the proximal term."""
    return {f"{alpha:g}": tried(data, partitions, lam, alpha, updates).history for alpha in (0.0, *STRENGTHS)}


def _diverges() -> Answer:
    """Say whether the objective rises without the proximal term, and falls with it."""
    held = histories(*FILMS, 3)
    bare = held.pop("0")
    best = min(held, key=lambda alpha: held[alpha][-1])
    written = {name: ", ".join(f"{value:.3g}" for value in arm) for name, arm in (("bare", bare), ("held", held[best]))}
    note = f"objective at the start and after each update: without {written['bare']}; with {best} {written['held']}"
    return Answer(DIVERGES if bare[-1] > bare[0] > held[best][-1] else f"not: {DIVERGES}", note)


class Told(NamedTuple):
    """Held-out accuracies with at most so many weights.

    Attributes
    ----------
    most, kept : int
        Weights at most, and those that the updates' solution has.
    of_mean, of_ours : float
        Accuracy of the partitions' mean, and after the updates.
    error : float
        Standard error of the difference: both answer the same items.
    """

    most: int
    kept: int
    of_mean: float
    of_ours: float
    error: float


@experiment(tuple[Told, ...])
def accuracies(data: str, partitions: int, updates: int) -> tuple[Told, ...]:
    """Return accuracies by the number of weights, each of the best of three penalties and four strengths."""
    means = [tried(data, partitions, lam, 0.0, 0).weights for lam in LAMBDAS]
    # Of the strengths the one that ends lowest.
    ours = [
        min((tried(data, partitions, lam, alpha, updates) for alpha in STRENGTHS), key=lambda arm: arm.history[-1])
        for lam in LAMBDAS
    ]
    rows = []
    for most in FEW:
        (of_mean, _), (of_ours, kept) = told(data, means, most), told(data, [arm.weights for arm in ours], most)
        gain = of_ours.astype(float) - of_mean
        error = float(gain.std(ddof=1)) / math.sqrt(len(gain))
        rows.append(Told(most, kept, float(of_mean.mean()), float(of_ours.mean()), error))
    return tuple(rows)


def _gain(sets: Sequence[tuple[str, int]] = (QUESTIONS[:2], FILMS[:2]), updates: int = 2) -> Answer:
    """Say whether accuracy at equal numbers of weights is higher than the mean's by more than twice its error."""
    found = {data: accuracies(data, partitions, updates) for data, partitions in sets}
    gains = [(row.of_ours - row.of_mean) / row.error if row.error else 0.0 for rows in found.values() for row in rows]
    lines = [
        f"{data}: "
        + ", ".join(
            f"{row.most:,}{f' ({row.kept})' if row.kept < row.most else ''} {row.of_mean:.3f} {row.of_ours:.3f} "
            f"(± {2 * row.error:.3f})"
            for row in rows
        )
        for data, rows in found.items()
    ]
    note = (
        "weights at most (of two updates, if fewer), held-out accuracy of the mean, then of two updates (± twice the "
        f"error of the difference); {'; '.join(lines)}; of either, solutions of {len(LAMBDAS)} lambdas cut to their "
        "largest weights, the lambda by the items learnt from; higher by more than twice the error in "
        f"{sum(gain > 2 for gain in gains)} of {len(gains)}"
    )
    return Answer(GAIN if min(gains) > 2 else f"not: {GAIN}", note)


WITHIN = "within 2 % of the solution of all items"
DIVERGES = "diverging updates"
GAIN = "large gain in accuracy"
ABSTRACT = "abstract of arXiv 2407.06346"
ON_QUESTIONS = "MMLU's questions, humanities or not, by words and word pairs; 16 partitions"
ON_FILMS = "films, fresh or rotten, by words and word pairs; 64 partitions"

CLAIMS: tuple[Claim, ...] = (
    Claim("CSL-1", "two updates, in the sparse regime", f"{ON_QUESTIONS}, lambda 1e-3", WITHIN, "", "second-hand",
          "arXiv 2407.06346, as reported; its tables are not available", unless_unavailable(_gap), grade="measured"),
    Claim("CSL-2", "updates without the proximal term", f"{ON_FILMS}, lambda 1e-3", DIVERGES, "", "first-hand",
          ABSTRACT, unless_unavailable(_diverges), grade="measured"),
    Claim("CSL-3",
        "two updates against the mean of the partitions' solutions, at equal numbers of weights",
          f"{ON_QUESTIONS}; {ON_FILMS}; lambda {LAMBDAS[-1]:g} to {LAMBDAS[0]:g}", GAIN, "", "first-hand", ABSTRACT,
          unless_unavailable(_gain), grade="measured", assumptions={
              "MMLU's questions alone": lambda: _gain((QUESTIONS[:2],)),
              "films alone": lambda: _gain((FILMS[:2],)),
              "four updates, not two": lambda: _gain(updates=4),
          }),
)  # fmt: skip

"""The rules: who computes what, which messages suffice; every one of them over the same server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from msgspec.structs import replace

from densing.core import InputError, Note
from densing.efficiency.simulation import ENTRY, NUMBER, Convex, Link, adam_bytes, check_convex, memory, parameter_count
from densing.efficiency.systems.baselines import SEQUENTIAL
from densing.efficiency.systems.plan import measure
from densing.efficiency.systems.planner import FULL_BYTES, Layout, Planned, parameters_of, periods, run_knobs
from densing.efficiency.systems.registry import Knob, above_zero, choice, optional, settle, whole
from densing.efficiency.systems.stragglers.plan import Costs, serve
from densing.efficiency.systems.stragglers.schemes import backup, clustered_code, gradient_code, lagrange, uncoded

if TYPE_CHECKING:
    from densing.efficiency.parallel import RunEnv, RunRecord, RunSpec
    from densing.efficiency.simulation import Cluster, Workload
    from densing.efficiency.systems.plan import Plan
    from densing.efficiency.systems.stragglers.schemes import Scheme

R = Knob("r", 2, "partitions that each worker computes (there are as many partitions as workers)", whole(1))
SERVER = Knob(
    "server_gbit",
    None,
    "bandwidth of the server's link, Gbit/s each way; none: that of the cluster between nodes",
    optional(above_zero),
)
SEED = Knob("code_seed", 0, "seed of the code's random parity checks", whole(0))


class Served(Planned):
    """Workers, a server beside them, and a rule for which messages suffice. A worker is a replica."""

    role = "exchange"
    paper = "Ozfatura, Ulukus and Gunduz, Entropy 2020, arXiv 2004.04948"
    knobs: tuple[Knob, ...] = (R, SERVER)
    needs = ("dp",)
    modes = ("train",)
    plan_only: ClassVar[tuple[str, ...]] = ("server_gbit",)
    axis: ClassVar[str] = "server"
    """What the ranks of a run are."""
    stand_in: str = ""
    problem: ClassVar[str] = "lm"
    """Problem that a run trains."""

    def scheme(self, workers: int, **knobs: Any) -> Scheme:
        """Return who computes what, and which messages suffice."""
        raise NotImplementedError

    def plan(self, workload: Workload | Convex, cluster: Cluster, **knobs: Any) -> Plan:
        """Return the tasks of some steps of as many workers as there are replicas, and of a server beside them.

        Parameters
        ----------
        workload : Workload or Convex
            A partition is the batch of one replica. A replica of several devices is as late as its latest. Of a linear
            problem there are as many workers as partitions, or devices.
        cluster : Cluster
            Of the workers; the server is one device more. Its delay holds up every partition.
        **knobs
            Those of :attr:`knobs`; the defaults of the others.

        Raises
        ------
        InputError
            When it cannot work on this workload, a knob makes no sense, or its messages cannot be decoded well.
        """
        settings = settle(self.name, self.knobs, knobs)
        self.check(workload)
        rule = {key: value for key, value in settings.items() if key not in self.plan_only}
        if isinstance(workload, Convex):
            devices = (1, min(workload.partitions, cluster.n), 1)
            scheme = self.scheme(devices[1], **rule)
            costs = _linear_costs(workload, cluster, scheme, settings["server_gbit"])
            entries, size = _stored(workload, scheme)
            held = size * entries * len(scheme.tasks[0]) / devices[1]
            kept = {"items": held, "weights and gradients": 3.0 * workload.sent}
        else:
            split = workload.split
            # Refuses what does not fit the cluster, as any other plan.
            Layout(split, cluster)
            devices = (split.pp, split.dp, split.tp)
            scheme = self.scheme(split.dp, **rule)
            costs = _costs(workload, cluster, settings["server_gbit"])
            kept = self.memory(workload, settings)
        scheme.check_condition(scheme.condition())
        warmup, steps = self.window(settings)
        if cluster.delay is not None:
            steps *= periods(steps, len(serve(scheme, costs, cluster.delay, warmup=0, steps=1).graph))
        return serve(
            scheme,
            costs,
            cluster.delay,
            warmup=warmup,
            steps=steps,
            devices=devices,
            memory=kept,
        )

    def check(self, workload: Workload | Convex) -> None:
        """Refuse a workload that it has nothing to do with; sums of gradients of linear problems are sums too."""
        if isinstance(workload, Convex):
            check_convex(workload)
        else:
            super().check(workload)

    def check_run(self, spec: RunSpec) -> None:
        """Refuse a run without workers, or whose scheme cannot be decoded.

        Raises
        ------
        InputError
        """
        if spec.nproc < 2:
            raise InputError(f"{self.name}: nproc={spec.nproc}: a server needs at least one worker; give 2 or more")
        scheme = self.scheme(spec.nproc - 1, **run_knobs(self.name, self.knobs, self.plan_only, spec.knobs))
        scheme.check_condition(scheme.condition())

    def run(self, env: RunEnv, **knobs: Any) -> RunRecord:
        """Train ``env.spec.steps`` steps: rank 0 as the server, any other as a worker."""
        from densing.efficiency.systems.stragglers.run import train_with_server

        options = run_knobs(self.name, self.knobs, self.plan_only, knobs)
        return train_with_server(
            env,
            lambda workers: self.scheme(workers, **options),
            problem=self.problem,
            stand_in=self.stand_in,
        )

    def memory(self, workload: Workload, knobs: Mapping[str, Any]) -> dict[str, float]:
        """Return bytes per worker: the server alone keeps the optimizer's state."""
        purposes = {purpose: float(count) for purpose, count in memory(workload).items() if purpose != "optimizer"}
        return {**purposes, "technique": self.extra_bytes(workload, knobs)}

    def extra_bytes(self, workload: Workload, knobs: Mapping[str, Any]) -> float:
        """Return the sum that is on its way while the next partition is computed."""
        return parameters_of(workload) * workload.dtype_bytes

    def remarks(self, workload: Workload, cluster: Cluster, **knobs: Any) -> tuple[Note, ...]:
        """Say what a comparison without delays is worth."""
        if cluster.delay is not None:
            return ()
        message = (
            f"{self.name}: {cluster.name} has no delays, so no worker is late and redundancy only "
            "costs time; fit yours with "
            "`densing calibrate TRACES --delays`, or give --delay"
        )
        return (Note("no-delay", "warning", message, {"technique": self.name}),)


def _costs(workload: Workload, cluster: Cluster, server_gbit: float | None) -> Costs:
    """Return what a step takes: partitions as any replica's pass, messages over the server's link."""
    split, device = workload.split, cluster.device
    alone = replace(workload, split=replace(split, dp=1, order=()))
    quiet = cluster.change(speed=(), delay=None)
    per_device = parameters_of(workload)
    size = workload.dtype_bytes
    # As in any step Adam moves gradient, weight, and twice its state; the server's own, of the whole model.
    update_s = device.seconds(0.0, per_device * (2 * size + 2 * adam_bytes(size)))
    once = measure(SEQUENTIAL.plan(alone, quiet), quiet).step_s - update_s
    speeds = np.reshape(cluster.speed or (1.0,) * split.ranks, (split.pp, split.dp, split.tp)).min(axis=(0, 2))
    link = _server_link(cluster, server_gbit)
    parameters = parameter_count(workload.model)
    count = parameters * size
    # Sums are made as messages come; of the last one's addition nothing is hidden.
    server_s = device.seconds(0.0, parameters * (size + 2.0 * FULL_BYTES + 2 * size + 2 * adam_bytes(size)))
    return Costs(
        tuple((once / speeds).tolist()),
        link.seconds(count),
        link.seconds(count),
        count,
        count,
        device.seconds(0.0, 2.0 * per_device * size),
        server_s,
    )


def _linear_costs(problem: Convex, cluster: Cluster, scheme: Scheme, server_gbit: float | None) -> Costs:
    """Return what a step of a linear problem takes: each entry is read once to the margins and once back."""
    device, link = cluster.device, _server_link(cluster, server_gbit)
    entries, size = _stored(problem, scheme)
    share = entries / scheme.workers
    once = device.seconds(4.0 * share, 2.0 * size * share)
    speeds = np.array(cluster.speed or (1.0,) * scheme.workers)[: scheme.workers]
    moved = device.seconds(0.0, 2.0 * problem.sent)
    return Costs(
        tuple((once / speeds).tolist()),
        link.seconds(problem.sent),
        link.seconds(problem.sent),
        problem.sent,
        problem.sent,
        moved,
        2 * moved,
    )


def _stored(problem: Convex, scheme: Scheme) -> tuple[int, int]:
    """Return how many entries there are and the bytes of each: encoded data have no zeros, and need no columns."""
    return (problem.nnz, ENTRY) if scheme.encoding is None else (problem.n * problem.d, NUMBER)


def _server_link(cluster: Cluster, server_gbit: float | None) -> Link:
    link = cluster.intra if cluster.n <= cluster.per_node else cluster.inter
    return link if server_gbit is None else Link(link.alpha_s, 8e-9 / server_gbit)


class UcMmc(Served):
    """Partial gradients one by one, until every partition has come from one of its holders."""

    name = "uc-mmc"
    summary = (
        "workers send each partition's gradient as soon as it is computed; the server goes "
        "on once it has one of every partition"
    )
    claims_in = "densing.efficiency.systems.stragglers.claims"

    def scheme(self, workers: int, **knobs: Any) -> Scheme:
        """Return r messages a worker."""
        return uncoded(workers, knobs["r"])


class GradientCoding(Served):
    """One coded message a worker."""

    name = "gradient-coding"
    role = "baseline"
    paper = "Tandon et al., ICML 2017, arXiv 1612.03301"
    summary = "each worker sends one coded sum of r partitions; any N - r + 1 sums give the whole gradient"
    knobs = (R, SEED, SERVER)

    def scheme(self, workers: int, **knobs: Any) -> Scheme:
        """Return a cyclic code of random parity checks."""
        return gradient_code(workers, knobs["r"], knobs["code_seed"])


class GcMmc(Served):
    """Codes inside clusters, of rising redundancy."""

    name = "gc-mmc"
    summary = "clusters of workers with one code each, and a coded message after every partition (our construction)"
    knobs = (
        R,
        Knob("clusters", 1, "number of equal groups of workers, each with its own code", whole(1)),
        SEED,
        SERVER,
    )
    experimental = "our own construction, not the paper's; uc-mmc was as fast or faster wherever we compared them"
    not_available = ("the construction of coded messages in clusters (ours is reconstructed from the abstract)",)

    def scheme(self, workers: int, **knobs: Any) -> Scheme:
        """Return a code for every message and cluster."""
        return clustered_code(workers, knobs["r"], knobs["clusters"], seed=knobs["code_seed"])

    def extra_bytes(self, workload: Workload, knobs: Mapping[str, Any]) -> float:
        """Return a coded sum for every message."""
        return knobs["r"] * super().extra_bytes(workload, knobs)


class Lcc(Served):
    """Least squares on encoded data."""

    name = "lcc"
    paper = "Yu et al., AISTATS 2019, arXiv 1806.00939"
    summary = "least squares on data encoded by Lagrange interpolation; any 2K - 1 evaluations give the whole gradient"
    knobs = (
        R,
        Knob(
            "messages", "each", "messages: one after every evaluation, or one per worker (PCR)", choice(("each", "one"))
        ),
        SERVER,
    )
    stand_in = (
        "least squares instead of the language model: a linear map from the hidden states of the untrained model to "
        "the next byte, on the same data in every step; losses are half the squared error per token, not nats"
    )
    problem = "least-squares"
    not_available = ("how the paper encodes and orders evaluations (ours are Chebyshev points)",)

    def scheme(self, workers: int, **knobs: Any) -> Scheme:
        """Return evaluations of a polynomial of degree 2 (K - 1)."""
        return lagrange(workers, knobs["r"], several=knobs["messages"] == "each")

    def check(self, workload: Workload | Convex) -> None:
        """Refuse all but least squares, whose gradient is a polynomial of the data."""
        if not isinstance(workload, Convex) or workload.loss != "squares":
            kind = f"the gradient of {workload.name}" if isinstance(workload, Convex) else "a transformer's gradient"
            raise InputError(
                f"{self.name}: decodes polynomials of degree 2 in the data, so it supports least "
                f"squares only (--model least-squares), not {kind}: compare uc-mmc or gc-mmc"
            )
        super().check(workload)


class BackupWorkers(Served):
    """The slowest are dropped."""

    name = "backup-workers"
    role = "baseline"
    paper = "Chen et al. 2016, arXiv 1604.00981"
    summary = "the server does not wait for the slowest workers, whose partitions are lost; drop = 0 waits for all"
    knobs = (Knob("drop", 1, "number of slowest workers not waited for", whole(0)), SERVER)
    changes_loss = "gradients of the slowest workers' partitions are dropped (drop = 0: none)"

    def scheme(self, workers: int, **knobs: Any) -> Scheme:
        """Return one message a worker, of which the first ones suffice."""
        return backup(workers, knobs["drop"])


UC_MMC, GRADIENT_CODING, GC_MMC, LCC, BACKUP_WORKERS = UcMmc(), GradientCoding(), GcMmc(), Lcc(), BackupWorkers()

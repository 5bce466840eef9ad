"""Prediction of a real run: its plan, simulated on a calibrated cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from densing.core import InputError, Record
from densing.efficiency.parallel import RunSpec
from densing.efficiency.simulation import Cluster, collective_seconds, modules, parse_delay
from densing.efficiency.systems.baselines import SEQUENTIAL
from densing.efficiency.systems.links import of_run
from densing.efficiency.systems.plan import measure
from densing.efficiency.systems.planner import FULL_BYTES
from densing.efficiency.systems.registry import axis_of, get_technique

if TYPE_CHECKING:
    from densing.efficiency.simulation import Device, Workload


class Prediction(Record, frozen=True):
    """Predicted times of a step.

    Parameters
    ----------
    technique : str
    step_s, exposed_s : float
        Seconds per step, and those of exposed communication; in a pipeline all seconds in which a rank does not
        compute, since it waits for its neighbours' passes as for their packets.
    compute_s, comm_s : float
        Seconds per step in which a rank computes, and in which it communicates, hidden or not.
    tau_min : float or None
        Least steps per round that hide the exchange, T_AR (1 + kappa_comm) / (T_c (1 + kappa)); None where a technique
        does not communicate under whole rounds.
    """

    technique: str
    step_s: float
    exposed_s: float
    compute_s: float
    comm_s: float
    tau_min: float | None = None


def predict(spec: RunSpec, cluster: Cluster) -> Prediction:
    """Predict a real run from its specification.

    Parameters
    ----------
    spec : RunSpec
    cluster : Cluster
        Preferably from ``densing calibrate --link``, with the same model, batch and sequence, which measures the
        modules' times; where ranks have links of their own, calibrated over the fastest. If its bandwidth differs from
        that of the run's link, this link replaces its own.

    Raises
    ------
    InputError
        When the cluster has fewer devices than the run has ranks, or the technique does not fit the run.
    UnknownNameError
        For an unknown technique.
    """
    if spec.nproc > cluster.n:
        raise InputError(
            f"the run has {spec.nproc} ranks, but cluster {cluster.name} has {cluster.n} devices; "
            f"calibrate with --nproc {spec.nproc}"
        )
    technique = get_technique(spec.technique)
    workload = workload_of_run(spec)
    known = {knob.name for knob in technique.knobs}
    knobs = {key: value for key, value in spec.knobs.items() if key in known}
    cluster = of_run(cluster, spec)
    if spec.delay:
        cluster = cluster.change(delay=parse_delay(spec.delay))
    # A run that is placed by its links stays where it is, whatever the cluster says of them.
    placed = getattr(technique, "plan_of_run", None)
    plan = technique.plan(workload, cluster, **knobs) if placed is None else placed(spec, cluster)
    step = measure(plan, cluster)
    tau_min, split = None, workload.split
    if getattr(technique, "asynchronous", False) and split.dp > 1:
        # A round hides the all-reduce of all parameters where its steps compute for as long, each slowing the other.
        quiet = measure(
            SEQUENTIAL.plan(replace(workload, split=replace(split, dp=1)), cluster.change(speed=())), cluster
        )
        if quiet.compute_s > 0:
            count = FULL_BYTES * sum(module.parameters for module in modules(workload))
            exchange = collective_seconds("all_reduce", count, cluster, range(split.dp))
            tau_min = exchange * (1 + cluster.kappa_comm) / (quiet.compute_s * (1 + cluster.kappa))
    return Prediction(
        spec.technique,
        step.step_s,
        step.step_s - step.compute_s if split.pp > 1 else step.exposed_comm_s,
        step.compute_s,
        step.comm_s,
        tau_min,
    )


def device_of_run(spec: RunSpec, cluster: Cluster, seconds: float) -> Device:
    """Return a cluster's device with both of its rates scaled, so that a run's step computes for so long.

    Parameters
    ----------
    spec : RunSpec
    cluster : Cluster
    seconds : float
        Of computing, with nothing beside it, per step and rank.

    Raises
    ------
    InputError
        As :func:`predict`.

    Examples
    --------
    >>> from densing.efficiency.simulation import load_cluster
    >>> spec, cluster = RunSpec("ddp", nproc=2), load_cluster("cpu2")
    >>> device = device_of_run(spec, cluster, 0.25)
    >>> round(predict(spec, cluster.change(device=device)).compute_s, 6)
    0.25
    """
    quiet = cluster.change(n=max(cluster.n, spec.nproc), kappa=0.0, kappa_comm=0.0)
    # By the roofline computing is in inverse proportion to both rates.
    device = replace(cluster.device, measured=(), step_s=0.0)
    faster = predict(spec, quiet.change(device=device)).compute_s / seconds
    return replace(device, flops=device.flops * faster, mem_bw=device.mem_bw * faster)


def workload_of_run(spec: RunSpec) -> Workload:
    """Return the workload of a real run: the small language model in float32.

    Examples
    --------
    >>> workload_of_run(RunSpec("ladder", nproc=2)).split.tp, workload_of_run(RunSpec("ddp", nproc=2)).split.dp
    (2, 2)
    >>> workload_of_run(RunSpec("uc-mmc", nproc=5)).split.dp
    4
    >>> staged = workload_of_run(RunSpec("pipeline", {"micro_batches": 2}, nproc=3))
    >>> staged.split.pp, staged.micro_batches
    (3, 2)
    """
    from densing.efficiency.parallel import workload_of

    technique = get_technique(spec.technique)
    axis = axis_of(technique)
    # A server is not a replica.
    width, micro_batches = {axis: spec.nproc} if axis != "server" else {"dp": spec.nproc - 1}, 1
    if axis == "pp":
        defaults = {knob.name: knob.default for knob in technique.knobs}
        micro_batches = int(spec.knobs.get("micro_batches", defaults.get("micro_batches", 1)))
    return workload_of(
        spec.model,
        spec.batch,
        spec.sequence,
        dp=width.get("dp", 1),
        tp=width.get("tp", 1),
        pp=width.get("pp", 1),
        micro_batches=micro_batches,
        mode=str(spec.knobs.get("mode", "train")),
    )

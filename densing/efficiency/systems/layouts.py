"""The fastest layout of a training step: candidates in closed form, then simulated as techniques are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from densing.core import Array, InputError, Note
from densing.efficiency.simulation import Cluster, Device, Link, Split, Transformer, Workload
from densing.efficiency.systems.plan import Plans, measure
from densing.efficiency.systems.planner import MEBIBYTE
from densing.efficiency.systems.registry import get_technique
from densing.efficiency.throughput import (
    EXPOSED_SUMS,
    FRAMEWORK,
    Layout,
    LayoutPlan,
    Runs,
    fitted_step,
    hides_gradients,
    paced,
    plan_layout,
    workload_of,
)

SIMULATED = 10
"""Layouts that are simulated, the best ones in closed form."""
MOST_PASSES = 200_000
"""Passes of a device over a module in one step, beyond which a layout is not simulated."""
TECHNIQUES = ("ddp", "zero1", "zero2", "zero3")
"""By ZeRO stage."""
ALONE = "sequential"
"""Where there is one replica."""
LEAST_BUCKET, BUCKET_PER_REPLICA = 40e6, 1e6
"""Gradients of a bucket, at least and per replica: Megatron-Core's defaults (recalled)."""
PARTS = {"compute": "compute", "exposed": "exposed communication", "idle": "waiting for other stages"}
"""What a simulated step is made of, in words."""


def fastest_layouts(
    model: Transformer,
    cluster: Cluster,
    devices: int,
    *,
    sequence: int = 4096,
    batch: int = 1024,
    most: int = 5,
    only: Mapping[str, int | str] | None = None,
    precision: str = "bf16",
    schedule: str = "1f1b",
    framework: str = FRAMEWORK,
    progress: Callable[[int, int], None] | None = None,
) -> LayoutPlan:
    """Find the fastest layouts that fit: the best :data:`SIMULATED` in closed form are simulated and ranked anew.

    The times are those of :func:`densing.efficiency.systems.compare` with the same buckets. A zero-bubble schedule,
    steps of very many passes and devices whose own times were measured are ranked in closed form; a note says so.

    Parameters
    ----------
    model, cluster, devices, sequence, batch, most, only, precision, schedule, framework
        As for :func:`densing.efficiency.throughput.plan_layout`.
    progress : callable, optional
        Called with the layouts done and the layouts to be simulated.

    Raises
    ------
    InputError
        As :func:`densing.efficiency.throughput.plan_layout`.

    Examples
    --------
    >>> from densing.efficiency.simulation import load_cluster, load_workload
    >>> found = fastest_layouts(load_workload("llama-8b").model, load_cluster("a100x8-rdma"), 16, batch=64)
    >>> best = found.layouts[0]
    >>> best.low_s < best.step_s < best.high_s, sorted(best.parts_s)
    (True, ['compute', 'exposed', 'idle'])
    """
    options: dict[str, Any] = {"only": only, "precision": precision, "schedule": schedule, "framework": framework}
    closed = plan_layout(model, cluster, devices, sequence=sequence, batch=batch, most=max(most, SIMULATED), **options)
    tried = closed.layouts[:SIMULATED]
    if why := _unsimulated(tried, model, cluster, sequence, schedule):
        note = Note("not-simulated", "info", f"ranked in closed form, not simulated: {why}")
        return replace(closed, layouts=closed.layouts[:most], notes=(*closed.notes, note))
    done: list[Layout] = []
    for number, layout in enumerate(tried):
        done.append(_simulated(layout, model, cluster, sequence, precision, framework))
        if progress is not None:
            progress(number + 1, len(tried))
    ranked = sorted(done, key=lambda layout: layout.step_s)
    return replace(closed, layouts=(*ranked, *closed.layouts[SIMULATED:])[:most], why=_why(ranked))


def _unsimulated(tried: Sequence[Layout], model: Transformer, cluster: Cluster, sequence: int, schedule: str) -> str:
    """Why layouts are not simulated; empty where they are."""
    passes = max(2 * each.parts * 2 * model.layers for each in tried)
    if schedule != "1f1b":
        return f"a {schedule} schedule"
    if passes > MOST_PASSES:
        return f"{passes:,} passes over modules in a step"
    if fitted_step(step_of(tried[0], model, sequence)[0], cluster) is None:
        return f"the times of {cluster.device.name} in cluster {cluster.name} are its own"
    return ""


def step_of(
    layout: Layout, model: Transformer, sequence: int, framework: str = FRAMEWORK
) -> tuple[Workload, str, dict[str, float]]:
    """Return a layout as a workload, the technique that exchanges its gradients, and the technique's settings."""
    split = Split(layout.dp, layout.tp, layout.pp, layout.tp > 1, virtual=layout.virtual, cp=layout.cp, ep=layout.ep)
    workload = Workload(
        model, "train", layout.micro_batch * layout.parts, sequence, split, layout.parts, recompute=layout.recompute
    )
    return workload, *_exchange(split, layout.zero, hides_gradients(framework))


def _exchange(split: Split, zero: int, hidden: bool) -> tuple[str, dict[str, float]]:
    """Name the technique that exchanges gradients, hidden behind the backward pass or not, and its settings."""
    if split.copies == 1:
        return ALONE, {}
    # In a pipeline gradients are summed over micro-batches before they are scattered, as with ZeRO-1.
    stage = min(zero, 1) if zero < 3 and split.pp > 1 else zero
    technique = TECHNIQUES[stage] if stage or hidden else ALONE
    return technique, {"bucket_mb": bucket_mb(split.copies)} if stage < 3 else {}


def bucket_mb(replicas: int) -> float:
    """Return the size of a bucket of 32-bit gradients that Megatron-Core chooses, MiB.

    Examples
    --------
    >>> round(bucket_mb(8), 1), round(bucket_mb(80), 1)
    (152.6, 305.2)
    """
    return max(LEAST_BUCKET, BUCKET_PER_REPLICA * replicas) * 4 / MEBIBYTE


def _simulated(
    layout: Layout, model: Transformer, cluster: Cluster, sequence: int, precision: str, framework: str
) -> Layout:
    workload, technique, settings = step_of(layout, model, sequence, framework)
    found = fitted_step(workload, cluster, precision=precision, framework=framework)
    assert found is not None
    steady = measure(get_technique(technique).plan(found.workload, found.cluster, **settings), found.cluster)
    step = steady.step_s
    return replace(
        layout,
        step_s=step,
        low_s=step * found.low,
        high_s=step * found.high,
        tokens_per_s=layout.tokens_per_s * layout.step_s / step,
        mfu=layout.mfu * layout.step_s / step,
        parts_s={
            "compute": steady.compute_s,
            "exposed": steady.exposed_comm_s,
            "idle": max(step - steady.compute_s - steady.exposed_comm_s, 0.0),
        },
    )


def measured_run(runs: Runs, constants: Mapping[str, Array]) -> tuple[Plans, Workload, Cluster, dict[str, float]]:
    """Return the first of some runs of a table as it is simulated: what exchanges its gradients, and on what.

    Parameters
    ----------
    runs : Runs
    constants : mapping of str to array
        Of the run's generation of devices.

    Returns
    -------
    (technique, workload, cluster, settings)
        What :func:`densing.efficiency.systems.measure` is given through the technique's plan.

    Raises
    ------
    InputError
        When the split cannot divide the model.
    """
    workload = workload_of(runs)
    if workload is None:
        raise InputError("the run's split does not divide its model")
    # Fused attention is computed again in any case.
    fused = workload.recompute == "selective" and workload.fused_attention
    workload = replace(
        workload,
        exposed_sums=EXPOSED_SUMS if runs.hidden_sums[0] else 1.0,
        recompute="none" if fused else workload.recompute,
    )
    split, node = workload.split, int(runs.node[0])
    intra, inter = (Link(0.0, 1 / float(figure[0]), ring=True) for figure in (runs.link, runs.nic))
    device = Device("a row's", float(runs.flops[0]), float(runs.bandwidth[0]))
    cluster = Cluster("a row's", -(-split.ranks // node) * node, node, device, intra, inter, host=Link(0.0, 0.0))
    technique, settings = _exchange(split, int(runs.zero[0]), bool(runs.hidden_gradients[0]))
    return get_technique(technique), workload, paced(workload, cluster, runs, dict(constants)), settings


def _why(ranked: list[Layout]) -> str:
    best = ranked[0]
    other = next((each for each in ranked if (each.tp, each.pp) != (best.tp, best.pp)), None)
    if other is None:
        return "no other split is among the best"
    name = max(PARTS, key=lambda part: other.parts_s[part] - best.parts_s[part])
    slower = 100 * (other.step_s / best.step_s - 1)
    return f"tp {other.tp} and pp {other.pp} take {slower:.1f} % longer, most of it for {PARTS[name]}"

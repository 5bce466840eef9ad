"""A step for the simulator, with the cost model's times of modules and shares of links.

The cost model gives the times of a layer's modules on a generation of devices, the shares of its links that collectives
reach and the software's defaults; the simulator decides what overlaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from typing import NamedTuple

import msgspec
import numpy as np
import pandas as pd

from densing.core import Array, InputError, Note, UnknownNameError
from densing.efficiency.simulation import Cluster, Link, Module, Transformer, Workload, modules
from densing.efficiency.throughput.fit import NAMES, Frozen, frozen
from densing.efficiency.throughput.memory import RECOMPUTE
from densing.efficiency.throughput.step import EXPOSED_SUMS, layer_seconds
from densing.efficiency.throughput.table import Runs, device_of, framework_names, narrow_of, read_runs

PRECISIONS, SCHEDULES = ("bf16", "fp8"), ("1f1b", "zero-bubble")
SPLIT = ("tp", "pp", "virtual", "dp", "micro_batch", "parts", "zero", "recompute", "ep", "cp")
"""Columns of a candidate, in this order."""
NEWEST = "H100"
"""Whose units share a product where a cluster's device has no data sheet."""
FRAMEWORK = "Megatron-Core"
"""Whose ways are assumed: fused kernels, gradients in 32 bits, sums of the tensor-parallel group beside products."""


class FittedStep(NamedTuple):
    """A workload and a cluster with the cost model's figures.

    Attributes
    ----------
    workload : Workload
        With the framework's bytes per gradient and exposed share of tensor-parallel sums.
    cluster : Cluster
        Its device has the times of this workload's modules, its links the bandwidth that collectives reach.
    low, high : float
        Factors on a simulated step between which four of five runs lie that the constants had not seen.
    notes : tuple of Note
        In what respects the step lies outside the measured range.
    """

    workload: Workload
    cluster: Cluster
    low: float
    high: float
    notes: tuple[Note, ...]


def fitted_step(
    workload: Workload,
    cluster: Cluster,
    constants: Frozen | None = None,
    *,
    precision: str = "bf16",
    framework: str = FRAMEWORK,
) -> FittedStep | None:
    """Return a training step with the figures of the cost model of measured runs.

    Figures of the cluster that were measured (``densing calibrate``) stay as they are.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
    constants : Frozen, optional
    precision : {"bf16", "fp8"}
        Of matrix products.
    framework : str
        One of :func:`densing.efficiency.throughput.framework_names`: its kernels, bytes per gradient and overlap.

    Returns
    -------
    FittedStep or None
        None where nothing was measured that is like it: inference, linear attention, several sites, links that take no
        time per byte, devices without a data sheet or with times of their own, and kinds of runs that too few sources
        measured (mixtures of experts, eager programs).

    Raises
    ------
    InputError
        When the split cannot divide the model.

    Examples
    --------
    >>> from densing.efficiency.simulation import load_cluster, load_workload
    >>> step = load_workload("llama3-70b", mode="train", dp=2, tp=8, pp=4)
    >>> found = fitted_step(step, load_cluster("a100x8-rdma", n=64))
    >>> found.low < 1 < found.high, found.workload.gradient_bytes
    (True, 4)
    """
    known = constants or frozen()
    generation = device_of(cluster.device.name)
    endless = not (cluster.intra.beta_s_per_byte and cluster.inter.beta_s_per_byte)
    unlike = cluster.wide is not None or workload.model.linear_attention or not generation or endless
    if workload.mode != "train" or unlike or _measured(cluster, "device"):
        return None
    split = workload.split
    candidate = (
        split.tp, split.pp, split.virtual, split.dp, workload.batch // workload.micro_batches, workload.micro_batches,
        0, RECOMPUTE.index(workload.recompute), split.ep, split.cp,
    )  # fmt: skip
    runs = runs_of(workload.model, cluster, workload.sequence, [candidate], precision, framework=framework)
    written = bool(runs.written[0]) or not workload.fused_attention
    runs = replace(runs, split_sequence=np.array([float(split.sequence)]), written=np.array([float(written)]))
    ends = known.spread(str(runs.kinds(generation in known.constants)[0]))
    if ends is None:
        return None
    placed = workload.overlap_weight_gradients or workload.exposed_sums < 1
    usual = msgspec.structs.replace(
        workload,
        fused_attention=not written,
        gradient_bytes=workload.gradient_bytes or int(runs.gradient_bytes[0]),
        exposed_sums=workload.exposed_sums if placed or not runs.hidden_sums[0] else EXPOSED_SUMS,
    )
    own = constants_on(cluster, known)
    doubts = known.doubts(generation, cluster.device.name, runs)
    return FittedStep(usual, paced(usual, cluster, runs, own), *ends, doubts)


def constants_on(cluster: Cluster, known: Frozen) -> dict[str, Array]:
    """Return the constants of a cluster's generation; the cluster's latencies are lower bounds.

    A link with measured figures reaches them in full.
    """
    own, _ = known.of([device_of(cluster.device.name)])
    for link, share, hop in ((cluster.intra, "link", "hop_s"), (cluster.inter, "nic", "far_hop_s")):
        exact = _measured(cluster, "intra" if share == "link" else "inter")
        own[share] = np.ones(1) if exact else own[share]
        own[hop] = np.array([link.alpha_s]) if exact else np.maximum(own[hop], link.alpha_s)
    return own


def _measured(cluster: Cluster, part: str) -> bool:
    return any(
        name.startswith(f"{part}.") and figure.evidence == "measured" for name, figure in cluster.sources.items()
    ) or (part == "device" and bool(cluster.device.measured))


def paced(workload: Workload, cluster: Cluster, runs: Runs, constants: dict[str, Array]) -> Cluster:
    """Return the cluster with the times that the constants give for a step.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
    runs : Runs
        The workload on the cluster, one row.
    constants : dict of str to array
    """
    c = {name: float(constants[name][0]) for name in NAMES}
    layer, head = layer_seconds(runs, constants)
    attention, mlp, last = (
        next(each for each in modules(workload) if each.name == name) for name in ("attention", "mlp", "head")
    )
    # What is done again of single modules the simulator leaves to the device, but for whole layers and written scores.
    core = layer.core * ((runs.recompute == 1) & (runs.written == 0))
    half = np.where(runs.recompute == 3, 0.5, 0.0)
    pieces = [
        *_pieces(attention, layer.attention, layer.attention_back + core + half * layer.attention),
        *_pieces(mlp, layer.mlp, layer.mlp_back + half * layer.mlp),
        *_pieces(last, head / 3, 2 * head / 3),
    ]
    device = msgspec.structs.replace(
        cluster.device,
        efficiency=min(c["products"], 1.0),
        mem_efficiency=min(c["memory"], 1.0),
        measured=tuple(pieces),
        step_s=c["step_s"],
    )

    def reached(level: str, share: str, hop: str) -> Link:
        link: Link = getattr(cluster, level)
        # The constants were fitted with rings: their hop is a ring's, and what it has beyond a wire's latency too.
        ring = link.ring or not _measured(cluster, level)
        return Link(c[hop], link.beta_s_per_byte / c[share], link.shared, ring)

    return cluster.change(
        device=device,
        intra=reached("intra", "link", "hop_s"),
        inter=reached("inter", "nic", "far_hop_s"),
    )


def _pieces(module: Module, forward: Array, backward: Array) -> list[tuple[float, float, float]]:
    return [
        (module.flops, module.moved, float(forward[0])),
        (module.backward_flops, module.backward_moved, float(backward[0])),
    ]


def runs_of(
    model: Transformer,
    cluster: Cluster,
    sequence: int,
    candidates: Sequence[tuple[int, ...]],
    precision: str = "bf16",
    schedule: str = "1f1b",
    framework: str = FRAMEWORK,
) -> Runs:
    """Return the candidates as columns, with a framework's defaults."""
    for name, value, known in (
        ("precision", precision, PRECISIONS), ("schedule", schedule, SCHEDULES),
        ("framework", framework, framework_names()),
    ):  # fmt: skip
        if value not in known:
            raise UnknownNameError(name, value, known)
    gpu = cluster.device.name if device_of(cluster.device.name) else NEWEST
    one = _usual(gpu, precision, schedule, framework)
    columns = {field.name: np.repeat(getattr(one, field.name), len(candidates)) for field in fields(Runs)}
    selective = one.recompute[0]
    columns |= dict(zip(SPLIT, np.array(candidates, dtype=float).T, strict=True))
    # What a framework means by "selective" is the core of attention, or half of what layers compute.
    columns["recompute"] = np.where(columns["recompute"] == 1, selective, columns["recompute"])
    device = cluster.device
    sheet = {
        "flops": device.flops, "flops_low": device.flops * _narrow_pace(device.name, precision),
        "bandwidth": device.mem_bw, "memory": device.memory,
        "link": 1 / cluster.intra.beta_s_per_byte,
        "nic": 1 / cluster.inter.beta_s_per_byte / (cluster.per_node if cluster.inter.shared else 1),
    }  # fmt: skip
    shape = {
        "layers": model.layers, "hidden": model.hidden, "heads": model.heads, "kv_heads": model.kv_heads,
        "ffn": model.ffn, "gated": model.gated, "vocabulary": model.vocabulary, "tied": model.tied,
        "experts": model.experts, "top": max(model.active, 1), "expert_ffn": model.ffn if model.experts else 0,
        "sequence": sequence,
    }  # fmt: skip
    columns |= {name: np.full(len(candidates), float(value)) for name, value in (shape | sheet).items()}
    columns["node"] = np.minimum(cluster.per_node, columns["dp"] * columns["tp"] * columns["pp"] * columns["cp"])
    # The vendor's attention is faster still, but was measured on one generation only.
    columns["vendor"] = np.zeros(len(candidates))
    columns["split_sequence"] = columns["split_sequence"] * (columns["tp"] > 1)
    return Runs(**columns)


@cache
def _usual(gpu: str, precision: str, schedule: str, framework: str) -> Runs:
    """A row of a table without a layout, of a model that stands for any."""
    row = {
        "row_id": "plan", "framework": framework, "layers": 1, "hidden": 128, "seq": 128, "gpu": gpu, "gpus": 2,
        "tp": 2, "recompute": "selective", "mbs": 1, "gbs": 1, "precision": precision, "pp_schedule": schedule,
    }  # fmt: skip
    return read_runs(pd.DataFrame([row])).runs


def _narrow_pace(device: str, precision: str) -> float:
    """Return the speed of a device's matrix products relative to 16 bits."""
    if precision == "bf16":
        return 1.0
    narrow = narrow_of(device)
    if narrow is None:
        raise InputError(f"precision {precision}: no products of 8 bits are known of {device}; give bf16")
    return narrow

"""Layouts: every way to split a training step over so many devices, and which is the fastest that fits.

Tried are tensor-parallel groups within a node, context-parallel groups for long sequences, pipelines with and without
interleaved stages, replicas with ZeRO 0 to 3 (2 and 3 without a pipeline), micro-batches of powers of two, and
recomputation of nothing, of the core of attention or of whole layers. Tensor-parallel groups of two devices and more
split the sequence too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from typing import NamedTuple

import msgspec
import numpy as np
import pandas as pd

from densing.core import Array, Card, InputError, Note, Readable, Record, UnknownNameError, formatting
from densing.efficiency.simulation import Cluster, Transformer, Workload, parameter_count
from densing.efficiency.throughput.fit import Frozen, frozen
from densing.efficiency.throughput.memory import RECOMPUTE, memory_parts
from densing.efficiency.throughput.step import Parts, step_seconds
from densing.efficiency.throughput.table import UNEVEN, Runs, device_of, narrow_of, read_runs

VIRTUAL = (1, 2, 4)
PRECISIONS, SCHEDULES = ("bf16", "fp8"), ("1f1b", "zero-bubble")
LEAST_PIECE = 4096
"""Tokens of a sequence that a device of a context-parallel group takes at least."""
ZERO = (0, 1, 2, 3)
MOST_MICRO_BATCH = 64
SPLIT = ("tp", "pp", "virtual", "dp", "micro_batch", "parts", "zero", "recompute", "ep", "cp")
"""Columns of a candidate, in this order."""
REASONS = {
    "compute": "compute and what blocks it",
    "head": "its head",
    "fill": "the pipeline bubble",
    "exchange": "communication between replicas",
    "optimizer": "the optimizer",
}


class Layout(Record, frozen=True):
    """One way to run a step.

    Parameters
    ----------
    tp, pp, virtual, dp, micro_batch, parts, zero : int
    recompute : {"none", "selective", "full"}
    tokens_per_s, step_s : float
    low_s, high_s : float
        What the step takes, in four of five runs that constants had not seen.
    mfu : float
        By PaLM's count.
    memory_bytes : float
    parts_s : dict of str to float
        Seconds by what they are.
    ep : int
        Expert-parallel degree: devices that share a mixture's experts.
    cp : int
        Context-parallel degree: devices that share a sequence.
    memory : dict of str to float
        Bytes by what they are for.
    """

    tp: int
    pp: int
    virtual: int
    dp: int
    micro_batch: int
    parts: int
    zero: int
    recompute: str
    tokens_per_s: float
    step_s: float
    low_s: float
    high_s: float
    mfu: float
    memory_bytes: float
    parts_s: dict[str, float]
    ep: int = 1
    cp: int = 1
    memory: dict[str, float] = msgspec.field(default_factory=dict)


class LayoutPlan(Readable, Record, frozen=True):
    """The fastest layouts, the best first.

    Parameters
    ----------
    model, cluster, device : str
    parameters : int
        Of the model, all of them.
    devices, batch, sequence : int
    tried, fitting : int
        Layouts in all, and those that fit.
    layouts : tuple of Layout
    why : str
        What the best one saves beside the next of another split.
    notes : tuple of Note
    """

    model: str
    cluster: str
    device: str
    parameters: int
    devices: int
    batch: int
    sequence: int
    tried: int
    fitting: int
    layouts: tuple[Layout, ...]
    why: str
    notes: tuple[Note, ...] = ()

    def card(self) -> Card:
        """Return what is shown: the recommended layout, then those behind it."""
        title = f"{self.model} on {self.devices:,} devices of {self.cluster}"
        facts = {"tried": f"{self.tried:,}", "fitting": f"{self.fitting:,}", "why": self.why}
        return Card(title, facts, self.frame(self.layouts), self.notes)


def plan_layout(
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
    constants: Frozen | None = None,
) -> LayoutPlan:
    """Find the fastest layouts that fit.

    Parameters
    ----------
    model : Transformer
    cluster : Cluster
    devices : int
        Of the cluster, in whole nodes where there are several.
    sequence, batch : int
        Tokens per sequence, and sequences per step over all devices.
    most : int
        Layouts that are returned.
    only : mapping, optional
        What layouts must have, by name in :data:`SPLIT`: ``{"tp": 8, "recompute": "full"}``. All of them price one
        layout.
    precision : {"bf16", "fp8"}
        Of matrix products.
    schedule : {"1f1b", "zero-bubble"}
        Of a pipeline; its stages are interleaved where that is faster.
    constants : Frozen, optional

    Raises
    ------
    InputError
        When no layout divides the model and the batch, none is as asked for, or none fits.

    Examples
    --------
    >>> from densing.efficiency.simulation import load_cluster, load_workload
    >>> model = load_workload("llama3-70b").model
    >>> found = plan_layout(model, load_cluster("a100x8-rdma"), 64, batch=256)
    >>> best = found.layouts[0]
    >>> best.tp * best.pp * best.dp, best.memory_bytes <= 80e9
    (64, True)
    """
    if devices < 1 or sequence < 1 or batch < 1:
        raise InputError(f"gpus {devices}, sequence {sequence}, batch {batch}: give whole numbers from 1 up")
    if cluster.wide is not None or cluster.speed:
        raise InputError(
            f"cluster {cluster.name}: clusters with several sites or unequal devices cannot be "
            "planned; name one of equal devices, or "
            "compare techniques on it (`densing techniques compare`)"
        )
    known = constants or frozen()
    generation = device_of(cluster.device.name)
    candidates = list(_layouts(model, cluster, devices, batch, sequence))
    if not candidates:
        raise InputError(
            f"gpus: no split of {devices} devices divides {model.heads} heads, {model.layers} layers and a batch of "
            f"{batch}; change the number of devices or --batch"
        )
    candidates = _chosen(candidates, only or {})
    runs = _runs(model, cluster, sequence, candidates, precision, schedule)
    kinds, ranges = runs.kinds(generation in known.constants), {}
    for kind in map(str, dict.fromkeys(kinds)):
        if (ends := known.spread(kind)) is None:
            raise InputError(
                f"model {model.name}: {known.unpredicted(kind)}; compare techniques on it with data-sheet figures "
                "(`densing techniques compare`)"
            )
        ranges[kind] = ends
    own, _ = known.of([generation] * len(candidates))
    seconds = step_seconds(runs, own)
    needed = known.peak_bytes(runs)
    fits = needed <= (cluster.device.memory or math.inf)
    if not fits.any():
        least = float(np.nanmin(needed))
        raise InputError(
            f"gpus: nothing tried fits {devices} devices of {cluster.device.memory / 1e9:.0f} GB (the least is "
            f"{least / 1e9:.0f} GB each); give more devices"
        )
    order = [at for at in np.argsort(seconds.step, kind="stable") if fits[at]]
    layouts = [_layout(runs, seconds, needed, at, ranges[str(kinds[at])]) for at in order[:most]]
    other = next((at for at in order if (runs.tp[at], runs.pp[at]) != (runs.tp[order[0]], runs.pp[order[0]])), None)
    return LayoutPlan(
        model.name,
        cluster.name,
        cluster.device.name,
        parameter_count(model),
        devices,
        batch,
        sequence,
        len(candidates),
        int(fits.sum()),
        tuple(layouts),
        _why(runs, seconds, order[0], other),
        known.doubts(generation, cluster.device.name, runs.take(np.arange(len(runs)) == order[0])),
    )


class Modelled(NamedTuple):
    """What a step takes by the cost model.

    Attributes
    ----------
    step_s, low_s, high_s : float
        Seconds, and between which four of five runs lie that the constants had not seen.
    doubts : tuple of Note
        In what respects the step is outside everything that was measured.
    """

    step_s: float
    low_s: float
    high_s: float
    doubts: tuple[Note, ...]


def modelled_step(workload: Workload, cluster: Cluster, zero: int = 0) -> Modelled | None:
    """Return what a training step takes by the cost model of measured runs.

    Parameters
    ----------
    workload : Workload
        With one schedule per stage, 1F1B.
    cluster : Cluster
    zero : int
        Stage of ZeRO.

    Returns
    -------
    Modelled or None
        None where nothing was measured that is like it: inference, linear attention, devices that differ or come late,
        devices without a data sheet, and kinds of runs that too few sources measured (mixtures of experts).

    Examples
    --------
    >>> from densing.efficiency.simulation import load_cluster, load_workload
    >>> step = load_workload("llama3-70b", mode="train", dp=2, tp=8, pp=4)
    >>> found = modelled_step(step, load_cluster("a100x8-rdma", n=64))
    >>> found.low_s < found.step_s < found.high_s
    True
    """
    generation = device_of(cluster.device.name)
    unlike = cluster.wide is not None or cluster.speed or cluster.delay is not None
    if workload.mode != "train" or workload.model.linear_attention or unlike or not generation:
        return None
    known, split = frozen(), workload.split
    micro, again = workload.batch // workload.micro_batches, RECOMPUTE.index(workload.recompute)
    candidate = (split.tp, split.pp, split.virtual, split.dp, micro, workload.micro_batches, zero, again, split.ep,
                 split.cp)  # fmt: skip
    runs = replace(
        _runs(workload.model, cluster, workload.sequence, [candidate]),
        split_sequence=np.array([float(split.sequence)]),
        written=np.array([float(not workload.fused_attention)]),
    )
    ends = known.spread(str(runs.kinds(generation in known.constants)[0]))
    if ends is None:
        return None
    own, _ = known.of([generation])
    step = float(step_seconds(runs, own).step[0])
    return Modelled(step, step * ends[0], step * ends[1], known.doubts(generation, cluster.device.name, runs))


def _layouts(
    model: Transformer, cluster: Cluster, devices: int, batch: int, sequence: int
) -> Iterator[tuple[int, ...]]:
    """Yield candidates that frameworks run, see :data:`SPLIT`."""
    node = min(cluster.per_node, devices)
    widths = [w for w in _powers(node) if w <= node and model.heads % w == 0 and devices % w == 0]
    shared = [cp for cp in _powers(sequence // LEAST_PIECE) if sequence % (2 * cp) == 0] or [1]
    for tp, cp in product(widths, shared):
        for pp in (p for p in range(1, min(model.layers, devices // (tp * cp)) + 1) if devices % (tp * cp * p) == 0):
            if batch % (dp := devices // (tp * cp * pp)):
                continue
            for micro in (m for m in _powers(MOST_MICRO_BATCH) if batch // dp % m == 0):
                parts = batch // dp // micro
                interleaved = pp > 1 and parts % pp == 0
                virtual = [v for v in VIRTUAL if (v == 1 or interleaved) and _divides(model.layers, pp * v)]
                # No framework keeps parameters in shards inside a pipeline.
                zero = ZERO[:1] if dp == 1 else ZERO if pp == 1 else ZERO[:2]
                dealt = [ep for ep in _powers(dp) if dp % ep == 0 and model.experts % ep == 0] if model.experts else [1]
                yield from (
                    (tp, pp, *rest, cp) for rest in product(virtual, (dp,), (micro,), (parts,), zero, (0, 1, 2), dealt)
                )


def _chosen(candidates: list[tuple[int, ...]], only: Mapping[str, int | str]) -> list[tuple[int, ...]]:
    """Return the candidates that have what is asked for.

    Raises
    ------
    InputError
        For a name or a word that is not known, and where none is left: with the values that are there.
    """
    for name, value in only.items():
        if name not in SPLIT:
            raise UnknownNameError("part of a layout", name, SPLIT)
        if name == "recompute" and value not in RECOMPUTE:
            raise UnknownNameError("recompute", str(value), RECOMPUTE)
    wanted = {name: RECOMPUTE.index(str(value)) if name == "recompute" else value for name, value in only.items()}
    left = candidates
    for name, value in wanted.items():
        at = SPLIT.index(name)
        kept = [each for each in left if each[at] == value]
        if not kept:
            there = sorted({each[at] for each in left})
            words = [RECOMPUTE[number] for number in there] if name == "recompute" else list(map(str, there))
            raise InputError(
                f"layout: {name} {only[name]} is not among those that can run; there are {formatting.listed(words)}"
            )
        left = kept
    return left


def _divides(layers: int, pieces: int) -> bool:
    """Return whether layers can be dealt to pieces alike, but for the first and the last (:data:`UNEVEN`)."""
    return layers + UNEVEN >= pieces and any((layers + short) % pieces == 0 for short in range(UNEVEN + 1))


def _powers(most: int) -> list[int]:
    return [2**power for power in range(max(most, 1).bit_length())]


def _runs(
    model: Transformer,
    cluster: Cluster,
    sequence: int,
    candidates: Sequence[tuple[int, ...]],
    precision: str = "bf16",
    schedule: str = "1f1b",
) -> Runs:
    """Return the candidates as columns; software: fused operations, FlashAttention, gradients in 32 bit."""
    for name, value, known in (("precision", precision, PRECISIONS), ("schedule", schedule, SCHEDULES)):
        if value not in known:
            raise UnknownNameError(name, value, known)
    row = {
        "row_id": "plan", "framework": "Megatron-Core", "layers": model.layers, "hidden": model.hidden,
        "heads": model.heads, "kv_heads": model.kv_heads, "ffn_hidden": model.ffn, "vocab": model.vocabulary,
        "mlp": "swiglu" if model.gated else "gelu", "tied_embeddings": int(model.tied), "seq": sequence,
        "gpu": "H100", "gpus": 1, "mbs": 1, "gbs": 1, "precision": precision, "pp_schedule": schedule,
        "moe": f"{model.experts} experts, top {model.active}, expert ffn {model.ffn}" if model.experts else "",
    }  # fmt: skip
    one = read_runs(pd.DataFrame([row])).runs
    columns = {field.name: np.repeat(getattr(one, field.name), len(candidates)) for field in fields(Runs)}
    columns |= dict(zip(SPLIT, np.array(candidates, dtype=float).T, strict=True))
    device = cluster.device
    sheet = {
        "flops": device.flops, "flops_low": device.flops * _pace(device.name, precision),
        "bandwidth": device.mem_bw, "memory": device.memory,
        "link": 1 / cluster.intra.beta_s_per_byte,
        "nic": 1 / cluster.inter.beta_s_per_byte / (cluster.per_node if cluster.inter.shared else 1),
    }  # fmt: skip
    columns |= {name: np.full(len(candidates), value) for name, value in sheet.items()}
    columns["node"] = np.minimum(cluster.per_node, columns["dp"] * columns["tp"] * columns["pp"])
    # The vendor's attention is faster still, but was measured on one generation only.
    columns["vendor"] = np.zeros(len(candidates))
    columns["split_sequence"] = (columns["tp"] > 1).astype(float)
    return Runs(**columns)


def _pace(device: str, precision: str) -> float:
    """Return how many times as fast as products of 16 bits a device's are."""
    if precision == "bf16":
        return 1.0
    narrow = narrow_of(device)
    if narrow is None:
        raise InputError(f"precision {precision}: no products of 8 bits are known of {device}; give bf16")
    return narrow


def _layout(runs: Runs, seconds: Parts, needed: Array, at: int, ends: tuple[float, float]) -> Layout:
    step = float(seconds.step[at])
    speed = float(runs.tokens[at]) / step
    whole = {name: int(getattr(runs, name)[at]) for name in SPLIT}
    return Layout(
        tp=whole["tp"],
        pp=whole["pp"],
        virtual=whole["virtual"],
        dp=whole["dp"],
        micro_batch=whole["micro_batch"],
        parts=whole["parts"],
        zero=whole["zero"],
        recompute=RECOMPUTE[whole["recompute"]],
        tokens_per_s=speed,
        step_s=step,
        low_s=step * ends[0],
        high_s=step * ends[1],
        mfu=float(speed * runs.flops_per_token[at] / (runs.devices[at] * runs.flops[at])),
        memory_bytes=float(needed[at]),
        parts_s={name: float(getattr(seconds, name)[at]) for name in Parts._fields[1:]},
        ep=whole["ep"],
        cp=whole["cp"],
        memory=memory_parts(runs.take(np.array([at])))[0],
    )


def _why(runs: Runs, seconds: Parts, best: int, other: int | None) -> str:
    if other is None:
        return "no other split fits"
    gains = {name: float(getattr(seconds, name)[other] - getattr(seconds, name)[best]) for name in REASONS}
    name = max(gains, key=lambda key: gains[key])
    slower = float(seconds.step[other] / seconds.step[best] - 1)
    return (
        f"tp {runs.tp[other]:g} and pp {runs.pp[other]:g} take {100 * slower:.1f} % longer, most of it for "
        f"{REASONS[name]}"
    )

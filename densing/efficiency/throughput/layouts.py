"""Layouts: every way to split a training step over devices, and the fastest that fits.

Tried are tensor-parallel groups within a node, context-parallel groups for long sequences, pipelines with and without
interleaved stages, replicas with ZeRO 0 to 3 (2 and 3 without a pipeline), every micro-batch that divides, and
recomputation of nothing or of whole layers; of the core of attention only on request. Tensor-parallel groups of two
devices and more split the sequence too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import msgspec
import numpy as np

from densing.core import (
    Array,
    Card,
    Field,
    InputError,
    Listing,
    Note,
    Readable,
    Record,
    UnknownNameError,
    column,
    formatting,
    numeric,
    seconds,
)
from densing.efficiency.simulation import Cluster, Transformer, parameter_count
from densing.efficiency.throughput.fit import Frozen, frozen
from densing.efficiency.throughput.fitted import FRAMEWORK, SPLIT, constants_on, runs_of
from densing.efficiency.throughput.memory import RECOMPUTE, memory_parts
from densing.efficiency.throughput.step import Parts, step_seconds
from densing.efficiency.throughput.table import UNEVEN, Runs, device_of

LEAST_PIECE = 4096
"""Tokens of a sequence that a device of a context-parallel group takes at least."""
ZERO = (0, 1, 2, 3)
MOST_MICRO_BATCH = 64
MOST_VIRTUAL = 24
"""Stages per device of a pipeline: no run with more was measured."""
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
        80 % prediction interval of ``step_s`` for runs from unseen sources.
    mfu : float
        By PaLM's count.
    memory_bytes : float
    parts_s : dict of str to float
        Seconds by part of the step.
    ep : int
        Expert-parallel degree: devices that share a mixture's experts.
    cp : int
        Context-parallel degree: devices that share a sequence.
    memory : dict of str to float
        Bytes by purpose.
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
        Parameters of the whole model.
    devices, batch, sequence : int
    tried, fitting : int
        Layouts tried, and those that fit.
    layouts : tuple of Layout
    why : str
        What the best one saves over the next of another split.
    notes : tuple of Note
    framework : str
        Framework whose defaults are assumed.
    kind : str
        Kind of run that the range belongs to, one of :data:`densing.efficiency.throughput.KINDS`.
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
    framework: str = FRAMEWORK
    kind: str = ""

    def listing(self) -> Listing:
        """Return the layouts as people read them, the best first."""
        degrees = {"tp": "tp", "cp": "cp", "pp": "pp", "virtual": "Stages", "dp": "dp", "zero": "ZeRO",
                   "micro_batch": "Micro"}  # fmt: skip
        hints = {"virtual": "Stages on a device", "micro_batch": "Sequences of a micro-batch"}
        fields = (
            *(numeric(title, name, formatting.count, hints.get(name, "")) for name, title in degrees.items()),
            Field("Recompute", column("recompute")),
            seconds("Step", "step_s"),
            Field(
                "4 of 5 in",
                lambda row: f"{formatting.seconds(row['low_s'])} to {formatting.seconds(row['high_s'])}",
                hint="Held four of five published runs that the fit had not seen",
            ),
            numeric("Tokens/s", "tokens_per_s", formatting.whole),
            numeric("MFU", "mfu", formatting.share),
            numeric("Memory", "memory_bytes", formatting.volume, hint="Per device"),
        )
        title = (
            f"{self.model} on {self.devices:,} devices of {self.cluster}: {self.batch:,} sequences of "
            f"{self.sequence:,} tokens a step, by {self.framework}; {self.fitting:,} of {self.tried:,} layouts fit"
        )
        return Listing(title, self.layouts, fields)

    def card(self) -> Card:
        """Return what is shown: the recommended layout, then those behind it."""
        title = f"{self.model} on {self.devices:,} devices of {self.cluster}"
        facts = {"tried": f"{self.tried:,}", "fitting": f"{self.fitting:,}", "why": self.why}
        return Card(title, facts, self.listing(), self.notes)


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
    framework: str = FRAMEWORK,
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
        Largest number of layouts returned.
    only : mapping, optional
        Options that layouts must have, by name in :data:`SPLIT`: ``{"tp": 8, "recompute": "full"}``; with all of them
        one layout is priced.
    precision : {"bf16", "fp8"}
        Of matrix products.
    schedule : {"1f1b", "zero-bubble"}
        Schedule of a pipeline; its stages are interleaved where that is faster.
    framework : str
        One of :func:`densing.efficiency.throughput.framework_names`: bytes of gradients, kernels of attention, fused
        operations, what travels beside the backward pass.
    constants : Frozen, optional

    Raises
    ------
    InputError
        When no layout divides the model and the batch, none has the options, or none fits.

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
    # Fused attention keeps no scores: recomputing them saves nothing, and is priced where it is asked for.
    selective = framework != FRAMEWORK or (only or {}).get("recompute") == "selective"
    again = (0, 1, 2) if selective else (0, 2)
    candidates = list(_layouts(model, cluster, devices, batch, sequence, again))
    if not candidates:
        near = (devices + side * by for by in range(1, devices) for side in (-1, 1))
        works = next((n for n in near if any(_layouts(model, cluster, n, batch, sequence, again))), 1)
        raise InputError(
            f"gpus: no split of {devices} devices divides {model.heads} heads, {model.layers} layers and a batch of "
            f"{batch}; change --batch, or give {works} devices"
        )
    candidates = _chosen(candidates, only or {})
    runs = runs_of(model, cluster, sequence, candidates, precision, schedule, framework)
    kinds, ranges = runs.kinds(generation in known.constants), {}
    for kind in map(str, dict.fromkeys(kinds)):
        if (ends := known.spread(kind)) is None:
            raise InputError(
                f"model {model.name}: {known.unpredicted(kind)}; compare techniques on it with data-sheet figures "
                "(`densing techniques compare`)"
            )
        ranges[kind] = ends
    seconds = step_seconds(runs, constants_on(cluster, known))
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
        framework,
        str(kinds[order[0]]),
    )


def _layouts(
    model: Transformer, cluster: Cluster, devices: int, batch: int, sequence: int, again: Sequence[int] = (0, 1, 2)
) -> Iterator[tuple[int, ...]]:
    """Yield the candidates that frameworks support, see :data:`SPLIT`."""
    node = min(cluster.per_node, devices)
    widths = [w for w in range(1, node + 1) if not (node % w or model.heads % w or devices % w)]
    shared = [cp for cp in _powers(sequence // LEAST_PIECE) if sequence % (2 * cp) == 0] or [1]
    for tp, cp in product(widths, shared):
        for pp in (p for p in range(1, min(model.layers, devices // (tp * cp)) + 1) if devices % (tp * cp * p) == 0):
            if batch % (dp := devices // (tp * cp * pp)):
                continue
            for micro in (m for m in range(1, MOST_MICRO_BATCH + 1) if batch // dp % m == 0):
                parts = batch // dp // micro
                pieces = min(model.layers // pp, MOST_VIRTUAL) if pp > 1 and parts % pp == 0 else 1
                virtual = [v for v in range(1, pieces + 1) if _divides(model.layers, pp * v)]
                # No framework keeps parameters in shards inside a pipeline.
                zero = ZERO[:1] if dp == 1 else ZERO if pp == 1 else ZERO[:2]
                dealt = [ep for ep in _powers(dp) if dp % ep == 0 and model.experts % ep == 0] if model.experts else [1]
                yield from (
                    (tp, pp, *rest, cp) for rest in product(virtual, (dp,), (micro,), (parts,), zero, again, dealt)
                )


def _chosen(candidates: list[tuple[int, ...]], only: Mapping[str, int | str]) -> list[tuple[int, ...]]:
    """Return the candidates with the given options.

    Raises
    ------
    InputError
        For an unknown name or value, and where no candidate is left; the message lists the values that exist.
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
    """Return whether layers divide evenly over pieces, but for the first and the last (:data:`UNEVEN`)."""
    return layers + UNEVEN >= pieces and any((layers + short) % pieces == 0 for short in range(UNEVEN + 1))


def _powers(most: int) -> list[int]:
    return [2**power for power in range(max(most, 1).bit_length())]


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
        recompute=(*RECOMPUTE, "selective")[whole["recompute"]],
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

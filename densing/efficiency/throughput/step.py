"""Time of a training step in closed form, for many layouts at once.

A layer's matrix products take their operations at a share of the peak, in whole waves of tiles over the device's units,
and besides the bytes that they move; attention its operations at a share of its own (half of them under a causal mask)
or, where scores are written, their bytes; everything else its bytes. A layer takes no less than its kernels take to be
launched. Tensor-parallel sums block the layer. Stages follow 1F1B: with m micro-batches and p
stages, m periods of the fullest stage and (p - 1)/v of a stage to fill and drain, v stages per device (less where a
schedule puts gradients of weights there); every piece of an interleaved stage is handed over. Replicas exchange
gradients after the step, or beside the backward pass; states of ZeRO-3 travel beside the layers.

Constants are shares and latencies of a generation of devices (:class:`Constants`), fitted once (``constants.json``).

Source: Narayanan et al., arXiv 2104.04473, section 2.2 (schedules); Korthikanti et al., arXiv 2205.05198 (sequence
parallelism, recomputation); Rajbhandari et al., arXiv 1910.02054 (ZeRO); Dao et al., arXiv 2205.14135 (attention);
NVIDIA, "Matrix Multiplication Background" (waves and tiles); recalled.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from densing.core import Array, Record
from densing.efficiency.simulation import adam_bytes, ring_terms
from densing.efficiency.throughput.table import Runs


class Constants(Record, frozen=True):
    """Constants of a generation of devices.

    Parameters
    ----------
    products : float
        Share of the peak that matrix products of full waves reach.
    memory : float
        Share of the memory's bandwidth that element-wise operations reach.
    attention : float
        Share of the peak that fused attention reaches; the vendor's kernels twice as much.
    link, nic : float
        Shares of the bandwidth of links within a node, and of the network's.
    hop_s, far_hop_s : float
        Latency of one step of a ring within a node, and between nodes.
    launch_s : float
        Seconds that a layer's forward pass takes at least, and half of what its backward pass does.
    step_s : float
        Seconds of a step that do not depend on its size.
    crossing_s : float
        Wait of a step of a tensor-parallel ring where an eager program combines pipeline and tensor parallelism; known
        from one source only (nanotron on H100).
    """

    products: float
    memory: float
    attention: float
    link: float
    nic: float
    hop_s: float
    far_hop_s: float
    launch_s: float
    step_s: float
    crossing_s: float


TILE = 128
VENDOR_ATTENTION = 2.0
"""Speed-up of the vendor library's attention over the first fused kernels."""
MOST_ATTENTION = 0.58
"""Share of the peak that fused attention has reached, forward and backward together: some .6 of
FlashAttention-2 on A100 and of FlashAttention-3 on H100 (recalled: arXiv 2307.08691, figure 5, and 2407.08608,
figures 5 and 6)."""
HALF_SEQUENCE = 1024
"""Sequence length at which fused attention reaches half of its speed on long sequences."""
CAST_BYTES, VENDOR_CAST_BYTES = 3, 2
"""Bytes moved per number that is rounded to 8 bits: read and written, its largest found on the way; the vendor's
library rounds most of them where they are made."""
FUSED = 0.6
"""Share of element-wise traffic that is left where operations are fused, and as much of the launches less a bit."""
FUSED_LAUNCHES = 0.5
EAGER_OPTIMIZER_BYTES = 240
"""Bytes moved per parameter by an unfused Adam: some twenty operations on 32 bits. A fused one reads the gradient,
writes the weight, and reads and writes its state."""
EXPOSED_SUMS, EXPOSED_RING = 0.3, 0.3
"""Share of all-reduces, and of keys passed round a ring, that stays exposed when they are overlapped."""
BEHIND_BACKWARD, BEHIND_LAYERS, LEAST_EXPOSED = 0.8, 0.9, 0.05
SCORE_PASSES, SCORE_PASSES_BACK = 6, 8
MOVED_BACK = 1.6
"""Bytes that element-wise operations move backward, over those forward."""
WEIGHT_BYTES = LOW_BYTES = 2
LOGIT_PASSES_BYTES = 24


class Layer(NamedTuple):
    """Seconds of a layer's modules for one micro-batch, forward and backward, and of a pass's blocking communication.

    ``core``: of ``attention`` the scores and what they weight, which selective recomputation does again.
    """

    attention: Array
    attention_back: Array
    mlp: Array
    mlp_back: Array
    core: Array
    waits: Array
    waits_back: Array


class Parts(NamedTuple):
    """Seconds of a step by part; they add up to ``step``.

    ``compute`` holds the tensor-parallel sums that stand in its way; ``fill`` is the pipeline's bubble.
    """

    step: Array
    compute: Array
    head: Array
    fill: Array
    exchange: Array
    optimizer: Array
    fixed: Array


def step_seconds(runs: Runs, constants: dict[str, Array]) -> Parts:
    """Return the seconds of steps.

    Parameters
    ----------
    runs : Runs
    constants : dict of str to array
        By name of :class:`Constants`, a value or one per step.

    Returns
    -------
    Parts
        Seconds; NaN where a figure is missing.
    """
    with np.errstate(all="ignore"):
        return _Step(runs, constants).parts()


def layer_seconds(runs: Runs, constants: dict[str, Array]) -> tuple[Layer, Array]:
    """Return the seconds of a layer's modules, and of embedding, head and loss, forward and backward together.

    A launch-bound layer's modules take proportionally longer. Recomputation is left out.

    Parameters
    ----------
    runs, constants
        As for :func:`step_seconds`.
    """
    with np.errstate(all="ignore"):
        step = _Step(runs, constants)
        return step.modules(), step.head()


def product_seconds(runs: Runs, constants: dict[str, Array], shape: tuple[int, int, int]) -> Array:
    """Return the seconds of one matrix product in 16 bits on the runs' devices.

    Parameters
    ----------
    runs, constants
        As for :func:`step_seconds`; only the device counts.
    shape : tuple of int
        Rows, inner size, columns.
    """
    rows, inner, columns = map(np.asarray, shape)
    return _Step(runs, constants).product(rows, inner, columns, wide=True)


class _Step:
    """The pieces of a step; all figures are those of one device."""

    def __init__(self, runs: Runs, constants: dict[str, Array]) -> None:
        self.runs, self.constants = runs, constants
        self.peak = runs.flops * runs.power * constants["products"]
        self.bandwidth = runs.bandwidth * constants["memory"]
        self.tokens = runs.micro_batch * runs.sequence / runs.cp
        self.keys = runs.hidden * runs.kv_heads / runs.heads
        self.replicas = runs.dp * runs.cp

    def parts(self) -> Parts:
        runs, c = self.runs, self.constants
        forward, backward = self.layer()
        layers = np.ceil(runs.layers / runs.pp)
        layer = forward + backward
        stage, mean = layers * layer, runs.layers / runs.pp * layer
        head = self.head()
        handed = self.hand_over()
        # Every piece of an interleaved stage is handed over.
        period = stage + head + 2 * handed * runs.virtual
        fill = (runs.pp - 1) * (runs.bubble * mean / runs.virtual + 2 * handed)
        exchange = self.exchange(layers, layers * backward, stage)
        shards = np.where(runs.zero >= 1, self.replicas, 1)
        each = np.where(
            runs.eager > 0, EAGER_OPTIMIZER_BYTES, runs.gradient_bytes + WEIGHT_BYTES + 2 * adam_bytes(WEIGHT_BYTES)
        )
        optimizer = self.held(layers) / shards * each / self.bandwidth
        fixed = np.broadcast_to(c["step_s"], np.shape(stage))
        compute = runs.parts * (period - head)
        step = compute + runs.parts * head + fill + exchange + optimizer + fixed
        return Parts(step, compute, runs.parts * head, fill, exchange, optimizer, fixed)

    def product(self, rows: Array, inner: Array, columns: Array, *, wide: bool = False) -> Array:
        """Return the seconds of a matrix product; ``wide`` ones stay in 16 bits."""
        runs = self.runs
        tiles = np.ceil(rows / TILE) * np.ceil(columns / TILE)
        waves = tiles / runs.units
        idle = tiles * TILE**2 / (rows * columns) * np.ceil(waves) / waves
        eight = (runs.eight_bits > 0) & (not wide)
        peak = self.peak * np.where(eight, runs.flops_low / runs.flops, 1)
        moved = LOW_BYTES * (rows * inner + inner * columns + rows * columns)
        cast = np.where(runs.vendor > 0, VENDOR_CAST_BYTES, CAST_BYTES) * (rows * inner + inner * columns)
        return 2 * rows * inner * columns * idle / peak + (moved + np.where(eight, cast, 0)) / self.bandwidth

    def products(self, rows: Array, inner: Array, columns: Array) -> tuple[Array, Array]:
        """Return the seconds of a product forward, and of its two backward."""
        back = self.product(rows, columns, inner) + self.product(inner, rows, columns)
        return self.product(rows, inner, columns), back

    def layer(self) -> tuple[Array, Array]:
        """Return the seconds of a layer forward and backward; recomputation counts as backward."""
        runs, each = self.runs, self.modules()
        forward = each.attention + each.mlp + each.waits
        again = np.select(
            [runs.recompute == 2, runs.recompute == 1, runs.recompute == 3], [forward, each.core, forward / 2], 0.0
        )
        return forward, each.attention_back + each.mlp_back + each.waits_back + again

    def waits(self, attention: Array, mlp: Array) -> Array:
        """Return the blocking communication of a pass over a layer: tensor-parallel sums and all-to-alls of tokens."""
        runs = self.runs
        count = self.tokens * runs.top * runs.hidden * LOW_BYTES
        routing = np.where(runs.experts > 0, 2 * self.collective("all_to_all", count, runs.ep, runs.tp), 0)
        return self.group_sum(attention) + self.group_sum(mlp) + routing

    def modules(self) -> Layer:
        """Return the seconds of a layer's modules, with their share of the time that launches add."""
        runs, tokens, tp, width = self.runs, self.tokens, self.runs.tp, self.runs.hidden
        sparse = runs.experts > 0
        ffn = np.where(sparse, runs.expert_ffn, runs.ffn)
        # Tokens of one expert, and the experts of a device.
        routed = np.where(sparse, tokens * runs.top * runs.ep / np.maximum(runs.experts, 1), tokens)
        held = np.where(sparse, runs.experts / runs.ep, 1)
        queries = self.products(tokens, width, (width + 2 * self.keys) / tp)
        output = self.products(tokens, width / tp, width)
        first = self.products(routed, width, ffn * (1 + runs.gated) / tp)
        second = self.products(routed, ffn / tp, width)
        core, core_back = self.attention()
        columns = np.where(runs.split_sequence > 0, width / tp, width)
        active = ffn * np.where(sparse, runs.top, 1)
        pace = LOW_BYTES * tokens * np.where(runs.fused > 0, FUSED, 1) / self.bandwidth
        moved = pace * (8 * columns + 4 * (width + 2 * self.keys) / tp)
        moved_mlp = pace * (
            8 * columns + (4 + 2 * runs.gated) * active / tp + np.where(sparse, 8 * runs.top * width, 0)
        )
        attention, mlp = queries[0] + output[0] + core + moved, held * (first[0] + second[0]) + moved_mlp
        back = queries[1] + output[1] + core_back + MOVED_BACK * moved
        mlp_back = held * (first[1] + second[1]) + MOVED_BACK * moved_mlp
        waits, waits_back = self.waits(attention, mlp), self.waits(back, mlp_back)
        least = self.constants["launch_s"] * np.where(runs.fused > 0, FUSED_LAUNCHES, 1)
        short = np.maximum(least - attention - mlp - waits, 0) / 2
        short_back = np.maximum(2 * least - back - mlp_back - waits_back, 0) / 2
        return Layer(attention + short, back + short_back, mlp + short, mlp_back + short_back, core, waits, waits_back)

    def attention(self) -> tuple[Array, Array]:
        """Return the seconds of the core of attention, forward and backward."""
        runs, c = self.runs, self.constants
        flops = 4 * self.tokens * runs.sequence * runs.hidden / runs.tp
        scores = LOW_BYTES * self.tokens * runs.sequence * runs.heads / runs.tp
        share = np.minimum(c["attention"] * np.where(runs.vendor > 0, VENDOR_ATTENTION, 1), MOST_ATTENTION)
        peak = runs.flops * runs.power * share * runs.sequence / (runs.sequence + HALF_SEQUENCE)
        written = runs.written > 0
        return (
            np.where(written, flops / self.peak + SCORE_PASSES * scores / self.bandwidth, flops / 2 / peak),
            # Fused kernels compute the scores a second time.
            np.where(
                written, 2 * flops / self.peak + SCORE_PASSES_BACK * scores / self.bandwidth, 2.5 * flops / 2 / peak
            ),
        )

    def group_sum(self, beside: Array) -> Array:
        """Return the exposed seconds of a tensor-parallel sum; at best it is hidden beside a module."""
        runs, c = self.runs, self.constants
        whole = self.collective("all_reduce", self.tokens * runs.hidden * LOW_BYTES, runs.tp, 1)
        crossing = (runs.eager > 0) & (runs.pp > 1)
        waited = np.where(crossing, ring_terms("all_reduce", 2).messages * (runs.tp - 1) * c["crossing_s"], 0)
        exposed = np.maximum(EXPOSED_SUMS * whole, whole - beside)
        return np.where(runs.hidden_sums > 0, exposed, whole) + waited

    def head(self) -> Array:
        """Return the seconds of embedding, head and loss per micro-batch."""
        runs = self.runs
        columns = runs.vocabulary / runs.tp
        logits = self.tokens * columns * LOGIT_PASSES_BYTES / self.bandwidth
        return 3 * self.product(self.tokens, runs.hidden, columns, wide=True) + logits

    def hand_over(self) -> Array:
        """Return the seconds in which a stage sends a micro-batch on."""
        runs, c = self.runs, self.constants
        count = self.tokens * runs.hidden * LOW_BYTES / np.where(runs.split_sequence > 0, runs.tp, 1)
        outside = runs.devices / runs.pp >= runs.node
        pace = np.where(outside, runs.nic * c["nic"], runs.link * c["link"])
        return np.where(runs.pp > 1, c["far_hop_s"] + count / pace, 0)

    def held(self, layers: Array) -> Array:
        """Return the parameters of a device: of so many layers, and of embedding or head."""
        runs = self.runs
        mlp = np.where(runs.experts > 0, runs.experts * runs.expert_ffn / runs.ep, runs.ffn)
        matrices = runs.attention_parameters + mlp * runs.hidden * (2 + runs.gated)
        tables = np.where((runs.pp == 1) & (runs.tied == 0), 2, 1) * runs.vocabulary * runs.hidden
        return (layers * matrices + tables) / runs.tp

    def exchange(self, layers: Array, backward: Array, stage: Array) -> Array:
        """Return the exposed seconds of exchanging gradients and parameters between replicas."""
        runs, held, n = self.runs, self.held(layers), self.replicas
        gradients, weights = held * runs.gradient_bytes, held * WEIGHT_BYTES
        scattered = self.collective("reduce_scatter", gradients, n, runs.tp)
        gathered = self.collective("all_gather", weights, n, runs.tp)
        whole = np.where(runs.zero == 0, self.collective("all_reduce", gradients, n, runs.tp), scattered + gathered)
        # Gradients in shards are scattered after every micro-batch; in a pipeline they are summed first.
        often = np.where((runs.zero == 2) & (runs.pp == 1), runs.parts, 1)
        whole = whole + (often - 1) * scattered
        hidden = np.maximum(whole - BEHIND_BACKWARD * often * backward, 2 * LEAST_EXPOSED * whole)
        beside = np.where(runs.hidden_gradients > 0, hidden, whole)
        # Parameters travel layer by layer, forward and backward, and so do their gradients: each has its latency.
        full = runs.parts * layers * (
            2 * self.collective("all_gather", weights / layers, n, runs.tp)
            + self.collective("reduce_scatter", gradients / layers, n, runs.tp)
        )  # fmt: skip
        sharded = np.maximum(full - BEHIND_LAYERS * runs.parts * stage, 0) + LEAST_EXPOSED * full
        keys = LOW_BYTES * 2 * self.tokens * 2 * self.keys * runs.cp
        around = runs.parts * layers * 2 * self.collective("all_gather", keys, runs.cp, runs.tp) * EXPOSED_RING
        return np.where(runs.zero == 3, sharded, beside) + np.where(runs.cp > 1, around, 0)

    def collective(self, op: str, count: Array, n: Array, stride: Array | int) -> Array:
        """Return the seconds of a collective of ``n`` devices at a ``stride`` of ranks: inside nodes first."""
        runs, c = self.runs, self.constants
        inside = np.clip(np.floor(runs.node / stride), 1, n)
        nodes = n / inside
        times = 2 if op == "all_reduce" else 1
        near = times * ((inside - 1) * c["hop_s"] + (inside - 1) / inside * count / (runs.link * c["link"]))
        # Groups that compute between their sums wait for every step of a ring; longer ones go through shards.
        hops = (n - 1) if np.isscalar(stride) else (nodes - 1)
        # Of a sum only a device's shard leaves its node; what is meant for one device alone is not summed before.
        shard = count if op == "all_to_all" else count / inside
        far = times * (hops * c["far_hop_s"] + (nodes - 1) / nodes * shard / (runs.nic * c["nic"]))
        return np.where(inside > 1, near, 0) + np.where(nodes > 1, far, 0)

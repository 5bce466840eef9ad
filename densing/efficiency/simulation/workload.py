"""A step of a transformer: operations, bytes, parameters and activations of its modules, and the memory it needs.

Figures of a module are those of one rank and one micro-batch.

With T tokens, width h, and matrices of P parameters on this rank, a forward pass takes 2·T·P operations; attention
takes 4·T·c·a more over a context of c tokens and heads of together a columns. A causal mask is not counted as a saving,
as in the formulas of :mod:`densing.efficiency.timeline.utilisation`. The backward pass takes twice the forward one.
Linear attention takes 4·T·a·d (heads of d columns): its context is a state of d rows per column.

Bytes moved are those of fused kernels: weights once, the input and output of each matrix product once, keys and values
of the context once per step of decoding; scores are never written.

What a layer keeps for its backward pass, in bytes of 16-bit training with s tokens, b sequences, width h, a heads and a
tensor-parallel group of t, for a GPT (MLP of 4 h, every head its own keys and values):

=====================================  ==================================
nothing recomputed                     sbh (10 + 24/t + 5as/(ht))
... with sequence parallelism          sbh/t (34 + 5as/h)
the scores of attention recomputed     sbh (10 + 24/t), or 34 sbh/t
whole layers recomputed                2 sbh, or 2 sbh/t
=====================================  ==================================

Of the 10, 2 are masks of dropout, and of the 5, 3: a model without dropout keeps none of these, and fused attention no
scores at all. Logits are kept in 32 bit.

Source: Kaplan et al., arXiv 2001.08361 (operations); Korthikanti et al., arXiv 2205.05198, equations 1 to 6 and table 2
(activations); recalled.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import chain, pairwise
from typing import NamedTuple

from msgspec.structs import replace

from densing.core import InputError, Record, UnknownNameError


class Latent(Record, frozen=True):
    """Attention whose queries, and whose keys and values, come from vectors of fewer columns (MLA).

    Queries and keys have a part without positions, of ``head_dim`` columns per head, and a rotary one.

    Source: DeepSeek-V2, arXiv 2405.04434, section 2.1 and appendix C.

    Parameters
    ----------
    queries, keys : int
        Columns of the vector that queries come from (0: of the layer's input), and of the one of keys and values.
    rotary, values : int
        Columns per head of the rotary part (its key is the same for all heads), and of a value.
    """

    queries: int
    keys: int
    rotary: int
    values: int


class Transformer(Record, frozen=True):
    """A decoder's shape.

    Parameters
    ----------
    name : str
    layers, hidden, heads, kv_heads, head_dim, ffn, vocabulary : int
        ``ffn``: width of the MLP.
    gated : bool
        MLP of three matrices (SwiGLU) instead of two.
    tied : bool
        One matrix for embedding and head.
    linear_attention : bool
        Attention whose cost grows with the sequence, not with its square.
    gated_attention : bool
        A fifth matrix in attention, which gates its output (TransNormer, RetNet).
    experts, active : int
        Of a mixture: MLPs of width ``ffn`` per layer, and how many of them each token visits; 0 and 0: one for all.
    shared : int
        Of a mixture: MLPs of width ``ffn`` that every token visits besides.
    dense_layers, dense_ffn : int
        Of a mixture: first layers that have one MLP for all, and its width.
    latent : Latent, optional
        Attention through narrower vectors.
    source, evidence : str
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocabulary: int
    gated: bool = True
    tied: bool = False
    linear_attention: bool = False
    source: str = ""
    evidence: str = ""
    gated_attention: bool = False
    experts: int = 0
    active: int = 0
    shared: int = 0
    dense_layers: int = 0
    dense_ffn: int = 0
    latent: Latent | None = None


class Split(Record, frozen=True):
    """How a run divides its work: replicas (dp), slices of every matrix (tp), stages (pp), parts of a sequence (cp).

    ``sequence``: activations between tensor-parallel regions are split too (reduce-scatter and all-gather instead of
    all-reduce). ``vocabulary``: embedding and head are sliced like the other matrices.

    ``ep``: experts of a mixture are dealt out over so many of the devices that else hold the same parameters.

    ``virtual``: pieces of the model that each device of a pipeline holds in turn (interleaved 1F1B): there are then
    ``pp * virtual`` stages, stage i on block ``i % pp``.

    ``cuts``: the first layer of each stage after the first; empty: as even as can be, the first stages take what is
    left over. ``order``: which block of ``dp * cp * tp`` consecutive ranks each stage is on; empty: stage i on block i.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    sequence: bool = False
    vocabulary: bool = True
    cuts: tuple[int, ...] = ()
    order: tuple[int, ...] = ()
    virtual: int = 1
    cp: int = 1
    ep: int = 1

    @property
    def ranks(self) -> int:
        """Devices in all."""
        return self.copies * self.tp * self.pp

    @property
    def copies(self) -> int:
        """Devices that hold the same parameters: replicas, each of the parts of a sequence."""
        return self.dp * self.cp


class Module(Record, frozen=True):
    """One module of one layer, as one rank of its tensor-parallel group sees it, for one micro-batch.

    Parameters
    ----------
    name : {"embedding", "attention", "mlp", "head"}
    layer : int
        -1 for embedding, ``layers`` for the head.
    flops, moved : float
        Operations, and bytes moved to and from memory, of the forward pass.
    backward_flops, backward_moved : float
        The same of the backward pass; 0 in inference.
    parameters : int
        On this rank.
    activation : int
        Bytes of its output for the whole group: what an all-reduce over the tensor-parallel group carries, and what a
        pipeline hands on. Of the head: of its input, whose gradient is summed. 0 where nothing is.
    saved : int
        Bytes kept for the backward pass on this rank where nothing is recomputed.
    scores : int
        Of these, what attention keeps of its scores: nothing with fused kernels.
    """

    name: str
    layer: int
    flops: float
    moved: float
    backward_flops: float
    backward_moved: float
    parameters: int
    activation: int
    saved: int = 0
    scores: int = 0
    routed: int = 0
    """Bytes that a rank sends to its tokens' experts, and receives back; 0 without a mixture of experts."""
    experts: int = 0
    """Parameters of experts, which differ between the ranks of an expert-parallel group."""


class Workload(Record, frozen=True):
    """One step: a transformer, its input, and how it is split.

    Parameters
    ----------
    model : Transformer
    mode : {"train", "prefill", "decode"}
        A decode step makes one token per sequence.
    batch : int
        Sequences per data-parallel replica and step.
    sequence : int
        Tokens per sequence (decode: tokens already there).
    split : Split
    micro_batches : int
        Parts of the batch that a pipeline (or gradient accumulation) works through.
    dtype_bytes : int
        Bytes of a weight, an activation and an exchanged gradient.
    recompute : {"none", "selective", "full"}
        What the backward pass recomputes: nothing, the scores of attention, or whole layers, of which only the input is
        kept. Whole layers repeat their tensor-parallel sums, too.
    fused_attention : bool
        Kernels that never write the scores (FlashAttention). Operations and times are those of such kernels either way;
        without them the scores are kept until the backward pass.
    dropout : bool
        Masks of dropout after attention and MLP, and on the scores, are kept too. Recent models have none.
    gradient_bytes : int
        Bytes of a stored and exchanged gradient, 4 where gradients are summed in float32; 0: ``dtype_bytes``.
    overlap_weight_gradients : bool
        The tensor-parallel sum of an input's gradient runs beside the gradients of the weights, where the technique
        places no sums of its own (Megatron-LM's asynchronous all-reduce).
    exposed_sums : float
        Share of a tensor-parallel sum that a layer waits for where the technique places no sums of its own; the rest,
        as far as it is no longer than the module, runs in pieces beside it (Megatron-Core's ``tp_comm_overlap``).
    """

    model: Transformer
    mode: str = "train"
    batch: int = 1
    sequence: int = 2048
    split: Split = Split()
    micro_batches: int = 1
    dtype_bytes: int = 2
    recompute: str = "none"
    fused_attention: bool = True
    dropout: bool = False
    gradient_bytes: int = 0
    overlap_weight_gradients: bool = False
    exposed_sums: float = 1.0

    @property
    def gradient_size(self) -> int:
        """Bytes of a stored and exchanged gradient."""
        return self.gradient_bytes or self.dtype_bytes


MOST = 10**9
COUNTS = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocabulary")
MODES = ("train", "prefill", "decode")
RECOMPUTE = ("none", "selective", "full")
ID_BYTES = 8
LOGIT_BYTES = 4
MASK_BYTES = 1


def modules(workload: Workload) -> tuple[Module, ...]:
    """Return embedding, attention and MLP of each layer, and head, for one rank and one micro-batch.

    Raises
    ------
    InputError
        When heads, MLP or batch cannot be divided as the split asks; the message names the numbers.

    Examples
    --------
    >>> small = Transformer("small", layers=2, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn=256, vocabulary=100)
    >>> [(module.name, module.layer, module.parameters) for module in modules(Workload(small, sequence=16))][:3]
    [('embedding', -1, 6400), ('attention', 0, 16448), ('mlp', 0, 49216)]
    """
    check(workload)
    return _modules(workload)


def tensor_shapes(workload: Workload, module: Module) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of a module's tensors on one rank: its matrices, and its normalisation's weights.

    Examples
    --------
    >>> small = Transformer("small", 2, 64, 4, 4, 16, 256, 100)
    >>> step = Workload(small, sequence=16)
    >>> tensor_shapes(step, modules(step)[1])
    ((64, 64), (64, 64), (64, 64), (64, 64), (64,))
    """
    model, split = workload.model, workload.split
    width, table = model.hidden, (_columns(workload), model.hidden)
    if module.name == "attention" and model.latent:
        return (*_latent_shapes(model, model.heads // split.tp), (width,))
    if module.name == "attention":
        queries = model.heads // split.tp * model.head_dim
        keys = max(model.kv_heads // split.tp, 1) * model.head_dim
        gate = ((queries, width),) if model.gated_attention else ()
        return ((queries, width), (keys, width), (keys, width), (width, queries), *gate, (width,))
    if module.name == "mlp":
        dense = not model.experts or module.layer < model.dense_layers
        ffn = (model.dense_ffn if dense and model.experts else model.ffn) // split.tp
        one = (*[(ffn, width)] * (2 if model.gated else 1), (width, ffn))
        if dense:
            return (*one, (width,))
        return (*one * (model.experts // split.ep + model.shared), (model.experts, width), (width,))
    if module.name == "embedding":
        return (table,)
    return ((width,),) if module.parameters == width else ((width,), table)


def stages(workload: Workload) -> tuple[tuple[Module, ...], ...]:
    """Return the modules of each pipeline stage, cut where the split says; see :func:`held_modules` for a device's.

    Raises
    ------
    InputError
        As :func:`modules`, for more stages than layers, and for cuts that leave a stage without a layer.

    Examples
    --------
    >>> small = Transformer("small", layers=5, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn=256, vocabulary=100)
    >>> for split in (Split(pp=3), Split(pp=3, cuts=(1, 2))):
    ...     print([len(stage) for stage in stages(Workload(small, split=split))])
    [5, 4, 3]
    [3, 2, 7]
    """
    sequence = modules(workload)
    layers, parts = workload.model.layers, workload.split.pp * workload.split.virtual
    even = [stage * (layers // parts) + min(stage, layers % parts) for stage in range(1, parts)]
    # Embedding before the first stage's layers, head after the last's; two modules per layer.
    cuts = [0, *(1 + 2 * layer for layer in workload.split.cuts or even), len(sequence)]
    return tuple(sequence[start:end] for start, end in pairwise(cuts))


def held_modules(workload: Workload) -> tuple[tuple[Module, ...], ...]:
    """Return the modules that a device of each block holds: of several stages where they are interleaved.

    Examples
    --------
    >>> small = Transformer("small", layers=4, hidden=64, heads=4, kv_heads=4, head_dim=16, ffn=256, vocabulary=100)
    >>> held = held_modules(Workload(small, batch=2, micro_batches=2, split=Split(pp=2, virtual=2)))
    >>> [sorted({module.layer for module in one}) for one in held]
    [[-1, 0, 2], [1, 3, 4]]
    """
    pieces, pp = stages(workload), workload.split.pp
    return tuple(tuple(chain.from_iterable(pieces[block::pp])) for block in range(pp))


def parameter_count(model: Transformer) -> int:
    """Return the parameters of the whole model.

    Examples
    --------
    >>> parameter_count(Transformer("small", 2, 64, 4, 4, 16, 256, 100))
    144192
    """
    unsplit = Workload(model, "decode", sequence=1)
    return sum(module.parameters for module in modules(unsplit))


def step_flops(workload: Workload) -> float:
    """Return the operations of one step over all replicas and ranks."""
    split = workload.split
    one = sum(module.flops + module.backward_flops for module in modules(workload))
    return one * workload.micro_batches * split.copies * split.tp


def check(workload: Workload) -> None:
    """Refuse an inconsistent workload.

    Raises
    ------
    InputError, UnknownNameError
    """
    if workload.mode not in MODES:
        raise UnknownNameError("mode", workload.mode, MODES)
    if workload.recompute not in RECOMPUTE:
        raise UnknownNameError("recompute", workload.recompute, RECOMPUTE)
    model, split = workload.model, workload.split
    if workload.dtype_bytes not in (1, 2, 4, 8):
        raise InputError(f"dtype_bytes: {workload.dtype_bytes} is not a valid number of bytes; give 1, 2, 4 or 8")
    if workload.gradient_bytes not in (0, 1, 2, 4, 8):
        raise InputError(f"gradient_bytes: {workload.gradient_bytes} is not a valid number of bytes; give 1, 2, 4 or 8")
    if not 0 < workload.exposed_sums <= 1:
        raise InputError(f"exposed_sums: {workload.exposed_sums} is out of range; give a share above 0, at most 1")
    counts = {
        **{field: getattr(model, field) for field in COUNTS},
        **{field: getattr(split, field) for field in ("dp", "tp", "pp", "cp", "virtual")},
        **{field: getattr(workload, field) for field in ("batch", "sequence", "micro_batches")},
    }
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
            raise InputError(f"{name}: {value!r} is out of range; give a whole number from 1 to {MOST}")
    _divides("heads", model.heads, "tp", split.tp)
    _divides("ffn", model.ffn, "tp", split.tp)
    _divides("batch", workload.batch, "micro_batches", workload.micro_batches)
    _divides("heads", model.heads, "kv_heads", model.kv_heads)
    _check_experts(model, split)
    if model.kv_heads % split.tp and split.tp % model.kv_heads:
        raise InputError(f"kv_heads: {model.kv_heads} and tp {split.tp}: one must divide the other; choose another tp")
    if split.pp > model.layers:
        raise InputError(f"pp: {split.pp} stages for {model.layers} layers; give at most one stage per layer")
    if split.virtual > 1:
        _check_interleaved(workload)
    if split.cp > 1:
        _divides("sequence", workload.sequence, "cp", split.cp)
        if workload.mode != "train" or model.linear_attention:
            kind = "linear attention" if model.linear_attention else f"mode {workload.mode}"
            raise InputError(f"cp: {split.cp} parts of a sequence with {kind}: training with attention only; give 1")
    _check_placement(split, model.layers)


def _check_experts(model: Transformer, split: Split) -> None:
    for name, value in (("experts", model.experts), ("active", model.active), ("ep", split.ep)):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST:
            raise InputError(f"{name}: {value!r} is out of range; give a whole number from 0 to {MOST}")
    if bool(model.experts) != bool(model.active) or model.active > model.experts:
        raise InputError(
            f"active: {model.active} of {model.experts} experts; must be between 1 and the number of experts"
        )
    if model.dense_layers and not (model.experts and model.dense_ffn >= 1 and model.dense_layers < model.layers):
        raise InputError(
            f"dense_layers: {model.dense_layers} of {model.layers} layers, width {model.dense_ffn}: only for a mixture "
            "with further layers; give dense_ffn too, or leave both out"
        )
    if model.dense_layers:
        _divides("dense_ffn", model.dense_ffn, "tp", split.tp)
    if split.ep != 1:
        if not split.ep or not model.experts:
            raise InputError(f"ep: {split.ep}: {model.name} has no experts; leave it at 1")
        _divides("experts", model.experts, "ep", split.ep)
        _divides("dp x cp", split.copies, "ep", split.ep)


def _check_interleaved(workload: Workload) -> None:
    model, split = workload.model, workload.split
    if workload.mode != "train" or split.pp < 2:
        raise InputError(f"virtual: {split.virtual} stages per device need training in a pipeline: pp of 2 or more")
    if split.pp * split.virtual > model.layers:
        raise InputError(
            f"virtual: {split.pp} x {split.virtual} stages for {model.layers} layers; give at most one stage per layer"
        )
    _divides("micro_batches", workload.micro_batches, "pp", split.pp)


def _check_placement(split: Split, layers: int) -> None:
    parts = split.pp * split.virtual
    if split.cuts and len(split.cuts) != parts - 1:
        raise InputError(
            f"cuts: {list(split.cuts)} for {parts} stages; give the first layer of each stage after the first, "
            f"{parts - 1} in all, or none"
        )
    if any(isinstance(cut, bool) or not isinstance(cut, int) for cut in split.cuts) or any(
        one >= other for one, other in pairwise((0, *split.cuts, layers) if split.cuts else ())
    ):
        raise InputError(
            f"cuts: {list(split.cuts)} of {layers} layers leave a stage without layers; give "
            "increasing whole "
            f"numbers from 1 to {layers - 1}"
        )
    if split.order and sorted(split.order) != list(range(split.pp)):
        raise InputError(
            f"order: {list(split.order)} for {split.pp} stages; name each block from 0 to {split.pp - 1} once, or none"
        )


def _divides(name: str, total: int, by: str, parts: int) -> None:
    if total % parts:
        raise InputError(f"{name}: {total} cannot be divided by {by} {parts}; choose a {by} that divides {total}")


class _Shape(NamedTuple):
    """What the modules of a workload share: tokens, and columns of queries and of keys on this rank."""

    tokens: int
    sequences: int
    context: int
    queries: int
    keys: int
    size: int
    norms: int
    """Activation elements that every rank of the group holds (with sequence parallelism, only its part)."""


@cache
def _modules(workload: Workload) -> tuple[Module, ...]:
    model, split = workload.model, workload.split
    sequences = workload.batch // workload.micro_batches
    tokens = sequences * (1 if workload.mode == "decode" else workload.sequence // split.cp)
    shared = tokens * model.hidden
    shape = _Shape(
        tokens,
        sequences,
        # Linear attention's context is its state, a row per column of a head.
        model.head_dim if model.linear_attention else workload.sequence,
        model.heads // split.tp * model.head_dim,
        # Where a group has more ranks than there are heads of keys, each rank still holds one.
        max(model.kv_heads // split.tp, 1) * model.head_dim,
        workload.dtype_bytes,
        -(-shared // split.tp) if split.sequence else shared,
    )
    attention, mlp = _attention(workload, shape), _mlp(workload, shape)
    first = _dense_mlp(workload, shape, model.dense_ffn) if model.dense_layers else mlp
    pairs = [
        replace(part, layer=layer)
        for layer in range(model.layers)
        for part in (attention, first if layer < model.dense_layers else mlp)
    ]
    return (_embedding(workload, shape), *pairs, _head(workload, shape))


def _attention(workload: Workload, shape: _Shape) -> Module:
    model = workload.model
    if model.latent:
        return _latent_attention(workload, shape, model.latent)
    matrices = model.hidden * (2 * shape.queries + 2 * shape.keys + (shape.queries if model.gated_attention else 0))
    flops = 2.0 * shape.tokens * matrices + 4.0 * shape.tokens * shape.context * shape.queries
    inner = shape.tokens * (2 * shape.queries + 2 * shape.keys)
    cache_elements = 0
    if workload.mode == "decode":
        rows = model.head_dim if model.linear_attention else 2 * workload.sequence
        cache_elements = shape.sequences * rows * shape.keys
    moved = 2 * inner + 2 * shape.tokens * model.hidden + cache_elements
    scores = 0
    if not (workload.fused_attention or model.linear_attention):
        # The softmax's output; with dropout its mask and what is left of the output.
        each = shape.size + (MASK_BYTES + shape.size if workload.dropout else 0)
        scores = shape.tokens * shape.context * (model.heads // workload.split.tp) * each
    return _block("attention", workload, shape, matrices, flops, moved, inner, scores)


def _latent_shapes(model: Transformer, heads: int) -> tuple[tuple[int, int], ...]:
    """Matrices of attention through narrower vectors: to and from that of queries, of keys and values, and the output.

    The ways down to the narrower vectors are whole on every rank.
    """
    latent = model.latent
    assert latent is not None
    columns = heads * (model.head_dim + latent.rotary)
    queries = (
        ((latent.queries, model.hidden), (columns, latent.queries)) if latent.queries else ((columns, model.hidden),)
    )
    return (
        *queries,
        (latent.keys + latent.rotary, model.hidden),
        (heads * (model.head_dim + latent.values), latent.keys),
        (model.hidden, heads * latent.values),
    )


def _latent_attention(workload: Workload, shape: _Shape, latent: Latent) -> Module:
    model, heads = workload.model, workload.model.heads // workload.split.tp
    matrices = sum(rows * columns for rows, columns in _latent_shapes(model, heads))
    keys, values = heads * (model.head_dim + latent.rotary), heads * latent.values
    flops = 2.0 * shape.tokens * (matrices + shape.context * (keys + values))
    inner = shape.tokens * (2 * keys + 2 * values + latent.queries + latent.keys)
    cached = shape.sequences * workload.sequence * (latent.keys + latent.rotary) if workload.mode == "decode" else 0
    moved = 2 * inner + 2 * shape.tokens * model.hidden + cached
    scores = 0
    if not workload.fused_attention:
        scores = shape.tokens * shape.context * heads * shape.size
    return _block("attention", workload, shape, matrices, flops, moved, inner, scores)


def _dense_mlp(workload: Workload, shape: _Shape, ffn: int) -> Module:
    one, inner, moved = _one_mlp(workload, shape, ffn)
    return _block("mlp", workload, shape, one, 2.0 * shape.tokens * one, moved, inner)


def _one_mlp(workload: Workload, shape: _Shape, ffn: int) -> tuple[int, int, int]:
    """Parameters of an MLP on this rank, and the numbers that all tokens leave in it and move through it."""
    model, width = workload.model, ffn // workload.split.tp
    matrices = 3 if model.gated else 2
    inner = shape.tokens * width * matrices
    return model.hidden * width * matrices, inner, 2 * inner + 2 * shape.tokens * model.hidden


def _mlp(workload: Workload, shape: _Shape) -> Module:
    model = workload.model
    if not model.experts:
        return _dense_mlp(workload, shape, model.ffn)
    one, inner, moved = _one_mlp(workload, shape, model.ffn)
    # Every expert gets as many tokens as the next; the router's scores are one small product.
    router, visits = model.hidden * model.experts, shape.tokens * model.active
    visited = model.active + model.shared
    held = one * (model.experts // workload.split.ep)
    sent = visits * model.hidden
    return replace(
        _block(
            "mlp",
            workload,
            shape,
            held + one * model.shared + router,
            2.0 * shape.tokens * (visited * one + router),
            visited * moved + 4 * sent,
            visited * inner + 2 * sent,
        ),
        routed=sent * shape.size,
        experts=held,
    )


def _block(
    name: str, workload: Workload, shape: _Shape, matrices: int, flops: float, moved: float, inner: int, scores: int = 0
) -> Module:
    """One module of a layer; its normalisation and residual stream are counted here: they move bytes only."""
    parameters = matrices + workload.model.hidden
    activations = float(moved + 4 * shape.norms) * shape.size
    weights = float(parameters * shape.size)
    masks = shape.norms * MASK_BYTES if workload.dropout else 0
    train = workload.mode == "train"
    return Module(
        name,
        0,
        flops=flops,
        moved=weights + activations,
        backward_flops=2 * flops if train else 0.0,
        backward_moved=2 * (weights + activations) if train else 0.0,
        parameters=parameters,
        activation=shape.tokens * workload.model.hidden * shape.size,
        saved=(2 * shape.norms + inner) * shape.size + masks + scores if train else 0,
        scores=scores if train else 0,
    )


def _embedding(workload: Workload, shape: _Shape) -> Module:
    model, train = workload.model, workload.mode == "train"
    parameters = _columns(workload) * model.hidden
    rows = float(2 * shape.tokens * model.hidden * shape.size)
    return Module(
        "embedding",
        -1,
        flops=0.0,
        moved=rows,
        backward_flops=0.0,
        # The gradient of a dense table is written whole.
        backward_moved=rows + parameters * shape.size if train else 0.0,
        parameters=parameters,
        activation=_summed(workload, shape.tokens * model.hidden * shape.size),
        saved=shape.tokens * ID_BYTES if train else 0,
    )


def _head(workload: Workload, shape: _Shape) -> Module:
    """The head with the last normalisation; inference needs the last token of each sequence only."""
    model, train = workload.model, workload.mode == "train"
    columns = _columns(workload)
    tokens = shape.tokens if train else shape.sequences
    flops = 2.0 * tokens * model.hidden * columns
    moved = float(columns * model.hidden + tokens * (2 * columns + 3 * model.hidden)) * shape.size
    # A pipeline's first and last stage each hold the matrix that embedding and head share.
    shared = model.tied and workload.split.pp == 1
    return Module(
        "head",
        model.layers,
        flops=flops,
        moved=moved,
        backward_flops=2 * flops if train else 0.0,
        backward_moved=2 * moved if train else 0.0,
        parameters=(0 if shared else columns * model.hidden) + model.hidden,
        activation=_summed(workload, tokens * model.hidden * shape.size),
        saved=2 * shape.norms * shape.size + shape.tokens * columns * LOGIT_BYTES if train else 0,
    )


def _columns(workload: Workload) -> int:
    """Rows of the vocabulary on this rank; the last rank's may be padded."""
    return -(-workload.model.vocabulary // (workload.split.tp if workload.split.vocabulary else 1))


def _summed(workload: Workload, count: int) -> int:
    """Bytes of what is summed over the group at embedding and head: nothing where each rank has all of them."""
    return count if workload.split.vocabulary or workload.split.tp == 1 else 0


ZERO_STAGES = (0, 1, 2, 3)


def adam_bytes(dtype_bytes: int) -> int:
    """Return the bytes of Adam's state per parameter: two moments, and a float32 copy of weights that are less.

    Examples
    --------
    >>> adam_bytes(2), adam_bytes(4)
    (12, 8)
    """
    return 12 if dtype_bytes < 4 else 2 * dtype_bytes


def memory(
    workload: Workload, zero: int = 0, optimizer_bytes: int | None = None, gradient_bytes: int | None = None
) -> dict[str, float]:
    """Return bytes per rank by purpose, of the pipeline stage that needs most.

    Parameters
    ----------
    workload : Workload
        Its ``recompute``, ``fused_attention``, ``dropout`` and ``split.sequence`` say which activations are kept.
    zero : {0, 1, 2, 3}
        State sharded over the replicas: optimizer, also gradients, also parameters.
    optimizer_bytes : int, optional
        Of the optimizer's state per parameter; :func:`adam_bytes` when left out.
    gradient_bytes : int, optional
        Of a gradient per parameter, 4 where they are summed in float32; the workload's own when left out.

    Returns
    -------
    dict
        ``parameters``, ``gradients``, ``optimizer``, ``activations``, ``kv_cache``. Activations of a pipeline: stage i
        of p holds those of min(p - i, micro-batches) micro-batches (1F1B; of v stages per device those of up to
        (2 (p - i - 1) + (v - 1) p + 1) / v), and besides what is recomputed of one layer while its backward pass runs.
        Not counted: buffers of collectives, the allocator's fragments, the driver's own.

    Raises
    ------
    InputError
        As :func:`stages`, and for another ``zero``.

    Notes
    -----
    Source: Rajbhandari et al., ZeRO, arXiv 1910.02054, section 3 (K = 12); Narayanan et al., PipeDream-2BW (1F1B);
    Korthikanti et al., arXiv 2205.05198, table 2 (activations; the formulas are in
    :mod:`densing.efficiency.simulation.workload`); recalled. Held to 1,165 measured memories by
    ``benchmarks/memory_model.py``.

    Examples
    --------
    >>> from densing.efficiency.simulation import load_workload
    >>> purposes = memory(load_workload("gpt3", dp=64, tp=8, pp=8, batch=8, micro_batches=8), zero=1)
    >>> [round(purposes[purpose] / 1e9, 2) for purpose in ("parameters", "gradients", "optimizer")]
    [5.59, 5.59, 0.52]

    Llama 3 405B as its paper trained it in 80 GB without recomputation (arXiv 2407.21783, section 3.3, table 4; ZeRO-2
    in our words), without and with the sequence split too:

    >>> layout = {"mode": "train", "batch": 16, "micro_batches": 16, "sequence": 8192, "dp": 128, "tp": 8, "pp": 16}
    >>> for split in (False, True):
    ...     print(round(sum(memory(load_workload("llama3-405b", sequence_parallel=split, **layout), 2).values()) / 1e9))
    196
    75
    """
    if zero not in ZERO_STAGES:
        raise InputError(f"zero: {zero!r} is not a ZeRO stage; give 0, 1, 2 or 3")
    for name, value in (("optimizer_bytes", optimizer_bytes), ("gradient_bytes", gradient_bytes)):
        if value is not None and not 0 <= value <= 1024:
            raise InputError(f"{name}: {value!r} is out of range; give 0 to 1024 bytes per parameter")
    optimizer_bytes = adam_bytes(workload.dtype_bytes) if optimizer_bytes is None else optimizer_bytes
    gradients = workload.gradient_size if gradient_bytes is None else gradient_bytes
    held = held_modules(workload)
    virtual, pp = workload.split.virtual, workload.split.pp
    per_stage = [
        # Interleaved, a device has so many passes of one of its pieces ahead of the first backward one, and one more.
        _stage(
            workload,
            stage,
            pp - at if virtual == 1 else (2 * (pp - at - 1) + (virtual - 1) * pp + 1) / virtual,
            zero,
            (gradients, optimizer_bytes),
        )
        for at, stage in enumerate(held)
    ]
    return max(per_stage, key=lambda purposes: sum(purposes.values()))


def stage_bytes(workload: Workload, stage: Sequence[Module], in_flight: int) -> float:
    """Return what a rank needs for some modules of which so many micro-batches are under way; see :func:`memory`."""
    return sum(
        _stage(workload, stage, in_flight, 0, (workload.gradient_size, adam_bytes(workload.dtype_bytes))).values()
    )


def _stage(
    workload: Workload, stage: Sequence[Module], in_flight: float, zero: int, state_bytes: tuple[int, int]
) -> dict[str, float]:
    parameters = float(sum(module.parameters for module in stage))
    split = workload.split
    weights, dp = parameters * workload.dtype_bytes, split.copies
    # Experts that are dealt out have fewer copies to be divided among.
    sharded = parameters + (split.ep - 1) * sum(module.experts for module in stage)
    if workload.mode != "train":
        model = workload.model
        # Keys and values of every token of the batch; linear attention keeps a square per head.
        columns = max(model.kv_heads // workload.split.tp, 1) * model.head_dim
        rows = model.head_dim if model.linear_attention else 2 * workload.sequence
        if model.latent:
            columns, rows = model.latent.keys + model.latent.rotary, workload.sequence
        layers = sum(module.name == "attention" for module in stage)
        return {
            "parameters": weights / (dp if zero == 3 else 1),
            "gradients": 0.0,
            "optimizer": 0.0,
            "activations": float(2 * max(module.activation for module in stage)),
            "kv_cache": float(layers * workload.batch * rows * columns * workload.dtype_bytes),
        }
    gradient_bytes, optimizer_bytes = state_bytes
    retained, again = _activations(workload, stage)
    return {
        "parameters": sharded * workload.dtype_bytes / dp if zero >= 3 else weights,
        "gradients": sharded * gradient_bytes / dp if zero >= 2 else parameters * gradient_bytes,
        "optimizer": sharded * optimizer_bytes / dp if zero >= 1 else parameters * optimizer_bytes,
        "activations": float(retained * min(in_flight, workload.micro_batches) + again),
        "kv_cache": 0.0,
    }


def _activations(workload: Workload, stage: Sequence[Module]) -> tuple[int, int]:
    """Bytes that a micro-batch keeps in a stage, and those of one layer that come back as it is recomputed."""
    saved = sum(module.saved for module in stage)
    if workload.recompute == "none":
        return saved, 0
    if workload.recompute == "selective":
        return saved - sum(module.scores for module in stage), max(module.scores for module in stage)
    layers: dict[int, int] = {}
    for module in stage:
        if module.name in ("attention", "mlp"):
            layers[module.layer] = layers.get(module.layer, 0) + module.saved
    if not layers:
        return saved, 0
    layer = max(layers.values())
    # Of each layer its input stays, which the recomputed one need not hold twice.
    entering = next(module.activation for module in stage if module.name == "attention")
    entering = -(-entering // workload.split.tp) if workload.split.sequence else entering
    return saved - sum(layers.values()) + entering * len(layers), layer - entering

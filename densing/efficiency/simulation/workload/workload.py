"""What one step of a transformer asks of one rank: modules with operations, bytes and parameters."""

from __future__ import annotations

from densing.core import Record


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


class Split(Record, frozen=True):
    """How a run divides its work: replicas (dp), slices of every matrix (tp), stages (pp).

    ``sequence``: activations between tensor-parallel regions are split too (reduce-scatter and all-gather instead of
    all-reduce). ``vocabulary``: embedding and head are sliced like the other matrices.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    sequence: bool = False
    vocabulary: bool = True

    @property
    def ranks(self) -> int:
        """Devices in all."""
        return self.dp * self.tp * self.pp


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
        What the backward pass computes once more instead of keeping it: nothing, the scores of attention, or whole
        layers, of which the input alone is kept. Changes what memory is needed; steps are timed without it.
    fused_attention : bool
        Kernels that never write the scores (FlashAttention). Operations and times are those of such kernels either way;
        without them the scores are kept until the backward pass.
    dropout : bool
        Masks of dropout after attention and MLP, and on the scores, are kept too. Recent models have none.
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

"""Shapes and budgets of the ladders: the paper's six sizes, and the same proportions scaled down for a CPU.

Source: arXiv 2412.04315, Table 1: width about 32 to 43 times the layers, feed-forward 2.5 times the width,
grouped-query attention, batch growing with size, tokens of 10 to 60 per non-embedding parameter. Vocabulary, block
length, learning rate and decay share are not published; ours are stated here.
"""

from __future__ import annotations

from dataclasses import dataclass

from densing.core import UnknownNameError


@dataclass(frozen=True)
class Shape:
    """One size of a ladder: a Llama-style decoder with tied embeddings.

    Parameters
    ----------
    name : str
        What ``--sizes`` takes.
    width, layers, heads, kv_heads, head_width, ffn : int
        Hidden size, decoder layers, query heads, key-value heads, size of a head, feed-forward size.
    batch : int
        Sequences per step.
    steps : tuple of int
        Training steps of each token budget, ascending.

    Examples
    --------
    >>> shape = get_preset("gpu").shapes[0]
    >>> shape.name, shape.non_embedding
    ('0.005B', 5247232)
    """

    name: str
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    ffn: int
    batch: int
    steps: tuple[int, ...]

    @property
    def non_embedding(self) -> int:
        """Parameters without embeddings: layers (2 d h e + 2 d kv e + 3 d f + 2 d) + d, with e the size of a head."""
        d, e = self.width, self.head_width
        layer = 2 * d * self.heads * e + 2 * d * self.kv_heads * e + 3 * d * self.ffn + 2 * d
        return self.layers * layer + d

    def total(self, vocabulary: int) -> int:
        """Return all parameters; input and output embeddings are one matrix."""
        return self.non_embedding + vocabulary * self.width


@dataclass(frozen=True)
class Preset:
    """A ladder: its sizes and how each is trained.

    Parameters
    ----------
    name : str
        What ``--preset`` takes.
    shapes : tuple of Shape
        Ascending sizes.
    block : int
        Tokens per sequence.
    peak, peak_width : float, int
        Learning rate ``peak * sqrt(peak_width / width)`` of the stable stage.
    warmup : int
        Steps of linear warm-up.
    decay : float
        Share of each budget's steps that is its decay.
    betas, weight_decay
        Of AdamW; gradients are clipped at norm 1.
    checkpoint : int
        Steps between checkpoints: what a killed run loses at most.
    precision : str
        Of the forward pass: ``float32`` or ``bfloat16`` (autocast).
    questions : int
        Questions per set that ``densing ladder eval`` asks.
    vocabulary : int
        Tokens of the vocabulary trained on a user's text.
    """

    name: str
    shapes: tuple[Shape, ...]
    block: int
    peak: float
    peak_width: int
    warmup: int
    decay: float = 0.2
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    checkpoint: int = 400
    precision: str = "float32"
    questions: int = 250
    vocabulary: int = 512

    def rate(self, shape: Shape) -> float:
        """Return the learning rate of the stable stage."""
        return float(self.peak * (self.peak_width / shape.width) ** 0.5)

    def tokens(self, shape: Shape, steps: int) -> int:
        """Return the tokens that a number of steps trains on."""
        return steps * shape.batch * self.block


def _small(widths: tuple[tuple[int, int, int], ...], steps: tuple[int, ...]) -> tuple[Shape, ...]:
    """Return two-layer shapes of (width, heads, key-value heads) in Table 1's proportions."""
    return tuple(Shape(f"d{d}", d, 2, h, kv, d // h, d * 5 // 2, 8, steps) for d, h, kv in widths)


_CPU_WIDTHS = ((8, 2, 1), (12, 2, 1), (16, 2, 1), (24, 2, 1), (32, 4, 2), (48, 4, 2), (72, 4, 2))
# name, batch, layers, d, d_ffn, heads, kv: arXiv 2412.04315, Table 1.
_TABLE_1 = (
    ("0.005B", 32, 8, 256, 640, 4, 1),
    ("0.03B", 32, 12, 512, 1280, 8, 2),
    ("0.1B", 64, 18, 768, 1920, 12, 3),
    ("0.2B", 128, 24, 1024, 2560, 16, 2),
    ("0.4B", 256, 30, 1280, 3200, 20, 2),
    ("0.8B", 512, 36, 1536, 3840, 24, 3),
)
_TOKENS_PER_PARAMETER = (10, 15, 20, 30, 40, 60)
_GPU_BLOCK = 1024


def _published(name: str, batch: int, layers: int, d: int, ffn: int, heads: int, kv: int) -> Shape:
    bare = Shape(name, d, layers, heads, kv, 64, ffn, batch, ())
    steps = tuple(-(-ratio * bare.non_embedding // (batch * _GPU_BLOCK)) for ratio in _TOKENS_PER_PARAMETER)
    return Shape(name, d, layers, heads, kv, 64, ffn, batch, steps)


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("tiny", _small(_CPU_WIDTHS[:4], (60, 120)), 64, 1.2e-2, 32, 20, checkpoint=25, questions=60),
        Preset("cpu", _small(_CPU_WIDTHS, (600, 1050, 1850, 3200)), 64, 6e-3, 32, 100),
        Preset(
            "gpu",
            tuple(_published(*row) for row in _TABLE_1),
            _GPU_BLOCK,
            3e-3,
            256,
            200,
            betas=(0.9, 0.95),
            weight_decay=0.1,
            checkpoint=200,
            precision="bfloat16",
            questions=1000,
            vocabulary=32768,
        ),
    )
}


def get_preset(name: str) -> Preset:
    """Return a preset by name.

    Raises
    ------
    UnknownNameError
        When there is no such preset.

    Examples
    --------
    >>> [shape.non_embedding for shape in get_preset("cpu").shapes][:2]
    [1384, 3084]
    """
    if name not in PRESETS:
        raise UnknownNameError("preset", name, PRESETS)
    return PRESETS[name]

"""Shapes of models that do not exist yet: width and depth from a number of parameters, by one rule.

A decoder with an MLP of three matrices of 8/3 of its width has 4 h² + 8 h² = 12 h² parameters per layer of width h. The
rule: about 128 times as wide as deep, as GPT-3 175B (12,288 by 96) and Llama 3 8B (4,096 by 32) and 405B (16,384 by
126) are; heads of 128 (64 below a width of 1,024), each with keys of its own; matrices for embedding and head, untied.
Widths are multiples that let eight devices share the heads where a model is so large that they will have to.

Source: Kaplan et al., arXiv 2001.08361, section 2.1 (12 h² per layer) and figure 5: the loss hardly depends on the
ratio of width to depth between some 50 and 200 (recalled).
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from densing.core import Array, InputError
from densing.efficiency.simulation.workload import Transformer

ASPECT, NARROWEST, WIDEST = 128, 96, 200
"""Width over depth: what is aimed at, and the ends of what the nearest shape may have."""
VOCABULARY = 50_304
GRAINS = ((1_024, 64), (4_096, 256), (65_536, 1_024))
"""Widths up to the first figure are multiples of the second."""
TILE = 128
"""The MLP's width is a multiple of it."""


def shape_of(params: float, vocabulary: int = VOCABULARY) -> Transformer:
    """Return the shape by the rule whose number of parameters is nearest, from some 7 million to 35 trillion.

    Parameters
    ----------
    params : float
        Embedding and head included.
    vocabulary : int

    Raises
    ------
    InputError
        For a number that is not finite and above 0.

    Examples
    --------
    >>> shape = shape_of(8e9)
    >>> shape.layers, shape.hidden, shape.heads
    (37, 4096, 32)
    """
    if not 0 < params < math.inf:
        raise InputError(f"params: {params:g} is no number of parameters; give a finite one above 0")
    family, counts, beside = _family(vocabulary)
    params = min(max(params, counts[0]), counts[-1])
    # The nearest count; of equally near ones the usual proportions.
    away = np.abs(counts - params) / params // 0.02
    return family[np.argmin(np.where(away == away.min(), beside, np.inf))]


@cache
def _family(vocabulary: int) -> tuple[tuple[Transformer, ...], Array, Array]:
    """Return the shapes, how many parameters each has, and how far its width over depth is from the usual one."""
    widths: list[int] = []
    low = 0
    for high, grain in GRAINS:
        widths += range(low + grain, high + 1, grain)
        low = high
    family = tuple(
        Transformer(
            f"{width} wide, {layers} deep", layers, width, width // head, width // head, head,
            -(-8 * width // (3 * TILE)) * TILE, vocabulary,
            source="width and depth by the rule of densing.efficiency.simulation.shape_of", evidence="assumed",
        )
        for width in widths
        for head in [64 if width < GRAINS[0][0] else 128]
        for layers in range(max(-(-width // WIDEST), 1), max(width // NARROWEST, 1) + 1)
    )  # fmt: skip
    # Without going through their modules.
    counts = [
        shape.hidden * (shape.layers * (4 * shape.hidden + 3 * shape.ffn + 2) + 2 * vocabulary + 1) for shape in family
    ]
    beside = [abs(shape.hidden / shape.layers - ASPECT) for shape in family]
    return family, np.array(counts, dtype=float), np.array(beside)

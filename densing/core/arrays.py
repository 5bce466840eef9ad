"""Arrays: the type that signatures name, and the random streams that fill them with draws.

A stream belongs to what it describes: a name decides, never a position. One seed gives every benchmark and every model
a stream of its own, so that what is independent in the world is independent in the draws, what is shared has one name
and one stream, and nothing that is added, removed or put in another order changes the draws of the rest.
"""

from __future__ import annotations

import hashlib
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
"""The numpy array of signatures; docstrings give its shape, unit and, where it is none of floats, what it holds."""


def named_seed(seed: int, *names: str) -> int:
    """Return the seed of a named stream, below 2^48 (exact in JSON).

    Parameters
    ----------
    seed : int
        The seed that was asked for; 0 or more.
    *names : str
        What the stream describes, e.g. ``"law", family, benchmark``.

    Examples
    --------
    >>> named_seed(0, "law", "qwen1.5", "mmlu") == named_seed(0, "law", "qwen1.5", "gsm8k")
    False
    """
    # Names are joined by what no name holds, so that ("ab", "c") is not ("a", "bc").
    text = "\x1f".join([str(int(seed)), *names])
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:6], "big")


def named_stream(seed: int, *names: str) -> np.random.Generator:
    """Return the generator of a named stream; arguments as for :func:`named_seed`.

    Examples
    --------
    >>> first, again = (named_stream(0, "score", "mmlu", "Llama-3-8B").standard_normal(3) for _ in range(2))
    >>> (first == again).all()
    np.True_
    """
    return np.random.default_rng(named_seed(seed, *names))

r"""Draws in few bytes: every number as a whole multiple of its column's step, cut into planes of bytes.

A step is the power of two below :data:`FINEST` of how far a column's draws spread, so that rounding adds a variance of
:math:`1/(12 \cdot 64^2)` of the column's own at most: 0.002 %. Multiples of neighbouring draws are alike in their high
bytes, and planes of like bytes compress; 17 MB of the embedded catalog's draws become 5.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from densing.core import Array

FINEST = 1 / 64
"""Step of a column beside the spread of its draws: half of what holds the middle 68 %."""
EXACT = 2.0**-22
"""Least step beside a column's largest number: single precision holds every multiple."""


def pack(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return what :func:`unpack` makes the arrays of again, draws first, each rounded to its column's steps.

    What is not zero stays so, with its sign: variances are divided by.

    Examples
    --------
    >>> draws = np.random.default_rng(0).normal(5, 2, (1000, 3)).astype(np.float32)
    >>> again = unpack(pack({"ability": draws}))["ability"]
    >>> again.dtype, bool(0 < abs(again - draws).max() < 0.02)
    (dtype('float32'), True)
    """
    packed = {}
    for name, array in arrays.items():
        columns = np.moveaxis(np.asarray(array, dtype=float), 0, -1)
        size = np.abs(columns)
        spread = np.diff(np.quantile(columns, [0.16, 0.84], axis=-1), axis=0)[0] / 2
        least = np.maximum(FINEST * spread, EXACT * size.max(axis=-1))
        step = np.exp2(np.floor(np.log2(np.where(least > 0, least, 1.0))))[..., None]
        multiples = (np.sign(columns) * np.maximum(1, np.rint(size / step))).astype(np.int32)
        lowest = multiples.min(axis=-1, keepdims=True)
        above = np.ascontiguousarray((multiples - lowest).astype("<u4"))
        packed[f"{name}.bytes"] = np.moveaxis(above[..., None].view(np.uint8), -1, 0)
        packed[f"{name}.lowest"], packed[f"{name}.step"] = lowest, step.astype(np.float32)
    return packed


def unpack(packed: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays that were packed, in single precision.

    Raises
    ------
    KeyError, ValueError
        For what :func:`pack` did not make.
    """
    arrays = {}
    for name in (key.removesuffix(".bytes") for key in packed if key.endswith(".bytes")):
        above = np.ascontiguousarray(np.moveaxis(packed[f"{name}.bytes"], 0, -1)).view("<u4")[..., 0]
        columns = (packed[f"{name}.lowest"] + above) * packed[f"{name}.step"].astype(float)
        arrays[name] = np.ascontiguousarray(np.moveaxis(columns, -1, 0), dtype=np.float32)
    return arrays

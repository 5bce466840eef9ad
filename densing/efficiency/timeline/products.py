"""Floating-point operations and least bytes of products and attention, from the shapes that an operator recorded.

A product of an (m, k) and a (k, n) matrix is 2·m·k·n operations, as in torch's ``FlopCounterMode``; the least bytes
are those of its operands and its result, each moved once. A causal mask leaves half of attention to do. Operators whose
shapes do not tell (sequences of various lengths in one tensor, transposed convolutions) are unknown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

from densing.efficiency.timeline.timeline import Product
from densing.efficiency.timeline.traffic import dtype_bytes

Shape = tuple[int, ...]


class _Counted(NamedTuple):
    """Operations, elements of operands and result, and which input's type is the product's."""

    flops: int
    elements: int
    typed_by: int


class _Attention(NamedTuple):
    """Where an operator of attention has its query, its sequence axis, its causal mask and cumulative lengths."""

    query: int
    axis: int
    causal: int
    lengths: int
    backward: bool = False


_ATTENTION = {
    "_flash_attention_forward": _Attention(0, 1, 8, 3),
    "_flash_attention_backward": _Attention(1, 1, 11, 6, backward=True),
    "_efficient_attention_forward": _Attention(0, 1, 9, 4),
    "_efficient_attention_backward": _Attention(1, 1, 14, 6, backward=True),
    "_scaled_dot_product_cudnn_attention": _Attention(0, 2, 6, -1),
    "_scaled_dot_product_cudnn_attention_backward": _Attention(1, 2, 14, 9, backward=True),
    "_cudnn_attention_forward": _Attention(0, 2, 10, 4),
    "_scaled_dot_product_flash_attention_for_cpu": _Attention(0, 2, 4, -1),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _Attention(1, 2, 7, -1, backward=True),
}
_CAUSAL = ("True", "1", "2")
"""A flag, or the kinds of mask of efficient attention that are causal."""


def _shape(dims: Sequence[Any], at: int) -> Shape:
    shape = tuple(dims[at])
    if not shape or not all(type(length) is int and 0 < length < 2**40 for length in shape):
        raise ValueError(f"input {at} is no tensor")
    return shape


def _matrices(dims: Sequence[Any], values: Sequence[Any], first: int = 0) -> _Counted:
    left, right = _shape(dims, first), _shape(dims, first + 1)
    if len(left) not in (2, 3) or left[:-2] != right[:-2] or left[-1] != right[-2]:
        raise ValueError("shapes of no product")
    result = (*left[:-1], right[-1])
    added = prod(_shape(dims, 0)) if first else 0
    return _Counted(2 * prod(left) * right[-1], prod(left) + prod(right) + prod(result) + added, first)


def _convolution(dims: Sequence[Any], values: Sequence[Any], lists: int) -> _Counted:
    source, weight = _shape(dims, 0), _shape(dims, 1)
    padding, stride, dilation = (json.loads(values[at]) for at in range(lists, lists + 3))
    sizes = zip(source[2:], weight[2:], padding, stride, dilation, strict=True)
    result = [(length + 2 * pad - wide * (width - 1) - 1) // step + 1 for length, width, pad, step, wide in sizes]
    outputs = source[0] * weight[0] * prod(result)
    if not result or min(result) < 1:
        raise ValueError("a convolution without result")
    return _Counted(2 * outputs * prod(weight[1:]), prod(source) + prod(weight) + outputs, 0)


def _attention(dims: Sequence[Any], values: Sequence[Any], of: _Attention) -> _Counted:
    query, key, value = (_shape(dims, of.query + each) for each in range(3))
    if len(query) != 4 or len(key) != 4 or len(value) != 4 or (of.lengths >= 0 and dims[of.lengths]):
        raise ValueError("sequences of various lengths")
    result = prod(query[:3]) * value[3]
    pairs = prod(query[:3]) * key[of.axis]
    # Scores, and their product with the values. Backwards: scores again, the gradients of weights, query, key, value.
    scores, weighted = (3, 2) if of.backward else (1, 1)
    flops = 2 * pairs * (scores * query[3] + weighted * value[3])
    elements = (1 + of.backward) * (prod(query) + prod(key) + prod(value) + result)
    return _Counted(flops // 2 if values and values[of.causal] in _CAUSAL else flops, elements, of.query)


_RULES: dict[str, Callable[[Sequence[Any], Sequence[Any]], _Counted]] = {
    **dict.fromkeys(("mm", "bmm", "_scaled_mm"), _matrices),
    **dict.fromkeys(("addmm", "_addmm_activation", "baddbmm"), partial(_matrices, first=1)),
    "cudnn_convolution": partial(_convolution, lists=2),
    **dict.fromkeys(("miopen_convolution", "mkldnn_convolution"), partial(_convolution, lists=3)),
    **{name: partial(_attention, of=where) for name, where in _ATTENTION.items()},
}
PRODUCTS: Mapping[str, Callable[[Sequence[Any], Sequence[Any]], _Counted]] = {
    f"aten::{name}": rule for name, rule in _RULES.items()
}
"""Operators whose floating-point operations their shapes tell, as PyTorch names them."""


def product_of(operator: str, dims: Any, types: Any, values: Any = ()) -> Product | None:
    """Return the operations and least bytes of one call of an operator; None where its record does not tell.

    Parameters
    ----------
    operator : str
        ``aten::mm``, ``aten::_flash_attention_forward``, ...: the keys of :data:`PRODUCTS`.
    dims, types, values : list
        ``Input Dims``, ``Input type`` and ``Concrete Inputs`` of the trace: shape, element type and value of each
        input. Without values attention counts as not causal, and convolutions are unknown.

    Notes
    -----
    Source: signatures of PyTorch's operators (2.13); attention backwards counts 5 products for the 2 forwards (Dao,
    FlashAttention-2, arXiv 2307.08691, section 4.1).

    Examples
    --------
    >>> product_of("aten::mm", [[4, 8], [8, 16]], ["float", "float"])
    Product(flops=1024, bytes=896, dtype='float')
    >>> product_of("aten::relu", [[4, 8]], ["float"]) is None
    True
    """
    rule = PRODUCTS.get(operator)
    if rule is None:
        return None
    try:
        counted = rule(dims, values or ())
        dtype = str(types[counted.typed_by])
    except (IndexError, KeyError, TypeError, ValueError, ArithmeticError):
        return None
    size = dtype_bytes(dtype)
    return Product(counted.flops, counted.elements * size, dtype) if size > 0 else None

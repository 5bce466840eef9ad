"""Fewer bits: matrices of weights row by row, states token by token, and what both weigh."""

from __future__ import annotations

import torch

from densing.core import InputError

SCALE_BYTES = 4
"""Of a float32 that says how levels are spaced."""


def quantise(weight: torch.Tensor, bits: int) -> torch.Tensor:
    """Return a matrix rounded to 2^bits - 1 levels per row, symmetric around 0 and scaled by the row's largest entry.

    Source: Nagel et al., "A White Paper on Neural Network Quantization", arXiv 2106.08295, section 2 (round to
    nearest, symmetric, per channel).

    Examples
    --------
    >>> quantise(torch.tensor([[1.0, 0.4, -0.6]]), 2)
    tensor([[ 1.,  0., -1.]])
    """
    most = 2 ** (bits - 1) - 1
    scale = weight.abs().amax(dim=1, keepdim=True).clamp_min(1e-30) / most
    return (weight / scale).round_().mul_(scale)


def matrix_bytes(rows: int, columns: int, bits: int) -> int:
    """Return what a rounded matrix weighs: its levels, each row filled to whole bytes, and a scale per row.

    Examples
    --------
    >>> matrix_bytes(2, 5, 4)
    14
    """
    return rows * (-(-columns * bits // 8) + SCALE_BYTES)


def round_states(states: torch.Tensor, bits: int) -> torch.Tensor:
    """Return states as they arrive after a hand-over of ``bits`` per number.

    Below 16 bits each token (the last dimension) has levels of its own, evenly spaced from its least to its largest
    number::

        step = (max - min) / (2^bits - 1);  level = round((x - min) / step);  x' = min + step level

    so that a token's state depends on no other's. 16 bits are half precision: float16, or the state as it is where the
    model computes in a type of 16 bits.

    Raises
    ------
    InputError
        When a state holds what is not a number, or lies beyond what the bits can say.

    Examples
    --------
    >>> round_states(torch.tensor([[0.0, 0.4, 3.0], [5.0, 5.0, 5.0]]), 2)
    tensor([[0., 0., 3.],
            [5., 5., 5.]])
    """
    if bits == 16:
        back = states if states.element_size() == 2 else states.half().to(states.dtype)
    else:
        exact = states.float()
        low = exact.amin(-1, keepdim=True)
        step = (exact.amax(-1, keepdim=True) - low) / (2**bits - 1)
        # Equal numbers need no step; the smallest normal number keeps its own digits.
        step = step.clamp_min(torch.finfo(torch.float32).tiny)
        back = low.addcmul(step, ((exact - low) / step).round_()).to(states.dtype)
    if not bool(back.isfinite().all()):
        raise InputError(
            f"the state at the cut contains values not representable in {bits} bits (NaN, or out of range)"
        )
    return back


def state_bytes(width: int, bits: int) -> int:
    """Return what a token's state weighs on the wire: levels filled to whole bytes, least number and step (float32).

    Examples
    --------
    >>> [state_bytes(576, bits) for bits in (2, 4, 8, 16)]
    [152, 296, 584, 1152]
    """
    return 2 * width if bits == 16 else -(-width * bits // 8) + 2 * SCALE_BYTES

"""States on the wire: levels packed into bytes, a least number and a step per token."""

from __future__ import annotations

import torch

from densing.core import InputError


def pack(states: torch.Tensor, bits: int) -> torch.Tensor:
    """Return states (tokens, width) as the bytes that are sent.

    Below 16 bits each token has levels of its own, evenly spaced from its least to its largest number, packed first
    level lowest, each token filled to whole bytes; before them the least number and the step as float32. 16 bits are
    float16.

    Raises
    ------
    InputError
        When a state holds what the bits cannot say.

    Examples
    --------
    >>> packed = pack(torch.tensor([[0.0, 1.0, 2.0, 3.0]]), 2)
    >>> packed.tolist()[-1] == 0b11_10_01_00, unpack(packed, 2, 4).tolist()
    (True, [[0.0, 1.0, 2.0, 3.0]])
    """
    if bits == 16:
        half = states.half()
        if not bool(half.isfinite().all()):
            raise InputError("the state at the cut contains values not representable in 16 bits (NaN, or out of range)")
        return half.contiguous().view(torch.uint8).flatten()
    exact = states.float()
    if not bool(exact.isfinite().all()):
        raise InputError(
            f"the state at the cut contains values not representable in {bits} bits (NaN, or out of range)"
        )
    low = exact.amin(-1, keepdim=True)
    step = ((exact.amax(-1, keepdim=True) - low) / (2**bits - 1)).clamp_min(torch.finfo(torch.float32).tiny)
    levels = ((exact - low) / step).round_().to(torch.uint8)
    per_byte = 8 // bits
    filled = torch.nn.functional.pad(levels, (0, -levels.shape[1] % per_byte)).view(len(levels), -1, per_byte)
    packed = (filled << (bits * torch.arange(per_byte)).to(torch.uint8)).sum(-1, dtype=torch.uint8)
    return torch.cat([torch.cat([low, step], dim=1).view(torch.uint8), packed], dim=1).flatten()


def unpack(sent: torch.Tensor, bits: int, width: int) -> torch.Tensor:
    """Return the states (tokens, width), float32, that arrive."""
    if bits == 16:
        return sent.view(torch.float16).view(-1, width).float()
    per_byte = 8 // bits
    row = 8 + -(-width // per_byte)
    rows = sent.view(-1, row)
    low, step = rows[:, :8].flatten().clone().view(torch.float32).view(-1, 2).unbind(1)
    levels = rows[:, 8:, None] >> (bits * torch.arange(per_byte)).to(torch.uint8) & (2**bits - 1)
    return low[:, None].addcmul(step[:, None], levels.flatten(1)[:, :width].float())

"""Fewer bits against the formulas written out, number by number."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs the extra evals")

from densing.core import InputError  # noqa: E402
from densing.scores.evals.served.rounding import matrix_bytes, quantise, round_states, state_bytes  # noqa: E402

NUMBERS = st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=9)


def test_rounding_to_bits_keeps_the_largest_entry_and_zero() -> None:
    weight = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    for bits in (2, 4, 8, 16):
        rounded = quantise(weight, bits)
        step = weight.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
        assert bool(((rounded - weight).abs() <= step / 2 * 1.0001).all())
    assert float(quantise(torch.zeros(1, 3), 8).abs().sum()) == 0
    assert json.dumps(quantise(torch.tensor([[3.0, -1.4]]), 3).tolist()) == "[[3.0, -1.0]]"


@given(NUMBERS, st.sampled_from([2, 4, 8]))
def test_states_take_the_nearest_of_their_own_levels(numbers: list[float], bits: int) -> None:
    back = round_states(torch.tensor([numbers, [7.0] * len(numbers)]), bits).tolist()
    low, high = min(numbers), max(numbers)
    step = (high - low) / (2**bits - 1)
    levels = [low + step * level for level in range(2**bits)]
    for number, rounded in zip(numbers, back[0], strict=True):
        nearest = min(abs(number - level) for level in levels)
        assert abs(number - rounded) <= nearest + 1e-5 * (abs(low) + abs(high)) + 1e-30
    # A token's levels are its own.
    assert back[1] == [7.0] * len(numbers)


def test_16_bits_are_half_precision() -> None:
    states = torch.randn(3, 8)
    assert torch.equal(round_states(states, 16), states.half().float())
    assert round_states(states.bfloat16(), 16).dtype == torch.bfloat16
    assert torch.equal(round_states(states.bfloat16(), 16), states.bfloat16())


@pytest.mark.parametrize(("number", "bits"), [(float("nan"), 8), (float("inf"), 2), (1e6, 16)])
def test_what_bits_cannot_say_is_refused(number: float, bits: int) -> None:
    with pytest.raises(InputError, match=f"not representable in {bits} bits"):
        round_states(torch.tensor([[1.0, number]]), bits)


def test_bytes_are_those_of_packed_levels() -> None:
    for width in (1, 5, 576):
        for bits in (2, 4, 8):
            packed = len(bytes((width * bits + 7) // 8))
            assert state_bytes(width, bits) == packed + 8
            assert matrix_bytes(3, width, bits) == 3 * (packed + 4)
        assert state_bytes(width, 16) == torch.zeros(width).half().numpy().nbytes

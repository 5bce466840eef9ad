"""Shapes by rule: near the number asked for, of the proportions of models that were trained, and counted rightly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core.errors import InputError
from densing.efficiency.simulation import load_workload, parameter_count, shape_of
from densing.efficiency.simulation.shapes import _family


@given(exponent=st.floats(8, 13.3))
def test_a_shape_is_near_the_number_and_of_usual_proportions(exponent: float) -> None:
    shape = shape_of(10**exponent)
    # A layer more or less is a tenth of a small model, a twentieth from a billion on.
    assert parameter_count(shape) == pytest.approx(10**exponent, rel=0.1 if exponent < 9 else 0.05)
    assert 90 <= shape.hidden / shape.layers <= 200
    assert shape.heads * shape.head_dim == shape.hidden and shape.ffn % 128 == 0
    # 12 h² per layer, to the rounding of the MLP's width.
    embedding = 2 * shape.vocabulary * shape.hidden
    per_layer = (parameter_count(shape) - embedding) / shape.layers / shape.hidden**2
    assert per_layer == pytest.approx(12, rel=0.04)


@given(params=st.floats(2e9, 2e13))
def test_heads_of_a_large_model_are_shared_by_devices(params: float) -> None:
    shape = shape_of(params)
    assert shape.heads % (8 if shape.hidden > 4096 else 2) == 0


@pytest.mark.parametrize("vocabulary", [32_000, 50_304, 128_256])
def test_counts_are_those_of_the_modules(vocabulary: int) -> None:
    family, counts, _ = _family(vocabulary)
    for shape in (*family[:20], *family[::500], family[-1]):
        assert counts[family.index(shape)] == parameter_count(shape)


def test_known_models_come_out() -> None:
    # GPT-3 175B is 96 layers of 12,288; Llama 3 405B 126 of 16,384, with a vocabulary and keys of its own.
    gpt3 = load_workload("gpt3").model
    shape = shape_of(parameter_count(gpt3), gpt3.vocabulary)
    assert (shape.layers, shape.hidden, shape.heads) == (gpt3.layers, gpt3.hidden, gpt3.heads)
    llama = load_workload("llama3-405b").model
    shape = shape_of(parameter_count(llama), llama.vocabulary)
    assert shape.hidden == llama.hidden and abs(shape.layers - llama.layers) <= 5


def test_the_smallest_and_the_largest_shape_stand_for_all_beyond() -> None:
    assert shape_of(1.0) == shape_of(1e6) and shape_of(1.0).layers == 1
    assert shape_of(1e14) == shape_of(1e15)
    for bad in (float("nan"), float("inf"), 0.0, -1.0):
        with pytest.raises(InputError, match="is no number of parameters; give a finite one above 0"):
            shape_of(bad)

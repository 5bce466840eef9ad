"""What is under way while a module computes, schedule by schedule; and any shape computes what the whole model does."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from densing.core.errors import InputError, UnknownNameError
from densing.efficiency.parallel.distributed.lm import Block, build_lm
from densing.efficiency.parallel.distributed.spec import LmShape
from densing.efficiency.parallel.tensor_parallel.model import Pass, cross_entropy, prefill_loss, train_loss
from densing.efficiency.parallel.tensor_parallel.schedules import Schedule
from densing.efficiency.parallel.tensor_parallel.tape import Call, Exchange, Residual
from tests.support.tensor_schedules import schedule_of

SHAPE = LmShape(layers=2, hidden=16, heads=2, ffn=24, vocabulary=32)


class Alone(Exchange):
    """The sums of a group of one; counts those under way whenever one starts, as a module's compute ends there."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way: list[int] = []
        self.flying = 0

    def start(self, tensor: torch.Tensor) -> Any:
        self.under_way.append(self.flying)
        self.flying += 1
        return Landing(self, tensor)


class Landing:
    def __init__(self, exchange: Alone, tensor: torch.Tensor) -> None:
        self.exchange, self.tensor, self.landed = exchange, tensor, False

    def land(self) -> torch.Tensor:
        self.exchange.flying -= not self.landed
        self.landed = True
        return self.tensor


def batch(shape: LmShape, rows: int, count: int) -> torch.Tensor:
    return torch.randint(0, shape.vocabulary, (rows, count + 1), generator=torch.Generator().manual_seed(0))


def hidden_under(schedule: Schedule) -> tuple[list[int], list[int]]:
    """How many sums were under way at the end of each module's compute: forward, backward."""
    exchange = Alone()
    model = build_lm(SHAPE, 8, 0, schedule.wiring, schedule.ladder_layers)
    both = batch(SHAPE, 1, 8)
    run = Pass(model, schedule, exchange, both[:, :-1])
    assert exchange.flying == 0
    forward = list(exchange.under_way)
    run.backward(cross_entropy(run.logits, both[:, 1:]))
    assert exchange.flying == 0
    return forward, exchange.under_way[len(forward) :]


def test_standard_hides_nothing() -> None:
    assert hidden_under(schedule_of("tensor-parallel")) == ([0] * 4, [0] * 4)
    assert hidden_under(schedule_of("parallel-attention")) == ([0] * 2, [0] * 2)


def test_ladder_hides_every_sum_under_the_next_module_in_both_directions() -> None:
    assert hidden_under(schedule_of("ladder")) == ([0, 1, 1, 1], [0, 1, 1, 1])


def test_hybrid_ladder_hides_those_of_its_layers() -> None:
    forward, backward = hidden_under(schedule_of("ladder", ladder_layers=1))
    assert forward == [0, 0, 0, 1]
    # Backward runs the ladder's layer first: its attention hides the sum of its feed-forward layer.
    assert backward == [0, 1, 0, 0]


def test_iso_hides_one_part_under_the_other_in_both_directions() -> None:
    assert hidden_under(schedule_of("iso")) == ([0] + [1] * 7, [0] + [1] * 7)


def test_tiles_hide_each_other_within_a_module() -> None:
    assert hidden_under(schedule_of("t3", tiles=4)) == ([0, 1, 2, 3] * 4, [0, 1, 2, 3] * 4)


@settings(max_examples=25)
@given(
    layers=st.integers(1, 3),
    heads=st.integers(1, 3),
    half=st.integers(1, 3),
    count=st.integers(2, 9),
    name=st.sampled_from(["tensor-parallel", "parallel-attention", "ladder", "iso", "t3"]),
    split=st.floats(0.01, 0.99),
    tiles=st.integers(1, 30),
    data=st.data(),
)
def test_any_shape_computes_what_the_whole_model_does(
    layers: int, heads: int, half: int, count: int, name: str, split: float, tiles: int, data: st.DataObject
) -> None:
    shape = LmShape(layers=layers, hidden=2 * heads * half, heads=heads, ffn=7, vocabulary=11)
    schedule = schedule_of(name, **{"iso": {"split": split}, "t3": {"tiles": tiles}}.get(name, {}))
    schedule.ladder_layers = data.draw(st.none() | st.integers(0, layers))
    model = build_lm(shape, count, 1, schedule.wiring, schedule.ladder_layers)
    both = batch(shape, 2, count)
    loss = train_loss(model, schedule, Alone(), both)
    gradients = [weight.grad for weight in model.parameters()]
    model.zero_grad(set_to_none=True)
    expected = cross_entropy(model(both[:, :-1]), both[:, 1:])
    expected.backward()
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    for found, weight in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(found, weight.grad, rtol=1e-3, atol=1e-6)


def test_gradients_add_up_over_passes_as_those_of_autograd_do() -> None:
    for schedule in (schedule_of("ladder"), schedule_of("t3"), schedule_of("iso")):
        model = build_lm(SHAPE, 8, 0, schedule.wiring)
        train_loss(model, schedule, Alone(), batch(SHAPE, 1, 8))
        once = [weight.grad.clone() for weight in model.parameters()]
        train_loss(model, schedule, Alone(), batch(SHAPE, 1, 8))
        for first, weight in zip(once, model.parameters(), strict=True):
            torch.testing.assert_close(2 * first, weight.grad)


def test_a_step_leaves_nothing_behind() -> None:
    """Activations go with the step, not with the next collection of garbage."""
    gc.collect()
    gc.disable()
    try:
        for name in ("tensor-parallel", "ladder", "iso", "t3"):
            schedule = schedule_of(name)
            model = build_lm(SHAPE, 8, 0, schedule.wiring)
            train_loss(model, schedule, Alone(), batch(SHAPE, 1, 8))
            prefill_loss(model, schedule, Alone(), batch(SHAPE, 1, 8))
        assert not [thing for thing in gc.get_objects() if type(thing) in (Call, Residual)]
    finally:
        gc.enable()


def test_no_graph_is_kept_forward_only() -> None:
    model = build_lm(SHAPE, 8, 0)
    for name in ("tensor-parallel", "iso", "t3"):
        with torch.no_grad():
            logits = Pass(model, schedule_of(name), Alone(), batch(SHAPE, 1, 8)[:, :-1]).logits
        assert not logits.requires_grad
    assert isinstance(model.blocks[0], Block)


@pytest.mark.parametrize("split", [0.0, 1.0, -0.1, float("nan"), float("inf")])
def test_a_split_outside_the_sequence_is_refused(split: float) -> None:
    with pytest.raises(InputError, match="split"):
        schedule_of("iso", split=split)


def test_other_bad_options_are_refused() -> None:
    with pytest.raises(InputError, match="tiles"):
        schedule_of("t3", tiles=0)
    with pytest.raises(InputError, match="sequence=2"):
        schedule_of("iso").parts(1)
    with pytest.raises(UnknownNameError, match="did you mean 'ladder'"):
        schedule_of("lader")

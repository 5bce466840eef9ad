"""Edges between layers of one process: what arrives there and back, and what it weighs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

torch = pytest.importorskip("torch")

from densing.efficiency.parallel.distributed.spec import LmShape, RunSpec  # noqa: E402
from densing.efficiency.parallel.pipeline.coding import Coding  # noqa: E402
from densing.efficiency.parallel.pipeline.virtual import VirtualEdge, train_stages  # noqa: E402

SPEC = RunSpec("pipeline", model=LmShape(layers=3, hidden=16, heads=2, ffn=24), batch=4, sequence=16, steps=3, lr=1e-2)
ROWS = hnp.arrays(np.float32, (6, 10), elements=st.floats(-100, 100, width=32), unique=True)


def largest(values: np.ndarray, count: int) -> np.ndarray:
    """The entries of greatest size, 0 elsewhere: numpy's sort as the second opinion."""
    flat = values.reshape(-1)
    kept = np.zeros_like(flat)
    where = np.argsort(-np.abs(flat), kind="stable")[:count]
    kept[where] = flat[where]
    return kept.reshape(values.shape)


@given(ROWS, ROWS, st.sampled_from([0.05, 0.3, 0.5]))
def test_the_largest_arrive_both_ways(there: np.ndarray, back: np.ndarray, share: float) -> None:
    sizes = [np.abs(values) for values in (there, back)]
    if any(len(np.unique(size)) < size.size for size in sizes):
        return
    edge = VirtualEdge(Coding("topk", share))
    x = torch.from_numpy(there).requires_grad_()
    passed = edge(x)
    passed.backward(torch.from_numpy(back))
    count = round(share * there.size)
    np.testing.assert_array_equal(passed.detach().numpy(), largest(there, count))
    np.testing.assert_array_equal(x.grad.numpy(), largest(back, count))
    # A mark and a number, places as bits or as indices, and values, each way.
    assert edge.sent == 2 * (4 + 4 + min(4 * count, 8) + 4 * count) and edge.dense == 2 * 4 * 60


def test_with_edges_that_keep_everything_it_is_plain_training() -> None:
    plain = train_stages(SPEC, cuts=())
    staged = train_stages(SPEC, cuts=(1, 2), shares=(1.0, 1.0))
    assert staged.losses == plain.losses and staged.final_loss == plain.final_loss
    assert plain.sent == () and len(staged.sent) == 2


def test_the_seed_alone_decides_and_less_is_another_training() -> None:
    first, again = (train_stages(SPEC, cuts=(1, 2), shares=(1.0, 0.1)) for _ in range(2))
    assert first == again
    assert first.losses != train_stages(SPEC, cuts=(1, 2), shares=(1.0, 1.0)).losses
    assert first.sent[1] < 0.2 * first.sent[0]

"""Ranks of a real group compute what one process computes: outputs and gradients, schedule by schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from densing.efficiency.parallel.distributed.lm import build_lm
from densing.efficiency.parallel.tensor_parallel.model import cross_entropy, cut, join
from tests.support import folders
from tests.support.gloo_ranks import ranks_of
from tests.support.tensor_parallel_runs import CASES, SEED, SEQUENCE, SHAPE, batch

pytestmark = pytest.mark.slow

RUNS = folders.SUPPORT / "tensor_parallel_runs.py"


def started(world: int, folder: Path) -> list[dict[str, Any]]:
    ranks_of(str(RUNS), world, folder, "compute")
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(world)]


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return started(request.param, tmp_path_factory.mktemp("ranks"))


def alone(name: str) -> tuple[torch.Tensor, float, dict[str, torch.Tensor]]:
    """The same model, whole, in this process, by plain autograd."""
    schedule = CASES[name]
    model = build_lm(SHAPE, SEQUENCE, SEED, schedule.wiring, schedule.ladder_layers)
    logits = model(batch()[:, :-1])
    loss = cross_entropy(logits, batch()[:, 1:])
    loss.backward()
    return logits.detach(), float(loss.detach()), {n: weight.grad for n, weight in model.named_parameters()}


@pytest.mark.parametrize("name", CASES)
def test_a_group_computes_what_one_process_does(ranks: list[dict[str, Any]], name: str) -> None:
    logits, loss, gradients = alone(name)
    for rank in ranks:
        torch.testing.assert_close(rank[name]["logits"], logits, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(rank[name]["plain logits"], logits, rtol=1e-4, atol=1e-6)
        assert rank[name]["loss"] == pytest.approx(loss, rel=1e-5)
    for way in ("gradients", "plain gradients"):
        joined = join([rank[name][way] for rank in ranks])
        torch.testing.assert_close(joined, gradients, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_what_all_ranks_hold_stays_equal_bit_by_bit(ranks: list[dict[str, Any]], name: str) -> None:
    first, *others = ranks
    for other in others:
        assert torch.equal(first[name]["logits"], other[name]["logits"])
        for weight in ("embedding.weight", "norm.weight", "head.weight", "blocks.1.attention_norm.weight"):
            assert torch.equal(first[name]["gradients"][weight], other[name]["gradients"][weight])


def test_sums_are_counted(ranks: list[dict[str, Any]]) -> None:
    buffer = 2 * SEQUENCE * SHAPE.hidden * 4
    counts = {name: ranks[0][name]["forward"] for name in CASES}
    # Two sums per layer (arXiv 1909.08053, section 3), one where attention and feed-forward share theirs.
    assert counts["tensor-parallel"] == (6, 6 * buffer)
    assert counts["ladder"] == (6, 6 * buffer)
    assert counts["parallel-attention"] == (3, 3 * buffer)
    assert counts["iso"] == (12, 6 * buffer)
    assert counts["t3, five tiles"] == (30, 6 * buffer)
    for name, (count, _) in counts.items():
        assert ranks[0][name]["sums"] == 2 * count
        assert ranks[0][name]["seconds"] > 0


def test_cut_and_join_are_inverse() -> None:
    state = build_lm(SHAPE, SEQUENCE, SEED).state_dict()
    parts = [cut(state, rank, 3) for rank in range(3)]
    again = join(parts)
    assert all(torch.equal(again[name], value) for name, value in state.items())
    assert parts[1]["blocks.0.mlp.up.weight"].shape == (16, 48)
    assert torch.equal(parts[1]["blocks.0.attention.q.weight"], state["blocks.0.attention.q.weight"][16:32])

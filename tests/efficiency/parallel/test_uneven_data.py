"""Ranks with different numbers of batches: finish() takes part in the others' rounds. Its own script, for gloo."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this build of torch has no torch.distributed", allow_module_level=True)

from densing.efficiency.parallel.data_parallel.link import split_groups  # noqa: E402
from densing.training import CO2, LocalSGD, SlowMo  # noqa: E402
from tests.support.gloo_ranks import fork_ranks, ranks_of  # noqa: E402

LR, TAU = 0.1, 3
STEPS = {"even": (6, 6, 6), "within a round": (7, 8, 6), "rounds apart": (4, 11, 0), "one has none": (0, 3, 0)}
METHODS: dict[str, Callable[..., Any]] = {
    "local-sgd": LocalSGD,
    "slowmo": lambda *given: SlowMo(*given, slow_momentum=0.4),
    "co2": lambda *given: CO2(*given, gap="constant", outer_momentum=0.3),
}


def train(method: str, steps: int, rank: int, epochs: int) -> dict[str, Any]:
    """Pull a number towards this rank's own target; a scheduler lowers the rate as long as there is data."""
    model = torch.nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        model.weight.fill_(1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    rate = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    wrapped = METHODS[method](model, optimizer, TAU)
    ends = []
    for _ in range(epochs):
        for _ in range(steps):
            optimizer.zero_grad()
            (0.5 * (model.weight - 10.0 * (rank + 1)).square()).sum().backward()
            wrapped.step()
            rate.step()
        wrapped.finish()
        ends.append(float(model.weight))
    return {"ends": ends, "round": wrapped.round}


def by_hand(method: str, steps: tuple[int, ...], epochs: int) -> list[float]:
    """The same with arrays over the ranks, in one process."""
    n = len(steps)
    x, rate, target = np.ones(n), np.full(n, LR), 10.0 * np.arange(1, n + 1)
    anchor = previous = 1.0
    momentum, late, ends = 0.0, None, []

    def average(count: np.ndarray[Any, Any]) -> None:
        nonlocal x, anchor, previous, momentum, late
        mean = float(np.float32(x).mean())
        if method == "local-sgd":
            anchor = mean
        elif method == "slowmo":
            # The scheduler steps after the step that ends a full round, and before finish() ends one that was begun.
            lr = float((count * np.where(count == TAU, rate / 0.9, rate)).sum() / count.sum())
            momentum = 0.4 * momentum + (anchor - mean) / lr
            anchor -= lr * momentum
        else:
            apply()
            late = mean
        x = np.full(n, anchor)

    def apply() -> None:
        nonlocal anchor, previous, momentum, late
        if late is None:
            previous = anchor
            return
        momentum = 0.3 * momentum + (previous - late)
        late, previous, anchor = None, anchor, anchor - momentum

    for _ in range(epochs):
        left = np.array(steps)
        while left.any():
            count = np.minimum(left, TAU)
            for step in range(TAU):
                moves = step < count
                x = np.where(moves, x - rate * (x - target), x)
                rate = np.where(moves, 0.9 * rate, rate)
            left = left - count
            average(count)
        if late is not None:
            apply()
            x = np.full(n, anchor)
        ends.append(float(x[0]))
    return ends


def even_and_uneven(rank: int, size: int) -> dict[str, Any]:
    return {
        f"{method}, {case}": train(method, steps[rank], rank, epochs=2)
        for method in METHODS
        for case, steps in STEPS.items()
        if any(steps[:size])
    }


def inner_groups(rank: int, _: int) -> dict[str, Any]:
    """Gradients are averaged inside in every step: ranks of a group that stop apart are told so, all of them."""
    within, across = split_groups(2)
    model = torch.nn.Linear(2, 1)
    co2 = CO2(model, torch.optim.SGD(model.parameters(), lr=LR), TAU, group=across, inner_group=within)
    try:
        for _ in range(5 if rank % 2 else 4):
            model(torch.ones(1, 2)).sum().backward()
            co2.step()
        co2.finish()
    except Exception as error:
        return {"says": str(error)}
    return {"says": ""}


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return ranks_of(__file__, request.param, tmp_path_factory.mktemp(f"uneven{request.param}"), "uneven")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", STEPS)
def test_ranks_that_run_out_of_data_end_where_the_others_do(
    ranks: list[dict[str, Any]], method: str, case: str
) -> None:
    """Who has no data stays where it is and counts, as in torch's join: the oracle has all ranks in one array."""
    found = [rank[f"{method}, {case}"] for rank in ranks]
    assert all(rank == found[0] for rank in found)
    assert found[0]["ends"] == pytest.approx(by_hand(method, STEPS[case][: len(ranks)], epochs=2), rel=1e-5)


@pytest.mark.slow
def test_ranks_of_an_inner_group_that_stop_apart_are_told_so_on_all_of_them(tmp_path: Path) -> None:
    told = {rank["says"] for rank in ranks_of(__file__, 4, tmp_path, "inner")}
    assert len(told) == 1 and "1 of the 2 ranks of an inner group ran out of batches" in told.pop()


if __name__ == "__main__":
    fork_ranks(even_and_uneven if sys.argv[1] == "uneven" else inner_groups)

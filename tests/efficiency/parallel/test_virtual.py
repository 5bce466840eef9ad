"""Virtual ranks: the bits of a run over gloo, an order that is the ranks', bytes counted, and nobody left hanging."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this build of torch has no torch.distributed", allow_module_level=True)

from contextlib import nullcontext  # noqa: E402

from densing.core import InputError  # noqa: E402
from densing.efficiency.parallel import Replica, VirtualMethods, VirtualRanks  # noqa: E402
from densing.efficiency.systems.co2.run import CO2  # noqa: E402
from densing.efficiency.systems.dct.run import DCT, TopKGradients  # noqa: E402
from densing.efficiency.systems.ddp.run import DDP  # noqa: E402
from densing.efficiency.systems.diloco.run import DiLoCo  # noqa: E402
from densing.efficiency.systems.fedft.run import Federated, FedFT, Int8Delta, TopKDelta  # noqa: E402
from densing.efficiency.systems.local_sgd.run import LocalSGD, SlowMo  # noqa: E402
from densing.training import DelayedNesterov, Dense, Half, Int8, Outer, Synchronous, TopK  # noqa: E402
from tests.support.gloo_ranks import fork_ranks, ranks_of  # noqa: E402

STEPS = 11
WIDTH = 60
"""Of the hidden layer: codecs send tensors below 256 elements as they are."""
METHODS: dict[str, tuple[Any, dict[str, Any]]] = {
    "ddp": (DDP, {}),
    "co2": (CO2, {"tau": 3}),
    "co2 warm": (CO2, {"tau": 2, "warmup_rounds": 1, "clip": 0.01}),
    "local-sgd": (LocalSGD, {"tau": 4}),
    "slowmo": (SlowMo, {"tau": 3, "slow_momentum": 0.4}),
    "diloco": (DiLoCo, {"tau": 3}),
    "diloco streaming": (DiLoCo, {"tau": 6, "fragments": 2, "delay": 2, "mix": 0.5}),
    "dct": (DCT, {"eta": 0.8, "refresh": 3}),
    "topk": (TopKGradients, {"share": 0.1}),
    "fedavg": (Federated, {"tau": 3, "mu": 0.1, "clients": 6}),
    "fedft": (FedFT, {"tau": 4, "keep": 0.5}),
    "fedft largest": (FedFT, {"tau": 4, "keep": 0.5, "rule": "magnitude"}),
    "topk-delta": (TopKDelta, {"tau": 4, "share": 0.3}),
    "int8-delta": (Int8Delta, {"tau": 4}),
    "diloco coded": (DiLoCo, {"tau": 6, "fragments": 2, "delay": 2, "mix": 0.5, "codec": Int8}),
    "co2 coded": (CO2, {"tau": 3, "codec": partial(TopK, 0.3)}),
    "outer dense": (Outer, {"tau": 3, "codec": Dense, "outer_optimizer": DelayedNesterov(), "delay": "round"}),
    "synchronous": (Synchronous, {"codec": Half}),
}


def replica(seed: int) -> Replica:
    """Return a small network whose initialisation is the rank's own, so that the copy at the start shows."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(5, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 3))
    return Replica(
        model, partial(torch.optim.AdamW, lr=0.02), nullcontext, lambda trial: trial(torch.zeros(2, 5)).sum()
    )


def batch(rank: int, step: int) -> Any:
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(100 * step + rank))


def listed(model: Any) -> list[float]:
    return [float(x) for parameter in model.parameters() for x in parameter.detach().flatten()]


def real(rank: int, ranks: int) -> dict[str, Any]:
    """Train this rank over gloo with every method."""
    results = {}
    for name, (kind, knobs) in METHODS.items():
        method = replica(rank).wrap(kind, **knobs)
        for step in range(STEPS):
            method.optimizer.zero_grad()
            method.backward(method.model(batch(rank, step)).square().mean())
            method.step()
        method.finish()
        results[name] = listed(method.model)
    return results


def virtual(name: str, ranks: int, order: tuple[int, ...] | None = None, break_at: int = -1) -> VirtualMethods:
    kind, knobs = METHODS[name]

    def fresh() -> VirtualMethods:
        return VirtualMethods([replica(rank) for rank in range(ranks)], lambda own: own.wrap(kind, **knobs), order)

    team = fresh()
    for step in range(STEPS):
        if step == break_at:
            saved = (team.state_dict(), [(m.model.state_dict(), m.optimizer.state_dict()) for m in team.methods])
            saved = torch.load(_saved(saved), weights_only=True)
            team = fresh()
            for method, (model, optimizer) in zip(team.methods, saved[1], strict=True):
                method.model.load_state_dict(model)
                method.optimizer.load_state_dict(optimizer)
            team.load_state_dict(saved[0])
        for method in team.methods:
            method.optimizer.zero_grad()
        team.backward([m.model(batch(rank, step)).square().mean() for rank, m in enumerate(team.methods)])
        team.step()
    team.finish()
    return team


def _saved(state: Any) -> Any:
    import io

    stream = io.BytesIO()
    torch.save(state, stream)
    stream.seek(0)
    return stream


@pytest.mark.slow
def test_two_virtual_ranks_have_the_bits_of_two_ranks_over_gloo(tmp_path: Path) -> None:
    results = ranks_of(__file__, 2, tmp_path)
    for name in METHODS:
        team = virtual(name, 2)
        for rank, method in enumerate(team.methods):
            assert listed(method.model) == results[rank][name], name


@pytest.mark.parametrize("name", METHODS)
def test_all_ranks_end_equal_and_a_run_has_the_same_bits_again(name: str) -> None:
    one, other = virtual(name, 3), virtual(name, 3)
    assert len({tuple(listed(method.model)) for method in one.methods}) == 1
    assert listed(one.methods[0].model) == listed(other.methods[0].model)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("step", [1, 5, 7])
def test_a_state_goes_on_bit_by_bit(name: str, step: int) -> None:
    whole, broken = virtual(name, 2), virtual(name, 2, break_at=step)
    assert listed(whole.methods[0].model) == listed(broken.methods[0].model)
    assert whole.sent == broken.sent


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 7), st.data())
def test_a_mean_is_taken_in_the_order_said(size: int, data: st.DataObject) -> None:
    order = tuple(data.draw(st.permutations(range(size))))
    values = [torch.tensor([10.0 ** (rank % 5) / 3]) for rank in range(size)]
    total = values[order[0]].clone()
    for rank in order[1:]:
        total += values[rank]
    ranks, tensors = VirtualRanks(size, order), [value.clone() for value in values]
    ranks.run(lambda rank: ranks.links[rank].mean(tensors[rank]))
    assert {float(tensor) for tensor in tensors} == {float(total / size)}


def test_another_order_of_sums_changes_last_bits_only() -> None:
    one, other = (virtual("ddp", 3, order).methods[0].model for order in (None, (2, 0, 1)))
    assert listed(one) != listed(other)
    assert listed(one) == pytest.approx(listed(other), abs=1e-4)


def test_bytes_are_those_of_a_ring() -> None:
    n = 5 * WIDTH + WIDTH + WIDTH * 3 + 3
    # 2 (k - 1) / k of the buffer: the gradients of every step; or parameters and three float64 for each round.
    assert virtual("ddp", 4).sent == pytest.approx(STEPS * 1.5 * 4 * n)
    # Rounds end after steps 4 and 8, and early in finish().
    assert virtual("local-sgd", 4).sent == pytest.approx(1.5 * 3 * (4 * n + 24))
    assert virtual("local-sgd", 1).sent == 0


def test_who_fails_ends_all_and_is_named() -> None:
    ranks = VirtualRanks(3)

    def work(rank: int) -> None:
        if rank == 1:
            raise ValueError("rank 1 it was")
        ranks.links[rank].mean(torch.zeros(1))

    with pytest.raises(ValueError, match="rank 1 it was"):
        ranks.run(work)
    assert ranks.run(lambda rank: ranks.links[rank].mean(torch.zeros(1)) and rank) == [0, 1, 2]


def test_a_rank_that_stays_away_is_no_deadlock() -> None:
    ranks = VirtualRanks(2)
    with pytest.raises(InputError, match="wait for one that has already finished"):
        ranks.run(lambda rank: ranks.links[rank].mean(torch.zeros(1)) if rank else None)
    ranks = VirtualRanks(2)
    with pytest.raises(InputError, match="same operations"):
        ranks.run(lambda rank: ranks.links[rank].mean(torch.zeros(1 + rank)))


@pytest.mark.parametrize("size", [0, 65, -1])
def test_sizes_are_limited(size: int) -> None:
    with pytest.raises(InputError, match="virtual ranks"):
        VirtualRanks(size)
    with pytest.raises(InputError, match="order"):
        VirtualRanks(2, (0, 0))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))
    fork_ranks(real)

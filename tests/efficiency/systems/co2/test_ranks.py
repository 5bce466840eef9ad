"""CO2 between real ranks over gloo: this file is its own script, which forks them."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this build of torch has no torch.distributed", allow_module_level=True)

from densing.training import CO2, LocalSGD, SlowMo  # noqa: E402
from tests.support.co2_by_hand import Bowl, bowl, co2_by_hand, slope, steps_of  # noqa: E402
from tests.support.gloo_ranks import fork_ranks, ranks_of  # noqa: E402

pytestmark = pytest.mark.slow

LR = 0.02
SETTINGS: dict[str, dict[str, Any]] = {
    "released": {"gap": "constant", "outer_momentum": 0.5},
    "penalty": {"gap": "constant", "gap_penalty": 2.0, "outer_momentum": 0.2},
    "aware": {"gap": "aware", "outer_momentum": 0.5},
    "clipped": {"gap": "aware", "outer_momentum": 0.5, "clip": 0.01},
}


def listed(tensor: Any) -> list[float]:
    return [float(x) for x in tensor.detach().flatten()]


def own_bowl(rank: int, start: float = 1.0) -> Any:
    return Bowl(*bowl(10 + rank), np.full(3, start))


def curve(rank: int, options: dict[str, Any], rounds: int = 6, tau: int = 3) -> dict[str, Any]:
    """Train on this rank's own bowl; ranks begin apart, so that the copy at the start shows."""
    model = own_bowl(rank, start=1.0 + rank)
    torch.distributed.barrier()
    # Each rank's target is its own: only trainable parameters and buffers are copied, so put the bowl back.
    own = {name: buffer.clone() for name, buffer in model.named_buffers()}
    co2 = CO2(model, torch.optim.SGD(model.parameters(), lr=LR), tau, **options)
    for name, buffer in model.named_buffers():
        buffer.copy_(own[name])
    anchors, middle = [listed(co2.anchor)], []
    for _ in range(rounds):
        steps_of(co2, model, tau - 1)
        middle.append(listed(model.x))
        steps_of(co2, model, 1)
        anchors.append(listed(co2.anchor))
    return {"anchors": anchors, "middle": middle, "under_way": co2.under_way, "seconds": len(co2.seconds)}


def resumed(rank: int) -> dict[str, Any]:
    """Save in mid-round with an average under way, go on; then load into fresh objects and go on again."""

    def fresh() -> tuple[Any, ...]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        return model, optimizer, CO2(model, optimizer, 4, clip=0.02)

    def go(parts: tuple[Any, ...], steps: range) -> list[float]:
        model, optimizer, co2 = parts
        losses = []
        for step in steps:
            generator = torch.Generator().manual_seed(100 * rank + step)
            optimizer.zero_grad()
            loss = model(torch.randn(8, 5, generator=generator)).square().sum()
            loss.backward()
            co2.step()
            losses.append(float(loss))
        return losses

    first = fresh()
    go(first, range(14))
    saved = copy.deepcopy([part.state_dict() for part in first])
    unbroken = go(first, range(14, 31))
    second = fresh()
    for part, state in zip(second, saved, strict=True):
        part.load_state_dict(state)
    broken = go(second, range(14, 31))
    for parts in (first, second):
        parts[2].finish()
    ends = [listed(torch.nn.utils.parameters_to_vector(parts[0].parameters())) for parts in (first, second)]
    return {"unbroken": unbroken, "broken": broken, "ends": ends, "under_way": saved[2]["under_way"]}


def like_local_sgd(rank: int) -> dict[str, Any]:
    """CO2 that never leaves its warm-up, LocalSGD and torch's own averager; SlowMo without momentum."""
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    def end(wrap: Callable[[Any, Any], Any]) -> list[float]:
        model = own_bowl(0)
        wrapped = wrap(model, torch.optim.SGD(model.parameters(), lr=LR))
        for name, value in zip(("a", "b"), bowl(10 + rank), strict=True):
            getattr(model, name).copy_(torch.tensor(value))
        steps_of(wrapped, model, 9)
        return listed(model.x)

    class Theirs:
        def __init__(self, model: Any, optimizer: Any) -> None:
            self.model, self.optimizer = model, optimizer
            # It counts from 0 and averages before counting: the third step is its number 2.
            self.averager = PeriodicModelAverager(period=3, warmup_steps=2)

        def step(self) -> None:
            self.optimizer.step()
            self.averager.average_parameters(self.model.parameters())

    return {
        "co2": end(lambda model, optimizer: CO2(model, optimizer, 3, warmup_rounds=99)),
        "local": end(lambda model, optimizer: LocalSGD(model, optimizer, 3)),
        "slowmo": end(lambda model, optimizer: SlowMo(model, optimizer, 3, slow_momentum=0.0)),
        "torch": end(Theirs),
    }


def apart_from_live(rank: int) -> dict[str, Any]:
    """While an average is under way nobody writes the live parameters: they are what this rank's own steps make."""
    model, optimizer = own_bowl(rank), None
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    co2 = CO2(model, optimizer, 4)
    steps_of(co2, model, 4)
    handle = co2._handle
    assert handle is not None
    handle.wait()
    start, live = listed(co2.anchor), listed(model.x)
    shared = co2._buffer.untyped_storage().data_ptr() in {p.untyped_storage().data_ptr() for p in model.parameters()}
    return {"start": start, "live": live, "shared": shared}


def diverged(rank: int) -> dict[str, Any]:
    """One rank's NaN stops all of them, in the same round."""
    model = torch.nn.Linear(2, 2)
    co2 = CO2(model, torch.optim.SGD(model.parameters(), lr=0.1), 1)
    with torch.no_grad():
        if rank == 1:
            model.weight[0, 0] = float("nan")
    co2.advance()
    try:
        co2.advance()
    except Exception as error:
        return {"says": str(error)}
    return {"says": ""}


def pair(rank: int, _: int) -> dict[str, Any]:
    found: dict[str, Any] = {name: curve(rank, options) for name, options in SETTINGS.items()}
    return {
        **found,
        "resumed": resumed(rank),
        "local": like_local_sgd(rank),
        "apart": apart_from_live(rank),
        "nan": diverged(rank),
    }


def grouped(rank: int, sharded: bool) -> dict[str, Any]:
    """Two groups of two: gradients averaged inside, parameters across."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    from densing.efficiency.parallel.data_parallel.link import split_groups

    within, across = split_groups(2)
    model = own_bowl(0)
    if sharded:
        optimizer: Any = ZeroRedundancyOptimizer(
            model.parameters(), optimizer_class=torch.optim.SGD, process_group=within, lr=LR
        )
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    co2 = CO2(model, optimizer, 3, gap="constant", outer_momentum=0.3, group=across, inner_group=within)
    for name, value in zip(("a", "b"), bowl(10 + rank), strict=True):
        getattr(model, name).copy_(torch.tensor(value))
    anchors = [listed(co2.anchor)]
    for _ in range(5):
        steps_of(co2, model, 3)
        anchors.append(listed(co2.anchor))
    return {"anchors": anchors}


def coded(rank: int) -> dict[str, Any]:
    """The same groups with rows of bytes, which only the first of each group sends and receives."""
    from densing.efficiency.parallel.data_parallel.link import split_groups
    from densing.training import Int8

    within, across = split_groups(2)
    ends = {}
    for name, codec in (("whole", None), ("int8", Int8)):
        torch.manual_seed(0)
        model = torch.nn.Linear(300, 2)
        co2 = CO2(model, torch.optim.SGD(model.parameters(), lr=1e-3), 3, codec=codec, group=across, inner_group=within)
        generator = torch.Generator().manual_seed(rank)
        for _ in range(14):
            co2.optimizer.zero_grad()
            model(torch.randn(4, 300, generator=generator)).square().sum().backward()
            co2.step()
        co2.finish()
        ends[name] = listed(model.weight)
    return ends


def four(rank: int, _: int) -> dict[str, Any]:
    return {"plain": grouped(rank, sharded=False), "zero": grouped(rank, sharded=True), "coded": coded(rank)}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return ranks_of(__file__, 2, tmp_path_factory.mktemp("pair"), "pair")


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return ranks_of(__file__, 4, tmp_path_factory.mktemp("four"), "four")


@pytest.mark.parametrize("name", SETTINGS)
def test_anchors_are_the_pseudo_codes_and_bit_identical(two: list[dict[str, Any]], name: str) -> None:
    first, second = (rank[name] for rank in two)
    assert first["anchors"] == second["anchors"]
    assert all(a != b for a, b in zip(first["middle"], second["middle"], strict=True))
    options = SETTINGS[name]
    _, anchors = co2_by_hand(
        np.ones(3),
        [slope(*bowl(10)), slope(*bowl(11))],
        18,
        LR,
        3,
        1.0,
        options["outer_momentum"],
        options.get("clip"),
        options["gap"],
        options.get("gap_penalty", 1.0),
    )
    assert np.allclose(first["anchors"], anchors, rtol=1e-4, atol=1e-5)


def test_averages_are_one_round_late(two: list[dict[str, Any]]) -> None:
    found = two[0]["released"]
    assert found["anchors"][0] == found["anchors"][1] != found["anchors"][2]
    assert found["under_way"]
    # Six rounds started six averages, of which five have been waited for.
    assert found["seconds"] == 5


def test_resuming_in_mid_round_is_exact_between_ranks(two: list[dict[str, Any]]) -> None:
    for rank in two:
        assert rank["resumed"]["under_way"]
        assert rank["resumed"]["unbroken"] == rank["resumed"]["broken"]
        assert rank["resumed"]["ends"][0] == rank["resumed"]["ends"][1]
    assert two[0]["resumed"]["ends"] == two[1]["resumed"]["ends"]
    assert two[0]["resumed"]["unbroken"] != two[1]["resumed"]["unbroken"]


def test_local_sgd_is_torchs_and_what_co2_does_in_its_warm_up(two: list[dict[str, Any]]) -> None:
    for rank in two:
        assert rank["local"]["co2"] == rank["local"]["local"]
        assert rank["local"]["local"] == pytest.approx(rank["local"]["torch"], rel=1e-6)
        assert rank["local"]["slowmo"] == pytest.approx(rank["local"]["local"], rel=1e-4)
    assert two[0]["local"]["local"] == two[1]["local"]["local"]


def test_the_average_never_touches_live_parameters(two: list[dict[str, Any]]) -> None:
    for rank in two:
        assert not rank["apart"]["shared"]
        assert rank["apart"]["live"] == rank["apart"]["start"] == [1.0, 1.0, 1.0]


def test_one_ranks_nan_stops_all(two: list[dict[str, Any]]) -> None:
    assert "another rank" in two[0]["nan"]["says"]
    assert "parameter weight of this rank" in two[1]["nan"]["says"]


@pytest.mark.parametrize("name", ["plain", "zero"])
def test_two_groups_of_two_are_two_workers_with_averaged_gradients(groups: list[dict[str, Any]], name: str) -> None:
    assert all(rank[name]["anchors"] == groups[0][name]["anchors"] for rank in groups)
    slopes = [slope(*bowl(10 + rank)) for rank in range(4)]
    pairs = [lambda x: (slopes[0](x) + slopes[1](x)) / 2, lambda x: (slopes[2](x) + slopes[3](x)) / 2]
    _, anchors = co2_by_hand(np.ones(3), pairs, 15, LR, 3, 1.0, 0.3, None)
    assert np.allclose(groups[0][name]["anchors"], anchors, rtol=1e-4, atol=1e-5)


def test_groups_of_ranks_take_rows_of_bytes_too(groups: list[dict[str, Any]]) -> None:
    assert all(rank["coded"] == groups[0]["coded"] for rank in groups)
    whole, int8 = groups[0]["coded"]["whole"], groups[0]["coded"]["int8"]
    assert whole != int8 and np.allclose(whole, int8, atol=0.02 * np.abs(whole).max())


if __name__ == "__main__":
    fork_ranks({"pair": pair, "four": four}[sys.argv[1]])

"""Rounds across one dimension of a mesh, the model sharded over the other: four ranks over gloo. Its own script."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this build of torch has no torch.distributed", allow_module_level=True)

from densing import training  # noqa: E402
from densing.core import InputError  # noqa: E402
from densing.efficiency.parallel.data_parallel.link import split_groups  # noqa: E402
from tests.support.gloo_ranks import fork_ranks, ranks_of  # noqa: E402

pytestmark = pytest.mark.slow

METHODS: dict[str, Callable[..., Any]] = {
    "local-sgd": lambda model, optimizer, **groups: training.LocalSGD(model, optimizer, 3, **groups),
    "slowmo": lambda model, optimizer, **groups: training.SlowMo(model, optimizer, 3, **groups),
    "co2": lambda model, optimizer, **groups: training.CO2(model, optimizer, 3, clip=0.05, **groups),
    "diloco": lambda model, optimizer, **groups: training.DiLoCo(model, optimizer, 3, **groups),
    "delayed": lambda model, optimizer, **groups: training.DiLoCo(model, optimizer, 3, delay=1, mix=0.5, **groups),
    "streaming": lambda model, optimizer, **groups: training.DiLoCo(
        model, optimizer, 6, fragments=2, delay=1, mix=0.5, **groups
    ),
}
CUTS, STEPS, WIDTH = (3, 7), 11, 6
"""The end of a round, and mid-round with a mean under way."""


def network() -> Any:
    torch.manual_seed(0)
    # Five rows over two ranks: shards differ in size; dropout draws from each rank's generator.
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3, bias=False))


def sharded(mesh: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    model = network()
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh["inner"])
    return model


def adamw(model: Any) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=0.02)


def go(method: Any, rank: int, steps: range, spoilt: int = -1) -> None:
    for step in steps:
        batch = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(100 * rank + step))
        method.optimizer.zero_grad()
        loss = method.model(batch).square().sum()
        loss.backward()
        if step == spoilt and rank == 3:
            next(iter(method.model.parameters())).grad.to_local().fill_(float("nan"))
        method.step()


def whole(method: Any) -> list[float]:
    """Return all parameters, of all shards; fragments are parts of each shard, and so others than of a whole model."""
    tensors = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in method.model.parameters()]
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).tolist()


def said(work: Callable[[], Any]) -> str:
    try:
        work()
    except InputError as error:
        return str(error)
    return ""


def part(rank: int, out: Path) -> dict[str, Any]:
    import torch.distributed.checkpoint as dcp

    mesh = torch.distributed.init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    within, across = split_groups(2)
    found: dict[str, Any] = {}

    def make(name: str) -> Any:
        model = sharded(mesh)
        return METHODS[name](model, adamw(model), group=mesh["outer"])

    for name in METHODS:
        model = network()
        plain = METHODS[name](model, adamw(model), inner_group=within, group=across)
        go(plain, rank, range(STEPS))
        plain.finish()
        method, begun = make(name), 0
        for cut in CUTS:
            go(method, rank, range(begun, cut))
            dcp.save({"progress": training.RankState(method)}, checkpoint_id=out / f"{name}-{cut}")
            begun = cut
        go(method, rank, range(begun, STEPS))
        mid = whole(method)
        method.finish()
        found[name] = {"plain": whole(plain), "sharded": whole(method), "mid": mid, "resumed": []}
        for cut in CUTS:
            again = make(name)
            dcp.load({"progress": training.RankState(again)}, checkpoint_id=out / f"{name}-{cut}")
            go(again, rank, range(cut, STEPS))
            mid = whole(again)
            again.finish()
            found[name]["resumed"].append([mid, whole(again)])

    def of(make: Callable[[Any, Any], Any]) -> str:
        model = sharded(mesh)
        return said(lambda: make(model, adamw(model)))

    found["refused"] = {
        "no group": of(lambda model, optimizer: training.LocalSGD(model, optimizer, 3)),
        "inner": of(lambda model, optimizer: training.CO2(model, optimizer, 3, group=mesh["inner"])),
        "codec": of(
            lambda model, optimizer: training.Outer(model, optimizer, 3, codec=training.Int8, group=mesh["outer"])
        ),
        "dct": of(lambda model, optimizer: training.DCT(model, optimizer, group=mesh.get_group("outer"))),
        "rejoin": of(
            lambda model, optimizer: training.RoundCheckpoints(
                training.LocalSGD(model, optimizer, 3, group=mesh["outer"]), out / "rejoin"
            )
        ),
    }
    found["spoilt"] = said(lambda: go(make("local-sgd"), rank, range(6), spoilt=2))
    return found


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return ranks_of(__file__, 4, tmp_path_factory.mktemp("sharded"))


@pytest.mark.parametrize("name", [name for name in METHODS if name != "streaming"])
def test_a_sharded_model_trains_as_a_whole_one_with_inner_groups(four: list[dict[str, Any]], name: str) -> None:
    for rank in four:
        assert rank[name]["sharded"] == four[0][name]["sharded"]
        assert rank[name]["sharded"] == pytest.approx(rank[name]["plain"], abs=2e-6)


@pytest.mark.parametrize("name", METHODS)
def test_a_sharded_run_resumed_anywhere_is_the_unbroken_one_to_the_last_bit(
    four: list[dict[str, Any]], name: str
) -> None:
    for rank in four:
        assert rank[name]["resumed"] == [[rank[name]["mid"], rank[name]["sharded"]]] * len(CUTS)
    # In mid-round the two groups differ: one's copy would not do for both.
    assert four[0][name]["mid"] == four[1][name]["mid"] != four[2][name]["mid"]


def test_what_cannot_be_sharded_is_refused_on_every_rank(four: list[dict[str, Any]]) -> None:
    for rank in four:
        refused = rank["refused"]
        for name in ("no group", "inner"):
            assert "give the other one as group=mesh['outer']" in refused[name]
        for name in ("codec", "dct"):
            assert "Outer without a codec and with group=mesh['outer']" in refused[name]
        assert "shards fit as many ranks as before only; save a RankState" in refused["rejoin"]


def test_a_shard_that_is_not_finite_ends_the_round_on_all_ranks(four: list[dict[str, Any]]) -> None:
    for rank in four:
        assert rank["spoilt"].startswith("round 0: ") and "holds inf or NaN" in rank["spoilt"]


if __name__ == "__main__":
    fork_ranks(lambda rank, _: part(rank, Path(sys.argv[-1])))

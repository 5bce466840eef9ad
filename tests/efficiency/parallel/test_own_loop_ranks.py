"""Wrappers of one's own loop between real ranks over gloo: refused, overflowing and resumed. It is its own script."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this build of torch has no torch.distributed", allow_module_level=True)

from densing import training  # noqa: E402
from densing.core import InputError  # noqa: E402
from densing.efficiency.systems.fedft.run import Int8Delta, TopKDelta  # noqa: E402
from densing.efficiency.systems.zero.run import Sharded  # noqa: E402
from tests.support.gloo_ranks import fork_ranks, ranks_of  # noqa: E402

pytestmark = pytest.mark.slow

METHODS: dict[str, Callable[[Any, Any], Any]] = {
    "co2": lambda model, optimizer: training.CO2(model, optimizer, 4, clip=0.02),
    "local-sgd": lambda model, optimizer: training.LocalSGD(model, optimizer, 4),
    "slowmo": lambda model, optimizer: training.SlowMo(model, optimizer, 4),
    "diloco": lambda model, optimizer: training.DiLoCo(model, optimizer, 8, fragments=2, delay=2, mix=0.25),
    "fedft": lambda model, optimizer: training.FedFT(model, optimizer, 4, rule="magnitude", clients=4),
    "fedprox": lambda model, optimizer: training.Federated(model, optimizer, 4, mu=0.1),
    "topk-delta": lambda model, optimizer: TopKDelta(model, optimizer, 4),
    "int8-delta": lambda model, optimizer: Int8Delta(model, optimizer, 4),
    "spafl": lambda model, optimizer: training.SpaFL(model, optimizer, 4, lam=0.02),
    "dct": lambda model, optimizer: training.DCT(model, optimizer, eta=0.9, refresh=5),
    "topk": lambda model, optimizer: training.TopKGradients(model, optimizer, share=0.05),
    "powersgd": lambda model, optimizer: training.PowerSGD(model, optimizer, rank=2),
    "outer": lambda model, optimizer: training.Outer(
        model, optimizer, 8, fragments=2, delay=2, codec=training.Int8, outer_optimizer=training.DelayedNesterov()
    ),
    "outer late": lambda model, optimizer: training.Outer(
        model,
        optimizer,
        4,
        delay="round",
        codec=lambda: training.TopK(0.1),
        outer_optimizer=training.Nesterov(0.5, 0.5),
    ),
    "synchronous": lambda model, optimizer: training.Synchronous(model, optimizer, training.Int8),
}
RESIDUALS = ("dct", "topk", "powersgd", "synchronous")
CUTS, STEPS = (8, 11, 14), 19
"""The end of a round, where CO2's average has just begun; and twice in mid-round, with one under way."""
WIDTH = 24


def network(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    # Dropout draws from the generator, which a resumed run has to continue as well.
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 32), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(32, WIDTH),
        torch.nn.BatchNorm1d(WIDTH), torch.nn.Linear(WIDTH, 3),
    )  # fmt: skip


def adamw(parameters: Any) -> Any:
    return torch.optim.AdamW(parameters, lr=0.01)


def made(name: str) -> Any:
    model = network()
    if name == "zero1":
        return Sharded(model, adamw, bucket_mb=0.002)
    return METHODS[name](model, adamw(model.parameters()))


def loss_of(method: Any, rank: int, step: int) -> Any:
    batch = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(100 * rank + step))
    return method.model(batch).square().sum()


def go(method: Any, rank: int, steps: range) -> None:
    for step in steps:
        method.optimizer.zero_grad()
        method.backward(loss_of(method, rank, step))
        method.step()


def bits(method: Any) -> list[str]:
    """Return this rank's parameters and buffers to the last bit, and after the end of its rounds too."""
    parts = [tensor.detach().double().flatten() for tensor in method.model.state_dict().values()]
    return [value.hex() for value in torch.cat(parts).tolist()]


def resumed(name: str, rank: int, out: Path) -> dict[str, Any]:
    """Save by torch.distributed.checkpoint at each cut of a run; load into fresh objects, and go on from there."""
    import torch.distributed.checkpoint as dcp

    unbroken = made(name)
    begun = 0
    for cut in CUTS:
        go(unbroken, rank, range(begun, cut))
        dcp.save({"progress": training.RankState(unbroken)}, checkpoint_id=out / f"{name}-{cut}")
        begun = cut
    go(unbroken, rank, range(begun, STEPS))
    before = bits(unbroken)
    unbroken.finish()
    whole, broken = [before, bits(unbroken)], {}
    for cut in CUTS:
        method = made(name)
        torch.manual_seed(1000 + cut)
        dcp.load({"progress": training.RankState(method)}, checkpoint_id=out / f"{name}-{cut}")
        go(method, rank, range(cut, STEPS))
        before = bits(method)
        method.finish()
        broken[str(cut)] = [before, bits(method)]
    return {"whole": whole, "broken": broken}


def under_one_name(name: str, out: Path) -> str:
    """Return what is said where ranks save under one name, which torch takes for copies of one thing."""
    import torch.distributed.checkpoint as dcp

    method = made(name)
    go(method, torch.distributed.get_rank(), range(6))
    dcp.save({"method": method.state_dict()}, checkpoint_id=out / f"naive-{name}")
    fresh = made(name)
    state = {"method": fresh.state_dict()}
    dcp.load(state, checkpoint_id=out / f"naive-{name}")
    return said(lambda: fresh.load_state_dict(state["method"]))


def said(work: Callable[[], Any]) -> str:
    try:
        work()
    except InputError as error:
        return str(error)
    return ""


def refusals(rank: int) -> dict[str, dict[str, str]]:
    """Return what each wrapper says of models that it cannot average; some of them are wrong on rank 1 alone."""
    from torch.distributed.fsdp import fully_shard

    def of(name: str, model: Any) -> str:
        return said(lambda: METHODS[name](model, torch.optim.SGD(model.parameters(), lr=0.1)))

    def wrapped(alone: bool) -> Any:
        ddp = torch.nn.parallel.DistributedDataParallel(network())
        return network() if alone and rank == 0 else ddp

    def spread() -> Any:
        model = network()
        if rank == 1:
            model[0].to("meta")
        return model

    def sharded() -> Any:
        model = network()
        fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (2,)))
        return model

    def other(shape: bool) -> Any:
        model = network()
        if rank == 1:
            model.append(torch.nn.Linear(3, 3) if not shape else torch.nn.Identity())
            model[0] = torch.nn.Linear(WIDTH, 32, bias=not shape) if not shape else torch.nn.Linear(WIDTH, 33)
        return model

    found = {}
    for name in METHODS:
        found[name] = {
            "ddp": of(name, wrapped(alone=False)),
            "ddp on one": of(name, wrapped(alone=True)),
            "devices": of(name, spread()),
            "fsdp": of(name, sharded()),
            "shape": of(name, other(shape=True)),
            "number": of(name, other(shape=False)),
        }
    return found


def other_states(rank: int) -> dict[str, str]:
    """Load a state of another method on rank 1 alone: both ranks must be told."""
    found = {}
    for name in METHODS:
        method, other = made(name), made("local-sgd" if name != "local-sgd" else "slowmo")
        state = other.state_dict() if rank == 1 else method.state_dict()
        found[name] = said(lambda method=method, state=state: method.load_state_dict(state))
    return found


def memory_of(method: Any) -> list[str]:
    """Return the residuals (and factors), to the last bit."""
    state = method.state_dict()
    parts = [state["residual"]] if "residual" in state else [*state["residuals"], *state["factors"]]
    return [value.hex() for part in parts for value in part.flatten().tolist()]


def overflow(name: str, rank: int, clipped: bool) -> dict[str, Any]:
    """Train with a real gradient scaler; in step 9 the scaled gradient of rank 1 overflows."""
    method, scaler = made(name), torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
    scales, kept, moved = [], True, []
    for step in range(STEPS):
        method.optimizer.zero_grad()
        loss = scaler.scale(loss_of(method, rank, step))
        if step == 9 and rank == 1:
            loss = loss * torch.tensor(3e38)
        before, weights = (memory_of(method) if step > 3 else []), bits(method)
        if clipped and name != "powersgd":
            method.backward(loss, scaler)
            torch.nn.utils.clip_grad_norm_(method.model.parameters(), 1e6)
        else:
            loss.backward()
        method.step(scaler)
        scaler.update()
        if step == 9:
            kept = memory_of(method) == before
        numbers = [p for p, _ in zip(weights, bits(method), strict=True)]
        parameters = sum(p.numel() for p in method.flat.parameters)
        moved.append(numbers[:parameters] != bits(method)[:parameters])
        scales.append(scaler.get_scale())
    finite = all(bool(torch.isfinite(p).all()) for p in method.flat.parameters)
    weights = [value.hex() for p in method.flat.parameters for value in p.detach().flatten().tolist()]
    return {"scales": scales, "kept": kept, "moved": moved, "finite": finite, "weights": weights}


def without_scaler(name: str, rank: int) -> dict[str, Any]:
    method = made(name)
    go(method, rank, range(6))
    before = memory_of(method)
    loss = loss_of(method, rank, 6) * (float("inf") if rank == 1 else 1.0)
    method.optimizer.zero_grad()
    return {"said": said(lambda: (method.backward(loss), method.step())), "kept": memory_of(method) == before}


def everything(rank: int, out: Path) -> dict[str, Any]:
    began = time.monotonic()
    refused, states = refusals(rank), other_states(rank)
    return {
        "refused": refused,
        "states": states,
        "seconds": time.monotonic() - began,
        "resumed": {name: resumed(name, rank, out) for name in (*METHODS, "zero1")},
        "naive": {name: under_one_name(name, out) for name in ("co2", "slowmo", "dct", "spafl")},
        "overflow": {name: [overflow(name, rank, clipped) for clipped in (False, True)] for name in RESIDUALS},
        "spoilt": {name: without_scaler(name, rank) for name in RESIDUALS},
    }


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return ranks_of(__file__, 2, tmp_path_factory.mktemp("own-loop"))


@pytest.mark.parametrize("name", [*METHODS, "zero1"])
def test_a_run_resumed_anywhere_is_the_unbroken_one_to_the_last_bit(two: list[dict[str, Any]], name: str) -> None:
    for rank in two:
        whole, broken = rank["resumed"][name]["whole"], rank["resumed"][name]["broken"]
        assert broken == {str(cut): whole for cut in CUTS}
    if name in ("co2", "local-sgd", "slowmo"):
        # In mid-round ranks differ: one rank's copy would not do for both.
        assert two[0]["resumed"][name]["whole"][0] != two[1]["resumed"][name]["whole"][0]


@pytest.mark.parametrize("name", ["co2", "slowmo", "dct", "spafl"])
def test_states_saved_under_one_name_are_refused_on_every_rank(two: list[dict[str, Any]], name: str) -> None:
    for rank in two:
        assert re.search("rank (0 was given the state of rank 1|1 was given the state of rank 0)", rank["naive"][name])
        assert "save a densing.training.RankState" in rank["naive"][name]


SENTENCES = {
    "ddp": "the model is wrapped in DistributedDataParallel",
    "ddp on one": "rank 1: the model is wrapped in DistributedDataParallel",
    "devices": "the model lies on 2 devices (cpu, meta); move it to one device per process",
    "fsdp": "the model is sharded ",
    "shape": "rank 1 has 0.weight (33, 24) of float32, rank 0 has 0.weight (32, 24) of float32",
    "number": "ranks have different trainable parameters",
}


@pytest.mark.parametrize("trouble", SENTENCES)
@pytest.mark.parametrize("name", METHODS)
def test_a_model_that_cannot_be_averaged_is_refused_on_every_rank(
    two: list[dict[str, Any]], name: str, trouble: str
) -> None:
    kind = {"topk-delta": TopKDelta, "int8-delta": Int8Delta}.get(name)
    technique = kind.__name__ if kind else two[0]["refused"][name]["ddp"].partition(":")[0]
    assert technique in (*training.__all__, "TopKDelta", "Int8Delta")
    for number, rank in enumerate(two):
        message = rank["refused"][name][trouble]
        assert message.startswith(f"{technique}: ")
        expected = SENTENCES[trouble]
        # The rank itself does not say which it is.
        assert (expected.removeprefix("rank 1: ") if number == 1 else expected) in message
    assert two[0]["seconds"] < 120


@pytest.mark.parametrize("name", METHODS)
def test_a_state_of_another_method_on_one_rank_is_refused_on_all(two: list[dict[str, Any]], name: str) -> None:
    saved_by = "LocalSGD" if name != "local-sgd" else "SlowMo"
    for rank in two:
        assert f"the state was saved by {saved_by}; load one of " in rank["states"][name]


@pytest.mark.parametrize("name", RESIDUALS)
def test_an_overflow_on_one_rank_skips_the_step_on_all(two: list[dict[str, Any]], name: str) -> None:
    for first, second in zip(two[0]["overflow"][name], two[1]["overflow"][name], strict=True):
        assert first["scales"] == second["scales"] and first["weights"] == second["weights"]
        assert first["scales"][9] == first["scales"][8] / 2
        for rank in (first, second):
            assert rank["kept"] and rank["finite"]
            assert [step for step, moves in enumerate(rank["moved"]) if not moves] == [9]


@pytest.mark.parametrize("name", RESIDUALS)
def test_without_a_scaler_all_ranks_stop_and_keep_their_residuals(two: list[dict[str, Any]], name: str) -> None:
    for rank in two:
        assert "holds inf or NaN" in rank["spoilt"][name]["said"]
        assert "give step() the scaler" in rank["spoilt"][name]["said"] and rank["spoilt"][name]["kept"]


if __name__ == "__main__":
    fork_ranks(lambda rank, _: everything(rank, Path(sys.argv[-1])))

"""Hooks of DistributedDataParallel on real ranks over gloo, beside our wrappers. This file is its own script."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this build of torch has no torch.distributed", allow_module_level=True)

from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from densing import training  # noqa: E402
from densing.core import InputError, UnknownNameError  # noqa: E402
from densing.efficiency.parallel import Link, comm  # noqa: E402
from densing.efficiency.simulation import sizes  # noqa: E402
from tests.support.gloo_ranks import fork_ranks, ranks_of  # noqa: E402

pytestmark = pytest.mark.slow

WIDTH, STEPS, BAD = 40, 9, 5
HOOKS: dict[str, dict[str, Any]] = {
    "int8": {"block": 100},
    "top-k": {"share": 0.05},
    "dct": {"eta": 0.9, "refresh": 4},
    "powersgd": {"rank": 2},
}
CLASSES: dict[str, Callable[[Any, Any], Any]] = {
    "int8": lambda model, optimizer: training.Synchronous(model, optimizer, lambda: training.Int8(block=100)),
    "top-k": lambda model, optimizer: training.TopKGradients(model, optimizer, **HOOKS["top-k"]),
    "dct": lambda model, optimizer: training.DCT(model, optimizer, **HOOKS["dct"]),
    "powersgd": lambda model, optimizer: training.PowerSGD(model, optimizer, **HOOKS["powersgd"]),
}
CUTS = (1, 4)
"""Before DDP cuts its buckets anew, and after; in mid-period of the threshold."""


def network() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64, bias=False), torch.nn.Tanh(),
        torch.nn.Linear(64, WIDTH), torch.nn.Linear(WIDTH, 3),
    )  # fmt: skip


def sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loss_of(model: Any, rank: int, step: int, samples: int = 8) -> Any:
    batch = torch.randn(samples, WIDTH, generator=torch.Generator().manual_seed(100 * rank + step))
    return model(batch).square().sum()


def hooked(name: str, scaler: Any = None, bucket_mb: float = 0.01, group: Any = None, **knobs: Any) -> Any:
    ddp = DistributedDataParallel(network(), bucket_cap_mb=bucket_mb, process_group=group)
    return ddp, sgd(ddp), training.ddp_hook(name, ddp, scaler=scaler, **(knobs or HOOKS[name]))


def bits(model: Any) -> list[str]:
    return [value.hex() for p in model.parameters() for value in p.detach().flatten().tolist()]


def go(ddp: Any, optimizer: Any, rank: int, steps: range, samples: int = 8) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss_of(ddp, rank, step, samples).backward()
        optimizer.step()


def by_class(name: str, rank: int, scaled: bool) -> dict[str, Any]:
    """Train with our wrapper; with a scaler rank 1 overflows in one step."""
    model = network()
    method = CLASSES[name](model, sgd(model))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3) if scaled else None
    for step in range(STEPS):
        method.optimizer.zero_grad()
        loss = loss_of(method.model, rank, step)
        if scaler is None:
            method.backward(loss)
            method.step()
        else:
            (scaler.scale(loss) * (torch.tensor(3e38) if (step, rank) == (BAD, 1) else 1.0)).backward()
            method.step(scaler)
            scaler.update()
    return {"bits": bits(model), "sent": getattr(method, "sent", None)}


def by_hook(name: str, rank: int, scaled: bool, bucket_mb: float = 0.01) -> dict[str, Any]:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3) if scaled else None
    ddp, optimizer, hook = hooked(name, scaler, bucket_mb)
    kept, scales = True, []
    seen = Spy()
    with seen:
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(ddp, rank, step)
            if scaler is None:
                loss.backward()
                optimizer.step()
                continue
            before, weights = hook.residual.clone(), bits(ddp)
            (scaler.scale(loss) * (torch.tensor(3e38) if (step, rank) == (BAD, 1) else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
            if step == BAD:
                kept = torch.equal(before, hook.residual) and weights == bits(ddp) and bool(before.any())
    return {"bits": bits(ddp), "sent": hook.sent, "kept": kept, "scales": scales, "wire": hook.wire, "seen": seen.bytes,
            "buckets": seen.calls, "steps": hook.steps}  # fmt: skip


class Spy:
    """Counts what is handed to torch's collectives; every rank hands on (n - 1) shares of a ring."""

    def __init__(self) -> None:
        self.bytes, self.calls = 0.0, 0

    def __enter__(self) -> None:
        dist, n = torch.distributed, torch.distributed.get_world_size()
        self.gather, self.reduce = comm.all_gather_into, dist.all_reduce

        def gather(output: Any, tensor: Any, **more: Any) -> Any:
            self.bytes, self.calls = self.bytes + (n - 1) * tensor.numel() * tensor.element_size(), self.calls + 1
            return self.gather(output, tensor, **more)

        def reduce(tensor: Any, *more: Any, **options: Any) -> Any:
            self.bytes += 2 * (n - 1) / n * tensor.numel() * tensor.element_size()
            return self.reduce(tensor, *more, **options)

        comm.all_gather_into, dist.all_reduce = gather, reduce

    def __exit__(self, *_: Any) -> None:
        comm.all_gather_into, torch.distributed.all_reduce = self.gather, self.reduce


def overlapping(name: str) -> bool:
    """Return whether the first bucket was exchanged while the backward pass stood still in the first layer."""
    done = threading.Event()

    class Stop(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(_: Any, gradient: Any) -> Any:
            assert done.wait(60), "no bucket was exchanged before the backward pass was over"
            return gradient

    class Halting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: Any) -> Any:
            return self.inner[1:](Stop.apply(self.inner[0](x)))

    ddp = DistributedDataParallel(Halting(), bucket_cap_mb=0.001)
    hook = training.ddp_hook(name, ddp, **HOOKS[name])
    exchange = hook.exchange

    def noted(*arguments: Any) -> str:
        said = exchange(*arguments)
        done.set()
        return str(said)

    hook.exchange = noted
    done.set()  # of the first step DDP makes one bucket
    for step in range(4):
        loss_of(ddp, 0, step).backward()
        done.clear()
    return True


def resumed(name: str, rank: int, out: Path, group: Any = None) -> dict[str, Any]:
    import torch.distributed.checkpoint as dcp

    def state(ddp: Any, optimizer: Any, hook: Any) -> Any:
        return {"progress": training.RankState(hook, model=ddp, optimizer=optimizer)}

    ddp, optimizer, hook = hooked(name, group=group)
    begun, where = 0, f"{name}-{torch.distributed.get_world_size(group)}"
    for cut in CUTS:
        go(ddp, optimizer, rank, range(begun, cut))
        dcp.save(state(ddp, optimizer, hook), checkpoint_id=out / f"{where}-{cut}", process_group=group)
        begun = cut
    go(ddp, optimizer, rank, range(begun, STEPS))
    whole, found = bits(ddp), {}
    for cut in CUTS:
        ddp, optimizer, hook = hooked(name, group=group)
        fresh = state(ddp, optimizer, hook)
        dcp.load(fresh, checkpoint_id=out / f"{where}-{cut}", process_group=group)
        go(ddp, optimizer, rank, range(cut, STEPS))
        found[str(cut)] = bits(ddp)
        assert hook.steps == STEPS and hook.sent > 0
    return {"whole": whole, "broken": found}


def said(work: Callable[[], Any]) -> str:
    try:
        work()
    except (RuntimeError, InputError) as error:
        return str(error)
    return ""


def spoilt(name: str, rank: int) -> dict[str, Any]:
    ddp, optimizer, hook = hooked(name)
    go(ddp, optimizer, rank, range(4))
    before = hook.residual.clone()
    optimizer.zero_grad()
    loss = loss_of(ddp, rank, 4) * (float("inf") if rank == 1 else 1.0)
    return {"said": said(loss.backward), "kept": torch.equal(before, hook.residual)}


def refused(rank: int) -> dict[str, str]:
    ddp, _, hook = hooked("dct")
    other = hooked("top-k")[2].state_dict()
    mine = hook.state_dict()
    state = other if rank == 1 else mine
    wide = DistributedDataParallel(torch.nn.Linear(2, 2))
    return {
        "other": said(lambda: hook.load_state_dict(state)),
        "model": said(lambda: training.ddp_hook("dct", wide).load_state_dict(mine)),
        "twice": said(lambda: training.ddp_hook("dct", ddp)),
        "rank": said(lambda: hooked("powersgd", rank=1)[2].load_state_dict(hooked("powersgd")[2].state_dict())),
    }


def low_rank(rank: int, columns: int) -> float:
    """Return how far PowerSGD is from the mean, over the way, where one sample a rank leaves gradients of rank 3."""
    ddp, optimizer, _ = hooked("powersgd", rank=columns)
    plain = DistributedDataParallel(network())
    go(ddp, optimizer, rank, range(5), samples=1)
    go(plain, sgd(plain), rank, range(5), samples=1)
    here, there, before = (
        torch.cat([p.detach().flatten() for p in model.parameters()]) for model in (ddp, plain, network())
    )
    return float((here - there).norm() / (there - before).norm())


def idle(rank: int) -> bool:
    """Train a layer whose gradient is zero: PowerSGD's factors of it must not be 0 / 0."""
    ddp, optimizer, _ = hooked("powersgd")
    for step in range(5):
        optimizer.zero_grad()
        (ddp.module[2](torch.zeros(1, 64)).sum() * 0 + loss_of(ddp, rank, step) * 0).backward()
        optimizer.step()
    return all(bool(p.isfinite().all()) for p in ddp.parameters())


def everything(rank: int, size: int, out: Path) -> dict[str, Any]:
    cells = [(name, scaled) for name in HOOKS for scaled in (False, True)]
    pair = torch.distributed.new_group([0, 1])
    return {
        "class": {f"{name} {scaled}": by_class(name, rank, scaled) for name, scaled in cells},
        "hook": {f"{name} {scaled}": by_hook(name, rank, scaled) for name, scaled in cells},
        "one": {str(scaled): by_hook("powersgd", rank, scaled, bucket_mb=10) for scaled in (False, True)},
        "overlap": {name: overlapping(name) for name in HOOKS},
        "resumed": {name: resumed(name, rank, out) for name in HOOKS if name != "powersgd"},
        "pair": resumed("powersgd", rank, out, pair) if rank < 2 else None,
        "spoilt": {name: spoilt(name, rank) for name in HOOKS},
        "refused": refused(rank),
        "low_rank": [low_rank(rank, columns) for columns in (3, 1)],
        "idle": idle(rank),
    }


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return ranks_of(__file__, 3, tmp_path_factory.mktemp("hooks"))


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_trains_as_our_wrapper_does_to_the_last_bit(
    three: list[dict[str, Any]], name: str, scaled: bool
) -> None:
    for rank in three:
        theirs, ours = rank["class"][f"{name} {scaled}"], rank["hook"][f"{name} {scaled}"]
        # PowerSGD draws its first factors bucket by bucket: the wrapper has one bucket.
        ours = rank["one"][str(scaled)] if name == "powersgd" else ours
        assert ours["bits"] == theirs["bits"] == three[0]["class"][f"{name} {scaled}"]["bits"]


@pytest.mark.parametrize("name", HOOKS)
def test_an_overflow_on_one_rank_skips_the_step_on_all_and_keeps_residuals(
    three: list[dict[str, Any]], name: str
) -> None:
    for rank in three:
        found = rank["hook"][f"{name} True"]
        assert found["kept"] and found["scales"][BAD] == found["scales"][BAD - 1] / 2
        assert found["steps"] == STEPS - 1 and found["bits"] == three[0]["hook"][f"{name} True"]["bits"]


@pytest.mark.parametrize("name", HOOKS)
def test_bytes_are_those_that_torch_was_given(three: list[dict[str, Any]], name: str) -> None:
    for rank in three:
        found = rank["hook"][f"{name} False"]
        assert found["wire"] == pytest.approx(found["seen"], rel=1e-12)
    if name == "powersgd":
        return
    buckets = three[0]["hook"][f"{name} False"]["buckets"] // 2
    assert buckets > 2 * STEPS, "several buckets in every step"
    # A bucket's row begins with a mark of four bytes; of the wrapper there is one a step.
    for rank in three:
        extra = 4 * (buckets - STEPS)
        assert rank["hook"][f"{name} False"]["sent"] == rank["class"][f"{name} False"]["sent"] + extra


def test_powersgd_sends_what_the_plan_says(three: list[dict[str, Any]]) -> None:
    shapes = [tuple(p.shape) for p in network().parameters()]
    full, thin = sum(torch.Size(each).numel() for each in shapes), sum(sizes.factors(each, 2) for each in shapes)
    assert three[0]["hook"]["powersgd False"]["sent"] == 4 * (2 * full + (STEPS - 2) * thin)


@pytest.mark.parametrize("name", HOOKS)
def test_a_bucket_is_exchanged_while_the_backward_pass_goes_on(three: list[dict[str, Any]], name: str) -> None:
    assert all(rank["overlap"][name] for rank in three)


@pytest.mark.parametrize("name", HOOKS)
def test_a_resumed_run_is_the_unbroken_one_to_the_last_bit(three: list[dict[str, Any]], name: str) -> None:
    for rank in three if name != "powersgd" else three[:2]:
        found = rank["pair"] if name == "powersgd" else rank["resumed"][name]
        assert found["broken"] == {str(cut): found["whole"] for cut in CUTS}


@pytest.mark.parametrize("name", HOOKS)
def test_without_a_scaler_all_ranks_stop_and_keep_their_residuals(three: list[dict[str, Any]], name: str) -> None:
    for rank in three:
        assert rank["spoilt"][name]["said"].startswith("step 4: a rank's gradient of ")
        assert (
            "holds inf or NaN; lower the learning rate" in rank["spoilt"][name]["said"] and rank["spoilt"][name]["kept"]
        )


def test_states_that_do_not_fit_are_refused_on_all_ranks(three: list[dict[str, Any]]) -> None:
    for rank in three:
        assert "the state was saved by ddp_hook('top-k')" in rank["refused"]["other"]
        assert "the state is of another model" in rank["refused"]["model"]
        assert "only be called once" in rank["refused"]["twice"]
        assert "the state has rank=2, and this hook 1" in rank["refused"]["rank"]


def test_powersgd_is_exact_where_gradients_have_so_low_a_rank(three: list[dict[str, Any]]) -> None:
    for rank in three:
        exact, too_few = rank["low_rank"]
        assert exact < 1e-4 and too_few > 1e-2


def test_powersgd_survives_a_layer_without_gradients(three: list[dict[str, Any]]) -> None:
    assert all(rank["idle"] for rank in three)


def test_unknown_names_and_options_say_what_there_is() -> None:
    with pytest.raises(UnknownNameError, match="powersgd"):
        training.ddp_hook("top", None)
    with pytest.raises(InputError, match=r"ddp_hook\('dct'\): no option share; eta, refresh"):
        training.ddp_hook("dct", None, share=0.1)
    with pytest.raises(InputError, match="no DistributedDataParallel but a Linear; wrap it first"):
        training.ddp_hook("powersgd", torch.nn.Linear(2, 1))
    with pytest.raises(InputError, match="share=2"):
        training.ddp_hook("top-k", None, share=2)


def test_a_group_of_one_gathers_its_own_row() -> None:
    rows, lengths = Link().rows(torch.tensor([1, 2], dtype=torch.uint8))
    assert rows.tolist() == [[1, 2]] and lengths.tolist() == [2]


if __name__ == "__main__":
    fork_ranks(lambda rank, size: everything(rank, size, Path(sys.argv[-1])))

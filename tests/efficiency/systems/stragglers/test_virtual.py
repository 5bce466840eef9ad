"""A server's schemes on virtual ranks: exact ones train as plain ranks do, what is dropped is lost, state goes on."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest

from densing.core import InputError
from densing.tradeoff.arms import read_arms

torch = pytest.importorskip("torch")

from densing.efficiency.parallel import Replica, VirtualMethods  # noqa: E402
from densing.efficiency.simulation import Delay  # noqa: E402
from densing.efficiency.systems.ddp.run import DDP  # noqa: E402
from densing.efficiency.systems.stragglers.schemes import backup, clustered_code, gradient_code, lagrange, uncoded  # noqa: E402
from densing.efficiency.systems.stragglers.virtual import VirtualServer  # noqa: E402

N = 6
OPTIMIZERS = {"sgd": partial(torch.optim.SGD, lr=0.1), "adam": partial(torch.optim.AdamW, lr=0.01)}


def replicas(optimizer: str = "sgd") -> list[Replica]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    return [Replica(copy.deepcopy(model), OPTIMIZERS[optimizer], nullcontext, torch.sum) for _ in range(N)]


def batches(steps: int) -> torch.Tensor:
    return torch.randn(steps, N, 32, 8, generator=torch.Generator().manual_seed(1))


def train(server: Any, ranks: list[Replica], data: torch.Tensor) -> list[torch.Tensor]:
    """Steps of a regression on the sign of a sum; the weights of every rank."""
    for step in data:
        for replica in ranks:
            replica.model.zero_grad()
        server.backward(
            [
                (replica.model(x) - x.sum(1, keepdim=True).sign()).square().mean()
                for replica, x in zip(ranks, step, strict=True)
            ]
        )
        server.step()
    server.finish()
    return [torch.cat([p.detach().ravel() for p in replica.model.parameters()]) for replica in ranks]


def plain(steps: int = 20) -> torch.Tensor:
    ranks = replicas()
    return train(VirtualMethods(ranks, lambda replica: replica.wrap(DDP)), ranks, batches(steps))[0]


def test_partial_messages_train_as_plain_ranks_to_the_bit() -> None:
    ranks = replicas()
    weights = train(VirtualServer(ranks, uncoded(N, 3)), ranks, batches(20))
    assert all(torch.equal(each, plain()) for each in weights)


@pytest.mark.parametrize(
    "scheme",
    [gradient_code(N, 2), gradient_code(N, 4), clustered_code(N, 2, 3), clustered_code(N, 3, 2), backup(N, 0)],
    ids=lambda scheme: f"{scheme.name}-{len(scheme.tasks[0])}",
)
def test_codes_train_as_plain_ranks_to_rounding(scheme: Any) -> None:
    ranks = replicas()
    weights = train(VirtualServer(ranks, scheme), ranks, batches(20))
    assert all(torch.equal(each, weights[0]) for each in weights)
    torch.testing.assert_close(weights[0], plain(), rtol=1e-4, atol=1e-5)


def test_who_is_dropped_has_no_part_in_a_step() -> None:
    late = Delay("empirical", values=tuple(range(100)), lasts="step", seed=3)
    last = int(late.draw(N).argmax())
    data = batches(1)
    other = data.clone()
    other[0, last] += 5.0
    first, second = (
        train(VirtualServer(ranks, backup(N, 1), late), ranks, each)[0]
        for ranks, each in ((replicas(), data), (replicas(), other))
    )
    assert torch.equal(first, second)
    ranks = replicas()
    assert not torch.equal(first, train(VirtualServer(ranks, backup(N, 0), late), ranks, data)[0])


def test_messages_that_came_in_time_are_counted() -> None:
    ranks = replicas()
    server = VirtualServer(ranks, gradient_code(N, 3))
    train(server, ranks, batches(5))
    size = sum(p.numel() for p in ranks[0].model.parameters())
    assert server.figures()["messages"] == N - 3 + 1
    assert server.sent == pytest.approx(5 * 4 * size * (N - 2) / N)


def test_a_run_goes_on_bit_by_bit() -> None:
    data = batches(8)
    ranks = replicas("adam")
    whole = VirtualServer(ranks, backup(N, 2))
    weights = train(whole, ranks, data)[0]
    parts = replicas("adam")
    begun = VirtualServer(parts, backup(N, 2))
    train(begun, parts, data[:3])
    again = VirtualServer(parts, backup(N, 2))
    again.load_state_dict(begun.state_dict())
    for old, new in zip(begun.optimizers, again.optimizers, strict=True):
        new.load_state_dict(old.state_dict())
    assert torch.equal(train(again, parts, data[3:])[0], weights)
    assert again.state_dict() == whole.state_dict()


def test_encoded_data_and_other_numbers_of_ranks_are_refused() -> None:
    with pytest.raises(InputError, match="encoded data"):
        VirtualServer(replicas(), lagrange(N, 2))
    with pytest.raises(InputError, match="5 workers"):
        VirtualServer(replicas(), uncoded(5, 2))


@pytest.mark.parametrize(
    ("arm", "words"),
    [
        ("lcc:r=2", "does not support virtual ranks"),
        ("gradient-coding:r=1", "r = 1"),
        ("backup-workers:drop=4", "drop = 4"),
        ("uc-mmc:order=reverse", "leave order out"),
        ("uc-mmc:server_gbit=1", "server_gbit"),
        ("uc-mmc:ranks=1", "needs ranks"),
    ],
)
def test_arms_that_make_no_sense_are_refused_before_training(arm: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_arms([arm], ranks=4)


def test_arms_are_read() -> None:
    assert [arm.method for arm in read_arms(["gc-mmc:r=2,clusters=2", "backup-workers:drop=1"], ranks=4)] == [
        "gc-mmc",
        "backup-workers",
    ]

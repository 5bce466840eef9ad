"""DiLoCo beside torch's own Nesterov momentum, which takes the outer steps here."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from densing.core import InputError  # noqa: E402
from densing.efficiency.parallel import Replica, VirtualMethods  # noqa: E402
from densing.training import DiLoCo, LocalSGD  # noqa: E402

RANKS, STEPS = 3, 22
START = torch.linspace(-1, 1, 10)


def target(rank: int) -> Any:
    return torch.arange(10.0).roll(rank) / (rank + 1)


def trained(kind: Any, **knobs: Any) -> tuple[list[Any], Any]:
    """Pull a vector towards each rank's own target; return every rank's before the end, and the team."""

    def replica(_: int) -> Replica:
        model = torch.nn.Linear(10, 1, bias=False)
        with torch.no_grad():
            model.weight.copy_(START)
        return Replica(model, partial(torch.optim.SGD, lr=0.1), nullcontext, lambda trial: trial.weight.sum())

    team = VirtualMethods([replica(rank) for rank in range(RANKS)], lambda own: own.wrap(kind, **knobs))
    for _ in range(STEPS):
        for method in team.methods:
            method.optimizer.zero_grad()
        team.backward(
            [0.5 * (method.model.weight - target(rank)).square().sum() for rank, method in enumerate(team.methods)]
        )
        team.step()
    ends = [method.model.weight.detach().flatten().clone() for method in team.methods]
    return ends, team


def by_torch(tau: int, fragments: int, delay: int, mix: float, lr: float, momentum: float) -> list[Any]:
    """The same with an optimizer of torch per fragment."""
    parts = [slice(10 * part // fragments, 10 * (part + 1) // fragments) for part in range(fragments)]
    outer = [torch.nn.Parameter(START[part].clone()) for part in parts]
    steppers = [torch.optim.SGD([each], lr=lr, momentum=momentum, nesterov=momentum > 0) for each in outer]
    ranks, flying, turn = [START.clone() for _ in range(RANKS)], None, 0
    for step in range(1, STEPS + 1):
        ranks = [x - 0.1 * (x - target(rank)) for rank, x in enumerate(ranks)]
        arrives, sends = delay and step % (tau // fragments) == delay, step % (tau // fragments) == 0
        if sends:
            mean = torch.stack([x[parts[turn % fragments]] for x in ranks]).mean(0)
            flying, turn = (turn % fragments, mean), turn + 1
        if flying is not None and (arrives or (sends and not delay)):
            at, mean = flying
            outer[at].grad = outer[at].detach() - mean
            steppers[at].step()
            for x in ranks:
                x[parts[at]] = mix * x[parts[at]] + (1 - mix) * outer[at].detach()
            flying = None
    return ranks


@pytest.mark.parametrize(
    ("fragments", "delay", "mix"), [(1, 0, 0.0), (1, 2, 0.0), (1, 3, 0.5), (2, 0, 0.0), (2, 1, 0.25), (4, 0, 0.5)]
)
def test_outer_steps_are_those_of_torch(fragments: int, delay: int, mix: float) -> None:
    ends, _ = trained(DiLoCo, tau=4, fragments=fragments, delay=delay, mix=mix)
    for ours, theirs in zip(ends, by_torch(4, fragments, delay, mix, 0.7, 0.9), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_an_outer_step_of_one_without_momentum_is_an_average() -> None:
    [ours, *_], _ = trained(DiLoCo, tau=4, outer_lr=1.0, outer_momentum=0.0)
    [theirs, *_], _ = trained(LocalSGD, tau=4)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("knobs", [{}, {"fragments": 2}, {"fragments": 2, "delay": 1, "mix": 0.5}, {"delay": 3}])
def test_finishing_leaves_all_ranks_equal_and_twice_changes_nothing(knobs: dict[str, Any]) -> None:
    ends, team = trained(DiLoCo, tau=4, **knobs)
    assert not torch.equal(ends[0], ends[1])
    team.finish()
    first = [method.model.weight.detach().clone() for method in team.methods]
    assert torch.equal(first[0], first[1]) and torch.equal(first[0], first[2])
    team.finish()
    torch.testing.assert_close(team.methods[0].model.weight.detach(), first[0])


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"fragments": 3}, "fragments=3: must divide tau=4"),
        ({"fragments": 2, "delay": 2}, "delay=2: must be below the 2 steps"),
        ({"mix": 1.0}, "mix=1.0"),
        ({"outer_momentum": 1.0}, "outer_momentum=1.0"),
        ({"tau": 44, "fragments": 44}, "fragments=44: the model has 10 parameters"),
    ],
)
def test_what_cannot_be_is_refused(knobs: dict[str, Any], says: str) -> None:
    model = torch.nn.Linear(10, 1, bias=False)
    with pytest.raises(InputError, match=says):
        DiLoCo(model, torch.optim.SGD(model.parameters(), lr=0.1), **{"tau": 4, **knobs})


def test_a_state_of_another_cut_is_refused() -> None:
    model = torch.nn.Linear(10, 1, bias=False)
    one, two = (DiLoCo(model, torch.optim.SGD(model.parameters(), lr=0.1), 4, fragments=n) for n in (2, 1))
    state = one.state_dict()
    with pytest.raises(InputError, match="tau=2"):
        two.load_state_dict(state)
    with pytest.raises(InputError, match="fragments=2"):
        two.load_state_dict({**state, "tau": 4})

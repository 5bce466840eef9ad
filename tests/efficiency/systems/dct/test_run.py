"""Compressed gradients on virtual ranks: DDP where nothing is held back, nothing lost where something is."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this build of torch has no torch.distributed", allow_module_level=True)

from densing.core import InputError  # noqa: E402
from densing.efficiency.parallel import Replica, VirtualMethods  # noqa: E402
from densing.efficiency.systems.dct.run import DCT, TopKGradients  # noqa: E402
from densing.efficiency.systems.ddp.run import DDP  # noqa: E402

WIDTH = 40


def replica(rate: float = 0.5) -> Replica:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 3))
    return Replica(model, partial(torch.optim.SGD, lr=rate), nullcontext, lambda trial: trial(torch.zeros(1)).sum())


def batch(rank: int, step: int) -> Any:
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))


def train(kind: Any, ranks: int, steps: int = 6, **knobs: Any) -> VirtualMethods:
    team = VirtualMethods([replica() for _ in range(ranks)], lambda own: own.wrap(kind, **knobs))
    for step in range(steps):
        for method in team.methods:
            method.optimizer.zero_grad()
        team.backward([m.model(batch(rank, step)).square().mean() for rank, m in enumerate(team.methods)])
        team.step()
    team.finish()
    return team


def weights(team: VirtualMethods) -> Any:
    return torch.cat([p.detach().flatten() for p in team.methods[0].model.parameters()])


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_threshold_that_holds_nothing_back_is_ddp_bit_for_bit(ranks: int) -> None:
    assert torch.equal(weights(train(DCT, ranks, eta=0.0)), weights(train(DDP, ranks)))


def test_a_threshold_renewed_in_every_step_is_top_k() -> None:
    one, other = train(DCT, 2, eta=0.9, refresh=1), train(TopKGradients, 2, share=0.1)
    assert torch.equal(weights(one), weights(other))
    assert one.sent == other.sent


class Integers(torch.nn.Module):
    """A model whose gradients are whole numbers, so that sums of them are exact."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1000))


def test_what_was_sent_and_what_is_kept_back_are_all_gradients_exactly() -> None:
    models = [Integers() for _ in range(2)]
    replicas = [
        Replica(model, partial(torch.optim.SGD, lr=1.0), nullcontext, lambda trial: trial.weight.sum())
        for model in models
    ]
    team = VirtualMethods(replicas, lambda own: own.wrap(DCT, eta=0.95, refresh=4))
    generator, total = torch.Generator().manual_seed(5), torch.zeros(1000)
    for _ in range(9):
        gradients = [torch.randint(-50, 50, (1000,), generator=generator).float() for _ in models]
        total += sum(gradients)
        for model in models:
            model.weight.grad = None
        team.backward([(model.weight * row).sum() for model, row in zip(models, gradients, strict=True)])
        team.step()
    kept = sum(method.residual for method in team.methods)
    # SGD at rate 1 has taken the mean of what was sent off the weights, which began at 0.
    assert torch.equal(-2 * models[0].weight.detach() + kept, total)
    assert torch.equal(models[0].weight, models[1].weight)


def test_the_share_sent_is_counted_and_drifts_between_renewals() -> None:
    steady, seldom = train(DCT, 2, 30, eta=0.99, refresh=1), train(DCT, 2, 30, eta=0.99, refresh=1000)
    shares = [team.methods[0].figures()["sent_share"] for team in (steady, seldom)]
    # Residuals grow until they reach a threshold: an old one lets another share through than a new one.
    assert shares[0] != shares[1]
    assert all(0.01 < share < 1 for share in shares)
    gathered = sum(method.figures()["packet_bytes"] for method in steady.methods)
    # Two ranks: each sends the longer of two packets of every step, and its length.
    assert gathered / 2 <= steady.sent <= gathered + 30 * 8


def test_a_gradient_that_is_no_number_stops_all_ranks_by_name() -> None:
    team = VirtualMethods([replica() for _ in range(3)], lambda own: own.wrap(DCT, eta=0.9))
    losses = [m.model(batch(rank, 0)).square().mean() for rank, m in enumerate(team.methods)]
    losses[1] = losses[1] * float("nan")
    with pytest.raises(InputError, match=r"a rank's gradient of 0\.weight holds inf or NaN"):
        team.backward(losses)


def test_three_lines_in_ones_own_loop() -> None:
    from densing.training import DCT as Line

    torch.manual_seed(0)
    model = torch.nn.Linear(300, 2)
    dct = Line(model, torch.optim.SGD(model.parameters(), lr=0.1), eta=0.9, refresh=5)
    before = model.weight.detach().clone()
    for _ in range(3):
        dct.optimizer.zero_grad()
        model(torch.ones(1, 300)).square().sum().backward()
        dct.step()
    dct.finish()
    assert not torch.equal(model.weight, before)
    assert dct.steps == 3


def test_another_models_state_is_refused() -> None:
    one = train(DCT, 1, 1, eta=0.5).methods[0]
    other = Replica(Integers(), partial(torch.optim.SGD, lr=1.0), nullcontext, lambda trial: trial.weight.sum())
    with pytest.raises(InputError, match="another model or method"):
        other.wrap(DCT, eta=0.5).load_state_dict(one.state_dict())

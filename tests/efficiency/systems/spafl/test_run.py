"""SpaFL: two neurons by hand, gradients against autograd of the published forward pass, masks, resets and exports."""

from __future__ import annotations

import io
import math
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from densing.core import InputError  # noqa: E402
from densing.efficiency.parallel import LmShape, Replica, VirtualMethods, VirtualRanks  # noqa: E402
from densing.efficiency.parallel.distributed import build_lm  # noqa: E402
from densing.efficiency.systems.spafl.run import LocalOnly, SpaFL, export_pruned  # noqa: E402


def network(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 3))


def replica(seed: int = 0) -> Replica:
    optimizer = partial(torch.optim.AdamW, lr=0.02)
    return Replica(network(seed), optimizer, nullcontext, lambda trial: trial(torch.zeros(2, 6)).sum())


def batch(rank: int, step: int) -> Any:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(100 * step + rank))


def listed(model: Any) -> list[float]:
    return [float(x) for tensor in model.state_dict().values() for x in tensor.flatten()]


def trained(kind: Any, steps: int = 11, ranks: int = 3, break_at: int = -1, **knobs: Any) -> VirtualMethods:
    def fresh() -> VirtualMethods:
        return VirtualMethods([replica(rank) for rank in range(ranks)], lambda own: own.wrap(kind, **knobs))

    team = fresh()
    for step in range(steps):
        if step == break_at:
            stream = io.BytesIO()
            models = [(m.model.state_dict(), m.optimizer.state_dict()) for m in team.methods]
            torch.save((team.state_dict(), models), stream)
            stream.seek(0)
            state, models = torch.load(stream, weights_only=True)
            team = fresh()
            for method, (model, optimizer) in zip(team.methods, models, strict=True):
                method.model.load_state_dict(model)
                method.optimizer.load_state_dict(optimizer)
            team.load_state_dict(state)
        for method in team.methods:
            method.optimizer.zero_grad()
        team.backward([m.model(batch(rank, step)).square().mean() for rank, m in enumerate(team.methods)])
        team.step()
    team.finish()
    return team


def test_two_neurons_of_two_clients_by_hand() -> None:
    lr, rate, lam, x = 0.1, 0.5, 0.3, np.array([1.0, 2.0])
    ranks = VirtualRanks(2)
    start = np.array([[0.5, -0.3], [-0.2, -0.6]])

    def work(rank: int) -> tuple[Any, Any]:
        model = nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            model.weight.copy_(torch.tensor(start))
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        method = SpaFL(model, optimizer, 1, lam=lam, ramp=1, threshold_lr=rate, link=ranks.links[rank])
        (model(torch.tensor(x, dtype=torch.float32)) * (1 + rank)).sum().backward()
        method.step()
        return method.own.view(2, 2).numpy(), method.thresholds.numpy()

    found = ranks.run(work)
    weights, thresholds = [], []
    for rank in range(2):
        gradient = (1 + rank) * np.tile(x, (2, 1))
        slope = (gradient * start).sum(1)
        # Both thresholds are 0: nothing is masked, and the mean size of a row has a gradient of its own.
        weights.append(start - lr * (gradient + slope[:, None] * np.sign(start) / 2))
        thresholds.append(-rate * (-slope - lam / (1 + math.exp(5))))
    mean = np.mean(thresholds, axis=0)
    for (own, common), weight in zip(found, weights, strict=True):
        np.testing.assert_allclose(common, mean, rtol=1e-6)
        np.testing.assert_allclose(own, weight - (np.sign(weight.sum(1)) * mean / 2)[:, None], rtol=1e-5)


class Step(torch.autograd.Function):
    """The mask's step, its gradient that of the identity: as in the publication's code, written anew."""

    @staticmethod
    def forward(_: Any, size: Any) -> Any:
        return (size > 0).to(size.dtype)

    @staticmethod
    def backward(_: Any, gradient: Any) -> Any:
        return gradient


def test_gradients_are_autograds_of_the_masked_forward_pass() -> None:
    layers = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5))
    method = SpaFL(layers, torch.optim.SGD(layers.parameters(), lr=0.1), 9, lam=0.2, ramp=3)
    method.thresholds.uniform_(0.05, 0.2, generator=torch.Generator().manual_seed(0))
    method._mask()
    assert 0 < sum(method.kept_rows()) < 2
    x = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(1))
    own = [part.clone().requires_grad_() for part in method.flat.tensors(method.own)]
    thresholds = method.thresholds.clone().requires_grad_()

    def masked(weight: Any, threshold: Any) -> Any:
        rows = weight.flatten(1)
        return (rows * Step.apply(rows.abs().mean(1) - threshold)[:, None]).view(weight.shape)

    hidden = torch.relu(nn.functional.conv2d(x, masked(own[0], thresholds[:4]), own[1])).flatten(1)
    loss = nn.functional.linear(hidden, masked(own[2], thresholds[4:]), own[3]).square().sum()
    penalised = loss + 0.2 / (1 + math.exp(5)) * torch.exp(-thresholds).sum()
    penalised.backward()
    ours = layers(x).square().sum()
    assert float(ours.detach()) == pytest.approx(float(loss.detach()))
    method.backward(ours)
    for parameter, other in zip(layers.parameters(), own, strict=True):
        assert torch.allclose(parameter.grad, other.grad, rtol=1e-4, atol=1e-5)
        assert torch.equal(parameter.detach(), other.detach())
    assert torch.allclose(method._slopes, thresholds.grad, rtol=1e-4, atol=1e-5)


def test_without_thresholds_and_penalty_every_client_trains_alone() -> None:
    alone, still = trained(LocalOnly), trained(SpaFL, tau=4, lam=0.0, threshold_lr=0.0)
    for one, other in zip(alone.methods, still.methods, strict=True):
        assert listed(one.model) == listed(other.model)
    assert alone.sent == 0 < still.sent


def test_clients_begin_alike_and_end_with_models_of_their_own() -> None:
    team = trained(SpaFL, tau=4)
    assert len({tuple(listed(method.model)) for method in team.methods}) == 3
    # Running means too are each client's own.
    assert len({float(method.model[2].running_mean.sum()) for method in team.methods}) == 3
    assert len({tuple(method.common.tolist()) for method in team.methods}) == 1


def test_only_thresholds_travel() -> None:
    figures = trained(SpaFL, tau=4, ranks=2).methods[0].figures()
    assert (figures["thresholds"], figures["packet_bytes"], figures["rounds"]) == (11, 3 * 4 * 11, 3)
    # Two ranks' ring sends a buffer once: thresholds, a mark of each, who takes part; and three float64 of news.
    assert trained(SpaFL, tau=4, ranks=2).sent == 3 * (4 * (11 + 2 + 1) + 24)


def test_a_penalty_prunes_and_thresholds_that_prune_all_begin_anew() -> None:
    pruned = trained(SpaFL, steps=60, tau=5, lam=0.02, ramp=2, threshold_lr=0.05).methods[0]
    figures = pruned.figures()
    assert figures["kept_share"] < 1
    weight = pruned.model[0].weight.detach()
    zero = (weight == 0).all(1)
    assert float(zero.float().mean()) == pytest.approx(1 - pruned.kept_rows()[0])
    assert torch.equal(weight[~zero], pruned.own[:48].view(8, 6)[~zero])
    wild = trained(SpaFL, steps=30, tau=5, lam=1e3, ramp=1).methods[0]
    assert wild.figures()["resets"] > 0
    assert all(share > 0 for share in wild.kept_rows())


@pytest.mark.parametrize("step", [1, 5, 7])
def test_a_state_goes_on_bit_by_bit(step: int) -> None:
    knobs = {"tau": 4, "lam": 0.02, "ramp": 2, "threshold_lr": 0.05, "steps": 14}
    whole, broken = trained(SpaFL, **knobs), trained(SpaFL, break_at=step, **knobs)
    for one, other in zip(whole.methods, broken.methods, strict=True):
        assert listed(one.model) == listed(other.model)
        assert one.figures() == other.figures()
    assert whole.sent == broken.sent


def test_training_goes_on_after_a_finish() -> None:
    team = trained(SpaFL, steps=6, tau=4, lam=0.05, ramp=1, threshold_lr=0.2)
    method: Any = team.methods[0]
    before = method.own.clone()
    team.finish()
    assert torch.equal(method.own, before)
    assert [method.round for method in team.methods] == [2, 2, 2]


def test_a_client_that_spoils_the_mean_is_named_and_all_end() -> None:
    ranks, failures = VirtualRanks(3), []

    def work(rank: int) -> None:
        method: Any = replica().over(ranks.links[rank]).wrap(SpaFL, tau=1)
        method.model(batch(rank, 0)).square().mean().backward()
        if rank == 1:
            method.model[0].weight.grad[2, 2] = float("nan")
        try:
            method.step()
        except InputError as error:
            failures.append(str(error))
            raise

    with pytest.raises(InputError, match=r"round 0: .*holds inf or NaN"):
        ranks.run(work)
    assert sorted("client 1" in text or "this client (1)" in text for text in failures) == [True] * 3


@pytest.mark.parametrize("tied", [False, True])
def test_embeddings_and_what_shares_them_have_no_thresholds(tied: bool) -> None:
    shape = LmShape(layers=1, hidden=8, heads=2, ffn=12, vocabulary=20)
    model = build_lm(shape, 16, 0, tied=tied)
    method = SpaFL(model, torch.optim.SGD(model.parameters(), lr=0.1), 4)
    # Queries, keys, values, output; gate, up, down; and the head where it has weights of its own.
    assert len(method.thresholds) == 4 * 8 + 2 * 12 + 8 + (0 if tied else 20)


def test_a_model_without_rows_is_refused() -> None:
    for model in (nn.Embedding(4, 3), nn.LayerNorm(5)):
        with pytest.raises(InputError, match="no tensor with rows to mask"):
            SpaFL(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)


@pytest.mark.parametrize("knobs", [{"lam": -1.0}, {"ramp": 0}, {"threshold_lr": float("nan")}, {"tau": 0}])
def test_what_makes_no_sense_is_refused(knobs: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        replica().wrap(SpaFL, **{"tau": 2, **knobs})
    with pytest.raises(InputError, match="without a closure"):
        method: Any = replica().wrap(SpaFL, tau=2)
        method.step(lambda: 0.0)


@pytest.mark.parametrize("everything", [False, True])
def test_a_pruned_export_is_smaller_and_gives_the_masked_models_logits(everything: bool) -> None:
    model = build_lm(LmShape(layers=2, hidden=32, heads=4, ffn=48), 16, 0)
    method = SpaFL(model, torch.optim.SGD(model.parameters(), lr=0.1), 4)
    generator = torch.Generator().manual_seed(5)
    for rows in method.rows:
        size = method.flat.tensors(method.own)[rows.tensor].abs().flatten(1).mean(1)
        chance = torch.rand(rows.end - rows.begin, generator=generator) < 0.4
        method.thresholds[rows.begin : rows.end] = torch.where(chance, 2 * size, 0.0)
    with torch.no_grad():
        for number, block in enumerate(model.blocks):
            # A head of each layer is off as a whole; with ``everything`` all heads and channels.
            block.attention.v.weight[: 8 if number or not everything else 32] = 0.0
            if everything:
                block.mlp.gate.weight.zero_()
    method.flat.read(method.own)
    method._mask()
    pruned = export_pruned(model)
    count = [sum(p.numel() for p in each.parameters()) for each in (model, pruned)]
    assert count[1] < 0.8 * count[0]
    tokens = torch.randint(256, (3, 16), generator=generator)
    with torch.no_grad():
        assert torch.allclose(model(tokens), pruned(tokens), atol=1e-5)
    # The model itself is as it was.
    assert model.blocks[0].attention.heads == 4 and sum(p.numel() for p in model.parameters()) == count[0]

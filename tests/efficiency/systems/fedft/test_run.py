"""Clients and a server: all coefficients are FedAvg and LocalSGD, weights are n_k / n, who is drawn and refused."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from densing.core import InputError, UnknownNameError  # noqa: E402
from densing.efficiency.parallel import Momentum, Replica, VirtualMethods, VirtualRanks  # noqa: E402
from densing.efficiency.parallel.codecs import Frequencies  # noqa: E402
from densing.efficiency.parallel.distributed import Parts  # noqa: E402
from densing.efficiency.parallel.distributed.loop import run  # noqa: E402
from densing.efficiency.parallel.distributed.spec import LmShape, RunEnv, RunSpec  # noqa: E402
from densing.efficiency.systems.fedft.run import (  # noqa: E402
    Federated,
    FedFT,
    TopKDelta,
    home,
)
from densing.efficiency.systems.local_sgd.run import LocalSGD  # noqa: E402
from densing.efficiency.systems.registry import get_technique, parse_settings  # noqa: E402

LR = 0.1
CODECS: dict[str, tuple[Any, dict[str, Any]]] = {
    "fedavg": (Federated, {}),
    "prefix": (FedFT, {"keep": 0.4}),
    "largest": (FedFT, {"keep": 0.4, "rule": "magnitude"}),
    "topk": (TopKDelta, {"share": 0.2}),
}


def replica() -> Replica:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(40, 12), torch.nn.Tanh(), torch.nn.Linear(12, 3))
    optimizer = partial(torch.optim.AdamW, lr=0.02)
    return Replica(model, optimizer, nullcontext, lambda trial: trial(torch.zeros(2, 40)).sum())


def trained(kind: Any, ranks: int = 3, steps: int = 11, **knobs: Any) -> VirtualMethods:
    team = VirtualMethods([replica() for _ in range(ranks)], lambda own: own.wrap(kind, tau=4, **knobs))
    for step in range(steps):
        losses = []
        for rank, method in enumerate(team.methods):
            method.optimizer.zero_grad()
            generator = torch.Generator().manual_seed(100 * step + rank)
            losses.append(method.model(torch.randn(4, 40, generator=generator)).square().mean())
        team.backward(losses)
        team.step()
    team.finish()
    return team


def vector(team: VirtualMethods) -> Any:
    return torch.nn.utils.parameters_to_vector(team.methods[0].model.parameters()).detach()


def test_fedavg_with_all_clients_is_local_sgd() -> None:
    assert torch.allclose(vector(trained(Federated)), vector(trained(LocalSGD)), atol=1e-6)


@pytest.mark.parametrize("rule", ["prefix", "magnitude"])
def test_all_coefficients_are_fedavg(rule: Any) -> None:
    assert torch.allclose(vector(trained(FedFT, keep=1.0, rule=rule)), vector(trained(Federated)), atol=1e-6)


def test_adding_up_frequencies_is_adding_up_what_each_decodes_to(monkeypatch: pytest.MonkeyPatch) -> None:
    summed = vector(trained(FedFT, keep=0.3))
    begin = Frequencies.__init__

    def gathers(self: Any, *given: Any) -> None:
        begin(self, *given)
        self.adds = False

    monkeypatch.setattr(Frequencies, "__init__", gathers)
    assert torch.allclose(vector(trained(FedFT, keep=0.3)), summed, atol=1e-6)
    assert not torch.allclose(summed, vector(trained(Federated)), atol=1e-3)


def pulled(steps: tuple[int, ...], tau: int = 3, **knobs: Any) -> tuple[list[float], list[Any]]:
    """Let every rank pull a number towards its own target, in as many steps as it has."""
    ranks = VirtualRanks(len(steps))

    def work(rank: int) -> tuple[float, Any]:
        model = torch.nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            model.weight.fill_(1.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        method = Federated(model, optimizer, tau, link=ranks.links[rank], **knobs)
        for _ in range(steps[rank]):
            optimizer.zero_grad()
            (0.5 * (model.weight - 10.0 * (rank + 1)).square()).sum().backward()
            method.step()
        method.finish()
        return float(model.weight.detach()), method

    results = ranks.run(work)
    return [end for end, _ in results], [method for _, method in results]


@pytest.mark.parametrize("steps", [(3, 3), (3, 1), (2, 0), (7, 5, 0)])
def test_clients_weigh_as_much_as_they_trained(steps: tuple[int, ...]) -> None:
    w, left = 1.0, np.array(steps)
    while left.any():
        taken = np.minimum(left, 3)
        ends = []
        for rank, count in enumerate(taken):
            x = w
            for _ in range(count):
                x -= LR * (x - 10.0 * (rank + 1))
            ends.append(x)
        w += float(((np.array(ends) - w) * taken).sum() / taken.sum())
        left -= taken
    ends_, _ = pulled(steps)
    assert ends_ == pytest.approx([w] * len(steps), rel=1e-5)


def test_a_server_may_have_momentum() -> None:
    """FedAvgM (arXiv 1909.06335, recalled): m <- beta m + (w - mean); w <- w - lr m, means weighted by steps."""
    w, m, left = 1.0, 0.0, np.array([7, 2])
    while left.any():
        taken = np.minimum(left, 3)
        ends = [10.0 * rank + (w - 10.0 * rank) * (1 - LR) ** count for rank, count in enumerate(taken, start=1)]
        m = 0.5 * m + w - float((np.array(ends) * taken).sum() / taken.sum())
        w, left = w - 0.8 * m, left - taken
    ends_, _ = pulled((7, 2), outer_optimizer=Momentum(0.8, 0.5))
    assert ends_ == pytest.approx([w, w], rel=1e-5)


def test_fedprox_pulls_to_where_the_round_began() -> None:
    def end(mu: float) -> float:
        x = 1.0
        for _ in range(3):
            x -= LR * ((x - 10.0) + mu * (x - 1.0))
        return x

    for mu in (0.0, 0.5, 4.0):
        assert pulled((3,), mu=mu)[0][0] == pytest.approx(end(mu), rel=1e-6)
    with pytest.raises(InputError, match="without a closure"):
        method = pulled((0,), mu=0.5)[1][0]
        method.step(lambda: 0.0)


def test_between_rounds_an_optimizers_state_stays() -> None:
    moments = [state["step"] for state in trained(Federated, steps=8).methods[0].optimizer.state.values()]
    assert {float(step) for step in moments} == {8.0}


@given(ranks=st.integers(1, 5), each=st.integers(1, 4), seed=st.integers(0, 99))
def test_in_every_round_other_clients_are_drawn_each_once(ranks: int, each: int, seed: int) -> None:
    homes = [home(rank, ranks, ranks * each) for rank in range(ranks)]
    assert sorted(client for own in homes for client in own) == list(range(ranks * each))
    _, methods = pulled((0,) * ranks, clients=ranks * each, seed=seed)
    draws = []
    for round_ in range(60):
        for method in methods:
            method.round = round_
        drawn = [method.client for method in methods]
        assert all(client in own for client, own in zip(drawn, homes, strict=True))
        draws += drawn
    # Over sixty rounds of at most four at each home nobody is forgotten but by a chance of 1e-7.
    assert set(draws) == set(range(ranks * each))


@pytest.mark.parametrize("clients", [0, 1, 5, -2, 2.0])
def test_who_cannot_be_shared_out_among_ranks_is_refused(clients: Any) -> None:
    with pytest.raises(InputError, match="clients="):
        trained(Federated, ranks=2, steps=0, clients=clients)


@pytest.mark.parametrize("name", CODECS)
def test_a_client_that_spoils_the_mean_is_named(name: str) -> None:
    kind, knobs = CODECS[name]
    ranks = VirtualRanks(3)
    failures: list[str] = []

    def work(rank: int) -> None:
        own = replica().over(ranks.links[rank]).wrap(kind, tau=1, clients=6, seed=3, **knobs)
        method: Any = own
        if method.client == client:
            with torch.no_grad():
                method.model[0].weight[3, 5] = float("nan")
        try:
            method.step()
        except InputError as error:
            failures.append(str(error))
            raise

    probe = trained(Federated, steps=0, clients=6, seed=3)
    client = probe.methods[1].client
    with pytest.raises(InputError, match=rf"round 0: 0\.weight of client {client} \(rank 1\) holds inf or NaN"):
        ranks.run(work)
    # All of them end, and all say who it was.
    assert len(set(failures)) == 1 and len(failures) == 3


@pytest.mark.parametrize(
    ("kind", "knobs", "error"),
    [
        (FedFT, {"keep": 0.0}, InputError),
        (FedFT, {"keep": 1.1}, InputError),
        (FedFT, {"rule": "odd"}, UnknownNameError),
        (TopKDelta, {"share": 0.0}, InputError),
        (Federated, {"mu": -1.0}, InputError),
        (Federated, {"seed": -1}, InputError),
    ],
)
def test_what_makes_no_sense_is_refused(kind: Any, knobs: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        replica().wrap(kind, tau=2, **knobs)
    for text in ("fedft.keep=0", "topk-delta.share=1.5", "fedft.clients=0", "fedft.rule=odd"):
        with pytest.raises(InputError):
            parse_settings([text])


@given(clients=st.integers(1, 7), size=st.integers(2000, 9000))
def test_parts_of_a_text_are_apart_and_all_of_it(clients: int, size: int) -> None:
    text = np.arange(size).astype(np.uint8)
    parts = [Parts(clients, ()).of(text, client) for client in range(clients)]
    assert np.concatenate([piece for pair in parts for piece in pair]).tolist() == text.tolist()
    assert all(len(own) > 0 and abs(len(held) / len(own) - 1 / 19) < 0.01 for own, held in parts)


class Reader:
    """A trainee that remembers what it read."""

    data_ranks, parameters, stand_in = 1, 1, ""

    def __init__(self, clients: int) -> None:
        self.parts, self.data_rank = Parts(clients, (1, 2)), 2
        self.read: list[Any] = []
        self.tested: list[Any] = []

    def step(self, batch: Any) -> float:
        self.read.append(batch)
        return 0.0

    def finish(self) -> None:
        """Nothing is under way."""

    def evaluate(self, batches: Any) -> float:
        self.tested = list(batches)
        return 0.0

    def figures(self) -> dict[str, float]:
        return {}


def environment(folder: Path, knobs: dict[str, Any], **changes: Any) -> RunEnv:
    path = folder / "text.txt"
    path.write_bytes(bytes(64 + at // 5000 for at in range(40_000)))
    options = {
        "out": str(folder / "out"),
        "steps": 6,
        "batch": 2,
        "sequence": 16,
        "trace_steps": 0,
        "corpus": str(path),
    }
    return RunEnv(RunSpec("fedft", knobs, **{**options, **changes}), 0, 1)


def test_a_client_reads_its_part_and_is_tested_on_the_ends_of_those_at_home(tmp_path: Path) -> None:
    reader = Reader(4)
    run(environment(tmp_path, {}), lambda clock: reader)
    # 38,000 bytes to train on, eight letters of 5,000 each: the third quarter has the fourth, fifth and sixth.
    assert {int(x) for batch in reader.read for x in batch.flatten()} <= {64 + 3, 64 + 4, 64 + 5}
    assert {int(x) for batch in reader.tested for x in batch.flatten()} == {64 + 3, 64 + 5}


def test_more_clients_than_there_is_text_for_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"clients=200: .* use fewer clients"):
        run(environment(tmp_path, {}), lambda clock: Reader(200))


def test_a_run_with_clients_goes_on_where_it_stopped(tmp_path: Path) -> None:
    knobs = {"tau": 4, "clients": 3, "parts": True, "keep": 0.5, "rule": "magnitude"}
    technique: Any = get_technique("fedft")
    shape = LmShape(layers=1, hidden=16, heads=2, ffn=24)
    whole = technique.run(environment(tmp_path, knobs, model=shape, out=str(tmp_path / "a")), **knobs)
    ends = [
        technique.run(environment(tmp_path, knobs, model=shape, steps=steps, checkpoint_every=3), **knobs)
        for steps in (3, 6)
    ]
    assert ends[1].resumed_from == 3
    assert (ends[1].losses, ends[1].final_loss) == (whole.losses, whole.final_loss)
    assert whole.extra["rounds"] == 2 and 0 < whole.extra["sent_share"] < 1

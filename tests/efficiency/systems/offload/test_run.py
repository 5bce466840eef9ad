"""Halves against the whole model, packets against the rounding that is evaluated, the learner against closed forms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs the extra train")
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("one_thread")]

from densing.core import InputError  # noqa: E402
from densing.efficiency.parallel import RunRecord, RunSpec, launch  # noqa: E402
from densing.efficiency.simulation import Served  # noqa: E402
from densing.efficiency.systems.offload.run import parse_ways  # noqa: E402
from densing.efficiency.systems.offload.sac import DiscreteSac, actor_loss  # noqa: E402
from densing.efficiency.systems.offload.wire import pack, unpack  # noqa: E402
from tests.support.served_models import LAYERS, write_deep_model  # noqa: E402


@given(st.sampled_from([2, 4, 8, 16]), st.integers(1, 9), st.integers(1, 21), st.integers(0, 2**31))
def test_packets_hold_what_is_evaluated_and_weigh_what_is_said(bits: int, tokens: int, width: int, seed: int) -> None:
    """The oracle is the rounding with which densing eval measures quality."""
    rounding = pytest.importorskip("densing.scores.evals.served.rounding")
    states = torch.randn(tokens, width, generator=torch.Generator().manual_seed(seed)) * 10
    packet = pack(states, bits)
    assert torch.equal(unpack(packet, bits, width), rounding.round_states(states, bits).float())
    request = Served("toy", (1.0,), (1.0,), (0.0, 0.0), (0.0, 0.0), tokens, width)
    assert len(packet) == request.sent(0, bits) == tokens * rounding.state_bytes(width, bits)


@pytest.mark.parametrize("bits", [2, 16])
def test_what_bits_cannot_say_is_refused(bits: int) -> None:
    with pytest.raises(InputError, match=f"not representable in {bits} bits"):
        pack(torch.tensor([[1.0, float("nan")]]), bits)


@pytest.mark.parametrize("text", ["12", "a:1:8", "4:5:8", "4:2:3", "4:-2:8"])
def test_ways_that_cannot_be_served_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="ways"):
        parse_ways(text)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    return write_deep_model(tmp_path_factory.mktemp("served"))


def test_halves_are_the_whole_model_and_exits_are_those_that_are_evaluated(model: Path) -> None:
    """The oracle: transformers' own hidden states, norm and head."""
    from transformers import AutoModelForCausalLM

    from densing.efficiency.systems.offload.halves import Halves, layer_seconds

    halves, whole = Halves(model), AutoModelForCausalLM.from_pretrained(model)
    tokens = torch.arange(3, 20)
    with torch.no_grad():
        seen = whole(tokens[None], output_hidden_states=True)
        for cut in range(LAYERS):
            state = halves.compute(tokens, 0, cut, head=False)
            torch.testing.assert_close(state, seen.hidden_states[cut][0])
            own = halves.compute(state, cut, LAYERS, head=True)
            torch.testing.assert_close(own, seen.logits[0, -1], rtol=1e-4, atol=1e-5)
        early = halves.compute(tokens, 0, 2, head=True)
        torch.testing.assert_close(early, whole.lm_head(whole.model.norm(seen.hidden_states[2][0, -1])))
    # Decoded with a cache on each side: the answer of the whole model, computed anew for each token.
    caches, given, every = [halves.new_cache(), halves.new_cache()], tokens, tokens
    for _ in range(4):
        state = halves.compute(given, 0, 2, head=False, cache=caches[0])
        own = halves.compute(state, 2, LAYERS, head=True, cache=caches[1])
        torch.testing.assert_close(own, halves.compute(every, 0, LAYERS, head=True), rtol=1e-4, atol=1e-5)
        given = own.argmax()[None]
        every = torch.cat([every, given])
    layers, ends = layer_seconds(halves, 1, threads=1, repeats=2, behind=8)
    assert len(layers) == LAYERS and min(*layers, *ends) > 0


def test_a_model_of_another_build_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from densing.efficiency.systems.offload.halves import Halves

    folder = write_deep_model(tmp_path, "GPTNeoX")
    with pytest.raises(InputError, match="only Llama-like models can be cut"):
        Halves(folder)
    with pytest.raises(InputError, match="give a folder of a model"):
        Halves(tmp_path / "none")


@pytest.mark.slow
def test_requests_are_served_by_two_processes(model: Path, tmp_path: Path) -> None:
    ways = "4:2:4,4:device:16,2:server:16"
    knobs = {"pretrained": str(model), "ways": ways, "tokens": 16, "output_tokens": 3, "edge_threads": 1}
    run = launch(RunSpec("sac-d", knobs=knobs, steps=3, trace_steps=0, out=str(tmp_path / "run")))
    assert [run.extra[f"bytes_{way}"] for way in range(3)] == [18 * (8 + 8), 0, 64]
    assert all(run.extra[f"{what}_s_{way}"] > 0 for what in ("measured", "predicted") for way in range(3))
    device, server = (record.extra for record in _records(tmp_path / "run"))
    assert device["measured_s_1"] == run.extra["measured_s_1"] and not server
    with pytest.raises(InputError, match="give a model with --set pretrained"):
        launch(RunSpec("sac-d", steps=1, trace_steps=0, out=str(tmp_path / "other")))


def _records(out: Path) -> list[RunRecord]:
    from densing.efficiency.parallel.distributed import folder

    return [RunRecord.from_dict(folder.read_json(folder.record_file(out, rank))) for rank in range(2)]


def test_gradients_of_the_actors_loss_are_those_of_the_closed_form() -> None:
    """d/dz of pi (alpha log pi - Q) is pi (f - pi f) with f = alpha log pi - Q: the other terms cancel."""
    logits = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    values, alpha = torch.randn(3, 5, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64)
    actor_loss(logits.log_softmax(-1), values, alpha).sum().backward()
    with torch.no_grad():
        policy = logits.softmax(-1)
        inner = alpha * policy.log() - values
        expected = policy * (inner - (policy * inner).sum(-1, keepdim=True))
    torch.testing.assert_close(logits.grad, expected)


class Chain:
    """Three states in a ring: choice 0 stays, choice 1 goes on; only going on from the last one pays."""

    reward = np.array([[0.2, 0.0], [0.0, 0.0], [0.1, 1.0]])

    def __init__(self, episodes: int = 32) -> None:
        self.at = np.arange(episodes) % 3

    @property
    def state(self) -> np.ndarray:
        return np.eye(3)[self.at]

    def take(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        reward = self.reward[self.at, chosen]
        self.at = (self.at + chosen) % 3
        return reward, self.state, self.state


@pytest.mark.slow
def test_values_and_policy_are_those_of_soft_iteration() -> None:
    """The oracle: soft Q iteration over the table."""
    gamma, alpha = 0.8, 0.1
    table = np.zeros((3, 2))
    for _ in range(500):
        soft = alpha * np.log(np.exp(table / alpha).sum(1))
        table = Chain.reward + gamma * np.stack([soft, np.roll(soft, -1)], axis=1)
    expected = np.exp(table / alpha) / np.exp(table / alpha).sum(1, keepdims=True)
    learner = DiscreteSac(3, 2, gamma=gamma, alpha=alpha, tau=0.05, seed=1)
    learner.learn(Chain(), 800)
    np.testing.assert_allclose(learner.values(np.eye(3)), table, atol=0.01)
    np.testing.assert_allclose(learner.probabilities(np.eye(3)), expected, atol=0.01)


def test_the_temperature_brings_the_entropy_to_its_share() -> None:
    learner = DiscreteSac(3, 2, gamma=0.0, entropy_share=0.5, lr=3e-3, seed=0)
    learner.learn(Chain(), 500)
    policy = learner.probabilities(np.eye(3))
    entropy = -(policy * np.log(policy)).sum(1).mean()
    assert entropy == pytest.approx(0.5 * np.log(2), abs=0.1)

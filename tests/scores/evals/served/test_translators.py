"""Exits: ridge regression against scikit-learn's, what is stored, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra evals")
pytest.importorskip("lm_eval", reason="needs the extra evals")
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("one_thread")]

from densing.core import ArtefactError, InputError  # noqa: E402
from densing.scores.evals.plan import ModelSpec  # noqa: E402
from densing.scores.evals.served.translators import (  # noqa: E402
    HELD_OUT,
    MANIFEST,
    WEIGHTS,
    Moments,
    fit_translators,
    read_translators,
)
from tests.support.served_models import LAYERS, TEXTS, write_deep_model  # noqa: E402


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    folder = write_deep_model(tmp_path_factory.mktemp("model"))
    return ModelSpec.of("hf", {"pretrained": str(folder), "dtype": "float32"}, "deep")


def test_ridge_is_that_of_scikit_learn() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(0)
    x, y = rng.normal(3.0, [1.0, 5.0, 100.0], (40, 3)), rng.normal(size=(40, 2))
    weights = rng.uniform(0.1, 2.0, 40)
    moments = Moments(3, 2)
    for part in (slice(0, 7), slice(7, 40)):
        moments.add(x[part], y[part], weights[part])
    for alpha in (0.0, 0.3, 50.0):
        expected = linear_model.Ridge(alpha=alpha, solver="svd").fit(x, y, sample_weight=weights)
        matrix, bias = moments.ridge(alpha)
        np.testing.assert_allclose(matrix, expected.coef_, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(bias, expected.intercept_, rtol=1e-8)
        left = y - x @ matrix.T - bias
        assert moments.error(matrix, bias) == pytest.approx(np.mean(weights * np.square(left).sum(1)))
    assert moments.variance == pytest.approx(
        np.mean([np.average((c - np.average(c, weights=weights)) ** 2, weights=weights) for c in x.T])
    )


def test_without_penalty_it_is_least_squares() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(30, 4)), rng.normal(size=(30, 4))
    moments = Moments(4, 4)
    moments.add(x, y, np.ones(30))
    expected = np.linalg.lstsq(np.column_stack([x, np.ones(30)]), y, rcond=None)[0]
    matrix, bias = moments.ridge(0.0)
    np.testing.assert_allclose(np.vstack([matrix.T, bias]), expected, atol=1e-10)


def test_moments_of_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="give more text"):
        Moments(2, 2).ridge(1.0)


def test_translators_are_the_regression_of_the_states_transformers_returns(model: ModelSpec, tmp_path: Path) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    made = fit_translators(model, [1, 3], TEXTS, tmp_path, tokens=4000, block=100, seed=4, source="numbers")
    tokenizer = AutoTokenizer.from_pretrained(model.args["pretrained"])
    network = AutoModelForCausalLM.from_pretrained(model.args["pretrained"], dtype=torch.float32).eval()
    order = np.random.default_rng(4).permutation(len(TEXTS))
    stream = [token for at in order for token in [0, *tokenizer(TEXTS[at], add_special_tokens=False)["input_ids"]]]
    rows = torch.tensor(stream[:4000]).view(40, 100)
    last: list[torch.Tensor] = []
    network.model.layers[-1].register_forward_hook(lambda _m, _i, output: last.append(output))
    with torch.inference_mode():
        states = network(rows, output_hidden_states=True).hidden_states
    train = np.arange(40) % HELD_OUT != 0
    y = last[0][train][:, 1:].flatten(0, 1).double().numpy()
    weights = 1 / np.square(y).sum(1)
    for layer in (1, 3):
        x = states[layer][train][:, 1:].flatten(0, 1).double().numpy()
        variance = np.mean([np.average((c - np.average(c, weights=weights)) ** 2, weights=weights) for c in x.T])
        ratio = made.manifest["exits"][str(layer)]["ridge"]
        expected = linear_model.Ridge(alpha=ratio * variance * weights.sum()).fit(x, y, sample_weight=weights)
        np.testing.assert_allclose(made.maps[layer].matrix.float(), expected.coef_, atol=2e-3)
        np.testing.assert_allclose(made.maps[layer].bias.float(), expected.intercept_, atol=2e-3)
        about = made.manifest["exits"][str(layer)]
        assert about["error"] < about["untranslated_error"]


def test_what_is_stored_is_the_same_each_time(model: ModelSpec, tmp_path: Path) -> None:
    both = [fit_translators(model, [2], TEXTS, tmp_path / name, tokens=2000, block=100) for name in "ab"]
    assert both[0].manifest == both[1].manifest
    assert (tmp_path / "a" / WEIGHTS).read_bytes() == (tmp_path / "b" / WEIGHTS).read_bytes()
    assert both[0].manifest["text"]["tokens"] == 2000


@pytest.mark.parametrize("exits", [[0], [LAYERS], [1, 9], [], [1.5]])
def test_exits_that_are_none_are_refused(model: ModelSpec, exits: list[int], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"the model has {LAYERS} layers"):
        fit_translators(model, exits, TEXTS, tmp_path)


def test_too_little_text_and_a_variant_are_refused(model: ModelSpec, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"few words: \d+ tokens are too few"):
        fit_translators(model, [1], ["two words"], tmp_path, source="few words")
    served = ModelSpec.of("hf-served", {**model.args, "weight_bits": 4}, "deep")
    with pytest.raises(InputError, match="fitted to the full model; drop weight_bits"):
        fit_translators(served, [1], TEXTS, tmp_path)


def test_states_that_are_no_numbers_are_refused(model: ModelSpec, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(write_deep_model(tmp_path / "m"))
    with torch.no_grad():
        network.model.layers[1].mlp.down_proj.weight[0, 0] = math.nan
    network.save_pretrained(tmp_path / "m")
    broken = ModelSpec.of("hf", {"pretrained": str(tmp_path / "m"), "dtype": "float32"})
    with pytest.raises(InputError, match="behind layer 2 contains NaN or infinity"):
        fit_translators(broken, [2], TEXTS, tmp_path / "out", tokens=2000, block=100)
    assert not (tmp_path / "out").exists()


def test_stored_translators_that_do_not_fit_are_refused(model: ModelSpec, tmp_path: Path) -> None:
    made = fit_translators(model, [2], TEXTS, tmp_path, tokens=2000, block=100)
    revision = made.manifest["revision"]
    with pytest.raises(InputError, match="but this model is"):
        read_translators(tmp_path, "sha256:0")
    with pytest.raises(InputError, match="no translators in it"):
        read_translators(tmp_path / "nowhere", revision)
    whole = (tmp_path / WEIGHTS).read_bytes()
    (tmp_path / WEIGHTS).write_bytes(whole[:-1] + b"x")
    with pytest.raises(ArtefactError, match="content does not match"):
        read_translators(tmp_path, revision)
    from safetensors.torch import save_file

    broken = {"2.matrix": torch.full((16, 16), math.nan).half(), "2.bias": torch.zeros(16).half()}
    for tensors, error, message in (
        (broken, InputError, "contains NaN or infinity"),
        ({}, ArtefactError, "is missing"),
    ):
        save_file(tensors, str(tmp_path / WEIGHTS))
        from densing.scores.evals.identity import file_digest

        manifest = {**made.manifest, "files": {WEIGHTS: file_digest(tmp_path / WEIGHTS)}}
        (tmp_path / MANIFEST).write_text(json.dumps(manifest))
        with pytest.raises(error, match=message):
            read_translators(tmp_path, revision)
    for damaged in ("[]", "{}", '{"kind": "translators"}'):
        (tmp_path / MANIFEST).write_text(damaged)
        with pytest.raises(ArtefactError, match="not the manifest"):
            read_translators(tmp_path, revision)

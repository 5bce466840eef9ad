"""A served model: its logits against transformers' own parts put together by hand, its place in the result store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra evals")
pytest.importorskip("lm_eval", reason="needs the extra evals")
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("one_thread")]

from densing.core import InputError, UnavailableError  # noqa: E402
from densing.scores.evals.identity import identify_model  # noqa: E402
from densing.scores.evals.models import gguf_read_once, load_model  # noqa: E402
from densing.scores.evals.plan import Loading, ModelSpec, plan_of  # noqa: E402
from densing.scores.evals.runner import run_plan  # noqa: E402
from densing.scores.evals.served.measured import measured_variants  # noqa: E402
from densing.scores.evals.served.model import stored_bytes  # noqa: E402
from densing.scores.evals.served.rounding import matrix_bytes, quantise, round_states, state_bytes  # noqa: E402
from densing.scores.evals.served.translators import fit_translators  # noqa: E402
from tests.support.evals_toys import write_tasks  # noqa: E402
from tests.support.served_models import LAYERS, TEXTS, write_deep_model  # noqa: E402

TOKENS = torch.arange(3, 43)[None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("served")
    for kind in ("Llama", "GPTNeoX"):
        model = write_deep_model(place / kind, kind)
        fit_translators(ModelSpec.of("hf", arguments(model)), [1, 2, 3], TEXTS, place / f"{kind}-exits", tokens=3000)
    write_tasks(place / "tasks")
    return place


def arguments(model: Path, **options: Any) -> dict[str, Any]:
    return {"pretrained": str(model), "dtype": "float32", **options}


def served(folder: Path, kind: str = "Llama", **options: Any) -> Any:
    """Load a variant as a plan would."""
    if options.get("exit") not in (None, LAYERS):
        options["translators"] = str(folder / f"{kind}-exits")
    entry = {"model": "hf", "model_args": arguments(folder / kind, **options)}
    (spec,) = plan_of({"models": [entry], "tasks": ["x"]}, "the test").models
    assert spec.type == "hf-served"
    return load_model(spec, Loading(device="cpu"), identify_model(spec))


def whole(folder: Path, kind: str = "Llama") -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder / kind, dtype=torch.float32).eval()


def logits(model: Any, **inputs: Any) -> Any:
    with torch.inference_mode():
        return model(**(inputs or {"input_ids": TOKENS})).logits


@pytest.mark.parametrize("kind", ["Llama", "GPTNeoX"])
def test_the_last_exit_is_the_model_itself(kind: str, folder: Path) -> None:
    model = served(folder, kind, exit=LAYERS)
    assert torch.equal(logits(model.lm.model), logits(whole(folder, kind)))
    assert model.facts["params_total"] == sum(weight.numel() for weight in whole(folder, kind).parameters())


@pytest.mark.parametrize("kind", ["Llama", "GPTNeoX"])
@pytest.mark.parametrize("exit_", [1, 3])
def test_an_exit_is_translated_into_the_models_own_head(kind: str, exit_: int, folder: Path) -> None:
    from safetensors.torch import load_file

    model, network = served(folder, kind, exit=exit_), whole(folder, kind)
    assert not model.lm.prefix_fallback
    with torch.inference_mode():
        state = network(TOKENS, output_hidden_states=True).hidden_states[exit_]
        maps = load_file(folder / f"{kind}-exits" / "translators.safetensors")
        state = state @ maps[f"{exit_}.matrix"].float().T + maps[f"{exit_}.bias"].float()
        norm = network.model.norm if kind == "Llama" else network.base_model.final_layer_norm
        expected = network.get_output_embeddings()(norm(state))
    torch.testing.assert_close(logits(model.lm.model), expected)
    layers = network.base_model.layers
    kept = sum(w.numel() for w in network.parameters()) - sum(w.numel() for w in layers[exit_:].parameters())
    assert model.facts["params_total"] == kept + 16 * 16 + 16
    assert model.facts["served"]["weight_bytes"] == 4 * kept + 2 * (16 * 16 + 16)


@pytest.mark.parametrize("cut", [0, 1, 2, LAYERS])
@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_the_other_side_goes_on_from_the_rounded_state(cut: int, bits: int, folder: Path) -> None:
    model, device, server = served(folder, cut=cut, cut_bits=bits), whole(folder), whole(folder)
    behind: list[Any] = []
    place = device.model.layers[cut - 1] if cut else device.model.embed_tokens
    place.register_forward_hook(lambda _m, _i, output: behind.append(output))
    logits(device)
    server.model.layers = server.model.layers[cut:]
    server.config.num_hidden_layers = LAYERS - cut
    expected = logits(server, inputs_embeds=round_states(behind[0], bits), use_cache=False)
    torch.testing.assert_close(logits(model.lm.model), expected, rtol=1e-4, atol=1e-4)
    assert not torch.equal(logits(model.lm.model), logits(whole(folder)))
    assert model.facts["served"]["bytes_per_token"] == state_bytes(16, bits)


def test_a_state_cut_at_the_exit_is_rounded_before_it_is_translated(folder: Path) -> None:
    model = served(folder, exit=2, cut=2, cut_bits=4).lm.model
    translator = model.model.layers[-1].translator
    with torch.inference_mode():
        state = whole(folder)(TOKENS, output_hidden_states=True).hidden_states[2]
        expected = model.lm_head(model.model.norm(translator(round_states(state, 4))))
    torch.testing.assert_close(logits(model), expected)


@pytest.mark.parametrize("bits", [4, 8])
def test_matrices_are_rounded_and_norms_are_not(bits: int, folder: Path) -> None:
    model, network = served(folder, weight_bits=bits), whole(folder)
    size, rounded = 0, 0
    for name, weight in network.named_parameters():
        own = model.lm.model.get_parameter(name)
        torch.testing.assert_close(own, weight if weight.dim() == 1 else quantise(weight, bits), rtol=0, atol=0)
        size += 4 * weight.numel() if weight.dim() == 1 else matrix_bytes(*weight.shape, bits)
        rounded += weight.dim() > 1
    assert rounded == 2 + 7 * LAYERS
    assert model.facts["served"]["weight_bytes"] == size


def test_weights_of_a_gguf_file_weigh_what_the_file_holds() -> None:
    pytest.importorskip("gguf")
    try:
        (spec,) = plan_of({"models": ["smollm2-135m"], "tasks": ["x"]}, "the test").models
    except UnavailableError as error:
        pytest.skip(str(error))
    # Q4_1: 32 entries in 20 bytes; Q8_0: 32 in 34; norms are float32. Shapes are SmolLM2's.
    layer = (2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536) * 20 // 32 + 2 * 4 * 576
    rest = 49152 * 576 * 34 // 32 + 4 * 576
    with gguf_read_once():
        assert [stored_bytes(None, spec, last) for last in (12, 30)] == [12 * layer + rest, 30 * layer + rest]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exit": 5}, f"exit=5: .* has {LAYERS} layers"),
        ({"cut": 5}, f"cut=5: .* has {LAYERS} layers"),
        ({"exit": 2, "cut": 3}, r"cut=3 lies after exit=2"),
        ({"exit": 0}, r"exit=0 is not a number of layers from 1 up"),
        ({"cut": 1, "cut_bits": 3}, r"cut_bits=3 is not offered; choose one of 2, 4, 8, 16"),
        ({"weight_bits": 2}, r"weight_bits=2 is not offered"),
        ({"cut_bits": 8}, r"without a cut"),
        ({"exit": "x"}, r"exit='x' is not a number"),
        ({"weight_bits": 4, "peft": "adapter"}, r"merge it into the weights first"),
    ],
)
def test_variants_that_cannot_be_served_are_refused(options: dict[str, Any], message: str, folder: Path) -> None:
    with pytest.raises(InputError, match=message):
        served(folder, **options)


def test_translators_are_needed_and_must_be_the_models_own(folder: Path, tmp_path: Path) -> None:
    cases = {
        "needs translators at that exit; run densing exits": {},
        "but this model is": {"translators": str(folder / "GPTNeoX-exits")},
    }
    for message, options in cases.items():
        entry = {"model_args": arguments(folder / "Llama", exit=2, **options)}
        (spec,) = plan_of({"models": [entry], "tasks": ["x"]}, "the test").models
        with pytest.raises(InputError, match=message):
            load_model(spec, Loading(device="cpu"), identify_model(spec))
    one = fit_translators(ModelSpec.of("hf", arguments(folder / "Llama")), [1], TEXTS, tmp_path, tokens=3000)
    entry = {"model_args": arguments(folder / "Llama", exit=2, translators=str(one.folder))}
    (spec,) = plan_of({"models": [entry], "tasks": ["x"]}, "the test").models
    with pytest.raises(InputError, match="has translators for exits 1; fit this one too"):
        load_model(spec, Loading(device="cpu"), identify_model(spec))


def test_without_translators_the_head_reads_the_state_as_it_is(folder: Path) -> None:
    entry = {"model_args": arguments(folder / "Llama", exit=2, translators="none")}
    (spec,) = plan_of({"models": [entry], "tasks": ["x"]}, "the test").models
    identity = identify_model(spec)
    assert identity.key["args"]["translators"] == "none"
    model, network = load_model(spec, Loading(device="cpu"), identity).lm.model, whole(folder)
    with torch.inference_mode():
        expected = network.lm_head(network.model.norm(network(TOKENS, output_hidden_states=True).hidden_states[2]))
    torch.testing.assert_close(logits(model), expected)


def plan(folder: Path, variants: list[dict[str, Any]], **settings: Any) -> Any:
    models = [{"name": "deep", "model_args": arguments(folder / "Llama", **variant)} for variant in variants]
    content = {"models": models, "tasks": ["toy_choice", "toy_long"], "include_path": str(folder / "tasks"),
               "device": "cpu", **settings}  # fmt: skip
    return plan_of(content, "the test")


@pytest.mark.slow
def test_variants_are_evaluated_once_and_read_back_as_a_table(folder: Path, tmp_path: Path) -> None:
    exits = str(folder / "Llama-exits")
    variants = [
        {"exit": LAYERS},
        {"exit": 2, "translators": exits},
        {"exit": 2, "cut": 1, "cut_bits": 4, "translators": exits},
        {"exit": 2, "cut": 1, "cut_bits": 4, "weight_bits": 8, "translators": exits},
    ]
    states = [[unit.state for unit in run_plan(plan(folder, variants), tmp_path).units] for _ in range(2)]
    assert states == [["evaluated"] * 8, ["skipped"] * 8]
    own = {"model_args": arguments(folder / "Llama"), "name": "plain", "model": "hf"}
    content = {"models": [own], "tasks": ["toy_choice"], "include_path": str(folder / "tasks"), "device": "cpu"}
    run_plan(plan_of(content, "the test"), tmp_path / "plain")

    table = measured_variants(tmp_path, "deep")
    assert table["model"].tolist() == [
        "deep@exit=2,cut=1,cut_bits=4,weight_bits=8", "deep@exit=2,cut=1,cut_bits=4", "deep@exit=2", "deep@exit=4",
    ]  # fmt: skip
    assert table[["exit", "layers"]].values.tolist() == [[2, 4], [2, 4], [2, 4], [4, 4]]
    assert table["cut"].tolist()[:2] == [1, 1] and table["cut"].isna().tolist() == [False, False, True, True]
    assert table["bytes_per_token"].tolist() == [16, 16, 0, 0]
    assert table["n_items"].nunique() == 1 and table["n_tasks"].tolist() == [2] * 4
    assert table["kept_params"].tolist()[:3] == [table["kept_params"][0]] * 3
    assert table["kept_params"][3] > table["kept_params"][0]
    # The whole model's numbers are lm-eval's own of the plain one.
    from densing.scores.evals.store import RunStore

    def value(run: Path, model: str, metric: str, task: str = "toy_choice") -> float:
        rows = RunStore(run).measurements()
        chosen = rows[rows["model"].eq(model) & rows["task"].eq(task) & rows["metric"].eq(metric)]
        return float(chosen["value"].iloc[0])

    for metric in ("acc_norm", "gold_bits_per_byte"):
        assert value(tmp_path, "deep@exit=4", metric) == pytest.approx(value(tmp_path / "plain", "plain", metric))
    losses = [value(tmp_path, "deep@exit=4", f"{own}bits_per_byte", f"toy_{task}")
              for own, task in (("gold_", "choice"), ("", "long"))]  # fmt: skip
    assert table["bits_per_byte"][3] == pytest.approx(sum(losses) / 2)
    assert table["accuracy"][3] == pytest.approx(value(tmp_path, "deep@exit=4", "acc_norm"))


def test_other_translators_are_another_model(folder: Path, tmp_path: Path) -> None:
    spec = ModelSpec.of("hf", arguments(folder / "Llama"))
    keys = []
    for seed in (0, 0, 1):
        made = fit_translators(spec, [2], TEXTS, tmp_path / str(len(keys)), tokens=3000, seed=seed)
        keys.append(identify_model(plan(folder, [{"exit": 2, "translators": str(made.folder)}]).models[0]).key)
    assert keys[0] == keys[1] != keys[2]
    assert "translators" in keys[0]["args"]


def test_a_plan_read_back_names_its_variants_once(folder: Path) -> None:
    first = plan(folder, [{"exit": 4, "weight_bits": 4}])
    again = plan_of(first.to_dict(), "read back")
    assert [model.name for model in again.models] == ["deep@exit=4,weight_bits=4"]
    assert identify_model(again.models[0]) == identify_model(first.models[0])

"""Tuning on films told with their reception: what is learnt, what is stored, what is evaluated and what is refused."""

from __future__ import annotations

import json
import math
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra evals")
pytest.importorskip("lm_eval", reason="needs the extra evals")
pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(find_spec("peft") is None, reason="needs the extra tune"),
]

from densing.core import ArtefactError, InputError, UnavailableError, install_command  # noqa: E402
from densing.scores.evals import Film, Loading, ModelSpec, RunStore, identify_model, load_model, plan_of, run_plan  # noqa: E402
from densing.scores.evals.adapters import CONFIG, MANIFEST, WEIGHTS, describe_adapter, read_adapter  # noqa: E402
from densing.scores.evals.identity import ModelIdentity, film_split  # noqa: E402
from densing.scores.evals.session import TaskSource  # noqa: E402
from densing.scores.ladder import DivergedError, Tuning, films, tune  # noqa: E402
from densing.scores.ladder.tuning import save, with_adapters  # noqa: E402
from tests.support.evals_toys import write_tasks  # noqa: E402
from tests.support.served_models import write_deep_model  # noqa: E402

FILMS = tuple(
    Film(n, f"Film {n}", 1990 + n, f"Who {n}", f"Film {n} ({1990 + n}).", meter=n % 101, reviews=5 + n)
    for n in range(24)
)
OLD = [film.id for film in FILMS if film.year < 2005]
TUNING = Tuning(films=12, passes=8, rank=4, rate=1e-2, batch=4)
TOKENS = torch.arange(3, 43)[None]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuning")
    for name, seed in (("deep", 0), ("other", 1)):
        write_deep_model(folder / name, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(films, "read_films", lambda: FILMS)
        tune(model(folder), folder / "tuned", TUNING)
    write_tasks(folder / "tasks")
    return folder


@pytest.fixture(autouse=True)
def _few_films(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(films, "read_films", lambda: FILMS)


def model(place: Path, name: str = "deep", **args: Any) -> ModelSpec:
    (spec,) = plan_of({"models": [entry(place, name, **args)], "tasks": ["x"]}, "the test").models
    return spec


def entry(place: Path, name: str = "deep", **args: Any) -> dict[str, Any]:
    return {"model": "hf", "model_args": {"pretrained": str(place / name), "dtype": "float32", **args}}


def loaded(spec: ModelSpec) -> Any:
    return load_model(spec, Loading(device="cpu"), identify_model(spec))


def logits(network: Any) -> Any:
    with torch.inference_mode():
        return network(TOKENS).logits


def whole(place: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(place / "deep", dtype=torch.float32).eval()


def told_loss(network: Any, tokenizer: Any) -> float:
    texts = [text for film, text in zip(films.films_in_order(), films.behaviour_texts("time"), strict=True)
             if film.id in OLD]  # fmt: skip
    rows = [torch.tensor([tokenizer(text)["input_ids"]]) for text in texts]
    with torch.inference_mode():
        return float(sum(network(row, labels=row).loss for row in rows)) / len(rows)


def test_adapters_before_the_first_step_change_no_bit(place: Path, tmp_path: Path) -> None:
    fresh = with_adapters(whole(place), TUNING)
    assert torch.equal(logits(fresh), logits(whole(place)))
    save(fresh, tmp_path, "deep")
    settings = {"split": "time", "rank": 4}
    about = {"model": "deep", "revision": identify_model(model(place)).key["revision"], "films": 0}
    describe_adapter(tmp_path, {**about, "settings": settings})
    merged = loaded(model(place, adapter=str(tmp_path)))
    assert torch.equal(logits(merged.lm.model), logits(whole(place)))


def test_what_was_told_is_predicted_better_and_the_model_is_as_large_as_before(place: Path) -> None:
    from peft import PeftModel

    tuned = loaded(model(place, adapter=str(place / "tuned")))
    before, after = told_loss(whole(place), tuned.lm.tokenizer), told_loss(tuned.lm.model, tuned.lm.tokenizer)
    about = read_adapter(place / "tuned", identify_model(model(place)).key["revision"]).manifest
    assert after < before - 0.5 and about["loss"]["last"] < about["loss"]["first"] - 0.5
    assert tuned.facts["params_total"] == sum(weight.numel() for weight in whole(place).parameters())
    beside = PeftModel.from_pretrained(whole(place), str(place / "tuned")).eval()
    torch.testing.assert_close(logits(tuned.lm.model), logits(beside), rtol=1e-4, atol=1e-4)


def test_the_manifest_says_what_was_told_and_to_whom(place: Path) -> None:
    about = json.loads((place / "tuned" / MANIFEST).read_text())
    assert about["model"] == "deep" and about["revision"] == identify_model(model(place)).key["revision"]
    assert len(about["told"]) == about["films"] == 12 and set(about["told"]) <= set(OLD)
    assert about["settings"]["split"] == "time" and about["settings"]["seed"] == 0 and about["steps"] == 24
    assert {"peft", "torch", "transformers"} <= set(about["versions"])
    assert set(about["files"]) == {CONFIG, WEIGHTS}
    assert str(place) not in (place / "tuned" / CONFIG).read_text()


def test_the_same_call_makes_the_same_bytes_and_is_not_done_twice(place: Path, tmp_path: Path) -> None:
    # What a killed run may have left.
    (tmp_path / ".again.x1").mkdir()
    tune(model(place), tmp_path / "again", TUNING)
    for name in (CONFIG, WEIGHTS):
        assert (tmp_path / "again" / name).read_bytes() == (place / "tuned" / name).read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["again"]
    steps: list[str] = []
    tune(model(place), tmp_path / "again", TUNING, progress=lambda label, done, total: steps.append(label))
    assert steps == []
    with pytest.raises(InputError, match="holds an adapter of rank 4, not 2; choose another --out"):
        tune(model(place), tmp_path / "again", Tuning(films=12, passes=8, rank=2, rate=1e-2, batch=4))


def test_a_run_that_stops_leaves_nothing(place: Path, tmp_path: Path) -> None:
    def stop(label: str, done: float, total: float | None) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(model(place), tmp_path / "out", TUNING, progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_a_tuned_model_is_one_of_its_own_in_the_store(place: Path, tmp_path: Path) -> None:
    data = {
        "models": [entry(place), entry(place, adapter=str(place / "tuned"))],
        "tasks": ["toy_choice"], "limit": 3, "include_path": str(place / "tasks"), "device": "cpu",
    }  # fmt: skip
    plan = plan_of(data, "the test")
    assert [spec.name for spec in plan.models] == ["deep", "deep@adapter=tuned"]
    assert plan_of(plan.to_dict(), "read back").models == plan.models
    done = run_plan(plan, tmp_path / "run")
    assert [unit.state for unit in done.units] == ["evaluated", "evaluated"], done.failed
    (manifest,) = (unit.manifest for unit in RunStore(tmp_path / "run").units() if "adapter" in unit.manifest["model"])
    assert manifest["key"]["model"]["args"]["adapter"].startswith("sha256:")
    about = manifest["model"]["adapter"]
    assert about["films"] == 12 and about["settings"]["split"] == "time" and "told" not in about
    assert any("with their reception, training split time" in caveat for caveat in manifest["model"]["caveats"])


@pytest.mark.parametrize("args", [{"exit": 2}, {"adapter": "x"}, {"peft": "x"}])
def test_only_whole_models_are_tuned(place: Path, tmp_path: Path, args: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="a full transformers model"):
        tune(model(place, **args), tmp_path / "out", TUNING)


def test_a_model_of_unknown_content_is_not_tuned(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = ModelIdentity({"revision": "main", "dtype": "float32"}, pinned=False)
    monkeypatch.setattr("densing.scores.ladder.tuning.identify_model", lambda spec: unknown)
    with pytest.raises(InputError, match="pass revision=<commit>"):
        tune(model(place), tmp_path / "out", TUNING)


def test_what_cannot_be_told_is_refused(place: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="films 100: the split time has 15 to learn from"):
        tune(model(place), tmp_path / "out", Tuning(films=100))
    with pytest.raises(InputError, match="rank 0: give a number above 0"):
        Tuning(rank=0)
    with pytest.raises(InputError, match=r"unknown split of the films 'tme'; did you mean 'time'"):
        tune(model(place), tmp_path / "out", Tuning(split="tme"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    with pytest.raises(InputError, match="contains something other than an adapter; choose another --out"):
        tune(model(place), tmp_path / "full", TUNING)
    assert (tmp_path / "full" / "notes.txt").exists()


def test_a_loss_that_is_no_number_ends_it(place: Path, tmp_path: Path) -> None:
    broken = write_deep_model(tmp_path / "deep")
    network = whole(tmp_path)
    with torch.no_grad():
        network.model.layers[1].mlp.down_proj.weight[0, 0] = math.nan
    network.save_pretrained(broken)
    with pytest.raises(DivergedError, match="lower the learning rate"):
        tune(model(tmp_path), tmp_path / "out", TUNING)
    assert not (tmp_path / "out").exists()


def failures(place: Path, run: Path, *models: dict[str, Any], task: str = "toy_choice") -> list[str]:
    data = {"models": list(models), "tasks": [task], "limit": 2, "include_path": str(place / "tasks"), "device": "cpu"}
    return [unit.error for unit in run_plan(plan_of(data, "the test"), run).failed]


def test_an_adapter_of_another_model_is_refused(place: Path, tmp_path: Path) -> None:
    (error,) = failures(place, tmp_path, entry(place, "other", adapter=str(place / "tuned")))
    assert "an adapter of deep (sha256:" in error and "tune this one with densing tune" in error


@pytest.mark.skipif(find_spec("bokeh_sampledata") is None, reason="the films' wheel is not installed")
def test_films_by_another_split_are_not_asked(place: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "task: mine\noutput_type: multiple_choice\ntest_split: test\ndoc_to_text: query\n"
        "doc_to_choice: !function densing.scores.evals.tasks.films.answers\n"
        "doc_to_target: !function densing.scores.evals.tasks.films.answer_index\n"
        "custom_dataset: !function densing.scores.evals.tasks.films.load_behaviour\n"
        "metadata:\n  version: 1.0\n  behaviour: meter\n  split: director\n"
    )
    made = TaskSource([str(tmp_path)]).load("mine", {})["tasks"]["mine"]
    assert film_split(made) == "director"
    adapter = read_adapter(place / "tuned", identify_model(model(place)).key["revision"])
    adapter.check_splits(["time"])
    adapter.check_splits([])
    with pytest.raises(InputError, match=r"split director, but .* was trained on split time"):
        adapter.check_splits(["time", "director"])


def test_a_folder_that_holds_no_adapter_is_refused(place: Path, tmp_path: Path) -> None:
    (error,) = failures(place, tmp_path / "run", entry(place, adapter=str(place / "nowhere")))
    assert "nowhere: no such folder; run densing tune --out" in error
    (error,) = failures(place, tmp_path / "run", entry(place, adapter=str(place / "deep")))
    assert "no adapter of densing tune in it (densing.json is missing)" in error
    revision = identify_model(model(place)).key["revision"]
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in (CONFIG, WEIGHTS, MANIFEST):
        (copy / name).write_bytes((place / "tuned" / name).read_bytes())
    for damaged in ("[]", "{}", '{"kind": "adapter", "schema": 1}'):
        (copy / MANIFEST).write_text(damaged)
        with pytest.raises(ArtefactError, match="not the manifest of an adapter"):
            read_adapter(copy, revision)
    (copy / MANIFEST).write_bytes((place / "tuned" / MANIFEST).read_bytes())
    (copy / WEIGHTS).write_bytes((copy / WEIGHTS).read_bytes()[:-1] + b"x")
    with pytest.raises(ArtefactError, match=f"{WEIGHTS}: content does not match"):
        read_adapter(copy, revision)


def test_an_adapter_goes_alone(place: Path) -> None:
    for args, message in (({"weight_bits": 4}, "adapter and exits, cuts or bits at once"), ({"peft": "x"}, "peft and")):
        with pytest.raises(InputError, match=message):
            model(place, adapter="tuned", **args)
    with pytest.raises(InputError, match="a transformers model"):
        plan_of({"models": [{"model": "vllm", "model_args": {"adapter": "x"}}], "tasks": ["x"]}, "the test")


def test_without_peft_its_installation_is_named(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("densing.scores.evals.adapters.find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match=re.escape(install_command("tune"))):
        tune(model(place), tmp_path / "out", TUNING)
    (error,) = failures(place, tmp_path / "run", entry(place, adapter=str(place / "tuned")))
    assert install_command("tune") in error

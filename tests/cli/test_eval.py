"""``densing eval`` through its entry point, in this process and by workers in others."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from densing.cli import app

pytest.importorskip("lm_eval")
pytest.importorskip("torch")

from typer.testing import Result

from densing.jobs import get_executor
from densing.scores.density import choose_items
from densing.scores.evals.plan import Loading, ModelSpec, Plan, TaskSpec
from densing.scores.evals.runner import progress_of, run_plan
from densing.scores.evals.store import RunStore
from densing.scores.fit import fit_law
from densing.scores.items import ItemBank, answer_rows
from densing.scores.laws import get_law
from tests.support.command import commands, printed
from tests.support.evals_toys import write_models, write_tasks

SECRET = "sk-Tq8nC2vR5xY1mZ7pL4wD9sK6"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    write_models(folder)
    write_tasks(folder / "tasks")
    return folder


def densing_eval(place: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["eval", "--include_path", str(place / "tasks"), "--device", "cpu", *arguments])


def toy(place: Path, name: str = "toy-llama") -> tuple[str, ...]:
    return "--model", "hf", "--model_args", f"pretrained={place / name}"


@pytest.mark.slow
def test_contract(place: Path, tmp_path: Path) -> None:
    """The command of the issue, as a process: one JSON document on stdout, and the second time nothing to do."""
    command = [sys.executable, "-m", "densing", "eval", *toy(place), "--tasks", "toy_choice,toy_text", "--limit", "3"]
    command += ["--include_path", str(place / "tasks"), "--out", str(tmp_path / "run"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "lm-eval's own output belongs into the log"
    answer = printed(done.stdout)
    assert answer["run"] == str(tmp_path / "run")
    assert [(unit["model"], unit["task"], unit["state"]) for unit in answer["units"]] == [
        ("toy-llama", "toy_choice", "evaluated"),
        ("toy-llama", "toy_text", "evaluated"),
    ]
    assert {(row["task"], row["metric"]) for row in answer["measurements"]} >= {
        ("toy_choice", "acc"),
        ("toy_choice", "gold_bits_per_byte"),
        ("toy_text", "exact_match"),
    }
    assert answer["requests"] == 9 + 3 and answer["seconds"] > 0
    again = densing_eval(place, *toy(place), "--tasks", "toy_choice,toy_text", "--limit", "3", "--out", answer["run"])
    assert again.exit_code == 0
    assert "nothing to do" in again.stderr
    assert "acc" in again.stdout


def test_a_failed_unit_is_exit_code_1(place: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(
        f'tasks = ["toy_choice", "toy_text"]\nsamples = {{ toy_choice = [99] }}\n'
        f'[[models]]\nmodel_args = {{ pretrained = "{place / "toy-llama"}" }}\n'
    )
    done = densing_eval(place, "--plan", str(plan), "--out", str(tmp_path / "run"), "--json")
    assert done.exit_code == 1
    states = {unit["task"]: unit for unit in printed(done.stdout)["units"]}
    assert states["toy_text"]["state"] == "evaluated"
    assert "samples 99 to 99, but documents end at 13" in states["toy_choice"]["error"]


def test_dry_run_evaluates_nothing(place: Path, tmp_path: Path) -> None:
    done = densing_eval(
        place, *toy(place), "--tasks", "toy_choice,toy_long,toy_text", "--out", str(tmp_path), "--dry-run", "--json"
    )
    assert done.exit_code == 0, done.output
    rows = printed(done.stdout)["units"]
    assert {row["task"]: (row["state"], row["documents"], row["requests"]) for row in rows} == {
        "toy_choice": ("absent", 14, 42),
        "toy_long": ("absent", 14, 14),
        "toy_text": ("absent", 14, 14),
    }
    assert not (tmp_path / "units").exists()


def test_credentials_stay_out(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The dummy model's tokenizer is a name on the hub; lm-eval does without when it cannot be had.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    arguments = ("--model", "dummy", "--model_args", f"api_key={SECRET}", "--tasks", "toy_choice", "--limit", "2")
    done = densing_eval(place, *arguments, "--out", str(tmp_path / "run"))
    assert done.exit_code == 0, done.output
    written = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert any(path.name.startswith("results_") for path in written)
    assert SECRET not in done.output
    (results,) = (content for path, content in written.items() if path.name.startswith("results_"))
    assert json.loads(results)["config"]["model_args"] == {"api_key": "***"}
    assert [path for path, content in written.items() if SECRET.encode() in content] == []


def test_paths_are_no_credentials(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PWD, the working directory, is no password: a model below it keeps its name in what is written."""
    monkeypatch.setenv("PWD", str(place))
    arguments = (*toy(place), "--tasks", "toy_text", "--limit", "2", "--out", str(tmp_path / "run"))
    assert densing_eval(place, *arguments).exit_code == 0
    (results,) = (tmp_path / "run").rglob("results_*.json")
    assert json.loads(results.read_text())["config"]["model_args"] == {"pretrained": str(place / "toy-llama")}


@pytest.mark.slow
def test_workers_give_the_same_results(place: Path, tmp_path: Path) -> None:
    models = tuple(ModelSpec.of("hf", {"pretrained": str(place / name)}) for name in ("toy-llama", "toy-neox"))
    tasks = (TaskSpec("toy_choice", {"limit": 4.0}), TaskSpec("toy_text", {"limit": 4.0}))
    plan = Plan(models, tasks, loading=Loading("2", device="cpu"), include_path=(str(place / "tasks"),))
    steps: list[Any] = []
    away = run_plan(plan, tmp_path / "away", executor=get_executor("local"), progress=steps.append)
    assert [unit.state for unit in away.units] == ["evaluated"] * 4, away.units
    assert steps[-1].done == steps[-1].total
    here = run_plan(plan, tmp_path / "here")
    assert [unit.digest for unit in away.units] == [unit.digest for unit in here.units]
    for unit in RunStore(tmp_path / "away").units():
        (ours,) = unit.folder.glob("samples_*")
        (theirs,) = (tmp_path / "here" / "units" / unit.folder.name).glob("samples_*")
        assert ours.read_bytes() == theirs.read_bytes()
    again = run_plan(plan, tmp_path / "away", executor=get_executor("local"))
    assert [unit.state for unit in again.units] == ["skipped"] * 4
    assert progress_of([], 4).units_done == 4


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("--output_path", "--out FOLDER"),
        ("--wandb_args", "--json"),
        ("--hf_hub_log_args", "--out"),
        ("--config", "--plan FILE"),
        ("--use_cache", "asked no second time"),
        ("--cache_requests", "in --out"),
    ],
)
def test_options_of_lm_eval_that_are_done_otherwise_say_how(option: str, instead: str) -> None:
    done = CliRunner().invoke(app, ["eval", option, "x", "--tasks", "toy_choice"])
    assert done.exit_code == 2 and instead in " ".join(done.output.replace("│", " ").split())


def lm_eval_parser() -> argparse.ArgumentParser:
    from lm_eval._cli.run import Run

    theirs = argparse.ArgumentParser()
    Run(theirs.add_subparsers())
    (parser,) = theirs._subparsers._group_actions[0].choices.values()  # type: ignore[union-attr]
    assert isinstance(parser, argparse.ArgumentParser)
    return parser


@pytest.mark.parametrize(
    "arguments",
    [
        "--tasks piqa sciq --model_args pretrained=a dtype=float32 --limit 3",
        "-t piqa,sciq -a pretrained=a,dtype=float32 --gen_kwargs do_sample=true temperature=0.5",
        '--model_args {"pretrained":"a","revision":"x"} --metadata one=1 two=2 --tasks piqa',
        "--apply_chat_template rag --fewshot_as_multiturn false --tasks piqa",
        "--apply_chat_template --fewshot_as_multiturn --tasks piqa",
        "--tasks piqa --fewshot_as_multiturn True --apply_chat_template",
    ],
)
def test_values_are_taken_in_the_forms_that_lm_eval_takes(arguments: str) -> None:
    from densing.core import parse_pairs

    theirs = vars(lm_eval_parser().parse_args(arguments.split()))
    ours = commands()[("eval",)].make_context("eval", arguments.split()).params
    tasks = [name for text in ours["tasks"] for name in text.split(",")]
    # SplitArgs leaves a list, or the text, as lm-eval's releases have it.
    expected = theirs["tasks"] if isinstance(theirs["tasks"], list) else theirs["tasks"].split(",")
    assert tasks == [name for text in expected for name in text.split(",")]
    for name in ("model_args", "gen_kwargs", "metadata"):
        pairs = parse_pairs(ours[name] or [], f"--{name}")
        assert {key: str(value) for key, value in pairs.items()} == {
            key: str(value) for key, value in (theirs[name] or {}).items()
        }
    assert (ours["chat_template_name"] or ours["apply_chat_template"]) == theirs.get("apply_chat_template", False)
    assert bool(ours["fewshot_as_multiturn"]) == bool(theirs.get("fewshot_as_multiturn"))


def test_every_option_of_lm_eval_is_taken_or_says_what_there_is_instead() -> None:
    """lm-eval's own parser beside ours: each of its options is one of ours, refused or not."""
    options = {name for action in lm_eval_parser()._actions for name in action.option_strings if name.startswith("--")}
    ours = {name for parameter in commands()[("eval",)].params for name in parameter.opts}
    assert len(options) > 25 and options - {"--help"} <= ours
    done = CliRunner().invoke(app, ["eval", "--write_out", "--tasks", "toy_choice"])
    assert done.exit_code == 2 and "samples_*.jsonl" in " ".join(done.output.replace("│", " ").split())


def bank_of_toys(folder: Path, documents: int) -> Path:
    """A bank of toy_choice, of models that were never run."""
    from densing.scores.items import AnswerTable, calibrate_items

    rng = np.random.default_rng(0)
    names = [f"toy_choice/{at}" for at in range(documents)]
    easy = 1 / (1 + np.exp(-rng.normal(0, 1, (40, 1)) - rng.normal(0, 1, documents)))
    answers = pd.DataFrame((rng.random(easy.shape) < easy) * 1.0, [f"m{at}" for at in range(40)], names)
    items = pd.DataFrame({"task": "toy_choice", "text_hash": ""}, names)
    return calibrate_items(AnswerTable(answers, pd.Series(pd.NaT, answers.index), items)).save(folder / "bank.json")


@pytest.mark.slow
@pytest.mark.parametrize("adaptive", [False, True])
def test_a_few_items_of_a_bank_are_asked_once_also_after_a_kill(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch, adaptive: bool
) -> None:
    from lm_eval.models.huggingface import HFLM

    write_tasks(tmp_path / "tasks", documents=60)
    bank, out = bank_of_toys(tmp_path, 60), tmp_path / "run"
    call = ["eval", "--include_path", str(tmp_path / "tasks"), "--device", "cpu", *toy(place), "--out", str(out)]
    call += ["--bank", str(bank), "--items", "20", *["--adaptive"] * adaptive, "--json"]
    asked, own = [], HFLM._loglikelihood_tokens

    def dying(self: Any, requests: Any, *args: Any, **kwargs: Any) -> Any:
        asked.extend(requests)
        if 0 < dying.left <= len(asked):
            raise KeyboardInterrupt
        return own(self, requests, *args, **kwargs)

    # In the middle of the second ten, where these were chosen by the first.
    dying.left = 40 if adaptive else 10
    monkeypatch.setattr(HFLM, "_loglikelihood_tokens", dying)
    assert "same command resumes" in str(CliRunner().invoke(app, call).exception)
    # What was asked when it died has no answer: all items, or the second ten.
    lost, dying.left = 3 * (10 if adaptive else 20), 0
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 0, done.output
    data = printed(done.stdout)
    (found,) = data["models"]
    items = RunStore(out).items()
    assert len(items) == items["doc_id"].nunique() == found["items"] == 20
    loaded = ItemBank.load(bank)
    answers = answer_rows(items)
    told = answers.set_index("item")["answer"]
    first = loaded.next({}, 10)
    wanted = [*first, *loaded.next(told[first], 10)] if adaptive else choose_items(loaded, 20)
    assert set(told.index) == set(wanted) and len(asked) == 3 * 20 + lost
    score = loaded.estimate(answers, chosen="adaptive" if adaptive else "stratified")
    assert (found["score"], found["lo"], found["hi"]) == pytest.approx((score.score, score.lo, score.hi))
    assert found["scores"][0]["value"] == pytest.approx(score.score, abs=0.05)
    # The benchmark of a toy is on no reference: the score stands, and a note says so.
    assert "densities" not in found
    (note,) = [note for note in json.loads(done.stdout)["notes"] if note["code"] == "no-density"]
    assert "the run has toy_choice" in note["message"]
    count = len(asked)
    again = CliRunner().invoke(app, call[:-1])
    assert again.exit_code == 0 and "nothing to do" in again.stderr and len(asked) == count
    assert "Score on the 60 items" in again.stdout


@pytest.mark.slow
def test_a_pair_answers_further_common_items_once_also_after_a_kill(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lm_eval.models.huggingface import HFLM

    tasks = write_tasks(tmp_path / "tasks", documents=300)
    yaml = tasks / "toy_choice.yaml"
    yaml.write_text(yaml.read_text().replace("version: 1.0", "version: 1.0\n  benchmark: piqa"))
    sizes = np.geomspace(1e3, 1e7, 8)
    scores = 0.05 + 0.9 / (1 + np.exp(-0.5 * np.log(sizes / 1e5)))
    fit = fit_law(get_law("logistic", floor=0.05), {"params": sizes}, scores, bootstrap=20)
    (tmp_path / "fit.json").write_text(fit.to_json())
    runs = [str(tmp_path / name) for name in ("llama", "neox")]
    for run, name in zip(runs, ("toy-llama", "toy-neox"), strict=True):
        call = ["eval", *toy(place, name), "--include_path", str(tasks), "--device", "cpu", "--tasks", "toy_choice"]
        assert CliRunner().invoke(app, [*call, "--limit", "30", "--out", run]).exit_code == 0
    asked, own = list[Any](), HFLM._loglikelihood_tokens

    def dying(self: Any, requests: Any, *args: Any, **kwargs: Any) -> Any:
        if 0 < dying.left <= len(asked):
            raise KeyboardInterrupt
        asked.extend((id(self.model.config), *request[0]) for request in requests)
        return own(self, requests, *args, **kwargs)

    dying.left = 200
    monkeypatch.setattr(HFLM, "_loglikelihood_tokens", dying)
    call = ["compare", *runs, "-r", str(tmp_path / "fit.json"), "-b", "piqa", "--denominator", "total"]
    call += ["--until-ci", "0.9", "--json"]
    assert "same command resumes" in str(CliRunner().invoke(app, call).exception)
    dying.left = 0
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 0, done.output
    data = printed(done.stdout)
    (row,), until = data["comparisons"], data["until"]
    items = row["n_items"]
    assert row["status"] == "ok" and 100 <= items <= 300 and [one["items"] for one in until] == [items] * 2
    stored = [RunStore(Path(run)).items() for run in runs]
    texts = [set(table.groupby("digest")["doc_id"].nunique()) for table in stored]
    assert texts == [{30, items}] * 2
    # Three requests an item of both; those of the first thirty documents were answered before, and so was the last one,
    # which is the first again.
    drawn = set(max(stored[0].groupby("digest")["doc_id"].apply(set), key=len)) - set(range(30))
    assert 6 * len(drawn - {299}) <= len(asked) <= 6 * len(drawn)
    before = len(asked)
    again = CliRunner().invoke(app, call)
    assert again.exit_code == 0 and len(asked) == before
    assert printed(again.stdout)["comparisons"] == data["comparisons"]


@pytest.mark.slow
def test_a_run_is_followed_by_a_banks_items_and_new_checkpoints_are_taken_in(tmp_path: Path, place: Path) -> None:
    tasks = write_tasks(tmp_path / "tasks", documents=60)
    run = tmp_path / "mine"
    for step in (1000, 200):
        shutil.copytree(place / "toy-llama", run / f"checkpoint-{step}")
    (run / "checkpoint-300").mkdir()
    call = ["eval", "--include_path", str(tasks), "--device", "cpu", "--bank", str(bank_of_toys(tmp_path, 60))]
    call += ["--items", "20", "--checkpoints", str(run), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*call, "--html", str(tmp_path / "mine.html"), "--json"])
    assert done.exit_code == 0, done.output
    data = printed(done.stdout)
    first = data["checkpoints"]
    assert [(row["run"], row["step"], row["items"], row["density"]) for row in first] == [
        ("mine", 200, 20, None), ("mine", 1000, 20, None)
    ]  # fmt: skip
    assert first[0]["score"] == first[1]["score"] == data["models"][0]["score"] and data["requests"] == 2 * 60
    assert "Checkpoints of mine" in (tmp_path / "mine.html").read_text(encoding="utf-8")
    shutil.copytree(place / "toy-neox", run / "checkpoint-300", dirs_exist_ok=True)
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 0 and "1 evaluated, 2 skipped; 60 model requests" in done.stderr, done.output
    assert [row.split()[1] for row in done.stdout.splitlines() if row.startswith("mine")] == ["200", "300", "1000"]
    for wrong, message in (([], "no checkpoint"), (["--model_args", "pretrained=x"], "drop pretrained")):
        folder = str(run if wrong else tasks)
        done = CliRunner().invoke(app, [*call, *wrong, "--checkpoints", folder])
        assert message in str(done.exception)
    assert "without --bank" in str(densing_eval(place, "--checkpoints", str(run), "--tasks", "toy_choice").exception)


def test_a_bank_chooses_its_items_alone(tmp_path: Path, place: Path) -> None:
    bank = bank_of_toys(tmp_path, 60)
    assert "--adaptive without --bank" in str(densing_eval(place, *toy(place), "--adaptive").exception)
    for options, problem in (
        (("--limit", "3"), "drop --limit"),
        (("--adaptive", "--tasks", "toy_choice"), "drop --tasks"),
        (("--adaptive", "--executor", "local"), "run in this process"),
        (("--adaptive",), "of another version of the task"),
        (("--items", "1000"), "takes 3"),
        (("--bank", "ikp"), "is no document of a task"),
    ):
        done = densing_eval(place, *toy(place), "--bank", str(bank), *options, "--out", str(tmp_path / "run"))
        assert done.exit_code == 1 and problem in str(done.exception), done.exception

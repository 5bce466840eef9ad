"""Density beside the loss: what is logged, and that the real trackers hold it, offline."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from densing.core import InputError, UnavailableError
from densing.core.wandb_runs import wandb_files, wandb_history
from densing.scores.density import densities_by_step, run_densities
from densing.scores.density.tracking import to_log
from densing.scores.items import AnswerTable, calibrate_items
from densing.scores.references import load_reference
from densing.training import checkpoint_densities, log_to_mlflow, log_to_tensorboard, log_to_wandb
from tests.support.eval_files import results_of, samples_of

MMLU = "density/qwen1.5/mmlu"
at_step = {step: {"mmlu": (score, 14042)} for step, score in ((500, 0.25), (1000, 0.41), (1500, 0.5))}
# Other people's packages warn of their own affairs.
elsewhere = pytest.mark.filterwarnings("ignore")


def mine(step: int, **options: Any) -> Any:
    return checkpoint_densities(at_step[step], 1e9, "qwen1.5", model=f"mine@step{step}", **options)


# ---- what is logged ------------------------------------------------------------------------------------------


def test_a_score_that_the_reference_predicts_for_a_size_gives_that_size() -> None:
    [predicted] = load_reference("qwen1.5", "mmlu").fit.predict({"params": np.array([2e9])})
    numbers, _ = to_log(checkpoint_densities({"mmlu": predicted}, 1e9, "qwen1.5"))
    assert numbers[f"{MMLU}/density"] == pytest.approx(2.0, rel=1e-3)
    assert numbers[f"{MMLU}/n_eff"] == pytest.approx(2e9, rel=1e-3)
    assert numbers[f"{MMLU}/density_lo"] < 2 < numbers[f"{MMLU}/density_hi"]


def test_fewer_items_widen_the_interval_and_without_a_number_the_benchmarks_own_counts() -> None:
    def width(score: Any) -> float:
        numbers, _ = to_log(checkpoint_densities({"mmlu": score}, 1e9, "qwen1.5"))
        return math.log(numbers[f"{MMLU}/density_hi"] / numbers[f"{MMLU}/density_lo"])

    assert width((0.41, 100)) > 2 * width((0.41, 14042)) and width(0.41) == width((0.41, 14042))


def test_the_numbers_are_those_of_the_table_and_the_sentence_is_the_one_to_quote() -> None:
    result = mine(1000)
    numbers, texts = to_log(result)
    row = result.table.iloc[0]
    assert numbers == {f"{MMLU}/{name}": row[name] for name in ("density", "density_lo", "density_hi", "n_eff")}
    assert texts == {MMLU: result.sentences()[0]} and texts[MMLU].startswith("mine@step1000 has density 0.72")


def test_of_a_limit_the_end_that_is_not_known_is_left_out() -> None:
    numbers, texts = to_log(mine(500))
    assert numbers == pytest.approx({f"{MMLU}/density": 0.046, f"{MMLU}/density_hi": 0.046, f"{MMLU}/n_eff": 46e6})
    assert "at most 0.046" in texts[MMLU]
    numbers, texts = to_log(checkpoint_densities({"mmlu": 0.9}, 1e9, "qwen1.5"))
    assert set(numbers) == {f"{MMLU}/density", f"{MMLU}/density_lo", f"{MMLU}/n_eff"} and "at least" in texts[MMLU]


def test_results_of_lm_eval_in_memory_say_how_they_were_measured(tmp_path: Path) -> None:
    content = results_of({"mmlu": samples_of("mmlu")})
    content["results"]["mmlu"] = {"acc,none": 0.41, "acc_stderr,none": 0.004}
    content["n-shot"] = {"mmlu": 5}
    told = checkpoint_densities(content, 1e9, "qwen1.5").table
    (tmp_path / "results_2026-01-01T00-00-00.json").write_text(json.dumps(content))
    read = checkpoint_densities(tmp_path, 1e9, "qwen1.5").table
    for table in (told, read):
        assert "shots" not in table["protocol_detail"].item() and table["score_se"].item() == 0.004
        assert table["density"].item() == pytest.approx(mine(1000).table["density"].item())


def test_a_ladder_counts_the_models_own_parameters_without_embeddings_and_has_one_row_for_all() -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch, which the extra train brings")
    model = torch.nn.Sequential(torch.nn.Embedding(50, 20), torch.nn.Linear(20, 30, bias=False))
    scores = {"piqa": (0.62, 1838), "csqa": (0.4, 1221)}
    counted = checkpoint_densities(scores, model, "olmo-ladder")
    assert counted.table["n_params"].tolist() == [600, 600, 600]
    given = checkpoint_densities(scores, 1600, "olmo-ladder", non_embedding=600)
    assert to_log(counted) == to_log(given) and set(to_log(counted)[1]) == {"density/olmo-ladder/combined"}


def test_results_of_several_steps_are_one_table_of_densities_by_step() -> None:
    table = densities_by_step(pd.concat([mine(step).table for step in (1500, 500, 1000)]))
    assert table[["run", "step"]].to_numpy().tolist() == [["mine", 500], ["mine", 1000], ["mine", 1500]]


@pytest.mark.parametrize(
    ("scores", "params", "options", "message"),
    [
        ({"mmlu": 41}, 1e9, {}, "mmlu is 41; give a share between 0 and 1"),
        ({"mmlu": "0.4"}, 1e9, {}, "mmlu is '0.4'; give a share"),
        ({"mmlu": float("nan")}, 1e9, {}, "mmlu is nan; give a share"),
        ({"mmlu": (0.4, 0)}, 1e9, {}, "mmlu has 0 items; give a number from 1"),
        ({"mmlu": 0.4}, -1, {}, "params is -1; give a count above 0"),
        ({"mmlu": 0.4}, "7B", {}, "params is '7B'; give a count above 0"),
        ({"nonsense": 0.4}, 1e9, {}, "none of its benchmarks .* was measured; the run has nonsense"),
        ({}, 1e9, {}, "the run has nothing"),
        ({"piqa": 0.6}, 1e9, {"reference": "olmo-ladder"}, "without embeddings, .* give non_embedding"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_value_and_the_remedy(
    scores: Any, params: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        checkpoint_densities(scores, params, options.get("reference", "qwen1.5"))


def test_densities_of_several_models_have_no_single_step() -> None:
    measured = [{"model": name, "task": "mmlu", "benchmark": "mmlu", "metric": "acc", "value": 0.4, "stderr": 0.01,
                 "n_items": 100} for name in "ab"]  # fmt: skip
    sizes = pd.DataFrame([{"model": name, "params_total": 1e9} for name in "ab"])
    with pytest.raises(InputError, match="densities of a, b; log those of one model at a step"):
        to_log(run_densities(pd.DataFrame(measured), sizes, "qwen1.5"))


# ---- the trackers themselves ---------------------------------------------------------------------------------


@pytest.fixture
def wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    package = pytest.importorskip("wandb", reason="needs W&B: pip install wandb")
    for name, value in {"MODE": "offline", "DIR": str(tmp_path), "SILENT": "true"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    yield package
    package.finish()


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    package = pytest.importorskip("mlflow", reason="needs MLflow: pip install mlflow-skinny")
    # A folder is what its small package can write; the large one asks for a database.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    package.set_tracking_uri((tmp_path / "mlruns").as_uri())
    yield package
    package.end_run()
    package.set_tracking_uri(None)


def scalars(folder: Path) -> Any:
    """What TensorBoard reads in a folder of event files."""
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    read = event_accumulator.EventAccumulator(str(folder))
    read.Reload()
    return read


@elsewhere
def test_wandb_holds_density_and_interval_beside_the_loss_and_a_late_checkpoint_too(wandb: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"call wandb\.init first"):
        log_to_wandb(mine(1000), 1000)
    with wandb.init(project="p") as run:
        run.log({"loss": 3.0}, step=500)
        run.log({"loss": 2.5}, step=1000)
        log_to_wandb(mine(1000), 1000)
        log_to_wandb(mine(500), 500, run)
        run.log({"loss": 2.2}, step=1500)
        log_to_wandb(mine(1500), 1500)
    # Its process writes behind.
    wandb.teardown()
    rows, _ = wandb_history(wandb_files(tmp_path))
    assert [(row["step"], row.get("loss"), row.get("density/step")) for row in rows] == [
        (500, 3.0, None), (1000, 2.5, 1000), (1001, None, 500), (1500, 2.2, 1500),
    ]  # fmt: skip
    for row in rows[1:]:
        numbers, texts = to_log(mine(row["density/step"]))
        logged = {name: cell for name, cell in row.items() if name.startswith(MMLU)}
        assert logged.pop(f"{MMLU}/sentence") == texts[MMLU] and logged == pytest.approx(numbers)


@elsewhere
def test_mlflow_holds_density_and_interval_at_their_steps_and_the_latest_sentence(mlflow: Any) -> None:
    with pytest.raises(InputError, match=r"call mlflow\.start_run first"):
        log_to_mlflow(mine(1000), 1000)
    with mlflow.start_run() as run:
        log_to_mlflow(mine(1000), 1000)
    log_to_mlflow(mine(1500), 1500, run.info.run_id)
    client = mlflow.MlflowClient()
    for name, value in to_log(mine(1500))[0].items():
        history = client.get_metric_history(run.info.run_id, name)
        expected = [(1000, to_log(mine(1000))[0][name]), (1500, value)]
        assert [(entry.step, entry.value) for entry in history] == expected
    assert client.get_run(run.info.run_id).data.tags[MMLU] == mine(1500).sentences()[0]


@elsewhere
def test_tensorboard_holds_density_and_interval_at_their_steps_and_the_sentences(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs TensorBoard: pip install tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path) as writer:
        for step in (1000, 1500):
            log_to_tensorboard(mine(step), step, writer)
    read = scalars(tmp_path)
    for name, value in to_log(mine(1500))[0].items():
        events = read.Scalars(name)
        assert [event.step for event in events] == [1000, 1500] and events[1].value == pytest.approx(value)
    assert [event.step for event in read.Tensors(f"{MMLU}/text_summary")] == [1000, 1500]
    assert mine(1500).sentences()[0].encode() in read.Tensors(f"{MMLU}/text_summary")[1].tensor_proto.string_val


@pytest.mark.parametrize(("log", "package"), [(log_to_wandb, "wandb"), (log_to_mlflow, "mlflow")])
def test_a_tracker_that_is_not_installed_is_named_with_how_to_get_it(
    log: Callable[..., None], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(UnavailableError, match=f"{package} is not installed: pip install {package}"):
        log(mine(1000), 1000)


# ---- the Trainer of transformers -----------------------------------------------------------------------------


def trainer_of(folder: Path, **options: Any) -> Any:
    """A Trainer of a model of 1,832 parameters, four steps, evaluated and saved after every second."""
    transformers = pytest.importorskip("transformers", reason="needs transformers, which the extra evals brings")
    import torch

    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=32, **sizes))
    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 8
    arguments = transformers.TrainingArguments(
        str(folder), max_steps=4, per_device_train_batch_size=2, eval_strategy="steps", eval_steps=2, save_steps=2,
        logging_steps=1, use_cpu=True, disable_tqdm=True, **options,
    )  # fmt: skip
    return transformers.Trainer(model, arguments, train_dataset=rows, eval_dataset=rows)


@pytest.mark.slow
@elsewhere
def test_a_training_logs_its_density_wherever_it_reports_and_keeps_the_densest_checkpoint(
    wandb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard", reason="needs TensorBoard: pip install tensorboard")
    from densing.training import DensityCallback

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    by_density = {"metric_for_best_model": f"{MMLU}/density", "greater_is_better": True, "save_strategy": "best"}
    trainer = trainer_of(tmp_path / "run", report_to=["wandb", "tensorboard"], **by_density)
    scores, models = iter([0.25, 0.41]), []

    def measured(model: Any) -> dict[str, Any]:
        models.append(model)
        return {"mmlu": (next(scores), 14042)}

    callback = DensityCallback(trainer, "qwen1.5", at_evaluation=measured, params=1e9, name="mine")
    trainer.add_callback(callback)
    trainer.train()
    wandb.finish()
    wandb.teardown()
    assert models == [trainer.model] * 2 and list(callback.densities) == [2, 4]
    assert callback.densities[4].sentences()[0].startswith("mine@step4 has density 0.72")
    numbers = to_log(callback.densities[4])[0]
    assert trainer.state.best_metric == numbers[f"{MMLU}/density"] and trainer.state.best_global_step == 4
    # Each tracker, at the step of the loss.
    rows, _ = wandb_history(wandb_files(tmp_path))
    rows = [row for row in rows if row.get("train/global_step") == 4]
    events = scalars(tmp_path / "events")
    for name, value in numbers.items():
        assert [row[f"eval/{name}"] for row in rows if f"eval/{name}" in row] == [pytest.approx(value)]
        assert [event.step for event in events.Scalars(f"eval/{name}")][-1] == 4
        assert events.Scalars(f"eval/{name}")[-1].value == pytest.approx(value)
        assert [entry[f"eval_{name}"] for entry in trainer.state.log_history if f"eval_{name}" in entry][-1] == value


@pytest.mark.slow
@elsewhere
def test_scores_come_from_compute_metrics_or_of_saved_checkpoints_and_bad_ones_do_not_end_a_training(
    tmp_path: Path,
) -> None:
    from densing.training import DensityCallback

    trainer = trainer_of(tmp_path, report_to="none", save_strategy="steps")
    trainer.compute_metrics = lambda _: {"mmlu": 0.41}
    at_evaluation = DensityCallback(trainer, "qwen1.5", params=1e9)
    at_save = DensityCallback(trainer, "olmo-ladder", at_evaluation=lambda _: None, at_save=scores_of)
    trainer.add_callback(at_evaluation)
    trainer.add_callback(at_save)
    with pytest.warns(UserWarning, match="no density at step 2: scores: piqa is 62; give a share"):
        trainer.train()
    assert list(at_evaluation.densities) == [2, 4] and list(at_save.densities) == [4]
    # Without its tables of 32 tokens by 8, in and out.
    assert at_save.densities[4].table["n_params"].item() == 1832 - 2 * 256
    with pytest.raises(InputError, match="qwen9"):
        DensityCallback(trainer, "qwen9")


def scores_of(folder: Path) -> dict[str, float]:
    assert (folder / "model.safetensors").is_file()
    return {"piqa": 62 if folder.name == "checkpoint-2" else 0.62}


@elsewhere
def test_a_bank_is_asked_at_each_evaluation_and_at_checkpoints_that_had_none(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval", reason="needs lm-eval, which the extra evals brings")
    transformers = pytest.importorskip("transformers", reason="needs transformers, which the extra evals brings")
    import torch

    from densing.training import DensityCallback, evaluate_bank
    from tests.support.evals_toys import write_model, write_tasks

    tasks = write_tasks(tmp_path / "tasks", documents=40)
    yaml = tasks / "toy_choice.yaml"
    yaml.write_text(yaml.read_text().replace("version: 1.0", "version: 1.0\n  benchmark: piqa"))
    rng = np.random.default_rng(0)
    names = [f"toy_choice/{at}" for at in range(40)]
    table = pd.DataFrame((rng.random((30, 40)) < rng.random((30, 1))) * 1.0, [f"m{at}" for at in range(30)], names)
    items = pd.DataFrame({"task": "toy_choice", "text_hash": ""}, names)
    bank = calibrate_items(AnswerTable(table, pd.Series(pd.NaT, table.index), items), name="toys")
    folder = write_model(tmp_path / "toy", "llama", 1)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 8
    arguments = transformers.TrainingArguments(
        str(tmp_path / "run"), max_steps=3, per_device_train_batch_size=2, eval_strategy="steps", eval_steps=2,
        save_steps=1, logging_steps=1, use_cpu=True, disable_tqdm=True, report_to=[],
    )  # fmt: skip
    trainer = transformers.Trainer(model, arguments, train_dataset=rows, eval_dataset=rows, processing_class=tokenizer)
    options: dict[str, Any] = {"items": 12, "include_path": [str(tasks)]}
    callback = DensityCallback(trainer, "olmo-ladder", bank=bank, name="mine", **options)
    trainer.add_callback(callback)
    trainer.train()
    assert list(callback.evaluations) == [1, 2, 3]
    logged = {row["step"]: row for row in trainer.state.log_history if "eval_bank/toys/score" in row}
    assert set(logged) == {1, 2, 3}
    for step, result in callback.evaluations.items():
        score = result.score
        assert (score.items, score.bank_items) == (12, 40)
        row = [logged[step][f"eval_bank/toys/{name}"] for name in ("score_lo", "score", "score_hi")]
        assert row == [score.lo, score.score, score.hi] and row[0] < row[1] < row[2]
    # The same by hand, of the model as it is now, which goes on training.
    model.train()
    before = torch.get_rng_state()
    again = evaluate_bank(model, tokenizer, bank, name="mine@step3", **options)
    assert model.training and torch.equal(before, torch.get_rng_state())
    assert again.score == callback.evaluations[3].score
    assert to_log(again)[0]["bank/toys/score"] == again.score.score
    with pytest.raises(InputError, match="no document of a task"):
        evaluate_bank(model, tokenizer, "ikp")
    large = bank.items.assign(item=[f"toy_choice/{at}" for at in range(1, 41)])
    with pytest.raises(InputError, match="another version of the task"):
        evaluate_bank(model, tokenizer, replace(bank, items=large), items=40, include_path=[str(tasks)])

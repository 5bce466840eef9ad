"""HELM's run folders: ``run_spec.json`` says what was run, ``stats.json`` beside it what came out.

Format: HELM 0.5, ``RunSpec``, ``AdapterSpec`` and ``Stat`` in ``helm.benchmark`` (stanford-crfm/helm). A run is one
model on one scenario (``mmlu:subject=anatomy``). A statistic is named by metric, split and perturbation, and holds the
mean over the trials of the means over instances. Of a benchmark the metric counts that HELM's leaderboards show
(``schema_*.yaml``, ``main_name``): it is stored as ``exact_match`` (``accuracy`` where options are compared, ``pass@1``
of programs), the others as ``helm_NAME``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from densing.core import InputError, Note, read_json
from densing.scores.evals.harness import is_number, mapping
from densing.scores.evals.measurements import (
    Measurements,
    checked_rows,
    measurement_frame,
    metric_row,
    model_frame,
    share_error,
    task_cells,
)

SPEC, STATS = "run_spec.json", "stats.json"
# Besides these two a run folder holds requests and answers, which may be large and are not read.
COMPANIONS = frozenset(
    {STATS, "scenario.json", "scenario_state.json", "instances.json", "display_requests.json",
     "display_predictions.json", "per_instance_stats.json", "eval_cache.json"}
)  # fmt: skip
# Scenario (with its data set, where the scenario has several): benchmark and the metric of HELM's leaderboards.
_BENCHMARKS = {
    "mmlu": ("", "exact_match"),
    "commonsense:dataset=hellaswag": ("hellaswag", "exact_match"),
    "commonsense:dataset=openbookqa": ("openbookqa", "exact_match"),
    "gsm": ("gsm8k", "final_number_exact_match"),
    "boolq": ("boolq", "quasi_exact_match"),
    "code:dataset=humaneval": ("humaneval", "pass"),
    "mmlu_pro": ("mmlu_pro", "chain_of_thought_correctness"),
    "gpqa": ("gpqa", "chain_of_thought_correctness"),
    "ifeval": ("ifeval", "ifeval_strict_accuracy"),
}
# Answers are written freely (of options their letter), or the texts of options are compared.
_FORMS = {
    "generation": ("generate", ""),
    "multiple_choice_joint": ("generate", "no"),
    "multiple_choice_joint_chain_of_thought": ("generate", "yes"),
    "multiple_choice_separate_original": ("cloze", "no"),
    "multiple_choice_separate_calibrated": ("cloze", "no"),
}
_SCORES = frozenset(
    {"exact_match", "quasi_exact_match", "prefix_exact_match", "quasi_prefix_exact_match", "exact_match_indicator",
     "final_number_exact_match", "math_equiv", "math_equiv_chain_of_thought", "chain_of_thought_correctness", "pass",
     "ifeval_strict_accuracy", "f1_score", "bleu_4", "rouge_2", "bits_per_byte", "omni_math_accuracy"}
)  # fmt: skip
_GRADED = frozenset({"ifeval_strict_accuracy", "f1_score", "bleu_4", "rouge_2", "bits_per_byte"})


def accepts(content: Any) -> bool:
    """Whether this is what HELM says of a run, or the statistics of one."""
    if isinstance(content, Mapping):
        return {"scenario_spec", "adapter_spec"} <= set(content)
    first = mapping(content[0]) if isinstance(content, list) and content else {}
    return {"name", "count", "sum_squared"} <= set(first)


def read(content: Any, path: Path) -> Measurements:
    """Return the measurements of one run.

    Parameters
    ----------
    content : mapping or list
        What ``run_spec.json`` or ``stats.json`` holds.
    path : path
        Where it stands; the other file is read beside it.

    Raises
    ------
    InputError
        When the other file is missing, or a part is damaged.
    """
    other = path.with_name(STATS if isinstance(content, Mapping) else SPEC)
    if not other.is_file():
        raise InputError(f"{path}: {other.name} is not beside it; a run folder of HELM holds {SPEC} and {STATS}")
    beside = read_json(other)
    about, stats = (content, beside) if isinstance(content, Mapping) else (beside, content)
    if not accepts(about) or not isinstance(stats, list):
        raise InputError(f"{other}: not HELM's {other.name}; the file is damaged")
    adapter, scenario = mapping(about["adapter_spec"]), str(about.get("name") or path.parent.name).partition(":")[0]
    arguments = mapping(mapping(about["scenario_spec"]).get("args"))
    told = ",".join(f"{name}={value}" for name, value in arguments.items())
    task = f"{scenario}:{told}" if told else scenario
    benchmark, main = _BENCHMARKS.get(task, _BENCHMARKS.get(scenario, ("", "exact_match")))
    means, split = _means(stats, path)
    items = means.get("num_instances", math.nan)
    form, cot = _FORMS.get(str(adapter.get("method")), ("", ""))
    shots = adapter.get("max_train_instances")
    limit = adapter.get("max_eval_instances")
    model = str(adapter.get("model") or adapter.get("model_deployment") or path.parent.name)
    cells = task_cells(
        model=model, task=task, benchmark=benchmark, form=form, cot=cot, n_items=items,
        n_shot=float(shots) if is_number(shots) else math.nan,
        limit=float(limit) if is_number(limit) and items >= limit else math.nan, harness="helm", file=str(path),
    )  # fmt: skip
    # Of a choice between options the right one is counted, of a program that its tests pass.
    counted = "accuracy" if form == "cloze" else "pass@1" if main == "pass" else "exact_match"
    rows = [
        metric_row(
            cells,
            counted if name == main else f"helm_{name}",
            value,
            math.nan if name in _GRADED else share_error(value, items),
            unit="bits/byte" if name == "bits_per_byte" else "share",
            higher_is_better=name != "bits_per_byte",
            definition=f"HELM's {name}, split {split}",
        )
        for name, value in means.items()
        if name in _SCORES
    ]
    notes = []
    if not rows:
        names = ", ".join(sorted(means)[:8]) or "nothing"
        raise InputError(f"{path}: {task} of {model} has no score that is known; its statistics are {names}")
    if is_number(shots) and means.get("num_train_instances", shots) < shots:
        message = (
            f"{path}: prompts held {means['num_train_instances']:g} of {shots} examples, cut to the model's context"
        )
        notes.append(Note("examples-cut", "warning", message, {"model": model, "task": task}))
        rows = [row | {"n_shot": math.nan} for row in rows]
    rows, doubts = checked_rows(rows)
    return Measurements(measurement_frame(rows), pd.DataFrame(), model_frame([{"model": model}]), (*notes, *doubts))


def _means(stats: list[Any], path: Path) -> tuple[dict[str, float], str]:
    """Return the means of the test split (else of the first there is) by metric, of instances as they are."""
    plain = [
        (mapping(stat.get("name")), stat.get("mean"))
        for stat in map(mapping, stats)
        if not mapping(stat.get("name")).get("perturbation") and not mapping(stat.get("name")).get("sub_split")
    ]
    splits = [str(name["split"]) for name, _ in plain if name.get("split")]
    split = "test" if "test" in splits else next(iter(splits), "")
    means: dict[str, float] = {}
    for name, mean in plain:
        if str(name.get("split")) != split or mean is None:
            continue
        if not is_number(mean):
            raise InputError(
                f"{path}: {name.get('name')} is {str(mean)[:40]!r}, expected a number; the file is damaged"
            )
        means[str(name.get("name"))] = float(mean)
    return means, split

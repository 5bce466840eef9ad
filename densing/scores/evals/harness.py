"""Measurements from the content of an lm-eval results file, current schema or old.

The current schema (0.4) names a metric ``acc,none`` (metric, filter) and puts group rows into ``results`` again; the
old one (0.3) says ``acc`` and knows neither groups nor configurations. Both say "N/A" for a missing error.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from densing.core import InputError, Note, strip_secrets
from densing.scores.catalog import known_protocol
from densing.scores.evals.measurements import checked_rows, loss_rows, metric_row

if TYPE_CHECKING:
    import pandas as pd

# Keys of a task's results that are not metrics.
_LABELS = frozenset({"alias", "name", "sample_len", "sample_count", "samples", "bypass"})
# "A", "(B)" or "C.": the name of an option, not its text.
LETTER = re.compile(r"^\s*\(?[A-Z]\)?[.:]?\s*$")
_NAMES = ("pretrained", "model", "path", "engine")


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping, empty when the value is none."""
    return value if isinstance(value, Mapping) else {}


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value read from JSON is a number (a flag is none)."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_results(content: Any, where: str) -> Mapping[str, Any]:
    """Return the content of an lm-eval results file, or say what it is instead.

    Raises
    ------
    InputError
        When a part that must be there is missing or of another type.
    """
    if not isinstance(content, Mapping) or not isinstance(content.get("results"), Mapping):
        raise InputError(f"{where}: no object 'results'; expected a results file of lm-eval")
    wrong = [str(task) for task, row in content["results"].items() if not isinstance(row, Mapping)]
    if wrong:
        raise InputError(f"{where}: results of {wrong[0][:60]!r} are not an object of metrics; the file is damaged")
    return content


def result_rows(
    content: Mapping[str, Any], items: pd.DataFrame, *, model: str, where: str, digest: str = ""
) -> tuple[list[dict[str, Any]], list[Note]]:
    """Return the measurements of one results file: lm-eval's metrics, and the losses that its items give.

    Parameters
    ----------
    content : mapping
        Content of the file (:func:`check_results`).
    items : pandas.DataFrame
        Item table of the same evaluation; may be empty.
    model : str
        Name in the column ``model``.
    where : str
        Name of the file.
    digest : str
        Digest of the unit in a store.

    Raises
    ------
    InputError
        When a metric is not a number.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    notes: list[Note] = []
    groups = mapping(content.get("groups"))
    members = {group: _members(content, group, set()) for group in groups}
    by_task = {str(task): part for task, part in items.groupby("task", sort=False)} if len(items) else {}
    for task in dict.fromkeys([*content["results"], *groups]):
        is_group = task in groups
        about = _about(content, task, members.get(task, [task]), is_group) | {
            "model": model, "task": task, "file": where, "digest": digest, "is_group": is_group,
        }  # fmt: skip
        values = mapping(groups[task]) if is_group else content["results"][task]
        better = mapping(mapping(content.get("higher_is_better")).get(task))
        for key, value in values.items():
            metric, _, filter_name = str(key).partition(",")
            other = isinstance(value, list | dict) or value is None
            if metric.strip() in _LABELS or metric.endswith("_stderr") or other:
                continue
            cell = f"{where}: {task}, {key}"
            stderr = values.get(f"{metric}_stderr,{filter_name}" if filter_name else f"{metric}_stderr")
            cells: dict[str, Any] = {"filter": filter_name}
            if is_number(count := mapping(values.get("sample_count")).get(key)):
                cells["n_items"] = count
            if isinstance(better.get(metric), bool):
                cells["higher_is_better"] = better[metric]
            number = _number(value, cell)
            error = math.nan if stderr is None else _number(stderr, cell)
            rows.append(metric_row(about, metric, number, error, **cells))
        parts = [by_task[name] for name in members.get(task, [task]) if name in by_task]
        if parts and len(parts) == len(members.get(task, [task])):
            merged = parts[0] if len(parts) == 1 else pd.concat(parts, ignore_index=True)
            rows += loss_rows(merged, about)
            notes += _item_notes(merged, model, task, where)
    usable, doubts = checked_rows(rows)
    return usable, [*notes, *doubts]


def _members(content: Mapping[str, Any], group: str, above: set[str]) -> list[str]:
    """Return the tasks of a group, through the groups in it; ``above`` are those that were passed already."""
    below = mapping(content.get("group_subtasks")).get(group)
    if not isinstance(below, list) or not below or group in above:
        return [group]
    tasks = (task for name in map(str, below) for task in _members(content, name, above | {group}))
    return list(dict.fromkeys(tasks))


def _number(value: Any, where: str) -> float:
    if value == "N/A":
        return math.nan
    if not is_number(value):
        raise InputError(f"{where}: {str(value)[:60]!r} is not a number; the file is damaged")
    return math.copysign(math.inf, value) if abs(value) > 1e300 else float(value)


def _about(content: Mapping[str, Any], task: str, members: list[str], is_group: bool) -> dict[str, Any]:
    """Return what is the same in all rows of a task; of a group, what its members agree on."""
    configs = mapping(content.get("configs"))
    shots = {_shots(content, name) for name in members}
    benchmark = mapping(mapping(configs.get(task)).get("metadata")).get("benchmark")
    if is_group and benchmark is None:
        benchmarks = {mapping(mapping(configs.get(name)).get("metadata")).get("benchmark") for name in members}
        benchmark = benchmarks.pop() if len(benchmarks) == 1 else None
    count = mapping(mapping(content.get("n-samples")).get(task)).get("effective")
    if not is_number(count):
        results = mapping(content["results"].get(task)) or mapping(mapping(content.get("groups")).get(task))
        count = results.get("sample_len")
    limit = mapping(content.get("config")).get("limit")
    version = mapping(content.get("versions")).get(task)
    epoch = content.get("date")
    date = datetime.fromtimestamp(float(epoch), UTC).date() if is_number(epoch) and 0 < epoch < 1e11 else ""
    forms = {_form(content, name) for name in members}
    form, cot = forms.pop() if len(forms) == 1 else ("", "")
    return {
        "benchmark": "" if benchmark is None else str(benchmark),
        "n_items": float(count) if is_number(count) else math.nan,
        "n_shot": shots.pop() if len(shots) == 1 else math.nan,
        "form": form,
        "cot": cot,
        "limit": float(limit) if is_number(limit) else math.nan,
        "task_version": "" if version is None else str(version),
        "task_hash": str(mapping(content.get("task_hashes")).get(task) or ""),
        "harness": "lm-eval",
        "harness_version": str(content.get("lm_eval_version") or ""),
        "date": str(date),
    }


def _shots(content: Mapping[str, Any], task: str) -> float:
    shots = mapping(content.get("n-shot")).get(task, mapping(content.get("config")).get("num_fewshot"))
    in_documents = mapping(mapping(mapping(content.get("configs")).get(task)).get("metadata")).get("num_fewshot")
    if shots == 0 and is_number(in_documents):
        # Examples that stand in the documents themselves: the task says how many, lm-eval adds none.
        shots = in_documents
    return float(shots) if is_number(shots) else math.nan


def _form(content: Mapping[str, Any], task: str) -> tuple[str, str]:
    """Return the form of a task's answers and whether reasoning comes first; empty where nothing says so.

    The configuration that was run decides; where it names a field of the documents, or there is none (old schema), what
    is known of the harness's own task of that name.
    """
    protocol = known_protocol("lm-eval" if "configs" in content else "lm-eval-0.3", task)
    config = mapping(mapping(content.get("configs")).get(task))
    kind, choices = config.get("output_type"), config.get("doc_to_choice")
    if kind == "generate_until":
        return "generate", protocol.cot
    if kind == "loglikelihood":
        return "cloze", "no"
    if isinstance(choices, list) and choices:
        return ("letters" if all(LETTER.match(str(choice)) for choice in choices) else "cloze"), "no"
    if isinstance(choices, str) and choices.replace(" ", "") == "{{choices.label}}":
        return "letters", "no"
    return protocol.form, protocol.cot


def _item_notes(items: pd.DataFrame, model: str, task: str, where: str) -> Iterator[Note]:
    choices = items["output_type"] == "multiple_choice"
    unknown = int((choices & (items["gold"] < 0)).sum())
    broken = int((~np.isfinite(items["nll"].to_numpy(dtype=float)) & (items["gold"] >= 0).to_numpy()).sum())
    if unknown:
        problem = f"{unknown} of {len(items)} documents of {task} do not state the right choice"
        about = {"model": model, "task": task, "documents": unknown}
        yield Note("gold-unknown", "warning", f"{where}: {problem}; their loss is left out", about)
    if broken:
        problem = f"{broken} of {len(items)} losses of {task} are not finite and left out"
        about = {"model": model, "task": task, "documents": broken}
        yield Note("loss-not-finite", "error", f"{where}: {problem}; evaluate in float32", about)


def model_name(content: Mapping[str, Any], fallback: str) -> str:
    """Return the model's name: as lm-eval tracked it, else from its arguments; with the revision when not main.

    Examples
    --------
    >>> model_name({"config": {"model": "hf-causal", "model_args": "pretrained=a/b,revision=step3"}}, "file")
    'a/b@step3'
    """
    config = mapping(content.get("config"))
    args = model_args(config.get("model_args"))
    names = [content.get("model_name"), config.get("model")]
    if not args:
        # lm-eval was handed a model in memory: it invents a name, and config.model is the true one.
        names.reverse()
    name = next((str(value) for value in (*(args.get(key) for key in _NAMES), *names) if value), fallback)
    revision = args.get("revision")
    return f"{name}@{revision}" if revision not in (None, "", "main") else name


def model_args(value: Any) -> dict[str, Any]:
    """Return lm-eval's model arguments, an object or ``a=b,c=d`` text, as a dictionary."""
    if isinstance(value, Mapping):
        return dict(value)
    pairs = (part.partition("=") for part in str(value or "").split(",") if "=" in part)
    return {key.strip(): text.strip() for key, _, text in pairs}


def model_facts(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return what a results file says of its model."""
    config = mapping(content.get("config"))
    args = strip_secrets(model_args(config.get("model_args")))
    size = config.get("model_num_parameters")
    return {
        "model": name,
        "type": str(config.get("model") or ""),
        "args": json.dumps(args, sort_keys=True, default=str),
        "revision": config.get("model_sha") or config.get("model_revision") or args.get("revision"),
        "dtype": config.get("model_dtype") or args.get("dtype"),
        "params_total": size if is_number(size) and size > 0 else None,
    }

"""Task files whose answer is scored by its loss: variants of generation tasks, and tasks from a user's own targets.

lm-eval's samples of a generation task hold the text a model wrote, not the loss of the right answer. A variant asks
for the log-likelihood of that answer behind the very same prompt. The paper fits the loss of "reasoning + answer"
texts, counted over the tokens of the answer side only, in nats per token (arXiv 2412.04315, section 2); such
targets come as a table of prompts and targets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from densing.core import (
    InputError,
    TableError,
    UnavailableError,
    install_command,
    parse_json,
    read_cells,
    read_text,
    write_text,
)
from densing.scores.evals.identity import safe_name

SUFFIX = "_gold_loss"
# A metric that cannot overflow; the losses themselves come from the samples.
_METRICS = [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]
_DROPPED = {"filter_list": None, "generation_kwargs": None, "process_results": None, "repeats": 1}
_MAX_INCLUDES = 20


class FunctionTag(str):
    """Name of a Python function in a task file; read as text, never imported."""


def gold_variant(task_config: Mapping[str, Any], target_field: str | None = None) -> dict[str, Any]:
    """Return what to change in a generation task so that the loss of its gold answer is measured.

    Prompts stay as they are, few-shot answers included: only the answer of the document itself gets the delimiter
    in front, as lm-eval adds none to a log-likelihood task.

    Parameters
    ----------
    task_config : mapping
        The task's configuration with its includes resolved (:func:`read_task_file`).
    target_field : str, optional
        Field of the document (or a template) that holds the gold answer, where the task's own cannot be used.

    Raises
    ------
    InputError
        When the samples hold the loss already, or the answer is made by a Python function or is a list.

    Examples
    --------
    >>> variant = gold_variant({"task": "sums", "output_type": "generate_until", "doc_to_target": "{{answer}}"})
    >>> variant["task"], variant["output_type"], variant["doc_to_target"]
    ('sums_gold_loss', 'loglikelihood', ' {{answer}}')
    """
    name = str(task_config.get("task") or "")
    kind = str(task_config.get("output_type") or "generate_until")
    if kind != "generate_until":
        raise InputError(
            f"task {name}: {kind} samples already contain the loss of the gold answer; no variant is needed"
        )
    original = task_config.get("doc_to_target")
    target = target_field or original
    if (
        not isinstance(target, str)
        or isinstance(target, FunctionTag)
        or (target_field is None and task_config.get("doc_to_choice") is not None)
    ):
        raise InputError(f"task {name}: the gold answer is not a field or template; name one with target_field")
    template = target if "{{" in target or "{%" in target else f"{{{{{target}}}}}"
    fewshot = dict(task_config.get("fewshot_config") or {})
    fewshot.setdefault("doc_to_target", original)
    prefix = task_config.get("gen_prefix")
    if isinstance(prefix, str) and prefix:
        delimiter = "" if prefix[-1].isspace() else " "
    else:
        delimiter = str(task_config.get("target_delimiter", " "))
    return {
        "task": f"{name}{SUFFIX}",
        "output_type": "loglikelihood",
        "doc_to_target": delimiter + template,
        "fewshot_config": {key: value for key, value in fewshot.items() if not isinstance(value, FunctionTag)},
        "metric_list": _METRICS,
        **_DROPPED,
        "metadata": {**dict(task_config.get("metadata") or {}), "variant_of": name},
    }


def read_task_file(path: Path, depth: int = 0) -> dict[str, Any]:
    """Read an lm-eval task file with its includes; ``!function`` stays a name, nothing is imported.

    Raises
    ------
    InputError
        When the file is no YAML mapping, or includes go in a circle.
    UnavailableError
        When PyYAML is not installed.
    """
    try:
        import yaml
    except ImportError as error:
        raise UnavailableError(f"task files need PyYAML; {install_command('evals')}") from error

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Safe loader that keeps the names of functions."""

    Loader.add_constructor("!function", lambda loader, node: FunctionTag(loader.construct_scalar(node)))
    if depth > _MAX_INCLUDES:
        raise InputError(f"{path}: includes are nested {depth} deep, probably circular")
    try:
        config = yaml.load(read_text(path, str(path)), Loader=Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{path}: not readable as YAML ({str(error).splitlines()[0]})") from error
    if not isinstance(config, dict):
        raise InputError(f"{path}: {type(config).__name__} where a task's settings were expected")
    included = config.pop("include", [])
    merged: dict[str, Any] = {}
    for name in included if isinstance(included, list) else [included]:
        merged |= read_task_file(path.parent / str(name), depth + 1)
    return merged | config


def write_gold_variant(task_yaml: Path, folder: Path, target_field: str | None = None) -> Path:
    """Write the gold-loss variant of a task file; load it with ``--include_path``.

    Parameters
    ----------
    task_yaml : path
        The task's file; the variant includes it by its absolute path.
    folder : path
        Where the variant goes.
    target_field : str, optional
        As in :func:`gold_variant`.

    Returns
    -------
    path
        The written file ``<task>_gold_loss.yaml``.

    Raises
    ------
    InputError
        As :func:`gold_variant` and :func:`read_task_file`.
    """
    variant = gold_variant(read_task_file(Path(task_yaml)), target_field)
    path = Path(folder) / f"{safe_name(variant['task'])}.yaml"
    _write_yaml(path, {"include": str(Path(task_yaml).resolve()), **variant})
    return path


def write_target_tasks(source: Path, folder: Path, name: str, delimiter: str = " ") -> list[str]:
    """Turn a table of prompts and targets into lm-eval tasks that measure the loss of the targets.

    Source: densing law (arXiv 2412.04315), section 2: conditional loss over the answer side only, nats per token
    (``gold_nats_per_token`` of the measurements).

    Parameters
    ----------
    source : path
        A table with ``id``, ``prompt``, ``target`` and optionally ``benchmark``; texts are used
        to the letter.
    folder : path
        Where task files and data go; pass it as ``--include_path``.
    name : str
        Name of the task, or of the group when there are several benchmarks.
    delimiter : str
        Put between prompt and target where neither has white space there.

    Returns
    -------
    list of str
        Names of the tasks.

    Raises
    ------
    InputError, TableError
        With every wrong row: an empty target, an id that repeats, a missing column.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}", name):
        raise InputError(f"task name {name[:80]!r}: use up to 80 letters, digits, _ and -")
    source, folder = Path(source), Path(folder)
    rows = _read_targets(source)
    benchmarks = list(dict.fromkeys(row["benchmark"] for row in rows))
    names = {b: name if len(benchmarks) == 1 else f"{name}_{safe_name(b)}" for b in benchmarks}
    if len(set(names.values())) < len(benchmarks):
        raise InputError(f"{source}: benchmarks {', '.join(benchmarks)[:200]} differ only in punctuation; rename one")
    for benchmark, task in names.items():
        lines = []
        for row in rows:
            if row["benchmark"] == benchmark:
                prompt, target = row["prompt"], row["target"]
                joint = delimiter if prompt and not prompt[-1].isspace() and not target[0].isspace() else ""
                document = {"id": row["id"], "prompt": prompt, "target": joint + target}
                lines.append(json.dumps(document, ensure_ascii=False) + "\n")
        data = folder / f"{task}.jsonl"
        write_text(data, "".join(lines))
        config = {
            "task": task,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(data.resolve())}},
            "test_split": "test",
            "output_type": "loglikelihood",
            # Names of fields, not templates: the text of a target is never taken for a template.
            "doc_to_text": "prompt",
            "doc_to_target": "target",
            "target_delimiter": "",
            "num_fewshot": 0,
            "metric_list": _METRICS,
            "metadata": {"version": 1.0, "benchmark": benchmark},
        }
        _write_yaml(folder / f"{task}.yaml", config)
    if len(names) > 1:
        _write_yaml(folder / f"{name}.yaml", {"group": name, "task": list(names.values())})
    return list(names.values())


def _read_targets(source: Path) -> list[dict[str, str]]:
    """Return the rows of a table of targets, every wrong one refused at once."""
    entries: Iterable[tuple[int, Mapping[str, Any]]]
    if source.suffix in (".jsonl", ".ndjson"):
        # Lines end at line feeds alone: texts may hold other separators.
        lines = enumerate(read_text(source, str(source)).split("\n"), start=1)
        parsed = ((n, parse_json(line, f"{source}, line {n}")) for n, line in lines if line.strip())
        entries = ((n, row if isinstance(row, Mapping) else {}) for n, row in parsed)
    else:
        cells = read_cells(source)
        entries = zip(map(int, cells.index), cells.to_dict("records"), strict=True)
    rows, problems, ids = [], [], set()
    for number, raw in entries:
        missing = [column for column in ("id", "prompt", "target") if not isinstance(raw.get(column), str | int)]
        row = {column: str(raw.get(column, "")) for column in ("id", "prompt", "target")}
        row["benchmark"] = str(raw.get("benchmark") or "").strip()
        if missing:
            problems.append(f"row {number}: {', '.join(missing)} missing or not text")
        elif not row["target"].strip():
            problems.append(f"row {number}, column target: empty; it needs the text to measure")
        elif row["id"] in ids:
            problems.append(f"row {number}, column id: {row['id'][:60]!r} occurs twice")
        ids.add(row["id"])
        rows.append(row)
    if problems:
        raise TableError(str(source), problems)
    if not rows:
        raise InputError(f"{source}: no rows; each needs id, prompt and target")
    return rows


def _write_yaml(path: Path, content: Mapping[str, Any]) -> None:
    try:
        import yaml
    except ImportError as error:
        raise UnavailableError(f"task files need PyYAML; {install_command('evals')}") from error
    write_text(path, yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True))

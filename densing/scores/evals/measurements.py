"""The measurement table: one row per model, task and metric, each with its definition and its file.

What makes a row, which rows are sound, what follows from the items of a task, and which rows the catalog takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from densing.core import Card, Note, Readable, formatting, listing_of
from densing.scores.evals.items import COLUMNS as ITEM_COLUMNS
from densing.scores.evals.subjects import in_means

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ["model", "task", "benchmark", "metric", "filter", "value", "stderr", "n_items", "n_shot", "form", "cot",
           "unit", "definition", "higher_is_better", "limit", "task_version", "task_hash", "harness", "harness_version",
           "date", "digest", "file", "is_group"]  # fmt: skip
MODEL_COLUMNS = ["model", "type", "args", "revision", "dtype", "params_total", "params_embedding",
                 "params_non_embedding", "vocab", "context", "quantisation", "tokens", "caveats"]  # fmt: skip
_NUMBERS = {"value", "stderr", "n_items", "n_shot", "limit"}
# Cells of a task where nothing is stated.
_NOT_STATED: dict[str, Any] = {
    **dict.fromkeys(COLUMNS, ""),
    **dict.fromkeys(_NUMBERS, math.nan),
    "is_group": False,
}
_COUNTS = {"params_total", "params_embedding", "params_non_embedding", "vocab", "context", "tokens"}

# Names of other harnesses' tasks where they are not the catalog's (or a ladder's) own.
BENCHMARK_OF = {
    "arc:challenge": "arc_challenge",
    "arc:easy": "arc_easy",
    "ARC-c": "arc_challenge",
    "ARC-e": "arc_easy",
    "commonsense_qa": "csqa",
    "commonsenseqa": "csqa",
    "social_iqa": "socialiqa",
    "siqa": "socialiqa",
    "winogrande:xl": "winogrande",
    "mmlu:_average": "mmlu",
    "bbh_cot_fewshot": "bbh",
    "leaderboard_bbh": "bbh",
    "gsm8k_cot": "gsm8k",
    "minerva_math": "math",
    "hendrycks_math": "math",
    "leaderboard_math_hard": "math_lvl5",
    "leaderboard_gpqa": "gpqa",
    "leaderboard_musr": "musr",
    "leaderboard_mmlu_pro": "mmlu_pro",
    "truthfulqa_mc2": "truthfulqa",
    "squadv2": "squad2",
    "openai_humaneval": "humaneval",
}
# Metric: unit, definition, whether more is better. Names are lm-eval's; those from gold_nats on are ours, and count
# characters and bytes of the continuation as it was requested, delimiter included.
METRICS: dict[str, tuple[str, str, bool | None]] = {
    "acc": ("share", "the right answer has the largest log-likelihood (cloze: is what greedy decoding gives)", True),
    "accuracy": ("share", "the right answer has the best score among the choices, as the task defines it", True),
    "acc_norm": ("share", "the right answer has the largest log-likelihood per character", True),
    "acc_bytes": ("share", "the right answer has the largest log-likelihood per byte", True),
    "acc_mutual_info": ("share", "the right answer gains most log-likelihood from the question", True),
    "exact_match": ("share", "the text generated equals the answer after the filter", True),
    "em": ("share", "the text generated equals the answer", True),
    "f1": ("share", "F1 as the task defines it", True),
    "pass@1": ("share", "programs that pass their tests at the first try", True),
    "bits_per_byte": ("bits/byte", "bits per byte as the task defines it", False),
    "bits": ("bits", "mean over documents of -log2 p(right answer) among all answers", False),
    "bits_floor": ("bits", "the same by answers' shares of the training films (choices: log2 of their number)", False),
    "close": ("share", "the number is close enough to the true one (0 to 100: within 5; counts: within 10 %)", True),
    "close_floor": ("share", "the same of the best constant", True),
    "rmse": ("", "root mean squared error (counts: of natural logarithms); without a number, the mean's error", False),
    "rmse_floor": ("", "the same of the mean of the films to learn from", False),
    "r2": ("", "1 - squared errors / squared deviations of the truths from their mean", True),
    "no_number": ("share", "answers without a usable number", False),
    "brier_score": ("", "squared distance of the choice probabilities from the right answer", False),
    "perplexity": ("", "exp of the mean loss per document", False),
    "ppl": ("", "exp of the mean loss per document", False),
    "word_perplexity": ("", "exp of the loss per word", False),
    "byte_perplexity": ("", "exp of the loss per byte", False),
    "gold_nats": ("nats/answer", "mean over documents of -ln p(gold answer)", False),
    "gold_nats_per_token": ("nats/token", "sum of -ln p(gold answer) / sum of its tokens", False),
    "gold_nats_per_char": ("nats/char", "mean over documents of -ln p(gold answer) / characters with delimiter", False),
    "gold_bits_per_byte": ("bits/byte", "mean over documents of -log2 p(gold answer) / bytes with delimiter", False),
    "gold_bits_per_byte_pooled": ("bits/byte", "sum of -log2 p(gold answer) / sum of bytes with delimiter", False),
    "p_gold": ("share", "mean probability of the gold answer (among the choices, where there are any)", True),
}  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class Measurements(Readable):
    """What a reader of results returns.

    Parameters
    ----------
    measurements : pandas.DataFrame
        Columns :data:`COLUMNS`: scores and losses, values in the unit that the row names.
    items : pandas.DataFrame
        Columns of :func:`densing.scores.evals.items.item_table`; empty where no samples were stored.
    models : pandas.DataFrame
        Columns :data:`MODEL_COLUMNS`; NaN where the files do not say.
    notes : tuple of Note
        What was left out, and why.
    """

    measurements: pd.DataFrame
    items: pd.DataFrame
    models: pd.DataFrame
    notes: tuple[Note, ...] = ()

    def card(self) -> Card:
        """Return what is shown: how many models, tasks and items were read, then their scores."""
        table = self.measurements
        facts = {name: str(table[name[:-1]].nunique()) for name in ("models", "tasks")} | {
            "items": str(len(self.items))
        }
        columns = ["model", "task", "metric", "value", "stderr", "n_items"]
        title = formatting.plural(len(table), "measurement")
        return Card(title, facts, listing_of(title, table[columns]), self.notes)


def describe_metric(name: str) -> tuple[str, str, bool | None]:
    """Return unit, definition and direction of a metric; empty and None where it is not a known one.

    Examples
    --------
    >>> describe_metric("gold_nats_per_token")
    ('nats/token', 'sum of -ln p(gold answer) / sum of its tokens', False)
    """
    return METRICS.get(name, ("", f"{name} as the task defines it", None))


def task_cells(**cells: Any) -> dict[str, Any]:
    """Return what is the same in all rows of a task: the cells given, the others as not stated.

    Parameters
    ----------
    **cells
        Columns of :data:`COLUMNS`.

    Examples
    --------
    >>> row = task_cells(model="m", task="mmlu", n_shot=5.0)
    >>> row["n_shot"], row["form"], row["is_group"]
    (5.0, '', False)
    """
    return {**_NOT_STATED, **cells}


def share_error(share: float, n_items: float) -> float:
    """Return the standard error of a mean of zeros and ones, √(p(1 − p)/(n − 1)); NaN where it is not defined.

    Examples
    --------
    >>> share_error(0.5, 101.0)
    0.05
    """
    defined = n_items > 1 and 0.0 <= share <= 1.0
    return math.sqrt(share * (1.0 - share) / (n_items - 1.0)) if defined else math.nan


def metric_row(
    about: Mapping[str, Any], metric: str, value: float, stderr: float = math.nan, **cells: Any
) -> dict[str, Any]:
    """Return the row of one metric.

    Parameters
    ----------
    about : mapping
        Cells that are the same in all rows of a task: model, task, file, ...
    metric : str
        Gives unit, definition and direction.
    value, stderr : float
        What was measured.
    **cells
        Further cells, over all others.
    """
    unit, definition, better = describe_metric(metric)
    return {
        **about, "metric": metric, "filter": "", "value": value, "stderr": stderr, "unit": unit,
        "definition": definition, "higher_is_better": better, **cells,
    }  # fmt: skip


def checked_rows(rows: Iterable[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[Note]]:
    """Return the rows whose values can be, and a note for each that cannot.

    A value that is not a number stays, as NaN; an infinite one and a share outside [0, 1] leave the table; an error
    that is infinite or negative becomes NaN.

    Examples
    --------
    >>> row = {"file": "r.json", "model": "m", "task": "toy", "metric": "acc", "value": 5.7, "stderr": 0.1}
    >>> checked_rows([{**row, "unit": "share"}])[1][0].message
    'r.json: toy, acc is 5.7, not a share between 0 and 1; left out'
    """
    usable, notes = [], []
    for row in rows:
        value, stderr = float(row["value"]), float(row["stderr"])
        cell = f"{row['file']}: {row['task']}, {row['metric']}"
        about = {name: row[name] for name in ("model", "task", "metric")}
        if math.isinf(value):
            notes.append(Note("value-infinite", "warning", f"{cell} is {value}, no finite number; left out", about))
            continue
        if math.isnan(value):
            notes.append(Note("value-missing", "warning", f"{cell} is not a number", about))
        elif row["unit"] == "share" and not 0.0 <= value <= 1.0:
            message = f"{cell} is {value:g}, not a share between 0 and 1; left out"
            notes.append(Note("share-outside", "error", message, {**about, "value": value}))
            continue
        if math.isinf(stderr) or stderr < 0:
            message = f"{cell}: {stderr:g} is not a standard error; left out"
            notes.append(Note("stderr-left-out", "warning", message, about))
            stderr = math.nan
        usable.append({**row, "value": value, "stderr": stderr})
    return usable, notes


def measurement_frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a measurement table with every column typed."""
    cells = [{**row, "benchmark": row.get("benchmark") or BENCHMARK_OF.get(row["task"], "")} for row in rows]
    kinds = {c: "float64" if c in _NUMBERS else "bool" if c == "is_group" else "object" for c in COLUMNS}
    return _typed({name: [row.get(name) for row in cells] for name in COLUMNS}, kinds)


def model_frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a table of models with every column typed, each row once."""
    import pandas as pd

    each = list(rows)
    cells: dict[str, Any] = {name: [row.get(name) for row in each] for name in MODEL_COLUMNS}
    for name, column in cells.items():
        if name in _COUNTS:
            cells[name] = pd.to_numeric(np.array(column, dtype=object), errors="coerce")
        else:
            cells[name] = ["" if value is None else str(value) for value in column]
    kinds = {name: "float64" if name in _COUNTS else "object" for name in MODEL_COLUMNS}
    frame = _typed(cells, kinds)
    return frame.drop_duplicates(ignore_index=True) if len(frame) > 1 else frame


def _typed(cells: Mapping[str, Any], kinds: Mapping[str, str]) -> pd.DataFrame:
    """Return a table of typed columns: one array each, as files of results are many and small."""
    import pandas as pd

    return pd.DataFrame({name: np.array(column, dtype=kinds[name]) for name, column in cells.items()}, copy=False)


def loss_rows(items: pd.DataFrame, about: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the measurements that follow from the items of one task (or of one group of tasks).

    Means over documents have the standard error sd/√n. A ratio of sums r = Σy/Σx has, by the delta method,
    √(Σ(y − r·x)² / (n − 1) / n) / mean(x).

    Source: W. G. Cochran, Sampling Techniques (3rd ed. 1977), section 2.11 for the ratio.

    Parameters
    ----------
    items : pandas.DataFrame
        Rows of one task.
    about : mapping
        The other cells of the rows (model, task, file, ...).

    Examples
    --------
    >>> import pandas as pd
    >>> items = pd.DataFrame({"nll": [2.0, 4.0], "n_chars": [2.0, 2.0], "n_bytes": [2.0, 2.0],
    ...                       "n_tokens": [1.0, 3.0], "p_gold": [0.5, 0.1], "n_choices": [4, 4]})
    >>> {row["metric"]: row["value"] for row in loss_rows(items, {})}["gold_nats_per_token"]
    1.5
    """

    def row(metric: str, estimate: tuple[float, float, int]) -> dict[str, Any]:
        value, stderr, n_items = estimate
        return metric_row(about, metric, value, stderr, n_items=n_items)

    finite = items[np.isfinite(items["nll"].to_numpy(dtype=float))]
    if finite.empty:
        return []
    nll = finite["nll"].to_numpy(dtype=float)
    rows = [row("gold_nats", _mean(nll))]
    chars, octets = finite["n_chars"].to_numpy(dtype=float), finite["n_bytes"].to_numpy(dtype=float)
    if (octets > 0).all():
        rows += [
            row("gold_nats_per_char", _mean(nll / chars)),
            row("gold_bits_per_byte", _mean(nll / octets / math.log(2))),
            row("gold_bits_per_byte_pooled", _ratio(nll / math.log(2), octets)),
        ]
    tokens = finite["n_tokens"].to_numpy(dtype=float)
    if (tokens > 0).all():
        per_token = row("gold_nats_per_token", _ratio(nll, tokens))
        tokenizers = dict.fromkeys(str(name) for name in finite.get("tokenizer", ()) if name)
        suffix = f" of {', '.join(tokenizers)}" if tokenizers else ""
        rows.append({**per_token, "definition": f"{per_token['definition']}{suffix}"})
    p_gold = finite["p_gold"].to_numpy(dtype=float)
    if np.isfinite(p_gold).all():
        rows.append(row("p_gold", _mean(p_gold)))
    return rows


def _mean(values: np.ndarray) -> tuple[float, float, int]:
    """Return the mean, its standard error and the number of values."""
    n = len(values)
    stderr = float(values.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan
    return float(values.mean()), stderr, n


def _ratio(y: np.ndarray, x: np.ndarray) -> tuple[float, float, int]:
    """Return the ratio of sums, its standard error by the delta method and the number of values."""
    n = len(y)
    ratio = float(y.sum() / x.sum())
    residual = y - ratio * x
    stderr = math.sqrt(float((residual**2).sum()) / (n - 1) / n) / float(x.mean()) if n > 1 else math.nan
    return ratio, stderr, n


def join(parts: Sequence[Measurements], notes: Iterable[Note] = ()) -> Measurements:
    """Return several readings as one."""
    import pandas as pd

    tables = [part.measurements for part in parts if len(part.measurements)]
    items = [part.items for part in parts if len(part.items)]
    return Measurements(
        measurements=pd.concat(tables, ignore_index=True) if tables else measurement_frame([]),
        items=pd.concat(items, ignore_index=True) if items else pd.DataFrame(columns=ITEM_COLUMNS),
        models=model_frame(row for part in parts for row in part.models.to_dict("records")),
        notes=(*(note for part in parts for note in part.notes), *notes),
    )


# In this order of preference; a score of the catalog is one share per model and benchmark.
SHARES = ("accuracy", "acc_norm", "acc", "exact_match", "pass@1", "em", "score", "naive_average")
# The least size the catalog's tables take.
LEAST_PARAMS = 1e5
CATALOG_COLUMNS = ["model", "params", "released", "benchmark", "score", "metric", "shots", "form", "items", "evaluator",
                   "source", "measured"]  # fmt: skip


def to_catalog_rows(measurements: pd.DataFrame, models: pd.DataFrame, released: str = "") -> pd.DataFrame:
    """Return the scores that :func:`densing.scores.catalog.load_catalog` takes as a user's table.

    One row per model and benchmark of the catalog: the group's where a group was measured, else the one on most
    documents. Losses have no place in the catalog and stay behind, as do benchmarks it does not know.

    Parameters
    ----------
    measurements, models : pandas.DataFrame
        Tables of a run or of a reader.
    released : str
        Release date of the models, ISO; blank where unknown.

    Returns
    -------
    pandas.DataFrame
        Columns :data:`CATALOG_COLUMNS`, evaluator "user".

    Examples
    --------
    >>> import pandas as pd
    >>> measured = pd.DataFrame({"model": ["tiny"], "task": ["hellaswag"], "benchmark": [""], "metric": ["acc_norm"],
    ...     "value": [0.31], "n_items": [40.0], "n_shot": [10.0], "is_group": [False], "file": ["a/results.json"],
    ...     "date": ["2026-11-21"]})
    >>> sizes = pd.DataFrame({"model": ["tiny"], "params_total": [1.3e8]})
    >>> to_catalog_rows(measured, sizes).iloc[0].to_dict()["benchmark"]
    'hellaswag'
    """
    import pandas as pd

    sizes = models.groupby("model")["params_total"].max().to_dict()
    best: dict[tuple[str, str], tuple[tuple[bool, int, float], dict[str, Any]]] = {}
    for row in _usable(measurements).to_dict("records"):
        identity = (str(row["model"]), str(row["of"]))
        items = 0.0 if math.isnan(row["n_items"]) else float(row["n_items"])
        rank = (bool(row["is_group"]), -SHARES.index(row["metric"]), items)
        if identity not in best or rank > best[identity][0]:
            best[identity] = (rank, row)
    lines = [
        {
            "model": model,
            "params": _digits(sizes[model]),
            "released": released,
            "benchmark": benchmark,
            "score": row["value"],
            "metric": row["metric"],
            "shots": _digits(row["n_shot"]),
            "form": row.get("form") or "",
            "items": _digits(row["n_items"]),
            "evaluator": "user",
            "source": "",
            "measured": row["date"],
        }
        for (model, benchmark), (_, row) in sorted(best.items())
        if sizes.get(model) is not None and sizes[model] >= LEAST_PARAMS
    ]
    return pd.DataFrame(lines, columns=CATALOG_COLUMNS, dtype=object)


def _usable(measurements: pd.DataFrame) -> pd.DataFrame:
    """Return the shares of benchmarks that the catalog knows, with the benchmark in the column ``of``."""
    from densing.scores.catalog import load_catalog

    known = set(load_catalog().benchmarks["id"])
    tasks = measurements["task"].map(lambda task: BENCHMARK_OF.get(task, task))
    benchmarks = measurements["benchmark"].where(measurements["benchmark"] != "", tasks)
    table = measurements.assign(of=benchmarks)
    share = table["value"].between(0.0, 1.0)
    return table[table["metric"].isin(SHARES) & table["of"].isin(known) & share]


def _digits(value: float) -> str:
    return "" if math.isnan(value) else str(int(value))


def left_out(measurements: pd.DataFrame, models: pd.DataFrame, rows: pd.DataFrame) -> list[Note]:
    """Return what of a run did not become a row of the catalog, and why."""
    exported = set(zip(rows["model"], rows["benchmark"], strict=True))
    sizes = models.groupby("model")["params_total"].max().to_dict()
    unsized = sorted({str(m) for m in measurements["model"] if not (sizes.get(m) or math.nan) >= LEAST_PARAMS})
    notes = [
        Note(
            "no-size",
            "warning",
            f"{name}: its size is unknown or below {LEAST_PARAMS:.0e} parameters; left out",
            {"model": name},
        )
        for name in unsized
    ]
    usable = _usable(measurements)
    used = {
        task
        for model, task, of in zip(usable["model"], usable["task"], usable["of"], strict=True)
        if (model, of) in exported
    }
    unknown = sorted(
        set(map(str, measurements["task"])) - used - set(map(str, usable["task"])) - in_means(measurements)
    )
    if unknown:
        names = ", ".join(unknown[:8]) + (", ..." if len(unknown) > 8 else "")
        message = f"left out, because the catalog lacks the benchmark or the task does not report a share: {names}"
        notes.append(Note("no-benchmark", "info", message, {"tasks": unknown}))
    return notes

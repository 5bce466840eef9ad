"""Items: what lm-eval's samples say of each document, above all the loss of its gold answer.

lm-eval has no metric for that loss, but its samples hold the log-likelihood of every continuation. With :math:`\\ell_j`
the log-likelihood of choice j and g the gold one: nll = :math:`-\\ell_g` nats, p = softmax(:math:`\\ell`)[g], margin =
:math:`\\ell_g - \\max_{j \\ne g} \\ell_j`. Characters and bytes are those of the continuation as it was requested,
with the delimiter before it.

Samples come in two forms. In memory numbers are numbers and requests are pairs; in ``samples_*.jsonl`` log-likelihoods
are text and requests are nested objects named ``gen_args_0``, ``gen_args_1``, ...; :func:`parse_sample` makes them one.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from densing.core import LFS_POINTER, InputError, parse_json, read_json, refuse_no_file

if TYPE_CHECKING:
    import pandas as pd

# Text to token ids, without special tokens.
Tokenizer = Callable[[str], Sequence[int]]
COLUMNS = ["model", "task", "doc_id", "doc_hash", "gold", "n_choices", "correct", "correct_norm", "nll", "n_chars",
           "n_bytes", "n_tokens", "p_gold", "margin", "tokenizer", "output_type"]  # fmt: skip
TEXT_COLUMNS = ("model", "task", "doc_hash", "tokenizer", "output_type")
ANSWERS = ("metric_accuracy", "correct", "metric_exact_match")
"""What says that an item was right or wrong: a suite's own accuracy first, then what is there."""
_WHOLE = ("doc_id", "gold", "n_choices")
CHOICE, CLOZE, ROLLING, GENERATE = "multiple_choice", "loglikelihood", "loglikelihood_rolling", "generate_until"
# Where WinoGrande-like tasks keep the gold index: field, and what the first choice is called.
_INDEX_FIELDS = (("answer", 1), ("label", 0), ("gold", 0))
# What a row of samples holds besides its metrics.
FIXED = frozenset({
    "doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics", "doc_hash", "prompt_hash",
    "target_hash",
})  # fmt: skip
MAX_LINE = 32 * 1024 * 1024
_STAMP = re.compile(r"^samples_(?P<task>.+)_(?P<stamp>\d{4}-\d{2}-\d{2}T\d{2}-\d{2}-\d{2}(?:\.\d+)?)\.jsonl$")


def item_table(
    samples: Iterable[Mapping[str, Any]],
    config: Mapping[str, Any] | None = None,
    tokenizer: Tokenizer | None = None,
    *,
    model: str = "",
    task: str = "",
    tokenizer_name: str = "",
) -> pd.DataFrame:
    """Return one row per document: right or wrong, loss of the gold answer, and its length.

    Source: EleutherAI lm-evaluation-harness 0.4.13, ``lm_eval/api/task.py``, for ``correct`` and ``correct_norm``.

    Parameters
    ----------
    samples : iterable of mapping
        Rows of lm-eval's samples, in memory or as read from ``samples_*.jsonl``.
    config : mapping, optional
        The task's entry in lm-eval's ``configs``: output type, delimiter, where the target comes from.
    tokenizer : callable, optional
        Text to token ids without special tokens; needed for ``n_tokens``.
    model, task : str
        Filled into the columns of these names; ``task`` is the configuration's by default.
    tokenizer_name : str
        Names the tokenizer in its column.

    Returns
    -------
    pandas.DataFrame
        Columns :data:`COLUMNS` and ``metric_<name>`` for every scalar metric stored per document (``metric_<name>,
        <filter>`` where a task has several filters). ``gold`` is -1 where there is none or it cannot be told;
        ``p_gold`` of a cloze is exp(-nll). NaN where a quantity does not exist.

    Raises
    ------
    InputError
        When a row is not a sample of lm-eval.

    Examples
    --------
    >>> rows = [{"doc_id": 0, "target": 1, "arguments": [["2+2=", " 5"], ["2+2=", " 4"]],
    ...          "resps": [[[-3.0, False]], [[-1.0, True]]]}]
    >>> item_table(rows)[["gold", "correct", "nll", "n_chars", "margin"]].iloc[0].tolist()
    [1.0, 1.0, 1.0, 2.0, 2.0]
    """
    import pandas as pd

    setup = config or {}
    name = task or str(setup.get("task") or "")
    base = {"model": model, "task": name, "tokenizer": tokenizer_name if tokenizer else ""}
    rows: dict[int, dict[str, Any]] = {}
    scalars: dict[int, dict[str, Mapping[str, float]]] = {}
    for raw in samples:
        sample = parse_sample(raw, name or "sample")
        # One row per document and filter; requests and answers are the same in all of them.
        if sample.doc_id not in rows:
            rows[sample.doc_id] = base | _item(sample, setup, tokenizer)
        scalars.setdefault(sample.doc_id, {})[sample.filter] = sample.metrics
    several = len({name for filters in scalars.values() for name in filters}) > 1
    for number, filters in scalars.items():
        for filter_name, values in filters.items():
            suffix = f",{filter_name}" if several else ""
            rows[number] |= {f"metric_{metric}{suffix}": value for metric, value in values.items()}
    metrics = sorted({column for row in rows.values() for column in row} - set(COLUMNS))
    frame = pd.DataFrame(list(rows.values()), columns=[*COLUMNS, *metrics])
    kinds = {c: "object" if c in TEXT_COLUMNS else "int64" if c in _WHOLE else "float64" for c in frame.columns}
    return frame.astype(kinds).sort_values("doc_id", kind="stable", ignore_index=True)


def metric_values(items: pd.DataFrame, metric: str, filter_name: str = "") -> pd.Series | None:
    """Return what each document adds to a metric that is a mean over documents; None where that is not stored.

    Parameters
    ----------
    items : pandas.DataFrame
        Of :func:`item_table`.
    metric, filter_name : str
        As in a table of measurements.

    Examples
    --------
    >>> import pandas as pd
    >>> metric_values(pd.DataFrame({"metric_acc": [1.0, 0.0]}), "acc").tolist()
    [1.0, 0.0]
    """
    if metric == "gold_bits_per_byte" and "nll" in items:
        return items["nll"] / items["n_bytes"] / math.log(2)
    own = {"acc": ("correct",), "acc_norm": ("correct_norm",)}.get(metric, ())
    for column in (f"metric_{metric},{filter_name or 'none'}", f"metric_{metric}", *own):
        if column in items and items[column].notna().any():
            return items[column].astype(float)
    return None


def items_of_files(
    results: Path | Mapping[str, Any],
    samples: Sequence[Path],
    *,
    model: str,
    tokenizer: Tokenizer | None = None,
    tokenizer_name: str = "",
) -> tuple[pd.DataFrame | None, list[str]]:
    """Return the items of several samples files, and a sentence for each file that has none.

    Parameters
    ----------
    results : path or mapping
        The results file they belong to (or its content): it holds the tasks' configurations.
    samples : sequence of path
        ``samples_<task>_<time>.jsonl`` files.
    model : str
        Name filled into the column ``model``.
    tokenizer, tokenizer_name
        As in :func:`item_table`.
    """
    import pandas as pd

    content = read_json(results) if isinstance(results, Path) else results
    content = content if isinstance(content, Mapping) else {}
    tables, problems = [], []
    for path in samples:
        stamped = task_and_stamp(path.name)
        task = stamped[0] if stamped else path.stem
        configs = content.get("configs")
        config = configs.get(task) if isinstance(configs, Mapping) else None
        config = dict(config) if isinstance(config, Mapping) else {}
        if content.get("chat_template") and not config.get("gen_prefix"):
            # With a chat template lm-eval leaves the delimiter out.
            config["target_delimiter"] = ""
        try:
            table = item_table(
                read_samples(path), config, tokenizer, model=model, task=task, tokenizer_name=tokenizer_name
            )
        except InputError as error:
            problems.append(f"no items from {path.name}: {error}")
            continue
        tables.append(table)
    filled = [table for table in tables if len(table)]
    return (pd.concat(filled, ignore_index=True) if filled else None), problems


def _item(sample: Sample, config: Mapping[str, Any], tokenizer: Tokenizer | None) -> dict[str, Any]:
    # The form of the requests leaves open only whether one answer is a choice of one: the configuration knows.
    kind, configured = sample.output_type, str(config.get("output_type"))
    kind = configured if {configured, kind} <= {CHOICE, CLOZE} else kind
    row: dict[str, Any] = {
        "doc_id": sample.doc_id, "doc_hash": sample.doc_hash, "output_type": kind, "gold": -1, "n_choices": 0,
        "correct": math.nan, "correct_norm": math.nan, "nll": math.nan, "n_chars": math.nan, "n_bytes": math.nan,
        "n_tokens": math.nan, "p_gold": math.nan, "margin": math.nan,
    }  # fmt: skip
    if kind == ROLLING:
        text = sample.requests[0][0]
        return row | {"gold": 0, "n_choices": 1, "nll": -float(sample.responses[0])} | _lengths("", text, tokenizer)
    if kind not in (CHOICE, CLOZE):
        return row
    pairs = choice_requests(sample)
    row["n_choices"] = len(pairs)
    try:
        gold = gold_index(sample, config)
    except InputError:
        return row
    return row | {"gold": gold} | _scores(sample, pairs, gold, config) | _lengths(*pairs[gold], tokenizer)


def _scores(sample: Sample, pairs: Sequence[tuple[str, str]], gold: int, config: Mapping[str, Any]) -> dict[str, float]:
    """Return what the log-likelihoods of the choices say of the gold one; what cannot be told is left out."""
    logs = np.array([response[0] for response in sample.responses[: len(pairs)]], dtype=float)
    nll = -logs[gold]
    if len(logs) == 1:
        return {
            "nll": nll,
            "correct": float(sample.responses[0][1]),
            "p_gold": math.exp(-nll) if nll > -700 else math.nan,
        }
    if np.isnan(logs).any():
        return {"nll": nll}
    others = np.delete(logs, gold)
    # -inf for every choice leaves nothing to compare.
    finite = math.isfinite(logs.max())
    weights = np.exp(logs - logs.max()) if finite else np.full_like(logs, math.nan)
    return {
        "nll": nll,
        "correct": float(np.argmax(logs) == gold),
        "correct_norm": _correct_norm(logs, [cont for _, cont in pairs], gold, config.get("target_delimiter"), sample),
        "p_gold": float(weights[gold] / weights.sum()),
        "margin": float(logs[gold] - others.max()) if finite else math.nan,
    }


def _correct_norm(
    logs: np.ndarray, continuations: Sequence[str], gold: int, delimiter: str | None, sample: Sample
) -> float:
    """Return whether gold is best per character of the choice, without the delimiter before it."""
    if len(set(continuations)) == 1:
        # The choices are in the contexts, and lm-eval would divide by lengths that the requests do not show.
        return math.nan
    verdicts = set()
    for prefix in (" ", "") if delimiter is None else (str(delimiter),):
        extra = len(prefix) if all(text.startswith(prefix) for text in continuations) else 0
        lengths = np.array([len(text) - extra for text in continuations], dtype=float)
        verdicts.add(float(np.argmax(logs / lengths) == gold) if (lengths > 0).all() else math.nan)
    # Where the delimiter is not known and matters, lm-eval's own verdict stands, if it was stored.
    return verdicts.pop() if len(verdicts) == 1 else sample.metrics.get("acc_norm", math.nan)


def choice_requests(sample: Sample) -> tuple[tuple[str, str], ...]:
    """Return the requests that stand for choices: ``acc_mutual_info`` adds the same again without context."""
    half, odd = divmod(len(sample.requests), 2)
    first, second = sample.requests[:half], sample.requests[half:]
    unconditional = (
        half
        and not odd
        and all(ctx == "" and cont == other for (ctx, cont), (_, other) in zip(second, first, strict=True))
    )
    known = "acc_mutual_info" in sample.metrics or any(ctx != "" for ctx, _ in first)
    return first if unconditional and known else sample.requests


def gold_index(sample: Sample, config: Mapping[str, Any] | None = None) -> int:
    """Return which choice is the right one.

    Raises
    ------
    InputError
        When the sample does not say.

    Examples
    --------
    >>> from densing.scores.evals.items import parse_sample
    >>> gold_index(parse_sample({"doc_id": 7, "target": "no", "resps": [[[-1, False]], [[-2, False]]],
    ...                          "arguments": [["Is it?", " yes"], ["Is it?", " no"]]}))
    1
    """
    pairs = choice_requests(sample)
    if len(pairs) == 1:
        return 0
    if len({cont for _, cont in pairs}) == 1:
        for field, first in _INDEX_FIELDS:
            value = str(sample.doc.get(field, "")).strip()
            if value.isdecimal() and len(value) < 9:
                return _checked(int(value) - first, len(pairs), sample)
        raise InputError(
            f"document {sample.doc_id}: choices have different contexts, and no answer, label or gold field "
            "identifies the right one"
        )
    target = sample.target
    if isinstance(target, numbers.Integral):
        return _checked(int(target), len(pairs), sample)
    text = str(target).strip()
    texts = [cont.strip() for _, cont in pairs]
    by_text = texts.index(text) if isinstance(target, str) and text in texts else None
    by_index = int(text) if text.isdecimal() and len(text) < 9 else None
    if by_text is not None and by_index is not None and by_text != by_index:
        return _settled(sample, by_text, by_index, config or {})
    if by_text is None and by_index is None:
        raise InputError(f"document {sample.doc_id}: target {text[:40]!r} is neither a choice nor an index")
    return by_text if by_text is not None else _checked(by_index or 0, len(pairs), sample)


def _settled(sample: Sample, by_text: int, by_index: int, config: Mapping[str, Any]) -> int:
    """Choose between "2" the text and 2 the index: as the task's file says, else as the stored accuracy does."""
    rule = config.get("doc_to_target")
    if isinstance(rule, str) and rule in sample.doc:
        return by_text if isinstance(sample.doc[rule], str) else by_index
    n = len(choice_requests(sample))
    if by_index >= n:
        return by_text
    if isinstance(rule, str) and "{{" in rule and config.get("doc_to_choice") is not None:
        # lm-eval turns rendered digits into an index.
        return by_index
    accuracy = sample.metrics.get("acc")
    best = int(np.argmax([response[0] for response in sample.responses[:n]]))
    fitting = [index for index in (by_text, by_index) if accuracy == float(best == index)]
    return fitting[0] if fitting else by_text


def _checked(index: int, n: int, sample: Sample) -> int:
    if 0 <= index < n:
        return index
    raise InputError(f"document {sample.doc_id}: gold index {index} with {n} choices")


def _lengths(context: str, continuation: str, tokenizer: Tokenizer | None) -> dict[str, float]:
    sizes = {"n_chars": len(continuation), "n_bytes": len(continuation.encode("utf-8", "surrogatepass"))}
    tokens = math.nan if tokenizer is None else continuation_tokens(context, continuation, tokenizer)
    return {**sizes, "n_tokens": tokens}


def continuation_tokens(context: str, continuation: str, tokenizer: Tokenizer) -> int:
    """Return how many tokens lm-eval scores for a continuation.

    Spaces that end the context are moved to the continuation, and the count is that of both together less that of
    the context. Source: lm-evaluation-harness 0.4.13, ``TemplateLM._encode_pair`` for causal models.

    Examples
    --------
    >>> continuation_tokens("a b ", "c d", str.split)
    2
    """
    stripped = context.rstrip()
    if not stripped:
        return len(tokenizer(context + continuation))
    return len(tokenizer(context + continuation)) - len(tokenizer(stripped))


@dataclass(frozen=True)
class Sample:
    """One document as it was asked and answered.

    Parameters
    ----------
    doc_id, doc, doc_hash, target, filter
        As lm-eval names them; ``target`` is text when it was read from a file.
    requests : tuple of tuple
        ``(context, continuation)``, or ``(text,)`` for a rolling log-likelihood, or ``(context, options)``.
    responses : tuple
        First repeat of each request: ``(log-likelihood, greedy)``, a log-likelihood, or text.
    metrics : mapping of str to float
        The scalar metrics stored for this document.
    """

    doc_id: int
    doc: Mapping[str, Any]
    doc_hash: str
    target: Any
    filter: str
    requests: tuple[tuple[Any, ...], ...]
    responses: tuple[Any, ...]
    metrics: Mapping[str, float]

    @property
    def output_type(self) -> str:
        """lm-eval's output type, told from the form of the requests."""
        first = self.requests[0]
        if len(first) == 1:
            return ROLLING
        if isinstance(first[1], Mapping):
            return GENERATE
        return CHOICE if len(self.requests) > 1 else CLOZE


def parse_sample(row: Mapping[str, Any], where: str = "sample") -> Sample:
    """Read one row, from memory or from a file.

    Raises
    ------
    InputError
        When requests or responses have another form than lm-eval's; the message says what was found.

    Examples
    --------
    >>> sample = parse_sample({"doc_id": 0, "target": "1", "acc": 1.0, "metrics": ["acc"],
    ...     "arguments": {"gen_args_0": {"arg_0": "2+2=", "arg_1": "5"}, "gen_args_1": {"arg_0": "2+2=", "arg_1": "4"}},
    ...     "resps": [[["-3.5", "False"]], [["-0.5", "True"]]]})
    >>> sample.requests, sample.responses, sample.output_type
    ((('2+2=', '5'), ('2+2=', '4')), ((-3.5, False), (-0.5, True)), 'multiple_choice')
    """
    number = row.get("doc_id")
    if not isinstance(number, numbers.Integral):
        raise InputError(f"{where}: doc_id is {str(number)[:40]!r}, expected a whole number")
    where = f"{where}: document {number}"
    requests = _requests(row.get("arguments"), where)
    resps = row.get("resps")
    if not isinstance(resps, Sequence) or isinstance(resps, str) or len(resps) < len(requests):
        raise InputError(f"{where}: resps do not answer the {len(requests)} requests")
    names = row.get("metrics")
    if not isinstance(names, Sequence) or isinstance(names, str):
        names = [name for name in row if name not in FIXED]
    metrics = {str(name): row.get(str(name)) for name in names}
    scalar = (int, float, np.number, np.bool_)
    doc = row.get("doc")
    return Sample(
        doc_id=int(number),
        doc=doc if isinstance(doc, Mapping) else {},
        doc_hash=str(row.get("doc_hash") or ""),
        target=row.get("target"),
        filter=str(row.get("filter") or "none"),
        requests=requests,
        responses=tuple(_response(resp, request, where) for resp, request in zip(resps, requests, strict=False)),
        metrics={n: float(v) for n, v in metrics.items() if isinstance(v, scalar) and math.isfinite(v)},
    )


def _requests(arguments: Any, where: str) -> tuple[tuple[Any, ...], ...]:
    """Return the requests of a document: context and continuation, or context and options, or one text."""
    if isinstance(arguments, Mapping):
        groups = [arguments[name] for name in _ordered(arguments, where)]
        if not all(isinstance(group, Mapping) for group in groups):
            raise InputError(f"{where}: arguments are not objects")
        pairs = [[group[name] for name in _ordered(group, where)] for group in groups]
    elif isinstance(arguments, Sequence) and not isinstance(arguments, str):
        pairs = [list(pair) for pair in arguments if isinstance(pair, Sequence) and not isinstance(pair, str)]
    else:
        pairs = []
    if not pairs or any(not pair or not isinstance(pair[0], str) for pair in pairs):
        raise InputError(f"{where}: arguments are not requests as lm-eval writes them (gen_args_0: arg_0, arg_1)")
    kinds = {tuple(str if isinstance(part, str) else isinstance(part, Mapping) for part in pair[:2]) for pair in pairs}
    if len(kinds) > 1 or False in next(iter(kinds)):
        raise InputError(f"{where}: arguments mix requests of several kinds")
    return tuple(tuple(pair[:2]) for pair in pairs)


def _ordered(names: Mapping[str, Any], where: str) -> list[str]:
    """Return names by the number they end in: ``gen_args_10`` comes after ``gen_args_2``."""
    ends = {name: name.rpartition("_")[2] for name in names}
    if not all(end.isdecimal() and len(end) < 9 for end in ends.values()):
        raise InputError(
            f"{where}: arguments named {', '.join(list(ends)[:3])}, expected gen_args_0, ... and arg_0, ..."
        )
    return sorted(names, key=lambda name: int(ends[name]))


def _response(resp: Any, request: tuple[Any, ...], where: str) -> Any:
    """Return the first answer to a request: a log-likelihood, with whether it is greedy, or a text."""
    first = resp[0] if isinstance(resp, Sequence) and not isinstance(resp, str) and len(resp) else resp
    if len(request) == 1:
        return to_number(first, where)
    if isinstance(request[1], Mapping):
        return first
    if not isinstance(first, Sequence) or isinstance(first, str) or not len(first):
        raise InputError(f"{where}: resps hold {str(first)[:40]!r}, expected a log-likelihood and whether it is greedy")
    return to_number(first[0], where), len(first) > 1 and str(first[1]) in ("True", "1", "true")


def to_number(value: Any, where: str) -> float:
    """Return a log-likelihood, number or text, as a float; NaN and infinities pass.

    Raises
    ------
    InputError
        When it is neither.
    """
    try:
        if isinstance(value, bool) or not isinstance(value, str | int | float | np.number):
            raise ValueError
        return float(value)
    except ValueError:
        raise InputError(f"{where}: log-likelihood {str(value)[:40]!r} is not a number") from None


def read_samples(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a ``samples_*.jsonl`` file, one at a time.

    Raises
    ------
    InputError
        When a line is no JSON object, is longer than ``MAX_LINE`` bytes or is not UTF-8; file and line are named.
    """
    try:
        refuse_no_file(path, str(path))
        with path.open("rb") as stream:
            number = 0
            while line := stream.readline(MAX_LINE + 1):
                number += 1
                if not line.strip():
                    continue
                where = f"{path}, line {number}"
                if len(line) > MAX_LINE:
                    raise InputError(f"{where}: longer than {MAX_LINE // 2**20} MiB; not a samples file")
                try:
                    text = line.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise InputError(f"{where}: byte {error.start} is not UTF-8; save the file as UTF-8") from error
                if text.startswith(LFS_POINTER):
                    raise InputError(f"{where}: a Git LFS pointer, not the samples; run `git lfs pull` there")
                row = parse_json(text, where)
                if not isinstance(row, dict):
                    expected = "an object with doc_id, arguments and resps was expected"
                    raise InputError(f"{where}: {type(row).__name__} where {expected}")
                yield row
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path}: cannot read ({reason}); check the path") from error


def task_and_stamp(name: str) -> tuple[str, str] | None:
    """Split the name of a samples file into task and time; task names hold underscores, so from the right.

    Examples
    --------
    >>> task_and_stamp("samples_arc_easy_2026-11-21T13-07-22.365437.jsonl")
    ('arc_easy', '2026-11-21T13-07-22.365437')
    >>> task_and_stamp("samples_x.jsonl") is None
    True
    """
    parts = _STAMP.match(name)
    return None if parts is None else (parts["task"], parts["stamp"])

"""One document of lm-eval's samples, in either of the two forms it has: in memory, or read back from a file.

In memory numbers are numbers and requests are pairs; in ``samples_*.jsonl`` log-likelihoods are text and requests
are nested objects named ``gen_args_0``, ``gen_args_1``, ...; :func:`parse_sample` makes them one.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from densing.core import LFS_POINTER, InputError, refuse_no_file
from densing.scores.evals.disk import parse_json

MAX_LINE = 32 * 1024 * 1024
# What a row holds besides its metrics.
FIXED = frozenset(
    [
        "doc_id",
        "doc",
        "target",
        "arguments",
        "resps",
        "filtered_resps",
        "filter",
        "metrics",
        "doc_hash",
        "prompt_hash",
        "target_hash",
    ]
)
CHOICE, CLOZE, ROLLING, GENERATE = "multiple_choice", "loglikelihood", "loglikelihood_rolling", "generate_until"
_STAMP = re.compile(r"^samples_(?P<task>.+)_(?P<stamp>\d{4}-\d{2}-\d{2}T\d{2}-\d{2}-\d{2}(?:\.\d+)?)\.jsonl$")


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
                if line.strip():
                    yield _row(line, f"{path}, line {number}")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path}: cannot read ({reason}); check the path") from error


def _row(line: bytes, where: str) -> dict[str, Any]:
    if len(line) > MAX_LINE:
        raise InputError(f"{where}: longer than {MAX_LINE // 2**20} MiB; it is no samples file")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: byte {error.start} is not UTF-8; save the file as UTF-8") from error
    if text.startswith(LFS_POINTER):
        raise InputError(f"{where}: a Git LFS pointer, not the samples; run `git lfs pull` there")
    row = parse_json(text, where)
    if not isinstance(row, dict):
        raise InputError(f"{where}: {type(row).__name__} where an object with doc_id, arguments and resps was expected")
    return row


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
            raise InputError(f"{where}: arguments hold something else than objects")
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
        raise InputError(f"{where}: log-likelihood {str(value)[:40]!r} is no number") from None

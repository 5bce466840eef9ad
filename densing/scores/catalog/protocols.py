"""Protocol of a score (shots, answer form, metric, normalisation, chain of thought), and differences.

A score of another protocol is another measurement: five examples instead of none, the letter of an option instead of
its text, or log-likelihood per character instead of as it is shift it by more than most models differ. What is not
known is empty and compares as ``unknown``, never as ``same``.

``data/protocols.csv`` holds what evaluators' and harnesses' own documents say, each row with its source; shots and
metrics of catalog evaluators stand in the catalog's scores.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from densing.core import InputError, read_table
from densing.scores.catalog.catalog import DATA, Catalog
from densing.scores.catalog.schema import FORMS, PROTOCOLS

SAME, UNKNOWN, DIFFERS = "same", "unknown", "differs"
# Names of metrics: what is counted, by what the log-likelihood is divided, whether reasoning comes first.
_METRICS: dict[str, tuple[str, str, str]] = {
    "acc": ("accuracy", "none", ""),
    "acc_norm": ("accuracy", "characters", ""),
    "acc_bytes": ("accuracy", "bytes", ""),
    "acc_mutual_info": ("accuracy", "mutual information", ""),
    "accuracy": ("accuracy", "", ""),
    "score": ("accuracy", "", ""),
    "exact_match": ("exact match", "none", ""),
    "exact_match_cot": ("exact match", "none", "yes"),
    "em": ("exact match", "none", ""),
    "bits_per_byte": ("bits per byte", "", ""),
    "gold_bits_per_byte": ("bits per byte", "bytes with delimiter", ""),
    # A mean over the parts of a benchmark, whatever their sizes.
    "naive_average": ("accuracy (mean of parts)", "", ""),
}
_GENERATED = ("exact match", "pass@1")
_QUALIFIED = re.compile(r"^(?P<base>[^()]+?)\s*(?:\((?P<qualifier>[^()]*)\))?$")


@dataclass(frozen=True)
class Protocol:
    """How a score was measured; what is unknown is None or empty.

    Parameters
    ----------
    shots : float, optional
        Few-shot examples in the prompt.
    form : {"", "cloze", "letters", "generate"}
        Whether the text of an option, its letter, or an answer written freely is scored.
    metric : str
        What is counted: ``accuracy``, ``exact match``, ``pass@1``, ``bits per byte``, ..., with a qualifier in
        parentheses (``pass@1 (sanitized)``).
    normalisation : str
        What the log-likelihood of an answer is divided by: ``none``, ``characters``, ``bytes``, ...
    cot : {"", "yes", "no"}
        Whether reasoning comes before the answer.
    source : str
        Which document says so.
    """

    shots: float | None = None
    form: str = ""
    metric: str = ""
    normalisation: str = ""
    cot: str = ""
    source: str = ""

    def over(self, other: Protocol) -> Protocol:
        """Return this protocol with its unknown parts filled from another.

        Examples
        --------
        >>> Protocol(shots=5).over(Protocol(shots=0, form="letters"))
        Protocol(shots=5, form='letters', metric='', normalisation='', cot='', source='')
        """
        mine = asdict(self)
        return Protocol(**{name: value if _known(value) else getattr(other, name) for name, value in mine.items()})

    def to_dict(self) -> dict[str, Any]:
        """Return the protocol as plain data, unknown parts as the word."""
        return {name: value if _known(value) else UNKNOWN for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Protocol:
        """Rebuild a protocol from plain data, as :meth:`to_dict` writes it.

        Raises
        ------
        InputError
            For a part that there is none of, or a value of another kind.
        """
        names = {field.name for field in fields(cls)}
        if stray := sorted(set(data) - names):
            raise InputError(f"protocol: {stray[0]!r} is not a part; the parts are {', '.join(sorted(names))}")
        parts = {name: value for name, value in data.items() if value != UNKNOWN and _known(value)}
        for name, value in parts.items():
            if name == "shots" and (isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0):
                raise InputError(f"protocol: shots is {value!r}; write a number from 0")
            if name != "shots" and not isinstance(value, str):
                raise InputError(f"protocol: {name} is {value!r}; write text")
        for name, choices in (("form", FORMS), ("cot", ("yes", "no"))):
            if parts.get(name, choices[0]) not in choices:
                raise InputError(f"protocol: {name} is {parts[name]!r}; write one of {', '.join(choices)}")
        return cls(**parts)


def stated(
    metric: str = "", *, shots: float | None = None, form: str = "", cot: str = "", source: str = ""
) -> Protocol:
    """Return the protocol that a row of results states, with what follows from its metric and its form.

    Parameters
    ----------
    metric : str
        Name of the metric as harnesses and the catalog write it (``acc_norm``, ``exact_match``, ``pass@1``).
    shots, form, cot, source
        As in :class:`Protocol`.

    Examples
    --------
    >>> stated("acc_norm", shots=10.0)
    Protocol(shots=10.0, form='', metric='accuracy', normalisation='characters', cot='', source='')
    >>> stated("acc", form="generate").metric, stated("pass@1 (sanitized)").form
    ('exact match', 'generate')
    """
    match = _QUALIFIED.match(metric.strip()) if metric else None
    base, qualifier = (match["base"], match["qualifier"]) if match else (metric, None)
    counted, normalisation, reasoned = _METRICS.get(base, (base, "", ""))
    counted = f"{counted} ({qualifier})" if qualifier else counted
    number = None if shots is None or shots != shots else float(shots)
    return _completed(Protocol(number, form, counted, normalisation, cot or reasoned, source))


def parse_protocol(text: str) -> Protocol:
    """Return a protocol written as ``shots=5,form=letters,metric=acc_norm``; what is not written is unknown.

    Raises
    ------
    InputError
        For a part that there is none of, or a value of another kind.

    Examples
    --------
    >>> parse_protocol("shots=5,form=letters,metric=acc")
    Protocol(shots=5.0, form='letters', metric='accuracy', normalisation='none', cot='no', source='')
    """
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if bad := next((name for name, sign, value in pairs if not (sign and value.strip())), None):
        raise InputError(f"protocol: {bad.strip()!r} has no value; write shots=5,form=letters,metric=acc_norm")
    parts: dict[str, Any] = {name.strip(): value.strip() for name, _, value in pairs}
    if "shots" in parts:
        try:
            parts["shots"] = float(parts["shots"])
        except ValueError:
            raise InputError(f"protocol: shots is {parts['shots']!r}; write a number from 0") from None
    protocol = Protocol.from_dict(parts)
    implied = stated(protocol.metric, shots=protocol.shots, form=protocol.form, cot=protocol.cot)
    return _completed(replace(protocol, metric=implied.metric).over(implied))


def _completed(protocol: Protocol) -> Protocol:
    """Add what follows: generated answers have no options to compare, and options are scored without reasoning."""
    if not protocol.form and _base(protocol.metric) in _GENERATED:
        protocol = replace(protocol, form="generate")
    if protocol.form == "generate":
        # The share of right answers among generated ones is the share of exact matches.
        metric = "exact match" if protocol.metric == "accuracy" else protocol.metric
        return replace(protocol, metric=metric, normalisation="none")
    return replace(protocol, cot=protocol.cot or "no") if protocol.form else protocol


def known_protocol(evaluator: str, task: str) -> Protocol:
    """Return what documents say of an evaluator's (a ladder's, a harness's) protocol on a benchmark or task.

    Examples
    --------
    >>> known_protocol("obsscaling", "mmlu").form, known_protocol("lm-eval", "mmlu_continuation").form
    ('letters', 'cloze')
    >>> known_protocol("nobody", "mmlu") == Protocol()
    True
    """
    rows = [row for row in _table() if row[0] == evaluator and fnmatchcase(task, row[1])]
    # The row that says most of the name.
    return max(rows, key=lambda row: len(row[1].rstrip("*")))[2] if rows else Protocol()


def evaluator_protocol(catalog: Catalog, evaluator: str, benchmark: str) -> Protocol:
    """Return the protocol of an evaluator of the catalog on a benchmark: its scores' metric and shots, and documents.

    Examples
    --------
    >>> from densing.scores.catalog import load_catalog
    >>> evaluator_protocol(load_catalog(), "obsscaling", "hellaswag").to_dict()["normalisation"]
    'characters'
    """
    rows = catalog.scores
    scores = rows[rows["evaluator"].eq(evaluator) & rows["benchmark"].eq(benchmark)]
    metrics, shots = scores["metric"].dropna().unique(), scores["shots"].unique()
    document = known_protocol(evaluator, benchmark)
    own = stated(
        str(metrics[0]) if len(metrics) == 1 else "",
        shots=float(shots[0]) if len(shots) == 1 else None,
        form=document.form,
        cot=document.cot,
        source=document.source or (f"scores of {evaluator}" if len(scores) else ""),
    )
    return _completed(own.over(document))


def compare(measured: Protocol, reference: Protocol) -> dict[str, str]:
    """Return per part of two protocols whether they are ``same``, ``differs`` or ``unknown``.

    Examples
    --------
    >>> compare(stated("acc", shots=0, form="letters"), stated("acc", shots=5))
    {'shots': 'differs', 'form': 'unknown', 'metric': 'same', 'normalisation': 'same', 'cot': 'unknown'}
    """
    verdicts = {}
    for name in ("shots", "form", "metric", "normalisation", "cot"):
        one, other = getattr(measured, name), getattr(reference, name)
        if not (_known(one) and _known(other)):
            verdicts[name] = UNKNOWN
        elif name == "metric":
            verdicts[name] = _same_metric(one, other)
        else:
            verdicts[name] = SAME if one == other else DIFFERS
    return verdicts


def verdict(verdicts: Mapping[Any, str]) -> str:
    """Return the verdict on a whole protocol: the worst of its parts.

    Examples
    --------
    >>> verdict({"shots": "same", "form": "unknown"}), verdict({"shots": "differs", "form": "unknown"})
    ('unknown', 'differs')
    """
    return worst(verdicts.values())


def explain(measured: Protocol, reference: Protocol) -> str:
    """Return in words what differs and what is unknown; empty where all is the same.

    Examples
    --------
    >>> explain(stated("acc", shots=0, form="letters"), stated("acc", shots=5, form="letters"))
    'shots 0, reference 5'
    >>> explain(stated("acc", shots=5), stated("acc", shots=5, form="letters"))
    'form unknown, reference letters; cot unknown, reference no'
    """
    parts = compare(measured, reference)
    for protocol, remark in ((measured, "not stated"), (reference, "reference's not stored")):
        if not any(_known(getattr(protocol, name)) for name in parts):
            return remark
    return "; ".join(
        f"{name} {_word(getattr(measured, name))}, reference {_word(getattr(reference, name))}"
        for state in (DIFFERS, UNKNOWN)
        for name in parts
        if parts[name] == state
    )


def worst(verdicts: Iterable[str]) -> str:
    """Return the verdict on several protocols read as one, as for a mean over benchmarks.

    Examples
    --------
    >>> worst(["same", "differs", "unknown"]), worst(["same"])
    ('differs', 'same')
    """
    states = set(verdicts)
    return next((state for state in (DIFFERS, UNKNOWN) if state in states), SAME)


def _same_metric(one: str, other: str) -> str:
    if one == other:
        return SAME
    # "pass@1" may or may not be "pass@1 (sanitized)"; two qualifiers are two measurements.
    unqualified = _base(one) == one or _base(other) == other
    return UNKNOWN if _base(one) == _base(other) and unqualified else DIFFERS


def _base(metric: str) -> str:
    return metric.partition(" (")[0]


def _word(value: float | str | None) -> str:
    if not _known(value):
        return UNKNOWN
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _known(value: object) -> bool:
    return value is not None and value != "" and value == value


@cache
def _table() -> tuple[tuple[str, str, Protocol], ...]:
    rows = read_table(DATA / "protocols.csv", PROTOCOLS, "protocols.csv")
    names = [field.name for field in fields(Protocol)]
    return tuple(
        (
            str(row["evaluator"]),
            str(row["benchmark"]),
            Protocol(**{name: row[name] for name in names if _known(row[name])}),
        )
        for row in rows.to_dict("records")
    )

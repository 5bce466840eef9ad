"""Conditions for continuous integration: ``--fail-if 'exposed_pct > 10 or step_ms > 1.5s'``.

::

    condition  := conjunction { "or" conjunction }
    conjunction := comparison { "and" comparison }
    comparison := metric operator number [unit]
    operator   := ">" | ">=" | "<" | "<=" | "==" | "!="
    metric     := word [ "[" part of a name "]" ]
    unit       := "ns" | "us" | "ms" | "s" (of a metric of time), "%" (of a metric in percent)

Nothing is evaluated as code. A metric that is undefined in a run (the overlap ratio of a run without communication)
makes a comparison *undecided*, and so does a metric known to an interval in which the comparison holds for some values
and not for others; ``and`` and ``or`` follow Kleene's logic. A condition that stays undecided fails the check, because
a guard that cannot be read guards nothing.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from densing.core.errors import InputError, UnknownNameError

Verdict = Literal["met", "undecided"]

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
MAX_TEXT = 2000

_COMPARISON = re.compile(
    r"\s*(?P<metric>[A-Za-z_][\w.]*(?:\[[^\[\]]+\])?)\s*(?P<op>>=|<=|==|!=|>|<)\s*(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    r"\s*(?P<unit>ns|us|ms|s|%)?\s*",
    re.ASCII,
)
_JOINTS = re.compile(r"\s+(and|or)\s+", re.ASCII)


@dataclass(frozen=True)
class Interval:
    """A figure that is known to an interval; an end may be infinite.

    Parameters
    ----------
    value : float
        The estimate, for the message; it decides nothing.
    low, high : float
        The ends; with one that is not a number, every comparison stays undecided.

    Examples
    --------
    >>> density = Interval(0.7, 0.6, 0.9)
    >>> [hit.verdict for hit in check_conditions(["density<1", "density<0.8", "density<0.5"], {"density": density})]
    ['met', 'undecided']
    """

    value: float
    low: float
    high: float


Figure = int | float | Interval | None


@dataclass(frozen=True)
class Comparison:
    """One metric against one number, in the metric's own unit."""

    metric: str
    op: str
    number: float
    text: str

    def decide(self, summary: Mapping[str, Figure]) -> bool | None:
        """Return whether it holds; None where the metric is undefined, or its interval does not tell."""
        value, holds = summary[self.metric], OPERATORS[self.op]
        if not isinstance(value, Interval):
            return None if value is None else holds(value, self.number)
        if math.isnan(value.low) or math.isnan(value.high):
            return None
        if self.op in ("==", "!=") and value.low < self.number < value.high:
            return None
        at_low, at_high = holds(value.low, self.number), holds(value.high, self.number)
        return at_low if at_low == at_high else None


@dataclass(frozen=True)
class Condition:
    """A condition: any of some conjunctions of comparisons."""

    text: str
    any_of: tuple[tuple[Comparison, ...], ...]

    @property
    def comparisons(self) -> list[Comparison]:
        """All of them, in order."""
        return [comparison for parts in self.any_of for comparison in parts]

    def decide(self, summary: Mapping[str, Figure]) -> bool | None:
        """Return whether it holds, None if that cannot be told."""
        verdicts = []
        for parts in self.any_of:
            decided = [part.decide(summary) for part in parts]
            verdicts.append(False if False in decided else None if None in decided else True)
        return True if True in verdicts else None if None in verdicts else False


@dataclass(frozen=True)
class Hit:
    """A condition that fails a run.

    Parameters
    ----------
    text : str
        The condition as it was given.
    verdict : {"met", "undecided"}
    message : str
        One sentence for people, with the values.
    values : mapping of str to float, Interval or None
        Of the metrics it names.
    """

    text: str
    verdict: Verdict
    message: str
    values: Mapping[str, Figure]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Hit:
        """Rebuild what :meth:`to_dict` gave."""
        return msgspec.convert(data, cls)


def parse_condition(text: str) -> Condition:
    """Read a condition.

    Raises
    ------
    InputError
        When it is none; the message shows the place.

    Examples
    --------
    >>> parse_condition("exposed_pct > 10 and step_ms >= 1.5s").any_of[0][1].number
    1500.0
    >>> parse_condition("exposed_pct => 10")
    Traceback (most recent call last):
        ...
    densing.core.errors.InputError: --fail-if: cannot read 'exposed_pct => 10'; write metric, one of >= <= == != > <,
    number
    """
    if len(text) > MAX_TEXT:
        raise InputError(f"--fail-if: a condition of {len(text)} characters; split it into several")
    pieces = _JOINTS.split(text)
    any_of: list[list[Comparison]] = [[_comparison(pieces[0])]]
    for joint, piece in zip(pieces[1::2], pieces[2::2], strict=True):
        if joint == "or":
            any_of.append([])
        any_of[-1].append(_comparison(piece))
    return Condition(text.strip(), tuple(tuple(parts) for parts in any_of))


def check_conditions(conditions: Iterable[str | Condition], summary: Mapping[str, Any]) -> tuple[Hit, ...]:
    """Return the conditions that fail a run, in the order given; none if all is well.

    Parameters
    ----------
    conditions : iterable of str or Condition
    summary : mapping of str to number, Interval or None
        The figures of a run by name; None where undefined. Other values cannot be compared.

    Raises
    ------
    InputError, UnknownNameError
        When a condition cannot be read, or names what the summary does not have as a figure.

    Examples
    --------
    >>> summary = {"exposed_pct": 12.5, "overlap_pct": None}
    >>> [hit.message for hit in check_conditions(["exposed_pct>10", "exposed_pct>20", "overlap_pct<50"], summary)]
    ['exposed_pct>10: exposed_pct is 12.5', 'overlap_pct<50: cannot be decided, overlap_pct is undefined in this run']
    """
    figures: dict[str, Figure] = {name: value for name, value in summary.items() if _is_figure(value)}
    parsed = [parse_condition(condition) if isinstance(condition, str) else condition for condition in conditions]
    for condition in parsed:
        for comparison in condition.comparisons:
            if comparison.metric not in figures:
                raise UnknownNameError("metric", comparison.metric, figures)
    hits = []
    for condition in parsed:
        decided = condition.decide(figures)
        if decided is False:
            continue
        values = {comparison.metric: figures[comparison.metric] for comparison in condition.comparisons}
        # Of what is undecided the reasons come first, and what is known beside them in brackets.
        open_ends = {part.metric for part in condition.comparisons if decided is None and part.decide(figures) is None}
        known = ", ".join(_told(name, value) for name, value in values.items() if name not in open_ends)
        reasons = ", ".join(_told(name, value) for name, value in values.items() if name in open_ends)
        if decided:
            hits.append(Hit(condition.text, "met", f"{condition.text}: {known}", values))
        else:
            text = f"{condition.text}: cannot be decided, {reasons}"
            hits.append(Hit(condition.text, "undecided", text + (f" ({known})" if known else ""), values))
    return tuple(hits)


def _is_figure(value: object) -> bool:
    if value is None or isinstance(value, Interval):
        return True
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def _told(name: str, value: Figure) -> str:
    if value is None:
        return f"{name} is undefined in this run"
    if isinstance(value, Interval):
        return f"{name} is {value.value:.6g}, between {value.low:.6g} and {value.high:.6g}"
    return f"{name} is {value:.6g}"


def _comparison(text: str) -> Comparison:
    match = _COMPARISON.fullmatch(text)
    if match is None:
        raise InputError(
            f"--fail-if: cannot read {text.strip()[:80]!r}; write metric, one of {' '.join(OPERATORS)}, number"
        )
    metric, number, unit = match["metric"], float(match["number"]), match["unit"]
    if unit is not None:
        # The units that a number may have beside this metric, in the metric's own, which its name tells.
        parts = metric.partition("[")[0].split("_")
        own = next((UNITS[part] for part in parts if part in UNITS), None)
        units: Mapping[str, float] = {"%": 1} if parts[-1] == "pct" else {}
        if own is not None:
            units = {name: size / own for name, size in UNITS.items()}
        if unit not in units:
            remedy = f"use {', '.join(units)}, or none" if units else f"{metric} has none"
            raise InputError(f"--fail-if: unit {unit!r} in {text.strip()[:80]!r}; {remedy}")
        number *= units[unit]
    if not math.isfinite(number):
        raise InputError(f"--fail-if: {match['number']} in {text.strip()[:80]!r} is too large a number")
    return Comparison(metric, match["op"], number, text.strip())

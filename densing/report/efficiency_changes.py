"""What changed against another run: the words and the table of a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from densing.plots import duration, text
from densing.report.efficiency_tables import frame, record, times
from densing.report.sections import sentence
from densing.report.tables import Field, ShownTable, column, shown

if TYPE_CHECKING:
    from densing.efficiency.profile import Change, Comparison

_NAMES = {
    "step_ns": "step time",
    "compute_ns": "compute",
    "comm_ns": "communication",
    "overlap_ns": "hidden communication",
    "exposed_comm_ns": "exposed communication",
    "memcpy_ns": "copies",
    "exposed_memcpy_ns": "exposed copies",
    "idle_ns": "idle",
}


@dataclass(frozen=True)
class Changes:
    """The section on what changed: sentences, and the table."""

    words: tuple[str, ...]
    table: ShownTable


def changes(baseline: Comparison) -> Changes:
    """Put a comparison in words."""
    notes = tuple(sentence(note.message) for note in baseline.notes)
    return Changes((verdict(baseline), *notes), _table(baseline))


def verdict(baseline: Comparison) -> str:
    """Return whether a step takes longer than in the baseline, in one sentence.

    Examples
    --------
    >>> from densing.efficiency.profile.comparison import RunSteps, compare
    >>> runs = [RunSteps(tuple(range(8)), {"step_ns": tuple(mean + d for d in (0, 2, 1, 3, 2, 0, 1, 3))})
    ...         for mean in (100.0, 150.0)]
    >>> verdict(compare(*runs)).split(":")[0]
    'A step is slower than in the baseline'
    """
    step = next(change for change in baseline.changes if change.metric == "step_ns")
    counted = f"{baseline.steps[1]} steps against {baseline.steps[0]}"
    if step.verdict == "too few steps":
        return f"Too few steps to tell a change from noise ({counted})."
    told = f"{_signed(step.difference)} ({_interval(step)}, {text.percentage(baseline.level)} interval; {counted})."
    if step.verdict == "no change beyond noise":
        return f"The step time has not changed beyond noise: {told}"
    return f"A step is {step.verdict} than in the baseline: {told}"


def _table(baseline: Comparison) -> ShownTable:
    rows = [{**record(change), "name": _NAMES.get(change.metric, change.metric), "words": _interval(change)}
            for change in baseline.changes]  # fmt: skip
    fields = (
        Field("Per step", column("name")),
        times("Baseline", "base"),
        times("This run", "other"),
        Field("Change", column("difference", _signed), "difference"),
        Field("Interval", column("words")),
        Field("Ratio", column("ratio", _ratio), "ratio"),
        Field("Verdict", column("verdict")),
    )
    caption = (
        "Means over steps, each first averaged over the ranks, with bootstrap intervals over steps. How much a second "
        "start of the same job differs is not in the noise."
    )
    return shown("changes-table", caption, frame(rows), fields)


def _signed(value: Any) -> str:
    if text.is_missing(value):
        return text.MISSING
    sign = "+" if value > 0 else "−" if value < 0 else ""
    return f"{sign}{duration(abs(value))}"


def _interval(change: Change) -> str:
    return text.MISSING if change.low is None else f"{_signed(change.low)} to {_signed(change.high)}"


def _ratio(value: Any) -> str:
    return text.MISSING if text.is_missing(value) else f"{value:.3f}"

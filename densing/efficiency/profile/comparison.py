"""Differences between two runs beyond step-to-step noise, decided by ranks.

The ranks of a step are not independent: in a synchronous run they wait for each other, so a step is one observation. A
metric is averaged over ranks first; the steps of both runs are then compared by the rank-sum test of Wilcoxon, Mann
and Whitney, and the intervals are those that the test leaves (Hodges and Lehmann). A few slow steps move neither.
"""

# ruff: noqa: PD011 -- the values of RunSteps are no table's
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from densing.core import Field, InputError, Listing, Note, as_row, column, formatting, numeric, shares, times
from densing.efficiency.profile.rank import KEPT_NAMES, per_step
from densing.efficiency.timeline import occurrences

if TYPE_CHECKING:
    import pandas as pd

    from densing.efficiency.profile.run import RunProfile

Floats = NDArray[np.float64]
Verdict = Literal["slower", "faster", "more", "less", "no change beyond noise", "too few steps"]

MIN_STEPS = 5
"""Fewest steps per run; with fewer, noise and change cannot be separated, so there is no interval and no verdict."""
OUTLIER_MADS = 5.0
OUTLIER_SHARE = 0.1
MAX_CORRELATION = 0.95
EXACT = 2_500
"""Most pairs of steps for which the test is exact; beyond it, and with ties, it is normal."""
POWER = 0.8
ITEMS = 40
"""Most operators, kernels and collectives that are listed."""
ALIKE_PCT = 2.0
"""Change of an operator's time that counts as none, % of the larger: it has no test of its own."""
STEP = "step_ns"
COLLECTIVE, OTHERS = "collective", "all others"
METRICS: dict[str, str] = {
    STEP: "window_ns",
    "compute_ns": "compute_ns",
    "comm_ns": "comm_ns",
    "overlap_ns": "overlap_ns",
    "exposed_comm_ns": "exposed_comm_ns",
    "memcpy_ns": "memcpy_ns",
    "exposed_memcpy_ns": "exposed_memcpy_ns",
    "idle_ns": "idle_ns",
}
"""Metrics per step, and their place in a step's partition."""


@dataclass(frozen=True)
class RunSteps:
    """A run's metrics per step, averaged over ranks.

    Parameters
    ----------
    numbers : tuple of int
        Step numbers, ascending.
    values : mapping of str to tuple of float
        Nanoseconds per step, by metric.
    ranks : int
        Ranks averaged over.
    left_out : int
        Steps that some rank did not record.
    window : str
        To which the ranks were cut; empty if unknown.
    """

    numbers: tuple[int, ...]
    values: Mapping[str, tuple[float, ...]]
    ranks: int = 1
    left_out: int = 0
    window: str = ""

    def without_first(self, count: int) -> RunSteps:
        """Return the run without its first steps."""
        values = {metric: column[count:] for metric, column in self.values.items()}
        return RunSteps(self.numbers[count:], values, self.ranks, self.left_out, self.window)


def run_steps(rows: Iterable[Mapping[str, Any]]) -> RunSteps:
    """Average a run's steps over its ranks; rows are taken one by one.

    Parameters
    ----------
    rows : iterable of mapping
        One per rank, each with ``steps``: a list of ``{"number": n, "partition": {...}}`` with the partition's
        figures in nanoseconds, and their ``window``.

    Returns
    -------
    RunSteps
        Of the steps that every rank has.

    Examples
    --------
    >>> parts = [{name: value for name in METRICS.values()} for value in (10, 30)]
    >>> run_steps([{"steps": [{"number": 2, "partition": part}]} for part in parts]).values["step_ns"]
    (20.0,)
    """
    sums: dict[tuple[int, int], list[int]] = {}
    ranks, window = 0, ""
    for row in rows:
        ranks += 1
        window = window or row.get("window", "")
        steps = row["steps"]
        for key, step in zip(occurrences(step["number"] for step in steps), steps, strict=True):
            cells = [1, *(step["partition"][figure] for figure in METRICS.values())]
            total = sums.get(key)
            sums[key] = cells if total is None else [a + b for a, b in zip(total, cells, strict=True)]
    common = {key: cells for key, cells in sorted(sums.items()) if cells[0] == ranks}
    values = {
        metric: tuple(cells[index] / ranks for cells in common.values())
        for index, metric in enumerate(METRICS, start=1)
    }
    return RunSteps(tuple(number for number, _ in common), values, ranks, len(sums) - len(common), window)


@dataclass(frozen=True)
class Change:
    """One metric in two runs.

    Parameters
    ----------
    metric : str
    base, other : float or None
        Median over steps, nanoseconds; None without steps.
    difference, low, high : float or None
        Median of other − base over all pairs of steps, and its interval; None for too few steps, the interval also
        where so few correlated steps leave none.
    ratio, ratio_low, ratio_high : float or None
        The same of other/base; None also where a step has none of it.
    correlation : float or None
        Lag-1 autocorrelation of the steps' ranks that test and intervals allow for, pooled over both runs.
    p : float or None
        Of the rank-sum test.
    detectable : float or None
        Ratio from which a change would be seen in 8 of 10 such comparisons; a decrease likewise from its inverse.
    verdict : str
        ``slower`` or ``faster`` for the step, ``more`` or ``less`` for its parts, when p is below 1 − level; else ``no
        change beyond noise``, or ``too few steps``.
    """

    metric: str
    base: float | None
    other: float | None
    difference: float | None
    low: float | None
    high: float | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    correlation: float | None
    p: float | None
    detectable: float | None
    verdict: Verdict

    @property
    def interval(self) -> str:
        """The interval of the difference in words."""
        ends = map(formatting.signed_duration, (self.low, self.high))
        return formatting.MISSING if self.low is None else " to ".join(ends)


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
class ItemChange:
    """An operator, kernel or collective in two runs, matched by name (collectives by operation, group and size).

    Attributes
    ----------
    name, kind : str
    status : {"new", "gone", "slower", "faster", "alike"}
        ``alike`` within 2 %.
    base_calls, other_calls : float
        Per step and rank.
    base_ns, other_ns : float
        Time per step and rank.
    share_pct : float or None
        Its change over the sum of all changes of its table, %; None where that is 0.
    """

    name: str
    kind: str
    status: Literal["new", "gone", "slower", "faster", "alike"]
    base_calls: float
    other_calls: float
    base_ns: float
    other_ns: float
    share_pct: float | None


@dataclass(frozen=True)
class Comparison:
    """Result of :func:`compare`.

    Parameters
    ----------
    changes : tuple of Change
        By metric, the step first.
    steps, ranks : (int, int)
        Of the base and of the other run.
    level : float
    notes : tuple of Note
        What the runs differ in besides comes first.
    items : tuple of ItemChange
        Largest change first; empty where only steps were compared.
    """

    changes: tuple[Change, ...]
    steps: tuple[int, int]
    ranks: tuple[int, int]
    level: float
    notes: tuple[Note, ...]
    items: tuple[ItemChange, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The verdict on the step time."""
        return next(change.verdict for change in self.changes if change.metric == STEP)

    @property
    def listing(self) -> Listing:
        """What changed per step, as people read it."""
        fields = (
            Field("Per step", lambda row: _NAMES.get(row["metric"], str(row["metric"]))),
            times("Baseline", "base"),
            times("This run", "other"),
            numeric("Change", "difference", formatting.signed_duration),
            Field("Interval", column("interval"), hint=f"{formatting.percentage(self.level)}"),
            numeric("Ratio", "ratio", lambda value: formatting.MISSING if value is None else f"{value:.3f}"),
            numeric("p", "p", lambda value: formatting.MISSING if value is None else f"{value:.2g}"),
            numeric(
                "Seen from",
                "detectable",
                lambda value: formatting.MISSING if value is None else f"{value:.3f}",
                hint="Ratio that would be seen in 8 of 10 such comparisons",
            ),
            Field("Verdict", column("verdict")),
        )
        title = (
            "Medians over steps, each first averaged over the ranks; change, interval and p by the rank-sum test. How "
            "much a second start of the same job differs is not in the noise."
        )
        rows = [{**as_row(change), "interval": change.interval} for change in self.changes]
        return Listing(title, rows, fields)

    def table(self) -> pd.DataFrame:
        """Return a row per metric: the fields of :class:`Change`."""
        import pandas as pd

        return pd.DataFrame(self.to_dict()["changes"], columns=list(Change.__dataclass_fields__))

    def item_table(self) -> pd.DataFrame:
        """Return a row per operator, kernel and collective: the fields of :class:`ItemChange`."""
        import pandas as pd

        return pd.DataFrame(self.to_dict()["items"], columns=list(ItemChange.__dataclass_fields__))

    @property
    def items_listing(self) -> Listing:
        """What changed by operator, kernel and collective."""
        per = [times(f"{which}, per step", f"{key}_ns") for which, key in (("Baseline", "base"), ("This run", "other"))]
        fields = (
            Field("Name", column("name", lambda value: formatting.clean(value, 120))),
            Field("Kind", column("kind")),
            *per,
            numeric("Change", "change", formatting.signed_duration),
            shares("Share", "share_pct", hint="Of the changes of all that are compared, summed with their signs"),
            Field("Status", column("status")),
            numeric("Calls before", "base_calls", formatting.digits, minor=True),
            numeric("Calls now", "other_calls", formatting.digits, minor=True),
        )
        title = (
            "Time per step and rank by name, the largest change first; collectives by operation, group and size. Of "
            f"each rank only the {KEPT_NAMES} longest names are known. There is no test: times within "
            f"{ALIKE_PCT:g} % count as alike."
        )
        rows = [{**as_row(item), "change": item.other_ns - item.base_ns} for item in self.items[:ITEMS]]
        return Listing(title, rows, fields)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        parts = msgspec.to_builtins(self)
        keys = ("level", "steps", "ranks", "changes", "items", "notes")
        return {"verdict": self.verdict, **{key: parts[key] for key in keys}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Comparison:
        """Rebuild what :meth:`to_dict` gave."""
        return msgspec.convert(data, cls)


def compare(base: RunSteps, other: RunSteps, *, level: float = 0.95, skip_first: int = 0) -> Comparison:
    """Compare two runs step by step.

    With n and m steps and d the differences of all pairs of steps, p is that of the rank-sum test and the interval goes
    from the (k + 1)-th smallest to the (k + 1)-th largest d, where k is the largest statistic that the test rejects.
    Steps that follow each other alike tell less: the normal deviate z of p is divided by

    .. math:: \\sqrt{(1 + \\rho)/(1 - \\rho)}

    where ρ is the lag-1 autocorrelation of the ranks of each run's steps, pooled over both, corrected for its bias and
    not below 0 (and 0 where the runs are further apart than either is wide). Each run was started once: how much a
    second start of the same job differs is not in the noise.

    Parameters
    ----------
    base, other : RunSteps
        From :func:`run_steps`; both need the metrics compared.
    level : float
        Of the intervals, in (0.5, 1); each metric's own, not for all at once.
    skip_first : int
        Steps to leave out at the start of each run; nothing is left out unless asked.

    Raises
    ------
    InputError
        When a run has no steps, or an option makes no sense.

    Notes
    -----
    Source: Mann and Whitney (1947) by :func:`scipy.stats.mannwhitneyu`, exact without ties; Hodges and Lehmann (1963);
    effective number of correlated observations after Bayley and Hammersley (1946); all recalled. Simulated size, power
    and coverage: ``tests/efficiency/profile/test_comparison.py``.

    Examples
    --------
    >>> runs = [RunSteps(tuple(range(8)), {"step_ns": tuple(mean + d for d in (0, 2, 1, 3, 2, 0, 1, 3))})
    ...         for mean in (100.0, 150.0)]
    >>> comparison = compare(*runs)
    >>> comparison.verdict, comparison.changes[0].difference
    ('slower', 50.0)
    """
    from scipy.stats import mannwhitneyu, norm

    for name, run in (("base", base), ("other", other)):
        if not run.numbers:
            raise InputError(
                f"the {name} run has no marked step recorded by all ranks; call profiler.step() in the loop"
            )
        if STEP not in run.values:
            raise InputError(f"the {name} run has no {STEP}; give it")
    if not 0.5 < level < 1:
        raise InputError(f"level {level}: must lie between 0.5 and 1")
    if skip_first < 0:
        raise InputError(f"skip_first {skip_first}: must be at least 0")
    notes = [*_remarks("the base run", base, skip_first), *_remarks("the other run", other, skip_first)]
    base, other = base.without_first(skip_first), other.without_first(skip_first)
    counts = [len(base.numbers), len(other.numbers)]
    if min(counts) < MIN_STEPS:
        text = (
            f"{counts[0]} and {counts[1]} step(s): with fewer than {MIN_STEPS} in a run the step-to-step noise is "
            "unknown; record more (active=10)"
        )
        notes.append(Note("too-few-steps", "warning", text, {"steps": counts}))
    if base.ranks != other.ranks:
        text = f"{base.ranks} rank(s) against {other.ranks}: a change may be due to the size of the run"
        notes.append(Note("different-ranks", "warning", text, {"ranks": [base.ranks, other.ranks]}))
    if base.window and other.window and base.window != other.window:
        text = f"window {base.window} against {other.window}: they cover different work; use the same window for both"
        notes.append(Note("different-windows", "warning", text, {"windows": [base.window, other.window]}))
    changes = []
    for metric in (metric for metric in METRICS if metric in base.values and metric in other.values):
        before, after = np.array(base.values[metric]), np.array(other.values[metric])
        usual, now = (float(np.median(sample)) if len(sample) else None for sample in (before, after))
        if min(counts) < MIN_STEPS:
            nothing = (None, None, None, None, None, None, None, None, None)
            changes.append(Change(metric, usual, now, *nothing, "too few steps"))
            continue
        p, left_out, correlation = rank_test(before, after, level)
        verdict: Verdict = "no change beyond noise"
        difference, low, high = _inverted(after[:, None] - before, left_out)
        ratio = ratio_low = ratio_high = detectable = None
        if min(before.min(), after.min()) > 0:
            ratio, ratio_low, ratio_high = _inverted(after[:, None] / before, left_out)
            if ratio_low is not None and ratio_high is not None:
                half = np.log(ratio_high / ratio_low) / 2
                detectable = float(np.exp(half * (1 + norm.ppf(POWER) / norm.ppf((1 + level) / 2))))
        if p < 1 - level:
            grew = mannwhitneyu(after, before).statistic > before.size * after.size / 2
            verdict = ("slower" if grew else "faster") if metric == STEP else ("more" if grew else "less")
        figures = (difference, low, high, ratio, ratio_low, ratio_high, correlation, p, detectable)
        changes.append(Change(metric, usual, now, *figures, verdict))
        means = [sample.mean() for sample in (before, after)]
        if metric == STEP and ratio_low and ratio_high and not ratio_low <= means[1] / means[0] <= ratio_high:
            text = (
                f"the mean step changes by a factor of {means[1] / means[0]:.3g}, the usual one by {ratio:.3g}: few "
                "steps are much slower than the others, which ranks do not count; look at the step times"
            )
            notes.append(Note("means-differ", "warning", text, {"ratio_of_means": means[1] / means[0]}))
    steps = (len(base.numbers), len(other.numbers))
    return Comparison(tuple(changes), steps, (base.ranks, other.ranks), level, tuple(notes))


def compare_runs(base: RunProfile, other: RunProfile, *, level: float = 0.95, skip_first: int = 0) -> Comparison:
    """Compare two profiled runs: what they ran on, their steps, and their operators, kernels and collectives.

    Raises
    ------
    InputError
        As :func:`compare`.
    """
    steps = [
        run_steps({"steps": [step.to_dict() for step in rank.steps], "window": rank.window} for rank in run.ranks)
        for run in (base, other)
    ]
    found = compare(*steps, level=level, skip_first=skip_first)
    return replace(found, items=_items(base, other), notes=(*_unlike(base, other), *found.notes))


def _unlike(base: RunProfile, other: RunProfile) -> Iterable[Note]:
    """Yield what the runs differ in besides the change that is looked for."""
    facts: dict[str, Callable[[RunProfile], str]] = {
        "device": lambda run: ", ".join(run.devices) or ("processor" if all(r.on_host for r in run.ranks) else ""),
        "machine": lambda run: ", ".join(sorted({rank.host for rank in run.ranks if rank.host})),
        "world size": lambda run: ", ".join(map(str, sorted({rank.world_size for rank in run.ranks} - {-1}))),
        "rank": lambda run: formatting.ranks_of(rank.rank for rank in run.ranks),
        "backend": lambda run: ", ".join(sorted({rank.backend for rank in run.ranks if rank.backend})),
        "recorder": lambda run: ", ".join(sorted({rank.recorder for rank in run.ranks if rank.recorder})),
    }
    for name, fact in facts.items():
        before, after = fact(base), fact(other)
        # What one of both does not say is not known to differ.
        if before and after and before != after:
            text = f"another {name}: {after} against {before} in the baseline; a change may be due to that"
            yield Note(f"other-{name.replace(' ', '-')}", "warning", text, {"base": before, "other": after})


def _items(base: RunProfile, other: RunProfile) -> tuple[ItemChange, ...]:
    """Match operators, kernels and collectives of both runs."""
    tables = [_by_name(run) for run in (base, other)]
    keys = list(dict.fromkeys((*tables[0], *tables[1])))
    both = [(key, tables[0].get(key, [0.0, 0.0]), tables[1].get(key, [0.0, 0.0])) for key in keys]
    # A collective is also a name: each of the two tables adds up by itself.
    total = {False: 0.0, True: 0.0}
    for (_, kind), before, after in both:
        total[kind == COLLECTIVE] += after[1] - before[1]
    items = []
    for (name, kind), before, after in both:
        change, whole = after[1] - before[1], total[kind == COLLECTIVE]
        status: Literal["new", "gone", "slower", "faster", "alike"] = "slower" if change > 0 else "faster"
        if not before[0] or not after[0]:
            status = "new" if after[0] else "gone"
        elif 100 * abs(change) <= ALIKE_PCT * max(before[1], after[1]):
            status = "alike"
        share = 100 * change / whole if whole else None
        items.append(ItemChange(name, kind, status, before[0], after[0], before[1], after[1], share))
    return tuple(sorted(items, key=lambda item: -abs(item.other_ns - item.base_ns)))


def _by_name(run: RunProfile) -> dict[tuple[str, str], list[float]]:
    """Calls and nanoseconds per step and rank of a run's operators, kernels and collectives, by name and kind."""
    table: dict[tuple[str, str], list[float]] = {}
    steps = per_step(run.ranks)
    rows = [(row.name or OTHERS, row.kind, row.count, row.total_ns) for rank in run.ranks for row in rank.names]
    for one in run.collectives:
        size = formatting.volume(one.bytes / one.count_sized) if one.count_sized else "unknown size"
        name = f"{one.op or 'communication'}, {one.group or one.group_label}, {size}"
        rows.append((name, COLLECTIVE, one.count, one.sum_ns))
    for name, kind, count, ns in rows:
        cell = table.setdefault((name, kind), [0.0, 0.0])
        cell[0] += count / steps
        cell[1] += ns / steps
    return table


ITEM_METRICS = {
    "item_ms": "time per step and rank of operators and kernels (or else collectives) whose name holds the text, ms",
    "item_change_pct": "change of that time against the baseline of `--compare`, %; null where it took none there",
}
"""Figures by name, asked for as ``item_ms[TEXT]``."""


def item_figures(
    metrics: Iterable[str], run: RunProfile, comparison: Comparison | None = None
) -> dict[str, float | None]:
    """Return the figures of single operators, kernels and collectives.

    Parameters
    ----------
    metrics : iterable of str
        ``item_ms[TEXT]`` or ``item_change_pct[TEXT]``; others are passed over.
    run : RunProfile
    comparison : Comparison, optional
        Needed for changes.

    Raises
    ------
    InputError
        When no name holds the text.
    """
    now = {key: (None, ns) for key, (_, ns) in _by_name(run).items()}
    both = {(item.name, item.kind): (item.base_ns, item.other_ns) for item in comparison.items} if comparison else {}
    figures: dict[str, float | None] = {}
    for metric in metrics:
        which, bracket, text = metric.removesuffix("]").partition("[")
        if not bracket or which not in ITEM_METRICS:
            continue
        table = both if which == "item_change_pct" else now
        rows = [(key[1] == COLLECTIVE, *cells) for key, cells in table.items() if text in key[0]]
        if not rows:
            raise InputError(f"--fail-if: {metric}: no operator, kernel or collective has {text!r} in its name")
        # A collective is a kernel too, which counts once.
        rows = [row for row in rows if row[0] == all(row[0] for row in rows)]
        before, after = sum(row[1] or 0.0 for row in rows), sum(row[2] for row in rows)
        figures[metric] = after / 1e6
        if which == "item_change_pct":
            figures[metric] = 100 * (after / before - 1) if before else None
    return figures


def _remarks(name: str, run: RunSteps, skipped: int) -> Iterable[Note]:
    """Yield notes on unusual steps of one run."""
    if skipped:
        count = min(skipped, len(run.numbers))
        text = f"{name}: the first {count} step(s) are skipped, as requested"
        yield Note("steps-skipped", "info", text, {"steps": count})
    if run.left_out:
        text = f"{name}: {run.left_out} step(s) that some rank did not record are left out"
        yield Note("steps-left-out", "info", text, {"steps": run.left_out})
    run = run.without_first(skipped)
    times = np.array(run.values[STEP])
    if len(times) < 3:
        return
    median = float(np.median(times[1:]))
    # 1.4826 MAD is the standard deviation of normal noise.
    spread = 1.4826 * float(np.median(np.abs(times[1:] - median)))
    if times[0] > median + max(OUTLIER_MADS * spread, OUTLIER_SHARE * median):
        text = (
            f"{name}: its first step, {run.numbers[0]}, took {times[0] / 1e6:.3f} ms while the others take "
            f"{median / 1e6:.3f} ms; it is included: skip it with skip_first=1 if it is warm-up"
        )
        yield Note("slow-first-step", "warning", text, {"first_ns": float(times[0]), "median_ns": median})


def rank_test(base: Floats, other: Floats, level: float = 0.95) -> tuple[float, int, float]:
    """Return p of the rank-sum test, how many pairs its interval leaves out at either end, and the correlation.

    Parameters
    ----------
    base, other : float64 (n,), (m,)
        In order of time.
    level : float
        Of the interval; -1 pairs are left out where no statistic is rejected, and then there is no interval.

    Examples
    --------
    >>> p, left_out, rho = rank_test(np.array([3.0, 1, 4, 2, 5]), np.array([8.0, 6, 9, 7, 10]))
    >>> round(p, 4), left_out, rho
    (0.0079, 2, 0.0)
    """
    from scipy.stats import mannwhitneyu, norm, rankdata

    n, m = len(base), len(other)
    correlation = lag_one(rankdata(base), rankdata(other))
    # No correlation puts runs as far apart as this; of so few ranks it would leave nothing to decide.
    if max(base.min() - other.max(), other.min() - base.max()) > max(np.ptp(base), np.ptp(other)):
        correlation = 0.0
    wider = float(np.sqrt((1 + correlation) / (1 - correlation)))

    def allowed(p: Floats) -> Floats:
        return np.asarray(np.minimum(2 * norm.sf(norm.isf(p / 2) / wider), 1.0))

    together = np.concatenate((base, other))
    ties = len(np.unique(together)) < n + m
    if n * m <= EXACT:
        exact = _exact(n, m)
        left_out = int(np.sum(allowed(exact) < 1 - level)) - 1
    else:
        deviate = norm.isf((1 - level) / 2) * wider * np.sqrt(n * m * (n + m + 1) / 12)
        left_out = max(int(np.floor(n * m / 2 - 0.5 - deviate)), -1)
    if ties and np.ptp(together) == 0:
        # Without any noise, all alike, there is nothing to rank.
        p = 1.0
    elif ties or n * m > EXACT:
        p = float(mannwhitneyu(other, base, method="asymptotic").pvalue)
    else:
        above = int(np.sum(other[:, None] > base))
        p = float(exact[min(above, n * m - above)])
    return float(allowed(np.array(p))), left_out, correlation


@cache
def _exact(n: int, m: int) -> Floats:
    """p of each statistic from 0 to half of all pairs, of n and m distinct values."""
    from scipy.stats import mannwhitneyu

    statistic = np.arange(n * m // 2 + 1)[:, None]
    above, rest = np.divmod(statistic, m)
    # Of n values each exceeds so many of m others; a little apart, so that none are equal.
    at = np.arange(n)
    counts = np.where(at < above, m, np.where(at == above, rest, 0)) + np.linspace(0, 0.4, n)
    p = mannwhitneyu(counts, np.broadcast_to(np.arange(m) + 0.5, (len(counts), m)), axis=1, method="exact").pvalue
    return np.asarray(np.minimum(p, 1.0), np.float64)


def _inverted(pairs: Floats, left_out: int) -> tuple[float, float | None, float | None]:
    """Return the median of all pairs, and the smallest and largest but those left out at either end."""
    ordered = np.sort(pairs, axis=None)
    middle = float(np.median(ordered))
    if left_out < 0:
        return middle, None, None
    return middle, float(ordered[left_out]), float(ordered[-1 - left_out])


def lag_one(*samples: Floats) -> float:
    """Return the lag-1 autocorrelation of samples in order of time, pooled, corrected for bias, in [0, 0.95].

    .. math:: r = \\frac{\\sum (x_t - \\bar x)(x_{t+1} - \\bar x)}{\\sum (x_t - \\bar x)^2}, \\quad
              \\rho = r + (1 + 3 r)/n

    with n the mean length of the samples.

    Notes
    -----
    Source: bias −(1 + 3ρ)/n of the sample autocorrelation with unknown mean, Marriott and Pope (1954), recalled.

    Examples
    --------
    >>> lag_one(np.array([1.0, -1.0, 1.0, -1.0])), round(lag_one(np.arange(100.0)), 2)
    (0.0, 0.95)
    """
    centred = [sample - sample.mean() for sample in samples]
    total = sum(float((part**2).sum()) for part in centred)
    if total == 0:
        return 0.0
    raw = sum(float((part[1:] * part[:-1]).sum()) for part in centred) / total
    mean_length = sum(map(len, samples)) / len(samples)
    return min(max(raw + (1 + 3 * raw) / mean_length, 0.0), MAX_CORRELATION)

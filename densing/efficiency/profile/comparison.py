"""Differences between two runs beyond step-to-step noise.

The ranks of a step are not independent: in a synchronous run they wait for each other, so a step is one observation. A
metric is averaged over ranks first, and the bootstrap resamples steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from densing.core import Field, InputError, Listing, Note, as_row, column, formatting, numeric, times
from densing.efficiency.timeline import occurrences

Floats = NDArray[np.float64]
Verdict = Literal["slower", "faster", "more", "less", "no change beyond noise", "too few steps"]

MIN_STEPS = 5
"""Fewest steps per run; with fewer, noise and change cannot be separated, so there is no interval and no verdict."""
OUTLIER_MADS = 5.0
OUTLIER_SHARE = 0.1
MAX_CORRELATION = 0.95
_BLOCK = 1 << 22
"""Numbers drawn at a time, which bounds memory for runs of any length."""
STEP = "step_ns"
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
        Mean over steps, nanoseconds; None without steps.
    difference, low, high : float or None
        other − base and its interval; None for too few steps.
    ratio, ratio_low, ratio_high : float or None
        other/base and its interval; None also where a mean is 0.
    correlation : float or None
        Lag-1 autocorrelation of steps that the interval allows for, pooled over both runs.
    verdict : str
        ``slower`` or ``faster`` for the step, ``more`` or ``less`` for its parts, when the interval of the difference
        leaves out 0; else ``no change beyond noise``, or ``too few steps``.
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
class Comparison:
    """Result of :func:`compare`.

    Parameters
    ----------
    changes : tuple of Change
        By metric, the step first.
    steps, ranks : (int, int)
        Of the base and of the other run.
    level : float
    draws, seed : int
    notes : tuple of Note
    """

    changes: tuple[Change, ...]
    steps: tuple[int, int]
    ranks: tuple[int, int]
    level: float
    draws: int
    seed: int
    notes: tuple[Note, ...]

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
            Field("Verdict", column("verdict")),
        )
        title = (
            "Means over steps, each first averaged over the ranks, with bootstrap intervals over steps. How much a "
            "second start of the same job differs is not in the noise."
        )
        rows = [{**as_row(change), "interval": change.interval} for change in self.changes]
        return Listing(title, rows, fields)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        plain = {"verdict": self.verdict, "level": self.level, "draws": self.draws, "seed": self.seed}
        parts = msgspec.to_builtins(self)
        return {**plain, **{key: parts[key] for key in ("steps", "ranks", "changes", "notes")}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Comparison:
        """Rebuild what :meth:`to_dict` gave."""
        return msgspec.convert(data, cls)


def compare(
    base: RunSteps,
    other: RunSteps,
    *,
    seed: int = 0,
    level: float = 0.95,
    draws: int = 2000,
    skip_first: int = 0,
) -> Comparison:
    """Compare two runs step by step with a bootstrap over steps.

    With the mean difference d of n and m steps, its standard error s = √(s₁²/n + s₂²/m), and resamples of the steps
    of each run, the interval is

    .. math:: d \\pm q\\, s \\sqrt{(1 + \\rho)/(1 - \\rho)}

    where q is the ``level`` quantile of \\|d* − d\\|/s* (symmetric bootstrap-t) and ρ the lag-1 autocorrelation of
    steps, pooled over both runs, corrected for its bias and not below 0. The interval of the ratio is the same on
    logarithms. Each run was started once: how much a second start of the same job differs is not in the noise.

    Parameters
    ----------
    base, other : RunSteps
        From :func:`run_steps`; both need the metrics compared.
    seed : int
    level : float
        Of the intervals, in (0.5, 1); each metric's own, not for all at once.
    draws : int
        Resamples, 200 or more.
    skip_first : int
        Steps to leave out at the start of each run; nothing is left out unless asked.

    Raises
    ------
    InputError
        When a run has no steps, or an option makes no sense.

    Notes
    -----
    Source: symmetric bootstrap-t, Hall, "The Bootstrap and Edgeworth Expansion" (1992), §3.5; effective number of
    correlated observations after Bayley and Hammersley (1946); both recalled. Simulated coverage:
    ``tests/efficiency/profile/test_comparison.py``.

    Examples
    --------
    >>> runs = [RunSteps(tuple(range(8)), {"step_ns": tuple(mean + d for d in (0, 2, 1, 3, 2, 0, 1, 3))})
    ...         for mean in (100.0, 150.0)]
    >>> comparison = compare(*runs)
    >>> comparison.verdict, comparison.changes[0].difference
    ('slower', 50.0)
    """
    for name, run in (("base", base), ("other", other)):
        if not run.numbers:
            raise InputError(
                f"the {name} run has no marked step recorded by all ranks; call profiler.step() in the loop"
            )
        if STEP not in run.values:
            raise InputError(f"the {name} run has no {STEP}; give it")
    if not 0.5 < level < 1:
        raise InputError(f"level {level}: must lie between 0.5 and 1")
    if draws < 200:
        raise InputError(f"draws {draws}: must be at least 200")
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
    metrics = [metric for metric in METRICS if metric in base.values and metric in other.values]
    columns = [(np.array(base.values[metric]), np.array(other.values[metric])) for metric in metrics]
    estimates: Sequence[Estimate | None] = [None] * len(metrics)
    if min(counts) >= MIN_STEPS:
        estimates = compare_means(columns, level=level, draws=draws, seed=seed)
    changes = []
    for metric, pair, estimate in zip(metrics, columns, estimates, strict=True):
        before, after = (float(column.mean()) if len(column) else None for column in pair)
        if estimate is None:
            changes.append(Change(metric, before, after, None, None, None, None, None, None, None, "too few steps"))
            continue
        verdict: Verdict = "no change beyond noise"
        if estimate.low > 0:
            verdict = "slower" if metric == STEP else "more"
        elif estimate.high < 0:
            verdict = "faster" if metric == STEP else "less"
        changes.append(Change(metric, before, after, *estimate, verdict))
    steps = (len(base.numbers), len(other.numbers))
    return Comparison(tuple(changes), steps, (base.ranks, other.ranks), level, draws, seed, tuple(notes))


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


class Estimate(NamedTuple):
    """A difference other − base and a ratio other/base, with intervals; the ratio None where a mean is not above 0."""

    difference: float
    low: float
    high: float
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    correlation: float


class _Draws(NamedTuple):
    """Resampled means and variances of the mean, each (draws,)."""

    mean: Floats
    variance: Floats


def compare_means(columns: Sequence[tuple[Floats, Floats]], *, level: float, draws: int, seed: int) -> list[Estimate]:
    """Compare pairs of samples; the same steps are drawn for every pair.

    Parameters
    ----------
    columns : sequence of (float64 (n,), float64 (m,))
        Base and other, by metric; all with the same n and m, 2 or more.
    level : float
    draws, seed : int

    Returns
    -------
    list of Estimate
    """
    if not columns:
        return []
    base = np.stack([pair[0] for pair in columns])
    other = np.stack([pair[1] for pair in columns])
    generator = np.random.default_rng(seed)
    resamples = [_resample(sample, draws, generator) for sample in (base, other)]
    estimates = []
    for row, samples in enumerate(columns):
        a, b = (_Draws(*(part[row] for part in resample)) for resample in resamples)
        means = float(samples[0].mean()), float(samples[1].mean())
        squares = samples[0].var(ddof=1) / len(samples[0]), samples[1].var(ddof=1) / len(samples[1])
        correlation = lag_one(*samples)
        # Steps that follow each other alike tell less than as many independent ones.
        wider = float(np.sqrt((1 + correlation) / (1 - correlation)))
        difference = means[1] - means[0]
        quantile = _quantile(b.mean - a.mean - difference, a.variance + b.variance, level)
        reach = float(quantile * np.sqrt(squares[0] + squares[1]) * wider)
        ratio = _ratio(means, squares, a, b, level, wider)
        estimates.append(Estimate(difference, difference - reach, difference + reach, *ratio, correlation))
    return estimates


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


def _resample(samples: Floats, draws: int, generator: np.random.Generator) -> tuple[Floats, Floats]:
    """Return means and variances of the mean, (metrics, draws), of resampled steps."""
    size = samples.shape[1]
    means, variances = (np.empty((len(samples), draws)) for _ in range(2))
    block = max(1, _BLOCK // size)
    for begin in range(0, draws, block):
        index = generator.integers(0, size, (min(block, draws - begin), size))
        part = slice(begin, begin + len(index))
        for row, sample in enumerate(samples):
            resampled = sample[index]
            means[row, part] = resampled.mean(axis=1)
            variances[row, part] = resampled.var(axis=1, ddof=1) / size
    return means, variances


def _ratio(
    means: tuple[float, float], squares: tuple[float, float], a: _Draws, b: _Draws, level: float, wider: float
) -> tuple[float | None, float | None, float | None]:
    """Return the ratio of means with its interval, from the bootstrap-t of its logarithm."""
    if min(means) <= 0:
        return None, None, None
    ratio = means[1] / means[0]
    good = (a.mean > 0) & (b.mean > 0)
    log_ratio = np.log(ratio)
    distance = np.log(b.mean[good] / a.mean[good]) - log_ratio
    variance = a.variance[good] / a.mean[good] ** 2 + b.variance[good] / b.mean[good] ** 2
    error = np.sqrt(squares[0] / means[0] ** 2 + squares[1] / means[1] ** 2)
    reach = _quantile(distance, variance, level) * error * wider
    # Beyond this a ratio says nothing, and its exponential would overflow.
    if reach > np.log(1e6):
        return ratio, None, None
    return ratio, float(np.exp(log_ratio - reach)), float(np.exp(log_ratio + reach))


def _quantile(distance: Floats, variance: Floats, level: float) -> float:
    """Return the quantile of |distance|/√variance over the resamples that vary; 0 if none does."""
    varied = variance > 0
    return float(np.quantile(np.abs(distance[varied]) / np.sqrt(variance[varied]), level)) if varied.any() else 0.0

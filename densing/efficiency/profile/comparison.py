"""What changed between two runs beyond the noise of their steps.

Steps of one rank and ranks of one step are not independent of each other: ranks of a synchronous run wait for each
other, so a step is one observation. A metric is therefore averaged over ranks first, and steps are what is resampled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from densing.core import InputError, Note
from densing.efficiency.profile.resampling import Estimate, compare_means
from densing.efficiency.profile.steps_of_run import METRICS, STEP, RunSteps, run_steps

__all__ = ["Change", "Comparison", "RunSteps", "compare", "run_steps"]

Verdict = Literal["slower", "faster", "more", "less", "no change beyond noise", "too few steps"]

MIN_STEPS = 5
"""Below this the noise between steps cannot be told from the change: no interval, no verdict."""
OUTLIER_MADS = 5.0
OUTLIER_SHARE = 0.1


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


@dataclass(frozen=True)
class Comparison:
    """What :func:`compare` finds.

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

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        plain = {"verdict": self.verdict, "level": self.level, "draws": self.draws, "seed": self.seed}
        lists = {"steps": list(self.steps), "ranks": list(self.ranks)}
        notes = [note.to_dict() for note in self.notes]
        return {**plain, **lists, "changes": [asdict(change) for change in self.changes], "notes": notes}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Comparison:
        """Rebuild what :meth:`to_dict` gave."""
        return cls(
            tuple(Change(**change) for change in data["changes"]),
            (data["steps"][0], data["steps"][1]),
            (data["ranks"][0], data["ranks"][1]),
            data["level"],
            data["draws"],
            data["seed"],
            tuple(Note.from_dict(note) for note in data["notes"]),
        )


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
    ``tests/test_profile_compare.py``.

    Examples
    --------
    >>> runs = [RunSteps(tuple(range(8)), {"step_ns": tuple(mean + d for d in (0, 2, 1, 3, 2, 0, 1, 3))})
    ...         for mean in (100.0, 150.0)]
    >>> found = compare(*runs)
    >>> found.verdict, found.changes[0].difference
    ('slower', 50.0)
    """
    _check(base, other, level, draws, skip_first)
    notes = [*_remarks("the base run", base, skip_first), *_remarks("the other run", other, skip_first)]
    base, other = base.without_first(skip_first), other.without_first(skip_first)
    notes += _both(base, other)
    metrics = [metric for metric in METRICS if metric in base.values and metric in other.values]
    enough = min(len(base.numbers), len(other.numbers)) >= MIN_STEPS
    columns = [(np.array(base.values[metric]), np.array(other.values[metric])) for metric in metrics]
    estimates = compare_means(columns, level=level, draws=draws, seed=seed) if enough else [None] * len(metrics)
    changes = [_change(metric, *pair, found) for metric, pair, found in zip(metrics, columns, estimates, strict=True)]
    steps = (len(base.numbers), len(other.numbers))
    return Comparison(tuple(changes), steps, (base.ranks, other.ranks), level, draws, seed, tuple(notes))


def _change(metric: str, base: NDArray[np.float64], other: NDArray[np.float64], found: Estimate | None) -> Change:
    means = [float(column.mean()) if len(column) else None for column in (base, other)]
    if found is None:
        return Change(metric, means[0], means[1], None, None, None, None, None, None, None, "too few steps")
    verdict: Verdict = "no change beyond noise"
    if found.low > 0:
        verdict = "slower" if metric == STEP else "more"
    elif found.high < 0:
        verdict = "faster" if metric == STEP else "less"
    return Change(metric, means[0], means[1], *found, verdict)


def _check(base: RunSteps, other: RunSteps, level: float, draws: int, skip_first: int) -> None:
    for name, run in (("base", base), ("other", other)):
        if not run.numbers:
            raise InputError(
                f"the {name} run marks no step that all its ranks recorded; call profiler.step() in the loop"
            )
        if STEP not in run.values:
            raise InputError(f"the {name} run has no {STEP}; give it")
    if not 0.5 < level < 1:
        raise InputError(f"level {level}: a number between 0.5 and 1 is needed")
    if draws < 200:
        raise InputError(f"draws {draws}: 200 or more are needed")
    if skip_first < 0:
        raise InputError(f"skip_first {skip_first}: 0 or more is needed")


def _remarks(name: str, run: RunSteps, skipped: int) -> Iterable[Note]:
    """Say what is odd about one run's steps."""
    if skipped:
        left = min(skipped, len(run.numbers))
        yield Note("steps-skipped", "info", f"{name}: the first {left} step(s) are left out, as asked", {"steps": left})
    if run.left_out:
        text = f"{name}: {run.left_out} step(s) that some rank did not record are left out"
        yield Note("steps-left-out", "info", text, {"steps": run.left_out})
    kept = run.without_first(skipped)
    times = np.array(kept.values[STEP])
    if len(times) < 3:
        return
    middle = float(np.median(times[1:]))
    spread = 1.4826 * float(np.median(np.abs(times[1:] - middle)))
    if times[0] > middle + max(OUTLIER_MADS * spread, OUTLIER_SHARE * middle):
        text = (
            f"{name}: its first step, {kept.numbers[0]}, took {times[0] / 1e6:.3f} ms where the others take "
            f"{middle / 1e6:.3f} ms; it is counted: leave it out with skip_first=1 if it is warm-up"
        )
        yield Note("slow-first-step", "warning", text, {"first_ns": float(times[0]), "median_ns": middle})


def _both(base: RunSteps, other: RunSteps) -> Iterable[Note]:
    few = min(len(base.numbers), len(other.numbers))
    if few < MIN_STEPS:
        text = (
            f"{len(base.numbers)} and {len(other.numbers)} step(s): below {MIN_STEPS} in a run the noise between steps "
            "is not known; record more (active=10)"
        )
        yield Note("too-few-steps", "warning", text, {"steps": [len(base.numbers), len(other.numbers)]})
    if base.ranks != other.ranks:
        text = f"{base.ranks} rank(s) against {other.ranks}: a change may come from the size of the run"
        yield Note("different-ranks", "warning", text, {"ranks": [base.ranks, other.ranks]})
    if base.window and other.window and base.window != other.window:
        text = f"window {base.window} against {other.window}: different work counts; profile both within one"
        yield Note("different-windows", "warning", text, {"windows": [base.window, other.window]})

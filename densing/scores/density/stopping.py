"""When to stop drawing items: a few planned looks at the interval of ln density, which share one error rate.

Why not the usual interval at every item: whoever stops at a moment of his choosing picks those at which the mean
happens to please, and 95 % become about 66. Why not an interval that is valid at all moments: it costs 2.4 times the
items. Here the looks are few and planned. Stopping at a width looks at the variance and at the slope of the reference,
and hardly at the side on which the mean errs, so what it costs is small; stopping because the density is out of the
reference's range looks at the mean, and that is what the early looks spend error for (:func:`alpha_spent`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import ndtr, stdtrit

from densing.core import InputError
from densing.scores.density.inversion import DEFAULT_GUARD, guard_limits, log_sizes, model_scatter
from densing.scores.density.runs import RUN_GUARD, reference_benchmarks
from densing.scores.references import Reference, ladder_reference, load_reference, loss_reference

POPULATION, SET = "population", "set"
MINIMUM = 100
MINIMUM_PER_TASK = 20
SETTLED = "settled"
"""Why asking stops where all other items would hardly narrow the interval."""
CERTAIN = 3.0
"""Standard errors that lie beyond the reference where a density is a bound: a look at the mean, not at a width."""
MORE, NARROW, BOUND, UNREACHABLE, EXHAUSTED = "more", "narrow", "bound", "unreachable", "exhausted"
# Part of what a stored result's key says of the rule: raise it when the same items would be stopped elsewhere.
VERSION = "planned looks 1"
# Information at which to look, of what is planned. The plan is made anew at each of them.
LOOKS = (0.4, 0.8)
# And at most at so many times the items of the look before: a plan made on few items can ask for far too many.
GROWTH = 4
# Factor on the last look's interval: stopped by its own width, one without it holds the truth in 93.3 % (losses of the
# suite, ± 0.2), because spread and mean of skewed losses err together and the reference's slope is read at the mean.
WIDER = 1.04
# What the last look asks for beyond the plan, so that noise in the spreads does not call for one more.
EXCESS = 1.02
# The estimate of what the full set would give has noise: a target missed by less than this factor is tried. One missed
# by more is given up, for an interval within this factor of what the full set would give.
TOLERATED_MISS = 1.1
# And not from fewer items than this share of the full set.
LEAST_SHARE = 0.2
# Spreads are shared between tasks as if each had been seen on so many items of the others: for planning only.
SHARED_ITEMS = 5
# Where a critical value would be larger, nothing is left to spend: 4e-16 of a normal lies beyond.
NEVER = 8.0
# Share of the error rate that the looks before the last may spend together.
EARLY = 0.1
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(121)


def alpha_spent(fraction: float, alpha: float = 0.05) -> float:
    """Return how much of an error rate may be spent when so much of the planned information is there.

    A tenth of it before the last look, in proportion to the information, and the rest at the last: the early intervals
    are three to four standard errors wide, and the last one costs .4 % over a single look (1.968 in place of 1.960).

    Parameters
    ----------
    fraction : float
        Information now over information planned, in [0, 1].
    alpha : float
        The two-sided rate that may be spent by the end.

    Notes
    -----
    Source: a spending function in the sense of Lan and DeMets, Biometrika 70 (1983) 659: any that does not fall, from 0
    to alpha. This one gives critical values like those of Haybittle and Peto (3 at every look but the last).

    Examples
    --------
    >>> [round(alpha_spent(t), 5) for t in (0.0, 0.4, 0.8, 1.0)]
    [0.0, 0.002, 0.004, 0.05]
    """
    return alpha if fraction >= 1 else EARLY * alpha * max(fraction, 0.0)


def critical_value(variances: Sequence[float], earlier: Sequence[float], alpha: float) -> float:
    """Return the multiple of the standard error at a look that makes the intervals of all looks miss with ``alpha``.

    Parameters
    ----------
    variances : sequence of float
        Variance of the mean at each look so far, the one in question last; positive, and none above the one before.
    earlier : sequence of float
        The multiples used at the looks before.
    alpha : float
        Probability that any interval so far misses; :data:`NEVER` is returned where the earlier ones spent it all.

    Notes
    -----
    Source: the recursion of Armitage, McPherson and Rowe, JRSS A 132 (1969) 235, as repeated confidence intervals
    (Jennison and Turnbull, JRSS B 51 (1989) 305). It needs a Brownian motion on the clock 1 / variance, and the errors
    of a mean over strata are one: at two looks with variances V1 >= V2 they have covariance V2, whatever the strata's
    sizes and shares, with or without replacement.

    Examples
    --------
    >>> round(critical_value([1.0], [], 0.05), 3)
    1.96
    >>> looks = []
    >>> for t in (0.02, 0.4, 0.8, 1.0):
    ...     looks.append(critical_value([1 / s for s in (0.02, 0.4, 0.8, 1.0) if s <= t], looks, alpha_spent(t)))
    >>> [round(z, 3) for z in looks]
    [3.891, 3.105, 3.041, 1.968]
    """
    clock = variances[-1] / np.asarray(variances, dtype=float)  # information, 1 at the look in question
    # Paths of the mean that no interval has missed yet: where they are, and how many.
    position, mass, past = np.zeros(1), np.ones(1), 0.0
    for now, critical in zip(clock[:-1], earlier, strict=True):
        if now - past < 1e-3:  # no new information
            continue
        edge = min(critical, NEVER) * math.sqrt(now)
        step = math.sqrt(now - past)
        nodes = edge * _NODES
        density = np.exp(-(((nodes[:, None] - position) / step) ** 2) / 2) @ mass / (step * math.sqrt(2 * math.pi))
        position, mass, past = nodes, edge * _WEIGHTS * density, now
    step, unspent = math.sqrt(max(1 - past, 1e-3)), alpha - (1 - mass.sum())

    def excess(critical: float) -> float:
        missed = ndtr((-critical - position) / step) + ndtr((position - critical) / step)
        return float(missed @ mass) - unspent

    return float(brentq(excess, 0.0, NEVER)) if excess(NEVER) < 0 < excess(0.0) else NEVER


def items_needed(count: int, size: int, now: float, settled: float, goal: float) -> int:
    """Return how many items a half-width takes: with h_n after n and h after all N, h_n^2 - h^2 falls as 1/n - 1/N.

    Parameters
    ----------
    count, size : int
        Items so far, and all.
    now, settled, goal : float
        Half-widths: after ``count``, after ``size``, and the one to reach, between the two.

    Notes
    -----
    Source: Cochran, Sampling Techniques (1977), 2.6, for the finite population.

    Examples
    --------
    >>> items_needed(100, 10**9, 0.2, 0.0, 0.1)
    408
    """
    rest = (1 / count - 1 / size) * (goal**2 - settled**2) / (now**2 - settled**2)
    return math.ceil(EXCESS / (rest + 1 / size))


@dataclass(frozen=True)
class Sample:
    """What is known of one task after some of its items.

    Parameters
    ----------
    mean, spread : float
        Mean and variance of the items.
    count, size : int
        Items drawn, and in the full set.
    """

    mean: float
    spread: float
    count: int
    size: int

    @classmethod
    def of(cls, values: NDArray[np.float64], size: int, *, score: bool) -> Sample:
        """Summarise drawn values.

        Parameters
        ----------
        values : ndarray, shape (n,)
            Losses or scores; at least one.
        size : int
            Items in the full set.
        score : bool
            Whether the values lie in [0, 1]: then a few equal ones do not mean that all are (variance
            ``(1/4 + sum of squares) / (n + 1)``, Waudby-Smith and Ramdas, arXiv 2010.09686, section 3).

        Examples
        --------
        >>> Sample.of(np.array([1.0, 2.0, 3.0]), 10, score=False)
        Sample(mean=2.0, spread=1.0, count=3, size=10)
        """
        mean = float(values.mean())
        squares = float(((values - mean) ** 2).sum())
        spread = (0.25 + squares) / (len(values) + 1) if score else squares / max(len(values) - 1, 1)
        return cls(mean, spread, len(values), size)

    def at(self, count: int) -> Sample:
        """Return the same task as if so many items had been drawn (no more than it has)."""
        return replace(self, count=min(count, self.size))

    def variance(self, population: bool) -> float:
        """Return the variance of the mean as an estimate of the population's, or of the full set's."""
        return self.spread * (1 / self.count - (0.0 if population else 1 / self.size))


@dataclass(frozen=True)
class PastLook:
    """Items of each task at a look, and the multiple of the standard error that its interval had."""

    counts: Mapping[str, int]
    critical: float


@dataclass(frozen=True)
class Decision:
    """What the rule says after a look.

    Parameters
    ----------
    stop : bool
        Whether to stop.
    reason : {"more", "narrow", "bound", "unreachable", "exhausted"}
        ``bound``: the whole interval lies beyond the reference's guard, so that the density is one-sided and more items
        would not change it. ``unreachable``: the full set would not give the target; the interval is within a tenth of
        what it would give.
    met : bool
        Whether the interval is as narrow as asked.
    items : int
        Items drawn, over all tasks.
    mean, mean_lo, mean_hi : float
        Mean over tasks, in the reference's unit, with its interval.
    log_size, lo, hi : float
        The same through the inverse of the reference: ln effective parameters.
    half_width : float
        (hi - lo) / 2; also that of ln density, since a model's size is known.
    full_half_width : float
        Half-width that is expected when every item has been drawn.
    needed : float
        Items planned in all.
    ahead : mapping of int
        Items of each task to have at the next look.
    looks : tuple of PastLook
        Every look so far, this one last.
    message : str
        The decision in words.
    """

    stop: bool
    reason: str
    met: bool
    items: int
    mean: float
    mean_lo: float
    mean_hi: float
    log_size: float
    lo: float
    hi: float
    half_width: float
    full_half_width: float
    needed: float
    ahead: Mapping[str, int]
    looks: tuple[PastLook, ...]
    message: str


@dataclass(frozen=True)
class Total:
    """What the interval of ln density holds beside the items.

    Parameters
    ----------
    items, reference : float
        Half-widths of ln density from the items, and from the reference, which no number of items narrows.
    measured : float
        Of both together: the interval that a density is reported with.
    recipe : float
        With the scatter of models around the reference, where that is known.
    shares : mapping of float
        Parts of the variance of a recipe's ln density: items, reference, scatter (of models around the reference; NaN
        where it is not known).
    """

    items: float
    reference: float
    measured: float
    recipe: float
    shares: Mapping[str, float]

    @property
    def sentence(self) -> str:
        """What more items could still do, in words."""
        if not math.isfinite(self.measured):
            return "where this model lies the reference gives a bound alone, which more items would not narrow"
        known = {name: share for name, share in self.shares.items() if math.isfinite(share)}
        parts = ", ".join(f"{share:.0%} {name}" for name, share in known.items())
        return (
            f"in all ln density ± {self.measured:.2g}; without any item noise still ± {self.reference:.2g} (parts of "
            f"the variance of a recipe: {parts})"
        )


@dataclass(frozen=True)
class _Interval:
    """Middle, low and high end: of the mean, and of ln effective parameters."""

    mean: tuple[float, float, float]
    log_size: tuple[float, float, float]

    @property
    def half_width(self) -> float:
        """Half the width in ln effective parameters; infinite where the reference ends."""
        _, low, high = self.log_size
        return (high - low) / 2 if math.isfinite(low) and math.isfinite(high) else math.inf


@dataclass(frozen=True)
class StoppingRule:
    """Stop when the interval of ln density that comes from the items is narrow enough.

    Items are drawn in random order without replacement. After ``first`` of each task the rule plans how many of each
    it will take, more from those that vary more (Neyman's allocation), and looks again at 40 % and 80 % of the planned
    information, each time planning anew, and at the end; where the plan fell short, again. The intervals of all looks
    together keep the level (:func:`critical_value`). The interval of the mean goes through the inverse of the
    reference's curve, end by end, without linearisation. The curve's own uncertainty is not in it: no number of items
    reduces that.

    Parameters
    ----------
    reference : Reference
        The reference on the mean over the tasks: of losses (:func:`densing.scores.references.loss_reference`) or of
        scores.
    sizes : mapping of int
        Items in the full set of each task.
    target : float
        Half-width of ln density at which to stop; 0.1 is about ten per cent.
    level : float
        Level of the intervals of all looks together.
    covers : {"population", "set"}
        What the interval is for. ``population``: the mean over all items that the benchmark could have had. It is
        what the interval of a full evaluation covers, so that intervals of both kinds compare, and it does not shrink
        to nothing at the last item. ``set``: what the full set would have said; right for targets compared with each
        other, or with a family measured on the same items, because their common draw of items cancels. Its variance
        has the factor 1/n - 1/N in place of 1/n, and any target can be reached.
    minimum : int
        Items before the first look, at least 20 of each task: a spread estimated from fewer misleads.
    guard : float
        An interval wholly outside ``[N_min / guard, guard * N_max]`` of the reference is a bound.

    Raises
    ------
    InputError
        For a target that is not positive, an unknown ``covers``, or tasks that are not those of the reference.

    Examples
    --------
    >>> from densing.scores.references import load_reference, loss_reference
    >>> losses_of = loss_reference(load_reference("olmo-ladder", "hellaswag"))
    >>> rule = StoppingRule(losses_of, {"hellaswag": 10042}, target=0.5)
    >>> losses = np.random.default_rng(0).gamma(16, 0.05, size=10042)
    >>> counts, decision = rule.first, None
    >>> while decision is None or not decision.stop:
    ...     decision = rule.update({"hellaswag": losses[: counts["hellaswag"]]}, decision)
    ...     counts = decision.ahead
    >>> decision.reason, decision.half_width <= 0.5
    ('narrow', True)
    """

    reference: Reference
    sizes: Mapping[str, int]
    target: float = 0.1
    level: float = 0.95
    covers: str = POPULATION
    minimum: int = MINIMUM
    guard: float = DEFAULT_GUARD

    def __post_init__(self) -> None:
        """Check what the user can get wrong."""
        if not 0 < self.target < math.inf:
            raise InputError(f"target half-width {self.target} of ln density is not positive; 0.1 is about 10 %")
        if self.covers not in (POPULATION, SET):
            raise InputError(f"covers {self.covers!r} is neither {POPULATION!r} nor {SET!r}")
        if len(self.sizes) != len(self.reference.benchmarks):
            raise InputError(
                f"{len(self.sizes)} tasks ({', '.join(self.sizes)}) against a reference on the mean over "
                f"{', '.join(self.reference.benchmarks)}; fit the reference on the tasks that are measured"
            )

    @property
    def first(self) -> dict[str, int]:
        """Items of each task at the first look."""
        each = max(MINIMUM_PER_TASK, math.ceil(self.minimum / len(self.sizes)))
        return {task: min(each, size) for task, size in self.sizes.items()}

    def orders(self, look: Decision | None = None) -> dict[str, list[int]]:
        """Return documents whose order is not random: none."""
        return {}

    def update(self, losses_by_task: Mapping[str, ArrayLike], earlier: Decision | None = None) -> Decision:
        """Return the decision at a look, after everything drawn so far (not only what is new).

        Parameters
        ----------
        losses_by_task : mapping of array_like
            Loss (or score) of each drawn item, by task; at least :attr:`first` of each.
        earlier : Decision, optional
            That of the look before; its ``ahead`` says what to draw until this one.

        Raises
        ------
        InputError
            For fewer items than the first look is at.
        """
        score = self.reference.fit.law.output == "score"
        values = {task: np.asarray(losses_by_task[task], dtype=float) for task in self.sizes}
        if short := [task for task, count in self.first.items() if len(values[task]) < count]:
            raise InputError(f"{short[0]}: {len(values[short[0]])} items; the first look is at {self.first[short[0]]}")
        samples = [Sample.of(values[task], size, score=score) for task, size in self.sizes.items()]
        mean = sum(task.mean for task in samples) / len(samples)
        looks = () if earlier is None else earlier.looks
        items, everything = sum(task.count for task in samples), sum(self.sizes.values())

        # As if this look were the last: what would be left to spend?
        alpha = 1 - self.level
        last = WIDER * self._critical(samples, looks, alpha)
        now, full = self._interval(mean, samples, last), self._interval(mean, [t.at(t.size) for t in samples], last)
        reachable = full.half_width <= self.target * TOLERATED_MISS
        aim = self.target if reachable else full.half_width * TOLERATED_MISS
        minimum_items = 0 if reachable else math.ceil(LEAST_SHARE * everything)
        if now.half_width <= self.target:
            reason = NARROW
        elif items == everything:
            reason = EXHAUSTED
        else:
            reason = UNREACHABLE if now.half_width <= aim and items >= minimum_items and not reachable else MORE

        counts = [task.count for task in samples]
        critical, planned, ahead = last, counts, counts
        if reason == MORE:
            goal = self._goal(samples, now, aim)
            planned = self._allocate(samples, goal, minimum_items)
            variance, end = self._variance(samples), self._variance(self._at(samples, planned))
            fraction = end / variance
            critical = self._critical(samples, looks, alpha_spent(min(fraction, 1 - 1e-9), alpha))
            now = self._interval(mean, samples, critical)
            share = next((share for share in LOOKS if fraction < share / EXCESS), 1.0)
            ahead = planned if share == 1.0 else self._allocate(samples, (end or goal) / share, 0)
            if sum(ahead) == items:
                # Where all items are needed nothing varies at the end, and the goal says of no part that it is one.
                ahead = planned
            part = min(1.0, (GROWTH - 1) * items / (sum(ahead) - items))
            ahead = [
                one.count + math.ceil(part * (count - one.count)) for one, count in zip(samples, ahead, strict=True)
            ]
        if self._beyond(now):
            reason = BOUND
        look = PastLook(dict(zip(self.sizes, counts, strict=True)), critical)
        return Decision(
            reason != MORE, reason, reason == NARROW, items, *now.mean, *now.log_size, now.half_width,
            full.half_width, float(sum(planned)), dict(zip(self.sizes, ahead, strict=True)), (*looks, look),
            self._message(reason, items, now, full.half_width),
        )  # fmt: skip

    def total(self, decision: Decision | None = None) -> Total:
        """Return how far ln density is known in all: items, reference, and the scatter of models around it.

        Parameters
        ----------
        decision : Decision, optional
            After which items; without one, what the reference leaves a model of its middle size with no item noise.

        Examples
        --------
        >>> rule = rule_for("olmo-ladder", {"piqa": "piqa"}, {"piqa": 1838})
        >>> rule.total().measured == rule.total().reference > 0
        True
        """
        if decision is not None:
            return self.total_at(decision.mean, decision.half_width)
        fit = self.reference.fit
        middle = math.exp(sum(map(math.log, fit.domain["params"])) / 2)
        at = {name: np.array([value]) for name, value in {"params": middle, **self.reference.given}.items()}
        return self.total_at(float(fit.law.predict(fit.theta, at)[0]), 0.0)

    def total_at(self, mean: float, items: float) -> Total:
        """Return the same at a mean over the tasks, whose items leave ln density within a half-width."""
        fit, tail = self.reference.fit, (1 - self.level) / 2
        limits = guard_limits(self.reference, self.guard)
        drawn = log_sizes(self.reference, fit.draws, np.full((len(fit.draws), 1), mean), limits)
        low, high = np.quantile(drawn, [tail, 1 - tail])
        reference = float(high - low) / 2
        scatter = model_scatter(self.reference)
        off = math.nan
        if scatter is not None:
            normal = -stdtrit(scatter.freedom, tail)
            off = self._through(mean, normal * scatter.sd * (mean if scatter.relative else 1.0)).half_width
        squares = {"items": items**2, "reference": reference**2, "scatter": off**2}
        whole = sum(value for value in squares.values() if not math.isnan(value))
        shares = {name: value / whole if math.isfinite(whole) else math.nan for name, value in squares.items()}
        return Total(items, reference, math.hypot(items, reference), math.sqrt(whole), shares)

    def describe(self) -> dict[str, Any]:
        """Return the rule as plain data, for the settings of an evaluation."""
        about = self.reference.describe()
        reference = {name: about[name] for name in ("reference", "benchmarks", "law", "given", "data_hash")}
        rule = {name: getattr(self, name) for name in ("target", "level", "covers", "minimum", "guard")}
        return {"rule": VERSION, **rule, "tasks": dict(self.sizes), "ruler": reference}

    def _variance(self, samples: list[Sample]) -> float:
        return sum(task.variance(self.covers == POPULATION) for task in samples) / len(samples) ** 2

    @staticmethod
    def _at(samples: list[Sample], counts: list[int]) -> list[Sample]:
        return [task.at(count) for task, count in zip(samples, counts, strict=True)]

    def _critical(self, samples: list[Sample], looks: tuple[PastLook, ...], alpha: float) -> float:
        """Multiple of the standard error when the looks up to this one spend alpha, by the spreads as known now."""
        counts = [[look.counts[task] for task in self.sizes] for look in looks]
        variances = [self._variance(self._at(samples, past)) for past in counts] + [self._variance(samples)]
        if variances[-1] <= 0:
            return NEVER
        return critical_value(variances, [look.critical for look in looks], alpha)

    def _interval(self, mean: float, samples: list[Sample], critical: float) -> _Interval:
        """Interval of the mean, with Student's quantile for the few items that a spread may rest on."""
        parts = [(task.variance(self.covers == POPULATION), max(task.count - 1, 1)) for task in samples]
        total = sum(variance for variance, _ in parts)
        if total > 0 and critical < NEVER:
            # Student's quantile at the level of the normal one; degrees of freedom by Welch and Satterthwaite.
            freedom = total**2 / sum(variance**2 / free for variance, free in parts)
            critical = float(-stdtrit(freedom, ndtr(-critical))) if freedom < 1e4 else critical
        return self._through(mean, critical * math.sqrt(self._variance(samples)))

    def through(self, mean: float, margin: float) -> tuple[float, bool]:
        """Return the half-width of ln density where the mean is known within a margin, and whether that is a bound."""
        interval = self._through(mean, margin)
        return interval.half_width, self._beyond(interval)

    def _beyond(self, interval: _Interval) -> bool:
        """Whether an interval lies beyond the reference's guard as a whole."""
        low, high = (math.log(end) for end in self.reference.fit.domain["params"])
        beyond = math.log(self.guard)
        return interval.log_size[2] < low - beyond or interval.log_size[1] > high + beyond

    def _through(self, mean: float, margin: float) -> _Interval:
        ends = (mean, mean - margin, mean + margin)
        fit = self.reference.fit
        with np.errstate(divide="ignore"):
            size = np.log(np.asarray(fit.law.invert(fit.theta, ends, **self.reference.given)[0], dtype=float))
        return _Interval(ends, (float(size[0]), float(size[1:].min()), float(size[1:].max())))

    def _goal(self, samples: list[Sample], now: _Interval, aim: float) -> float:
        """Variance of the mean at which an interval of as many standard errors as now is as narrow as aimed at."""
        variance = self._variance(samples)
        if now.half_width <= aim:
            return variance
        mean, _, high = now.mean
        # The width grows with the margin, without end where the reference ends.
        margin = brentq(lambda m: min(self._through(mean, m).half_width, 2 * aim) - aim, 0.0, high - mean, rtol=1e-4)
        return variance * (float(margin) / (high - mean)) ** 2

    def _allocate(self, samples: list[Sample], goal: float, minimum_items: int) -> list[int]:
        """Fewest items of each task whose mean has the variance, at least so many in all, and none given back.

        Neyman's allocation: in proportion to the standard deviations, until a task has no more.
        """
        count, size, spread = np.array([(task.count, task.size, task.spread) for task in samples]).T
        shared = spread.mean() or 1.0
        weight = np.sqrt((count * spread + SHARED_ITEMS * shared) / (count + SHARED_ITEMS))
        unseen = 1 / size if self.covers == SET else 0.0
        low, high = 0.0, float((size / weight).max())
        for _ in range(40):
            scale = (low + high) / 2
            tried = np.clip(np.ceil(scale * weight), count, size)
            variance = (spread * (1 / tried - unseen)).sum() / len(samples) ** 2
            sufficient = variance <= goal / EXCESS and tried.sum() >= minimum_items
            low, high = (low, scale) if sufficient else (scale, high)
        return [int(items) for items in np.clip(np.ceil(high * weight), count, size)]

    def _message(self, reason: str, items: int, now: _Interval, full: float) -> str:
        size, low, high = (math.exp(value) if value < math.inf else math.inf for value in now.log_size)
        reached = (
            f"effective parameters {size:.3g} ({low:.3g} to {high:.3g}) from the items alone (reference taken as "
            f"exact): ln density ± {now.half_width:.3g} after {items} items (asked: {self.target:g}"
        )
        reached += {NARROW: ", met)", MORE: ")"}.get(reason, ", not met)")
        if reason == BOUND:
            return f"{reached}: outside the reference's range at every end of the interval; the density is a bound"
        if reason == EXHAUSTED:
            return f"{reached}: no items are left"
        if reason == UNREACHABLE:
            return (
                f"{reached}: all {sum(self.sizes.values())} items would give ± {full:.2g}; ask for "
                f"{full * TOLERATED_MISS:.2g} or more, add tasks, or ask what the full set would have said "
                f"(--ci_of {SET})"
            )
        return reached


def rule_for(
    reference: str,
    benchmarks: Mapping[str, str],
    sizes: Mapping[str, int],
    *,
    quantity: str = "loss",
    benchmark: str | None = None,
    tokens: float | None = None,
    **options: Any,
) -> StoppingRule:
    """Return the rule for a set of tasks: on the reference that ``run_densities`` reads them with.

    Parameters
    ----------
    reference : str
        A family, or the path of a JSON fit.
    benchmarks : mapping of str
        Benchmark id of each task; tasks whose benchmark the reference does not cover are left out.
    sizes : mapping of int
        Items in the full set of each task.
    quantity : {"loss", "score"}
        What is inverted.
    benchmark : str, optional
        Only this one; needed where a JSON fit states none.
    tokens : float, optional
        D0 of a two-step reference.
    **options
        Of :class:`StoppingRule`; the guard is that of the densities of a run unless given.

    Raises
    ------
    InputError
        When the reference covers none of the tasks, or has no fit on the mean over them.

    Examples
    --------
    >>> rule_for("olmo-ladder", {"mine": "piqa", "other": "sciq"}, {"mine": 1838, "other": 1000}).sizes
    {'mine': 1838}
    """
    known = reference_benchmarks(reference, benchmark)
    used = {task: name for task, name in benchmarks.items() if name in known}
    if not used:
        names = ", ".join(sorted({name or task for task, name in benchmarks.items()}))
        raise InputError(f"reference {reference} does not cover {names}; it covers {', '.join(known)}")
    members = tuple(sorted(used.values()))
    if len(members) == 1:
        ref = load_reference(reference, members[0], tokens=tokens)
    else:
        ref = ladder_reference(reference, members, tokens=tokens)
    return StoppingRule(
        loss_reference(ref) if quantity == "loss" else ref,
        {task: sizes[task] for task in used},
        **{"guard": RUN_GUARD, **options},
    )

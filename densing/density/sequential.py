"""When to stop drawing items: an interval of ln density that stays valid however often it is looked at.

Why the usual interval will not do: stopping as soon as ``1.96 * se`` is small enough picks moments at which the spread
is underestimated, and stopping at a favourable moment picks the mean as well. A confidence sequence covers at all looks
at once, so any reason to stop is a good one.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from densing.density.invert import DEFAULT_GUARD
from densing.density.sampling import Drawn, time_uniform_margin
from densing.errors import InputError
from densing.references import Reference

POPULATION, SET = "population", "set"
MINIMUM = 100
MINIMUM_PER_TASK = 20
MORE, NARROW, BOUND, UNREACHABLE, EXHAUSTED = "more", "narrow", "bound", "unreachable", "exhausted"
# The estimate of what the full set would give has noise: a target missed by less than this factor is tried.
TOLERATED_MISS = 1.1


@dataclass(frozen=True)
class Decision:
    """What the rule says after a look.

    Parameters
    ----------
    stop : bool
        Whether to stop.
    reason : {"more", "narrow", "bound", "unreachable", "exhausted"}
        ``bound``: the whole interval lies beyond the ruler's guard, so that the density is one-sided and more items
        would not change it.
    items : int
        Items drawn, over all tasks.
    mean, mean_lo, mean_hi : float
        Mean over tasks, in the ruler's unit, with its confidence sequence.
    log_size, lo, hi : float
        The same through the inverse of the ruler: ln effective parameters.
    half_width : float
        (hi - lo) / 2; also that of ln density, since a model's size is known.
    full_half_width : float
        Half-width that this sequence is expected to have when every item has been drawn.
    needed : float
        Items expected in all until the target is met, if the sets had that many.
    message : str
        The decision in words.
    """

    stop: bool
    reason: str
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
    message: str


@dataclass(frozen=True)
class StoppingRule:
    """Stop when the interval of ln density that comes from the items is narrow enough.

    Items are drawn in random order without replacement, by a plan that does not look at the losses (equally from each
    task until it has no more); the rule may be asked at any time. The interval of the mean goes through the inverse of
    the ruler's curve, end by end, without linearisation. The curve's own uncertainty is not in it: no number of items
    reduces that.

    Parameters
    ----------
    reference : Reference
        The ruler on the mean over the tasks: of losses (:func:`densing.references.loss_ruler`) or of scores.
    sizes : mapping of int
        Items in the full set of each task.
    target : float
        Half-width of ln density at which to stop; 0.1 is about ten per cent.
    level : float
        Level of the confidence sequence.
    covers : {"population", "set"}
        What the interval is for. ``population``: the mean over all items that the benchmark could have had. It is
        what the interval of a full evaluation covers, so that intervals of both kinds compare, and it does not shrink
        to nothing at the last item. ``set``: what the full set would have said; right for targets compared with each
        other, or with a family measured on the same items, because their common draw of items cancels. Its variance
        has the factor 1/n - 1/N in place of 1/n, and any target can be reached.
    minimum : int
        Items before the first decision, at least 20 of each task: a spread estimated from fewer misleads.
    guard : float
        An interval wholly outside ``[N_min / guard, guard * N_max]`` of the ruler is a bound.

    Raises
    ------
    InputError
        For a target that is not positive, an unknown ``covers``, or tasks that are not those of the ruler.

    Examples
    --------
    >>> from densing.references import load_reference, loss_ruler
    >>> rule = StoppingRule(loss_ruler(load_reference("olmo-ladder", "hellaswag")), {"hellaswag": 10042}, target=0.5)
    >>> losses = np.random.default_rng(0).gamma(16, 0.05, size=800)
    >>> rule.update({"hellaswag": losses[:200]}).reason
    'more'
    >>> rule.update({"hellaswag": losses}).reason
    'narrow'
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
                f"{len(self.sizes)} tasks ({', '.join(self.sizes)}) against a ruler on the mean over "
                f"{', '.join(self.reference.benchmarks)}; fit the ruler on the tasks that are measured"
            )

    @property
    def first_look(self) -> int:
        """Items of each task before the first decision."""
        return max(MINIMUM_PER_TASK, math.ceil(self.minimum / len(self.sizes)))

    def update(self, losses_by_task: Mapping[str, ArrayLike]) -> Decision:
        """Return the decision after everything drawn so far (not only what is new).

        Parameters
        ----------
        losses_by_task : mapping of array_like
            Loss (or score) of each drawn item, by task; at least one of each.
        """
        score = self.reference.fit.law.output == "score"
        values = {task: np.asarray(losses_by_task[task], dtype=float) for task in self.sizes}
        drawn = [Drawn.of(values[task], size, score=score) for task, size in self.sizes.items()]
        mean = sum(task.mean for task in drawn) / len(drawn)
        now = self._interval(mean, self._variance(drawn))
        full = self._interval(mean, self._variance([task.at(task.size) for task in drawn]))
        reason = self._reason(drawn, now, full.half_width)
        items, needed = sum(task.count for task in drawn), self._needed(drawn, mean)
        message = self._message(reason, items, now.half_width, full.half_width, needed)
        return Decision(
            reason != MORE, reason, items, *now.mean, *now.log_size, now.half_width, full.half_width, needed, message
        )

    def describe(self) -> dict[str, Any]:
        """Return the rule as plain data, for the settings of an evaluation."""
        about = self.reference.describe()
        ruler = {name: about[name] for name in ("reference", "benchmarks", "law", "given", "data_hash")}
        rule = {name: getattr(self, name) for name in ("target", "level", "covers", "minimum", "guard")}
        return {**rule, "tasks": dict(self.sizes), "ruler": ruler}

    def _variance(self, drawn: list[Drawn]) -> float:
        return sum(task.variance(self.covers == POPULATION) for task in drawn) / len(drawn) ** 2

    def _interval(self, mean: float, variance: float) -> _Interval:
        margin = time_uniform_margin(variance, tuned=self._tuned, level=self.level)
        ends = (mean, mean - margin, mean + margin)
        fit = self.reference.fit
        with np.errstate(divide="ignore"):
            size = np.log(np.asarray(fit.law.invert(fit.theta, ends, **self.reference.given)[0], dtype=float))
        return _Interval(ends, (float(size[0]), float(size[1:].min()), float(size[1:].max())))

    @cached_property
    def _tuned(self) -> float:
        """Variance at the stop where the ruler is steepest: going on beyond where it is tuned costs little."""
        law, (low, high) = self.reference.fit.law, self.reference.fit.domain["params"]
        log_size = np.linspace(math.log(low), math.log(high), 50)
        given = {name: np.full(50, value) for name, value in self.reference.given.items()}
        curve = law.predict(self.reference.fit.theta, {"params": np.exp(log_size), **given})
        steepest = float(np.abs(np.gradient(curve, log_size)).max())
        return (self.target * steepest / time_uniform_margin(1.0, tuned=1.0, level=self.level)) ** 2

    def _reason(self, drawn: list[Drawn], now: _Interval, full_half_width: float) -> str:
        if any(task.count < min(self.first_look, task.size) for task in drawn):
            return MORE
        low, high = self.reference.fit.domain["params"]
        if now.log_size[2] < math.log(low / self.guard) or now.log_size[1] > math.log(high * self.guard):
            return BOUND
        if now.half_width <= self.target:
            return NARROW
        if all(task.count == task.size for task in drawn):
            return EXHAUSTED
        return UNREACHABLE if full_half_width > self.target * TOLERATED_MISS else MORE

    def _needed(self, drawn: list[Drawn], mean: float) -> float:
        """Items in all until the target; beyond the sets' ends, as if they went on."""
        goal = self._variance(drawn)
        for _ in range(8):  # The width is nearly proportional to the standard error: this settles in a few steps.
            half_width = self._interval(mean, goal).half_width
            goal *= (self.target / half_width) ** 2 if 0 < half_width < math.inf else 1 / 16
        rounds = range(1, max(task.size for task in drawn) + 1)
        place = bisect_left(rounds, True, key=lambda count: self._variance([task.at(count) for task in drawn]) <= goal)
        if place < len(rounds):
            return float(sum(task.at(rounds[place]).count for task in drawn))
        return sum(task.spread for task in drawn) / len(drawn) / goal

    def _message(self, reason: str, items: int, half_width: float, full: float, needed: float) -> str:
        reached = f"ln density ± {half_width:.3g} (asked: {self.target:g}) after {items} items"
        if reason == MORE:
            return f"{reached}; about {_rounded(needed)} items expected in all"
        if reason == BOUND:
            return f"{reached}: outside the ruler's range at every end of the interval; the density is a bound"
        if reason == EXHAUSTED:
            return f"{reached}: no items are left"
        if reason == UNREACHABLE:
            return (
                f"{reached}: the full set of {sum(self.sizes.values())} items would give ± {full:.2g}, ± "
                f"{self.target:g} needs about {_rounded(needed)}; ask for {full * TOLERATED_MISS:.2g} or more, "
                f"add tasks, or ask what the full set would have said (covers {SET!r})"
            )
        return reached


def _rounded(items: float) -> str:
    return f"{float(f'{items:.2g}'):.0f}"


@dataclass(frozen=True)
class _Interval:
    """Middle, low and high end: of the mean, and of ln effective parameters."""

    mean: tuple[float, float, float]
    log_size: tuple[float, float, float]

    @property
    def half_width(self) -> float:
        """Half the width in ln effective parameters; infinite where the ruler ends."""
        _, low, high = self.log_size
        return (high - low) / 2 if math.isfinite(low) and math.isfinite(high) else math.inf

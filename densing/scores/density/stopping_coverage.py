"""What ``--until-ci`` keeps of its promise, and what it costs: simulated models on the suite's own references.

Every world has the eight tasks of the suite ``olmo-ladder`` with their sizes, and a model whose mean loss (or score) on
each task is what that task's reference says at its effective size. Losses are lognormal; right answers follow a
two-parameter logistic model with a guessing floor. ``python -m densing.scores.density.stopping_coverage`` prints the
table.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.special import expit, ndtri

from densing.core import Array
from densing.scores.density.runs import RUN_GUARD
from densing.scores.density.stopping import POPULATION, SET, Decision, StoppingRule
from densing.scores.references import Reference, ladder_reference, load_reference, loss_reference

Items = dict[str, Array]

SIZES = {
    "arc_challenge": 1172,
    "arc_easy": 2376,
    "csqa": 1221,
    "hellaswag": 10042,
    "mmlu": 14042,
    "openbookqa": 500,
    "piqa": 1838,
    "socialiqa": 1954,
}
"""Documents of the suite's tasks."""
SPREAD = {
    "arc_challenge": 0.5,
    "arc_easy": 0.53,
    "csqa": 0.5,
    "hellaswag": 0.2,
    "mmlu": 0.6,
    "openbookqa": 0.5,
    "piqa": 0.3,
    "socialiqa": 0.4,
}
"""Standard deviation of ln loss over items: of SmolLM2-135M on 40 questions each for ARC easy, HellaSwag and PIQA,
assumed for the others."""
CHOICES = {
    "arc_challenge": 4,
    "arc_easy": 4,
    "csqa": 5,
    "hellaswag": 4,
    "mmlu": 4,
    "openbookqa": 4,
    "piqa": 2,
    "socialiqa": 3,
}
SUBJECTS = 57


@dataclass(frozen=True)
class World:
    """A model to evaluate, and what its items are like.

    Parameters
    ----------
    name : str
    n_eff : float
        Effective parameters that its losses and scores have on every task's reference.
    quantity : {"loss", "score"}
        What the rule reads.
    target : float
        Half-width of ln density asked for.
    covers : {"population", "set"}
        What the interval is for.
    shrink : float
        Every set is so many times smaller than the suite's.
    tails : float
        Factor on the standard deviations of ln loss.
    subjects : float
        MMLU's items come in 57 subjects of unequal size, whose ln losses (or difficulties) differ with this standard
        deviation.
    drawn_subjects : bool
        The subjects are a draw from all there could be, too; the rule's interval does not count that.
    """

    name: str
    n_eff: float = 1.35e8
    quantity: str = "loss"
    target: float = 0.2
    covers: str = POPULATION
    shrink: float = 1.0
    tails: float = 1.0
    subjects: float = 0.0
    drawn_subjects: bool = False

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Items in the full set of each task."""
        return {task: math.ceil(size / self.shrink) for task, size in SIZES.items()}

    @cached_property
    def reference(self) -> Reference:
        """The reference on the mean over the tasks."""
        return _reference(tuple(SIZES), self.quantity)

    @cached_property
    def means(self) -> dict[str, float]:
        """Mean loss or score of the population of each task."""
        means = {}
        for task in SIZES:
            reference = _reference((task,), self.quantity)
            x = {"params": self.n_eff, **reference.given}
            arrays = {name: np.array([value]) for name, value in x.items()}
            means[task] = float(reference.fit.law.predict(reference.fit.theta, arrays)[0])
        return means

    @cached_property
    def variances(self) -> dict[str, float]:
        """Variance of the items of each task."""
        if self.quantity == "score":
            return {task: mean * (1 - mean) for task, mean in self.means.items()}
        squares = {task: math.exp(self._spread(task) ** 2) for task in self.means}
        if self.subjects:
            share, effects = _subjects(np.random.default_rng(0))
            fixed = share @ np.exp(2 * self.subjects * effects) / (share @ np.exp(self.subjects * effects)) ** 2
            squares["mmlu"] *= math.exp(self.subjects**2) if self.drawn_subjects else float(fixed)
        return {task: mean**2 * (squares[task] - 1) for task, mean in self.means.items()}

    def log_size(self, mean: Any) -> Any:
        """Return ln effective parameters of a mean over the tasks."""
        law, theta = self.reference.fit.law, self.reference.fit.theta
        with np.errstate(divide="ignore"):
            return np.log(np.asarray(law.invert(theta, mean, **self.reference.given)[0], dtype=float))

    def draw(self, rng: np.random.Generator) -> tuple[Items, float]:
        """Return the full sets in random order, and ln effective parameters that the interval should hold."""
        sets = {task: self._items(task, size, rng) for task, size in self.sizes.items()}
        means = self.means if self.covers != SET else {task: values.mean() for task, values in sets.items()}
        return sets, float(self.log_size(np.mean(list(means.values()))))

    def oracle(self, neyman: bool, level: float = 0.95) -> float:
        """Return the items of a rule that knows every variance and looks once; infinite where the sets are too small.

        Parameters
        ----------
        neyman : bool
            Items in proportion to the standard deviations, the fewest there can be; otherwise equally.
        level : float
            Of its interval.
        """
        size = np.array(list(self.sizes.values()))
        variance = np.array(list(self.variances.values()))
        weight = np.sqrt(variance) if neyman else np.ones(len(size))
        mean, z = np.mean(list(self.means.values())), -ndtri((1 - level) / 2)

        def half_width(scale: float) -> float:
            count = np.minimum(size, math.exp(scale) * weight)
            ends = math.sqrt((variance * (1 / count - (1 / size if self.covers == SET else 0.0))).sum()) / len(size)
            low, high = self.log_size([mean - z * ends, mean + z * ends])
            return abs(float(high - low)) / 2 if np.isfinite([low, high]).all() else 1e9

        top = math.log((size / weight).max())
        if half_width(top) > self.target:
            return math.inf
        scale = brentq(lambda scale: half_width(scale) - self.target, -5.0, top)
        return float(np.minimum(size, math.exp(scale) * weight).sum())

    def _spread(self, task: str) -> float:
        return self.tails * SPREAD[task]

    def _items(self, task: str, size: int, rng: np.random.Generator) -> Array:
        shift = np.zeros(size)
        if self.subjects and task == "mmlu":
            share, effects = _subjects(rng if self.drawn_subjects else np.random.default_rng(0))
            shift = self.subjects * effects[rng.choice(SUBJECTS, size, p=share)]
            if self.quantity == "loss":
                expected = math.exp(self.subjects**2 / 2)
                shift -= math.log(expected if self.drawn_subjects else share @ np.exp(self.subjects * effects))
        mean = self.means[task]
        if self.quantity == "loss":
            spread = self._spread(task)
            return mean * np.exp(shift + rng.normal(-(spread**2) / 2, spread, size))
        grouped = self.subjects if task == "mmlu" else 0.0
        floor, ability = _ability(mean, CHOICES[task], grouped, self.drawn_subjects)
        slope, difficulty = rng.lognormal(0.0, 0.4, size), rng.normal(0.0, 1.2, size) + shift
        return (rng.random(size) < floor + (1 - floor) * expit(slope * (ability - difficulty))).astype(float)


def _subjects(rng: np.random.Generator) -> tuple[Array, Array]:
    """Share of each subject in the items, and how much harder than the mean it is."""
    return np.random.default_rng(0).dirichlet(np.full(SUBJECTS, 2.0)), rng.normal(size=SUBJECTS)


@lru_cache
def _reference(tasks: tuple[str, ...], quantity: str) -> Reference:
    """Return the suite's reference on a task, or on the mean over several."""
    single = len(tasks) == 1
    reference = load_reference("olmo-ladder", tasks[0]) if single else ladder_reference("olmo-ladder", tasks)
    return loss_reference(reference) if quantity == "loss" else reference


@lru_cache
def _ability(mean: float, choices: int, subjects: float, sampled: bool) -> tuple[float, float]:
    """Floor and ability of a model whose expected score over items is this mean."""
    floor = min(1 / choices, mean - 0.02)
    middles = (np.arange(50) + 0.5) / 50
    slope, difficulty = np.exp(0.4 * ndtri(middles))[:, None, None], 1.2 * ndtri(middles)[:, None]
    share, effects = _subjects(np.random.default_rng(0)) if subjects and not sampled else (np.ones(1), np.zeros(1))
    if sampled:
        difficulty = math.hypot(1.2, subjects) * ndtri(middles)[:, None]
    difficulty = difficulty + subjects * effects

    def excess(ability: float) -> float:
        right = floor + (1 - floor) * expit(slope * (ability - difficulty))
        return float(right.mean(axis=(0, 1)) @ share) - mean

    return floor, float(brentq(excess, -12.0, 12.0, xtol=1e-4))


WORLDS = (
    # The README's example: --until-ci 0.1 on the suite.
    World("example, 135M", target=0.1),
    World("example, 300M", n_eff=3e8, target=0.1),
    World("example, 1B", n_eff=1e9, target=0.1),
    World("example, 3B", n_eff=3e9, target=0.1),
    World("losses"),
    World("losses", target=0.3),
    World("losses, 1B", n_eff=1e9, target=0.3),
    World("losses, 1B, the sets", n_eff=1e9, target=0.1, covers=SET),
    World("2PL scores", quantity="score"),
    World("2PL scores, 1B, the sets", n_eff=1e9, quantity="score", covers=SET),
    World("at the floor", n_eff=8e7, quantity="score"),
    World("heavy tails", tails=1.7, target=0.3),
    World("subjects", subjects=0.4),
    World("subjects drawn, the sets", subjects=0.4, drawn_subjects=True, covers=SET),
    World("tiny tasks", shrink=20, target=0.3),
    World("tiny tasks, the sets", shrink=20, target=0.3, covers=SET),
    World("tiny tasks, scores, the sets", quantity="score", shrink=20, target=0.5, covers=SET),
)  # fmt: skip


def follow(rule: StoppingRule, sets: Mapping[str, Array]) -> tuple[Decision, ...]:
    """Return the rule's decision at each look, on items in the order given."""
    decisions: list[Decision] = []
    counts = rule.first
    while not decisions or not decisions[-1].stop:
        sampled = {task: values[: counts[task]] for task, values in sets.items()}
        decisions.append(rule.update(sampled, decisions[-1] if decisions else None))
        counts = dict(decisions[-1].ahead)
    return tuple(decisions)


@dataclass
class Outcome:
    """Counts over the simulations of one world."""

    runs: int = 0
    held: int = 0
    held_always: int = 0
    items: list[int] = field(default_factory=list)
    looks: list[int] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)


def simulate(world: World, runs: int, seed: int = 0) -> Outcome:
    """Follow the rule on so many simulated evaluations."""
    outcome = Outcome(runs)
    rule = StoppingRule(world.reference, world.sizes, target=world.target, covers=world.covers, guard=RUN_GUARD)
    for rng in np.random.default_rng(seed).spawn(runs):
        sets, truth = world.draw(rng)
        decisions = follow(rule, sets)
        end = decisions[-1]
        outcome.held += end.lo <= truth <= end.hi
        outcome.held_always += all(one.lo <= truth <= one.hi for one in decisions)
        outcome.items.append(end.items)
        outcome.looks.append(len(decisions))
        outcome.widths.append(end.half_width)
        outcome.shares.append(end.items / sum(world.sizes.values()))
        outcome.reasons[end.reason] += 1
    return outcome


def table(worlds: Iterable[World] = WORLDS, runs: int = 1000, seed: int = 0) -> pd.DataFrame:
    """Simulate worlds.

    Parameters
    ----------
    worlds : iterable of World
    runs : int
        Simulated evaluations of each.
    seed : int

    Returns
    -------
    pandas.DataFrame
        world, asked (half-width), coverage at the stop and at all looks together, looks (mean), items (mean), oracle
        (items of the rule that knows all variances), ratio (items over those), ratio_equal (over those of a rule that
        draws equally), half_width (median reached), least_share (of the items, in any run), ended.

    Examples
    --------
    >>> table([World("one", target=0.5)], runs=2)["ended"].tolist()
    ['narrow 2']
    """
    rows = []
    for world in worlds:
        outcome, best, equal = simulate(world, runs, seed), world.oracle(True), world.oracle(False)
        mean = float(np.mean(outcome.items))
        rows.append(
            {
                "world": world.name,
                "asked": world.target,
                "coverage": outcome.held / runs,
                "all_looks": outcome.held_always / runs,
                "looks": float(np.mean(outcome.looks)),
                "items": mean,
                "oracle": best,
                "ratio": mean / best if best < math.inf else math.nan,
                "ratio_equal": mean / equal if equal < math.inf else math.nan,
                "half_width": float(np.median(outcome.widths)),
                "least_share": min(outcome.shares),
                "ended": ", ".join(f"{reason} {count}" for reason, count in outcome.reasons.most_common()),
            }
        )
    return pd.DataFrame(rows)


def main() -> None:
    """Parse, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="worlds whose name contains this")
    arguments = parser.parse_args()
    worlds = [world for world in WORLDS if arguments.only in world.name]
    with pd.option_context("display.width", 250, "display.max_columns", None, "display.max_colwidth", 60):
        frame = table(worlds, arguments.runs, arguments.seed)
        sys.stdout.write(frame.to_string(index=False, float_format=lambda value: f"{value:.3f}") + "\n")


if __name__ == "__main__":
    main()

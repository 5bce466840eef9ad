"""How many common items two models are to answer, until the ratio of their densities is known well enough."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from densing.core import MASK, Array, InputError, formatting
from densing.scores.density.comparison import PairedMeans, pair_ratios, paired_means
from densing.scores.density.runs import reference_benchmarks
from densing.scores.density.stopping import (
    BOUND,
    CERTAIN,
    EXHAUSTED,
    GROWTH,
    MORE,
    NARROW,
    SETTLED,
    TOLERATED_MISS,
    StoppingRule,
    items_needed,
    rule_for,
)
from densing.scores.evals import Plan, Progress, RunStore, Stopped, is_run, plan_of, run_pair_until
from densing.scores.laws import TwoStep
from densing.scores.references import load_reference

VERSION = "pair 1"
"""Part of what a stored result's key says of the rule: raise it when other items would be asked."""


@dataclass(frozen=True)
class PairLook:
    """What is known of a ratio after some common items.

    Parameters
    ----------
    stop : bool
    reason : {"more", "narrow", "settled", "bound", "exhausted"}
        ``settled``: all other items would narrow the interval of the ratio by less than a tenth. ``bound``: one of the
        two lies beyond what the reference can read, so that more items would not give a ratio.
    met : bool
        Whether the interval is as narrow as asked.
    items : int
        Answered by both.
    needed : float
        Planned in all.
    ahead : mapping of int
        Items of each task to have at the next look.
    half_width, settled : float
        Of ln of the ratio: now, and after every item.
    message : str
    """

    stop: bool
    reason: str
    met: bool
    items: int
    needed: float
    ahead: Mapping[str, int]
    half_width: float
    settled: float
    message: str


@dataclass(frozen=True)
class PairRule:
    """Stop when the interval of ln of a ratio of densities is narrow enough, or when items no longer matter.

    Items are drawn in random order, as many of each task. After each look the rule plans from the paired variance how
    many the target takes. The interval is that of :func:`densing.compare`: the error of the common items and of the
    reference, through the same draws of its law.

    Parameters
    ----------
    reading : StoppingRule
        The target, the reference, and the items of each task.

    Examples
    --------
    >>> rule = PairRule(rule_for("olmo-ladder", {"piqa": "piqa"}, {"piqa": 1838}, target=0.2))
    >>> item = np.random.default_rng(0).gamma(4.0, 0.3, (100, 1))
    >>> look = rule.update({"piqa": item * [1.0, 0.97] * np.random.default_rng(1).lognormal(0, 0.1, (100, 2))})
    >>> look.items, look.reason, look.ahead["piqa"] > 100
    (100, 'more', True)
    """

    reading: StoppingRule

    @property
    def sizes(self) -> Mapping[str, int]:
        """Items of each task."""
        return self.reading.sizes

    @property
    def first(self) -> dict[str, int]:
        """Items of each task at the first look."""
        return self.reading.first

    def orders(self, look: PairLook | None = None) -> dict[str, list[int]]:
        """Return documents whose order is not random: none."""
        return {}

    def update(self, losses_by_task: Mapping[str, Sequence[Any] | Array], earlier: PairLook | None = None) -> PairLook:
        """Return the decision after all items so far.

        Parameters
        ----------
        losses_by_task : mapping of array_like, shape (n, 2)
            Two values of each item (losses or scores), one of each model.
        earlier : PairLook, optional
            Not needed: the interval of a look does not depend on those before.
        """
        reading, sizes = self.reading, self.sizes
        score = reading.reference.fit.law.output == "score"
        values = {task: np.asarray(losses_by_task[task], dtype=float) for task in sizes}
        means = [paired_means(task, *values[task].T, score=score) for task in sizes]
        every = [
            dataclasses.replace(mean, covariance=mean.covariance * mean.count / size, freedom=float(size - 1))
            for mean, size in zip(means, sizes.values(), strict=True)
        ]
        now, settled = self.half_width(means), self.half_width(every)
        items, everything = sum(map(len, values.values())), sum(sizes.values())
        error = np.sqrt(np.sum([np.diag(mean.covariance) for mean in means], axis=0)) / len(means)
        both = np.mean([mean.mean for mean in means], axis=0)
        bound = any(reading.through(float(m), CERTAIN * float(e))[1] for m, e in zip(both, error, strict=True))
        goal, planned, reason = max(reading.target, TOLERATED_MISS * settled), everything, MORE
        if bound:
            reason = BOUND
        elif now <= goal < math.inf:
            reason = NARROW if now <= reading.target else SETTLED
        elif items == everything:
            reason = EXHAUSTED
        elif math.isfinite(now):
            planned = min(items_needed(items, everything, now, settled, goal), everything)
        ahead = shared_out(min(max(planned, items + len(sizes)), GROWTH * items), sizes)
        message = f"ln of the ratio of densities ± {now:.2g} after {formatting.plural(items, 'common item')} "
        message += f"(asked: {reading.target:g}, {'' if reason == NARROW else 'not '}met)"
        if reason == SETTLED:
            message += f"; all {everything} would leave ± {settled:.2g}, so more would hardly help"
        if reason == BOUND:
            message += "; one of the two lies outside the reference's range, so that the ratio is a bound"
        return PairLook(
            reason != MORE, reason, reason == NARROW, items, float(planned), ahead, now, settled, message
        )  # fmt: skip

    def half_width(self, means: Sequence[PairedMeans]) -> float:
        """Return half the width of the interval of ln of the ratio."""
        reading = self.reading
        names = {"quantity": reading.reference.fit.law.output, "baseline": "", "model": ""}
        row = pair_ratios(reading.reference, means, (1.0, 1.0), 0.0, names, reading.guard, reading.level, 0)
        low, high = row["density_ratio_lo"], row["density_ratio_hi"]
        return math.log(high / low) / 2 if 0 < low <= high < math.inf else math.inf

    def describe(self) -> dict[str, Any]:
        """Return the rule as plain data, for the settings of an evaluation."""
        return {**self.reading.describe(), "rule": VERSION}


def shared_out(count: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return as many items of each task; where a small one has no more, the others give the rest.

    Examples
    --------
    >>> shared_out(100, {"a": 80, "b": 20, "c": 80})
    {'a': 40, 'b': 20, 'c': 40}
    """
    left, shares = count, dict(sizes)
    for place, task in enumerate(sorted(sizes, key=lambda task: sizes[task])):
        shares[task] = min(sizes[task], math.ceil(left / (len(sizes) - place)))
        left -= shares[task]
    return shares


def compare_until(
    sources: Sequence[Path | str],
    target: float,
    *,
    reference: str = "olmo-ladder",
    benchmark: str | None = None,
    tokens: float | None = None,
    level: float = 0.95,
    progress: Callable[[Progress], object] = lambda progress: None,
) -> list[Stopped]:
    """Let two models of runs answer further common items, until the ratio of their densities is known well enough.

    Answers go into the runs' stores, from which :func:`densing.compare` reads them: killed and started again, no item
    is lost or asked twice, and answers that the stores have already are not asked for. Models and tasks are those of
    the plans that the stores recorded.

    Parameters
    ----------
    sources : sequence of path
        One or two runs of ``densing eval``, with two models in all.
    target : float
        Half-width of ln of the ratio; 0.1 is about ten per cent.
    reference, benchmark, tokens, level
        As for :func:`densing.compare`.
    progress : callable

    Raises
    ------
    InputError
        When the sources are no runs, or hold not two models with a common task that the reference reads.
    """
    found = [
        (RunStore(Path(source)), name)
        for source in sources
        for name in (RunStore(Path(source)).overview().models if is_run(Path(source)) else [None])
    ]
    for source, (_, name) in zip(sources, found, strict=False):
        if name is None:
            raise InputError(f"{source}: no run of densing eval; --until-ci continues runs, which say how to go on")
    if len(found) != 2:
        names = formatting.listed([str(name) for _, name in found], 5) or "none"
        raise InputError(f"--until-ci is for two models; these runs hold {len(found)} ({names})")
    known = reference_benchmarks(reference, benchmark)
    plans = [recorded_plan(store, str(name)) for store, name in found]
    unread = set[str]()
    for store, _ in found:
        table = store.measurements()
        benchmarks = table["benchmark"].where(table["benchmark"].fillna("").ne(""), table["task"])
        unread |= set(table["task"][~benchmarks.isin(known)])
    first, second = ({task.name for task in plan.tasks} for plan in plans)
    common = (first & second) - unread
    if not common:
        raise InputError(
            f"{found[0][1]} and {found[1][1]}: no common task that {reference} reads; evaluate both on the same tasks"
        )
    pair = [
        (dataclasses.replace(plan, tasks=tuple(task for task in plan.tasks if task.name in common)), store.folder)
        for plan, (store, _) in zip(plans, found, strict=True)
    ]
    quantity = "loss" if isinstance(load_reference(reference, known[0]).fit.law, TwoStep) else "score"

    def make(benchmarks: Mapping[str, str], sizes: Mapping[str, int]) -> PairRule:
        return PairRule(
            rule_for(
                reference, benchmarks, sizes, quantity=quantity, benchmark=benchmark, tokens=tokens, target=target,
                level=level,
            )
        )  # fmt: skip

    return run_pair_until(pair, make, quantity=quantity, progress=progress)


def recorded_plan(store: RunStore, model: str) -> Plan:
    """Return the plan by which a store's model was evaluated last, for all items.

    Raises
    ------
    InputError
        When none is recorded, or its arguments had a secret.
    """
    for entry in reversed(store.run.get("plans", [])):
        whole = {name: value for name, value in entry["plan"].items() if name not in ("until", "limit", "samples")}
        for part in ("models", "tasks"):
            whole[part] = [{k: v for k, v in each.items() if k not in ("limit", "samples")} for each in whole[part]]
        whole["models"] = [each for each in whole["models"] if each.get("name") == model]
        if not whole["models"]:
            continue
        if MASK in str(whole):
            raise InputError(
                f"{store.folder}: {model} was loaded with a secret, which stores do not keep; evaluate more items with "
                "densing eval, then compare"
            )
        return plan_of(whole, str(store.folder))
    raise InputError(f"{store.folder}: no plan of {model} is recorded; evaluate it with densing eval --out there")

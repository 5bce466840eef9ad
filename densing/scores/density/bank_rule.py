"""Which items of a bank to ask a model next, and when to stop: on the whole interval of its density."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd
from scipy.special import ndtri

from densing.core import InputError
from densing.scores.density.banks import LEAST, SEVERAL, bank_benchmarks, bank_measurements, choose_items
from densing.scores.density.stopping import (
    BOUND,
    CERTAIN,
    EXHAUSTED,
    GROWTH,
    MINIMUM,
    MORE,
    NARROW,
    SETTLED,
    TOLERATED_MISS,
    StoppingRule,
    Total,
    items_needed,
    rule_for,
)
from densing.scores.items import MOST_ADAPTIVE, Chosen, ItemBank

BLOCK = 10
"""Adaptive items that are chosen together: as good as one by one (docs/results/items.md), and a batch for the model."""
FIRST = 30
"""Stratified items before the first look."""
VERSION = "bank 1"
"""Part of what a stored result's key says of the rule: raise it when other items would be asked."""


@dataclass(frozen=True)
class BankLook:
    """What is known after some items of a bank, and which to ask next.

    Parameters
    ----------
    stop : bool
    reason : {"more", "narrow", "settled", "bound", "exhausted"}
        ``settled``: all other items of the bank would narrow the interval of ln density by less than a tenth.
        ``bound``: the whole interval lies beyond the reference's guard, so that more items would not change it.
        ``exhausted``: no more are to be asked, or tell anything.
    met : bool
        Whether the interval is as narrow as asked, where one was.
    items : int
        Asked.
    needed : float
        Planned in all.
    sequence : tuple of str
        Items asked, in their order, and those to ask until the next look.
    ahead : mapping of int
        The same as items of each task.
    score, lo, hi : float
        On the whole bank, with its interval.
    total : Total, optional
        How far ln density is known, with what the reference and the scatter of models leave; where it is a target.
    settled : float
        Half-width of ln density, all three together, after every item of the bank.
    message : str
    """

    stop: bool
    reason: str
    met: bool
    items: int
    needed: float
    sequence: tuple[str, ...]
    ahead: Mapping[str, int]
    score: float
    lo: float
    hi: float
    total: Total | None
    settled: float
    message: str


@dataclass(frozen=True)
class BankRule:
    """Which items of a bank to ask a model, and when to stop.

    Stratified items come in planned looks. After thirty the rule knows how far items, reference and scatter of models
    leave ln density, plans how many items the target takes, and looks again. It stops when the whole interval, of all
    three, is narrow enough, or when all other items of the bank would narrow it by less than a tenth, or not at all.
    Adaptive items come ten at a time, chosen by the answers before.

    Parameters
    ----------
    bank : ItemBank
        Of documents of tasks (items ``task/document``).
    sizes : mapping of int
        Documents of each task.
    count : int
        Items at most.
    chosen : {"stratified", "adaptive"}
    reading : StoppingRule, optional
        The target, and the reference that density is read on.
    seed : int

    Raises
    ------
    InputError
        Documents that a task does not have; more items than there are, or than adaptive intervals hold for; adaptive
        items of several benchmarks with a target.

    Examples
    --------
    >>> from dataclasses import replace
    >>> bank = ItemBank.load("ikp")
    >>> bank = replace(bank, items=bank.items.assign(item=[f"{task}/{at}" for at, task in
    ...                                                                enumerate(bank.items["task"])]))
    >>> rule = BankRule(bank, dict.fromkeys(bank.items["task"], 1311), 20, "adaptive")
    >>> look = rule.update({task: [1.0] * count for task, count in rule.first.items()})
    >>> look.items, look.reason, sum(look.ahead.values())
    (10, 'more', 20)
    """

    bank: ItemBank
    sizes: Mapping[str, int]
    count: int = 100
    chosen: Chosen = "stratified"
    reading: StoppingRule | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check what the user can get wrong."""
        name = self.bank.name
        for item, task in zip(self.bank.items["item"].astype(str), self.bank.items["task"].astype(str), strict=True):
            if int(item.rpartition("/")[2]) >= self.sizes.get(task, 0):
                raise InputError(
                    f"bank {name}, item {item}: task {task} has {self.sizes.get(task, 0)} documents; the bank is of "
                    "another version of the task"
                )
        if self.chosen != "adaptive":
            choose_items(self.bank, self.count)
        elif not self.bank.corrections:
            raise InputError(f"bank {name} has no intervals for adaptive items: it was calibrated on too few models")
        elif self.count > MOST_ADAPTIVE:
            raise InputError(
                f"{self.count} adaptive items: their intervals are calibrated up to {MOST_ADAPTIVE}; for more, "
                "stratified items are as good"
            )
        elif self.reading is not None and len(self._of_benchmark) > 1:
            raise InputError(f"adaptive items estimate the score on bank {name} alone, {SEVERAL}")

    @classmethod
    def of(
        cls,
        bank: ItemBank,
        sizes: Mapping[str, int],
        *,
        count: int = 100,
        chosen: Chosen = "stratified",
        target: float | None = None,
        reference: str = "olmo-ladder",
    ) -> BankRule:
        """Return the rule for a half-width of ln density on a reference; without one, for so many items."""
        reading = None
        if target is not None:
            counts = bank_benchmarks(bank).value_counts(sort=False)
            names = {str(name): str(name) for name in counts.index}
            documents = {str(name): int(size) for name, size in counts.items()}
            reading = rule_for(reference, names, documents, quantity="score", target=target)
        return cls(bank, sizes, count, chosen, reading)

    @cached_property
    def _of_benchmark(self) -> pd.Series:
        """Items of each benchmark."""
        return bank_benchmarks(self.bank).value_counts(sort=False)

    @cached_property
    def _every(self) -> tuple[str, ...]:
        """Stratified items in their order, as many as may be asked."""
        return tuple(choose_items(self.bank, self.count, seed=self.seed))

    def orders(self, look: BankLook | None = None) -> dict[str, list[int]]:
        """Return the documents of each task, in their order, that are asked until the look after this one."""
        return self._documents(self._sequence(look))

    def _sequence(self, look: BankLook | None) -> Sequence[str]:
        if look is not None:
            return look.sequence
        if self.chosen == "adaptive":
            return self.bank.next({}, min(BLOCK, self.count))
        return self._every[: self.count if self.reading is None else max(FIRST, LEAST * len(self._of_benchmark))]

    def _documents(self, items: Sequence[str]) -> dict[str, list[int]]:
        documents: dict[str, list[int]] = {task: [] for task in self.sizes}
        for item in items:
            task, _, document = item.rpartition("/")
            documents[task].append(int(document))
        return documents

    @property
    def first(self) -> dict[str, int]:
        """Items of each task at the first look."""
        return {task: len(documents) for task, documents in self.orders().items()}

    def update(self, losses_by_task: Mapping[str, Sequence[float]], earlier: BankLook | None = None) -> BankLook:
        """Return the decision after everything asked so far.

        Parameters
        ----------
        losses_by_task : mapping of sequence
            The answers to each task's documents, right (1) or wrong (0), in their order.
        earlier : BankLook, optional
            That of the look before.
        """
        sequence = tuple(self._sequence(earlier))
        values = {task: iter(answered) for task, answered in losses_by_task.items()}
        answers = {item: float(next(values[item.rpartition("/")[0]])) for item in sequence}
        asked, score = len(answers), self.bank.estimate(answers, chosen=self.chosen)
        total, settled, target = None, math.nan, math.nan
        reason, planned = EXHAUSTED if asked >= self.count else MORE, self.count
        if self.reading is not None:
            target = self.reading.target
            total, settled, bound = self.total(answers)
            goal = max(target, TOLERATED_MISS * settled)
            if bound and asked >= min(MINIMUM, self.count):
                reason = BOUND
            elif total.recipe <= goal < math.inf:
                reason = NARROW if total.recipe <= target else SETTLED
            elif math.isfinite(total.recipe):
                planned = min(items_needed(asked, len(self.bank), total.recipe, settled, goal), self.count)
        if reason == MORE and self.chosen == "adaptive":
            sequence += tuple(self.bank.next(answers, min(BLOCK, self.count - asked)))
            reason = MORE if len(sequence) > asked else EXHAUSTED
        elif reason == MORE:
            sequence = self._every[: min(max(planned, asked + BLOCK), GROWTH * asked, self.count)]
        message = f"{asked} of {len(self.bank)} items of bank {self.bank.name}"
        if total is not None:
            message += (
                f": ln density ± {total.recipe:.2g} in all (asked: {target:g}, {'' if reason == NARROW else 'not '}met)"
            )
            if reason == SETTLED:
                message += f"; all {len(self.bank)} would leave ± {settled:.2g}, so more would hardly help"
        return BankLook(
            reason != MORE, reason, reason == NARROW or total is None, asked, float(planned), sequence,
            {task: len(documents) for task, documents in self._documents(sequence).items()},
            score.score, score.lo, score.hi, total, settled, message,
        )  # fmt: skip

    def total(self, answers: Mapping[str, float]) -> tuple[Total, float, bool]:
        """Return how far ln density is known after some answers, its half-width in all after every item, and whether
        the density is a bound.
        """
        assert self.reading is not None
        rows = bank_measurements(self.bank, answers, chosen=self.chosen).measurements
        rows = rows[rows["benchmark"].isin(self.reading.sizes)]
        mean, normal = float(rows["value"].mean()), float(-ndtri((1 - self.reading.level) / 2))
        left = rows["value"] * (1 - rows["value"]) / rows["benchmark"].map(self._of_benchmark)
        error = math.sqrt((rows["stderr"] ** 2).sum()) / len(rows)
        now, _ = self.reading.through(mean, normal * error)
        end, _ = self.reading.through(mean, normal * math.sqrt(left.sum()) / len(rows))
        _, bound = self.reading.through(mean, CERTAIN * error)
        total = self.reading.total_at(mean, now)
        others = total.recipe**2 - now**2 if math.isfinite(now) else self.reading.total_at(mean, 0.0).recipe ** 2
        return total, math.sqrt(others + end**2), bound

    def describe(self) -> dict[str, Any]:
        """Return the rule as plain data, for the settings of an evaluation."""
        columns = self.bank.items[["item", "slope", "intercept"]]
        content = hashlib.sha256(columns.to_csv(index=False).encode()).hexdigest()[:16]
        own = {"rule": VERSION, "bank": content, "count": self.count, "chosen": self.chosen, "seed": self.seed}
        return own if self.reading is None else {**own, "reading": self.reading.describe()}

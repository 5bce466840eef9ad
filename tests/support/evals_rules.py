"""Rules that stop where a test wants them to."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Seen:
    stop: bool
    reason: str
    items: int
    needed: float
    ahead: dict[str, int]
    message: str = "enough"

    @property
    def met(self):
        return self.reason == "narrow"


class StopAt:
    """A rule that draws tasks equally and stops at so many items."""

    def __init__(self, items, benchmarks, sizes, reason="narrow"):
        self.items, self.benchmarks, self.sizes, self.reason = items, benchmarks, sizes, reason
        self.looks = []

    @property
    def first(self):
        return {task: min(8, size) for task, size in self.sizes.items()}

    def orders(self, look=None):
        return {}

    def update(self, losses_by_task, earlier=None):
        count = sum(len(values) for values in losses_by_task.values())
        self.looks.append({task: len(values) for task, values in losses_by_task.items()})
        each = 1 + max(len(values) for values in losses_by_task.values()) * 5 // 4
        ahead = {task: min(each, size) for task, size in self.sizes.items()}
        return Seen(count >= self.items, self.reason if count >= self.items else "more", count, self.items, ahead)

    def describe(self):
        return {"stop": self.items, "tasks": dict(self.sizes)}


def stop_at(items, made=None, **options):
    def make(benchmarks, sizes):
        rule = StopAt(items, benchmarks, sizes, **options)
        if made is not None:
            made.append(rule)
        return rule

    return make

"""Rules that stop where a test wants them to."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Seen:
    stop: bool
    reason: str
    items: int
    needed: float
    message: str = "enough"


class StopAt:
    """A rule that stops at so many items."""

    first_look = 8

    def __init__(self, items, benchmarks, sizes, reason="narrow"):
        self.items, self.benchmarks, self.sizes, self.reason = items, benchmarks, sizes, reason
        self.looks = []

    def update(self, losses_by_task):
        count = sum(len(values) for values in losses_by_task.values())
        self.looks.append({task: len(values) for task, values in losses_by_task.items()})
        return Seen(count >= self.items, self.reason if count >= self.items else "more", count, self.items)

    def describe(self):
        return {"stop": self.items, "tasks": dict(self.sizes)}


def stop_at(items, made=None, **options):
    def make(benchmarks, sizes):
        rule = StopAt(items, benchmarks, sizes, **options)
        if made is not None:
            made.append(rule)
        return rule

    return make

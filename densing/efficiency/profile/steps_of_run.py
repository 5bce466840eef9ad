"""A run's metrics step by step, averaged over its ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from densing.efficiency.timeline import occurrences

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
"""Metrics per step, and where a step's partition holds them."""


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
        What ranks yielded, each with ``steps``: a list of ``{"number": n, "partition": {...}}`` with the partition's
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
            before = sums.get(key)
            sums[key] = cells if before is None else [a + b for a, b in zip(before, cells, strict=True)]
    whole = {key: cells for key, cells in sorted(sums.items()) if cells[0] == ranks}
    values = {
        metric: tuple(cells[index] / ranks for cells in whole.values()) for index, metric in enumerate(METRICS, start=1)
    }
    return RunSteps(tuple(number for number, _ in whole), values, ranks, len(sums) - len(whole), window)

"""Densities under conditions, for continuous integration: ``densing density --fail-if 'density < 0.8'``.

A density is known to an interval, and the interval decides: ``density < 0.8`` holds where all of it lies below 0.8,
does not where all of it lies at 0.8 or above, and cannot be decided between. What is undecided fails too, so that a
model passes only where its interval's lower end reaches the limit. A score at the floor or outside the reference's
sizes gives an interval with an open end, which is decided in the same way. Who wants to fail only what is surely below
writes ``density_hi < 0.8``: an end is a plain number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pandas as pd

from densing.core import Hit, InputError, Interval, Note, check_conditions, formatting, parse_condition
from densing.scores.density.runs import RunDensities
from densing.scores.density.sentences import COMBINED

WITH_INTERVAL = ("density", "n_eff")
SHOWN = 6
"""Metrics that an error names."""
ENDS = ("density_lo", "density_hi", "density_lo_recipe", "density_hi_recipe", "n_eff_lo", "n_eff_hi")


def check_densities(table: pd.DataFrame, conditions: Iterable[str]) -> dict[str, tuple[Hit, ...]]:
    """Return the conditions that fail each model of a table of densities.

    Parameters
    ----------
    table : pandas.DataFrame
        Of a :class:`DensityResult` or :class:`RunDensities`.
    conditions : iterable of str
        As :func:`densing.core.check_conditions` reads them. Their metrics are ``density`` and ``n_eff``, decided by
        their intervals, and the columns of the ends, such as ``density_hi``, which are plain numbers. With
        ``benchmark.`` or ``quantity.`` (loss, score) before it, or both, a metric is that of a single row
        (``piqa.score.density``); without, of the combined row where there are several benchmarks, and of the loss where
        both were measured.

    Returns
    -------
    dict of str to tuple of Hit
        Of every model, in the table's order; empty tuples pass.

    Raises
    ------
    InputError, UnknownNameError
        When a condition cannot be read, or names what no model has: ``density`` of several benchmarks that the
        reference does not combine, for one.

    Examples
    --------
    >>> import densing
    >>> mine = [{"model": "mine", "params": 3e9, "released": "2024-03-01", "benchmark": "mmlu", "score": 0.6}]
    >>> table = densing.table_densities(mine, densing.load_reference("qwen1.5", "mmlu")).table
    >>> [hit.verdict for hit in check_densities(table, ["density<1", "density<2.4", "density<100"])["mine"]]
    ['undecided', 'met']
    """
    # What one model was not measured on is undefined for it, and no misspelling.
    rows_of = {str(model): _rows_by_metric(rows) for model, rows in table.groupby("model", sort=False)}
    metrics = {metric for rows in rows_of.values() for metric in rows}
    parsed = [parse_condition(condition) for condition in conditions]
    for comparison in (each for condition in parsed for each in condition.comparisons):
        # Of rows that nothing combines each has its own.
        single = sorted(
            name
            for name in metrics
            if name.endswith(f".{comparison.metric}") and name.count(".") == 1 + comparison.metric.count(".")
        )
        if comparison.metric not in metrics and single:
            raise InputError(
                f"--fail-if: no {comparison.metric} of all benchmarks together: a ladder combines whatever was "
                "measured, another reference only all the benchmarks of its mean. Name one of them: "
                f"{', '.join(single[:SHOWN])}{', ...' if len(single) > SHOWN else ''}"
            )
    return {
        model: tuple(
            replace(hit, message=f"{model}: {hit.message}{''.join(_statuses(map(rows.get, hit.values)))}")
            for hit in check_conditions(parsed, {name: _figure(rows.get(name), name) for name in metrics})
        )
        for model, rows in rows_of.items()
    }


def notes_on(result: RunDensities, conditions: Iterable[str]) -> tuple[Note, ...]:
    """Return the notes on what conditions read: those on references that none of them reads are left out.

    A combined density stands on its own curve, and is no worse for a single benchmark whose curve does not fit.

    Parameters
    ----------
    result : RunDensities
    conditions : iterable of str
        As for :func:`check_densities`.
    """
    metrics = {part.metric for text in conditions for part in parse_condition(text).comparisons}
    rows_of = [_rows_by_metric(rows) for _, rows in result.table.groupby("model", sort=False)]
    read = {(row["benchmark"], row["quantity"]) for rows in rows_of for row in map(rows.get, metrics) if row}
    messages: dict[bool, set[str]] = {True: set(), False: set()}
    for part in result.results:
        [place] = set(zip(part.table["benchmark"], part.table["quantity"], strict=True))
        messages[place in read].update(note.message for note in part.notes)
    unread = messages[False] - messages[True]
    return tuple(note for note in result.notes if note.message not in unread)


def _rows_by_metric(rows: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Return the row that each metric's name stands for; of two quantities the loss comes first."""
    benchmarks = set(rows["benchmark"])
    whole = COMBINED if COMBINED in benchmarks else rows["benchmark"].iloc[0] if len(benchmarks) == 1 else None
    named: dict[str, dict[str, Any]] = {}
    for row in sorted(rows.to_dict("records"), key=lambda row: row.get("quantity", "")):
        quantities = ["", *([f"{row['quantity']}."] if "quantity" in row else [])]
        places = [f"{row['benchmark']}.", *([""] if row["benchmark"] == whole else [])]
        for place, quantity, metric in product(places, quantities, (*WITH_INTERVAL, *ENDS)):
            named.setdefault(place + quantity + metric, row)
    return named


def _figure(row: dict[str, Any] | None, name: str) -> float | Interval | None:
    metric = name.rpartition(".")[2]
    if row is None or formatting.is_missing(row[metric]):
        return None
    if metric in ENDS:
        return float(row[metric])
    return Interval(float(row[metric]), float(row[f"{metric}_lo"]), float(row[f"{metric}_hi"]))


def _statuses(rows: Iterable[dict[str, Any] | None]) -> Iterator[str]:
    """Yield what is to be said of rows that are not plain densities, each once."""
    told = [formatting.status(row["status"], row["bound"]) for row in rows if row is not None and row["status"] != "ok"]
    yield from (f"; {text}" for text in dict.fromkeys(told))

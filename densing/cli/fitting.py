"""What ``densing fit`` needs besides the fit: reading the table against the law, and laying out the result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from densing.core import Column, DensingError, InputError, Table, read_table
from densing.scores.fit import LawFit, bounds_table, conditioning, fit_law, influence, lack_of_fit, rollout, sensitivity
from densing.scores.laws import Law, TwoStep, get_law

_COLUMNS = {
    "params": Column("params", "number", "number of parameters, a count", required=True, low=1.0, high=1e15,
                     remedy="params is a count: write 7e9 for 7 billion"),
    "tokens": Column("tokens", "number", "training tokens, a count", required=True, low=1.0, high=1e18,
                     remedy="tokens is a count: write 1e12 for one trillion"),
    "loss": Column("loss", "number", "loss, nats per token or bits per byte", required=True, low=1e-9, high=1e3,
                   remedy="a loss is positive; check the column"),
    "score": Column("score", "number", "share of the full score, 0 to 1", required=True, low=0.0, high=1.0,
                    remedy="write 0.45 for 45 %"),
}  # fmt: skip


def read_rows(path: Path, law: str, options: dict[str, float | None], cluster: str | None) -> tuple[pd.DataFrame, Law]:
    """Read a table with the columns that a law needs.

    Raises
    ------
    InputError
        When a column is missing or a cell out of range.
    """
    chosen = get_law(law, **{key: value for key, value in options.items() if value is not None})
    needed = [*chosen.inputs, *(["loss"] if isinstance(chosen, TwoStep) else []), chosen.output]
    columns = tuple(_COLUMNS[name] for name in dict.fromkeys(needed))
    extra = (Column(cluster, "text", "group of the row", required=True),) if cluster else ()
    return read_table(path, Table(f"runs for law {law}", (*columns, *extra))), chosen


def fit_rows(rows: pd.DataFrame, law: Law, cluster: str | None, asked: dict[str, Any]) -> LawFit:
    """Fit the law to the rows, with the asked loss and bootstrap."""
    names = [*law.inputs, *(["loss"] if isinstance(law, TwoStep) else [])]
    x = {name: rows[name].to_numpy(dtype=float) for name in names}
    groups = rows[cluster].to_numpy() if cluster else None
    return fit_law(law, x, rows[law.output].to_numpy(dtype=float), clusters=groups, **asked)


def payload(result: LawFit, level: float) -> dict[str, Any]:
    """Return the fit as plain data: parameters, objective, intervals, and its identity."""
    intervals = result.intervals(level)
    return {
        "law": result.law.name,
        "equation": result.law.equation,
        "source": result.law.source,
        "n": len(result.y),
        "params": result.params,
        "objective": result.objective,
        "intervals": {row.param: [row.lo, row.hi] for row in intervals.itertuples()},
        "level": level,
        "status": result.status,
        "options": result.options,
        "domain": result.domain,
        "data_hash": result.data_hash,
        "notes": list(result.notes),
    }


def identity(result: LawFit) -> str:
    """Return in a line how a fit was made."""
    made = result.options
    turn = "" if made.get("delta") is None else f" with delta {made['delta']:g}"
    return (
        f"{len(result.y)} points, loss {made['loss']}{turn}, objective {result.objective:.6g}, {result.status}; "
        f"{len(result.draws)} {made['scheme']} draws, seed {made['seed']}"
    )


def explain(result: LawFit) -> dict[str, Any]:
    """Return the checklist of a scaling-law fit, filled in, with its diagnostics."""
    found: dict[str, Any] = {
        "hypothesis": result.law.equation,
        "fitted_range": dict(result.domain),
        "objective_and_optimiser": {"batched Levenberg-Marquardt, summed loss": dict(result.options)},
    }
    if not isinstance(result.law, TwoStep):
        found |= {
            "condition_number": _available(conditioning, result),
            "lack_of_fit_p": _available(lack_of_fit, result),
            "distance_to_bounds": _available(bounds_table, result),
            "influence": _available(influence, result),
            "sensitivity_to_loss": _available(sensitivity, result),
        }
    return found


def _available(diagnostic: Callable[[LawFit], Any], result: LawFit) -> Any:
    """Return a diagnostic, or why these data do not allow it: the fit itself stands."""
    try:
        return diagnostic(result)
    except DensingError as error:
        return f"not available: {error}"


def rollout_table(rows: pd.DataFrame, law: Law, cutoff: float, asked: dict[str, Any]) -> pd.DataFrame:
    """Fit the small models, predict the large ones, and return the misses."""
    if isinstance(law, TwoStep):
        raise InputError("--rollout: fit the two steps one at a time (chinchilla, then sigmoid) to roll them out")
    x = {name: rows[name].to_numpy(dtype=float) for name in law.inputs}
    first = law.inputs[0]
    if not x[first].min() < cutoff <= x[first].max():
        raise InputError(
            f"--rollout {cutoff:g}: must lie above the smallest {first} ({x[first].min():g}) and at most at the "
            f"largest "
            f"({x[first].max():g})"
        )
    return rollout(law, x, rows[law.output].to_numpy(dtype=float), cutoff=cutoff, **asked)

"""Tables of runs: read from a file against a law, and the numbers of a fit, checked once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from densing.core import (
    Array,
    Column,
    FitError,
    InputError,
    Note,
    Sheet,
    Table,
    TableError,
    TableLike,
    UnknownNameError,
    as_declared,
    check_sheet,
    formatting,
    read_sheet,
)
from densing.scores.catalog import ALSO
from densing.scores.laws import Law, TwoStep

MAX_RUNS = 100_000
_COLUMNS = {
    "params": Column("params", "number", "number of parameters, a count", required=True, low=1.0, high=1e15,
                     remedy="params is a count: write 7e9 for 7 billion", unit="count"),
    "tokens": Column("tokens", "number", "training tokens, a count", required=True, low=1.0, high=1e18,
                     remedy="tokens is a count: write 1e12 for one trillion", unit="count"),
    "loss": Column("loss", "number", "loss, nats per token or bits per byte", required=True, low=1e-9, high=1e3,
                   remedy="a loss is positive; check the column"),
    "score": Column("score", "number", "share of the full score, 0 to 1", required=True, low=0.0, high=1.0,
                    remedy="write 0.45 for 45 %", unit="share"),
}  # fmt: skip


@dataclass(frozen=True)
class FitTable:
    """Inputs, observations, weights and clusters of a fit, as float arrays of one length."""

    x: Mapping[str, Array]
    y: Array
    weights: Array | None
    clusters: NDArray[Any] | None

    @classmethod
    def build(
        cls,
        law: Law,
        x: Mapping[str, ArrayLike],
        y: ArrayLike,
        weights: ArrayLike | None,
        clusters: Sequence[Any] | NDArray[Any] | None,
        positive: bool,
    ) -> FitTable:
        """Check a table against its law.

        Raises
        ------
        InputError
            When an input is missing or misshapen, or a value is not usable; says which row and what to do.
        FitError
            When there are fewer points than parameters.
        """
        missing = [name for name in law.inputs if name not in x]
        if missing:
            raise InputError(f"law {law.name} needs the input {missing[0]!r}; got: {', '.join(x) or 'none'}")
        observed = _floats(y, law.output)
        inputs = {name: _floats(x[name], name) for name in law.inputs}
        cases = None if weights is None else _floats(weights, "weights")
        labels = None if clusters is None else np.asarray(clusters).astype(str)
        for name, values in [*inputs.items(), ("weights", cases), ("clusters", labels)]:
            if values is not None and values.shape != observed.shape:
                raise InputError(f"{name} has shape {values.shape}, {law.output} has {observed.shape}; make them equal")
        for name, values in [*inputs.items(), ("weights", cases)]:
            if values is not None:
                _refuse(values <= 0, values, name, "must be positive")
        if law.output == "score":
            _refuse(
                (observed < 0) | (observed > 1),
                observed,
                "score",
                "is not between 0 and 1; write 0.45 for 45 %",
            )
        if positive:
            _refuse(observed <= 0, observed, law.output, "has no logarithm; use a raw loss or drop the row")
        if len(observed) < len(law.parameters):
            raise FitError(
                f"law {law.name} has {len(law.parameters)} parameters and the table {len(observed)} points; "
                "add points or take a law with fewer parameters"
            )
        return cls(inputs, observed, cases, labels)

    @property
    def cases(self) -> Array:
        """Case weights, 1 where none were given."""
        return np.ones_like(self.y) if self.weights is None else self.weights

    @property
    def points(self) -> NDArray[np.intp]:
        """Which rows have the same inputs, as integers from 0."""
        columns = np.stack(list(self.x.values()))
        return np.unique(columns, axis=1, return_inverse=True)[1].reshape(-1)

    @property
    def labels(self) -> NDArray[np.intp]:
        """Clusters as integers from 0."""
        if self.clusters is None:
            return np.arange(len(self.y))
        return np.unique(self.clusters, return_inverse=True)[1].reshape(-1)


def _floats(values: ArrayLike, name: str) -> Array:
    try:
        array = np.array(values, dtype=float)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: not numbers ({error})") from error
    if array.ndim != 1:
        raise InputError(f"{name} has shape {array.shape}; give one value per run")
    _refuse(~np.isfinite(array), array, name, "is not finite; drop the row")
    return array


def _refuse(bad: NDArray[np.bool_], values: Array, name: str, problem: str) -> None:
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise InputError(f"row {row}, {name}: {values[row]:g} {problem}")


def read_runs(
    source: TableLike, law: Law, cluster: str | None = None, named: Mapping[str, str] | None = None
) -> tuple[pd.DataFrame, tuple[Note, ...]]:
    """Read a table of runs with the columns that a law needs.

    Parameters
    ----------
    source : path, DataFrame or records
        One row per run, spelled as people do (:func:`densing.core.as_declared`); or a folder of runs of Weights &
        Biases, of which every step counts that logged the law's output: inputs are those that the run logged last.
    law : Law
        Its inputs and output are columns; ``two-step`` needs ``loss`` too. Sizes and tokens are counts.
    cluster : str, optional
        A further column, of groups of rows.
    named : mapping of str to str, optional
        Headers by the column that they are, where several may be meant: ``{"loss": "eval/loss"}``.

    Returns
    -------
    runs : pandas.DataFrame
        The law's columns, typed, and the others as text.
    notes : tuple of Note
        What was read otherwise than it stands there.

    Raises
    ------
    InputError
        When a column is missing or a cell out of range, or there are more than :data:`MAX_RUNS` rows.

    Examples
    --------
    >>> from densing.scores.laws import get_law
    >>> runs, notes = read_runs([{"Parameters": "7B", "loss": 2.1, "note": "x"}], get_law("power"))
    >>> runs[["params", "loss"]].to_numpy().tolist(), notes[0].code
    ([[7000000000.0, 2.1]], 'columns-matched')
    """
    needed = [*law.inputs, *(["loss"] if isinstance(law, TwoStep) else []), law.output]
    columns = [_COLUMNS[name] for name in dict.fromkeys(needed)]
    if cluster:
        columns.append(Column(cluster, "text", "group of the row", required=True))
    sheet = read_sheet(source)
    if len(sheet.cells) > MAX_RUNS:
        raise InputError(
            f"{sheet.name}: {len(sheet.cells)} rows are more than the {MAX_RUNS} runs that a fit takes; "
            "give one row per run or checkpoint, or a random part of them"
        )
    also = ALSO
    if named:
        sheet = _as_named(sheet, named, [column.name for column in columns])
        also = {name: others for name, others in ALSO.items() if name not in named}
    sheet = as_declared(sheet, columns, also)
    if sheet.history:
        sheet = _logged(sheet, needed)
    return check_sheet(sheet, Table(f"runs for law {law.name}", tuple(columns))), sheet.notes


def _as_named(sheet: Sheet, named: Mapping[str, str], known: Sequence[str]) -> Sheet:
    """Return a sheet whose columns bear the names that they are given, in place of columns that had them."""
    headers = list(map(str, sheet.cells.columns))
    for name, header in named.items():
        if name not in known:
            raise UnknownNameError("column of the law:", name, known)
        if header not in headers:
            raise UnknownNameError(f"column of {sheet.name}:", header, headers)
    replaced = [name for name in named if name in headers and name not in named.values()]
    cells = sheet.cells.drop(columns=replaced).rename(columns={header: name for name, header in named.items()})
    return replace(sheet, cells=cells, titles={**sheet.titles, **named})


def _logged(sheet: Sheet, needed: Sequence[str]) -> Sheet:
    """Return the steps that logged the output, each with the inputs that its run logged last."""
    *inputs, output = needed
    if missing := [name for name in needed if name not in sheet.cells and name not in sheet.problems]:
        found = formatting.listed(map(str, sheet.cells.columns), 30)
        problem = f"{' and '.join(missing)} neither logged nor configured; found: {found}"
        raise TableError(
            sheet.name, [f"{problem}. Log or configure it, or say which it is: --column {missing[0]}=NAME"]
        )
    if problems := [problem for each in sheet.problems.values() for problem in each]:
        raise TableError(sheet.name, [f"{problem} (--column NAME=HEADER says which counts)" for problem in problems])
    cells = sheet.cells.copy()
    for name in inputs:
        filled = cells[name].where(cells[name].str.strip().ne(""), None)
        cells[name] = filled.groupby(cells["run"]).ffill().fillna("")
    # The output never stands for another step than its own.
    kept = cells[cells[output].str.strip().ne("")]
    runs = formatting.plural(kept["run"].nunique(), "run")
    message = (
        f"{sheet.name}: {formatting.plural(len(kept), 'step')} of {runs} logged {output}, of {len(cells)} that "
        "were logged"
    )
    details = {"steps": len(kept), "logged": len(cells), "runs": sorted(kept["run"].unique())}
    note = Note("history-read", "info", f"{message}; other columns are what the run logged last", details)
    return replace(sheet, cells=kept, notes=(*sheet.notes, note))

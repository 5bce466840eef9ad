"""What every estimator eats: dated ln densities with their censoring, one row per model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pandas as pd

from densing.core import Array, InputError, Note, TableError

EPOCH = pd.Timestamp("2023-02-24")
"""Day 0: the release of Llama-1, the origin of t in eq. 5 of arXiv 2412.04315."""

_ROW_FIELDS = ("model", "family", "released", "days", "log_density", "censor", "log_limits", "organisation")
_DRAW_FIELDS = ("law_draws", "draws")


class DensityLike(Protocol):
    """The part of a density result that a trend needs."""

    @property
    def table(self) -> pd.DataFrame: ...
    @property
    def draws(self) -> Array: ...
    @property
    def law_draws(self) -> Array: ...
    @property
    def log_limits(self) -> Array: ...


@dataclass(frozen=True)
class TrendData:
    """Dated ln densities of models, some of them known only as bounds.

    Parameters
    ----------
    model, family : array of str, shape (n,)
        Names; the family is the cluster of the standard errors.
    released : array of datetime64[ns], shape (n,)
    days : array of float, shape (n,)
        Days since 2023-02-24.
    log_density : array of float, shape (n,)
        ln(density); for a censored row the limit at which it is censored.
    censor : array of int8, shape (n,)
        -1: the true value is at or below ``log_density``; 0: observed; +1: at or above.
    law_draws : array of float, shape (R, n), optional
        ln(density) under draws of the reference law alone, clipped at the limits.
    log_limits : array of float, shape (n, 2), optional
        ln(density) at which each row would be censored, below and above.
    draws : array of float, shape (R, n), optional
        Like ``law_draws``, with the noise of the scores on top. Without the scatter of models around the ruler: it is
        in the residuals of any line through them, and would count twice.
    organisation : array of str, shape (n,), optional
        Who trained each model; families of one organisation are its generations.
    notes : tuple of Note
        What was left out on the way here.
    """

    model: Array
    family: Array
    released: Array
    days: Array
    log_density: Array
    censor: Array
    law_draws: Array | None = None
    log_limits: Array | None = None
    draws: Array | None = None
    organisation: Array | None = None
    notes: tuple[Note, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.days)

    @classmethod
    def from_frame(cls, frame: pd.DataFrame) -> TrendData:
        """Build from a table with columns model, family, released, log_density and, optionally, censor.

        Raises
        ------
        TableError
            When a column is missing or a cell cannot be used, with row, column, value and remedy.

        Examples
        --------
        >>> toy = pd.DataFrame({"model": ["a", "b"], "family": ["f", "g"],
        ...                     "released": ["2023-02-24", "2023-03-06"], "log_density": [0.0, 0.1]})
        >>> TrendData.from_frame(toy).days.tolist()
        [0.0, 10.0]
        """
        _check_frame(frame)
        censor = frame["censor"].to_numpy(dtype=np.int8) if "censor" in frame else None
        return cls.from_arrays(
            frame["model"].tolist(), frame["family"].tolist(), frame["released"], frame["log_density"], censor
        )

    @classmethod
    def from_arrays(
        cls,
        model: Sequence[str],
        family: Sequence[str],
        released: Any,
        log_density: Any,
        censor: Any = None,
        **extra: Any,
    ) -> TrendData:
        """Build from parallel sequences; ``extra`` holds the optional fields."""
        stamps = pd.DatetimeIndex(pd.to_datetime(np.asarray(released)))
        values = np.asarray(log_density, dtype=float)
        flags = np.zeros(len(values), dtype=np.int8) if censor is None else np.asarray(censor, dtype=np.int8)
        return cls(
            np.asarray(model, dtype=str),
            np.asarray(family, dtype=str),
            stamps.to_numpy().astype("datetime64[ns]"),
            np.asarray((stamps - EPOCH) / pd.Timedelta(days=1), dtype=float),
            values,
            flags,
            **extra,
        )

    @classmethod
    def from_density(cls, result: DensityLike) -> TrendData:
        """Build from a density result: bounds become censored rows, undated rows are left out with a note.

        ``below_floor`` rows and upper bounds are censored at the lower limit of the ruler, ``above_ceiling``
        rows and lower bounds at its upper limit.
        """
        table = result.table.reset_index(drop=True)
        censor = _censoring(table)
        limits = np.asarray(result.log_limits, dtype=float)
        density = table["density"].to_numpy(dtype=float)
        positive = np.where((censor == 0) & (density > 0), density, 1.0)
        values = np.select([censor < 0, censor > 0], [limits[:, 0], limits[:, 1]], np.log(positive))
        dated = pd.to_datetime(table["released"]).notna().to_numpy()
        known = (censor != 0) | (np.isfinite(density) & (density > 0))
        keep = dated & known & np.isfinite(values)
        rows = table.loc[keep]
        family = rows["family"].where(rows["family"].notna(), rows["model"])
        makers = rows["organisation"].where(rows["organisation"].notna(), family) if "organisation" in rows else None
        data = cls.from_arrays(
            rows["model"].tolist(),
            family.tolist(),
            rows["released"],
            values[keep],
            censor[keep],
            law_draws=_columns(result.law_draws, keep),
            log_limits=limits[keep],
            draws=_columns(result.draws, keep),
            organisation=None if makers is None else makers.to_numpy(dtype=str),
        )
        return data if keep.all() else data.replace(notes=(_left_out(table.loc[~keep, "model"].tolist()),))

    def replace(self, **changes: Any) -> TrendData:
        """Return a copy with some fields changed."""
        fields = {name: getattr(self, name) for name in (*_ROW_FIELDS, *_DRAW_FIELDS, "notes")}
        return TrendData(**{**fields, **changes})

    def take(self, rows: Array) -> TrendData:
        """Return the chosen rows (a mask or positions), draws included."""
        picked = {name: getattr(self, name) for name in (*_ROW_FIELDS, *_DRAW_FIELDS)}
        changes = {
            name: value[rows] if name in _ROW_FIELDS else value[:, rows]
            for name, value in picked.items()
            if value is not None
        }
        return self.replace(**changes)

    def window(self, since: Any = None, until: Any = None) -> TrendData:
        """Return the rows released from ``since`` to ``until``, both included.

        Examples
        --------
        >>> toy = pd.DataFrame({"model": ["a", "b"], "family": ["f", "g"],
        ...                     "released": ["2023-02-24", "2023-03-06"], "log_density": [0.0, 0.1]})
        >>> TrendData.from_frame(toy).window(since="2023-03-01").model.tolist()
        ['b']
        """
        keep = np.ones(len(self), dtype=bool)
        if since is not None:
            keep &= self.released >= np.datetime64(pd.Timestamp(since), "ns")
        if until is not None:
            keep &= self.released <= np.datetime64(pd.Timestamp(until), "ns")
        return self.take(keep)

    def ordered(self) -> TrendData:
        """Return the rows in one canonical order, so that the order of the input never matters."""
        return self.take(np.lexsort((self.log_density, self.model, self.family, self.days)))

    @property
    def observed(self) -> Array:
        """Mask of the rows with a value rather than a bound."""
        return self.censor == 0

    @property
    def limits(self) -> Array:
        """Limits of every row, shape (n, 2); its own value or infinite where none are known."""
        if self.log_limits is not None:
            return self.log_limits
        low = np.where(self.censor < 0, self.log_density, -np.inf)
        high = np.where(self.censor > 0, self.log_density, np.inf)
        return np.column_stack([low, high])

    def clusters(self, by: str = "family") -> Array:
        """Return cluster codes 0..G-1: by family, by organisation, or every model on its own.

        Raises
        ------
        InputError
            For another name, or by organisation where none are known.
        """
        if by not in ("family", "organisation", "model"):
            raise InputError(f"cluster={by!r}: choose 'family', 'organisation' or 'model'")
        names = getattr(self, by)
        if names is None:
            raise InputError("cluster='organisation': these rows do not say who trained the models")
        return np.unique(names, return_inverse=True)[1]


def _censoring(table: pd.DataFrame) -> Array:
    status, bound = table["status"].astype(str), table["bound"].astype(str)
    below = (status == "below_floor") | ((status == "extrapolated") & (bound == "upper"))
    above = (status == "above_ceiling") | ((status == "extrapolated") & (bound == "lower"))
    return np.asarray(above, dtype=np.int8) - np.asarray(below, dtype=np.int8)


def _columns(draws: Any, keep: Array) -> Array | None:
    if draws is None or np.size(draws) == 0:
        return None
    return np.asarray(draws, dtype=float)[:, keep]


def _left_out(models: list[str]) -> Note:
    message = f"{len(models)} models without a date or a density are not part of the trend"
    return Note("undated-rows", "info", message, {"models": models})


def _check_frame(frame: pd.DataFrame) -> None:
    missing = [name for name in ("model", "family", "released", "log_density") if name not in frame]
    if missing:
        raise TableError("trend data", [f"column {name} is missing; add it" for name in missing])
    stamps = pd.to_datetime(frame["released"], errors="coerce")
    values = pd.to_numeric(frame["log_density"], errors="coerce")
    problems = [
        f"row {row}, column released: {str(frame['released'].iloc[row])!r} is not a date; write 2024-02-29"
        for row in np.flatnonzero(stamps.isna())
    ]
    problems += [
        f"row {row}, column log_density: {frame['log_density'].iloc[row]} is not finite; "
        "write the limit and set censor to -1 or +1 for a bound"
        for row in np.flatnonzero(~np.isfinite(values.to_numpy(dtype=float)))
    ]
    if "censor" in frame:
        odd = ~frame["censor"].isin([-1, 0, 1]).to_numpy()
        problems += [
            f"row {row}, column censor: {frame['censor'].iloc[row]} is not -1, 0 or 1" for row in np.flatnonzero(odd)
        ]
    if problems:
        raise TableError("trend data", problems)

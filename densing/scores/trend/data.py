"""What every estimator takes, dated ln densities with their censoring, and what it gives: a slope with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import pandas as pd

from densing.core import Array, Card, InputError, Note, Readable, TableError, formatting, listing_of

EPOCH = pd.Timestamp("2023-02-24")
"""Day 0: the release of Llama-1, the origin of t in eq. 5 of arXiv 2412.04315."""
DAYS_PER_MONTH = 30.44
DAYS_PER_YEAR = 365.25

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


@dataclass(frozen=True, repr=False)
class TrendData(Readable):
    """Dated ln densities of models, some known only as bounds.

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
        Like ``law_draws``, with the noise of the scores on top. The scatter of models around the reference is
        left out: it is in the residuals of any line through them, and would count twice.
    organisation : array of str, shape (n,), optional
        Trainer of each model; the families of an organisation are its generations.
    notes : tuple of Note
        What was left out so far.

    See Also
    --------
    estimate_trend

    Examples
    --------
    >>> import densing
    >>> densities = densing.catalog_densities(densing.load_catalog(), densing.load_reference("qwen1.5", "mmlu"))
    >>> data = densing.TrendData.from_density(densities.headline).window("2023-02-24", "2024-07-31")
    >>> str(data.released.min())[:4], str(data.released.max())[:4]
    ('2023', '2024')
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

    def card(self) -> Card:
        """Return the card: number of models, first and last release, and how many are limits."""
        if not len(self):
            return Card("No dated model", notes=self.notes)
        first, last = (pd.Timestamp(day).date() for day in (self.released.min(), self.released.max()))
        facts = {
            "released": f"{first} to {last}",
            "families": str(len(np.unique(self.family))),
            "limits": f"{int((self.censor < 0).sum())} upper, {int((self.censor > 0).sum())} lower",
        }
        rows = {"model": self.model, "released": self.released, "density": np.exp(self.log_density)}
        limits = np.select([self.censor < 0, self.censor > 0], ["upper", "lower"], "")
        title = formatting.plural(len(self), "dated model")
        return Card(title, facts, listing_of(title, pd.DataFrame({**rows, "limit": limits})), self.notes)

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

        ``below_floor`` rows and upper bounds are censored at the lower limit of the reference, ``above_ceiling``
        rows and lower bounds at its upper limit.
        """
        table = result.table.reset_index(drop=True)
        status, bound = table["status"].astype(str), table["bound"].astype(str)
        below = (status == "below_floor") | ((status == "extrapolated") & (bound == "upper"))
        above = (status == "above_ceiling") | ((status == "extrapolated") & (bound == "lower"))
        censor = np.asarray(above, dtype=np.int8) - np.asarray(below, dtype=np.int8)
        limits = np.asarray(result.log_limits, dtype=float)
        density = table["density"].to_numpy(dtype=float)
        # Bounds stand at their limit; the 1 only keeps the logarithm of what is not used quiet.
        positive = np.where((censor == 0) & (density > 0), density, 1.0)
        values = np.select([censor < 0, censor > 0], [limits[:, 0], limits[:, 1]], np.log(positive))
        # Only a row with a date and a density, or a limit of one, says anything of a trend.
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
        notes = []
        if not keep.all():
            models = table.loc[~keep, "model"].tolist()
            message = f"not part of the trend, because without a date or a density: {formatting.listed(models, 20)}"
            notes.append(Note("undated-rows", "info", message, {"models": models}))
        if len(apart := rows[rows.get("kind", pd.Series("base", rows.index)).isin(["instruct", "closed"])]):
            models = apart["model"].tolist()
            message = (
                f"models of this trend that were tuned to follow instructions, or are closed, as no headline has them: "
                f"{formatting.listed(models, 8)}; TrendData.from_density(densities.headline) leaves them out"
            )
            notes.append(Note("tuned-rows", "warning", message, {"models": models}))
        return data.replace(notes=tuple(notes)) if notes else data

    def replace(self, **changes: Any) -> TrendData:
        """Return a copy with some fields changed."""
        return replace(self, **changes)

    def take(self, rows: Array) -> TrendData:
        """Return the chosen rows (a mask or positions), draws included."""
        by_row = {name: value[rows] for name in _ROW_FIELDS if (value := getattr(self, name)) is not None}
        by_draw = {name: value[:, rows] for name in _DRAW_FIELDS if (value := getattr(self, name)) is not None}
        return replace(self, **by_row, **by_draw)

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

    def resample(self, by: str, draws: int, rng: np.random.Generator) -> Array:
        """Return weights (draws + 1, n) of a bootstrap of whole clusters: 1s for the data, then each resample's copies.

        Parameters
        ----------
        by : str
            As in :meth:`clusters`.
        draws : int
        rng : numpy.random.Generator
        """
        codes = self.clusters(by)
        groups = int(codes.max()) + 1
        copies = rng.multinomial(groups, np.full(groups, 1 / groups), size=draws)
        return np.vstack([np.ones(len(self)), copies[:, codes]])


def _columns(draws: Any, keep: Array) -> Array | None:
    if draws is None or np.size(draws) == 0:
        return None
    return np.asarray(draws, dtype=float)[:, keep]


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
        unknown = ~frame["censor"].isin([-1, 0, 1]).to_numpy()
        problems += [
            f"row {row}, column censor: {frame['censor'].iloc[row]} is not -1, 0 or 1"
            for row in np.flatnonzero(unknown)
        ]
    if problems:
        raise TableError("trend data", problems)


@dataclass(frozen=True)
class Slope:
    """The slope of ln(density) against days, as one estimator sees it.

    Parameters
    ----------
    slope, lo, hi : float
        Slope per day and the ends of its interval; NaN where nothing could be estimated.
    intercept : float
        Fitted ln(density) on day 0 (2023-02-24).
    n : int
        Rows that entered the fit.
    clusters : int
        Clusters behind the interval; ``n`` for methods that take rows as independent.
    se_type : str
        How the interval was computed.
    dropped : int
        Rows that the method could not use (usually censored ones).
    reason : str
        Why nothing could be estimated; otherwise empty.

    Examples
    --------
    >>> steady = Slope(0.007, 0.005, 0.01, 0.0, 20, 8, "none", 0)
    >>> [round(value, 2) for value in (steady.doubling_months, *steady.doubling_interval)]
    [3.25, 2.28, 4.55]
    """

    slope: float
    lo: float
    hi: float
    intercept: float
    n: int
    clusters: int
    se_type: str
    dropped: int
    reason: str = ""

    @classmethod
    def missing(cls, reason: str, n: int, clusters: int, dropped: int) -> Slope:
        """Return a slope without figures, with the reason."""
        nan = math.nan
        return cls(nan, nan, nan, nan, n, clusters, "none", dropped, reason)

    @property
    def estimable(self) -> bool:
        """Whether the method gave a slope."""
        return math.isfinite(self.slope)

    @property
    def doubling_months(self) -> float:
        """Doubling time in months of 30.44 days; infinite for a slope of zero or below."""
        return doubling_months(self.slope)

    @property
    def doubling_interval(self) -> tuple[float, float]:
        """Ends of the doubling time: the inverted ends of the slope's interval."""
        return doubling_months(self.hi), doubling_months(self.lo)

    @property
    def doubling(self) -> tuple[float, float, float]:
        """Doubling time in months and the ends of its interval, as tables hold them."""
        return (self.doubling_months, *self.doubling_interval)


def doubling_months(slope: float) -> float:
    """Convert a slope of ln(density) per day into a doubling time in months.

    T = ln 2 / slope / 30.44; a slope of zero or below never doubles and gives infinity.

    Source: Xiao et al., arXiv 2412.04315, eq. 5 and section 3.3.

    Parameters
    ----------
    slope : float
        Per day. NaN stays NaN.

    Examples
    --------
    >>> round(doubling_months(0.0073) * DAYS_PER_MONTH, 1)
    95.0
    >>> doubling_months(-0.001)
    inf
    """
    if math.isnan(slope):
        return math.nan
    return math.log(2) / slope / DAYS_PER_MONTH if slope > 0 else math.inf

"""The result of a fit: parameters, their draws, and everything needed to read or repeat it; and its JSON document.

A stored fit is read with suspicion: whatever is damaged is an :class:`~densing.core.ArtefactError` that says where.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

import densing
from densing.core import (
    Array,
    ArtefactError,
    Card,
    DomainError,
    Field,
    InputError,
    Listing,
    Note,
    Readable,
    column,
    decode,
    formatting,
    numeric,
    ranged,
    read_text,
    short,
)
from densing.scores.fit.bootstrap import Scheme
from densing.scores.fit.solver import LossName
from densing.scores.laws import OK, Inputs, Law, get_law

GUARD = 3.0
"""An inverted size is ``extrapolated`` outside [smallest fitted / 3, 3 * largest fitted]."""

Status = Literal["converged", "bound_hit", "max_iter"]
STATUSES: tuple[str, ...] = get_args(Status)
"""How a solver ends, best first."""

SCHEMA = "densing-lawfit"
VERSION = 1
DRAW_DIGITS = 9


def _four_digits(value: float) -> str:
    return formatting.number(value, 4)


@dataclass(frozen=True, eq=False, repr=False)
class LawFit(Readable):
    """A law fitted to a table, with its uncertainty and its provenance.

    Parameters
    ----------
    law : Law
        What was fitted.
    theta : ndarray, shape (p,)
        Best parameters, natural units.
    draws : ndarray, shape (R, p)
        Bootstrap draws of the parameters; they are strongly correlated, so propagate rows, not columns.
    objective : float
        The loss summed over runs at ``theta``.
    status : {"converged", "bound_hit", "max_iter"}
        How the solver ended; ``bound_hit`` is converged with a parameter on its bound.
    x : mapping of ndarray, shape (n,)
        Inputs, by name.
    y : ndarray, shape (n,)
        Observed losses or scores.
    residuals : ndarray, shape (n,)
        Observed minus fitted, in the loss's space (log or raw).
    domain : mapping
        Smallest and largest fitted value of each input.
    options : mapping
        Loss, delta, scheme, n_bootstrap, seed, weights, clusters: the fit's identity, JSON-ready.
    data_hash : str
        sha256 of inputs, observations, weights and clusters.
    meta : mapping
        Licence, family and what else the caller recorded, JSON-ready.
    notes : tuple of Note
        What to know before using the numbers.

    Examples
    --------
    >>> from densing.scores.fit import fit_law
    >>> size = np.array([1e8, 1e9, 1e10, 1e11])
    >>> fit = fit_law("power", {"params": size}, 10 * size**-0.1, bootstrap=0)
    >>> fit.params.round(9).to_dict()
    {'A': 10.0, 'alpha': 0.1}

    See Also
    --------
    fit_law
    """

    law: Law
    theta: Array
    draws: Array
    objective: float
    status: Status
    x: Mapping[str, Array]
    y: Array
    residuals: Array
    domain: Mapping[str, tuple[float, float]]
    options: Mapping[str, Any]
    data_hash: str
    meta: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()

    def __post_init__(self) -> None:
        """Make the arrays read-only, so that a result cannot drift from its hash."""
        for values in (self.theta, self.draws, self.y, self.residuals, *self.x.values()):
            values.setflags(write=False)

    @property
    def params(self) -> pd.Series:
        """Best parameters by name."""
        return pd.Series(self.theta, index=list(self.law.parameters), name="estimate")

    def intervals(self, level: float = 0.95) -> pd.DataFrame:
        """Return percentile intervals of the parameters: param, estimate, lo, hi (NaN without draws)."""
        lo, hi = spread(self.draws, level)
        return pd.DataFrame({"param": list(self.law.parameters), "estimate": self.theta, "lo": lo, "hi": hi})

    def listing(self, level: float = 0.95) -> Listing:
        """Return the parameters with their intervals as people read them."""
        share = formatting.percentage(level)
        fields = (
            Field("Parameter", column("param")),
            numeric("Estimate", "estimate", _four_digits),
            Field(f"{share} interval", ranged("", _four_digits), "lo"),
        )
        return Listing(f"{self.law.name}: {self.law.equation}; {share} intervals", self.intervals(level), fields)

    def predict(self, x: Inputs) -> Array:
        """Return the fitted curve at ``x``, shape (n,)."""
        return self.law.predict(self.theta, x)

    def band(self, x: Inputs, level: float = 0.95) -> pd.DataFrame:
        """Return the curve with its pointwise interval: lo, mid, hi. Noise of single runs is not in it."""
        lo, hi = spread(self.law.predict(self.draws, x), level)
        return pd.DataFrame({"lo": lo, "mid": self.predict(x), "hi": hi})

    def invert_draws(self, y: ArrayLike, **given: ArrayLike) -> Array:
        """Return the inverted input for every draw and value, shape (R, n); 0 and inf where there is none."""
        values = np.atleast_1d(np.asarray(y, dtype=float))
        return self.law.invert(self.draws[:, None, :], values[None, :], **given)[0]

    def invert(self, y: ArrayLike, *, level: float = 0.95, **given: ArrayLike) -> pd.DataFrame:
        """Invert the law with its interval.

        Parameters
        ----------
        y : array_like, shape (n,)
            Losses or scores.
        level : float
            Level of the interval, which carries the law's uncertainty only.
        **given : float
            Inputs held fixed, such as ``tokens=1e12`` (the default).

        Returns
        -------
        pandas.DataFrame
            y, estimate, lo, hi, status: ``ok``, ``extrapolated`` (outside a third of the smallest and three
            times the largest fitted input), ``below_floor`` (estimate 0) or ``above_ceiling`` (estimate inf).
        """
        values = np.atleast_1d(np.asarray(y, dtype=float))
        estimate, status = self.law.invert(self.theta, values, **given)
        low, high = self.domain[self.law.inputs[0]]
        outside = (estimate < low / GUARD) | (estimate > high * GUARD)
        status = np.where((status == OK) & outside, "extrapolated", status)
        lo, hi = spread(self.invert_draws(values, **given), level)
        return pd.DataFrame({"y": values, "estimate": estimate, "lo": lo, "hi": hi, "status": status})

    def optimal(self, flops: ArrayLike, *, level: float = 0.95) -> pd.DataFrame:
        """Return the size and tokens of least loss for training compute 6 N D, with intervals.

        Parameters
        ----------
        flops : array_like, shape (n,)
        level : float
            Of the intervals, which carry the law's uncertainty only.

        Returns
        -------
        pandas.DataFrame
            flops, and of params, tokens and loss the estimate, ``_lo`` and ``_hi``; status ``ok`` or ``extrapolated``
            (beyond three times what was fitted, of either).

        Raises
        ------
        DomainError
            When the law does not have size and tokens, or a compute is not above 0.

        Source: Hoffmann et al., arXiv 2203.15556, section 3.3, eq. 4.

        Examples
        --------
        >>> from densing.scores.fit import fit_law
        >>> n, d = np.meshgrid(np.geomspace(1e8, 1e10, 6), np.geomspace(1e9, 1e12, 6))
        >>> x = {"params": n.ravel(), "tokens": d.ravel()}
        >>> loss = 1.8 + 480 * x["params"] ** -0.35 + 2100 * x["tokens"] ** -0.37
        >>> found = fit_law("chinchilla", x, loss, bootstrap=20).optimal([1e21])
        >>> round(float(found.tokens[0] / found.params[0]))
        19
        """
        allocate: Any = getattr(self.law, "optimal", None)
        if allocate is None:
            raise DomainError(f"law {self.law.name}: size and tokens cannot be traded; fit a law of both: chinchilla")
        compute = np.atleast_1d(np.asarray(flops, dtype=float))
        columns: dict[str, Any] = {"flops": compute}
        best, every = allocate(self.theta, compute), allocate(self.draws, compute)
        losses = self.predict(dict(zip(self.law.inputs, best, strict=True)))
        drawn = np.array([
            self.law.predict(theta, {"params": params, "tokens": tokens})
            for theta, params, tokens in zip(self.draws, *every, strict=True)
        ]).reshape(len(self.draws), len(compute))  # fmt: skip
        for name, estimate, draws in zip(("params", "tokens", "loss"), (*best, losses), (*every, drawn), strict=True):
            lo, hi = spread(draws, level)
            columns |= {name: estimate, f"{name}_lo": lo, f"{name}_hi": hi}
        outside = np.zeros(len(compute), dtype=bool)
        for name in self.law.inputs:
            low, high = self.domain[name]
            outside |= (columns[name] < low / GUARD) | (columns[name] > high * GUARD)
        return pd.DataFrame({**columns, "status": np.where(outside, "extrapolated", OK)})

    def summary(self) -> str:
        """Return a short text for people: law, loss, parameters with intervals, notes."""
        options = self.options
        delta = f", delta {options['delta']:g}" if options.get("delta") else ""
        head = [
            f"{self.law.name}: {self.law.equation}",
            f"{len(self.y)} points, loss {options.get('loss')}{delta} (sum {self.objective:.6g}), "
            f"{self.status}; {len(self.draws)} {options.get('scheme')} draws, seed {options.get('seed')}",
        ]
        return "\n".join([*head, *self.listing().lines(), *(f"{note.severity}: {note.message}" for note in self.notes)])

    def card(self) -> Card:
        """Return what is shown: the equation, how well it was fitted, the parameters with their intervals."""
        options = self.options
        facts = {
            "points": str(len(self.y)),
            "status": self.status,
            "loss": f"{options.get('loss')} (sum {self.objective:.6g})",
            "draws": f"{len(self.draws)} {options.get('scheme')}, seed {options.get('seed')}",
        }
        return Card(f"{self.law.name}: {self.law.equation}", facts, self.listing(), self.notes)

    def to_json(self) -> str:
        """Return the fit as one JSON document, which :meth:`from_json` reads back.

        Draws are rounded to 9 significant digits; everything else is exact.
        """
        law = self.law
        document = _Document(
            schema=SCHEMA,
            version=VERSION,
            densing=densing.__version__,
            law=_StoredLaw(law.name, law.options, law.equation, law.source),
            parameters=list(law.parameters),
            theta=self.theta.tolist(),
            objective=self.objective,
            status=self.status,
            options=dict(self.options),
            meta=dict(self.meta),
            domain=dict(self.domain),
            notes=list(self.notes),
            data=_StoredData({name: values.tolist() for name, values in self.x.items()}, self.y.tolist()),
            residuals=self.residuals.tolist(),
            data_hash=self.data_hash,
            draws=[[float(f"{value:.{DRAW_DIGITS}g}") for value in row] for row in self.draws],
        )
        try:
            return json.dumps(vars(document), default=asdict, allow_nan=False, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise InputError(f"fit of law {law.name}: meta or options cannot be written as JSON ({error})") from error

    @classmethod
    def from_json(cls, text: str) -> LawFit:
        """Read a fit written by :meth:`to_json`.

        Raises
        ------
        ArtefactError
            When the document is damaged, of another schema version, or its data do not match their hash.
        """
        try:
            content = msgspec.json.decode(text)
        except (ValueError, TypeError, msgspec.DecodeError, RecursionError) as error:
            raise ArtefactError(f"$: not JSON ({str(error)[:80]}); restore the file") from error
        if not isinstance(content, dict):
            raise ArtefactError(f"$: {short(content)} is not an object; this is not a stored fit")
        if content.get("schema") != SCHEMA:
            raise ArtefactError(f"$.schema: {short(content.get('schema'))} is not {SCHEMA!r}; this is not a stored fit")
        if content.get("version") != VERSION:
            raise ArtefactError(
                f"$.version: {short(content.get('version'))} is not {VERSION}; fit again or change densing"
            )
        document = decode(content, _Document)
        try:
            law = get_law(document.law.name, **document.law.options)
        except InputError as error:
            raise ArtefactError(f"$.law: {error}") from error
        if document.parameters != list(law.parameters):
            raise ArtefactError(f"$.parameters: {short(document.parameters)} is not {list(law.parameters)}")
        if lacking := [name for name in law.inputs if name not in document.domain]:
            raise ArtefactError(f"$.domain.{lacking[0]}: missing")
        runs, size = len(document.data.y), len(law.parameters)
        x = {name: _numbers(values, f"$.data.x.{name}", runs) for name, values in document.data.x.items()}
        y = np.array(document.data.y, dtype=float)
        draws = [_numbers(row, f"$.draws[{i}]", size) for i, row in enumerate(document.draws)]
        options = decode(document.options, _StoredOptions, "$.options")
        weights = None if options.weights is None else _numbers(options.weights, "$.options.weights", runs)
        clusters = None if options.clusters is None else np.array([str(label) for label in options.clusters])
        data_hash = hash_data(x, y, weights, clusters)
        if data_hash != document.data_hash:
            raise ArtefactError(
                f"$.data_hash: {short(document.data_hash)} does not match the data ({data_hash}); fit again"
            )
        return cls(
            law=law,
            theta=_inside(law, _numbers(document.theta, "$.theta", size), "$.theta"),
            draws=_inside(law, np.array(draws, dtype=float).reshape(-1, size), "$.draws"),
            objective=document.objective,
            status=document.status,
            x=x,
            y=y,
            residuals=_numbers(document.residuals, "$.residuals", runs),
            domain=document.domain,
            options=document.options,
            data_hash=data_hash,
            meta=document.meta,
            notes=tuple(document.notes),
        )


def read_fit(path: Path) -> LawFit:
    """Read a fit from a JSON file.

    Raises
    ------
    InputError
        When the file cannot be read.
    ArtefactError
        When it is not a fit that this version knows.
    """
    try:
        return LawFit.from_json(read_text(path, str(path)))
    except ArtefactError as error:
        raise ArtefactError(f"{path}: {error}") from error


def spread(draws: Array, level: float) -> tuple[Array, Array]:
    """Return the ends of the central interval over axis 0, infinite draws included; NaN without draws."""
    if not len(draws):
        empty = np.full(draws.shape[1:], np.nan)
        return empty, empty.copy()
    tail = (1.0 - level) / 2.0
    if np.isfinite(draws).all():
        lo, hi = np.quantile(draws, [tail, 1.0 - tail], axis=0)
        return lo, hi
    # Interpolating between a number and infinity has no meaning: take the next draw outwards.
    return np.quantile(draws, tail, axis=0, method="lower"), np.quantile(draws, 1.0 - tail, axis=0, method="higher")


def hash_data(x: Mapping[str, Array], y: Array, weights: Array | None, clusters: NDArray[Any] | None = None) -> str:
    """Return the sha256 of a table's numbers, written exactly, in the order of its rows."""
    # Hexadecimal: the same double gives the same text, whatever printed it.
    content = {
        "x": {name: [float(v).hex() for v in x[name]] for name in sorted(x)},
        "y": [float(v).hex() for v in y],
        "weights": None if weights is None else [float(v).hex() for v in weights],
        "clusters": None if clusters is None else [str(v) for v in clusters],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class _StoredLaw:
    name: str
    options: dict[str, Any]
    equation: str = ""
    source: str = ""


@dataclass(frozen=True)
class _StoredOptions:
    """Those of a fit's options that programs read."""

    loss: LossName
    scheme: Scheme
    n_bootstrap: Annotated[int, msgspec.Meta(ge=0)]
    seed: Annotated[int, msgspec.Meta(ge=0)]
    delta: Annotated[float, msgspec.Meta(gt=0)] | None = None
    weights: list[float] | None = None
    clusters: list[Any] | None = None


@dataclass(frozen=True)
class _StoredData:
    x: dict[str, list[float]]
    y: list[float]


@dataclass(frozen=True, kw_only=True)
class _Document:
    """A fit as it is written, key by key in this order; ``options`` are read as :class:`_StoredOptions` too."""

    schema: str
    version: int
    densing: str = ""
    law: _StoredLaw
    parameters: list[str]
    theta: list[float]
    objective: float
    status: Status
    options: dict[str, Any]
    meta: dict[str, Any]
    domain: dict[str, tuple[float, float]]
    notes: list[Note]
    data: _StoredData
    residuals: list[float]
    data_hash: str
    draws: list[list[float]]


def _numbers(values: list[float], path: str, length: int) -> Array:
    if len(values) != length:
        raise ArtefactError(f"{path}: {len(values)} numbers where {length} belong")
    return np.array(values, dtype=float)


def _inside(law: Law, theta: Array, path: str) -> Array:
    """Return parameters if they respect the law's bounds, to the rounding of the draws."""
    for i, parameter in enumerate(law.space):
        values = theta[..., i]
        # Draws are stored with nine digits: one on its bound may lie a rounding beyond it.
        slack = 1e-8 * np.abs(values)
        if (values < parameter.low - slack).any() or (values > parameter.high + slack).any():
            raise ArtefactError(f"{path}: {parameter.name} outside [{parameter.low:g}, {parameter.high:g}]")
    return theta

"""Scores to effective parameters to density, with a status and an interval for every model.

The capability of a model is the size :math:`\\hat N` that the reference family would need for the same score; its
density is :math:`\\rho = \\hat N / N`. Density is relative: two values compare only when reference family, benchmark
set and reference tokens agree.

A reference model of size N does not score f(N): one recipe's models lie beside their curve by more than the sampling of
items explains. A score therefore stands for a range of reference sizes even when it and the curve are known exactly. In
the language of calibration, reading a size off one new score needs the variance of a new observation, not only that of
the curve. How far models scatter around a reference is learnt from the reference's own members (:class:`Scatter`).

So a density has two intervals. The *measured* one (``density_lo``, ``density_hi``) answers how well the effective size
of this model on this curve is known: it holds the error of its ability and that of the reference. The one of its
*recipe* (``density_lo_recipe``, ``density_hi_recipe``) holds the scatter on top: where another model of the same recipe
may lie. It is for comparing and predicting recipes, not for reading a model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from scipy.special import ndtr

from densing.core import Array, Card, InputError, Note, Readable, UnknownNameError, formatting, named_stream
from densing.scores.catalog import size_intervals
from densing.scores.density.listing import density_listing
from densing.scores.density.sentences import density_sentences
from densing.scores.fit import GUARD, get_loss
from densing.scores.references import Reference, family_names, get_family

DENOMINATORS = ("total", "active", "non_embedding")
DEFAULT_GUARD = GUARD
MAX_GUARD = 1000.0
# Draws are inverted in parts: what a law makes on the way is many times as large.
CELLS_AT_ONCE = 200_000
# Without a guard an effective size still has to be a size: from one parameter to a quadrillion.
UNGUARDED = (1.0, 1e15)
MEASURED, SCATTER_UNKNOWN = "measured", "measured; scatter unknown"
SOURCES = ("ability", "ruler", "scatter")
"""Where the spread of a recipe's density comes from: the column ``share_NAME`` gives each its part of the variance."""
TABLE_COLUMNS = (
    "model",
    "family",
    "organisation",
    "released",
    "kind",
    "architecture",
    "verified",
    "stratum",
    "n_params",
    "params_basis",
    "params_lo",
    "params_hi",
    "denominator",
    "reference",
    "benchmark",
    "evaluator",
    "own",
    "score",
    "score_se",
    "n_sources",
    "n_eff",
    "n_eff_lo",
    "n_eff_hi",
    "density",
    "density_lo",
    "density_hi",
    "interval",
    "density_lo_recipe",
    "density_hi_recipe",
    "share_ability",
    "share_ruler",
    "share_scatter",
    "status",
    "bound",
    "protocol",
    "protocol_detail",
    "source",
)


@dataclass(frozen=True, repr=False)
class DensityResult(Readable):
    """Densities of a set of models against one reference.

    Parameters
    ----------
    table : pandas.DataFrame
        One row per model; columns as in :data:`TABLE_COLUMNS`, sizes as counts. ``params_basis``, ``params_lo`` and
        ``params_hi`` say how well the size is known (:func:`~densing.scores.catalog.size_intervals`). ``own``: the
        model's maker measured every score behind the density.
    draws : array, shape (R, n)
        ln density per draw, with the uncertainty of the reference law, of the score and of a rounded size: the
        measurement, of which ``density_lo`` and ``density_hi`` are quantiles. What ranks, frontiers and trends read:
        the residuals of a trend's line hold the scatter of models already.
    law_draws : array, shape (R, n)
        ln density per draw of the reference law alone, at the reported score.
    model_draws : array, shape (R, n)
        ln density per draw with the scatter of models around the reference on top: of the recipe, quantiles in
        ``density_lo_recipe`` and ``density_hi_recipe``; the same as ``draws`` where the reference cannot tell its
        scatter.
    log_limits : array, shape (n, 2)
        ln density at the two ends of the guard: where a row is censored.
    reference : Reference
        The reference.
    options : mapping
        Denominator, guard, level, seed.
    notes : tuple of Note
        What to keep in mind.

    See Also
    --------
    catalog_densities, table_densities, rank

    Examples
    --------
    >>> import densing
    >>> densities = densing.catalog_densities(densing.load_catalog(), densing.load_reference("qwen1.5", "mmlu"))
    >>> densities.table.loc[densities.table["model"] == "Llama-3-8B", "density"].item() > 1
    True
    >>> densities.draws.shape == densities.model_draws.shape == (1000, len(densities))
    True
    """

    drawn_by: ClassVar[str] = "densing.plots:plot_density"

    table: pd.DataFrame
    draws: Array
    law_draws: Array
    model_draws: Array
    log_limits: Array
    reference: Reference
    options: Mapping[str, Any]
    notes: tuple[Note, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.table)

    def subset(self, keep: Array) -> DensityResult:
        """Return some of the models: where a boolean array is true, or at positions, in their order."""
        rows = np.flatnonzero(keep) if keep.dtype == bool else keep
        return replace(
            self,
            table=self.table.iloc[rows].reset_index(drop=True),
            draws=self.draws[:, rows],
            law_draws=self.law_draws[:, rows],
            model_draws=self.model_draws[:, rows],
            log_limits=self.log_limits[rows],
        )

    @property
    def headline(self) -> DensityResult:
        """The models that the selection puts in the headline; ``stratum`` says why the others are not."""
        return self.subset(self.table["stratum"].eq("headline").to_numpy(dtype=bool))

    @property
    def shares(self) -> pd.Series:
        """Mean parts of the variance of a recipe's ln density, by :data:`SOURCES`, over models inside the reference."""
        inside = self.table[self.table["bound"].eq("")]
        return pd.Series({name: inside[f"share_{name}"].astype(float).mean() for name in SOURCES}, name="share")

    def sentences(self) -> list[str]:
        """Return a sentence per model, made to be copied: density, interval, reference, what not to compare it with."""
        return density_sentences(self.table, float(self.options.get("level", 0.95)))

    @property
    def spread(self) -> str:
        """Where the spread of a recipe's density comes from, in a sentence; empty where the scatter is unknown."""
        shares = self.shares
        if shares.isna().any():
            return ""
        scatter, reference, ability = (formatting.percentage(shares[name]) for name in ("scatter", "ruler", "ability"))
        return (
            f"Of the variance of a recipe's density, {scatter} is model-to-model scatter, {reference} the reference "
            f"and {ability} the model's own ability (mean over the models inside the reference's range); "
            "intervals of the measurement cover the last two."
        )

    def card(self) -> Card:
        """Return what is shown: status counts and who measured, then the models."""
        reference = self.reference
        status = ", ".join(f"{count} {name}" for name, count in self.table["status"].value_counts().items())
        facts = {"status": status or "no model", "reference measured by": reference.evaluator}
        interval = sorted(self.table["interval"].dropna().unique()) if "interval" in self.table else []
        if interval:
            facts["interval"] = ", ".join(interval)
        title = f"Densities of {formatting.plural(len(self), 'model')} on {reference.name}, {reference.benchmark}"
        return Card(title, facts, density_listing(self.table, title), self.notes)


def estimate_density(
    scores: pd.DataFrame,
    reference: Reference,
    *,
    denominator: str = "total",
    guard: float = DEFAULT_GUARD,
    level: float = 0.95,
    seed: int = 0,
) -> DensityResult:
    """Invert the reference law for every score and divide by the model's size.

    .. math:: \\rho(M) = \\hat N(S_M) / N_M = f^{-1}(S_M) / N_M

    Parameters
    ----------
    scores : pandas.DataFrame
        ``model``, ``score`` in [0, 1], ``score_se`` and the size column that ``denominator`` names
        (``params_total``, ``params_active``, ``params_non_embedding``; counts). Where ``params_lo`` and ``params_hi``
        say between which sizes a model lies, its density is known no better. Other columns are carried along.
    reference : Reference
        The reference, see :func:`densing.scores.references.load_reference`.
    denominator : {"total", "active", "non_embedding"}
        Which parameter count divides.
    guard : float
        Effective parameters are reported inside ``[N_min / guard, guard * N_max]`` of the reference family; outside
        they are one-sided bounds. ``math.inf`` switches the guard off.
    level : float
        Confidence level of the intervals.
    seed : int
        Random seed. Each score has a stream of its own, named by benchmark and model, so that neither
        the other rows nor their order matter.

    Returns
    -------
    DensityResult
        A row per model that has a size; status ``ok``, ``extrapolated``, ``below_floor`` or ``above_ceiling``.
        ``density_lo`` and ``density_hi`` cover the curve's error, the score's noise and how far the
        size was rounded. ``density_lo_recipe`` and ``density_hi_recipe`` hold the scatter of models around the
        reference too (:class:`Scatter`); NaN where the reference cannot tell it, and ``interval`` says so.
        ``share_ability``, ``share_ruler`` and ``share_scatter`` are their parts of a recipe's variance.

    Raises
    ------
    InputError
        For an unknown denominator, a guard below 1, a missing column, a missing or negative standard error, or no
        usable row.

    Notes
    -----
    Source: Xiao et al., arXiv 2412.04315, Eq. 1 and Eq. 4; statuses and bounds are ours.

    See Also
    --------
    catalog_densities, table_densities

    Examples
    --------
    >>> import densing
    >>> import pandas as pd
    >>> scores = pd.DataFrame([{"model": "mine", "params_total": 3e9, "score": 0.6, "score_se": 0.01}])
    >>> densities = densing.estimate_density(scores, densing.load_reference("qwen1.5", "mmlu"))
    >>> bool(densities.table["density_lo"].item() > 1)
    True
    """
    check_options(denominator, guard)
    column = f"params_{denominator}"
    missing = [name for name in ("model", "score", "score_se") if name not in scores.columns]
    if missing:
        raise InputError(f"scores have no column {missing[0]}; add it (score_se may be 0)")
    if column not in scores.columns:
        raise InputError(f"scores have no column {column}; choose another denominator or add the column")
    invalid = scores.index[~(scores["score_se"] >= 0)]
    if len(invalid):
        row = invalid[0]
        raise InputError(f"scores row {row}, column score_se: {scores.loc[row, 'score_se']}; write 0 or more")
    sized = scores.assign(n_params=pd.to_numeric(scores[column], errors="coerce"))
    usable = sized["n_params"].gt(0) & sized["score"].notna()
    if not usable.any():
        raise InputError(f"none of the {len(scores)} models has both a score and a size in {column}")
    notes = []
    if not usable.all():
        lacking = {"score": sized["score"].isna(), f"{denominator} parameter count": ~sized["n_params"].gt(0)}
        for lack, which in lacking.items():
            if models := sorted(sized.loc[which, "model"].astype(str)):
                notes.append(without(models, lack))
    sized = sized[usable].reset_index(drop=True)
    scatter = model_scatter(reference)
    values = read_scores(reference, sized, guard, seed, scatter)
    log_n, shifts = np.log(sized["n_params"].to_numpy(dtype=float)), size_shifts(sized, len(values.draws), seed)
    table = fill_table(sized, reference, denominator, values, level, shifts)
    options = {"denominator": denominator, "guard": guard, "level": level, "seed": seed, **reference.given}
    return DensityResult(
        table,
        over_sizes(values.draws, values.limits, shifts) - log_n,
        values.law_draws - log_n,
        over_sizes(values.model_draws, values.limits, shifts) - log_n,
        values.limits[None, :] - log_n[:, None],
        reference,
        options,
        (*reference.notes, *notes, *_reading_notes(reference, denominator, guard, scatter)),
    )


def without(models: list[str], lack: str) -> Note:
    """Return the note on models that have no density for want of something: by name, however many.

    Examples
    --------
    >>> without(["Mine-3B"], "total parameter count").message
    'left out, because it has no total parameter count: Mine-3B'
    """
    message = (
        f"left out, because {'it has' if len(models) == 1 else 'they have'} no {lack}: {formatting.listed(models, 20)}"
    )
    return Note("no-score" if lack == "score" else "no-size", "warning", message, {"models": models})


def check_options(denominator: str, guard: float) -> None:
    """Refuse a denominator or a guard that means nothing; raises :class:`~densing.core.InputError`."""
    if denominator not in DENOMINATORS:
        raise UnknownNameError("denominator", denominator, DENOMINATORS)
    if not guard >= 1:
        raise InputError(f"guard {guard} is below 1; give the factor by which the size range may be exceeded, e.g. 3")
    if MAX_GUARD < guard < np.inf:
        raise InputError(f"guard {guard:g} is above {MAX_GUARD:g}; give inf to switch the guard off")


@dataclass(frozen=True)
class Readings:
    """ln effective parameters of n scores, clipped to the guard.

    Parameters
    ----------
    point : array, shape (n,)
        At the fitted parameters.
    status : array of str, shape (n,)
    law_draws, draws, model_draws : array, shape (R, n)
        ln N under draws of the law, of law and score, of law, score and the scatter of models.
    limits : array, shape (2,)
        ln N at the ends of the guard.
    scattered : bool
        Whether ``model_draws`` hold any scatter; without, they are ``draws``.
    """

    point: Array
    status: Array
    draws: Array
    law_draws: Array
    model_draws: Array
    limits: Array
    scattered: bool


def read_scores(reference: Reference, rows: pd.DataFrame, guard: float, seed: int, scatter: Scatter | None) -> Readings:
    """Invert the law at every score, and at its draws.

    The noise of a score belongs to model and benchmark, the draws of the law to the reference: the same score read on
    two references carries the same noise, two models on one reference the same law, and nothing else is shared.

    Parameters
    ----------
    reference : Reference
        The reference.
    rows : pandas.DataFrame
        ``model, score, score_se``.
    guard, seed
        As for :func:`estimate_density`.
    scatter : Scatter or None
        Of models around the reference.
    """
    law, given, names = reference.fit.law, reference.given, tuple(sorted(reference.benchmarks))
    limits = guard_limits(reference, guard)
    score, models = rows["score"].to_numpy(dtype=float), rows["model"].astype(str).tolist()
    n_eff, status = (np.asarray(part) for part in law.invert(reference.fit.theta, score, **given))
    outside = (status == "ok") & ((n_eff < np.exp(limits[0])) | (n_eff > np.exp(limits[1])))
    # One axis of draws of the law, one of models: every draw reads all the scores.
    count = len(reference.fit.draws)

    def drawn(values: Array) -> Array:
        return log_sizes(reference, reference.fit.draws, np.broadcast_to(values, (count, len(score))), limits)

    noisy = score + rows["score_se"].to_numpy(dtype=float) * normals(count, seed, (law.output, *names), models)
    law_draws = drawn(score)
    draws = model_draws = drawn(noisy)
    if scatter is not None:
        shift = scatter.draws(count, seed, names, models)
        model_draws = drawn(noisy * np.exp(shift) if scatter.relative else noisy + shift)
    status = np.where(outside, "extrapolated", status)
    point = log_sizes(reference, reference.fit.theta[None], score[None], limits)[0]
    return Readings(point, status, draws, law_draws, model_draws, limits, scatter is not None)


def guard_limits(reference: Reference, guard: float) -> Array:
    """Return ln of the least and the largest effective size that are reported, shape (2,)."""
    low, high = reference.fit.domain["params"]
    return np.log([low / guard, high * guard] if np.isfinite(guard) else UNGUARDED)


def log_sizes(reference: Reference, theta: Array, values: Array, limits: Array) -> Array:
    """Return ln effective parameters, clipped, where each draw of the law reads its own scores.

    Parameters
    ----------
    reference : Reference
    theta : array, shape (R, p)
        Parameters of its law.
    values : array, shape (R, n)
        Scores, or losses.
    limits : array, shape (2,)
        As :func:`guard_limits` returns them.

    Returns
    -------
    array, shape (R, n)
    """
    blocks = np.array_split(np.arange(len(theta)), max(1, values.size // CELLS_AT_ONCE))
    with np.errstate(divide="ignore"):
        parts = (reference.fit.law.invert(theta[b, None], values[b], **reference.given)[0] for b in blocks)
        return np.concatenate([np.clip(np.log(part), *limits) for part in parts])


def _reading_notes(reference: Reference, denominator: str, guard: float, scatter: Scatter | None) -> list[Note]:
    notes = []
    if scatter is None:
        message = (
            f"reference {reference.name} has no residuals to estimate model-to-model scatter from "
            f"({len(reference.fit.y)} points, {len(reference.fit.theta)} parameters): no recipe intervals"
        )
        notes.append(Note("measurement-only", "warning", message, {"reference": reference.name}))
    kind = get_family(reference.name).kind if reference.name in family_names() else ""
    if denominator == "non_embedding" and kind == "one-step":
        message = (
            f"the sizes of {reference.name} include embeddings, the denominator does not: densities are too high, "
            "most of all for small models; compare them only with each other"
        )
        notes.append(Note("mixed-counting", "warning", message, {"reference": reference.name}))
    if denominator != "non_embedding" and kind == "two-step":
        message = (
            f"the sizes of {reference.name} exclude embeddings, the denominator includes them: densities are too low, "
            "most of all for small models; use --denominator non_embedding where the sizes are known"
        )
        notes.append(Note("mixed-counting", "warning", message, {"reference": reference.name}))
    if not np.isfinite(guard):
        message = (
            "without a guard effective sizes are extrapolated as far as the curve goes, with unbounded error, and "
            "scores off the curve are bounded by one parameter and a quadrillion: do not quote a trend from this"
        )
        notes.append(Note("no-guard", "warning", message))
    return notes


def sizes_of(models: pd.DataFrame, denominator: str) -> pd.DataFrame:
    """Return what the catalog knows of the sizes that divide: ``params_basis, params_lo, params_hi``, aligned.

    The digits are those of the total; they say nothing of another size.
    """
    same = models[f"params_{denominator}_b"].eq(models["params_total_b"])
    ends = size_intervals(models).where(same)
    return ends.assign(params_basis=models["params_basis"].where(same, None))[["params_basis", *ends.columns]]


def size_shifts(sized: pd.DataFrame, count: int, seed: int) -> Array:
    """Draw ln of the true size over ``n_params``, shape (count, n): sizes even between ``params_lo`` and ``params_hi``.

    0 where these are not known. A model has one stream, so that its size is the same on every benchmark and reference.
    """
    shifts = np.zeros((count, len(sized)))
    if "params_lo" in sized.columns and "params_hi" in sized.columns:
        low, high = (sized[name].to_numpy(dtype=float) for name in ("params_lo", "params_hi"))
        rounded = np.flatnonzero((low > 0) & (low < high))
        names = sized["model"].astype(str).iloc[rounded].tolist()
        sizes = low[rounded] + ndtr(normals(count, seed, ("size",), names)) * (high - low)[rounded]
        shifts[:, rounded] = np.log(sizes / sized["n_params"].to_numpy(dtype=float)[rounded])
    return shifts


def over_sizes(draws: Array, limits: Array, shifts: Array) -> Array:
    """Return draws of ln effective size less those of :func:`size_shifts`; what is at a limit stays there."""
    inside = (draws > limits[0]) & (draws < limits[1])
    return np.asarray(np.where(inside, np.clip(draws - shifts, *limits), draws))


def fill_table(
    sized: pd.DataFrame, reference: Reference, denominator: str, values: Readings, level: float, shifts: Array
) -> pd.DataFrame:
    """Return the table of densities, columns :data:`TABLE_COLUMNS`, of models with their sizes in ``n_params``.

    ``shifts`` are those of :func:`size_shifts`.
    """
    tail = (1 - level) / 2
    at_low, at_high = values.point <= values.limits[0], values.point >= values.limits[1]

    def ends(draws: Array) -> tuple[Array, Array]:
        low, high = np.quantile(draws, [tail, 1 - tail], axis=0)
        bounded = np.where(low <= values.limits[0], 0.0, np.exp(low))
        return bounded, np.where(high >= values.limits[1], np.inf, np.exp(high))

    n_lo, n_hi = ends(values.draws)
    low, high = ends(over_sizes(values.draws, values.limits, shifts))
    recipe = ends(over_sizes(values.model_draws, values.limits, shifts))
    recipe_lo, recipe_hi = (end if values.scattered else np.full(len(end), np.nan) for end in recipe)
    size = sized["n_params"].to_numpy(dtype=float)
    n_eff = np.exp(values.point)
    table = sized.assign(
        denominator=denominator,
        reference=reference.name,
        benchmark=reference.benchmark,
        n_eff=n_eff,
        n_eff_lo=n_lo,
        n_eff_hi=n_hi,
        density=n_eff / size,
        density_lo=low / size,
        density_hi=high / size,
        interval=MEASURED if values.scattered else SCATTER_UNKNOWN,
        density_lo_recipe=recipe_lo / size,
        density_hi_recipe=recipe_hi / size,
        **variance_shares(values.law_draws, values.draws, values.model_draws, values.scattered),
        status=values.status,
        bound=np.select([at_low, at_high], ["upper", "lower"], default=""),
    )
    for column in TABLE_COLUMNS:
        if column not in table.columns:
            table[column] = None
    return table[list(TABLE_COLUMNS)]


def variance_shares(law_draws: Array, draws: Array, model_draws: Array, scattered: bool) -> dict[str, Array]:
    """Return what ability, reference and scatter have of the variance of ln density, as columns; NaN where unknown.

    The parts are independent, and each kind of draws adds one: the law, the score, the scatter.
    """
    reference, measured, recipe = (part.var(axis=0) for part in (law_draws, draws, model_draws))
    parts = np.stack([np.maximum(measured - reference, 0), reference, np.maximum(recipe - measured, 0)])
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = parts / parts.sum(axis=0) if scattered else np.full(parts.shape, np.nan)
    return {f"share_{name}": row for name, row in zip(SOURCES, shares, strict=True)}


@dataclass(frozen=True)
class Scatter:
    """Spread of models around a reference.

    Parameters
    ----------
    total : float
        Variance of the members' residuals, on n - p degrees of freedom: squared score, or squared ln(loss).
    noise : float
        The part that the sampling of items explains: mean squared standard error of the members' scores.
    freedom : float
        Degrees of freedom behind ``total``; few of them widen the draws as Student's t.
    relative : bool
        Whether residuals are of logarithms (references that read losses).
    stream : tuple of str
        Names the draws of the variance.
    common : float
        Correlation of residuals with those on the family's other benchmarks; 0 for a benchmark on its own.
    benchmarks : int
        On how many it was estimated: each brings its degrees of freedom to what is not common.
    """

    total: float
    noise: float
    freedom: float
    relative: bool
    stream: tuple[str, ...]
    common: float = 0.0
    benchmarks: int = 1

    @property
    def sd(self) -> float:
        """Standard deviation of models around the curve, the sampling of items taken off; 0 where that explains all."""
        return float(np.sqrt(max(self.total - self.noise, 0.0)))

    def draws(self, count: int, seed: int, benchmarks: Sequence[str], models: Sequence[str]) -> Array:
        r"""Draw how far models lie from the curve, shape (count, models), in score or in ln(loss).

        .. math:: u_{rm} = \sqrt{\max((1 - c) s^2 \chi_r - \bar{se}^2, 0)}\, z_{rm} + \sqrt{c s^2 \chi'_r}\, z'_{rm}

        with chi a draw of the variance over its estimate: of eight members and three parameters it is known to no
        better than a factor. The second part, c = ``common``, has one z' for a model on every benchmark; the noise of
        items is in the first alone.
        """
        own = self.total * (1 - self.common) * self._scale(count, seed, "own", self.freedom * self.benchmarks)
        own = np.sqrt(np.maximum(own - self.noise, 0.0))[:, None]
        distance = own * normals(count, seed, ("scatter", *benchmarks), models)
        if not self.common:
            return distance
        shared = np.sqrt(self.total * self.common * self._scale(count, seed, "common", self.freedom))[:, None]
        return distance + shared * normals(count, seed, ("scatter",), models)

    def _scale(self, count: int, seed: int, part: str, freedom: float) -> Array:
        """Draw the ratio of a variance to its estimate, shape (count,)."""
        return freedom / named_stream(seed, "scale", part, *self.stream).chisquare(freedom, count)


def normals(count: int, seed: int, names: tuple[str, ...], models: Sequence[str]) -> Array:
    """Return standard normal draws, shape (count, models): a stream for every model, whoever stands beside it."""
    turns: Counter[str] = Counter()
    columns = []
    for model in models:
        # The same model twice in one table was measured twice: its second row has a stream of its own.
        turn = (str(turns[model]),) if turns[model] else ()
        turns[model] += 1
        columns.append(named_stream(seed, *names, model, *turn).standard_normal(count))
    return np.column_stack(columns) if columns else np.empty((count, 0))


def model_scatter(reference: Reference) -> Scatter | None:
    """Estimate the scatter of models around a reference from its members' residuals.

    Parameters
    ----------
    reference : Reference
        The reference; its points' ``score_se`` say how much of the residuals the sampling of items explains (0, where
        unknown, leaves all of them to the scatter).

    Returns
    -------
    Scatter or None
        None where no degrees of freedom are left to learn it from.

    Notes
    -----
    s^2 = sum w r^2 / (n - p) is unbiased however few the members; held-out points have no say. Runs that were resampled
    together (checkpoints of one run) count as one for the degrees of freedom.

    Examples
    --------
    >>> from densing.scores.references import load_reference
    >>> scatter = model_scatter(load_reference("qwen1.5", "mmlu"))
    >>> round(scatter.sd, 3), scatter.freedom
    (0.009, 5.0)

    See Also
    --------
    catalog_densities
    """
    fit = reference.fit
    count, parameters = len(fit.residuals), len(fit.theta)
    clusters = fit.options.get("clusters")
    for step in fit.options.get("steps", [])[:1]:
        clusters = step["options"].get("clusters")
    freedom = (count if clusters is None else len(set(clusters))) - parameters
    if freedom < 1:
        return None
    weights = fit.options.get("weights")
    squares = fit.residuals**2 * (1.0 if weights is None else np.asarray(weights, dtype=float))
    relative = get_loss(fit.options["loss"]).space == "log"
    # Standard errors of points are in units of the score.
    errors = _members(reference)["score_se"].to_numpy(dtype=float) / (fit.y if relative else 1.0)
    return Scatter(
        float(squares.sum() / (count - parameters)),
        float(np.mean(errors**2)),
        float(freedom),
        relative,
        (reference.name, *sorted(reference.benchmarks)),
    )


def joint_scatter(references: Sequence[Reference]) -> list[Scatter | None]:
    """Estimate scatter for benchmarks that are combined: what a model has in common on all of them counts once.

    Parameters
    ----------
    references : sequence of Reference
        References of one family, one per benchmark.

    Returns
    -------
    list of Scatter or None
        As :func:`model_scatter`, with ``common`` the mean correlation of the members' residuals over pairs of
        benchmarks, not below 0. The rest of the variance is drawn once for all of them, on all their degrees of
        freedom together.

    Examples
    --------
    Llama-2 lies above a curve through Llama-1 and Llama-2 on every benchmark, so its members' residuals go together:

    >>> from densing.scores.references import load_reference
    >>> references = [load_reference("llama", name) for name in ("mmlu", "hellaswag", "arc_challenge")]
    >>> round(joint_scatter(references)[0].common, 1)
    0.6
    """
    single = [model_scatter(reference) for reference in references]
    known = [(reference, own) for reference, own in zip(references, single, strict=True) if own is not None]
    correlations = []
    for pair in combinations(known, 2):
        # Standardised, so that the squares of each sum to its degrees of freedom over the members.
        first, second = (
            pd.Series(
                reference.fit.residuals / np.sqrt(own.total or 1.0), index=_members(reference)["model"].astype(str)
            )
            for reference, own in pair
        )
        freedom = len(first.index.intersection(second.index)) - len(pair[0][0].fit.theta)
        if first.index.is_unique and second.index.is_unique and freedom > 0:
            correlations.append(float((first * second).sum() / freedom))
    # Benchmarks that go against each other are taken as independent: chance does it where members are few.
    common = float(np.clip(np.mean(correlations), 0.0, 1.0)) if correlations else 0.0
    # One stream for all: the variance is drawn once, whichever benchmark it is used on.
    name, count = (references[0].name,), len(known)
    return [None if own is None else replace(own, stream=name, common=common, benchmarks=count) for own in single]


def _members(reference: Reference) -> pd.DataFrame:
    """Return the points that entered the fit, in its order."""
    return reference.points[~reference.points["held_out"].astype(bool)]

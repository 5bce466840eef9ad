r"""Ways to say what a model to come will be able to do, from nothing but its size, its maker and its date.

All speak of the same thing: draws of the model's vector of abilities on a frozen joint scale (one per trait, then the
free factors), from which scores on any test, the general ability and the density follow. With b the size slope,

.. math:: x_m = b \ln N_m + g(t_m) + e_m

and forecasters differ in g (a line in time, a level, the last model) and in whose residuals e they draw from. Residuals
are drawn as whole vectors, a family at a time: what sets makers apart, and what a maker's models share, stays in them.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pandas as pd

from densing.core import Array, named_seed, named_stream
from densing.scores.joint import JointScale
from densing.scores.trend.data import DAYS_PER_MONTH

SIMILAR = 1.5
"""Sizes within this factor are similar."""
FEWEST = 10
"""A window is stretched into the past until it holds this many models, of three families."""
OWN_ERRORS = 20
"""From this many earlier errors on, a test has a spread of its own."""


@dataclass(frozen=True)
class Known:
    """What was known when the catalog was frozen; n models, R draws, K dimensions of ability.

    Parameters
    ----------
    models : pandas.DataFrame
        One row per model: ``model, family, organisation, days, log_params``; days since 2023-02-24, ln of a count.
    abilities : array, shape (R, n, K)
        Draws of their vectors of abilities.
    slopes : array, shape (R, K)
        What a unit of ln N adds to each ability, within families.
    scores : pandas.DataFrame
        What they scored: ``model, test, score``, scores in [0, 1].
    scale : JointScale, optional
        The frozen scale, for scores; without it only abilities can be forecast.
    """

    models: pd.DataFrame
    abilities: Array
    slopes: Array
    scores: pd.DataFrame
    scale: JointScale | None = None


class Forecaster(Protocol):
    """Draws abilities and scores of models to come."""

    @property
    def name(self) -> str: ...

    @property
    def label(self) -> str:
        """Return its assumption, for sentences."""
        ...

    def abilities(self, known: Known, later: pd.DataFrame, seed: int = 0) -> Array:
        """Return draws (R, m, K) for models of ``later`` (columns as ``known.models``)."""
        ...

    def scores(self, known: Known, later: pd.DataFrame, cells: pd.DataFrame, seed: int = 0) -> Array:
        """Return draws (R, c) of scores for ``cells`` (``model, test, trait, evaluator, se``) of these models."""
        ...


def size_slopes(abilities: Array, families: Array, log_params: Array, seed: int = 0) -> Array:
    r"""Return the slope of each ability in ln N within families, by draw.

    .. math:: b = \frac{\sum_f w_f \sum_{i \in f} (n_i - \bar n_f)\, x_i}{\sum_f w_f \sum_{i \in f} (n_i - \bar n_f)^2},
        \quad n = \ln N

    Weights w_f of families are standard exponential, anew in each draw.

    Source: the fixed-effects estimator; Bayesian bootstrap of clusters: Rubin 1981, doi:10.1214/aos/1176345338.

    Parameters
    ----------
    abilities : array, shape (R, n, K)
    families : array, shape (n,)
    log_params : array, shape (n,)
    seed : int

    Returns
    -------
    array, shape (R, K)
        0 where no family has two sizes.

    Examples
    --------
    >>> sizes = np.log([1e9, 4e9, 2e9, 8e9])
    >>> size_slopes(sizes[None, :, None] * 0.5, np.array(["a", "a", "b", "b"]), sizes).round(3).tolist()
    [[0.5]]
    """
    codes = np.unique(families, return_inverse=True)[1]
    count = np.bincount(codes)
    x = log_params - (np.bincount(codes, log_params) / count)[codes]
    weights = named_stream(seed, "size slopes").exponential(size=(len(abilities), len(count)))
    spread = weights @ np.bincount(codes, x * x)
    # The deviations of x sum to zero within a family, so abilities need no centring.
    cross = np.einsum("rn,rnk->rk", weights[:, codes] * x, abilities)
    return np.asarray(cross / np.where(spread > 0, spread, np.inf)[:, None])


def family_donors(families: Array, later: Array, draws: int, seed: int, name: str) -> Array:
    """Return for each draw and later model the known model that lends its residual, shape (draws, m).

    A later family draws a known one in proportion to its number of models; each of its models draws a member of that
    family.
    """
    _, codes = np.unique(families, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(codes))])
    donors = np.empty((draws, len(later)), dtype=int)
    for family in np.unique(later):
        rng = named_stream(seed, "donors", name, str(family))
        chosen = codes[rng.integers(len(codes), size=draws)]
        for position in np.flatnonzero(later == family):
            member = first[chosen] + (rng.random(draws) * (first[chosen + 1] - first[chosen])).astype(int)
            donors[:, position] = order[member]
    return donors


@dataclass(frozen=True)
class Line:
    """A line through the models of a window, a level where it does not move, and the spread of models around it.

    Parameters
    ----------
    name, label : str
    moving : bool
        Whether abilities at fixed size have a slope in time; if not, the window's models are used unchanged.
    months : float
        Length of the window before the newest known model; infinite reaches back to Llama-1 (2023-02-24).
    """

    name: str
    label: str
    moving: bool
    months: float

    def window(self, known: Known) -> Array:
        """Return the positions of the models of the window, stretched where it holds too few."""
        days = known.models["days"].to_numpy(dtype=float)
        families = known.models["family"].to_numpy(dtype=str)
        start = max(0.0, days.max() - self.months * DAYS_PER_MONTH)
        latest = np.argsort(-days, kind="stable")
        enough = FEWEST
        while enough < len(days) and len(np.unique(families[latest[:enough]])) < 3:
            enough += 1
        return np.flatnonzero(days >= min(start, days[latest[min(enough, len(days)) - 1]]))

    def line(self, known: Known, seed: int) -> tuple[Array, Array, Array]:
        """Return the level (R, K) on day 0, the slope per day (R, K) and the residuals (R, window, K)."""
        rows = self.window(known)
        models = known.models.iloc[rows]
        days, codes = models["days"].to_numpy(dtype=float), np.unique(models["family"], return_inverse=True)[1]
        fixed = known.abilities[:, rows] - known.slopes[:, None, :] * models["log_params"].to_numpy()[:, None]
        # Exponential weights of families: unlike counts they never leave a line without two dates.
        weights = named_stream(seed, "line", self.name).exponential(size=(len(fixed), int(codes.max()) + 1))[:, codes]
        weights /= weights.sum(axis=1, keepdims=True)
        ahead = days - (weights @ days)[:, None]
        level = np.einsum("rn,rnk->rk", weights, fixed)
        slope = np.zeros_like(level)
        if self.moving:
            spread = (weights * ahead**2).sum(axis=1)
            slope = np.einsum("rn,rnk->rk", weights * ahead, fixed) / np.maximum(spread, 1e-9)[:, None]
        residual = fixed - level[:, None] - slope[:, None] * ahead[:, :, None]
        return level - slope * (weights @ days)[:, None], slope, residual

    def abilities(self, known: Known, later: pd.DataFrame, seed: int = 0) -> Array:
        """Return draws (R, m, K): the line at each model's date and size, plus the residual of a known model."""
        level, slope, residual = self.line(known, seed)
        families = known.models["family"].to_numpy(dtype=str)[self.window(known)]
        donors = family_donors(families, later["family"].to_numpy(dtype=str), len(level), seed, self.name)
        days, sizes = (later[name].to_numpy(dtype=float)[:, None] for name in ("days", "log_params"))
        middle = level[:, None] + slope[:, None] * days + known.slopes[:, None] * sizes
        return np.asarray(middle + np.take_along_axis(residual, donors[:, :, None], axis=1))

    def scores(self, known: Known, later: pd.DataFrame, cells: pd.DataFrame, seed: int = 0) -> Array:
        """Return draws (R, c) of scores: abilities through each test's frozen parameters, with all noise."""
        return _through_tests(known, later, cells, self.abilities(known, later, seed), seed)


def _through_tests(known: Known, later: pd.DataFrame, cells: pd.DataFrame, abilities: Array, seed: int) -> Array:
    assert known.scale is not None, "scores are forecast on a scale"
    draws = np.empty((len(abilities), len(cells)))
    names = cells["model"].to_numpy(dtype=str)
    # Model by model, each under a seed of its own: who else is forecast changes nothing.
    for position, model in enumerate(later["model"].astype(str)):
        own = names == model
        if own.any():
            new = {model: abilities[:, position]}
            draws[:, own] = known.scale.predict(cells[own], named_seed(seed, "scores", model), new=new)
    return np.clip(draws, 0.0, 1.0)


TREND = Line("trend", "the trend of all models since Llama-1, carried on", moving=True, months=math.inf)
RECENT = Line("recent trend", "the trend of the last 18 months, carried on", moving=True, months=18.0)
STILL = Line("standing still", "models as dense as those of the last 12 months", moving=False, months=12.0)


@dataclass(frozen=True)
class Nearest:
    """The latest known model of similar size, unchanged; this rule's past errors, with either sign, are the spread."""

    name: str = "nearest"
    label: str = "each model like the latest one of similar size"

    def abilities(self, known: Known, later: pd.DataFrame, seed: int = 0) -> Array:
        """Return draws (R, m, K): the vector of the nearest model plus or minus an earlier error of this rule."""
        models, count = known.models, len(known.abilities)
        days, sizes = (models[name].to_numpy(dtype=float) for name in ("days", "log_params"))
        past = [(i, nearest(days, sizes, sizes[i], before=days[i])) for i in range(len(models))]
        pairs = np.array([(i, j) for i, j in past if j is not None], dtype=int).reshape(-1, 2)
        draws = np.empty((count, len(later), known.abilities.shape[2]))
        for position, row in enumerate(later.itertuples()):
            rng = named_stream(seed, self.name, str(row.model))
            draws[:, position] = known.abilities[:, nearest(days, sizes, float(row.log_params))]
            if len(pairs):
                i, j = pairs[rng.integers(len(pairs), size=count)].T
                error = known.abilities[np.arange(count), i] - known.abilities[np.arange(count), j]
                draws[:, position] += rng.choice([-1.0, 1.0], size=count)[:, None] * error
        return draws

    def scores(self, known: Known, later: pd.DataFrame, cells: pd.DataFrame, seed: int = 0) -> Array:
        """Return draws (R, c): the score of the nearest model measured on the test; NaN where there is none."""
        table = known.scores.merge(known.models[["model", "days", "log_params"]], on="model")
        by_test = {str(test): rows for test, rows in table.groupby("test")}
        errors: dict[str, list[float]] = {}
        for test, rows in by_test.items():
            days, sizes, scores = (rows[name].to_numpy(dtype=float) for name in ("days", "log_params", "score"))
            past = [nearest(days, sizes, sizes[i], before=days[i]) for i in range(len(rows))]
            errors[test] = [scores[i] - scores[j] for i, j in enumerate(past) if j is not None]
        pooled = [error for part in errors.values() for error in part] or [0.0]
        size_of = dict(zip(later["model"], later["log_params"], strict=True))
        draws = np.full((len(known.abilities), len(cells)), np.nan)
        for position, (model, test) in enumerate(zip(cells["model"], cells["test"], strict=True)):
            rows = by_test.get(str(test))
            if rows is None:
                continue
            days, sizes, scores = (rows[name].to_numpy(dtype=float) for name in ("days", "log_params", "score"))
            own = errors[str(test)] if len(errors[str(test)]) >= OWN_ERRORS else pooled
            rng = named_stream(seed, self.name, str(model), str(test))
            error = rng.choice(own, size=len(draws)) * rng.choice([-1.0, 1.0], size=len(draws))
            draws[:, position] = np.clip(scores[nearest(days, sizes, float(size_of[model]))] + error, 0.0, 1.0)
        return draws


def nearest(days: Array, log_params: Array, size: float, before: float = math.inf) -> int | None:
    """Return the position of the latest model within a factor 1.5 in size; if there is none, of the nearest size.

    Parameters
    ----------
    days, log_params : array, shape (n,)
    size : float
        ln N of the model to be like.
    before : float
        Models from this day on are ignored.

    Examples
    --------
    >>> sizes = np.log([7e9, 8e9, 70e9])
    >>> nearest(np.array([0.0, 100.0, 300.0]), sizes, np.log(7e9)), nearest(np.zeros(3), sizes, 0.0, before=0.0)
    (1, None)
    """
    gap = np.abs(log_params - size)
    allowed = days < before
    if not allowed.any():
        return None
    similar = allowed & (gap <= math.log(SIMILAR) + 1e-9)
    if similar.any():
        return int(np.lexsort((gap, -np.where(similar, days, -np.inf)))[0])
    return int(np.lexsort((-days, np.where(allowed, gap, np.inf)))[0])


@dataclass(frozen=True)
class Maker:
    """The maker's last generation, extrapolated along the trend; for a new maker the trend alone."""

    name: str = "maker's trend"
    label: str = "each maker's last generation, carried on along the trend of all models"
    line: Line = TREND

    def abilities(self, known: Known, later: pd.DataFrame, seed: int = 0) -> Array:
        """Return draws (R, m, K): the trend, the residual of the maker's last family, and how such residuals change."""
        draws = self.line.abilities(known, later, seed)
        level, slope, residual = self.line.line(known, seed)
        models = known.models.iloc[self.line.window(known)].reset_index(drop=True)
        members = {str(family): rows.to_numpy() for family, rows in models.groupby("family").groups.items()}
        last = models.groupby(["organisation", "family"])["days"].max().reset_index().sort_values(["days", "family"])
        generations = {str(maker): rows["family"].tolist() for maker, rows in last.groupby("organisation")}
        mean = {family: residual[:, rows].mean(axis=1) for family, rows in members.items()}
        # What changed from one generation of a maker to its next, over all makers that had two.
        changes = [mean[new] - mean[old] for made in generations.values() for old, new in itertools.pairwise(made)]
        if not changes:
            return draws
        change = np.stack(changes, axis=1)
        count = np.arange(len(draws))
        for position, row in enumerate(later.itertuples()):
            if str(row.organisation) not in generations:
                continue
            # One change for a family, a member's place in its own family for each of its models.
            turn = named_stream(seed, self.name, str(row.family)).integers(change.shape[1], size=len(draws))
            own = members[generations[str(row.organisation)][-1]]
            place = named_stream(seed, self.name, str(row.family), str(row.model)).choice(own, size=len(draws))
            middle = level + slope * float(row.days) + known.slopes * float(row.log_params)
            draws[:, position] = middle + residual[count, place] + change[count, turn]
        return draws

    def scores(self, known: Known, later: pd.DataFrame, cells: pd.DataFrame, seed: int = 0) -> Array:
        """Return draws (R, c) of scores: abilities through each test's frozen parameters, with all noise."""
        return _through_tests(known, later, cells, self.abilities(known, later, seed), seed)


@dataclass(frozen=True)
class Pool:
    """Equal mixture of all others: a draw comes from one of them, chosen at random (linear opinion pool, Stone 1961).

    Weights do not depend on past performance, so nothing is tuned to a back-test.
    """

    members: tuple[Forecaster, ...]
    name: str = "equal parts"
    label: str = "all other forecasts in equal parts"

    def abilities(self, known: Known, later: pd.DataFrame, seed: int = 0) -> Array:
        """Return draws (R, m, K)."""
        parts = np.stack([member.abilities(known, later, seed) for member in self.members])
        chosen = named_stream(seed, self.name, "abilities").integers(len(parts), size=parts.shape[1:3])
        return np.asarray(np.take_along_axis(parts, chosen[None, :, :, None], axis=0)[0])

    def scores(self, known: Known, later: pd.DataFrame, cells: pd.DataFrame, seed: int = 0) -> Array:
        """Return draws (R, c)."""
        parts = np.stack([member.scores(known, later, cells, seed) for member in self.members])
        chosen = named_stream(seed, self.name, "scores").integers(len(parts), size=parts.shape[1:])
        return np.asarray(np.take_along_axis(parts, chosen[None], axis=0)[0])


SINGLE: tuple[Forecaster, ...] = (STILL, Nearest(), TREND, RECENT, Maker())
FORECASTERS: tuple[Forecaster, ...] = (*SINGLE, Pool(SINGLE))
"""The simplest first: of forecasters that a back-test cannot tell apart the first is taken."""

"""Gain of a training change: one ratio of densities or tokens, from all pairs of an arm's and plain losses.

A pair is a plain run and an arm's of equal size, budget and seed, which share initialisation and order of blocks. The
model of all pairs has one shift in common,

.. math:: \\ln L_{arm} - \\ln L_{plain} = \\ln L(\\rho N, D) - \\ln L(N, D) + u_{N,s} + e

with L the law fitted to the plain runs and u the effect of a size and seed, which its budgets share; the token ratio
puts L(N, tau D) in place of L(rho N, D).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import stats

from densing.core import Array, InputError, named_stream
from densing.scores.fit import LawFit
from densing.scores.ladder.arms import PLAIN

Axis = Literal["params", "tokens"]
Status = Literal["ok", "flat", "below_floor", "above_ceiling", "few_pairs"]
FEW_CLUSTERS = 6
LIMIT = math.log(100.0)
"""Ratios beyond a hundred are not told apart: the law says nothing so far from where it was fitted."""
FLAT = 1.0
"""Half-width of a ln ratio above which the law is too flat to be inverted: the ratio is not known to a factor of e."""
NO_LOSS = 0.97
PAIR = ("size", "seed", "tokens")
_GRID = np.linspace(-LIMIT, LIMIT, 25)
_STEPS = 8
_SLOPE = 1e-4


@dataclass(frozen=True)
class Shift:
    """A ratio with its interval.

    Parameters
    ----------
    axis : {"params", "tokens"}
        Of densities, or of tokens.
    ratio : float or None
        None where the law cannot say: see ``status``.
    lo, hi : float or None
        Ends of the interval; None where it has none.
    status : {"ok", "flat", "below_floor", "above_ceiling", "few_pairs"}
        ``flat``: an end is missing, or the half-width is above a factor of e; the end that is there is a bound.
        ``below_floor`` and ``above_ceiling``: the losses are those of a hundredth, or of a hundred times, the size (or
        tokens), or beyond what any reaches. ``few_pairs``: fewer than six clusters of size and seed.
    trend, trend_lo, trend_hi : float or None
        d ln ratio / d ln D, and its interval; None with one budget.
    pairs, clusters : int
    draws : ndarray, shape (R,)
        ln ratio in each draw.

    See Also
    --------
    fit_shift : makes it.
    """

    axis: Axis
    ratio: float | None
    lo: float | None
    hi: float | None
    status: Status
    trend: float | None
    trend_lo: float | None
    trend_hi: float | None
    pairs: int
    clusters: int
    draws: Array

    @property
    def half_width(self) -> float:
        """Half the width of the interval of the ln ratio; infinite where an end is missing."""
        if self.lo is None or self.hi is None:
            return math.inf
        return (math.log(self.hi) - math.log(self.lo)) / 2

    @property
    def no_loss(self) -> str:
        """Non-inferiority: ``yes`` where the interval's lower end is .97 or more, ``no`` where all of it is below.

        An interval that merely holds 1 decides nothing.
        """
        if self.status == "few_pairs":
            return "not decided"
        if self.lo is not None and self.lo >= NO_LOSS:
            return "yes"
        return "no" if self.hi is not None and self.hi < NO_LOSS else "not decided"


def pair_table(losses: pd.DataFrame, arm: str, baseline: str = PLAIN) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Pair an arm's losses with the baseline's of equal size, seed and tokens.

    Parameters
    ----------
    losses : pandas.DataFrame
        ``arm, size, seed, tokens, params_non_embedding, loss``.
    arm, baseline : str

    Returns
    -------
    pairs : pandas.DataFrame
        ``size, seed, tokens, params, params_arm, plain, arm``; an arm that prunes keeps fewer parameters.
    unmatched : pandas.DataFrame
        ``arm, size, seed, tokens, reason``: cells of one of the two alone, and losses that are not positive numbers.

    Examples
    --------
    >>> row = {"size": "d8", "params_non_embedding": 1384, "tokens": 1000.0}
    >>> runs = [("plain", 0, 3.0), ("plain", 1, 3.0), ("a", 0, 2.9)]
    >>> losses = pd.DataFrame([row | {"arm": arm, "seed": seed, "loss": loss} for arm, seed, loss in runs])
    >>> pairs, unmatched = pair_table(losses, "a")
    >>> len(pairs), unmatched["reason"].tolist()
    (1, ['no run of a'])
    """
    columns = [*PAIR, "params_non_embedding", "loss"]
    sides = {}
    bad = []
    for name in (baseline, arm):
        rows = losses.loc[losses["arm"].eq(name), columns]
        good = np.isfinite(rows["loss"].to_numpy(float)) & (rows["loss"].to_numpy(float) > 0)
        bad.append(rows.loc[~good, list(PAIR)].assign(arm=name, reason="loss is not a positive number"))
        if rows.duplicated(list(PAIR)).any():
            cell = rows.loc[rows.duplicated(list(PAIR)), list(PAIR)].iloc[0]
            raise InputError(
                f"arm {name}: size {cell['size']}, seed {cell['seed']}, {cell['tokens']:,.0f} tokens occurs twice; "
                "keep one of the exports"
            )
        sides[name] = rows[good]
    both = sides[baseline].merge(sides[arm], on=list(PAIR), how="outer", suffixes=("", "_arm"), indicator=True)
    alone = [
        both.loc[both["_merge"].eq(side), list(PAIR)].assign(arm=name, reason=f"no run of {other}")
        for side, name, other in (("left_only", baseline, arm), ("right_only", arm, baseline))
    ]
    known = pd.concat(bad)
    # A cell whose loss is not a number is listed once, as that.
    unmatched = pd.concat([known, *alone], ignore_index=True)
    if len(known):
        cells = set(known[list(PAIR)].itertuples(index=False, name=None))
        spoilt = [tuple(cell) in cells for cell in unmatched[list(PAIR)].itertuples(index=False, name=None)]
        unmatched = unmatched[~(np.array(spoilt) & unmatched["reason"].str.startswith("no run"))]
    whole = both[both["_merge"].eq("both")]
    pairs = pd.DataFrame(
        {
            **{name: whole[name] for name in PAIR},
            "params": whole["params_non_embedding"].astype(float),
            "params_arm": whole["params_non_embedding_arm"].astype(float),
            "plain": whole["loss"].astype(float),
            "arm": whole["loss_arm"].astype(float),
        }
    ).reset_index(drop=True)
    return pairs, unmatched[["arm", *PAIR, "reason"]].reset_index(drop=True)


def fit_shift(
    law: LawFit,
    pairs: pd.DataFrame,
    axis: Axis = "params",
    *,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    trend: bool = True,
) -> Shift:
    """Fit one shift to all pairs, by least squares on differences of ln loss.

    The interval resamples clusters of (size, seed), because the budgets of a run share its stable stage; within each
    draw the law is another of its own draws. Deviations are widened from a normal's to Student's t with G - 1 degrees
    of freedom, and by sqrt(G / (G - 1)): a resampled mean of G clusters varies by so much too little. G is the
    effective number of clusters, as small sizes, where the law is steep, say most.

    Source: cluster bootstrap, Cameron, Gelbach and Miller, "Bootstrap-Based Improvements for Inference with Clustered
    Errors", Review of Economics and Statistics 90 (2008), section III; the widening of few clusters ibid., section II;
    clusters of unequal weight, Carter, Schnepel and Steigerwald, "Asymptotic Behavior of a t-Test Robust to Cluster
    Heterogeneity", ibid. 99 (2017), section III.

    Parameters
    ----------
    law : LawFit
        Loss in (``params``, ``tokens``), fitted to the plain runs, with draws.
    pairs : pandas.DataFrame
        See :func:`pair_table`.
    axis : {"params", "tokens"}
        What is multiplied: size (density ratio) or tokens (token ratio).
    draws : int
    level : float
    seed : int
    trend : bool
        Whether the trend with ln D is fitted too.

    Raises
    ------
    InputError
        When there is no pair.

    Examples
    --------
    >>> from densing.scores.ladder import simulated_ladder
    >>> from densing.scores.ladder.fits import fit_loss
    >>> losses = simulated_ladder(rho=0.8, noise=0.0)
    >>> pairs, _ = pair_table(losses, "arm")
    >>> law = fit_loss(losses[losses["arm"].eq("plain")], draws=20)
    >>> round(fit_shift(law, pairs, draws=200).ratio, 1)
    0.8
    """
    if pairs.empty:
        raise InputError("no pair of an arm's and a plain run of equal size, seed and tokens; train both arms alike")
    problem = _Problem(law, pairs, axis)
    clusters = len(problem.names)
    point = problem.shift(law.theta[None], np.ones((1, clusters)))
    rng = named_stream(seed, f"gain-{axis}")
    weights = rng.multinomial(clusters, np.full(clusters, 1 / clusters), size=draws).astype(float)
    thetas = law.draws[rng.integers(len(law.draws), size=draws)] if len(law.draws) else law.theta[None].repeat(draws, 0)
    sample = problem.shift(thetas, weights)
    effective = problem.clusters(law.theta, float(point[0]))
    trends: tuple[float | None, float | None, float | None] = (None, None, None)
    if trend and clusters > 1 and problem.budgets > 1:
        center = problem.trend(law.theta[None], np.ones((1, clusters)), point)
        trends = (float(center[0]), *_ends(float(center[0]), problem.trend(thetas, weights, sample), effective, level))
    ln = float(point[0])
    low, high = _ends(ln, sample, effective, level) if clusters > 1 else (None, None)
    edge = LIMIT - 1e-6
    low = None if low is None or low <= -edge else low
    high = None if high is None or high >= edge else high
    status: Status = "ok"
    if ln >= edge:
        status = "above_ceiling"
    elif ln <= -edge:
        status = "below_floor"
    elif clusters < FEW_CLUSTERS:
        status = "few_pairs"
    elif low is None or high is None or (high - low) / 2 > FLAT:
        status = "flat"
    return Shift(
        axis,
        # With no end on either side the best value is where the noise has put it.
        math.exp(ln) if abs(ln) < edge and not (low is None and high is None) else None,
        None if low is None else math.exp(low),
        None if high is None else math.exp(high),
        status,
        *trends,
        len(pairs),
        clusters,
        sample,
    )


def _ends(center: float, sample: Array, clusters: float, level: float) -> tuple[float, float]:
    tail = (1 - level) / 2
    widen = float(stats.t.ppf(1 - tail, clusters - 1) / stats.norm.ppf(1 - tail)) * math.sqrt(clusters / (clusters - 1))
    low, high = np.quantile(sample - center, [tail, 1 - tail])
    return center + widen * float(low), center + widen * float(high)


class _Problem:
    """Least squares of many draws at once; pairs of one size and budget are one cell, for the law is equal there."""

    def __init__(self, law: LawFit, pairs: pd.DataFrame, axis: Axis) -> None:
        self.law, self.axis = law.law, axis
        groups = pairs.groupby(["params", "params_arm", "tokens"], sort=True)
        cell = groups.ngroup().to_numpy()
        plain, params, tokens = np.array(list(groups.groups), dtype=float).T
        self.plain, self.x = {"params": plain, "tokens": tokens}, {"params": params, "tokens": tokens}
        self.budgets = len(np.unique(self.x["tokens"]))
        logs = np.log(self.x["tokens"])
        self.z = logs - logs.mean()
        names = pairs.groupby(["size", "seed"], sort=True)
        self.names = list(names.groups)
        cluster = names.ngroup().to_numpy()
        y = np.log(pairs["arm"].to_numpy(float)) - np.log(pairs["plain"].to_numpy(float))
        # A cell's weight and weighted sum are linear in how often each cluster was drawn.
        self.count = np.zeros((len(self.names), len(self.z)))
        self.total = np.zeros_like(self.count)
        np.add.at(self.count, (cluster, cell), 1.0)
        np.add.at(self.total, (cluster, cell), y)

    def shift(self, theta: Array, weights: Array) -> Array:
        """Return ln ratio per draw, within the limits: the best of a grid, then Gauss-Newton between its neighbours."""
        weight, mean = self._cells(weights)
        base = np.log(self.law.predict(theta, self.plain))
        costs = np.empty((len(theta), len(_GRID)))
        for number, ln in enumerate(_GRID):
            gap = mean - (self._curve(theta, np.full(len(theta), ln)) - base)
            costs[:, number] = (weight * gap**2).sum(axis=1)
        # Where no draw of a cluster tells ratios apart (all losses equal the plain ones), the middle is as good.
        best = costs.argmin(axis=1)
        ln = _GRID[best]
        low, high = _GRID[np.maximum(best - 1, 0)], _GRID[np.minimum(best + 1, len(_GRID) - 1)]
        for _ in range(_STEPS):
            value, ahead = self._curve(theta, ln), self._curve(theta, ln + _SLOPE)
            slope = (ahead - value) / _SLOPE
            gap = mean - (value - base)
            with np.errstate(all="ignore"):
                step = (weight * slope * gap).sum(axis=1) / (weight * slope**2).sum(axis=1)
            ln = np.clip(ln + np.where(np.isfinite(step), step, 0.0), low, high)
        return ln

    def clusters(self, theta: Array, ln: float) -> float:
        """Return the effective number of clusters, (sum of weights)^2 / sum of their squares, between 2 and all."""
        at = np.array([ln])
        slope = (self._curve(theta[None], at + _SLOPE) - self._curve(theta[None], at))[0] / _SLOPE
        weight = self.count @ slope**2
        squares = float(weight @ weight)
        return max(2.0, float(weight.sum()) ** 2 / squares) if squares > 0 else float(len(self.names))

    def trend(self, theta: Array, weights: Array, start: Array) -> Array:
        """Return d ln ratio / d ln D per draw: Gauss-Newton on level and slope from a level, damped."""
        weight, mean = self._cells(weights)
        base = np.log(self.law.predict(theta, self.plain))
        level, slope = start.copy(), np.zeros(len(start))
        for _ in range(_STEPS):
            ln = np.clip(level[:, None] + slope[:, None] * self.z, -LIMIT, LIMIT)
            value, ahead = self._curve(theta, ln), self._curve(theta, ln + _SLOPE)
            d, gap = (ahead - value) / _SLOPE, mean - (value - base)
            a, b, c = ((weight * d**2 * self.z**k).sum(axis=1) for k in range(3))
            p, q = ((weight * d * gap * self.z**k).sum(axis=1) for k in range(2))
            a, c = a * (1 + 1e-9) + 1e-300, c * (1 + 1e-9) + 1e-300
            determinant = a * c - b**2
            with np.errstate(all="ignore"):
                steps = (c * p - b * q) / determinant, (a * q - b * p) / determinant
            level, slope = (
                old + np.where(np.isfinite(step), np.clip(step, -1.0, 1.0), 0.0)
                for old, step in zip((level, slope), steps, strict=True)
            )
        return slope

    def _cells(self, weights: Array) -> tuple[Array, Array]:
        weight = weights @ self.count
        with np.errstate(all="ignore"):
            mean = np.where(weight > 0, (weights @ self.total) / weight, 0.0)
        return weight, mean

    def _curve(self, theta: Array, ln: Array) -> Array:
        """Return ln L with the input times e^ln, shape (draws, cells); ``ln`` is (draws,) or (draws, cells)."""
        if ln.ndim == 1:
            # One factor per draw is the same curve with another coefficient.
            return np.log(self.law.predict(self.law.rescale(theta, {self.axis: np.exp(-ln)}), self.x))  # type: ignore[dict-item]
        x: dict[str, Any] = {name: np.broadcast_to(values, ln.shape)[..., None] for name, values in self.x.items()}
        x[self.axis] = x[self.axis] * np.exp(ln)[..., None]
        each = np.broadcast_to(theta[:, None, :], (*ln.shape, theta.shape[-1]))
        return np.log(self.law.predict(each, x)[..., 0])


def pair_noise(pairs: pd.DataFrame) -> dict[str, float]:
    """Return how pairs of one size and budget differ: the sd of ln(arm / plain) that budgets share, and the rest.

    Parameters
    ----------
    pairs : pandas.DataFrame
        See :func:`pair_table`.

    Returns
    -------
    dict
        ``common`` (of a size and seed) and ``noise`` (of each budget), as :func:`simulated_ladder` takes them; 0 where
        one seed says nothing.

    Examples
    --------
    >>> pairs, _ = pair_table(simulated_ladder(noise=0.003, common=0.01, seeds=200), "arm")
    >>> {part: round(sd, 3) for part, sd in pair_noise(pairs).items()}
    {'common': 0.01, 'noise': 0.003}
    """
    y = np.log(pairs["arm"] / pairs["plain"])
    cells = [pairs["size"], pairs["tokens"]]
    counts = y.groupby(cells).transform("size")
    # What is left of a cell's mean is smaller by its own degree of freedom.
    left = ((y - y.groupby(cells).transform("mean")) * np.sqrt(counts / (counts - 1).clip(lower=1)))[counts > 1]
    clusters = left.groupby([pairs["size"], pairs["seed"]])
    budgets, within = clusters.size(), clusters.var(ddof=1)
    noise = float(within.mean()) if within.notna().any() else 0.0
    common = float((clusters.mean() ** 2).mean() - noise / budgets.mean()) if len(left) else 0.0
    return {"common": math.sqrt(max(common, 0.0)), "noise": math.sqrt(noise)}


def unpaired_resolution(
    law: LawFit, losses: pd.DataFrame, *, seeds: int = 3, level: float = 0.95, pooled: bool = False
) -> pd.DataFrame:
    """Return how fine single sizes are without pairs: two arms of some seeds each at the largest budget.

    The half-width of ln rho is z sd sqrt(2 / seeds) / |d ln L / d ln N|.

    Parameters
    ----------
    law : LawFit
        Loss in (``params``, ``tokens``).
    losses : pandas.DataFrame
        Of the plain runs: ``size, params_non_embedding, tokens, loss``.
    seeds : int
    level : float
    pooled : bool
        Take one sd of losses for all sizes, the root of the mean variance: where questions scatter, not training, sizes
        scatter alike, and few seeds say little of each.

    Returns
    -------
    pandas.DataFrame
        ``size, params, slope, sd, half_width, token_half_width``: d ln L / d ln N there, and the sd of ln loss between
        seeds; a row per size with two seeds or more, ascending.

    Examples
    --------
    >>> from densing.scores.ladder.fits import fit_loss
    >>> plain = simulated_ladder(seeds=20)
    >>> plain = plain[plain["arm"].eq("plain")]
    >>> table = unpaired_resolution(fit_loss(plain, draws=5), plain)
    >>> table["half_width"].is_monotonic_increasing, len(table)
    (True, 4)
    """
    rows = losses[losses["tokens"].eq(losses["tokens"].max())]
    z = float(stats.norm.ppf((1 + level) / 2))
    variances = rows.groupby(["size", "params_non_embedding"])["loss"].agg(["var", "count"]).dropna()
    common = math.sqrt(np.average(variances["var"], weights=variances["count"] - 1)) if len(variances) else math.nan
    result = []
    for (size, params), group in rows.groupby(["size", "params_non_embedding"], sort=False):
        if len(group) < 2:
            continue
        at = {"params": np.array([float(params)]), "tokens": np.array([float(group["tokens"].iloc[0])])}
        here = np.log(law.predict(at))
        slopes = {
            axis: float((np.log(law.predict({**at, axis: at[axis] * math.exp(_SLOPE)})) - here)[0] / _SLOPE)
            for axis in ("params", "tokens")
        }
        sd = common / float(law.predict(at)[0]) if pooled else float(np.log(group["loss"]).std(ddof=1))
        widths = {axis: z * sd * math.sqrt(2 / seeds) / abs(slope) for axis, slope in slopes.items()}
        result.append((size, float(params), slopes["params"], sd, widths["params"], widths["tokens"]))
    columns = ["size", "params", "slope", "sd", "half_width", "token_half_width"]
    return pd.DataFrame(result, columns=columns).sort_values("params", ignore_index=True)


def shifts_by(
    law: LawFit, pairs: pd.DataFrame, column: str, *, draws: int = 400, level: float = 0.95, seed: int = 0
) -> pd.DataFrame:
    """Return both ratios for each size, or each budget, alone.

    Parameters
    ----------
    column : {"size", "tokens"}

    Returns
    -------
    pandas.DataFrame
        ``by, value, density_ratio, density_lo, density_hi, token_ratio, token_lo, token_hi, pairs, status``.
    """
    rows = []
    # Sizes from small to large, not by their names.
    ordered = pairs.sort_values("params", kind="stable") if column == "size" else pairs.sort_values(column)
    for value, group in ordered.groupby(column, sort=False):
        options = {"draws": draws, "level": level, "seed": seed, "trend": False}
        density, tokens = (fit_shift(law, group, axis, **options) for axis in ("params", "tokens"))  # type: ignore[arg-type]
        rows.append({"by": column, "value": str(value), **ratio_columns(density, tokens)})
    return pd.DataFrame(rows)


def ratio_columns(density: Shift, tokens: Shift) -> dict[str, Any]:
    """Return both ratios as the columns of a table."""
    return {
        "density_ratio": density.ratio,
        "density_lo": density.lo,
        "density_hi": density.hi,
        "token_ratio": tokens.ratio,
        "token_lo": tokens.lo,
        "token_hi": tokens.hi,
        "pairs": density.pairs,
        "status": density.status,
    }


def simulated_ladder(
    *,
    rho: float = 1.0,
    tau: float = 1.0,
    noise: float = 0.01,
    common: float = 0.01,
    spread: float = 0.02,
    sizes: Sequence[float] = (1384, 3084, 5456, 12216),
    budgets: Sequence[float] = (3.07e5, 5.38e5, 9.47e5, 1.64e6),
    seeds: int = 6,
    theta: Mapping[str, float] | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Return losses of a ladder whose arm has a known density and token ratio, as :func:`pair_table` takes them.

    Parameters
    ----------
    rho, tau : float
        Injected: the arm's losses are L(rho N, tau D).
    noise, common : float
        Sd of ln loss between an arm's run and its plain one: of each budget, and of all budgets of a size and seed.
    spread : float
        Sd of ln loss between runs, which the pairs share.
    sizes, budgets : sequence of float
    seeds : int
    theta : mapping of str to float, optional
        E, A, B, alpha, beta of Chinchilla's law; a law like the CPU ladder's validation loss when left out.
    seed : int

    Examples
    --------
    >>> simulated_ladder(sizes=[1000], budgets=[1e6], seeds=1)["arm"].tolist()
    ['plain', 'arm']
    """
    law = {"E": 1.4, "A": 12.0, "B": 350.0, "alpha": 0.4, "beta": 0.48} if theta is None else dict(theta)
    rng = np.random.default_rng([seed, 11])

    def loss(params: float, tokens: float) -> float:
        return float(law["E"] + law["A"] * params ** -law["alpha"] + law["B"] * tokens ** -law["beta"])

    rows = []
    for params in sizes:
        for number in range(seeds):
            shared, own = spread * rng.standard_normal(), common * rng.standard_normal()
            for tokens in budgets:
                cell = {
                    "size": f"n{params:g}", "seed": number, "tokens": float(tokens), "params_non_embedding": params,
                    "run": f"n{params:g}-s{number}",
                }  # fmt: skip
                plain = math.log(loss(params, tokens)) + shared + spread / 4 * rng.standard_normal()
                moved = math.log(loss(rho * params, tau * tokens) / loss(params, tokens))
                arm = plain + moved + own + noise * rng.standard_normal()
                rows.append({"arm": PLAIN, **cell, "loss": math.exp(plain)})
                rows.append({"arm": "arm", **cell, "loss": math.exp(arm)})
    return pd.DataFrame(rows)


def coverage(
    *, ladders: int = 200, draws: int = 300, law_draws: int = 40, seed: int = 0, **world: Any
) -> dict[str, float]:
    """Return how often the intervals hold what was injected into simulated ladders, and the null test with rho = 1.

    Parameters
    ----------
    ladders : int
    draws, law_draws : int
        Of each gain, and of the law fitted to the ladder's plain runs.
    seed : int
    **world
        Of :func:`simulated_ladder`.

    Returns
    -------
    dict
        ``density`` and ``token``: shares of the 95 % intervals that hold rho (where tau is 1) and tau (where rho is 1);
        ``resolution``: median half-width of ln rho.

    Examples
    --------
    >>> sorted(coverage(ladders=1, draws=50, law_draws=5))
    ['density', 'resolution', 'token']
    """
    from densing.scores.ladder.fits import fit_loss

    held: dict[str, list[bool]] = {"density": [], "token": []}
    widths = []
    truth = {"density": float(world.get("rho", 1.0)), "token": float(world.get("tau", 1.0))}
    for number in range(ladders):
        losses = simulated_ladder(seed=seed + number, **world)
        law = fit_loss(losses[losses["arm"].eq(PLAIN)], draws=law_draws, seed=number)
        pairs, _ = pair_table(losses, "arm")
        for name, axis in (("density", "params"), ("token", "tokens")):
            shift = fit_shift(law, pairs, axis, draws=draws, seed=number, trend=False)  # type: ignore[arg-type]
            low = 0.0 if shift.lo is None else shift.lo
            high = math.inf if shift.hi is None else shift.hi
            held[name].append(low <= truth[name] <= high)
            if name == "density":
                widths.append(shift.half_width)
    return {**{name: float(np.mean(values)) for name, values in held.items()}, "resolution": float(np.median(widths))}

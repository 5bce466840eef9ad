"""Gain of a training change: pairs of losses, their ratios by part, resolution, and simulated ladders.

A pair is a plain run and an arm's of equal size, budget and seed, which share initialisation and order of blocks. The
ratio of all pairs is :mod:`densing.scores.ladder.shift`'s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from densing.core import InputError
from densing.scores.fit import LawFit
from densing.scores.ladder.arms import PLAIN
from densing.scores.ladder.shift import Shift, fit_shift

PAIR = ("size", "seed", "tokens")


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


def pair_noise(pairs: pd.DataFrame) -> dict[str, float]:
    """Return how runs of one size and budget differ: of ln(arm / plain) and of ln plain, shared by budgets and not.

    Parameters
    ----------
    pairs : pandas.DataFrame
        See :func:`pair_table`.

    Returns
    -------
    dict
        As :func:`simulated_ladder` takes them: sd of ln(arm / plain), ``common`` of a size and seed and ``noise`` of
        each budget; sd of ln plain, ``spread`` and ``ripple``; 0 where one seed says nothing.

    Examples
    --------
    >>> pairs, _ = pair_table(simulated_ladder(noise=0.003, common=0.01, seeds=200), "arm")
    >>> {part: round(sd, 3) for part, sd in pair_noise(pairs).items()}
    {'common': 0.01, 'noise': 0.003, 'spread': 0.02, 'ripple': 0.005}
    """
    both = _parts(pairs, np.log(pairs["arm"] / pairs["plain"])), _parts(pairs, np.log(pairs["plain"]))
    return dict(zip(("common", "noise", "spread", "ripple"), (*both[0], *both[1]), strict=True))


def _parts(pairs: pd.DataFrame, y: pd.Series[float]) -> tuple[float, float]:
    """Return the sd that budgets of a size and seed share, and that of each."""
    cells = [pairs["size"], pairs["tokens"]]
    counts = y.groupby(cells).transform("size")
    # What is left of a cell's mean is smaller by its own degree of freedom.
    left = ((y - y.groupby(cells).transform("mean")) * np.sqrt(counts / (counts - 1).clip(lower=1)))[counts > 1]
    clusters = left.groupby([pairs["size"], pairs["seed"]])
    budgets, within = clusters.size(), clusters.var(ddof=1)
    noise = float(within.mean()) if within.notna().any() else 0.0
    common = float((clusters.mean() ** 2).mean() - noise / budgets.mean()) if len(left) else 0.0
    return math.sqrt(max(common, 0.0)), math.sqrt(noise)


def shifts_by(
    law: LawFit, plain: pd.DataFrame, pairs: pd.DataFrame, column: str, *, level: float = 0.95
) -> pd.DataFrame:
    """Return both ratios for each size, or each budget, alone; all plain runs say what the law is.

    Parameters
    ----------
    law, plain, pairs, level
        As for :func:`fit_shift`.
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
        density, tokens = (fit_shift(law, plain, group, axis, level=level) for axis in ("params", "tokens"))
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


LAW: Mapping[str, float] = {"E": 1.4, "A": 12.0, "B": 350.0, "alpha": 0.4, "beta": 0.48}
"""Of Chinchilla, like that of the CPU ladder's validation loss."""


def simulated_ladder(
    *,
    rho: float = 1.0,
    tau: float = 1.0,
    noise: float = 0.01,
    common: float = 0.01,
    spread: float = 0.02,
    ripple: float | None = None,
    sizes: Sequence[float] = (1384, 3084, 5456, 12216),
    budgets: Sequence[float] = (3.07e5, 5.38e5, 9.47e5, 1.64e6),
    seeds: int = 6,
    theta: Mapping[str, float] | None = None,
    steep: float = 0.0,
    bend: float = 0.0,
    cross: float = 0.0,
    lump: float = 0.0,
    tails: float = math.inf,
    seed: int = 0,
) -> pd.DataFrame:
    """Return losses of a ladder whose arm has a known density and token ratio, as :func:`pair_table` takes them.

    Parameters
    ----------
    rho, tau : float
        Injected: the arm's losses are L(rho N, tau D).
    noise, common : float
        Sd of ln loss between an arm's run and its plain one: of each budget, and of all budgets of a size and seed.
    spread, ripple : float
        Sd of ln loss between runs, which the pairs share: of all budgets, and of each; a quarter when left out.
    sizes, budgets : sequence of float
    seeds : int
    theta : mapping of str to float, optional
        E, A, B, alpha, beta of Chinchilla's law; :data:`LAW` when left out.
    steep : float
        All sds fall with N to this power, about the middle size: small models are noisier.
    bend : float
        d ln tau / d ln D: ``tau`` is that of the middle budget, and no one ratio holds.
    cross : float
        Of a term sqrt(A N^-alpha B D^-beta), which Chinchilla's law has not.
    lump : float
        Sd of ln loss between the arms that all runs of a size share.
    tails : float
        Degrees of freedom, above 2, of Student's t that all noise is drawn from, of the same sd; normal when infinite.
    seed : int

    Examples
    --------
    >>> simulated_ladder(sizes=[1000], budgets=[1e6], seeds=1)["arm"].tolist()
    ['plain', 'arm']
    """
    law = LAW if theta is None else dict(theta)
    rng = np.random.default_rng([seed, 11])
    ripple = spread / 4 if ripple is None else ripple
    middle, middle_size = (math.exp(float(np.mean(np.log(axis)))) for axis in (budgets, sizes))

    def drawn() -> float:
        """Return a number of mean 0 and variance 1."""
        return rng.standard_normal() if math.isinf(tails) else rng.standard_t(tails) * math.sqrt(1 - 2 / tails)

    def loss(params: float, tokens: float) -> float:
        of_size, of_tokens = law["A"] * params ** -law["alpha"], law["B"] * tokens ** -law["beta"]
        return float(law["E"] + of_size + of_tokens + cross * math.sqrt(of_size * of_tokens))

    rows = []
    for params in sizes:
        scale = (params / middle_size) ** -steep
        of_size = lump * drawn() if lump else 0.0
        for number in range(seeds):
            shared, own = spread * drawn(), common * drawn()
            for tokens in budgets:
                cell = {
                    "size": f"n{params:g}", "seed": number, "tokens": float(tokens), "params_non_embedding": params,
                    "run": f"n{params:g}-s{number}",
                }  # fmt: skip
                worth = tau * tokens * (tokens / middle) ** bend
                both = scale * (shared + ripple * drawn())
                apart = scale * (own + noise * drawn())
                rows.append({"arm": PLAIN, **cell, "loss": loss(params, tokens) * math.exp(both)})
                rows.append(
                    {"arm": "arm", **cell, "loss": loss(rho * params, worth) * math.exp(both + apart + of_size)}
                )
    return pd.DataFrame(rows)


WORLDS: Mapping[str, Mapping[str, float]] = {
    "no change": {},
    "tokens x 1.2": {"tau": 1.2},
    "tokens x 2": {"tau": 2.0},
    "tokens x 0.5": {"tau": 0.5},
    "tokens x 0.22": {"tau": 0.22},
    "density x 0.8": {"rho": 0.8},
    "small models noisier": {"steep": 0.5},
    "tokens x 0.5, heavy tails": {"tau": 0.5, "tails": 3.0},
    "noise shared by a size": {"lump": 0.01},
    "tokens x 0.5, not one ratio": {"tau": 0.5, "bend": -0.3},
    "tokens x 0.5, another law": {"tau": 0.5, "cross": 1.0},
}
"""What is planted in simulated ladders; the last four break what the model takes for granted."""


def coverage(
    *, ladders: int = 200, level: float = 0.95, seed: int = 0, world: str = "", **options: Any
) -> dict[str, float]:
    """Return how often the intervals hold what was planted in simulated ladders, and what is said of the arm.

    Parameters
    ----------
    ladders : int
    level : float
        Of the intervals.
    seed : int
    world : str
        One of :data:`WORLDS`; nothing beside the options when empty.
    **options
        Of :func:`simulated_ladder`.

    Returns
    -------
    dict
        ``held``: share of the intervals that hold the planted ratio (of the middle budget, where it is not one);
        ``gain`` and ``loss``: shares that lie above 1 and below it; ``not_one``: share in which the test rejects that
        one ratio holds; ``half_width`` of ln ratio, median. Of densities where ``rho`` is planted, of tokens elsewhere.

    Examples
    --------
    >>> found = coverage(ladders=2, world="tokens x 2", seeds=3)
    >>> found["gain"], round(found["half_width"], 1)
    (1.0, 0.1)
    """
    from densing.scores.ladder.fits import fit_loss

    planted: dict[str, Any] = {**options, **WORLDS.get(world, {})}
    axis, name = ("params", "rho") if "rho" in planted else ("tokens", "tau")
    truth = planted.get(name, 1.0)
    rows = []
    for number in range(ladders):
        losses = simulated_ladder(seed=seed + number, **planted)
        plain = losses[losses["arm"].eq(PLAIN)]
        shift = fit_shift(fit_loss(plain), plain, pair_table(losses, "arm")[0], axis, level=level)  # type: ignore[arg-type]
        low = 0.0 if shift.lo is None else shift.lo
        high = math.inf if shift.hi is None else shift.hi
        rows.append((low <= truth <= high, low > 1, high < 1, not shift.one, shift.half_width))
    held, gain, loss, not_one, width = zip(*rows, strict=True)
    shares = {"held": held, "gain": gain, "loss": loss, "not_one": not_one}
    return {**{key: float(np.mean(values)) for key, values in shares.items()}, "half_width": float(np.median(width))}

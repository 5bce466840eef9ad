"""Targets whose density the law says beforehand: does the measured one agree?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from densing.core import Array
from densing.scores.fit import LawFit, spread

FLOOR = "shuffled"


def check_targets(
    fit: LawFit, targets: pd.DataFrame, tokens: float, *, level: float = 0.95, seed: int = 0
) -> pd.DataFrame:
    """Compare the loss and the density measured for each kind of target with what the loss law says.

    A target of N parameters trained on D tokens, a share u of them useful against u0 in the ladder, should have the
    loss L(N, D u / u0), and so the effective parameters that L(., D0) needs for it. A shuffled target should be at the
    floor: its effective parameters below the smallest size of the ladder.

    Parameters
    ----------
    fit : LawFit
        Loss in (N, D) of the ladder.
    targets : pandas.DataFrame
        Rows of one task: ``target, size, run, params_non_embedding, tokens, useful, useful_ladder, loss, accuracy``.
    tokens : float
        D0.
    level : float
        Level of the intervals.
    seed : int
        Seed of the noise.

    Returns
    -------
    pandas.DataFrame
        A row per kind of target, size and budget: ``target, size, tokens, runs, accuracy, loss, loss_law, loss_law_lo,
        loss_law_hi, density, density_lo, density_hi, density_law, density_law_lo, density_law_hi, agrees``. The
        interval of the law's loss is one for new runs: it holds the law's draws, its misfit and the noise of as many
        runs as were trained. Densities divide by N and are infinite where no size reaches the loss at D0.
    """
    rows = []
    for (kind, size, trained), group in targets.groupby(["target", "size", "tokens"], sort=True):
        row = _check(fit, group, tokens, level, seed)
        if kind == FLOOR:
            lowest = fit.domain["params"][0] / float(group["params_non_embedding"].iloc[0])
            row |= {name: 0.0 for name in row if name.startswith("density_law")}
            row |= {name: float("nan") for name in row if name.startswith("loss_law")}
            row["agrees"] = row["density_hi"] < lowest
        rows.append({"target": kind, "size": size, "tokens": trained, "runs": len(group), **row})
    return pd.DataFrame(rows)


def _check(fit: LawFit, group: pd.DataFrame, tokens: float, level: float, seed: int) -> dict[str, Any]:
    first = group.iloc[0]
    size = float(first["params_non_embedding"])
    trained = float(first["tokens"]) * float(first["useful"]) / float(first["useful_ladder"])
    x = {"params": np.array([size]), "tokens": np.array([trained])}
    measured = float(np.exp(np.log(group["loss"].to_numpy(float)).mean()))
    noise = np.exp(_run_noise(fit, len(group), seed))
    predicted, draws = float(fit.law.predict(fit.theta, x)[0]), fit.law.predict(fit.draws, x)[:, 0]
    low, high = (float(end) for end in spread(draws * noise, level))
    return {
        "accuracy": float(group["accuracy"].mean()),
        "loss": measured,
        "loss_law": predicted,
        "loss_law_lo": low,
        "loss_law_hi": high,
        **_density("density", fit, measured, measured * noise, tokens, size, level),
        **_density("density_law", fit, predicted, draws, tokens, size, level),
        "agrees": low <= measured <= high,
    }


def _density(
    name: str, fit: LawFit, loss: float, draws: Array, tokens: float, size: float, level: float
) -> dict[str, float]:
    """Return a density with its ends: the size that the law needs for the loss at D0, over the size there is."""
    point = float(fit.law.invert(fit.theta, loss, tokens=tokens)[0])
    low, high = spread(fit.law.invert(fit.draws, draws, tokens=tokens)[0], level)
    return {name: point / size, f"{name}_lo": float(low) / size, f"{name}_hi": float(high) / size}


def _run_noise(fit: LawFit, runs: int, seed: int) -> Array:
    """Return draws of the log error of the law for the mean of some new runs, with the width of Student's t.

    What the law gets wrong about a size and a budget is shared by all runs there and does not average out; what runs
    differ by does. Both are estimated from the residuals, by analysis of variance over sizes and budgets.
    """
    cells = pd.Series(fit.residuals).groupby([fit.x["params"], fit.x["tokens"]])
    counts = cells.size()
    spare = len(fit.residuals) - len(counts)
    within = float(((fit.residuals - cells.transform("mean")) ** 2).sum() / spare) if spare else 0.0
    freedom = max(len(counts) - len(fit.theta), 1)
    between = max(float((cells.mean() ** 2).sum() / freedom) - within / float(counts.mean()), 0.0)
    rng = np.random.default_rng([seed, 7])
    scale = np.sqrt((between + within / runs) * freedom / rng.chisquare(freedom, size=len(fit.draws)))
    return np.asarray(scale * rng.standard_normal(len(fit.draws)))

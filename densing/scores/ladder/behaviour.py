r"""Behaviour as a skill of a ladder: what models know of how films were received, as a law of the behaviour's loss.

.. math:: L_b(N, D) = E + A N^{-\alpha} + B D^{-\beta} \quad\text{bits of the right answer}

is fitted to the arm that was told behaviour; what any model loses on the same questions, it says as effective
parameters N̂ at D0 tokens, and as density N̂ / N. A loss beyond the law's reach has a status and no number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from densing.core import Array, InputError
from densing.scores.fit import LawFit, spread
from densing.scores.ladder.arms import BEHAVIOUR, PLAIN

PREFIX = "lcbm_films_"
LOSS = "bits"
SCORES = (
    "bits_floor", "bits_stderr", "close", "close_floor", "rmse", "rmse_floor", "r2", "acc", "acc_stderr",
    "close_stderr", "no_number",
)  # fmt: skip


def behaviour_table(exports: Iterable[Mapping[str, Any]], measurements: pd.DataFrame) -> pd.DataFrame:
    """Join what was trained with what its models know of behaviour.

    Parameters
    ----------
    exports : iterable of mapping
        Descriptions, see :func:`densing.scores.ladder.read_exports`.
    measurements : pandas.DataFrame
        ``model, task, metric, value, stderr, n_items``; a model's name may have a mark behind ``@`` that tells two ways
        of asking it apart.

    Returns
    -------
    pandas.DataFrame
        A row per model and task with a loss: ``run, arm, size, seed, tokens, params_non_embedding, task, n_items``,
        the loss ``bits``, and :data:`SCORES` where the task has them.
    """
    described = {str(export["name"]): export for export in exports}
    rows = []
    of_films = measurements[measurements["task"].astype(str).str.startswith(PREFIX)]
    for (model, task), group in of_films.groupby(["model", "task"], sort=True):
        export = described.get(str(model).partition("@")[0])
        values = dict(zip(group["metric"], pd.to_numeric(group["value"], errors="coerce"), strict=True))
        if export is None or LOSS not in values:
            continue
        errors = dict(zip(group["metric"] + "_stderr", pd.to_numeric(group["stderr"], errors="coerce"), strict=True))
        rows.append(
            {
                **{name: export[name] for name in ("run", "size", "seed", "tokens", "params_non_embedding")},
                "arm": export.get("arm") or PLAIN,
                "task": str(task),
                "n_items": int(group["n_items"].max()),
                LOSS: values[LOSS],
                **{name: value for name, value in {**values, **errors}.items() if name in SCORES},
            }
        )
    columns = ["run", "arm", "size", "seed", "tokens", "params_non_embedding", "task", "n_items", LOSS]
    return pd.DataFrame(rows, columns=[*columns, *SCORES])


def told(arm: str) -> bool:
    """Whether an arm was told behaviour.

    Examples
    --------
    >>> told("behaviour:split=director"), told("plain")
    (True, False)
    """
    return arm.partition(":")[0] == BEHAVIOUR


def behaviour_density(
    law: LawFit, losses: Array, params: float, *, tokens: float, level: float = 0.95, seed: int = 0
) -> dict[str, Any]:
    """Return N̂ and density of a model from its losses on the questions of a law.

    Parameters
    ----------
    law : LawFit
        Loss in (N, D), see :func:`densing.scores.ladder.fit_loss`.
    losses : array
        Bits, one per run or draw of questions; their mean counts.
    params : float
        Non-embedding parameters that divide.
    tokens : float
        D0.
    level : float
        Of the interval: over the law's draws and, where there are several losses, over these.
    seed : int

    Returns
    -------
    dict
        ``loss, n_eff, density, density_lo, density_hi, status``. The status is ``below_floor`` where the loss is more
        than the law's smallest size has, ``above_ceiling`` where no size reaches it, ``extrapolated`` beyond the
        largest size; of the first two the density is a bound, at the smallest and at the largest size.

    Raises
    ------
    InputError
        When there is no loss.

    Examples
    --------
    >>> from densing.scores.ladder import fit_loss, simulated_ladder
    >>> plain = simulated_ladder().query("arm == 'plain'")
    >>> fit = fit_loss(plain, draws=20)
    >>> at = float(fit.predict({"params": np.array([5456.0]), "tokens": np.array([1e6])})[0])
    >>> found = behaviour_density(fit, np.array([at]), 5456.0, tokens=1e6)
    >>> round(found["density"], 3), found["status"]
    (1.0, 'ok')
    """
    losses = np.asarray(losses, dtype=float)
    losses = losses[np.isfinite(losses)]
    if not len(losses):
        raise InputError("no finite loss of behaviour; evaluate the model on a task of lcbm_films_loss")
    loss = float(losses.mean())
    smallest, largest = law.domain["params"]
    worst, best = (
        float(law.predict({"params": np.array([size]), "tokens": np.array([tokens])})[0])
        for size in (smallest, largest)
    )
    size = float(np.asarray(law.law.invert(law.theta, loss, tokens=tokens)[0]))
    row: dict[str, Any] = {
        "loss": loss,
        "n_eff": size,
        "density": size / params,
        "density_lo": None,
        "density_hi": None,
    }
    if loss > worst:
        return row | {"n_eff": smallest, "density": smallest / params, "density_hi": smallest / params,
                      "status": "below_floor"}  # fmt: skip
    if not np.isfinite(size):
        return row | {"n_eff": largest, "density": largest / params, "density_lo": largest / params,
                      "status": "above_ceiling"}  # fmt: skip
    rng = np.random.default_rng([seed, 11])
    drawn = losses[rng.integers(len(losses), size=(len(law.draws), len(losses)))].mean(axis=1)
    sizes = np.asarray(law.law.invert(law.draws, drawn, tokens=tokens)[0])
    low, high = (float(end) / params for end in spread(sizes, level))
    ends = {"density_lo": low if np.isfinite(low) else None, "density_hi": high if np.isfinite(high) else None}
    return row | ends | {"status": "extrapolated" if loss < best else "ok"}


def density_table(behaviour: pd.DataFrame, laws: Mapping[str, LawFit], tokens: float, level: float) -> pd.DataFrame:
    """Return N̂ and density of every size of every arm in each task with a law, at the budget of D0 tokens.

    Parameters
    ----------
    behaviour : pandas.DataFrame
        See :func:`behaviour_table`.
    laws : mapping of str to LawFit
        By task.
    tokens : float
        D0.
    level : float

    Returns
    -------
    pandas.DataFrame
        ``task, arm, size, params, runs`` and what :func:`behaviour_density` gives.
    """
    rows = []
    last = behaviour[behaviour["tokens"].eq(tokens)]
    for (task, arm, size), group in last.groupby(["task", "arm", "size"], sort=True):
        if task in laws:
            params = float(group["params_non_embedding"].iloc[0])
            about = {"task": task, "arm": arm, "size": size, "params": params, "runs": len(group)}
            found = behaviour_density(laws[str(task)], group[LOSS].to_numpy(), params, tokens=tokens, level=level)
            rows.append(about | found)
    table = pd.DataFrame(rows)
    return table.sort_values(["task", "arm", "params"], ignore_index=True) if rows else table

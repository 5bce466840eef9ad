r"""The pace in one evaluator's table, without a scale: an index of its models against size and date.

.. math:: y_{mb} = u_m + v_b + e_{mb}, \qquad u_m = \alpha + \beta \ln N_m + \gamma t_m + e_m

with y the log odds above chance, u the index of a model and v the ease of a test. Density grows by gamma / beta per
year. It is what a pilot does, and with rows taken in and out one kind at a time it tells what a difference between two
tables comes from.

Source: the second equation is that of Ho et al. 2024 (arXiv 2403.05812), with size in place of compute.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from densing.core import Array
from densing.scores.trend.contrasts import Contrast, Regression, estimate_contrast
from densing.scores.trend.data import DAYS_PER_YEAR, TrendData

FLOOR = 0.02
"""Shares above chance are kept within [0.02, 0.98]: beyond, a log odds is mostly noise."""


def table_index(cells: pd.DataFrame) -> pd.Series:
    """Return an index per model, in log odds: what its scores have in common, tests of different ease allowed for.

    Parameters
    ----------
    cells : pandas.DataFrame
        ``model, test, score, floor``.

    Examples
    --------
    >>> cells = pd.DataFrame({"model": ["a", "a", "b"], "test": ["x", "y", "y"], "score": [0.5, 0.8, 0.5]})
    >>> index = table_index(cells.assign(floor=0.0))
    >>> float(round(index["a"] - index["b"], 2))
    1.39
    """
    share = ((cells["score"] - cells["floor"]) / (1 - cells["floor"])).clip(FLOOR, 1 - FLOOR)
    y = np.log(share / (1 - share)).to_numpy(dtype=float)
    models, names = pd.factorize(cells["model"])
    tests, _ = pd.factorize(cells["test"])
    design = np.hstack([np.eye(models.max() + 1)[models], np.eye(tests.max() + 1)[tests]])
    solution = np.linalg.lstsq(design, y, rcond=None)[0]
    return pd.Series(solution[: len(names)], index=names.astype(str))


def table_data(cells: pd.DataFrame, models: pd.DataFrame, fewest: int = 3) -> tuple[TrendData, Array]:
    """Return the index of dated models with a size, and their ln(size); models of fewer cells are left out.

    Parameters
    ----------
    cells : pandas.DataFrame
        As for :func:`table_index`.
    models : pandas.DataFrame
        ``model, family, organisation, released, params_total_b`` of those that count.
    fewest : int
    """
    counts = cells["model"].value_counts()
    known = models[models["released"].notna() & models["params_total_b"].gt(0)]
    names = set(known["model"]) & set(counts.index[counts >= fewest])
    cells = cells[cells["model"].isin(names)]
    if cells.empty:
        return TrendData.from_arrays([], [], [], []), np.zeros(0)
    index = table_index(cells)
    facts = known.set_index("model").loc[index.index]
    family = facts["family"].fillna(pd.Series(facts.index, index=facts.index))
    data = TrendData.from_arrays(
        index.index.tolist(),
        family.tolist(),
        facts["released"],
        index.to_numpy(),
        organisation=facts["organisation"].fillna(family).to_numpy(dtype=str),
    )
    return data, np.log(facts["params_total_b"].to_numpy(dtype=float) * 1e9)


def table_pace(data: TrendData, log_size: Array, *, level: float = 0.95, seed: int = 0) -> Contrast:
    """Return by how much ln(density) grows per year: gamma / beta.

    Examples
    --------
    >>> days, size = np.arange(40.0) * 30, np.tile([20.0, 21.0, 22.0, 23.0], 10)
    >>> index = 0.5 * size + 0.4 * days / 365.25 + 0.01 * np.random.default_rng(0).standard_normal(40)
    >>> names = [f"m{i}" for i in range(40)]
    >>> toy = TrendData.from_arrays(names, names, np.datetime64("2023-02-24") + days.astype("m8[D]"), index)
    >>> round(table_pace(toy, size).estimate, 1)
    0.8
    """
    if len(data) < 5 or np.ptp(log_size) == 0 or np.ptp(data.days) == 0:
        return Contrast.missing(f"{len(data)} models of different size and date, at least 5 needed", len(data))
    design = np.column_stack([np.ones(len(data)), log_size, data.days / DAYS_PER_YEAR])
    return estimate_contrast([Regression(data, design)], lambda b: b[:, 2] / b[:, 1], level=level, seed=seed)

r"""What a joint scale must beat on the same cells: the Epoch Capabilities Index's form, and PCA with imputation.

Neither knows evaluators, floors, counts of items or intervals. Both are written anew from what their authors describe;
nothing of their code stands here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix
from scipy.special import expit, logit

from densing.core import Array, InputError

PENALTY = 0.1
"""Epoch's own strength of the L2 penalty, shared by all parameters."""
CLIP = 1e-3


@dataclass(frozen=True)
class EciFit:
    r"""One ability per model, one difficulty and slope per item: :math:`s = \sigma(a_j (\theta_m - b_j))`.

    Parameters
    ----------
    item : str
        Column that names the items: ``benchmark``, or ``test`` where every evaluator's harness is its own item.
    ability : pandas.Series
        By model.
    difficulty, slope : pandas.Series
        By item.
    cost : float
        Half the sum of squares with the penalty, at the minimum.

    See Also
    --------
    fit_eci
    """

    item: str
    ability: pd.Series
    difficulty: pd.Series
    slope: pd.Series
    cost: float

    def predict(self, table: pd.DataFrame) -> Array:
        """Return the expected score of each cell; NaN for a model or an item that was not fitted."""
        items = table[self.item]
        z = items.map(self.slope) * (table["model"].map(self.ability) - items.map(self.difficulty))
        return np.asarray(expit(z.to_numpy(dtype=float)))


def fit_eci(
    table: pd.DataFrame, item: str = "benchmark", penalty: float = PENALTY, known: EciFit | None = None
) -> EciFit:
    r"""Fit the form of the Epoch Capabilities Index by penalised least squares (Levenberg-Marquardt).

    .. math:: \min \sum (\sigma(a_j(\theta_m - b_j)) - s)^2 + \frac{\lambda}{p} (\sum\theta^2 + \sum b^2 + \sum a^2)

    Parameters
    ----------
    table : pandas.DataFrame
        ``model, score`` and the column of the items.
    item : str
        ``benchmark`` as the index does, or ``test``.
    penalty : float
        :math:`\lambda`; divided by the number of parameters p, as the index does.
    known : EciFit, optional
        Keep its items as they are, and find the abilities of this table's models only.

    Raises
    ------
    InputError
        When no cell is left to fit.

    Notes
    -----
    Source: Epoch AI (2025), Epoch Capabilities Index, and its public fitting script. The index fixes one benchmark to
    slope 1 and difficulty 0; here the penalty does, which leaves predictions as they are but for the penalty.

    Examples
    --------
    >>> from densing.scores.joint.cells import toy_cells
    >>> fit = fit_eci(toy_cells().table)
    >>> fit.ability.idxmin(), fit.ability.idxmax()
    ('m0', 'm9')
    """
    rows = table if known is None else table[table[item].isin(known.slope.index)]
    if rows.empty:
        raise InputError(f"the form of the Epoch Capabilities Index: no cell of {len(table)} to fit")
    score = np.clip(rows["score"].to_numpy(dtype=float), CLIP, 1 - CLIP)
    models, model = np.unique(rows["model"].to_numpy(dtype=str), return_inverse=True)
    items, code = np.unique(rows[item].to_numpy(dtype=str), return_inverse=True)
    n, m, j = len(rows), len(models), len(items)
    count = m + 2 * j
    weight = penalty / count
    start = -np.bincount(code, logit(np.clip(score, 0.03, 0.97)), j) / np.bincount(code, minlength=j)
    theta = np.concatenate([np.zeros(m), start, np.zeros(j)])
    free = np.arange(count)
    if known is not None:
        theta[m:] = np.concatenate([known.difficulty[items].to_numpy(), np.log(known.slope[items].to_numpy())])
        free = free[:m]
    lines = np.arange(n)

    def residuals(theta: Array) -> Array:
        slope = np.exp(theta[m + j :])
        z = slope[code] * (theta[model] - theta[m + code])
        return np.concatenate([expit(z) - score, np.sqrt(weight) * theta[: m + j], np.sqrt(weight) * slope])

    def jacobian(theta: Array) -> csr_matrix:
        slope = np.exp(theta[m + j :])
        gap = theta[model] - theta[m + code]
        share = expit(slope[code] * gap)
        steep = share * (1 - share) * slope[code]
        diagonal = np.concatenate([np.full(m + j, np.sqrt(weight)), np.sqrt(weight) * slope])
        values = np.concatenate([steep, -steep, steep * gap, diagonal])
        at = np.concatenate([lines, lines, lines, n + np.arange(count)])
        columns = np.concatenate([model, m + code, m + j + code, np.arange(count)])
        return csr_matrix((values, (at, columns)), shape=(n + count, count))

    rest = residuals(theta)
    damping = 1e-2
    for _ in range(200):
        slopes = jacobian(theta)[:, free]
        normal, gradient = (slopes.T @ slopes).toarray(), slopes.T @ rest
        while damping < 1e8:
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), gradient)
            there = theta.copy()
            there[free] -= step
            # A slope beyond e^5 is a stair, and its square would overflow.
            there[m + j :] = np.clip(there[m + j :], -5.0, 5.0)
            new = residuals(there)
            if new @ new <= rest @ rest:
                break
            damping *= 4
        else:
            break
        gain = rest @ rest - new @ new
        theta, rest, damping = there, new, max(damping / 5, 1e-9)
        if gain <= 1e-8 * (rest @ rest):
            break
    return EciFit(
        item,
        pd.Series(theta[:m], models),
        pd.Series(theta[m : m + j], items),
        pd.Series(np.exp(theta[m + j :]), items),
        float(rest @ rest / 2),
    )


@dataclass(frozen=True)
class PcaFit:
    """Principal components of the matrix of models and benchmarks, gaps filled by the components themselves.

    Parameters
    ----------
    mean, spread : pandas.Series
        By benchmark: what scores were standardised with.
    components : pandas.DataFrame
        Benchmarks in rows, K orthonormal columns.
    scores : pandas.DataFrame
        Models in rows, K columns.

    See Also
    --------
    fit_pca
    """

    mean: pd.Series
    spread: pd.Series
    components: pd.DataFrame
    scores: pd.DataFrame

    def predict(self, table: pd.DataFrame) -> Array:
        """Return the expected score of each cell, in [0, 1]; NaN for a model or a benchmark that was not fitted."""
        model = self.scores.index.get_indexer(table["model"])
        benchmark = self.components.index.get_indexer(table["benchmark"])
        z = (self.scores.to_numpy()[model] * self.components.to_numpy()[benchmark]).sum(axis=1)
        value = self.mean.to_numpy()[benchmark] + self.spread.to_numpy()[benchmark] * z
        return np.where((model >= 0) & (benchmark >= 0), np.clip(value, 0, 1), np.nan)


def fit_pca(table: pd.DataFrame, rank: int = 1, known: PcaFit | None = None) -> PcaFit:
    """Fit principal components with iterated imputation.

    Parameters
    ----------
    table : pandas.DataFrame
        ``model, benchmark, score``; several evaluators' scores of one pair are averaged.
    rank : int
        Components.
    known : PcaFit, optional
        Keep its components, and place this table's models on them by least squares.

    Raises
    ------
    InputError
        When there is no cell, or fewer models or benchmarks than components.

    Notes
    -----
    Source: Ruan et al., Observational Scaling Laws, arXiv 2405.10938, section 3.2 (three components, missing scores by
    iterated PCA).

    Examples
    --------
    >>> from densing.scores.joint.cells import toy_cells
    >>> fit = fit_pca(toy_cells().table, rank=1)
    >>> float(fit.predict(toy_cells().table).mean().round(1)) == float(toy_cells().table["score"].mean().round(1))
    True
    """
    rows = table if known is None else table[table["benchmark"].isin(known.mean.index)]
    matrix = rows.pivot_table(index="model", columns="benchmark", values="score", aggfunc="mean")
    if not 1 <= rank <= (min(matrix.shape) if known is None else known.components.shape[1]) or matrix.empty:
        raise InputError(f"PCA of {matrix.shape[0]} models and {matrix.shape[1]} benchmarks: no {rank} components")
    mean, spread = (matrix.mean(), matrix.std()) if known is None else (known.mean, known.spread)
    # Alike for all models, or of one model: nothing to standardise with.
    spread = spread.where(spread > 0).fillna(1.0)
    matrix = matrix.reindex(columns=mean.index)
    standard = ((matrix - mean) / spread).to_numpy()
    seen = np.isfinite(standard)
    if known is not None:
        axes = known.components.to_numpy()
        placed = [
            np.linalg.lstsq(axes[mask], row[mask], rcond=None)[0] for row, mask in zip(standard, seen, strict=True)
        ]
        return PcaFit(mean, spread, known.components, pd.DataFrame(placed, matrix.index))
    filled = np.where(seen, standard, 0.0)
    for _ in range(500):
        left, size, right = np.linalg.svd(filled, full_matrices=False)
        guess = (left[:, :rank] * size[:rank]) @ right[:rank]
        change = np.abs(np.where(seen, 0.0, guess - filled)).max()
        filled = np.where(seen, standard, guess)
        if change < 1e-4:
            break
    return PcaFit(
        mean,
        spread,
        pd.DataFrame(right[:rank].T, matrix.columns),
        pd.DataFrame(left[:, :rank] * size[:rank], matrix.index),
    )

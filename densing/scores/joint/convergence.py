"""Whether chains have reached what they draw from: rank-normalised split R-hat, and bulk effective sample size.

Source: Vehtari, Gelman, Simpson, Carpenter and Buerkner (2021), Rank-normalization, folding, and localization: an
improved R-hat for assessing convergence of MCMC, Bayesian Analysis 16, doi:10.1214/20-BA1221.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata

from densing.core import Array


def r_hat(draws: Array) -> Array:
    """Return the larger of R-hat of ranks and R-hat of folded ranks, each chain cut into halves.

    Near 1 where chains agree in place and in width; NaN for a quantity that never varies.

    Parameters
    ----------
    draws : array, shape (chains, n, k)
        Of k quantities; n is 4 or more.

    Returns
    -------
    array, shape (k,)

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> alike, apart = rng.standard_normal((2, 4, 500, 1))
    >>> bool(r_hat(alike)[0] < 1.01), bool(r_hat(apart + np.arange(4)[:, None, None])[0] > 1.2)
    (True, True)
    """
    halves = _halves(draws)
    folded = np.abs(halves - np.median(halves, axis=(0, 1)))
    return np.asarray(np.maximum(*(_ratio(_normal_scores(part)) for part in (halves, folded))))


def bulk_ess(draws: Array) -> Array:
    r"""Return how many independent draws tell the middle of the distribution as well.

    .. math:: ESS = m n / (1 + 2 \sum_t \rho_t)

    of m halves of length n, with the autocorrelations of normal scores up to where pairs of them turn negative (Geyer
    1992); never more than m n log10(m n). A quantity that never varies has 0.

    Parameters
    ----------
    draws : array, shape (chains, n, k)

    Returns
    -------
    array, shape (k,)

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> bool(1500 < bulk_ess(rng.standard_normal((4, 500, 1)))[0] < 2500)
    True
    >>> steps = rng.standard_normal((4, 500, 1))
    >>> bool(bulk_ess(steps.cumsum(axis=1))[0] < 20)
    True
    """
    scores = _normal_scores(_halves(draws))
    chains, length, _ = scores.shape
    centred = scores - scores.mean(axis=1, keepdims=True)
    spectrum = np.abs(np.fft.rfft(centred, 2 * length, axis=1)) ** 2
    # Mean over chains of the autocovariance at each lag.
    lagged = np.fft.irfft(spectrum, 2 * length, axis=1)[:, :length].mean(axis=0) / length
    within = lagged[0] * length / (length - 1)
    total = lagged[0] + scores.mean(axis=1).var(axis=0, ddof=1)
    moves = within > 0
    rho = 1 - (within - lagged) / np.where(moves, total, 1.0)
    rho[0] = 1.0
    pairs = rho[: length // 2 * 2].reshape(length // 2, 2, -1).sum(axis=1)
    # Geyer's initial monotone sequence: positive pairs, none above an earlier one.
    positive = np.logical_and.accumulate(pairs > 0, axis=0)
    time = 2 * np.where(positive, np.minimum.accumulate(pairs, axis=0), 0.0).sum(axis=0) - 1
    return np.where(moves, chains * length / np.maximum(time, 1 / np.log10(chains * length)), 0.0)


def _halves(draws: Array) -> Array:
    length = draws.shape[1] // 2
    return np.concatenate([draws[:, :length], draws[:, -length:]]).astype(float)


def _normal_scores(draws: Array) -> Array:
    count = draws.shape[0] * draws.shape[1]
    ranks = rankdata(draws.reshape(count, -1), axis=0)
    return np.asarray(ndtri((ranks - 0.375) / (count + 0.25)).reshape(draws.shape))


def _ratio(draws: Array) -> Array:
    length = draws.shape[1]
    within, between = draws.var(axis=1, ddof=1).mean(axis=0), draws.mean(axis=1).var(axis=0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.sqrt((length - 1) / length + between / within))

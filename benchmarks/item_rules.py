"""Rules of others on the items of a bank, and a few items' losses in place of all: for docs/results/items.md.

Own implementations, with the one-dimensional curves of the bank where a rule has several dimensions.

Source: Maia Polo et al., arXiv 2402.14992 (tinyBenchmarks): items are clustered by their IRT parameters, the item next
to each centre is an anchor with its cluster's share as weight; p-IRT takes the curves' predictions for items that are
not asked; gp-IRT weighs the two, by lambda = b^2 / (b^2 + v / (4 n)), with b the error of p-IRT on held-out models and
v the variance of an answer. Hofmann et al., arXiv 2509.11106 (Fluid Benchmarking): 2PL, the item of most Fisher
information at the ability so far, its mode under a standard normal prior. Saerndal, Swensson and Wretman, Model
Assisted Survey Sampling (1992), 6, for the regression estimate of a mean.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats
from scipy.special import expit

from densing.core import Array
from densing.scores.evals import RunStore
from densing.scores.items import AnswerTable, ItemBank
from densing.scores.items.irt import fit_curves, grid, posterior

HOLD = 5
"""Every so many-th calibrated model is held out to weigh gp-IRT's parts."""
ABILITIES = 4.0
"""Ends of the abilities that Fluid Benchmarking takes."""
LOSSES = (10, 20, 50, 100, 200)
LATE = 2
"""Last seeds of each size that no regression of losses knows."""


def anchors(bank: ItemBank, count: int, seed: int) -> tuple[Array, Array]:
    """Return the items next to the centres of clusters of the curves' parameters, and the clusters' shares."""
    from sklearn.cluster import KMeans

    points = np.column_stack([bank.slope, bank.intercept])
    clusters = KMeans(count, n_init=1, random_state=seed).fit(points)
    distance = ((points[None] - clusters.cluster_centers_[:, None]) ** 2).sum(2)
    return distance.argmin(1), np.bincount(clusters.labels_, minlength=count) / len(points)


def error_of_curves(table: AnswerTable) -> tuple[float, float]:
    """Return the mean error of predicted scores on items that were not asked, and the variance of an answer."""
    answers = table.answers.to_numpy(dtype=float)
    held = np.arange(len(answers)) % HOLD == 0
    curves = fit_curves(answers[~held])
    asked, rest = answers[held], answers[held][:, 1::2]
    asked = np.where(np.arange(answers.shape[1]) % 2 == 0, asked, np.nan)
    theta, weights, _ = posterior(asked, curves.slope, curves.intercept)
    predicted = weights @ expit(np.outer(theta, curves.slope) + curves.intercept)
    gap = np.where(np.isfinite(rest), predicted[:, 1::2] - rest, np.nan)
    return float(np.abs(np.nanmean(gap, 1)).mean()), float(np.nanvar(answers, 1).mean())


def tiny_benchmarks(bank: ItemBank, known: AnswerTable, later: AnswerTable, counts: tuple[int, ...],
                    seeds: int) -> list[tuple[str, int, float, float, float]]:  # fmt: skip
    """Return design, items, error in points, held (no interval: NaN) and half-width (NaN) for each model and seed."""
    error, variance = error_of_curves(known)
    answers = later.answers[bank.items["item"]].to_numpy(dtype=float)
    exists = np.isfinite(answers)
    truth, total, rows = np.nanmean(answers, 1), exists.sum(1), []
    for count in counts:
        share = error**2 / (error**2 + variance / (4 * count))
        for seed in range(seeds):
            at, weight = anchors(bank, count, seed)
            own = weight * exists[:, at]
            weighted = np.where(exists[:, at], answers[:, at], 0.0) @ np.diag(weight)
            mean = weighted.sum(1) / own.sum(1)
            asked = np.full(answers.shape, np.nan)
            asked[:, at] = answers[:, at]
            theta, weights, _ = posterior(asked, bank.slope, bank.intercept)
            predicted = weights @ expit(np.outer(theta, bank.slope) + bank.intercept)
            predicted = np.where(np.isfinite(asked), asked, predicted)
            curves = np.where(exists, predicted, 0.0).sum(1) / total
            for name, score in (
                ("tinyBenchmarks, IRT anchors", mean),
                ("tinyBenchmarks, gp-IRT", share * mean + (1 - share) * curves),
            ):
                rows += [(name, count, 100 * float(miss), math.nan, math.nan) for miss in score - truth]
    return rows


def fluid_benchmarking(
    bank: ItemBank, later: AnswerTable, counts: tuple[int, ...]
) -> list[tuple[str, int, float, float, float]]:
    """Return the same; the interval is that of the ability's Fisher information, mapped to scores by the curves."""
    answers = later.answers[bank.items["item"]].to_numpy(dtype=float)
    exists, truth = np.isfinite(answers), np.nanmean(answers, 1)
    theta, log_weight = grid()
    inside = np.abs(theta) <= ABILITIES
    theta, log = theta[inside], np.tile(log_weight[inside], (len(answers), 1))
    logits = np.outer(bank.slope, theta) + bank.intercept[:, None]
    softplus, models = np.logaddexp(0, logits), np.arange(len(answers))
    asked, ability, told, rows = ~exists, np.zeros(len(answers)), np.ones(len(answers)), []

    def score(at: Array) -> Array:
        p = expit(np.outer(at, bank.slope) + bank.intercept)
        return np.asarray(np.where(exists, p, 0.0).sum(1) / exists.sum(1))

    for count in range(1, max(counts) + 1):
        p = expit(np.outer(ability, bank.slope) + bank.intercept)
        information = np.where(asked, -1.0, bank.slope**2 * p * (1 - p))
        best = information.argmax(1)
        asked[models, best] = True
        log += answers[models, best, None] * logits[best] - softplus[best]
        ability = theta[log.argmax(1)]
        if count in counts:
            p = expit(np.outer(ability, bank.slope) + bank.intercept)
            told = 1 + np.where(asked & exists, bank.slope**2 * p * (1 - p), 0.0).sum(1)
            half = stats.norm.ppf(0.975) / np.sqrt(told)
            low, high, middle = score(ability - half), score(ability + half), score(ability)
            held = (low <= truth) & (truth <= high)
            misses = zip(middle - truth, held, (high - low) / 2, strict=True)
            rows += [("Fluid Benchmarking", count, 100 * m, float(h), 100 * w) for m, h, w in misses]
    return rows


def ladder_losses(folder: Path) -> tuple[Array, pd.DataFrame]:
    """Return the losses of a ladder's models on its questions (bits per byte), and size and seed of each model."""
    items = RunStore(folder / "eval").items()
    items = items.assign(
        item=items["task"] + "/" + items["doc_id"].astype(str), loss=items["nll"] / items["n_bytes"] / math.log(2)
    )
    table = items.pivot_table(index="model", columns="item", values="loss")
    parts = table.index.to_series().str.extract(r"d(?P<size>\d+)-s(?P<seed>\d+)-").astype(int)
    return table.to_numpy(dtype=float), parts


def loss_tries(losses: Array, known: Array, seeds: int) -> pd.DataFrame:
    """Try a few items' losses on models that the regression does not know: the plain mean, and two regressions.

    The regression takes a model's losses as linear in what the known models' losses say of an item: their mean and
    first principal component. It is fitted to the few items that are asked, and the residuals correct it.
    """
    mean = losses[known].mean(0)
    main = np.linalg.svd(losses[known] - losses[known].mean(1, keepdims=True) - mean + mean.mean())[2][0]
    rows = []
    for model in np.flatnonzero(~known):
        truth = losses[model].mean()
        for count in LOSSES:
            for seed in range(seeds):
                at = np.random.default_rng([seed, model, count]).choice(len(mean), count, replace=False)
                value, left = losses[model][at], math.sqrt(1 - count / len(mean))
                for name, columns in (("mean", []), ("one known mean", [mean]), ("mean and component", [mean, main])):
                    design = np.column_stack([np.ones(len(mean)), *columns])
                    weight, *_ = np.linalg.lstsq(design[at], value, rcond=None)
                    residual, free = value - design[at] @ weight, count - design.shape[1]
                    error = math.sqrt(residual @ residual / free / count) * left
                    miss = float((design @ weight).mean() - truth)
                    rows.append((name, count, miss, abs(miss) <= stats.t.ppf(0.975, free) * error))
    return pd.DataFrame(rows, columns=["design", "items", "error", "held"])

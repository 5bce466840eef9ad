"""How far models scatter around a ruler, learnt from the ruler's own members.

A reference model of size N does not score f(N): one recipe's models lie beside their curve by more than the sampling of
items explains. A score therefore stands for a range of reference sizes even when it and the curve are known exactly. In
the language of calibration, reading a size off one new score needs the variance of a new observation, not only that of
the curve.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pandas as pd

from densing.core import Array, named_stream
from densing.scores.fit import get_loss
from densing.scores.references import Reference

WITH_SCATTER, MEASUREMENT_ONLY = "with scatter", "measurement only"


@dataclass(frozen=True)
class Scatter:
    """Spread of models around a ruler.

    Parameters
    ----------
    total : float
        Variance of the members' residuals, on n - p degrees of freedom: squared score, or squared ln(loss).
    noise : float
        The part that the sampling of items explains: mean squared standard error of the members' scores.
    freedom : float
        Degrees of freedom behind ``total``; few of them widen the draws as Student's t.
    relative : bool
        Whether residuals are of logarithms (rulers that read losses).
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
    """Estimate the scatter of models around a ruler from its members' residuals.

    Parameters
    ----------
    reference : Reference
        The ruler; its points' ``score_se`` say how much of the residuals the sampling of items explains (0, where
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
    (0.008, 5.0)

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
        Rulers of one family, one per benchmark.

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
    >>> rulers = [load_reference("llama", name) for name in ("mmlu", "hellaswag", "arc_challenge")]
    >>> round(joint_scatter(rulers)[0].common, 1)
    0.6
    """
    single = [model_scatter(reference) for reference in references]
    known = [(reference, own) for reference, own in zip(references, single, strict=True) if own is not None]
    correlations = []
    for pair in combinations(known, 2):
        # Standardised, so that the squares of each sum to its degrees of freedom over the members.
        first, second = (
            pd.Series(ruler.fit.residuals / np.sqrt(own.total or 1.0), index=_members(ruler)["model"].astype(str))
            for ruler, own in pair
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

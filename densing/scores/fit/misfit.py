"""Does the curve bend away from its data, and does that matter? Lack of fit as a p value and as a size.

With enough runs every law is rejected: Chinchilla's own runs reject Chinchilla's law at p < 1e-7. What a reader needs
to know is what the misfit moves. So runs are left out at either end and the law is fitted again: a law of the right
form gives the same curve and the same exponents from fewer runs, a law of the wrong form gives others.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc

from densing.core import Array, Note, Severity, plain
from densing.scores.fit.lawfit import spread
from densing.scores.fit.solver import Fitter, Loss
from densing.scores.fit.table import FitTable
from densing.scores.laws import Law

# A polynomial that differs from the law's own derivatives by less than this share of its size says nothing new.
NEW_DIRECTION = 1e-6
# One table in twenty that follows its law bends this much by chance, and one in a hundred.
NOTED, MISFIT = 0.05, 0.01
LEVEL = 0.95
SURE = 2.0
"""Standard errors that a change must have over what noise alone would move."""
SMALLEST_PREDICTION = 0.01
"""A prediction that changes by less is held: 1 % of a loss, one point of a score."""
SMALLEST_EXPONENT = 0.1
"""An exponent that changes by less than this share of itself is held."""
ENDS = {"smallest": "without the smallest decade of runs", "largest": "without the largest decade of runs"}


@dataclass(frozen=True)
class Change:
    """What leaving out one end of the runs makes of a quantity.

    Parameters
    ----------
    quantity : str
        ``prediction``, or the name of an exponent.
    without : {"smallest", "largest"}
        Which end is left out.
    value, other : float
        With all runs, and without that end. A prediction is in the residual's space: ln(loss), or score.
    lo, hi : float
        The interval that the fit states for it; NaN without draws.
    se : float
        Standard error of ``other`` by the noise of the runs around a smooth curve.
    status : {"held", "unclear", "harmed"}
        ``held`` inside the stated interval, or where the change is negligible: less than 1 % of a loss, a point of a
        score, a tenth of an exponent. Beyond both, ``harmed`` where noise does not explain it and ``unclear`` where it
        may.
    """

    quantity: str
    without: str
    value: float
    other: float
    lo: float
    hi: float
    se: float
    status: Literal["held", "unclear", "harmed"]

    @property
    def size(self) -> float:
        """How far it changes."""
        return abs(self.other - self.value)


@dataclass(frozen=True)
class Misfit:
    """Lack of fit of a law, as a p value and as a size.

    Parameters
    ----------
    p : float
        Of "the law has the right form"; NaN where too few points can tell.
    changes : tuple of Change
        Of the prediction for a run a decade beyond the largest, without the largest decade, and of each exponent
        without either end. Empty where too few runs would be left.
    """

    p: float
    changes: tuple[Change, ...] = ()

    @property
    def prediction(self) -> Change | None:
        """The change of the prediction."""
        return next((change for change in self.changes if change.quantity == "prediction"), None)

    @property
    def moved(self) -> tuple[Change, ...]:
        """The exponents that the range decides, each at the end that moves it most."""
        exponents: dict[str, Change] = {}
        for change in self.changes:
            if change.quantity != "prediction" and change.status == "harmed":
                exponents[change.quantity] = max(exponents.get(change.quantity, change), change, key=lambda c: c.size)
        return tuple(exponents.values())


def collapsed(columns: Array, table: FitTable, keep: NDArray[np.bool_] | slice = slice(None)) -> tuple[Array, Array]:
    """Return columns (k, n) of runs as means over their clusters, times the root of the clusters' weights; and these.

    Without clusters every run is its own.
    """
    weights = table.cases[keep]
    columns = columns[:, keep]
    if table.clusters is not None:
        labels = np.unique(table.labels[keep], return_inverse=True)[1]
        sums = np.stack([np.bincount(labels, column * weights) for column in columns])
        weights = np.asarray(np.bincount(labels, weights), dtype=float)
        columns = sums / weights
    return columns * np.sqrt(weights), weights


def reset_test(fitter: Fitter, theta: Array, table: FitTable) -> tuple[float, float]:
    """Return the p value of "the curve is right", at scaled parameters (p,), and the noise around a smooth curve.

    F = (SS(r | J) - SS(r | J, Z)) / k / (SS(r | J, Z) / (n - p - k)): how much of the residuals r, beyond the
    law's own derivatives J, is explained by squares, cubes and products Z of the standardised log inputs; k is
    the number of directions that Z adds to J. Clusters count once, with the means of their rows. The noise is the root
    of the denominator; both are NaN where too few points can tell.

    Source: the score test against polynomial departures, Ramsey 1969 (RESET), in the form of Davidson and
    MacKinnon, "Econometric Theory and Methods", section 6.7 (Gauss-Newton regression).
    """
    curve, rows = fitter.rows(theta)
    residual = fitter.problem.loss.target(table.y) - curve
    logs = [np.log(values) for values in fitter.problem.x.values() if np.ptp(values) > 0]
    logs = [(column - column.mean()) / column.std() for column in logs]
    powers = [column**power for column in logs for power in (2, 3)]
    products = [a * b for i, a in enumerate(logs) for b in logs[:i]]
    if not logs:
        return float("nan"), float("nan")
    columns, weights = collapsed(np.stack([residual, *rows, *powers, *products]), table)
    columns[1:] /= np.linalg.norm(columns[1:], axis=1, keepdims=True) + 1e-300
    p, n = len(rows), columns.shape[1]
    left, size, _ = np.linalg.svd(columns[1 : 1 + p].T, full_matrices=False)
    own = left[:, size > 1e-10 * size[0]]
    # What is left of residuals and polynomials once the law's own directions are taken out of them.
    remainder, extra = ((part.T - own @ (own.T @ part.T)) for part in (columns[:1], columns[1 + p :]))
    left, size, _ = np.linalg.svd(extra, full_matrices=False)
    added = left[:, size > NEW_DIRECTION]
    freedom = n - own.shape[1] - added.shape[1]
    explained, total = np.sum((added.T @ remainder) ** 2), np.sum(remainder**2)
    rounding = weights.sum() * (1e-13 * max(1.0, float(np.abs(table.y).max()))) ** 2
    if not added.shape[1] or freedom < 2 or total <= rounding:
        return float("nan"), float("nan")
    noise = max((total - explained) / freedom, 1e-300)
    return float(fdtrc(added.shape[1], freedom, explained / added.shape[1] / noise)), float(np.sqrt(noise))


def estimate_misfit(fitter: Fitter, theta: Array, table: FitTable, draws: Array, below: float = 1.0) -> Misfit:
    """Return p value and size of a law's lack of fit.

    The runs are put in order of compute: the product of the inputs that are counts (params, or params x tokens). With
    the largest decade of it left out, how does the prediction for a run a decade beyond the largest change? In
    simulated worlds of a wrong form that change is as large as the bias of the prediction itself (median ratio 1.0 over
    nine kinds of misfit; without the smallest decade it is half of it). Exponents are compared without the largest and
    without the smallest decade. Of less than two decades of runs half are left out. A law of the loss has no decade:
    half of the range is left out, and the prediction is that for the best run.

    Source: fitting the small runs and predicting the large ones is how scaling laws are validated (arXiv 2203.15556,
    arXiv 2412.04403); the same refits say what of it is due to the law's form.

    Parameters
    ----------
    fitter : Fitter
        Law and loss on the table.
    theta : array, shape (p,)
        Best parameters, scaled.
    table : FitTable
    draws : array, shape (R, p)
        Of the fit, natural units; none leave the stated intervals NaN.
    below : float
        Sizes are estimated, by two more fits, only for p up to here.
    """
    p, noise = reset_test(fitter, theta, table)
    if not p <= below:
        return Misfit(p)
    problem = fitter.problem
    law, counts = problem.law, problem.law.log_inputs
    # Losses fall as runs grow.
    reach = np.sum([np.log(table.x[name]) for name in counts], axis=0) if counts else -np.log(table.x[law.inputs[0]])
    width = min(np.log(10.0), np.ptp(reach) / 2) if counts else np.ptp(reach) / 2
    keep = np.stack([reach >= reach.min() + width, reach <= reach.max() - width])
    # A refit of a piece with no run to spare meets its runs and says nothing; and one budget has no ends.
    if width == 0 or min(len(np.unique(table.points[part])) for part in keep) <= len(theta):
        return Misfit(p)
    refits, _ = fitter.refit(theta, problem.loss.target(table.y), table.cases * keep, 2)
    top, further = int(np.argmax(reach)), 10.0 ** (1 / len(counts)) if counts else 1.0
    far = replace(fitter, problem=replace(problem, x={name: problem.x[name][[top]] * further for name in law.inputs}))
    beyond = {name: table.x[name][[top]] * further for name in law.inputs}
    stated = np.full((2, len(theta) + 1), np.nan)
    if len(draws):
        predictions = problem.loss.target(law.predict(draws, beyond))
        stated = np.array(spread(np.column_stack([draws, predictions]), LEVEL))
    exponents = [i for i, item in enumerate(law.space) if not (item.linear or item.log) and np.isfinite(item.high)]
    changes = []
    for without, part, refit in zip(ENDS, keep, refits, strict=True):
        rows, _ = collapsed(fitter.rows(refit)[1], table, part)
        covariance = noise**2 * np.linalg.pinv(rows @ rows.T, hermitian=True)
        if without == "largest":
            (value,), (other,) = far.rows(theta)[0], far.rows(refit)[0]
            slope = far.rows(refit)[1][:, 0]
            se = float(np.sqrt(slope @ covariance @ slope))
            changes.append(_change("prediction", without, value, other, stated[:, -1], se, SMALLEST_PREDICTION))
        for i in exponents:
            least, se = SMALLEST_EXPONENT * abs(theta[i]), np.sqrt(covariance[i, i])
            changes.append(_change(law.parameters[i], without, theta[i], refit[i], stated[:, i], se, least))
    return Misfit(p, tuple(changes))


def _change(quantity: str, without: str, value: float, other: float, stated: Array, se: float, least: float) -> Change:
    lo, hi = (float(end) for end in stated)
    held = abs(other - value) <= least or lo <= other <= hi
    status: Any = "held" if held else "harmed" if abs(other - value) > SURE * se else "unclear"
    return Change(quantity, without, float(value), float(other), lo, hi, float(se), status)


def misfit_notes(law: Law, loss: Loss, misfit: Misfit) -> list[Note]:
    """Say that the residuals bend with an input, and what it moves.

    An error is a law of which the stated use, to predict a run a decade beyond the largest, is harmed; a warning one
    whose exponents the range decides, or of which too few runs say how much it matters.
    """
    if not misfit.p < NOTED:
        return []
    prediction, moved = misfit.prediction, misfit.moved
    text = f"law {law.name}: the residuals bend with {' and '.join(law.inputs)} (lack of fit, p = {misfit.p:.2g})"
    remedy = "try a law with more freedom or a narrower range"
    details: dict[str, Any] = {"p": misfit.p, "changes": plain([asdict(change) for change in misfit.changes])}
    if prediction is None:
        text += f"; too few runs to leave some out and say how much that matters, {remedy}"
        return [Note("lack-of-fit", "warning", text, details)]
    what = "the prediction a decade beyond the runs" if law.log_inputs else "the prediction for the best run"
    unit = "%" if loss.space == "log" else "points"
    shift = f"{100 * (prediction.other - prediction.value):+.1f} {unit} {ENDS[prediction.without]}"
    if not np.isnan(prediction.lo):
        ends = (f"{100 * (end - prediction.value):+.1f}" for end in (prediction.lo, prediction.hi))
        shift += f"; stated interval {' to '.join(ends)} {unit}"
    exponents = ", ".join(
        f"{change.quantity} is {change.value:.3g} with all runs and {change.other:.3g} {ENDS[change.without]}"
        for change in moved
    )
    severity: Severity = "warning"
    if prediction.status == "harmed":
        severity = "error" if misfit.p < MISFIT else "warning"
        text += f", and it matters: {what} changes by {shift}; {remedy}"
    elif prediction.status == "unclear":
        noise = f"{100 * SURE * prediction.se:.1f} {unit}"
        text += (
            f"; too few runs to say how much that matters: {what} changes by {shift}, of which noise explains {noise}"
        )
    elif moved:
        text += f"; {what} holds ({shift}), but {exponents}: quote the curve rather than that exponent"
    else:
        severity = "info"
        text += f", not shown to matter: {what} changes by {shift}"
    return [Note("lack-of-fit", severity, text, details)]

"""Can this fit be trusted? Bounds, conditioning, influence of single runs, extrapolation, choice of loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from densing.core import Array, DensingError, FitError, InputError
from densing.scores.fit.engine import fit_law
from densing.scores.fit.lawfit import LawFit, spread
from densing.scores.fit.misfit import Change, Misfit, estimate_misfit
from densing.scores.fit.solver import LITERATURE_DELTA, Fitter, get_loss
from densing.scores.fit.table import FitTable
from densing.scores.laws import Law, TwoStep, get_law

LOSSES: tuple[tuple[str, float | None], ...] = (
    ("huber", 1e-3),
    ("huber", 1e-2),
    ("log", None),
    ("raw", None),
    ("lad", None),
)


def bounds_table(fit: LawFit) -> pd.DataFrame:
    """Return each parameter's distance to its bounds in standard errors of the draws.

    Parameters
    ----------
    fit : LawFit
        A fit; without draws the distances are NaN.

    Returns
    -------
    pandas.DataFrame
        param, estimate, low, high, se, distance_se (to the nearer finite bound; inf where there is none).
        Below 2 the data hardly tell the parameter from its bound.

    Examples
    --------
    >>> from densing.scores.fit import fit_law
    >>> size = np.array([1e8, 1e9, 1e10, 1e11])
    >>> bounds_table(fit_law("power", {"params": size}, 10 * size**-0.1, bootstrap=0))["low"].tolist()
    [0.0, 0.0001]
    """
    low = np.array([parameter.low for parameter in fit.law.space])
    high = np.array([parameter.high for parameter in fit.law.space])
    error = standard_errors(fit)
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = np.minimum(fit.theta - low, high - fit.theta) / error
    return pd.DataFrame(
        {
            "param": list(fit.law.parameters),
            "estimate": fit.theta,
            "low": low,
            "high": high,
            "se": error,
            "distance_se": distance,
        }
    )


def standard_errors(fit: LawFit) -> Array:
    """Return the standard deviation of the draws, shape (p,); NaN with fewer than two draws."""
    if len(fit.draws) < 2:
        return np.full(len(fit.theta), np.nan)
    return np.asarray(fit.draws.std(axis=0, ddof=1))


def conditioning(fit: LawFit) -> float:
    """Return the condition number of the Jacobian with centred log inputs and columns of unit length.

    Above about 1e3 parameters trade off against each other: report draws, not single intervals.

    Parameters
    ----------
    fit : LawFit
        A fit of a law other than ``two-step``.

    Examples
    --------
    >>> from densing.scores.fit import fit_law
    >>> size = np.array([1e8, 1e9, 1e10, 1e11])
    >>> round(conditioning(fit_law("power", {"params": size}, 10 * size**-0.1, bootstrap=0)), 6)
    1.0
    """
    fitter = _fitter(fit)
    rows = fitter.rows(fitter.scaled(fit.theta))[1] * np.sqrt(_cases(fit))
    size = np.linalg.norm(rows, axis=1, keepdims=True)
    if (size == 0).any():
        return float("inf")
    return float(np.linalg.cond((rows / size).T))


def lack_of_fit(fit: LawFit) -> Misfit:
    """Return whether the law bends away from its runs, as a p value, and what that moves.

    A small p says that the residuals bend with an input: squares, cubes and products of the log inputs explain more of
    them than chance would; with clusters each cluster counts once. With enough runs every law is rejected, so the
    size decides: how the prediction a decade beyond the runs changes when the largest decade is left out, and the
    exponents when either end is. :func:`densing.scores.fit.fit_law` notes p below 0.05: an error where that prediction
    is harmed, a warning where an exponent is, else for information.

    Source: a Gauss-Newton regression against polynomial departures (Ramsey 1969; Davidson and MacKinnon, section 6.7);
    :func:`densing.scores.fit.misfit.estimate_misfit`.

    Parameters
    ----------
    fit : LawFit
        A fit of a law other than ``two-step``.

    Returns
    -------
    Misfit
        Its ``p`` is NaN where too few points can tell.

    Examples
    --------
    >>> from densing.scores.fit import fit_law
    >>> size = np.geomspace(1e8, 1e11, 12)
    >>> bent = (1.5 + 40 * size**-0.2) * np.exp(0.002 * np.random.default_rng(1).standard_normal(12))
    >>> wrong = lack_of_fit(fit_law("power", {"params": size}, bent))
    >>> wrong.p < 0.001, wrong.prediction.status
    (True, 'harmed')
    >>> right = lack_of_fit(fit_law("power-offset", {"params": size}, bent))
    >>> right.p > 0.1, right.prediction.status
    (True, 'held')
    """
    fitter = _fitter(fit)
    weights, clusters = (fit.options.get(name) for name in ("weights", "clusters"))
    table = FitTable(
        fit.x,
        fit.y,
        None if weights is None else np.asarray(weights, dtype=float),
        None if clusters is None else np.asarray(clusters),
    )
    return estimate_misfit(fitter, fitter.scaled(fit.theta), table, fit.draws)


def lack_of_fit_table(fit: LawFit) -> pd.DataFrame:
    """Return what :func:`lack_of_fit` found, a row per quantity and end that is left out, with its p value."""
    misfit = lack_of_fit(fit)
    columns = [item.name for item in fields(Change)]
    return pd.DataFrame([asdict(change) for change in misfit.changes], columns=columns).assign(p=misfit.p)


def influence(fit: LawFit) -> pd.DataFrame:
    """Refit with each run left out, and compare the change with the standard error.

    Parameters
    ----------
    fit : LawFit
        A fit with draws, of a law other than ``two-step``.

    Returns
    -------
    pandas.DataFrame
        One row per run: its inputs, y, one column per parameter with (without the run - with it) / SE, and
        ``largest``, the largest of them in size. Above 1 one run moves the fit by more than its error.

    Raises
    ------
    FitError
        When leaving one run out leaves fewer runs than parameters.

    Examples
    --------
    >>> from densing.scores.fit import fit_law
    >>> size = np.array([1e8, 1e9, 1e10, 1e11, 1e12])
    >>> loss = 10 * size**-0.1 * [1, 1.001, 0.999, 1, 1.1]
    >>> fit = fit_law("power", {"params": size}, loss, loss="log", scheme="residual", bootstrap=200)
    >>> int(influence(fit)["largest"].argmax())
    4
    """
    n, p = len(fit.y), len(fit.theta)
    if n - 1 < p:
        raise FitError(f"influence: {n} runs less one cannot fix {p} parameters")
    fitter = _fitter(fit)
    # Row i of the batch gives run i no weight: all n refits descend together.
    weights = _cases(fit) * (1.0 - np.eye(n))
    target = fitter.problem.loss.target(fit.y)
    theta, _ = fitter.refit(fitter.scaled(fit.theta), target, weights, n)
    error = standard_errors(fit)
    with np.errstate(divide="ignore", invalid="ignore"):
        shift = (fitter.natural(theta) - fit.theta) / error
    table = pd.DataFrame({**fit.x, "y": fit.y})
    table[list(fit.law.parameters)] = shift
    return table.assign(largest=np.max(np.abs(shift), axis=1))


def rollout(
    law: Law | str,
    x: Mapping[str, ArrayLike],
    y: ArrayLike,
    *,
    cutoff: float | None = None,
    quantile: float = 0.7,
    by: str | None = None,
    level: float = 0.95,
    **options: Any,
) -> pd.DataFrame:
    """Fit the small runs, predict the large ones, and report the misses.

    Parameters
    ----------
    law : Law or str
        The law.
    x, y
        The table, as for :func:`densing.scores.fit.fit_law`.
    cutoff : float, optional
        Runs with ``x[by]`` up to here are fitted, the others predicted; by default the given quantile.
    quantile : float
        Quantile of ``x[by]`` that is the cut-off when none is given.
    by : str, optional
        Input that orders the runs; the law's first by default.
    level : float
        Level of the prediction interval: draws of the law plus noise of the residuals' size, with the width of
        Student's t.
    **options
        Further arguments of :func:`densing.scores.fit.fit_law`; weights and clusters are not supported here.

    Returns
    -------
    pandas.DataFrame
        One row per held-out run: inputs, y, predicted, lo, hi, miss (predicted - y), relative_miss, inside.

    Raises
    ------
    InputError
        When the cut-off leaves nothing to predict, or the options name weights or clusters.
    FitError
        When it leaves too little to fit.

    Examples
    --------
    >>> size = np.geomspace(1e8, 1e11, 8)
    >>> loss = 1.5 + 40 * size**-0.2 + 1e-3 * np.cos(np.arange(8))
    >>> rollout("power-offset", {"params": size}, loss, cutoff=2e10, scheme="residual")["inside"].tolist()
    [True, True]
    """
    law = get_law(law) if isinstance(law, str) else law
    if {"weights", "clusters"} & set(options):
        raise InputError("rollout: weights and clusters would need the same split; fit and predict by hand")
    by = by or law.inputs[0]
    table = {name: np.asarray(values, dtype=float) for name, values in x.items()}
    observed = np.asarray(y, dtype=float)
    limit = float(np.quantile(table[by], quantile)) if cutoff is None else cutoff
    small = table[by] <= limit
    if small.all():
        raise InputError(f"rollout: no run has {by} above {limit:g}; lower the cut-off")
    fit = fit_law(law, {name: values[small] for name, values in table.items()}, observed[small], **options)
    large = {name: table[name][~small] for name in law.inputs}
    predicted = fit.predict(large)
    lo, hi = spread(_predictive(fit, large), level)
    frame = pd.DataFrame({**large, "y": observed[~small], "predicted": predicted, "lo": lo, "hi": hi})
    frame["miss"] = frame["predicted"] - frame["y"]
    frame["relative_miss"] = frame["miss"] / frame["y"]
    frame["inside"] = (frame["lo"] <= frame["y"]) & (frame["y"] <= frame["hi"])
    return frame


def sensitivity(fit: LawFit, losses: Sequence[tuple[str, float | None]] = LOSSES) -> pd.DataFrame:
    """Fit the same table under other losses.

    Parameters
    ----------
    fit : LawFit
        A fit of a law other than ``two-step``.
    losses : sequence of (str, float or None)
        Names and deltas (None where the loss has none).

    Returns
    -------
    pandas.DataFrame
        One row per loss: loss, delta, status, objective, the parameters, and ``largest_shift_se``, the
        largest change of a parameter against ``fit`` in its standard errors. Losses that need logarithms are
        left out when an observation is 0.

    Examples
    --------
    >>> from densing.scores.fit import fit_law
    >>> size = np.array([1e8, 1e9, 1e10, 1e11])
    >>> fit = fit_law("power", {"params": size}, 10 * size**-0.1, bootstrap=0)
    >>> sensitivity(fit)["alpha"].round(6).tolist()
    [0.1, 0.1, 0.1, 0.1, 0.1]
    """
    _refuse_two_step(fit.law)
    error = standard_errors(fit)
    rows = []
    for name, delta in losses:
        if get_loss(name).space == "log" and (fit.y <= 0).any():
            continue
        other = fit_law(
            fit.law, fit.x, fit.y, loss=name, delta=delta or LITERATURE_DELTA, bootstrap=0,
            weights=fit.options.get("weights"),
        )  # fmt: skip
        with np.errstate(divide="ignore", invalid="ignore"):
            shift = np.abs(other.theta - fit.theta) / error
        row = {"loss": name, "delta": delta, "status": other.status, "objective": other.objective}
        rows.append({**row, **other.params.to_dict(), "largest_shift_se": float(np.max(shift))})
    return pd.DataFrame(rows)


def checklist(fit: LawFit) -> dict[str, Any]:
    """Return the checklist of a scaling-law fit, filled in: what was fitted on what, how, and every diagnostic.

    Returns
    -------
    dict
        ``hypothesis``, ``fitted_range``, ``objective_and_optimiser``, and but for ``two-step`` the diagnostics of this
        module by name; where the data do not allow one, why: the fit itself stands.

    Examples
    --------
    >>> from densing.scores.fit import fit_law
    >>> size = np.array([1e8, 1e9, 1e10, 1e11])
    >>> checklist(fit_law("power", {"params": size}, 10 * size**-0.1, bootstrap=0))["hypothesis"]
    'L = A N^-alpha'
    """
    items: dict[str, Any] = {
        "hypothesis": fit.law.equation,
        "fitted_range": dict(fit.domain),
        "objective_and_optimiser": {"batched Levenberg-Marquardt, summed loss": dict(fit.options)},
    }
    if isinstance(fit.law, TwoStep):
        return items
    diagnostics: dict[str, Callable[[LawFit], Any]] = {
        "condition_number": conditioning,
        "lack_of_fit": lack_of_fit_table,
        "distance_to_bounds": bounds_table,
        "influence": influence,
        "sensitivity_to_loss": sensitivity,
    }
    for name, diagnostic in diagnostics.items():
        try:
            items[name] = diagnostic(fit)
        except DensingError as error:
            items[name] = f"not available: {error}"
    return items


def _predictive(fit: LawFit, x: Mapping[str, Array]) -> Array:
    """Return draws (R, n) of new observations: the law's draws plus noise in the residual's space."""
    freedom = max(len(fit.y) - len(fit.theta), 1)
    curves = fit.law.predict(fit.draws, x)
    rng = np.random.default_rng([fit.options["seed"], 1])
    variance = np.sum(fit.residuals**2) / rng.chisquare(freedom, size=(len(curves), 1))
    noise = np.sqrt(variance) * rng.standard_normal(curves.shape)
    return curves * np.exp(noise) if get_loss(fit.options["loss"]).space == "log" else curves + noise


def _fitter(fit: LawFit) -> Fitter:
    _refuse_two_step(fit.law)
    loss = get_loss(fit.options["loss"], fit.options["delta"] or LITERATURE_DELTA)
    return Fitter.build(fit.law, fit.x, loss)


def _cases(fit: LawFit) -> Array:
    weights = fit.options.get("weights")
    return np.ones_like(fit.y) if weights is None else np.asarray(weights, dtype=float)


def _refuse_two_step(law: Law) -> None:
    if isinstance(law, TwoStep):
        raise InputError("two-step fits are diagnosed step by step: fit law.loss_law and law.score_law on their own")

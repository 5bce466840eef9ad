"""Fit a law to a table: check, start, solve, bootstrap, and say what to be careful about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from densing.core import Array, InputError, Note
from densing.scores.fit.bootstrap import Resamples, check_scheme, perturb_responses, resample_cases
from densing.scores.fit.lawfit import LawFit, hash_data
from densing.scores.fit.losses import LITERATURE_DELTA, Loss, get_loss
from densing.scores.fit.refit import Fitter
from densing.scores.fit.table import FitTable
from densing.scores.laws import Law, TwoStep, get_law

# Below this share of the largest singular value of the unit-length Jacobian a direction of theta is free.
UNIDENTIFIED = 1e-9
# With fewer sizes a resample by size often holds two or three of them, and its curve is anybody's guess.
FEWEST_SIZES = 5
# One table in a hundred that follows its law is called a misfit.
MISFIT = 0.01


def fit_law(
    law: Law | str,
    x: Mapping[str, ArrayLike],
    y: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    loss: str | None = None,
    delta: float = LITERATURE_DELTA,
    bootstrap: int = 1000,
    scheme: str | None = None,
    clusters: Sequence[Any] | NDArray[Any] | None = None,
    seed: int = 0,
    meta: Mapping[str, Any] | None = None,
) -> LawFit:
    """Fit a law by minimising a summed loss, and bootstrap it.

    minimise sum_i w_i h(r_i), with r_i = ln(prediction_i) - ln(y_i) for ``huber``, ``log`` and ``lad`` and
    r_i = prediction_i - y_i for the raw losses.

    Source: the summed Huber loss on log residuals with delta 1e-3 is that of arXiv 2203.15556, eq. 3.

    Parameters
    ----------
    law : Law or str
        The law, or its name. ``two-step`` needs the observed losses as an input ``loss`` beside the others
        and is fitted step by step; see :func:`densing.scores.fit.fit_two_step`.
    x : mapping of array_like, shape (n,)
        Inputs by name: params (a count), tokens (a count), loss.
    y : array_like, shape (n,)
        Losses (positive) or scores (between 0 and 1), as the law says.
    weights : array_like, shape (n,), optional
        Positive case weights; a weight of 2 counts a run twice.
    loss : str, optional
        See :func:`densing.scores.fit.get_loss`. Default ``huber`` for losses and ``raw`` for scores.
    delta : float
        Turning point of a Huber loss, in units of the residual.
    bootstrap : int
        Number of refits; 0 for none.
    scheme : {"case", "cluster", "residual", "parametric"}, optional
        What the bootstrap varies; use ``residual`` or ``parametric`` for families of a few models. By default
        ``cluster`` where clusters are given or rows share a size, else ``case``: runs of one size mostly share more
        than their size (one model read at several budgets, one recipe), and taken for independent they give
        intervals that hold the truth 60 to 80 % of the time instead of 95 % (``tests/test_fit_coverage.py``).
    clusters : sequence, shape (n,), optional
        Group of each run, for ``cluster``; by default the sizes.
    seed : int
        Seed of the bootstrap.
    meta : mapping, optional
        Licence, family and the like, JSON-ready; stored with the fit.

    Returns
    -------
    LawFit

    Raises
    ------
    InputError
        When the table or an option is wrong; the message names row, value and remedy.
    FitError
        When the data cannot determine the law.

    Examples
    --------
    >>> size = np.array([0.5e9, 1.8e9, 4e9, 7e9, 14e9, 32e9, 72e9])
    >>> score = [0.39, 0.46, 0.56, 0.61, 0.67, 0.73, 0.77]
    >>> law = get_law("logistic", floor=0.25)
    >>> fit = fit_law(law, {"params": size}, score, scheme="residual", bootstrap=200)
    >>> fit.status, fit.invert(0.6)["status"].tolist()
    ('converged', ['ok'])
    """
    law = get_law(law) if isinstance(law, str) else law
    if isinstance(law, TwoStep):
        from densing.scores.fit.two_step import fit_two_step  # it fits its steps with this function

        return fit_two_step(
            law, x, y, weights=weights, loss=loss, delta=delta, bootstrap=bootstrap, scheme=scheme,
            clusters=clusters, seed=seed, meta=meta,
        )  # fmt: skip
    scheme, clusters, shared = resampling(x, scheme, clusters)
    chosen = get_loss(loss or ("huber" if law.output == "loss" else "raw"), delta)
    _check_options(scheme, bootstrap, clusters, seed)
    table = FitTable.build(law, x, y, weights, clusters, positive=chosen.space == "log")
    fitter = Fitter.build(law, table.x, chosen)
    target, cases = chosen.target(table.y), table.cases
    # A trial step may overflow; the solver rejects what is not finite.
    with np.errstate(all="ignore"):
        found = fitter.point(target, cases)
        scaled = found.theta[0]
        rng = np.random.default_rng(seed)
        draws, notes = _bootstrap(fitter, scaled, table, rng, bootstrap, scheme)
        notes += _identification(law, fitter.rows(scaled)[1], [bool(hit) for hit in found.at_bound[0]])
    theta = fitter.natural(scaled)
    residuals = -chosen.residual(law.predict(theta, table.x), target)
    hits = [name for name, hit in zip(law.parameters, found.at_bound[0], strict=True) if hit]
    status = "max_iter" if not found.converged[0] else "bound_hit" if hits else "converged"
    return LawFit(
        law=law,
        theta=theta,
        draws=draws,
        objective=float(chosen.total(residuals, cases)),
        status=status,
        x=table.x,
        y=table.y,
        residuals=residuals,
        domain={name: (float(values.min()), float(values.max())) for name, values in table.x.items()},
        options=_options(chosen, scheme, bootstrap, seed, table),
        data_hash=hash_data(table.x, table.y, table.weights, table.clusters),
        meta=dict(meta or {}),
        notes=(*_point_notes(law, theta, hits, status, table), *shared, *_misfit(fitter, scaled, table), *notes),
    )


def resampling(
    x: Mapping[str, ArrayLike], scheme: str | None, clusters: Sequence[Any] | NDArray[Any] | None
) -> tuple[str, Sequence[Any] | NDArray[Any] | None, list[Note]]:
    """Return the bootstrap scheme of a table, its clusters, and what there is to say about the choice.

    A scheme that was named stands. Otherwise rows are resampled in their clusters, or by size where rows share one.
    """
    if scheme not in (None, "cluster") or clusters is not None:
        return scheme or "cluster", clusters, []
    try:
        sizes = np.asarray(x.get("params", ()), dtype=float)
    except (TypeError, ValueError):
        return scheme or "case", None, []  # the table's own check names the row
    distinct = len(np.unique(sizes))
    if sizes.ndim != 1 or distinct == len(sizes):
        return scheme or "case", None, []
    counted = {"rows": len(sizes), "sizes": distinct}
    if distinct < FEWEST_SIZES and scheme is None:
        text = (
            f"{len(sizes)} rows share {distinct} sizes, too few to resample by size: the intervals take the rows for "
            "independent and are too narrow where rows of one size have more in common; add sizes"
        )
        return "case", None, [Note("rows-share-a-size", "warning", text, counted)]
    text = (
        f"{len(sizes)} rows share {distinct} sizes and are resampled by size (scheme 'cluster'); name another group "
        "with clusters, or scheme 'case' if rows of one size are independent"
    )
    return "cluster", [f"{size:.17g}" for size in sizes], [Note("rows-share-a-size", "info", text, counted)]


def _misfit(fitter: Fitter, scaled: Array, table: FitTable) -> list[Note]:
    """Say when the residuals bend with an input: then the draws spread around a wrong curve."""
    p_value = fitter.lack_of_fit(scaled, table)
    if not p_value < 0.05:
        return []
    name = fitter.problem.law.name
    text = (
        f"law {name}: the residuals still bend with {' and '.join(fitter.problem.law.inputs)} (lack of fit, "
        f"p = {p_value:.2g}); "
        + ("its intervals do not hold the truth, " if p_value < MISFIT else "its intervals may be too narrow, ")
        + "try a law with more freedom or a narrower range"
    )
    return [Note("lack-of-fit", "error" if p_value < MISFIT else "warning", text, {"p": p_value})]


def _check_options(scheme: str, bootstrap: int, clusters: object, seed: int) -> None:
    check_scheme(scheme)
    if not isinstance(seed, (int, np.integer)) or seed < 0:
        raise InputError(f"seed {seed!r} must be a whole number, 0 or more")
    if not isinstance(bootstrap, (int, np.integer)) or bootstrap < 0:
        raise InputError(f"bootstrap {bootstrap!r} must be a whole number of refits, 0 or more")
    if scheme == "cluster" and clusters is None and bootstrap:
        raise InputError("scheme 'cluster' needs clusters=... (--cluster COLUMN), or rows that share a size")


def _options(loss: Loss, scheme: str, bootstrap: int, seed: int, table: FitTable) -> dict[str, Any]:
    return {
        "loss": loss.name,
        "delta": loss.delta if np.isfinite(loss.delta) else None,
        "scheme": scheme,
        "n_bootstrap": int(bootstrap),
        "seed": int(seed),
        "weights": None if table.weights is None else [float(v) for v in table.weights],
        "clusters": None if table.clusters is None else [str(v) for v in table.clusters],
    }


def _bootstrap(
    fitter: Fitter, scaled: Array, table: FitTable, rng: np.random.Generator, draws: int, scheme: str
) -> tuple[Array, list[Note]]:
    """Return draws (R, p) in natural units and what there is to say about them."""
    if not draws:
        return np.empty((0, scaled.size)), []
    resamples = _resample(fitter, scaled, table, rng, draws, scheme)
    found, converged = fitter.refit(scaled, resamples.target, resamples.weights, draws)
    notes = []
    if not converged.all():
        lost = int((~converged).sum())
        notes.append(
            Note(
                "bootstrap-not-converged",
                "warning" if lost > 0.01 * draws else "info",
                f"{lost} of {draws} bootstrap refits stopped before the tolerance; their last point is kept",
                {"refits": draws, "not_converged": lost},
            )
        )
    if resamples.redrawn:
        notes.append(
            Note(
                "bootstrap-redrawn",
                "info",
                f"{resamples.redrawn} resamples had fewer distinct runs than parameters and were drawn "
                "again; for so few runs prefer scheme='residual'",
                {"redrawn": resamples.redrawn},
            )
        )
    return fitter.natural(found), notes


def _resample(
    fitter: Fitter, scaled: Array, table: FitTable, rng: np.random.Generator, draws: int, scheme: str
) -> Resamples:
    target = fitter.problem.loss.target(table.y)
    if scheme in ("case", "cluster"):
        labels = table.labels if scheme == "cluster" else np.arange(len(target))
        return resample_cases(rng, target, table.cases, labels, table.points, draws, scaled.size)
    fitted, rows = fitter.rows(scaled)
    return perturb_responses(rng, fitted, target, table.cases, rows, draws, gaussian=scheme == "parametric")


def _identification(law: Law, rows: Array, at_bound: list[bool]) -> list[Note]:
    """Say when the data leave a direction of the parameters free."""
    free = rows[~np.array(at_bound)]
    size = np.linalg.norm(free, axis=1, keepdims=True)
    if not len(free):
        return []
    singular = np.linalg.svd(free / np.where(size > 0, size, 1.0), compute_uv=False)
    if singular[-1] > UNIDENTIFIED * singular[0]:
        return []
    text = (
        f"law {law.name}: these points do not determine all its parameters; add points that differ in {law.inputs[0]}"
    )
    return [Note("not-identified", "error", text, {"smallest_singular_value": float(singular[-1])})]


def _point_notes(law: Law, theta: Array, hits: list[str], status: str, table: FitTable) -> list[Note]:
    notes = []
    if status == "max_iter":
        text = f"law {law.name}: the solver stopped before its tolerance; look at the data and the law"
        notes.append(Note("not-converged", "error", text))
    if hits:
        values = {name: float(theta[law.parameters.index(name)]) for name in hits}
        shown = ", ".join(f"{name} = {value:g}" for name, value in values.items())
        text = f"law {law.name}: {shown} lies on its bound; the data do not determine it"
        notes.append(Note("bound-hit", "warning", text, values))
    if len(table.y) == len(theta):
        text = f"{len(theta)} points for {len(theta)} parameters: the curve meets them and nothing checks it"
        notes.append(Note("no-freedom", "warning", text, {"points": len(table.y)}))
    return notes

"""Fit a law to a table, in one step or in two: check, start, solve, bootstrap, and say what to be careful about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from densing.core import Array, FitError, InputError, Note, UnknownNameError
from densing.scores.fit.bootstrap import SCHEMES, bootstrap_draws, resampling
from densing.scores.fit.lawfit import STATUSES, LawFit, Status, hash_data
from densing.scores.fit.misfit import NOTED, estimate_misfit, misfit_notes
from densing.scores.fit.solver import LITERATURE_DELTA, Fitter, Mask, get_loss
from densing.scores.fit.table import FitTable, read_runs
from densing.scores.laws import Law, TwoStep, get_law

# Below this share of the largest singular value of the unit-length Jacobian a direction of theta is free.
UNIDENTIFIED = 1e-9


def fit_law(
    law: Law | str,
    x: Mapping[str, ArrayLike] | pd.DataFrame,
    y: ArrayLike | None = None,
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
    x : mapping of array_like, shape (n,), or DataFrame
        Inputs by name: params (a count), tokens (a count), loss. Of a table the law's inputs and, without ``y``, its
        output, read as :func:`densing.scores.fit.read_runs` does.
    y : array_like, shape (n,), optional
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
        intervals that hold the truth 60 to 80 % of the time instead of 95 %
        (``tests/scores/fit/test_bootstrap_coverage.py``).
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

    See Also
    --------
    get_law, law_names
    """
    if hasattr(law, "columns"):
        raise InputError("fit_law takes the law first: fit_law('chinchilla', runs)")
    law = get_law(law) if isinstance(law, str) else law
    if y is None:
        if not hasattr(x, "columns"):
            raise InputError("fit_law: no y; give arrays, fit_law(law, {'params': ...}, y), or a table of runs")
        x, y = _arrays(read_runs(x, law)[0], law)
    if isinstance(law, TwoStep):
        # Each step comes back here with a law of its own.
        return fit_two_step(
            law, x, y, weights=weights, loss=loss, delta=delta, bootstrap=bootstrap, scheme=scheme,
            clusters=clusters, seed=seed, meta=meta,
        )  # fmt: skip
    scheme, clusters, shared = resampling(x, scheme, clusters)
    objective = get_loss(loss or ("huber" if law.output == "loss" else "raw"), delta)
    if scheme not in SCHEMES:
        raise UnknownNameError("bootstrap scheme", scheme, SCHEMES)
    if not isinstance(seed, (int, np.integer)) or seed < 0:
        raise InputError(f"seed {seed!r} must be a whole number, 0 or more")
    if not isinstance(bootstrap, (int, np.integer)) or bootstrap < 0:
        raise InputError(f"bootstrap {bootstrap!r} must be a whole number of refits, 0 or more")
    if scheme == "cluster" and clusters is None and bootstrap:
        raise InputError("scheme 'cluster' needs clusters=... (--cluster COLUMN), or rows that share a size")
    table = FitTable.build(law, x, y, weights, clusters, positive=objective.space == "log")
    fitter = Fitter.build(law, table.x, objective)
    target, cases = objective.target(table.y), table.cases
    # A trial step may overflow; the solver rejects what is not finite.
    with np.errstate(all="ignore"):
        solution = fitter.point(target, cases)
        scaled = solution.theta[0]
        rng = np.random.default_rng(seed)
        draws, notes = bootstrap_draws(fitter, scaled, table, rng, bootstrap, scheme)
        misfit = estimate_misfit(fitter, scaled, table, draws, below=NOTED)
        notes += _identification(law, fitter.rows(scaled)[1], solution.at_bound[0])
    theta = fitter.natural(scaled)
    residuals = -objective.residual(law.predict(theta, table.x), target)
    hits = [name for name, hit in zip(law.parameters, solution.at_bound[0], strict=True) if hit]
    status: Status = "max_iter" if not solution.converged[0] else "bound_hit" if hits else "converged"
    return LawFit(
        law=law,
        theta=theta,
        draws=draws,
        objective=float(objective.total(residuals, cases)),
        status=status,
        x=table.x,
        y=table.y,
        residuals=residuals,
        domain={name: (float(values.min()), float(values.max())) for name, values in table.x.items()},
        options={
            "loss": objective.name,
            "delta": objective.delta if np.isfinite(objective.delta) else None,
            "scheme": scheme,
            "n_bootstrap": int(bootstrap),
            "seed": int(seed),
            "weights": None if table.weights is None else [float(v) for v in table.weights],
            "clusters": None if table.clusters is None else [str(v) for v in table.clusters],
        },
        data_hash=hash_data(table.x, table.y, table.weights, table.clusters),
        meta=dict(meta or {}),
        notes=(*_point_notes(law, theta, hits, status, table), *shared, *misfit_notes(law, objective, misfit), *notes),
    )


def fit_runs(runs: pd.DataFrame, law: Law, *, cluster: str | None = None, **options: Any) -> LawFit:
    """Fit a law to a table of runs.

    Parameters
    ----------
    runs : pandas.DataFrame
        Columns as :func:`densing.scores.fit.read_runs` gives them.
    law : Law
        The law.
    cluster : str, optional
        Column of the groups of rows.
    **options
        Further arguments of :func:`fit_law`.

    Examples
    --------
    >>> import pandas as pd
    >>> runs = pd.DataFrame({"params": [1e8, 1e9, 1e10, 1e11]}).assign(loss=lambda t: 10 * t["params"] ** -0.1)
    >>> fit_runs(runs, get_law("power"), bootstrap=0).params.round(9).to_dict()
    {'A': 10.0, 'alpha': 0.1}
    """
    x, y = _arrays(runs, law)
    groups = runs[cluster].to_numpy() if cluster else None
    return fit_law(law, x, y, clusters=groups, **options)


def _arrays(runs: pd.DataFrame, law: Law) -> tuple[dict[str, Array], Array]:
    """Return a law's inputs and its output from a table of runs."""
    names = [*law.inputs, *(["loss"] if isinstance(law, TwoStep) else [])]
    return {name: runs[name].to_numpy(dtype=float) for name in names}, runs[law.output].to_numpy(dtype=float)


def fit_two_step(
    law: TwoStep,
    x: Mapping[str, ArrayLike],
    y: ArrayLike,
    *,
    seed: int = 0,
    loss: str | None = None,
    delta: float = LITERATURE_DELTA,
    **options: Any,
) -> LawFit:
    """Fit size and tokens to loss, then loss to score, on the same runs.

    Source: arXiv 2412.04315, eqs. 2 and 3.

    Parameters
    ----------
    law : TwoStep
        The law.
    x : mapping of array_like, shape (n,)
        Inputs of the loss law, and the observed ``loss``.
    y : array_like, shape (n,)
        Scores.
    seed, loss, delta, **options
        As for :func:`densing.scores.fit.fit_law`; ``loss`` and ``delta`` concern the first step, the second is least
        squares on scores. Resampling of cases or clusters draws the same runs in both steps.

    Returns
    -------
    LawFit

    Raises
    ------
    InputError
        When the observed losses are missing.
    """
    if "loss" not in x:
        raise InputError(
            "law two-step: the table needs loss beside params and tokens; scores alone do not fix both steps"
        )
    options["scheme"], options["clusters"], shared = resampling(x, options.get("scheme"), options.get("clusters"))
    paired = options["scheme"] in ("case", "cluster")
    inputs = {name: values for name, values in x.items() if name != "loss"}
    first = fit_law(law.loss_law, inputs, x["loss"], loss=loss, delta=delta, seed=seed, **options)
    second = fit_law(law.score_law, {"loss": x["loss"]}, y, seed=seed if paired else seed + 1, **options)
    joined = compose(law, first, second)
    return replace(joined, notes=(*shared, *joined.notes))


def compose(
    law: TwoStep,
    first: LawFit,
    second: LawFit,
    *,
    scores: ArrayLike | None = None,
    meta: Mapping[str, Any] | None = None,
) -> LawFit:
    """Join a fitted loss law and a fitted sigmoid into one two-step fit.

    Draw i of the result joins draw i of both. With resampled cases or clusters and one seed these are the
    same runs, which carries their correlation; for steps fitted on different tables use different seeds.

    Parameters
    ----------
    law : TwoStep
        The law that both fits belong to.
    first, second : LawFit
        Fits of ``law.loss_law`` and ``law.score_law`` with the same number of draws.
    scores : array_like, shape (n,), optional
        Scores of the runs of the first fit; the second fit's by default.
    meta : mapping, optional
        Licence, family and the like; the first fit's by default.

    Returns
    -------
    LawFit
        Its residuals are observed minus predicted scores of the chain, its objective half their squares' sum.

    Raises
    ------
    FitError
        When the fits do not belong together.
    """
    if (first.law, second.law) != (law.loss_law, law.score_law):
        raise FitError(f"two-step: got {first.law!r} and {second.law!r}, wanted {law.loss_law!r} and {law.score_law!r}")
    if len(first.draws) != len(second.draws):
        raise FitError(f"two-step: {len(first.draws)} and {len(second.draws)} draws; fit both with one bootstrap=")
    if (
        len(first.draws)
        and {first.options["scheme"], second.options["scheme"]} & {"residual", "parametric"}
        and first.options["seed"] == second.options["seed"]
    ):
        # Equal seeds pair resampled runs, rightly, but simulated noise wrongly.
        raise FitError("two-step: both steps simulate noise with one seed; fit the second step with another seed")
    y = np.array(second.y if scores is None else scores, dtype=float)
    if y.shape != first.y.shape:
        raise FitError(
            f"two-step: {y.size} scores for the {first.y.size} runs of the loss law; give scores=... for them"
        )
    theta = np.concatenate([first.theta, second.theta])
    residuals = y - law.predict(theta, first.x)
    return LawFit(
        law=law,
        theta=theta,
        draws=np.concatenate([first.draws, second.draws], axis=1),
        objective=float(0.5 * residuals @ residuals),
        status=max(first.status, second.status, key=STATUSES.index),
        x=dict(first.x),
        y=y,
        residuals=residuals,
        domain={**first.domain, "loss": second.domain["loss"]},
        options={
            **first.options,
            "loss": "raw",
            "delta": None,
            "weights": None,
            "clusters": None,
            "steps": [_step(first), _step(second)],
        },
        data_hash=hash_data(first.x, y, None),
        meta=dict(first.meta if meta is None else meta),
        notes=(*first.notes, *second.notes),
    )


def _step(fit: LawFit) -> dict[str, Any]:
    """Return what identifies one step inside the joined fit."""
    return {
        "law": fit.law.name,
        "options": dict(fit.options),
        "objective": fit.objective,
        "status": fit.status,
        "data_hash": fit.data_hash,
        "loss_range": list(fit.domain.get("loss", (float(fit.y.min()), float(fit.y.max())))),
    }


def _identification(law: Law, rows: Array, at_bound: Mask) -> list[Note]:
    """Say when the data leave a direction of the parameters free."""
    free = rows[~at_bound]
    # Rows of unit length: what is left of the singular values is collinearity, not units.
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
        listed = ", ".join(f"{name} = {value:g}" for name, value in values.items())
        text = f"law {law.name}: {listed} lies on its bound; the data do not determine it"
        notes.append(Note("bound-hit", "warning", text, values))
    if len(table.y) == len(theta):
        text = f"{len(theta)} points for {len(theta)} parameters: the curve meets them and nothing checks it"
        notes.append(Note("no-freedom", "warning", text, {"points": len(table.y)}))
    return notes

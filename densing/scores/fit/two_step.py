"""The two-step law is fitted in two steps, and its draws keep each run's loss and score together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from densing.core import FitError, InputError
from densing.scores.fit.engine import fit_law, resampling
from densing.scores.fit.lawfit import LawFit, hash_data
from densing.scores.laws import TwoStep


def fit_two_step(
    law: TwoStep,
    x: Mapping[str, ArrayLike],
    y: ArrayLike,
    *,
    seed: int = 0,
    loss: str | None = None,
    delta: float = 1e-3,
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
    _refuse_shared_noise(first, second)
    y = np.array(second.y if scores is None else scores, dtype=float)
    if y.shape != first.y.shape:
        raise FitError(
            f"two-step: {y.size} scores for the {first.y.size} runs of the loss law; give scores=... for them"
        )
    theta = np.concatenate([first.theta, second.theta])
    residuals = y - law.predict(theta, first.x)
    worst = max((first.status, second.status), key=("converged", "bound_hit", "max_iter").index)
    return LawFit(
        law=law,
        theta=theta,
        draws=np.concatenate([first.draws, second.draws], axis=1),
        objective=float(0.5 * residuals @ residuals),
        status=worst,
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


def _refuse_shared_noise(first: LawFit, second: LawFit) -> None:
    """Refuse equal seeds for simulated noise: they pair resampled runs, rightly, but noise wrongly."""
    drawn = len(first.draws) and {first.options["scheme"], second.options["scheme"]} & {
        "residual",
        "parametric",
    }
    if drawn and first.options["seed"] == second.options["seed"]:
        raise FitError("two-step: both steps simulate noise with one seed; fit the second step with another seed")

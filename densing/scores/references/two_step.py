"""Fitting a ladder in two steps, and how far the OLMo ladder misses the 7B and 13B that it never saw."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd

from densing.core import Column, InputError, Table, named_seed, read_table
from densing.scores.catalog import known_protocol
from densing.scores.fit import LawFit, compose, fit_law
from densing.scores.laws import TwoStep
from densing.scores.references.ladder import DATA, LadderData, ladder_data, load_ladder
from densing.scores.references.ruler import Reference

AUTHORS = Table(
    "olmo_ladder_authors",
    (
        Column(
            "step",
            "text",
            "what is predicted from what",
            required=True,
            choices=("loss", "accuracy_from_loss", "accuracy"),
        ),
        Column("task", "text", "benchmark id", required=True),
        Column("target", "text", "held-out model", required=True),
        Column("quantity", "text", "accuracy or bits_per_byte", required=True),
        Column("actual", "number", "measured", required=True, low=0, high=20),
        Column("authors_prediction", "number", "as the authors printed it", required=True, low=0, high=20),
        Column("source", "text", "source id", required=True),
    ),
    key=("step", "task", "target"),
)


def fit_ladder(
    data: LadderData, draws: int, seed: int, scheme: str = "parametric", tasks: tuple[str, ...] = ()
) -> tuple[LawFit, pd.DataFrame]:
    """Fit loss in (N, D) on final checkpoints, then accuracy in loss on final and interim ones.

    Parameters
    ----------
    data : LadderData
        Runs of one task, or of the mean over several, see :func:`densing.scores.references.ladder.ladder_data`.
    draws : int
        Bootstrap draws.
    seed : int
        Seed. Resampled runs are the same for every set of tasks, because the runs are; Gaussian noise is not.
    scheme : {"parametric", "cluster"}
        Draws of the first step: Gaussian with Student width, or resampled runs where one run has several points.
    tasks : tuple of str
        What the data are of: names the stream of the Gaussian noise.

    Returns
    -------
    LawFit
        A two-step law whose draws pair both steps.
    pandas.DataFrame
        The runs: ``model, params, tokens, bits_per_byte, score, score_se, held_out``.

    Notes
    -----
    Step 1: Chinchilla, summed Huber (delta 1e-3) on log loss. Step 2: sigmoid with floor and ceiling free, least
    squares on final and interim checkpoints, resampling whole runs, because checkpoints of one run are not
    independent. Among fixed and free ends, and final, late or all checkpoints, this is the form that best predicts the
    1B runs of the OLMo ladder from the smaller ones (docs/adr/0004); the held-out targets had no say.
    """
    law = TwoStep(loss="chinchilla")
    runs = data.final["run"].to_numpy()
    first = fit_law(
        law.loss_law,
        {"params": data.final["params_non_embedding"], "tokens": data.final["tokens"]},
        data.final["bits_per_byte"],
        bootstrap=draws,
        scheme=scheme,
        clusters=runs if scheme == "cluster" else None,
        # Resampled runs are the same in both steps and for all tasks; simulated noise must not be.
        seed=named_seed(seed, "noise", *sorted(tasks)) if scheme == "parametric" else seed,
    )
    both = pd.concat([data.final, data.interim], ignore_index=True)
    second = fit_law(
        law.score_law,
        {"loss": both["bits_per_byte"]},
        both["accuracy"],
        bootstrap=draws,
        scheme="cluster",
        clusters=both["run"].to_numpy(),
        seed=seed,
    )
    return compose(law, first, second, scores=data.final["accuracy"].to_numpy()), _points(data)


def loss_ruler(reference: Reference) -> Reference:
    """Return the first step of a two-step ruler: what reads effective parameters off a loss instead of a score.

    Parameters
    ----------
    reference : Reference
        A ruler whose law is :class:`densing.scores.laws.two_step.TwoStep`.

    Returns
    -------
    Reference
        The same runs and draws, law L(N, D); its points' ``score`` is the loss in bits per byte (NaN where the ruler's
        points do not tell it). Protocols are those of the loss, known for the ladders that the package ships.

    Raises
    ------
    InputError
        When the ruler has no loss step.

    Examples
    --------
    >>> from densing.scores.references import load_reference
    >>> loss_ruler(load_reference("olmo-ladder", "piqa")).fit.law.output
    'loss'
    """
    fit, law = reference.fit, reference.fit.law
    if not isinstance(law, TwoStep):
        raise InputError(
            f"reference {reference.name!r} relates scores to sizes; only a two-step reference reads losses"
        )
    count = len(law.loss_law.space)
    points = reference.points
    losses = points.get("bits_per_byte", pd.Series(np.nan, index=points.index)).astype(float)
    fitted = losses[~points["held_out"].astype(bool)].to_numpy()
    theta = fit.theta[:count]
    first = dataclasses.replace(
        fit,
        law=law.loss_law,
        theta=theta,
        draws=fit.draws[:, :count],
        y=fitted,
        residuals=np.log(fitted) - np.log(law.loss_law.predict(theta, fit.x)),
        domain={name: ends for name, ends in fit.domain.items() if name != "loss"},
        options=dict(fit.options["steps"][0]["options"]),
        objective=float(fit.options["steps"][0]["objective"]),
    )
    # A user's own table says nothing of its losses, whatever its file is called.
    shipped = () if reference.evaluator == "user" else reference.benchmarks
    protocols = {name: known_protocol(reference.name, f"loss:{name}") for name in shipped}
    return dataclasses.replace(reference, fit=first, points=points.assign(score=losses), protocols=protocols)


def ladder_misses(fit: LawFit, tasks: tuple[str, ...], level: float = 0.95) -> pd.DataFrame:
    """Return what a fit of the OLMo ladder predicts for the held-out 7B and 13B, beside the authors' own predictions.

    Parameters
    ----------
    fit : LawFit
        A two-step fit of :func:`fit_ladder`.
    tasks : tuple of str
        The tasks it was fitted on.
    level : float
        Level of the prediction's interval (the law's uncertainty only).

    Returns
    -------
    pandas.DataFrame
        ``target, quantity, actual, predicted, lo, hi, relative_miss, authors_prediction, authors_miss``; relative
        misses are (predicted - actual) / actual. The authors published the 13B only.
    """
    law = fit.law
    assert isinstance(law, TwoStep)
    held_out = ladder_data(load_ladder(), tasks).held_out
    x = {
        "params": held_out["params_non_embedding"].to_numpy(dtype=float),
        "tokens": held_out["tokens"].to_numpy(dtype=float),
    }
    authors = load_authors()
    rows = []
    for quantity, column in (("bits_per_byte", "bits_per_byte"), ("accuracy", "accuracy")):
        point, draws = _predictions(law, fit, x, quantity)
        low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
        for place, run in enumerate(held_out.itertuples()):
            actual = float(getattr(run, column))
            printed = _printed(authors, tasks, str(run.run), quantity)
            rows.append(
                {
                    "target": run.run,
                    "quantity": quantity,
                    "actual": actual,
                    "predicted": float(point[place]),
                    "lo": float(low[place]),
                    "hi": float(high[place]),
                    "relative_miss": float(point[place]) / actual - 1,
                    "authors_prediction": printed,
                    "authors_miss": printed / actual - 1,
                }
            )
    return pd.DataFrame(rows)


def load_authors() -> pd.DataFrame:
    """Return the authors' own predictions for the 13B (Bhagia et al., arXiv 2412.04403; repository at 67a3f440)."""
    return read_table(DATA / "olmo_ladder_authors.csv", AUTHORS, "olmo_ladder_authors.csv")


def _predictions(law: TwoStep, fit: LawFit, x: dict[str, np.ndarray], quantity: str) -> tuple[np.ndarray, np.ndarray]:
    if quantity == "accuracy":
        return law.predict(fit.theta, x), law.predict(fit.draws, x)
    return law.loss_law.predict(law.split(fit.theta)[0], x), law.loss_law.predict(law.split(fit.draws)[0], x)


def _printed(authors: pd.DataFrame, tasks: tuple[str, ...], target: str, quantity: str) -> float:
    step = "accuracy" if quantity == "accuracy" else "loss"
    found = authors[authors["step"].eq(step) & authors["task"].isin(tasks) & authors["target"].eq(target)]
    return float(found["authors_prediction"].iloc[0]) if len(found) == len(tasks) == 1 else float("nan")


def _points(data: LadderData) -> pd.DataFrame:
    both = pd.concat([data.final, data.held_out], ignore_index=True)
    return pd.DataFrame(
        {
            "model": both["run"],
            "params": both["params_non_embedding"].astype(float),
            "tokens": both["tokens"].astype(float),
            "bits_per_byte": both["bits_per_byte"],
            "score": both["accuracy"],
            "score_se": 0.0,
            "held_out": both["held_out"].astype(bool),
        }
    )

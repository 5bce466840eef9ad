"""The laws of a ladder: loss in size and tokens, score in loss, and how well each holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from densing.core import FitError, InputError, Note
from densing.scores.catalog import known_protocol
from densing.scores.fit import LawFit, fit_law
from densing.scores.ladder.questions import CHOICES, SETS
from densing.scores.references import fit_ladder, ladder_data

# Chinchilla, and the paper's eq. 2, which has no irreducible term.
LOSS_LAWS = ("chinchilla", "densing-loss")
MEAN = "mean"
VALIDATION = "validation"
# Learnt all at once or not at all: a mean over sets should not jump with it.
EMERGENT = ("table",)
POOR_R2, POOR_ROLLOUT = 0.9, 0.1


@dataclass(frozen=True)
class TaskFit:
    """The laws of one task.

    Parameters
    ----------
    task : str
        Benchmark id, ``mean`` or ``validation``.
    tasks : tuple of str
        What a mean is taken over.
    losses : dict of str to LawFit
        Loss in (N, D) by name of the law; bits per byte, nats per token for ``validation``.
    two_step : LawFit or None
        Score in (N, D) by way of the loss; None where nothing was scored.
    points : pandas.DataFrame
        What a ruler shows: ``model, params, tokens, bits_per_byte, score, score_se, held_out``.
    quality : pandas.DataFrame
        A row per law: ``law, r2, rollout_mean, rollout_worst``.
    notes : tuple of Note
        Where the task is no power law, or at chance.
    """

    task: str
    tasks: tuple[str, ...]
    losses: dict[str, LawFit]
    two_step: LawFit | None
    points: pd.DataFrame
    quality: pd.DataFrame
    notes: tuple[Note, ...]


def fit_tasks(measured: pd.DataFrame, *, draws: int = 1000, seed: int = 0) -> list[TaskFit]:
    """Fit every task of a measured ladder, and the mean over those that are not emergent.

    Loss: Chinchilla and the paper's eq. 2, summed Huber on log loss, bootstrap over whole runs, because the budgets of
    one run share a stable stage. Score: sigmoid in loss, as :func:`densing.scores.references.fit_ladder`.

    Source: arXiv 2412.04315, eqs. 2 and 3.

    Parameters
    ----------
    measured : pandas.DataFrame
        See :func:`densing.scores.ladder.measured.measured_table`; held-out rows do not enter.
    draws : int
        Bootstrap draws.
    seed : int
        Seed of the draws.

    Raises
    ------
    FitError
        When there are too few runs for the laws.
    """
    own = measured[~measured["held_out"].astype(bool)]
    names = list(dict.fromkeys(own["task"]))
    groups: list[tuple[str, tuple[str, ...]]] = [(name, (name,)) for name in names]
    steady = tuple(name for name in names if name not in EMERGENT)
    if len(steady) > 1:
        groups.insert(0, (MEAN, steady))
    return [_fit_task(own, name, tasks, draws, seed) for name, tasks in groups]


def fit_validation(losses: pd.DataFrame, *, draws: int = 1000, seed: int = 0) -> TaskFit:
    """Fit the validation loss, nats per token; there is no score to it.

    Parameters
    ----------
    losses : pandas.DataFrame
        See :func:`densing.scores.ladder.measured.validation_table`.
    draws, seed
        As in :func:`fit_tasks`.
    """
    return _joined(VALIDATION, (VALIDATION,), losses, None, pd.DataFrame(), draws, seed)


def _fit_task(own: pd.DataFrame, name: str, tasks: tuple[str, ...], draws: int, seed: int) -> TaskFit:
    data = ladder_data(own, tasks)
    final = data.final.rename(columns={"bits_per_byte": "loss"})
    try:
        two_step, points = fit_ladder(data, draws, seed, "cluster")
    except FitError as error:
        raise FitError(f"task {name}: {error}") from error
    fitted = _joined(name, tasks, final, two_step, points, draws, seed)
    items = int(own.loc[own["task"].isin(tasks), "n_items"].min())
    return dataclasses.replace(fitted, notes=(*fitted.notes, *_chance_notes(name, final["accuracy"], items)))


def _joined(
    name: str,
    tasks: tuple[str, ...],
    final: pd.DataFrame,
    two_step: LawFit | None,
    points: pd.DataFrame,
    draws: int,
    seed: int,
) -> TaskFit:
    losses = {law: _fit_loss(law, final, draws, seed) for law in LOSS_LAWS}
    quality = pd.DataFrame([_quality(law, fit, final) for law, fit in losses.items()])
    return TaskFit(name, tasks, losses, two_step, points, quality, tuple(_law_notes(name, quality)))


def _fit_loss(law: str, final: pd.DataFrame, draws: int, seed: int) -> LawFit:
    return fit_law(
        law,
        {"params": final["params_non_embedding"], "tokens": final["tokens"]},
        final["loss"],
        bootstrap=draws,
        scheme="cluster",
        clusters=final["run"].to_numpy(),
        seed=seed,
    )


def _quality(law: str, fit: LawFit, final: pd.DataFrame) -> dict[str, Any]:
    """Return R2 of the log loss, and how the law fitted without the largest size misses it."""
    log = np.log(fit.y)
    row = {"law": law, "r2": float(1 - np.sum(fit.residuals**2) / np.sum((log - log.mean()) ** 2))}
    return row | rollout_misses(law, final)


def rollout_misses(law: str, final: pd.DataFrame) -> dict[str, float]:
    """Fit the smaller sizes, predict the largest, and return the mean and the worst relative miss.

    Parameters
    ----------
    law : str
        Name of a loss law.
    final : pandas.DataFrame
        ``run, params_non_embedding, tokens, loss``.

    Returns
    -------
    dict
        ``rollout_mean`` and ``rollout_worst`` of (predicted - measured) / measured, the worst with its sign; NaN where
        the smaller sizes are too few.
    """
    largest = final["params_non_embedding"].eq(final["params_non_embedding"].max())
    held = final[largest]
    try:
        fit = _fit_loss(law, final[~largest], 0, 0)
    except (FitError, InputError):
        return {"rollout_mean": float("nan"), "rollout_worst": float("nan")}
    x = {"params": held["params_non_embedding"].to_numpy(float), "tokens": held["tokens"].to_numpy(float)}
    miss = fit.predict(x) / held["loss"].to_numpy(float) - 1
    return {"rollout_mean": float(miss.mean()), "rollout_worst": float(miss[np.argmax(np.abs(miss))])}


def _law_notes(task: str, quality: pd.DataFrame) -> list[Note]:
    best = quality.loc[quality["r2"].idxmax()]
    facts = {key: float(best[key]) for key in ("r2", "rollout_mean", "rollout_worst") if np.isfinite(best[key])}
    miss = facts.get("rollout_mean", 0.0)
    if best["r2"] >= POOR_R2 and abs(miss) <= POOR_ROLLOUT:
        return []
    text = (
        f"task {task}: no law of size and tokens holds well (R2 {best['r2']:.3f}, largest size missed by {miss:+.1%}); "
        "read its sizes as rough"
    )
    return [Note("no-power-law", "warning", text, facts)]


def _chance_notes(task: str, accuracy: Sequence[float] | pd.Series, items: int) -> list[Note]:
    """Say when most models answer no better than by guessing."""
    chance = 1 / CHOICES
    limit = chance + 3 * (chance * (1 - chance) / max(items, 1)) ** 0.5
    share = float(np.mean(np.asarray(accuracy, dtype=float) <= limit))
    if share <= 0.5:
        return []
    text = f"task {task}: {share:.0%} of the models answer no better than chance; its ruler says nothing about them"
    return [Note("at-chance", "warning", text, {"share": share, "chance": chance, "items": items})]


def ruler(fitted: TaskFit, tokens: float, title: str) -> LawFit:
    """Return the two-step fit with the description that makes its JSON a ruler for ``--reference``.

    Parameters
    ----------
    fitted : TaskFit
        A task with scores.
    tokens : float
        D0: the training tokens at which the ruler is read.
    title : str
        One line for people.

    Raises
    ------
    InputError
        When the task has no scores.
    """
    if fitted.two_step is None:
        raise InputError(f"task {fitted.task}: has losses only; a ruler needs scores")
    about = {
        "name": "ladder",
        "title": title,
        "benchmark": fitted.task,
        "benchmarks": list(fitted.tasks),
        "evaluator": "lm-eval",
        # What our own questions ask is known; of other tasks the table of measurements does not say.
        "protocols": {name: known_protocol("densing-cpu", name).to_dict() for name in fitted.tasks if name in SETS},
        "points": fitted.points.to_dict("records"),
        "given": {"tokens": float(tokens)},
        "notes": [note.to_dict() for note in fitted.notes],
    }
    return dataclasses.replace(fitted.two_step, meta={"reference": about, "licence": "", "sources": []})

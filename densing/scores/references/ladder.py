"""Ladders of training runs: their tables, the two-step fit of one, and how far it misses the models it never saw."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from densing.core import Column, Table, UnknownNameError, named_seed, read_table
from densing.scores.fit import LawFit, compose, fit_law
from densing.scores.laws import D0_PAPER, TwoStep

DATA = Path(__file__).parent / "data"
LADDER = Table(
    "ladder",
    (
        Column("run", "text", "run or released model", required=True),
        Column(
            "params_non_embedding",
            "number",
            "parameters without embeddings, a count",
            required=True,
            low=1,
            high=1e12,
        ),
        Column("tokens", "number", "training tokens, a count", required=True, low=1, high=1e14),
        Column("task", "text", "benchmark id", required=True),
        Column(
            "bits_per_byte",
            "number",
            "loss of the correct answer, bits per byte",
            required=True,
            low=0,
            high=20,
        ),
        Column("accuracy", "number", "share correct, length-normalised", required=True, low=0, high=1),
        Column(
            "stage",
            "text",
            "final, or interim (checkpoint along the run)",
            required=True,
            choices=("final", "interim"),
        ),
        Column("held_out", "flag", "target that the fit does not see", required=True),
        Column("source", "text", "source id", required=True),
    ),
    key=("run", "tokens", "task"),
)
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


@dataclass(frozen=True)
class Ladder:
    """A ladder of training runs that the package ships.

    Parameters
    ----------
    name : str
        The family's name.
    file : str
        Its table, see :data:`LADDER`.
    tasks : tuple of str
        Tasks that make a reference.
    mean : tuple of str
        Tasks of the reference on the mean.
    tokens : float
        D0 at which the reference is read unless asked otherwise, tokens.
    scheme : {"parametric", "cluster"}
        Draws of the loss law: Gaussian with Student width for runs that are independent of each other, resampled runs
        where one run yields several points.
    source : str
        Source id in the catalog.
    """

    name: str
    file: str
    tasks: tuple[str, ...]
    mean: tuple[str, ...]
    tokens: float
    scheme: str
    source: str


_LADDERS = (
    Ladder(
        "olmo-ladder",
        "olmo_ladder.csv",
        # The eight tasks that the ladder's authors predict.
        ("mmlu", "hellaswag", "arc_challenge", "arc_easy", "piqa", "csqa", "socialiqa", "openbookqa"),
        # Tasks that the catalog measures in a comparable (cloze, length-normalised) format under one evaluator and
        # that the ladder itself resolves.
        ("arc_challenge", "hellaswag"),
        D0_PAPER,
        "parametric",
        "olmo-ladder",
    ),
    Ladder(
        "densing-cpu",
        "densing_cpu.csv",
        # Not the table task: hardly any run learns it, so that its loss follows no law (R2 0.02).
        ("facts", "facts_tail", "bigram", "bigram_tail", "skip"),
        ("facts", "facts_tail", "bigram", "bigram_tail", "skip"),
        # The largest budget of its runs.
        1_638_400.0,
        # One run yields four budgets.
        "cluster",
        "densing-cpu",
    ),
)


def get_ladder(name: str) -> Ladder:
    """Return a shipped ladder.

    Raises
    ------
    UnknownNameError
        When there is none of that name.

    Examples
    --------
    >>> get_ladder("olmo-ladder").mean
    ('arc_challenge', 'hellaswag')
    """
    for ladder in _LADDERS:
        if ladder.name == name:
            return ladder
    raise UnknownNameError("ladder", name, [ladder.name for ladder in _LADDERS])


@dataclass(frozen=True)
class LadderData:
    """Runs of one task (or of a mean over tasks), split for the two steps."""

    final: pd.DataFrame
    interim: pd.DataFrame
    held_out: pd.DataFrame


def load_ladder(name: str = "olmo-ladder") -> pd.DataFrame:
    """Return the table of runs of a ladder that the package ships.

    Returns
    -------
    pandas.DataFrame
        Columns as in :data:`LADDER`; losses in bits per byte, accuracies in [0, 1].

    Raises
    ------
    UnknownNameError
        When there is no such ladder.

    Notes
    -----
    Source of olmo-ladder: allenai/OLMo-ladder (Apache-2.0), commit 67a3f440; Bhagia et al., arXiv 2412.04403. Target
    accuracies are the mean of the last five rows of the target's history, as the authors take them.
    """
    file = get_ladder(name).file
    return read_table(DATA / file, LADDER, file)


def ladder_data(table: pd.DataFrame, tasks: tuple[str, ...]) -> LadderData:
    """Return a ladder's points for a task, or for the mean over several.

    Parameters
    ----------
    table : pandas.DataFrame
        Runs, columns as in :data:`LADDER`.
    tasks : tuple of str
        Task ids; with more than one, loss and accuracy are averaged per checkpoint that has them all.
    """
    table = table[table["task"].isin(tasks)]
    keys = ["run", "params_non_embedding", "tokens", "stage", "held_out"]
    groups = table.groupby(keys, as_index=False, sort=True)
    mean = groups[["bits_per_byte", "accuracy"]].mean()[groups.size()["size"].eq(len(tasks))]
    held_out = mean["held_out"].astype(bool)
    final = mean["stage"].eq("final") & ~held_out
    return LadderData(
        mean[final].reset_index(drop=True),
        mean[~held_out & ~final].reset_index(drop=True),
        mean[held_out].reset_index(drop=True),
    )


def fit_ladder(
    data: LadderData, draws: int, seed: int, scheme: str = "parametric", tasks: tuple[str, ...] = ()
) -> tuple[LawFit, pd.DataFrame]:
    """Fit loss in (N, D) on final checkpoints, then accuracy in loss on final and interim ones.

    Parameters
    ----------
    data : LadderData
        Runs of one task, or of the mean over several, see :func:`ladder_data`.
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
    every = pd.concat([data.final, data.held_out], ignore_index=True)
    points = pd.DataFrame(
        {
            "model": every["run"],
            "params": every["params_non_embedding"].astype(float),
            "tokens": every["tokens"].astype(float),
            "bits_per_byte": every["bits_per_byte"],
            "score": every["accuracy"],
            "score_se": 0.0,
            "held_out": every["held_out"].astype(bool),
        }
    )
    return compose(law, first, second, scores=data.final["accuracy"].to_numpy()), points


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
    authors = load_authors()[lambda table: table["task"].isin(tasks)]
    rows = []
    for quantity, step in (("bits_per_byte", "loss"), ("accuracy", "accuracy")):
        if step == "accuracy":
            point, draws = law.predict(fit.theta, x), law.predict(fit.draws, x)
        else:
            point, draws = (law.loss_law.predict(law.split(theta)[0], x) for theta in (fit.theta, fit.draws))
        low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
        for i, run in enumerate(held_out.itertuples()):
            actual = float(getattr(run, quantity))
            predictions = authors.loc[authors["step"].eq(step) & authors["target"].eq(run.run), "authors_prediction"]
            # The authors predict single tasks: nothing of theirs stands beside a mean.
            printed = float(predictions.iloc[0]) if len(predictions) == len(tasks) == 1 else float("nan")
            rows.append(
                {
                    "target": run.run,
                    "quantity": quantity,
                    "actual": actual,
                    "predicted": float(point[i]),
                    "lo": float(low[i]),
                    "hi": float(high[i]),
                    "relative_miss": float(point[i]) / actual - 1,
                    "authors_prediction": printed,
                    "authors_miss": printed / actual - 1,
                }
            )
    return pd.DataFrame(rows)


def load_authors() -> pd.DataFrame:
    """Return the authors' own predictions for the 13B (Bhagia et al., arXiv 2412.04403; repository at 67a3f440)."""
    return read_table(DATA / "olmo_ladder_authors.csv", AUTHORS, "olmo_ladder_authors.csv")

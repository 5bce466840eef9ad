"""Ladders of training runs: what a two-step ruler is fitted on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from densing.core import Column, Table, UnknownNameError, read_table
from densing.scores.laws import D0_PAPER

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
        Tasks that make a ruler.
    mean : tuple of str
        Tasks of the ruler on the mean.
    tokens : float
        D0 at which the ruler is read unless asked otherwise, tokens.
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

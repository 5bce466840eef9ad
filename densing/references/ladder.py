"""The OLMo ladder: a two-step ruler fitted on 16 small runs, with the 7B and 13B targets held out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from densing.tables import Column, Table, read_table

DATA = Path(__file__).parent / "data"
LADDER = Table(
    "olmo_ladder",
    (
        Column("run", "text", "run or released model", required=True),
        Column(
            "params_non_embedding",
            "number",
            "parameters without embeddings, a count",
            required=True,
            low=1e6,
            high=1e12,
        ),
        Column("tokens", "number", "training tokens, a count", required=True, low=1e6, high=1e14),
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

# The eight tasks that the ladder's authors predict.
LADDER_TASKS = (
    "mmlu",
    "hellaswag",
    "arc_challenge",
    "arc_easy",
    "piqa",
    "csqa",
    "socialiqa",
    "openbookqa",
)
# The mean is taken over tasks that the catalogue measures in a comparable (cloze, length-normalised) format under one
# evaluator and that the ladder itself resolves.
LADDER_MEAN = ("arc_challenge", "hellaswag")


@dataclass(frozen=True)
class LadderData:
    """Runs of one task (or of a mean over tasks), split for the two steps."""

    final: pd.DataFrame
    interim: pd.DataFrame
    held_out: pd.DataFrame


def load_ladder() -> pd.DataFrame:
    """Return the table of ladder runs that the package ships.

    Returns
    -------
    pandas.DataFrame
        Columns as in :data:`LADDER`; losses in bits per byte, accuracies in [0, 1].

    Notes
    -----
    Source: allenai/OLMo-ladder (Apache-2.0), commit 67a3f440; Bhagia et al., arXiv 2412.04403. Target accuracies are
    the mean of the last five rows of the target's history, as the authors take them.
    """
    return read_table(DATA / "olmo_ladder.csv", LADDER, "olmo_ladder.csv")


def ladder_data(tasks: tuple[str, ...]) -> LadderData:
    """Return the ladder's points for a task, or for the mean over several.

    Parameters
    ----------
    tasks : tuple of str
        Task ids; with more than one, loss and accuracy are averaged per checkpoint.
    """
    table = load_ladder()
    table = table[table["task"].isin(tasks)]
    keys = ["run", "params_non_embedding", "tokens", "stage", "held_out"]
    mean = table.groupby(keys, as_index=False, sort=True)[["bits_per_byte", "accuracy"]].mean()
    held_out = mean["held_out"].astype(bool)
    final = mean["stage"].eq("final") & ~held_out
    return LadderData(
        mean[final].reset_index(drop=True),
        mean[~held_out & ~final].reset_index(drop=True),
        mean[held_out].reset_index(drop=True),
    )

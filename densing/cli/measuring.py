"""The main job's measurement: one real model on a few hundred items of the ladder's suite, cached in its folder."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from densing.core import DensingError

if TYPE_CHECKING:
    import pandas as pd

    from densing.scores.catalog import Catalog
    from densing.scores.study import Measured

MODEL = "smollm2-135m"
# The ladder's tasks but MMLU, whose examples differ by subject: half of the time for an eighth of the items.
TASKS = ("arc_challenge", "arc_easy", "csqa", "hellaswag", "openbookqa", "piqa", "socialiqa")
ITEMS, FAST_ITEMS = 45, 12
BATCH = "4"


def measure(folder: Path, catalog: Catalog, *, items: int, tokens: float | None, quiet: bool) -> Measured:
    """Evaluate the bundled model, or find its results in the folder, and place it.

    Parameters
    ----------
    folder : path
        The result store; what it holds is not evaluated again.
    catalog : Catalog
        Whose models stand beside it.
    items : int
        Items per task: the suite's documents stand in random order, so these are a random sample.
    tokens
        As for :func:`densing.scores.density.run_densities`.
    quiet : bool
        No progress bar.

    Returns
    -------
    Measured
        Without densities and with the reason where a part is not installed or the evaluation fails: the main job
        goes on.
    """
    from densing.scores.study import Measured, place_measured

    try:
        measurements, models = _evaluate(folder, items, quiet)
        return place_measured(measurements, models, catalog, released={MODEL: _released()}, tokens=tokens)
    except DensingError as error:
        more = "" if find_spec("lm_eval") else '; lm-eval is missing too: pip install "densing[evals]"'
        return Measured(missing=f"no model was evaluated: {error}{more}")


def _released() -> str:
    from densing.scores.evals import MODELS

    return MODELS[MODEL].released


def _evaluate(folder: Path, items: int, quiet: bool) -> tuple[pd.DataFrame, pd.DataFrame]:
    from densing.cli.eval import bar
    from densing.core import InputError
    from densing.scores.evals import plan_of, read_run, run_plan

    tasks = [f"olmo_ladder_{name}" for name in TASKS]
    plan = plan_of({"models": [MODEL], "tasks": tasks, "limit": items, "batch_size": BATCH}, "the main job")
    with bar(quiet) as progress:
        summary = run_plan(plan, folder, progress=progress)
    if summary.failed:
        first = summary.failed[0]
        raise InputError(f"{first.model} on {first.task}: {first.error}")
    read = read_run(folder)
    digests = [unit.digest for unit in summary.units]
    return read.measurements[read.measurements["digest"].isin(digests)], read.models

"""A model that was evaluated here, placed among the catalog's models and on the reference law.

The main job evaluates one real model on a few hundred items of the ladder's suite and keeps the results in its folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from densing.core import DensingError, InputError, Note
from densing.jobs import Tell, beside
from densing.scores.catalog import Catalog
from densing.scores.density import (
    COMBINED,
    RUN_GUARD,
    DensityResult,
    RunDensities,
    catalog_densities,
    read_on,
    run_densities,
)
from densing.scores.references import load_reference

if TYPE_CHECKING:
    from densing.scores.evals import Progress

REFERENCE = "olmo-ladder"
MODEL = "smollm2-135m"
# The ladder's tasks but MMLU, whose examples differ by subject: half of the time for an eighth of the items.
TASKS = ("arc_challenge", "arc_easy", "csqa", "hellaswag", "openbookqa", "piqa", "socialiqa")
# Items per task, of the whole evaluation and of `--fast`.
ITEMS, FAST_ITEMS = 45, 12
BATCH = "4"


@dataclass(frozen=True)
class LocalEvaluation:
    """Results measured here and their densities, or why there are none.

    Parameters
    ----------
    densities : RunDensities, optional
        By loss and by score, per task and combined; None when nothing was measured.
    measurements, models : pandas.DataFrame
        Results of lm-eval, and the models measured.
    among : DensityResult, optional
        The catalog's models on the same ladder's mean reference, every parameter counted.
    placed : DensityResult, optional
        The measured models on that reference.
    missing : str
        Why nothing was measured, with the remedy.
    notes : tuple of Note
        What to keep in mind.
    """

    densities: RunDensities | None = None
    measurements: pd.DataFrame = field(default_factory=pd.DataFrame)
    models: pd.DataFrame = field(default_factory=pd.DataFrame)
    among: DensityResult | None = None
    placed: DensityResult | None = None
    missing: str = ""
    notes: tuple[Note, ...] = ()

    def part(self, quantity: str) -> DensityResult | None:
        """Return the combined densities by ``loss`` or by ``score``; of one task where only one was measured."""
        if self.densities is None:
            return None
        parts = [part for part in self.densities.results if part.table["quantity"].eq(quantity).all()]
        combined = [part for part in parts if part.table["benchmark"].eq(COMBINED).all()]
        return next(iter(combined or parts), None)


def place_measured(
    measurements: pd.DataFrame,
    models: pd.DataFrame,
    catalog: Catalog,
    *,
    released: dict[str, str] | None = None,
    tokens: float | None = None,
    seed: int = 0,
) -> LocalEvaluation:
    """Compute a run's densities on the OLMo ladder, beside the catalog's models on the same reference.

    Parameters
    ----------
    measurements, models : pandas.DataFrame
        As for :func:`densing.scores.density.run_densities`.
    catalog : Catalog
        Provides the models for comparison.
    released : mapping, optional
        Release date per measured model.
    tokens, seed
        As for :func:`densing.scores.density.run_densities`.

    Returns
    -------
    LocalEvaluation
        Among the catalog's models every parameter counts on both sides, because few of them state a count
        without embeddings.

    Raises
    ------
    InputError
        When nothing that was measured can be read on the ladder.
    """
    densities = run_densities(measurements, models, REFERENCE, tokens=tokens, seed=seed)
    reference = load_reference(REFERENCE, "mean", tokens=tokens)
    among = catalog_densities(catalog, reference, denominator="total", guard=RUN_GUARD, seed=seed)
    placed = read_on(reference, measurements, models, denominator="total", guard=RUN_GUARD, seed=seed)
    if placed is None:
        return LocalEvaluation(densities, measurements, models, notes=densities.notes)
    dates = pd.to_datetime(placed.table["model"].map(released or {}))
    placed = replace(placed, table=placed.table.assign(released=dates, stratum="measured here"))
    return LocalEvaluation(densities, measurements, models, among, placed, notes=(*densities.notes, *reference.notes))


def measure_bundled(
    folder: Path,
    catalog: Catalog,
    *,
    fast: bool = False,
    tokens: float | None = None,
    progress: Callable[[Progress], object] = lambda progress: None,
) -> LocalEvaluation:
    """Evaluate the bundled model, or read stored results, and rank it.

    Parameters
    ----------
    folder : path
        The result store; what it holds is not evaluated again.
    catalog : Catalog
        Provides the models for comparison.
    fast : bool
        On a quarter of the items. The suite's documents are in random order, so these are a random sample.
    tokens
        As for :func:`densing.scores.density.run_densities`.
    progress : callable, optional
        Called with every step.

    Returns
    -------
    LocalEvaluation
        Without densities and with the reason where a part is not installed or the evaluation fails: the main job
        goes on.
    """
    # The harness is loaded where something is measured only.
    from densing.scores.evals import MODELS, plan_of, read_run, run_plan

    plan = {
        "models": [MODEL],
        "tasks": [f"olmo_ladder_{name}" for name in TASKS],
        "limit": FAST_ITEMS if fast else ITEMS,
        "batch_size": BATCH,
    }
    try:
        summary = run_plan(plan_of(plan, "the main job"), folder, progress=progress)
        if summary.failed:
            first = summary.failed[0]
            raise InputError(f"{first.model} on {first.task}: {first.error}")
        run, digests = read_run(folder), [unit.digest for unit in summary.units]
        measurements = run.measurements[run.measurements["digest"].isin(digests)]
        return place_measured(
            measurements, run.models, catalog, released={MODEL: MODELS[MODEL].released}, tokens=tokens
        )
    except DensingError as error:
        return LocalEvaluation(missing=f"no model was evaluated: {error}")


@contextmanager
def background_evaluation(
    folder: Path, catalog: Catalog, *, fast: bool = False, tokens: float | None = None
) -> Iterator[Callable[[Callable[[Progress], object]], LocalEvaluation]]:
    """Run :func:`measure_bundled` in a subprocess while this process continues with the study.

    Parameters
    ----------
    folder, catalog, fast, tokens
        As for :func:`measure_bundled`.

    Yields
    ------
    callable
        ``wait(progress)`` returns what :func:`measure_bundled` does. Whoever leaves without waiting ends the
        evaluation; what it has stored, the next one reads.
    """
    with beside(partial(_measure, folder, catalog, tokens), fast) as ended:

        def wait(progress: Callable[[Progress], object]) -> LocalEvaluation:
            done = ended(lambda fast, state: progress(state))
            return (
                LocalEvaluation(missing=f"no model was evaluated: {done.reason}")
                if done.row is None
                else done.row["found"]
            )

        yield wait


def _measure(
    folder: Path, catalog: Catalog, tokens: float | None, fast: bool, tell: Tell
) -> dict[str, LocalEvaluation]:
    return {"found": measure_bundled(folder, catalog, fast=fast, tokens=tokens, progress=tell)}

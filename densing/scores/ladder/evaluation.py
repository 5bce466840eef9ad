"""The questions of a ladder, asked of all its models through lm-eval, into ``DIR/eval``."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from densing.core import InputError, Note
from densing.scores.evals import Loading, ModelSpec, Plan, RunSummary, TaskSpec, run_plan
from densing.scores.ladder.corpus import FILMS
from densing.scores.ladder.folder import STORE, read_exports, read_ladder
from densing.scores.ladder.questions import write_tasks
from densing.scores.ladder.runs import get_preset
from densing.scores.ladder.workers import Tell, each

TASKS = "tasks"
BATCH = "256"
ANSWERS, CHOICES = ("meter_bits", "reviews_bits"), ("pair", "content")
"""Tasks of a ladder of films: hundreds of answers behind one text, and one answer behind several texts."""
MANY_TEXTS = 5
"""So many times fewer questions with 25 texts each are asked."""


@dataclass(frozen=True)
class LadderEvaluation:
    """What became of an evaluation.

    Parameters
    ----------
    run : str
        The result store.
    models : int
        Exported models.
    tasks : list of str
        Names of the lm-eval tasks.
    states : dict of str to int
        Units by what became of them: ``evaluated``, ``skipped``, ``failed``.
    failed : list of str
        A line per failed unit.
    requests : int
        Requests that were made.
    seconds : float
    notes : list of Note
    """

    run: str
    models: int
    tasks: list[str]
    states: dict[str, int]
    failed: list[str]
    requests: int
    seconds: float
    notes: list[Note]


def evaluate_ladder(
    folder: Path,
    *,
    questions: int | None = None,
    workers: int = 1,
    device: str = "cpu",
    progress: Callable[[str, float, float | None], object] = lambda label, done, total: None,
) -> LadderEvaluation:
    """Evaluate every exported model on every set of questions; what the store holds is not asked again.

    A ladder of films is asked how films were received, by the loss of each answer.

    Parameters
    ----------
    folder : Path
        The ladder.
    questions : int, optional
        Questions per set; default: the preset's.
    workers : int
        Processes; each takes a share of the models and all write into one store.
    device : str
        A torch device.
    progress : callable
        Called with the model under way, the requests done and their number (None while it is not known).

    Raises
    ------
    InputError
        When the ladder was trained on a text of the user's, or nothing is exported.
    """
    about = read_ladder(folder)
    films = about.get("corpus") == FILMS
    if "corpus_seed" not in about and not films:
        raise InputError(
            f"{folder}: trained on a text, which has no questions; use `densing eval --model hf "
            f"--model_args pretrained={folder}/models/NAME --tasks ...`, or fit its validation loss"
        )
    exports = list(read_exports(folder))
    if rewired := [export["name"] for export in exports if export.get("wiring")]:
        raise InputError(
            f"{folder}: {rewired[0]} has an architecture that lm-eval cannot load; see its losses in `densing ladder "
            "gain`, and evaluate the other arms in a ladder without it"
        )
    if not exports:
        raise InputError(f"{folder}: no model is exported yet; run `densing ladder train --out {folder}`")
    count = questions or get_preset(about["preset"]).questions
    if films:
        plans = _film_plans(exports, count, workers, device)
    else:
        tasks = [TaskSpec(task) for task in write_tasks(folder / TASKS, count, int(about["corpus_seed"]))]
        plans = _plans("hf", exports, tasks, workers, Loading(BATCH, device=device), (str(folder / TASKS),))
    requests = [(0.0, 0.0)] * len(plans)

    def tell(number: int, label: str, done: float, total: float) -> None:
        requests[number] = (done, total)
        progress(label, sum(done for done, _ in requests), sum(total for _, total in requests) or None)

    started = time.monotonic()
    work = functools.partial(_evaluate, store=folder / STORE)
    summaries = each(work, list(enumerate(plans)), workers, tell)
    units = [unit for summary in summaries for unit in summary.units]
    return LadderEvaluation(
        run=str(folder / STORE),
        models=len(exports),
        tasks=list(dict.fromkeys(task.name for plan in plans for task in plan.tasks)),
        states=dict(Counter(unit.state for unit in units)),
        failed=[f"{unit.model}, {unit.task}: {unit.error}" for unit in units if unit.state == "failed"],
        requests=sum(unit.requests for unit in units),
        seconds=time.monotonic() - started,
        notes=[note for summary in summaries for note in summary.notes],
    )


def _plans(
    kind: str,
    exports: Sequence[Mapping[str, Any]],
    tasks: Sequence[TaskSpec],
    workers: int,
    loading: Loading,
    include: tuple[str, ...] = (),
) -> list[Plan]:
    """Deal the models out to workers, large ones first, so that every share costs about the same."""
    ordered = sorted(exports, key=lambda export: (-int(export["params_total"]), export["name"]))
    return [
        Plan(
            tuple(
                ModelSpec.of(kind, {"pretrained": str(export["path"]), "dtype": "float32"}, name=str(export["name"]))
                for export in ordered[start::workers]
            ),
            tuple(tasks),
            loading=loading,
            include_path=include,
        )
        for start in range(min(workers, len(ordered)))
    ]


def _film_plans(exports: Sequence[Mapping[str, Any]], count: int, workers: int, device: str) -> list[Plan]:
    """Ask every model about films whose reception it was not told: of its arm's split, or of all splits there are."""
    plans = []
    for split in sorted({str(export["behaviour"]) for export in exports if "behaviour" in export}) or ["time"]:
        end = "" if split == "time" else f"_{split}"
        models = [export for export in exports if export.get("behaviour", split) == split]
        numbers = [TaskSpec(f"lcbm_films_{name}{end}", {"limit": count}) for name in ANSWERS]
        limits = {"pair": count, "content": max(1, count // MANY_TEXTS)}
        choices = [TaskSpec(f"lcbm_films_{name}{end}", {"limit": limits[name]}) for name in CHOICES]
        # Answers share the text before them; texts that differ are quicker in batches.
        plans += _plans("hf-prefix", models, numbers, workers, Loading("1", device=device))
        plans += _plans("hf", models, choices, workers, Loading(BATCH, device=device))
    return plans


def _evaluate(numbered: tuple[int, Plan], tell: Tell, *, store: Path) -> RunSummary:
    import torch

    # More threads lose time on models this small.
    torch.set_num_threads(1)
    number, plan = numbered
    return run_plan(plan, store, progress=lambda state: tell(number, state.model, state.done, state.total))

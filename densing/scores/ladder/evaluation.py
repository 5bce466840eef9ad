"""The questions of a ladder, asked of all its models through lm-eval, into ``DIR/eval``."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from densing.core import InputError, Note
from densing.scores.evals import Loading, ModelSpec, Plan, RunSummary, TaskSpec, run_plan
from densing.scores.ladder.folder import STORE, read_exports, read_ladder
from densing.scores.ladder.questions import write_tasks
from densing.scores.ladder.runs import get_preset
from densing.scores.ladder.workers import Tell, each

TASKS = "tasks"
BATCH = "256"


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

    Parameters
    ----------
    folder : Path
        The ladder.
    questions : int, optional
        Questions per set; the preset's when left out.
    workers : int
        Processes; each takes a share of the models and all write into one store.
    device : str
        A torch device.
    progress : callable
        Called with the model under way, the requests done and their number (None while it is not known).

    Raises
    ------
    InputError
        When the ladder was trained on a text, or nothing is exported.
    """
    about = read_ladder(folder)
    if "corpus_seed" not in about:
        raise InputError(
            f"{folder}: trained on a text, which has no questions of its own; use `densing eval --model hf "
            f"--model_args pretrained={folder}/models/NAME --tasks ...`, or fit its validation loss"
        )
    exports = list(read_exports(folder))
    if not exports:
        raise InputError(f"{folder}: no model is exported yet; run `densing ladder train --out {folder}`")
    count = questions or get_preset(about["preset"]).questions
    tasks = write_tasks(folder / TASKS, count, int(about["corpus_seed"]))
    # Dealt out large ones first, so that every share costs about the same.
    exports.sort(key=lambda export: (-int(export["params_total"]), export["name"]))
    shares = [exports[start::workers] for start in range(min(workers, len(exports)))]
    plans = [
        Plan(
            tuple(
                ModelSpec.of("hf", {"pretrained": str(export["path"]), "dtype": "float32"}, name=str(export["name"]))
                for export in share
            ),
            tuple(TaskSpec(task) for task in tasks),
            loading=Loading(batch_size=BATCH, device=device),
            include_path=(str(folder / TASKS),),
        )
        for share in shares
    ]
    requests = [(0.0, 0.0)] * len(plans)

    def tell(number: int, label: str, done: float, total: float) -> None:
        requests[number] = (done, total)
        progress(label, sum(done for done, _ in requests), sum(total for _, total in requests) or None)

    started = time.monotonic()
    work = functools.partial(_evaluate, store=folder / STORE)
    summaries = each(work, list(enumerate(plans)), len(plans), tell)
    units = [unit for summary in summaries for unit in summary.units]
    return LadderEvaluation(
        run=str(folder / STORE),
        models=len(exports),
        tasks=tasks,
        states=dict(Counter(unit.state for unit in units)),
        failed=[f"{unit.model}, {unit.task}: {unit.error}" for unit in units if unit.state == "failed"],
        requests=sum(unit.requests for unit in units),
        seconds=time.monotonic() - started,
        notes=[note for summary in summaries for note in summary.notes],
    )


def _evaluate(numbered: tuple[int, Plan], tell: Tell, *, store: Path) -> RunSummary:
    import torch

    # More threads lose time on models this small.
    torch.set_num_threads(1)
    number, plan = numbered
    return run_plan(plan, store, progress=lambda state: tell(number, state.model, state.done, state.total))

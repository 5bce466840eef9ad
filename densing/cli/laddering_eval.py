"""``densing ladder eval``: the questions of a ladder, asked of all its models through lm-eval."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from densing.cli.laddering import read_description
from densing.cli.output import timed_bar
from densing.core import InputError

if TYPE_CHECKING:
    from densing.scores.evals import Plan, RunSummary

STORE, TASKS = "eval", "tasks"
BATCH = "256"


def evaluate_ladder(folder: Path, count: int | None, workers: int, device: str, quiet: bool) -> dict[str, Any]:
    """Evaluate every exported model on every set of questions; what the store holds is not asked again.

    Parameters
    ----------
    folder : Path
        The ladder.
    count : int or None
        Questions per set; the preset's when None.
    workers : int
        Processes; each takes a share of the models and all write into one store.
    device : str
        A torch device.
    quiet : bool
        Whether to show no bar.

    Raises
    ------
    InputError
        When the ladder was trained on a text, or nothing is exported.
    """
    from densing.scores.ladder import get_preset, read_exports, write_tasks

    about = read_description(folder)
    if "corpus_seed" not in about:
        raise InputError(
            f"{folder}: trained on a text, which has no questions of its own; use `densing eval --model hf "
            f"--model_args pretrained={folder}/models/NAME --tasks ...`, or fit its validation loss"
        )
    exports = list(read_exports(folder))
    if not exports:
        raise InputError(f"{folder}: no model is exported yet; run `densing ladder train --out {folder}`")
    tasks = write_tasks(folder / TASKS, count or get_preset(about["preset"]).questions, int(about["corpus_seed"]))
    plans = [_plan(folder, part, tasks, device) for part in _shares(exports, workers)]
    started = time.monotonic()
    summaries = _run(plans, folder / STORE, quiet)
    units = [unit for summary in summaries for unit in summary.units]
    return {
        "run": str(folder / STORE),
        "models": len(exports),
        "tasks": tasks,
        "states": dict(Counter(unit.state for unit in units)),
        "failed": [f"{unit.model}, {unit.task}: {unit.error}" for unit in units if unit.state == "failed"],
        "requests": sum(unit.requests for unit in units),
        "seconds": time.monotonic() - started,
        "notes": [note for summary in summaries for note in summary.notes],
    }


def _shares(exports: Sequence[dict[str, Any]], workers: int) -> list[list[dict[str, Any]]]:
    """Deal the models out, large ones first, so that every share costs about the same."""
    order = sorted(exports, key=lambda export: (-int(export["params_total"]), export["name"]))
    return [order[start::workers] for start in range(min(workers, len(order)))]


def _plan(folder: Path, exports: Sequence[dict[str, Any]], tasks: Sequence[str], device: str) -> Plan:
    from densing.scores.evals import Loading, ModelSpec, Plan, TaskSpec

    models = [
        ModelSpec.of("hf", {"pretrained": str(export["path"]), "dtype": "float32"}, name=str(export["name"]))
        for export in exports
    ]
    return Plan(
        tuple(models),
        tuple(TaskSpec(task) for task in tasks),
        loading=Loading(batch_size=BATCH, device=device),
        include_path=(str(folder / TASKS),),
    )


def _run(plans: Sequence[Plan], store: Path, quiet: bool) -> list[RunSummary]:
    from densing.scores.ladder import each

    done = [(0.0, 0.0)] * len(plans)
    with timed_bar(quiet) as show:

        def tell(place: int, label: str, so_far: float, of: float) -> None:
            done[place] = (so_far, of)
            show(label, sum(part for part, _ in done), sum(whole for _, whole in done) or None)

        return each(functools.partial(_evaluate, store=store), list(enumerate(plans)), len(plans), tell)


def _evaluate(numbered: tuple[int, Plan], tell: Callable[..., object], *, store: Path) -> RunSummary:
    import torch

    from densing.scores.evals import run_plan

    # More threads lose time on models this small.
    torch.set_num_threads(1)
    place, plan = numbered
    return run_plan(plan, store, progress=lambda state: tell(place, state.model, state.done, state.total))

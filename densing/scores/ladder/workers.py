"""Training the runs of a ladder, one process per core."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from densing.core import InputError
from densing.scores.ladder.pool import Tell, each
from densing.scores.ladder.run import Run


def train(
    runs: Sequence[Run],
    folder: Path,
    *,
    workers: int = 1,
    device: str = "cpu",
    threads: int = 1,
    progress: Callable[[str, int], object] = lambda run, done: None,
) -> dict[str, int]:
    """Train what is missing of every run.

    Parameters
    ----------
    runs : sequence of Run
        What to train; seed by seed, the costliest first.
    folder : Path
        The ladder's folder.
    workers : int
        Processes; with 1 everything happens in this one.
    device : str
        A torch device.
    threads : int
        Torch threads per process; models this small lose time with more than one.
    progress : callable
        Called with a run's name and its steps done.

    Returns
    -------
    dict of str to int
        Budgets exported now, by run.

    Raises
    ------
    InputError
        When there is no such device.
    WorkerError
        When a worker was killed; what it had checkpointed is kept.
    """
    todo = [run for run in runs if not all(run.exported(folder, budget) for budget in run.budgets)]
    # Seed by seed, so that a ladder is whole early; the costliest first, so that the cheap ones fill the end.
    todo.sort(key=lambda run: (run.seed, -run.work * run.shape.batch * run.shape.total(run.corpus.vocabulary)))
    work = functools.partial(_train, folder=folder, device=device, threads=threads)
    exported = each(work, todo, workers, progress)
    return dict.fromkeys((run.name for run in runs), 0) | {
        run.name: count for run, count in zip(todo, exported, strict=True)
    }


def _train(run: Run, tell: Tell, *, folder: Path, device: str, threads: int) -> int:
    import torch
    import transformers

    from densing.scores.ladder.trainer import train_run

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"--device {device}: {str(error).splitlines()[0]}; --device cpu always works") from error
    torch.set_num_threads(threads)
    transformers.logging.disable_progress_bar()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    return train_run(run, folder, device, lambda done: tell(run.name, done))

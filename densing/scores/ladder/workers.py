"""Work on a ladder in several processes, which report while they go and end when the command that started them does.

:func:`each` is the pool, :func:`train` its use for the runs of a ladder.
"""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock

from densing.core import DensingError, InputError, processes, storage_errors
from densing.scores.ladder.arms import Maker
from densing.scores.ladder.lessons import KNOBS
from densing.scores.ladder.runs import DivergedError, Run

Item = TypeVar("Item")
Result = TypeVar("Result")
Tell = Callable[..., object]
POLL_SECONDS = 0.5


class WorkerError(DensingError):
    """A worker process ended without saying why."""


def each(
    work: Callable[[Item, Tell], Result], items: Sequence[Item], workers: int, tell: Tell = lambda *_: None
) -> list[Result]:
    """Return ``work(item, tell)`` for every item, in their order.

    Parameters
    ----------
    work : callable
        A function of a module; it and the items travel to other processes.
    items : sequence
        What to work on; taken in order.
    workers : int
        Processes; with one worker or one item everything happens in this one.
    tell : callable
        Called here with whatever the work reports.

    Raises
    ------
    WorkerError
        When a process was killed.
    """
    if min(workers, len(items)) <= 1:
        return [work(item, tell) for item in items]
    # Not forked: a child of a process in which torch has threads may wait for one of them for ever.
    context = multiprocessing.get_context("spawn")
    messages: Any = context.Queue()
    pool = ProcessPoolExecutor(min(workers, len(items)), context, _begin, (messages, os.getpid()))
    try:
        parts = [pool.submit(_work, work, item) for item in items]
        waiting = set(parts)
        while waiting:
            finished, waiting = wait(waiting, POLL_SECONDS, FIRST_COMPLETED)
            _pass_on(messages, tell)
            for part in finished:
                part.result()
        results = [part.result() for part in parts]
        pool.shutdown()
        _pass_on(messages, tell)
        return results
    except BrokenProcessPool as error:
        raise WorkerError(
            "a worker process was killed (out of memory?); the same command resumes from there"
        ) from error
    finally:
        # After a failure or Ctrl-C: copied first, because the pool forgets its processes when it shuts down.
        workers_left = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in workers_left:
            process.terminate()


def _pass_on(messages: Any, tell: Tell) -> None:
    while True:
        try:
            tell(*messages.get_nowait())
        except queue.Empty:
            return


_MESSAGES: Any = None


def _begin(messages: Any, parent: int) -> None:
    """Prepare a worker process."""
    global _MESSAGES
    _MESSAGES = messages
    processes.die_with_parent(parent)


def _work(work: Callable[[Item, Tell], Result], item: Item) -> Result:
    return work(item, lambda *message: _MESSAGES.put(message))


def train(
    runs: Sequence[Run],
    folder: Path,
    *,
    workers: int = 1,
    device: str = "cpu",
    threads: int = 1,
    progress: Callable[[str, int], object] = lambda run, done: None,
    maker: Maker | None = None,
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
    maker : callable, optional
        Makes the virtual ranks of arms; a function of a module, for it travels to other processes.

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
    DivergedError
        When a run's loss is no longer a number, after the others are done.
    """
    todo = [run for run in runs if not all(run.exported(folder, budget) for budget in run.budgets)]
    # Seed by seed, so that a ladder is whole early; the costliest first, so that the cheap ones fill the end.
    todo.sort(key=lambda run: (run.seed, -run.work * run.shape.batch * run.shape.total(run.corpus.vocabulary)))
    work = functools.partial(_train, folder=folder, device=device, threads=threads, maker=maker)
    exported = each(work, todo, workers, progress)
    if diverged := [outcome for outcome in exported if isinstance(outcome, str)]:
        raise DivergedError("; ".join(diverged) + "; all other runs are done")
    return dict.fromkeys((run.name for run in runs), 0) | {
        run.name: int(count) for run, count in zip(todo, exported, strict=True)
    }


def _train(run: Run, tell: Tell, *, folder: Path, device: str, threads: int, maker: Maker | None) -> int | str:
    """Return how many budgets were exported, or why the run ended: the others go on."""
    import torch
    import transformers

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"--device {device}: {str(error).splitlines()[0]}; --device cpu always works") from error
    torch.set_num_threads(threads)
    transformers.logging.disable_progress_bar()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        return train_run(run, folder, device, lambda done: tell(run.name, done), maker)
    except DivergedError as error:
        return str(error)


def train_run(
    run: Run,
    folder: Path,
    device: str = "cpu",
    report: Callable[[int], object] = lambda done: None,
    maker: Maker | None = None,
) -> int:
    """Train what is missing of a run, and return how many budgets were exported now.

    Budgets come in ascending order. The stable stage stays at the branch of the budget under way until that budget is
    exported, so a run that was killed goes on from its last checkpoint, with the same bits as an unbroken one.

    Parameters
    ----------
    run : Run
        What to train.
    folder : Path
        The ladder's folder.
    device : str
        A torch device.
    report : callable
        Called every now and then with the steps done, of :attr:`Run.work`.
    maker : callable, optional
        Makes the virtual ranks of an arm; needed where the run is one's.

    Raises
    ------
    InputError
        When the folder cannot be written to, or the disk is full.
    """
    from densing.scores.ladder.teaching import LessonTrainer
    from densing.scores.ladder.trainer import ArmTrainer, Trainer

    if all(run.exported(folder, budget) for budget in run.budgets):
        return 0
    lock = run.checkpoint(folder, "stable").with_name("run.lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    # Another command that is at this run finishes it; then there is nothing left to do here.
    with FileLock(lock), storage_errors(folder):
        todo = [budget for budget in run.budgets if not run.exported(folder, budget)]
        if not todo:
            return 0
        if run.arm is None:
            trainer = Trainer(run, device, report)
        elif run.arm.method in KNOBS:
            trainer = LessonTrainer(run, device, report)
        else:
            trainer = ArmTrainer(run, device, report, maker=maker)
        for budget in todo:
            trainer.train_budget(budget, folder)
        run.checkpoint(folder, "stable").unlink(missing_ok=True)
    return len(todo)

"""Train on rows of a table in the host's memory: one stage after the other, then with the rows gathered ahead."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor
from torch.nn.functional import cross_entropy

from densing.core import InputError, UnknownNameError
from densing.efficiency.parallel import Clock, RunEnv, RunRecord, folder, recorded
from densing.efficiency.systems.host_tables.ahead import Ahead, Batch, Buffer, Sizes, free_cores
from densing.efficiency.systems.host_tables.device import Fetch
from densing.efficiency.systems.host_tables.graph import Task, films_task
from densing.efficiency.systems.host_tables.sage import Sage

DATA = "films-graph"
HELD_OUT = 1024
"""Most nodes to test on."""
NO_PCIE = "no PCIe here: another process gathered rows into shared memory"
ONE_CORE = "both processes shared one processor"
MAPPED = "the table exceeds half of the free memory, so rows were read from disk on demand"


class Pass(NamedTuple):
    """One training from the first step to the last.

    Attributes
    ----------
    losses : tuple of float
    clock : Clock
    stages : list of tuple of float
        Seconds of each step: which rows, gathering them, training.
    model : Sage
    rows : float
        Gathered per step, mean.
    """

    losses: tuple[float, ...]
    clock: Clock
    stages: list[tuple[float, float, float]]
    model: Sage
    rows: float


def train_from_table(
    env: RunEnv,
    way: str,
    *,
    data: str = DATA,
    seeds: int = 128,
    width: int = 602,
    table: str = "",
    overlap: bool = True,
    align: bool = True,
    load: Callable[[], Task] | None = None,
) -> RunRecord:
    """Train GraphSAGE on a graph whose rows lie in the host's memory.

    On a processor the run is made twice from the same weights: first sampling, gathering and training take turns in
    this process, then another process samples and gathers one step ahead into the second of two shared buffers. Both
    must end with the same losses and weights, to the bit. On a device rows are fetched by ``way``, in turns.

    Parameters
    ----------
    env : RunEnv
    way : {"host-gather", "pinned-gather", "zero-copy"}
    data : str
        ``films-graph``.
    seeds : int
        Nodes per step.
    width, table
        As :func:`densing.efficiency.systems.host_tables.graph.films_task` takes them.
    overlap : bool
        Whether the second pass is made; its times are the record's.
    align : bool
        Of ``zero-copy``.
    load : callable, optional
        Gives another task; importable, for the other process calls it too.

    Returns
    -------
    RunRecord
        ``tokens`` are seeds, ``parameters`` those of the model without the table's. ``extra``: ``sample_s``,
        ``gather_s``, ``train_s`` and ``sequential_step_s`` of the first pass, per step; ``equal``, 1 where both passes
        ended the same; ``rows`` per step, ``row_bytes``, ``width``, ``table_parameters``; ``accuracy`` on held-out
        nodes, ``majority`` what guessing the majority label gives.

    Raises
    ------
    InputError
        Where rows lie beyond the table, the loss is no longer finite, and as the task's maker.
    """
    if data != DATA:
        raise UnknownNameError("data", data, (DATA,))
    load = load or partial(films_task, width, table)
    task = load()
    on_device = env.spec.device != "cpu"
    sizes = Sizes.of(task, seeds)
    told = [] if on_device else [NO_PCIE]
    if on_device:
        first = last = _train(env, task, _fetched(env, task, Fetch(task.table, way, sizes.rows, align), seeds))
    else:
        buffer = Buffer(sizes)
        first = last = _train(env, task, lambda step: buffer.fill(task, seeds, env.spec.seed, step), traced=not overlap)
        if overlap:
            cores = free_cores()
            told += [] if cores else [ONE_CORE]
            with Ahead(load, sizes, seeds, env.spec.seed, env.spec.steps, cores) as ahead:
                last = _train(env, task, lambda step: ahead.take())
            _check_equal(first, last)
    told += [MAPPED] if task.table.mapped else []
    timed = slice(len(first.stages) // 4, None)
    sample_s, gather_s, train_s = (statistics.fmean(each) for each in zip(*first.stages[timed], strict=True))
    loss, accuracy, majority = _evaluate(task, last.model, seeds)
    figures = {
        "sample_s": sample_s,
        "gather_s": gather_s,
        "train_s": train_s,
        "sequential_step_s": statistics.fmean(first.clock.step_s[timed]),
        "rows": first.rows,
        "row_bytes": float(sizes.width * 4),
        "width": float(sizes.width),
        "table_parameters": float(task.table.rows.size),
        "accuracy": accuracy,
        "majority": majority,
        **({"equal": 1.0} if last is not first else {}),
    }
    return RunRecord(
        technique=env.spec.technique,
        rank=env.rank,
        world_size=env.world_size,
        losses=last.losses,
        step_s=tuple(last.clock.step_s),
        wait_s=tuple(last.clock.wait_s),
        tokens=min(seeds, len(task.train)),
        final_loss=loss,
        parameters=sum(weight.numel() for weight in last.model.parameters()),
        stand_in="; ".join(told),
        extra=figures,
    )


def _train(env: RunEnv, task: Task, take: Callable[[int], Batch], *, traced: bool = True) -> Pass:
    """Take all steps of a run on what ``take`` gives."""
    spec, clock = env.spec, Clock()
    torch.manual_seed(spec.seed)
    device = "cpu" if spec.device == "cpu" else "cuda"
    model = Sage(task.table.rows.shape[1], task.classes).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=spec.lr)
    labels = torch.from_numpy(task.labels)
    losses: list[float] = []
    stages: list[tuple[float, float, float]] = []
    rows = 0
    with recorded(env if traced else _untraced(env), spec.steps) as tick:
        clock.start()
        for step in range(spec.steps):
            with clock.waiting():
                batch = take(step)
            began = time.perf_counter()
            states = batch.rows if isinstance(batch.rows, Tensor) else torch.from_numpy(batch.rows)
            loss = cross_entropy(model(states, batch.blocks), labels[torch.from_numpy(batch.nodes)].to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
            if not math.isfinite(losses[-1]):
                raise InputError(f"step {step}: the loss is {losses[-1]}; lower the learning rate (--lr)")
            stages.append((batch.sample_s, batch.gather_s, time.perf_counter() - began))
            rows += len(batch.rows)
            clock.step()
            with clock.paused():
                tick()
                folder.write_progress(spec.out, env.rank, step + 1)
    return Pass(tuple(losses), clock, stages, model, rows / spec.steps)


def _untraced(env: RunEnv) -> RunEnv:
    return replace(env, spec=replace(env.spec, trace_steps=0))


def _check_equal(first: Pass, last: Pass) -> None:
    weights = zip(first.model.parameters(), last.model.parameters(), strict=True)
    if first.losses != last.losses or not all(torch.equal(one, other) for one, other in weights):
        raise RuntimeError("prefetched rows gave different losses or weights from rows gathered sequentially")


def _fetched(env: RunEnv, task: Task, fetch: Fetch, seeds: int) -> Callable[[int], Batch]:
    """Return what samples on the host and has the device fetch."""

    def take(step: int) -> Batch:
        began = time.perf_counter()
        nodes = task.seeds(seeds, env.spec.seed, step)
        found = task.neighbourhood(nodes, env.spec.seed, step)
        sampled = time.perf_counter()
        rows = fetch(torch.from_numpy(found.nodes))
        return Batch(nodes, rows, found.blocks, sampled - began, time.perf_counter() - sampled)

    return take


def _evaluate(task: Task, model: Sage, seeds: int) -> tuple[float, float, float]:
    """Return loss and accuracy on held-out nodes, and the share of the majority label."""
    device = next(model.parameters()).device
    nodes = task.held_out[:HELD_OUT]
    logits, labels = [], torch.from_numpy(task.labels[nodes])
    with torch.no_grad():
        for number, start in enumerate(range(0, len(nodes), seeds)):
            # Steps of training count up from 0.
            found = task.neighbourhood(nodes[start : start + seeds], 0, -1 - number)
            rows = np.empty((len(found.nodes), task.table.rows.shape[1]), np.float32)
            task.table.gather(found.nodes, rows)
            logits.append(model(torch.from_numpy(rows).to(device), found.blocks).cpu())
    every = torch.cat(logits)
    accuracy = float((every.argmax(1) == labels).double().mean())
    share = float(labels.bincount().max() / len(labels))
    return float(cross_entropy(every, labels)), accuracy, share

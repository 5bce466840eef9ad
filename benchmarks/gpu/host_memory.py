"""Stage 5: rows of a table in the host's memory against one on the device, and steps that train on them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.record import Session
from benchmarks.gpu.timing import seconds
from densing.efficiency.parallel import RunEnv, RunSpec
from densing.efficiency.systems.host_tables import Graph, HostTable, no_device, requests_per_row, train_from_table
from densing.efficiency.systems.host_tables.device import WAYS, Fetch
from densing.efficiency.systems.host_tables.graph import Task

WIDTHS = (100, 128, 300, 602, 1024)
"""Columns: of GCN-1's data sets, and two whose rows begin at lines of the memory."""
ROWS, AT_ONCE = 2_000_000, 100_000
STEPS = 64


def run(session: Session) -> None:
    """Gather, then train."""
    for width in session.size((12,), WIDTHS):
        gathers(session, width)
    for way in session.size(WAYS[:1], WAYS):
        steps(session, way)


def gathers(session: Session, width: int) -> None:
    """Time gathers of the same rows by every way; the small size has those that a processor can take."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((session.size(500, ROWS), width), dtype=np.float32)
    table, device = HostTable(rows), session.torch_device
    ids = torch.from_numpy(rng.integers(0, len(rows), session.size(64, AT_ONCE)))
    on_device, ids_there = torch.from_numpy(rows).to(device), ids.to(device)
    expected = on_device.index_select(0, ids_there)
    ways: dict[tuple[str, bool | None], Callable[[], Any]] = {
        ("device table", None): lambda: on_device.index_select(0, ids_there)
    }
    if session.dry:
        into = np.empty((len(ids), width), np.float32)

        def gather() -> torch.Tensor:
            table.gather(ids.numpy(), into)
            return torch.from_numpy(into)

        ways["host-gather", None] = gather
    else:
        if reason := no_device():
            session.add("left out", way="zero-copy", reason=reason)
        for way in WAYS:
            for align in (True, False) if way == "zero-copy" else (None,):
                if way != "zero-copy" or not reason:
                    ways[way, align] = partial(Fetch(table, way, len(ids), bool(align)), ids)
    for (way, align), work in ways.items():
        equal = bool(torch.equal(work(), expected))
        taken = seconds(work, device, session.size(2, 10))
        session.add(
            "gathers", way=way, aligned=align, columns=width, ms=1e3 * taken, equal=equal,
            gb_s=4 * width * len(ids) / taken / 1e9, requests_per_row=requests_per_row(width, align=align is not False),
        )  # fmt: skip


def ring(width: int = 12) -> Task:
    """A ring of nodes whose label is in their row: seconds are nothing where films take a minute."""
    nodes = np.arange(64)
    graph = Graph.undirected(np.stack([nodes, np.roll(nodes, 1)], axis=1), 64)
    labels = nodes % 2
    rows = np.random.default_rng(0).normal(size=(64, width)).astype(np.float32)
    rows[:, 0] += 2 * labels
    return Task(graph, HostTable(rows), labels, nodes[::2], nodes[1::2])


def steps(session: Session, way: str) -> None:
    """Train on rows gathered by a way, and keep what a step spends on each of its stages."""
    spec = RunSpec(
        way, nproc=1, steps=session.size(4, STEPS), lr=3e-3, out=str(session.work / f"steps-{way}"), trace_steps=0,
        device=session.torch_device,
    )  # fmt: skip
    (session.work / f"steps-{way}" / "ranks").mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"overlap": False, "load": ring} if session.dry else {}
    found = train_from_table(RunEnv(spec, 0, 1), way, seeds=session.size(4, 128), **options)
    names = ("sample_s", "gather_s", "train_s", "sequential_step_s", "rows", "row_bytes", "accuracy")
    session.add("steps", way=way, **{name: found.extra[name] for name in names}, final_loss=found.final_loss)

"""What simulating a task graph costs, how that grows, and beside Python's loops and a general discrete-event library.

    python benchmarks/simulate.py [--peers PYTHON] [--most 10000000] [--repeats 3] [--json]

Each figure is of a process of its own: CPU seconds (user and system) of building the graph, of simulating it and of
making its timeline, and the peak resident memory of the process once it has simulated and once the timeline stands.
Graphs:

- ``plain``: data-parallel backward passes on eight ranks, each layer's gradients reduced beside the next;
- ``links``: the same, and every rank's gradients besides through one of two shared links;
- ``contended``: ``plain`` with computation and communication slowing each other down.

Tools: ``densing`` with graphs given in columns and the compiled loops (which are read from the cache: compiling them
the first time is a row of its own); ``python``, the same graph through ``Graph.add``, task by task, and the loops in
Python; and simpy (``--peers``: an interpreter that has it), one process per stream and one resource per link, which
knows no contention and leaves no timeline, so that its time is to be compared with ``simulate`` alone. All must find
the same makespan, else the row says so. Runs are interleaved; medians are printed with their range. Slow tools stop at
10^6 tasks, timelines too.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from densing.efficiency.simulation import Graph

RANKS, LAYERS, PERIOD = 8, 50, 11
CASES: dict[str, dict[str, Any]] = {"plain": {}, "links": {}, "contended": {"kappa": 0.2, "kappa_comm": 0.1}}
OURS, PYTHON, PEER = "densing", "python", "simpy"
SLOW = 1_000_000
"""Tasks beyond which only ours runs, without a timeline."""


class Piece(NamedTuple):
    """A task, without any library: its ranks, stream, seconds, what it waits for, the link it needs."""

    ranks: tuple[int, ...]
    stream: str
    seconds: float
    after: tuple[int, ...] = ()
    link: str = ""


def pieces(case: str, count: int) -> Iterator[Piece]:
    """Yield about so many tasks of a case."""
    made, everyone = 0, tuple(range(RANKS))
    for layer in range(10**9):
        if made >= count:
            return
        passes = tuple(range(made, made + RANKS))
        for rank in everyone:
            yield Piece((rank,), "compute", 1e-3 * (1 + 0.01 * ((rank * 7 + layer * 3) % PERIOD)))
        made += RANKS
        if case == "links":
            for rank in everyone:
                yield Piece((rank,), "p2p", 1.1e-4 + 1e-6 * rank, (passes[rank],), f"nic{rank // 4}")
            made += RANKS
        yield Piece(everyone, "comm", 0.9e-3, passes)
        made += 1


def peak_mb() -> float:
    """Return the most memory that this process has held, in 10^6 bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def build(case: str, count: int, columns: bool) -> Graph:
    """Return the graph of a case, from columns or task by task."""
    import numpy as np

    from densing.efficiency.simulation import Graph, Operation
    from densing.efficiency.timeline import Kind

    graph = Graph()
    kinds = {"compute": Kind.COMPUTE, "comm": Kind.COMM, "p2p": Kind.COMM}
    if not columns:
        for number, piece in enumerate(pieces(case, count)):
            graph.step = number // (LAYERS * (RANKS + 1))
            links = (piece.link,) if piece.link else ()
            graph.add("task", kinds[piece.stream], piece.ranks, piece.stream, piece.seconds, after=piece.after,
                      resources=links)  # fmt: skip
        return graph
    # Layers differ in their seconds, which repeat after PERIOD; waits are shifted from layer to layer.
    size = sum(1 for _ in pieces(case, 1))
    period = list(pieces(case, size * PERIOD))
    layers = -(-count // size)
    operations = [
        graph.operation(
            Operation("task", kinds[one.stream], one.ranks, one.stream, resources=(one.link,) if one.link else ())
        )
        for one in period[:size]
    ]
    waits = np.array([len(one.after) for one in period[:size]], np.int32)
    awaited = np.array([other for one in period[:size] for other in one.after], np.int32)
    shift = np.arange(layers, dtype=np.int32)[:, None] * size
    graph.extend(
        np.tile(np.array(operations, np.int32), layers),
        np.resize([one.seconds for one in period], layers * size),
        np.tile(waits, layers),
        (awaited + shift).ravel(),
        np.repeat(np.arange(layers * size // (LAYERS * (RANKS + 1)) + 1, dtype=np.int32),
                  LAYERS * (RANKS + 1))[: layers * size],
    )  # fmt: skip
    return graph


def run_ours(case: str, count: int, python: bool = False) -> dict[str, Any]:
    """Build, simulate and draw up the timeline; return CPU seconds of each."""
    from densing.efficiency.simulation import engine, simulate

    engine.WORTH = math.inf if python else 0
    began = time.process_time()
    graph = build(case, count, columns=not python)
    built = time.process_time()
    run = simulate(graph, **CASES[case])
    done, simulated_mb = time.process_time(), peak_mb()
    row = {"tasks": len(graph), "build_s": built - began, "simulate_s": done - built, "makespan": run.makespan,
           "total_s": done, "peak_mb": simulated_mb}  # fmt: skip
    if count <= SLOW:
        assert len(run.timeline.ranks) == RANKS
        row |= {"timeline_s": time.process_time() - done, "timeline_mb": peak_mb()}
    return row


def run_simpy(case: str, count: int) -> dict[str, float]:
    """Run the same tasks as simpy processes: one per stream, which waits for what each task waits for."""
    import simpy

    began = time.process_time()
    tasks = list(pieces(case, count))
    streams: dict[tuple[int, str], list[int]] = {}
    for number, piece in enumerate(tasks):
        for rank in piece.ranks:
            streams.setdefault((rank, piece.stream), []).append(number)
    built = time.process_time()
    world = simpy.Environment()
    ended = [world.event() for _ in tasks]
    missing = [len(piece.ranks) for piece in tasks]
    links = {name: simpy.Resource(world) for name in sorted({piece.link for piece in tasks if piece.link})}

    def stream(numbers: list[int]) -> Iterator[Any]:
        for number in numbers:
            piece = tasks[number]
            for other in piece.after:
                if not ended[other].processed:
                    yield ended[other]
            missing[number] -= 1
            if missing[number]:
                yield ended[number]
                continue
            if piece.link:
                with links[piece.link].request() as turn:
                    yield turn
                    yield world.timeout(piece.seconds)
            else:
                yield world.timeout(piece.seconds)
            ended[number].succeed()

    for numbers in streams.values():
        world.process(stream(numbers))
    world.run()
    done = time.process_time()
    return {"tasks": len(tasks), "build_s": built - began, "simulate_s": done - built, "makespan": world.now,
            "total_s": done, "peak_mb": peak_mb()}  # fmt: skip


def measure(python: str, tool: str, case: str, count: int, **environment: str) -> dict[str, Any]:
    """Run one tool on one graph in a process of its own."""
    command = [python, __file__, "--one", tool, "--case", case, "--most", str(count)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)
    if done.returncode:
        return {"failed": f"exit code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"}
    return json.loads(done.stdout)


def has_simpy(python: str) -> bool:
    """Return whether an interpreter can import simpy."""
    return bool(python) and not subprocess.run([python, "-c", "import simpy"], capture_output=True).returncode


def measured(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row per case, size and tool."""
    sizes = [size for size in (10_000, 100_000, 1_000_000, 10_000_000) if size <= args.most]
    with tempfile.TemporaryDirectory() as folder:
        # Each loop is compiled for the first time: in a folder of its own.
        rows = [
            row_of(case, "compiling", [measure(sys.executable, OURS, case, 10_000, NUMBA_CACHE_DIR=f"{folder}/{case}")])
            for case in ("plain", "contended")
        ]
    for case in CASES:
        # For the cache.
        measure(sys.executable, OURS, case, sizes[0])
        tools = {OURS: sys.executable, PYTHON: sys.executable}
        if case != "contended" and has_simpy(args.peers):
            tools[PEER] = args.peers
        for size in sizes:
            chosen = [tool for tool in tools if tool == OURS or size <= SLOW]
            runs: dict[str, list[dict[str, Any]]] = {tool: [] for tool in chosen}
            for _ in range(args.repeats):
                for tool in chosen:
                    runs[tool].append(measure(tools[tool], tool, case, size))
            rows += [row_of(case, tool, own) for tool, own in runs.items()]
            for tool, row in zip(chosen, rows[-len(chosen) :], strict=True):
                compare(row, rows[-len(chosen)], tool)
    return rows


def row_of(case: str, tool: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians and ranges of some runs."""
    failed = next((run["failed"] for run in runs if "failed" in run), "")
    row: dict[str, Any] = {"case": case, "tool": tool, "failed": failed}
    if failed:
        return row
    for key in ("build_s", "simulate_s", "total_s", "peak_mb", "timeline_s", "timeline_mb"):
        values = [run[key] for run in runs if key in run]
        row[key] = {"median": median(values), "min": min(values), "max": max(values)} if values else None
    return {**row, "tasks": runs[0]["tasks"], "makespan": runs[0]["makespan"]}


def compare(row: dict[str, Any], ours: dict[str, Any], tool: str) -> None:
    """Add how many times ours a peer took, once both agree on the makespan."""
    if row["failed"] or ours["failed"] or tool == OURS:
        return
    if abs(row["makespan"] - ours["makespan"]) > 1e-9 * ours["makespan"]:
        row["failed"] = f"another makespan: {row['makespan']} instead of {ours['makespan']}"
        return
    row["times_ours"] = {key: row[key]["median"] / ours[key]["median"] for key in ("simulate_s", "peak_mb")}


def line(row: dict[str, Any]) -> str:
    """Return a row as text."""
    if row["failed"]:
        return f"{row['case']:10} {row['tool']:9} failed: {row['failed']}"
    spread = row["simulate_s"]
    per_task = 1e6 * spread["median"] / row["tasks"]
    drawn = row["timeline_s"]
    timeline = f"  timeline {drawn['median']:5.2f} s, peak {row['timeline_mb']['median']:5.0f} MB" if drawn else ""
    ratio = row.get("times_ours")
    versus = f"  ours ×{ratio['simulate_s']:.1f} CPU, ×{ratio['peak_mb']:.1f} memory" if ratio else ""
    return (
        f"{row['case']:10} {row['tool']:9} {row['tasks']:>10,} tasks  build {row['build_s']['median']:6.2f}"
        f"  simulate {spread['median']:6.2f} ({spread['min']:.2f}–{spread['max']:.2f}) CPU s, {per_task:5.2f} µs a task"
        f"  process {row['total_s']['median']:6.2f} CPU s, peak {row['peak_mb']['median']:6.0f} MB{timeline}{versus}"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="", help="interpreter with simpy")
    parser.add_argument("--most", type=int, default=10_000_000, help="tasks of the largest graph")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", choices=(OURS, PYTHON, PEER), help=argparse.SUPPRESS)
    parser.add_argument("--case", choices=tuple(CASES), default="plain", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        size = args.case, args.most
        print(json.dumps(run_simpy(*size) if args.one == PEER else run_ours(*size, python=args.one == PYTHON)))
        return
    rows = measured(args)
    print(json.dumps(rows, indent=2) if args.json else "\n".join(map(line, rows)))


if __name__ == "__main__":
    main()

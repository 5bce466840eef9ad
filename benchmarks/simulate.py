"""What simulating a task graph costs, how that grows, and beside a general discrete-event library.

    python benchmarks/simulate.py [--peers PYTHON] [--most 1000000] [--repeats 3] [--json]

Each figure is of a process of its own: CPU seconds (user and system) of building the graph, of simulating it and of
making its timeline, and the peak resident memory of the whole. Graphs:

- ``plain``: data-parallel backward passes on eight ranks, each layer's gradients reduced beside the next;
- ``links``: the same, and every rank's gradients besides through one of two shared links;
- ``contended``: ``plain`` with computation and communication slowing each other down.

simpy (``--peers``: an interpreter that has it) runs ``plain`` and ``links`` as one process per stream and one resource
per link; it knows no contention and leaves no timeline, so its time is to be compared with ``simulate`` alone. All must
find the same makespan, else the row says so. Runs are interleaved; medians are printed with their range.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from statistics import median
from typing import Any, NamedTuple

RANKS, LAYERS = 8, 50
CASES: dict[str, dict[str, Any]] = {"plain": {}, "links": {}, "contended": {"kappa": 0.2, "kappa_comm": 0.1}}
OURS, PEER = "densing", "simpy"


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
            yield Piece((rank,), "compute", 1e-3 * (1 + 0.01 * ((rank * 7 + layer * 3) % 11)))
        made += RANKS
        if case == "links":
            for rank in everyone:
                yield Piece((rank,), "p2p", 1.1e-4 + 1e-6 * rank, (passes[rank],), f"nic{rank // 4}")
            made += RANKS
        yield Piece(everyone, "comm", 0.9e-3, passes)
        made += 1


def run_ours(case: str, count: int) -> dict[str, float]:
    """Build, simulate and draw up the timeline; return CPU seconds of each."""
    from densing.efficiency.simulation.engine import simulate
    from densing.efficiency.simulation.tasks import Graph
    from densing.efficiency.timeline.timeline import Kind

    began = time.process_time()
    graph = Graph()
    for number, piece in enumerate(pieces(case, count)):
        graph.step = number // (LAYERS * (RANKS + 1))
        kind = Kind.COMPUTE if piece.stream == "compute" else Kind.COMM
        links = (piece.link,) if piece.link else ()
        graph.add("task", kind, piece.ranks, piece.stream, piece.seconds, after=piece.after, resources=links)
    built = time.process_time()
    run = simulate(graph, **CASES[case])
    done = time.process_time()
    assert len(run.timeline.ranks) == RANKS
    drawn = time.process_time()
    return {"tasks": len(graph), "build_s": built - began, "simulate_s": done - built, "timeline_s": drawn - done,
            "makespan": run.makespan}  # fmt: skip


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
    return {"tasks": len(tasks), "build_s": built - began, "simulate_s": time.process_time() - built,
            "makespan": world.now}  # fmt: skip


def measure(python: str, tool: str, case: str, count: int) -> dict[str, Any]:
    """Run one tool on one graph in a process of its own; add its peak memory (10^6 bytes)."""
    command = [python, __file__, "--one", tool, "--case", case, "--most", str(count)]
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, stdout=out)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        text = out.read()
    if process.returncode:
        return {"failed": f"exit code {process.returncode}"}
    return {**json.loads(text), "peak_mb": usage.ru_maxrss * 1024 / 1e6}


def has_simpy(python: str) -> bool:
    """Return whether an interpreter can import simpy."""
    return bool(python) and not subprocess.run([python, "-c", "import simpy"], capture_output=True).returncode


def measured(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row per case, size and tool."""
    sizes = [size for size in (10_000, 30_000, 100_000, 300_000, 1_000_000) if size <= args.most]
    rows = []
    for case in CASES:
        tools = {OURS: sys.executable}
        if case != "contended" and has_simpy(args.peers):
            tools[PEER] = args.peers
        for size in sizes:
            runs: dict[str, list[dict[str, Any]]] = {tool: [] for tool in tools}
            for _ in range(args.repeats):
                for tool, python in tools.items():
                    runs[tool].append(measure(python, tool, case, size))
            rows += [row_of(case, tool, own) for tool, own in runs.items()]
            for tool, row in zip(tools, rows[-len(tools) :], strict=True):
                compare(row, rows[-len(tools)], tool)
    return rows


def row_of(case: str, tool: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians and ranges of some runs."""
    failed = next((run["failed"] for run in runs if "failed" in run), "")
    row: dict[str, Any] = {"case": case, "tool": tool, "failed": failed}
    if failed:
        return row
    for key in ("build_s", "simulate_s", "timeline_s", "peak_mb"):
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
        return f"{row['case']:10} {row['tool']:8} failed: {row['failed']}"
    spread = row["simulate_s"]
    per_task = 1e6 * spread["median"] / row["tasks"]
    drawn = f"timeline {row['timeline_s']['median']:6.2f}" if row["timeline_s"] else " " * 15
    ratio = row.get("times_ours")
    versus = f"  ours ×{ratio['simulate_s']:.1f} CPU, ×{ratio['peak_mb']:.1f} memory" if ratio else ""
    return (
        f"{row['case']:10} {row['tool']:8} {row['tasks']:>9,} tasks  build {row['build_s']['median']:6.2f}"
        f"  simulate {spread['median']:6.2f} ({spread['min']:.2f}–{spread['max']:.2f}) CPU s, {per_task:5.2f} µs a task"
        f"  {drawn}  peak {row['peak_mb']['median']:7.1f} MB{versus}"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="", help="interpreter with simpy")
    parser.add_argument("--most", type=int, default=1_000_000, help="tasks of the largest graph")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", choices=(OURS, PEER), help=argparse.SUPPRESS)
    parser.add_argument("--case", choices=tuple(CASES), default="plain", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps((run_ours if args.one == OURS else run_simpy)(args.case, args.most)))
        return
    rows = measured(args)
    print(json.dumps(rows, indent=2) if args.json else "\n".join(map(line, rows)))


if __name__ == "__main__":
    main()

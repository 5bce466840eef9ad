"""Whole-process cost of ``densing profile`` beside other trace tools, on the same files in one run of this script.

    python benchmarks/traces.py [TRACE ...] [--peers PYTHON] [--copies 50] [--repeats 3] [--json] [--keep FOLDER]

1. Pairs: each trace, and one of about two million events made from the first by ``enlarge.py`` (six step markers: the
   time of some tools grows with steps), through ``densing profile --json`` with its defaults, and through each peer
   that ``--peers`` (an interpreter which has them installed) can import:

   - traceinsight (formerly HolisticTraceAnalysis): ``TraceAnalysis``, overlap and temporal breakdown;
   - AMD TraceLens (from its repository; the package of that name on PyPI is another): its GPU event analyser's
     breakdown.

   Figures are CPU seconds (user and system) and peak resident memory of the whole process as the kernel accounts them.
   Runs are interleaved; medians are printed with their range. Ours does more work than either peer: it also computes
   every window's causes, collectives, transfers and the critical path. Our bytecode is compiled first, as an installed
   package's is: where Python is told to write none, every run would compile all of it anew.
2. Growth: the same trace repeated 1, 2, 4, ... times, and 1 to 8 ranks; CPU seconds and memory per event.
3. Floor: inflating the file, and msgspec merely validating its JSON; no reader of this text can be faster in Python.

Without TRACE a synthetic one is written (no device of ours recorded it), so that the script runs anywhere.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
OURS = [sys.executable, "-m", "densing", "profile", "--json"]
PEERS = {
    "traceinsight": """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1])
analysis.get_comm_comp_overlap(visualize=False)
analysis.get_temporal_breakdown(visualize=False)
""",
    "TraceLens": """
import glob, gzip, json, sys
from TraceLens import GPUEventAnalyser
[path] = glob.glob(sys.argv[1] + "/*")
with (gzip.open if path.endswith(".gz") else open)(path, "rt") as stream:
    events = json.load(stream)["traceEvents"]
GPUEventAnalyser(events).get_breakdown_df()
""",
}
FLOOR = """
import sys, msgspec
data = open(sys.argv[1], "rb").read()
if sys.argv[1].endswith(".gz"):
    from isal import igzip
    data = igzip.decompress(data)
msgspec.json.Decoder(dict[str, msgspec.Raw]).decode(data) if data.lstrip()[:1] == b"{" else None
"""


@dataclass
class Cost:
    """What runs of one command took."""

    cpu: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    failed: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return medians and ranges."""
        if self.failed or not self.cpu:
            return {"failed": self.failed}
        spread = {"cpu_s": self.cpu, "peak_mb": self.memory}
        return {name: {"median": median(v), "min": min(v), "max": max(v)} for name, v in spread.items()}


def measure(command: Sequence[str]) -> tuple[float, float, str]:
    """Run a command; return its CPU seconds, peak memory (10^6 bytes) and, if it failed, its last line."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        log.seek(0)
        lines = log.read().decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
    failed = lines[-1] if process.returncode not in (0, 3) else ""
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6, failed


def compile_ours() -> None:
    """Compile our modules, as pip does for what it installs."""
    spec = find_spec("densing")
    for folder in (spec and spec.submodule_search_locations) or ():
        compileall.compile_dir(folder, quiet=1)


def pair(trace: Path, peers: Sequence[str], python: str, repeats: int, folder: Path) -> dict[str, Cost]:
    """Time every tool on one trace, in turn."""
    alone = folder / f"only-{trace.name}"
    alone.mkdir(exist_ok=True)
    if not (alone / trace.name).exists():
        (alone / trace.name).symlink_to(trace.resolve())
    commands = {"densing": [*OURS, str(trace)], "floor": [sys.executable, "-c", FLOOR, str(trace)]}
    commands |= {name: [python, "-c", PEERS[name], str(alone)] for name in peers}
    costs = {name: Cost() for name in commands}
    for _ in range(repeats):
        for name, command in commands.items():
            if costs[name].failed:
                continue
            cpu, memory, costs[name].failed = measure(command)
            costs[name].cpu.append(cpu)
            costs[name].memory.append(memory)
    return costs


def importable(python: str) -> list[str]:
    """Return the peers that an interpreter can import."""
    modules = {"traceinsight": "hta", "TraceLens": "TraceLens"}
    peers = []
    for name, module in modules.items():
        done = subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False)
        peers += [name] if done.returncode == 0 else []
    return peers


def make(script: str, *arguments: object) -> int:
    """Run a script that writes a trace; return its number of events.

    In a process of its own: a child's peak memory starts at its parent's, so this one must stay small.
    """
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0].replace(",", ""))


def growth(trace: Path, folder: Path, repeats: int) -> list[dict[str, Any]]:
    """Return what more events, and more ranks, cost."""
    rows = []
    for copies in (1, 2, 4, 8, 16):
        big = folder / f"grown-{copies}.json"
        events = make("enlarge.py", trace, big, "--copies", copies)
        runs = [measure([*OURS, str(big)]) for _ in range(repeats)]
        rows.append(row_of("events", events, runs))
        big.unlink()
    for ranks in (1, 2, 4, 8):
        many = folder / f"ranks-{ranks}"
        many.mkdir()
        for rank in range(ranks):
            (many / f"rank{rank}{''.join(trace.suffixes[-2:])}").symlink_to(trace.resolve())
        mapping = [f for r in range(ranks) for f in ("--rank", f"rank{r}{''.join(trace.suffixes[-2:])}={r}")]
        runs = [measure([*OURS, str(many), *mapping]) for _ in range(repeats)]
        rows.append(row_of("ranks", ranks, runs))
    return rows


def row_of(axis: str, count: int, runs: Sequence[tuple[float, float, str]]) -> dict[str, Any]:
    """Return one line of the growth table."""
    failed = next((run[2] for run in runs if run[2]), "")
    return {
        "of": axis,
        "count": count,
        "cpu_s": median(r[0] for r in runs),
        "peak_mb": median(r[1] for r in runs),
        "failed": failed,
    }


def show(name: str, costs: dict[str, Cost]) -> None:
    """Print one trace's table."""
    ours = costs["densing"].to_dict()
    print(f"\n{name}")
    for tool, cost in costs.items():
        row = cost.to_dict()
        if "failed" in row or "failed" in ours:
            print(f"  {tool:14} failed: {row.get('failed', '')}")
            continue
        ratios = [row[key]["median"] / ours[key]["median"] for key in ("cpu_s", "peak_mb")]
        cpu, memory = (
            f"{row[k]['median']:8.2f} ({row[k]['min']:.2f}–{row[k]['max']:.2f})" for k in ("cpu_s", "peak_mb")
        )
        print(f"  {tool:14} CPU s {cpu}   peak MB {memory}   ours ×{ratios[0]:.1f} CPU, ×{ratios[1]:.1f} memory")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--peers", default="", help="interpreter with traceinsight and TraceLens (pandas 2)")
    parser.add_argument("--copies", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="keep the large traces here")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    args = arguments()
    folder = args.keep or Path(tempfile.mkdtemp(prefix="densing-bench-"))
    folder.mkdir(parents=True, exist_ok=True)
    compile_ours()
    try:
        traces = args.traces or [folder / "synthetic.json"]
        if not args.traces:
            make("synthetic_trace.py", traces[0])
        big = folder / f"{traces[0].name.split('.')[0]}-x{args.copies}.json"
        if not big.exists():
            make("enlarge.py", traces[0], big, "--copies", args.copies)
        peers = importable(args.peers) if args.peers else []
        results = {}
        for trace in [*traces, big]:
            costs = pair(trace, peers, args.peers, args.repeats, folder)
            results[trace.name] = {tool: cost.to_dict() for tool, cost in costs.items()}
            if not args.json:
                show(trace.name, costs)
        rows = growth(traces[0], folder, args.repeats)
        if args.json:
            print(json.dumps({"pairs": results, "growth": rows}, indent=2))
        for row in [] if args.json else rows:
            print(
                f"  {row['count']:>9,} {row['of']:6} {row['cpu_s']:7.2f} CPU s {row['peak_mb']:7.1f} MB {row['failed']}"
            )
    finally:
        if args.keep is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()

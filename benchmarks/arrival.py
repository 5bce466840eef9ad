"""docs/results/arrival.md: late ranks, the rules that handle them, and their gain on a server's link.

    python benchmarks/arrival.py --page PAGE [--gain LADDER]

1. `densing techniques validate -t uc-mmc`: completion times in three programs.
2. `densing techniques compare --delay ...`: a small model on 32 devices under delays of several kinds.
3. A map of the step over redundancy r and the server's bandwidth, for partial messages and for gradient coding.
4. 1,024 workers with drawn delays: seconds and peak memory of a plan and its simulation, in a process of its own.
5. `densing calibrate`, then `densing train --delay ...` with a server and four workers: each step beside the same one
   of the plan, which knows the same draws. Idle cores are not needed: delays are far longer than the work.
6. With `--gain` what a ladder's arms bought: `densing ladder train --preset cpu --sizes d8 --sizes d12 --sizes d16
   --ranks 4 --seeds 0..2 --arm plain --arm uc-mmc:r=2 --arm gradient-coding:r=2 --arm gc-mmc:r=3
   --arm backup-workers:drop=1 --arm backup-workers:drop=2 --out LADDER`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from overlap import densing

from densing.core import formatting
from densing.efficiency.parallel import RunSpec
from densing.efficiency.simulation import Delay, load_cluster, load_workload, parse_delay, simulate
from densing.efficiency.systems.comparison import compare
from densing.efficiency.systems.prediction import workload_of_run
from densing.efficiency.systems.registry import get_technique
from densing.efficiency.systems.stragglers.plan import completion
from densing.report import markdown
from densing.scores.ladder import pair_table, read_exports
from densing.tradeoff import gain_table, ladder_gain
from densing.tradeoff.gain import arm_losses

TECHNIQUES = "ddp,uc-mmc,gradient-coding,gc-mmc,backup-workers,local-sgd"
MODEL = ("--model", "gpt2", "--cluster", "a100x8-rdma", "--nodes", "4", "--tp", "1")
DELAYS = (
    ("none", None),
    ("exponential, each task its own, mean 50 ms", "shifted-exp:mu=20,iid"),
    ("exponential, a step long, mean 50 ms", "shifted-exp:mu=20,lasts=step"),
    ("exponential, each task its own, mean 250 ms", "shifted-exp:mu=4,iid"),
    ("exponential, a step long, mean 250 ms", "shifted-exp:mu=4,lasts=step"),
    ("heavy tail (Pareto 1.5), each task its own, mean 250 ms", "pareto:scale=0.125,shape=1.5,iid"),
    ("exponential, the whole run, mean 250 ms", "shifted-exp:mu=4,persistent"),
)
MAP_R = (1, 2, 3, 4, 8)
MAP_GBIT: tuple[float, ...] = (10, 40, 160, 640, 2560, 10240)
WORKERS = 1024
RUNS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("every partition once, all waited for", "uc-mmc", ("r=1",)),
    ("partial messages, r = 2", "uc-mmc", ("r=2",)),
    ("gradient coding, r = 2", "gradient-coding", ("r=2",)),
    ("the slowest of four dropped", "backup-workers", ("drop=1",)),
)
RUN = ("--nproc", "5", "--model", "tiny", "--batch", "1", "--sequence", "32")
RUN_DELAY = "shifted-exp:a=0.02,mu=10"
RUN_STEPS = 60
REFUSED = "refused"
"""Where messages cannot be decoded well, which a run refuses too."""


def claims_table() -> str:
    """Return the claims with our answers."""
    findings = densing("techniques", "validate", "-t", "uc-mmc", "--json")
    return markdown.table(
        ("claim", "what", "published or earlier", "verdict", "what we find"),
        ((row["claim"], row["what"], str(row["published"]), row["verdict"], row["note"]) for row in findings),
    )


def delays_table() -> str:
    """Return the step of every technique under every kind of delays."""
    names = TECHNIQUES.split(",")
    rows = []
    for label, delay in DELAYS:
        more = () if delay is None else ("--delay", delay)
        found = densing("techniques", "compare", *MODEL, "--techniques", TECHNIQUES, *more, "--json")["rows"]
        by_name = {row["technique"]: row for row in found}
        rows.append([label, *(_step(by_name[name]) for name in names)])
    return markdown.table(("delays", *names), rows)


def _step(row: dict[str, float | None]) -> str:
    step, error = row["step_s"], row["step_se_s"]
    if step is None:
        return REFUSED
    return f"{1e3 * step:,.0f}" + ("" if error is None else f" ± {1e3 * error:,.0f}")


def map_table(name: str, delay: Delay) -> str:
    """Return the speed-up over ddp by redundancy and the server's bandwidth."""
    cluster = load_cluster("a100x8-rdma", n=32).change(delay=delay)
    workload = load_workload("gpt2", dp=32)
    base = compare(workload, cluster, ["ddp"]).rows[0].step_s
    rows = []
    for r in MAP_R if name == "uc-mmc" else MAP_R[1:]:
        cells = []
        for gbit in MAP_GBIT:
            step = compare(workload, cluster, [name], knobs={name: {"r": r, "server_gbit": gbit}}).rows[0].step_s
            assert base is not None
            cells.append(REFUSED if step is None else formatting.number(base / step, 2))
        rows.append([f"r = {r}", *cells])
    return markdown.table((name, *(f"{gbit:g} Gbit/s" for gbit in MAP_GBIT)), rows)


def scale_table() -> str:
    """Return time and memory of large plans."""
    rows = []
    for name in ("uc-mmc", "gradient-coding", "backup-workers"):
        command = [sys.executable, __file__, "--scale", name]
        done = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        rows.append([name, f"{done['tasks']:,}", str(done["steps"]), f"{done['seconds']:.1f}", f"{done['mb']:.0f}"])
    return markdown.table(("technique", "tasks", "steps", "seconds", "peak MB"), rows)


def scale(name: str) -> None:
    """Compare one technique on many workers, and print what that took."""
    from densing.efficiency.systems.plan import measure
    from densing.efficiency.systems.registry import get_technique

    began = time.perf_counter()
    cluster = load_cluster("a100x8-rdma", n=WORKERS).change(delay=parse_delay("shifted-exp:mu=4"))
    plan = get_technique(name).plan(load_workload("gpt2", dp=WORKERS), cluster)
    measure(plan, cluster)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = time.perf_counter() - began
    print(json.dumps({"tasks": len(plan.graph), "steps": plan.steps, "seconds": seconds, "mb": peak}))


def measured_table() -> str:
    """Return a server and its workers for real, beside their plan."""
    rows = []
    with tempfile.TemporaryDirectory() as place:
        cluster_file = Path(place) / "here.toml"
        densing("calibrate", "--link", "none", *RUN, "--out", str(cluster_file), "--json")
        cluster = load_cluster(str(cluster_file)).change(delay=parse_delay(RUN_DELAY))
        for number, (label, name, settings) in enumerate(RUNS):
            out = Path(place) / f"run{number}"
            chosen = [word for setting in settings for word in ("--set", setting)]
            run = densing(
                "train", "-t", name, *RUN, *chosen, "--delay", RUN_DELAY, "--steps", str(RUN_STEPS),
                "--trace-steps", "0", "--out", str(out), "--json",
            )  # fmt: skip
            spec = RunSpec.from_dict(json.loads((out / "spec.json").read_text()))
            technique = get_technique(name)
            knobs = {knob.name: spec.knobs[knob.name] for knob in technique.knobs if knob.name in spec.knobs}
            plan = technique.plan(workload_of_run(spec), cluster, **knobs)
            predicted, came = completion(plan, simulate(plan.graph))
            # The same steps of the run, and so the same draws.
            steps = slice(plan.warmup, plan.warmup + plan.steps)
            record = json.loads((out / "ranks" / "rank00000.record").read_text())
            measured = statistics.fmean(record["step_s"][steps])
            arrived = json.loads((out / "arrivals.json").read_text())["arrived"][steps]
            messages = statistics.fmean(map(len, arrived))
            rows.append(
                (
                    label,
                    f"{plan.steps}",
                    f"{1e3 * predicted:.1f}",
                    f"{1e3 * measured:.1f}",
                    f"{100 * (measured / predicted - 1):+.1f} %",
                    f"{came:.2f}",
                    f"{messages:.2f}",
                    f"{run['extra']['late_messages']:.2f}",
                    f"{run['final_loss']:.4f}",
                )
            )
    return markdown.table(
        ("rule", "steps compared", "predicted ms", "measured ms", "difference", "messages predicted", "messages came",
         "too late", "loss at the end"),
        rows,
    )  # fmt: skip


def gains_table(ladder: Path) -> str:
    """Return the gain of each arm over plain training, and the difference of its losses."""
    frame = gain_table(ladder_gain(ladder)).set_index("arm")
    losses = arm_losses(read_exports(ladder), ladder)
    rows = []
    for arm, row in frame.iterrows():
        pairs, _ = pair_table(losses, str(arm))
        off = pairs["arm"] - pairs["plain"]

        def ratio(kind: str, row: Any = row) -> str:
            low, middle, high = (formatting.number(row[f"{kind}_{part}"], 3) for part in ("lo", "ratio", "hi"))
            return f"{middle} ({low} to {high})"

        ends = (f"{off.mean():+.5f}", f"{off.abs().max():.5f}")
        rows.append((str(arm), ratio("token"), ratio("density"), *ends, row["no_loss"], str(row["pairs"])))
    return markdown.table(
        ("arm", "tokens", "density", "mean paired difference, nats", "largest", "no loss", "pairs"), rows
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run everything and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--gain", type=Path, help="A ladder whose gains were measured.")
    parser.add_argument("--measured", action="store_true", help="only the last section, on the screen")
    parser.add_argument("--scale", help="only this technique on many workers, as JSON")
    chosen = parser.parse_args(arguments)
    if chosen.scale:
        scale(chosen.scale)
        return
    if chosen.measured:
        print(measured_table())
        return
    if chosen.page is None:
        parser.error("--page is needed")
    lasting = parse_delay("shifted-exp:mu=4,lasts=step")
    parts = [
        "# Who comes late",
        "Written by `python benchmarks/arrival.py`; its head says which commands it runs. A server waits for its "
        "workers; each computes r of the batch's partitions, and rules differ in which messages suffice. Delays come "
        "on top of the work; fit your own with `densing calibrate TRACES --delays`.",
        "## Would it pay on these delays?",
        f"Simulated: `densing techniques compare {' '.join(MODEL)} --techniques {TECHNIQUES} --delay ...`; a step in "
        "milliseconds, with its standard error over the drawn steps. `backup-workers` drops gradients and `local-sgd` "
        "trains apart, so their steps learn something else; all servers have one node's link. Delays that last the "
        "whole run are one draw of who is slow. Refused: codes whose decoding would be conditioned too badly.",
        delays_table(),
        "## Redundancy and the server's link",
        f"Simulated: speed-up over `ddp` on the same 32 devices, which has no server, under delays {lasting}. Below "
        "1 the server's link is the bottleneck, and more messages make it worse.",
        map_table("uc-mmc", lasting),
        map_table("gradient-coding", lasting),
        "## Claims",
        claims_table(),
        "## Scale",
        f"{WORKERS:,} workers, delays drawn for every task; planning, simulating and reading off, in a process of its "
        "own (which takes about 0.1 GB to start).",
        scale_table(),
        "## Measured: a server and four workers",
        f"Real processes over gloo, on a machine of {os.cpu_count()} cores: `densing train {' '.join(RUN)} --steps "
        f"{RUN_STEPS} --delay {RUN_DELAY}`. **The delays are injected**: workers sleep them before each partition. "
        "Predicted: the plan's same steps with the same draws, on a cluster that `densing calibrate` measured with as "
        "many ranks; mean seconds from update to update.",
        measured_table(),
    ]
    if chosen.gain is not None:
        parts += [
            "## What it costs in quality",
            f"Validation loss of a ladder's arms beside plain training on as many ranks (`densing ladder gain "
            f"{chosen.gain.name}`), which rank is late drawn anew for every task. Exact rules leave density as it is; "
            "dropped gradients are lost tokens.",
            gains_table(chosen.gain),
        ]
    chosen.page.write_text("\n\n".join(parts) + "\n")
    print(f"wrote {chosen.page}")


if __name__ == "__main__":
    main()

"""What-ifs of a recorded run beside the run that was then made: errors of `densing profile --what-if`.

    python benchmarks/what_if.py --out RUNS [--page docs/results/what-if.md]

Every pair is two trainings on this machine: `densing train --technique ddp,co2 --tau 8 --link RATE` at two rates, with
two and three ranks and two sizes of model. From the trace of `ddp` at one rate the steps of the other run are foretold
and compared with the mean step of its own trace. RUNS keeps the runs; what is there is not made again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import densing
from densing.core import InputError

RATES, RANKS, LAYERS, TAU = (100, 300), (2, 3), (1, 3), 8
STEPS = ("--steps", "32", "--trace-steps", "16", "--technique", "ddp,co2", "--tau", str(TAU))
KINDS = {
    "link, by factor": "the same run, `link=3x` or `link=0.333x`",
    "link, by rate": "the same run, `link=300mbit` or `link=100mbit`",
    "CO2": "`co2:tau=8`, at the same rate",
    "link by factor, and CO2": "`link=3x,co2:tau=8` or `link=0.333x,co2:tau=8`",
}


def train(out: Path, ranks: int, layers: int, rate: int) -> list[float]:
    """Make both runs of a setting, and return the load of the machine before and after."""
    kept = out / "load.json"
    if not kept.exists():
        before = os.getloadavg()[0]
        command = [sys.executable, "-m", "densing", "train", *STEPS, "--nproc", str(ranks), "--layers", str(layers),
                   "--link", f"{rate}mbit", "--timeout", "300", "--out", str(out)]  # fmt: skip
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        kept.write_text(json.dumps([before, os.getloadavg()[0]]), encoding="utf-8")
    loads: list[float] = json.loads(kept.read_text(encoding="utf-8"))
    return loads


def compute_ns(run: densing.RunProfile) -> float:
    """Computing per step and rank."""
    return sum(rank.partition.compute_ns for rank in run.ranks) / max(sum(len(rank.steps) for rank in run.ranks), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    errors: dict[str, list[float]] = {kind: [] for kind in KINDS}
    rows, loads = [], []
    for ranks, layers in itertools.product(RANKS, LAYERS):
        folders = {rate: options.out / f"{ranks}x{layers}-{rate}" for rate in RATES}
        for rate, folder in folders.items():
            loads += train(folder, ranks, layers, rate)
        runs = {(rate, name): densing.profile_run(folder / f"{name}-seed0")
                for rate, folder in folders.items() for name in ("ddp", "co2")}  # fmt: skip
        # Of the slowest rank, whose window need not begin with the others'.
        made = {key: max((rank.end_ns - rank.start_ns) / len(rank.steps) for rank in run.ranks) / 1e6
                for key, run in runs.items()}  # fmt: skip
        for rate, other in (RATES, RATES[::-1]):
            factor = f"link={other / rate:.3g}x"
            for kind, change, target in (
                ("link, by factor", factor, (other, "ddp")),
                ("link, by rate", f"link={other}mbit", (other, "ddp")),
                ("CO2", f"co2:tau={TAU}", (rate, "co2")),
                ("link by factor, and CO2", f"{factor},co2:tau={TAU}", (other, "co2")),
            ):
                try:
                    foretold = runs[rate, "ddp"].what_if(change).after_ms
                except InputError as error:
                    print(f"{ranks} ranks, {layers} layers, {rate} Mbit/s, {change}: {error}", file=sys.stderr)
                    continue
                error = 100 * (foretold / made[target] - 1)
                errors[kind].append(error)
                rows.append(f"| {ranks} | {layers} | {rate} | `{change}` | {made[rate, 'ddp']:.0f} | {foretold:.0f} | "
                            f"{made[target]:.0f} | {error:+.0f} % | "
                            f"{compute_ns(runs[target]) / compute_ns(runs[rate, 'ddp']):.2f} |")  # fmt: skip
    lines = [
        "# What-ifs, foretold and made",
        "",
        "Written by `python benchmarks/what_if.py`: from the trace of one training (`ddp`, small model, over a link of "
        "100 or 300 Mbit/s) `densing profile --what-if` foretells the step of another one, which was then made on the "
        "same machine. Error is foretold over made, less one.",
        "",
        f"**Load of the machine while the runs were made: {min(loads):.1f} to {max(loads):.1f} on {os.cpu_count()} "
        "processors.** Where it is above one a processor, both runs of a pair were held up by other work, each by its "
        "own share, and the errors hold that too.",
        "",
        "| what was changed | how | pairs | median error | median of its size | worst |",
        "|---|---|---|---|---|---|",
    ]
    for kind, how in KINDS.items():
        if len(values := np.array(errors[kind])):
            size, worst = np.median(np.abs(values)), values[np.abs(values).argmax()]
            lines.append(
                f"| {kind} | {how} | {len(values)} | {np.median(values):+.0f} % | {size:.0f} % | {worst:+.0f} % |"
            )
    lines += [
        "",
        "Milliseconds per step. *Computing* is what computing took in the run that was made over what it took in the "
        "recorded one: a replay keeps it as it was, so that what differs from 1 is other work on the machine, and the "
        "contention of computing and sending.",
        "",
        "| ranks | layers | recorded at, Mbit/s | change | recorded | foretold | made | error | computing |",
        "|---|---|---|---|---|---|---|---|---|",
        *rows,
    ]
    text = "\n".join(lines) + "\n"
    if options.page:
        options.page.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()

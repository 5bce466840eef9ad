"""The techniques for real: two ranks over a shaped link, each measured beside what was predicted before it ran.

    python benchmarks/overlap.py [--out results/overlap] [--quick | --data] [--json]

1. `densing calibrate --link RATE` measures the link and the modules of the small language model, once per link.
2. Data parallel at 200 Mbit/s: DDP with torch's own buckets, DDP with the best of a few sizes (`ddp-tuned`),
   LocalSGD, SlowMo and CO2 at tau = 8 with equal tokens and three seeds: step, exposed communication, held-out loss.
   CO2's first half of the rounds waits for its averages (warm-up), without outer momentum (the released
   configuration's choice up to 16 devices); its times are those of the other half. Then CO2 with fewer steps per
   round. In the shortest one all-reduce follows on another, and its length over that of a step without waiting is the
   measured tau_min, beside the predicted one.
3. Tensor parallel, forward passes: standard, Ladder and ISO at a link where communication is about half of the step,
   and at a slower one; the same in training at the first link.

`--data` is the first table of point 2 alone, in at most ten minutes: one seed and 48 steps. Its last columns say how
many times as fast a row is as either DDP.

Every figure is from `densing train --json`; rounds are interleaved by running all techniques of a link in one command.
Two idle cores are needed: with other work on them the figures say something about that work.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DENSING = [sys.executable, "-m", "densing"]
DATA = ["--batch", "4", "--sequence", "128"]
TENSOR = ["--layers", "6", "--hidden", "512", "--heads", "8", "--ffn", "1408", "--batch", "1", "--sequence", "512"]
COMMON = ["--nproc", "2", "--trace-steps", "0", "--json"]


def densing(*arguments: str) -> dict[str, Any]:
    """Run a command and return its answer."""
    done = subprocess.run([*DENSING, *arguments], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        raise SystemExit(f"densing {' '.join(arguments)}: exit {done.returncode}\n{done.stderr}")
    data: dict[str, Any] = json.loads(done.stdout)["data"]
    return data


def calibrated(out: Path, link: str, shape: Sequence[str], mode: str = "train") -> str:
    """Measure a link with the model to be run; return the cluster's file."""
    file = out / f"{link}-{mode}-{'data' if shape is DATA else 'tensor'}.toml"
    file.unlink(missing_ok=True)
    densing("calibrate", "--link", link, "--nproc", "2", "--mode", mode, *shape, "--out", str(file), "--json")
    return str(file)


def trained(out: Path, name: str, techniques: str, link: str, steps: int, *more: str) -> list[dict[str, Any]]:
    """Run techniques over one link; return the rows of the summary, or the only run as such a row."""
    document = densing(
        "train", "-t", techniques, "--link", link, "--steps", str(steps), *COMMON, *more, "--out", str(out / name)
    )
    rows: list[dict[str, Any]] = document.get("rows", [document])
    return rows


def data_parallel(out: Path, link: str, steps: int, seeds: str, taus: Sequence[int]) -> dict[str, Any]:
    """Compare the data-parallel methods, then look for the least tau."""
    cluster = calibrated(out, link, DATA)
    predict = ("--predict", cluster, *DATA)
    half = ("--set", f"co2.warmup_rounds={steps // 16}", "--set", "co2.outer_momentum=0")
    rows = trained(
        out, "data", "ddp,ddp-tuned,local-sgd,slowmo,co2", link, steps, "--tau", "8", "--seeds", seeds, *half, *predict
    )
    sweep = []
    for tau in taus:
        [row] = trained(out, f"tau{tau}", "co2", link, 8 * tau, "--tau", str(tau), *predict)
        sweep.append(
            {"tau": tau, **{key: row[key] for key in ("step_s", "wait_s", "predicted_step_s", "predicted_wait_s")}}
        )
    predicted = next(row["predicted_tau_min"] for row in rows if row["technique"] == "co2")
    return {"link": link, "rows": rows, "sweep": sweep, "tau_min": {"measured": least(sweep), "predicted": predicted}}


def least(sweep: Sequence[dict[str, float]]) -> float | None:
    """Return the least steps per round that would hide the all-reduce, from the shortest round; None if that hides it.

    There one all-reduce follows on another: a round, tau steps, lasts as long as an all-reduce, and a step without its
    waiting is what hides it.
    """
    if not sweep:
        return None
    row = min(sweep, key=lambda each: each["tau"])
    hidden = row["step_s"] - row["wait_s"]
    return row["tau"] * row["step_s"] / hidden if row["wait_s"] > 0.05 * row["step_s"] else None


def tensor_parallel(out: Path, link: str, mode: str, steps: int) -> dict[str, Any]:
    """Compare the tensor-parallel schedules over one link."""
    cluster = calibrated(out, link, TENSOR, mode)
    more = ("--set", f"mode={mode}", "--predict", cluster, *TENSOR)
    return {
        "link": link,
        "mode": mode,
        "rows": trained(out, f"{mode}-{link}", "tensor-parallel,ladder,iso", link, steps, *more),
    }


def errors(*parts: dict[str, Any]) -> list[float]:
    """Return the relative errors of all predicted steps."""
    return [row["predicted_step_s"] / row["step_s"] - 1 for part in parts for row in part["rows"]]


def show(part: dict[str, Any]) -> None:
    """Print one comparison."""
    print(f"\n{part['link']}{', ' + part['mode'] if 'mode' in part else ''}")
    baselines = {row["technique"]: row["step_s"] for row in part["rows"] if row["technique"] in ("ddp", "ddp-tuned")}
    against = "".join(f"{'x ' + name:>12}" for name in baselines)
    print(f"{'technique':16} {'step ms':>9} {'predicted':>9} {'exposed ms':>10} {'exposed %':>9} {'loss':>16}{against}")
    for row in part["rows"]:
        spread = "" if row.get("final_loss_sd") is None else f" ± {row['final_loss_sd']:.3f}"
        loss = f"{row['final_loss']:.3f}{spread}"
        ratios = "".join(f"{step_s / row['step_s']:12.2f}" for step_s in baselines.values())
        print(
            f"{row['technique']:16} {1e3 * row['step_s']:9.1f} {1e3 * row['predicted_step_s']:9.1f} "
            f"{1e3 * row['wait_s']:10.1f} {100 * row['exposed']:9.1f} {loss:>16}{ratios}"
        )
    for row in part.get("sweep", ()):
        print(
            f"co2, tau {row['tau']:2}      {1e3 * row['step_s']:9.1f} {1e3 * row['predicted_step_s']:9.1f} "
            f"{1e3 * row['wait_s']:10.1f} {100 * row['wait_s'] / row['step_s']:9.1f}   predicted exposed "
            f"{1e3 * row['predicted_wait_s']:.1f} ms"
        )
    if "tau_min" in part:
        print(f"tau_min: {part['tau_min']}")


def main() -> None:
    """Run everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/overlap"))
    parser.add_argument("--quick", action="store_true", help="one seed, fewer steps, one link of each kind")
    parser.add_argument("--data", action="store_true", help="the data-parallel table alone: one seed, 48 steps")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    if chosen.out.exists() and any(chosen.out.iterdir()):
        raise SystemExit(f"{chosen.out}: is not empty; choose another --out")
    chosen.out.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    tensor: list[dict[str, Any]] = []
    if chosen.data:
        data = data_parallel(chosen.out, "200mbit", 48, "0", ())
    elif chosen.quick:
        data = data_parallel(chosen.out, "200mbit", 24, "0", (1, 4))
        tensor = [tensor_parallel(chosen.out, "400mbit", "prefill", 12)]
    else:
        data = data_parallel(chosen.out, "200mbit", 96, "0,1,2", (1, 2, 3, 4, 6))
        tensor = [tensor_parallel(chosen.out, link, "prefill", 24) for link in ("400mbit", "100mbit")]
        tensor.append(tensor_parallel(chosen.out, "400mbit", "train", 24))
    wrong = errors(data, *tensor)
    summary = {
        "load_before": load,
        "data": data,
        "tensor": tensor,
        "median_abs_error": statistics.median(map(abs, wrong)),
        "largest_abs_error": max(map(abs, wrong)),
    }
    (chosen.out / "overlap.json").write_text(json.dumps(summary, indent=1) + "\n")
    if chosen.json:
        print(json.dumps(summary))
        return
    print(f"load before: {load:.2f}")
    for part in (data, *tensor):
        show(part)
    print(
        f"\npredicted against measured step, {len(wrong)} rows: "
        f"median error {100 * summary['median_abs_error']:.1f} %, largest {100 * summary['largest_abs_error']:.1f} %"
    )


if __name__ == "__main__":
    main()

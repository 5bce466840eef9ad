"""Items until a density is known as closely as asked, and what the benchmarks of evaluation share."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

SETS = ("facts", "facts_tail", "bigram", "bigram_tail", "skip")
TASKS = tuple(f"densing_ladder_{name}" for name in SETS)
BATCH = "32"
ORDERS = 20
WIDTHS = (0.1, 0.2, 0.3)


def report(text: str) -> None:
    """Say what is being done."""
    print(text, file=sys.stderr, flush=True)


def plan_for(model: Path, tasks: Path) -> Any:
    """Return the plan of one model on all tasks."""
    from densing.scores.evals.plan import Loading, ModelSpec, Plan, TaskSpec

    spec = ModelSpec.of("hf", {"pretrained": str(model), "dtype": "float32"})
    loading = Loading(batch_size=BATCH, device="cpu")
    return Plan((spec,), tuple(TaskSpec(t) for t in TASKS), loading=loading, include_path=(str(tasks),))


def fit_reference(run: Path) -> Any:
    """Fit mean bits per byte in size on the six models that the plan has measured."""
    from densing.scores.evals.store import RunStore
    from densing.scores.fit import fit_law
    from densing.scores.references import Reference

    store = RunStore(run)
    measurements = store.measurements()
    loss = measurements[measurements["metric"].eq("gold_bits_per_byte")].groupby("model")["value"].mean()
    size = store.models().drop_duplicates("model").set_index("model")["params_total"].astype(float)[loss.index]
    fit = fit_law("power", {"params": size.to_numpy()}, loss.to_numpy(), bootstrap=0)
    points = pd.DataFrame({"model": loss.index, "params": size.to_numpy(), "score": loss.to_numpy(), "held_out": False})
    return Reference("bench", "six sizes", "mean", TASKS, "densing", fit, points)


def bench_adaptive(reference: Any, target: Path, tasks: Path, folder: Path) -> dict[str, Any]:
    """Return items needed per width asked for, and the seconds of one real adaptive run."""
    from densing.scores.density.stopping import SET, StoppingRule
    from densing.scores.evals.adaptive import run_until
    from densing.scores.evals.runner import run_plan
    from densing.scores.evals.store import RunStore

    report("adaptive: the full sets")
    full = run_plan(plan_for(target, tasks), folder / "full")
    items = RunStore(folder / "full").items()
    losses = {task: (part["nll"] / part["n_bytes"] / math.log(2)).to_numpy() for task, part in items.groupby("task")}
    sizes = {task: len(values) for task, values in losses.items()}
    report("adaptive: replays")
    rows = [
        replay(StoppingRule(reference, sizes, target=width, covers=covers, guard=1e9), losses)
        for covers in ("population", SET)
        for width in WIDTHS
    ]
    report("adaptive: one real run")

    def make(_: Any, sizes: Any) -> StoppingRule:
        return StoppingRule(reference, sizes, target=WIDTHS[-1], covers=SET, guard=1e9)

    (stopped,) = run_until(plan_for(target, tasks), folder / "adaptive", make)
    real = {"asked": WIDTHS[-1], "items": stopped.items, "full": stopped.full, "drawing_s": stopped.seconds}
    return {"items": sum(sizes.values()), "rows": rows, "real": {**real, "full_s": full.seconds}}


def replay(rule: Any, losses: dict[str, np.ndarray]) -> dict[str, Any]:
    """Draw the items in random orders until the rule stops; return the median number and the error it leaves."""
    from densing.scores.density.stopping_coverage import follow

    fit = rule.reference.fit
    truth = math.log(float(fit.law.invert(fit.theta, np.mean([v.mean() for v in losses.values()]))[0]))
    looks = []
    for seed in range(ORDERS):
        rng = np.random.default_rng(seed)
        orders = {task: rng.permutation(values) for task, values in losses.items()}
        look = follow(rule, orders)[-1]
        looks.append((look.reason, look.items, abs(look.log_size - truth), look.needed))
    reasons = {reason for reason, *_ in looks}
    return {
        "asked": rule.target,
        "covers": rule.covers,
        "ended": "/".join(sorted(reasons)),
        "items": median(n for _, n, *_ in looks),
        "share": median(n for _, n, *_ in looks) / sum(rule.sizes.values()),
        "needed": median(n for *_, n in looks),
        "largest_error": max(error for _, _, error, _ in looks),
    }

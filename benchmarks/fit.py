"""Point fits and bootstraps against other packages, on the same runs in one process.

    python benchmarks/fit.py [--repeats 5] [--bootstrap 1000] [--json]

Data: 240 synthetic runs of L = E + A N^-alpha + B D^-beta with heavy-tailed noise. Every engine's objective is
the same sum of Huber terms on log residuals (delta 1e-3), whatever it minimised itself; ratios are CPU seconds of this
process, the peer's over ours. Repeats are interleaved, so that a slow moment hits every engine.

Peers, if installed (``pip install densing[bench]``):

- simple-scaling-laws 0.2.0 minimises raw least squares; it has no robust loss. Its ``fit`` always bootstraps, so
  its point fit is timed with one draw.
- chinchilla 0.2.0 minimises the mean log-Huber loss from a grid of starts; it has no bootstrap. Its refit is timed
  from ONE start at the true parameters, its plots switched off, and multiplied by the number of resamples.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from densing.scores.fit import fit_law, get_loss
from densing.scores.laws import get_law

TRUTH = {"E": 1.7, "A": 400.0, "B": 500.0, "alpha": 0.34, "beta": 0.30}
NAMES = tuple(TRUTH)
RUNS = 240
LAW = get_law("chinchilla")
ORDER = [NAMES.index(name) for name in LAW.parameters]


@dataclass
class Timing:
    """CPU seconds of one engine's repeats and the objective of its point fit."""

    engine: str
    note: str
    point: list[float] = field(default_factory=list)
    bootstrap: list[float] = field(default_factory=list)
    objective: float = float("inf")


def make_runs(seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return inputs and losses of the synthetic runs."""
    rng = np.random.default_rng(seed)
    params = np.exp(rng.uniform(np.log(2e7), np.log(1e10), RUNS))
    x = {"params": params, "tokens": params * np.exp(rng.uniform(np.log(5), np.log(400), RUNS))}
    curve = LAW.predict([TRUTH[name] for name in LAW.parameters], x)
    return x, curve * np.exp(0.006 * rng.standard_t(4, RUNS))


def objective(params: dict[str, float], x: dict[str, np.ndarray], y: np.ndarray) -> float:
    """Return the sum-Huber(1e-3) objective on log residuals at the given parameters."""
    loss = get_loss("huber", 1e-3)
    predicted = LAW.predict([float(params[name]) for name in LAW.parameters], x)
    return float(loss.total(loss.residual(predicted, np.log(y)), np.ones_like(y)))


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return CPU seconds of this process and the result."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def bench_densing(timing: Timing, x: dict[str, np.ndarray], y: np.ndarray, draws: int, repeat: int) -> None:
    """Time our fit: Huber on log residuals, case bootstrap."""
    seconds, fit = timed(lambda: fit_law(LAW, x, y, loss="huber", delta=1e-3, bootstrap=0))
    timing.point.append(seconds)
    timing.objective = objective(fit.params.to_dict(), x, y)
    seconds, _ = timed(lambda: fit_law(LAW, x, y, loss="huber", delta=1e-3, bootstrap=draws, seed=repeat))
    timing.bootstrap.append(seconds)


def bench_simple(timing: Timing, x: dict[str, np.ndarray], y: np.ndarray, draws: int, repeat: int) -> None:
    """Time simple-scaling-laws: variable projection, raw least squares, wild cluster bootstrap."""
    import polars
    import simple_scaling_laws

    frame = polars.DataFrame(
        {
            "training_run_id": [str(i) for i in range(RUNS)],
            "model_size__params": x["params"],
            "dataset_size__tokens": x["tokens"],
            "test_loss__nats": y,
        }
    )
    fit = functools.partial(simple_scaling_laws.fit, frame, law="separable-power", seed=repeat)
    seconds, model = timed(lambda: fit(n_draws=1))
    timing.point.append(seconds)
    timing.objective = objective(simple_params(model), x, y)
    timing.bootstrap.append(timed(lambda: fit(n_draws=draws))[0])


def simple_params(model: Any) -> dict[str, float]:
    """Return raw-unit parameters of the peer's model."""
    from simple_scaling_laws.model import raw_scale_params

    target = model.targets[0]
    fitted = model.fits[target]
    predictors = model.manifest["predictors"]
    reference = np.array([predictors[name]["reference"] for name in model.law.predictors])
    return dict(raw_scale_params(model.law, fitted.params, reference))


def bench_chinchilla(timing: Timing, x: dict[str, np.ndarray], y: np.ndarray, draws: int, repeat: int) -> None:
    """Time chinchilla: a grid of 3^5 starts for the point fit (first repeat only), one start for a refit."""
    import pandas as pd
    from chinchilla import Chinchilla
    from chinchilla._metrics import log_huber

    start = {"e": np.log(TRUTH["E"]), "a": np.log(TRUTH["A"]), "b": np.log(TRUTH["B"])}
    start |= {"alpha": TRUTH["alpha"], "beta": TRUTH["beta"]}

    def run(points: int, rows: np.ndarray) -> dict[str, float]:
        grid = {
            name: [value] if points == 1 else list(value * np.linspace(0.7, 1.3, points))
            for name, value in start.items()
        }
        with tempfile.TemporaryDirectory() as folder:
            peer = Chinchilla(
                folder, param_grid=grid, loss_fn=lambda true, guess: log_huber(true, guess, delta=1e-3), log_level=50
            )
            peer.visualizer.optim = lambda *_args, **_kwargs: None
            columns = {"C": 6 * x["params"] * x["tokens"], "N": x["params"], "D": x["tokens"], "loss": y}
            peer.database.df = pd.DataFrame(columns).iloc[rows].reset_index(drop=True)
            peer.fit(parallel=False)
            return {name: float(getattr(peer, name)) for name in NAMES}

    if repeat == 0:
        seconds, params = timed(lambda: run(3, np.arange(RUNS)))
        timing.point.append(seconds)
        timing.objective = objective(params, x, y)
    rows = np.random.default_rng(repeat).integers(RUNS, size=(2, RUNS))
    seconds = sum(timed(lambda row=row: run(1, row))[0] for row in rows) / len(rows)
    timing.bootstrap.append(seconds * draws)


PEERS = {
    "simple-scaling-laws": (
        "simple_scaling_laws",
        bench_simple,
        "raw least squares (no robust loss), wild cluster bootstrap; point fit timed with 1 draw",
    ),
    "chinchilla": (
        "chinchilla",
        bench_chinchilla,
        "mean log-Huber, point fit from 3^5 starts, no bootstrap: one-start refits from the truth, extrapolated",
    ),
}


def run(repeats: int, draws: int) -> dict[str, Any]:
    """Run every engine that is installed and return the figures."""
    x, y = make_runs()
    ours = Timing("densing", "sum log-Huber 1e-3, case bootstrap")
    engines: list[tuple[Timing, Callable[..., None]]] = [(ours, bench_densing)]
    missing = []
    for name, (module, bench, note) in PEERS.items():
        if importlib.util.find_spec(module):
            engines.append((Timing(f"{name} {importlib.metadata.version(name)}", note), bench))
        else:
            missing.append(name)
    for repeat in range(repeats):
        for timing, bench in engines:
            print(f"repeat {repeat + 1}/{repeats}: {timing.engine}", file=sys.stderr, flush=True)
            bench(timing, x, y, draws, repeat)
    return {
        "runs": RUNS,
        "bootstrap": draws,
        "repeats": repeats,
        "python": sys.version.split()[0],
        "numpy": np.__version__,
        "missing": missing,
        "engines": [figures(timing, ours) for timing, _ in engines],
    }


def figures(timing: Timing, ours: Timing) -> dict[str, Any]:
    """Return medians, spreads, ratios to ours and the excess objective."""
    return {
        "engine": timing.engine,
        "note": timing.note,
        "point_s": median(timing.point),
        "bootstrap_s": median(timing.bootstrap),
        "bootstrap_range_s": [min(timing.bootstrap), max(timing.bootstrap)],
        "point_ratio": median(timing.point) / median(ours.point),
        "bootstrap_ratio": median(timing.bootstrap) / median(ours.bootstrap),
        "objective": timing.objective,
        "excess": timing.objective / ours.objective - 1.0,
    }


def show(result: dict[str, Any]) -> None:
    """Print the figures for people."""
    print(f"{result['runs']} runs, {result['bootstrap']} resamples, {result['repeats']} repeats; CPU seconds, medians")
    head = f"{'engine':28}{'point':>10}{'ratio':>9}{'bootstrap':>11}{'ratio':>9}{'objective':>14}{'excess':>11}"
    print(head)
    for row in result["engines"]:
        print(
            f"{row['engine']:28}{row['point_s']:10.4f}{row['point_ratio']:8.1f}x{row['bootstrap_s']:11.3f}"
            f"{row['bootstrap_ratio']:8.1f}x{row['objective']:14.8f}{row['excess']:11.1e}"
        )
    for row in result["engines"]:
        print(f"  {row['engine']}: {row['note']}")
    for name in result["missing"]:
        print(f"  {name}: not installed, left out (pip install densing[bench], Python 3.12 or newer)")


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--bootstrap", type=int, default=1000)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    result = run(arguments.repeats, arguments.bootstrap)
    if arguments.json:
        print(json.dumps(result, indent=1))
    else:
        show(result)


if __name__ == "__main__":
    main()

"""Cost and savings of evaluating through densing, on models and tasks of our own, in one run of this script.

    python benchmarks/evals.py [--repeats 3] [--questions 400] [--json] [--keep FOLDER]

1. A plan of six ladder models times five tasks: one ``densing eval`` against ``lm_eval`` called once per model, as
   processes, from nothing to stored results. Wall and CPU seconds of the whole process trees; repeats are interleaved,
   and both must report the same accuracies.
2. Overhead per request: CPU seconds of an evaluation in this process less those inside the model's forward pass, for
   ``run_plan`` (which stores every unit) and for lm-eval's own ``simple_evaluate``.
3. Adaptive evaluation: items until the interval of ln density is as narrow as asked, against the full sets, replayed
   over random orders of the items of a model that the reference has not seen; and one real run of it with its time.

Models: sizes d8 to d48 of the ladder's ``cpu`` preset, trained for ``--steps`` steps on the generated corpus (about 20
CPU seconds); they need not be good, only different.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"

from items import BATCH, TASKS, bench_adaptive, fit_reference, plan_for, report

SIZES = ("d8", "d12", "d16", "d24", "d32", "d48")
TARGET = "d24"


@dataclass
class Timing:
    """Wall and CPU seconds of one way to do the plan."""

    name: str
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    accuracies: dict[tuple[str, str], float] = field(default_factory=dict)


def train_models(folder: Path, steps: int) -> tuple[dict[str, Path], Path]:
    """Train the six sizes and, with another seed, the target; return their folders."""
    from densing.scores.ladder.corpus import Generated
    from densing.scores.ladder.runs import Run, choose, get_preset
    from densing.scores.ladder.workers import train

    preset = get_preset("cpu")
    shapes = choose(preset, list(SIZES))
    ladder = [Run(preset, shape, 0, Generated(), (steps,)) for shape in shapes]
    target = Run(preset, choose(preset, [TARGET])[0], 1, Generated(), (steps,))
    train([*ladder, target], folder)
    places = {run.shape.name: run.export_folder(folder, run.budgets[0]) for run in ladder}
    return places, target.export_folder(folder, target.budgets[0])


def timed_process(timing: Timing, *argv: str) -> None:
    """Run a command and add its seconds, those of its children included."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run([sys.executable, "-m", *argv], capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)}: {done.stderr[-2000:]}")
    timing.wall[-1] += time.monotonic() - start
    timing.cpu[-1] += after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def bench_densing(timing: Timing, models: dict[str, Path], tasks: Path, out: Path) -> None:
    """Time one call for the whole plan."""
    from densing.scores.evals.store import RunStore

    plan = out.with_suffix(".toml")
    lines = [f'tasks = {json.dumps(TASKS)}\nbatch_size = "{BATCH}"\ndevice = "cpu"\ninclude_path = ["{tasks}"]']
    for name, path in models.items():
        lines.append(f'[[models]]\nname = "{name}"\nmodel_args = {{ pretrained = "{path}", dtype = "float32" }}')
    plan.write_text("\n".join(lines))
    timed_process(timing, "densing", "eval", "--plan", str(plan), "--out", str(out), "--json")
    measurements = RunStore(out).measurements()
    acc = measurements[measurements["metric"].eq("acc")]
    timing.accuracies = dict(zip(zip(acc["model"], acc["task"], strict=True), acc["value"], strict=True))


def bench_lm_eval(timing: Timing, models: dict[str, Path], tasks: Path, out: Path) -> None:
    """Time lm-eval's command line, once per model."""
    for name, path in models.items():
        args = f"pretrained={path},dtype=float32"
        flags = ["--include_path", str(tasks), "--device", "cpu", "--batch_size", BATCH, "--log_samples"]
        timed_process(
            timing, "lm_eval", "run", "--model", "hf", "--model_args", args, "--tasks", ",".join(TASKS), *flags,
            "--output_path", str(out / name),
        )  # fmt: skip
        (results,) = (out / name).rglob("results_*.json")
        for task, row in json.loads(results.read_text())["results"].items():
            timing.accuracies[name, task] = row["acc,none"]


def bench_plan(models: dict[str, Path], tasks: Path, folder: Path, repeats: int) -> dict[str, Any]:
    """Time both ways, interleaved, and return medians and ratios."""
    ours, theirs = Timing("one densing eval"), Timing(f"lm_eval x {len(models)}")
    for repeat in range(repeats):
        for timing, bench in ((ours, bench_densing), (theirs, bench_lm_eval)):
            report(f"plan, repeat {repeat + 1}/{repeats}: {timing.name}")
            timing.wall.append(0.0)
            timing.cpu.append(0.0)
            bench(timing, models, tasks, folder / f"{timing.name.split()[0]}-{repeat}")
    worst = max(abs(ours.accuracies[key] - value) for key, value in theirs.accuracies.items())
    ways = [
        {"way": t.name, "wall_s": median(t.wall), "cpu_s": median(t.cpu), "wall_range_s": [min(t.wall), max(t.wall)]}
        for t in (ours, theirs)
    ]
    ratios = {name: ways[1][name] / ways[0][name] for name in ("wall_s", "cpu_s")}
    return {"ways": ways, "wall_ratio": ratios["wall_s"], "cpu_ratio": ratios["cpu_s"], "largest_difference": worst}


@contextlib.contextmanager
def forward_clock() -> Iterator[list[float]]:
    """Collect the CPU seconds inside the forward pass of transformers' models under lm-eval."""
    from lm_eval.models.huggingface import HFLM

    spent: list[float] = []
    own = HFLM._model_call

    def clocked(self: Any, *args: Any, **kwargs: Any) -> Any:
        start = time.process_time()
        result = own(self, *args, **kwargs)
        spent.append(time.process_time() - start)
        return result

    HFLM._model_call = clocked
    try:
        yield spent
    finally:
        HFLM._model_call = own


def ours_once(model: Path, tasks: Path, out: Path) -> int:
    """Evaluate all tasks through run_plan; return the requests."""
    from densing.scores.evals.runner import run_plan

    return run_plan(plan_for(model, tasks), out).requests


def theirs_once(model: Path, tasks: Path, _: Path) -> int:
    """Evaluate all tasks through lm-eval's own function, in one call."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    args = {"pretrained": str(model), "dtype": "float32"}
    results = simple_evaluate(
        model="hf", model_args=args, tasks=list(TASKS), batch_size=BATCH, device="cpu", task_manager=manager,
    )  # fmt: skip
    return sum(len(rows) for rows in results["samples"].values()) * 4


def bench_overhead(model: Path, tasks: Path, folder: Path, repeats: int) -> list[dict[str, Any]]:
    """Return CPU milliseconds per request: in the forward pass, and besides it."""
    rows: dict[str, list[tuple[float, float]]] = {"run_plan": [], "simple_evaluate": []}
    for repeat in range(repeats + 1):
        for name, work in (("run_plan", ours_once), ("simple_evaluate", theirs_once)):
            report(f"overhead, repeat {repeat}/{repeats}: {name}")
            with forward_clock() as spent, quiet():
                start = time.process_time()
                requests = work(model, tasks, folder / f"overhead-{repeat}")
                total = time.process_time() - start
            if repeat:  # the first one imports
                rows[name].append((1e3 * sum(spent) / requests, 1e3 * (total - sum(spent)) / requests))
    return [
        {"way": name, "forward_ms": median(f for f, _ in runs), "besides_ms": median(b for _, b in runs)}
        for name, runs in rows.items()
    ]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep lm-eval's progress bars off the screen."""
    with Path(os.devnull).open("w") as sink, contextlib.redirect_stderr(sink), contextlib.redirect_stdout(sink):
        yield


def run(folder: Path, repeats: int, questions: int, steps: int) -> dict[str, Any]:
    """Train, time, replay."""
    import torch

    from densing.scores.ladder.questions import write_tasks

    torch.set_num_threads(1)
    report("training seven small models")
    models, target = train_models(folder / "ladder", steps)
    write_tasks(folder / "tasks", questions)
    write_tasks(folder / "many", 10 * questions)
    plan = bench_plan(models, folder / "tasks", folder, repeats)
    reference = fit_reference(folder / "one-0")
    return {
        "models": len(models),
        "tasks": len(TASKS),
        "questions": questions,
        "repeats": repeats,
        "plan": plan,
        "overhead": bench_overhead(models["d48"], folder / "tasks", folder, repeats),
        "adaptive": bench_adaptive(reference, target, folder / "many", folder),
    }


def show(result: dict[str, Any]) -> None:
    """Print the figures for people."""
    plan, adaptive = result["plan"], result["adaptive"]
    print(f"{result['models']} models x {result['tasks']} tasks x {result['questions']} questions, medians of "
          f"{result['repeats']}")  # fmt: skip
    for way in plan["ways"]:
        print(f"  {way['way']:20} {way['wall_s']:8.1f} s wall {way['cpu_s']:8.1f} s CPU")
    print(f"  lm_eval / densing: {plan['wall_ratio']:.1f}x wall, {plan['cpu_ratio']:.1f}x CPU; "
          f"largest difference of an accuracy {plan['largest_difference']:.1g}")  # fmt: skip
    print("CPU per request")
    for row in result["overhead"]:
        print(f"  {row['way']:20} forward {row['forward_ms']:.3f} ms, besides {row['besides_ms']:.3f} ms")
    print(f"adaptive: items of {adaptive['items']} until ln density is known to the half-width asked for")
    for row in adaptive["rows"]:
        print(f"  ±{row['asked']:<4} {row['covers']:10} {row['ended']:12} {row['items']:8.0f} ({row['share']:.0%}), "
              f"needed {row['needed']:.0f}, largest error {row['largest_error']:.2f}")  # fmt: skip
    real = adaptive["real"]
    print(f"  real run at ±{real['asked']}: {real['items']} items in {real['drawing_s']:.1f} s; the full "
          f"{real['full']} took {real['full_s']:.1f} s")  # fmt: skip


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--questions", type=int, default=400)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--keep", type=Path, help="folder for models and results; a temporary one otherwise")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    folder = arguments.keep or Path(tempfile.mkdtemp())
    try:
        result = run(folder.resolve(), arguments.repeats, arguments.questions, arguments.steps)
    finally:
        if not arguments.keep:
            shutil.rmtree(folder, ignore_errors=True)
    if arguments.json:
        print(json.dumps(result, indent=1))
    else:
        show(result)


if __name__ == "__main__":
    main()

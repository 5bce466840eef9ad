"""What a table of a million rows costs: seconds until each command answers, beside reading the same file with pandas.

    python benchmarks/tables.py [--rows 1000000] [--folder DIR] [--only density,fit] [--json]

Three tables are written: ``rows`` (8 models per 1,000 rows, each on 125 benchmarks), ``models`` (a model per row) and
``runs`` (a training run per row). Every command is a process of its own; ``ratio`` is its CPU seconds over those of a
process that only calls ``pandas.read_csv``. An answer may be a refusal: the last line of what the command says is
printed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from densing.scores.catalog import load_catalog

BENCHMARKS = 125
COMMANDS = {
    "density, rows": "density --reference qwen1.5 --benchmark mmlu --scores rows.csv",
    "density, models": "density --reference qwen1.5 --benchmark mmlu --scores models.csv",
    "trend, rows": "trend --reference qwen1.5 --benchmark mmlu --catalog rows.csv",
    "trend, models": "trend --reference qwen1.5 --benchmark mmlu --catalog models.csv",
    "fit": "fit runs.csv",
    "run, rows": "run --no-measure --out out --scores rows.csv",
    "run, models": "run --no-measure --out out --scores models.csv",
}


def write_tables(folder: Path, rows: int) -> None:
    """Write the three tables."""
    rng = np.random.default_rng(0)
    count = rows // BENCHMARKS
    names = load_catalog().benchmarks["id"].tolist()[:BENCHMARKS]
    sizes = rng.uniform(1e8, 7e10, count).round(-6)
    days = pd.Timestamp("2023-03-01") + pd.to_timedelta(rng.integers(0, 800, count), unit="D")
    of_model = pd.DataFrame({"model": [f"model-{n}" for n in range(count)], "params": sizes, "released": days})
    each = of_model.loc[np.repeat(of_model.index, BENCHMARKS)]
    scores = rng.uniform(0.2, 0.9, len(each)).round(4)
    each.assign(benchmark=np.tile(names, count), score=scores).to_csv(folder / "rows.csv", index=False)
    one = {"model": [f"model-{n}" for n in range(rows)], "params": rng.uniform(1e8, 7e10, rows).round(-6)}
    one |= {"released": "2024-03-01", "benchmark": "mmlu", "score": rng.uniform(0.2, 0.9, rows).round(4)}
    pd.DataFrame(one).to_csv(folder / "models.csv", index=False)
    params, tokens = rng.uniform(1e7, 1e11, rows).round(-4), rng.uniform(1e9, 1e13, rows).round(-6)
    loss = (1.7 + 400 * params**-0.34 + 410 * tokens**-0.28 * np.exp(rng.normal(0, 0.01, rows))).round(5)
    pd.DataFrame({"params": params, "tokens": tokens, "loss": loss}).to_csv(folder / "runs.csv", index=False)


def measure(command: list[str], folder: Path, limit: float) -> tuple[float, float, str]:
    """Return wall seconds, CPU seconds and the last line of errors of a process."""
    before, begin = os.times(), time.perf_counter()
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=limit, check=False)
        said = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "")
    except subprocess.TimeoutExpired:
        said = f"no answer in {limit:g} s"
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - begin, cpu, said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only", default="", help="beginnings of names, with commas")
    parser.add_argument("--limit", type=float, default=400.0, help="seconds before a command is given up")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        write_tables(folder, options.rows)
        for name, words in COMMANDS.items():
            if not name.startswith(tuple(options.only.split(","))):
                continue
            file = next(word for word in words.split() if word.endswith(".csv"))
            _, plain, _ = measure([sys.executable, "-c", f"import pandas; pandas.read_csv({file!r})"], folder, 60.0)
            wall, cpu, said = measure([sys.executable, "-m", "densing", *words.split()], folder, options.limit)
            row = {"case": name, "wall_s": wall, "cpu_s": cpu, "pandas_s": plain, "ratio": cpu / plain, "said": said}
            rows.append(row)
            if not options.json:
                print(
                    f"{name:16} {wall:6.1f} s wall {cpu:6.1f} s CPU, {row['ratio']:5.1f} x pandas: {said[:140]}",
                    flush=True,
                )
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()

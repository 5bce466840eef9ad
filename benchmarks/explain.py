"""The sparse classifier against scikit-learn's liblinear and saga on synthetic data: time, memory, objective.

    python benchmarks/explain.py [--items 100000] [--features 100000] [--entries 50] [--lam 1e-3] [--partitions 8]
                                 [--limit 600] [--json]

A million of each is ``--items 1000000 --features 1000000 --lam 3e-4``. Features are as frequent as words (Zipf), five
hundred of them decide the label, with noise. Every solver has a process of its own with one thread, which loads the
same file: the seconds are those of `fit`, the memory is the peak of the process above what it held once the data were
read. All solve one problem, without an intercept; the objective says how well. Partitions lie in one process here.

With ``--page docs/results/explain.md --store STORE [STORE2 ...]`` it writes that page: an explanation of stored items,
what other questions of them give, claims, and this.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

SOLVERS = ("densing", "densing, partitions", "liblinear", "saga")


def make(folder: Path, items: int, features: int, entries: int, seed: int = 0) -> None:
    """Write items with about so many features each, as frequent as words are, and their labels."""
    rng = np.random.default_rng(seed)
    columns = (features ** rng.random(items * entries)).astype(np.int64) - 1
    rows = np.repeat(np.arange(items, dtype=np.int64), entries)
    keys = np.unique(rows * features + columns)
    rows, columns = keys // features, keys % features
    counts = np.bincount(rows, minlength=items)
    indptr = np.r_[0, np.cumsum(counts)]
    matrix = sparse.csr_array((np.ones(len(columns)), columns.astype(np.int32), indptr.astype(np.int32)),
                              shape=(items, features))  # fmt: skip
    weights = np.zeros(features)
    weights[rng.choice(min(features, 20_000), 500, replace=False)] = rng.normal(size=500)
    margins = matrix @ weights
    labels = margins - np.median(margins) + rng.logistic(size=items) > 0
    sparse.save_npz(folder / "features.npz", matrix, compressed=False)
    np.save(folder / "labels.npy", labels)


def memory_kb(name: str) -> int:
    """Return a figure of this process, kB: VmRSS now, VmHWM the peak. (getrusage's peak holds the parent's.)"""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))


def solve(folder: Path, solver: str, lam: float, partitions: int, rounds: int) -> dict[str, Any]:
    """Fit in this process, and report time and memory."""
    features, labels = sparse.load_npz(folder / "features.npz"), np.load(folder / "labels.npy")
    if solver.startswith("densing"):
        from densing.training import ProxCSL

        model: Any = ProxCSL(lam=lam, fit_intercept=False, partitions=partitions if "," in solver else 1, tol=1e-3)
    else:
        from sklearn.linear_model import LogisticRegression

        model = LogisticRegression(
            l1_ratio=1, solver=solver, C=1 / (len(labels) * lam), fit_intercept=False, tol=1e-3, max_iter=rounds
        )
    # The peak begins again here: reading took memory too.
    Path("/proc/self/clear_refs").write_text("5")
    before = memory_kb("VmRSS")
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(features, labels)
    seconds = time.perf_counter() - start
    peak = memory_kb("VmHWM")
    weights = model.coef_.ravel()
    margins = features @ weights
    objective = np.mean(np.logaddexp(0, margins) - labels * margins) + lam * np.abs(weights).sum()
    return {
        "solver": solver,
        "seconds": seconds,
        "data_mb": before / 1024,
        "peak_mb": peak / 1024,
        "more_mb": (peak - before) / 1024,
        "objective": float(objective),
        "weights": int(np.count_nonzero(weights)),
        "iterations": int(np.max(model.n_iter_)),
    }


# A model within so many hundredths of guessing has solved few items that it did not guess.
NEAR_CHANCE = 0.05


def limits(solved: dict[str, float], guessed: float) -> str:
    """Return what a comparison of models cannot say, by the shares of items that they and guessing solve."""
    from densing.core.formatting import percentage

    weak = [name for name, share in solved.items() if guessed > 0 and share < guessed + NEAR_CHANCE]
    if not weak:
        return ""
    return (
        f"**Limits: {weak[0]} solves {percentage(solved[weak[0]])} of these items where guessing solves "
        f"{percentage(guessed)}, so most of what it solves it guessed. What sets its failures apart from the other "
        "model's is an example of the method, and no finding about either.**"
    )


def answered(options: argparse.Namespace) -> tuple[str, str, str]:
    """Return how many documents of each task both models answered, how well, and what that cannot say."""
    import pandas as pd

    from densing.core import formatting
    from densing.scores.evals import read_results

    items = pd.concat([read_results(store).items for store in options.store])
    keys = ["task", "doc_id"]
    pairs = items[items["model"].eq(options.model)].merge(items[items["model"].eq(options.against)], on=keys)
    counts = pairs.groupby("task").size()
    models = (options.model, options.against)
    shares = {name: float(pairs[f"metric_accuracy_{side}"].mean()) for name, side in zip(models, "xy", strict=True)}
    solved = [formatting.percentage(shares[name]) for name in models]
    chance = float((1 / pairs["n_choices_x"]).mean())
    guessed = formatting.percentage(chance)
    return (
        ", ".join(f"{task.removeprefix('olmo_ladder_')} {count:,}" for task, count in counts.items()),
        f"Of these {options.model} solves {solved[0]} and {options.against}, which learnt a generated corpus, "
        f"{solved[1]}; guessing solves {guessed}.",
        limits(shares, chance),
    )


def asked(options: argparse.Namespace) -> list[list[str]]:
    """Return what every question of the stores gives: either model failing, among what, all weights or stable ones."""
    import densing
    from densing.core import formatting
    from densing.tradeoff import AMONG

    rows = []
    for a, b in ((options.model, options.against), (options.against, options.model)):
        for among in AMONG:
            for stable in (False, True):
                result = densing.explain_items(options.store, model=a, against=b, among=among, stable=stable)
                rows.append([
                    a, f"--among {among}", "--stable" if stable else "", str(result.items),
                    formatting.percentage(result.fails / result.items), str(len(result.weights)),
                    str(int(result.weights["stable"].sum())), str(result.held_out),
                    f"{result.auc:.3f} ({result.auc_lo:.3f} to {result.auc_hi:.3f})",
                ])  # fmt: skip
                print(json.dumps(rows[-1]), flush=True)
    return rows


def apart(options: argparse.Namespace) -> list[str]:
    """Return what the same items say when they lie in several stores, and what then travels."""
    import densing
    from densing.report import markdown
    from densing.report.explain import weight_table

    if not options.apart:
        return []
    result = densing.explain_items(options.apart, model=options.model, against=options.against, stable=True)
    shown = weight_table(result)
    names = " ".join(str(store) for store in options.apart)
    return [
        "## The same items in several stores",
        f"`densing results explain {names} --model {options.model} --against {options.against} --stable`",
        f"{markdown.literal(result.sentence)} {result.moved} The penalty is chosen in the largest store alone, here "
        f"{result.lam:.3g}.",
        shown.markdown(),
    ]


def write_page(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Write docs/results/explain.md: an explanation of stored items, the claims, and the benchmark."""
    import densing
    from densing.core import formatting, write_text
    from densing.efficiency.systems.validation import validate
    from densing.report import markdown
    from densing.report.document import body
    from densing.report.explain import explained_page

    result = densing.explain_items(options.store, model=options.model, against=options.against, stable=True)
    findings = validate(["prox-csl"]).findings
    counts, solved, limited = answered(options)
    names = " ".join(map(str, options.store))
    apart_names = f" --apart {' '.join(map(str, options.apart))}" if options.apart else ""
    before = "in a run before this page's (`--measured`); " if options.measured else ""
    shape = f"--items {options.items} --features {options.features} --entries {options.entries} --lam {options.lam:g}"
    ours = next((row for row in rows if row["solver"] == SOLVERS[0] and "seconds" in row), None)

    def figures(row: dict[str, Any]) -> list[str]:
        if "seconds" not in row:
            return [row["solver"], row["ended"], *[formatting.MISSING] * 5]
        beside = [
            formatting.number(row[name] / ours[name]) if ours else formatting.MISSING for name in ("seconds", "more_mb")
        ]
        return [row["solver"], f"{row['seconds']:.1f}", beside[0], f"{row['more_mb']:.0f}", beside[1],
                f"{row['objective']:.6f}", str(row["weights"])]  # fmt: skip

    parts = [
        "# Where a model fails, and a sparse classifier in two rounds",
        *filter(None, [limited]),
        f"Written by `python benchmarks/explain.py --page PAGE --store {names}{apart_names} --model "
        f"{options.model} --against {options.against} {shape}`; do not edit by hand. The store: `densing eval --model "
        "smollm2-135m --tasks olmo_ladder --limit N --out STORE`, the same for a model of `densing ladder train "
        "--preset tiny --sizes d24 --seeds 1 --out ladder` (`--model hf --model_args "
        "pretrained=ladder/models/d24-s0-61440`). N is 400; more documents were added by `--samples`. First documents "
        f"of each task that both answered: {counts}. {solved}",
        f"## Where {options.model} fails and {options.against} does not",
        f"`densing results explain {names} --model {options.model} --against {options.against} --stable`",
        body(explained_page(result), 3),
        "## Other questions of the same stores",
        "Whichever model fails, of what the other solves or of all items; all weights, or only those whose sign is "
        "stable. The item's prompt holds five examples; the words are those of its own question and choices.",
        markdown.table(["fails", "told apart", "weights kept", "items", "fails on", "weights", "stable", "held out",
                        "AUC on held-out items"], asked(options)),
        *apart(options),
        "## Claims",
        "`densing techniques validate --techniques prox-csl`: what the paper claims, tried on words of MMLU's "
        "questions and of films. Negative results stay.",
        markdown.table(
            ["claim", "what", "setup", "published", "ours", "verdict", "grade", "evidence", "note"],
            ([row.claim, row.what, row.setup, str(row.published), str(row.ours), row.verdict, row.grade, row.evidence,
              row.note] for row in findings),
        ),
        "## Beside liblinear and saga",
        f"Made data of {options.items:,} items and {options.features:,} features, about {options.entries} entries an "
        f"item, lambda {options.lam:g}; one thread, a process each; {before}the seconds are this machine's, and "
        "other work ran beside. More MB: the peak of the process above what it held once the data were read.",
        markdown.table(["solver", "seconds", "beside densing", "more MB", "beside densing ", "objective", "weights"],
                       map(figures, rows)),
    ]  # fmt: skip
    write_text(options.page, "\n\n".join(parts) + "\n")
    print(f"wrote {options.page}")


def main() -> None:
    """Make the data, run every solver in a process of its own, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--features", type=int, default=100_000)
    parser.add_argument("--entries", type=int, default=50)
    parser.add_argument("--lam", type=float, default=1e-3)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=100, help="of liblinear and saga at most")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a solver")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measured", type=Path, help="what --json printed before, in place of measuring again")
    parser.add_argument("--page", type=Path, help="write the whole page, with --store, --model and --against")
    parser.add_argument("--store", type=Path, nargs="+", default=[])
    parser.add_argument("--apart", type=Path, nargs="+", default=[], help="stores that hold the same items in parts")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--against", default="d24-s0-61440")
    parser.add_argument("--solve", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.solve:
        print(json.dumps(solve(options.folder, options.solve, options.lam, options.partitions, options.rounds)))
        return
    if options.measured:
        if not options.page:
            parser.error("--measured goes with --page")
        document = json.loads(options.measured.read_text(encoding="utf-8"))
        vars(options).update(document["setup"])
        write_page(options, document["rows"])
        return
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, options.items, options.features, options.entries)
        for solver in SOLVERS:
            command = [sys.executable, __file__, "--solve", solver, "--folder", name, "--lam", str(options.lam),
                       "--partitions", str(options.partitions), "--rounds", str(options.rounds)]  # fmt: skip
            one = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            try:
                done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **one},
                                      timeout=options.limit)  # fmt: skip
            except subprocess.TimeoutExpired:
                rows.append({"solver": solver, "ended": f"stopped after {options.limit:.0f} s"})
                continue
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or [f"killed, {done.returncode}"])[-1]
                rows.append({"solver": solver, "ended": reason[:200]})
            else:
                rows.append(json.loads(done.stdout))
            if not options.json:
                print(json.dumps(rows[-1]), flush=True)
    setup = {name: getattr(options, name) for name in ("items", "features", "entries", "lam", "partitions", "rounds")}
    document = {"setup": setup, "rows": rows}
    if options.page:
        write_page(options, rows)
        return
    if options.json:
        print(json.dumps(document, indent=1))
        return
    ours = next((row for row in rows if row["solver"] == SOLVERS[0] and "seconds" in row), None)
    print(f"\n{'solver':22} {'seconds':>9} {'beside':>7} {'more MB':>9} {'beside':>7} {'objective':>10} {'weights':>8}")
    for row in rows:
        if "seconds" not in row:
            print(f"{row['solver']:22} {row['ended']}")
            continue
        beside = [row[name] / max(ours[name], 1e-9) if ours else float("nan") for name in ("seconds", "more_mb")]
        print(f"{row['solver']:22} {row['seconds']:9.1f} {beside[0]:7.2f} {row['more_mb']:9.0f} {beside[1]:7.2f} "
              f"{row['objective']:10.5f} {row['weights']:8d}")  # fmt: skip


if __name__ == "__main__":
    main()

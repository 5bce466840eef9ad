"""docs/results/cost-model.md: what the cost model of training steps says beside published speeds, and where it fails.

    python benchmarks/throughput.py --rows ROWS --page docs/results/cost-model.md [--hours HOURS] [--freeze]

ROWS: a table of published training runs (it is not shipped; the package has a selection of a hundred). ``--freeze``
fits the constants to it and writes ``densing/efficiency/throughput/constants.json`` first.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path

import numpy as np
import pandas as pd
from overlap import densing

from densing.core import formatting
from densing.efficiency.simulation import Transformer, load_cluster
from densing.efficiency.systems import measure
from densing.efficiency.systems.layouts import measured_run
from densing.efficiency.systems.validation import validate
from densing.efficiency.throughput import (
    NAMES,
    MeasuredRuns,
    Throughput,
    check_throughput,
    freeze,
    frozen,
    plan_layout,
    read_runs,
    step,
    step_seconds,
)
from densing.efficiency.throughput.fit import unseen_errors
from densing.plots import plot_throughput
from densing.report import markdown


def sources_table(found: Throughput) -> str:
    """Return each source's errors, beside the null models'."""
    rows = [
        (
            each.source, f"{each.rows:,}", f"{each.n:,}", share(each.unseen_median), share(each.unseen_p90),
            share(each.median_error), share(each.constant_mfu_median), share(each.nearest_median),
            formatting.number(each.rank_correlation), f"{each.best_in_three} of {each.sweeps}" if each.sweeps else "–",
            "–" if each.repeat_spread is None else f"{each.repeat_spread:.2f}",
        )
        for each in found.sources
    ]  # fmt: skip
    header = ("source", "rows", "compared", "unseen, median", "unseen, 90 %", "all fitted", "constant MFU", "nearest",
              "rank", "best layout in our first three", "repeats differ by")  # fmt: skip
    return markdown.table(header, rows)


def share(value: float | None) -> str:
    """Return an error in percent."""
    return formatting.MISSING if value is None else formatting.percent(100 * value)


def laws_table(found: Throughput) -> str:
    """Return the errors under broken laws."""
    laws = list(found.sources[0].mutated)
    rows = [(each.source, share(each.median_error), *(share(each.mutated[law]) for law in laws))
            for each in found.sources if each.mutated]  # fmt: skip
    return markdown.table(("source", "as it is", *laws), rows)


def constants_table() -> str:
    """Return the constants of each generation."""
    known = frozen().constants
    rows = [(name, *(formatting.number(getattr(each, name)) for each in known.values())) for name in NAMES]
    return markdown.table(("constant", *known), rows)


def published_table() -> str:
    """Return the claims on runs of papers, none of which was fitted."""
    rows = [
        (row.claim, row.setup, f"{row.what}, {row.unit}", formatting.digits(float(row.published)),
         row.ours if isinstance(row.ours, str) else formatting.digits(row.ours), share(row.error), row.verdict,
         ", ".join(row.turned_by), row.source)
        for row in validate(["pipeline"]).findings
    ]  # fmt: skip
    header = ("claim", "run", "what", "published (second-hand)", "ours", "error", "verdict", "turned by", "source")
    return markdown.table(header, rows)


def ranges_table(table: Path) -> str:
    """Return, for every kind of runs, the errors of left-out sources, the range made of them, and what it holds."""
    measured = read_runs(table)
    errors, kinds = unseen_errors(measured, frozen().without), measured.runs.kinds()
    rows = []
    for kind, each in frozen().ranges.items():
        ends = frozen().spread(kind)
        own = np.abs(np.expm1(errors[(kinds == kind) & np.isfinite(errors)]))
        rows.append((
            kind, str(each.sources), f"{each.rows:,}", share(float(np.median(own))) if own.size else "–",
            "not predicted" if ends is None else f"{ends[0]:.2f} to {ends[1]:.2f}", share(each.held),
        ))  # fmt: skip
    header = ("kind", "sources", "rows", "error, median", "range of a step's time, times", "holds of a left-out source")
    return markdown.table(header, rows)


MOST_ROWS, MOST_PASSES = 40, 20_000
"""Rows of a source that are simulated, drawn at random, and passes of a step over modules."""


def simulated_table(table: Path) -> str:
    """Return, source by source, what the same constants give in closed form and simulated, beside what was measured."""
    measured, rng = read_runs(table), np.random.default_rng(0)
    kinds, speeds = measured.runs.kinds(), measured.about.tokens_per_s.to_numpy()
    passes = 4 * measured.runs.parts * measured.runs.layers
    which = measured.measured & ~np.isin(kinds, ("mixture", "eager")) & (passes <= MOST_PASSES)
    rows, logs = [], []
    for source in dict.fromkeys(measured.about.source[which]):
        (own,) = np.nonzero(which & (measured.about.source == source).to_numpy())
        chosen = rng.permutation(own)[:MOST_ROWS]
        steps = np.array([both_steps(measured, at, source) for at in chosen])
        real = measured.runs.tokens[chosen] / speeds[chosen]
        ends = np.array([frozen().spread(str(kinds[at])) for at in chosen])
        held = (real >= ends[:, 0] * steps[:, 1]) & (real <= ends[:, 1] * steps[:, 1])
        logs.append(np.log(steps[:, 1] / steps[:, 0]))
        low, middle, high = np.exp(np.quantile(logs[-1], [0.1, 0.5, 0.9]))
        rows.append((
            source, str(len(chosen)), f"{middle:.3f} ({low:.3f} to {high:.3f})",
            *(share(float(np.median(np.abs(steps[:, at] / real - 1)))) for at in (0, 1)), share(float(held.mean())),
        ))  # fmt: skip
    low, middle, high = np.exp(np.quantile(np.concatenate(logs), [0.1, 0.5, 0.9]))
    rows.append(("all", str(sum(map(len, logs))), f"{middle:.3f} ({low:.3f} to {high:.3f})", "", "",
                 share(float(np.mean([float(row[-1].split()[0]) / 100 for row in rows])))))  # fmt: skip
    header = ("source", "rows", "simulated over closed, median (80 %)", "error, closed", "error, simulated",
              "in the simulated range")  # fmt: skip
    return markdown.table(header, rows)


def both_steps(measured: MeasuredRuns, at: int, source: str) -> tuple[float, float]:
    """Return a measured step's seconds, closed and simulated, by constants that had not seen its source."""
    runs = measured.runs.take(np.array([at]))
    own, _ = frozen().of([measured.constants[at]], source)
    closed = float(step_seconds(runs, own).step[0])
    technique, workload, cluster, settings = measured_run(runs, own)
    return closed, measure(technique.plan(workload, cluster, **settings), cluster).step_s


def memory_words(found: Throughput) -> str:
    """Return how well memory tells what ran from what did not."""
    memory = found.memory
    return (
        f"Of {memory.ran:,} layouts that ran {share(memory.ran_refused)} are predicted not to fit; of "
        f"{memory.failed:,} that failed, for whatever reason, {share(memory.failed_passed)} are predicted to fit. "
        "The share of the device that is needed is larger for a failed layout than for one that ran with a "
        f"probability of {formatting.number(memory.auc)} (AUC). Of {memory.peaks:,} printed peaks "
        f"the median error is {share(memory.peak_median_error)}."
    )


def memory_table(found: Throughput) -> str:
    """Return, source by source, what memory says of what ran and failed, and of printed peaks."""
    rows = [
        (
            source, f"{fits.ran:,}", share(fits.ran_refused), f"{fits.failed:,}", share(fits.failed_passed),
            f"{fits.peaks:,}",
            "–" if fits.peak_ratio is None else f"{fits.peak_ratio[1]:.2f} "
            f"({fits.peak_ratio[0]:.2f} to {fits.peak_ratio[2]:.2f})",
        )
        for source, fits in found.memory_by_source.items()
    ]  # fmt: skip
    header = ("source", "ran", "of these refused", "failed", "of these said to fit", "peaks",
              "predicted over printed, median (80 %)")  # fmt: skip
    return markdown.table(header, rows)


Shape = tuple[int, int, int, int, int, int, bool]
MODELS: dict[str, tuple[Shape, str, int, int, int]] = {
    "Llama-2-7B": ((32, 4096, 32, 32, 11008, 32000, True), "a100x8-rdma", 256, 4096, 1024),
    "Llama-2-70B": ((80, 8192, 64, 8, 28672, 32000, True), "a100x8-rdma", 2048, 4096, 1024),
    "Llama-3-8B": ((32, 4096, 32, 8, 14336, 128256, True), "h100x8-nvlink", 1024, 8192, 1024),
    "Llama-3-70B": ((80, 8192, 64, 8, 28672, 128256, True), "h100x8-nvlink", 4096, 8192, 1024),
    "Llama-3.1-8B": ((32, 4096, 32, 8, 14336, 128256, True), "h100x8-nvlink", 1024, 8192, 1024),
    "Llama-3.1-405B": ((126, 16384, 128, 8, 53248, 128256, True), "h100x8-nvlink", 16384, 8192, 2048),
    "BLOOM-176B": ((70, 14336, 112, 112, 57344, 250880, False), "a100x8-rdma", 384, 2048, 2048),
}
"""Layers, width, heads, heads of keys, MLP, vocabulary and whether it is gated, of the models' configurations
(recalled); cluster, devices, sequence and batch, which are assumed where a report does not say them."""
STOPS = 0.3
"""Share of published hours that stops, restarts and evaluation may take."""


def hours_table(path: Path) -> str:
    """Return published device hours beside a range over layouts, from the best to the median of all splits."""
    rows = []
    for row in pd.read_csv(path).itertuples():
        if row.model not in MODELS or not row.tokens > 0:
            rows.append((row.model, f"{row.gpu_hours:,.0f} ({row.evidence})", "not predicted", "–", "–", "–"))
            continue
        (layers, hidden, heads, keys, ffn, words, gated), cluster, devices, sequence, batch = MODELS[row.model]
        model = Transformer(row.model, layers, hidden, heads, keys, hidden // heads, ffn, words, gated=gated)
        found = plan_layout(
            model, load_cluster(cluster, n=devices), devices, sequence=sequence, batch=batch, most=10**6
        )
        splits: dict[tuple[int, ...], float] = {}
        for each in found.layouts:
            splits.setdefault((each.tp, each.cp, each.pp, each.zero), each.tokens_per_s)
        best, middle = found.layouts[0], float(np.median(list(splits.values())))
        hours = row.tokens * devices / 3600 / np.array([best.tokens_per_s, middle])
        low, high = hours[0] * best.low_s / best.step_s, hours[1] * best.high_s / best.step_s / (1 - STOPS)
        rows.append((
            row.model, f"{row.gpu_hours:,.0f} ({row.evidence})", f"{hours[0]:,.0f}", f"{row.gpu_hours / hours[0]:.2f}",
            f"{low:,.0f} to {high:,.0f}", "yes" if low <= row.gpu_hours <= high else "no",
        ))  # fmt: skip
    header = ("model", "published device hours", "best layout", "published over best", "range", "inside")
    return markdown.table(header, rows)


def main() -> None:
    """Fit where asked, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--page", type=Path, required=True)
    parser.add_argument("--hours", type=Path, help="published device hours of whole runs")
    parser.add_argument("--freeze", action="store_true")
    given = parser.parse_args()
    if given.freeze:
        freeze(read_runs(given.rows), file_hash=hashlib.sha256(given.rows.read_bytes()).hexdigest())
        frozen.cache_clear()
    started = time.process_time()
    found = check_throughput(given.rows)
    seconds = time.process_time() - started
    predicted = sum(row.status == "predicted" for row in found.rows)
    expressed = sum(row.status != "not expressible" for row in found.rows)
    planned = "--model llama3-70b --cluster a100x8-rdma --gpus 1024"
    best = densing("techniques", "plan", *planned.split(), "--json")
    layouts = [
        (*(str(each[name]) for name in ("tp", "cp", "pp", "virtual", "dp", "zero", "micro_batch", "recompute")),
         formatting.duration(1e9 * each["step_s"]), share(each["mfu"]))
        for each in best["layouts"]
    ]  # fmt: skip
    reasons = pd.Series([row.reason for row in found.rows if row.status == "not expressible"]).value_counts()
    picture = Path("../images/cost-model.png")
    (given.page.parent / picture).parent.mkdir(exist_ok=True)
    plot_throughput(found.rows).write_image(given.page.parent / picture, width=900, height=600, scale=1.5)
    text = "\n\n".join([
        "# The cost model: what a training step takes",
        "Written by `python benchmarks/throughput.py --rows ROWS --page PAGE`; ROWS is a table of published training "
        f"runs ({len(found.rows):,} rows, sha256 {hashlib.sha256(given.rows.read_bytes()).hexdigest()[:12]}; not "
        "shipped). `densing techniques validate --throughput [FILE]` does the same on a table of yours, or on the "
        f"selection of {len(read_runs().about)} rows in the package, each with its source and licence. Constants: "
        f"sha256 {found.constants_sha256[:12]}.",
        "## What comes out",
        f"{expressed:,} of {len(found.rows):,} rows can be expressed, {predicted:,} are of a kind that is "
        f"predicted; that takes {seconds:.1f} processor seconds. "
        "Errors are sizes of predicted over measured tokens per second, less 1. *Unseen*: constants fitted to all "
        "sources but this one; that is what a prediction is worth. *All fitted*: the package's constants. *Constant "
        "MFU* and *nearest* know the source: the median MFU of its other rows, and the MFU of its most similar other "
        "row; where layouts lie close together the nearest one is hard to beat.",
        sources_table(found),
        f"![Predicted against measured tokens per second, a symbol per source]({picture.as_posix()})",
        f"Not expressible: {'; '.join(f'{reason} ({count})' for reason, count in reasons.items())}.",
        "## Runs of papers that were not fitted",
        published_table(),
        "How Llama's operations were counted is not said; ours are PaLM's (attention in full), and its range is over "
        "1, 2, 4 and 7 stages per device, which are not published. What the answers hang on is printed by `densing "
        "techniques validate --technique pipeline`.",
        *([] if given.hours is None else [
            "## Published device hours",
            "Layouts of whole runs are rarely published: the range goes from the fastest layout that fits, at the low "
            "end of its step, to the median of all splits that fit, at the high end, with stops, restarts and "
            f"evaluation of up to {share(STOPS)} of the hours. Devices, sequence and batch are assumed where a report "
            "does not say them. Mixtures are not predicted.",
            hours_table(given.hours),
        ]),
        "## Does it notice broken laws?",
        "Median error with one law broken at a time. What does not grow was not tested by that source.",
        laws_table(found),
        "## Ranges",
        "`plan` and `compare` give a step's time with a range that is made to hold four of five runs of a source that "
        "the constants have not seen, by kind of run: Student's interval of the next source's errors, from how "
        "left-out sources differ and how runs of one differ. The last column holds each source to a range "
        "from the others, the mean over sources. A kind that one source measured is not predicted: how far sources "
        "differ is not known. New "
        "generations: each generation left out whole, its data sheet with the shares of the newest other one. Sources "
        "of rows within a kind are few, and other sources may be unlike all of them.",
        ranges_table(given.rows),
        "## One step, closed and simulated",
        "`plan` ranks all layouts in closed form and simulates the ten best; `compare` simulates. Both take the times "
        "of modules and the shares of links from the same constants; what is hidden behind what, the closed form has "
        "from rules of thumb and the simulation from its schedule. Constants had not seen the source. Up to "
        f"{MOST_ROWS} rows of each, drawn at random among those of at most {MOST_PASSES:,} passes a step; the last "
        "line is the mean over sources.",
        simulated_table(given.rows),
        "## Memory",
        memory_words(found),
        memory_table(found),
        "The source with most failures calls them crashed or out of memory: not all are of memory. What differs "
        "between sources: eager programs hold temporaries (factors on states and activations, and a reserve, fitted to "
        "their peaks); DeepSpeed keeps gradients in 32 bits beside those of 16 and two buckets of 5e8 numbers; FSDP "
        "keeps logits in several copies. Not modelled: the allocator's fragments, activations that 8-bit products keep "
        "in 8 bits, states moved to the host; a pipeline's printed peak may be another stage's than the fullest.",
        "## Which layout",
        f"`densing techniques plan {planned}`: {best['fitting']:,} of {best['tried']:,} layouts fit.",
        markdown.table(("tp", "cp", "pp", "stages each", "dp", "ZeRO", "micro-batch", "recompute", "step", "MFU"),
                       layouts),
        f"Next split: {best['why']}.",
        "## The model",
        (step.__doc__ or "").partition("\n\n")[2].strip(),
        "## Constants",
        "One set per generation of devices, none per row or source; seconds, or shares of a data sheet's figure.",
        constants_table(),
        "- `crossing_s` is known from one source (nanotron on H100), and is used for eager programs that run pipeline "
        "and tensor parallelism at once, nowhere else.\n"
        "- Defaults of the software (attention that writes its scores, fused operations, gradients sent beside the "
        "backward pass) follow from the framework's name where a row does not say them.\n"
        "- Links are those of data sheets where a row does not say them.\n"
        "- Rows fitted, by source and generation, stand in the file of constants.",
        "## Where it fails",
        "- Eager pipelines over many nodes (nanotron's) take up to a second per micro-batch whatever they compute, the "
        "more often the more devices; the same configuration is given twice, several times apart. No figure of a row "
        "tells which ones do, so nothing here models it.\n"
        "- Mixtures of experts were measured by one source only, and within one node predicted too fast: routing waits "
        "that no figure of a row tells. They are not predicted.\n"
        "- A tensor-parallel group over several nodes waits for the farthest hop in each step of its rings: 406 "
        "measured rows say so (24 % off in the median, 29 % where only hops between nodes are charged as far).\n"
        "- 8-bit products with a scale per row run at the pace of 16 bits here; they were measured slower still.\n"
        "- FSDP's \"selective\" recomputation (single operations, or every other layer) counts as half of a layer.\n"
        "- Activations that 8-bit products keep in 8 bits count as 16; 4-bit products were never fitted.\n"
        "- Schedules that put gradients of weights into the bubble (zero-bubble, DualPipe) keep a third or nothing of "
        "it, as their paper says; no run of them was fitted, and `compare` does not try them.",
    ])  # fmt: skip
    given.page.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

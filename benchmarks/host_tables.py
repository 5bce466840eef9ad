"""docs/results/host-tables.md: does a gather from the host's memory hide, does alignment matter, would zero-copy pay?

    python benchmarks/host_tables.py --page PAGE

1. Read requests per row, counted for any width.
2. `densing techniques compare --model sage-... --cluster rtx3090-pcie...`: simulated steps, and parameters on the
   device beside all.
3. The same over how fast the host gathers: where zero-copy pays.
4. `densing techniques validate -t zero-copy`.
5. `densing train -t host-gather --set data=films-graph --nproc 1`: a process that gathers rows ahead, on this machine's
   processors, predicted from its stages beside measured. Two idle cores are needed; all of it takes five minutes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from overlap import densing

from densing.core import film_rows, formatting
from densing.efficiency.simulation import load_gather
from densing.efficiency.systems.host_tables.graph import films_task
from densing.efficiency.systems.host_tables.requests import requests_per_row
from densing.report import markdown

WIDTHS = (16, 32, 33, 64, 100, 128, 200, 256, 300, 602, 768, 1000, 4096)
NAMES = ("host-gather", "pinned-gather", "zero-copy", "device-table")
MODELS = ("sage-reddit", "sage-products", "sage-papers100m")
CLUSTERS = ("rtx3090-pcie3", "rtx3090-pcie4")
HOST_GBS = (2.5, 5, 10, 20, 35, 70)
RUNS = ((16, 128), (128, 128), (602, 128), (602, 512), (2048, 128))
"""Width of the table and films per step of the measured runs."""
SEEDS, STEPS = "0,1,2,3,4", 64
STAGES = ("sample_s", "gather_s", "train_s")


def requests_table() -> str:
    """Return requests per row by width."""
    rows = []
    for width in WIDTHS:
        plain, aligned = requests_per_row(width, align=False), requests_per_row(width)
        rows.append((str(width), f"{4 * width:,}", f"{plain:g}", f"{aligned:g}", f"{plain / aligned:.2f}"))
    return markdown.table(("columns", "bytes", "requests per row", "aligned", "times fewer"), rows)


def compared(model: str, cluster: str, names: Sequence[str], *settings: str) -> dict[str, Any]:
    """Return the rows of a comparison by technique."""
    chosen = [word for setting in settings for word in ("--set", setting)]
    found = densing(
        "techniques", "compare", "--model", model, "--cluster", cluster, "--techniques", ",".join(names), *chosen,
        "--json",
    )  # fmt: skip
    return {row["technique"]: row for row in found["rows"]}


def steps_table() -> str:
    """Return simulated steps, overlapped and not."""
    rows = []
    for model in MODELS:
        for cluster in CLUSTERS:
            for overlap in ("no", "yes"):
                settings = [f"{name}.overlap={overlap}" for name in NAMES]
                plain = compared(model, cluster, NAMES, *settings, "zero-copy.align=no")["zero-copy"]
                found = compared(model, cluster, NAMES, *settings)
                cells = [_step(found[name]) for name in NAMES]
                rows.append((model, cluster.removeprefix("rtx3090-"), overlap, *cells[:2], _step(plain), *cells[2:]))
    return markdown.table(
        (
            "step",
            "link",
            "overlap",
            "host-gather",
            "pinned-gather",
            "zero-copy, unaligned",
            "zero-copy",
            "device-table",
        ),
        rows,
    )


def _step(row: dict[str, Any]) -> str:
    fits = "" if row["status"] == "simulated" else " (does not fit)"
    return f"{1e3 * row['step_s']:.1f}{fits}"


def parameters_table() -> str:
    """Return parameters on the device and in all."""
    rows = []
    for model in MODELS:
        for name, row in compared(model, CLUSTERS[0], NAMES).items():
            share = row["parameters_on_device"] / row["parameters"]
            rows.append((model, name, f"{row['parameters_on_device']:,}", f"{row['parameters']:,}",
                         f"{formatting.number(100 * share, 2)} %", f"{row['memory_bytes'] / 1e9:.2f}"))  # fmt: skip
    return markdown.table(("step", "technique", "on the device", "in all", "share", "GB on the device"), rows)


def rates_table() -> str:
    """Return steps over how fast the host gathers."""
    rows = []
    for model in MODELS:
        for cluster in CLUSTERS:
            direct = compared(model, cluster, ("zero-copy",))["zero-copy"]["step_s"]
            cells = []
            for rate in HOST_GBS:
                step = compared(model, cluster, ("pinned-gather",), f"pinned-gather.host_gbs={rate}")["pinned-gather"]
                cells.append(f"{step['step_s'] / direct:.2f}")
            rows.append((model, cluster.removeprefix("rtx3090-"), *cells))
    return markdown.table(("step", "link", *(f"{rate:g} GB/s" for rate in HOST_GBS)), rows)


def claims_table() -> str:
    """Return the claims with our answers."""
    findings = densing("techniques", "validate", "-t", "zero-copy", "--json")

    def shown(value: Any) -> str:
        return "–" if value is None else value if isinstance(value, str) else f"{value:.3g}"

    return markdown.table(
        ("claim", "what", "published", "ours", "without a simulator", "grade", "verdict", "what went in; remarks"),
        (
            (
                row["claim"], f"{row['what']} ({row['setup']})", f"{shown(row['published'])} {row['unit']}".strip(),
                shown(row["ours"]), shown(row["null"]), row["grade"], row["verdict"],
                "; ".join(filter(None, (row["inputs"], row["note"], _assumed(row)))),
            )
            for row in findings
        ),
    )  # fmt: skip


def _assumed(row: dict[str, Any]) -> str:
    return "; ".join(
        f"{formatting.number(value) if isinstance(value, float) else value} with {name}"
        + (", which turns the verdict" if name in row["decided_by"] else "")
        for name, value in row["assumptions"].items()
    )


def measured_table() -> str:
    """Return the real runs with rows gathered ahead, beside their predictions."""
    rows = []
    with tempfile.TemporaryDirectory() as place:
        for width, seeds in RUNS:
            found = densing(
                "train", "-t", "host-gather", "--set", "data=films-graph", "--set", f"width={width}", "--set",
                f"seeds={seeds}", "--nproc", "1", "--steps", str(STEPS), "--seeds", SEEDS, "--trace-steps", "0", "--lr",
                "0.003", "--out", str(Path(place) / f"{width}-{seeds}"), "--json",
            )  # fmt: skip

            assert all(run["extra"]["equal"] == 1 for run in found["runs"])
            figures = [
                {**run["extra"], "step_s": run["step_s"], "others": run["others"] or 0.0} for run in found["runs"]
            ]
            for each in figures:
                each["difference"] = each["step_s"] / each["predicted_step_s"] - 1
                each["times"] = each["sequential_step_s"] / each["step_s"]
            # Other work on the machine comes in bursts: of five runs the middle one.
            middle = {name: statistics.median(each[name] for each in figures) for name in figures[0]}
            times = (middle[name] for name in (*STAGES, "sequential_step_s", "predicted_step_s", "step_s"))
            rows.append((
                str(width), str(seeds), f"{middle['rows']:,.0f}", f"{middle['rows'] * middle['row_bytes'] / 1e6:.1f}",
                *(f"{1e3 * each:.1f}" for each in times), f"{100 * middle['difference']:+.1f} %",
                f"{middle['times']:.2f}", f"{middle['others']:.1f}",
                f"{100 * middle['accuracy']:.1f} %", f"{100 * middle['majority']:.1f} %",
            ))  # fmt: skip
    return markdown.table(
        ("columns", "films a step", "rows a step", "MB", "sampling ms", "gathering ms", "training ms", "in turn ms",
         "predicted ms", "ahead ms", "difference", "times as fast", "cores others kept busy",
         "right on held-out films", "with the majority label"),
        rows,
    )  # fmt: skip


def graph_words() -> str:
    """Return in words how large the graph is."""
    films, graph = len(film_rows("select ID from omdb")), films_task().graph
    return (
        f"The graph: {films:,} films and the {len(graph.starts) - 1 - films:,} people who directed, wrote or played in "
        f"them, {len(graph.neighbours) // 2:,} edges (Wikidata, CC0);"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run everything and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--measured", action="store_true", help="only the last table, on the screen")
    chosen = parser.parse_args(arguments)
    if chosen.measured:
        print(measured_table())
        return
    if chosen.page is None:
        parser.error("--page is needed")
    figures = "; ".join(f"`{name}`: {load_gather(name).source}" for name in MODELS)
    parts = [
        "# Tables that stay in the host's memory",
        "Written by `python benchmarks/host_tables.py`; its head says which commands it runs. Features of a graph, "
        "embeddings, experts or adapters may be larger than a device's memory: then rows lie in the host's, and a step "
        "gathers thousands of them. PyTorch-Direct (Min et al., VLDB 2021, arXiv 2103.03330) lets threads of the "
        "device read them where they lie. The data are exact either way, so density per parameter is unchanged; what "
        "is gained is time, and memory of the device.",
        "## Does alignment matter?",
        "Counted, exactly: pairs of a line of 128 bytes and a warp of 32 threads that a row touches, mean over the "
        "rows of a table of 4-byte numbers. A row that does not begin on a line makes every warp straddle two; a "
        "circular shift of the columns cures that. Rows shorter than a line, and rows of whole lines, gain nothing.",
        requests_table(),
        "## Would it pay?",
        "Simulated: `densing techniques compare --model sage-reddit --cluster rtx3090-pcie3 --techniques "
        "host-gather,pinned-gather,zero-copy,device-table`; a step in milliseconds, one stage after the other and "
        "overlapped with two buffers. The host gathers at 35 GB/s, read and written (what the README's bars come to); "
        "overlapped reads take a tenth of the device's processors.",
        steps_table(),
        f"Where the figures are from: {figures}. Link rates are assumed: 12.3 and 24.6 GB/s.",
        "## How fast must the host be?",
        "Simulated: the step of `pinned-gather` over that of `zero-copy`, both overlapped, by the rate at which the "
        "host's processors gather (read and written together). Above 1 zero-copy pays; a host that gathers fast enough "
        "hides behind the wire, and zero-copy's requests and its share of the device's processors are not paid back. "
        "Sampling keeps the same processors busy and is not counted here: it is in the bar that the training time is "
        "from.",
        rates_table(),
        "## Which N?",
        "Parameters in the device's memory beside all. A table's rows are parameters where they are learned, and of "
        "most of them a step sees nothing: by all parameters such a model is far less dense than by those on the "
        "device, so an N that divides must be named.",
        parameters_table(),
        "## Claims",
        "Two bars of the README go in, other bars come out: a transfer of 2 (5.9 - 4.0) = 3.8 s and 2.1 s of training. "
        "GCN-2 follows from these by arithmetic and from the assumption that PCIe 4 is exactly twice as fast, and that "
        "assumption decides it. `without a simulator` is the rival: of GCN-3 the longer of transfer and training.",
        claims_table(),
        "## Measured: rows gathered ahead, on processors",
        f"Real, on a machine of {os.cpu_count()} cores; the table says how many of them others kept busy meanwhile, "
        f"and how far a step was from its prediction: `densing train -t host-gather --set data=films-graph --nproc 1 "
        f"--steps {STEPS} --seeds {SEEDS} --lr 0.003`. **No PCIe here**: another process samples and gathers one step "
        f"ahead into the second of two buffers that both share. {graph_words()} GraphSAGE of two layers, 25 neighbours "
        "of a film and 10 of each of these; is a film fresh or rotten? Predicted: the plan with the stages' times of "
        "the first pass, in which they take turns; then the second pass is made. Losses and weights of both are equal "
        "to the bit. Each cell is the median of the seeds' runs.",
        measured_table(),
        "## Not done",
        "The device's part (index and copy, page-locked staging, a Triton kernel that reads page-locked memory: "
        "`densing train -t host-gather,pinned-gather,zero-copy --device cuda`) is written and **has not been run**: "
        "there was no device at hand. There its stages take turns; reads beside training, MPS, several devices and "
        "graphs of 111 million nodes are simulated at most. The sampler was checked against networkx's neighbourhoods; "
        "once, by hand, the layer against torch-geometric 2.8.1's SAGEConv on a neighbourhood of 64 films (no "
        "difference in the logits); its NeighborLoader needs a compiled package and was not compared.",
    ]
    chosen.page.write_text("\n\n".join(parts) + "\n")
    print(f"wrote {chosen.page}")


if __name__ == "__main__":
    main()

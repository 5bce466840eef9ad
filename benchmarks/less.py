"""docs/results/less-to-send.md: what sends less, predicted beside measured, where it stops paying, and what it buys.

    python benchmarks/less.py --page PAGE [--gain LADDER [--records FOLDER]] [--out FOLDER] [--link 100mbit] [--quick]

1. `densing calibrate --link RATE` measures the link and the modules of the small language model.
2. `densing train -t ... --link RATE --predict` runs every technique on two ranks, each step beside what was predicted
   before it ran; then a pipeline of two stages, with and without codecs on its edge, and placed by `fusion`.
3. `densing techniques compare --replicas` simulates where packets that are gathered stop beating a ring's sum.
4. With `--gain` what a ladder's arms bought, beside the baseline that each question asks for; `--records` keeps what
   claims read (`densing/efficiency/systems/records`). The ladder: `densing ladder train --preset cpu --sizes d8
   --sizes d12 --sizes d16 --sizes d24 --ranks 4 --seeds 0..2 --out LADDER`, with an `--arm` for every row.

Two idle cores are needed: with other work on them the figures say something about that work.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from overlap import DATA, calibrated, densing, trained

from densing.core import formatting, plain
from densing.efficiency.simulation import sizes
from densing.report import markdown
from densing.tradeoff import gain_table, ladder_gain

STEPS = 48
EVERY_STEP = "ddp,topk,dct,powersgd"
ROUNDS = "local-sgd,fedavg,topk-delta,int8-delta,fedft,spafl"
# Within a run of 48 steps thresholds are renewed six times; the default is for longer runs.
KNOBS = ("--set", "dct.refresh=8")
PIPELINE = ["--model", "tiny", "--layers", "4", "--sequence", "256", "--batch", "8"]
# Each micro-batch of four has two of the eight sequences.
PIECE = ["--model", "tiny", "--layers", "4", "--sequence", "256", "--batch", "2"]
STAGES = (
    ("pipeline",),
    ("pipeline", "codec=topk", "share=0.05"),
    ("pipeline", "codec=threshold", "share=0.05"),
    ("fusion", "r=20"),
)
MAP = "--model gpt2 --cluster a100x8-tcp --techniques ddp,topk,dct --tp 1 --set dct.eta=0.999"
ENDS = ("lo", "hi")
REPLICAS = "2,8,32,64,128,256,512"


def rows_of(out: Path, link: str, steps: int) -> list[dict[str, Any]]:
    """Run all techniques over a link; a row each."""
    cluster = calibrated(out, link, DATA)
    predict = ("--predict", cluster, *DATA)
    rows = trained(out, "every-step", EVERY_STEP, link, steps, *KNOBS, *predict)
    rows += trained(out, "rounds", ROUNDS, link, steps, "--tau", "8", *predict)
    piece = calibrated(out, link, PIECE)
    for name, *more in STAGES:
        predict = (*(word for each in more for word in ("--set", each)), "--predict", piece)
        [row] = trained(out, "-".join([name, *more]), name, link, steps, *predict, *PIPELINE)
        rows.append({**row, "technique": ", ".join([name, *more])})
    return rows


def predicted_table(rows: list[dict[str, Any]]) -> str:
    """Return every technique's step beside its prediction."""
    head = ("technique", "step, ms", "predicted, ms", "error", "waiting, ms", "predicted, ms", "held-out loss")
    return markdown.table(
        head,
        (
            (
                row["technique"],
                f"{1e3 * row['step_s']:.1f}",
                f"{1e3 * row['predicted_step_s']:.1f}",
                formatting.percent(100 * (row["predicted_step_s"] / row["step_s"] - 1)),
                f"{1e3 * row['wait_s']:.1f}",
                f"{1e3 * row['predicted_wait_s']:.1f}",
                f"{row['final_loss']:.3f}",
            )
            for row in rows
        ),
    )


def crossover_table() -> str:
    """Return the simulated step of ddp over that of what is gathered, by replicas."""
    cells = densing("techniques", "compare", *MAP.split(), "--replicas", REPLICAS, "--json")["map"]["cells"]
    own = sorted({cell["bandwidth_gbps"] for cell in cells})[2]
    sizes_ = sorted({cell["replicas"] for cell in cells})
    names = dict.fromkeys(cell["technique"] for cell in cells)
    found = {(cell["technique"], cell["replicas"]): cell for cell in cells if cell["bandwidth_gbps"] == own}
    table = markdown.table(
        ("speed-up over ddp", *(f"{size} replicas" for size in sizes_)),
        (
            (name, *(formatting.number(found[name, size]["speedup"], 2) for size in sizes_))
            for name in names
            if name != "ddp"
        ),
    )
    shares = (0.1, 0.03, 0.01, 0.001)
    counted = markdown.table(
        ("share of the entries sent", "share of the bytes", "replicas beyond which a ring of dense float32 sends less"),
        (
            (f"{share:g}", f"{sizes.sparse_share(share):.4f}", f"{sizes.gather_crossover(share):.0f}")
            for share in shares
        ),
    )
    command = f"densing techniques compare {MAP} --replicas {REPLICAS}"
    return f"Simulated, at {own:g} Gbit/s between nodes (`{command}`); then counted:\n\n{table}\n\n{counted}"


class Question(NamedTuple):
    """A table of gains: what is asked, beside which arm, of which others (all by default), kept under a name."""

    text: str
    baseline: str
    arms: tuple[str, ...] = ()
    record: str = ""


QUESTIONS = (
    Question(
        "Beside plain training. `fedft` and `topk-delta` hand on equal bytes per client; a sum of prefixes travels as "
        "a ring, sparse packets are gathered. Edges of `fusion` are those of a stage per layer; the loss is the "
        "whole model's, with nothing left out between its layers.",
        "plain",
        record="less-to-send",
    ),
    Question(
        "DCT-3: thresholds that are seldom renewed (every 200 steps) beside the largest entries chosen in every step, "
        "at a share that makes the bytes about equal: 2.25 %, read off the bytes of smaller shares.",
        "topk:share=0.0225",
        ("dct:eta=0.99",),
        "dct-refresh",
    ),
    Question(
        "How seldom? The same eta, beside a threshold that is renewed in every step; bytes are not equal here.",
        "dct:eta=0.99,refresh=1",
        ("dct:eta=0.99,refresh=10", "dct:eta=0.99,refresh=100", "dct:eta=0.99", "dct:eta=0.99,refresh=1000"),
    ),
    Question(
        "Does pruning raise density, or lower both? SpaFL's clients keep weights of their own, so they stand beside "
        "clients that train alone; density is per *kept* parameter.",
        "local-only",
        ("spafl:tau=8", "spafl:ramp=200,tau=8"),
    ),
)


def gains(ladder: Path, link: str, records: Path | None) -> list[str]:
    """Return a table for each question, and keep the records that claims read."""
    parts = []
    for question in QUESTIONS:
        found = ladder_gain(ladder, baseline=question.baseline, link=link)
        if records is not None and question.record:
            (records / f"{question.record}.json").write_text(json.dumps(plain(found.record()), indent=2) + "\n")
        frame = gain_table(found)
        if question.arms:
            frame = frame.set_index("arm").loc[list(question.arms)].reset_index()
        command = f"`densing ladder gain {ladder.name} --baseline '{question.baseline}' --link {link}`"
        parts += [f"{question.text} ({command})", gains_table(frame, question.baseline)]
    return parts


def gains_table(frame: pd.DataFrame, baseline: str) -> str:
    """Return what each arm bought."""

    def ratio(row: Any, kind: str, digits: int = 3) -> str:
        ends = " to ".join(formatting.number(row[f"{kind}_{end}"], digits) for end in ENDS)
        return f"{formatting.number(row.get(f'{kind}_ratio', row.get(kind)), digits)} ({ends})"

    return markdown.table(
        ("arm", "tokens", "density", "trend of tokens", f"bytes over {baseline}", "kept", "no loss", "status", "pairs"),
        (
            (
                row["arm"],
                ratio(row, "token"),
                ratio(row, "density"),
                ratio(row, "trend", 2),
                formatting.number(row["bytes_share"], 3),
                f"{row['kept_parameters']:,.0f}",
                row["no_loss"],
                row["status"],
                str(row["pairs"]),
            )
            for _, row in frame.iterrows()
        ),
    )


def main() -> None:
    """Run everything and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, required=True)
    parser.add_argument("--gain", type=Path, help="A ladder whose gains were measured.")
    parser.add_argument("--records", type=Path, help="Also keep the gains that claims read, in this folder.")
    parser.add_argument("--out", type=Path, default=Path("results/less"))
    parser.add_argument("--link", default="100mbit")
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    chosen = parser.parse_args()
    if chosen.out.exists() and any(chosen.out.iterdir()):
        raise SystemExit(f"{chosen.out}: is not empty; choose another --out")
    chosen.out.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    steps = 16 if chosen.quick else STEPS
    rows = rows_of(chosen.out, chosen.link, steps)
    errors = [abs(row["predicted_step_s"] / row["step_s"] - 1) for row in rows]
    parts = [
        "# Less to send",
        "Written by `python benchmarks/less.py`; its head says which commands it runs.",
        "## Predicted beside measured",
        f"Two ranks on two cores over a link of {chosen.link}, {steps} steps of the small language model; load before: "
        f"{load:.2f}. Median error of a step {formatting.percent(100 * statistics.median(errors))}, largest "
        f"{formatting.percent(100 * max(errors))}. Waiting is what the training thread stood still for; torch's "
        "PowerSGD multiplies its factors meanwhile. Losses of so few steps say little of quality; what it buys is "
        "asked of a ladder's arms (`densing ladder gain`).",
        predicted_table(rows),
        "## Where gathering stops paying",
        crossover_table(),
    ]
    if chosen.gain is not None:
        parts += [
            "## What it buys",
            "Validation loss of a ladder's arms beside another's: the ratio of tokens that the other would need for "
            "the same loss, of parameters (density), and the trend d ln token ratio / d ln tokens: below 0, an arm "
            "falls behind as training goes on. *no loss*: a test of non-inferiority; *kept*: non-embedding parameters.",
            *gains(chosen.gain, chosen.link, chosen.records),
        ]
    chosen.page.write_text("\n\n".join(parts) + "\n")
    print(f"wrote {chosen.page}; median error {100 * statistics.median(errors):.1f} %")


if __name__ == "__main__":
    main()

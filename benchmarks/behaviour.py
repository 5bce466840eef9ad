"""docs/results/behaviour.md: what models know of how films were received, beside floors and a large model.

    python benchmarks/behaviour.py --page PAGE --ladder LADDER [--fewshot STORE] [--tuned STORE] [--questions N]

LADDER: `densing ladder train --preset films --corpus films --sizes d8 --sizes d12 --sizes d16 --arm plain
--arm behaviour --seeds 0..1 --out LADDER`, then `densing ladder eval LADDER --questions N`. STORE: `densing eval
--model smollm2-135m --tasks lcbm_films_meter_bits,lcbm_films_pair --num_fewshot 5 --limit 10 --out STORE`, and other
tasks of lcbm_films with limits of their own. The other STORE: `densing tune --model smollm2-135m --split time --films
240 --out TUNED`, then `densing eval --model smollm2-135m --tasks lcbm_films_meter_bits,lcbm_films_reviews_bits --limit
60 --out STORE`, once with `--adapter TUNED` and once without.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from densing.core import InputError, formatting, write_text
from densing.report import markdown
from densing.scores.evals import RunStore, read_films, split_films
from densing.scores.ladder import behaviour_table, fit_folder, read_exports
from densing.scores.ladder.fits import LEAST_R2
from densing.tradeoff import behaviour_claims, film_floors, ladder_gain

TASKS = {
    "lcbm_films_meter_bits": ("bits", "bits_floor", "close", "rmse"),
    "lcbm_films_reviews_bits": ("bits", "bits_floor", "close", "rmse"),
    "lcbm_films_pair": ("bits", "bits_floor", "acc"),
    "lcbm_films_content": ("bits", "bits_floor", "acc"),
}


def splits_table() -> str:
    """Return how many films each split has."""
    films = read_films()
    rows = []
    for split in ("time", "director", "random"):
        learnt, tested = split_films(films, split)
        known = [sum(getattr(film, name) is not None for film in tested) for name in ("meter", "reviews", "box")]
        rows.append((split, f"{len(learnt):,}", f"{len(tested):,}", *(f"{count:,}" for count in known)))
    return markdown.table(
        ("split", "to learn from", "to ask about", "with score", "with reviews", "with takings"), rows
    )


def floors_table(count: int | None) -> str:
    """Return what needs no language model, on all films to ask about and on those that models were asked."""
    rows = []
    for label, limit in (("all", None), (f"first {count}", count)):
        for row in film_floors("time", limit).to_dict("records"):
            rows.append((label, row["predictor"], f"{row['rmse']:.2f}", f"{row['r2']:.3f}", f"{row['close']:.3f}",
                         f"{row['n']:,}"))  # fmt: skip
    return markdown.table(("films", "predictor", "RMSE", "R2", "within 5 points", "n"), rows)


def own_floors() -> str:
    """Return the floor over all films with a score, whatever split: mean and best constant."""
    scores = np.array([film.meter for film in read_films() if film.meter is not None], dtype=float)
    held = (np.abs(scores - np.arange(101.0)[:, None]) <= 5).mean(axis=1)
    return (
        f"Over all {len(scores):,} films with a score, in sample: the mean errs by {scores.std():.1f} points (RMSE) "
        f"and is within 5 of {np.mean(np.abs(scores - scores.mean()) <= 5):.3f}; the best constant, "
        f"{int(held.argmax())}, is within 5 of {held.max():.3f}."
    )


def models_table(table: pd.DataFrame) -> str:
    """Return every size and arm at the largest budget: the mean over seeds, and the smallest and the largest."""
    last = table[table["tokens"].eq(table["tokens"].max())]
    rows = []
    for (task, params, size, arm), group in last.groupby(["task", "params_non_embedding", "size", "arm"], sort=True):
        for metric in TASKS[str(task)]:
            values = group[metric].dropna().to_numpy(dtype=float)
            if metric == "bits_floor" or not len(values):
                continue
            floor = f"{metric}_floor"
            shown = group[floor].iloc[0] if floor in group else np.nan
            rows.append((task, f"{size} ({int(params):,})", arm, metric, f"{values.mean():.3f}",
                         f"{values.min():.3f} to {values.max():.3f}",
                         formatting.MISSING if pd.isna(shown) else f"{shown:.3f}",
                         str(int(group["n_items"].max()))))  # fmt: skip
    return markdown.table(
        ("task", "size", "arm", "metric", "mean over seeds", "seeds", "floor on these films", "films"), rows
    )


def few_table(store: Path) -> str:
    """Return what a large model says with examples in its prompt."""
    measured = RunStore(store).measurements()
    kept = measured[measured["task"].str.startswith("lcbm_films") & ~measured["metric"].str.startswith(("gold_", "p_"))]
    # A task asked twice: the longer answer.
    kept = kept.sort_values("n_items").drop_duplicates(["task", "metric"], keep="last").sort_values(["task", "metric"])
    return markdown.table(
        ("model", "task", "metric", "value", "standard error", "films"),
        ((row.model, row.task, row.metric, f"{row.value:.3f}",
          formatting.MISSING if pd.isna(row.stderr) else f"{row.stderr:.3f}", str(int(row.n_items)))
         for row in kept.itertuples()),
    )  # fmt: skip


def tuned_block(store: Path) -> str:
    """Return what models said before and after they were told, on the same questions, and how they were tuned.

    Raises
    ------
    InputError
        When the store holds no tuned model with its base beside it.
    """
    run = RunStore(store)
    about = {unit.manifest["key"]["label"]: unit.manifest["model"]["adapter"] for unit in run.units()
             if "adapter" in unit.manifest["model"]}  # fmt: skip
    # A task asked twice: the longer answer, which has the films of the shorter one.
    measured = run.measurements().sort_values("n_items").drop_duplicates(["model", "task", "metric"], keep="last")
    items = run.items().drop_duplicates(["model", "task", "doc_id"])
    rows, sentences = [], []
    for label, adapter in sorted(about.items()):
        base = label.rpartition("@")[0]
        settings, loss = adapter["settings"], adapter["loss"]
        sentences.append(
            f"{label}: {adapter['films']} films, {settings['passes']} time(s) each, split {settings['split']}, seed "
            f"{settings['seed']}; LoRA of rank {settings['rank']} ({adapter['parameters']:,} parameters), rate "
            f"{settings['rate']:g}, {adapter['steps']} steps of {settings['batch']} films, {adapter['tokens']:,} "
            f"tokens; loss of the told text {loss['first']:.2f} at first, {loss['last']:.2f} nats a token at last."
        )
        for task, metrics in TASKS.items():
            part = measured[measured["task"].eq(task)]
            before, after = (part[part["model"].eq(name)].set_index("metric") for name in (base, label))
            if not len(before) or not len(after):
                continue
            pairs = [items[items["task"].eq(task) & items["model"].eq(name)] for name in (base, label)]
            both = pairs[0].merge(pairs[1], on=["doc_id", "doc_hash"], suffixes=("_before", "_after"))
            for metric in metrics:
                if metric == "bits_floor":
                    continue
                change = formatting.MISSING
                if metric != "rmse":
                    gaps = both[f"metric_{metric}_after"] - both[f"metric_{metric}_before"]
                    change = f"{gaps.mean():+.3f} ± {gaps.sem():.3f}"
                floor = f"{metric}_floor"
                rows.append((task, metric, f"{before['value'][metric]:.3f}", f"{after['value'][metric]:.3f}", change,
                             f"{after['value'][floor]:.3f}" if floor in after.index else formatting.MISSING,
                             str(len(both))))  # fmt: skip
    if not rows:
        raise InputError(
            f"{store}: no tuned model with its base beside it; run densing eval with --adapter and without"
        )
    header = ("task", "metric", "before", "after", "change (± standard error over films)", "floor", "films")
    return "\n\n".join([*sentences, markdown.table(header, rows)])


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, required=True)
    parser.add_argument("--ladder", type=Path, required=True)
    parser.add_argument("--fewshot", type=Path)
    parser.add_argument("--tuned", type=Path, help="store of a model before and after `densing tune`")
    parser.add_argument("--questions", type=int, default=60, help="what `ladder eval` asked")
    parser.add_argument("--bootstrap", type=int, default=200)
    options = parser.parse_args()
    table = behaviour_table(read_exports(options.ladder), RunStore(options.ladder / "eval").measurements())
    fits = fit_folder(options.ladder, draws=options.bootstrap)
    gains = ladder_gain(options.ladder, link="100mbit")
    few = None if options.fewshot is None else RunStore(options.fewshot).measurements()
    floors = film_floors("time", options.questions)
    claims = behaviour_claims(table, floors, gains, few)
    laws = [row for task in fits.tasks for row in task.rows(0.95) if row["law"] == "chinchilla"]
    assert fits.behaviour is not None
    skills = fits.behaviour

    def cell(value: object) -> str:
        return formatting.number(value) if isinstance(value, float | int) and not pd.isna(value) else formatting.MISSING

    beside = "" if options.fewshot is None else f" --fewshot {options.fewshot}"
    beside += "" if options.tuned is None else f" --tuned {options.tuned}"
    parts = [
        "# Behaviour as a skill: how films were received",
        f"Written by `python benchmarks/behaviour.py --page PAGE --ladder {options.ladder}{beside} --questions "
        f"{options.questions} --bootstrap {options.bootstrap}`; do not edit by hand. Its docstring has the commands "
        "that train and ask. Tasks and forms: LCBM (Khandelwal et al., arXiv 2309.00359); films: Wikidata (CC0).",
        "## Claims",
        markdown.table(list(claims.columns), claims.astype(str).itertuples(index=False)),
        "## Films",
        splits_table(),
        "No film stands on both sides of a split. Fresh and rotten counts are derived from the score and are not read. "
        "Content of all films is in both arms' text, behaviour only that of films to learn from.",
        "## What needs no language model",
        own_floors(),
        "The Tomatometer by the time split, learnt from all films before 2005:",
        floors_table(options.questions),
        "## Three sizes, two arms",
        f"The largest budget ({int(table['tokens'].max()):,} tokens), equal for both arms; no examples in the prompt. "
        "Loss: bits of the right answer among all answers. The floor knows only how often each answer was given "
        "before. RMSE of reviews is of logarithms; `close`: within 5 points, or 10 % of a count.",
        models_table(table),
        "## A large model with five examples",
        few_table(options.fewshot) if options.fewshot else "Not asked.",
        "Few films: the limit of each row is its last column. An answer without a number is counted in `no_number`, is "
        "wrong, and errs as the mean does.",
        "## The same model, tuned",
        "Without examples, the same questions before and after some films were told with their reception; films that "
        "are asked about were not told. The adapter is merged into the weights: as many parameters as before.",
        tuned_block(options.tuned) if options.tuned else "Not tuned.",
        "## Laws and density",
        "Chinchilla's law of the loss of behaviour, fitted to the arm that was told it; validation: content alone, "
        "plain arm.",
        markdown.table(
            ("task", "unit", "models", "R2", "largest size missed by", "status"),
            ((row["task"], row["unit"], str(row["n"]), f"{row['r2']:.3f}", f"{row['rollout_mean']:+.1%}",
              row["status"]) for row in laws),
        ),
        "Effective parameters and density by these laws; beyond what a law has seen there is a bound and a status. A "
        f"law whose R2 is below {LEAST_R2:g} says nothing, and gives no density.",
        markdown.table(
            ("task", "arm", "size", "bits", "effective parameters", "density", "from", "to", "status"),
            ((row["task"], row["arm"], row["size"], f"{row['loss']:.3f}", cell(row["n_eff"]), cell(row["density"]),
              cell(row["density_lo"]), cell(row["density_hi"]), row["status"]) for row in skills.to_dict("records")),
        ),
    ]  # fmt: skip
    write_text(options.page, "\n\n".join(parts) + "\n")
    print(f"wrote {options.page}")


if __name__ == "__main__":
    main()

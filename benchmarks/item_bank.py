"""docs/results/items.md, and the bank of items that ships: how far a few items give a model's full score.

    python benchmarks/item_bank.py IKP --bank densing/scores/items/data/ikp.json
    densing ladder train --preset tiny --seeds 6 --out LADDER && densing ladder eval LADDER --questions 200
    python benchmarks/item_bank.py IKP --ladder LADDER --page docs/results/items.md

IKP is a folder with items.csv, models.csv and verdicts.csv.gz: the verdicts of Incompressible Knowledge Probes (Li
2026, CC BY 4.0) with 1 for right, 0 for wrong, -1 for refused, from https://github.com/19PINE-AI/ikp.
The page calibrates on models released before a day and tries every design on those released since, with the same seeds.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from item_density import table as density_table
from item_rules import LATE, LOSSES, fluid_benchmarking, ladder_losses, loss_tries, tiny_benchmarks

from densing.core import formatting, named_seed, write_text
from densing.report import markdown
from densing.scores.density.bank_rule import BLOCK
from densing.scores.items import FLAGS, LEVELS, AnswerTable, BankScore, ItemBank, calibrate_items

SOURCE = "Incompressible Knowledge Probes (IKP), Bojie Li, Pine AI, https://github.com/19PINE-AI/ikp"
LICENCE = "CC BY 4.0; changed: verdicts became item curves and abilities, refusals count as wrong, texts left out"
NAMES = {"each": "a slope each (2PL)", "common": "a common slope (1PL)"}
SINCE = "2026-01-01"
COUNTS = (50, 100, 200)
ADAPTIVE = (50, 100)
TOGETHER = {1: ", one by one", BLOCK: f", {BLOCK} together"}
LEAST_ANSWERS = 1000
PLANTED = 60
"""Models of a planted world whose density is read from a few items."""
DESIGNS = (
    ("random, mean", "random", False),
    ("random, control variate", "random", True),
    ("stratified, mean", "stratified", False),
    ("**stratified, control variate**", "stratified", True),
)


def read_ikp(folder: Path) -> AnswerTable:
    """Read clean items of models that answered most of them; a refusal is wrong, a blank no answer."""
    items = pd.read_csv(folder / "items.csv").set_index("item")
    items = items[items["clean"].eq(1)]
    models = pd.read_csv(folder / "models.csv").set_index("model")
    verdicts = pd.read_csv(folder / "verdicts.csv.gz").set_index("model")[items.index].astype(float)
    answers = verdicts.eq(1).astype(float).where(verdicts.notna())
    answers = answers[answers.notna().sum(axis=1) >= LEAST_ANSWERS]
    about = pd.DataFrame({"task": "ikp_" + items["tier"], "text_hash": ""})
    return AnswerTable(answers, pd.to_datetime(models["released"]).reindex(answers.index), about)


def part_of(table: AnswerTable, rows: pd.Series) -> AnswerTable:
    """Return some of the models."""
    return AnswerTable(table.answers[rows], table.released[rows], table.items)


def tries(banks: Mapping[str, ItemBank], table: AnswerTable, seeds: int) -> pd.DataFrame:
    """Try all designs on all models: the full score is that of the items that a model answered."""
    rows = []

    def note(label: str, count: int, truth: float, score: BankScore) -> None:
        held = score.lo <= truth <= score.hi
        rows.append((label, count, 100 * (score.score - truth), held, 50 * (score.hi - score.lo)))

    for model, answers in table.answers.iterrows():
        answered = answers.dropna()
        parts = {kind: bank.of_items(answered.index) for kind, bank in banks.items()}
        part, truth = next(iter(parts.values())), float(answered.mean())
        for label, how, control in DESIGNS:
            for count in COUNTS:
                for seed in range(seeds):
                    chosen = part.choose(count, chosen=how, seed=named_seed(seed, str(model)))  # type: ignore[arg-type]
                    score = part.estimate(answered[chosen], chosen=how, control=control)  # type: ignore[arg-type]
                    note(label, count, truth, score)
        for (kind, of_kind), block in itertools.product(parts.items(), (1, BLOCK)):
            told: dict[str, float] = {}
            while len(told) < max(ADAPTIVE):
                told |= {item: float(answered[item]) for item in of_kind.next(told, block)}
                if len(told) in ADAPTIVE:
                    note(kind + TOGETHER[block], len(told), truth, of_kind.estimate(told, chosen="adaptive"))
    return pd.DataFrame(rows, columns=["design", "items", "error", "held", "half"])


def summary(found: pd.DataFrame) -> pd.DataFrame:
    """Return mean absolute error, bias, held share and half width per design and number of items, in points."""
    groups = found.groupby(["design", "items"], sort=False)
    return groups.agg(
        error=("error", lambda e: e.abs().mean()), bias=("error", "mean"), held=("held", "mean"), half=("half", "mean")
    )


def losses_of(ladder: Path, seeds: int) -> dict[str, str | int]:
    """Return what a few items' losses say of all, for the page."""
    losses, about = ladder_losses(ladder)
    largest = about["size"].eq(about["size"].max()).to_numpy()
    early = (about["seed"] <= about["seed"].max() - LATE).to_numpy()
    rows, fewer = [], []
    for label, known in (("other seeds", early), ("a larger size than any known", ~largest)):
        found = loss_tries(losses, known, seeds).groupby(["design", "items"], sort=False)
        errors = found.agg(error=("error", lambda e: float(np.sqrt((e**2).mean()))), held=("held", "mean"))
        for design in ("mean", "one known mean", "mean and component"):
            cells = []
            for count in LOSSES:
                at, plain = errors.loc[(design, count)], errors.loc[("mean", count)]
                # As many items of the plain mean, without replacement, have this error.
                spread = plain["error"] ** 2 / (1 / count - 1 / losses.shape[1])
                as_many = 1 / (at["error"] ** 2 / spread + 1 / losses.shape[1])
                fewer += [as_many / count] * (design == "one known mean")
                times = "" if design == "mean" else f"; as {as_many:.0f}"
                cells.append(f"{1000 * at['error']:.0f} (holds {at['held']:.2f}{times})")
            rows.append((label, design, *cells))
    heads = ("models", "estimate", *(f"{count} items" for count in LOSSES))
    return {
        "losses": markdown.table(heads, rows), "loss_models": len(losses), "loss_items": losses.shape[1],
        "early": int((~early).sum()), "largest": int(largest.sum()),
        "fewest": formatting.number(min(fewer)), "most": formatting.number(max(fewer)),
    }  # fmt: skip


def page(folder: Path, ladder: Path, seeds: int) -> str:
    """Return docs/results/items.md."""
    table = read_ikp(folder)
    later = table.released >= pd.Timestamp(SINCE)
    started = time.process_time()
    bank = calibrate_items(part_of(table, ~later))
    seconds = time.process_time() - started
    other = calibrate_items(part_of(table, ~later), slopes="common" if bank.slopes == "each" else "each")
    banks = {f"adaptive, {NAMES[each.slopes]}{', chosen' if each is bank else ''}": each for each in (bank, other)}
    known, new = part_of(table, ~later), part_of(table, later)
    free = next(each for each in (bank, other) if each.slopes == "each")
    rules = tiny_benchmarks(free, known, new, COUNTS, seeds) + fluid_benchmarking(free, new, COUNTS)
    found = tries(banks, new, seeds)
    found = summary(pd.concat([found, pd.DataFrame(rules, columns=found.columns)], ignore_index=True))
    heads = ("design", *(f"{count} items" for count in COUNTS))
    rows = []
    adaptive = (name + together for name, together in itertools.product(banks, TOGETHER.values()))
    for label in (*(label for label, *_ in DESIGNS), *adaptive, *dict.fromkeys(name for name, *_ in rules)):
        cells = []
        for count in COUNTS:
            if (label, count) not in found.index:
                cells.append("–")
                continue
            at = found.loc[(label, count)]
            interval = "no interval" if math.isnan(at["half"]) else f"± {at['half']:.1f} holds {at['held']:.2f}"
            cells.append(f"{at['error']:.2f} (bias {at['bias']:+.2f}; {interval})")
        rows.append((label, *cells))
    flags = bank.items["flag"].value_counts()
    checked = [(flag.replace("_", " "), meaning, str(int(flags.get(flag, 0)))) for flag, meaning in FLAGS.items()]
    values = {
        "models": len(bank.models), "items": len(bank), "later": int(later.sum()), "since": SINCE, "seeds": seeds,
        "seconds": formatting.number(seconds), "designs": markdown.table(heads, rows),
        "flags": markdown.table(("flag", "what it means", "items"), checked),
        "drift": markdown.table(
            ("adaptive items", "curves", "mean error of folds", "bias of folds", "wider than the naive interval"),
            [(str(each.items), NAMES[of.slopes], f"{100 * each.error:.2f}", f"{100 * each.bias:+.2f}",
              f"{each.quantiles[LEVELS.index(0.95)] / 1.96:.1f} times")
             for of in banks.values() for each in of.corrections if each.items in ADAPTIVE],
        ),
        "source": SOURCE, "licence": LICENCE, **losses_of(ladder, seeds), **density_table(PLANTED, 0),
    }  # fmt: skip
    return PAGE.format(**values)


PAGE = """# A full score from a hundred items

A bank of items knows, from the answers of many models, how hard each item is and how well it tells models apart. A new
model then answers a few items, and the bank gives its score on all of them, with an interval.

Written by `python benchmarks/item_bank.py IKP --ladder LADDER --page docs/results/items.md`; IKP is a folder with the
verdicts, LADDER one of `densing ladder train --preset tiny --seeds 6` and `densing ladder eval --questions 200`.

**Setup.** Factual probes of IKP: {items} items, calibrated on the {models} models released before {since} ({seconds}
CPU seconds, with the folds for adaptive intervals), tried on the {later} models released since, {seeds} draws of items
per model and design (adaptive choice has one). Errors are mean absolute errors of the full-bank accuracy in percentage
points; intervals are at 95 %.

{designs}

- **Stratified items with the curves as control variate are the default.** Residuals correct what the curves get wrong,
  so newer models cause no bias.
- Stratified items are spread evenly over difficulty, however many are asked, and more can be asked later. That already
  takes most of what the curves know: with random items the control variate brings as much.
- **Adaptive items** tell most per answer, but nothing corrects the curves, and both kinds of curves are biased on newer
  models. With a slope for each item the choice goes to the highest slopes, which may be luck, or of their time.
  Calibration tries both kinds on models that the curves do not know, five folds by date, keeps the better kind, and
  takes the width of adaptive intervals from the errors it saw (in points), asking one by one. `densing eval --adaptive`
  chooses ten together, with which the kept kind errs no more, and lets a model answer in batches:

{drift}

- **tinyBenchmarks and Fluid Benchmarking** are our own implementations of their rules (Maia Polo et al., arXiv
  2402.14992; Hofmann et al., arXiv 2509.11106) on the curves with a slope each. tinyBenchmarks asks the items next to
  the centres of clusters of curves, fits five to ten dimensions where these curves have one, and states no interval.
  Fluid Benchmarking reports abilities; here the curves map its ability, and the ability's interval, to a score.

## Losses of a few items

A model's loss on an item says more than right or wrong. {loss_models} models of a ladder ({loss_items} questions;
losses of the right answer in bits per byte): the mean loss on all questions from the losses of a few at random, by
their plain mean, and by a regression on what the models that are known say of each item, whose residuals correct it
(known: the mean loss of an item; also their first principal component). Tried on {early} models of two other seeds, and
on {largest} models of the largest size, where no model of that size is known. Root mean square errors in thousandths of
a bit per byte; how often the 95 % interval holds; and of how many items the plain mean has that error.

**The known mean alone is worth {fewest} to {most} times the items.** The component adds little, and costs where ten
items are to fit three numbers.

{losses}

These models share architecture and corpus, and differ in size, tokens and seed alone: models of other recipes will find
other items hard, and gain less.

## Densities from a few items

A planted bank: {planted_items} items of the OLMo ladder's benchmarks, with guessing, calibrated on {planted_known}
models; then {planted_models} models of known size within the reference's range, each with a score that a draw of the
reference's law gives its size. Medians of how far ln density from a few items is from that of all items; half the width
of its 95 % interval, which holds items and reference, and how often it holds the true density.

{densities}

Until items alone leave ln density within ± .1 of that of all items, random items by their mean take {tenth_random}, the
bank's {tenth_bank}: {tenth_share} of them. **A fifth of the items is {fifth}** by right and wrong. Of a set of this
size that width takes nearly all; the designs differ more where items are few.

## What is wrong with items

Flagged at a false discovery rate of 5 % where a test decides; flagged items stay in the score, and those that tell
nothing are not chosen adaptively.

{flags}

## Limits

- One bank, of factual recall, graded by one judge. A refusal counts as wrong.
- The intervals say how far the score is from the one on all items of this bank. They do not say how far it would be
  from one on other items of the same kind.
- Later models include variants of the same weights, with and without reasoning, which are not independent.
- The rule that chooses between a common slope and a slope for each item was set after their errors on these later
  models had been seen, so that its own errors above are no clean figures for unseen models.

Source: {source}. {licence}.
"""


def main() -> None:
    """Write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ikp", type=Path)
    parser.add_argument("--bank", type=Path, help="write the bank of all models")
    parser.add_argument("--page", type=Path, help="write the page; needs --ladder")
    parser.add_argument("--ladder", type=Path, help="a ladder with its questions answered")
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    if options.bank:
        calibrate_items(read_ikp(options.ikp), name="ikp", source=SOURCE, licence=LICENCE).save(options.bank)
    if options.page:
        if options.ladder is None:
            parser.error("--page needs --ladder, the ladder that the page's losses come from")
        write_text(options.page, page(options.ikp, options.ladder, options.seeds))


if __name__ == "__main__":
    main()

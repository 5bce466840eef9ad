"""How often the intervals of `densing ladder gain` hold planted ratios, in ladders like that of a shipped record.

    python benchmarks/gain.py [--record rounds] [--ladders 200] [--seeds 3] [--seed 0] [--page PAGE]

Sizes, budgets, law and noise are the record's; plain runs differ as in `densing.scores.ladder.simulated_ladder` where
it does not say. Ten worlds, in as many processes as there are cores.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from densing.core import formatting
from densing.efficiency.systems import RECORDS
from densing.report import markdown
from densing.tradeoff import gain_record, null_test

HEAD = ("world", "intervals that hold it", "gain said", "loss said", "one ratio rejected", "half-width of ln ratio")


def main() -> None:
    """Simulate, and print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", default="rounds")
    parser.add_argument("--ladders", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    record, _ = gain_record(RECORDS / f"{options.record}.json")
    record = type(record)(**{**record.to_dict(), "spec": {**record.spec, "seeds": list(range(options.seeds))}})
    table = null_test(record, ladders=options.ladders, seed=options.seed)
    shares = ("held", "gain", "loss", "not_one")
    rows = [
        (row["world"], *(formatting.percentage(row[name]) for name in shares), formatting.number(row["half_width"]))
        for row in table.to_dict("records")
    ]
    error = formatting.number(100 * (0.95 * 0.05 / options.ladders) ** 0.5, 2)
    spec = record.spec
    page = "\n".join(
        [
            "# Do the intervals of gains hold?",
            "",
            f"Written by `python benchmarks/gain.py --record {options.record} --ladders {options.ladders} --seeds "
            f"{options.seeds} --seed {options.seed} --page docs/results/gain-intervals.md`.",
            "",
            f"Ladders simulated like the shipped record {options.record}: sizes {', '.join(spec['sizes'])}, "
            f"{len(spec['tokens'])} token budgets, {options.seeds} seeds, its law and its noise of pairs. "
            f"{options.ladders} ladders of each world, so that a share of 95 % has a standard error of {error} points. "
            "The last three worlds break what the model takes for granted: noise that all runs of a size share, a "
            "token ratio that falls with the tokens (the planted one is that of the middle budget), and a law with a "
            "term that Chinchilla's has not. One ratio rejected: by the test at 5 % that it holds for all sizes and "
            "budgets.",
            "",
            markdown.table(HEAD, rows),
            "",
        ]
    )
    if options.page is None:
        print(page)
    else:
        options.page.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()

"""The page of gains: what changes of training bought, as Markdown, from a ladder's own runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from densing.core import words, write_text
from densing.report import markdown

if TYPE_CHECKING:
    import pandas as pd

    from densing.tradeoff import Gains

_HOW = """\
Every arm shares initialisation, order of blocks and token budgets with a plain run of its size and seed. All pairs have
one density ratio rho in common, ln L(arm) - ln L(plain) = ln L(rho N, D) - ln L(N, D), with L the law fitted to the
plain runs, and likewise one token ratio. Intervals resample clusters of size and seed, and draw the law. "No loss" is a
test of non-inferiority: the lower end of the token ratio is .97 or more; an interval that merely holds 1 is "not
decided". The trend with tokens is the result, never one budget: short runs flatter or damn what communicates less.
"""


def build_gain(gains: Gains, path: Path | str, *, null: pd.DataFrame | None = None) -> Path:
    """Write the page of a ladder's gains.

    Parameters
    ----------
    gains : Gains
        What :func:`densing.tradeoff.ladder_gain` says.
    path : path
        Markdown file to write.
    null : pandas.DataFrame, optional
        Of :func:`densing.tradeoff.null_test`.

    Returns
    -------
    pathlib.Path
        The file.

    See Also
    --------
    densing.ladder_gain
    """
    spec = gains.spec
    budgets = ", ".join(f"{tokens:,.0f}" for tokens in spec["tokens"])
    options = ("" if spec["link"] is None else f" --link {spec['link']}") + (
        "" if null is None else f" --null {null['ladders'].iloc[0]}"
    )
    command = f"densing ladder gain DIR --page FILE{options}"
    parts = [
        "# What changes of training buy",
        f"Written by `{command}`; record {gains.digest[:12]}.",
        f"Ladder of preset {spec['preset']}: sizes {', '.join(spec['sizes'])}; {budgets} tokens; "
        f"{len(spec['seeds'])} seeds; baseline {gains.baseline}.",
        _HOW,
        "## Ratios",
        table(
            gains.frame(),
            {
                "arm": "arm", "density": ratio("density"), "tokens": ratio("token"), "no loss": "no_loss",
                "status": "status", "pairs": "pairs",
            },
        ),
        "## Costs of a run",
        table(
            gains.frame().merge(gains.prices(), on="arm"),
            {
                "arm": "arm",
                "bytes sent by a rank": lambda row: words.volume(row["bytes"]),
                "share of plain": lambda row: words.percentage(row["bytes_share"]),
                "seconds": lambda row: words.number(row["seconds"], 3),
                "joules": lambda row: words.number(row["joules"], 3),
                "kept parameters": lambda row: f"{row['kept_parameters']:,.0f}",
                "ln density per GB saved": lambda row: words.number(row["ln_density_per_gigabyte_saved"], 2),
            },
        ),
        "\n".join(f"- {name}: {text}" for name, text in gains.evidence.items()),
        "## Trend with tokens",
        table(
            gains.trends(),
            {
                "arm": "arm",
                "ratio": "ratio",
                "d ln ratio / d ln D": lambda row: words.number(row["trend"], 2),
                "interval": lambda row: f"{words.number(row['trend_lo'])} to {words.number(row['trend_hi'])}",
            },
        ),
        "## By budget, size and set of questions",
        parts_table(gains),
        "## Resolution",
        f"Half-widths of {words.percentage(spec['level'])} intervals of ln ratios, here and for an hour of two cores.",
        table(
            gains.resolution(),
            {
                "arm": "arm",
                "core seconds spent": lambda row: f"{row['core_seconds']:,.0f}",
                "ln density": lambda row: words.number(row["half_width"], 2),
                "... in an hour": lambda row: words.number(row["half_width_hour"], 2),
                "ln tokens": lambda row: words.number(row["token_half_width"], 2),
                "... in an hour ": lambda row: words.number(row["token_half_width_hour"], 2),
            },
        ),
        "Without pairs, two arms of three seeds each at the largest budget would see, size by size:",
        table(
            gains.unpaired,
            {
                "size": "size",
                "d ln L / d ln N": lambda row: words.number(row["slope"], 2),
                "sd of ln loss between seeds": lambda row: words.number(row["sd"], 2),
                "half-width of ln density": lambda row: words.number(row["half_width"], 2),
                "of ln tokens": lambda row: words.number(row["token_half_width"], 2),
            },
        ),
    ]  # fmt: skip
    if null is not None:
        parts += [
            "## Do the intervals hold?",
            "Ladders simulated with these sizes, budgets, seeds, this law and this noise of pairs; 95 % intervals, of "
            f"which a share in {null['ladders'].iloc[0]} ladders has a standard error of "
            f"{words.number(100 * (0.95 * 0.05 / null['ladders'].iloc[0]) ** 0.5, 2)} points.",
            table(
                null,
                {
                    "injected density ratio": "density_ratio",
                    "injected token ratio": "token_ratio",
                    "density intervals that hold it": lambda row: words.percentage(row["density_held"]),
                    "token intervals that hold it": lambda row: words.percentage(row["token_held"]),
                    "half-width of ln density": lambda row: words.number(row["half_width"], 2),
                },
            ),
        ]
    if len(gains.notes):
        parts += ["## Notes", markdown.notes(gains.notes)]
    write_text(Path(path), "\n\n".join(part.strip() for part in parts) + "\n")
    return Path(path)


def ratio(name: str) -> Any:
    def written(row: Mapping[str, Any]) -> str:
        low, high = row[f"{name}_lo"], row[f"{name}_hi"]
        value = "unknown" if words.is_missing(row[f"{name}_ratio"]) else words.number(row[f"{name}_ratio"], 3)
        if words.is_missing(low) and words.is_missing(high):
            return value
        if words.is_missing(low) or words.is_missing(high):
            bound = f"at most {words.number(high)}" if words.is_missing(low) else f"at least {words.number(low)}"
            return f"{value} ({bound})"
        return f"{value} ({words.number(low, 3)} to {words.number(high, 3)})"

    return written


def table(frame: pd.DataFrame, columns: Mapping[str, Any]) -> str:
    """Return a table of Markdown; a column is a name of the frame's, or written from the row."""
    rows = (
        [words.clean(str(row[each] if isinstance(each, str) else each(row)), markdown.LONGEST)
         for each in columns.values()]
        for row in frame.to_dict("records")
    )  # fmt: skip
    return markdown.table(list(columns), rows)


def parts_table(gains: Gains) -> str:
    """Return both ratios of every arm by budget, by size, and by set of questions."""
    columns = {
        "arm": "arm", "by": "by", "value": "value", "density": ratio("density"), "tokens": ratio("token"),
        "status": "status",
    }  # fmt: skip
    return table(gains.by, columns)

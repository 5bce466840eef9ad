"""What changes of training bought, from a ladder's own runs: a page, Markdown or HTML, and the report's section."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from densing.core import formatting, write_text
from densing.plots import plot_gain
from densing.report import markdown, page
from densing.report.page import (
    Field,
    Headline,
    ShownFigure,
    ShownTable,
    column,
    doubtful,
    first_notes,
    numeric,
    pairs,
    ranged,
    shown_figure,
    shown_table,
)
from densing.tradeoff import arm_figures, gain_record, gain_table

if TYPE_CHECKING:
    import pandas as pd

    from densing.tradeoff import GainRecord, Gains

TITLE = "What changes of training buy"

HOW = (
    "Every arm shares initialisation, order of blocks and token budgets with a plain run of its size and seed. All "
    "pairs have one density ratio rho in common, ln L(arm) - ln L(plain) = ln L(rho N, D) - ln L(N, D), with L the "
    "law fitted to the plain runs, and likewise one token ratio. Intervals resample clusters of size and seed, and "
    'draw the law. "No loss" is a test of non-inferiority: the lower end of the token ratio is .97 or more; an '
    'interval that merely holds 1 is "not decided". The trend with tokens is the result, never one budget: short runs'
    " can over- or understate what communicates less."
)
CAPTION = (
    "Density ratio (circle) and token ratio (diamond) of every arm to the baseline, with their intervals; the dashed "
    "line is the limit of no loss. Open marks are not decided; an arrow is an end that is not known, a triangle a "
    "bound."
)
TABLE = (
    "Every arm beside the baseline. The trend is d ln token ratio / d ln tokens: above 0, an arm gains on the baseline "
    "as training goes on."
)


@dataclass(frozen=True)
class ShownGain:
    """The gains of a ladder ready for a page."""

    title: str
    figure: ShownFigure
    table: ShownTable
    sentences: tuple[str, ...]


def build_gain(gains: Gains, path: Path | str, *, null: pd.DataFrame | None = None) -> Path:
    """Write the page of a ladder's gains.

    Parameters
    ----------
    gains : Gains
        What :func:`densing.tradeoff.ladder_gain` says.
    path : path
        HTML where the name ends in ``.html``, Markdown otherwise.
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
    target = Path(path)
    write_text(target, render(gains, null) if target.suffix == ".html" else render_markdown(gains, null))
    return target


def render(gains: Gains, null: pd.DataFrame | None = None) -> str:
    """Return the page as HTML."""
    shown = shown_gain(gains.record(), "gain")
    lossless = sum(arm.no_loss == "yes" for arm in gains.arms)
    facts = (
        ("Trained here", shown.title),
        ("No loss", f"{lossless} of {formatting.plural(len(gains.arms), 'arm')}"),
        ("Record", gains.digest[:12]),
    )
    context = {
        "headline": Headline(TITLE, HOW, facts, doubtful(gains.notes), shown.figure),
        "sections": [("headline", "Headline"), ("gains", "Gains"), ("notes", "Notes"), ("versions", "Versions")],
        "gain": shown,
        "null": None if null is None else null_table(null),
        **first_notes(gains.notes),
        "versions": pairs(gains.record().versions),
    }
    return page.fill("gain.html", context, {"record": gains.digest})


def shown_gains(gains: Iterable[Gains | GainRecord | Path | str]) -> list[ShownGain]:
    """Return ladders ready for a page, each once."""
    records: list[GainRecord] = []
    for gain in gains:
        record, _ = gain_record(gain)
        if record not in records:
            records.append(record)
    return [shown_gain(record, f"gain-{number}") for number, record in enumerate(records)]


def shown_gain(record: GainRecord, name: str) -> ShownGain:
    """Return figure, table and sentences of a ladder."""
    fields = (
        Field("Arm", column("arm")),
        Field("Density ratio", ratio("density"), "density_ratio"),
        Field("Token ratio", ratio("token"), "token_ratio"),
        Field("No loss", column("no_loss"), hint="Whether the whole interval of the token ratio reaches 0.97"),
        numeric("Bytes", "bytes_share", formatting.percentage, hint="Of the baseline's"),
        numeric("Trend of tokens", "trend"),
        Field("Interval of the trend", ranged("trend", formatting.number), "trend_lo", minor=True),
        numeric("Pairs", "pairs", formatting.count, minor=True),
        Field("Status", column("status"), hint="Of the density ratio"),
    )
    title = about(record)
    arms = shown_table(f"{name}-table", TABLE, gain_table(record), fields, sortable=True)
    evidence = tuple(
        formatting.sentence(f"{key.replace('_', ' ').capitalize()}: {text}") for key, text in record.evidence.items()
    )
    return ShownGain(title, shown_figure(name, plot_gain(record), f"{title}. {CAPTION}"), arms, evidence)


def null_table(null: pd.DataFrame) -> ShownTable:
    """Return how often intervals of simulated ladders hold what was injected."""
    fields = tuple(Field(head, show) for head, show in NULL.items())
    return shown_table("null-table", null_words(null), null, fields)


def about(record: GainRecord) -> str:
    """Return which ladder a record is of."""
    spec, _ = arm_figures(record, "gains")
    budgets = ", ".join(f"{tokens:,.0f}" for tokens in spec.tokens)
    return formatting.clean(
        f"Ladder of preset {spec.preset}: sizes {', '.join(spec.sizes)}; {budgets} tokens; "
        f"{formatting.plural(len(spec.seeds), 'seed')}; baseline {spec.baseline}",
        markdown.LONGEST,
    )


def render_markdown(gains: Gains, null: pd.DataFrame | None = None) -> str:
    """Return the page as Markdown."""
    spec = gains.spec
    options = ("" if spec["link"] is None else f" --link {spec['link']}") + (
        "" if null is None else f" --null {null['ladders'].iloc[0]}"
    )
    command = f"densing ladder gain DIR --page FILE{options}"
    parts = [
        f"# {TITLE}",
        f"Written by `{command}`; record {gains.digest[:12]}.",
        f"{markdown.literal(about(gains.record()))}.",
        textwrap.fill(HOW, 120),
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
                "bytes sent by a rank": lambda row: formatting.volume(row["bytes"]),
                "share of plain": lambda row: formatting.percentage(row["bytes_share"]),
                "seconds": lambda row: formatting.number(row["seconds"], 3),
                "joules": lambda row: formatting.number(row["joules"], 3),
                "tokens a core second": lambda row: thousands(row["tokens_per_core_second"]),
                "kept parameters": lambda row: f"{row['kept_parameters']:,.0f}",
                "ln density per GB saved": lambda row: formatting.number(row["ln_density_per_gigabyte_saved"], 2),
            },
        ),
        "\n".join(f"- {name.replace('_', ' ')}: {text}" for name, text in gains.evidence.items()),
        "## Trend with tokens",
        table(
            gains.trends(),
            {
                "arm": "arm",
                "ratio": "ratio",
                "d ln ratio / d ln D": lambda row: formatting.number(row["trend"], 2),
                "interval": lambda row: f"{formatting.number(row['trend_lo'])} to {formatting.number(row['trend_hi'])}",
            },
        ),
        "## By budget, size and set of questions",
        parts_table(gains),
        "## Resolution",
        f"Half-widths of {formatting.percentage(spec['level'])} intervals of ln ratios, here and for an hour of two "
        "cores.",
        table(
            gains.resolution(),
            {
                "arm": "arm",
                "core seconds spent": lambda row: f"{row['core_seconds']:,.0f}",
                "ln density": lambda row: formatting.number(row["half_width"], 2),
                "... in an hour": lambda row: formatting.number(row["half_width_hour"], 2),
                "ln tokens": lambda row: formatting.number(row["token_half_width"], 2),
                "... in an hour ": lambda row: formatting.number(row["token_half_width_hour"], 2),
            },
        ),
        "Without pairs, two arms of three seeds each at the largest budget would see, size by size:",
        table(gains.unpaired, UNPAIRED),
    ]  # fmt: skip
    if gains.unpaired_questions is not None:
        parts += [
            "Before, from the questions (mean of the sets, bits per byte), a law of their losses and one sd between "
            "seeds for all sizes, two arms of three unpaired seeds each would see:",
            table(gains.unpaired_questions, UNPAIRED),
        ]
    if null is not None:
        parts += [
            "## Do the intervals hold?",
            null_words(null),
            table(null, NULL),
        ]
    if len(gains.notes):
        parts += ["## Notes", markdown.notes(gains.notes)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


UNPAIRED: Mapping[str, Any] = {
    "size": "size",
    "d ln L / d ln N": lambda row: formatting.number(row["slope"], 2),
    "sd of ln loss between seeds": lambda row: formatting.number(row["sd"], 2),
    "half-width of ln density": lambda row: formatting.number(row["half_width"], 2),
    "of ln tokens": lambda row: formatting.number(row["token_half_width"], 2),
}
NULL: Mapping[str, Any] = {
    "injected density ratio": lambda row: str(row["density_ratio"]),
    "injected token ratio": lambda row: str(row["token_ratio"]),
    "density intervals that hold it": lambda row: formatting.percentage(row["density_held"]),
    "token intervals that hold it": lambda row: formatting.percentage(row["token_held"]),
    "half-width of ln density": lambda row: formatting.number(row["half_width"], 2),
}


def null_words(null: pd.DataFrame) -> str:
    """Return how ladders were simulated."""
    ladders = null["ladders"].iloc[0]
    return (
        "Ladders simulated with these sizes, budgets, seeds, this law and this noise of pairs; 95 % intervals, of "
        f"which a share in {ladders} ladders has a standard error of "
        f"{formatting.number(100 * (0.95 * 0.05 / ladders) ** 0.5, 2)} points."
    )


def ratio(name: str) -> Any:
    def written(row: Mapping[str, Any]) -> str:
        low, high = row[f"{name}_lo"], row[f"{name}_hi"]
        value = "unknown" if formatting.is_missing(row[f"{name}_ratio"]) else formatting.number(row[f"{name}_ratio"], 3)
        if formatting.is_missing(low) and formatting.is_missing(high):
            return value
        if formatting.is_missing(low) or formatting.is_missing(high):
            bound = (
                f"at most {formatting.number(high)}"
                if formatting.is_missing(low)
                else f"at least {formatting.number(low)}"
            )
            return f"{value} ({bound})"
        return f"{value} ({formatting.number(low, 3)} to {formatting.number(high, 3)})"

    return written


def thousands(value: Any) -> str:
    """Return a whole number with commas.

    Examples
    --------
    >>> thousands(67542.3), thousands(None)
    ('67,542', '–')
    """
    return formatting.MISSING if formatting.is_missing(value) else f"{value:,.0f}"


def table(frame: pd.DataFrame, columns: Mapping[str, Any]) -> str:
    """Return a table of Markdown; a column is a name of the frame's, or written from the row."""
    rows = (
        [formatting.clean(str(row[each] if isinstance(each, str) else each(row)), markdown.LONGEST)
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

"""What changes of training bought, from a ladder's own runs: a page, Markdown or HTML, and the report's section."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from densing.core import Listing, formatting
from densing.plots import plot_gain
from densing.report import markdown
from densing.report.document import (
    Block,
    Figure,
    Headline,
    Page,
    Pairs,
    Points,
    Section,
    doubtful,
    notes_section,
)
from densing.report.page import shown_figure, write
from densing.report.tables import page_table, pairs
from densing.tradeoff import ARMS, arm_figures, gain_record, gain_table, null_listing, tuned_listing

if TYPE_CHECKING:
    import pandas as pd

    from densing.tradeoff import GainRecord, Gains

TITLE = "What changes of training buy"

HOW = (
    "Every arm shares initialisation, order of blocks and token budgets with a plain run of its size and seed. One law "
    "L(N, D) and one density ratio rho are fitted to the losses of both at once, L(N, D) of plain training and "
    "L(rho N, D) of the arm, and likewise one token ratio; budgets of a run and runs of one size and seed are "
    "correlated, and intervals are robust to how (jackknife over size and seed, Student's t). That one ratio holds for "
    "all sizes and budgets is tested at 5 %; where it is rejected, the smallest and the largest over the ladder stand "
    'in its place, and ratios by size and budget below. "No loss" is a test of non-inferiority: the lower end of the '
    'token ratio is .97 or more, at every size and budget; an interval that merely holds 1 is "not decided". Short '
    "runs can over- or understate what communicates less."
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
    """The gains of a ladder ready for a page: title, figure, and the table with what it rests on."""

    title: str
    figure: Figure
    blocks: tuple[Block, ...]


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
    return write(gain_page(gains, null), path)


def gain_page(gains: Gains, null: pd.DataFrame | None = None) -> Page:
    """Return the page."""
    spec = gains.spec
    options = ("" if spec["link"] is None else f" --link {spec['link']}") + (
        "" if null is None else f" --null {null['ladders'].iloc[0]}"
    )
    shown = shown_gain(gains.record(), "gain")
    lossless = sum(arm.no_loss == "yes" for arm in gains.arms)
    facts = (
        ("Trained here", shown.title),
        ("No loss", f"{lossless} of {formatting.plural(len(gains.arms), 'arm')}"),
        ("Record", gains.digest[:12]),
    )
    beside = tuned_listing(gains)
    sections = (
        Section("gains", "Gains", shown.blocks),
        *([] if beside is None else [Section("tuned", "Tuned beside untuned", (page_table("tuned-table", beside),))]),
        Section("costs", "Costs of a run", (page_table("costs-table", gains.costs_listing()),), folded=True),
        Section(
            "trends",
            "Trend with tokens",
            (page_table("trends-table", gains.trends_listing()),),
            short="Trend",
            folded=True,
        ),
        Section(
            "parts",
            "By budget, size and set of questions",
            (page_table("parts-table", gains.parts_listing()),),
            short="Parts",
            folded=True,
        ),
        Section("resolution", "Resolution", (page_table("resolution-table", gains.resolution_listing()),), folded=True),
        *([] if null is None else [_held(null)]),
        notes_section(gains.notes),
        Section("versions", "Versions", (Pairs("Versions", pairs(gains.record().versions)),), folded=True),
    )
    head = Headline(TITLE, HOW, facts, doubtful(gains.notes), shown.figure)
    return Page("densing ladder gain", head, sections, f"DIR --page FILE{options}", {"record": gains.digest})


def _held(null: pd.DataFrame) -> Section:
    table = page_table("null-table", null_listing(null), null_words(null))
    return Section("null", "Do the intervals hold?", (table,), short="Null")


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
    title = about(record)
    arms = page_table(f"{name}-table", Listing(TABLE, gain_table(record), ARMS), sortable=True)
    evidence = tuple(
        formatting.sentence(f"{key.replace('_', ' ').capitalize()}: {text}") for key, text in record.evidence.items()
    )
    figure = shown_figure(name, plot_gain(record), f"{title}. {CAPTION}")
    return ShownGain(title, figure, (arms, *Points.of(evidence)))


def about(record: GainRecord) -> str:
    """Return which ladder a record is of."""
    spec, _ = arm_figures(record, "gains")
    budgets = ", ".join(f"{tokens:,.0f}" for tokens in spec.tokens)
    tuned = "" if spec.trials is None else f"; every arm tuned with {spec.trials} trials on the smallest size"
    return formatting.clean(
        f"Ladder of preset {spec.preset}: sizes {', '.join(spec.sizes)}; {budgets} tokens; "
        f"{formatting.plural(len(spec.seeds), 'seed')}; baseline {spec.baseline}{tuned}",
        markdown.LONGEST,
    )


def null_words(null: pd.DataFrame) -> str:
    """Return how ladders were simulated."""
    ladders = null["ladders"].iloc[0]
    return (
        "Ladders simulated with these sizes, budgets, seeds, this law and this noise of pairs; 95 % intervals, of "
        f"which a share in {ladders} ladders has a standard error of "
        f"{formatting.number(100 * (0.95 * 0.05 / ladders) ** 0.5, 2)} points. The last three worlds break what the "
        "model takes for granted; where no one ratio holds, the planted one is that of the middle budget."
    )

"""A bank of items as a page: Markdown, or one HTML file that needs no network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from densing.core import formatting
from densing.plots import plot_bank
from densing.report.document import Headline, Page, Prose, Section, doubtful, notes_section, versions_section
from densing.report.page import shown_figure, write
from densing.report.tables import page_table

if TYPE_CHECKING:
    from densing.scores.items import ItemBank

WHAT = (
    "A flagged item stays in the score. Items that no model solves, or every one, and those that stronger models do "
    "not solve more often, are not chosen adaptively."
)


def build_bank(bank: ItemBank, path: Path | str) -> Path:
    """Write the page.

    Parameters
    ----------
    bank : ItemBank
    path : path
        HTML where the name ends in ``.html``, Markdown otherwise.

    Returns
    -------
    pathlib.Path
        The file.

    See Also
    --------
    densing.ItemBank
    """
    card = bank.card()
    caption = f"Items of {formatting.clean(bank.name)}: where they lie, and what they tell of ability."
    facts = tuple((label.capitalize(), formatting.clean(value, 200)) for label, value in card.facts.items())
    figure = shown_figure("bank", plot_bank(bank), caption)
    title = formatting.clean(card.title, 120)
    head = Headline(title, bank.sentence, facts, doubtful(card.notes), figure)
    sections = (
        Section("tasks", "Items by task", (page_table("tasks-table", bank.tasks_listing()),)),
        Section("items", "Items", (Prose(WHAT), page_table("items-table", bank.items_listing(), sortable=True))),
        notes_section(card.notes),
        versions_section(),
    )
    return write(Page("densing items show", head, sections, "--html FILE"), path)

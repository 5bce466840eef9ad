"""How a result shows itself: a few lines at a prompt, a table in a notebook, booktabs in a paper."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from densing.core.listings import Listing
from densing.core.notes import Note, severest_first

if TYPE_CHECKING:
    from pandas.io.formats.style import Styler

SHOWN_ROWS = 10
"""Rows of a table that a prompt shows; a notebook shows three times as many."""


@dataclass(frozen=True)
class Card:
    """What there is to say of a result before its figures are opened.

    Parameters
    ----------
    title : str
        What it is: ``Densities of 65 models on qwen1.5, mmlu``.
    facts : mapping of str to str
        A few labelled figures, the headline among them.
    table : Listing, optional
        The columns that people read, not all that there are.
    notes : tuple of Note
        What to keep in mind; the severest are shown first.
    """

    title: str
    facts: Mapping[str, str] = field(default_factory=dict)
    table: Listing | None = None
    notes: tuple[Note, ...] = ()


class Readable:
    """A result that says what it is: subclasses give a :class:`Card`.

    A frozen dataclass that derives from it is declared with ``repr=False``, or its own repr would print arrays.

    Examples
    --------
    >>> class Sum(Readable):
    ...     def card(self) -> Card:
    ...         return Card("A sum", {"terms": "2", "value": "4"}, notes=(Note("rounded", "info", "to whole numbers"),))
    >>> Sum()
    A sum
      terms  2
      value  4
      info: to whole numbers
    """

    drawn_by: ClassVar[str] = ""
    """The figure of it, as ``module:function``: named and not imported, since results do not know what draws them."""

    def card(self) -> Card:
        """Return what is shown of this result."""
        raise NotImplementedError

    def plot(self, *others: Any, **options: Any) -> Any:
        """Draw it: the function of :mod:`densing.plots` that belongs to it, with the same further arguments.

        Parameters
        ----------
        *others, **options
            Of that function.

        Returns
        -------
        plotly.graph_objects.Figure

        Raises
        ------
        ValueError
            When there is no figure of it.
        """
        module, _, name = self.drawn_by.partition(":")
        if not module:
            raise ValueError(f"{self.card().title}: there is no figure of it; densing.plots has those there are")
        return getattr(import_module(module), name)(self, *others, **options)

    def __repr__(self) -> str:
        card = self.card()
        width = max(map(len, card.facts), default=0)
        lines = [card.title, *(f"  {label:{width}}  {value}" for label, value in card.facts.items())]
        if card.table is not None and card.table.records:
            lines += ["", *card.table.lines(most=SHOWN_ROWS)]
            if len(card.table.records) > SHOWN_ROWS:
                lines.append(f"... {len(card.table.records) - SHOWN_ROWS} more rows")
        lines += [f"  {note.severity}: {note.message}" for note in severest_first(card.notes)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        card = self.card()
        facts = "".join(
            f"<tr><th style='text-align:left'>{html.escape(label)}</th><td>{html.escape(value)}</td></tr>"
            for label, value in card.facts.items()
        )
        parts = [f"<p><b>{html.escape(card.title)}</b></p>", f"<table>{facts}</table>" if facts else ""]
        if card.table is not None and card.table.records:
            parts.append(card.table.texts(3 * SHOWN_ROWS).to_html(index=False, escape=True))
            if len(card.table.records) > 3 * SHOWN_ROWS:
                parts.append(f"<p>... {len(card.table.records) - 3 * SHOWN_ROWS} more rows</p>")
        parts += [f"<p>{html.escape(f'{note.severity}: {note.message}')}</p>" for note in severest_first(card.notes)]
        return "\n".join(filter(None, parts))

    def to_latex(self, caption: str | None = None, label: str | None = None) -> str:
        """Return the table that is shown as LaTeX, with the rules of package booktabs.

        Parameters
        ----------
        caption, label : str, optional
            As in :meth:`pandas.DataFrame.to_latex`; the caption is the title by default.

        Raises
        ------
        ValueError
            When this result has no table.
        """
        card = self.card()
        if card.table is None:
            raise ValueError(f"{card.title}: there is no table to write")
        table = card.table.texts().map(_tex).rename(columns=_tex)
        return str(table.to_latex(index=False, escape=False, caption=caption or _tex(card.title), label=label))

    def style(self) -> Styler:
        """Return the table that is shown as a pandas Styler: numbers written as in reports, no index.

        Raises
        ------
        ValueError
            When this result has no table.
        """
        card = self.card()
        if card.table is None:
            raise ValueError(f"{card.title}: there is no table to style")
        return card.table.texts().style.hide(axis="index").format(escape="html").set_caption(html.escape(card.title))


def _tex(text: str) -> str:
    escapes = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    escapes |= {char: f"\\{char}" for char in "&%$#_{}"}
    escapes |= {
        "≤": r"$\le$",
        "≥": r"$\ge$",
        "±": r"$\pm$",
        "×": r"$\times$",
        "−": "$-$",
        "∞": r"$\infty$",
        "–": "--",
    }
    return "".join(escapes.get(char, char) for char in text)

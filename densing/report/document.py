"""A page before it is HTML or Markdown: a headline, then sections of blocks.

Every report returns a :class:`Page`; :func:`densing.report.page.write` writes it as one HTML file that needs no
network, or as Markdown. In Markdown figures are left out, and folded parts stand open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from densing import __version__
from densing.core import Note, doubts, formatting, once, severest_first
from densing.report import markdown
from densing.report.tables import ShownTable, pairs

MOST_NOTES = 60


@dataclass(frozen=True)
class Prose:
    """A paragraph; ``style`` is empty, ``lead`` or ``small``."""

    text: str
    style: str = ""
    kind: ClassVar[str] = "prose"

    def markdown(self, level: int) -> str:
        return markdown.literal(self.text)


@dataclass(frozen=True)
class Point:
    """An entry of a list, with a label before it and a remark below."""

    text: str
    tag: str = ""
    remark: str = ""


@dataclass(frozen=True)
class Points:
    """A list."""

    entries: tuple[Point, ...]
    ordered: bool = False
    kind: ClassVar[str] = "points"

    @classmethod
    def of(cls, texts: Iterable[str]) -> tuple[Block, ...]:
        """Return the list of these sentences; nothing where there is none."""
        entries = tuple(map(Point, texts))
        return (cls(entries),) if entries else ()

    def markdown(self, level: int) -> str:
        lines = [" ".join(filter(None, (entry.tag, entry.text, entry.remark))) for entry in self.entries]
        return "\n".join(f"- {markdown.literal(line)}" for line in lines)


@dataclass(frozen=True)
class Heading:
    """A heading within a section; ``name`` is its id where something links to it."""

    text: str
    name: str = ""
    kind: ClassVar[str] = "heading"

    def markdown(self, level: int) -> str:
        return f"{'#' * (level + 1)} {markdown.literal(self.text)}"


@dataclass(frozen=True)
class Terms:
    """Terms and what they mean."""

    entries: Sequence[tuple[str, str]]
    kind: ClassVar[str] = "terms"

    def markdown(self, level: int) -> str:
        return "\n".join(f"- {markdown.literal(f'{term}: {meaning}')}" for term, meaning in self.entries)


@dataclass(frozen=True)
class Pairs:
    """Names and values, such as versions and options."""

    title: str
    entries: Sequence[tuple[str, str]]
    kind: ClassVar[str] = "pairs"

    def markdown(self, level: int) -> str:
        return markdown.table([self.title, ""], self.entries)


@dataclass(frozen=True)
class Figure:
    """A figure ready for the page: id, JSON, height in pixels, caption (also its text alternative)."""

    name: str
    json: str
    height: int
    caption: str
    kind: ClassVar[str] = "figure"

    def markdown(self, level: int) -> str:
        return ""


@dataclass(frozen=True)
class Finder:
    """A field that finds a row of a table further down, and a link to its section."""

    table: str
    section: str
    text: str
    kind: ClassVar[str] = "finder"

    def markdown(self, level: int) -> str:
        return ""


@dataclass(frozen=True)
class Fold:
    """Blocks behind a summary; ``printed`` says whether paper shows them too."""

    summary: str
    blocks: tuple[Block, ...]
    printed: bool = True
    kind: ClassVar[str] = "fold"

    def markdown(self, level: int) -> str:
        return joined((Heading(self.summary), *self.blocks), level)


@dataclass(frozen=True)
class Remarks:
    """Notes as sentences, the severest first, and a sentence on those left out."""

    notes: Sequence[Note]
    more: str = ""
    nothing: str = "There is nothing to remark."
    kind: ClassVar[str] = "remarks"

    def markdown(self, level: int) -> str:
        return "\n\n".join(filter(None, (markdown.notes(self.notes) or self.nothing, self.more)))


Block = Prose | Points | Heading | Terms | Pairs | Figure | Finder | Fold | Remarks | ShownTable


@dataclass(frozen=True)
class Section:
    """A part of a page; the bar at the top calls it ``short``, or by its title."""

    name: str
    title: str
    blocks: tuple[Block, ...]
    short: str = ""
    folded: bool = False


@dataclass(frozen=True)
class Headline:
    """The first screen: title, lead sentence, key facts (term, value), caveats as plain text, and the figure.

    ``now`` stands below the title: the second number of a headline of two. ``opening`` follows the figure.
    """

    title: str
    lead: str
    facts: tuple[tuple[str, str], ...]
    caveats: tuple[str, ...]
    figure: Figure | None = None
    now: str = ""
    opening: tuple[Block, ...] = ()


@dataclass(frozen=True)
class Page:
    """A page.

    Parameters
    ----------
    command : str
        The command that writes it, which the window's title names.
    headline : Headline
    sections : tuple of Section
    arguments : str
        What else stands on its command line, for the first line of Markdown.
    inputs : mapping of str to str
        SHA-256 of what it was made of, by name; the footer holds their first digits.
    method : str
        A sentence on the method, for the footer.
    """

    command: str
    headline: Headline
    sections: tuple[Section, ...]
    arguments: str = "--page FILE"
    inputs: Mapping[str, str] = field(default_factory=dict)
    method: str = ""

    @property
    def figures(self) -> bool:
        """Whether it holds a figure, and needs what draws them."""
        head = self.headline
        every = (*head.opening, *(block for section in self.sections for block in section.blocks))
        return head.figure is not None or any(isinstance(block, Figure) for block in _flat(every))


def _flat(blocks: Iterable[Block]) -> Iterator[Block]:
    for block in blocks:
        yield block
        if isinstance(block, Fold):
            yield from _flat(block.blocks)


def prose(*texts: str) -> tuple[Block, ...]:
    """Return a paragraph for each text that is not empty."""
    return tuple(map(Prose, filter(None, texts)))


def present(*tables: ShownTable | None) -> tuple[Block, ...]:
    """Return the tables that have rows."""
    return tuple(table for table in tables if table is not None and table.rows)


def notes_section(
    notes: Iterable[Note],
    names: Iterable[str] = (),
    *,
    nothing: str = Remarks.nothing,
    below: tuple[Block, ...] = (),
    most: int | None = MOST_NOTES,
) -> Section:
    """Return the section of notes: those that fit, and how many do not; a doubt is never folded away.

    Parameters
    ----------
    notes : iterable of Note
    names : iterable of str
        Words that keep their small letters at the start of a sentence.
    nothing : str
        What stands where there are none.
    below : tuple of Block
        What follows them.
    most : int, optional
        How many are shown; all where None.
    """
    every = sentences(notes, names)
    more = f"{len(every) - most} more notes are in the JSON output." if most and len(every) > most else ""
    shown = Remarks(every[:most], more, nothing)
    return Section("notes", "Notes", (shown, *below), folded=not every or every[0].severity == "info")


def versions_section(*blocks: Block, title: str = "Versions", **versions: Any) -> Section:
    """Return the last section: the versions that made the page, and whatever else belongs there."""
    shown = Pairs("Versions", pairs({"densing": __version__, **versions}))
    return Section("versions", title, (shown, *blocks), short="Versions", folded=True)


def sentences(notes: Iterable[Note], names: Iterable[str] = ()) -> list[Note]:
    """Return notes as sentences without repeats, the severest first; ``names`` keep their small letters."""
    own = set(names)
    return severest_first(
        once(Note(note.code, note.severity, formatting.sentence(note.message, own)) for note in notes)
    )


def doubtful(notes: Iterable[Note]) -> tuple[str, ...]:
    """Return the warnings and errors among notes as sentences: what to know before quoting."""
    return tuple(dict.fromkeys(formatting.sentence(note.message) for note in doubts(severest_first(notes))))


def joined(blocks: Iterable[Block], level: int) -> str:
    """Return blocks in Markdown; their headings stand one below ``level``."""
    return "\n\n".join(filter(None, (block.markdown(level) for block in blocks)))


def body(page: Page, level: int = 2) -> str:
    """Return a page in Markdown below its heading; sections have headings of ``level``. Other pages hold it too."""
    head = page.headline
    parts = [markdown.literal(head.now), markdown.literal(head.lead),
             markdown.table(["", ""], head.facts) if head.facts else "", joined(head.opening, level)]  # fmt: skip
    for section in page.sections:
        # Versions are the footer's business, and empty notes say nothing.
        if section.name == "versions" or (section.name == "notes" and not any(map(_tells, section.blocks))):
            continue
        parts += [f"{'#' * level} {markdown.literal(section.title)}", joined(section.blocks, level)]
    return "\n\n".join(filter(None, parts))


def _tells(block: Block) -> bool:
    return not isinstance(block, Remarks) or bool(block.notes)


def render_markdown(page: Page) -> str:
    """Return a page in Markdown."""
    head = f"Written by `{page.command} {page.arguments}`; do not edit by hand."
    return "\n\n".join([f"# {markdown.literal(page.headline.title)}", head, body(page)]) + "\n"

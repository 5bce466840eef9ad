"""A report's page taken apart for tests: its tags, its words, its scripts, figures unpacked."""

from __future__ import annotations

import base64
import gzip
import itertools
import re
from html.parser import HTMLParser

from densing.report.page import MOST_COLUMNS
from densing.report.tables import ShownTable

VOID = {"meta", "link", "input", "br", "img"}
# HTML lets these ends go unsaid: an element of the key ends where one of the values starts or, its parent, ends.
UNSAID = {"td": {"td", "th", "tr", "tbody"}, "th": {"td", "th", "tr", "tbody"}, "tr": {"tr", "tbody"}}

STUDY_SECTIONS = [
    "headline",
    "answers",
    "yours",
    "models",
    "front",
    "vintages",
    "beside",
    "measured",
    "frontier",
    "gains",
    "worth",
    "estimators",
    "reference-curve",
    "multiverse",
    "checks",
    "forecast",
    "skills",
    "notes",
    "sources",
    "versions",
]
"""Sections of a study's report, in their order."""


class Page(HTMLParser):
    """Collects what the tests ask about, and checks that tags nest."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.script_text: dict[str, str] = {}
        self.words: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.end_unsaid(tag)
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def end_unsaid(self, tag: str) -> None:
        while self.open and tag in UNSAID.get(self.open[-1], ()):
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if self.open[-1:] != [tag]:
            self.end_unsaid(tag)
        assert self.open and self.open[-1] == tag, f"{tag} closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style"):
            name = self.tags[-1][1].get("id")
            if name and name.startswith("data-plot-"):
                data = gzip.decompress(base64.b85decode(data.replace(",", "<"))).decode("utf-8")
            if name:
                self.script_text[name] = data
        else:
            self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def column(table: ShownTable, title: str) -> list[str]:
    """Return what a column of a shown table says, row by row."""
    at = [field.title for field in table.fields].index(title)
    return [row[at].shown for row in table.rows]


def built_for_everyone(page: Page) -> set[str]:
    """Check a page's language, headings, table headers and names, and return the names."""
    assert page.all("html") == [{"lang": "en"}]
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert all(header.get("scope") in ("col", "row") for header in page.all("th"))
    columns = [len(list(group)) for title, group in itertools.groupby(page.all("th"), lambda th: th["scope"])
               if title == "col"]  # fmt: skip
    assert max(columns, default=0) <= MOST_COLUMNS, "the style knows no column beyond"
    names = [str(attributes["id"]) for _, attributes in page.tags if attributes.get("id")]
    assert len(names) == len(set(names))
    return set(names)

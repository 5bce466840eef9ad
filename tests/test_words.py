"""One term per idea: what the glossary of CONTRIBUTING.md discards stands in no message, docstring or doc."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.support.folders import ROOT

DOCS = (
    "README.md",
    "examples/README.md",
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))),
)


def discarded() -> list[str]:
    """The third column of the glossary."""
    lines = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Words")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in lines.splitlines() if line.startswith("|")][2:]
    return [phrase.strip() for row in rows for phrase in row[3].split(", ")]


@cache
def texts() -> dict[str, str]:
    """What people read, by place: docs, and the package's strings of more than one word."""
    found = {}
    for path in sorted((ROOT / "densing").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value != ""]
        found[str(path.relative_to(ROOT))] = "\n".join(
            text for text in strings if isinstance(text, str) and " " in text
        )
    for path in sorted((ROOT / "densing").rglob("*.html")):
        found[str(path.relative_to(ROOT))] = path.read_text(encoding="utf-8")
    for name in DOCS:
        if not name.startswith("docs/adr/"):
            found[name] = (ROOT / name).read_text(encoding="utf-8")
    return {place: " ".join(text.split()) for place, text in found.items()}


def uses(phrase: str) -> list[str]:
    # Options, files and columns that are named (`--rulers`, `share_ruler`) are no words.
    pattern = re.compile(rf"(?<![\w`/-]){re.escape(phrase)}s?(?![\w`.-]\w)\b", re.IGNORECASE)
    return [f"{place}: {text[max(0, hit.start() - 60) : hit.end() + 40]}"
            for place, text in texts().items() for hit in pattern.finditer(text)]  # fmt: skip


@pytest.mark.parametrize("phrase", discarded())
def test_a_discarded_word_is_not_used(phrase: str) -> None:
    assert uses(phrase) == []


def test_the_glossary_is_read_and_the_search_finds() -> None:
    assert {"ruler", "rehearse"} <= set(discarded()) and len(texts()) > 400
    assert any("densing/scores/references/reference.py" in use for use in uses("reference"))

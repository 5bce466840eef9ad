"""One figure is written one way: a terminal's cells are the page's, of the same column and row."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from densing.efficiency.systems import COMPARED
from tests.support.command import densing

WORTH = ("worth", "co2:tau=8,zero1", "--model", "llama-8b", "--cluster", "a100x8-tcp", "--tokens", "2e10")
SHORT = {"compare": {field.short: field.title for field in COMPARED if field.short}}
CASES = {
    "density": (("density", "-b", "mmlu", "--scores", "mine.csv"), ["models-table"]),
    "trend": (("trend", "-b", "mmlu", "--permutations", "19", "--bootstrap", "50"), ["estimates-table"]),
    "frontier": (("frontier", "-r", "qwen1.5", "-b", "mmlu", "--since", "2024-01-01"), ["frontier-0-table"]),
    "compare": (
        ("techniques", "compare", "--model", "llama-8b", "--cluster", "a100x8-tcp", "--techniques", "ddp,co2,ladder"),
        ["compare-table"],
    ),
    "worth": (WORTH, ["worth-table"]),
    "profile": (("profile", "examples/traces"), ["ranks-table", "collectives-table"]),
}


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """Scores in the reference's range, below its floor and above its ceiling."""
    rows = ["Mine-3B,3.1e9,2024-09-01,mmlu,0.62", "Mine-Tiny,1e8,2024-10-01,mmlu,0.2", "Best,1e9,2024-10-01,mmlu,0.99"]
    path = tmp_path / "mine.csv"
    path.write_text("\n".join(["model,params,released,benchmark,score", *rows]), encoding="utf-8")
    return path


def of_page(source: str, name: str) -> dict[str, dict[str, str]]:
    """Return the cells of a page's table: by the row's first cell, by header."""
    [table] = re.findall(rf'<table id="{name}".*?</table>', source, re.DOTALL)
    titles = [html.unescape(title) for title in re.findall(r'data-title="([^"]*)"', table)]
    rows = {}
    for row in table.partition("<tbody>")[2].split("<tr")[1:]:
        cells = [html.unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in re.split(r"<t[hd][^>]*>", row)[1:]]
        rows[cells[0]] = dict(zip(titles, cells, strict=True))
    return rows


def of_terminal(
    output: str, titles: set[str], short: Mapping[str, str] = MappingProxyType({})
) -> dict[str, dict[str, str]]:
    """Return the cells of the table on a terminal whose headers are all among those of a page."""
    tables = [
        [[short.get(word, word) for word in re.split(r" {2,}", line.strip())] for line in block.splitlines()]
        for block in output.strip().split("\n\n")
    ]
    [table] = [lines for lines in tables if len(lines) > 1 and len(lines[0]) > 2 and set(lines[0]) <= titles]
    heads, *rows = table
    return {row[0]: dict(zip(heads, row, strict=True)) for row in rows if len(row) == len(heads)}


@pytest.mark.parametrize("name", CASES)
def test_cells_of_a_terminal_are_those_of_the_page(name: str, mine: Path, tmp_path: Path) -> None:
    arguments, tables = CASES[name]
    page = tmp_path / "page.html"
    words = [str(mine) if word == "mine.csv" else word for word in arguments]
    done = densing(*words, "--html", page, columns=300)
    assert done.returncode in (0, 3), done.stderr
    for table in tables:
        shown = of_page(page.read_text(encoding="utf-8"), table)
        printed = of_terminal(done.stdout, set(next(iter(shown.values()))), SHORT.get(name, {}))
        assert printed and len(next(iter(printed.values()))) > 3
        for row, cells in printed.items():
            assert cells == {title: shown[row][title] for title in cells}, row
        if name == "density":
            assert set(printed) == set(shown) == {"Mine-3B", "Mine-Tiny", "Best"}
            assert printed["Mine-Tiny"]["Density"].startswith("≤") and printed["Best"]["Density"].startswith("≥")


def test_a_cell_that_differs_is_noticed() -> None:
    page = '<table id="t"><thead><tr><th data-title="Model"><th data-title="N"><th data-title="R"></tr><tbody>'
    page += "<tr><th>a<td>1.3<td>2</tbody></table>"
    shown = of_page(page, "t")
    assert shown == {"a": {"Model": "a", "N": "1.3", "R": "2"}}
    assert of_terminal("Title\n\nModel    N  R\na      1.29  2", {"Model", "N", "R"})["a"] != shown["a"]

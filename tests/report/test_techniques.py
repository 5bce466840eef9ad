"""The report on techniques as text: words, labels of evidence, escaping, and pages with few parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from densing.core.errors import InputError
from densing.report.page import render
from densing.report.techniques import (
    Contents,
    assumptions_table,
    build_techniques,
    caveats,
    claims_table,
    compare_table,
    facts,
    grades_table,
    predicted_table,
    published_words,
    regime_sums,
    techniques_page,
    title,
)
from tests.support.report_pages import Page, built_for_everyone, column
from tests.support.report_techniques import (
    BREAKOUT,
    CLAIMS,
    COMPARE,
    FIGURES,
    HOSTILE,
    PREDICTED,
    REGIME,
    TAU,
    WHOLE,
)


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(render(techniques_page(Contents(**WHOLE))))


def test_hostile_text_stays_text(page: Page) -> None:
    assert not page.all("img")
    assert len(page.all("script")) == FIGURES + 1 + 2  # figures, palette, plotly.js and ours
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    words = " ".join(page.words)
    assert HOSTILE in words and BREAKOUT in words


def test_nothing_is_fetched(page: Page) -> None:
    assert not [attributes for _, attributes in page.tags if "src" in attributes or "srcset" in attributes]
    policy = next(meta["content"] for meta in page.all("meta") if meta.get("http-equiv"))
    assert str(policy).startswith("default-src 'none'; script-src 'sha256-")


def test_page_is_built_for_everyone(page: Page) -> None:
    names = built_for_everyone(page)
    assert all(str(link["href"])[0] == "#" and str(link["href"])[1:] in names for link in page.all("a"))
    figures = [name for name in page.script_text if name.startswith("data-plot-")]
    assert len(figures) == FIGURES
    for name in figures:
        assert {"data", "layout"} <= json.loads(page.script_text[name]).keys()


SECTIONS = [
    "headline",
    "compare",
    "regime",
    "timelines",
    "tau",
    "predicted",
    "claims",
    "throughput",
    "notes",
    "definitions",
    "versions",
]


def test_sections_are_those_with_contents(page: Page) -> None:
    assert [section["id"] for section in page.all("section")] == SECTIONS
    bare = Page(render(techniques_page(Contents(claims=CLAIMS))))
    left = ["headline", "claims", "notes", "definitions", "versions"]
    assert [section["id"] for section in bare.all("section")] == left
    assert [link["href"] for link in bare.all("a")[2:]] == [f"#{name}" for name in left[1:]]


def test_evidence_is_said_where_a_figure_is_printed() -> None:
    table = claims_table(CLAIMS)
    assert column(table, "Published") == [
        "9.60 steps (second-hand)", "9.60 steps", "9.60 steps (recalled, not the paper's)",
        "4090 > A800 (derived)", "9.60 steps (second-hand)", "9.60 steps",
    ]  # fmt: skip
    assert column(table, "Error") == ["−1.0 %", "+108.0 %", "–", "–", "–", "−1.0 %"]
    assert column(table, "Ours") == ["9.50 steps", "20.0 steps", "–", "4090 > A800", "–", "9.50 steps"]
    assert table.marked == {1, 5}
    assert "not the paper's" in published_words(CLAIMS[2])


def test_a_row_says_its_grade_its_null_model_and_what_it_notices() -> None:
    table = claims_table(CLAIMS)
    assert column(table, "Grade")[3:] == ["algebraic", "predicted", "calibrated on other rows"]
    assert column(table, "Null") == ["–"] * 5 + [f"−6.2 % (all hidden {HOSTILE})"]
    assert column(table, "Notices") == ["–"] * 5 + ["no overlap"]
    assumptions = assumptions_table(CLAIMS)
    assert assumptions is not None and assumptions_table(CLAIMS[:5]) is None
    assert column(assumptions, "With another assumption") == ["batch 4", "batch 8"]
    assert column(assumptions, "Ours then") == ["9.60 steps", "1.00 steps"] and assumptions.marked == {0}
    sums = grades_table(CLAIMS)
    assert column(sums, "Grade") == ["predicted", "calibrated on other rows", "algebraic"]
    assert column(sums, "Rows") == ["4", "1", "1"]
    assert column(sums, "Reproduced") == ["1", "–", "–"] and column(sums, "Agrees") == ["–", "–", "1"]


def test_headlines_follow_from_the_rows() -> None:
    hostile = f"co2 {HOSTILE}"
    assert title(Contents(compare=COMPARE)) == f"{hostile} is 2.00× as fast as ddp per step"
    slower = [COMPARE[0], {**COMPARE[1], "technique": "co2", "speedup": 0.9}]
    assert title(Contents(compare=slower)) == "None of 2 techniques is faster than ddp"
    assert title(Contents(compare=[{**row, "speedup": 1.5} for row in slower])) == "2 techniques side by side"
    told = title(Contents(compare=[{**row, "speedup": 1.5} for row in slower], baseline="sequential"))
    assert told == "ddp is 1.50× as fast as sequential per step"
    assert title(Contents(claims=CLAIMS)) == "1 of 2 predictions reproduced"
    assert title(Contents(claims=CLAIMS[3:4])) == "1 published figure, and no prediction of ours among them"
    assert title(Contents(predicted=PREDICTED)) == "Predictions miss what was measured by 20.0 % in the median"
    assert title(Contents(tau=TAU)) == title(Contents()) == "Techniques that hide communication"


def test_facts_count_every_verdict() -> None:
    shown = dict(facts(Contents(**WHOLE)))
    assert (shown["Predicted: reproduced"], shown["Predicted: not answerable"]) == ("1", "2")
    assert shown["Algebraic"] == "1 of 1 agree" and shown["Calibrated on other rows"] == "0 of 1 agree"
    assert shown["Shortest step"] == "250 ms" and shown["Longest step"] == "500 ms"
    assert (shown["Cells: wins"], shown["Cells: ties"], shown["Cells: loses"]) == ("1", "1", "1")


def test_caveats_are_those_that_hold() -> None:
    words = " ".join(caveats(Contents(**WHOLE)))
    assert "2 published figures are second-hand" in words and "1 figure is recalled" in words
    assert "1 row agrees without having been predicted (1 algebraic)" in words
    assert "In 1 of 1 calibrated figure ours comes closer" in words
    assert "Steps are simulated" in words and "Dashed" in words
    assert caveats(Contents(claims=[CLAIMS[1]])) == ()


def test_tables_hold_the_numbers() -> None:
    table = compare_table(COMPARE)
    assert column(table, "Step") == ["500 ms", "250 ms", "–"] and column(table, "Hidden") == ["50.0 %", "100 %", "–"]
    assert column(table, "Bytes per step") == ["1.00 MB", "–", "–"] and HOSTILE in column(table, "Remark")[2]
    sums = regime_sums(REGIME)
    assert column(sums, "Wins") == ["1"] and column(sums, "Ties") == ["1"]
    assert column(sums, "Best")[0] == "2.00× at 10.0 Gbit/s, batch 1"
    assert column(predicted_table(PREDICTED), "Error") == ["+20.0 %", "–"]


def test_notes_come_once_the_severest_first(page: Page) -> None:
    tags = [attributes["class"] for attributes in page.all("li") if attributes.get("class")]
    assert tags == ["error", "info"]


def test_a_table_that_lacks_a_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"claims, row 1: has no column 'published'"):
        build_techniques(tmp_path / "x.html", claims=[{"technique": "a", "claim": "b"}])
    assert not (tmp_path / "x.html").exists()


def test_file_is_written_whole(tmp_path: Path) -> None:
    target = build_techniques(tmp_path / "x.html", **WHOLE)
    assert target.read_text(encoding="utf-8").endswith("</html>\n") or target.read_text().endswith("</html>")
    empty = build_techniques(tmp_path / "empty.html")
    assert "Nothing was handed over" in empty.read_text(encoding="utf-8")

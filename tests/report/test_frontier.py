"""Density against cost as a page and as the report's section: hostile names stay text, figures agree with the table."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import densing
from densing.report import build_frontier
from densing.report.page import render
from densing.report.study import study_page
from densing.tradeoff import DensityCost, study_frontier
from tests.support import report_fixture as fixture
from tests.support.gain_records import arm, record, written
from tests.support.report_frames import HOSTILE
from tests.support.report_pages import Page, built_for_everyone


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    folder = tmp_path_factory.mktemp("frontier")
    gain = written(folder, record(arm(HOSTILE, 0.9, 100.0), arm(fixture.BREAKOUT, 0.8, 200.0)))
    runs = [DensityCost(f"mine {HOSTILE}", 1.5, 1.2, 1.8, fixture.LINKED, None, 3.0)]
    result = densing.frontier(cost="device_hours", profiles=runs, gains=[gain])
    return Page(build_frontier(result, folder / "f.html").read_text(encoding="utf-8"))


def test_a_page_has_a_figure_and_a_table_for_each_scale(page: Page) -> None:
    figures = [name for name in page.script_text if name.startswith("data-plot-")]
    assert len(figures) == 2
    assert all({"data", "layout"} <= json.loads(page.script_text[name]).keys() for name in figures)
    assert [section["id"] for section in page.all("section")] == ["headline", "scales", "notes", "versions"]
    built_for_everyone(page)


def test_hostile_names_stay_text(page: Page) -> None:
    assert not page.all("img") and len(page.all("script")) == 2 + 1 + 2
    words = " ".join(page.words)
    for name in (HOSTILE, fixture.BREAKOUT, fixture.LINKED):
        assert name in words


def test_markdown_is_literal(tmp_path: Path) -> None:
    gain = written(tmp_path, record(arm(f"{HOSTILE} | x", 0.9, 100.0)))
    path = build_frontier(densing.frontier(cost="bytes", gains=[gain]), tmp_path / "f.md")
    text = path.read_text(encoding="utf-8")
    assert "<img" not in text and "&lt;img" in text and "onerror=alert(1)&gt; \\| x" in text
    assert text.startswith("# Density against bytes that one rank sends") and "--cost bytes" in text


@pytest.fixture(scope="module")
def study() -> Any:
    return fixture.study()


@pytest.mark.usefixtures("drawn_once")
def test_the_report_has_a_section_of_what_the_study_knows(study: Any) -> None:
    shown = Page(render(study_page(study)))
    result = study_frontier(study)
    assert result.scales and result.table["status"].eq("no cost").any()
    layout = json.loads(shown.script_text["data-plot-frontier"])
    marks = next(trace for trace in layout["data"] if trace.get("name") == "on the frontier")
    assert marks["x"] == pytest.approx(result.front(result.scales[0])["flops"].tolist())
    assert any(section["id"] == "frontier" for section in shown.all("section"))
    assert not shown.all("img") and "Kaplan et al. 2020" in " ".join(shown.words)


@pytest.mark.usefixtures("drawn_once")
def test_without_tokens_the_report_has_no_such_section(study: Any) -> None:
    silent = SimpleNamespace(**{**vars(study), "compute": study.compute.assign(flops=np.nan)})
    shown = Page(render(study_page(silent)))
    assert "frontier" not in [section["id"] for section in shown.all("section")]
    assert not [link for link in shown.all("a") if link["href"] == "#frontier"]

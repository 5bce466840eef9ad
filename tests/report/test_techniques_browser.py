"""The report on techniques in a real browser: every figure drawn, no request, no overlap, dark page, narrow page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from densing.report.techniques import build_techniques
from tests.support.report_browser import MARKS, OVERLAPS, driven, opened, requests, settle, unfold
from tests.support.report_techniques import FIGURES, HOSTILE, WHOLE

pytestmark = MARKS


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_techniques(tmp_path_factory.mktemp("techniques") / "techniques.html", **WHOLE)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from driven(tmp_path_factory.mktemp("user"))


def test_draws_every_figure_without_an_error_or_a_request(browser: Any, report: Path) -> None:
    page = opened(browser, report, 1280)
    unfold(page)
    assert page.get_log("browser") == []
    assert {url for url in requests(page) if not url.startswith("data:")} == {report.as_uri()}
    drawn = page.execute_script(
        "return [...document.querySelectorAll('.plot')].map((p) => p.querySelectorAll('svg.main-svg').length)"
    )
    assert len(drawn) == FIGURES and all(count >= 1 for count in drawn)
    assert page.execute_script("return document.querySelectorAll('#plot-compare .barlayer .point').length") == 4
    words = page.execute_script("return document.querySelector('#plot-regime').textContent")
    assert "▲ 2.00" in words and "▼ 0.500" in words and "= 1.01" in words


def test_hostile_names_stay_text(browser: Any, report: Path) -> None:
    page = opened(browser, report, 1280)
    unfold(page)
    assert page.execute_script("return window.hacked === undefined && !document.querySelector('main img')")
    shown = page.execute_script(
        """const plot = document.getElementById("plot-compare");
        Plotly.Fx.hover(plot, [{ curveNumber: 0, pointNumber: 1 }]);
        return plot.querySelector(".hoverlayer").textContent;"""
    )
    assert f"co2 {HOSTILE}" in shown and "250 ms" in shown


def test_published_figures_bear_their_label(browser: Any, report: Path) -> None:
    page = opened(browser, report, 1280)
    words = page.find_element("id", "claims-table").text
    assert "(second-hand)" in words and "(recalled, not the paper's)" in words
    counts = [output.text for output in page.find_elements("css selector", "#claims output")]
    assert counts == ["6 of 6 figures"]


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_page_fits_and_nothing_overlaps(browser: Any, report: Path, width: int) -> None:
    page = opened(browser, report, width)
    unfold(page)
    settle(page)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    if width >= 360:
        assert page.execute_script(OVERLAPS) == []


def test_dark_page_exchanges_colours(browser: Any, report: Path) -> None:
    ink = "return getComputedStyle(document.querySelector('#plot-compare .xtitle')).fill"
    light = opened(browser, report, 1280).execute_script(ink)
    dark = opened(browser, report, 1280, scheme="dark").execute_script(ink)
    assert light == "rgb(27, 31, 36)" and dark == "rgb(233, 236, 239)"

"""The report of a profile in a real browser: figures, labels, hostile names, width, dark page, print, no network."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from densing.efficiency.profile.comparison import compare
from densing.report import build_profile_report
from tests.support import efficiency_runs as runs
from tests.support.report_browser import MARKS, OVERLAPS, driven, opened, requests, settle, unfold

pytestmark = MARKS


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("profile") / "profile.html"
    changed = compare(runs.steps_of(1e6), runs.steps_of(1.2e6))
    run = runs.run()
    return build_profile_report(run, target, baseline=changed)


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_profile_report(runs.run(120, 30), tmp_path_factory.mktemp("crowd") / "profile.html")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from driven(tmp_path_factory.mktemp("user"))


@pytest.fixture
def page(browser: Any, report: Path) -> Any:
    return opened(browser, report, 1280)


def test_draws_every_figure_without_an_error_or_a_request(page: Any, report: Path) -> None:
    unfold(page)
    assert page.get_log("browser") == []
    assert {url for url in requests(page) if not url.startswith("data:")} == {report.as_uri()}
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0
    drawn = page.execute_script(
        "return [...document.querySelectorAll('.plot')].map((p) => p.querySelectorAll('svg.main-svg').length)"
    )
    assert len(drawn) == runs.FIGURES and all(count >= 1 for count in drawn)
    boxes = page.execute_script("return document.querySelectorAll('#plot-timeline .barlayer .point').length")
    assert boxes == 4 * 4  # per rank compute, communication, its exposed part, a copy


def test_hostile_names_stay_text(page: Any) -> None:
    # Figures are drawn one by one: all of them, before one is pointed at.
    unfold(page)
    assert page.execute_script("return window.hacked === undefined && !document.querySelector('main img')")
    assert page.execute_script("return document.querySelectorAll('.plot a').length") == 0
    shown = page.execute_script(
        """const plot = document.getElementById("plot-timeline");
        Plotly.Fx.hover(plot, [{ curveNumber: 0, pointNumber: 0 }]);
        return plot.querySelector(".hoverlayer").textContent;"""
    )
    assert f"gemm {runs.HOSTILE}" in shown and "500 µs" in shown


def test_tables_sort(page: Any) -> None:
    unfold(page)
    button = page.find_element("xpath", "//table[@id='waits-table']//th[@data-title='Waited itself']/button")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'}); arguments[0].click()", button)
    script = """const table = document.getElementById("waits-table");
        const at = [...table.tHead.rows[0].cells].findIndex((cell) => cell.dataset.title === "Waited itself");
        return [...table.tBodies[0].rows].map((row) => Number(row.cells[at].dataset.key));"""
    values = page.execute_script(script)
    assert values == sorted(values, reverse=True) and values[0] == 900_000 and values[-1] == 0


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_page_never_scrolls_sideways(browser: Any, report: Path, width: int) -> None:
    page = opened(browser, report, width)
    unfold(page)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [360, 500, 1280])
@pytest.mark.parametrize("which", ["report", "crowd"])
def test_nothing_overlaps_and_nothing_is_cut(browser: Any, request: Any, which: str, width: int) -> None:
    page = opened(browser, request.getfixturevalue(which), width)
    unfold(page)
    settle(page)
    assert page.execute_script(OVERLAPS) == []


def test_dark_page_exchanges_colours(browser: Any, report: Path) -> None:
    ink = "return getComputedStyle(document.querySelector('#plot-partition .xtitle')).fill"
    light = opened(browser, report, 1280).execute_script(ink)
    dark = opened(browser, report, 1280, scheme="dark").execute_script(ink)
    assert light == "rgb(27, 31, 36)" and dark == "rgb(233, 236, 239)"


def test_prints_light_and_what_is_unfolded(browser: Any, report: Path) -> None:
    page = opened(browser, report, 1280, scheme="dark")
    state = "return [...document.querySelectorAll('details')].map((part) => part.open)"
    unprinted = page.execute_script(state)
    page.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert page.execute_script(state) == unprinted
    ink = page.execute_script("return getComputedStyle(document.querySelector('#plot-partition .xtitle')).fill")
    assert ink == "rgb(27, 31, 36)"
    page.execute_script("window.dispatchEvent(new Event('afterprint'))")
    printed = base64.b64decode(page.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert printed.startswith(b"%PDF") and printed.count(b"/Type /Page\n") >= 4


def test_without_scripts_the_tables_are_there(browser: Any, report: Path) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(report.as_uri())
        assert len(browser.find_elements("css selector", "#ranks-table tbody tr")) == 4
        assert len(browser.find_elements("css selector", "#steps-table tbody tr")) == 6
        assert "need JavaScript" in browser.find_element("css selector", "noscript").text
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})

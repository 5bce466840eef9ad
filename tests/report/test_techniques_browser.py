"""The report on techniques in a real browser: every figure drawn, no request, no overlap, dark page, narrow page."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

from densing.report.techniques import build_techniques  # noqa: E402
from tests.plots.test_techniques import HOSTILE  # noqa: E402
from tests.report.test_browser import BROWSER, DRIVER, FLAGS, opened, requests  # noqa: E402
from tests.report.test_efficiency_browser import OVERLAPS, unfold  # noqa: E402
from tests.report.test_techniques import FIGURES, WHOLE  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(
        not (shutil.which(BROWSER or "") and DRIVER), reason="needs Chromium and chromedriver on the path"
    ),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_techniques(tmp_path_factory.mktemp("techniques") / "techniques.html", **WHOLE)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('user')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


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
    time.sleep(0.3)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    if width >= 360:
        assert page.execute_script(OVERLAPS) == []


def test_dark_page_exchanges_colours(browser: Any, report: Path) -> None:
    ink = "return getComputedStyle(document.querySelector('#plot-compare .xtitle')).fill"
    light = opened(browser, report, 1280).execute_script(ink)
    dark = opened(browser, report, 1280, scheme="dark").execute_script(ink)
    assert light == "rgb(27, 31, 36)" and dark == "rgb(233, 236, 239)"

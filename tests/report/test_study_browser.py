"""The report in a real browser: figures, sorting, filtering, hostile names, width, print, and no network at all."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from densing.report import build_report
from tests.support import report_fixture as fixture
from tests.support import report_frames as frames
from tests.support.report_browser import MARKS, driven, opened, requests, unfold, wait

FIGURES = 14
YOURS = 2
pytestmark = MARKS


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_report(fixture.study(), tmp_path_factory.mktemp("report") / "report.html")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from driven(tmp_path_factory.mktemp("user"))


@pytest.fixture
def page(browser: Any, report: Path) -> Any:
    return opened(browser, report, 1280)


def column(page: Any, title: str) -> list[str]:
    script = """
        const table = document.getElementById("models-table");
        const at = [...table.tHead.rows[0].cells].findIndex((cell) => cell.textContent.trim() === arguments[0]);
        const rows = [...table.tBodies[0].rows].filter((row) => !row.hidden);
        return rows.map((row) => row.cells[at].textContent.trim());"""
    return list(page.execute_script(script, title))


def sizes(page: Any) -> list[float]:
    """Sizes of the models in the table's order, read from what it shows: 1.5 B."""
    shown = [size.split() for size in column(page, "Size")]
    return [float(number) * {"M": 1e6, "B": 1e9}[unit] for number, unit in shown]


def button(page: Any, title: str) -> Any:
    return page.find_element("xpath", f"//table[@id='models-table']//th[@data-title='{title}']/button")


def test_draws_every_figure_without_an_error_or_a_request(page: Any, report: Path) -> None:
    unfold(page)
    assert page.get_log("browser") == []
    assert {url for url in requests(page) if not url.startswith("data:")} == {report.as_uri()}
    assert page.execute_script("return performance.getEntriesByType('resource').length") == 0
    drawn = page.execute_script(
        "return [...document.querySelectorAll('.plot')].map((p) => p.querySelectorAll('svg.main-svg').length)"
    )
    assert len(drawn) == FIGURES and all(count >= 1 for count in drawn)
    points = page.execute_script("return document.querySelectorAll('#plot-density .scatterlayer .points path').length")
    assert points >= fixture.MODELS


def test_policy_stops_a_request_and_a_foreign_script(page: Any) -> None:
    page.execute_script("fetch('https://example.org/').catch(() => { window.stopped = true; });")
    wait(lambda: page.execute_script("return window.stopped === true"))
    page.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s);"
    )
    assert page.execute_script("return window.ran === undefined")


def test_hostile_names_stay_text(page: Any) -> None:
    unfold(page)
    assert page.execute_script("return window.hacked === undefined && !document.querySelector('main img')")
    names = column(page, "Model")
    assert {frames.HOSTILE, fixture.BREAKOUT, fixture.LINKED} <= set(names)
    labels = page.execute_script(
        "return [...document.querySelectorAll('#plot-leave-one-out .ytick')].map((t) => t.textContent)"
    )
    assert f"without {frames.HOSTILE}" in labels
    assert page.execute_script("return document.querySelectorAll('.plot a').length") == 0


def test_hostile_name_in_a_hover_label_is_text(page: Any) -> None:
    shown = page.execute_script(
        """const plot = document.getElementById("plot-density");
        const find = (trace) => (trace.hovertext || []).findIndex((words) => words.includes("onerror"));
        const curve = plot.data.findIndex((trace) => Array.isArray(trace.hovertext) && find(trace) >= 0);
        Plotly.Fx.hover(plot, [{ curveNumber: curve, pointNumber: find(plot.data[curve]) }]);
        return plot.querySelector(".hoverlayer").textContent;"""
    )
    assert frames.HOSTILE in shown


def test_table_sorts_by_click(page: Any) -> None:
    head = button(page, "Size").find_element("xpath", "..")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", head)
    button(page, "Size").click()
    down = sizes(page)
    assert down == sorted(down, reverse=True) and head.get_attribute("aria-sort") == "descending"
    button(page, "Size").click()
    assert sizes(page) == down[::-1] != down and head.get_attribute("aria-sort") == "ascending"


def test_table_sorts_by_keyboard(page: Any) -> None:
    released = button(page, "Released")
    page.execute_script("arguments[0].focus()", released)
    released.send_keys("\ue007")  # Enter
    *days, unknown = column(page, "Released")
    assert days == sorted(days, reverse=True) and unknown == "–", "what is not known comes last"
    released.send_keys(" ")
    assert column(page, "Released") == [*sorted(days), "–"]
    sorted_heads = page.find_elements("css selector", "#models-table th[aria-sort]")
    assert [head.get_attribute("data-title") for head in sorted_heads] == ["Released"]


def test_table_filters(page: Any) -> None:
    everything = len(column(page, "Model"))
    search = page.find_element("css selector", ".filters input")
    search.send_keys("family-3")
    families = column(page, "Family")
    assert 0 < len(families) < everything and set(families) == {"family-3"}
    search.clear()
    search.send_keys(" ")
    assert len(column(page, "Model")) == everything
    group = page.find_element("xpath", "//div[@class='filters']//label[starts-with(., 'Group')]/select")
    group.find_element("css selector", "option[value='compressed']").click()
    assert set(column(page, "Group")) == {"compressed"}
    count = page.find_element("css selector", ".filters output").text
    assert count == f"{len(column(page, 'Group'))} of {everything} models"


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_the_first_screen_holds_the_sentence_and_the_figure(
    browser: Any, report: Path, width: int, height: int
) -> None:
    page = opened(browser, report, width)
    top, bottom, figure_top, figure_bottom = page.execute_script(
        """const box = (query) => document.querySelector(query).getBoundingClientRect();
        const [title, plot] = [box("h1"), box("#plot-density svg.main-svg")];
        return [title.top, title.bottom, plot.top, plot.bottom];"""
    )
    assert 0 <= top < bottom <= figure_top and figure_bottom <= height
    rows = page.execute_script(
        "const entries = [...document.querySelectorAll('#plot-density .legend .legendtext')];"
        "return entries.map((entry) => entry.getBoundingClientRect().top)"
    )
    assert width < 600 or max(rows) - min(rows) < 2, "the legend is one row"


def visible(page: Any) -> set[str]:
    """Names that the first figure writes beside marks."""
    script = """return [...document.querySelectorAll("#plot-density .annotation")].filter((note) =>
        note.textContent && getComputedStyle(note).display !== "none").map((note) => note.textContent)"""
    return set(page.execute_script(script))


def faint(page: Any) -> list[float]:
    script = """return [...document.querySelectorAll("#plot-density .scatterlayer .points path")]
        .map((mark) => Number(getComputedStyle(mark).opacity))"""
    return list(page.execute_script(script))


def test_a_model_is_found_in_the_figure_and_in_the_table(page: Any) -> None:
    unfold(page)
    records = visible(page)
    assert records, "records are named"
    search = page.find_element("css selector", ".find input")
    page.execute_script("arguments[0].focus()", search)
    search.send_keys("model-0-17")
    wait(lambda: visible(page) == {"model-0-17"})
    assert column(page, "Model") == ["model-0-17"]
    assert sum(opacity > 0.5 for opacity in faint(page)) == 1
    # On the axis of compute, a logarithmic one, the name stands at its mark too.
    written, mark = page.execute_script("""const { data, layout } = document.getElementById("plot-frontier");
        const note = layout.annotations.find((each) => each.name === "match");
        const at = data.flatMap((trace) => (trace.customdata || []).flatMap(
            ([, label], point) => (label === note.text ? [trace.x[point]] : [])));
        return [note.x, at[0]];""")
    assert 10**written == pytest.approx(mark)
    assert page.find_element("css selector", ".filters input").get_attribute("value") == "model-0-17"
    page.execute_script("window.dispatchEvent(new Event('afterprint'))")  # drawn anew, the search stays
    wait(lambda: visible(page) == {"model-0-17"})
    table_search = page.find_element("css selector", ".filters input")
    table_search.clear()
    table_search.send_keys(" ")
    wait(lambda: visible(page) == records)
    assert min(faint(page)) > 0.5


def test_a_hostile_name_is_found_and_written_as_text(page: Any) -> None:
    page.find_element("css selector", ".find input").send_keys("<img")
    name = frames.HOSTILE
    wait(lambda: name in visible(page))
    assert visible(page) <= {name, f"mine {name}"} and set(column(page, "Model")) == {name, f"mine {name}"}
    assert page.execute_script("return window.hacked === undefined && !document.querySelector('main img')")
    assert page.get_log("browser") == []


def test_no_match_dims_everything_and_says_so(page: Any) -> None:
    page.find_element("css selector", ".find input").send_keys("nobody has this name")
    wait(lambda: max(faint(page)) < 0.5)
    assert visible(page) == set()
    assert page.find_element("css selector", ".filters output").text.startswith("0 of ")


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_page_never_scrolls_sideways(browser: Any, report: Path, width: int) -> None:
    page = opened(browser, report, width)
    page.execute_script("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    wide = page.execute_script(
        "const box = document.querySelector('.scroll.tall'); return box.scrollWidth > box.clientWidth"
    )
    assert wide or width > 768  # the table scrolls inside its own box
    outside = page.execute_script(
        "return [...document.querySelectorAll('.plot svg.main-svg')].filter((s) => "
        "s.getBoundingClientRect().right > document.documentElement.clientWidth + 1).length"
    )
    assert outside == 0


def test_figures_follow_the_window(browser: Any, report: Path) -> None:
    page = opened(browser, report, 1280)
    metrics = {"width": 700, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    width = "return document.querySelector('#plot-density svg.main-svg').getBoundingClientRect().width"
    wide = page.execute_script(width)
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    wait(lambda: page.execute_script(width) < 700)
    assert page.execute_script(width) < 700 < wide


def test_dark_page_exchanges_colours(browser: Any, report: Path) -> None:
    ink = "return getComputedStyle(document.querySelector('#plot-density .xtitle')).fill"
    light = opened(browser, report, 1280).execute_script(ink)
    dark = opened(browser, report, 1280, scheme="dark").execute_script(ink)
    assert light == "rgb(27, 31, 36)" and dark == "rgb(233, 236, 239)"


def test_prints_light_without_controls_and_on_few_sheets(browser: Any, report: Path) -> None:
    page = opened(browser, report, 1280, scheme="dark")
    state = "return [...document.querySelectorAll('details')].map((part) => part.open)"
    unprinted = page.execute_script(state)
    page.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    drawn = "return [...document.querySelectorAll('.plot')].every((plot) => plot.querySelector('svg.main-svg'))"
    assert page.execute_script(drawn), "at once, since printing does not wait"
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    hidden = (
        "return [...document.querySelectorAll('nav, .filters')].every((e) => getComputedStyle(e).display === 'none')"
    )
    assert page.execute_script(hidden)
    assert page.execute_script(state) == unprinted and not all(unprinted), "what is folded stays folded"
    rows = "return [...document.querySelectorAll('#models-table tbody tr')].filter((row) => row.offsetHeight).length"
    assert 25 <= page.execute_script(rows) <= 25 + YOURS
    table = "getComputedStyle(document.querySelector('#models-table').closest('.scroll'), '::after').content"
    assert "first 25 rows" in page.execute_script(f"return {table}")
    assert page.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    ink = page.execute_script("return getComputedStyle(document.querySelector('#plot-density .xtitle')).fill")
    assert ink == "rgb(27, 31, 36)"
    page.execute_script("window.dispatchEvent(new Event('afterprint'))")
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert page.execute_script(rows) == fixture.MODELS + 30 + YOURS, "on screen they are all there"
    printed = base64.b64decode(page.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert printed.startswith(b"%PDF") and 4 <= printed.count(b"/Type /Page\n") <= 8


def test_without_scripts_every_number_is_there(browser: Any, report: Path) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(report.as_uri())
        # Without scripts the driver may look at a page that is not yet read to its end.
        rows = "#models-table tbody tr"
        wait(lambda: len(browser.find_elements("css selector", rows)) == fixture.MODELS + 30 + YOURS)
        assert not browser.find_element("css selector", ".filters").is_displayed()
        assert "need JavaScript" in browser.find_element("css selector", "noscript").text
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})

"""What study, profile and techniques have in common, in a real browser: first screen, width, height, size, colours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from densing.core.notes import Note
from densing.report import build_profile_report, build_report, build_techniques
from tests.support import efficiency_runs as runs
from tests.support import report_fixture as fixture
from tests.support.report_browser import MARKS, driven, opened, requests, settle, unfold
from tests.support.report_techniques import WHOLE

pytestmark = MARKS
NAMES = ("study", "profile", "techniques")
NAMED = (
    Note("misfit", "warning", "ddp does not fit in memory", {}),
    Note("contention", "info", "a100x8-tcp knows no contention", {}),
)
CONTRAST = """
const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
const behind = (element) => {
  for (let part = element; part; part = part.parentElement) {
    const colour = channels(getComputedStyle(part).backgroundColor);
    if (colour.length === 3 || colour[3] === 1) return colour;
  }
  return [255, 255, 255];
};
const out = [];
const written = "h1, h2, p, dt, dd, li, a, th, td, button, label, summary, code, figcaption, footer";
for (const element of document.querySelectorAll(written)) {
  if (!element.checkVisibility()) continue;
  const [a, b] = [light(channels(getComputedStyle(element).color)), light(behind(element))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) out.push([element.tagName, element.textContent.slice(0, 30), ratio]);
}
return out;
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    return {
        "study": build_report(fixture.study(), folder / "study.html"),
        "profile": build_profile_report(runs.run(), folder / "profile.html"),
        "techniques": build_techniques(folder / "techniques.html", **{**WHOLE, "notes": NAMED}),
    }


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from driven(tmp_path_factory.mktemp("user"))


def cut(page: Any) -> list[Any]:
    """What is wider than the page, and the tables that scroll sideways inside their boxes."""
    return list(
        page.execute_script("""const room = document.documentElement.clientWidth + 1;
        const parts = [...document.querySelectorAll("main *:not(.scroll *):not(.plot *)")];
        const wide = parts.filter((part) => part.checkVisibility() && part.getBoundingClientRect().right > room)
            .map((part) => part.outerHTML.slice(0, 60));
        const boxes = [...document.querySelectorAll(".scroll")];
        const scrolled = boxes.filter((box) => box.scrollWidth > box.clientWidth + 1);
        return [wide, scrolled.map((box) => box.querySelector("table").id)];""")
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_first_screen_answers(browser: Any, pages: dict[str, Path], name: str) -> None:
    page = opened(browser, pages[name], 1400)
    tops = page.execute_script("""const top = (query) => document.querySelector(query).getBoundingClientRect().top;
        return [top("h1"), top(".plot svg.main-svg"), top("#h-caveats"), top(".facts")];""")
    assert tops == sorted(tops) and tops[0] >= 0 and tops[1] < 450, "answer, figure, caveats, facts"
    assert page.execute_script("return document.querySelector('.plot').dataset.drawn") == "true"
    assert page.find_element("id", "h-caveats").text == "Before you quote it"


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_fetched_and_nothing_complains(browser: Any, pages: dict[str, Path], name: str) -> None:
    page = opened(browser, pages[name], 1400)
    unfold(page)
    assert page.get_log("browser") == []
    assert {url for url in requests(page) if not url.startswith(("data:", "blob:"))} == {pages[name].as_uri()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [400, 1400])
def test_tables_have_the_width_there_is(browser: Any, pages: dict[str, Path], name: str, width: int) -> None:
    page = opened(browser, pages[name], width)
    unfold(page)
    wide, scrolled = cut(page)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width and wide == []
    assert width < 1400 or scrolled == [], "on a wide page every table is seen whole"


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_short_as_opened_and_small(browser: Any, pages: dict[str, Path], name: str) -> None:
    page = opened(browser, pages[name], 1400)
    assert page.execute_script("return document.documentElement.scrollHeight") < 9000
    assert pages[name].stat().st_size < 2_400_000


@pytest.mark.parametrize("name", NAMES)
def test_legends_are_one_row(browser: Any, pages: dict[str, Path], name: str) -> None:
    page = opened(browser, pages[name], 1400)
    unfold(page)
    settle(page)
    rows = page.execute_script("""const top = (entry) => Math.round(entry.getBoundingClientRect().top);
        return [...document.querySelectorAll(".plot")].map((plot) =>
            [plot.id, new Set([...plot.querySelectorAll(".legendtext")].map(top)).size]);""")
    assert [plot for plot, count in rows if count > 1] == []


def test_words_at_the_ends_of_bars_fit_a_narrow_page(browser: Any, tmp_path: Path) -> None:
    rows = [{"technique": name, "step_s": 1.0, "exposed_comm_s": 0.2, "speedup": 1.0, "changes_loss": name == "co2"}
            for name in ("ddp", "co2")]  # fmt: skip
    page = opened(browser, build_techniques(tmp_path / "page.html", compare=rows), 400)
    cut_words = page.execute_script("""const plot = document.querySelector("#plot-compare");
        const edge = plot.getBoundingClientRect().right;
        const ends = [...plot.querySelectorAll(".textpoint text")].map((text) => text.getBoundingClientRect().right);
        return [ends.length, ends.filter((end) => end > edge).length];""")
    assert cut_words[0] > 0 and cut_words[1] == 0


def test_head_and_footer_are_the_same_on_all_pages(browser: Any, pages: dict[str, Path]) -> None:
    shapes, feet = set(), []
    for name in NAMES:
        page = opened(browser, pages[name], 1400)
        shapes.add(
            page.execute_script("""return ["nav", "h1", "#headline > figure", ".lead", "#h-caveats", ".facts", "footer"]
            .map((query) => { const { x, width } = document.querySelector(query).getBoundingClientRect();
                return [query, x, query === "h1" || query === "#h-caveats" ? 0 : width].join(" "); }).join()""")
        )
        feet.append(page.find_element("tag name", "footer").text)
    assert len(shapes) == 1
    assert all(
        foot.startswith("Made on 20") and "by densing " in foot and "One file, no network" in foot for foot in feet
    )
    assert "Inputs" in feet[0] and "catalog" in feet[0]


def test_names_stand_as_they_are_written(browser: Any, pages: dict[str, Path]) -> None:
    words = opened(browser, pages["techniques"], 1400).find_element("id", "notes").text
    assert "ddp does not fit in memory." in words and "Ddp" not in words
    assert "a100x8-tcp knows no contention." in words


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(browser: Any, pages: dict[str, Path], name: str, scheme: str) -> None:
    page = opened(browser, pages[name], 1400, scheme=scheme)
    assert page.execute_script(CONTRAST) == []
    dark = page.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 29)"
    assert dark == (scheme == "dark")


def test_a_link_opens_what_it_leads_to(browser: Any, pages: dict[str, Path]) -> None:
    page = opened(browser, pages["profile"], 1400)
    state = "return document.querySelector('#definitions > details').open"
    assert page.execute_script(state) is False
    page.find_element("css selector", "nav a[href='#definitions']").click()
    assert page.execute_script(state) is True


def test_every_column_is_shown_where_it_is_asked_for(browser: Any, pages: dict[str, Path]) -> None:
    page = opened(browser, pages["study"], 1400)
    heads = "return [...document.querySelectorAll('#models-table th')].filter((head) => head.checkVisibility()).length"
    few = page.execute_script(heads)
    page.execute_script("document.querySelector('#models .every input').click()")
    assert page.execute_script(heads) > few


def test_a_browser_that_cannot_unpack_says_so(browser: Any, pages: dict[str, Path]) -> None:
    older = {"source": "delete window.DecompressionStream"}
    script = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", older)
    try:
        page = opened(browser, pages["study"], 1400)
        assert "one of 2023 or later" in page.find_element("id", "undrawn").text
        assert not page.find_element("css selector", ".plot").is_displayed()
        page.find_element("xpath", "//table[@id='models-table']//th[@data-title='Size']/button").click()
        assert page.find_element("css selector", "#models-table th[aria-sort]").get_attribute("data-title") == "Size"
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)

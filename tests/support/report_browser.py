"""Reports in a real browser: one headless Chromium, and what the tests ask it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
MARKS = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="needs Chromium and chromedriver on the path"),
]
OVERLAPS = """
const out = [];
for (const plot of document.querySelectorAll(".plot")) {
  const frame = plot.getBoundingClientRect();
  const box = (element) => element.getBoundingClientRect();
  const ticks = [...plot.querySelectorAll(".xtick text")].map(box);
  const title = plot.querySelector(".xtitle");
  const low = Math.max(frame.top, ...ticks.map((tick) => tick.bottom));
  if (title && ticks.length && box(title).top < low - 1) out.push([plot.id, "title on the labels"]);
  if (title && box(title).bottom > frame.bottom + 1) out.push([plot.id, "title below the figure"]);
  const left = Math.min(...[...plot.querySelectorAll(".ytick text")].map((tick) => box(tick).left));
  if (left < frame.left - 1) out.push([plot.id, "labels cut at the left"]);
  if (ticks.some((tick) => tick.right > frame.right + 1)) out.push([plot.id, "labels cut at the right"]);
  const legend = plot.querySelector(".legend");
  if (!legend) continue;
  const drawn = box(legend);
  if (drawn.right > frame.right + 1 || drawn.bottom > frame.bottom + 1 || drawn.top < frame.top - 1)
    out.push([plot.id, "legend outside"]);
  if (title && drawn.top < box(title).bottom - 1 && drawn.bottom > box(title).top + 1)
    out.push([plot.id, "legend on the title"]);
}
return out;
"""


def driven(profile: Path) -> Iterator[Any]:
    """Yield a browser that keeps its data under a folder."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def opened(browser: Any, report: Path, width: int, **media: str) -> Any:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": media.get("scheme", "light")}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(report.as_uri())
    wait(lambda: browser.execute_script("return document.documentElement.dataset.ready") == "true")
    return browser


def wait(done: Any, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "the page did not get ready"
        time.sleep(0.05)


def requests(browser: Any) -> set[str]:
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}
    # The browser's own start page may still load its parts.
    return {url for url in urls if not url.startswith("chrome:")}


def unfold(page: Any) -> None:
    """Open every part, and go to each figure until all are drawn."""
    page.execute_script("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    undrawn = """const left = [...document.querySelectorAll('.plot')].filter((plot) => !plot.dataset.drawn);
        if (left.length) left[0].scrollIntoView();
        return left.length;"""
    wait(lambda: page.execute_script(undrawn) == 0)
    page.execute_script("window.scrollTo(0, 0)")


def settle(page: Any) -> None:
    """Wait until nothing moves any more: figures take the width of their column some time after they are drawn."""
    boxes = """return JSON.stringify([...document.querySelectorAll('.plot, .plot text, .plot rect')].map(
        (part) => part.getBoundingClientRect()))"""
    seen: list[str] = []

    def still() -> bool:
        seen.append(page.execute_script(boxes))
        return len(seen) >= 6 and len(set(seen[-6:])) == 1

    wait(still)

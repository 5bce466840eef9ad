"""The documentation site: built without a warning, no broken link, nothing left out, nothing from a network."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from filelock import FileLock

from densing.cli import COMMANDS
from tests.support import folders
from tests.support.public import public_rooms

DOCS = folders.ROOT / "docs"
LOADS = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("object", "data"), ("link", "href")}
"""What a browser fetches by itself, unlike a link that a reader follows."""


class Page(HTMLParser):
    """Anchors, links and loads of one page."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(file.read_text("utf-8"))

    def handle_data(self, data: str) -> None:
        self.loads += re.findall(r"import\s*\(?\s*['\"](https?://[^'\"]+)", data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" or (tag == "a" and name == "name"):
                self.ids.add(value or "")
            elif tag == "a" and name == "href":
                self.links.append(value or "")
            elif (tag, name) in LOADS and ("rel", "canonical") not in attrs:
                self.loads.append(value or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Built once, also where several processes share these tests, and where it fails.
    shared = tmp_path_factory.getbasetemp()
    out = (shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared) / "site"
    with FileLock(f"{out}.lock"):
        if not (out / "built").exists():
            done = subprocess.run(
                [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-E", "-b", "html", DOCS, out / "html",
                 "-d", out / "doctrees"],
                capture_output=True, text=True, timeout=800,
            )  # fmt: skip
            (out / "built").write_text("" if done.returncode == 0 else done.stderr[-6000:] or "sphinx said nothing")
    assert not (out / "built").read_text()
    return out / "html"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {file.resolve(): Page(file) for file in site.rglob("*.html") if "_static" not in file.parts}


def broken(pages: dict[Path, Page]) -> Iterator[str]:
    for file, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if not target.exists():
                yield f"{file.name}: {link}: no such file"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                yield f"{file.name}: {link}: no such anchor"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_internal_link_and_anchor_leads_somewhere(pages: dict[Path, Page]) -> None:
    assert sum(len(page.links) for page in pages.values()) > 1000
    assert not list(broken(pages))


@pytest.mark.slow
def test_a_broken_link_and_a_missing_anchor_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text('<h1 id="here"></h1><a href="#here"></a><a href="gone.html"></a><a href="page.html#nowhere"></a>')
    found = list(broken({page.resolve(): Page(page)}))
    assert found == ["page.html: gone.html: no such file", "page.html: page.html#nowhere: no such anchor"]


@pytest.mark.slow
def test_no_page_loads_anything_from_a_network(site: Path, pages: dict[Path, Page]) -> None:
    assert len(list((DOCS / "notebooks").glob("*.ipynb"))) >= 4
    outside = {
        (file.name, load) for file, page in pages.items() for load in page.loads
        if urlsplit(load).netloc or urlsplit(load).scheme not in ("", "data")
    }  # fmt: skip
    assert not outside
    fetched = re.compile(r"(?:url\(|@import)\s*['\"]?((?:https?:)?//[^)'\"]+)")
    assert not [url for file in (site / "_static").rglob("*.css") for url in fetched.findall(file.read_text("utf-8"))]


@pytest.mark.slow
def test_every_command_has_a_page_and_its_options(pages: dict[Path, Page], site: Path) -> None:
    for name in COMMANDS:
        assert (site / "how-to" / f"{name}.html").resolve() in pages
        assert "Options" in (site / "reference" / "commands" / f"{name}.html").read_text("utf-8")


@pytest.mark.slow
def test_every_public_name_is_in_the_reference(pages: dict[Path, Page]) -> None:
    anchors = {anchor for page in pages.values() for anchor in page.ids}
    rooms = public_rooms()
    assert {"densing.tradeoff", "densing.training"} <= {room.__name__ for room in rooms}
    for room in rooms:
        # What `densing` names, too, is described there.
        places = {room.__name__, "densing"}
        described = {name for name in room.__all__ if any(f"{place}.{name}" in anchors for place in places)}
        named = {name for name in room.__all__ if not inspect.ismodule(getattr(room, name))} - {"__version__"}
        assert named <= described, f"{named - described} of {room.__name__}: add to docs/reference/api.md"
        assert f"module-{room.__name__}" in anchors


@pytest.mark.slow
def test_notebooks_show_what_they_gave_and_draw_from_the_site(site: Path) -> None:
    for notebook in sorted((DOCS / "notebooks").glob("*.ipynb")):
        page = (site / "notebooks" / f"{notebook.stem}.html").read_text("utf-8")
        assert "cell_output" in page
        if "plotly-graph-div" in page:
            assert '_static/plotly.min.js"' in page
    assert (site / "_static" / "plotly.min.js").stat().st_size > 1_000_000


@pytest.mark.slow
def test_quickstart_gives_a_density_an_interval_and_a_plot(site: Path) -> None:
    # As it ran, from top to bottom in a fresh kernel, while the site was built.
    notebook = nbformat.read(site.parent / "jupyter_execute" / "notebooks" / "quickstart.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(cells) == 6, "six cells, as promised"
    density = cells[2].outputs[0]["data"]["text/html"]
    assert "Mine-3B" in density and "Interval" in density
    assert "over the twelve months" in cells[3].outputs[0]["data"]["text/html"].lower()
    assert "months" in cells[4].outputs[0]["data"]["text/html"]
    # The site draws figures with the renderer that docs/conf.py names: markup, and Plotly from a script.
    assert any("Plotly.newPlot" in output["data"]["text/html"] for output in cells[5].outputs)

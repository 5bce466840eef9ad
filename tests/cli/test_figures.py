"""Figures of ``density`` and ``trend``: pages, pictures, the numbers beside them; a user's models in front."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import plotly.graph_objects as go
import pytest

import densing
from densing.plots.files import WIDTH
from tests.support.command import answer
from tests.support.command import densing as run
from tests.support.report_pages import Page

ON = ("-r", "qwen1.5", "-b", "mmlu")
QUICK = ("--permutations", "19", "--bootstrap", "50")
LEADERBOARD = "examples/leaderboard.csv"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv"
    rows = ["Mine-3B,3.1e9,2024-09-01,mmlu,0.62", "Mine-Tiny,1e8,2024-10-01,mmlu,0.2"]
    path.write_text("\n".join(["model,params,released,benchmark,score", *rows]), encoding="utf-8")
    return path


def drawn(page: Path) -> tuple[Any, list[str]]:
    """Return the figure of a page, and its headings."""
    source = page.read_text(encoding="utf-8")
    read = Page(source)
    assert read.script_text["data-plot-density"], "the figure leads"
    return json.loads(read.script_text["data-plot-density"]), re.findall(r"<h2[^>]*>([^<]+)</h2>", source)


def stars(figure: Any) -> list[Any]:
    return [trace for trace in figure["data"] if trace.get("marker", {}).get("symbol") == "star"]


def test_a_page_of_densities_has_ones_own_models_in_front_by_name_with_their_sentences(mine: Path) -> None:
    page = mine.with_name("mine.html")
    done = run("density", *ON, "--scores", mine, "--html", page)
    assert done.returncode == 0 and f"wrote {page}" in done.stderr
    figure, headings = drawn(page)
    [own] = stars(figure)
    assert (own["name"], len(own["x"])) == ("your models", 2)
    # In front: the last of the marks, above the catalog's.
    assert figure["data"][-1] is own and len(figure["data"]) > 4
    assert {"Mine-3B", "Mine-Tiny"} <= {note["text"] for note in figure["layout"]["annotations"]}
    assert headings[:2] == ["Before you quote it", "To quote"]
    said = " ".join(Page(page.read_text()).words)
    for sentence in (row["sentence"] for row in answer("density", *ON, "--scores", mine)):
        assert sentence.split(" (")[0] in said


def test_points_lie_beside_the_figure_as_a_table_of_its_marks(mine: Path) -> None:
    run("density", *ON, "--scores", mine, "--html", mine.with_name("mine.html"))
    points = pd.read_csv(mine.with_name("mine-points.csv"))
    assert list(points) == ["model", "released", "density", "density_lo", "density_hi", "bound", "group"]
    own = points[points["group"].eq("your models")].set_index("model")
    rows = {row["model"]: row for row in answer("density", *ON, "--scores", mine)}
    assert set(own.index) == set(rows) and own.loc["Mine-3B", "released"] == "2024-09-01"
    assert own.loc["Mine-3B", "density"] == pytest.approx(rows["Mine-3B"]["density"])
    assert own.loc["Mine-Tiny", "bound"] == "upper" and points["model"].is_unique


def test_a_table_alone_has_the_trend_of_its_rows_and_nothing_of_the_catalog(tmp_path: Path) -> None:
    page = tmp_path / "trend.html"
    found = answer("trend", *ON, *QUICK, "--only", LEADERBOARD, "--html", page)
    mine = densing.table_densities(LEADERBOARD, densing.load_reference("qwen1.5", "mmlu"))
    trend = densing.estimate_trend(
        densing.TrendData.from_density(mine.headline).window("2023-02-24"), permutations=19, bootstrap=50, worlds=0
    )
    assert found["n"] == len(trend.data) and found["title"] == trend.title
    assert found["headline"]["lo"] == pytest.approx(trend.headline["lo"])
    everyone = set(pd.read_csv(tmp_path / "trend-points.csv")["model"])
    assert everyone == set(pd.read_csv(LEADERBOARD)["model"])
    assert not stars(drawn(page)[0]), "72 stars of 72 models point out none"


def test_rows_joined_to_the_catalog_are_pointed_out_where_they_would_be_grey(mine: Path) -> None:
    mine.write_text(mine.read_text() + "\nMine-MoE,2e10,2024-10-01,mmlu,0.7\n")
    kinds = mine.with_name("kinds.csv")
    kinds.write_text("model,params,released,benchmark,score,architecture\nMine-MoE,2e10,2024-10-01,mmlu,0.7,moe\n")
    page = mine.with_name("trend.html")
    done = run("trend", *ON, *QUICK, "--catalog", kinds, "--html", page)
    assert done.returncode == 0, done.stderr
    figure, headings = drawn(page)
    [own] = stars(figure)
    assert own["name"] == "your models" and own["customdata"][0][1] == "Mine-MoE"
    assert not [trace for trace in figure["data"] if str(trace.get("name", "")).startswith("apart: ")
                and "Mine-MoE" in json.dumps(trace)]  # fmt: skip
    assert "Estimators side by side" in headings and "The pace over time" in headings


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("density", *ON, "--references", "all", "--html", "x.html"), "a figure shows one reference"),
        (("density", "--skills", "--svg", "x.svg"), "a figure shows one reference"),
        (("density", *ON, "--png", "x.jpg"), "the name must end in .png"),
        (("trend", *ON, "--only", LEADERBOARD, "--catalog", LEADERBOARD), "give either a table alone"),
        (("trend", "-r", "joint", "--only", LEADERBOARD), "the joint scale is built from the catalog"),
        (("trend", "--by", "pace", "--html", "x.html"), "cannot be combined with --by or --vintages"),
    ],
)
def test_what_does_not_go_together_is_said_before_anything_is_computed(arguments: tuple[str, ...], said: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2 and said in " ".join(done.stderr.split())


@pytest.mark.parametrize("form", ["png", "svg"])
def test_a_picture_without_its_extra_says_what_to_install(
    mine: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kaleido", None)
    done = run("density", *ON, "--scores", mine, f"--{form}", mine.with_suffix(f".{form}"))
    assert done.returncode == 1 and "kaleido, which is not installed: pip install" in done.stderr
    assert "[png]" in done.stderr and not mine.with_suffix(f".{form}").exists()


def test_a_picture_is_drawn_wide_and_sharp_with_its_points_beside(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []

    def to_image(figure: go.Figure, **options: Any) -> bytes:
        calls.append(options)
        return f"{options['format']} of {len(figure.data)} traces".encode()

    monkeypatch.setitem(sys.modules, "kaleido", ModuleType("kaleido"))
    monkeypatch.setattr(go.Figure, "to_image", to_image)
    png, svg = mine.with_suffix(".png"), mine.with_suffix(".svg")
    assert run("density", *ON, "--scores", mine, "--png", png, "--svg", svg).returncode == 0
    assert png.read_bytes().startswith(b"png of") and svg.read_bytes().startswith(b"svg of")
    assert [(call["format"], call["scale"]) for call in calls] == [("png", 2), ("svg", 1)]
    assert mine.with_name("mine-points.csv").is_file()

    def fails(figure: go.Figure, **options: Any) -> bytes:
        raise RuntimeError("Chrome was not found\nanywhere")

    monkeypatch.setattr(go.Figure, "to_image", fails)
    done = run("density", *ON, "--scores", mine, "--png", png)
    assert done.returncode == 1 and "could not draw it (Chrome was not found anywhere); it needs Chrome" in done.stderr


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_real_picture_has_its_size_its_colours_and_its_names(mine: Path) -> None:
    pytest.importorskip("kaleido", reason="needs kaleido, which the extra png brings")
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        pytest.skip("needs Chromium, which kaleido draws with")
    png, svg = mine.with_suffix(".png"), mine.with_suffix(".svg")
    done = run("density", *ON, "--scores", mine, "--png", png, "--svg", svg)
    assert done.returncode == 0, done.stderr
    words = " ".join(ElementTree.parse(svg).getroot().itertext())
    assert "Mine-3B" in words and "Mine-Tiny" in words and "your models" in words
    image = pytest.importorskip("PIL.Image", reason="needs Pillow to read it").open(png)
    assert image.size == (2 * WIDTH, 2 * float(ElementTree.parse(svg).getroot().attrib["height"]))
    counts = {colour: count for count, colour in image.convert("RGB").getcolors(1 << 24)}
    # Paper, most of it, and what is drawn on it: lines, marks and letters in several colours.
    paper = max(counts, key=counts.__getitem__)
    share = counts[paper] / sum(counts.values())
    assert paper == (255, 255, 255) and 0.5 < share < 0.99
    assert sum(count > 500 for count in counts.values()) > 5

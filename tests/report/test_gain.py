"""Gains as a page and as the report's section: hostile names stay text, the figure and the table agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from densing.cli import app
from densing.core import ArtefactError, InputError
from densing.report import build_gain, build_report
from densing.report.page import render
from densing.report.study import study_page
from densing.scores.ladder import simulated_ladder
from densing.tradeoff import Gains, gain_table, ladder_gain, read_worth
from tests.support import report_fixture as fixture
from tests.support.gain_records import arm, record, written
from tests.support.ladder_files import write_ladder
from tests.support.report_frames import HOSTILE
from tests.support.report_pages import STUDY_SECTIONS, Page, built_for_everyone

TREND = {"arm": "good", "ratio": "token", "trend": 0.25, "trend_lo": 0.1, "trend_hi": 0.4}


@pytest.fixture(scope="module")
def study() -> Any:
    return fixture.study()


@pytest.fixture(scope="module")
def gains(tmp_path_factory: pytest.TempPathFactory) -> Gains:
    losses = simulated_ladder(tau=0.8, noise=0.003, common=0.003, spread=0.005, seeds=2)
    folder = tmp_path_factory.mktemp("gain") / "ladder"
    return ladder_gain(write_ladder(folder, losses, {"plain": "plain", "arm": "local-sgd:tau=8"}))


@pytest.mark.usefixtures("drawn_once")
def test_the_report_has_a_section_of_the_verdicts_that_it_is_given(study: Any, tmp_path: Path) -> None:
    words = ["worth", "zero1,co2:tau=8", "--model", "llama-8b", "--cluster", "a100x8-tcp", "--tokens", "2e10", "--json"]
    told = CliRunner().invoke(app, words, catch_exceptions=False).stdout
    (tmp_path / "worth.json").write_text(told, encoding="utf-8")
    found = read_worth(tmp_path / "worth.json")
    printed = json.loads(told)
    # Ends that are not known come back as such: the same sentences.
    assert list(found.sentences()) == printed["data"]["sentences"]
    assert [note.to_dict() for note in found.notes] == printed["notes"]
    shown = Page(render(study_page(study, worths=[found])))
    assert "worth" in [section["id"] for section in shown.all("section")]
    assert "data-plot-worth-0" in shown.script_text
    said = " ".join(" ".join(shown.words).split())
    assert "Are techniques worth it?" in said and "zero1 pays" in said
    built_for_everyone(shown)


@pytest.mark.parametrize("text", ["[]", "{}", '{"verdicts": [3]}', '{"verdicts": [{"technique": 1}]}', "{"])
def test_what_is_no_verdict_is_refused_by_its_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text(text, encoding="utf-8")
    with pytest.raises((ArtefactError, InputError), match=r"w\.json"):
        read_worth(tmp_path / "w.json")


@pytest.mark.usefixtures("drawn_once")
def test_the_report_has_a_section_of_the_ladders_that_it_is_given(study: Any, tmp_path: Path) -> None:
    first = written(tmp_path, record(arm("good", 0.9, 250.0, token_ratio=1.1, token_lo=0.98, token_hi=1.2,
                                         no_loss="yes"), arm(HOSTILE, None, None, status="flat", density_hi=0.7),
                                     trends=[TREND]))  # fmt: skip
    second = written(tmp_path, record(arm(fixture.BREAKOUT, 0.8, 200.0), digest="ff" * 32), "other.json")
    shown = Page(render(study_page(study, gains=[first, second, first])))
    assert [section["id"] for section in shown.all("section")] == [
        name for name in STUDY_SECTIONS if name not in ("worth", "answers", "front")
    ]
    figures = [name for name in shown.script_text if name.startswith("data-plot-gain")]
    assert figures == ["data-plot-gain-0", "data-plot-gain-1"], "the first is given twice and shown once"
    marks = json.loads(shown.script_text["data-plot-gain-0"])["data"][-1]
    assert marks["x"] == [0.9, 1.1, 0.7, 1.0]
    said = " ".join(" ".join(shown.words).split())
    for part in ("What changes of training buy", "1.10 (0.980 to 1.20)", "25 %", "0.25", "0.10 to 0.40", "yes",
                 "unknown (at most 0.70)", "Joules: stated: 15 W per busy core",
                 "at every size and budget"):  # fmt: skip
        assert part in said.replace("\u00a0", " ")
    assert not shown.all("img") and HOSTILE in said and fixture.BREAKOUT in said
    built_for_everyone(shown)


def test_a_damaged_record_leaves_no_report(study: Any, tmp_path: Path) -> None:
    broken = written(tmp_path, record(arm("x", 0.9, 10.0, token_ratio=-1.0)))
    with pytest.raises(ArtefactError, match=r"gain.json: x: token_ratio -1 is no finite number above 0"):
        build_report(study, tmp_path / "report.html", gains=[broken])
    assert not (tmp_path / "report.html").exists()


def test_a_page_of_its_own_shows_figure_table_and_notes(gains: Gains, tmp_path: Path) -> None:
    null = pd.DataFrame({"density_ratio": [1.0], "token_ratio": [1.0], "ladders": [100], "density_held": [0.95],
                         "token_held": [0.96], "half_width": [0.2]})  # fmt: skip
    shown = Page(build_gain(gains, tmp_path / "gain.html", null=null).read_text(encoding="utf-8"))
    assert [section["id"] for section in shown.all("section")] == [
        "headline",
        "gains",
        "tuned",
        "costs",
        "trends",
        "parts",
        "resolution",
        "null",
        "notes",
        "versions",
    ]
    marks = json.loads(shown.script_text["data-plot-gain"])["data"][-1]
    (row,) = gains.frame().to_dict("records")
    assert marks["x"] == pytest.approx([row["density_ratio"], row["token_ratio"]])
    said = " ".join(shown.words)
    assert "local-sgd:tau=8" in said and "no benchmark results" in said and "Do the intervals hold?" in said
    built_for_everyone(shown)


def test_a_record_keeps_what_the_page_of_the_measurement_shows(gains: Gains) -> None:
    (row,) = gain_table(gains.record()).to_dict("records")
    (trend,) = gains.trends().query("ratio == 'token'").to_dict("records")
    assert [row[key] for key in ("trend", "trend_lo", "trend_hi")] == [
        trend[key] for key in ("trend", "trend_lo", "trend_hi")
    ]
    assert row["bytes_share"] == gains.prices()["bytes_share"].iloc[0]

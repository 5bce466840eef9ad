"""The main job on the embedded catalog.

The trend's golden values are data/trend_catalog_check.csv, made with another program from the same published scores: an
independent estimate.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pandas as pd
import pytest

from densing.report import build_replication
from densing.report.study import headline
from densing.scores.catalog import Selection, load_catalog
from densing.scores.density import catalog_densities
from densing.scores.references import load_reference
from densing.scores.study import PAPER_MONTHS, Study, StudyOptions, run_study
from densing.scores.trend import TrendData
from densing.scores.trend.estimators import envelope
from tests.support import folders

pytestmark = pytest.mark.slow

ORACLE = folders.DATA / "trend_catalog_check.csv"
WIDE = Selection(
    kinds=("base", "continued", "compressed"),
    derivations=(
        "scratch",
        "distilled",
        "continued",
        "long_context",
        "upscaled",
        "pruned",
        "pruned+distilled",
        "quantised",
    ),
    verified_only=False,
)


@pytest.fixture(scope="module")
def study() -> Study:
    return run_study(options=StudyOptions(today="2026-01-01"))


def test_papers_method_covers_its_figure_on_at_least_three_mean_rulers(study: Study) -> None:
    means = study.replication[study.replication["benchmark"] == "mean"]
    bounded = means[means["hi"].map(math.isfinite) & means["covers_paper"]]
    assert len(bounded) >= 3, "an interval without an upper end would cover anything"
    assert ((bounded["lo"] <= PAPER_MONTHS) & (bounded["hi"] >= PAPER_MONTHS)).all()


def test_headline_uses_what_it_says(study: Study) -> None:
    table = study.density.table
    assert set(table["kind"]) == {"base"}
    assert set(table["architecture"]) == {"dense"}
    assert table["verified"].all()
    assert table["released"].min() >= study.trend.data.released.min()
    assert study.selection == "dense, general, from-scratch base models with a sourced release date"
    assert study.apart is not None
    assert not set(study.apart.table["model"]) & set(table["model"])
    assert {"moe", "continued", "unverified date"} <= set(study.apart.table["stratum"])


def test_long_window_reaches_november_2025(study: Study) -> None:
    assert study.long_trend is not None
    assert str(study.long_trend.data.released.max())[:7] == "2025-11"
    assert len(study.long_trend.data) > len(study.trend.data)


def test_forecasts_that_have_passed_are_not_shown(study: Study) -> None:
    assert study.options["today"] == "2026-01-01"
    today = pd.Timestamp("2026-01-01")
    assert study.forecast.empty, "the headline's series of scores ends in 2024"
    assert study.past_forecast is not None
    assert study.past_forecast.end < today and study.past_forecast.score is None
    assert study.long_forecast is not None and (study.long_forecast["date"] >= today).all()
    assert study.long_trend is not None
    came = study.questions["note"].str.contains("exists")
    assert (study.questions.loc[~came, "date"].dropna() >= today).all()


def test_what_stands_before_quoting_is_the_long_windows_own(study: Study) -> None:
    """From an outside audit: 3.7 to 4.2 months, and 5.0 to 6.7 (3.7 to 32); break on 2023-09-27."""
    assert study.long_trend is not None
    caveats = " ".join(headline(study).caveats)
    assert study.long_trend.checks.breakpoint is not None
    assert str(study.long_trend.checks.breakpoint.searched.date) in caveats
    for trend in (study.trend, study.long_trend):
        (group,) = trend.checks.without_groups
        assert group.doubling_months is not None
        assert f"{group.doubling_months:.1f} months ({group.lo:.1f} to" in caveats
        assert group.families == ("Cerebras-GPT", "Pythia")
        assert group.doubling_months > trend.headline["doubling_months"]


def test_multiverse_varies_every_choice_and_marks_the_headline(study: Study) -> None:
    table = study.multiverse
    for column, least in (
        ("reference", 5),
        ("benchmark", 10),
        ("window", 2),
        ("denominator", 2),
        ("dates", 2),
        ("method", 2),
    ):
        assert table[column].nunique() >= least, column
    assert table["headline"].sum() == 1
    assert not table.duplicated(["reference", "benchmark", "window", "denominator", "dates", "method"]).any()


def test_skills_and_provenance_are_filled(study: Study) -> None:
    assert {"knowledge", "reasoning", "mathematics", "code"} == set(study.skills["skill"])
    assert (study.provenance["rows"] > 0).all()
    ccby = study.provenance[study.provenance["licence"].astype(str).str.contains("CC-BY")]
    assert ccby["attribution"].astype(bool).all(), "CC BY sources need their attribution wherever rows go"


def test_replication_page_states_both_sides(study: Study, tmp_path: Path) -> None:
    page = build_replication(study, tmp_path / "replication.md").read_text(encoding="utf-8")
    assert "as reported second-hand" in page
    assert study.trend.title in page and " between February 2023 and " in study.trend.title
    assert page.index("whole families shuffled") < page.index("## Details") < page.index("single models shuffled")
    assert all(name in page for name in ("qwen1.5", "llama", "pythia", "olmo-ladder"))


@pytest.mark.parametrize("row", [0, 2, 3, 4, 6])
def test_envelope_agrees_with_the_independent_estimate(row: int) -> None:
    """Slopes to 1 %, records exactly. Row 1 uses sizes in names; row 5 another cut near the ceiling."""
    with ORACLE.open(encoding="utf-8") as stream:
        oracle = list(csv.DictReader(stream))[row]
    kinds = ("base",) if oracle["kinds"] == "base" else WIDE.kinds
    selection = Selection(
        kinds=kinds, derivations=WIDE.derivations, verified_only=oracle["verified_dates_only"] == "True"
    )
    name = "llama" if "Llama" in oracle["reference"] else "qwen1.5"
    guard = 3.0 if oracle["guard"] == "True" else math.inf
    densities = catalog_densities(load_catalog(), load_reference(name, "mmlu"), selection=selection, guard=guard)
    chosen = densities.subset((densities.table["stratum"] == "headline").to_numpy())
    found = envelope(TrendData.from_density(chosen).window("2023-02-01", "2024-07-31"))
    assert found.n == int(oracle["frontier_n"])
    assert found.slope == pytest.approx(float(oracle["slope_ln_density_per_day"]), rel=0.01)

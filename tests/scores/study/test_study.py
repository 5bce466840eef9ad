"""The main job on the embedded catalog.

The trend's golden values are data/trend_catalog_check.csv, made with another program from the same published scores: an
independent estimate.
"""

from __future__ import annotations

import csv
import math
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from densing.report import build_replication
from densing.report.study import check_sentences, headline
from densing.scores.catalog import Selection, load_catalog
from densing.scores.density import catalog_densities
from densing.scores.references import SKILLS, build_reference
from densing.scores.study import PAPER_MONTHS, Study, StudyOptions, run_study
from densing.scores.trend import QUESTIONS, TrendData
from densing.scores.trend.answers import ROW_COLUMNS
from densing.scores.trend.estimators import envelope
from tests.support import folders

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("embedded_scale")]

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
    # Before the end of the headline's own forecast, so that there is one to show.
    return run_study(options=StudyOptions(today="2026-05-01"))


def test_papers_method_covers_its_figure_on_at_least_three_mean_references(study: Study) -> None:
    means = study.replication[study.replication["benchmark"] == "mean"]
    bounded = means[means["hi"].map(math.isfinite) & means["covers_paper"]]
    assert len(bounded) >= 3, "an interval without an upper end would cover anything"
    assert ((bounded["lo"] <= PAPER_MONTHS) & (bounded["hi"] >= PAPER_MONTHS)).all()


def test_the_replication_knows_the_joint_mean_but_no_skills(study: Study) -> None:
    joint = study.replication[study.replication["reference"].eq("joint")]
    assert joint["benchmark"].tolist() == ["mean"]


def test_headline_uses_what_it_says(study: Study) -> None:
    table = study.density.table
    assert set(table["kind"]) == {"base"}
    assert set(table["architecture"]) == {"dense"}
    assert table["verified"].all()
    assert table["released"].min() >= study.trend.data.released.min()
    assert study.selection == "dense, general, from-scratch or distilled base models with a sourced release date"
    assert study.apart is not None
    assert not set(study.apart.table["model"]) & set(table["model"])
    assert {"moe", "continued", "unverified date"} <= set(study.apart.table["stratum"])


def test_the_headline_is_the_joint_scale_to_the_last_model(study: Study) -> None:
    assert (study.reference.name, study.reference.benchmark) == ("joint", "mean")
    everyone = catalog_densities(load_catalog(), study.reference).headline.table
    since = everyone["released"] >= pd.Timestamp("2023-02-24")
    assert sorted(study.trend.data.model) == sorted(everyone.loc[since, "model"])
    last = f"{study.trend.data.released.max()!s:.7}"
    assert last >= "2026-03" and pd.Timestamp(last).strftime("%B %Y") in study.trend.title
    checks = study.trend.checks
    assert checks.permutation is not None and checks.breakpoint is not None
    assert checks.breakpoint.searched.p is not None and checks.breakpoint.searched.power


def test_the_papers_window_stands_beside_it(study: Study) -> None:
    assert study.comparison is not None and study.comparison.reference.name == "qwen1.5"
    assert study.comparison.trend.data.released.max() <= pd.Timestamp("2024-09-30")
    assert len(study.comparison.trend.data) < len(study.trend.data)


def test_forecasts_of_the_last_trend_are_shown(study: Study) -> None:
    today = pd.Timestamp("2026-05-01")
    assert (study.forecast["date"] >= today).all() and len(study.forecast)
    assert study.past_forecast is None
    assert study.long_forecast is not None and (study.long_forecast["date"] >= today).all()


def test_sensitivity_reads_other_models_of_the_same_scale(study: Study) -> None:
    table = study.sensitivity.set_index("choice")
    head = study.trend.headline
    first = table[table["headline"]]
    assert len(first) == 1 and first["doubling_months"].item() == pytest.approx(head["doubling_months"])
    assert (first["lo"].item(), first["hi"].item()) == pytest.approx((head["lo"], head["hi"]))
    assert study.trend.varying is not None
    assert first["year_lo"].item() == pytest.approx(study.trend.varying.last_year.doubling_interval[0])
    smaller = table[table["group"].eq("models")]
    assert len(smaller) == 2 and (smaller["n"] < first["n"].item()).all()
    others = table[~table["group"].isin(["models", "headline", "scores"])]
    assert len(others) == 4 and (others["n"] == first["n"].item()).all()
    assert table["doubling_months"].nunique() == len(table)


def test_what_stands_before_quoting_names_breaks_and_groups_of_both_windows(study: Study) -> None:
    """From an outside audit of the paper's window: 3.7 months, without research suites 4.2."""
    assert study.comparison is not None
    caveats = " ".join(sentence for _, sentence in check_sentences(study))
    for trend in (study.trend, study.comparison.trend):
        assert trend.checks.breakpoint is not None
        assert str(trend.checks.breakpoint.searched.date) in caveats
        (group,) = trend.checks.without_groups
        assert group.doubling_months is not None
        assert f"{group.doubling_months:.1f} months ({group.lo:.1f} to" in caveats
        assert group.families == ("Cerebras-GPT", "Pythia")
        assert group.doubling_months > trend.line["doubling_months"]
    assert "arXiv 2604.24827" in caveats, "what is known of facts stands before a doubling time is quoted"
    assert len(headline(study).caveats) == 1, "one lead caveat on the first screen"
    ratio = study.trend.headline["hi"] / study.trend.headline["lo"]
    assert ("The interval is wide" in caveats) == (ratio > 2)


def test_the_forecast_shown_is_the_one_that_won(study: Study) -> None:
    assert study.tested is not None
    choice, table = study.tested.outlook.choice, study.tested.table
    assert choice.forecaster in choice.tied and choice.lowest == table.loc[table["crps"].idxmin(), "forecaster"]
    assert choice.forecaster in study.tested.sentence and "90 %" in study.tested.sentence
    assert (study.tested.outlook.table["lo90"] < study.tested.outlook.table["hi90"]).all()


@pytest.fixture(scope="module")
def of_one_family() -> Study:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["densing.scores.study.alternatives"], "specs", lambda catalog, joint: iter(()))
        return run_study(options=StudyOptions("qwen1.5", today="2026-01-01"))


def test_a_reference_of_one_family_still_leads_when_it_is_asked_for(of_one_family: Study) -> None:
    """From an outside audit: 3.7 months; over the long window 5.0, without research suites 6.7, break on 2023-09-27."""
    study = of_one_family
    assert study.trend.line["doubling_months"] == pytest.approx(3.7, abs=0.05) and study.reference.name == "qwen1.5"
    assert study.comparison is not None and study.comparison.name == "The long window"
    assert str(study.comparison.trend.data.released.max())[:7] == "2025-11"
    assert study.comparison.trend.checks.breakpoint is not None
    assert str(study.comparison.trend.checks.breakpoint.searched.date) in " ".join(
        sentence for _, sentence in check_sentences(study)
    )
    assert study.sensitivity.empty and study.answers is None and study.tested is None and study.recall == ""
    assert study.forecast.empty, "its series of scores ends in 2024"
    assert study.past_forecast is not None and study.past_forecast.score is None
    assert study.long_forecast is not None and (study.long_forecast["date"] >= pd.Timestamp("2026-01-01")).all()


def test_the_catalog_answers_every_question(study: Study) -> None:
    assert study.answers is not None and len(study.answers) == len(QUESTIONS)
    for answer in study.answers:
        assert answer.estimable and answer.lo < answer.estimate < answer.hi and 0 < answer.p <= 1
        assert (answer.p < 0.05) == (answer.lo > 0 or answer.hi < 0) or abs(answer.p - 0.05) < 0.01
        assert set(answer.rows.columns) == set(ROW_COLUMNS)
    table = study.answers.table.set_index("key")
    assert (table["p_holm"] >= table["p"]).all()


def test_multiverse_varies_every_choice_and_marks_the_headline(study: Study) -> None:
    table = study.multiverse
    for column, least in (
        ("reference", 6),
        ("benchmark", 10),
        ("window", 2),
        ("denominator", 2),
        ("dates", 2),
        ("method", 2),
    ):
        assert table[column].nunique() >= least, column
    assert table["headline"].sum() == 1
    marked = table[table["headline"]].iloc[0]
    assert (marked["reference"], marked["window"]) == ("joint", "long")
    # Every specification is a straight line.
    assert marked["doubling_months"] == pytest.approx(study.trend.line["doubling_months"])
    assert {"mean", *SKILLS} == set(table.loc[table["reference"].eq("joint"), "benchmark"])
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
    # The other program had labels where the catalog has found counts since.
    catalog = load_catalog()
    models = catalog.models.set_index("model")
    found_since = ["BLOOM-176B", "Llama-2-70B", "Llama-2-7B", "MPT-30B", "MPT-7B"]
    for column in ("params_total_b", "params_active_b"):
        models.loc[found_since, column] = models.loc[found_since, "params_label_b"]
    catalog = replace(catalog, models=models.reset_index())
    reference = build_reference(catalog, name, "mmlu")
    densities = catalog_densities(catalog, reference, selection=selection, guard=guard)
    chosen = densities.subset((densities.table["stratum"] == "headline").to_numpy())
    found = envelope(TrendData.from_density(chosen).window("2023-02-01", "2024-07-31"))
    assert found.n == int(oracle["frontier_n"])
    assert found.slope == pytest.approx(float(oracle["slope_ln_density_per_day"]), rel=0.01)

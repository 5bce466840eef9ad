"""The main job with other options than its own: what a choice must not turn into a false statement."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from densing.core.errors import FitError, InputError
from densing.core.notes import Note
from densing.report.page import render
from densing.report.study import members, study_page
from densing.scores.catalog import Catalog, load_catalog
from densing.scores.density import catalog_densities, estimate_density, skill_densities
from densing.scores.references import load_reference
from densing.scores.study import PAPER_WINDOW, StudyOptions, multiverse, run_study
from densing.scores.study.alternatives import Spec, chatgpt_split, window_name
from densing.scores.study.study import _comparison, _part, _within, precision
from densing.scores.trend import Checks, TrendData, VarianceShares, estimate_trend
from densing.scores.trend.tobit import fit_headline


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


@pytest.fixture
def gsm8k_fit(tmp_path: Path) -> str:
    path = tmp_path / "mine.json"
    path.write_text(load_reference("qwen1.5", "gsm8k").fit.to_json(), encoding="utf-8")
    return str(path)


def test_a_reference_without_skills_has_no_skill_rows(catalog: Catalog, gsm8k_fit: str) -> None:
    assert skill_densities(catalog, "olmo-ladder").empty
    assert skill_densities(catalog, gsm8k_fit).empty, "one curve of GSM8K is not four skills"


def test_mmlu_is_not_read_on_a_reference_that_cannot_read_it(catalog: Catalog, gsm8k_fit: str) -> None:
    assert "cloze" in str(chatgpt_split(catalog, "olmo-ladder").reason)
    assert "fitted on gsm8k" in str(chatgpt_split(catalog, gsm8k_fit).reason)
    with pytest.raises(FitError, match="cloze"):
        _comparison(catalog, StudyOptions(reference="olmo-ladder"))


def test_a_part_that_cannot_be_made_says_so_in_the_study_and_on_the_page_where_it_would_stand() -> None:
    """It was left out in silence: the page looked whole."""
    scores = [
        {"model": f"mine-{n}", "family": f"mine, line {n % 3}", "params": 1e9, "score": 0.3 + 0.02 * n,
         "benchmark": "openbookqa", "released": f"2024-{n:02d}-15"}
        for n in range(1, 7)
    ]  # fmt: skip
    study = run_study(load_catalog(scores, embedded=False), StudyOptions("olmo-ladder", "openbookqa"))
    assert study.comparison is None
    [note] = [note for note in study.notes if note.code == "part-missing"]
    assert note.message.startswith("The comparison with another reference and window failed: ")
    assert (note.severity, note.details) == ("warning", {"part": "beside"}) and "cloze" in note.message
    page = render(study_page(study))
    assert '<section id="beside"' in page and page.split('<section id="beside"')[1].index("cloze") < 1000
    assert '<section id="answers"' not in page, "on a reference of one family no question is asked"


def test_only_errors_of_ours_are_reasons() -> None:
    notes: list[Note] = []
    assert _part("answers", lambda: 3, notes) == 3 and not notes

    def fails(error: Exception) -> Any:
        raise error

    assert _part("tested", lambda: fails(FitError("two models")), notes) is None
    assert [note.message for note in notes] == ["The forecast that won its test failed: two models"]
    with pytest.raises(ZeroDivisionError):
        _part("tested", lambda: fails(ZeroDivisionError()), notes)


def test_what_stands_beside_does_not_repeat_the_headline(catalog: Catalog) -> None:
    assert _comparison(catalog, StudyOptions("qwen1.5", "mmlu")) is None


@pytest.mark.slow
def test_beside_one_family_stands_its_longest_window(catalog: Catalog) -> None:
    comparison = _comparison(catalog, StudyOptions("qwen1.5"))
    assert comparison is not None
    assert (comparison.name, comparison.reference.benchmark) == ("The long window", "mmlu")
    assert str(comparison.trend.data.released.max())[:7] == "2025-11"


@pytest.mark.slow
def test_beside_the_joint_scale_stands_the_papers_window(catalog: Catalog) -> None:
    comparison = _comparison(catalog, StudyOptions(since="2024-01-01"))
    assert comparison is not None
    assert (comparison.name, comparison.reference.name, comparison.reference.benchmark) == (
        "The paper's window",
        "qwen1.5",
        "mean",
    )
    released = pd.DatetimeIndex(comparison.trend.data.released)
    assert released.min() == pd.Timestamp(PAPER_WINDOW[0]) and released.max() <= pd.Timestamp(PAPER_WINDOW[1])


def trend_of(lo: float, hi: float, shares: VarianceShares | None) -> Any:
    days = pd.to_datetime(["2023-03-01", "2024-03-01", "2026-01-15", "2026-03-01"])
    data = SimpleNamespace(released=days.to_numpy(), family=np.array(["a", "b", "c", "c"]))
    return SimpleNamespace(headline={"lo": lo, "hi": hi}, checks=Checks(variance_shares=shares), data=data)


def test_a_wide_interval_says_what_would_narrow_it() -> None:
    shares = VarianceShares(score_noise=None, reference_law=0.2, models=0.8)
    prose = precision(trend_of(4.0, 9.0, shares))
    assert "factor of 2.2" in prose and "80 % of the variance" in prose
    assert "1 of the 3 stem from the last 6 months" in prose and "20 % is the reference" in prose
    assert "reference" not in precision(trend_of(4.0, 9.0, VarianceShares(None, 0.01, 0.99)))
    assert precision(trend_of(4.0, 8.0, shares)) == "", "a factor of two is what was aimed at"
    assert "are not both known" in precision(trend_of(4.0, math.inf, shares))
    assert precision(trend_of(math.inf, math.inf, shares)) == precision(trend_of(math.nan, math.nan, shares)) == ""


@pytest.mark.parametrize(
    ("name", "since", "until", "window"),
    [
        ("qwen1.5", *PAPER_WINDOW, "paper"),
        ("qwen1.5", PAPER_WINDOW[0], None, "paper"),  # its series of mean scores ends before September 2024
        ("qwen2.5", PAPER_WINDOW[0], None, "long"),
        ("qwen2.5", *PAPER_WINDOW, "paper"),
        ("qwen1.5", "2024-01-01", None, "asked"),
        ("qwen1.5", PAPER_WINDOW[0], "2024-03-01", "asked"),
    ],
)
def test_windows_go_by_their_own_names(catalog: Catalog, name: str, since: str, until: str | None, window: str) -> None:
    densities = catalog_densities(catalog, load_reference(name))
    kept = densities.subset((densities.table["stratum"] == "headline").to_numpy())
    assert window_name(since, until, kept) == window


def test_a_window_leaves_the_table_that_it_is_read_from_as_it_is(catalog: Catalog) -> None:
    densities = catalog_densities(catalog, load_reference("qwen1.5"))
    before = densities.table.copy()
    inside = _within(densities, "2024-01-01", "2024-06-30")
    pd.testing.assert_frame_equal(densities.table, before)
    assert inside.headline.table["released"].between("2024-01-01", "2024-06-30").all()
    outside = inside.table["stratum"].eq("outside the window")
    assert outside.any() and before.loc[outside, "stratum"].eq("headline").all()


@pytest.fixture
def no_usual_specs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys.modules["densing.scores.study.alternatives"], "specs", lambda catalog, joint: iter(()))
    return


@pytest.mark.usefixtures("no_usual_specs")
@pytest.mark.parametrize("guard", [1.0, 3.0])
def test_multiverse_holds_the_headline_that_was_asked_for(catalog: Catalog, guard: float) -> None:
    asked = (PAPER_WINDOW[0], "2024-03-01")
    table = multiverse(catalog, Spec("qwen1.5", "mmlu", "asked"), guard=guard, asked=asked)
    densities = catalog_densities(catalog, load_reference("qwen1.5", "mmlu"), guard=guard)
    kept = densities.subset((densities.table["stratum"] == "headline").to_numpy())
    line = fit_headline(TrendData.from_density(kept).window(*asked).ordered()).slope
    marked = table[table["headline"]]
    assert marked["slope_per_day"].tolist() == pytest.approx([line.slope])
    assert marked["n"].tolist() == [line.n]


@pytest.mark.usefixtures("no_usual_specs")
def test_combinations_are_kept_as_they_were_made_and_those_on_a_fit_of_ones_own_are_not(
    catalog: Catalog, gsm8k_fit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DENSING_CACHE", str(tmp_path))
    made, kept = (multiverse(catalog, Spec("qwen1.5", "mmlu", "paper"), keep=True) for _ in range(2))
    pd.testing.assert_frame_equal(made, kept)
    assert len(multiverse(catalog, Spec(gsm8k_fit, "gsm8k", "paper"), keep=True))
    assert len(list((tmp_path / "results").iterdir())) == 1, "what stands at a path may change"


def test_models_beyond_the_reference_that_beat_the_record_are_named() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "model": [f"m{i}" for i in range(20)],
            "family": [f"f{i % 8}" for i in range(20)],
            "released": pd.Timestamp("2023-03-01") + pd.to_timedelta(np.arange(20) * 30, unit="D"),
            "log_density": np.append(rng.normal(0, 0.5, 19), 3.0),
            "censor": [0] * 19 + [1],
        }
    )
    notes = {note.code: note for note in estimate_trend(TrendData.from_frame(frame), permutations=19, worlds=0).notes}
    assert notes["denser-than-record"].details["models"] == ["m19"]
    lower = frame.assign(log_density=np.append(frame["log_density"][:19], -3.0))
    codes = {note.code for note in estimate_trend(TrendData.from_frame(lower), permutations=19, worlds=0).notes}
    assert "denser-than-record" not in codes, "a limit below the record says nothing about it"


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [
        ("qwen1.5", {"denominator": "non_embedding"}, "mixed-counting"),
        ("qwen1.5", {"guard": math.inf}, "no-guard"),
    ],
)
def test_a_choice_that_shifts_densities_is_said(name: str, options: dict[str, Any], code: str) -> None:
    scores = pd.DataFrame(
        {"model": ["a"], "score": [0.5], "score_se": [0.01], "params_total": [7e9], "params_non_embedding": [6e9]}
    )
    reference = load_reference(name, "mmlu")
    assert code in {note.code for note in estimate_density(scores, reference, **options).notes}
    assert code not in {note.code for note in estimate_density(scores, reference).notes}


def test_report_counts_the_references_own_models() -> None:
    reference = SimpleNamespace(points=pd.DataFrame({"model": ["a", "b"]}))
    trend = SimpleNamespace(data=SimpleNamespace(model=np.array(["a", "c", "d"])))
    study: Any = SimpleNamespace(reference=reference, trend=trend)
    assert members(study).startswith("1 of these 3 models belongs to the reference family")
    study.trend.data.model = np.array(["c"])
    assert members(study) == ""


@pytest.mark.parametrize(
    ("change", "words"), [({"score_se": math.nan}, "column score_se: nan"), (None, "no column score_se")]
)
def test_a_score_needs_a_standard_error(change: dict[str, float] | None, words: str) -> None:
    scores = pd.DataFrame({"model": ["a"], "score": [0.5], "params_total": [7e9]})
    with pytest.raises(InputError, match=words):
        estimate_density(scores if change is None else scores.assign(**change), load_reference("qwen1.5", "mmlu"))

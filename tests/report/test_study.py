"""The report as text: escaping, words, order, policy and the cases in which there is little to show."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core.errors import InputError
from densing.core.notes import Note
from densing.report import build_report
from densing.report import study as report
from densing.report.page import command_line, packed, render
from densing.report.study import (
    all_notes,
    answers_table,
    check_sentences,
    figures,
    headline,
    models_table,
    sensitivity_words,
    study_page,
    yours_table,
)
from densing.report.tables import safe_url, sort_key
from densing.scores.study import LocalEvaluation, Split
from densing.scores.trend import (
    PAPER,
    Backtest,
    BreakTests,
    ByOrganisation,
    Checks,
    LeaveOneOut,
    LeftOut,
    PermutationTests,
    SearchedBreak,
    ShuffleTest,
    StatedBreak,
    WithoutGroup,
)
from densing.scores.trend.sentences import left_out, shuffled
from tests.support import report_fixture as fixture
from tests.support import report_frames as frames
from tests.support.report_pages import STUDY_SECTIONS, Page, built_for_everyone, column


@pytest.fixture(scope="module")
def study() -> Any:
    return fixture.study()


@pytest.fixture(scope="module")
def source(study: Any) -> str:
    return render(study_page(study))


@pytest.fixture(scope="module")
def page(source: str) -> Page:
    return Page(source)


def altered(study: Any, **changes: Any) -> Any:
    return SimpleNamespace(**{**vars(study), **changes})


def comparison_with(study: Any, trend: Any) -> Any:
    return altered(study, comparison=SimpleNamespace(**{**vars(study.comparison), "trend": trend}))


def test_hostile_text_stays_text(page: Page, source: str) -> None:
    assert not page.all("img")
    assert len(page.all("script")) == 14 + 1 + 2  # figures, palette, plotly.js and ours
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    words = " ".join(page.words)
    for hostile in (frames.HOSTILE, fixture.BREAKOUT, fixture.LINKED, "%{x} {{ 7 * 7 }}"):
        assert hostile in words
    assert source.count("window.hacked=1</script>") == 0


def test_links_are_web_addresses_or_anchors(page: Page) -> None:
    links = page.all("a")
    outside = [link for link in links if not str(link["href"]).startswith("#")]
    assert outside and all(str(link["href"]).startswith("https://example.org/") for link in outside)
    assert all("noopener" in str(link["rel"]) for link in outside)
    names = {attributes.get("id") for _, attributes in page.tags}
    assert all(str(link["href"])[1:] in names for link in links if str(link["href"]).startswith("#"))


@pytest.mark.usefixtures("drawn_once")
def test_what_could_not_be_made_is_said_where_it_would_stand(study: Any) -> None:
    def missing(part: str) -> Note:
        return Note("part-missing", "warning", f"It could not be made: no {part}, {frames.HOSTILE}", {"part": part})

    lacking = altered(study, comparison=None, notes=[missing(part) for part in ("answers", "beside", "tested")])
    source = render(study_page(lacking))
    for part, section in (("answers", "answers"), ("beside", "beside"), ("tested", "forecast")):
        assert f"no {part}, " in source.split(f'<section id="{section}"')[1].split("</section>")[0]
    assert frames.HOSTILE not in source
    assert not report._comparison(altered(study, comparison=None), {})


def test_nothing_is_fetched(page: Page) -> None:
    assert not [attributes for _, attributes in page.tags if "src" in attributes or "srcset" in attributes]
    assert [link["href"] for link in page.all("link")] == ["data:,"]
    policy = next(meta["content"] for meta in page.all("meta") if meta.get("http-equiv"))
    assert str(policy).startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in str(policy).split(";")[1]


def test_figures_are_json_with_a_caption(page: Page) -> None:
    figures = [name for name in page.script_text if name.startswith("data-plot-")]
    assert len(figures) == 14
    for name in figures:
        assert {"data", "layout"} <= json.loads(page.script_text[name]).keys()
    plots = [attributes for attributes in page.all("div") if attributes.get("class") == "plot"]
    captions = {attributes["id"] for attributes in page.all("figcaption")}
    assert {plot["aria-labelledby"] for plot in plots} == captions


def test_page_is_built_for_everyone(page: Page) -> None:
    built_for_everyone(page)


def test_sections_come_in_the_promised_order(page: Page) -> None:
    # Sections of ladders, verdicts and questions, of which this report was given none, are left out.
    assert [section["id"] for section in page.all("section")] == [
        name for name in STUDY_SECTIONS if name not in ("gains", "worth", "answers", "front")
    ]


def test_headline_comes_with_its_caveats(study: Any) -> None:
    first = headline(study)
    window = "between February 2023 and August 2024"
    assert first.title == f"Capability density doubled every 3.5 months {window} (95 % interval 2.5 to 5.9)"
    assert "44 models of 9 families, released February 2023 to August 2024" in first.lead
    lead, wrong = first.caveats
    assert "dense, general" in lead and "with another reference or other models" in lead and "1 warning" in lead
    assert wrong.startswith("A note with"), "what is wrong with the data stands on the first screen"
    words = " ".join(sentence for _, sentence in check_sentences(study))
    for wanted in ("shuffled", "the long window", "Record-setters"):
        assert wanted in words
    assert "6.4 months" in words and "a slower pace, and the intervals overlap" in words


def test_unbounded_headline_does_not_claim_growth(study: Any) -> None:
    rows = frames.estimates().assign(hi=np.inf)
    open_ended = fixture.FakeTrend(study.density.table, rows, Checks(), 0.006)
    words = headline(altered(study, trend=open_ended, comparison=None))
    window = "between February 2023 and August 2024"
    assert words.title.startswith(
        f"Capability density may have doubled every 3.5 months {window} (95 % interval: at least"
    )
    assert "cannot be excluded that density stands still" in words.lead
    flat = fixture.FakeTrend(study.density.table, rows.assign(doubling_months=np.inf), Checks(), 0.0)
    flat_title = f"Models released {window} show no growth of capability density"
    assert headline(altered(study, trend=flat)).title == flat_title


def test_warnings_of_the_trend_open_the_checks(study: Any) -> None:
    assert "9 families; CRV3 wants more." in dict(check_sentences(study))["Notes"]


def test_notes_of_other_windows_say_so(study: Any) -> None:
    other = fixture.FakeTrend(study.density.table, frames.estimates(), Checks(), 0.006)
    other.notes = (Note("break", "warning", "the pace changes"), *other.notes)
    messages = [note.message for note in all_notes(comparison_with(study, other))]
    assert "The long window: the pace changes" in messages
    assert [message for message in messages if "9 families" in message] == ["9 families; CRV3 wants more."]
    severities = [note.severity for note in all_notes(study)]
    assert severities == sorted(severities, key=["error", "warning", "info"].index)
    assert set(severities) == {"error", "warning", "info"}


def test_no_check_is_invented(study: Any) -> None:
    bare = fixture.FakeTrend(study.density.table, frames.estimates(), Checks(), 0.006)
    sentences = check_sentences(
        altered(
            study, trend=bare, comparison=None, split=Split(), sensitivity=frames.sensitivity().head(0), precision=""
        )
    )
    assert [name for name, _ in sentences] == ["Notes", "Models in the headline", "Replication"]


@pytest.mark.parametrize(("p", "verdict"), [(0.01, "seldom"), (0.3, "by chance")])
def test_permutation_is_judged_by_whole_families(p: float, verdict: str) -> None:
    single, blocks = (ShuffleTest(value, 0.006, 0.0, None, ()) for value in (0.001, p))
    checks = Checks(permutation=PermutationTests(999, single, single, blocks))
    assert verdict in shuffled(checks) and "0.001" not in shuffled(checks)


def test_tests_without_power_or_size_stay_in_the_details(study: Any, page: Page) -> None:
    """The p-values of the envelope and of single models, .031 and .001, stand in a closed table and nowhere before."""
    words = " ".join(page.words)
    assert words.index("Other tests, which do not lead") < words.index("0.031")
    assert "0.031" not in " ".join(headline(study).caveats)
    assert not any("0.031" in sentence for _, sentence in check_sentences(study))


@pytest.mark.slow
def test_a_fan_that_beats_nothing_is_not_in_the_first_figure(study: Any) -> None:
    def drawn(errors: dict[str, float], **changes: Any) -> dict[str, bool]:
        found = figures(altered(study, backtest=replace(study.backtest, **errors), **changes))
        return {name: "forecast frontier" in str(found[name].json) for name in found if name in FANS}

    assert drawn({}) == {"density": True, "beside": True}
    worse = {"frontier_error": -0.6, "standstill_error": 0.5, "closer": 0.2}
    assert drawn(worse) == {"density": False, "beside": False, "forecast": True}
    gone = study.forecast.head(0)
    assert drawn(worse, forecast=gone, long_forecast=gone) == {"density": False, "beside": False}
    assert drawn({}, forecast=gone) == {"density": False, "beside": True}


FANS = ("density", "beside", "forecast")


def test_what_is_said_before_quoting_names_break_and_groups_of_the_long_window(study: Any) -> None:
    bend = SearchedBreak("2023-09-27", 0.015, None, 15, 0.02, 0.0008, size=0.07, power=())
    stated = StatedBreak("2022-11-30", 0, 41, None, "no observed model before the date")
    ends = {"slope_per_day": 0.0034, "doubling_months": 6.7, "lo": 3.7, "hi": 32.0, "reason": None}
    checks = Checks(
        breakpoint=BreakTests(stated, bend, PAPER, 199),
        without_groups=(WithoutGroup(group="research suites", families=("A", "B"), n=12, **ends),),
        organisations=ByOrganisation(31, 2.7, 40.0),
    )
    later = fixture.FakeTrend(study.comparison.density.table, frames.estimates(), checks, 0.003)
    caveats = " ".join(sentence for _, sentence in check_sentences(comparison_with(study, later)))
    assert "2023-09-27, has p = 0.015" in caveats and "without a break, the 5 % test rejects 7 % (size)" in caveats
    assert "With the 31 organisations taken as independent" in caveats and "interval is 2.7 to 40.0 months" in caveats
    assert "Without research suites (A, B) the straight line's doubling time is 6.7 months (3.7 to 32.0)" in caveats


def test_your_models_have_a_section_with_their_places(study: Any, page: Page) -> None:
    table = yours_table(study.placed)
    assert column(table, "Of its size") == ["1 of 9", "4 of 11"] and column(table, "Of its year") == ["–", "5 of 20"]
    words = " ".join(page.words)
    assert "Your models" in words and f"mine {frames.HOSTILE}" in words and "mine-7B: fewer than 3 scores." in words
    assert not report._yours(altered(study, placed=None))


def test_which_organisation_matters_most_has_one_answer(study: Any) -> None:
    """Of EleutherAI there is one family: its figure repeats Pythia's, and it still moves the headline most."""
    families = (
        LeftOut("Pythia", 8, 0.0042, 5.5),
        LeftOut("Falcon3", 4, 0.0044, 5.2),
        LeftOut("Falcon-H1", 5, 0.0046, 5.0),
    )
    makers = (LeftOut("EleutherAI", 8, 0.0042, 5.5), LeftOut("TII", 9, 0.0043, 5.3))
    checks = Checks(
        leave_one_family_out=LeaveOneOut("family", families, 5.0, 5.5, "Pythia"),
        leave_one_organisation_out=LeaveOneOut("organisation", makers, 5.3, 5.5, "EleutherAI"),
    )
    trend = fixture.FakeTrend(study.density.table, frames.estimates(), checks, 0.003)
    said = dict(check_sentences(altered(study, trend=trend)))["Leave out"]
    assert said == left_out(checks) and "EleutherAI moves it most" in said and "TII" not in said


@pytest.mark.usefixtures("drawn_once")
def test_answers_stand_before_what_must_be_known(study: Any) -> None:
    nan, single = float("nan"), ("pace", frames.HOSTILE, "slower", -0.4, -1.2, 0.3, "doublings per year", 0.21, "Wald")
    unknown = ("experts", "Which size counts?", "The data do not say.", nan, nan, nan, "share", nan, "none")
    names = ["key", "question", "answer", "estimate", "lo", "hi", "unit", "p", "test"]
    one = SimpleNamespace(question=frames.HOSTILE, caveats=("late models are few",))
    answers = SimpleNamespace(table=pd.DataFrame([single, unknown], columns=names), answers=(one,))
    table = answers_table(answers)
    assert table is not None
    assert column(table, "95 % interval") == ["−1.2 to 0.30", "–"] and column(table, "Estimate")[1] == "–"
    words = " ".join(Page(render(study_page(altered(study, answers=answers)))).words)
    assert words.index("Before you quote it") < words.index("Questions and answers") < words.index("Every model")
    assert "Late models are few." in words and frames.HOSTILE in words


def test_a_forecast_that_won_its_back_test_opens_its_section(study: Any) -> None:
    tried = pd.DataFrame(
        {"origin": "2025-11-14", "forecaster": [frames.HOSTILE, "standing still"], "crps": [0.41, 0.5]}
    )
    came = pd.DataFrame({"model": [frames.HOSTILE], "released": [pd.Timestamp("2026-01-01")], "params": [1e9]})
    came = came.assign(origin="2025-11-14", density=0.731, forecast=0.5, lo90=0.1, hi90=2.0)
    tested = SimpleNamespace(
        sentence="The line won in 3 of 4 years.",
        table=tried,
        backtest=SimpleNamespace(models=lambda forecaster: came),
        outlook=SimpleNamespace(choice=SimpleNamespace(forecaster=frames.HOSTILE)),
    )
    page = Page(render(study_page(altered(study, tested=tested))))
    words = " ".join(page.words)
    assert "The line won in 3 of 4 years." in words and "0.41" in words and frames.HOSTILE in words
    assert "came: 0.73" in page.script_text["data-plot-tested"], "the figure sets what came beside the forecast"


def test_sensitivity_names_both_ends() -> None:
    assert sensitivity_words(frames.sensitivity()) == (
        "With one choice another the doubling time is 3.1 months (measured on all 4 skills: 2.2 to 5.0) to "
        "4.4 months (with unverified dates: ≥ 2.6) in place of 3.5."
    )
    assert sensitivity_words(frames.sensitivity().head(1)) == sensitivity_words(frames.sensitivity().head(0)) == ""


def test_models_are_ranked_among_the_headlines_own(study: Any) -> None:
    table = models_table(study)
    ranks = [
        rank for rank, group in zip(column(table, "Rank"), column(table, "Group"), strict=True) if group == "headline"
    ]
    numbers = [int(rank) for rank in ranks if rank != "–"]
    assert numbers == sorted(numbers) and numbers[0] == 1
    others = {
        rank for rank, group in zip(column(table, "Rank"), column(table, "Group"), strict=True) if group != "headline"
    }
    assert others == {"–"} and "yours" in column(table, "Group")


def test_second_hand_figures_are_labelled(page: Page) -> None:
    words = " ".join(page.words)
    assert words.count("3.5 months") >= 1
    for match in re.finditer(r"journal version ?3.5 months", words):
        assert words[match.end() : match.end() + 26] == ", as reported second-hand."


def test_a_study_with_nothing_in_it_still_makes_a_page(study: Any) -> None:
    empty = altered(
        study,
        apart=None,
        comparison=None,
        placed=None,
        sensitivity=study.sensitivity.head(0),
        long_forecast=None,
        skills=study.skills.head(0),
        multiverse=study.multiverse.head(0),
        replication=study.replication.head(0),
        forecast=study.forecast.head(0),
        corollaries=study.corollaries.head(0),
        backtest=Backtest(n=0),
        provenance=study.provenance.head(0),
        notes=(),
        hashes={},
    )
    words = " ".join(Page(render(study_page(empty))).words)
    assert "There are no rows." in words


def test_missing_cells_are_dashes(study: Any) -> None:
    table = study.density.table.copy()
    for name in table.columns.difference(["model", "released", "density", "bound"]):
        table[name] = table[name].astype(object)
        table.loc[5, name] = None
    table.loc[6, ["density", "density_lo", "density_hi", "released"]] = [np.nan, np.nan, np.nan, pd.NaT]
    holed = SimpleNamespace(**{**vars(study.density), "table": table})
    words = Page(render(study_page(altered(study, density=holed)))).words
    assert "nan" not in {word.strip().lower() for word in words}
    assert "NaT" not in " ".join(words) and "None" not in {word.strip() for word in words}


@pytest.mark.usefixtures("drawn_once")
def test_report_is_written_whole_and_no_larger_than_needed(study: Any, tmp_path: Path) -> None:
    path = build_report(study, tmp_path / "deep" / "report.html")
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert path.stat().st_size < 2_400_000  # plotly.js is 2.0 MB of it, packed
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]


def test_a_secret_in_the_command_line_is_masked() -> None:
    said = command_line(["densing", "eval", "--model_args", "api_key=sk-abcdefghijklmnop"])
    assert said.startswith("densing eval --model_args") and "abcdefgh" not in said


@pytest.mark.usefixtures("drawn_once")
def test_an_unwritable_place_is_named(study: Any, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("x", encoding="utf-8")
    with pytest.raises(InputError, match="cannot write"):
        build_report(study, blocked / "report.html")


@given(
    st.recursive(
        st.text() | st.none() | st.booleans(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_what_is_packed_keeps_the_value_and_closes_nothing(value: Any) -> None:
    written = packed(json.dumps(value))
    assert json.loads(gzip.decompress(base64.b85decode(str(written).replace(",", "<")))) == value
    assert re.fullmatch(r"[^\s<]+", written), "without a '<' nothing ends a script"


@given(st.text())
def test_only_web_addresses_become_links(address: str) -> None:
    found = safe_url(address)
    assert found == "" or re.match(r"https?://[^\s@/]+", found)


@pytest.mark.parametrize(
    "address",
    [
        "javascript:alert(1)",
        " jAvAsCrIpT:alert(1)",
        "data:text/html,x",
        "//host/x",
        "https:///x",
        "http://[bad",
        "ftp://a/b",
    ],
)
def test_other_schemes_never_become_links(address: str) -> None:
    assert safe_url(address) == ""


def test_sort_keys_order_as_numbers_do() -> None:
    values = [3.0, float("-inf"), 10.0, float("inf"), -2.0]
    keys = [sort_key(value).replace("Infinity", "inf") for value in values]
    assert sorted(values) == sorted(map(float, keys))
    assert sort_key("text") == sort_key(None) == sort_key(pd.NaT) == ""


def test_a_missing_measurement_says_what_to_install(study: Any) -> None:
    bare = altered(study, measured=LocalEvaluation(missing='lm-eval is not installed; pip install "densing[evals]"'))
    page = render(study_page(bare))
    assert "Measured here" in page
    assert "lm-eval is not installed; pip install" in page
    assert "data-plot-measured" not in page
    assert not report._measured(altered(study, measured=None), {})

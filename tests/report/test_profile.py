"""The report of a profile as text: escaping, words, order, policy, and the cases in which there is little to show."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densing.core.errors import InputError
from densing.efficiency.profile.comparison import compare
from densing.efficiency.profile.run import RunProfile
from densing.efficiency.timeline.overlap import Partition
from densing.report import build_profile_report
from densing.report.document import MOST_NOTES, Prose, sentences
from densing.report.page import render
from densing.report.profile import (
    caveats,
    changes_section,
    chosen_pictures,
    clock_words,
    copies_table,
    headline,
    idle_table,
    loading_words,
    profile_page,
    steps_table,
    straggler_words,
    waits_table,
    worst,
)
from densing.report.tables import ShownTable, page_table
from tests.support import efficiency_runs as runs
from tests.support import folders
from tests.support.report_pages import Page, built_for_everyone, column


def altered(record: Any, **changes: Any) -> Any:
    if isinstance(record, msgspec.Struct):
        return msgspec.structs.replace(record, **changes)
    return SimpleNamespace(**{**vars(record), **changes})


@pytest.fixture(scope="module")
def run() -> RunProfile:
    return runs.run()


SECTIONS = [
    "headline",
    "causes",
    "partition",
    "kernels",
    "timeline",
    "collectives",
    "stragglers",
    "idle",
    "path",
    "steps",
    "copies",
    "changes",
    "notes",
    "definitions",
    "versions",
]


@pytest.fixture(scope="module")
def source(run: RunProfile) -> str:
    compared = compare(runs.steps_of(1e6), runs.steps_of(1.2e6))
    return render(profile_page(run, baseline=compared))


def test_a_what_if_is_drawn_beside_the_recorded_step(run: RunProfile) -> None:
    page = profile_page(run, changes=[run.what_if("link=4x"), run.what_if("hide=all_reduce")])
    first, second = (section for section in page.sections if section.name.startswith("what-if"))
    assert run.what_if("link=4x").sentence in str(first.blocks) and "hide=all_reduce" in second.title
    assert "compute" in first.blocks[0].json and first.blocks[0].json != second.blocks[0].json


@pytest.fixture(scope="module")
def page(source: str) -> Page:
    return Page(source)


def test_hostile_text_stays_text(page: Page, source: str) -> None:
    assert not page.all("img")
    assert len(page.all("script")) == runs.FIGURES + 1 + 2  # figures, palette, plotly.js and ours
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    words = " ".join(page.words)
    for hostile in (runs.HOSTILE, runs.BREAKOUT, runs.TEMPLATE):
        assert hostile in words
    assert source.count("window.hacked=1</script>") == 0


def test_nothing_is_fetched(page: Page) -> None:
    assert not [attributes for _, attributes in page.tags if "src" in attributes or "srcset" in attributes]
    assert [link["href"] for link in page.all("link")] == ["data:,"]
    policy = next(meta["content"] for meta in page.all("meta") if meta.get("http-equiv"))
    assert str(policy).startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in str(policy).split(";")[1]


def test_links_lead_to_sections(page: Page) -> None:
    names = {attributes.get("id") for _, attributes in page.tags}
    assert all(str(link["href"])[0] == "#" and str(link["href"])[1:] in names for link in page.all("a"))


def test_figures_are_json_with_a_caption(page: Page) -> None:
    figures = [name for name in page.script_text if name.startswith("data-plot-")]
    assert len(figures) == runs.FIGURES
    for name in figures:
        assert {"data", "layout"} <= json.loads(page.script_text[name]).keys()
        assert "NaN" not in page.script_text[name] and "Infinity" not in page.script_text[name]
    plots = [attributes for attributes in page.all("div") if attributes.get("class") == "plot"]
    captions = {attributes["id"] for attributes in page.all("figcaption")}
    assert {plot["aria-labelledby"] for plot in plots} == captions


def test_page_is_built_for_everyone(page: Page) -> None:
    built_for_everyone(page)


def test_sections_come_in_the_promised_order(page: Page, run: RunProfile) -> None:
    assert [section["id"] for section in page.all("section")] == SECTIONS
    bare = Page(render(profile_page(run)))
    left = [name for name in SECTIONS if name not in ("changes", "density")]
    assert [section["id"] for section in bare.all("section")] == left
    assert [link["href"] for link in bare.all("a")[2:]] == [f"#{name}" for name in left[1:]]


def test_headline_says_what_was_hidden_and_exposed(run: RunProfile) -> None:
    told = headline(run)
    # Per step: 3 ranks communicate 400 µs with 200 under compute, the late one 250 with 50. Launched back to back the
    # work would take 540 µs of every 1000.
    assert told.title == "46.0 % of the time, 460 µs per step, is lost: devices wait for the host"
    assert "44.8 % of the communication was hidden; 200 µs per step were exposed." in told.lead
    assert "Over 6 steps on each of 4 ranks (window steps:" in told.lead
    assert "computed 50.0 % of the time" in told.lead and "did nothing 26.0 %" in told.lead
    facts = dict(told.facts)
    assert facts["Exposed communication"] == "200 µs per step (20.0 %)" and facts["Step time, median"] == "1.00 ms"
    assert facts["Ranks"] == "4" and facts["Window"] == "steps"


def test_caveats_are_those_that_hold(run: RunProfile) -> None:
    whole = Partition(100, 100, 50, 30, 0, 10, 20, 0, 30)
    words = " ".join(caveats(run, whole))
    assert "4 events were left out, 0 were kept after repair" in words and "not the same as blocking" in words
    assert "ranks were" not in words and "accelerator" not in words
    part = altered(run, ranks=run.ranks[:2])
    assert "Of 4 ranks 2 were profiled (ranks 0, 1)" in " ".join(caveats(part, whole))
    host = altered(run, ranks=tuple(altered(rank, on_host=True) for rank in run.ranks))
    assert "no accelerator" in " ".join(caveats(host, whole))
    assert "Other windows" in " ".join(caveats(altered(run, window="all"), whole))


def test_worst_causes_come_with_cost_and_remedy(run: RunProfile) -> None:
    rows = worst(run)
    assert 0 < len(rows) <= 3
    won = [cause.gain_ms_per_step for cause in run.causes]
    assert won == sorted(won, reverse=True)
    assert headline(run).title.endswith(run.causes[0].title)
    assert all("per step (" in row.tag and row.text and row.remark for row in rows)


def test_collectives_table(run: RunProfile) -> None:
    table = page_table("collectives-table", run.collectives_listing())
    assert column(table, "Operation") == ["all_reduce"] and column(table, "Ranks") == ["4"]
    assert column(table, "Calls") == ["24"] and column(table, "Size, mean") == ["4.00 kB"]
    assert column(table, "Hidden") == ["44.8 %"] and column(table, "Exposed per step") == ["200 µs"]
    # Of 3 · 400 + 250 µs, three ranks wait 150: transfer is the late rank's 250.
    assert column(table, "Waiting") == [f"{100 * 450 / 1450:.1f} %"]
    # 4000 bytes in (3 · 400 + 250)/4 µs on average; two-fold times 3/4 on the bus.
    algorithm = 24 * 4000 / (6 * 1_450_000)
    assert float(column(table, "algbw GB/s")[0]) == pytest.approx(algorithm, rel=5e-3)
    assert float(column(table, "busbw GB/s")[0]) == pytest.approx(1.5 * algorithm, rel=5e-3)
    assert "recalled" in table.caption


def test_straggler_is_named(run: RunProfile) -> None:
    words = " ".join(straggler_words(run))
    assert "Rank 1 is waited for most: it arrived last 6 times of 6 and the others waited 2.70 ms" in words
    assert "6 of 6 steps" in words
    table = waits_table(run)
    assert table.rows[0][0].shown == "rank 1" and column(table, "Waiting caused")[0] == "2.70 ms"
    assert column(table, "Waited itself") == ["0 ms", "900 µs", "900 µs", "900 µs"]
    assert run.together is not None
    never = dataclasses.replace(run.together, stragglers=dataclasses.replace(run.together.stragglers, led=0))
    words = " ".join(straggler_words(altered(run, together=never)))
    assert "In no single step do the others wait for it longest." in words and "0 of" not in words


def test_words_on_clocks(run: RunProfile) -> None:
    assert "agree" in clock_words(run)
    assert run.together is not None
    clocks = run.together.clocks
    moved = dataclasses.replace(clocks, verdict="aligned", offset_ns={0: 0, 1: -2_000_000}, bound_ns={0: 0, 1: 1500})
    words = clock_words(altered(run, together=altered(run.together, clocks=moved)))
    assert "up to 2.00 ms" in words and "1.50 µs remain" in words
    lost = dataclasses.replace(clocks, verdict="not aligned")
    assert "could not be aligned" in clock_words(altered(run, together=altered(run.together, clocks=lost)))
    assert clock_words(runs.lonely()) == ""


def test_idle_and_copies(run: RunProfile) -> None:
    table = idle_table(run)
    assert sum(float(row[2].key) for row in table.rows) == pytest.approx(100.0)
    per_step = sum(float(row[1].key) for row in table.rows)
    assert per_step == pytest.approx(260_000)
    copies = copies_table(run)
    assert column(copies, "Direction") == ["host to device"] and column(copies, "Copies") == ["24"]
    assert column(copies, "Volume") == ["192 kB"] and column(copies, "Exposed per step") == ["40.0 µs"]
    assert column(copies, "GB/s") == ["0.200"] and column(copies, "Pageable") == ["100 %"]
    assert "No range in the traces names data loading" in loading_words(run)


def test_steps_as_a_table(run: RunProfile) -> None:
    table = steps_table(run)
    assert len(table.rows) == 6 and column(table, "Exposed")[0] == "200 µs" and column(table, "Idle")[0] == "260 µs"
    # 200 µs of compute hide communication on three ranks, 50 on the late one.
    assert column(table, "Compute")[0] == "500 µs" and float(table.rows[0][3].key) == 162_500


def test_names_are_summed_over_ranks(run: RunProfile) -> None:
    table = page_table("names-table", run.names_listing("names", ""))
    assert table.rows[0][0].shown == f"gemm {runs.HOSTILE}" and column(table, "Calls")[0] == "24"
    assert column(table, "Time in all")[0] == "12.0 ms"
    unknown = page_table("unrecognised-table", run.names_listing("unrecognised", ""))
    assert all("by default" in kind or kind == "unknown" for kind in column(unknown, "Counts as"))


@pytest.mark.parametrize("make", [runs.lonely, runs.nothing])
def test_little_to_show_is_explained(make: Any) -> None:
    run = make()
    page = Page(render(profile_page(run)))
    words = " ".join(page.words)
    assert "One rank was profiled" in words and "No communication was recognised" in words
    assert "The traces mark no steps" in words and "No copies were recorded" in words
    assert not re.search(r"\b(None|nan|inf|Infinity)\b", words)
    assert "no work" in headline(run).title or "no communication was recorded" in headline(run).title


def test_one_rank_of_a_run() -> None:
    run = runs.run(1, 1)
    words = " ".join(Page(render(profile_page(run))).words)
    assert "One step is marked" in words and "One rank was profiled" in words


def test_many_ranks_stay_small() -> None:
    run = runs.run(300, 5)
    source = render(profile_page(run))
    page = Page(source)
    assert "data-plot-rank-strip" in page.script_text
    figures = sum(len(document) for name, document in page.script_text.items() if name.startswith("data-plot"))
    assert figures < 1_500_000
    ranks = run.ranks_listing()
    assert len(ranks.records) == 256 and "44 ranks with less" in ranks.title
    chosen, words = chosen_pictures(run)
    assert len(chosen) == 16 and "ranks 0–15, of 300 ranks" in words


def test_of_many_pictures_the_first_and_the_worst_are_drawn() -> None:
    profiles = runs.profiles(30, 3, late=27)
    merged = runs.run(30, 3, late=27)
    run = altered(merged, ranks=tuple(profiles))  # every rank with its picture
    chosen, words = chosen_pictures(run)
    ranks = [rank.rank for rank in chosen]
    assert len(ranks) <= 16 and set(range(8)) <= set(ranks) and 27 in ranks and "of 30 ranks" in words


def test_ranks_that_kept_another_step_are_named(run: RunProfile) -> None:
    other = altered(run.ranks[3], picture=altered(run.ranks[3].picture, step=99))
    chosen, words = chosen_pictures(altered(run, ranks=(*run.ranks[:3], other)))
    assert [rank.rank for rank in chosen] == [0, 1, 2] and "Rank 3 kept another step" in words


def test_notes_come_once_the_severest_first(run: RunProfile) -> None:
    note = run.notes[0]
    mixed = [altered_note(note, "info", "b"), altered_note(note, "error", "c"), altered_note(note, "error", "c")]
    found = sentences((*run.notes, *mixed))
    assert found[0].severity == "error" and len(found) == len({n.message for n in found})
    many = altered(run, notes=tuple(altered_note(note, "info", f"n{number}") for number in range(MOST_NOTES + 5)))
    assert "5 more notes" in " ".join(Page(render(profile_page(many))).words)


def altered_note(note: Any, severity: str, message: str) -> Any:
    return type(note)("code", severity, message)


@pytest.mark.slow
@given(st.lists(st.text(min_size=1, max_size=60), min_size=4, max_size=4))
@settings(max_examples=12)
def test_any_name_gives_a_sound_page(names: list[str]) -> None:
    profiles = [
        altered(rank, source=names[0], host=names[1], devices=(names[2],),
                names=tuple(altered(row, name=names[3]) for row in rank.names))
        for rank in runs.profiles(2, 1)
    ]  # fmt: skip
    base = runs.run(2, 1)
    page = Page(render(profile_page(altered(base, ranks=tuple(profiles), options={names[0]: names[1]}))))
    assert page.all("section")[0]["id"] == "headline"
    for name, document in page.script_text.items():
        if name.startswith("data-plot"):
            json.loads(document)


def test_file_is_written_whole_or_refused(run: RunProfile, tmp_path: Path) -> None:
    target = build_profile_report(run, tmp_path / "profile.html")
    assert target.read_text(encoding="utf-8").rstrip().endswith("</html>")
    with pytest.raises(InputError):
        build_profile_report(run, tmp_path / "profile.html" / "inside.html")


def changed(base: float, other: float, steps: tuple[int, int] = (8, 8)) -> tuple[str, ShownTable]:
    first, *_, table = changes_section(compare(runs.steps_of(base, steps[0]), runs.steps_of(other, steps[1]))).blocks
    assert isinstance(first, Prose) and isinstance(table, ShownTable)
    return first.text, table


def test_changes_in_words() -> None:
    slower, table = changed(1e6, 1.2e6)
    assert slower.startswith("A step is slower than in the baseline: +200 µs, 1.197 of the baseline (+")
    assert column(table, "Verdict")[0] == "slower" and column(table, "Ratio")[0].startswith("1.19")
    same, _ = changed(1e6, 1e6)
    assert same.startswith("The step time has not changed beyond noise")
    faster, _ = changed(1e6, 0.8e6)
    assert faster.startswith("A step is faster") and "−200 µs" in faster
    few, table = changed(1e6, 1e6, (2, 3))
    assert few == "Too few steps to tell a change from noise (3 steps against 2)."
    assert set(column(table, "Interval")) == {"–"}


@pytest.mark.parametrize(
    "files", ["gloo/ddp_rank*", "tracelens_mi300_resnet/*", "hta_trace_filter/*", "param_dlrm_8rank/*"]
)
def test_real_runs_give_a_sound_page(files: str) -> None:
    from densing.efficiency.profile.rank import ProfileOptions, profile_trace
    from densing.efficiency.profile.run import merge_run
    from densing.efficiency.traces.run import find_traces

    found = sorted(folders.RECORDED.glob(files)) or sorted(folders.TRACES.glob(files))
    if not found:
        pytest.skip("a whole public set, which is not here")
    run = merge_run([profile_trace(trace, ProfileOptions()) for trace in find_traces(found)])
    page = Page(render(profile_page(run)))
    words = " ".join(page.words)
    # "## encoder fp8 None ##" is a range that a program named.
    assert not re.search(r"(?<!fp8 )\b(None|nan|inf|Infinity)\b", words)
    assert "% of the communication was hidden" in words

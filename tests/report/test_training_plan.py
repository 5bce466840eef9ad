"""A model for a budget as a page: what it says is the plan's, hostile names stay text."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from densing.report import build_training_plan
from densing.scores.fit import published_law
from densing.tradeoff import plan_training
from tests.support.report_frames import HOSTILE
from tests.support.report_pages import Page, built_for_everyone
from tests.support.training_plans import CLUSTER, hours_of, planted


def test_a_page_says_what_the_plan_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch)
    plan = plan_training(published_law("chinchilla"), CLUSTER, hours_of(5.76e23))
    page = Page(build_training_plan(plan, tmp_path / "plan.html").read_text(encoding="utf-8"))
    built_for_everyone(page)
    assert [section["id"] for section in page.all("section")] == ["headline", "plan", "sizes", "notes", "versions"]
    assert len([name for name in page.script_text if name.startswith("data-plot-")]) == 1
    text = build_training_plan(plan, tmp_path / "plan.md").read_text(encoding="utf-8")
    for words in (plan.sentence, "10 times the tokens per parameter", plan.density_note, "| Worth it from, served",
                  "chinchilla: approach 3 of Hoffmann"):  # fmt: skip
        assert words.lower() in text.replace("\\", "").lower(), words
    rows = text.partition("## Sizes")[2].partition("\n## ")[0].splitlines()
    assert sum(row.startswith("| ") for row in rows) == len(plan.curve) + 1


def test_names_of_others_stay_text_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, fits=lambda params: params < 2e10)
    plan = plan_training(published_law("chinchilla-refit"), CLUSTER, 1e4)
    hostile = msgspec.structs.replace(plan, cluster=HOSTILE, law=HOSTILE, device=HOSTILE)
    page = Page(build_training_plan(hostile, tmp_path / "plan.html").read_text(encoding="utf-8"))
    built_for_everyone(page)


def test_a_smaller_model_without_a_layout_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch)
    plan = plan_training(published_law("chinchilla-refit"), CLUSTER, 1e4)
    bare = msgspec.structs.replace(
        plan, overtrained=msgspec.structs.replace(plan.overtrained, gpu_hours=None, layout=None)
    )
    text = build_training_plan(bare, tmp_path / "plan.md").read_text(encoding="utf-8")
    assert "| GPU hours | 10,000 | – | – | – |" in text

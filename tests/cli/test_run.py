"""What ``densing run`` prints: the headline, three caveats and where the report is; the rest behind --verbose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import densing as package
from densing.scores.study import StudyOptions
from tests.support.command import densing


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The study of six models in place of the catalog's, which takes a minute."""
    real = package.run_study
    rows = [
        {"model": f"line-{n}", "family": f"line {n % 3}", "params": 1e9, "score": 0.3 + 0.02 * n,
         "benchmark": "openbookqa", "released": f"2024-{n:02d}-15"}
        for n in range(1, 7)
    ]  # fmt: skip
    catalog = package.load_catalog(rows, embedded=False)
    made: list[Any] = []

    def run_study(_: Any, options: Any, **more: Any) -> Any:
        # Runs that differ in what they say alone.
        if not made:
            made.append(real(catalog, StudyOptions("olmo-ladder", "openbookqa", today="2026-01-01"), **more))
        return made[0]

    monkeypatch.setattr("densing.scores.study.run_study", run_study)


@pytest.mark.usefixtures("small")
def test_run_prints_headline_three_caveats_and_the_path_and_more_when_asked(tmp_path: Path) -> None:
    mine = tmp_path / "mine.csv"
    mine.write_text("model,params,released,benchmark,score\nMine-1B,1e9,2024-04-01,openbookqa,0.4\n", encoding="utf-8")
    out = tmp_path / "out"
    given = ("run", "--no-measure", "--scores", mine, "--out", out)
    brief, full, quiet = densing(*given), densing(*given, "-v"), densing(*given, "--quiet")
    assert brief.stdout == full.stdout == quiet.stdout == f"{out / 'report.html'}\n"
    headline, yours, *caveats, more = brief.stderr.splitlines()
    assert headline.startswith("Capability density may have doubled every ") and yours.startswith("Yours: Mine-1B: ")
    assert len(caveats) == 3 and more.endswith("more caveats in the report, and with --verbose:")
    for line in (headline, yours, *caveats):
        assert line in full.stderr
    assert "Why this estimator" in full.stderr and "Why this estimator" not in brief.stderr
    assert int(more.split()[0]) <= len(full.stderr.splitlines()) - 5
    assert "Capability density" not in quiet.stderr
    assert all(line.startswith("warning: ") for line in quiet.stderr.splitlines())

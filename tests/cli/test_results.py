"""``densing results``: list, show, merge, export, and tasks of one's own targets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from densing.cli import app
from densing.scores.catalog import load_catalog
from densing.scores.evals.measurements import COLUMNS
from tests.support.command import printed
from tests.support.eval_files import measured_run


@pytest.fixture
def run() -> Callable[..., Any]:
    """Run the command line in this process."""
    runner = CliRunner()

    def call(*arguments: object, code: int = 0) -> Any:
        result = runner.invoke(app, ["results", *map(str, arguments)])
        assert result.exit_code == code, (result.output, result.exception)
        return printed(result.stdout) if "--json" in arguments and code == 0 else result.stdout

    return call


def test_list_and_show(tmp_path: Path, run: Callable[..., Any]) -> None:
    measured_run(tmp_path / "all" / "one")
    listed = run("list", tmp_path / "all", "--json")
    assert len(listed) == 1
    expected = {
        "run": "one",
        "models": ["Tiny-134M"],
        "tasks": ["hellaswag", "toy"],
        "done": 2,
        "partial": 0,
        "damaged": 0,
    }
    assert expected.items() <= listed[0].items()
    assert "one" in run("list", tmp_path / "all")
    shown = run("show", tmp_path / "all" / "one", "--json")
    assert {row["metric"] for row in shown["rows"]} >= {"acc", "gold_bits_per_byte"}
    assert len(run("show", tmp_path / "all" / "one", "--items", "--json")["rows"]) == 8
    assert "gold_nats" in run("show", tmp_path / "all" / "one")
    run("show", tmp_path / "all" / "one", "--out", tmp_path / "m.csv")
    assert list(pd.read_csv(tmp_path / "m.csv").columns) == COLUMNS


def test_damaged_unit_shows_as_such(tmp_path: Path, run: Callable[..., Any]) -> None:
    measured_run(tmp_path / "one")
    next((tmp_path / "one" / "units").glob("*toy*/items.parquet")).unlink()
    assert run("list", tmp_path, "--json")[0]["damaged"] == 1
    # Exit code 3: the numbers should not be used as they stand.
    assert "hellaswag" in run("show", tmp_path / "one", code=3)


def test_merge_and_export(tmp_path: Path, run: Callable[..., Any]) -> None:
    measured_run(tmp_path / "a")
    measured_run(tmp_path / "b")
    merged = run("merge", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "ab", "--json")
    assert merged["done"] == 2
    exported = run("export", tmp_path / "ab", "--out", tmp_path / "s.csv", "--released", "2024-11-02", "--json")
    assert exported["rows"][0]["released"] == "2024-11-02"
    assert len(load_catalog(tmp_path / "s.csv").models) == len(load_catalog().models) + 1
    run("export", tmp_path / "ab", "--out", tmp_path / "s.txt", code=2)


def test_targets_command(tmp_path: Path, run: Callable[..., Any]) -> None:
    pytest.importorskip("yaml")
    (tmp_path / "t.csv").write_text("id,prompt,target\n1,a,b\n")
    assert run("targets", tmp_path / "t.csv", "--out", tmp_path / "tasks", "--json")["tasks"] == ["targets"]
    assert (tmp_path / "tasks" / "targets.yaml").is_file()


def test_variant_command(tmp_path: Path, run: Callable[..., Any]) -> None:
    pytest.importorskip("yaml")
    (tmp_path / "sums.yaml").write_text("task: sums\noutput_type: generate_until\ndoc_to_target: '{{answer}}'\n")
    written = run("variant", tmp_path / "sums.yaml", "--out", tmp_path / "tasks", "--json")
    path = str(tmp_path / "tasks" / "sums_gold_loss.yaml")
    assert written == {"path": path, "task": "sums_gold_loss", "notes": []}

"""A profile joined with a model's density: device hours, limits, and files that are something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from densing.core.errors import ArtefactError, InputError, UnknownNameError
from densing.efficiency.timeline.overlap import Partition
from densing.report.efficiency_density import JoinedDensity, joined_words, read_density
from tests.support import efficiency_runs as runs


def written(tmp_path: Path, rows: Any) -> Path:
    file = tmp_path / "density.json"
    file.write_text(rows if isinstance(rows, str) else json.dumps(rows), encoding="utf-8")
    return file


ROW = {"model": "m1", "benchmark": "mmlu", "density": 1.5, "density_lo": 1.2, "density_hi": None, "n_eff": 3e9,
       "status": "ok", "bound": ""}  # fmt: skip


def test_density_per_device_hour(tmp_path: Path) -> None:
    file = written(tmp_path, [ROW, {**ROW, "model": "m2", "density": 4.0}])
    joined = read_density(file, 3000.0, model="m2")
    assert joined.per_hour == pytest.approx(1000 * 4.0 / 3000) and joined.note == "" and joined.density_hi is None
    assert JoinedDensity.from_dict(joined.to_dict()) == joined
    assert json.loads(json.dumps(joined.to_dict()))["per_1000_device_hours"] == joined.per_hour


def test_joined_words_say_what_was_lost() -> None:
    whole = Partition(1000, 1000, 500, 400, 0, 200, 200, 40, 260)
    words = " ".join(joined_words(runs.JOINED, whole))
    assert "density 1.8 (1.5 to 2.2) on mmlu after 42,000 device hours: 0.043 per parameter per 1,000" in words
    assert "8400 of these hours (20.0 %)" in words and "10920 (26.0 %) idle" in words
    assert f"{1 / 0.54:.2f} times as high" in words and "ceiling" in words
    assert "typical" not in " ".join(joined_words(runs.JOINED, Partition(*[0] * 9)))


def test_limits_stay_limits(tmp_path: Path) -> None:
    file = written(tmp_path, [{**ROW, "status": "below_floor", "bound": "upper"}])
    joined = read_density(file, 1000.0)
    words = " ".join(joined_words(joined, Partition(*[0] * 9)))
    assert joined.bound == "upper" and "≤ 1.5" in words and "below the floor" in words


def test_rows_read_by_loss_have_a_name_of_their_own(tmp_path: Path) -> None:
    file = written(tmp_path, [{**ROW, "quantity": "score"}, {**ROW, "quantity": "loss", "density": 2.0}])
    with pytest.raises(InputError, match=r"2 rows fit; name one by its benchmark \(mmlu, mmlu:loss\)"):
        read_density(file, 10.0)
    assert read_density(file, 10.0, benchmark="mmlu:loss").density == 2.0


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", "[1]", '[{"model": 3, "density": 1}]', '[{"model": "m"}]', "[" * 9999]
)
def test_files_of_another_kind_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ArtefactError, match="densing density --json"):
        read_density(written(tmp_path, text), 10.0)


def test_density_errors_name_the_remedy(tmp_path: Path) -> None:
    file = written(tmp_path, [ROW, {**ROW, "model": "m2", "density": None, "status": "failed"}])
    with pytest.raises(UnknownNameError, match="did you mean 'm1'"):
        read_density(file, 10.0, model="m11")
    with pytest.raises(InputError, match="name one by its model"):
        read_density(file, 10.0)
    with pytest.raises(InputError, match="has no density"):
        read_density(file, 10.0, model="m2")
    with pytest.raises(InputError, match="cannot read"):
        read_density(tmp_path / "none.json", 10.0)
    for hours in (0.0, -3.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="device hours"):
            read_density(file, hours, model="m1")


def test_reads_what_the_command_prints(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from densing.cli import app

    scores = tmp_path / "scores.csv"
    scores.write_text("model,params,released,benchmark,score\nmine,3e9,2024-01-01,mmlu,0.55\n", encoding="utf-8")
    asked = ["density", "--reference", "qwen1.5", "--benchmark", "mmlu", "--scores", str(scores), "--json"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    joined = read_density(written(tmp_path, done.stdout), 500.0)
    assert joined.model == "mine" and joined.benchmark == "mmlu"
    [row] = json.loads(done.stdout)
    assert joined.density == row["density"] and joined.per_hour == pytest.approx(2 * row["density"])

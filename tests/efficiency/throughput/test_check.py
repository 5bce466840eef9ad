"""Constants, their fit, and what is said of a table of runs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from densing.core.errors import InputError
from densing.efficiency.throughput import Frozen, check_throughput, fit_constants, freeze, read_runs, step_seconds
from densing.efficiency.throughput.fit import FILE, NAMES
from densing.efficiency.throughput.table import SAMPLE
from tests.support.throughput import ROW


@pytest.fixture(scope="module")
def sample() -> pd.DataFrame:
    return pd.read_csv(SAMPLE, dtype=str, keep_default_na=False)


def test_a_fit_finds_the_speeds_that_constants_made(sample: pd.DataFrame) -> None:
    table = read_runs(sample)
    truth = Frozen().constants["A100"]
    made = table.runs.tokens / step_seconds(table.runs, {name: np.asarray(getattr(truth, name)) for name in NAMES}).step
    planted = sample.assign(tokens_per_s=made, status="ok")
    again = read_runs(planted[table.usable & (table.about.generation == "A100").to_numpy()])
    (fitted,) = fit_constants(again).values()
    refitted = {name: np.asarray(getattr(fitted, name)) for name in NAMES}
    error = again.runs.tokens / step_seconds(again.runs, refitted).step / again.about.tokens_per_s - 1
    assert np.abs(error).median() < 0.01
    assert np.abs(error).max() < 0.1
    assert fitted.products == pytest.approx(truth.products, rel=0.05)


def test_what_was_published_and_not_fitted_here_comes_out() -> None:
    # The aims of the model for constants that never saw the source: 10 % in the median.
    unseen = {source.source: source.unseen_median for source in check_throughput().sources}
    for name in ("llm-foundry", "mlm", "narayanan2021", "korthikanti2022", "vtrain"):
        assert unseen[name] is not None and unseen[name] < 0.1, name


def test_broken_laws_are_noticed() -> None:
    sources = {source.source: source for source in check_throughput().sources}
    for name, law in (
        ("narayanan2021", "ring costs x 3"), ("narayanan2021", "latency x 10"), ("vtrain", "launches x 3"),
        ("llm-foundry", "products at half"),
    ):  # fmt: skip
        assert sources[name].mutated[law] > 3 * sources[name].median_error, (name, law)


def test_null_models_by_hand() -> None:
    rows = [
        {**ROW, "row_id": "a", "tokens_per_s": 1e5},
        {**ROW, "row_id": "b", "tokens_per_s": 2e5, "mbs": 4},
        {**ROW, "row_id": "c", "tokens_per_s": 4e5, "mbs": 8},
    ]
    (source,) = check_throughput(pd.DataFrame(rows)).sources
    # Others' medians are 3, 2.5 and 1.5 of shares 1, 2 and 4; nearest are b, a or c (the first), and b.
    assert source.constant_mfu_median == pytest.approx(0.625)
    assert source.nearest_median == pytest.approx(0.5)


def test_repeats_are_spreads_of_one_configuration() -> None:
    rows = [{**ROW, "row_id": f"r{number}", "tokens_per_s": speed} for number, speed in enumerate((1e5, 1.5e5))]
    (source,) = check_throughput(pd.DataFrame([*rows, {**ROW, "row_id": "z", "layers": 48}])).sources
    assert (source.repeats, source.repeat_spread) == (1, pytest.approx(1.5))


def test_a_generation_without_constants_says_so() -> None:
    found = check_throughput(pd.DataFrame([{**ROW, "gpu": "B200"}]))
    assert found.rows[0].constants == "H100 (for B200, which was never measured)"
    assert [note.code for note in found.notes] == ["carried-over"]


def test_failed_rows_are_asked_for_their_memory_alone() -> None:
    rows = [{**ROW, "row_id": "ran"}, {**ROW, "row_id": "failed", "status": "oom", "tokens_per_s": "", "hidden": 20480}]
    found = check_throughput(pd.DataFrame(rows))
    ran, failed = found.rows
    assert (ran.fits, failed.fits, failed.error) == (True, False, None)
    assert (found.memory.ran, found.memory.failed, found.memory.auc) == (1, 1, 1.0)


def test_constants_are_frozen_with_what_they_were_fitted_to(tmp_path: Path, sample: pd.DataFrame) -> None:
    own = Frozen()
    assert own.sha256 == hashlib.sha256(FILE.read_bytes()).hexdigest()
    assert len(own.fitted["table_sha256"]) == 64
    file = tmp_path / "constants.json"
    freeze(read_runs(sample), file, file_hash="0" * 64)
    assert set(Frozen(file).without) == {row["source"] for row in Frozen(file).fitted["rows"]}
    file.write_text(json.dumps({"version": 1}))
    with pytest.raises(InputError, match="not a file of constants"):
        Frozen(file)

"""Constants, their fit, and what is said of a table of runs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from densing.core.errors import InputError
from densing.efficiency.throughput import (
    SHARE,
    Frozen,
    Range,
    check_throughput,
    fit_constants,
    freeze,
    read_runs,
    step_seconds,
)
from densing.efficiency.throughput.fit import FILE, NAMES
from densing.efficiency.throughput.table import SAMPLE
from tests.support.frozen import changeable
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


def test_who_measured_a_row_does_not_matter_where_all_measured_as_many(sample: pd.DataFrame) -> None:
    few = sample[read_runs(sample).measured].iloc[:6].assign(gpu="A100-80GB")
    alone = few.assign(source_file_id=[f"source{number}/table" for number in range(6)])
    one, six = (fit_constants(read_runs(table.assign(source_file_id=ids))) for table, ids in
                ((few, "one/table"), (alone, alone.source_file_id)))  # fmt: skip
    assert one["A100"].to_dict() == pytest.approx(six["A100"].to_dict(), rel=1e-3)


def test_what_was_published_and_not_fitted_here_comes_out() -> None:
    # The aims of the model for constants that never saw the source: 10 % in the median. Two sources
    # of the selection miss it by a point (docs/results/cost-model.md).
    unseen = {source.source: source.unseen_median for source in check_throughput().sources}
    for name in ("llm-foundry", "torchtitan", "narayanan2021", "korthikanti2022", "dlperf", "vtrain"):
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


def test_kinds_that_one_source_measured_are_not_predicted() -> None:
    rows = [
        {**ROW, "row_id": "dense"},
        {**ROW, "row_id": "mixture", "moe": "8 experts, top 2, expert ffn 4096"},
        {**ROW, "row_id": "eager", "framework": "nanotron"},
        {**ROW, "row_id": "long", "seq": 65536},
        {**ROW, "row_id": "new", "gpu": "B200"},
        {**ROW, "row_id": "domain", "gpus": 8, "tp": 1, "pp": 1, "dp": 8},
    ]
    found = check_throughput(pd.DataFrame(rows)).rows
    assert [row.kind for row in found] == [
        "several domains", "mixture", "eager", "long sequences", "new generation", "one domain",
    ]  # fmt: skip
    assert [row.status for row in found] == ["predicted", "not predicted", "not predicted"] + 3 * ["predicted"]
    for row in found:
        ends = (row.low_tokens_per_s, row.predicted_tokens_per_s, row.high_tokens_per_s)
        if row.status == "predicted":
            assert None not in ends and list(ends) == sorted(map(float, filter(None, ends)))
        else:
            assert ends == (None, None, None) and "1 source" in row.reason
    # Sources on record of unknown generations differ more than those that were fitted.
    widths = {row.kind: row.high_tokens_per_s / row.low_tokens_per_s for row in found if row.low_tokens_per_s}
    assert widths["new generation"] > max(widths["one domain"], widths["several domains"])


@pytest.mark.slow
@pytest.mark.parametrize("sources", [4, 6, 11])
@pytest.mark.parametrize(("between", "within"), [(0.0, 0.1), (0.1, 0.1), (0.15, 0.03)])
@pytest.mark.parametrize("tails", [3, 100])
def test_ranges_hold_runs_of_sources_that_nobody_saw(sources: int, between: float, within: float, tails: int) -> None:
    # Planted: sources differ by `between`, their runs by `within`, with heavy tails or without.
    rng = np.random.default_rng(sources)
    held = []
    for _ in range(600):
        counts = rng.integers(2, 60, sources + 1)
        means = between * rng.standard_t(tails, sources + 1) / np.sqrt(tails / (tails - 2))
        errors = [mean + within * rng.standard_t(tails, count) / np.sqrt(tails / (tails - 2))
                  for mean, count in zip(means, counts, strict=True)]  # fmt: skip
        names = pd.Series(np.repeat(np.arange(sources).astype(str), counts[:-1]))
        low, high = Range.of(np.concatenate(errors[:-1]), names).ends(SHARE)
        held.append(np.mean((errors[-1] >= low) & (errors[-1] <= high)))
    # Where sources do not differ, few of them do not show it: such ranges are wide rather than narrow.
    assert 0.75 < np.mean(held) < (0.9 if between else 0.95)


def test_a_range_is_students_interval_of_the_next_source() -> None:
    # By hand: medians 0, .1 and .5; squares about them 0, .01 and .04; variance of the medians .07.
    errors = np.array([0.0, 0.0, 0.1, 0.2, 0.0, 0.3, 0.7])
    found = Range.of(errors, pd.Series(list("aabbbcc")))
    own = float(np.median([0.0, 0.02 / 3, 0.04]))
    assert found.scale == pytest.approx(np.sqrt(np.var([0.0, 0.1, 0.5], ddof=1) * 4 / 3 + own))
    half = 1.8856 * (found.scale or 0)
    assert found.ends(0.8) == pytest.approx((0.2 - half, 0.2 + half), rel=1e-4)
    assert Range.of(errors, pd.Series(["a"] * 7)).scale is None


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


def test_no_result_can_be_changed_by_who_reads_it() -> None:
    assert changeable("densing.efficiency.throughput") == set()

"""Profiles as DataFrames: the same columns and types whatever the run holds."""

from __future__ import annotations

import pytest

from tests.support.efficiency_runs import lonely, nothing, run

TABLES = ("table", "step_table", "collective_table")


@pytest.mark.parametrize("name", TABLES)
def test_an_empty_run_has_the_columns_of_a_full_one(name: str) -> None:
    full, alone, empty = (getattr(made, name)() for made in (run(), lonely(), nothing()))
    assert len(full) and list(full.columns) == list(alone.columns) == list(empty.columns)
    ratios = [column for column in full if column.endswith(("_pct", "_gbps"))]
    assert ratios and all(str(frame[column].dtype) == "float64" for frame in (full, alone, empty) for column in ratios)


def test_every_figure_of_a_rank_is_a_column() -> None:
    made = run()
    table, rank = made.table(), made.ranks[1]
    row = table.iloc[1]
    for key, value in rank.partition.to_dict().items():
        assert row[key] == value
    for cause, ns in rank.idle.causes.items():
        assert row[f"idle_{cause}_ns"] == ns
    assert row["devices"] == ", ".join(rank.devices) and row["world_size"] == rank.world_size == 4
    assert (row["host"], row["backend"], row["source"]) == (rank.host, rank.backend, rank.source)
    assert set(table.columns) == set(table.columns.unique()) and not table.isna().any().any()


def test_undefined_ratios_are_missing_numbers() -> None:
    assert lonely().table()["overlap_pct"].isna().all()


def test_steps_and_communications_have_a_row_each() -> None:
    made = run(ranks=3, steps=5)
    steps = made.step_table()
    assert len(steps) == 15 and steps.groupby("rank")["idle_ns"].count().tolist() == [5, 5, 5]
    assert made.collective_table()["count"].tolist() == [15]


def test_communications_are_split_into_transfer_and_wait() -> None:
    made = run(ranks=4, steps=6)
    # Three ranks are in the all-reduce for 400 µs, the late one for 250 µs: its transfer.
    matched, transfer = 6 * (3 * 400_000 + 250_000), 6 * 4 * 250_000
    [row] = made.to_dict()["collectives"]
    assert (row["matched_ns"], row["transfer_ns"], row["wait_ns"]) == (matched, transfer, matched - transfer)
    told = made.collective_table().iloc[0]
    assert [told[key] for key in ("matched_ns", "transfer_ns", "wait_ns")] == [matched, transfer, matched - transfer]


def test_one_rank_has_no_wait_to_tell() -> None:
    alone = run(ranks=1, steps=2)
    assert alone.to_dict()["collectives"][0]["wait_ns"] is None
    assert alone.collective_table()["wait_ns"].isna().all()

"""Ranks gathered one by one: what is kept of them, whatever the order."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from densing.efficiency.profile import run as run_module
from densing.efficiency.profile import run_gather
from densing.efficiency.profile.rank import RankProfile
from densing.efficiency.profile.run import merge_run
from densing.efficiency.profile.store import write_profile
from tests.efficiency.profile.test_run import profiles


def test_the_lowest_ranks_are_drawn_whichever_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_gather, "DRAWN_RANKS", 2)
    for order in itertools.permutations(profiles((0, 0, 0, 0))):
        run = merge_run(order)
        assert [len(rank.picture.boxes) > 0 for rank in run.ranks] == [True, True, False, False]


def test_of_many_ranks_only_figures_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = profiles((0, 10_000, 20_000, 30_000))
    for rank in ranks:
        write_profile(tmp_path / f"{rank.rank}.parquet", rank.to_dict())
    monkeypatch.setattr(run_module, "HELD_RANKS", 2)
    rows = [RankProfile.from_dict(rank.to_dict()) for rank in ranks]
    run = merge_run(rows, store=tmp_path)
    assert all(len(rank.collectives) == len(rank.path.start) == 0 for rank in run.ranks)
    assert [rank.path.totals for rank in run.ranks] == [rank.path.totals for rank in ranks]
    assert [rank.path.top for rank in run.ranks] == [rank.path.top for rank in ranks]
    assert [rank.names for rank in run.ranks] == [rank.names for rank in ranks]
    assert all(rank.collectives.groups == () for rank in run.ranks)
    assert len({id(row.name) for rank in run.ranks for row in rank.names}) == len(ranks[0].names)


def test_every_rank_is_slimmed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the time would grow with the square of the ranks."""
    ranks = profiles(tuple(range(12)))
    calls = []
    slim = run_gather.RanksGathered._slim
    monkeypatch.setattr(
        run_gather.RanksGathered, "_slim", lambda own, rank: (calls.append(rank.rank), slim(own, rank))[1]
    )
    gathered = run_gather.RanksGathered(4)
    for rank in ranks:
        gathered.add(rank)
    assert sorted(calls) == list(range(12))


@pytest.mark.parametrize(("rows", "kept"), [(11, False), (12 * 4, True)])
def test_few_communications_are_kept_and_many_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, kept: bool
) -> None:
    monkeypatch.setattr(run_gather, "HELD_ROWS", rows)
    gathered = run_gather.RanksGathered(4)
    for rank in profiles(tuple(range(12))):
        assert len(rank.collectives) == 4
        gathered.add(rank)
    tables = gathered.tables(tmp_path)
    assert isinstance(tables, dict) == kept and len(tables) == 12
    if kept:
        assert len({id(group) for table in tables.values() for group in table.groups}) == 1

"""Ranks joined into a run: the same whatever their order, tables, notes, and the same answer from a store."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from msgspec.structs import replace

from densing.core.errors import InputError
from densing.efficiency.profile import run as run_module
from densing.efficiency.profile.causes import find_causes
from densing.efficiency.profile.rank import ProfileOptions, RankProfile, profile_timeline
from densing.efficiency.profile.replay import Replay
from densing.efficiency.profile.run import merge_run, run_notes
from densing.efficiency.profile.store import write_profile
from densing.efficiency.timeline.timeline import Comm, Kind, Lane, RankTimeline, Spans, Step
from densing.report.page import render
from densing.report.profile import profile_page
from tests.support.efficiency_runs import lonely, nothing, run
from tests.support.frozen import changeable
from tests.support.straggler_runs import A100, H100, changed, profiles, timeline


def test_the_late_rank_is_blamed_and_its_cost_split_from_transfer() -> None:
    run = merge_run(profiles())
    together = run.together
    assert together is not None
    assert together.stragglers.worst == 2
    waiting = next(cause for cause in run.causes if cause.code == "waiting-for-ranks")
    transfer = next(cause for cause in run.causes if cause.code == "exposed-communication")
    # Work of 400, 500 and 700 µs: without unevenness a step of 500, from 10 µs on.
    assert waiting.gain_ms_per_step == pytest.approx(0.2, rel=0.05)
    assert transfer.gain_ms_per_step == pytest.approx(0.19, rel=0.05)
    assert "rank 2 in 4 of 4 steps" in waiting.message


def test_causes_come_worst_first_and_cost_no_more_than_the_run() -> None:
    run = merge_run(profiles())
    gains = [cause.gain_ms_per_step for cause in run.causes]
    assert gains == sorted(gains, reverse=True) and gains[0] > 0
    whole = run.replay.run_ns() / 4 / 1e6
    assert sum(gains) + run.interaction_ms_per_step < whole
    assert all(cause.gain_pct == pytest.approx(100 * cause.gain_ms_per_step / whole) for cause in run.causes)
    assert all(cause.remedy for cause in run.causes)


def test_communications_at_the_same_time_are_removed_together() -> None:
    rows = [
        {"start": 0, "end": 100, "kind": Kind.COMM, "name": "nccl_a", "lane": Lane("GPU 0", stream)} for stream in "ab"
    ]
    one = profile_timeline(RankTimeline(0, Spans.build(rows), Spans.empty()))
    run = merge_run([one])
    assert sum(cause.gain_ms_per_step for cause in run.causes) <= 100 / 1e6


def test_nothing_lost_has_no_cause() -> None:
    work = Spans.build([{"start": 0, "end": 10, "kind": Kind.COMPUTE, "name": "gemm"}])
    assert merge_run([profile_timeline(RankTimeline(0, work, Spans.empty()))]).causes == ()
    assert find_causes([], [], Replay({})).causes == ()


def test_two_files_of_one_rank_are_refused_by_name() -> None:
    one = profiles()[0]
    with pytest.raises(InputError, match=r"rank0\.json and rank0\.json.*--rank FILE=NUMBER"):
        merge_run([one, one])


def test_ranks_cut_to_different_windows_are_refused() -> None:
    one = profile_timeline(timeline(0))
    other = profile_timeline(timeline(1), ProfileOptions(window="all"))
    with pytest.raises(InputError, match="--window all"):
        merge_run([one, other])


def test_ranks_that_were_not_profiled_are_counted() -> None:
    codes = {note.code: note.message for note in merge_run(profiles((0, 0))).notes}
    assert codes["ranks-missing"] == "2 of the run's 3 ranks were profiled; missing: 2"
    assert "ranks-missing" not in {note.code for note in merge_run(profiles()).notes}


def test_a_run_is_the_same_in_whatever_order_its_ranks_are_ready() -> None:
    """Sizes that add up to other last digits in another order, and groups of equal cost with different labels."""
    ranks = []
    for rank in range(3):
        comms = [
            {"start": 100 * rank + at, "end": 100 * rank + at + 7 * (rank + 1), "kind": Kind.COMM, "name": "nccl",
             "comm": Comm("all_reduce", group, f"label {rank}", 3, (), 1 + rank, 1 + rank, "float", seq=rank)}
            for at, group in ((0, "a"), (50, "b"))
        ]  # fmt: skip
        ranks.append(profile_timeline(RankTimeline(rank, Spans.build(comms), Spans.empty(), (Step(1, 0, 400),))))
    told = [merge_run(order).to_dict() for order in (ranks, ranks[::-1], [ranks[1], ranks[0], ranks[2]])]
    assert told[0] == told[1] == told[2]


@pytest.mark.parametrize("held_rows", [0, 10**6])
def test_many_ranks_are_read_again_from_their_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_rows: int
) -> None:
    ranks = profiles((0, 50_000, 100_000, 150_000, 200_000))
    for rank in ranks:
        write_profile(tmp_path / f"{rank.rank}.parquet", rank.to_dict())
    whole = merge_run(ranks)
    monkeypatch.setattr(run_module, "HELD_RANKS", 2)
    monkeypatch.setattr("densing.efficiency.profile.run.HELD_ROWS", held_rows)
    spilled = merge_run((rank.to_dict() for rank in ranks), store=tmp_path)
    assert all(len(rank.collectives) == len(rank.dependencies) == 0 for rank in spilled.ranks)
    assert whole.together is not None and spilled.together is not None
    assert spilled.together.stragglers.to_dict() == whole.together.stragglers.to_dict()
    assert spilled.together.what_if.to_dict() == whole.together.what_if.to_dict()
    assert spilled.figures == whole.figures and spilled.causes == whole.causes


def test_of_too_large_a_run_the_first_steps_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the order of its ranks; gains per step are those of the whole."""
    whole = merge_run(profiles((0, 0, 300_000)))
    monkeypatch.setattr(run_module, "REPLAYED_ROWS", len(whole.replay) - 1)
    told = []
    for order in itertools.permutations(profiles((0, 0, 300_000))):
        run = merge_run(order)
        [note] = [note for note in run.notes if note.code == "replay-shortened"]
        assert note.details == {"steps": 2} and run.replay.steps == 2 and run.replay.fidelity.status == "ok"
        assert run.replay.recorded_ns == 2_000_000
        told.append(run.to_dict())
    assert told[0] == told[1] == told[2] == told[3] == told[4] == told[5]
    waiting = [cause.gain_ms_per_step for cause in (*whole.causes, *run.causes) if cause.code == "waiting-for-ranks"]
    assert waiting[0] == pytest.approx(waiting[1], rel=0.1)
    assert not any(note.code == "replay-shortened" for note in whole.notes)


def test_the_lowest_ranks_are_drawn_whichever_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "DRAWN_RANKS", 2)
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
    slim = run_module.HeldRanks._slim
    monkeypatch.setattr(run_module.HeldRanks, "_slim", lambda own, rank: (calls.append(rank.rank), slim(own, rank))[1])
    held = run_module.HeldRanks(4)
    for rank in ranks:
        held.add(rank)
    assert sorted(calls) == list(range(12))


@pytest.mark.parametrize(("rows", "kept"), [(11, False), (12 * 4, True)])
def test_few_communications_are_kept_and_many_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, kept: bool
) -> None:
    monkeypatch.setattr(run_module, "HELD_ROWS", rows)
    held = run_module.HeldRanks(4)
    for rank in profiles(tuple(range(12))):
        assert len(rank.collectives) == 4
        held.add(rank)
    tables = held.tables(tmp_path)
    assert isinstance(tables, dict) == kept and len(tables) == 12
    if kept:
        assert len({id(group) for table in tables.values() for group in table.groups}) == 1


def test_an_object_prints_as_a_few_lines() -> None:
    run = merge_run(profiles())
    title, exposed, *_ = repr(run).splitlines()
    assert title == "Profile of 4 steps on each of 3 ranks, window steps"
    assert exposed == "  exposed communication  35.7 %"
    assert len(repr(run)) < 4000 and "Exposed" in run._repr_html_()
    assert len(repr(run.ranks[0])) < 400 and repr(run.ranks[0]).startswith(
        "RankProfile(rank=0, window='steps', steps=4"
    )


def test_alike_ranks_need_no_word() -> None:
    codes = {note.code for note in changed().notes}
    assert not codes & {"mixed-devices", "mixed-work", "mixed-world-sizes", "mixed-steps", "rank-beyond-world"}


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"devices": ((A100,), (H100,), ())}, "mixed-devices", f"{A100} (1 rank(s), rank0.json); {H100} (1 rank(s)"),
        ({"on_host": (False, False, True)}, "mixed-work", "accelerator (2 rank(s), rank0.json); processor (1 rank(s)"),
        ({"steps": (profiles()[0].steps, (), ())}, "mixed-steps", "2 of 3 ranks have no step marks (rank1.json)"),
        ({"world_size": (3, 3, 8)}, "mixed-world-sizes", "3 (2 rank(s), rank0.json); 8 (1 rank(s)"),
        (
            {"world_size": (3, 3, 2)},
            "rank-beyond-world",
            "rank2.json: is rank 2, but its header says that the run has 2 ranks",
        ),
    ],
)
def test_unlike_ranks_are_named(fields: dict[str, tuple[object, ...]], code: str, words: str) -> None:
    [note] = [note for note in changed(**fields).notes if note.code == code]
    assert words in note.message and note.severity == "warning"


def test_devices_are_those_of_all_ranks() -> None:
    assert changed(devices=((A100,), (H100, A100), ())).devices == (A100, H100)
    assert changed(devices=((), (), ())).devices == ()


def test_missing_ranks_are_named_where_they_are_few() -> None:
    def told(world: int) -> str:
        [text] = [note.message for note in changed(world_size=(world,) * 3).notes if note.code == "ranks-missing"]
        return text

    assert told(5) == "3 of the run's 5 ranks were profiled; missing: 3, 4"
    assert told(4096) == "3 of the run's 4096 ranks were profiled; missing: 3 to 4095"
    assert told(4) == "3 of the run's 4 ranks were profiled; missing: 3"


def test_a_header_may_claim_any_number_of_ranks() -> None:
    """Told by arithmetic: as many ranks as fit into 31 bits were once counted one by one."""
    run = changed(world_size=(2**31 - 1,) * 3)
    assert [n.message for n in run.notes if n.code == "ranks-missing"] == [
        "3 of the run's 2147483647 ranks were profiled; missing: 3 to 2147483646"
    ]
    assert run.world_size == 2**31 - 1 and "3 of 2147483647" in render(profile_page(run))


def test_gaps_between_ranks_are_abbreviated() -> None:
    ranks = [replace(one, rank=rank, world_size=40) for one, rank in zip(profiles((0, 0, 0)), (2, 5, 9), strict=True)]
    [text] = [note.message for note in run_notes(ranks) if note.code == "ranks-missing"]
    assert text.endswith("missing: 0, 1, 3, 4, 6 to 8, 10 to 39")
    every_second = [replace(ranks[0], rank=rank, world_size=40) for rank in range(0, 40, 2)]
    [text] = [note.message for note in run_notes(every_second) if note.code == "ranks-missing"]
    assert text.endswith("missing: 1, 3, 5, 7, 9, 11, 13, 15 and 12 more")


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
    assert table.columns.is_unique and not table.isna().any().any()


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


def test_no_result_can_be_changed_by_who_reads_it() -> None:
    assert changeable("densing.efficiency.profile") == set()

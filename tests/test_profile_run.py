"""Ranks joined into a run: sums, shares, causes and their order, and the same answer from a store."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.errors import InputError
from densing.profile import run as run_module
from densing.profile.causes import find_causes
from densing.profile.rank import ProfileOptions, RankProfile, profile_timeline
from densing.profile.run import merge_run
from densing.profile.store import write_profile
from densing.profile.summary import METRICS, figures, per_step, pooled
from densing.profile.utilisation import parse_spec, run_utilisation
from densing.timeline.overlap import Partition
from densing.timeline.spans import Comm, Kind, Lane, Spans
from densing.timeline.timeline import Origin, RankTimeline, Step

STREAMS = {Kind.COMPUTE: Lane("GPU 0", "stream 7"), Kind.COMM: Lane("GPU 0", "stream 20")}
LAUNCH = {"kind": Kind.LAUNCH, "name": "cudaLaunchKernel", "lane": Lane("1", "1")}


def timeline(rank: int, late: int = 0, steps: int = 4, world: int = 3) -> RankTimeline:
    """Steps of 1 ms: 400 µs of compute, then an all-reduce that ends at 900 µs; a late rank computes longer."""
    work, host, marks = [], [], []
    comm = Comm("all_reduce", "0", "default", world, tuple(range(world)), 1000, 1000, "float")
    for step in range(steps):
        at = 1_000_000 * step
        marks.append(Step(step, at, at + 1_000_000))
        for number, (kind, start, end) in enumerate(
            ((Kind.COMPUTE, 10_000, 410_000 + late), (Kind.COMM, 410_000 + late, 900_000))
        ):
            key = 10 * step + number
            row = {"start": at + start, "end": at + end, "kind": kind, "name": f"nccl{kind.name}", "correlation": key}
            work.append({**row, "lane": STREAMS[kind], **({"comm": comm} if kind == Kind.COMM else {})})
            host.append({**LAUNCH, "start": at + number * 1000, "end": at + number * 1000 + 500, "correlation": key})
    origin = Origin(f"rank{rank}.json", "distributedInfo", world, "nccl", ("NVIDIA A100-SXM4-40GB",))
    return RankTimeline(rank, Spans.build(work), Spans.build(host), tuple(marks), origin)


def profiles(lates: tuple[int, ...] = (0, 100_000, 300_000)) -> list[RankProfile]:
    return [profile_timeline(timeline(rank, late)) for rank, late in enumerate(lates)]


def test_a_profile_survives_its_plain_form() -> None:
    one = profiles()[1]
    assert RankProfile.from_dict(one.to_dict()).to_dict() == one.to_dict()


def test_figures_are_those_of_all_ranks_together() -> None:
    told = figures(profiles((0, 0)))
    assert set(told) == set(METRICS)
    assert told["step_ms"] == 1.0
    assert told["compute_pct"] == pytest.approx(40)
    assert told["exposed_pct"] == pytest.approx(49)
    assert told["overlap_pct"] == 0
    assert told["exposed_ms_per_step"] == pytest.approx(0.49)
    assert (told["ranks"], told["steps"]) == (2, 8)


@given(st.lists(st.tuples(*[st.integers(0, 1000)] * 9), min_size=1, max_size=5))
def test_pooling_adds_every_figure_up(rows: list[tuple[int, ...]]) -> None:
    whole = pooled([Partition(*row) for row in rows])
    assert (whole.window_ns, whole.comm_ns, whole.idle_ns) == tuple(sum(row[i] for row in rows) for i in (0, 3, 8))


def test_the_late_rank_is_blamed_and_its_cost_split_from_transfer() -> None:
    run = merge_run(profiles())
    together = run.together
    assert together is not None
    assert together.stragglers.worst == 2
    # All communication is exposed: 490, 390 and 190 µs a step, of which 190 are transfer.
    waiting = next(cause for cause in run.causes if cause.code == "waiting-for-ranks")
    transfer = next(cause for cause in run.causes if cause.code == "exposed-communication")
    assert waiting.ms_per_step == pytest.approx((300 + 200 + 0) / 3 / 1000, rel=1e-3)
    assert transfer.ms_per_step == pytest.approx(0.19, rel=1e-3)
    assert "rank 2" in waiting.message


def test_causes_come_worst_first_and_cost_no_more_than_the_run() -> None:
    run = merge_run(profiles())
    costs = [cause.ms_per_step for cause in run.causes]
    assert costs == sorted(costs, reverse=True)
    whole = pooled([rank.partition for rank in run.ranks])
    lost = whole.exposed_comm_ns + whole.exposed_memcpy_ns + whole.idle_ns
    assert sum(costs) == pytest.approx(lost / per_step(run.ranks) / 1e6, rel=1e-6)
    assert sum(cause.share_pct for cause in run.causes) == pytest.approx(100 * lost / whole.window_ns)
    assert all(cause.remedy for cause in run.causes)


def test_communications_at_the_same_time_cost_their_union_only() -> None:
    rows = [
        {"start": 0, "end": 100, "kind": Kind.COMM, "name": "nccl_a", "lane": Lane("GPU 0", stream)} for stream in "ab"
    ]
    one = profile_timeline(RankTimeline(0, Spans.build(rows), Spans.empty()))
    run = merge_run([one])
    assert sum(cause.ms_per_step for cause in run.causes) == pytest.approx(100 / 1e6)


def test_nothing_lost_has_no_cause() -> None:
    work = Spans.build([{"start": 0, "end": 10, "kind": Kind.COMPUTE, "name": "gemm"}])
    assert merge_run([profile_timeline(RankTimeline(0, work, Spans.empty()))]).causes == ()
    assert find_causes([], [], {}) == ()


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
    assert codes["ranks-missing"] == "2 of the run's 3 ranks were profiled"
    assert "ranks-missing" not in {note.code for note in merge_run(profiles()).notes}


def test_many_ranks_are_read_again_from_their_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = profiles((0, 50_000, 100_000, 150_000, 200_000))
    for rank in ranks:
        write_profile(tmp_path / f"{rank.rank}.parquet", rank.to_dict())
    whole = merge_run(ranks)
    monkeypatch.setattr(run_module, "HELD_RANKS", 2)
    spilled = merge_run((rank.to_dict() for rank in ranks), store=tmp_path)
    assert all(len(rank.collectives) == 0 for rank in spilled.ranks)
    assert whole.together is not None and spilled.together is not None
    assert spilled.together.stragglers.to_dict() == whole.together.stragglers.to_dict()
    assert spilled.together.what_if.to_dict() == whole.together.what_if.to_dict()
    assert spilled.figures == whole.figures and spilled.causes == whole.causes


def test_utilisation_of_a_run_uses_its_own_device_and_says_what_it_lacks() -> None:
    run = merge_run(profiles((0, 0)))
    found = run_utilisation(run, parse_spec("params=1e6,tokens=1000"))
    # 6 N per token; 1000 tokens in 1 ms on the three devices of the world, 312 TFLOP/s each (A100, bf16 dense).
    assert found.model is not None
    assert found.model.percent == pytest.approx(100 * 6e6 * 1e6 / (3 * 312e12))
    with pytest.raises(InputError, match="tokens"):
        run_utilisation(run, parse_spec("params=1e6"))
    with pytest.raises(InputError, match="no key=value"):
        parse_spec("params")

"""Ranks joined into a run: sums, shares, causes and their order, and the same answer from a store."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core.errors import InputError
from densing.efficiency.profile import run as run_module
from densing.efficiency.profile.causes import find_causes
from densing.efficiency.profile.rank import ProfileOptions, RankProfile, profile_timeline
from densing.efficiency.profile.run import merge_run
from densing.efficiency.profile.store import write_profile
from densing.efficiency.profile.summary import METRICS, figures, per_step, pooled
from densing.efficiency.profile.utilisation import parse_spec, run_utilisation
from densing.efficiency.timeline.overlap import Partition
from densing.efficiency.timeline.spans import Comm, Kind, Lane, Spans
from densing.efficiency.timeline.timeline import Origin, RankTimeline, Step

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
    assert "rank 2 in 4 of 4 steps" in waiting.message


def test_causes_come_worst_first_and_cost_no_more_than_the_run() -> None:
    run = merge_run(profiles())
    costs = [cause.ms_per_step for cause in run.causes]
    won = [cause.recoverable_ms_per_step for cause in run.causes]
    assert won == sorted(won, reverse=True) and all(a <= b for a, b in zip(won, costs, strict=True))
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
    assert find_causes([], []) == ()


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


@pytest.mark.parametrize(
    ("comm", "kind", "on_host", "told"),
    [
        ("GPU 1", Kind.COMM, False, [["GPU 0", "GPU 1"]]),
        ("GPU 1", Kind.MEMSET, False, [["GPU 0", "GPU 1"]]),
        ("GPU 0", Kind.COMM, False, []),
        ("GPU 1", Kind.SYNC, False, []),
        ("GPU 1", Kind.UNKNOWN, False, []),
        ("worker 2", Kind.COMM, True, []),
    ],
)
def test_work_on_several_devices_in_one_trace_is_noted(comm: str, kind: Kind, on_host: bool, told: list[str]) -> None:
    first = {"start": 0, "end": 50, "kind": Kind.COMPUTE, "name": "gemm", "lane": Lane("GPU 0", "7")}
    second = {"start": 20, "end": 80, "kind": kind, "name": "x", "lane": Lane(comm, "20")}
    host = Spans.build([{**LAUNCH, "start": 0, "end": 1}])
    rank = RankTimeline(0, Spans.build([first, second]), host, origin=Origin("both.json"), on_host=on_host)
    notes = [note for note in profile_timeline(rank).notes if note.code == "several-devices"]
    assert [note.details["devices"] for note in notes] == told
    assert all(note.severity == "warning" and "both.json: 2 devices" in note.message for note in notes)


def test_the_window_of_hta_counts_one_step_less() -> None:
    whole, cut = (merge_run([profile_timeline(timeline(0), ProfileOptions(name))]) for name in ("all", "hta"))
    assert [len(run.ranks[0].steps) for run in (whole, cut)] == [4, 3]
    assert all(step.partition.compute_ns == 400_000 for step in cut.ranks[0].steps)
    assert [run.ranks[0].partition.compute_ns / per_step(run.ranks) for run in (whole, cut)] == [400_000, 400_000]


@pytest.mark.parametrize(("sizes", "busbw"), [((2, 2), 4.0), ((4, 4), 6.0), ((2, 4), None)])
def test_groups_of_one_name_and_two_sizes_have_no_bus_bandwidth(sizes: tuple[int, int], busbw: float | None) -> None:
    ranks = []
    for rank, size in enumerate(sizes):
        comm = Comm("all_reduce", "tp", group_size=size, in_elems=100, out_elems=100, dtype="float")
        work = [{"start": 0, "end": 100, "kind": Kind.COMM, "name": "nccl", "comm": comm}]
        ranks.append(profile_timeline(RankTimeline(rank, Spans.build(work), Spans.empty())))
    [row] = merge_run(ranks).collectives
    assert (row.group_size, row.algbw_gbps, row.busbw_gbps) == (max(sizes), 4.0, busbw)


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
    monkeypatch.setattr("densing.efficiency.profile.run_gather.HELD_ROWS", held_rows)
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


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "--mfu '': add params=NUMBER"),
        (" , ", "add params=NUMBER"),
        ("peek=3", "--mfu: unknown key 'peek'; did you mean 'peak'\\? \\(known: .*params.*seq"),
        ("parms=3", "did you mean 'params'"),
        ("params=7B", "params=7B is not a number; write 7e9$"),
        ("params=1.5 m", "write 1.5e6$"),
        ("tokens=many", "write e.g. 7e9"),
        ("params=-1", "params=-1 is not a number above 0"),
        ("tokens=0", "tokens=0 is not a number above 0"),
        ("seq=nan", "seq=nan is not"),
        ("devices=inf", "devices=inf is not a whole number"),
        ("devices=2.5", "devices=2.5 is not a whole number"),
        ("attention=2", "attention=2 is not 0 or 1"),
        ("params=1,parameters=2", "repeats one"),
    ],
)
def test_what_utilisation_cannot_read_is_named_by_the_users_keys(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_spec(spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("tokens=1", "^--mfu: add params=NUMBER$"),
        ("params=1e6,tokens=1,layers=2", "^--mfu: layers=2 alone: also give heads, head_dim and seq$"),
        ("params=1e6,tokens=1,layers=2,seq=8", "^--mfu: layers=2 and seq=8 alone: also give heads and head_dim$"),
        ("params=1e6,tokens=1,attention=1", "attention=1 alone: also give layers, heads, head_dim and seq"),
        ("params=1e6,tokens=1,batch=3", "formula palm: unknown key 'batch'.*known: attention.*params"),
        ("formula=mosaicml,params=1e6,tokens=1,layers=1", "add hidden=NUMBER and seq=NUMBER .formula mosaicml"),
        ("formula=megatron,params=1e6", "formula megatron: unknown key 'params'"),
        ("formula=megatron,batch=1,seq=1,layers=1,hidden=1,vocabulary=1,tokens=5", "per iteration; leave tokens out"),
        ("formula=plam,params=1", "^--mfu: unknown FLOPs formula 'plam'; did you mean 'palm'"),
        ("params=1e6,tokens=1,recompute=selective", "^--mfu: recompute=selective: formula palm .*formula=megatron"),
        ("params=1e6,tokens=1,dtype=foo", "^--mfu: unknown data type 'foo'"),
        ("params=1e6,tokens=1,peak=312e12", "^--mfu: peak .*write 312"),
        ("params=1e15,tokens=1000", "^--mfu: [HM]FU .* above 100 %.*peak=TFLOPS in --mfu$"),
    ],
)
def test_what_utilisation_lacks_is_named_by_the_users_keys(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        run_utilisation(merge_run(profiles()), parse_spec(spec))


def test_utilisation_takes_a_shape_whole_or_not_at_all() -> None:
    run = merge_run(profiles())
    plain = run_utilisation(run, parse_spec("params=1e6,tokens=1000,peak=312,dtype=foo"))
    shaped = run_utilisation(run, parse_spec("params=1e6,tokens=1000,peak=312,layers=2,heads=4,head_dim=8,seq=16"))
    without = run_utilisation(run, parse_spec("params=1e6,tokens=1000,peak=312,layers=2,attention=0"))
    assert plain.model is not None and shaped.model is not None and without.model is not None
    assert plain.model.peak.dtype == "foo"
    assert shaped.model.percent / plain.model.percent == pytest.approx((6e6 + 12 * 2 * 4 * 8 * 16) / 6e6)
    assert without.model.percent == plain.model.percent


def test_an_unknown_peak_is_asked_for_by_its_key() -> None:
    found = run_utilisation(merge_run(profiles()), parse_spec("params=1e6,tokens=1,device=Ascend910B3"))
    assert found.model is None and found.hardware is None
    assert found.notes[0].code == "peak-unknown" and found.notes[0].message.endswith("peak=TFLOPS in --mfu")

"""What runs tell a calibration: transfer without waiting, what lay beside it, and the same work again in every step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from densing.core.errors import InputError
from densing.efficiency.profile.observations import of_timeline, recorded
from densing.efficiency.profile.own_steps import own_seconds
from densing.efficiency.profile.rank import profile_timeline
from densing.efficiency.simulation import Computation, Observation
from densing.efficiency.timeline.timeline import Comm, Kind, RankTimeline, Spans, Step, Timeline
from tests.support.straggler_runs import timeline

US = 1_000


def test_transfer_is_what_the_last_rank_needs_and_own_time_is_everyones() -> None:
    run = Timeline(tuple(timeline(rank, late) for rank, late in enumerate((0, 100 * US, 300 * US))))
    found = of_timeline(run, "a")
    # Of 490, 390 and 190 µs; a thousand floats.
    assert found.collectives == (Observation("all_reduce", 4000.0, 3, 190e-6, 0.0),) * 4
    assert (found.ranks, found.on_host) == (3, False)
    assert [note.code for note in found.notes] == ["no-synchronisation-records"]
    # By rank and step; 400 µs and what a rank is late.
    assert len(found.computations) == 12
    assert [one.seconds for one in found.computations[::4]] == pytest.approx([400e-6, 500e-6, 700e-6])
    assert {one.work for one in found.computations} == {f"a:{rank}:ncclCOMPUTE:0" for rank in range(3)}
    assert found.own == (own_seconds([profile_timeline(rank) for rank in run.ranks]),)


def overlapped(rank: int, op: str, start: int) -> RankTimeline:
    """Two steps of 200 µs: a communication from ``start`` to 100 beside two of three computations of one name."""
    work, steps = [], []
    comm = Comm(op, "0", "default", 4, (), 1000, 1000, "float")
    for number in (0, 1):
        at = 200 * US * number
        steps.append(Step(number, at, at + 200 * US))
        gemms = ((0, 40), (80, 120), (130, 190), (191, 200))
        spans = [(Kind.COMM, start, 100), *((Kind.COMPUTE, first, last) for first, last in gemms)]
        work += [{"kind": kind, "start": at + first * US, "end": at + last * US, "name": kind.name,
                  **({"comm": comm} if kind == Kind.COMM else {})} for kind, first, last in spans]  # fmt: skip
    return RankTimeline(rank, Spans.build(work), Spans.empty(), tuple(steps), on_host=rank < 2)


def test_what_lay_beside_the_other_kind_of_work_counts_by_its_share_of_the_duration() -> None:
    run = Timeline((overlapped(0, "all_gather", 20), overlapped(1, "all_gather", 60)))
    found = of_timeline(run)
    # The last to come needs 40 µs, of which 20 lie under its second product; the group has four ranks, two recorded.
    assert found.collectives == (Observation("all_gather", found.collectives[0].count, 4, 40e-6, 0.5),) * 2
    # 20 of 40 µs, 20 of 40, none of 60; what takes 9 µs is mostly the recorder's.
    first = [Computation(f":0:COMPUTE:{nth}", seconds, beside) for nth, seconds, beside in
             ((0, 40e-6, 0.5), (1, 40e-6, 0.5), (2, 60e-6, 0.0))]  # fmt: skip
    assert list(found.computations[:6]) == first * 2
    assert (
        found.on_host and not of_timeline(Timeline((overlapped(1, "all_gather", 20), overlapped(2, "x", 20)))).on_host
    )


@pytest.mark.parametrize("op", ["all_reduce", "reduce_scatter", "all_to_all", "broadcast"])
def test_collectives_keep_their_operation_and_the_size_of_their_group(op: str) -> None:
    found = of_timeline(Timeline((overlapped(0, op, 20), overlapped(1, op, 60)))).collectives
    assert [(one.op, one.n) for one in found] == [(op, 4)] * 2


@pytest.mark.parametrize("op", ["barrier", "gather"])
def test_what_no_closed_form_is_fitted_to_is_left_out_and_said(op: str) -> None:
    found = of_timeline(Timeline((overlapped(0, op, 20), overlapped(1, op, 60))))
    assert found.collectives == ()
    assert [note.code for note in found.notes if "give the traces of all ranks" in note.message] == ["nothing-matched"]


def test_every_folder_is_a_run_and_all_files_together_are_another(tmp_path: Path) -> None:
    for name in ("a/rank0.json", "a/rank1.json", "b/rank0.json", "rank0.json", "rank1.json", "rank2.json"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        rank = {"distributedInfo": {"rank": int(file.stem[-1]), "world_size": 2}}
        times = ((f"gemm {name}", 0, 100), ("ncclDevKernel_AllReduce", 120, 10))
        events = [{"ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": {}}
                  for kernel, ts, dur in times]  # fmt: skip
        file.write_text(json.dumps({**rank, "traceEvents": events}))
    files = [tmp_path / f"rank{number}.json" for number in range(3)]
    found = recorded([files[0], tmp_path / "a", files[1], tmp_path / "b", files[2]])
    assert found.ranks == 3 and not found.on_host
    assert sorted(one.work for one in found.computations) == [
        "0:0:gemm a/rank0.json:0", "0:1:gemm a/rank1.json:0", "1:0:gemm b/rank0.json:0",
        *(f"2:{number}:gemm rank{number}.json:0" for number in range(3)),
    ]  # fmt: skip
    assert len(found.own) == 3
    with pytest.raises(InputError, match="no traces given"):
        recorded([])

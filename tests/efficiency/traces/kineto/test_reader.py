"""Readers against numbers made elsewhere: the exact reference, HTA, the gloo table, the DLRM collectives."""

from __future__ import annotations

import csv
from functools import lru_cache
from pathlib import Path

import pytest

from densing.efficiency.timeline.overlap import Window, partition, select
from densing.efficiency.timeline.timeline import Kind, RankTimeline
from densing.efficiency.traces.run import read_rank, read_timeline
from densing.efficiency.traces.source import TraceFile
from tests.support import folders
from tests.support.trace_oracle import DEVICE, differences, load

WINDOWS = {"all": "all", "launched_before_last_step": "hta", "clipped_to_steps": "steps"}
SETS = ("hta_nccl_data", "hta_trace_filter", "tracelens_mi300_resnet", "param_dlrm_8rank")
WHOLE = [path for folder in SETS for path in sorted((folders.RECORDED / folder).glob("*.json.gz"))]
SMALL = [path for folder in SETS for path in sorted((folders.TRACES / folder).glob("*.json.gz"))]
GLOO = sorted(
    {path.name: path for root in (folders.RECORDED, folders.TRACES) for path in (root / "gloo").glob("*.gz")}.values()
)
whole_sets = pytest.mark.skipif(not WHOLE, reason="the whole public sets are not here")


def label(path: Path) -> str:
    """A file's name, and whether it is a public one made small."""
    return f"{path.name[:24]}{'-small' if path in SMALL else ''}"


def table(name: str) -> list[dict[str, str]]:
    """Rows of a golden table."""
    with (folders.TRACES / name).open(newline="") as stream:
        return list(csv.DictReader(stream))


@lru_cache(maxsize=1)
def timeline(path: Path, detail: str = "auto") -> RankTimeline:
    """A file's timeline; the tests go file by file."""
    return read_rank(TraceFile(path), detail=detail)  # type: ignore[arg-type]


def measured(rank: RankTimeline, window: Window) -> dict[str, int]:
    """What the exact reference says of a window, from our side."""
    found = partition(window)
    return {
        "steps": len({step.number for step in rank.steps}),
        "rank": rank.rank,
        "n_gpu": len(window.work),
        "n_comm": len(window.work.of(Kind.COMM)),
        "window_ns": found.window_ns,
        "span_ns": found.span_ns,
        "busy_ns": found.window_ns - found.idle_ns,
        "idle_in_window_ns": found.idle_ns,
        "compute_ns": found.compute_ns,
        "comm_ns": found.comm_ns,
        "memory_ns": found.memcpy_ns,
        "overlap_ns": found.overlap_ns,
        "exposed_comm_ns": found.exposed_comm_ns,
        "exposed_mem_ns": found.exposed_memcpy_ns,
    }


@pytest.mark.parametrize("path", SMALL + WHOLE, ids=label)
def test_exact_reference_to_the_nanosecond(path: Path) -> None:
    expected = [row for row in table("golden/exact_reference.csv") if row["file"] == path.name.removesuffix(".gz")]
    assert expected
    rank = timeline(path)
    assert rank.skipped == rank.repaired == 0
    for row in expected:
        found = measured(rank, select(rank, WINDOWS[row["window"]]))  # type: ignore[arg-type]
        assert {key: str(value) for key, value in found.items()} == {key: row[key] for key in found}


@pytest.mark.parametrize("path", SMALL + WHOLE, ids=label)
def test_every_span_as_the_second_reader_has_it(path: Path) -> None:
    assert differences(path, timeline(path)) == []


@pytest.mark.parametrize("name", ["sampled_2rank", pytest.param("nccl_data", marks=whole_sets), "dlrm_kineto"])
def test_hta_unrounded_in_its_own_window(name: str) -> None:
    files = {row["file"] + ".gz" for row in table("golden/exact_reference.csv") if row["set"] == name}
    path = next(path for path in WHOLE + SMALL if path.name in files)
    row = next(
        row
        for row in table("golden/hta_reference.csv")
        if row["set"] == name and int(row["rank"]) == timeline(path).rank
    )
    found = partition(select(timeline(path), "hta"))
    mine = {
        "idle": found.idle_ns,
        "compute": found.compute_ns,
        "kernel": found.span_ns,
        "non_compute": found.exposed_comm_ns + found.exposed_memcpy_ns,
    }
    for key, value in mine.items():
        column = next(c for c in row if c.startswith(key) and c.endswith("_noround"))
        assert abs(value - 1000 * float(row[column])) < 1, (key, column)


@pytest.mark.parametrize("path", GLOO, ids=lambda path: path.name[:16])
def test_gloo_overlap_to_the_nanosecond(path: Path) -> None:
    row = next(row for row in table("gloo/gloo_overlap.csv") if row["file"] == path.name)
    rank = read_rank(TraceFile(path))
    assert (rank.on_host, rank.detail, rank.origin.backend) == (True, "host", "gloo")
    found = partition(select(rank, "steps"))
    mine = {
        "rank": rank.rank,
        "steps": len(rank.steps),
        "events": rank.events,
        "n_comm": len(rank.work.of(Kind.COMM)),
        "window_ns": found.window_ns,
        "comm_ns": found.comm_ns,
        "compute_ns": found.compute_ns,
        "overlap_ns": found.overlap_ns,
        "exposed_comm_ns": found.exposed_comm_ns,
        "idle_ns": found.idle_ns,
    }
    assert {key: str(value) for key, value in mine.items()} == {key: row[key] for key in mine}


def test_collectives_of_eight_ranks_from_the_ranges_around_their_launches() -> None:
    run = read_timeline(folders.TRACES / "param_dlrm_8rank")
    assert [rank.rank for rank in run.ranks] == list(range(8))
    expected = table("golden/dlrm_collectives.csv")
    for rank in run.ranks:
        comm = rank.work.of(Kind.COMM)
        rows = [row for row in expected if int(row["rank"]) == rank.rank]
        mine = [(comm.comms[c].op, comm.comms[c].in_elems, comm.comms[c].dtype) for c in comm.comm.tolist()]
        assert mine == [(row["op"], int(row["in_nelems"]), row["dtype"]) for row in rows]
        assert comm.start.tolist() == [int(row["start_ns"]) for row in rows]
        assert (comm.end - comm.start).tolist() == [int(row["dur_ns"]) for row in rows]


@whole_sets
def test_arguments_of_collectives_where_kernels_carry_them() -> None:
    """traces.md, 4: on mi300 12 of 17 communications carry arguments, 5 were launched before recording began."""
    comm = timeline(WHOLE[[path.parent.name for path in WHOLE].index("tracelens_mi300_resnet")]).work.of(Kind.COMM)
    told = [comm.comms[c] for c in comm.comm.tolist()]
    assert len(told) == 17
    assert sum(one.group_size == 8 and one.op in ("all_reduce", "broadcast") for one in told) == 12
    assert sum(one.group_size == -1 and one.op == "" for one in told) == 5


@whole_sets
def test_header_of_a_modern_trace() -> None:
    origin = timeline(WHOLE[0]).origin
    assert (origin.world_size, origin.backend, origin.rank_from) == (2, "nccl", "distributedInfo")
    assert origin.groups == {"0": (0, 1)}
    assert len(origin.devices) == 8 and set(origin.devices) == {"NVIDIA A100-PG509-200"}


def test_lanes_name_device_and_stream() -> None:
    path = (WHOLE + SMALL)[0]
    events, _ = load(path)
    expected = {(f"GPU {e['pid']}", str(e["args"]["stream"])) for e in events if e.get("cat") in DEVICE}
    work = timeline(path).work
    assert {(work.lanes[i].process, work.lanes[i].thread) for i in set(work.lane.tolist())} == expected


@whole_sets
def test_operators_on_demand() -> None:
    path = WHOLE[0]
    device, host = timeline(path), timeline(path, "host")
    assert len(device.host.of(Kind.OP)) == 0 and device.detail == "device"
    assert len(host.host.of(Kind.OP)) == 14346 and host.detail == "host"  # cpu_op events of the file
    assert not host.on_host and partition(select(host)) == partition(select(device))

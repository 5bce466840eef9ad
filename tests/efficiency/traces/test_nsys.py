"""Exports of Nsight Systems, made by hand from the documented schema: the same events as of a Kineto trace."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path

import pytest

from densing.core.errors import InputError
from densing.efficiency.profile.run import profile_run
from densing.efficiency.timeline.timeline import Kind
from densing.efficiency.traces import read_timeline

SCHEMA = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
    correlationId INTEGER, demangledName INTEGER, shortName INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
    correlationId INTEGER, bytes INTEGER, copyKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER,
    nameId INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER, globalTid INTEGER);
"""
THREAD = (41 << 24) | 42
GEMM, REDUCE, LAUNCH = "ampere_sgemm_128x64_tn", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "cudaLaunchKernel_v7000"


def export(path: Path) -> Path:
    """Write two steps: a product, half of an all-reduce under it, and a copy."""
    base = sqlite3.connect(path)
    base.executescript(SCHEMA)
    base.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate((GEMM, REDUCE, LAUNCH, "ProfilerStep#1")))
    base.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H100 80GB HBM3')")
    for step in (0, 1):
        at = 10**18 + 1_000_000 * step
        text, number = ("ProfilerStep#0", None) if step == 0 else (None, 3)
        base.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, ?, ?)", (at, at + 900_001, text, number, THREAD))
        # A mark (type 34) has no end and is left out.
        base.execute("INSERT INTO NVTX_EVENTS VALUES (?, NULL, 34, 'mark', NULL, ?)", (at, THREAD))
        for row, (name, stream, start, end) in enumerate(((0, 7, 100_000, 500_000), (1, 9, 300_001, 700_001))):
            number = 10 * step + row
            base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, 2)",
                         (at + 5_000 + row * 9_000, at + 9_000 + row * 9_000, THREAD, number))  # fmt: skip
            base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, ?, ?, ?, ?)",
                         (at + start, at + end, stream, number, name, name))  # fmt: skip
        base.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, 0, 7, 99, 4096, 1)", (at + 720_000, at + 730_000)
        )
    base.commit()
    base.close()
    return path


def test_an_export_has_the_spans_streams_launches_and_steps_that_were_written(tmp_path: Path) -> None:
    [rank] = read_timeline(export(tmp_path / "rank3.sqlite")).ranks
    assert (rank.rank, rank.origin.devices) == (3, ("NVIDIA H100 80GB HBM3",))
    work = rank.work
    assert [Kind(kind).name for kind in work.kind[:3]] == ["COMPUTE", "COMM", "MEMCPY"]
    assert [work.names[name] for name in work.name[:3]] == [GEMM, REDUCE, "Memcpy HtoD"]
    assert (work.start[:2] - 10**18).tolist() == [100_000, 300_001] and work.bytes[2] == 4096
    assert [work.lanes[lane].text for lane in work.lane[:2]] == ["GPU 0 7", "GPU 0 9"]
    assert work.comms[work.comm[1]].op == "all_reduce"
    assert [(step.number, step.end - step.start) for step in rank.steps] == [(0, 900_001), (1, 900_001)]
    launches = rank.host.of(Kind.LAUNCH)
    assert {launches.names[name] for name in launches.name} == {"cudaLaunchKernel"}
    assert {launches.lanes[lane].text for lane in launches.lane} == {"41 42"}


def test_an_export_is_profiled_like_any_trace(tmp_path: Path) -> None:
    export(tmp_path / "rank0.sqlite")
    run = profile_run(tmp_path)
    assert (run.ranks[0].partition.exposed_comm_ns, run.ranks[0].partition.overlap_ns) == (400_002, 399_998)
    assert run.collectives[0].op == "all_reduce" and run.figures["steps"] == 2


def test_what_is_no_export_says_so(tmp_path: Path) -> None:
    other = tmp_path / "rank0.sqlite"
    base = sqlite3.connect(other)
    base.execute("CREATE TABLE t (x)")
    base.commit()
    base.close()
    with pytest.raises(InputError, match="no export of Nsight Systems"):
        read_timeline(other)
    packed = tmp_path / "rank1.sqlite.gz"
    packed.write_bytes(gzip.compress(other.read_bytes()))
    with pytest.raises(InputError, match="packed database; unpack it"):
        read_timeline(packed)
    (tmp_path / "cut.sqlite").write_bytes(other.read_bytes()[:100] + json.dumps({}).encode())
    with pytest.raises(InputError, match="Nsight Systems"):
        read_timeline(tmp_path / "cut.sqlite")

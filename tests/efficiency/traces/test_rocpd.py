"""Databases of rocprofv3, made by hand from rocprofiler-sdk's schema: the same events as of a Kineto trace."""

from __future__ import annotations

import gzip
import sqlite3
from pathlib import Path

import pytest

from densing.core.errors import InputError
from densing.efficiency.profile.run import profile_run
from densing.efficiency.timeline.timeline import Kind
from densing.efficiency.traces import find_traces, read_timeline

# Tables carry the database's uuid in their names, views do not; of the columns those that are read.
UUID = "_0000a1b2"
TABLES = {
    "rocpd_string": "id, guid, string",
    "rocpd_info_node": "id, guid, hostname",
    "rocpd_info_agent": "id, guid, type, type_index, logical_index, name, model_name, product_name",
    "rocpd_info_kernel_symbol": "id, guid, kernel_name, display_name",
    "rocpd_event": "id, guid, category_id, stack_id, parent_stack_id, correlation_id, extdata",
    "rocpd_region": "id, guid, pid, tid, start, end, name_id, event_id",
    "rocpd_kernel_dispatch": "id, guid, pid, agent_id, kernel_id, queue_id, stream_id, start, end, event_id",
    "rocpd_memory_copy": "id, guid, start, end, name_id, dst_agent_id, src_agent_id, size, stream_id, event_id",
}
GEMM, REDUCE = "Cijk_Ailk_Bljk_BBS_BH_MT64x64x64", "ncclDevKernel_Generic_AllReduce"
STRINGS = ("HIP_RUNTIME_API", "MARKER_CORE_RANGE_API", "KERNEL_DISPATCH", "hipLaunchKernel", "roctxThreadRangeA",
           "MEMORY_COPY_HOST_TO_DEVICE", "RCCL_API", "ncclAllReduce")  # fmt: skip


def database(path: Path, processes: int = 1, drop: str = "") -> Path:
    """Write two steps: a product, half of an all-reduce under it on another stream, and a copy."""
    base = sqlite3.connect(path)
    for table, columns in TABLES.items():
        base.execute(f'CREATE TABLE "{table}{UUID}" ({columns})')
        if table != drop:
            base.execute(f'CREATE VIEW {table} AS SELECT * FROM "{table}{UUID}"')

    def add(table: str, *row: object) -> None:
        base.execute(f'INSERT INTO "{table}{UUID}" VALUES ({", ".join("?" * (len(row) + 1))})', (row[0], "g", *row[1:]))

    for number, text in enumerate(STRINGS, 1):
        add("rocpd_string", number, text)
    add("rocpd_info_node", 1, "node-7")
    add("rocpd_info_agent", 1, "CPU", 0, 0, "EPYC", "", "EPYC")
    add("rocpd_info_agent", 2, "GPU", 0, 1, "gfx942", "", "AMD Instinct MI300X")
    for number, name in enumerate((GEMM, REDUCE), 1):
        add("rocpd_info_kernel_symbol", number, f"_Z{name}", name)
    events = iter(range(1, 100))
    for step in (0, 1):
        at = 10**18 + 1_000_000 * step
        number = next(events)
        add("rocpd_event", number, 2, 900 + step, 0, 0, f'{{"message": "ProfilerStep#{step}"}}')
        add("rocpd_region", number, 41, 42, at, at + 900_001, 5, number)
        for row, (kernel, stream, start, end) in enumerate(((1, 7, 100_000, 500_000), (2, 9, 300_001, 700_001))):
            call, work, stack = next(events), next(events), 10 * step + row + 1
            add("rocpd_event", call, 1, stack, 0, 0, "{}")
            add("rocpd_region", call, 41, 42, at + 5_000 + row * 9_000, at + 9_000 + row * 9_000, 4, call)
            add("rocpd_event", work, 3, stack, 0, 0, "{}")
            add("rocpd_kernel_dispatch", work, 41 + step % processes, 2, kernel, 1, stream, at + start, at + end, work)
        add("rocpd_memory_copy", step + 1, at + 720_000, at + 730_000, 6, 2, 1, 4096, 7, None)
    base.commit()
    base.close()
    return path


def test_a_database_has_the_spans_streams_launches_and_steps_that_were_written(tmp_path: Path) -> None:
    [rank] = read_timeline(database(tmp_path / "rank3_results.db")).ranks
    assert (rank.rank, rank.origin.devices, rank.origin.host) == (3, ("AMD Instinct MI300X",), "node-7")
    work = rank.work
    assert [Kind(kind).name for kind in work.kind[:3]] == ["COMPUTE", "COMM", "MEMCPY"]
    assert [work.names[name] for name in work.name[:3]] == [GEMM, REDUCE, "Memcpy HtoD"]
    assert (work.start[:2] - 10**18).tolist() == [100_000, 300_001] and work.bytes[2] == 4096
    assert [work.lanes[lane].text for lane in work.lane[:2]] == ["GPU 0 7", "GPU 0 9"]
    assert work.comms[work.comm[1]].op == "all_reduce"
    assert [(step.number, step.end - step.start) for step in rank.steps] == [(0, 900_001), (1, 900_001)]
    launches = rank.host.of(Kind.LAUNCH)
    assert {launches.names[name] for name in launches.name} == {"hipLaunchKernel"}
    assert launches.correlation.tolist() == [1, 2, 11, 12] == work.correlation[work.correlation > 0].tolist()


def test_a_database_is_found_in_a_folder_and_profiled_like_any_trace(tmp_path: Path) -> None:
    database(tmp_path / "4711_results.db")
    (tmp_path / "other.db").write_bytes(b"SQLite format 3\x00" + bytes(100))
    (tmp_path / "notes.db").write_text("no database")
    assert [trace.file_name for trace in find_traces([tmp_path])] == ["4711_results.db"]
    run = profile_run(tmp_path)
    assert (run.ranks[0].partition.exposed_comm_ns, run.ranks[0].partition.overlap_ns) == (400_002, 399_998)
    assert run.collectives[0].op == "all_reduce" and run.figures["steps"] == 2
    assert {row.name: row.moved_bytes / row.moved_ns for row in run.name_totals("names") if row.moved_ns} == {
        "Memcpy HtoD": pytest.approx(0.4096)
    }


def test_what_is_no_database_of_one_process_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds the work of 2 processes"):
        read_timeline(database(tmp_path / "rank0.db", processes=2))
    with pytest.raises(InputError, match="has no rocpd_info_agent; write it with rocprofv3"):
        read_timeline(database(tmp_path / "rank1.db", drop="rocpd_info_agent"))
    good = database(tmp_path / "rank2.db").read_bytes()
    (tmp_path / "rank3.db.gz").write_bytes(gzip.compress(good))
    with pytest.raises(InputError, match="packed database; unpack it"):
        read_timeline(tmp_path / "rank3.db.gz")
    for keep in (200, 5000, len(good) - 4096):
        (tmp_path / "rank4.db").write_bytes(good[:keep])
        with pytest.raises(InputError, match=r"rank4\.db: "):
            read_timeline(tmp_path / "rank4.db")


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("rocpd_kernel_dispatch", "start", "soon"),
        ("rocpd_kernel_dispatch", "end", 2**63 - 1),
        ("rocpd_memory_copy", "size", "much"),
        ("rocpd_event", "extdata", "{"),
        ("rocpd_kernel_dispatch", "start", None),
        ("rocpd_region", "tid", None),
        ("rocpd_kernel_dispatch", "stream_id", b"\xff"),
        ("rocpd_event", "stack_id", "x"),
    ],
)
def test_hostile_cells_are_a_sentence_or_an_event_less(tmp_path: Path, table: str, column: str, value: object) -> None:
    path = database(tmp_path / "rank0.db")
    base = sqlite3.connect(path)
    base.execute(f'UPDATE "{table}{UUID}" SET "{column}" = ? WHERE id = (SELECT max(id) FROM {table})', (value,))
    base.commit()
    base.close()
    try:
        [rank] = read_timeline(path).ranks
    except InputError as error:
        assert "rank0.db" in str(error)
    else:
        assert len(rank.work)

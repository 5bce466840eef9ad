"""Communications of one rank: golden rows, a brute-force second implementation, bytes and bandwidth."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from densing.core.notes import Note
from densing.efficiency.timeline.classifier import Classifier
from densing.efficiency.timeline.timeline import NO_DEVICE_WORK, Comm, Kind, Origin, RankTimeline, Spans
from densing.efficiency.timeline.traffic import (
    OPS,
    Collectives,
    CollectiveSummary,
    Group,
    bandwidth,
    bus_factor,
    comm_bytes,
    dtype_bytes,
    nth,
    op_of,
    summary,
)
from tests.support.collective_runs import DLRM, collected, dlrm_rank, golden, rank_of, world

ALL_REDUCE = Comm("all_reduce", "0", in_elems=10, dtype="float")


def test_golden_collectives_of_eight_ranks() -> None:
    reference = golden("dlrm_collectives.csv")
    windows = {
        (row["file"], row["window"]): row for row in golden("exact_reference.csv") if row["set"] == "dlrm_kineto"
    }
    files = sorted(DLRM.glob("*.json.gz"))
    assert len(files) == 8
    for path in files:
        rank = dlrm_rank(path)
        found = collected(rank)
        mine = [
            (OPS[op], elements, found.dtypes[dtype], start, end - start, hidden)
            for op, elements, dtype, start, end, hidden in zip(
                found.op, found.in_elems, found.dtype, found.start_ns, found.end_ns, found.hidden_ns, strict=True
            )
        ]
        theirs = [
            (
                row["op"],
                int(row["in_nelems"]),
                row["dtype"],
                int(row["start_ns"]),
                int(row["dur_ns"]),
                int(row["hidden_ns"]),
            )
            for row in reference
            if int(row["rank"]) == rank.rank
        ]
        assert mine == theirs
        whole = windows[path.name.removesuffix(".gz"), "clipped_to_steps"]
        assert int(found.duration_ns.sum()) == int(whole["comm_ns"])
        assert int(found.hidden_ns.sum()) == int(whole["overlap_ns"])
        assert int(found.exposed_ns.sum()) == int(whole["exposed_comm_ns"])


spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), max_size=6).map(
    lambda pairs: [(start, start + length) for start, length in pairs]
)


@given(spans, spans, st.sampled_from(["steps", "all"]))
def test_every_nanosecond_counted_by_hand(comms: list[Any], compute: list[Any], name: Any) -> None:
    rank = rank_of(0, [(*span, ALL_REDUCE) for span in comms], compute, [(3, 10, 20), (4, 20, 30)])
    found = collected(rank, name)
    low, high = (10, 30) if name == "steps" else (0, 100)
    computing = {moment for start, end in compute for moment in range(start, end)}
    rows = []
    for start, end in sorted(comms, key=lambda span: (span[0], -span[1])):
        touches = start < high and (end > low or (start == end and start >= low))
        if touches:
            inside = [moment for moment in range(start, end) if low <= moment < high]
            hidden = sum(moment in computing for moment in inside)
            step = 3 if 10 <= start < 20 else 4 if 20 <= start < 30 else -1
            rows.append((start, end, len(inside), hidden, len(inside) - hidden, step))
    columns = (found.start_ns, found.end_ns, found.inside_ns, found.hidden_ns, found.exposed_ns, found.step)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == rows


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 50)), max_size=20, unique_by=lambda x: x[2])
)
def test_nth_counts_as_a_dictionary_does(rows: list[tuple[int, int, int]]) -> None:
    a, b, when = (np.array(column, np.int64) for column in (zip(*rows, strict=True) if rows else ([], [], [])))
    expected = [sum(other[:2] == row[:2] and other[2] < row[2] for other in rows) for row in rows]
    assert nth(when, a, b).tolist() == expected


def test_step_and_order_follow_the_launch_not_the_start() -> None:
    comms = [(12, 15, ALL_REDUCE), (21, 25, ALL_REDUCE), (26, 29, ALL_REDUCE)]
    rank = rank_of(0, comms, steps=[(1, 10, 20), (2, 20, 30)], launches={0: 11, 1: 19, 2: 20})
    found = collected(rank)
    assert found.step.tolist() == [1, 1, 2]
    assert found.order.tolist() == [0, 1, 0]


def test_groups_as_recorded_and_as_inferred() -> None:
    recorded = Comm("all_reduce", "3", "tp", 2, (4, 5))
    elided = Comm("all_reduce", "0", group_size=8)
    silent = Comm("all_reduce")
    rank = rank_of(4, [(0, 1, recorded), (2, 3, elided), (4, 5, silent), (6, 7, silent)], lanes=["7", "8", "9", "7"])
    found = collected(rank)
    groups = [found.groups[code] for code in found.group]
    assert groups == [Group("3", "tp", 2, (4, 5)), Group("0", "", 8), Group("", "stream#0"), Group("", "stream#1")]
    header = Origin(groups={"0": (0, 1, 4), "3": (4, 5)})
    rank = replace(rank, origin=header)
    found = collected(rank)
    assert found.groups[found.group[1]] == Group("0", "", 8, (0, 1, 4))
    only = collected(replace(rank, origin=world(8)))
    assert only.groups[only.group[2]] == Group("0", "", 8, tuple(range(8)))
    on_host = collected(replace(rank, origin=Origin(), on_host=True))
    assert on_host.group[2] == on_host.group[3]


def test_peers_become_global_ranks() -> None:
    group = (2, 6)
    comms = [(0, 1, Comm("send", "5", ranks=group, dst=1)), (2, 3, Comm("recv", "5", ranks=group, src=1)),
             (4, 5, Comm("send", "0", dst=3)), (6, 7, Comm("recv", "0"))]  # fmt: skip
    found = collected(rank_of(2, comms))
    assert list(zip(found.src.tolist(), found.dst.tolist(), strict=True)) == [(2, 6), (6, 2), (2, 3), (-1, 2)]
    pair = collected(rank_of(1, [(0, 1, Comm("send")), (2, 3, Comm("recv"))], origin=world(2)))
    assert list(zip(pair.src.tolist(), pair.dst.tolist(), strict=True)) == [(1, 0), (0, 1)]


def test_a_group_is_one_whether_or_not_a_record_describes_it() -> None:
    described = Comm("all_reduce", "0", "default_pg", 2, (0, 1))
    found = collected(rank_of(0, [(0, 1, Comm()), (2, 3, described)], origin=world(2)))
    assert found.groups == (Group("0", "default_pg", 2, (0, 1)),)


def test_operation_from_record_spelling_or_name() -> None:
    classifier = Classifier()
    assert op_of(Comm("all_to_all"), "ncclKernel_SendRecv", classifier) == "all_to_all"
    assert op_of(Comm("_reduce_scatter_base"), "ncclDevKernel_Generic", classifier) == "reduce_scatter"
    assert op_of(Comm(), "ncclDevKernel_SendRecv", classifier) == "send_recv"
    assert op_of(Comm("wait"), "ncclDevKernel_Generic", classifier) == ""


@pytest.mark.parametrize(
    ("op", "comm", "expected"),
    [
        ("all_reduce", Comm(in_elems=7, out_elems=7, dtype="BFloat16"), 14),
        ("all_gather", Comm(in_elems=7, out_elems=56, dtype="float"), 224),
        ("all_gather", Comm(in_elems=7, group_size=8, dtype="float"), 224),
        ("all_gather", Comm(in_elems=7, dtype="float"), -1),
        ("reduce_scatter", Comm(in_elems=56, out_elems=7, dtype="Half"), 112),
        ("reduce_scatter", Comm(out_elems=7, ranks=(0, 1), dtype="Half"), 28),
        ("recv", Comm(in_elems=0, out_elems=5, dtype="Byte"), 5),
        ("broadcast", Comm(out_elems=5, dtype="Long"), 40),
        ("all_reduce", Comm(in_elems=0, dtype="float"), 0),
        ("all_reduce", Comm(in_elems=5, dtype="blob"), -1),
        ("barrier", Comm(), -1),
    ],
)
def test_bytes(op: str, comm: Comm, expected: int) -> None:
    assert comm_bytes(op, comm) == expected


def test_recorded_bytes_serve_where_elements_do_not() -> None:
    assert comm_bytes("all_reduce", Comm(), 99) == 99
    assert comm_bytes("all_reduce", Comm(in_elems=2, dtype="float"), 99) == 8


def test_element_sizes_agree_with_torch() -> None:
    torch = pytest.importorskip("torch")
    names = [name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype)]
    known = 0
    for name in names:
        dtype = getattr(torch, name)
        if dtype_bytes(name) > 0 or dtype_bytes(str(dtype)) > 0:
            known += 1
            assert dtype_bytes(name) in (dtype.itemsize, -1), name
            assert dtype_bytes(str(dtype)) == dtype.itemsize, name
    assert known >= 25


@pytest.mark.parametrize("name", ["Float", "c10::Half", "signed char", "unsigned char", "long int", "Float8_e5m2",
                                  "c10::complex<float>", "c10::Float8_e4m3fn", "Bool", "Int", "Short"])  # fmt: skip
def test_spellings_of_traces_are_known(name: str) -> None:
    assert dtype_bytes(name) > 0


# Factors of nccl-tests as the project's notes quote them.
@pytest.mark.parametrize(
    ("op", "factor"),
    [("all_reduce", 2 * 7 / 8), ("all_gather", 7 / 8), ("reduce_scatter", 7 / 8), ("all_to_all", 7 / 8),
     ("broadcast", 1), ("reduce", 1), ("send", None), ("", None)],
)  # fmt: skip
def test_bus_factors(op: str, factor: float | None) -> None:
    assert bus_factor(op, 8) == factor
    assert bus_factor(op, 1) is None and bus_factor(op, -1) is None


def test_bandwidth_is_none_where_unknown() -> None:
    assert bandwidth("all_reduce", 8, -1, 10).algbw_gbps is None
    assert bandwidth("all_reduce", 8, 10, 0).algbw_gbps is None
    assert bandwidth("all_reduce", -1, 10, 10).to_dict() == {"algbw_gbps": 1.0, "busbw_gbps": None}


def test_summary_by_operation_and_group() -> None:
    known = Comm("all_reduce", "0", "world", 4, in_elems=1000, dtype="float")
    unknown = Comm("all_reduce", "0", "world", 4)
    gather = Comm("all_gather", "1", "tp", 2, out_elems=500, dtype="float")
    comms = [(0, 40, known), (40, 100, unknown), (100, 110, gather), (200, 240, known)]
    rows = summary(collected(rank_of(0, comms, [(30, 50), (100, 110)])))
    assert [row.op for row in rows] == ["all_reduce", "all_gather"]
    reduce, gathered = rows
    assert (reduce.count, reduce.count_sized, reduce.bytes) == (3, 2, 8000)
    assert (reduce.total_ns, reduce.hidden_ns, reduce.exposed_ns) == (140, 20, 120)
    assert (reduce.algbw_gbps, reduce.busbw_gbps) == (100.0, 150.0)
    assert (gathered.hidden_pct, gathered.busbw_gbps) == (100.0, 100.0)
    assert all(CollectiveSummary.from_dict(json.loads(json.dumps(row.to_dict()))) == row for row in rows)


def test_no_communication_is_no_rows() -> None:
    nothing = collected(RankTimeline(0, Spans.empty(), Spans.empty()))
    assert len(nothing) == 0 and summary(nothing) == ()
    compute = Spans.build([{"start": 0, "end": 5, "kind": Kind.COMPUTE, "name": "gemm"}])
    assert len(collected(RankTimeline(0, compute, Spans.empty()))) == 0


def test_plain_data_round_trip() -> None:
    comms = [(0, 4, Comm("send", "5", ranks=(0, 6), dst=1)), (5, 9, ALL_REDUCE)]
    found = collected(rank_of(0, comms, steps=[(1, 0, 20)]))
    plain = json.loads(json.dumps(found.to_dict()))
    again = Collectives.from_dict(plain)
    assert again.to_dict() == found.to_dict() == plain
    assert len({len(column) for column in plain["columns"].values()}) == 1
    assert again.groups == found.groups


def test_window_of_early_launches_keeps_whole_spans() -> None:
    comms = [(12, 15, ALL_REDUCE), (21, 25, ALL_REDUCE)]
    rank = rank_of(0, comms, steps=[(1, 10, 20), (2, 20, 30)], launches={0: 11, 1: 22})
    assert collected(rank, "hta").start_ns.tolist() == [12]


def test_a_blind_rank_has_no_communication_even_where_its_window_lies_within_one() -> None:
    """A user's pattern may call a copy communication, and a trace of a device without kernels may hold one."""
    rank = rank_of(0, [(5, 25, ALL_REDUCE)], steps=[(1, 10, 20)])
    blind = replace(rank, notes=(Note(NO_DEVICE_WORK, "error", "holds no kernel"),))
    assert len(collected(rank, "steps")) == 1 and len(collected(blind, "steps")) == 0


@pytest.mark.parametrize(
    "comm",
    [
        Comm("all_reduce", "0", in_elems=2**62, dtype="float"),
        Comm("reduce_scatter", "0", group_size=2**40, out_elems=2**60, dtype="float"),
        Comm("all_reduce", "0", in_elems=2**43, dtype="float"),
    ],
)
def test_sizes_that_no_device_holds_are_unknown(comm: Comm) -> None:
    """They passed int64, or their sum did."""
    found = collected(rank_of(0, [(0, 5, comm), (10, 15, comm)]))
    assert found.bytes.tolist() == [-1, -1]
    [row] = summary(found)
    assert (row.count, row.count_sized, row.bytes, row.algbw_gbps) == (2, 0, 0, None)
    assert comm_bytes("all_reduce", Comm(), 1 << 44) == 1 << 44 and comm_bytes("all_reduce", Comm(), 2**62) == -1

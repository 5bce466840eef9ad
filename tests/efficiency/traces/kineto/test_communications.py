"""What is known of each communication, and runs without device: arguments, operators, ranges and names joined."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from densing.efficiency.timeline.timeline import Comm, Kind
from tests.support.trace_make import ALL_REDUCE, event, kernel, parts, read, write

ARGS = {
    "Collective name": "allreduce",
    "In msg nelems": 100,
    "Out msg nelems": 100,
    "Group size": 2,
    "dtype": "BFloat16",
    "Process Group Name": "0",
    "Process Group Description": "default_pg",
    "Process Group Ranks": "[0, 1]",
    "Seq": 7,
}
TOLD = Comm("all_reduce", "0", "default_pg", 2, (0, 1), 100, 100, "BFloat16", 7)


def comm_of(tmp_path: Path, made: list[dict[str, Any]], **options: Any) -> Comm:
    """What is known of the one communication of a trace."""
    comm = read(write(tmp_path / "rank0.json", made), **options).work.of(Kind.COMM)
    assert len(comm) == 1
    return comm.comms[comm.comm[0]]


def test_a_communication_by_its_own_arguments(tmp_path: Path) -> None:
    assert comm_of(tmp_path, [kernel("ncclDevKernel_Generic(4096ul)", **ARGS)]) == TOLD


def test_collective_arguments_make_a_kernel_a_communication(tmp_path: Path) -> None:
    assert comm_of(tmp_path, [kernel("void custom_ring<float>(x)", **ARGS)]) == TOLD


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({"Process Group Name": "3", "Group size": 4}, Comm(group="3", group_size=4)),
        ({"Process Group Name": 0}, Comm(group="0")),
        ({"Group size": 2, "Process Group Ranks": "[0, 5]"}, Comm(group_size=2, ranks=(0, 5))),
    ],
)
def test_a_group_is_kept_without_the_name_of_the_collective(tmp_path: Path, args: dict[str, Any], told: Comm) -> None:
    assert comm_of(tmp_path, [kernel("ncclDevKernel_Generic(4096ul)", **args), kernel("gemm", ts=900)]) == told
    named = comm_of(tmp_path, [kernel("ncclDevKernel_AllGather_RING_LL(x)", **args)])
    assert named == told._replace(op="all_gather")
    # A group alone makes no communication of a kernel.
    work = read(write(tmp_path / "rank0.json", [kernel("void custom_ring<float>(x)", **args)])).work
    assert work.kind.tolist() == [Kind.COMPUTE]


@pytest.mark.parametrize("detail", ["device", "host"])
@pytest.mark.parametrize("carrier", ["kernel", "launch"])
@pytest.mark.parametrize("chunk", [64, 700, 1 << 20])
def test_a_communication_by_the_operator_that_led_to_it(tmp_path: Path, detail: str, carrier: str, chunk: int) -> None:
    made = [
        event("cpu_op", "aten::mm", 0, 1, **{"External id": 11}),
        event("cpu_op", "record_param_comms", 1, 5, **{**ARGS, "External id": 12, "In split size": "[]"}),
        event("cpu_op", "aten::add", 6, 1, **{"External id": 13}),
        event("cuda_runtime", "cudaLaunchKernelExC", 3, 1, correlation=900, **{"External id": 12}),
        kernel(
            "ncclDevKernel_Generic(4096ul)",
            ts=10,
            correlation=900,
            **({"External id": 12} if carrier == "kernel" else {}),
        ),
    ]
    assert comm_of(tmp_path, made, detail=detail, chunk=chunk) == TOLD


def test_a_kernel_that_names_its_group_only_takes_the_rest_from_the_range(tmp_path: Path) -> None:
    made = [
        event("user_annotation", "nccl:all_reduce", 0, 50, **{"Input Dims": [[100]], "Input type": ["float"]}),
        event("cuda_runtime", "cudaLaunchKernel", 10, 5, correlation=1),
        kernel("ncclDevKernel_Generic(4096ul)", correlation=1, **{"Process Group Name": "3", "Group size": 4}),
    ]
    told = comm_of(tmp_path, made)
    assert (told.op, told.in_elems, told.dtype) == ("all_reduce", 100, "float")
    assert (told.group, told.group_size) == ("3", 4)


def test_an_external_id_that_is_only_the_correlation_names_no_operator(tmp_path: Path) -> None:
    """Old traces write the correlation there; the same number may be some operator's."""
    made = [
        event("cpu_op", "record_param_comms", 1, 5, **{**ARGS, "External id": 900}),
        kernel("ncclKernel_Broadcast_RING_LL_Sum_int8_t(x)", ts=10, correlation=900, **{"External id": 900}),
    ]
    assert comm_of(tmp_path, made) == Comm("broadcast")


def test_a_communication_by_the_range_around_its_launch(tmp_path: Path) -> None:
    shapes = {"Input Dims": [[3, 4], [9]], "Input type": ["float", "int"]}
    made = [
        event("user_annotation", "## forward ##", 0, 100, **shapes),
        event("user_annotation", "nccl:all_to_all", 1, 50, **shapes),
        event("user_annotation", "nccl:all_reduce", 60, 5, **shapes),
        {**event("user_annotation", "nccl:broadcast", 1, 50, **shapes), "tid": 99},
        event("cuda_runtime", "cudaLaunchKernel", 20, 1, correlation=5),
        kernel("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)", ts=200),
    ]
    assert comm_of(tmp_path, made) == Comm("all_to_all", in_elems=12, dtype="float")


@pytest.mark.parametrize("threads", [127, 128, 129, 300])
def test_ranges_are_found_among_many_threads(tmp_path: Path, threads: int) -> None:
    """Columns are held in the narrowest integers; no count of threads may overflow them."""
    made = []
    for i in range(threads):
        shapes = {"Input Dims": [[i + 1]], "Input type": ["float"]}
        made += [
            {**event("user_annotation", "nccl:all_reduce", 1, 50, **shapes), "tid": i},
            {**event("cuda_runtime", "cudaLaunchKernel", 20, 1, correlation=i), "tid": i},
            kernel("ncclDevKernel_Generic(x)", ts=100 + i, dur=1, correlation=i),
        ]
    comm = read(write(tmp_path / "rank0.json", made)).work.of(Kind.COMM)
    assert [comm.comms[c].in_elems for c in comm.comm.tolist()] == list(range(1, threads + 1))


def test_a_communication_by_its_name_alone(tmp_path: Path) -> None:
    assert comm_of(tmp_path, [kernel(ALL_REDUCE)]) == Comm("all_reduce")
    assert comm_of(tmp_path, [kernel("ncclDevKernel_Generic(4096ul)")]) == Comm()


@pytest.mark.parametrize(
    "ranks",
    ["[0, 1, ..., 7]", "...", "", "[a]", [0, "x"], f"[0, {'9' * 5000}]", "[0, 10000000000]", [0, 10**30], [-1, 0]],
    ids=lambda ranks: str(ranks)[:20],
)
def test_elided_members_are_unknown(tmp_path: Path, ranks: object) -> None:
    assert comm_of(tmp_path, [kernel(ALL_REDUCE, **{**ARGS, "Process Group Ranks": ranks})]).ranks == ()


def host_trace() -> list[dict[str, Any]]:
    """Compute 0 to 60 on the main thread with a call 20 to 30 in it; gloo works 40 to 90 on its own thread."""
    loop = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "thread 2 (pt_gloo_runloop)"}}
    renamed = {**copy.deepcopy(loop), "args": {"name": "thread 2 (python)"}}
    made = [
        event("user_annotation", "ProfilerStep#1", 0, 100),
        event("cpu_op", "aten::mm", 0, 60),
        event("cpu_op", "c10d::allreduce_", 20, 10),
        event("user_annotation", "gloo:all_reduce", 40, 50, **{"Input Dims": [[8]], "Input type": ["float"]}),
        event("cpu_op", "aten::copy_", 90, 5),
    ]
    for one, tid in zip(made, (1, 1, 1, 2, 2), strict=True):
        one.update(pid=1, tid=tid)
    return [loop, renamed, *made]


@pytest.mark.parametrize("detail", ["auto", "host"])
def test_a_run_without_device(tmp_path: Path, detail: str) -> None:
    timeline = read(write(tmp_path / "rank0.json", host_trace()), detail=detail)
    assert timeline.on_host and timeline.detail == "host"
    assert parts(timeline, "steps") == (50.0, 50.0, 20.0, 30.0)
    comm = timeline.work.of(Kind.COMM)
    assert comm.comms[comm.comm[0]] == Comm("all_reduce", in_elems=8, dtype="float")
    assert [timeline.host.names[i] for i in timeline.host.of(Kind.OP).name] == ["aten::copy_"]


def test_a_run_without_device_asked_for_device_work_says_so(tmp_path: Path) -> None:
    timeline = read(write(tmp_path / "rank0.json", host_trace()), detail="device")
    assert not timeline.on_host and len(timeline.work) == 0
    assert [note.severity for note in timeline.notes if note.code == "no-work"] == ["error"]


def test_metadata_alone_is_no_work(tmp_path: Path) -> None:
    timeline = read(write(tmp_path / "rank0.json", host_trace()[:2]))
    assert [note.code for note in timeline.notes if note.severity == "error"] == ["no-work"]

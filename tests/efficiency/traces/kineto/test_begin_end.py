"""Chrome traces in other shapes: pairs of begin and end, zstd, a key that occurs twice, names without end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from densing.core.errors import InputError
from densing.efficiency.traces import find_traces, read_timeline


def kernel(ts: float, dur: float, **more: Any) -> dict[str, Any]:
    event = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": ts, "dur": dur}
    return {**event, "args": {"stream": 7, "device": 0}, **more}


def document(*events: Any, **header: Any) -> str:
    return json.dumps({**header, "traceEvents": list(events)})


def spans(path: Path) -> list[tuple[str, int, int]]:
    [rank] = read_timeline(path).ranks
    work = rank.work
    names = [work.names[name] for name in work.name]
    return list(zip(names, work.start.tolist(), work.end.tolist(), strict=True))


def test_begin_and_end_make_a_span_nested_by_thread_to_the_nanosecond(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    begin = {"ph": "B", "cat": "kernel", "pid": 0, "args": {"stream": 7, "device": 0}}
    path.write_text(
        document(
            {**begin, "tid": 7, "name": "outer", "ts": 1.001},
            {**begin, "tid": 9, "name": "other", "ts": 2, "args": {"stream": 9, "device": 0}},
            {**begin, "tid": 7, "name": "inner", "ts": 3},
            {"ph": "E", "pid": 0, "tid": 7, "ts": 4.5},
            {"ph": "E", "pid": 0, "tid": 7, "ts": 9.002},
            {"ph": "E", "pid": 0, "tid": 9, "ts": 6},
            kernel(20, 1),
            {"ph": "E", "pid": 0, "tid": 8, "ts": 30},
            {**begin, "tid": 7, "name": "open", "ts": 40},
        )
    )
    assert spans(path) == [("outer", 1001, 9002), ("other", 2000, 6000), ("inner", 3000, 4500), ("gemm", 20000, 21000)]
    [rank] = read_timeline(path).ranks
    [note] = [note for note in rank.notes if note.code == "phase-unknown"]
    assert "2 events of phase B or E" in note.message
    assert rank.skipped == 0


def test_zstd_is_read_where_gzip_is_and_damage_is_told(tmp_path: Path) -> None:
    text = document(*(kernel(3 * i, 2) for i in range(20_000))).encode()
    packed = pa.compress(text, "zstd", asbytes=True)
    (tmp_path / "rank0.json.zst").write_bytes(packed)
    (tmp_path / "rank1.json").write_bytes(text)
    zstd, plain = read_timeline(tmp_path).ranks
    assert (zstd.work.start == plain.work.start).all() and zstd.events == 20_000 and not zstd.skipped
    (tmp_path / "rank0.json.zst").write_bytes(packed[: len(packed) // 2])
    cut = read_timeline(tmp_path).ranks[0]
    assert 0 < cut.events < 20_001 and any(note.code == "file-ends-early" for note in cut.notes)


def test_a_key_that_occurs_twice_is_no_missing_comma(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    one = json.dumps([kernel(1, 2)])
    path.write_text(f'{{"traceEvents": {one}, "traceEvents": {json.dumps([kernel(5, 2)])}}}')
    [rank] = read_timeline(path).ranks
    assert len(rank.work) == 2 and rank.repaired == 0
    assert [note.message for note in rank.notes if note.code == "events-twice"]


def test_an_endless_last_name_is_left_out_and_the_file_does_not_end_early(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(document(kernel(1, 2), kernel(5, 2, name="x" * 9_000_000)))
    [rank] = read_timeline(path).ranks
    assert (len(rank.work), rank.skipped) == (1, 1)
    assert not any(note.code == "file-ends-early" for note in rank.notes)


def test_a_log_folder_of_tensorboard_is_one_session(tmp_path: Path) -> None:
    session = tmp_path / "plugins" / "profile" / "2026_01_02_03_04_05"
    session.mkdir(parents=True)
    (session / "host.rank0.trace.json").write_text(document(kernel(1, 2)))
    assert [trace.path.parent for trace in find_traces([tmp_path])] == [session]
    other = session.with_name("2026_01_03_00_00_00")
    other.mkdir()
    with pytest.raises(InputError, match=r"holds 2 recordings .*; name one, e\.g\. .*2026_01_03"):
        find_traces([tmp_path])


@pytest.mark.parametrize(
    ("stream", "reduce"), [("Stream #13(Compute)", "ncclDevKernel_AllReduce"), ("XLA Ops", "all-reduce.7")]
)
def test_a_trace_of_jax_has_no_categories_and_is_read_by_its_processes(
    stream: str, reduce: str, tmp_path: Path
) -> None:
    def meta(what: str, name: str, pid: int, tid: int = 0) -> dict[str, Any]:
        return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}

    def event(name: str, pid: int, tid: int, ts: float, dur: float) -> dict[str, Any]:
        return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur}

    path = tmp_path / "rank2.trace.json"
    path.write_text(
        document(
            meta("process_name", "/device:GPU:0", 1), meta("process_name", "/host:CPU", 7),
            meta("thread_name", stream, 1, 3), meta("thread_name", "Steps", 1, 4),
            meta("thread_name", "XLA Modules", 1, 5),
            event("0", 1, 4, 0, 100), event("1", 1, 4, 100, 100), event("jit_step", 1, 5, 0, 200),
            event("fusion.3", 1, 3, 10, 50), event(reduce, 1, 3, 60, 20), event("fusion.3", 1, 3, 110, 50),
            event("$train.py:3 step", 7, 9, 0, 200), event("PjitFunction(step)", 7, 9, 1, 5),
        )
    )  # fmt: skip
    [rank] = read_timeline(path).ranks
    assert spans(path) == [("fusion.3", 10_000, 60_000), (reduce, 60_000, 80_000), ("fusion.3", 110_000, 160_000)]
    assert [(step.number, step.end) for step in rank.steps] == [(0, 100_000), (1, 200_000)]
    assert rank.work.comms[rank.work.comm[1]].op == "all_reduce" and not rank.on_host
    assert "PjitFunction(step)" in {rank.host.names[name] for name in rank.host.name}


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("r.nsys-rep", "nsys export --type sqlite"),
        ("m.pickle", "never opened"),
        ("k.ncu-rep", "torch.profiler or nsys"),
    ],
)
def test_files_that_are_not_read_say_what_to_export(name: str, advice: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"\x80\x04bomb")
    for given in (path, tmp_path):
        with pytest.raises(InputError, match=advice):
            find_traces([given])

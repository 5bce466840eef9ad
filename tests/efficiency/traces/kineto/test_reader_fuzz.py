"""Readers under fire: whatever the bytes, a timeline with consistent counts or one clear error, in bounded time.

CI reads ``DENSING_FUZZ_FILES`` damaged files (400) from ``DENSING_FUZZ_SEED`` on; a million of them is an hour's work.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densing.core.errors import DensingError, InputError
from densing.efficiency.timeline.overlap import partition, select
from densing.efficiency.timeline.timeline import RankTimeline, Spans
from densing.efficiency.traces.run import read_rank
from densing.efficiency.traces.source import Limits, TraceFile
from tests.support.trace_make import LAYOUTS, event, good, kernel, text_of

FILES = int(os.environ.get("DENSING_FUZZ_FILES", "400"))
MEMORY_MB = 600
LIMITS = Limits(event_bytes=1 << 20, chunk_bytes=4096)

TOKENS = [
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"},{", b'},{"ph":', b'{"ph":"X",', b"]}", b"null", b"true"),
    *(b"NaN", b"-Infinity", b"1e999", b"-1", b"0.0005", b"9" * 30, b"9" * 5000, b'"M"', b'"kernel"'),
    *(b'"ts":', b'"dur":', b'"cat":', b'"args":{', b'"name":"', b'"traceEvents":[', b'"External id":'),
    *(b'"baseTimeNanoseconds":', b'"distributedInfo":', b"record_param_comms", b"\x1f\x8b", b"\x00", b"\xff\xfe"),
    *(b"\xed\xa0\x80", b"\\u12", b"\\ud800", b"\n", b" " * 5000, b"[" * 3000, b'{"a":' * 3000),
]


def seeds() -> list[bytes]:
    """Valid traces of several shapes."""
    rich = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "thread 2 (pt_gloo_runloop)"}},
        *good(),
        event(
            "cpu_op", "record_param_comms", 1, 2, **{"External id": 3, "Collective name": "allreduce", "dtype": "Float"}
        ),
        kernel("ncclDevKernel_Generic(x)", ts=4458676522690.655, **{"External id": 3, "Process Group Ranks": "[0, 1]"}),
        event("gpu_memcpy", "Memcpy HtoD", 1682725898236567, 3, bytes=9, stream=7),
        event("user_annotation", "nccl:all_reduce", 1.5, 2.25, **{"Input Dims": [[3]], "Input type": ["float"]}),
        {"ph": "s", "id": 1, "cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 7, "ts": 1},
    ]
    many = [kernel(f"k{i % 7}", ts=i, dur=1.125) for i in range(400)]
    found = [text_of(made, layout=layout).encode() for made in (good(), rich) for layout in (*LAYOUTS, "array")]
    return [
        *found,
        text_of(many).encode(),
        gzip.compress(text_of(many).encode()),
        gzip.compress(text_of(rich).encode()),
    ]


SEEDS = seeds()


def mutated(random_: random.Random) -> bytes:
    """A valid trace with some of its bytes flipped, cut, doubled or replaced."""
    data = bytearray(random_.choice(SEEDS))
    for _ in range(random_.choice((1, 1, 2, 4, 16))):
        at = random_.randrange(len(data) + 1)
        what = random_.randrange(7)
        if what == 0 and data:
            data[at - 1] ^= 1 << random_.randrange(8)
        elif what == 1:
            del data[at:]
        elif what == 2:
            del data[at : at + random_.randrange(60)]
        elif what == 3:
            data[at:at] = random_.choice(TOKENS)
        elif what == 4:
            data[at : at + random_.randrange(12)] = random_.choice(TOKENS)
        elif what == 5:
            data[at:at] = data[at : at + random_.randrange(300)]
        else:
            other = random_.choice(SEEDS)
            data[at:] = other[random_.randrange(len(other)) :]
    return bytes(data)


def checked(spans: Spans) -> None:
    """A table whose columns hold what they promise."""
    assert np.all(spans.end >= spans.start) and np.all(np.diff(spans.start) >= 0)
    for column, table in ((spans.name, spans.names), (spans.lane, spans.lanes)):
        assert not len(column) or (column.min() >= 0 and column.max() < len(table))
    assert not len(spans.comm) or (spans.comm.min() >= -1 and spans.comm.max() < len(spans.comms))


def survives(path: Path, limits: Limits = LIMITS) -> RankTimeline | None:
    """Read a file; the timeline must be sound, an error must be one of ours and one line."""
    try:
        timeline = read_rank(TraceFile(path), limits=limits)
    except DensingError as error:
        assert isinstance(error, InputError) and str(error).count("\n") == 0 and path.name in str(error)
        return None
    for spans in (timeline.work, timeline.host):
        checked(spans)
    assert 0 <= timeline.skipped <= timeline.events and timeline.repaired >= 0
    assert len(timeline.work) <= timeline.events - timeline.skipped
    counted = [note for note in timeline.notes if note.code == "event-skipped"]
    assert sum(note.details["count"] for note in counted) == timeline.skipped
    json.dumps([note.to_dict() for note in timeline.notes]).encode()
    "".join([*timeline.work.names, *(note.message for note in timeline.notes)]).encode()
    partition(select(timeline, "all")).to_dict()
    return timeline


def read_damaged(folder: Path, first: int, count: int) -> None:
    """Read damaged traces one after another and print how many gave a timeline; a failing seed is named."""
    read = 0
    for seed in range(first, first + count):
        data = mutated(random.Random(seed))
        path = folder / "rank0.json"
        path.write_bytes(data)
        try:
            read += survives(path) is not None
        except BaseException as error:
            error.add_note(f"seed {seed}: {data[:300]!r}")
            raise
    sys.stdout.write(f"{read}\n")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read in /proc")
def test_mutated_traces(tmp_path: Path) -> None:
    """Byte-level damage to valid traces, in a process of its own: its peak memory is nobody else's."""
    first = os.environ.get("DENSING_FUZZ_SEED", "0")
    child = subprocess.Popen([sys.executable, __file__, str(tmp_path), first, str(FILES)],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    out, err = child.communicate()
    assert child.returncode == 0, err
    read, peak_kb = map(int, out.split())
    assert read > FILES // 4 > 0
    assert peak_kb / 1024 < MEMORY_MB


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
branches = leaves | st.lists(leaves, max_size=3) | st.dictionaries(st.text(max_size=4), leaves, max_size=3)
json_values = branches | st.lists(branches, max_size=3) | st.dictionaries(st.text(max_size=4), branches, max_size=3)
keys = st.sampled_from(["ph", "cat", "name", "ts", "dur", "pid", "tid", "args", "id"])
inner_keys = st.sampled_from(
    ["stream", "correlation", "bytes", "device", "External id", "Collective name", "Group size"]
)


@st.composite
def odd_events(draw: st.DrawFn) -> dict[str, Any]:
    """A good event with some of its fields replaced by anything."""
    made: dict[str, Any] = dict(draw(st.sampled_from(good())))
    for key in draw(st.lists(keys, max_size=3)):
        made[key] = draw(json_values)
    if isinstance(made.get("args"), dict):
        made["args"] = {**made["args"], **draw(st.dictionaries(inner_keys, json_values, max_size=3))}
    for key in draw(st.lists(keys, max_size=1)):
        made.pop(key, None)
    return made


@settings(max_examples=200)
@given(
    st.lists(odd_events() | json_values, max_size=12), st.dictionaries(st.text(max_size=12), json_values, max_size=3)
)
def test_odd_events(tmp_path: Path, made: list[Any], header: dict[str, Any]) -> None:
    """Events whose fields hold anything at all; one good kernel among them is always kept."""
    header.pop("traceEvents", None)
    kept = kernel("the good one", ts=3, dur=2)
    path = tmp_path / "rank0.json"
    path.write_bytes(text_of([*made, kept, *made], header).encode("utf-8", "surrogatepass"))
    timeline = survives(path)
    assert timeline is not None and timeline.events == 2 * len(made) + 1
    assert "the good one" in [timeline.work.names[i] for i in timeline.work.name]


@settings(max_examples=150)
@given(
    st.binary(max_size=300),
    st.sampled_from([b"", b"[", b'{"traceEvents":[', b'{"traceEvents":[{"ph":"X",', b"\x1f\x8b\x08"]),
)
def test_any_bytes(tmp_path: Path, data: bytes, before: bytes) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(before + data)
    timeline = survives(path)
    assert timeline is None or not len(timeline.work), "none of them holds a whole event of a device"


FLOODS = [
    *(b"1,", b'"",', b"{},", b"[],", b'{"a":1},', b'{"ph":"X"},', b"}", b"{", b'"', b"\\", b"]", b"x", b"},{", b"\n"),
    *(b"{]},", b'{"name":"', b'{"ph":"X","cat":"kernel","name":"a"b","ts":1,"dur":1},'),
    b'{"ph":"X","cat":"kernel","name":"a","ts":1,"dur":NaN},',
    b'{"ph":"X","cat":"kernel","name":"a"ts":1,"dur":1},',
    b'{"ph":"X","cat":"kernel","name":"\xff","ts":1,"dur":1},',
    b'{"ph":"X","cat":"kernel","name":"a","ts":1,"dur":-1},',
    b'{"ph":"X","cat":"kernel","name":"a","ts":"1","dur":1},',
    b'{"ph":"X","cat":"kernel","name":"a","ts":"x","dur":1},',
    b'{"ph":"X","cat":"cpu_op","name":"record_param_comms","ts":1,"dur":1},',
]


@pytest.mark.slow
@pytest.mark.parametrize("unit", FLOODS)
@pytest.mark.parametrize("limits", [LIMITS, Limits()], ids=["small", "usual"])
def test_floods_end_in_bounded_time(tmp_path: Path, unit: bytes, limits: Limits) -> None:
    """A mebibyte of one thing: no way through the file is slower than linear."""
    path = tmp_path / "rank0.json"
    path.write_bytes(b'{"traceEvents":[' + unit * (2**20 // len(unit)))
    survives(path, limits)


if __name__ == "__main__":
    read_damaged(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    # Not ru_maxrss: a process inherits that of the one that started it.
    [peak] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    sys.stdout.write(f"{peak.split()[1]}\n")

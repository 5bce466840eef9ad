"""Profiles of XLA, written by hand from xplane.proto: the same spans as of JAX's JSON; damage is a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densing.core.errors import InputError
from densing.efficiency.profile.run import profile_run
from densing.efficiency.timeline.timeline import Kind
from densing.efficiency.traces import find_traces, read_timeline
from densing.efficiency.traces.kineto.reader import assemble
from densing.efficiency.traces.source import TraceFile
from densing.efficiency.traces.xplane import Damaged, _activities, fields, recognise
from tests.support.trace_make import good, write

BASE = 1_700_000_000_000_000_000
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def varint(value: int) -> bytes:
    """A number of the wire: seven bits a byte, the lowest first; negative ones as 64 bits."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def part(field: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(data)) + data


def event(name: int, start_ns: int, took_ns: int, correlation: int = 0) -> bytes:
    stats = part(4, number(1, 2) + number(4, correlation)) if correlation else b""
    # A double (wire type 1) that no reader needs.
    other = part(4, number(1, 1) + varint(2 << 3 | 1) + bytes(8))
    return part(4, number(1, name) + number(2, 1000 * start_ns + 400) + number(3, 1000 * took_ns) + other + stats)


def line(number_: int, name: str, events: bytes) -> bytes:
    return part(3, number(1, number_) + part(2, name) + number(3, BASE) + events)


def plane(name: str, lines: bytes, names: dict[int, str]) -> bytes:
    metadata = b"".join(
        part(4, number(1, key) + part(2, number(1, key) + part(2, text))) for key, text in names.items()
    )
    stats = b"".join(
        part(5, number(1, key) + part(2, number(1, key) + part(2, text)))
        for key, text in ((1, "occupancy"), (2, "correlation_id"))
    )
    return part(1, number(1, 7) + part(2, name) + lines + metadata + stats)


def profile() -> bytes:
    """Two steps: a fusion, an all-reduce half under it on another stream, a copy; calls and frames of the host."""
    device = {1: "fusion.3", 2: REDUCE, 3: "MemcpyH2D", 4: "0", 5: "1", 6: "jit_step"}
    work = plane(
        "/device:GPU:0",
        line(13, "Stream #13(Compute)", event(1, 100, 400, 11) + event(1, 1100, 400, 13) + event(3, 1600, 50))
        + line(14, "Stream #14(NCCL)", event(2, 300, 400, 12) + event(2, 1300, 400, 14))
        + line(90, "XLA Modules", event(6, 0, 2000))
        + line(91, "Steps", event(4, 0, 1000) + event(5, 1000, 1000)),
        device,
    )
    calls = b"".join(event(1, at, 5, number) for at, number in ((50, 11), (60, 12), (1050, 13), (1060, 14)))
    host = plane("/host:CUPTI", line(3, "thread/3", calls), {1: "cuLaunchKernel"})
    frames = line(9, "python", event(1, 0, 900) + event(2, 10, 20))
    return (
        plane("/host:CPU", frames, {1: "$train.py:3 step", 2: "PjitFunction(step)"}) + host + work + part(4, "node-7")
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "rank2.xplane.pb"
    file.write_bytes(profile())
    return file


def test_a_profile_has_the_spans_streams_launches_and_steps_that_were_written(path: Path) -> None:
    [rank] = read_timeline(path).ranks
    work = rank.work
    assert rank.rank == 2 and not rank.on_host
    spans = [(work.names[name], int(start - BASE), int(end - BASE), Kind(kind).name)
             for name, start, end, kind in zip(work.name, work.start, work.end, work.kind, strict=True)]  # fmt: skip
    assert spans == [("fusion.3", 100, 500, "COMPUTE"), (REDUCE, 300, 700, "COMM"), ("fusion.3", 1100, 1500, "COMPUTE"),
                     (REDUCE, 1300, 1700, "COMM"), ("MemcpyH2D", 1600, 1650, "MEMCPY")]  # fmt: skip
    assert [work.lanes[lane].text for lane in work.lane[:2]] == ["GPU:0 Stream #13(Compute)", "GPU:0 Stream #14(NCCL)"]
    assert work.comms[work.comm[1]].op == "all_reduce"
    assert [(step.number, step.start - BASE, step.end - BASE) for step in rank.steps] == [(0, 0, 1000), (1, 1000, 2000)]
    launches = rank.host.of(Kind.LAUNCH)
    assert launches.correlation.tolist() == [11, 12, 13, 14] == work.correlation[:4].tolist()
    names = {rank.host.names[name] for name in rank.host.name}
    assert "PjitFunction(step)" in names and "$train.py:3 step" not in names


def test_a_profile_is_profiled_like_any_trace(path: Path) -> None:
    run = profile_run(path)
    partition = run.ranks[0].partition
    assert (partition.compute_ns, partition.overlap_ns, partition.exposed_comm_ns) == (800, 400, 400)
    assert run.figures["steps"] == 2 and not run.figures["skipped_events"]


def test_of_a_recording_written_twice_the_whole_one_is_read(tmp_path: Path) -> None:
    session = tmp_path / "plugins" / "profile" / "2026_01_01"
    session.mkdir(parents=True)
    write(session / "node.trace.json.gz", good())
    (session / "node.xplane.pb").write_bytes(profile())
    (session / "other.pb").write_bytes(b"\x0a\x01")
    assert [trace.file_name for trace in find_traces([tmp_path])] == ["node.xplane.pb"]


@pytest.mark.parametrize("keep", [0.03, 0.3, 0.7, 0.97])
def test_a_profile_that_ends_early_is_a_sentence(path: Path, keep: float) -> None:
    path.write_bytes(profile()[: round(keep * len(profile()))])
    with pytest.raises(InputError, match=r"rank2.xplane.pb: .*(ends early|not JSON)"):
        read_timeline(path)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_hostile_bytes_are_refused_in_words(data: st.DataObject) -> None:
    text = bytearray(profile())
    for at in data.draw(st.lists(st.integers(0, len(text) - 1), min_size=1, max_size=6)):
        text[at] = data.draw(st.integers(0, 255))
    recognise(bytes(text))
    try:
        planes = [value for field, value in fields(memoryview(text)) if field == 1 and isinstance(value, memoryview)]
        assemble(TraceFile(Path("x.xplane.pb")), _activities(planes), {})
    except (Damaged, InputError) as error:
        assert str(error)


def test_a_number_of_more_than_64_bits_is_damage() -> None:
    with pytest.raises(Damaged, match="64 bits"):
        list(fields(memoryview(b"\x08" + b"\xff" * 12)))
    with pytest.raises(Damaged, match="no field"):
        list(fields(memoryview(b"\x0b\x0c")))
    assert not recognise(b"") and not recognise(b"\n") and not recognise(b"\n\x05\x12") and not recognise(b"\n\xff\xff")

"""Traces written back: the original kept to the byte, rows where they belong, and the format's rules.

Perfetto's own trace_processor is fetched from the network at first use, so it is not asked here; the rules below are
those of "Trace Event Format" (Google, 2016) that viewers rely on.
"""

from __future__ import annotations

import gzip
import json
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densing.core.errors import InputError
from densing.efficiency.timeline.critical import critical_path
from densing.efficiency.timeline.overlap import partition, select, unions
from densing.efficiency.timeline.timeline import Comm, Kind, Lane, Origin, RankTimeline, Spans, Step
from densing.efficiency.traces import perfetto
from densing.efficiency.traces.perfetto import (
    PID,
    NoOutline,
    RankTracks,
    Track,
    micros,
    outline,
    overlays,
    write_overlay,
    write_timelines,
)
from densing.efficiency.traces.run import read_rank
from densing.efficiency.traces.source import TraceFile
from tests.support import folders

BASE = 1_790_857_026_000_000_000
HOSTILE = '"</script><img src=x onerror=alert(1)>\\\n\x00\x1b[2J é 漢 \udcff'

EVENTS: list[dict[str, Any]] = [
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 9, "tid": 9, "ts": 0, "dur": 100},
    {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 10.5, "dur": 50, "args": {"stream": 7}},
    {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "pid": 0, "tid": 20, "ts": 40,
     "dur": 40.001, "args": {"stream": 20, "text": 'a "traceEvents": [ } \\\\'}},
]  # fmt: skip


def check_format(text: bytes) -> list[dict[str, Any]]:
    """Check the rules of the format and return the events."""
    document = json.loads(text, parse_float=Decimal, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    events: list[dict[str, Any]] = document if isinstance(document, list) else document["traceEvents"]
    rows = defaultdict(list)
    for event in events:
        assert isinstance(event["name"], str) and isinstance(event["ph"], str)
        if event["ph"] == "X":
            assert event["dur"] >= 0 and {"pid", "tid", "ts"} <= event.keys()
            rows[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        if event["ph"] == "M":
            assert set(event["args"]) <= {"name", "sort_index", "labels"}
    for spans in rows.values():
        open_: list[Decimal] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_ and open_[-1] <= start:
                open_.pop()
            # Complete events of one thread nest.
            assert not open_ or end <= open_[-1]
            open_.append(end)
    return events


def ours(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events of the rows laid over."""
    return [event for event in events if event["pid"] == PID]


def read(file: Path) -> RankTimeline:
    """Read a trace."""
    return read_rank(TraceFile(file))


def rows_of(rank: RankTimeline) -> tuple[Track, ...]:
    """Return the rows of a rank over its default window."""
    window = select(rank)
    return overlays(window, unions(window.work))


LAYOUTS = {
    "minified": lambda: json.dumps({"baseTimeNanoseconds": BASE, "traceEvents": EVENTS}, separators=(",", ":")),
    "indented": lambda: json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": BASE, "traceEvents": EVENTS}, indent=2),
    "base after": lambda: json.dumps({"traceEvents": EVENTS, "x": {"y": [1]}, "baseTimeNanoseconds": BASE}),
    "traps": lambda: json.dumps(
        {"a": {"traceEvents": []}, 'b"traceEvents': "[", "traceEvents": EVENTS, "baseTimeNanoseconds": BASE}
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_the_original_stays_and_rows_are_in_front(tmp_path: Path, layout: str, suffix: str) -> None:
    text = LAYOUTS[layout]().encode()
    source, out = tmp_path / f"rank0{suffix}", tmp_path / f"out{suffix}"
    source.write_bytes(gzip.compress(text) if suffix.endswith("gz") else text)
    rank = read(source)
    assert write_overlay(source, out, rows_of(rank), rank)
    written = gzip.decompress(out.read_bytes()) if suffix.endswith("gz") else out.read_bytes()
    events = check_format(written)
    assert events[-len(EVENTS) :] == json.loads(json.dumps(EVENTS), parse_float=Decimal)
    # Byte for byte: taking the rows out gives the text again.
    added = len(written) - len(text)
    assert any(written[:n] + written[n + added :] == text for n in range(len(text)))
    rows = {event["args"]["name"]: event["tid"] for event in ours(events) if event["name"] == "thread_name"}
    found = {
        name: [(event["ts"], event["dur"]) for event in ours(events) if event["ph"] == "X" and event["tid"] == tid]
        for name, tid in rows.items()
    }
    # By hand: compute 10.5–60.5, communication 40–80.001, step 0–100, on the file's own clock.
    assert found == {
        "exposed communication": [(Decimal("60.5"), Decimal("19.501"))],
        "idle": [(0, Decimal("10.5")), (Decimal("80.001"), Decimal("19.999"))],
    }
    # The reader sees the same device work in what was written.
    assert partition(select(read(out))) == partition(select(rank))


def test_a_bare_array_and_a_member_of_an_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "run.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("rank4.json", json.dumps(EVENTS))
    trace = TraceFile(tmp_path / "run.zip", "rank4.json")
    rank = read_rank(trace)
    assert write_overlay(trace, tmp_path / "out.json", rows_of(rank), rank)
    events = check_format((tmp_path / "out.json").read_bytes())
    assert len(ours(events)) == 9 and rank.rank == 4


def test_without_rows_the_copy_is_the_original(tmp_path: Path) -> None:
    for events in (EVENTS, []):
        text = json.dumps({"traceEvents": events}, indent=1)
        (tmp_path / "a.json").write_text(text)
        rank = RankTimeline(0, Spans.empty(), Spans.empty())
        assert write_overlay(tmp_path / "a.json", tmp_path / "b.json", (), rank)
        assert (tmp_path / "b.json").read_text() == text
    track = Track("x", np.array([1]), np.array([2]))
    assert write_overlay(tmp_path / "a.json", tmp_path / "c.json", [track], rank)
    assert len(check_format((tmp_path / "c.json").read_bytes())) == 5


def test_names_are_text_whatever_is_in_them(tmp_path: Path) -> None:
    source = tmp_path / "a.json"
    source.write_text(json.dumps({"traceEvents": EVENTS}))
    rank = read(source)
    track = Track(HOSTILE, np.array([0, 5]), np.array([5, 9]), [HOSTILE, "b"])
    write_overlay(source, tmp_path / "b.json", [track], rank)
    written = (tmp_path / "b.json").read_bytes()
    found = ours(check_format(written))
    kept = HOSTILE.replace("\udcff", "?")
    assert [event["name"] for event in found if event["ph"] == "X"] == [kept, "b"]
    assert written.isascii()
    spans = Spans.build([{"start": 0, "end": 1, "kind": Kind.COMM, "name": HOSTILE, "lane": Lane(HOSTILE, HOSTILE),
                          "comm": Comm(op=HOSTILE, group=HOSTILE, seq=3)}])  # fmt: skip
    write_timelines([RankTracks(RankTimeline(0, spans, Spans.empty()), [track])], tmp_path / "c.json")
    [event] = [e for e in check_format((tmp_path / "c.json").read_bytes()) if e.get("cat") == "kernel"]
    assert event["name"] == kept and event["args"] == {"Collective name": kept, "Process Group Name": kept, "Seq": 3}


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-40],
        lambda text: text.replace("]}", ",]}"),
        lambda text: text.replace("50", "NaN"),
        lambda text: text.replace("gemm", "ge\x01mm"),
        lambda text: text.replace("10.5", '"10.5"'),
    ],
    ids=["cut", "comma", "nan", "control", "string"],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_damaged_trace_is_drawn_from_what_was_saved(tmp_path: Path, damage: Any, packed: bool) -> None:
    text = damage(json.dumps({"traceEvents": EVENTS, "x": 1, "y": []}).replace(', "x": 1, "y": []', "")).encode()
    source = tmp_path / ("rank0.json.gz" if packed else "rank0.json")
    source.write_bytes(gzip.compress(text)[:-9] if packed else text)
    rank = read(source)
    assert write_overlay(source, tmp_path / "out.json", rows_of(rank), rank) is False
    events = check_format((tmp_path / "out.json").read_bytes())
    again = read(tmp_path / "out.json")
    assert again.skipped == again.repaired == 0 and len(events) > len(rank.work)
    assert partition(select(again)) == partition(select(rank))
    assert again.steps[0].number == 1 if rank.steps else not again.steps


def test_refusals(tmp_path: Path) -> None:
    source = tmp_path / "a.json"
    source.write_text(json.dumps({"traceEvents": EVENTS}))
    rank = read(source)
    (tmp_path / "link.json").symlink_to(source)
    with pytest.raises(InputError, match=r"link\.json: is the trace itself"):
        write_overlay(source, tmp_path / "link.json", (), rank)
    with pytest.raises(InputError, match="cannot read"):
        write_overlay(tmp_path / "none.json", tmp_path / "b.json", (), rank)
    with pytest.raises(InputError, match="cannot write"):
        write_overlay(source, tmp_path / "a.json" / "b.json", (), rank)
    with pytest.raises(InputError, match="no rank to draw"):
        write_timelines([], tmp_path / "b.json")
    assert not (tmp_path / "b.json").exists()
    with pytest.raises(InputError, match="overlap or run backwards"):
        Track("x", np.array([0, 5]), np.array([6, 9]))
    with pytest.raises(InputError, match="different length"):
        Track("x", np.array([0, 7]), np.array([6, 9]), ["one"])


def ranks(count: int) -> Iterator[RankTracks]:
    """Make ranks whose clocks are apart."""
    for number in range(count):
        zero = BASE + 1_000_003 * number
        rows = [
            {"start": zero + 10, "end": zero + 60, "kind": Kind.COMPUTE, "name": "gemm", "lane": Lane("GPU 0", "7")},
            {"start": zero + 40, "end": zero + 80, "kind": Kind.COMM, "name": "ncclDevKernel_AllReduce",
             "lane": Lane("GPU 0", "20"), "bytes": 64, "comm": Comm("all_reduce", "0", group_size=count)},
        ]  # fmt: skip
        host = Spans.build([{"start": zero, "end": zero + 9, "kind": Kind.LAUNCH, "name": "cudaLaunchKernel",
                             "lane": Lane("python", "1"), "correlation": 5}])  # fmt: skip
        rank = RankTimeline(number, Spans.build(rows), host, (Step(1, zero, zero + 100),), Origin(f"r{number}"))
        yield RankTracks(rank, rows_of(rank), -1_000_003 * number)


def test_ranks_stand_side_by_side_on_one_clock(tmp_path: Path) -> None:
    assert write_timelines(ranks(3), tmp_path / "all.json.gz") == 3
    text = gzip.decompress((tmp_path / "all.json.gz").read_bytes())
    events = check_format(text)
    base = json.loads(text)["baseTimeNanoseconds"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(names.values()) == sorted(
        f"rank {rank}: {what}" for rank in range(3) for what in ("densing", "GPU 0", "python")
    )
    assert len(names) == 9
    gemms = [event for event in events if event["name"] == "gemm"]
    assert [names[event["pid"]] for event in gemms] == [f"rank {rank}: GPU 0" for rank in range(3)]
    # Clocks that were apart by a millisecond and three nanoseconds agree.
    assert {base + int(event["ts"] * 1000) for event in gemms} == {BASE + 10}
    order = [e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"]
    assert order == sorted(order) and len(set(order)) == 9
    assert {e["args"]["Collective name"] for e in events if "Collective name" in e.get("args", {})} == {"all_reduce"}


@settings(max_examples=30)
@given(data=st.data())
def test_what_is_written_reads_back_to_the_nanosecond(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    zero = data.draw(st.sampled_from([0, BASE, 10**15]))
    kinds = st.sampled_from([Kind.COMPUTE, Kind.COMM, Kind.MEMCPY, Kind.MEMSET])
    names = {Kind.COMPUTE: "gemm", Kind.COMM: "ncclDevKernel_x", Kind.MEMCPY: "Memcpy HtoD", Kind.MEMSET: "Memset"}
    drawn = data.draw(st.lists(st.tuples(kinds, st.integers(0, 10**9), st.integers(0, 10**6)), min_size=1, max_size=20))
    rows = [{"start": zero + start, "end": zero + start + length, "kind": kind, "name": names[kind],
             "lane": Lane("GPU 0", str(n))} for n, (kind, start, length) in enumerate(drawn)]  # fmt: skip
    rank = RankTimeline(0, Spans.build(rows), Spans.empty())
    file = tmp_path_factory.mktemp("p") / "rank0.json"
    write_timelines([RankTracks(rank)], file)
    again = read(file)
    assert partition(select(again, "all")) == partition(select(rank, "all"))
    columns = [sorted(zip(t.work.start.tolist(), t.work.end.tolist(), t.work.kind.tolist(), strict=True))
               for t in (rank, again)]  # fmt: skip
    assert columns[0] == columns[1]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('trace"\\[]{}', max_size=6), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200)
@given(
    before=st.dictionaries(st.text('tb"\\[{,:', max_size=5), JSON, max_size=3),
    events=st.lists(JSON, max_size=4),
    after=st.dictionaries(st.text("uvw[]", min_size=1, max_size=5), JSON, max_size=3),
    indent=st.sampled_from([None, 0, 2]),
    size=st.integers(1, 40),
    cut=st.none() | st.floats(0, 0.999),
)
def test_outline_of_any_json_in_any_pieces(
    before: Any, events: Any, after: Any, indent: int | None, size: int, cut: float | None
) -> None:
    document = {**before, "traceEvents": events, **{key: after[key] for key in after if key not in before}}
    text = json.dumps({**document, "baseTimeNanoseconds": 5}, indent=indent, ensure_ascii=False).encode()
    if cut is not None:
        with pytest.raises(NoOutline):
            outline(iter([text[: int(cut * len(text))]]))
        return
    found = outline(iter([text[n : n + size] for n in range(0, len(text), size)]))
    assert (found.empty, found.base_ns) == (not events, 5)
    # An own parse of what stands at the place found.
    rest, _ = json.JSONDecoder().raw_decode("[" + text[found.first :].decode())
    assert rest == events


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        '"x"',
        "{}",
        '{"traceEvents": 5}',
        "[1}",
        "[[1]",
        "[]]",
        '{"traceEvents": [}',
        '{"a" 1}',
        "{5: 1}",
        '{"traceEvents": [], "baseTimeNanoseconds": 1.5}',
        '{"traceEvents": [], "baseTimeNanoseconds": true}',
        '{"traceEvents": [],}',
        '["',
        '["\\',
        "[" * 100_000,
    ],
)
def test_what_has_no_outline(text: str) -> None:
    with pytest.raises(NoOutline):
        outline(iter([text.encode()]))


def test_a_header_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfetto, "HEADER_BYTES", 1 << 20)

    def endless(first: bytes) -> Iterator[bytes]:
        yield first
        for _ in range(200):
            yield b"x" * (1 << 16)

    with pytest.raises(NoOutline, match="no value at byte 6"):
        outline(endless(b'{"a": "'))
    # Among the events nothing is held, however long it is.
    with pytest.raises(NoOutline, match=f"ends early, at byte {2 + 200 * (1 << 16)}"):
        outline(endless(b'["'))


@given(ns=st.integers(-(2**63), 2**63))
def test_micros_are_exact(ns: int) -> None:
    assert Decimal(micros(ns)) * 1000 == ns and len(micros(ns).partition(".")[2]) == 3


MEMORY = """
import sys
from pathlib import Path
def peak():  # not ru_maxrss: a process inherits that of the one that started it
    [line] = [row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("VmHWM")]
    return int(line.split()[1])
from densing.efficiency.traces.perfetto import write_overlay
from densing.efficiency.timeline.timeline import Spans
from densing.efficiency.timeline.timeline import RankTimeline
import densing.efficiency.traces.run
rank = RankTimeline(0, Spans.empty(), Spans.empty())
before = peak()
assert write_overlay(Path(sys.argv[1]), sys.argv[2], (), rank)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read in /proc")
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    import subprocess

    event = json.dumps({**EVENTS[1], "args": {"stack": "x" * 900}})
    with (tmp_path / "a.json").open("w") as stream:
        stream.write('{"traceEvents": [' + event)
        for _ in range(80):
            stream.write(f",{event}" * 1000)
        stream.write("]}")
    assert (tmp_path / "a.json").stat().st_size > 80e6
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(answer.stdout) < 40_000
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_the_critical_path_is_a_row(tmp_path: Path) -> None:
    """One product and a collective that waits for it: the path is the two of them."""
    work = [
        {"start": BASE, "end": BASE + 60, "kind": Kind.COMPUTE, "name": "gemm", "lane": Lane("GPU 0", "7")},
        {"start": BASE + 60, "end": BASE + 80, "kind": Kind.COMM, "name": "ncclX", "lane": Lane("GPU 0", "7")},
    ]
    rank = RankTimeline(0, Spans.build(work), Spans.empty())
    window = select(rank)
    track = overlays(window, unions(window.work), critical_path(rank, window))[-1]
    assert track.name == "critical path" and track.labels == ["compute gemm", "communication ncclX"]
    write_timelines([RankTracks(rank, [track])], tmp_path / "p.json")
    events = [e for e in check_format((tmp_path / "p.json").read_bytes()) if e.get("cat") == "densing"]
    assert [(e["name"], e["dur"]) for e in events] == [
        ("compute gemm", Decimal("0.06")),
        ("communication ncclX", Decimal("0.02")),
    ]


@pytest.mark.parametrize(
    "source",
    [
        folders.TRACES / "hta_trace_filter" / "sampled_rank-0.json.gz",
        folders.TRACES / "gloo" / "ddp_rank0.pt.trace.json.gz",
        *folders.RECORDED.glob("hta_trace_filter/sampled_rank-0.json.gz"),
        *folders.RECORDED.glob("tracelens_mi300_resnet/*.gz"),
    ],
    ids=lambda source: "/".join(source.parts[-4:-1]),
)
def test_real_traces_are_kept(tmp_path: Path, source: Path) -> None:
    rank = read(source)
    tracks = rows_of(rank)
    assert write_overlay(source, tmp_path / "out.json", tracks, rank)
    text, written = gzip.decompress(source.read_bytes()), (tmp_path / "out.json").read_bytes()
    events = [event for event in json.loads(written)["traceEvents"] if event["pid"] == PID]
    assert json.loads(text)["traceEvents"] == json.loads(written)["traceEvents"][len(events) :]
    parts = partition(select(rank))
    lengths: dict[str, int] = defaultdict(int)
    for event in (e for e in events if e["ph"] == "X"):
        lengths[event["name"]] += round(event["dur"] * 1000)
    assert lengths["exposed communication"] == parts.exposed_comm_ns and lengths["idle"] == parts.idle_ns
    write_timelines([RankTracks(rank, tracks)], tmp_path / "drawn.json")
    assert len(check_format((tmp_path / "drawn.json").read_bytes())) > len(rank.work) + len(rank.host)

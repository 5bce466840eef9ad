"""Damaged traces: what is kept, what is left out, what is said; nothing is lost in silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from densing.core.errors import InputError
from densing.core.notes import Note, worst
from densing.efficiency.timeline.timeline import RankTimeline
from densing.efficiency.traces.kineto.text import Salvage
from densing.efficiency.traces.run import read_rank, read_timeline
from densing.efficiency.traces.source import Limits, TraceFile
from tests.support import folders
from tests.support.trace_make import ALL_REDUCE, GOOD, good, kernel, parts, read, text_of, write

SAMPLES = folders.TRACES / "malformed"
LOST = (0.0, 40.0, 0.0, 40.0)

# (result in µs, skipped, repaired, word in the note): EXPECTED.md of the samples.
EXPECTED: dict[str, tuple[tuple[float, ...], int, int, str]] = {
    "good_indent": (GOOD, 0, 0, ""),
    "good_minified": (GOOD, 0, 0, ""),
    "string_pid": (GOOD, 0, 0, ""),
    "bare_array": (GOOD, 0, 0, "file name"),
    "trailing_comma": (GOOD, 0, 1, "comma"),
    "ctrl_char": (GOOD, 0, 1, "control character"),
    "utf8_bad": (GOOD, 0, 1, "UTF-8"),
    "bad_backslash": (GOOD, 0, 1, "backslash"),
    "string_ts": ((50.0, 40.0, 20.5, 19.5), 0, 1, "text"),
    "nan_dur": (LOST, 1, 0, "duration is not a number"),
    "infinity": (LOST, 1, 0, "duration is not finite"),
    "neg_dur": (LOST, 1, 0, "duration is negative"),
    "huge_dur": (LOST, 1, 0, "beyond int64 ns"),
    "truncated": ((50.0, 0.0, 0.0, 0.0), 1, 0, "ends early"),
}


def trouble(timeline: RankTimeline) -> list[Note]:
    """Notes that change the exit code or count a repair."""
    return [note for note in timeline.notes if note.severity != "info"]


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_samples_as_expected_md_says(name: str) -> None:
    (path,) = sorted((SAMPLES / name).iterdir())
    result, skipped, repaired, word = EXPECTED[name]
    for chunk in (64, 1 << 20):
        timeline = read(path, chunk=chunk)
        assert (parts(timeline), timeline.skipped, timeline.repaired) == (result, skipped, repaired)
        assert (timeline.rank, timeline.events) == (0, 5)
        assert any(word in note.message and path.name in note.message for note in timeline.notes) or not word
        assert worst(trouble(timeline)) == ("error" if skipped else "warning" if repaired else None)


def test_samples_of_several_files() -> None:
    run = read_timeline(SAMPLES / "two_min")
    assert [(rank.rank, parts(rank), rank.origin.rank_from) for rank in run.ranks] == [
        (0, GOOD, "distributedInfo"),
        (1, GOOD, "distributedInfo"),
    ]
    with pytest.raises(InputError, match=r"rank0\.json and .*rank1\.json both claim rank 0"):
        read_timeline(SAMPLES / "dup_rank")
    mapped = read_timeline(SAMPLES / "dup_rank", ranks={"rank1.json": 1})
    assert [parts(rank)[0] for rank in mapped.ranks] == [50.0, 20.0]
    with pytest.raises(InputError, match="no events"):
        read_timeline(SAMPLES / "empty_events")


def gemm(**changes: Any) -> list[dict[str, Any]]:
    """The good trace with something changed in its first kernel."""
    events = good()
    events[3] = {key: value for key, value in {**events[3], **changes}.items() if value is not ...}
    return events


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ts": float("nan")}, "time is not a number"),
        ({"ts": float("-inf")}, "time is not finite"),
        ({"ts": ...}, "no time"),
        ({"ts": None}, "no time"),
        ({"dur": ...}, "no duration"),
        ({"dur": -0.001}, "duration is negative"),
        ({"dur": "-5"}, "duration is negative"),
        ({"dur": "soon"}, "duration is not a number"),
        ({"dur": {"us": 5}}, "duration is not a number"),
        ({"dur": [5]}, "duration is not a number"),
        ({"dur": True}, "duration is not a number"),
        ({"dur": 1e300}, "beyond int64"),
        ({"dur": "1e99999999999999999999"}, "not a number"),
        ({"dur": 10**25}, "beyond int64"),
        ({"ts": -(10**25)}, "beyond int64"),
        ({"ts": 4.7e15}, "beyond int64"),
    ],
)
@pytest.mark.parametrize("chunk", [64, 1 << 20])
def test_times_that_cannot_be_are_left_out_and_counted(
    tmp_path: Path, changes: dict[str, Any], reason: str, chunk: int
) -> None:
    timeline = read(write(tmp_path / "rank0.json", gemm(**changes)), chunk=chunk)
    assert (parts(timeline), timeline.events, timeline.skipped) == (LOST, 5, 1)
    (note,) = [note for note in timeline.notes if note.code == "event-skipped"]
    assert note.severity == "error" and reason in note.message
    assert note.details["first"][0]["event"] == 3


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ('"name":"gemm"', '"name":"ge"mm<b>"', 'ge"mm<b>'),
        ('"name":"gemm"', '"name":"f("x", "y")"', 'f("x", "y")'),
        ('"name":"gemm"', r'"name":"C:\Users\x"', r"C:\Users\x"),
        ('"name":"gemm"', '"name":"ge\x01mm"', "ge\x01mm"),
        ('"correlation":5}},', '"correlation":5,}},', "gemm"),
        ('"name":"gemm"', '"name":"gemm","note":NaN', "gemm"),
        ('"name":"gemm"', '"name":"gemm","rate":-Infinity', "gemm"),
        ('"name":"gemm"', '"name":"gemm","rate":[NaN,1e99999999999999999999,1e999]', "gemm"),
    ],
)
@pytest.mark.parametrize("chunk", [64, 1 << 20])
def test_damaged_text_is_repaired(tmp_path: Path, old: str, new: str, name: str, chunk: int) -> None:
    text = text_of(good())
    at = text.rindex(old) if old.startswith('"corr') else text.index(old)
    timeline = read(write(tmp_path / "rank0.json", text[:at] + new + text[at + len(old) :]), chunk=chunk)
    assert (parts(timeline), timeline.events, timeline.skipped, timeline.repaired) == (GOOD, 5, 0, 1)
    assert name in timeline.work.names
    assert worst(trouble(timeline)) == "warning"


@pytest.mark.parametrize(
    "debris",
    ['{"ph":"X","cat":"kernel","name":,}', "null", "17", '"text"', "[1,2]", "{]}", "garbage", '{"ph":"X" "cat":3}'],
)
@pytest.mark.parametrize("chunk", [64, 1 << 20])
def test_debris_between_events_is_left_out_and_counted(tmp_path: Path, debris: str, chunk: int) -> None:
    text = text_of(good()).replace(
        '{"ph":"X","cat":"kernel","name":"gemm"', debris + ',{"ph":"X","cat":"kernel","name":"gemm"'
    )
    timeline = read(write(tmp_path / "rank0.json", text), chunk=chunk)
    assert (parts(timeline), timeline.events, timeline.skipped) == (GOOD, 6, 1)


@pytest.mark.parametrize("chunk", [64, 1 << 20])
def test_a_missing_or_doubled_comma_loses_nothing(tmp_path: Path, chunk: int) -> None:
    for text in (text_of(good()).replace("}},{", "}} {", 2), text_of(good()).replace("}},{", "}},,{", 2)):
        timeline = read(write(tmp_path / "rank0.json", text), chunk=chunk)
        assert (parts(timeline), timeline.events, timeline.skipped) == (GOOD, 5, 0)


@pytest.mark.parametrize("where", range(0, 100, 9))
def test_truncated_anywhere_keeps_what_precedes(tmp_path: Path, where: int) -> None:
    events = [kernel(f"k{i}", ts=i, dur=1) for i in range(50)]
    text = text_of(events, layout="indented")
    end = text.index("traceEvents") + (len(text) - text.index("traceEvents")) * where // 100
    whole = text[:end].count('"correlation": 5\n')
    if whole == 0:
        with pytest.raises(InputError):
            read(write(tmp_path / "rank0.json", text[:end]))
        return
    timeline = read(write(tmp_path / "rank0.json", text[:end]))
    assert len(timeline.work) in (whole, whole - 1)  # the braces after the last argument may be missing
    assert timeline.events == len(timeline.work) + timeline.skipped
    assert "ends early" in "".join(note.message for note in timeline.notes if note.severity == "error")


def test_unwanted_events_may_be_odd(tmp_path: Path) -> None:
    """What is skipped anyway needs no repair: the same file gives the same counts whatever the chunk."""
    odd = [
        {"ph": "X", "cat": "python_function", "name": "f", "ts": "never", "dur": -5, "pid": None},
        {"ph": "i", "name": "instant", "s": "g", "ts": None},
        {"ph": "C", "name": "counter", "args": {"value": [1, 2]}},
        {"ph": "f", "cat": "ac2g", "id": "0x7", "bp": "e"},
        {},
    ]
    for chunk in (64, 300, 1 << 20):
        timeline = read(write(tmp_path / "rank0.json", [*odd, *good(), *odd]), chunk=chunk)
        assert (parts(timeline), timeline.events, timeline.skipped, timeline.repaired) == (GOOD, 15, 0, 0)


@pytest.mark.parametrize("chunk", [64, 1 << 20])
def test_arguments_of_impossible_type_do_not_cost_the_event(tmp_path: Path, chunk: int) -> None:
    events = gemm(args={"stream": [7], "correlation": "5", "bytes": 2**70, "dtype": 4, "device": None, "Seq": {}})
    timeline = read(write(tmp_path / "rank0.json", events), chunk=chunk)
    assert (parts(timeline), timeline.skipped) == (GOOD, 0)
    assert 5 in timeline.work.correlation.tolist()


@pytest.mark.parametrize("args", [None, ..., [], "none", 5])
def test_arguments_may_be_absent_or_odd(tmp_path: Path, args: object) -> None:
    timeline = read(write(tmp_path / "rank0.json", gemm(args=args)))
    assert (parts(timeline), timeline.skipped) == (GOOD, 0)


def test_nested_objects_that_look_like_events_are_no_cuts(tmp_path: Path) -> None:
    inner = [{"name": "a", "ph": "X"}, {"name": "b", "cat": "kernel"}, {"ts": 5}]
    events = [kernel(f'k{i} }},{{"name":', ts=i, dur=1, inner=inner * 9) for i in range(200)]
    for chunk in (64, 777, 1 << 20):
        timeline = read(write(tmp_path / "rank0.json", events), chunk=chunk)
        assert (timeline.events, timeline.skipped, timeline.repaired) == (200, 0, 0)
        assert len(timeline.work) == 200


def test_nesting_beyond_reason(tmp_path: Path) -> None:
    deep = '{"ph":"X","cat":"cpu_op","name":"deep","ts":1,"dur":1,"args":' + "[" * 10**6 + "]" * 10**6 + "},"
    text = text_of(good()).replace(
        '{"ph":"X","cat":"kernel","name":"gemm"', deep + '{"ph":"X","cat":"kernel","name":"gemm"'
    )
    timeline = read(write(tmp_path / "rank0.json", text))
    assert (parts(timeline), timeline.events, timeline.skipped) == (GOOD, 6, 1)


def test_one_event_beyond_the_limit_is_left_out_within_bounded_memory(tmp_path: Path) -> None:
    big = json.dumps(kernel("x" * 5_000_000)) + ","
    text = text_of(good()).replace(
        '{"ph":"X","cat":"kernel","name":"gemm"', big + '{"ph":"X","cat":"kernel","name":"gemm"'
    )
    path = write(tmp_path / "rank0.json", text)
    timeline = read_rank(TraceFile(path), limits=Limits(event_bytes=1 << 20, chunk_bytes=1 << 16))
    assert (parts(timeline), timeline.events, timeline.skipped) == (GOOD, 6, 1)
    assert any("longer than 1048576 bytes" in note.message for note in timeline.notes)
    assert read(path).skipped == 0


def test_a_file_of_debris_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("densing.efficiency.traces.kineto.text.MAX_LOST", 50)
    text = text_of(good())[:-2] + ",1" * 1000 + "]}"
    timeline = read(write(tmp_path / "rank0.json", text))
    assert (parts(timeline), timeline.skipped) == (GOOD, 51)
    assert any("more than 50 damaged places" in note.message for note in timeline.notes if note.severity == "error")


def test_names_are_kept_as_they_are(tmp_path: Path) -> None:
    name = '<script>alert("x")</script> & \u2028 \x7f é'
    assert name in read(write(tmp_path / "rank0.json", gemm(name=name))).work.names


def test_many_damaged_events_make_one_note(tmp_path: Path) -> None:
    events = [kernel(f"k{i}", ts=i, dur=-1 if i % 2 else 1) for i in range(1000)]
    timeline = read(write(tmp_path / "rank0.json", events))
    (note,) = trouble(timeline)
    assert (timeline.skipped, note.details["count"], len(note.details["first"])) == (500, 500, 5)
    text = (tmp_path / "rank0.json").read_text()
    for place in note.details["first"]:
        assert json.loads(text[place["byte"] : text.index("}}", place["byte"]) + 2])["name"] == place["name"]


def test_notes_are_plain_data(tmp_path: Path) -> None:
    timeline = read(write(tmp_path / "rank0.json", text_of(gemm(ts="10.5", dur=-1)).replace(ALL_REDUCE, "\x02")))
    assert timeline.notes
    for note in timeline.notes:
        assert Note.from_dict(json.loads(json.dumps(note.to_dict()))) == note


def test_a_damaged_place_slows_nothing_but_its_neighbourhood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After it whole chunks are read again; one by one the rest would take forty times as long."""
    careful: list[int] = []
    one = Salvage.one
    monkeypatch.setattr(Salvage, "one", lambda self: [careful.append(1), one(self)][1])
    events = [json.dumps(kernel(f"k{i}", ts=i, dur=1)) for i in range(20_000)]
    for place in (0, 7, 9_999):
        events[place] = events[place].replace("{", '{"x": NaN, ', 1)
    timeline = read(write(tmp_path / "rank0.json", "[" + ",\n".join(events) + "]"), chunk=1 << 20)
    assert (len(timeline.work), timeline.skipped, timeline.repaired) == (20_000, 0, 3)
    assert len(careful) < 1_000

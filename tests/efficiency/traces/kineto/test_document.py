"""The file around the events: what is no trace, byte order marks, headers that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from densing.core.errors import InputError
from tests.support.trace_make import GOOD, good, kernel, parts, read, text_of, write


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "empty"),
        (b" \n\t ", "empty"),
        (b"hello", "not JSON"),
        (b"<html>{}</html>", "not JSON"),
        (b"{}", "no traceEvents"),
        (b'{"rank": 3', "no traceEvents"),
        (b'{"traceEvents": null}', "no traceEvents"),
        (b'{"traceEvents": 5}', "no traceEvents"),
        (b'{"ph": "X", "ts": 1}\n{"ph": "X", "ts": 2}\n', "put them in \\[ \\]"),
        (b"{'traceEvents': []}", "no traceEvents \\(unreadable text at byte"),
        (b'{"traceEvents": []}', "no events"),
        (b"[]", "no events"),
        (b"[", "no events"),
        (b"[1, 2, 3]", "no event of the file can be read"),
        (b"[{", "no event of the file can be read"),
        (b"[garbage", "no event of the file can be read"),
        ("[]".encode("utf-16"), "UTF-16"),
        ("[]".encode("utf-16-le"), "UTF-16"),
        (b"\x28\xb5\x2f\xfd....", "ZSTD decompress failed"),
        (b"\x00\x01\x02", "binary"),
    ],
)
def test_files_that_are_no_traces(tmp_path: Path, text: bytes, reason: str) -> None:
    path = write(tmp_path / "rank0.json", text)
    with pytest.raises(InputError, match=reason) as caught:
        read(path)
    assert "rank0.json" in str(caught.value) and "\n" not in str(caught.value)


def test_utf8_with_a_byte_order_mark(tmp_path: Path) -> None:
    assert parts(read(write(tmp_path / "rank0.json", text_of(good()).encode("utf-8-sig")))) == GOOD


@pytest.mark.parametrize("broken", ['"x": NaN,', '"x": nan,', '"x": "a"b",', '"x": {"y": },', '"x": \\,', "x: 1,"])
def test_a_header_that_cannot_be_read_does_not_cost_the_events(tmp_path: Path, broken: str) -> None:
    timeline = read(write(tmp_path / "rank3.json", text_of(good()).replace("{", "{" + broken, 1)))
    assert parts(timeline) == GOOD


def test_a_header_after_the_events_that_cannot_be_read_is_noted(tmp_path: Path) -> None:
    timeline = read(write(tmp_path / "rank3.json", text_of(good())[:-1] + ', "INFO": [oops'))
    assert (parts(timeline), timeline.skipped) == (GOOD, 0)
    assert [note.code for note in timeline.notes if note.severity != "info"] == ["header-unreadable"]


@pytest.mark.parametrize(
    ("after", "severity"),
    [
        (text_of(good()), "error"),
        ("\n[]", "error"),
        ("\x00" * (1 << 21) + "[", "error"),
        ("</pre>", "warning"),
        (" \n\x00\x00\n", None),
        ("\x00" * (1 << 21), None),
    ],
)
@pytest.mark.parametrize("layout", ["minified", "array"])
def test_what_follows_the_end_is_told(tmp_path: Path, layout: str, after: str, severity: str | None) -> None:
    text = text_of(good(), layout=layout)
    timeline = read(write(tmp_path / "rank0.json", text + after))
    assert (parts(timeline), timeline.skipped) == (GOOD, 0)
    told = [note for note in timeline.notes if note.code != "rank-source"]
    assert [(note.code, note.severity) for note in told] == ([("text-after-end", severity)] if severity else [])
    if severity:
        at = len(text) + len(after) - len(after.lstrip("\n\x00"))
        assert f"byte {at} " in told[0].message


@pytest.mark.parametrize(("between", "reason"), [(" ", "no comma"), (",,", "an extra comma"), (",", "")])
@pytest.mark.parametrize("count", [2, 3000])
def test_commas_between_events_are_counted(tmp_path: Path, count: int, between: str, reason: str) -> None:
    events = [json.dumps(kernel(f"k{i}", ts=i, dur=1)) for i in range(count)]
    places = {1, count // 2}
    text = "[" + "".join((between if i in places else "," if i else "") + event for i, event in enumerate(events)) + "]"
    timeline = read(write(tmp_path / "rank0.json", text))
    assert (len(timeline.work), timeline.skipped) == (count, 0)
    assert timeline.repaired == (len(places) if reason else 0)
    assert all(reason in note.message for note in timeline.notes if note.code == "event-repaired")

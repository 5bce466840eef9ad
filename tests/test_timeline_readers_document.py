"""The file around the events: what is no trace, byte order marks, headers that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_make import good, parts, read, text_of, write

from densing.errors import InputError

GOOD = (50.0, 40.0, 20.0, 20.0)


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
        (b'{"traceEvents": []}', "no events"),
        (b"[]", "no events"),
        (b"[", "no events"),
        (b"[1, 2, 3]", "no event of the file can be read"),
        (b"[{", "no event of the file can be read"),
        (b"[garbage", "no event of the file can be read"),
        ("[]".encode("utf-16"), "UTF-16"),
        ("[]".encode("utf-16-le"), "UTF-16"),
        (b"\x28\xb5\x2f\xfd....", "zstd"),
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

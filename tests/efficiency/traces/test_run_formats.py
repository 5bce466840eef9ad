"""The seam for formats: a second one is found and read by its folder's face alone, and damage goes to the first."""

from __future__ import annotations

import gzip
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from densing.core.errors import InputError
from densing.efficiency.timeline.overlap import partition, select
from densing.efficiency.timeline.timeline import Kind, Origin, RankTimeline, Spans
from densing.efficiency.traces import run
from densing.efficiency.traces.source import Source, TraceFile
from tests.support.trace_make import good, write


def read_toy(trace: TraceFile, *, limits: Any = None, **_: Any) -> RankTimeline:
    """Lines of kind, start and end, after the word ``toy``."""
    buffer, text = bytearray(1 << 12), b""
    with Source(trace.path, trace.member, trace.label, limits or run.Limits()) as source:
        while count := source.readinto(memoryview(buffer)):
            text += buffer[:count]
    _, *lines = text.decode().splitlines()
    rows = [line.split() for line in lines]
    work = [{"kind": Kind[kind], "name": kind, "start": int(start), "end": int(end)} for kind, start, end in rows]
    return RankTimeline(trace.rank_in_name() or 0, Spans.build(work), Spans.empty(), origin=Origin(trace.label))


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register a format: what one line in ``run.py`` does."""
    face = SimpleNamespace(SUFFIXES=(".toy",), recognise=lambda head: head.startswith(b"toy\n"), read_rank=read_toy)
    monkeypatch.setattr(run, "FORMATS", (*run.FORMATS, face))
    monkeypatch.setattr(run, "SUFFIXES", (".toy", *run.SUFFIXES))


TOY = b"toy\nCOMPUTE 10 60\nCOMM 40 80\n"


@pytest.mark.usefixtures("toy")
def test_a_folder_may_mix_formats(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", good())
    (tmp_path / "rank1.toy").write_bytes(TOY)
    (tmp_path / "rank2.toy.gz").write_bytes(gzip.compress(TOY))
    found = run.read_timeline(tmp_path)
    assert [rank.rank for rank in found.ranks] == [0, 1, 2]
    exposed = [partition(select(rank, "all")).exposed_comm_ns for rank in found.ranks]
    assert exposed == [20_000, 20, 20]


@pytest.mark.usefixtures("toy")
def test_what_no_format_recognises_is_refused_in_words_of_the_first(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.json", "hello")
    with pytest.raises(InputError, match=r"is not JSON .* a Kineto or Chrome trace is expected"):
        run.read_rank(TraceFile(path))


@pytest.mark.usefixtures("toy")
def test_a_file_is_sniffed_by_every_format(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(TOY)
    (tmp_path / "b.json").write_text("something else")
    traces = run.find_traces([tmp_path])
    assert [trace.path.name for trace in traces] == ["a.json"]
    assert [note.code for note in traces.notes] == ["files-ignored"]


def test_the_face_of_each_format_offers_what_is_asked() -> None:
    for face in run.FORMATS:
        assert face.SUFFIXES and all(suffix.startswith(".") for suffix in face.SUFFIXES)
        assert not face.recognise(b"") and callable(face.read_rank)

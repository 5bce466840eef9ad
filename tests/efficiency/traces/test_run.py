"""Which files are read, how they are packed, whose rank they are, and what is refused."""

from __future__ import annotations

import gzip
import itertools
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest

from densing.core.errors import InputError
from densing.efficiency.traces.run import check_ranks, find_traces, read_rank, read_timeline
from densing.efficiency.traces.source import Limits, TraceFile
from tests.support.trace_make import ALL_REDUCE, GOOD, good, kernel, parts, read, text_of, write

NO_RANK: dict[str, Any] = {"distributedInfo": None}


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    """A zip archive."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def of_rank(rank: int) -> str:
    """The good trace of a rank."""
    return text_of(good(), {"distributedInfo": {"rank": rank, "world_size": 8}})


def test_a_folder_of_ranks_with_other_files(tmp_path: Path) -> None:
    for rank in (1, 0):
        write(tmp_path / f"rank{rank}.json.gz", of_rank(rank))
    write(tmp_path / "config.json", "{}")
    write(tmp_path / "notes.txt", "hello")
    found = find_traces([tmp_path])
    assert [trace.path.name for trace in found] == ["rank0.json.gz", "rank1.json.gz"]
    assert [(note.code, note.severity) for note in found.notes] == [("files-ignored", "info")]
    assert "config.json" in found.notes[0].message and "notes.txt" in found.notes[0].message
    assert [rank.rank for rank in read_timeline(tmp_path).ranks] == [0, 1]


def test_a_folder_of_folders_and_several_paths(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path / f"host{rank}" / "trace.json", of_rank(rank))
    assert len(find_traces([tmp_path])) == 3
    paths = [tmp_path / "host2", str(tmp_path / "host0" / "trace.json")]
    assert [rank.rank for rank in read_timeline(paths).ranks] == [0, 2]


def test_traces_in_subfolders_of_a_folder_of_traces_are_told(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", of_rank(0))
    write(tmp_path / "node1" / "config.json", "{}")
    assert find_traces([tmp_path]).notes == ()
    for rank in (1, 2):
        write(tmp_path / "node1" / f"rank{rank}.json.gz", of_rank(rank))
    [note] = find_traces([tmp_path]).notes
    assert (note.code, note.severity) == ("folders-ignored", "warning")
    assert "node1/rank1.json.gz" in note.message and "and 1 more; name the subfolder" in note.message
    both = find_traces([tmp_path, tmp_path / "node1"])
    assert len(both) == 3 and "folders-ignored" not in {note.code for note in both.notes}


def test_a_folder_holds_what_is_no_file_and_archives_of_other_things(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", of_rank(0))
    os.mkfifo(tmp_path / "trace.json")
    zipped(tmp_path / "source.zip", {"main.py": b"pass", "settings.json": b"{}"})
    (tmp_path / "logs.tar.gz").write_bytes(gzip.compress(b"logs/"))
    (tmp_path / "rank1.json").symlink_to(tmp_path / "gone.json")
    found = find_traces([tmp_path])
    assert [trace.path.name for trace in found] == ["rank0.json", "rank1.json"]
    (note,) = found.notes
    assert all(name in note.message for name in ("trace.json", "logs.tar.gz", "main.py", "settings.json"))
    with pytest.raises(InputError, match=r"rank1\.json: cannot read \(No such file"):
        read_timeline(tmp_path)


def test_each_file_of_a_folder_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rank0.json", "run.json", "config.json", "events.json.gz"):
        write(tmp_path / name, "{}" if name == "config.json" else of_rank(0))
    opened: list[str] = []
    plain = Path.open

    def watched(self: Path, *args: Any, **kwargs: Any) -> Any:
        opened.append(self.name)
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", watched)
    assert len(find_traces([tmp_path])) == 3
    assert sorted(opened) == ["config.json", "events.json.gz", "rank0.json", "run.json"]


def test_a_damaged_file_of_a_folder_does_not_vanish(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", of_rank(0))
    write(tmp_path / "rank1.json", "")
    assert len(find_traces([tmp_path])) == 2
    with pytest.raises(InputError, match=r"rank1\.json: is empty"):
        read_timeline(tmp_path)


def test_nothing_found(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="contains no trace"):
        find_traces([tmp_path])
    with pytest.raises(InputError, match="no such file"):
        find_traces([tmp_path / "absent"])
    with pytest.raises(InputError, match="contains no trace"):
        find_traces([])
    with pytest.raises(InputError, match="cannot read"):
        read_rank(TraceFile(tmp_path / "absent.json"))


def test_an_archive_of_ranks(tmp_path: Path) -> None:
    path = zipped(
        tmp_path / "run.zip",
        {"a/rank0.json": of_rank(0).encode(), "a/rank1.json.gz": gzip.compress(of_rank(1).encode()), "README": b"x"},
    )
    run = read_timeline(path)
    assert [(rank.rank, parts(rank)) for rank in run.ranks] == [(0, GOOD), (1, GOOD)]
    assert run.ranks[1].origin.source.endswith("run.zip:a/rank1.json.gz")
    with pytest.raises(InputError, match="zip archive"):
        read(path)
    with pytest.raises(InputError, match=r"contains no trace"):
        find_traces([zipped(tmp_path / "other.zip", {"README": b"x"})])


def test_other_archives_say_what_to_do_with_them(tmp_path: Path) -> None:
    inner = zipped(tmp_path / "run.zip", {"rank0.json": of_rank(0).encode()})
    outer = zipped(tmp_path / "all.zip", {"logs/run.zip": inner.read_bytes()})
    with pytest.raises(InputError, match=r"all\.zip: contains run\.zip, an archive inside an archive; unpack it"):
        find_traces([outer])
    (tmp_path / "run.tar.gz").write_bytes(gzip.compress(b"traces/rank0.json"))
    with pytest.raises(InputError, match=r"run\.tar\.gz: is a tar archive; unpack it .* or zip the traces"):
        find_traces([tmp_path / "run.tar.gz"])


def test_members_that_are_no_traces_or_come_twice(tmp_path: Path) -> None:
    path = zipped(tmp_path / "run.zip", {"a.json": of_rank(3).encode(), "config.json": b"{}", "README": b"x"})
    found = find_traces([path])
    assert [(trace.member, trace.size > 0) for trace in found] == [("a.json", True)]
    assert TraceFile(path, "a.json").size == found[0].size
    assert "config.json" in found.notes[0].message
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("a.json", of_rank(4))
    with pytest.raises(InputError, match=r"run\.zip: holds a\.json more than once"):
        find_traces([path])


def test_an_archive_of_too_many_traces_is_refused_at_once(tmp_path: Path) -> None:
    path = zipped(tmp_path / "run.zip", {f"rank{rank}.json": b"{}" for rank in range(4097)})
    with pytest.raises(InputError, match=r"holds 4097 traces, more than 4096; unpack it"):
        find_traces([path])


def test_a_truncated_archive(tmp_path: Path) -> None:
    path = zipped(tmp_path / "run.zip", {"rank0.json": of_rank(0).encode()})
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InputError, match="zip archive"):
        find_traces([path])


def test_an_archive_within_an_archive_and_damage_inside(tmp_path: Path) -> None:
    inner = zipped(tmp_path / "inner.zip", {"rank0.json": of_rank(0).encode()}).read_bytes()
    with pytest.raises(InputError, match="inside another"):
        read_timeline(zipped(tmp_path / "outer.zip", {"inner.json": inner}))
    path = zipped(
        tmp_path / "damaged.zip", {"rank0.json": text_of([kernel(f"k{i}", ts=i) for i in range(9999)]).encode()}
    )
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    timeline = read_timeline(path).ranks[0]
    assert "file-damaged" in {note.code for note in timeline.notes if note.severity == "error"}


def test_the_packing_is_known_by_content_not_by_name(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(gzip.compress(of_rank(0).encode()))
    assert parts(read(path)) == GOOD


def test_several_gzip_streams_in_one_file_and_padding(tmp_path: Path) -> None:
    text = of_rank(0).encode()
    pieces = b"".join(gzip.compress(text[i : i + 50]) for i in range(0, len(text), 50))
    for data in (pieces, pieces + b"\x00" * 999, gzip.compress(b"") + pieces):
        path = tmp_path / "rank0.json.gz"
        path.write_bytes(data)
        timeline = read(path)
        assert parts(timeline) == GOOD and timeline.notes == ()


def test_a_truncated_gzip_gives_what_inflates(tmp_path: Path) -> None:
    data = gzip.compress(text_of([kernel(f"k{i}", ts=i, dur=1) for i in range(5000)]).encode())
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(data[: len(data) // 2])
    timeline = read(path)
    whole = zlib.decompressobj(31).decompress(data[: len(data) // 2]).count(b"}},")
    assert len(timeline.work) == whole > 1000
    assert {"file-damaged", "file-ends-early"} <= {note.code for note in timeline.notes}


def test_a_gzip_with_damage_inside(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(text_of([kernel(f"k{i}", ts=i, dur=1) for i in range(5000)]).encode()))
    data[len(data) * 3 // 4] ^= 0xFF
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(data)
    timeline = read(path)
    assert len(timeline.work) > 3000
    assert "file-damaged" in {note.code for note in timeline.notes if note.severity == "error"}


def test_a_wrong_checksum_costs_nothing_but_a_note(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(of_rank(0).encode()))
    data[-8] ^= 0xFF
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(data)
    timeline = read(path)
    assert parts(timeline) == GOOD
    assert [(note.code, note.severity) for note in timeline.notes] == [("file-damaged", "error")]


def test_a_gzip_header_with_every_field(tmp_path: Path) -> None:
    plain = gzip.compress(of_rank(0).encode())
    extra = b"\x03\x00abc" + b"name.json\x00" + b"comment\x00"
    head = plain[:3] + bytes([4 | 8 | 16 | 2]) + plain[4:10] + extra + b"\x00\x00"
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(head + plain[10:])
    assert parts(read(path)) == GOOD


def test_the_standard_library_inflates_where_isal_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "rank0.json.gz", of_rank(0))
    monkeypatch.setitem(__import__("sys").modules, "isal", None)
    assert parts(read(path)) == GOOD
    path.write_bytes(path.read_bytes()[:-40])
    assert read(path).skipped == 1


@pytest.mark.parametrize("what", ["spans", "names", "threads", "comms"])
def test_what_is_kept_meets_a_stated_limit(tmp_path: Path, what: str) -> None:
    """The text of a gzip file may be a hundred times its size, and every event of it takes memory."""
    events = {
        "spans": [kernel(ts=at) for at in range(400)],
        "names": [kernel("x" * 200_000)],
        "threads": [
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": at, "args": {"name": "t"}} for at in range(400)
        ],
        "comms": [kernel(ALL_REDUCE, ts=at, **{"Collective name": "allreduce", "Seq": at}) for at in range(200)],
    }[what]
    path = write(tmp_path / "rank0.json.gz", [*good(), *events])
    with pytest.raises(InputError, match=r"rank0.json.gz: holds more than 300 spans .* Limits\(spans="):
        read(path, limits=Limits(spans=300))
    assert read(path, limits=Limits(spans=2000)).events == len(good()) + len(events)


@pytest.mark.slow
@pytest.mark.parametrize("filling", [b" ", b"x", b"[", b'{"ph":"X"},', b'"', b"\\"])
def test_a_gzip_bomb_meets_a_stated_limit(tmp_path: Path, filling: bytes) -> None:
    path = tmp_path / "rank0.json.gz"
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = filling * ((1 << 20) // len(filling))
    data = packer.compress(b'{"traceEvents":[' + (b'{"name":"' if filling in b"x\\" else b""))
    path.write_bytes(data + b"".join(packer.compress(block) for _ in range(300)) + packer.flush())
    with pytest.raises(InputError, match=r"times its size.*Limits\(ratio|100001 events skipped: it is not an event"):
        read(path)
    with pytest.raises(InputError, match=r"Limits\(inflated_bytes"):
        read_rank(TraceFile(path), limits=Limits(inflated_bytes=1 << 16))


def test_progress_ends_at_the_size_of_the_file(tmp_path: Path) -> None:
    events = [kernel(f"k{i}", ts=i) for i in range(30_000)]
    for name in ("rank0.json", "rank0.json.gz"):
        path = write(tmp_path / name, events)
        seen: list[int] = []
        read_rank(TraceFile(path), progress=seen.append)
        assert seen[-1] == path.stat().st_size == TraceFile(path).size
        assert all(a <= b for a, b in itertools.pairwise(seen)) and len(seen) > 3


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.json", 3),
        ("rank-12.json.gz", 12),
        ("run_rank_007_step.json", 7),
        ("worker5_step_12.1694128201545.pt.trace.json", 5),
        ("Rank4_trace.json", 4),
        ("global_rank11.json", 11),
        ("rank00003.pt.trace.json.gz", 3),
        ("host_4711.1694128201545.pt.trace.json", None),
        ("franklin5.json", None),
        ("crank.json", None),
        ("frank3.json", None),
        ("hostRank3.json", 3),
        ("hostnode2_rank5.json", 5),
        ("rank0of8.json", 0),
        ("trace_step_12.rank-3.json", 3),
        ("worker3_rank_12.json", 12),
        ("local_rank1_global_rank7.json", 7),
        ("globalrank7_localrank1.json", 7),
        ("local_rank1_rank9.json", 9),
        ("local_rank1.json", None),
        ("localrank1.json", None),
        ("tp_rank_00_pp_rank_001.json", None),
        ("ddp_rank1.pt.trace.json", 1),
        ("rank_20260102_030405.json", None),
    ],
)
def test_ranks_by_file_name(tmp_path: Path, name: str, rank: int | None) -> None:
    assert TraceFile(Path("logs") / name).rank_in_name() == rank
    timeline = read(write(tmp_path / "logs" / name, good(), **NO_RANK))
    assert (timeline.rank, timeline.origin.rank_from) == ((rank, "file name") if rank is not None else (0, "default"))
    assert [note.code for note in timeline.notes] == ["rank-source"]


@pytest.mark.parametrize("layout", ["minified", "indented", "keys_after"])
def test_the_trace_itself_tells_the_rank_before_its_name_does(tmp_path: Path, layout: str) -> None:
    timeline = read(write(tmp_path / "rank9.json", good(), layout, distributedInfo={"rank": 1, "world_size": 2}))
    assert (timeline.rank, timeline.origin.rank_from, timeline.notes) == (1, "distributedInfo", ())


def test_the_user_tells_the_rank_before_anything_else(tmp_path: Path) -> None:
    first, second = (write(tmp_path / name, of_rank(0)) for name in ("a_trace.json", "b_trace.json"))
    with pytest.raises(InputError, match=r"a_trace\.json and .*b_trace\.json both claim rank 0"):
        read_timeline(tmp_path)
    run = read_timeline(tmp_path, ranks={"b_trace.json": 5, str(first): 2})
    assert [(rank.rank, rank.origin.source, rank.origin.rank_from) for rank in run.ranks] == [
        (2, str(first), "option"),
        (5, str(second), "option"),
    ]
    with pytest.raises(InputError, match="no trace has that name"):
        read_timeline(tmp_path, ranks={"c_trace.json": 1})


@pytest.mark.parametrize(
    "info", [{"rank": -1}, {"rank": "x"}, {"rank": 1.5}, {"rank": None}, [], "rank 3", {"rank": True}]
)
def test_a_rank_that_makes_no_sense_is_not_believed(tmp_path: Path, info: object) -> None:
    timeline = read(write(tmp_path / "rank9.json", good(), distributedInfo=info))
    assert (timeline.rank, timeline.origin.rank_from) == (9, "file name")


@pytest.mark.parametrize(
    "header",
    [
        {"deviceProperties": 5},
        {"deviceProperties": [5, {"name": 7}, {}]},
        {"distributedInfo": {"rank": 0, "pg_config": {"a": 1}}},
        {"distributedInfo": {"rank": 0, "pg_config": [{"pg_name": 0, "ranks": ["a"]}, 7, {"pg_name": "1"}]}},
        {"distributedInfo": {"rank": 0, "backend": ["cpu:gloo", "cuda:nccl"], "world_size": "8"}},
        {"host_name": {"a": 1}},
    ],
)
def test_odd_headers_do_no_harm(tmp_path: Path, header: dict[str, object]) -> None:
    timeline = read(write(tmp_path / "rank0.json", good(), **header))
    assert parts(timeline) == GOOD
    assert timeline.origin.backend in ("nccl", "", "cpu:gloo,cuda:nccl")


def test_ranks_are_checked_over_the_run() -> None:
    check_ranks([(0, "a"), (1, "b")])
    with pytest.raises(InputError, match="both claim rank 1"):
        check_ranks([(0, "a"), (1, "b"), (1, "c")])


def test_patterns_of_the_user_are_communication(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.json", [kernel("my_ring_exchange")])
    assert parts(read_timeline(path).ranks[0])[1] == 0
    assert parts(read_timeline(path, comm_patterns=["ring_ex"]).ranks[0])[1] == 50


def test_a_trace_says_that_it_was_recorded_by_us(tmp_path: Path) -> None:
    assert read(write(tmp_path / "rank0.json", good(), densing_recorder="0.1.0")).origin.recorder == "0.1.0"
    assert read(write(tmp_path / "rank1.json", good())).origin.recorder == ""

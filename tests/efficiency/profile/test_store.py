"""The store of profiles: what goes in comes out, whatever it is; what is damaged is named."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densing import __version__
from densing.core.errors import ArtefactError, InputError
from densing.efficiency.profile import store
from densing.efficiency.profile.store import kind_of, merge, read_profiles, store_files, store_info, write_profile

INT64 = st.integers(-(2**63), 2**63 - 1)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
# JSON's integers have no limit, but readers of it do: 64 bits.
PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | INT64 | FINITE | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)
ROWS = st.fixed_dictionaries(
    {"rank": st.integers(0, 10**6)},
    optional={
        "comm_ns": st.none() | INT64,
        "overlap_pct": st.none() | FINITE,
        "source": st.none() | TEXT,
        "steps": PLAIN,
        "collectives": PLAIN,
        "notes": st.lists(PLAIN, max_size=3),
    },
)


@settings(max_examples=60)
@given(row=ROWS)
def test_a_row_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, row: dict[str, Any]) -> None:
    file = tmp_path_factory.mktemp("store") / "row.parquet"
    write_profile(file, row)
    [found] = read_profiles(file)
    assert found == row
    # 1 == 1.0 == True in Python; not here.
    assert json.dumps(found) == json.dumps(row)


def fill(folder: Path, ranks: range, **more: Any) -> list[Path]:
    """Write one file per rank."""
    files = []
    for rank in ranks:
        row = {"rank": rank, "comm_ns": rank * 10, "input": {"hash": f"h{rank}"}, **more}
        files.append(folder / f"r{rank}.parquet")
        write_profile(files[-1], row, options={"window": "all"})
    return files


def test_merge_of_many_files_keeps_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "GROUP_BYTES", 2_000)
    fill(tmp_path / "parts", range(1, 40), collectives={"op": ["all_reduce"] * 20})
    write_profile(tmp_path / "parts" / "a.parquet", {"rank": 0, "overlap_pct": 5.0}, options={"window": "all"})
    before = sorted(read_profiles(tmp_path / "parts"), key=lambda row: row["rank"])
    info = merge(tmp_path / "parts", tmp_path / "all.parquet")
    after = list(read_profiles(tmp_path / "all.parquet"))
    assert info.rows == 40 and [row["rank"] for row in after] == list(range(40))
    # What is typed and missing in a row comes back as None; nothing else is added.
    kept = [{key: value for key, value in row.items() if value is not None} for row in after]
    assert kept == before
    assert pq.ParquetFile(tmp_path / "all.parquet").num_row_groups == 5
    assert info.options == {"window": "all"} and info.version == __version__
    # The hash is over all inputs, whatever the order of the files.
    again = merge(list(reversed(store_files(tmp_path / "parts"))), tmp_path / "again.parquet")
    assert again == info and info.inputs != store_info(tmp_path / "parts" / "r1.parquet").inputs != ""


def test_columns_may_be_chosen(tmp_path: Path) -> None:
    fill(tmp_path, range(2), steps=[1])
    assert list(read_profiles(tmp_path, ["rank", "steps", "nothing"])) == [{"rank": n, "steps": [1]} for n in range(2)]


def test_reading_stops_where_the_reader_does(tmp_path: Path) -> None:
    [file] = fill(tmp_path, range(1))
    rows = read_profiles([file, tmp_path / "none.parquet"])
    assert next(rows)["rank"] == 0
    with pytest.raises(InputError, match=r"none\.parquet: no such file"):
        next(rows)


def test_one_rank_twice_is_an_error_with_both_names(tmp_path: Path) -> None:
    fill(tmp_path / "a", range(3))
    fill(tmp_path / "b", range(2, 3))
    with pytest.raises(InputError, match=r"b/r2\.parquet: contains rank 2, as does .*a/r2\.parquet"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all.parquet")
    assert not (tmp_path / "all.parquet").exists()


def test_different_options_do_not_merge(tmp_path: Path) -> None:
    fill(tmp_path, range(1))
    write_profile(tmp_path / "s.parquet", {"rank": 1}, options={"window": "steps"})
    with pytest.raises(InputError, match=r"s\.parquet: profiled with .*steps.*, but .*r0\.parquet with .*all"):
        merge(tmp_path, tmp_path / "all.parquet")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"rank": 0, "overlap_pct": math.nan}, "overlap_pct = nan is not finite"),
        ({"rank": 0, "overlap_pct": math.inf}, "overlap_pct = inf is not finite"),
        ({"rank": 0, "steps": {"a": [1.0, math.nan]}}, "Out of range float values"),
        ({"rank": 0, "comm_ns": 2**63}, "comm_ns = 9223372036854775808 is beyond 64 bits"),
        ({"rank": 0, "comm_ns": 1.5}, "comm_ns = 1.5 is not a valid integer"),
        ({"rank": 0, "comm_ns": True}, "comm_ns = True is not a valid integer"),
        ({"rank": 0, "overlap_pct": "5"}, "overlap_pct = '5' is not a valid number"),
        ({"rank": 0, "source": 5}, "source = 5 is not text"),
        ({"rank": 0, "steps": {1, 2}}, "set is not JSON serializable"),
        ({"comm_ns": 1}, "a row without a rank"),
    ],
)
def test_what_cannot_be_kept_is_refused(tmp_path: Path, row: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        write_profile(tmp_path / "x.parquet", row)
    assert list(tmp_path.iterdir()) == []


def test_names_that_are_no_utf8_are_kept_readable(tmp_path: Path) -> None:
    write_profile(tmp_path / "x.parquet", {"rank": 0, "source": "a\udcff.json"})
    assert [row["source"] for row in read_profiles(tmp_path)] == ["a\\udcff.json"]


def test_damage_is_named(tmp_path: Path) -> None:
    [file] = fill(tmp_path, range(1), collectives={"op": [f"op{n}" for n in range(3000)]})
    whole = file.read_bytes()
    found = list(read_profiles(file))
    silent = 0
    for position in range(0, len(whole), 7):
        broken = bytearray(whole)
        broken[position] ^= 0x55
        file.write_bytes(broken)
        try:
            silent += list(read_profiles(file)) != found
        except ArtefactError as error:
            assert "r0.parquet: not a readable profile" in str(error)
    # What lies in the pages has a checksum; in the footer, statistics and names of writers nobody reads may change.
    assert silent == 0
    for cut in (0, 3, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:cut])
        with pytest.raises(ArtefactError, match=r"r0\.parquet"):
            list(read_profiles(file))


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "x.parquet"
    pq.write_table(pa.table({"rank": [1]}), foreign)
    with pytest.raises(ArtefactError, match=r"x\.parquet"):
        list(read_profiles(foreign))
    told = {"format": 99, "version": "9", "options": {}, "inputs": "", "columns": ["rank"]}
    schema = pa.schema([("rank", pa.int64())], {b"densing.profile": json.dumps(told).encode()})
    pq.write_table(pa.table({"rank": [1]}, schema=schema), foreign)
    with pytest.raises(ArtefactError, match="format 99, this densing reads 1"):
        store_info(foreign)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="contains no profile"):
        list(read_profiles(tmp_path / "empty"))
    with pytest.raises(InputError, match="there are no files to merge"):
        merge([], tmp_path / "all.parquet")


def test_temporary_files_of_writers_are_no_profiles(tmp_path: Path) -> None:
    [file] = fill(tmp_path, range(1))
    (tmp_path / ".r1.parquet.x.parquet").write_bytes(b"half")
    assert store_files(tmp_path) == [file]


def test_kind_follows_the_name() -> None:
    assert {kind_of(name) for name in ("start_ns", "events", "rank")} == {"integer"}
    assert kind_of("devices") == kind_of("on_host") == "json"


READ = """
import sys
from pathlib import Path
def peak():  # not ru_maxrss: a process inherits that of the one that started it
    [line] = [row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("VmHWM")]
    return int(line.split()[1])
from densing.efficiency.profile.store import read_profiles
rows = read_profiles(sys.argv[1])
next(rows)
before = peak()
for row in rows: pass
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read in /proc")
def test_reading_many_ranks_needs_the_memory_of_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "GROUP_BYTES", 1 << 20)
    columns = {"start_ns": [1_790_857_026_000_000_000 + 1_234_567 * n for n in range(10_000)], "op": ["x"] * 10_000}
    fill(tmp_path / "parts", range(120), collectives=columns)
    merge(tmp_path / "parts", tmp_path / "all.parquet")
    assert pq.ParquetFile(tmp_path / "all.parquet").metadata.row_group(0).total_byte_size < 3 << 20
    grown = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path / "all.parquet")], capture_output=True, text=True, check=True
    )
    # All rows together hold 30 MB of text, and more as Python objects.
    assert int(grown.stdout) < 12_000

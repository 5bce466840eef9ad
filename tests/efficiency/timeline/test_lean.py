"""What keeps profiling quick and small: plain records, plain searches, tables in blocks, views."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core.records import Record
from densing.efficiency.profile.rank import ProfileOptions, RankProfile, profile_timeline
from densing.efficiency.timeline import intervals as intervals_module
from densing.efficiency.timeline.classifier import Classifier, any_case, is_plain, rules, search_of
from densing.efficiency.timeline.host import innermost, unbroken
from densing.efficiency.timeline.intervals import blocks, distinct, median, outside, quantile, subtract, union, used
from densing.efficiency.timeline.timeline import Comm, Kind, Lane, RankTimeline, Spans, Step

WORK = (Kind.COMPUTE, Kind.COMPUTE, Kind.COMM, Kind.MEMCPY, Kind.MEMSET, Kind.SYNC)
CALLS = ("cudaLaunchKernel", "cudaLaunchKernel", "cudaMemcpyAsync", "cudaDeviceSynchronize", "cudaStreamWaitEvent")
RANGES = ("ProfilerStep#1", "forward", "nccl:barrier", "enumerate(DataLoader)#x.__next__")


class Inner(Record, frozen=True):
    value: int


class Outer(Record, frozen=True):
    name: str
    parts: tuple[Inner, ...]
    share: float | None = None


def rank_of(seed: int, work: int = 40, host: int = 120) -> RankTimeline:
    """A rank of all that may happen: threads, streams, nesting and crossing, ties, empty spans, lost launches."""
    draw = random.Random(seed)
    wide, step = draw.choice((60, 2000)), draw.choice((1, 1000))
    device = []
    for _ in range(work):
        start, kind = draw.randrange(wide), draw.choice(WORK)
        row = {"start": start, "end": start + draw.choice((0, 2, 30)), "kind": kind, "name": kind.name,
               "lane": Lane("gpu", str(draw.randrange(3))), "correlation": draw.randrange(-1, host) * step}  # fmt: skip
        device.append(row | ({"comm": Comm("all_reduce", "0", in_elems=4, dtype="float")} if kind is Kind.COMM else {}))
    calls = []
    for number in range(host):
        start, call = draw.randrange(wide), draw.random() < 0.8
        calls.append({"start": start, "end": start + draw.choice((0, 2, 9, 50)),
                      "kind": Kind.LAUNCH if call else Kind.ANNOTATION, "name": draw.choice(CALLS if call else RANGES),
                      "lane": Lane("cpu", str(draw.randrange(3))),
                      "correlation": number * step if call else -1})  # fmt: skip
    return RankTimeline(0, Spans.build(device), Spans.build(calls), (Step(1, 5, wide // 2), Step(2, wide // 2, wide)))


def test_a_record_is_plain_and_comes_back() -> None:
    record = Outer("a", (Inner(1), Inner(2)), 0.5)
    stored = json.loads(json.dumps(record.to_dict()))
    assert stored == {"name": "a", "parts": [{"value": 1}, {"value": 2}], "share": 0.5}
    assert Outer.from_dict({**stored, "more": 1}) == record
    with pytest.raises(AttributeError):
        record.name = "b"  # type: ignore[misc]


@given(st.lists(st.sampled_from(("a", "^a", "ab$", "^b$", "bb", "^ab")), min_size=1, max_size=3),
       st.text("ab:", max_size=5))  # fmt: skip
def test_plain_searches_find_what_regular_expressions_find(parts: list[str], text: str) -> None:
    pattern = "|".join(parts)
    assert is_plain(pattern)
    assert bool(search_of(pattern)(text)) == bool(re.search(pattern, text))
    assert bool(any_case(pattern)(text.upper())) == bool(re.search(pattern, text))


@pytest.mark.parametrize("pattern", ["a.b", "a?", "(a|b)", "a\\d", "[ab]", "a{2}", "a|", "^", "a$b"])
def test_what_is_no_plain_text_stays_a_regular_expression(pattern: str) -> None:
    assert not is_plain(pattern)
    for text in ("", "ab", "a.b", "axb", "a1", "aa", "b", "a$b"):
        assert bool(search_of(pattern)(text)) == bool(re.search(pattern, text))


def test_every_rule_finds_what_its_pattern_says() -> None:
    table = [rule for scope in ("category", "kernel", "host", "op") for rule in rules(scope)]
    words = {word for rule in table for part in rule.pattern.split("|") for word in (part, part.strip("^$"))}
    texts = {text for word in words for text in (word, f"x{word}", f"{word}x", f"_{word}_")}
    for rule in table:
        assert {text for text in texts if rule.search(text)} == {
            text for text in texts if re.search(rule.pattern, text)
        }


@given(st.sampled_from(("gemm", "frobnicate", "ncclDevKernel_Generic", "Memcpy HtoD", "Memset", "sm90_x", "sm_x")))
def test_a_known_name_is_one_a_rule_matches(name: str) -> None:
    for classifier in (Classifier(), Classifier(("frob",))):
        assert classifier.knows(name) == classifier.match("kernel", name).known


@given(st.lists(st.integers(-(2**60), 2**60), min_size=1, max_size=30), st.sampled_from((0, 5, 50, 95, 99.5, 100)))
def test_median_and_quantiles_are_numpys(values: list[int], percent: float) -> None:
    for column in (np.array(values), np.array(values) / 7):
        assert median(column) == np.median(column)
        assert quantile(column, percent / 100) == np.percentile(column, percent)


@given(st.lists(st.integers(0, 9), max_size=12))
def test_distinct_and_used_are_numpys_unique(values: list[int]) -> None:
    column = np.array(values, np.int64)
    assert distinct(column).tolist() == used(column) == np.unique(column).tolist()


@given(st.lists(st.booleans(), min_size=1, max_size=20))
def test_a_selection_is_the_same_whether_copied_or_seen(mask: list[bool]) -> None:
    table = Spans.columns({"start": range(len(mask)), "end": range(1, len(mask) + 1), "kind": [0] * len(mask),
                           "name": [0] * len(mask)}, ("a",))  # fmt: skip
    chosen, rows = table.take(np.array(mask)), np.flatnonzero(mask)
    for key in ("start", "end", "kind", "name", "lane", "bytes", "correlation", "comm"):
        assert getattr(chosen, key).tolist() == getattr(table, key)[rows].tolist()
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        assert np.shares_memory(chosen.start, table.start)


def test_blocks_cover_every_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals_module, "BLOCK", 4)
    for count in (0, 1, 4, 9):
        for last_first in (False, True):
            parts = list(blocks(count, last_first))
            assert sorted(row for part in parts for row in range(part.start, part.stop)) == list(range(count))
    assert [part.start for part in blocks(9, last_first=True)] == [8, 4, 0]


@pytest.mark.parametrize("seed", range(20))
def test_time_split_part_by_part_is_time_split_at_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    host = rank_of(seed).host
    rows = host.lane == 0
    whole = innermost(host.start[rows], host.end[rows])
    expected = sorted(zip(whole.start.tolist(), whole.end.tolist(), np.flatnonzero(rows)[whole.which], strict=True))
    monkeypatch.setattr(intervals_module, "BLOCK", 5)
    found = []
    for part in unbroken(host, rows):
        split = innermost(host.start[part], host.end[part])
        found += zip(split.start.tolist(), split.end.tolist(), part[split.which], strict=True)
    assert sorted(found) == expected


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=12))
def test_the_gaps_are_what_a_subtraction_leaves(pairs: list[tuple[int, int]]) -> None:
    table = np.array(pairs, np.int64).reshape(-1, 2)
    merged = union(table[:, 0], table.sum(axis=1))
    whole = (np.array([0]), np.array([70]))
    for found, wanted in zip(outside(merged, 0, 70), subtract(whole, merged), strict=True):
        assert found.tolist() == wanted.tolist()


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("window", ["steps", "all", "hta"])
def test_no_figure_depends_on_the_size_of_the_blocks(seed: int, window: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rank, options = rank_of(seed), ProfileOptions(window)  # type: ignore[arg-type]
    whole = profile_timeline(rank, options).to_dict()
    monkeypatch.setattr(intervals_module, "BLOCK", 3)
    assert profile_timeline(rank, options).to_dict() == whole


def test_a_profile_comes_back_from_its_plain_data() -> None:
    stored = json.loads(json.dumps(profile_timeline(rank_of(3)).to_dict()))
    assert json.loads(json.dumps(RankProfile.from_dict(stored).to_dict())) == stored


def test_profiling_takes_little_more_memory_than_the_timeline() -> None:
    count, per = 120_000, 1_000
    start = np.arange(count) * per
    host = {"start": start, "end": start + 400, "kind": np.full(count, Kind.LAUNCH), "name": np.zeros(count, np.int32),
            "lane": np.arange(count) % 2, "correlation": np.arange(count) * 9}  # fmt: skip
    work = {"start": start[::2] + 500, "end": start[::2] + 1_200, "kind": np.arange(count // 2) % 4,
            "name": np.zeros(count // 2, np.int32), "correlation": np.arange(count)[::2] * 9}  # fmt: skip
    rank = RankTimeline(0, Spans.columns(work, ("gemm",)),
                        Spans.columns(host, ("cudaLaunchKernel",), (Lane("cpu", "0"), Lane("cpu", "1"))))  # fmt: skip
    table = sum(getattr(part, key).nbytes for part in (rank.work, rank.host)
                for key in ("start", "end", "kind", "name", "lane", "correlation"))  # fmt: skip
    profile_timeline(rank_of(1))
    tracemalloc.start()
    profile_timeline(rank)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.5 * table


def test_a_single_trace_loads_nothing_heavy(tmp_path: Path) -> None:
    events = [{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 10 * at, "dur": 5, "pid": 0, "tid": 7,
               "args": {"correlation": at}} for at in range(20)]  # fmt: skip
    trace = tmp_path / "rank0.json"
    trace.write_text(json.dumps({"traceEvents": events}))
    code = (
        "import sys; sys.argv = ['densing', 'profile', '--json', sys.argv[1]]\n"
        "from densing.cli import main\n"
        "try: main()\n"
        "except SystemExit as left: assert not left.code, left.code\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, trace], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert json.loads(done.stdout)["ranks"][0]["compute_ns"] == 100_000
    assert not loaded & {"numpy.ma", "zipfile", "pandas", "pyarrow", "rich", "torch", "scipy", "plotly",
                         "densing.efficiency.profile.joint", "densing.efficiency.profile.comparison",
                         "densing.efficiency.profile.batch"}  # fmt: skip

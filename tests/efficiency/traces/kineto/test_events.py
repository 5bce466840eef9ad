"""Microseconds to nanoseconds: every magnitude against exact decimals."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from densing.efficiency.traces.kineto.events import LIMIT_NS, MISSING, NeedsText, from_numbers, from_text
from densing.efficiency.traces.kineto.rows import Columns
from tests.support.trace_make import kernel, read, text_of, write
from tests.support.trace_oracle import differences, ns

UNIX = 1_682_725_898_236_567
magnitudes = st.sampled_from([0, 1, 10**6, 2**42 - 5, 2**42, 2**42 + 10**9, 2**43 - 5, 2**43, UNIX])


@st.composite
def decimals(draw: st.DrawFn, digits: int = 3) -> str:
    """The text of a time near one of the magnitudes at which float64 changes its resolution."""
    whole = draw(magnitudes) + draw(st.integers(0, 10**6))
    count = draw(st.integers(0, digits))
    return f"{whole}.{draw(st.integers(0, 10**count - 1)):0{count}d}" if count else str(whole)


@given(st.lists(decimals(digits=3), min_size=1, max_size=20))
@example(["4458676522690.655", "4398046511104.001"])
@example([f"{UNIX}.25", str(UNIX)])
def test_numbers_are_exact_or_refused(texts: list[str]) -> None:
    values = [float(text) if "." in text else int(text) for text in texts]
    try:
        found = from_numbers(values).tolist()
    except NeedsText:
        assert any(Decimal(text) >= 2**43 for text in texts)
        return
    assert found == [ns(text) for text in texts]


@given(decimals(digits=9))
def test_text_is_exact_and_rounds_half_to_even(text: str) -> None:
    assert from_text(text) == from_text(text.encode()) == ns(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0.0005", 0), ("0.0015", 2), ("-0.0015", -2), ("1e3", 10**6), ("1E-3", 1), ("-12.5", -12500), ("007", 7000)],
)
def test_text_of_unusual_form(text: str, expected: int) -> None:
    assert from_text(text) == expected


@pytest.mark.parametrize("text", ["", "x", "NaN", "Infinity", "-Infinity", "1.2.3", "0x10", "--1", "1e"])
def test_text_that_is_no_number(text: str) -> None:
    with pytest.raises(ValueError, match=r"not (a number|finite)"):
        from_text(text)


@pytest.mark.parametrize("text", ["1e400", "9" * 400, "18446744073709551", "1e999999999", "4611686018427388"])
def test_what_int64_cannot_hold_stops_at_the_limit(text: str) -> None:
    assert from_text(text) == LIMIT_NS
    assert from_text("-" + text) == -LIMIT_NS


@example([10**400, 1.5])
@example([-(10**400), 2**63, -1])
@given(
    st.lists(st.integers(-(2**80), 2**80) | st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=9)
)
def test_any_numbers_stay_within_the_limit(values: list[int | float]) -> None:
    try:
        found = from_numbers(values)
    except NeedsText:
        return
    assert len(found) == len(values) and abs(found).max() <= LIMIT_NS


def test_more_decimals_than_three_are_noticed() -> None:
    with pytest.raises(NeedsText):
        from_numbers([1.0005])
    assert from_numbers([MISSING, 3]).tolist() == [MISSING * 1000, 3000]


@settings(max_examples=40)
@given(
    st.lists(st.tuples(decimals(digits=3), decimals(digits=3)), min_size=1, max_size=30),
    st.sampled_from([256, 1 << 20]),
)
@example([("4458676522690.655", "156.777"), (f"{UNIX}.125", "1.5"), (str(UNIX), "3")], 256)
def test_times_of_a_file_are_exact_whatever_their_magnitude(times: list[tuple[str, str]], chunk: int) -> None:
    events = [kernel(f"k{i}", ts=f"@{ts}@", dur=f"@{dur}@") for i, (ts, dur) in enumerate(times)]
    text = text_of(events, {"baseTimeNanoseconds": 7_889_238_000_000_000}).replace('"@', "").replace('@"', "")
    with TemporaryDirectory() as folder:
        path = write(Path(folder) / "rank0.json", text)
        timeline = read(path, chunk=chunk)
        assert timeline.skipped == 0
        assert differences(path, timeline) == []


@settings(max_examples=25)
@given(st.lists(decimals(digits=6), min_size=1, max_size=20))
def test_decimals_beyond_the_nanosecond_round_half_to_even(times: list[str]) -> None:
    """The text of the first events is looked at for such times, so float64 does not hide them."""
    events = [kernel(f"k{i}", ts=f"@{ts}@", dur=1) for i, ts in enumerate(times)]
    events.append(kernel("tell", ts="@4458676522690.6555@", dur=1))
    text = text_of([events[-1], *events[:-1], events[-1]]).replace('"@', "").replace('@"', "")
    with TemporaryDirectory() as folder:
        path = write(Path(folder) / "rank0.json", text)
        assert differences(path, read(path)) == []


@given(
    st.lists(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 200), min_size=1, max_size=5), max_size=9)
)
@settings(max_examples=60)
def test_columns_hold_what_was_put_in(lists: list[list[int]]) -> None:
    columns = Columns()
    for values in lists:
        columns.add(len(values), value=np.array(values, np.int64))
        if len(values) % 2:
            columns._pack()  # as it happens every few thousand rows
    assert columns.take("value").tolist() == [value for values in lists for value in values]


def test_base_time_after_the_events_and_as_text(tmp_path: Path) -> None:
    text = '{"traceEvents":[' + text_of([kernel(ts=1.5)], {})[16:-2] + '],"baseTimeNanoseconds":"1000"}'
    timeline = read(write(tmp_path / "rank0.json", text))
    assert timeline.work.start.tolist() == [2500]


@pytest.mark.parametrize("base", [-5, 2**63, "soon", None, [1], 1.5e300])
def test_base_time_that_makes_no_sense_is_noted(tmp_path: Path, base: object) -> None:
    timeline = read(write(tmp_path / "rank0.json", [kernel(ts=1.5)], baseTimeNanoseconds=base))
    assert timeline.work.start.tolist() == [1500]
    assert [note.severity for note in timeline.notes if note.code == "base-time-unreadable"] == ["warning"]

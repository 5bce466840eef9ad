"""The table of spans: sorted, selected without copies where that is possible, and shown as a DataFrame."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from densing.efficiency.timeline.timeline import Kind, Lane, RankTimeline, Spans, Timeline


def test_spans_are_sorted_and_cost_no_memory_for_columns_nobody_gave():
    spans = Spans.columns({"start": [5, 1, 1], "end": [6, 2, 9], "kind": [0, 0, 1], "name": [0, 0, 0]}, ["x"])
    assert spans.start.tolist() == [1, 1, 5] and spans.end.tolist() == [9, 2, 6]
    assert set(spans.bytes.tolist()) == {-1}


@given(st.lists(st.booleans(), min_size=1, max_size=20))
def test_a_selection_is_the_same_whether_copied_or_seen(mask: list[bool]) -> None:
    table = Spans.columns({"start": range(len(mask)), "end": range(1, len(mask) + 1), "kind": [0] * len(mask),
                           "name": [0] * len(mask)}, ("a",))  # fmt: skip
    chosen, rows = table.take(np.array(mask)), np.flatnonzero(mask)
    for key in ("start", "end", "kind", "name", "lane", "bytes", "correlation", "comm"):
        assert getattr(chosen, key).tolist() == getattr(table, key)[rows].tolist()
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        assert np.shares_memory(chosen.start, table.start)


def test_a_timeline_is_one_table_of_spans():
    lane = Lane("GPU 0", "stream 7")
    work = Spans.build([{"start": 0, "end": 5, "kind": Kind.MEMCPY, "name": "copy", "lane": lane, "bytes": 64}])
    table = Timeline((RankTimeline(0, work, Spans.empty()), RankTimeline(1, work, Spans.empty()))).table()
    assert table["rank"].tolist() == [0, 1]
    assert table.loc[0, ["kind", "process", "stream", "bytes"]].tolist() == ["memcpy", "GPU 0", "stream 7", 64]

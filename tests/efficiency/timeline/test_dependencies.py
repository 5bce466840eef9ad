"""A rank's dependencies condensed: replayed with nothing changed they give every recorded time."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings

from densing.efficiency.profile.replay import Change, Replay
from densing.efficiency.timeline import dependencies as module
from densing.efficiency.timeline.critical import graph
from densing.efficiency.timeline.dependencies import CLASSES, Dependencies, Row, Spent, condense, fuse
from densing.efficiency.timeline.overlap import select
from densing.efficiency.timeline.timeline import Kind, RankTimeline, Spans, Step
from tests.support.programs import anything, call, machines, node
from tests.support.spans import mixed_rank


def condensed(rank: RankTimeline, window: str | None = None) -> Dependencies:
    chosen = select(rank, window)  # type: ignore[arg-type]
    return condense(rank, chosen, graph(rank, chosen))


def replayed(rows: Dependencies) -> Replay:
    return Replay({0: rows})


def exact(rows: Dependencies) -> None:
    replay = replayed(rows)
    assert replay.moments[replay.head :].tolist() == rows.at_ns.tolist()
    for name in ("before", "other", "base"):
        edge = getattr(rows, name)
        assert np.all(edge < np.arange(len(rows)))


@given(machines())
@settings(max_examples=60)
def test_a_program_is_replayed_as_it_ran(machine) -> None:  # type: ignore[no-untyped-def]
    exact(condensed(machine.rank()))


@given(anything())
@settings(max_examples=60)
def test_any_trace_is_replayed_as_recorded(rank: RankTimeline) -> None:
    exact(condensed(rank))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("window", ["steps", "all", "hta"])
def test_every_window_is_replayed_as_recorded(seed: int, window: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = mixed_rank(seed)
    rows = condensed(rank, window)
    exact(rows)
    again = Dependencies.from_dict(json.loads(json.dumps(rows.to_dict())))
    assert all(np.array_equal(getattr(again, name), getattr(rows, name)) for name in rows.__struct_fields__)
    # In parts of three spans there are more rows, and every gain is as before.
    whole = replayed(rows)
    monkeypatch.setattr(module, "PART", 3)
    parts = condensed(rank, window)
    exact(parts)
    for name in CLASSES[:2]:
        change = Change(without=(name,))
        assert replayed(parts).run_ns(change) == pytest.approx(whole.run_ns(change), rel=0.05)


def test_a_stretch_knows_its_kinds_of_time() -> None:
    """Two kernels behind one launch each, a copy, and a long pause of the host before the last kernel."""
    work = [node(10, 30, correlation=0), node(32, 50, correlation=1), node(50, 56, Kind.MEMCPY, correlation=2),
            node(1200, 1250, correlation=3)]  # fmt: skip
    host = [call(2 * n, 2 * n + 1, correlation=n) for n in range(3)] + [call(1190, 1191, correlation=3)]
    rank = RankTimeline(0, Spans.build(work), Spans.build(host), (Step(1, 0, 1250),))
    rows = condensed(rank)
    exact(rows)
    assert rows.spent_ns[rows.kind == Row.WORK].sum(axis=0)[[Spent.COMPUTE, Spent.MEMCPY]].tolist() == [88, 6]
    stall = rows.called_ns[:, Spent.STALL]
    assert stall.max() == 1190 - 5 and (stall > 0).sum() == 1
    replay = replayed(rows)
    gain = {name: 1250 - replay.run_ns(Change(without=(name,))) for name in CLASSES}
    # Without the pause the kernel follows the copy, behind the median pause of its stream.
    assert gain["stall"] == 1250 - (56 + 1 + 50) and gain["memcpy"] == gain["loading"] == 0


def test_the_first_steps_are_a_whole_of_their_own() -> None:
    rank = mixed_rank(3)
    rows = condensed(rank, "steps")
    assert rows.steps > 1
    first = rows.head(1)
    exact(first)
    assert first.steps == 1 and first.end_ns < rows.end_ns and len(first) < len(rows)
    assert len(rows.head(0)) == 0 and rows.head(rows.steps) is rows


@pytest.mark.parametrize("correlations", [(0, 1, 2, 3), (0, 1, 1, 3)])
def test_fused_kernels_make_one_launch_and_a_call_that_launched_others_stays(correlations: tuple[int, ...]) -> None:
    """The host launches every 10 ns; a graph's call launched the second kernel and the third one."""
    work = [node(10 * n + 8, 10 * n + 10, correlation=at) for n, at in enumerate(correlations)]
    host = [call(10 * n, 10 * n + 5, correlation=n) for n in range(4)]
    rank = RankTimeline(0, Spans.build(work), Spans.build(host))
    window = select(rank)
    edges = graph(rank, window)
    found = fuse(rank, window, edges, work[0]["name"])
    assert (found.kernels, found.launches) == (4, 1)
    # Four kernels of 2 ns behind the first launch, which takes effect 8 ns after it; the window begins there.
    assert replayed(found.rows).run_ns() == 8
    assert np.array_equal(found.rows.at_ns, condense(rank, window, edges).at_ns)
    assert fuse(rank, window, edges, "other").kernels == 0
    # Another kernel behind them is launched sooner by the calls that are not made.
    later = RankTimeline(0, Spans.build([*work, node(148, 150, correlation=9) | {"name": "other"}]),
                         Spans.build([*host, call(140, 145, correlation=9)]))  # fmt: skip
    window = select(later)
    rows = fuse(later, window, graph(later, window), work[0]["name"]).rows
    assert replayed(rows).run_ns() == 142 - (30 if len(set(correlations)) == 4 else 20)

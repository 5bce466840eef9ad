"""Critical path over ranks: simulated runs whose longest path is found again by brute force."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from densing.efficiency.profile.alignment import Clocks, match_collectives
from densing.efficiency.profile.critical import (
    RankCollectives,
    RunPath,
    blocking,
    local_of,
    run_critical_path,
    run_path,
)
from densing.efficiency.profile.rank import profile_timeline
from densing.efficiency.timeline.critical import critical_path
from densing.efficiency.timeline.overlap import select
from densing.efficiency.timeline.timeline import Comm, Kind, Lane, RankTimeline, Spans, Step
from tests.support import folders


def compute(rank, start, end):
    return {"compute": end - start}


def columns(rows, start, end):
    key, begins, ends = (
        (np.array(column, np.int64) for column in zip(*rows, strict=True)) if rows else [np.zeros(0, int)] * 3
    )
    return RankCollectives(start, end, key, begins, ends)


def simulate(ranks, collectives, tails):
    """Run it: each collective has members, a local time before it on each, and a transfer time."""
    now, rows = dict.fromkeys(range(ranks), 0), {rank: [] for rank in range(ranks)}
    for key, (members, before, transfer) in enumerate(collectives):
        begins = {rank: now[rank] + before[rank] for rank in members}
        end = max(begins.values()) + transfer
        for rank in members:
            rows[rank].append((key, begins[rank], end))
            now[rank] = end
    return {rank: columns(rows[rank], 0, now[rank] + tails[rank]) for rank in range(ranks)}


def longest(ranks, collectives, tails):
    """All longest chains of (what, who, length), brute force over the explicit graph from the start."""
    best = {rank: [(0, [])] for rank in range(ranks)}
    for key, (members, before, transfer) in enumerate(collectives):
        arrivals = [(length + before[rank], [*path, ("own", rank, before[rank])])
                    for rank in members for length, path in best[rank]]  # fmt: skip
        top = max(length for length, _ in arrivals)
        chosen = [(top + transfer, [*path, ("move", key, transfer)]) for length, path in arrivals if length == top]
        best |= dict.fromkeys(members, chosen)
    ends = [(length + tails[rank], [*path, ("own", rank, tails[rank])]) for rank in best for length, path in best[rank]]
    top = max(length for length, _ in ends)
    return [path for length, path in ends if length == top]


@st.composite
def runs(draw):
    ranks = draw(st.integers(1, 4))
    times = st.integers(1, 1000)
    collectives = []
    for _ in range(draw(st.integers(0, 6))):
        members = draw(st.sets(st.integers(0, ranks - 1), min_size=min(2, ranks), max_size=ranks))
        collectives.append((sorted(members), {rank: draw(times) for rank in members}, draw(times)))
    return ranks, collectives, [draw(times) for _ in range(ranks)]


@given(runs())
def test_the_path_is_the_longest_chain(run):
    ranks = run[0]
    paths = longest(*run)
    assume(len(paths) == 1 and ranks > 1)
    found = run_critical_path(simulate(*run), compute)
    own = {rank: sum(ns for what, who, ns in paths[0] if what == "own" and who == rank) for rank in range(ranks)}
    assert {rank: row.get("compute", 0) for rank, row in found.totals.items() if row.get("compute")} == {
        rank: ns for rank, ns in own.items() if ns
    }
    assert [turn.key for turn in found.turns] == [who for what, who, _ in paths[0] if what == "move"]
    assert found.by_kind.get("communication", 0) == sum(ns for what, _, ns in paths[0] if what == "move")
    assert found.start_ns == 0 and sum(found.by_kind.values()) == found.end_ns == sum(found.by_rank.values())
    assert found.stretch_start_ns[1:] == found.stretch_end_ns[:-1]
    assert RunPath.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_a_straggler_and_what_it_costs():
    # Rank 2 needs 90 where the others need 50; three collectives of 10.
    collectives = [([0, 1, 2], {0: 50, 1: 50, 2: 90}, 10)] * 3
    path = run_critical_path(simulate(3, collectives, [1, 2, 3]), compute)
    assert path.totals == {2: {"communication": 30, "compute": 273}}
    assert path.bound_by == (2, "compute")
    assert [(turn.last_rank, turn.transfer_ns, turn.waited_ns) for turn in path.turns] == [(2, 10, 0)] * 3
    path = run_critical_path(simulate(3, collectives, [9, 2, 3]), compute)
    assert path.totals[0] == {"compute": 9, "communication": 10} and path.turns[-1].waited_ns == 40


def test_a_hidden_collective_does_not_turn_the_path():
    rows = {0: [(0, 10, 50)], 1: [(0, 40, 50)]}
    both = {rank: columns(rows[rank], 0, 100 + 5 * (rank == 0)) for rank in rows}
    assert [turn.last_rank for turn in run_critical_path(both, compute).turns] == [1]
    hidden = {
        rank: RankCollectives(r.start, r.end, r.key, r.begins, r.ends, np.array([False])) for rank, r in both.items()
    }
    path = run_critical_path(hidden, compute)
    assert path.turns == () and path.totals == {0: {"compute": 105}}


@pytest.mark.parametrize(("begin", "waited"), [(19, 0), (20, 20), (30, 10)])
def test_how_long_a_rank_waited_is_told_from_the_windows_start_on(begin: int, waited: int) -> None:
    ranks = {0: columns([(0, begin, 50)], 20, 105), 1: columns([(0, 40, 50)], 20, 100)}
    assert [(turn.last_rank, turn.waited_ns) for turn in run_critical_path(ranks, compute).turns] == [(1, waited)]


def test_unmatched_and_lone_collectives_are_a_ranks_own_time():
    ranks = {0: columns([(-1, 10, 20), (3, 30, 40)], 0, 50), 1: columns([], 0, 45)}
    path = run_critical_path(ranks, compute)
    assert path.totals == {0: {"compute": 50}} and path.turns == ()


def test_no_ranks_no_path():
    path = run_critical_path({}, compute)
    assert path.bound_by is None and path.by_kind == {} and path.start_ns == path.end_ns == 0


def test_what_the_ranks_own_path_leaves_is_idle():
    path = run_critical_path({0: columns([], 5, 50)}, lambda rank, start, end: {"compute": 30, "host": 100})
    assert path.totals == {0: {"compute": 30, "host": 15}}
    path = run_critical_path({0: columns([], 5, 50)}, lambda rank, start, end: {"compute": 30})
    assert path.totals == {0: {"compute": 30, "idle": 15}} and path.bound_by == (0, "compute")


@given(runs(), st.lists(st.integers(-300, 300), min_size=4, max_size=4))
def test_wrong_clocks_bend_the_path_and_never_break_it(run, offsets):
    shifted = {}
    for rank, row in simulate(*run).items():
        shift = offsets[rank]
        shifted[rank] = RankCollectives(
            row.start + shift, row.end + shift, row.key, row.begins + shift, row.ends + shift
        )
    path = run_critical_path(shifted, compute)
    assert sum(path.by_kind.values()) == path.end_ns - path.start_ns >= 0
    assert path.stretch_start_ns[1:] == path.stretch_end_ns[:-1]
    assert all(ns > 0 for row in path.totals.values() for ns in row.values())


def test_a_path_says_how_much_of_the_ranks_time_its_stored_paths_no_longer_list():
    """Two ranks of 2 ms each, from 1 ms on: of 4 ms, 196 and 200 µs make 9.9 %."""
    step = {"start": 1_000_000, "end": 3_000_000}
    ranks = []
    for number, left_out in enumerate((196_000, 200_000)):
        comm = Comm("all_reduce", "0", ranks=(0, 1))
        work = [{**step, "kind": Kind.COMM, "name": "nccl", "comm": comm, "lane": Lane("GPU 0", "20")}]
        marked = RankTimeline(number, Spans.build(work), Spans.empty(), (Step(1, *step.values()),))
        rank = profile_timeline(marked)
        ranks.append(replace(rank, path=replace(rank.path, left_out_ns=left_out)))
    matched = match_collectives({rank.rank: rank.collectives for rank in ranks})
    clocks = Clocks("agree", 0, {0: 0, 1: 0}, {}, {}, {}, {}, ())
    path, [note] = run_path(ranks, matched, clocks)
    assert path is not None and (note.code, note.details) == ("run-path-shortened", {"ns": 396_000})
    assert note.message.startswith("9.9 % of rank time")


def test_clocks_that_contradict_each_other_do_not_lead_in_circles():
    # Each rank seems to arrive at the other's collective after that one is over.
    ranks = {0: columns([(0, 0, 10), (1, 15, 20)], 0, 12), 1: columns([(1, 5, 10), (0, 15, 20)], 0, 11)}
    path = run_critical_path(ranks, compute)
    assert [turn.key for turn in path.turns] == [1, 0] and path.by_kind == {"compute": 12}


def test_own_time_is_split_by_the_ranks_own_path():
    lanes = Lane("GPU 0", "7"), Lane("GPU 0", "20")
    work = Spans.build([
        {"start": 0, "end": 10, "kind": Kind.COMPUTE, "name": "a", "lane": lanes[0]},
        {"start": 10, "end": 30, "kind": Kind.COMM, "name": "nccl", "lane": lanes[0]},
        {"start": 12, "end": 20, "kind": Kind.COMM, "name": "nccl", "lane": lanes[1]},
        {"start": 34, "end": 50, "kind": Kind.MEMCPY, "name": "copy", "lane": lanes[0]}])  # fmt: skip
    rank = RankTimeline(0, work, Spans.empty())
    path = critical_path(rank, select(rank))
    local = local_of({7: path}, {7: 1000})
    for start in range(0, 51):
        for end in range(start, 51):
            wanted = {
                "compute": range(10),
                "communication": range(10, 30),
                "idle": range(30, 34),
                "memcpy": range(34, 50),
            }
            counts = {kind: len(set(moments) & set(range(start, end))) for kind, moments in wanted.items()}
            assert local(7, 1000 + start, 1000 + end) == {kind: ns for kind, ns in counts.items() if ns}
    # The second stream's communication runs meanwhile, yet the first one's is on the path.
    assert blocking(path, np.array([10, 12, 34, 0]), np.array([30, 20, 50, 10])).tolist() == [True, True, False, False]


def test_eight_recorded_ranks_turn_where_the_reference_says():
    """golden/README.md: all wait for rank 7 in collectives 0 to 4, for 5 in 5 and 6, for 4 in 7."""
    with (folders.TRACES / "golden/dlrm_collectives.csv").open() as stream:
        table = [{key: int(row[key]) for key in ("index", "rank", "start_ns", "dur_ns", "transfer_ns")}
                 for row in csv.DictReader(stream)]  # fmt: skip
    begin = min(row["start_ns"] for row in table)
    ranks = {}
    for rank in range(8):
        rows = [(r["index"], r["start_ns"], r["start_ns"] + r["dur_ns"]) for r in table if r["rank"] == rank]
        ranks[rank] = columns(rows, begin, max(row[2] for row in rows))
    path = run_critical_path(ranks, compute)
    assert {turn.key: turn.last_rank for turn in path.turns} == dict.fromkeys(range(5), 7) | {5: 5, 6: 5, 7: 4}
    for turn in path.turns:
        transfer = next(r["transfer_ns"] for r in table if r["index"] == turn.key)
        # Ends agree within 7 µs between ranks.
        assert abs(turn.transfer_ns - transfer) <= 7_000


def test_a_thousand_ranks_are_followed_exactly():
    rng = np.random.default_rng(0)
    ranks, count = 1024, 500
    before = rng.integers(50, 100, (count, ranks))
    ends = np.cumsum(before.max(1) + 10)
    begins = np.concatenate(([0], ends[:-1]))[:, None] + before
    key = np.arange(count)
    table = {rank: RankCollectives(0, int(ends[-1]), key, begins[:, rank], ends) for rank in range(ranks)}
    path = run_critical_path(table, compute)
    assert path.by_kind == {"compute": int(before.max(1).sum()), "communication": 10 * count}


def by_the_clock(rank, start, end):
    """Of every ten nanoseconds four compute and three copy; nothing is known of the others."""
    moments = np.arange(start, end) % 10
    return {"compute": int((moments < 4).sum()), "memcpy": int(((moments >= 4) & (moments < 7)).sum())}


@given(runs())
def test_own_time_is_split_by_kind_and_what_nothing_is_known_of_is_idle(run):
    assume(run[0] > 1)
    found = run_critical_path(simulate(*run), by_the_clock)
    expected = {}
    stretches = zip(found.rank, found.stretch_start_ns, found.stretch_end_ns, found.collective, strict=True)
    for rank, start, end, key in stretches:
        split = {"communication": end - start} if key >= 0 else by_the_clock(rank, start, end)
        split["idle"] = end - start - sum(split.values())
        for kind, ns in split.items():
            expected[rank, kind] = expected.get((rank, kind), 0) + ns
    totals = {(rank, kind): ns for rank, row in found.totals.items() for kind, ns in row.items()}
    assert totals == {cell: ns for cell, ns in expected.items() if ns}


def test_kinds_that_overlap_never_make_own_time_longer():
    ranks = simulate(2, [([0, 1], {0: 30, 1: 50}, 10)], [5, 5])
    found = run_critical_path(ranks, lambda rank, start, end: {"compute": end - start, "memcpy": end - start})
    assert {kind: ns for kind, ns in found.by_kind.items() if ns} == {"compute": 55, "communication": 10}

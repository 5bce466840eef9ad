"""Critical path over ranks: runs whose longest path is found again by brute force."""

from __future__ import annotations

import csv
import json

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from densing.efficiency.profile.alignment import Clocks, match_collectives
from densing.efficiency.profile.critical import RunPath, run_path
from densing.efficiency.profile.rank import profile_timeline
from densing.efficiency.profile.replay import Replay
from densing.efficiency.profile.run import merge_run
from densing.efficiency.timeline.timeline import Comm
from tests.support import folders
from tests.support.collective_runs import rank_of
from tests.support.planted_runs import Planted


def joined(ranks):
    """Profile the ranks together."""
    run = merge_run([profile_timeline(rank) for rank in ranks])
    assert run.together is not None
    return run.together


def replayed(ranks):
    """Replay ranks whose clocks are known to agree."""
    profiles = {rank.rank: profile_timeline(rank) for rank in ranks}
    tables = {number: rank.collectives for number, rank in profiles.items()}
    matched = match_collectives(tables)
    clocks = Clocks("agree", 0, dict.fromkeys(tables, 0), {}, {}, {}, {}, ())
    return Replay({number: rank.dependencies for number, rank in profiles.items()}, tables, matched, clocks), matched


def simulate(ranks, collectives, tails):
    """Run it: each collective has members, a local time before it on each, and a transfer time."""
    now = dict.fromkeys(range(ranks), 0)
    comms, work = ({rank: [] for rank in now} for _ in range(2))
    for key, (members, before, transfer) in enumerate(collectives):
        begins = {rank: now[rank] + before[rank] for rank in members}
        end = max(begins.values()) + transfer
        comm = Comm("all_reduce", f"{members}", "", len(members), tuple(members), seq=key)
        for rank in members:
            work[rank].append((now[rank], begins[rank]))
            comms[rank].append((begins[rank], end, comm))
            now[rank] = end
    for rank, tail in enumerate(tails):
        work[rank].append((now[rank], now[rank] + tail))
    return [rank_of(rank, comms[rank], work[rank], [(1, 0, now[rank] + tails[rank])]) for rank in range(ranks)]


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
    ranks = draw(st.integers(2, 4))
    times = st.integers(1, 1000)
    collectives = []
    for _ in range(draw(st.integers(1, 6))):
        members = draw(st.sets(st.integers(0, ranks - 1), min_size=2, max_size=ranks))
        collectives.append((sorted(members), {rank: draw(times) for rank in members}, draw(times)))
    return ranks, collectives, [draw(times) for _ in range(ranks)]


@given(runs())
@settings(max_examples=40)
def test_the_path_is_the_longest_chain(run):
    ranks = run[0]
    paths = longest(*run)
    assume(len(paths) == 1)
    replay, matched = replayed(simulate(*run))
    found, _ = run_path(replay)
    assert found is not None and replay.fidelity.status == "ok"
    own = {rank: sum(ns for what, who, ns in paths[0] if what == "own" and who == rank) for rank in range(ranks)}
    assert {rank: row.get("compute", 0) for rank, row in found.totals.items() if row.get("compute")} == {
        rank: ns for rank, ns in own.items() if ns
    }
    seq = [int(matched.number[turn.key]) for turn in found.turns]
    assert seq == [who for what, who, _ in paths[0] if what == "move"]
    assert found.by_kind.get("communication", 0) == sum(ns for what, _, ns in paths[0] if what == "move")
    assert found.start_ns == 0 and sum(found.by_kind.values()) == found.end_ns == sum(found.by_rank.values())
    assert found.stretch_start_ns[1:] == found.stretch_end_ns[:-1]
    assert RunPath.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_a_straggler_and_what_it_costs():
    # Rank 2 needs 90 where the others need 50; three collectives of 10.
    collectives = [([0, 1, 2], {0: 50, 1: 50, 2: 90}, 10)] * 3
    path = joined(simulate(3, collectives, [1, 2, 3])).path
    assert path.totals == {2: {"communication": 30, "compute": 273}}
    assert path.bound_by == (2, "compute")
    assert [(turn.last_rank, turn.transfer_ns, turn.waited_ns) for turn in path.turns] == [(2, 10, 0)] * 3
    path = joined(simulate(3, collectives, [9, 2, 3])).path
    assert path.totals[0] == {"compute": 9, "communication": 10} and path.turns[-1].waited_ns == 40


def test_a_hidden_collective_does_not_turn_the_path():
    """Compute that needs none of the communications beside it."""
    ranks = []
    for rank, first in enumerate((10, 40)):
        rows = [(100 * at + first, 100 * at + 50, Comm("all_reduce", "0", ranks=(0, 1), seq=at)) for at in range(4)]
        ranks.append(rank_of(rank, rows, [(0, 400 + 5 * (rank == 0))], [(1, 0, 400 + 5 * (rank == 0))]))
    path = joined(ranks).path
    assert path.turns == () and path.totals == {0: {"compute": 405}}


def test_without_a_common_collective_there_is_no_path_and_a_note_says_so():
    ranks = [rank_of(rank, [(30, 40, Comm("all_reduce", f"{rank}", ranks=(rank,)))], [(0, 30)]) for rank in (0, 1)]
    together = joined(ranks)
    assert together.path is None and any("no communication could be matched" in note.message for note in together.notes)


@given(runs(), st.lists(st.integers(-300, 300), min_size=4, max_size=4))
@settings(max_examples=40)
def test_wrong_clocks_bend_the_path_and_never_break_it(run, offsets):
    """A clock off by as much as collectives last, and by other amounts in each."""
    number, collectives, tails = run
    ranks = []
    for rank in simulate(number, collectives, tails):
        shift = offsets[rank.rank]
        rows = [(int(a) + shift * (at % 2), max(int(b) + shift, int(a) + shift * (at % 2)), rank.work.comms[c])
                for at, (a, b, c) in enumerate(zip(rank.work.start, rank.work.end, rank.work.comm, strict=True))
                if c >= 0]  # fmt: skip
        ranks.append(rank_of(rank.rank, rows, [(0, 40)], [(1, -500, int(rank.work.end.max()) + 500)]))
    together = joined(ranks)
    path = together.path
    assert together.replay.fidelity.status in ("ok", "off")
    if path is not None:
        assert sum(path.by_kind.values()) == path.end_ns - path.start_ns >= 0
        assert path.stretch_start_ns[1:] == path.stretch_end_ns[:-1]
        assert all(ns > 0 for row in path.totals.values() for ns in row.values())


def test_eight_recorded_ranks_turn_where_the_reference_says():
    """golden/README.md: all wait for rank 7 in collectives 0 to 4, for 5 in 5 and 6, for 4 in 7."""
    with (folders.TRACES / "golden/dlrm_collectives.csv").open() as stream:
        table = [{key: int(row[key]) for key in ("index", "rank", "start_ns", "dur_ns", "transfer_ns")}
                 for row in csv.DictReader(stream)]  # fmt: skip
    begin = min(row["start_ns"] for row in table)
    ranks = []
    for rank in range(8):
        rows = [(r["start_ns"], r["start_ns"] + r["dur_ns"], Comm("all_reduce", "0", ranks=tuple(range(8)),
                 seq=r["index"])) for r in table if r["rank"] == rank]  # fmt: skip
        free = [begin, *(end for _, end, _ in rows)]
        work = [(start, row[0]) for start, row in zip(free, rows, strict=False)]
        ranks.append(rank_of(rank, rows, work, [(1, begin, rows[-1][1])]))
    together = joined(ranks)
    path, number = together.path, together.matched.number
    assert {int(number[turn.key]): turn.last_rank for turn in path.turns} == dict.fromkeys(range(5), 7) | {
        5: 5, 6: 5, 7: 4
    }  # fmt: skip
    for turn in path.turns:
        transfer = next(r["transfer_ns"] for r in table if r["index"] == number[turn.key])
        # Ends agree within 7 µs between ranks.
        assert abs(turn.transfer_ns - transfer) <= 7_000


def test_the_path_crosses_more_ranks_than_are_held_in_detail():
    run = Planted(ranks=80, layers=1, slow={70: 1.3})
    path = run.profile().together.path
    assert path.bound_by == (70, "compute") and path.end_ns - path.start_ns == run.length()

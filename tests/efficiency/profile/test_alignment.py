"""Ranks lined up: golden waits, a dictionary as second implementation, odd recordings; known offsets come back."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from densing.efficiency.profile.alignment import (
    Clocks,
    Groups,
    Matched,
    _Difference,
    _joined,
    _median,
    align_clocks,
    match_collectives,
)
from densing.efficiency.profile.waiting import arrivals_of, waits_of
from densing.efficiency.timeline.timeline import Comm
from densing.efficiency.timeline.traffic import OPS, Collectives, Group
from tests.support.collective_runs import DLRM, collected, dlrm_rank, golden, rank_of, world

REDUCE, GATHER = Comm("all_reduce", "0", group_size=2), Comm("all_gather", "0", group_size=2)


def table(rank: int, comms: list[tuple[int, int, Comm]], **more: Any) -> Collectives:
    """Return the collectives of a rank given as (start, end, record)."""
    return collected(rank_of(rank, comms, **more))


def codes(matched: Matched) -> set[str]:
    """Return the codes of the notes."""
    return {note.code for note in matched.notes}


@pytest.fixture(scope="module")
def dlrm() -> Matched:
    """Eight ranks of one step."""
    tables = [collected(dlrm_rank(path)) for path in sorted(DLRM.glob("*.json.gz"))]
    return match_collectives({found.rank: found for found in tables})


def test_golden_waits(dlrm: Matched) -> None:
    clocks = align_clocks(dlrm)
    arrivals = arrivals_of(dlrm, clocks)
    assert arrivals is not None
    columns = ("transfer_ns", "wait_ns", "wait_by_start_ns", "start_after_first_ns", "end_before_last_ns")
    mine = {}
    for rank, found in dlrm.per_rank.items():
        waits = waits_of(dlrm, found, clocks, arrivals)
        assert waits.row.tolist() == list(range(8))
        for at, row in enumerate(waits.matched.tolist()):
            mine[int(waits.row[at]), rank] = (
                int(dlrm.transfer_ns[row]), *(int(getattr(waits, key)[at]) for key in columns[1:]))  # fmt: skip
    theirs = {
        (int(row["index"]), int(row["rank"])): tuple(int(row[key]) for key in columns)
        for row in golden("dlrm_collectives.csv")
    }
    assert mine == theirs


def test_by_step_and_order() -> None:
    first = table(0, [(12, 20, REDUCE), (13, 30, REDUCE), (31, 35, REDUCE)], steps=[(1, 10, 30), (2, 30, 40)])
    other = table(1, [(16, 21, REDUCE), (22, 32, REDUCE), (34, 36, REDUCE)], steps=[(1, 15, 33), (2, 33, 50)])
    matched = match_collectives({0: first, 1: other})
    assert matched.transfer_ns.tolist() == [5, 10, 2]
    assert matched.longest_ns.tolist() == [8, 17, 4]
    assert matched.step.tolist() == [1, 1, 2]
    assert matched.notes == ()


def test_a_recording_that_began_a_step_earlier() -> None:
    long = table(0, [(12, 20, REDUCE), (31, 35, REDUCE)], steps=[(1, 10, 30), (2, 30, 40)])
    short = table(1, [(33, 36, REDUCE)], steps=[(2, 30, 50)])
    matched = match_collectives({0: long, 1: short})
    assert (matched.step.tolist(), matched.transfer_ns.tolist()) == ([2], [3])
    assert codes(matched) == {"collective-unmatched"}


def test_sequence_numbers_win_over_order() -> None:
    def numbered(*numbers: int) -> list[tuple[int, int, Comm]]:
        return [(10 * n, 10 * n + n, REDUCE._replace(seq=n)) for n in numbers]

    matched = match_collectives({0: table(0, numbered(1, 2, 3)), 1: table(1, numbered(2, 3, 4))})
    assert matched.number.tolist() == [2, 3] and matched.by_seq.tolist() == [1, 1]
    coalesced = [(0, 5, REDUCE._replace(seq=7)), (5, 9, REDUCE._replace(seq=7))]
    matched = match_collectives({0: table(0, coalesced), 1: table(1, coalesced)})
    assert matched.order.tolist() == [0, 1]


def test_one_number_two_operations_is_a_note() -> None:
    matched = match_collectives(
        {0: table(0, [(0, 5, REDUCE._replace(seq=7))]), 1: table(1, [(0, 5, GATHER._replace(seq=7))])}
    )
    assert len(matched) == 0 and codes(matched) == {"collective-mismatch"}


def test_two_sizes_of_one_all_reduce_are_a_note() -> None:
    a, b = (REDUCE._replace(in_elems=n, dtype="float") for n in (4, 8))
    assert codes(match_collectives({0: table(0, [(0, 5, a)]), 1: table(1, [(0, 5, b)])})) == {"collective-mismatch"}
    uneven = [Comm("all_to_all", "0", in_elems=n, dtype="float") for n in (4, 8)]
    matched = match_collectives({rank: table(rank, [(0, 5, uneven[rank])]) for rank in (0, 1)})
    assert matched.bytes.tolist() == [32] and matched.notes == ()


def test_a_missing_communication_leaves_its_step_out() -> None:
    steps = [(1, 0, 20), (2, 20, 40)]
    whole = table(0, [(1, 5, REDUCE), (6, 9, REDUCE), (11, 12, GATHER), (21, 25, REDUCE)], steps=steps)
    lacking = table(1, [(6, 9, REDUCE), (11, 13, GATHER), (21, 23, REDUCE)], steps=steps)
    matched = match_collectives({0: whole, 1: lacking})
    found = {
        (OPS[op], step): least for op, step, least in zip(matched.op, matched.step, matched.transfer_ns, strict=True)
    }
    assert found == {("all_gather", 1): 1, ("all_reduce", 2): 2}
    [note] = matched.notes
    assert note.code == "collective-counts-differ" and "2 on rank 0, 1 on rank 1" in note.message


def test_groups_with_one_name_and_other_members_stay_apart() -> None:
    def half(rank: int, members: tuple[int, ...]) -> Collectives:
        return table(rank, [(0, 10 + rank, Comm("all_reduce", "tp", group_size=2, ranks=members))])

    pairs = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}
    matched = match_collectives({rank: half(rank, members) for rank, members in pairs.items()})
    assert matched.transfer_ns.tolist() == [10, 12] and matched.n_ranks.tolist() == [2, 2]


def test_a_member_that_lacks_one_is_a_note() -> None:
    def member(rank: int, seqs: tuple[int, ...]) -> Collectives:
        records = [Comm("all_reduce", "0", ranks=(0, 1, 2), seq=seq) for seq in seqs]
        return table(rank, [(10 * n, 10 * n + 5, record) for n, record in enumerate(records)])

    matched = match_collectives({0: member(0, (1, 2)), 1: member(1, (1, 2)), 2: member(2, (1,))})
    assert matched.n_ranks.tolist() == [3, 2] and codes(matched) == {"collective-partial"}
    matched = match_collectives({0: member(0, (1, 2)), 1: member(1, (1, 2))})
    assert codes(matched) == set()


def test_sends_pair_with_receives() -> None:
    first = table(
        0, [(0, 9, Comm("send", "0", dst=1)), (10, 12, Comm("send", "0", dst=2)), (20, 30, Comm("send", "0", dst=1))]
    )
    second = table(1, [(7, 9, Comm("recv", "0", src=0)), (25, 31, Comm("recv", "0", src=0))])
    third = table(2, [(11, 14, Comm("recv", "0", src=0))])
    matched = match_collectives({0: first, 1: second, 2: third})
    columns = zip(matched.group, matched.order, matched.transfer_ns, strict=True)
    found = {(matched.groups[group].ranks, order): least for group, order, least in columns}
    assert found == {((0, 1), 0): 2, ((0, 1), 1): 6, ((0, 2), 0): 2}
    assert {OPS[op] for op in matched.op} == {"send"}


def test_point_to_point_without_peers_is_not_guessed() -> None:
    lonely = [(0, 5, Comm("send_recv", "0")), (6, 9, Comm("send", "0"))]
    matched = match_collectives({0: table(0, lonely), 1: table(1, lonely)})
    assert len(matched) == 0 and codes(matched) == {"point-to-point-unmatched"}


def test_groups_the_trace_does_not_name_are_assumed_shared_and_said_so() -> None:
    silent = Comm("all_reduce")
    tables = {
        rank: table(rank, [(0, 5, silent), (6, 9, silent)], lanes=[str(20 + rank), str(90 - rank)]) for rank in (0, 1)
    }
    matched = match_collectives(tables)
    assert matched.n_ranks.tolist() == [2, 2] and codes(matched) == {"group-assumed"}
    named = {rank: table(rank, [(0, 5, silent)], origin=world(2)) for rank in (0, 1)}
    assert codes(match_collectives(named)) == set()


def test_a_nameless_group_with_one_contradiction_is_not_shared() -> None:
    a, b = (Comm("all_reduce", in_elems=n, dtype="float") for n in (4, 8))
    tables = {0: table(0, [(0, 5, a), (6, 9, b)]), 1: table(1, [(0, 5, b), (6, 9, b)])}
    matched = match_collectives(tables)
    assert len(matched) == 0 and codes(matched) == {"collective-mismatch"}


def test_one_rank_says_why_nothing_is_matched() -> None:
    assert codes(match_collectives({3: table(3, [(0, 5, REDUCE)])})) == {"one-rank"}
    assert len(match_collectives({})) == 0


records = st.tuples(
    st.sampled_from(["all_reduce", "all_gather", "all_to_all", ""]),
    st.sampled_from(["0", "1"]),
    st.sampled_from([-1, -1, 0, 1]),
    st.integers(0, 30),
    st.integers(0, 9),
)


@given(st.lists(st.lists(records, max_size=6), min_size=1, max_size=4))
def test_agrees_with_a_dictionary(run: list[list[tuple[str, str, int, int, int]]]) -> None:
    tables, seen, counts = {}, defaultdict(dict), defaultdict(dict)
    for rank, rows in enumerate(run):
        rows = sorted(rows, key=lambda row: (row[3], -row[4]))
        found = table(rank, [(at, at + length, Comm(op, group, seq=seq)) for op, group, seq, at, length in rows])
        tables[rank] = found
        taken: dict[Any, int] = defaultdict(int)
        for op, group, seq, _, length in rows:
            key = (group, "seq", seq) if seq >= 0 else (group, op, -1)
            number = taken[key]
            taken[key] += 1
            seen[*key, number][rank] = (length, op)
        for key, count in taken.items():
            if key[1] != "seq":
                counts[key][rank] = count
    bad = {key for key, by_rank in counts.items() if len(set(by_rank.values())) > 1}
    expected = sorted(
        (min(length for length, _ in by_rank.values()), max(length for length, _ in by_rank.values()), len(by_rank))
        for key, by_rank in seen.items()
        if len(by_rank) > 1 and key[:3] not in bad and len({op for _, op in by_rank.values()} - {""}) < 2
    )
    matched = match_collectives(tables)
    columns = (matched.transfer_ns, matched.longest_ns, matched.n_ranks)
    assert sorted(zip(*(column.tolist() for column in columns), strict=True)) == expected


class Lazy(Mapping[int, Collectives]):
    """Ranks made when asked for; at most one is alive."""

    def __init__(self, ranks: int, count: int) -> None:
        self.ranks, self.count, self.reads = ranks, count, 0
        comms = [(100 * n, 100 * n + 50, Comm("all_reduce", "0", in_elems=4, dtype="float")) for n in range(count)]
        self.base = table(0, comms)

    def __getitem__(self, rank: int) -> Collectives:
        self.reads += 1
        late = np.int64(rank % 7)
        return replace(self.base, rank=rank, start_ns=self.base.start_ns + late)

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.ranks))

    def __len__(self) -> int:
        return self.ranks


def test_ranks_are_read_one_at_a_time() -> None:
    lazy = Lazy(40, 30)
    matched = match_collectives(lazy)
    assert lazy.reads == 40
    assert matched.n_ranks.tolist() == [40] * 30 and set(matched.transfer_ns.tolist()) == {44}


TRANSFER = 20_000
Tables = dict[int, Collectives]


def recorded(
    offsets: list[int], n: int = 40, noise: int = 0, drift_ppm: float = 0, op: str = "all_reduce", seed: int = 0
) -> Tables:
    """Record collectives, one per millisecond; each rank's clock shows its offset, drift and noise."""
    random = np.random.default_rng(seed)
    tables = {}
    starts = 1_000_000 * np.arange(n)[:, None] + random.integers(0, 300_000, (n, len(offsets)))
    ends = starts.max(axis=1) + TRANSFER
    for rank, offset in enumerate(offsets):
        wobble = random.integers(-noise, noise + 1, n) if rank else np.zeros(n, np.int64)
        shift = offset + (ends * drift_ppm * 1e-6 * (rank > 0)).astype(np.int64)
        comms = [
            (int(start), int(end), Comm(op, "0", seq=at))
            for at, (start, end) in enumerate(zip(starts[:, rank] + shift, ends + shift + wobble, strict=True))
        ]
        tables[rank] = collected(rank_of(rank, comms))
    return tables


@given(st.lists(st.integers(-(10**18), 10**18), min_size=1, max_size=5))
@settings(max_examples=30)
def test_known_offsets_come_back_exactly(offsets: list[int]) -> None:
    clocks = align_clocks(match_collectives(recorded([0, *offsets], n=5)))
    assert clocks.verdict == ("aligned" if any(offsets) else "agree")
    assert clocks.offset_ns == dict(enumerate([0, *offsets]))
    assert set(clocks.residual_ns.values()) == {0}
    plain = json.loads(json.dumps(clocks.to_dict()))
    assert Clocks.from_dict(plain) == clocks


def test_noise_is_the_residual_and_not_the_offset() -> None:
    clocks = align_clocks(match_collectives(recorded([0, 500_000, -300_000], n=200, noise=4_000)))
    assert clocks.verdict == "aligned" and clocks.comparable
    # The median of n uniform values in ±a has standard deviation a/√n; their median distance is a/2.
    for rank, offset in ((1, 500_000), (2, -300_000)):
        assert abs(clocks.offset_ns[rank] - offset) < 4 * 4_000 / np.sqrt(200)
        assert clocks.residual_ns[rank] == pytest.approx(2_000, rel=0.25)
        assert clocks.n[rank] == 200


def test_drift_shows_in_the_residual() -> None:
    clocks = align_clocks(match_collectives(recorded([0, 0], n=100, drift_ppm=100)))
    # 100 ppm over 100 ms is 10 µs from end to end: the middle of it, and a quarter of it as median distance.
    assert clocks.measured_ns[1] == pytest.approx(5_000, rel=0.05)
    assert clocks.residual_ns[1] == pytest.approx(2_500, rel=0.05)


def test_offsets_within_the_noise_are_left_alone() -> None:
    clocks = align_clocks(match_collectives(recorded([0, 500], n=100, noise=2_000)))
    assert clocks.verdict == "agree" and set(clocks.offset_ns.values()) == {0}
    assert clocks.measured_ns[1] != 0


def test_too_few_and_too_noisy_are_not_aligned() -> None:
    few = align_clocks(match_collectives(recorded([0, 10**6], n=2)))
    assert few.verdict == "not aligned" and not few.comparable
    alone = (
        "clocks are not aligned: rank 1 shares 2 of the 3 collectives needed; waits are inferred from durations only"
    )
    assert few.notes[0].message == alone
    more = align_clocks(match_collectives(recorded([0, 10**6, 5], n=2))).notes[0].message
    assert more == alone.replace("needed;", "needed (and 1 more);")
    noisy = match_collectives(recorded([0, 10**6], n=50, noise=100_000))
    assert align_clocks(noisy).verdict == "not aligned"
    assert set(align_clocks(noisy).offset_ns.values()) == {0}
    assert arrivals_of(noisy, align_clocks(noisy)) is None


def test_a_broadcast_tells_nothing_of_clocks() -> None:
    clocks = align_clocks(match_collectives(recorded([0, 10**6], op="broadcast")))
    assert clocks.verdict == "not aligned" and "shares no collective" in clocks.notes[0].message


def test_ranks_join_through_others() -> None:
    """Ranks 0 and 3 share no group; 0–1, 1–2 and 2–3 do."""
    offsets = [0, 1_000_000, 5_000_000, -2_000_000]
    comms: dict[int, list[tuple[int, int, Comm]]] = {rank: [] for rank in range(4)}
    for group, pair in enumerate([(2, 3), (0, 1), (1, 2)]):
        for at in range(4):
            end = 10_000_000 * at + 1_000_000 * group + TRANSFER
            record = Comm("all_gather", str(group), ranks=pair, seq=at)
            for rank in pair:
                comms[rank].append((end - TRANSFER + offsets[rank], end + offsets[rank], record))
    tables = {rank: collected(rank_of(rank, rows)) for rank, rows in comms.items()}
    assert align_clocks(match_collectives(tables)).offset_ns == dict(enumerate(offsets))
    backwards = {rank: tables[rank] for rank in (3, 1, 0, 2)}
    assert align_clocks(match_collectives(backwards)).offset_ns == dict(enumerate(offsets))
    islands = {
        rank: collected(rank_of(rank, [row for row in rows if row[2].group != "2"])) for rank, rows in comms.items()
    }
    assert align_clocks(match_collectives(islands)).verdict == "not aligned"


def test_starts_are_compared_on_the_common_clock() -> None:
    plain = match_collectives(recorded([0, 0, 0]))
    shifted = match_collectives(recorded([0, 700_000, -900_000]))
    reference, moved = (arrivals_of(matched, align_clocks(matched)) for matched in (plain, shifted))
    assert reference is not None and moved is not None
    for field in dataclasses.fields(reference):
        assert getattr(moved, field.name).tolist() == getattr(reference, field.name).tolist()


def test_one_rank_has_one_clock() -> None:
    assert align_clocks(match_collectives(recorded([0]))).verdict == "one rank"


def test_ranks_of_one_host_agree() -> None:
    """README of the golden traces: the eight ranks end each collective within 7 µs of each other."""
    tables = [collected(dlrm_rank(path)) for path in sorted(Path(DLRM).glob("*.json.gz"))]
    clocks = align_clocks(match_collectives({table.rank: table for table in tables}))
    assert clocks.verdict == "agree"
    assert max(map(abs, clocks.measured_ns.values())) <= 7_000 and max(clocks.residual_ns.values()) <= 7_000


@pytest.mark.parametrize(
    ("values", "middle"), [([5], 5), ([1, 4], 2), ([9, 1, 4], 4), ([10, 1, 4, 7], 5), ([-3, -2], -3)]
)
def test_medians_are_whole_nanoseconds(values: list[int], middle: int) -> None:
    assert _median(np.array(values)) == middle
    assert _median(10**18 + np.array(values)) == 10**18 + middle


def clock_of(rank: int, ends: list[int]) -> Collectives:
    return table(rank, [(end - 100, end, Comm("all_reduce", "0", seq=at)) for at, end in enumerate(ends)])


def test_offset_residual_and_bound_by_hand() -> None:
    """Nine collectives; the other clock is 1000 ahead, and as much off in each as said."""
    off = [0, 1, -2, 3, -4, 5, -6, 7, -8]
    ends = [10_000 * at for at in range(1, 10)]
    matched = match_collectives(
        {0: clock_of(0, ends), 1: clock_of(1, [e + 1000 + o for e, o in zip(ends, off, strict=True)])}
    )
    clocks = align_clocks(matched)
    assert clocks.measured_ns == {0: 0, 1: 1000} and clocks.n == {0: 0, 1: 9}
    # Distances 0 to 8: their median is 4, and of nine the eighth is above it with 97.5 %.
    assert clocks.residual_ns == {0: 0, 1: 4} and clocks.bound_ns == {0: 0, 1: 7}
    assert clocks.verdict == "aligned" and clocks.reference == 0
    # The other way round the sign turns.
    backwards = match_collectives({rank: matched.per_rank[rank] for rank in (1, 0)})
    assert align_clocks(backwards).measured_ns == clocks.measured_ns
    worst = clocks.against(1)
    assert worst.offset_ns == {0: 0, 1: 1007} and clocks.against(0).offset_ns == {0: 0, 1: 993}


@pytest.mark.parametrize(("offset", "verdict"), [(3, "agree"), (-3, "agree"), (4, "aligned"), (-4, "aligned")])
def test_clocks_agree_within_three_residuals(offset: int, verdict: str) -> None:
    ends = [1000 * at for at in range(1, 6)]
    other = [end + offset + wobble for end, wobble in zip(ends, (0, 1, -1, 1, -1), strict=True)]
    clocks = align_clocks(match_collectives({0: clock_of(0, ends), 1: clock_of(1, other)}))
    assert (clocks.verdict, clocks.residual_ns[1]) == (verdict, 1)
    # Offsets that are left in are part of how far times may be off.
    assert clocks.bound_ns[1] == 1 + (3 if verdict == "agree" else 0)
    assert clocks.offset_ns[1] == (offset if verdict == "aligned" else 0)


@pytest.mark.parametrize(
    ("count", "spread", "verdict"),
    [(3, 0, "aligned"), (2, 0, "not aligned"), (5, 100, "aligned"), (5, 101, "not aligned")],
)
def test_clocks_are_aligned_by_three_collectives_and_less_spread_than_a_transfer(
    count: int, spread: int, verdict: str
) -> None:
    ends = [10_000 * at for at in range(1, count + 1)]
    wobble = [0, spread, -spread, spread, -spread][:count]
    other = [end + 5000 + each for end, each in zip(ends, wobble, strict=True)]
    clocks = align_clocks(match_collectives({0: clock_of(0, ends), 1: clock_of(1, other)}))
    assert clocks.verdict == verdict
    if spread == 101:
        assert (
            "rank 1 is uncertain by 101 ns, half of the collectives are shorter than 100 ns" in clocks.notes[0].message
        )


def test_the_way_of_the_smallest_residuals_is_taken() -> None:
    link = _Difference
    links = {
        0: {1: link(10, 5, 9, 7), 2: link(50, 1, 4, 2)},
        2: {0: link(-50, 1, 4, 2), 1: link(-41, 2, 6, 3)},
        1: {0: link(-10, 5, 9, 7), 2: link(41, 2, 6, 3)},
    }
    found = _joined(0, links)
    assert found == {0: link(0, 0, 0, 0), 2: link(50, 1, 4, 2), 1: link(9, 3, 4, 5)}
    assert set(_joined(3, links)) == {3}


def test_groups_are_numbered_by_name_and_members_or_size_or_stream() -> None:
    groups = Groups()
    same = groups.number(Group("tp", "7", 2, (0, 1)))
    assert groups.number(Group("tp", "9", 2, (0, 1))) == same
    others = {groups.number(Group("tp", "7", 2, (2, 3))), groups.number(Group("tp", "7", 4)),
              groups.number(Group("tp", "7", 2)),
              groups.number(Group("", "7", 2)), groups.number(Group("", "8", 2)), groups.pair(Group("tp"), 0, 1),
              groups.pair(Group("tp"), 1, 0)}  # fmt: skip
    assert len(others | {same}) == 8 == len(groups.groups)
    assert groups.pair(Group("tp", "x"), 0, 1) == next(n for n, g in enumerate(groups.groups) if g.label == "0->1")
    assert groups.groups[groups.pair(Group("tp"), 1, 0)] == Group("tp", "1->0", 2, (1, 0))


def test_what_is_left_of_a_match_is_found_under_its_new_number() -> None:
    matched = match_collectives({rank: clock_of(rank, [1000, 2000 + rank, 3000, 4000 + rank]) for rank in (0, 1)})
    kept = matched.take(np.array([False, True, False, True]))
    assert kept.number.tolist() == [1, 3] and len(kept) == 2
    own, rows = kept.rows_of(matched.per_rank[1])
    assert (own.tolist(), rows.tolist()) == ([1, 3], [0, 1])


@given(st.lists(st.lists(st.integers(1, 99), min_size=4, max_size=4), min_size=2, max_size=5))
def test_the_two_shortest_and_the_longest_are_those_of_all_ranks(durations: list[list[int]]) -> None:
    tables = {
        rank: table(
            rank, [(1000 * at, 1000 * at + took, Comm("all_reduce", "0", seq=at)) for at, took in enumerate(row)]
        )
        for rank, row in enumerate(durations)
    }
    matched, columns = match_collectives(tables), np.sort(np.array(durations), axis=0)
    assert matched.transfer_ns.tolist() == columns[0].tolist() and matched.second_ns.tolist() == columns[1].tolist()
    assert matched.longest_ns.tolist() == columns[-1].tolist()
    assert matched.shortest_rank.tolist() == np.array(durations).argmin(axis=0).tolist()

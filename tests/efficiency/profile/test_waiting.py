"""Who waits for whom: golden rows, runs with a known straggler, and runs without one."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from scipy.stats import binom

from densing.efficiency.profile.alignment import align_clocks, match_collectives
from densing.efficiency.profile.waiting import (
    Stragglers,
    _chance,
    _reach,
    _us,
    arrivals_of,
    find_stragglers,
    waiting_of,
)
from densing.efficiency.timeline.timeline import Comm
from densing.efficiency.timeline.traffic import Collectives
from tests.support.budget import FULL
from tests.support.collective_runs import DLRM, collected, dlrm_rank, golden, rank_of


def found_in(tables: dict[int, Collectives]) -> Stragglers:
    """Match, align and find."""
    matched = match_collectives(tables)
    return find_stragglers(matched, align_clocks(matched))


def run(lateness: Any, transfer: int = 50_000, op: str = "all_reduce") -> dict[int, Collectives]:
    """One collective per step of a millisecond; ``lateness`` (steps, ranks) is each rank's start after 100 µs."""
    late = np.asarray(lateness)
    begins = 1_000_000 * np.arange(len(late))
    ends = begins + 100_000 + late.max(axis=1) + transfer
    tables = {}
    for rank in range(late.shape[1]):
        starts = begins + 100_000 + late[:, rank]
        comms = [(int(a), int(b), Comm(op, "0")) for a, b in zip(starts, ends, strict=True)]
        steps = [(number, int(begin), int(begin) + 1_000_000) for number, begin in enumerate(begins)]
        tables[rank] = collected(rank_of(rank, comms, steps=steps))
    return tables


def test_golden_stragglers() -> None:
    """README of the golden traces: rank 7 in 0–4, 5 in 5 and 6, 4 in 7; waits of 1.5 ms on rank 7, 11.1 on rank 1."""
    tables = [collected(dlrm_rank(path)) for path in sorted(DLRM.glob("*.json.gz"))]
    found = found_in({table.rank: table for table in tables})
    assert found.method == "starts" and found.worst == 7
    assert [late.rank for late in found.late] == [7, 7, 7, 7, 7, 5, 5, 4]
    rows = golden("dlrm_collectives.csv")
    for rank in found.ranks:
        own = [row for row in rows if int(row["rank"]) == rank.rank]
        assert rank.suffered_ns == sum(int(row["wait_ns"]) for row in own)
        assert rank.suffered_by_start_ns == sum(int(row["wait_by_start_ns"]) for row in own)
    suffered = {rank.rank: round(rank.suffered_ns / 1e6, 1) for rank in found.ranks}
    assert (suffered[7], suffered[1]) == (1.5, 11.1)
    assert sum(rank.caused_ns for rank in found.ranks) == sum(int(row["wait_by_start_ns"]) for row in rows)


def test_a_rank_that_is_always_late() -> None:
    late = np.zeros((10, 4), int)
    late[:, 2] = 30_000
    late[:, 1] = 10_000
    found = found_in(run(late))
    first = found.ranks[0]
    assert (found.worst, found.led, found.of) == (2, 10, 10)
    assert (first.rank, first.times_last, first.caused_ns, first.alone_ns) == (2, 10, 10 * 80_000, 10 * 20_000)
    assert {rank.rank: rank.suffered_ns for rank in found.ranks} == {0: 300_000, 1: 200_000, 2: 0, 3: 300_000}
    assert found.chance == pytest.approx(4 * 0.25**10)
    assert found.wait_by_step_ns[1] == (20_000,) * 10 and found.steps == tuple(range(10))


def test_a_rank_may_cost_the_most_in_all_and_in_no_step() -> None:
    """In each of two steps another rank is 100 ns late for the first communication, rank 2 90 ns for the second."""
    comm = Comm("all_reduce", "0")
    steps = [(number, 1000 * number, 1000 * number + 1000) for number in (0, 1)]
    tables = {}
    for rank in range(3):
        rows = [
            (begin + at + late, begin + at + 300, comm)
            for number, begin, _ in steps
            for at, late in ((0, 100 * (rank == number)), (500, 90 * (rank == 2)))
        ]
        tables[rank] = collected(rank_of(rank, rows, steps=steps))
    found = found_in(tables)
    assert (found.worst, found.led, found.of, found.often) == (2, 0, 2, "")
    assert found_in(run(np.eye(4, 2, dtype=int) * 10_000)).often == "in 1 of 2 steps"


def test_durations_tell_where_clocks_do_not() -> None:
    """Broadcasts align no clocks; the shortest duration still names the last to arrive."""
    late = np.zeros((10, 4), int)
    late[:, 3] = 30_000
    late[4, 1] = 40_000
    found = found_in(run(late, op="broadcast"))
    assert found.method == "durations" and found.worst == 3
    assert [late.rank for late in found.late] == [3, 3, 3, 3, 1, 3, 3, 3, 3, 3]
    assert found.late[4].alone_ns == 10_000 and found.ranks[0].suffered_by_start_ns is None
    assert [note.code for note in found.notes] == ["clocks-not-aligned"]
    by_start = found_in(run(late))
    assert [row.caused_ns for row in by_start.ranks] == [row.caused_ns for row in found.ranks]


def test_chance_says_when_nobody_in_particular_is_late() -> None:
    random = np.random.default_rng(3)
    found = found_in(run(random.integers(0, 30_000, (60, 8))))
    assert found.chance is not None and found.chance > 0.05
    late = random.integers(0, 30_000, (60, 8))
    late[:, 5] += 8_000
    consistent = found_in(run(late))
    assert consistent.worst == 5 and consistent.chance is not None and consistent.chance < 1e-3


def test_chance_is_the_binomial_tail() -> None:
    late = np.zeros((6, 3), int)
    late[range(6), [0, 0, 0, 0, 1, 2]] = 10_000
    found = found_in(run(late))
    tail = sum(math.comb(6, k) * 2 ** (6 - k) for k in range(4, 7)) / 3**6
    assert (found.led, found.of, found.chance) == (4, 6, pytest.approx(3 * tail))


def test_nobody_waits_in_a_balanced_run() -> None:
    found = found_in(run(np.zeros((5, 3), int)))
    assert found.worst is None and found.of == 0 and found.chance is None
    assert {rank.caused_ns for rank in found.ranks} == {0}


def test_one_rank_says_why_nothing_can_be_told() -> None:
    found = found_in({0: run(np.zeros((5, 1), int))[0]})
    assert found.method == "none" and found.worst is None
    assert "one rank" in found.notes[0].message


def test_no_common_communication_says_so() -> None:
    tables = {rank: collected(rank_of(rank, [(0, 5, Comm("all_reduce", str(rank)))])) for rank in (0, 1)}
    assert "could be matched" in found_in(tables).notes[0].message


def test_plain_data_round_trip() -> None:
    found = found_in(run(np.random.default_rng(0).integers(0, 9_000, (6, 3))))
    assert Stragglers.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def together(
    seed: int, n: int = 60, ranks: int = 8, jitter: float = 0, late: int = 0, error: float = 0, per_step: int = 1
) -> Stragglers:
    """Ranks that arrive ``jitter`` apart by chance; rank 2 is ``late`` and its clock is off by ``error``.

    Members leave up to 300 µs apart, so clocks are known to some 90 µs; the error of rank 2's is not in the ends: no
    alignment can know it.
    """
    random = np.random.default_rng(seed)
    period = 20_000_000
    base = period * np.arange(n * per_step)
    starts = base[:, None] + 100_000 + jitter * random.random((len(base), ranks))
    starts[:, 2] += late
    ends = starts.max(axis=1, keepdims=True) + 400_000 + random.integers(-150_000, 150_001, starts.shape)
    starts[:, 2] += error
    tables = {}
    for rank in range(ranks):
        comms = [(int(a), int(b), Comm("all_reduce", "0")) for a, b in zip(starts[:, rank], ends[:, rank], strict=True)]
        steps = [(at, period * per_step * at, period * per_step * (at + 1)) for at in range(n)]
        tables[rank] = collected(rank_of(rank, comms, steps=steps))
    matched = match_collectives(tables)
    clocks = align_clocks(matched)
    assert clocks.comparable and max(clocks.residual_ns.values()) > 60_000
    return find_stragglers(matched, clocks)


def test_ranks_that_arrive_together_are_within_clock_error() -> None:
    """Rank 2 comes 13 µs after the others in all of 60 steps, and clocks are known to a tenth of a millisecond."""
    found = together(0, error=13_000)
    assert found.ranks[0].rank == 2 and found.ranks[0].times_last == 60
    assert (found.worst, found.chance, found.within_clock_error) == (None, None, 2)
    [note] = found.notes
    assert note.code == "stragglers-within-clock-error" and "13 µs after the next" in note.message
    assert note.details["late_ns"] < note.details["clock_error_ns"]
    assert not any(late.clear for late in found.late)


def test_more_steps_do_not_make_a_clock_error_a_straggler() -> None:
    assert {together(0, n=steps, error=13_000).worst for steps in (10, 400)} == {None}


def test_a_straggler_well_above_the_residual_is_named_with_its_probability() -> None:
    found = together(0, late=1_000_000)
    assert (found.worst, found.within_clock_error) == (2, None)
    assert found.led == found.of == 60 and found.chance is not None and found.chance < 1e-9
    assert all(late.clear for late in found.late)


def test_a_single_stall_is_no_clock_error() -> None:
    late = np.zeros((60, 4), int)
    late[17, 3] = 500_000
    tables = run(late)
    random = np.random.default_rng(0)
    noisy = {rank: replace(table, end_ns=table.end_ns + random.integers(0, 4_000, len(table)))
             for rank, table in tables.items()}  # fmt: skip
    assert found_in(noisy).worst == 3


def test_ranks_alike_are_not_named_by_chance_when_a_clock_is_off() -> None:
    """Arrivals scatter by as much as a clock is off: under the rule that trusts clocks, p is below 5 % in each run."""
    found = [together(seed, n=20, jitter=100_000, error=70_000) for seed in range(10)]
    assert sum((one.chance or 1) < 0.05 for one in found) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("jitter", [20_000, 300_000, 5_000_000])
@pytest.mark.parametrize("per_step", [1, 8])
def test_size_of_the_stragglers_p(jitter: int, per_step: int) -> None:
    """With a clock off by as much as they are known to, whatever the scatter of arrivals."""
    runs = 400 if FULL else 80
    low = sum((together(seed, n=20, jitter=jitter, error=70_000, per_step=per_step).chance or 1) < 0.05
              for seed in range(runs))  # fmt: skip
    assert low <= 0.05 * runs + 2 * math.sqrt(0.05 * 0.95 * runs)


@pytest.mark.parametrize(("led", "of", "ranks"), [(3, 10, 4), (0, 10, 4), (10, 10, 4), (7, 9, 2), (1, 1, 3)])
def test_leading_by_chance_is_a_binomial_tail_for_every_rank(led: int, of: int, ranks: int) -> None:
    assert _chance(led, of, ranks) == pytest.approx(min(1.0, ranks * binom.sf(led - 1, of, 1 / ranks)))


def test_nothing_led_and_one_rank_have_no_chance() -> None:
    assert _chance(0, 0, 4) is None and _chance(3, 10, 1) is None


def test_the_clocks_of_two_ranks_reach_as_far_as_both_bounds() -> None:
    clocks = SimpleNamespace(bound_ns={0: 5, 1: 9, 2: 2})
    # The widest of the others beside one's own.
    assert _reach(clocks, np.array([0, 1, 2, 7])).tolist() == [14, 14, 11, 9]  # type: ignore[arg-type]
    assert _reach(SimpleNamespace(bound_ns={}), np.array([0])).tolist() == [0]  # type: ignore[arg-type]
    assert (_us(1_500), _us(999_999), _us(1_000_000), _us(2_345_678)) == ("1.5 µs", "1e+03 µs", "1 ms", "2.35 ms")


def test_the_first_the_last_and_the_last_but_one_to_arrive() -> None:
    rng = np.random.default_rng(0)
    late = rng.integers(0, 90_000, (12, 4))
    matched = match_collectives(run(late))
    arrivals = arrivals_of(matched, align_clocks(matched))
    assert arrivals is not None
    begin = 1_000_000 * np.arange(12) + 100_000
    ordered = np.sort(late, axis=1)
    assert arrivals.first_start_ns.tolist() == (begin + ordered[:, 0]).tolist()
    assert arrivals.second_start_ns.tolist() == (begin + ordered[:, 2]).tolist()
    assert arrivals.last_start_ns.tolist() == (begin + ordered[:, 3]).tolist()
    assert arrivals.last_end_ns.tolist() == (begin + ordered[:, 3] + 50_000).tolist()
    assert arrivals.last_rank.tolist() == late.argmax(axis=1).tolist()
    found = find_stragglers(matched, align_clocks(matched))
    waited = (late.max(axis=1)[:, None] - late).sum(axis=1)
    for row in found.ranks:
        last = late.argmax(axis=1) == row.rank
        assert (row.times_last, row.matched) == (last.sum(), 12)
        assert row.caused_ns == waited[last].sum()
        assert row.alone_ns == (ordered[:, 3] - ordered[:, 2])[last].sum() and row.steps_led == last.sum()
        assert row.suffered_ns == row.suffered_by_start_ns == (late.max(axis=1) - late[:, row.rank]).sum()
        assert found.wait_by_step_ns[row.rank] == tuple(late.max(axis=1) - late[:, row.rank])
    assert [row.rank for row in found.ranks] == sorted(range(4), key=lambda r: -waited[late.argmax(axis=1) == r].sum())
    assert found.of == 12 and found.led == found.ranks[0].steps_led and found.steps == tuple(range(12))


@pytest.mark.parametrize(
    ("exposed", "window", "sums"),
    [
        # 400 ns, of which the transfer is the last 150; all of it exposed.
        ([], (0, 1000), (400, 250, 250)),
        # Compute hides the first 300 of it: all of the wait, and of the transfer 50.
        ([(100, 400)], (0, 1000), (400, 250, 0)),
        ([(100, 300)], (0, 1000), (400, 250, 50)),
        # The window ends or begins within the wait, or within the transfer.
        ([], (0, 300), (200, 200, 200)),
        ([], (0, 400), (300, 250, 250)),
        ([], (200, 1000), (300, 150, 150)),
        ([], (400, 1000), (100, 0, 0)),
    ],
)
def test_a_span_waits_first_and_transfers_then(
    exposed: list[tuple[int, int]], window: tuple[int, int], sums: tuple[int, int, int]
) -> None:
    record = Comm("all_reduce", "0", ranks=(0, 1), seq=0)
    tables = {
        0: collected(rank_of(0, [(100, 500, record)], exposed, [(1, *window)])),
        1: collected(rank_of(1, [(350, 500, record)], [], [(1, 0, 1000)])),
    }
    found = waiting_of(match_collectives(tables))["all_reduce", "0"]
    # The other rank, the last, only transfers.
    assert (found.lasted_ns - 150, found.waited_ns, found.exposed_ns) == sums
    assert found.share == found.waited_ns / found.lasted_ns

"""What slow ranks cost a recorded run: a known answer, random runs, and ranks that recorded different steps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densing.efficiency.profile.rank import profile_timeline
from densing.efficiency.profile.run import RunProfile, merge_run
from densing.efficiency.profile.whatif_run import RecordedWhatIf
from densing.efficiency.timeline.timeline import Comm
from tests.support.collective_runs import DLRM, dlrm_rank, rank_of


def recorded(local: Any, transfer: int = 50_000, begin: Any = 0, tail: int = 0) -> RecordedWhatIf:
    """Replay ranks that work ``local`` (steps, ranks) and meet in an all-reduce after each."""
    work = np.asarray(local)
    ranks = work.shape[1]
    clock = np.zeros(ranks, np.int64) + np.asarray(begin)
    comms: dict[int, list[tuple[int, int, Comm]]] = {rank: [] for rank in range(ranks)}
    busy: dict[int, list[tuple[int, int]]] = {rank: [] for rank in range(ranks)}
    first = clock.copy()
    record = Comm("all_reduce", "0", in_elems=8, dtype="float")
    for row in work:
        start = clock + row
        end = np.full(ranks, start.max() + transfer)
        for rank in range(ranks):
            busy[rank].append((int(clock[rank]), int(start[rank])))
            comms[rank].append((int(start[rank]), int(end[rank]), record))
        clock = end
    for rank in range(ranks):
        busy[rank].append((int(clock[rank]), int(clock[rank]) + tail))
    run = merge_run([
        profile_timeline(rank_of(rank, comms[rank], busy[rank], [(1, int(first[rank]), int(clock[rank]) + tail)]))
        for rank in range(ranks)
    ])  # fmt: skip
    assert run.together is not None
    return run.together.what_if


def test_a_slow_rank_costs_what_arithmetic_says() -> None:
    local = np.full((10, 4), 100_000)
    local[:, 2] = 180_000
    found = recorded(local, tail=7_000)
    whole, even = 10 * 230_000 + 7_000, 10 * 150_000 + 7_000
    assert (found.recorded_ns, found.replayed_ns, found.even_ns) == (whole, whole, even)
    assert found.slowdown == pytest.approx(whole / even)
    assert found.worst == 2 and found.by_rank[2] == pytest.approx(whole / even)
    # Only rank 0 as recorded: like the median.
    assert found.by_rank[0] == pytest.approx(1)
    assert found.waste == pytest.approx(1 - even / whole)
    # Rank 2's excess is all there is.
    assert found.worst_explains == pytest.approx(1)
    assert RecordedWhatIf.from_dict(json.loads(json.dumps(found.to_dict()))) == found


@given(st.lists(st.lists(st.integers(1, 10**6), min_size=3, max_size=3), min_size=3, max_size=6))
@settings(max_examples=40)
def test_replay_of_a_recorded_run_is_that_run(local: list[list[int]]) -> None:
    found = recorded(local)
    work = np.array(local)
    assert found.replayed_ns == found.recorded_ns == int(work.max(axis=1).sum()) + 50_000 * len(work)
    assert found.even_ns == pytest.approx(np.median(work, axis=1).sum() + 50_000 * len(work), abs=1)


def test_a_rank_that_begins_late_counts_as_slow() -> None:
    found = recorded(np.full((5, 3), 100_000), begin=[0, 0, 60_000])
    assert found.worst == 2
    assert found.replayed_ns == found.recorded_ns == 5 * 150_000 + 60_000
    assert found.even_ns == 5 * 150_000


def test_one_rank_has_nobody_to_be_compared_with() -> None:
    run = merge_run([profile_timeline(rank_of(0, [(0, 5, Comm("all_reduce", "0"))]))])
    assert run.together is None and run.figures["slowdown"] is None


def test_a_public_run_is_replayed_exactly() -> None:
    """Eight ranks whose times are recorded in whole microseconds; rank 7 is the one the others wait for."""
    run = merge_run([profile_timeline(dlrm_rank(path)) for path in sorted(DLRM.glob("*.json.gz"))])
    assert run.together is not None
    found = run.together.what_if
    assert found.replayed_ns == found.recorded_ns and found.communications == 8
    assert found.worst == 7 and found.slowdown is not None and found.slowdown > found.by_rank[7] > 1


def uneven(numbers: Sequence[Sequence[int]], slow: int = 0, skew: int = 0) -> RunProfile:
    """Profile ranks that record only some of a run's steps: 100 ns of work (the last rank more), 50 ns of all-reduce.

    Every rank's clock is ``skew`` ahead of the rank before.
    """
    ranks = []
    for rank, chosen in enumerate(numbers):
        own = 100 + slow * (rank == len(numbers) - 1)
        length = 150 + slow
        record = Comm("all_reduce", "0", ranks=tuple(range(len(numbers))))
        begins = {number: number * length + rank * skew for number in chosen}
        ranks.append(rank_of(
            rank,
            [(begin + own, begin + length, record) for begin in begins.values()],
            [(begin, begin + own) for begin in begins.values()],
            [(number, begin, begin + length) for number, begin in begins.items()],
        ))  # fmt: skip
    return merge_run([profile_timeline(rank) for rank in ranks])


@pytest.mark.parametrize("skew", [0, 10**9])
@pytest.mark.parametrize(
    "numbers",
    [
        [range(1, 7), range(2, 7)],
        [range(1, 7), range(1, 6)],
        [range(1, 7), range(1, 7), range(2, 7)],
        [range(1, 6), range(3, 9), range(2, 9)],
    ],
)
def test_a_rank_that_recorded_other_steps_is_not_slow(numbers: list[Sequence[int]], skew: int) -> None:
    """What only some ranks recorded is replayed as it was."""
    together = uneven(numbers, 0, skew).together
    assert together is not None and together.what_if.slowdown == pytest.approx(1, rel=1e-6)
    slow = uneven(numbers, 90, skew).together
    assert slow is not None and slow.what_if.slowdown is not None and slow.what_if.slowdown > 1.1
    assert slow.what_if.replayed_ns == slow.what_if.recorded_ns


def test_ranks_without_a_common_step_have_no_slowdown() -> None:
    run = uneven([range(1, 4), range(4, 7)])
    assert run.together is not None and run.together.what_if.slowdown is None
    assert "no communication could be matched" in run.together.what_if.notes[-1].message


def test_a_rank_without_communication_is_compared_with_nobody() -> None:
    """Its whole window is no work that the other ranks have too."""
    record = Comm("all_reduce", "0", ranks=(0, 1))
    parts = {0: [(100, 150, record), (250, 300, record), (400, 450, record)],
             1: [(50, 150, record), (200, 300, record), (350, 450, record)], 2: []}  # fmt: skip
    ranks = []
    for rank, part in parts.items():
        free = [0, *(row[1] for row in part)]
        work = [(since, row[0]) for since, row in zip(free, part, strict=False)] or [(0, 10)]
        ranks.append(rank_of(rank, part, work, [(1, 0, 460)]))
    runs = [merge_run([profile_timeline(rank) for rank in some]) for some in (ranks, ranks[:2])]
    assert runs[0].together is not None and runs[1].together is not None
    found, alone = runs[0].together.what_if, runs[1].together.what_if
    assert (found.replayed_ns, found.even_ns) == (alone.replayed_ns, alone.even_ns)
    assert found.slowdown is not None and found.slowdown > 1
    [note] = [note for note in found.notes if note.code == "what-if-ranks"]
    assert note.details == {"ranks": [2]} and "rank 2" in note.message


def test_the_ranks_shown_are_the_slowest(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    local = rng.integers(1, 10**6, (6, 5))
    whole = recorded(local, tail=3)
    work = np.median(local, axis=1)
    assert whole.even_ns == pytest.approx(work.sum() + 6 * 50_000 + 3)
    for rank, slowdown in whole.by_rank.items():
        alone = np.maximum(local[:, rank], work).sum() + 6 * 50_000 + 3
        assert slowdown == pytest.approx(alone / whole.even_ns, rel=1e-6)
    monkeypatch.setattr("densing.efficiency.profile.whatif_run.SHOWN_RANKS", 2)
    few = recorded(local, tail=3)
    excess = np.maximum(local - work[:, None], 0).sum(axis=0)
    assert whole.worst is None or whole.worst in few.by_rank
    assert len(set(np.argsort(-excess)[:2].tolist()) & set(few.by_rank)) >= 1 and len(few.by_rank) == 2
    assert list(few.by_rank.values()) == sorted(few.by_rank.values(), reverse=True)
    # The straggler's share of what evenness would gain: with its work at the median, the step waits for the next.
    worst = whole.worst
    if worst is not None:
        others = local.astype(float)
        others[:, worst] = work
        fixed = others.max(axis=1).sum() + 6 * 50_000 + 3
        expected = (whole.replayed_ns - fixed) / (whole.replayed_ns - whole.even_ns)
        assert whole.worst_explains == pytest.approx(expected, abs=1e-5)

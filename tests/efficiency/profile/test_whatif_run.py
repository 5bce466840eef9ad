"""What slow ranks cost a recorded run: a known answer, random runs, and ranks that recorded different steps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densing.efficiency.profile.alignment import align_clocks, match_collectives
from densing.efficiency.profile.rank import profile_timeline
from densing.efficiency.profile.run import RunProfile, merge_run
from densing.efficiency.profile.waiting import find_stragglers
from densing.efficiency.profile.whatif_run import (
    RecordedWhatIf,
    Segments,
    _before,
    _usual_transfer,
    _within,
    common_steps,
    what_if,
)
from densing.efficiency.timeline.timeline import Comm
from tests.support.collective_runs import DLRM, collected, dlrm_rank, rank_of


def recorded(local: Any, transfer: int = 50_000, begin: Any = 0, tail: int = 0) -> RecordedWhatIf:
    """Replay ranks that work ``local`` (steps, ranks) and meet in an all-reduce after each."""
    work = np.asarray(local)
    ranks = work.shape[1]
    clock = np.zeros(ranks, np.int64) + np.asarray(begin)
    comms: dict[int, list[tuple[int, int, Comm]]] = {rank: [] for rank in range(ranks)}
    first = clock.copy()
    for row in work:
        start = clock + row
        clock = np.full(ranks, start.max() + transfer)
        for rank in range(ranks):
            record = Comm("all_reduce", "0", in_elems=8, dtype="float")
            comms[rank].append((int(start[rank]), int(clock[rank]), record))
    tables = {rank: collected(rank_of(rank, rows, steps=[(1, int(first[rank]), int(clock[rank]) + tail)]))
              for rank, rows in comms.items()}  # fmt: skip
    matched = match_collectives(tables)
    clocks = align_clocks(matched)
    return what_if(matched, clocks, find_stragglers(matched, clocks).worst)


def test_a_slow_rank_costs_what_arithmetic_says() -> None:
    local = np.full((10, 4), 100_000)
    local[:, 2] = 180_000
    found = recorded(local, tail=7_000)
    whole, ideal = 10 * 230_000 + 7_000, 10 * 170_000 + 7_000
    assert (found.recorded_ns, found.replayed_ns, found.ideal_ns) == (whole, whole, ideal)
    assert found.slowdown == pytest.approx(whole / ideal)
    assert found.worst == 2 and found.by_rank[2] == pytest.approx(whole / ideal)
    # Only rank 0 as recorded: it is faster than the mean, so the others, at the mean, decide.
    assert found.by_rank[0] == pytest.approx(1)
    assert found.waste == pytest.approx(1 - ideal / whole)
    # Without rank 2's excess the step waits for the others' 100 µs or rank 2's mean of 120 µs.
    assert found.worst_explains == pytest.approx(1)
    assert RecordedWhatIf.from_dict(json.loads(json.dumps(found.to_dict()))) == found


@given(st.lists(st.lists(st.integers(0, 10**6), min_size=3, max_size=3), min_size=3, max_size=6))
@settings(max_examples=40)
def test_replay_of_a_recorded_run_is_that_run(local: list[list[int]]) -> None:
    found = recorded(local)
    work = np.array(local)
    assert found.replayed_ns == found.recorded_ns == int(work.max(axis=1).sum()) + 50_000 * len(work)
    assert found.ideal_ns == pytest.approx(work.mean(axis=1).sum() + 50_000 * len(work), abs=1)
    assert found.local_slowdown == pytest.approx(found.slowdown) and found.transfer_slowdown == pytest.approx(1)


def test_a_rank_that_begins_late_counts_as_slow() -> None:
    found = recorded(np.full((5, 3), 100_000), begin=[0, 0, 60_000])
    assert found.worst == 2
    assert found.replayed_ns == found.recorded_ns == 5 * 150_000 + 60_000
    assert found.ideal_ns == 5 * 150_000 + 20_000


def test_communication_beside_work_is_replayed_beside_it() -> None:
    """Two groups of two; rank 1 is in both, and its two all-reduces overlap."""
    left, right = Comm("all_reduce", "l", ranks=(0, 1)), Comm("all_reduce", "r", ranks=(1, 2))
    rows = {
        0: [(100, 400, left)],
        1: [(300, 400, left), (350, 600, right)],
        2: [(500, 600, right)],
    }
    tables = {rank: collected(rank_of(rank, part, steps=[(1, 0, 700)])) for rank, part in rows.items()}
    matched = match_collectives(tables)
    found = what_if(matched, align_clocks(matched), None)
    assert found.replayed_ns == 700 == found.recorded_ns
    # Means: 200 before the left one, 425 before the right one. After the left one only rank 0 works, for 300; after
    # the right one both others do, for 100: other work than rank 0's.
    assert found.ideal_ns == max(200 + 100 + 300, 425 + 100 + 100)


def test_too_little_or_too_much_to_replay_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = match_collectives({0: collected(rank_of(0, [(0, 5, Comm("all_reduce", "0"))]))})
    found = what_if(alone, align_clocks(alone), None)
    assert found.slowdown is None and found.waste is None and "one rank" in found.notes[0].message
    monkeypatch.setattr("densing.efficiency.profile.whatif_run.MAX_ENTRIES", 3)
    assert "exceed the limit" in recorded(np.ones((5, 2), int)).notes[0].message


def test_a_public_run_is_replayed_to_its_resolution() -> None:
    """Eight ranks whose times are recorded in whole microseconds; rank 7 is the one the others wait for."""
    tables = [collected(dlrm_rank(path)) for path in sorted(DLRM.glob("*.json.gz"))]
    matched = match_collectives({table.rank: table for table in tables})
    clocks = align_clocks(matched)
    found = what_if(matched, clocks, find_stragglers(matched, clocks).worst)
    assert abs(found.replayed_ns - found.recorded_ns) <= 8 * 7_000
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
    ("numbers", "steps"),
    [
        ([range(1, 7), range(2, 7)], [2, 3, 4, 5, 6]),
        ([range(1, 7), range(1, 6)], [1, 2, 3, 4, 5]),
        ([range(1, 7), [1, 3, 4, 5, 6]], [3, 4, 5, 6]),
        ([range(1, 6), range(3, 9), range(2, 9)], [3, 4, 5]),
    ],
)
def test_a_rank_that_recorded_other_steps_is_not_slow(
    numbers: list[Sequence[int]], steps: list[int], skew: int
) -> None:
    for slow, slowdown in ((0, 1.0), (90, 240 / (150 + 90 / len(numbers)))):
        together = uneven(numbers, slow, skew).together
        assert together is not None
        found = together.what_if
        assert found.slowdown == pytest.approx(slowdown, rel=1e-6)
        assert found.recorded_ns == len(steps) * (150 + slow) and found.communications == len(steps)
        [note] = [note for note in found.notes if note.code == "what-if-steps"]
        assert note.details["steps"] == steps and f"covers steps {steps[0]} to {steps[-1]}, recorded" in note.message
        assert note in together.notes


def test_ranks_without_a_common_step_have_no_slowdown() -> None:
    run = uneven([range(1, 4), range(4, 7)])
    assert run.together is not None and run.together.what_if.slowdown is None
    assert "no step was recorded by all ranks" in run.together.what_if.notes[-1].message


def test_ranks_with_the_same_steps_are_replayed_whole() -> None:
    run = uneven([range(3), range(3)], 30)
    assert run.together is not None and run.together.what_if.notes == ()
    assert run.together.what_if.recorded_ns == 3 * 180


def test_a_rank_without_communication_is_left_out() -> None:
    """Its whole window is no work that the other ranks have too."""
    record = Comm("all_reduce", "0", ranks=(0, 1))
    parts = {0: [(100, 150, record), (250, 300, record)], 1: [(50, 150, record), (200, 300, record)], 2: []}
    tables = {rank: collected(rank_of(rank, part, [(0, 10)], [(1, 0, 310)])) for rank, part in parts.items()}
    both = {rank: tables[rank] for rank in (0, 1)}
    matched, alone = match_collectives(tables), match_collectives(both)
    found, wanted = (what_if(some, align_clocks(some), None) for some in (matched, alone))
    assert (found.replayed_ns, found.ideal_ns) == (wanted.replayed_ns, wanted.ideal_ns) == (310, 260)
    [note] = [note for note in found.notes if note.code == "what-if-ranks"]
    assert note.details == {"ranks": [2]} and "rank 2" in note.message


def test_only_ranks_that_do_the_same_work_are_compared() -> None:
    """Ranks 1 and 2 meet once more between two common broadcasts; rank 0, alone in what it does, is not slow."""
    common, pair = Comm("broadcast", "c", ranks=(0, 1, 2)), Comm("broadcast", "p", ranks=(1, 2))
    parts: dict[int, list[tuple[int, int, Comm]]] = {0: [], 1: [], 2: []}
    for begin in range(0, 20_000, 1000):
        for rank, own in parts.items():
            own.append((begin + 100, begin + 150, common))
            own += [(begin + 300, begin + 350, pair)] if rank else []
    tables = {rank: collected(rank_of(rank, own, steps=[(1, 0, 20_000)])) for rank, own in parts.items()}
    matched = match_collectives(tables)
    found = what_if(matched, align_clocks(matched), None)
    assert (found.slowdown, found.recorded_ns) == (1, 20_000)


def test_hosts_whose_clocks_contradict_each_other_are_replayed_to_their_length() -> None:
    """Broadcasts tell nothing of clocks, so communications within a host seem to come before all common ones."""
    hour, work = 3600 * 10**9, 20_000
    everyone = Comm("broadcast", "c", ranks=(0, 1, 2, 3))
    tables = {}
    for rank in range(4):
        begins = np.arange(0, work, 1000) + (hour if rank > 1 else 0)
        own = Comm("broadcast", f"host {rank // 2}", ranks=(0, 1) if rank < 2 else (2, 3))
        rows = [(int(at) + 100 + shift, int(at) + 150 + shift, comm) for at in begins
                for shift, comm in ((0, everyone), (400, own))]  # fmt: skip
        tables[rank] = collected(rank_of(rank, rows, steps=[(1, int(begins[0]), int(begins[0]) + work)]))
    matched = match_collectives(tables)
    found = what_if(matched, align_clocks(matched), None)
    assert found.recorded_ns == work
    assert found.replayed_ns == pytest.approx(work, rel=0.01) and found.slowdown == pytest.approx(1, rel=1e-3)


def test_usual_transfers_of_many_sizes_are_medians() -> None:
    """As many sizes as communications must not take the square of their number."""
    rng = np.random.default_rng(4)
    sizes = rng.integers(1, 60, 200)
    rows = []
    for _ in range(2):
        begins = 1000 * np.arange(200)
        took = rng.integers(1, 500, 200)
        rows.append([(int(b), int(b + t), Comm("all_gather", "0", in_elems=int(n), out_elems=int(n), dtype="float"))
                     for b, t, n in zip(begins, took, sizes, strict=True)])  # fmt: skip
    matched = match_collectives({rank: collected(rank_of(rank, part)) for rank, part in enumerate(rows)})
    usual = _usual_transfer(matched)
    for at in range(len(matched)):
        same = (matched.op == matched.op[at]) & (matched.bytes == matched.bytes[at])
        assert usual[at] == np.median(matched.transfer_ns[same])


def steps_of(*numbers: Sequence[int]) -> list[Any]:
    return [
        SimpleNamespace(
            rank=rank,
            steps=[SimpleNamespace(number=n, start_ns=100 * at, end_ns=100 * at + 90) for at, n in enumerate(row)],
        )
        for rank, row in enumerate(numbers)
    ]


@pytest.mark.parametrize(
    ("numbers", "common", "left_out"),
    [
        (([1, 2, 3], [1, 2, 3]), None, 0),
        (([1, 2, 3], []), None, 0),
        (([1, 2, 3], [2, 3]), (2, 3), 1),
        # Two stretches of two: the first. A longer one counts wherever it lies.
        (([1, 2, 4, 5], [1, 2, 3, 4, 5]), (1, 2), 3),
        (([1, 2, 4, 5, 6], [1, 2, 3, 4, 5, 6]), (4, 5, 6), 3),
        # A number that comes twice is two steps, and the first of them may be missing.
        (([1, 2, 1, 2], [1, 2, 1]), (1, 2, 1), 1),
        (([1, 2], [3, 4]), (), 4),
        (([5], [5, 6]), (5,), 1),
    ],
)
def test_the_longest_stretch_of_common_steps(
    numbers: tuple[list[int], ...], common: tuple[int, ...] | None, left_out: int
) -> None:
    ranks = steps_of(*numbers)
    found = common_steps(ranks)
    if common is None:
        assert found is None
        return
    assert found is not None and (found.numbers, found.left_out) == (common, left_out)
    for rank in ranks if common else ():
        own = [step.number for step in rank.steps]
        first = next(at for at in range(len(own)) if tuple(own[at : at + len(common)]) == common)
        assert found.spans[rank.rank] == (100 * first, 100 * (first + len(common) - 1) + 90)
    label = {0: "no step", 1: "step 5"}.get(
        len(common), f"steps {common[0] if common else ''} to {common[-1] if common else ''}"
    )
    assert f"covers {label}, recorded" in found.note.message
    assert found.note.severity == ("info" if common else "warning")


def test_a_step_begins_with_its_first_nanosecond_and_ends_before_the_next() -> None:
    record = Comm("all_reduce", "0", ranks=(0, 1))
    rows = [(at, at + 10, record._replace(seq=at)) for at in (99, 100, 199, 200)]
    tables = {rank: collected(rank_of(rank, rows)) for rank in (0, 1)}
    matched = match_collectives(tables)
    assert _within(matched, {0: (100, 200), 1: (0, 999)}).tolist() == [False, True, True, False]
    assert _within(matched, {0: (0, 999), 1: (100, 200)}).tolist() == [False, True, True, False]
    assert _within(matched, {}).tolist() == [False] * 4


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), min_size=1, max_size=12), st.randoms())
def test_what_ended_last_before_is_found_among_what_is_replayed_before(
    spans: list[tuple[int, int]], random: Any
) -> None:
    start = np.array([begin for begin, _ in spans])
    end = start + [length for _, length in spans]
    position = list(range(len(spans)))
    random.shuffle(position)
    found = _before(start, end, np.array(position))
    for at, before in enumerate(found.tolist()):
        candidates = [
            end[other] for other in range(len(spans)) if end[other] <= start[at] and position[other] < position[at]
        ]
        if before < 0:
            assert not candidates
        else:
            assert position[before] < position[at] and end[before] == max(candidates)


def test_choices_are_replayed_in_turns_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    local = rng.integers(0, 10**6, (6, 5))
    whole = recorded(local, tail=3)
    monkeypatch.setattr("densing.efficiency.profile.whatif_run._CELLS", 70)
    sizes: list[int] = []
    replayed = Segments._run
    monkeypatch.setattr(
        Segments,
        "_run",
        lambda self, keep, *rest: sizes.append(len(keep) * len(self.rank)) or replayed(self, keep, *rest),
    )
    assert recorded(local, tail=3) == whole
    # Six collectives of five ranks: thirty entries a choice, so two choices at once.
    assert max(sizes) == 60
    work = local.mean(axis=1)
    for rank, slowdown in whole.by_rank.items():
        alone = np.maximum(local[:, rank], work).sum() + 6 * 50_000 + 3
        assert slowdown == pytest.approx(alone / whole.ideal_ns, rel=1e-6)
    monkeypatch.setattr("densing.efficiency.profile.whatif_run.SHOWN_RANKS", 2)
    few = recorded(local, tail=3)
    excess = np.maximum(local - work[:, None], 0).sum(axis=0)
    shown = set(np.argsort(-excess)[:2].tolist()) if few.worst is None else set(few.by_rank)
    assert set(few.by_rank) == shown and len(few.by_rank) == 2
    assert list(few.by_rank.values()) == sorted(few.by_rank.values(), reverse=True)
    # The straggler's share of what evenness would gain: with its work at the mean, the step waits for the next.
    worst = whole.worst
    if worst is not None:
        others = local.astype(float)
        others[:, worst] = work
        fixed = others.max(axis=1).sum() + 6 * 50_000 + 3
        expected = (whole.replayed_ns - fixed) / (whole.replayed_ns - whole.ideal_ns)
        assert whole.worst_explains == pytest.approx(expected, abs=1e-5)

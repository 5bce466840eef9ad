"""One clock for all ranks: known offsets come back, and what cannot be aligned says so."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densing.efficiency.profile.clocks import Clocks, align_clocks
from densing.efficiency.profile.matching import match_collectives
from densing.efficiency.profile.waiting import arrivals_of
from densing.efficiency.timeline.timeline import Comm
from densing.efficiency.timeline.traffic import Collectives
from tests.support.collective_runs import DLRM, collected, dlrm_rank, rank_of

TRANSFER = 20_000
Tables = dict[int, Collectives]


def run(
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
    clocks = align_clocks(match_collectives(run([0, *offsets], n=5)))
    assert clocks.verdict == ("aligned" if any(offsets) else "agree")
    assert clocks.offset_ns == dict(enumerate([0, *offsets]))
    assert set(clocks.residual_ns.values()) == {0}
    plain = json.loads(json.dumps(clocks.to_dict()))
    assert Clocks.from_dict(plain) == clocks


def test_noise_is_the_residual_and_not_the_offset() -> None:
    clocks = align_clocks(match_collectives(run([0, 500_000, -300_000], n=200, noise=4_000)))
    assert clocks.verdict == "aligned" and clocks.comparable
    # The median of n uniform values in ±a has standard deviation a/√n; their median distance is a/2.
    for rank, offset in ((1, 500_000), (2, -300_000)):
        assert abs(clocks.offset_ns[rank] - offset) < 4 * 4_000 / np.sqrt(200)
        assert clocks.residual_ns[rank] == pytest.approx(2_000, rel=0.25)
        assert clocks.n[rank] == 200


def test_drift_shows_in_the_residual() -> None:
    clocks = align_clocks(match_collectives(run([0, 0], n=100, drift_ppm=100)))
    # 100 ppm over 100 ms is 10 µs from end to end: the middle of it, and a quarter of it as median distance.
    assert clocks.measured_ns[1] == pytest.approx(5_000, rel=0.05)
    assert clocks.residual_ns[1] == pytest.approx(2_500, rel=0.05)


def test_offsets_within_the_noise_are_left_alone() -> None:
    clocks = align_clocks(match_collectives(run([0, 500], n=100, noise=2_000)))
    assert clocks.verdict == "agree" and set(clocks.offset_ns.values()) == {0}
    assert clocks.measured_ns[1] != 0


def test_too_few_and_too_noisy_are_not_aligned() -> None:
    few = align_clocks(match_collectives(run([0, 10**6], n=2)))
    assert few.verdict == "not aligned" and not few.comparable
    assert "rank 1 shares 2 of the 3 collectives needed" in few.notes[0].message
    noisy = match_collectives(run([0, 10**6], n=50, noise=100_000))
    assert align_clocks(noisy).verdict == "not aligned"
    assert set(align_clocks(noisy).offset_ns.values()) == {0}
    assert arrivals_of(noisy, align_clocks(noisy)) is None


def test_a_broadcast_tells_nothing_of_clocks() -> None:
    clocks = align_clocks(match_collectives(run([0, 10**6], op="broadcast")))
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
    plain = match_collectives(run([0, 0, 0]))
    shifted = match_collectives(run([0, 700_000, -900_000]))
    reference, moved = (arrivals_of(matched, align_clocks(matched)) for matched in (plain, shifted))
    assert reference is not None and moved is not None
    for field in dataclasses.fields(reference):
        assert getattr(moved, field.name).tolist() == getattr(reference, field.name).tolist()


def test_one_rank_has_one_clock() -> None:
    assert align_clocks(match_collectives(run([0]))).verdict == "one rank"


def test_ranks_of_one_host_agree() -> None:
    """README of the golden traces: the eight ranks end each collective within 7 µs of each other."""
    tables = [collected(dlrm_rank(path)) for path in sorted(Path(DLRM).glob("*.json.gz"))]
    clocks = align_clocks(match_collectives({found.rank: found for found in tables}))
    assert clocks.verdict == "agree"
    assert max(map(abs, clocks.measured_ns.values())) <= 7_000 and max(clocks.residual_ns.values()) <= 7_000

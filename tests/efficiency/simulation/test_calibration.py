"""Calibration: known truths recovered within their error bars, what data cannot tell refused, real traces read."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densing.core.errors import InputError, UnknownNameError
from densing.efficiency.profile.observations import of_timeline, recorded
from densing.efficiency.simulation.calibration import Computation, Observation, calibrate, calibrated, fit
from densing.efficiency.simulation.cluster import load_cluster, to_toml
from densing.efficiency.simulation.costs import collective_seconds
from densing.efficiency.timeline.timeline import Comm, Kind, RankTimeline, Spans, Step, Timeline
from tests.support import folders
from tests.support.command import printed

SIZES = tuple(4.0**power for power in range(5, 13))
WORK = folders.SUPPORT / "trace_runs.py"
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}


def measured(
    alpha: float, beta: float, kappa: float = 0.0, noise: float = 0.0, seed: int = 0, n: int = 4
) -> list[Observation]:
    """Communications of a known link, alone and beside compute, with multiplicative noise."""
    random = np.random.default_rng(seed)
    link = load_cluster("cpu2", n=n)
    link = link.change(inter=type(link.inter)(alpha, beta))
    found = []
    for op in ("all_reduce", "all_gather", "send_recv"):
        for size in SIZES:
            for beside in (0.0, 0.5, 1.0):
                alone = collective_seconds(op, size, link, range(n)[: 2 if op == "send_recv" else n])
                # In a share of its duration it moves at 1/(1 + kappa).
                slowed = alone / (1 - beside + beside / (1 + kappa))
                members = 2 if op == "send_recv" else n
                found.append(Observation(op, size, members, slowed * math.exp(noise * random.normal()), beside))
    return found


@given(alpha=st.floats(1e-6, 1e-2), beta=st.floats(1e-11, 1e-6), kappa=st.floats(0, 2), n=st.integers(2, 8))
@settings(max_examples=12)
def test_exact_measurements_are_recovered_exactly(alpha: float, beta: float, kappa: float, n: int) -> None:
    # Both terms must matter somewhere among the sizes.
    if not SIZES[0] * beta / 3 < alpha < SIZES[-1] * beta * 3:
        return
    found = calibrate(measured(alpha, beta, kappa, n=n))
    assert found.alpha_s is not None and found.beta_s_per_byte is not None and found.kappa_comm is not None
    assert math.isclose(found.alpha_s.value, alpha, rel_tol=1e-3)
    assert math.isclose(found.beta_s_per_byte.value, beta, rel_tol=1e-3)
    assert math.isclose(found.kappa_comm.value, kappa, rel_tol=1e-3, abs_tol=1e-3)
    assert found.residual is not None and found.residual < 1e-3


@pytest.mark.slow
def test_intervals_hold_what_they_promise() -> None:
    """95 % intervals from 60 noisy data sets of one truth: fewer than 50 of 60 would be as rare as 1 in 1000."""
    truth = {"alpha_s": 2e-4, "beta_s_per_byte": 1e-8, "kappa_comm": 0.3}
    inside = dict.fromkeys(truth, 0)
    for seed in range(60):
        found = calibrate(measured(*truth.values(), noise=0.05, seed=seed))
        for name, value in truth.items():
            one = getattr(found, name)
            inside[name] += one.low <= value <= one.high
    assert min(inside.values()) >= 50, inside


@given(seed=st.integers(0, 10**6), outliers=st.integers(0, 5))
@settings(max_examples=20)
def test_outliers_do_not_carry_the_fit_away(seed: int, outliers: int) -> None:
    seen = measured(2e-4, 1e-8, 0.3, noise=0.02, seed=seed)
    worse = [Observation(one.op, one.count, one.n, one.seconds * 10, one.overlapped) for one in seen[:outliers]]
    found = calibrate(worse + seen[outliers:])
    assert found.alpha_s is not None and found.beta_s_per_byte is not None
    assert math.isclose(found.alpha_s.value, 2e-4, rel_tol=0.15)
    assert math.isclose(found.beta_s_per_byte.value, 1e-8, rel_tol=0.15)


def test_an_estimate_is_the_minimum_of_soft_l1_and_its_error_weighs_outliers_down() -> None:
    # One figure in other units, read five times, once badly; alone it needs no more than sums over its residuals.
    seen = np.array([0.98, 1.0, 1.01, 1.03, 2.0])
    (found,) = fit(lambda x: x[0] - seen, [1.0], [10.0], lost=1)
    residual = found.value / 10 - seen
    weight = 1 / np.sqrt(1 + (residual / 0.1) ** 2)
    assert math.isclose(weight @ residual, 0, abs_tol=1e-5)
    error = 10 * math.sqrt(weight @ residual**2 / (5 - 1 - 1) / weight.sum())
    assert math.isclose(found.standard_error, error, rel_tol=1e-6)
    # Student's t of three degrees of freedom.
    assert math.isclose(found.high, found.value + 3.182446 * error, rel_tol=1e-6)
    assert math.isclose(found.low, found.value - 3.182446 * error, rel_tol=1e-6)


@given(kappa=st.floats(0, 3), works=st.integers(1, 4), seed=st.integers(0, 100))
@settings(max_examples=30)
def test_kappa_of_compute(kappa: float, works: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    seen = []
    for work in range(works):
        for beside in (0.0, 0.0, 0.3, 0.7, 1.0, 1.0):
            seconds = (work + 1) * 1e-3 / (1 - beside + beside / (1 + kappa))
            seen.append(Computation(str(work), seconds * math.exp(0.01 * random.normal()), beside))
    found = calibrate([], seen).kappa
    assert found is not None and abs(found.value - kappa) < 6 * found.standard_error + 0.01


def test_what_data_cannot_tell_is_refused() -> None:
    one_size = [Observation("all_reduce", 1e6, 2, 0.01 + 1e-4 * at) for at in range(9)]
    found = calibrate(one_size, [Computation("a", 1.0), Computation("b", 1.0, 1.0)])
    assert (found.alpha_s, found.beta_s_per_byte, found.kappa, found.kappa_comm) == (None,) * 4
    assert [note.code for note in found.notes] == ["one-size", "kappa-unknown"]
    assert calibrate(one_size[:2]).notes[0].code == "link-unknown"
    alone = calibrate([one for one in measured(1e-4, 1e-8) if not one.overlapped])
    assert alone.alpha_s is not None and alone.kappa_comm is None
    assert "kappa-comm-unknown" in {note.code for note in alone.notes}
    # The same message by two operations is two sizes: an all-gather's buffer travels once, an all-reduce's twice.
    pure = calibrate([Observation("all_reduce", size, 2, size * 1e-8) for size in SIZES])
    assert pure.alpha_s is not None and "alpha-open" in {note.code for note in pure.notes}


@pytest.mark.parametrize(
    ("one", "told"),
    [
        (Observation("all_reduce", 1.0, 2, 0.0), "seconds: 0.0"),
        (Observation("all_reduce", 1.0, 2, math.nan), "seconds: nan"),
        (Observation("all_reduce", -1.0, 2, 1.0), "count: -1"),
        (Observation("all_reduce", math.inf, 2, 1.0), "count: inf"),
        (Observation("all_reduce", 1.0, 0, 1.0), "n: 0"),
        (Observation("all_reduce", 1.0, 2, 1.0, 1.5), "overlapped: 1.5"),
        (Observation("allreduce", 1.0, 2, 1.0), "all_reduce"),
    ],
)
def test_impossible_observations(one: Observation, told: str) -> None:
    with pytest.raises(InputError) as caught:
        calibrate([one])
    assert told in str(caught.value)


def test_nothing_measured_and_unknown_algorithms() -> None:
    with pytest.raises(InputError, match="nothing was measured"):
        calibrate([])
    with pytest.raises(UnknownNameError):
        calibrate(measured(1e-4, 1e-8), algorithm="star")
    with pytest.raises(InputError, match="no link wide"):
        calibrated(load_cluster("cpu2"), calibrate(measured(1e-4, 1e-8)), "wide", "a test")
    with pytest.raises(InputError, match="cannot write a link"):
        calibrated(load_cluster("cpu2"), calibrate([], [Computation("a", 1.0)]), "inter", "a test")


def test_a_timeline_gives_back_the_link_it_was_made_with() -> None:
    """Two ranks, one late by 1 ms: transfer is what the late one needs; half of the second step lies under compute."""
    alpha, beta = 1e-4, 2e-9
    ranks = []
    for number in (0, 1):
        rows, now, steps = [], 0, []
        for at, size in enumerate((1000, 100_000, 1_000_000, 4_000_000)):
            took = round((2 * alpha + 4 * size * beta) * 1e9)
            comm = Comm("all_reduce", "0", group_size=2, in_elems=size, dtype="float", seq=at)
            late = 1_000_000 * (1 - number)
            rows.append(
                {"start": now + late, "end": now + 1_000_000 + took, "kind": Kind.COMM, "name": "x", "comm": comm}
            )
            steps.append(Step(at, now, now + 1_000_000 + took))
            now += 1_000_000 + took
        ranks.append(RankTimeline(number, Spans.build(rows), Spans.empty(), steps=tuple(steps)))
    seen = of_timeline(Timeline(tuple(ranks)))
    found = calibrate(seen.collectives)
    assert len(seen.collectives) == 4 and seen.ranks == 2
    assert found.alpha_s is not None and math.isclose(found.alpha_s.value, alpha, rel_tol=1e-3)
    assert found.beta_s_per_byte is not None and math.isclose(found.beta_s_per_byte.value, beta, rel_tol=1e-3)


def test_one_rank_alone_says_nothing_of_transfer() -> None:
    comm = Comm("all_reduce", "0", group_size=2, in_elems=10, dtype="float", seq=0)
    work = Spans.build([{"start": 0, "end": 10, "kind": Kind.COMM, "name": "x", "comm": comm}])
    seen = of_timeline(Timeline((RankTimeline(0, work, Spans.empty()),)))
    assert seen.collectives == () and "nothing-matched" in {note.code for note in seen.notes}


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two real ranks over gloo: all-reduces under compute, and the same without (see trace_runs.py)."""
    pytest.importorskip("torch", reason="records real traces")
    out = tmp_path_factory.mktemp("runs")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(WORK), str(out)]
    subprocess.run(command, check=True, capture_output=True, timeout=300, env=ENV)
    return out


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "densing", "calibrate", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=ENV)


@pytest.mark.slow
def test_real_traces_hold_bytes_ranks_and_overlap(traces: Path) -> None:
    beside, alone = (recorded([traces / name]).collectives for name in ("overlapped", "blocking"))
    for seen in (beside, alone):
        assert {one.op for one in seen} == {"all_reduce"} and {one.n for one in seen} == {2}
        assert {one.count for one in seen} == {4.0 * (1 << 21)}
        assert all(one.seconds > 0 for one in seen)
    # A busy machine may take either thread away for a while, of one sum for all of it: no share of any sum is sure.
    assert max(one.overlapped for one in alone) < min(0.5, fmean(one.overlapped for one in beside))


@pytest.mark.slow
def test_real_traces_of_one_size_are_refused_with_reason(traces: Path, tmp_path: Path) -> None:
    found = run(traces / "overlapped", traces / "blocking", "--json")
    document = printed(found.stdout)
    assert found.returncode == 3
    assert document["alpha_s"] is None and document["cluster"] is None and document["observations"] >= 4
    assert "one-size" in {note["code"] for note in document["notes"]}
    failed = run(traces / "overlapped", "--out", tmp_path / "link.toml")
    assert failed.returncode == 1 and "cannot be separated" in failed.stderr and not (tmp_path / "link.toml").exists()


@pytest.mark.slow
def test_the_command_refuses_what_makes_no_sense(tmp_path: Path) -> None:
    for arguments, code, told in (
        ((), 2, "--link"),
        ((tmp_path, "--link", "200mbit"), 2, "--link"),
        ((tmp_path / "none",), 1, "none"),
        ((tmp_path, "--out", "x.json"), 2, ".toml"),
        (("--link", "fast"), 1, "fast"),
        (("--link", "none", "--model", "huge"), 1, "huge"),
        (("--link", "none", "--mode", "sleep"), 1, "sleep"),
        (("--link", "none", "--level", "inter"), 2, "--level"),
    ):
        found = run(*arguments)
        assert found.returncode == code and told in found.stderr and "Traceback" not in found.stderr, arguments
    assert "Example:" in run("--help").stdout


@pytest.mark.slow
def test_measuring_an_emulated_link(tmp_path: Path) -> None:
    """A link of 400 Mbit/s and 2 ms, slow enough that most machines carry it; the file loads as a cluster."""
    pytest.importorskip("torch", reason="measures real ranks")
    out = tmp_path / "link.toml"
    small = ("--model", "tiny", "--batch", 1, "--sequence", 16, "--repeats", 4)
    found = run("--link", "emulated:400mbit:2ms", *small, "--out", out, "--json")
    assert found.returncode == 0, found.stderr
    document = printed(found.stdout)
    assert document["written"] == str(out) and "link-emulated" in {note["code"] for note in document["notes"]}
    assert 1e-3 < document["alpha_s"]["value"] < 2e-2 and 1e-8 < document["beta_s_per_byte"]["value"] < 2e-7
    cluster = load_cluster(out)
    assert cluster.n == 2 and cluster.device.measured and "emulated" in cluster.sources["inter.alpha_s"].source
    assert cluster.inter.alpha_s == document["alpha_s"]["value"]
    assert load_cluster(out).to_dict() == cluster.to_dict() and to_toml(cluster) == out.read_text()


def test_a_contention_that_no_cluster_can_have_is_left_out_and_said() -> None:
    # Late ranks: all that ran beside compute took a thousand times as long.
    seen = [
        Observation("all_reduce", size, 2, (2e-3 + size * 4e-8) * (1000 if beside else 1), beside)
        for size in (1e4, 1e5, 1e6, 1e7)
        for beside in (0.0, 0.999)
    ]
    found = calibrate(seen)
    assert found.kappa_comm is None
    assert "kappa-comm-absurd" in [note.code for note in found.notes]
    # What is written can be read again.
    assert calibrated(load_cluster("cpu2"), found, "inter", "a test").kappa_comm <= 100


def test_work_that_slows_down_for_another_reason_leaves_kappa_as_it_was(tmp_path: Path) -> None:
    """What is written is read again: no cluster has a kappa of thousands."""
    seen = [Observation("all_reduce", size, 2, 2e-3 + size * 4e-8) for size in (1e4, 1e5, 1e6, 1e7)]
    work = [Computation("layer", 1e-3 * (1 + 1000 * share), share) for share in (0.0, 0.2, 0.5, 0.9)]
    found = calibrate(seen, work)
    assert found.kappa is None and "kappa-absurd" in [note.code for note in found.notes]
    base, out = load_cluster("cpu2"), tmp_path / "measured.toml"
    out.write_text(to_toml(calibrated(base, found, "inter", "a test")))
    assert load_cluster(out).kappa == base.kappa

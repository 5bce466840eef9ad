"""A recorded run replayed: public runs as recorded, and what planted faults cost beside the same run without them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from densing.core import InputError
from densing.efficiency.profile.observations import of_timeline
from densing.efficiency.profile.replay import Change, Replay, _schedule, alone, shared
from densing.efficiency.profile.run import RunProfile, profile_run
from densing.efficiency.simulation import Graph, Simulation, load_cluster, load_workload, simulate
from densing.efficiency.systems import get_technique
from densing.efficiency.timeline import Comm, Kind, Lane, RankTimeline, Spans, Step, Timeline, union
from tests.support import folders
from tests.support.planted_runs import ELEMENTS, RETURN, Planted

FAIR = Planted(ranks=8)
BOUND = Planted(ranks=8, transfer=700_000)
"""Transfers longer than the layers they hide behind: communication overlaps compute, and bounds the run."""


def gains(run: RunProfile) -> dict[str, float]:
    """Milliseconds per step by cause."""
    return {cause.code: cause.gain_ms_per_step for cause in run.causes}


def truth(faulty: Planted, fair: Planted) -> float:
    """What the fault costs, milliseconds per step."""
    return (faulty.length() - fair.length()) / faulty.steps / 1e6


PUBLIC = {
    "DLRM": ("param_dlrm_8rank",),
    "RecSys": ("hta_trace_filter",),
    "HTA": ("hta_nccl_data/nccl_data.json.gz",),
    "MI300": ("tracelens_mi300_resnet/resnet_act_checkpoint.json.gz",),
    **{name: tuple(f"gloo/{name}_rank{rank}.pt.trace.json.gz" for rank in (0, 1))
       for name in ("ddp", "ddp_extra", "ddp_shapes", "ddp_stack", "fsdp")},
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_run_is_replayed_as_recorded(name: str) -> None:
    """Within 2 %, of the run and of every step; most to the nanosecond."""
    paths = [next(filter(Path.exists, (folders.TRACES / file, folders.RECORDED / file)), Path("none"))
             for file in PUBLIC[name]]  # fmt: skip
    if not all(map(Path.exists, paths)):
        pytest.skip("this trace is not in the checkout")
    found = profile_run(paths).replay.fidelity
    assert found.status == "ok" and abs(found.replayed_ns / found.recorded_ns - 1) < 0.02
    assert found.worst_step_pct is not None and found.worst_step_pct < 2
    # Two ranks of RecSys, where both are at hand, have clocks that cannot be compared.
    assert found.replayed_ns == found.recorded_ns or "clocks cannot be compared" in found.sentence


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("syncs", [True, False])
@pytest.mark.parametrize("fair", [FAIR, BOUND], ids=["hidden", "bound"])
def test_a_straggler_costs_what_the_run_without_it_saves(fair: Planted, waits: bool, syncs: bool) -> None:
    """One of eight ranks 10 % slow, whatever is recorded of waits: queued buckets must not swallow its cost."""
    run = replace(fair, slow={3: 1.1}, waits=waits, syncs=syncs)
    found = run.profile()
    [waiting] = [cause for cause in found.causes if cause.code == "waiting-for-ranks"]
    assert waiting.gain_ms_per_step == pytest.approx(truth(run, fair), rel=1e-6) and waiting.rank == 3
    # One account: the speed-up of even ranks, and the step without the cause, are one figure.
    step = found.replay.run_ns() / run.steps / 1e6
    assert found.figures["slowdown"] == pytest.approx(step / (step - waiting.gain_ms_per_step))
    assert found.figures["slowdown"] == pytest.approx(run.length() / fair.length())


@pytest.mark.parametrize("syncs", [True, False])
def test_a_stall_of_the_host_costs_what_the_run_without_it_saves(syncs: bool) -> None:
    run = replace(FAIR, stall={(2, 1): 8_000_000, (2, 3): 8_000_000}, syncs=syncs)
    found = run.profile()
    first = {cause.code: cause for cause in found.causes}
    assert first["host-stall"].gain_ms_per_step == pytest.approx(truth(run, FAIR), rel=1e-4)
    assert first["host-stall"].rank == 2 and "up to 8.00 ms at a time" in first["host-stall"].message
    # The ranks wait for the stalled one: the same time seen twice, which the interaction takes back.
    assert first["waiting-for-ranks"].gain_ms_per_step == pytest.approx(truth(run, FAIR), rel=1e-4)
    assert found.interaction_ms_per_step == pytest.approx(-truth(run, FAIR), rel=0.02)


def test_a_link_that_becomes_half_as_fast_is_told_by_its_transfers() -> None:
    run = replace(BOUND, link=lambda step: 1.0 + (step >= 2))
    found = run.profile()
    assert gains(found)["slow-transfers"] == pytest.approx(truth(run, BOUND), rel=1e-6)
    assert "2.00 times as long" in next(cause.message for cause in found.causes if cause.code == "slow-transfers")
    assert found.figures["slowdown"] == 1


def test_transfers_that_scatter_are_not_called_slow() -> None:
    scattered = replace(BOUND, steps=8, link=lambda step: (1.0, 1.2, 0.9, 1.1, 1.0, 0.8, 1.15, 0.95)[step])
    assert "slow-transfers" not in gains(scattered.profile())


@pytest.mark.parametrize("recorded", [True, False])
def test_exposed_communication_costs_what_free_transfers_save(recorded: bool) -> None:
    """Also where no synchronisation is recorded, and the host's waits must be inferred."""
    run = replace(BOUND, syncs=recorded, waits=recorded)
    found = run.profile()
    assert found.causes[0].code == "exposed-communication"
    assert gains(found)["exposed-communication"] == pytest.approx(truth(run, replace(run, transfer=0)), rel=1e-6)
    # Of the path only the returns of the waits are the host's.
    assert {rank.path.totals["host"] for rank in found.ranks} == {run.steps * RETURN}


def test_a_nanosecond_of_overlap_changes_no_gain() -> None:
    plain, overlapping = BOUND.profile(), replace(BOUND, overlap=1).profile()
    assert gains(plain) == pytest.approx(gains(overlapping), abs=1e-4)


@pytest.mark.parametrize("jitter", [0.0, 0.01])
def test_where_nothing_is_wrong_there_is_no_cause_above_noise(jitter: float) -> None:
    """Ranks that differ by 1 % of a kernel at random lose what their maximum costs, and nothing else."""
    run = replace(FAIR, jitter=jitter, transfer=1_000)
    found = run.profile()
    assert set(gains(found)) <= {"waiting-for-ranks"}
    assert all(cause.gain_pct < 100 * jitter for cause in found.causes)
    assert not any(replace(run, jitter=0.0).profile().causes)


def contended(speed: tuple[float, ...], kappa: float = 0.25) -> Graph:
    """Four ranks whose kernels and transfers slow each other down, simulated without a host."""
    graph = Graph()
    ranks = tuple(range(4))
    last: dict[int, int] = {}
    for step in range(4):
        graph.step = step
        for layer in range(4):
            done = [graph.add(f"backward {layer}", Kind.COMPUTE, (rank,), "compute", 1e-3,
                              after=[last[rank]] if layer == 0 and rank in last else []) for rank in ranks]  # fmt: skip
            reduce = graph.add(f"all_reduce {layer}", Kind.COMM, ranks, "comm", 0.7e-3, after=done)
        last = dict.fromkeys(ranks, reduce)
    return graph


def test_a_world_unlike_the_replay_gives_its_straggler_away_all_the_same() -> None:
    """Kernels beside a transfer go at 4/5 of their speed, of which the replay knows nothing; no host is recorded."""
    slow, fair = (1.0, 1.0, 0.9, 1.0), (1.0,) * 4
    runs = [simulate(contended(speed), 4, kappa=0.25, speed=speed) for speed in (slow, fair)]
    found = profile_run(runs[0].timeline)
    cost = 1e3 * (runs[0].makespan - runs[1].makespan) / 4
    assert found.replay.fidelity.status == "ok"
    assert gains(found)["waiting-for-ranks"] == pytest.approx(cost, rel=0.15)
    assert found.together is not None and found.together.stragglers.worst == 2
    even = profile_run(runs[1].timeline)
    assert gains(even).get("waiting-for-ranks", 0.0) < 0.01 * cost


SLOW = replace(BOUND, slow={3: 1.1})


@cache
def slow_run() -> RunProfile:
    return SLOW.profile()


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ("link=2x", replace(SLOW, transfer=350_000)),
        ("link=0.5x", replace(SLOW, transfer=1_400_000)),
        ("hide=all_reduce", replace(SLOW, transfer=0)),
        ("drop-rank=3", replace(BOUND, ranks=7)),
        ("drop-rank=5", replace(SLOW, ranks=7)),
        ("link=2x, drop-rank=3", replace(BOUND, ranks=7, transfer=350_000)),
    ],
)
def test_a_change_is_answered_as_the_changed_run_says(change: str, changed: Planted) -> None:
    found = slow_run().what_if(change)
    assert found.before_ms == pytest.approx(SLOW.length() / SLOW.steps / 1e6, rel=1e-9)
    assert found.after_ms == pytest.approx(changed.length() / changed.steps / 1e6, rel=1e-9)
    assert found.gain_pct == pytest.approx(100 * (1 - found.after_ms / found.before_ms))
    assert found.low_ms is not None and found.low_ms <= found.after_ms <= (found.high_ms or 0)
    assert change in found.sentence and str(found.bound_after) in found.sentence
    # The changed run as a timeline: profiled like any other, it takes as long.
    made = profile_run(slow_run().what_if_timeline(change))
    assert made.replay.recorded_ns == pytest.approx(changed.length(), abs=2 * RETURN)
    assert len(made.ranks) == changed.ranks and made.figures["steps"] == changed.ranks * changed.steps
    exposed = [sum(rank.partition.exposed_comm_ns for rank in run.ranks) for run in (made, changed.profile())]
    assert exposed[0] == pytest.approx(exposed[1], rel=0.02, abs=1e6)


def sharing(pace: float, ranks: int = 3, name: str = "ncclDevKernel") -> list[RankTimeline]:
    """Two buckets on two streams, in flight at once over one link, and an update that waits for both."""
    group = Comm("all_reduce", "0", "default", ranks, tuple(range(ranks)), dtype="float")
    work: list[list[dict[str, Any]]] = [[] for _ in range(ranks)]
    now, steps, rng = 0, [], np.random.default_rng(3)
    for step in range(6):
        first = now + rng.integers(9_000_000, 11_000_000, ranks)
        second = first + rng.integers(5_000_000, 6_000_000, ranks)
        # What is left of the first when the second sets out; then each goes at half the rate until one is done.
        small, large = 12e6 / pace, 20e6 / pace
        left = max(small - (second.max() - first.max()), 0)
        done = (second.max() + 2 * left) if left else first.max() + small
        last = second.max() + left + large
        assert left <= large
        now_ends = round(last) + 1_000_000
        for rank, (one, two) in enumerate(zip(first.tolist(), second.tolist(), strict=True)):
            for start, end, kind, stream, seq in (
                (now, one, Kind.COMPUTE, 7, 0), (one, two, Kind.COMPUTE, 7, 0), (one, round(done), Kind.COMM, 20, 1),
                (two, round(last), Kind.COMM, 21, 2), (round(last), now_ends, Kind.COMPUTE, 7, 0),
            ):  # fmt: skip
                comm = (
                    {"comm": group._replace(seq=2 * step + seq, in_elems=1000 * seq, out_elems=1000 * seq)}
                    if seq
                    else {}
                )
                work[rank].append({"start": start, "end": end, "kind": kind, "name": name if seq else "gemm",
                                   "lane": Lane("gpu", str(stream)), **comm})  # fmt: skip
        steps.append(Step(step, now, now_ends))
        now = now_ends
    return [RankTimeline(rank, Spans.build(rows), Spans.empty(), tuple(steps)) for rank, rows in enumerate(work)]


@pytest.mark.parametrize("pace", [0.25, 0.5, 1.0, 2.0, 8.0])
def test_transfers_in_flight_at_once_share_the_link_whatever_its_rate(pace: float) -> None:
    """At 8 times the rate they no longer meet; a replay that scaled their times would be up to a fifth off."""
    run, made = profile_run(Timeline(tuple(sharing(1.0)))), sharing(pace)
    assert run.replay.fidelity.replayed_ns == run.replay.recorded_ns
    assert run.what_if(f"link={pace}x").after_ms == pytest.approx(made[0].steps[-1].end / 6e6, rel=1e-4)
    seen = {one.count: one.seconds for one in of_timeline(Timeline(tuple(made))).collectives}
    assert seen == pytest.approx({4000.0: 0.012 / pace, 8000.0: 0.02 / pace}, rel=1e-3)


@pytest.mark.parametrize(("name", "payload"), [("gloo:all_reduce", 1448 / 1538), ("ncclDevKernel", 1.0)])
def test_a_rate_is_of_the_line_and_tcp_leaves_94_percent_of_it(name: str, payload: float) -> None:
    """8/3 of 4 and 8 kB take 12 and 20 ms alone: 4 ms of latency and 5.33 Mbit/s of payload."""
    run = profile_run(Timeline(tuple(sharing(1.0, name=name))))
    rate = 8 * (4 / 3 * 4000) / 0.008 / 1e6
    assert (same := run.what_if(f"link={rate / payload:.9f}mbit")).after_ms == pytest.approx(same.before_ms, rel=2e-3)
    assert run.what_if(f"link={2 * rate / payload:.9f}mbit").after_ms < 0.8 * same.before_ms
    assert ("94 % of a link's rate" in same.model) == (payload < 1)


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=12),
    st.floats(0.2, 5),
)
@settings(max_examples=30)
def test_a_link_shared_carries_what_its_transfers_take_alone(rows: list[tuple[int, int, int]], pace: float) -> None:
    """No link is idle while something waits for it, and none carries more than its rate."""
    link, begin, time = (np.array(column, np.float64) for column in zip(*rows, strict=True))
    link = link.astype(np.int64)
    lasted = shared(link, begin, time / pace)
    assert alone(link, begin, lasted) == pytest.approx(time / pace)
    for here in set(link.tolist()):
        own = link == here
        busy = union(
            np.round(begin[own] * 1e6).astype(np.int64), np.round((begin + lasted)[own] * 1e6).astype(np.int64)
        )
        assert (busy[1] - busy[0]).sum() / 1e6 == pytest.approx(time[own].sum() / pace, abs=1e-4)


@pytest.mark.parametrize("start_up", [0, 200_000])
def test_a_link_of_another_rate_keeps_the_recorded_latency(start_up: int) -> None:
    """Four sizes tell latency from bandwidth; the truth is the same run over a link three times as fast."""
    run = replace(SLOW, sizes=(1.0, 0.5, 0.25, 0.05), start_up=start_up, kernel=200_000, jitter=0.02)
    wire = 2 * 7 / 8 * 4 * ELEMENTS
    rate = 8e9 * wire / (run.transfer - start_up)
    found = run.profile().what_if(f"link={3 * rate / 1e6:.6f}mbit")
    faster = replace(run, transfer=round(start_up + (run.transfer - start_up) / 3))
    assert found.before_ms - found.after_ms == pytest.approx(truth(run, faster), rel=1e-3)
    assert f"recorded link: {rate / 1e6:.4g} Mbit/s" in found.model
    same = run.profile().what_if(f"link={rate / 1e6:.6f}mbit")
    assert same.after_ms == pytest.approx(same.before_ms, rel=1e-3)


def test_sizes_all_alike_leave_latency_unknown_and_no_sizes_the_rate() -> None:
    found = slow_run().what_if("link=1gbit")
    assert "latency unknown" in found.model and found.after_ms > found.before_ms
    with pytest.raises(InputError, match="recorded rate is unknown"):
        replace(SLOW, ranks=1).profile().what_if("link=1gbit")
    with pytest.raises(InputError, match="exchanges no gradients"):
        replace(SLOW, ranks=1).profile().what_if("co2:tau=2")


@pytest.mark.parametrize("tau", [1, 2, 4])
@pytest.mark.parametrize("run", [SLOW, replace(BOUND, kernel=100_000)], ids=["straggler", "slow link"])
def test_averages_every_tau_steps_take_what_the_run_that_makes_them_takes(run: Planted, tau: int) -> None:
    """The planted run has one blocking all-reduce a round, as long as those of a step; CO2's hides behind a round."""
    profile = run.profile()
    made, free = replace(run, every=tau), replace(run, every=100)
    waiting = profile.what_if(f"local-sgd:tau={tau}")
    assert waiting.after_ms * run.steps == pytest.approx(made.length() / 1e6, rel=5e-3)
    late = profile.what_if(f"co2:tau={tau}")
    exchange = run.layers * run.transfer / tau / 1e6
    assert late.after_ms == pytest.approx(max(free.length() / run.steps / 1e6, exchange), rel=5e-3)
    assert (late.bound_after.kind == "communication") == (late.after_ms == pytest.approx(exchange, rel=1e-9))
    assert late.after_ms <= waiting.after_ms
    halved = profile.what_if(f"link=2x,co2:tau={tau}")
    assert halved.after_ms == pytest.approx(max(free.length() / run.steps / 1e6, exchange / 2), rel=5e-3)


@pytest.mark.parametrize("tau", [1, 2, 3])
def test_the_changed_run_shows_its_averages(tau: int) -> None:
    """Local SGD's as the planted run makes them; CO2 waits for each one round late, and ends with one in flight."""
    made = slow_run().what_if_timeline(f"local-sgd:tau={tau}")
    assert max(rank.steps[-1].end for rank in made.ranks) == replace(SLOW, every=tau).length()
    late = slow_run().what_if_timeline(f"co2:tau={tau}")
    assert max(rank.steps[-1].end for rank in late.ranks) == replace(SLOW, every=100).length()
    exchange = SLOW.layers * SLOW.transfer
    for run in (made, late):
        sent = [rank.work.of(Kind.COMM) for rank in run.ranks]
        assert {len(spans) for spans in sent} == {SLOW.steps // tau}
        # The last to arrive is the slow rank.
        assert (sent[3].end - sent[3].start).tolist() == [exchange] * (SLOW.steps // tau)


@pytest.mark.parametrize("eta", [0.99, 0.5])
def test_sparse_gradients_are_gathered_once_a_step(eta: float) -> None:
    """A gather of all packets after the backward pass, at the recorded rate; of a half of them it takes longer."""
    per_byte = SLOW.transfer / (2 * 7 / 8 * 4 * ELEMENTS)
    entries = round((1 - eta) * SLOW.layers * ELEMENTS)
    packet = 4 * entries + min(4 * entries, SLOW.layers * ELEMENTS / 8)
    took = 7 * (8 + packet) * per_byte
    truth = replace(SLOW, every=1, link=lambda step: took / (SLOW.layers * SLOW.transfer))
    found = slow_run().what_if(f"dct:eta={eta}")
    assert found.after_ms == pytest.approx(truth.length() / SLOW.steps / 1e6, rel=1e-5)
    assert (found.gain_pct > 0) == (eta == 0.99)
    [names] = {tuple(rank.work.names) for rank in slow_run().what_if_timeline(f"dct:eta={eta}").ranks}
    assert set(names) == {"compute", "all_gather"}
    # Where communication hides all but its last transfer, less of it gains no more than that.
    hidden = replace(FAIR, transfer=50_000)
    assert hidden.profile().what_if("dct:eta=0.999").gain_pct < 100 * 50_000 * hidden.steps / hidden.length()


def simulated(technique: str, mode: str, free: bool = False) -> Simulation:
    cluster = load_cluster("h100x8-nvlink").change(kappa=0.0, kappa_comm=0.0)
    if free:
        cluster = cluster.change(intra=structs.replace(cluster.intra, alpha_s=1e-9, beta_s_per_byte=1e-16))
    work = load_workload("llama-8b", mode=mode, batch=1, sequence=128, tp=8, dp=1)
    planned = get_technique(technique).plan(work, cluster)
    return simulate(planned.graph, planned.ranks)


@pytest.mark.parametrize("mode", ["train", "decode"])
def test_ladder_on_a_recorded_run_takes_what_its_own_plan_takes(mode: str) -> None:
    recorded, truth = simulated("tensor-parallel", mode), simulated("ladder", mode)
    found = profile_run(recorded.timeline).what_if("ladder")
    assert truth.makespan < 0.9 * recorded.makespan
    # The turn from forward to backward is not told apart: one sum of 64 in each pass.
    assert found.after_ms == pytest.approx(found.before_ms * truth.makespan / recorded.makespan, rel=0.01)
    assert "another architecture" in found.model
    null = profile_run(simulated("tensor-parallel", mode, free=True).timeline).what_if("ladder")
    assert null.gain_pct < 0.2


def test_a_sum_on_the_stream_of_the_computation_goes_one_module_late_all_the_same() -> None:
    """Three modules of 10 with sums of 5 behind the first two: the first sum is hidden, the last is waited for."""
    lane = Lane("gpu", "7")
    spans = [(0, 10, ""), (10, 15, "all_reduce"), (15, 25, ""), (25, 30, "all_reduce"), (30, 40, "")]
    rows = [{"start": start, "end": end, "kind": Kind.COMM if op else Kind.COMPUTE, "name": op or "gemm",
             "lane": lane, **({"comm": Comm(op, "tp")} if op else {})} for start, end, op in spans]  # fmt: skip
    found = profile_run(Timeline((RankTimeline(0, Spans.build(rows), Spans.empty()),))).what_if("ladder")
    assert (found.before_ms, found.after_ms) == (40e-6, 35e-6)


HOST_BOUND = Planted(kernel=20_000, transfer=30_000, small=(6, 12_000))


@pytest.mark.parametrize(
    "run",
    [
        HOST_BOUND,
        replace(HOST_BOUND, slow={0: 1.3}),
        replace(HOST_BOUND, kernel=2_000, transfer=3_000),
        replace(HOST_BOUND, syncs=False, waits=False),
        replace(HOST_BOUND, threads=True),
    ],
)
def test_fused_kernels_save_their_launches(run: Planted) -> None:
    """Six kernels of 2 µs before each layer, launched every 6 µs; the truth is one of 12 µs."""
    found, truth = run.profile().what_if("fuse=small"), replace(run, small=(1, run.small[1]))
    assert found.before_ms == pytest.approx(run.length() / run.steps / 1e6)
    assert found.after_ms == pytest.approx(truth.length() / run.steps / 1e6, rel=1e-6) and found.gain_pct > 15
    assert found.model.startswith("48 kernels a rank and step become 8 launches")


def test_fusing_gains_nothing_where_kernels_are_long_or_have_no_neighbour() -> None:
    device_bound = replace(HOST_BOUND, small=(6, 120_000)).profile()
    assert device_bound.what_if("fuse=small").gain_pct == 0
    alone = replace(HOST_BOUND, small=(1, 12_000)).profile()
    assert alone.what_if("fuse=small").gain_pct == 0
    # Every kernel behind another of its name counts, long ones too: a forward and what follows it become one launch,
    # and between others lie the launches of all-reduces.
    assert slow_run().what_if("fuse=COMPUTE").model.startswith("9 kernels a rank and step become 5 launches")


def test_perfect_overlap_leaves_the_longer_of_work_and_communication() -> None:
    found = slow_run().what_if("overlap=perfect")
    work = SLOW.layers * 2 * SLOW.kernel * 1.1 * SLOW.steps / 1e6
    assert work <= found.after_ms * SLOW.steps <= work + 2 * SLOW.transfer / 1e6 and found.after_ms < found.before_ms
    assert (found.bound_before.rank, found.bound_after.kind) == (3, "compute")
    slow = replace(SLOW, transfer=3_000_000).profile().what_if("overlap=perfect")
    assert slow.bound_after.kind == "communication"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("link=2", "by a factor"),
        ("link=0x", "by a factor"),
        ("hide=barrier", "no such communication; it has all_reduce"),
        ("drop-rank=9", "no such rank was profiled"),
        ("drop-rank=-1", "a rank is a number"),
        ("drop-rank=0,drop-rank=1", "without its last rank"),
        ("overlap=good", "overlap=perfect"),
        ("link=300", "or has a rate"),
        ("link=0mbit", "or has a rate"),
        ("co2:tau=0", "number of steps from 1 up"),
        ("co2:tau=2,local-sgd:tau=2", "name one"),
        ("ladder", "nothing can go one module late"),
        ("ladder=2", "write ladder alone"),
        ("dct:eta=1", "share of the gradient held back"),
        ("dct:eta=0.9,co2:tau=2", "name one"),
        ("fuse=", "without commas"),
        ("fuse=flash", "no computation's name holds it"),
        ("fuse=n,fuse=small", "one fuse at a time"),
        ("", "unknown change"),
    ],
)
def test_a_change_that_means_nothing_says_what_would(change: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Planted().profile().what_if(change)


@pytest.mark.parametrize("syncs", [True, False])
def test_a_thread_that_hands_over_to_another_does_not_stall(syncs: bool) -> None:
    """While autograd's thread launches, the main one makes no call; a straggler costs what it costs."""
    run = replace(FAIR, threads=True, slow={3: 1.1}, syncs=syncs)
    found = run.profile()
    assert "host-stall" not in gains(found) and found.replay.fidelity.status == "ok"
    assert gains(found)["waiting-for-ranks"] == pytest.approx(truth(run, replace(FAIR, threads=True)), rel=0.01)


def test_clocks_a_second_apart_and_members_that_leave_late_hide_no_straggler() -> None:
    run = replace(BOUND, slow={3: 1.1}, skew=10**9, leave=4_000, steps=8)
    found = run.profile()
    assert found.together is not None and found.together.clocks.verdict == "aligned"
    assert found.replay.fidelity.status == "ok"
    cost = truth(replace(run, skew=0), replace(run, skew=0, slow={}))
    assert gains(found)["waiting-for-ranks"] == pytest.approx(cost, rel=0.05)
    assert found.causes[0].code == "exposed-communication" and found.causes[1].rank == 3


def stopping(run: Planted, stops: dict[int, tuple[int, ...]]) -> RunProfile:
    """The run with clocks that stand still for a while after some steps of a rank, as those of paused machines do."""
    ranks = []
    for rank in run.timelines():
        ends = np.array([rank.steps[step].end for step in stops.get(rank.rank, ())], np.int64)

        def later(at: Any, ends: Any = ends) -> Any:
            return at + 20_000_000 * np.searchsorted(ends, at)

        work, host = (replace_spans(spans, later) for spans in (rank.work, rank.host))
        steps = tuple(Step(step.number, int(later(step.start)), int(later(step.end))) for step in rank.steps)
        ranks.append(RankTimeline(rank.rank, work, host, steps, rank.origin))
    return profile_run(Timeline(tuple(ranks)))


def replace_spans(spans: Spans, later: Any) -> Spans:
    changed = spans.take(np.ones(len(spans), bool))
    changed.start[:], changed.end[:] = later(spans.start), later(spans.end)
    return changed


def test_ranks_whose_clocks_contradict_each_other_are_replayed_each_on_its_own() -> None:
    """Jumps of 20 ms after other steps on each rank: together they replay more than twice as long as any recorded."""
    run = replace(FAIR, ranks=3, transfer=100_000, steps=8)
    found = stopping(run, {0: (0, 1), 1: (2, 3), 2: (4, 5)})
    assert found.replay.fidelity.replayed_ns == found.replay.recorded_ns and found.replay.fidelity.status == "ok"
    assert any(note.code == "replay-apart" and "of the recorded time" in note.message for note in found.notes)
    assert "waiting-for-ranks" not in gains(found) and found.figures["slowdown"] is None
    exposed = max(rank.partition.exposed_comm_ns for rank in found.ranks) / run.steps / 1e6
    assert gains(found).get("exposed-communication", 0.0) <= exposed
    with pytest.raises(InputError, match="together, the replay with nothing changed takes"):
        found.what_if("co2:tau=2")
    # The same run with clocks that do not jump has all of it.
    assert not run.profile().replay.apart


def test_removing_a_kind_of_time_never_lengthens_the_run() -> None:
    replay = replace(FAIR, stall={(2, 1): 3_000_000}, jitter=0.05).profile().replay
    whole = replay.run_ns()
    for without in (("compute",), ("host", "launch"), ("idle",), ("stall",), ("compute", "host")):
        assert replay.run_ns(Change(without=without)) <= whole
    halves = [replay.run_ns(Change(transfer=factor * replay.transfer)) for factor in (0.0, 0.5, 1.0, 2.0)]
    assert halves == sorted(halves) and halves[2] == whole


def test_a_replay_without_rows_says_so() -> None:
    found = Replay({}).fidelity
    assert found.status == "none" and "nothing to replay" in found.sentence


@given(st.lists(st.permutations(range(4)), min_size=2, max_size=4))
@settings(max_examples=50)
def test_ranks_that_meet_in_contradictory_order_are_replayed_all_the_same(orders: list[list[int]]) -> None:
    """Every rank arrives at a communication and leaves it before the next; orders may contradict each other."""
    communication = np.array([number for order in orders for number in order for _ in range(2)])
    arrivals = np.arange(len(communication)) % 2 == 0
    at = np.arange(len(orders) + 1) * 8
    joins = ~arrivals
    order, dropped = _schedule(at, communication, arrivals, joins, np.full(4, len(orders)))
    assert sorted(order.tolist()) == list(range(len(communication)))
    place = np.argsort(order)
    for rank in range(len(orders)):
        assert np.all(np.diff(place[at[rank] : at[rank + 1]]) > 0)
    for end in np.flatnonzero(joins):
        same = np.flatnonzero(arrivals & (communication == communication[end]))
        assert place[same].max() < place[end]
    assert (dropped == 0) == (len(set(map(tuple, orders))) == 1) or joins.all()

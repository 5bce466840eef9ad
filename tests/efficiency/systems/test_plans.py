"""Plans of the data-parallel techniques and the pipeline, through the simulator, against closed forms."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densing.core import InputError
from densing.efficiency.parallel.pipeline.coding import codings
from densing.efficiency.simulation.cluster import Cluster, Device, Link
from densing.efficiency.simulation.costs import collective_seconds, wire_bytes
from densing.efficiency.simulation.engine import simulate
from densing.efficiency.simulation.workload import Split, Transformer, Workload, modules
from densing.efficiency.systems.ddp.technique import BUCKETS_MB
from densing.efficiency.systems.plan import Plan, measure
from densing.efficiency.systems.planner.base import STATE, Rounds
from densing.efficiency.timeline.timeline import Kind
from tests.support.plans import TOY, cluster, measured, plan, workload

LIMIT = settings(max_examples=25)


def compute_seconds(work: Workload, on: Cluster) -> float:
    return sum(m.flops + m.backward_flops for m in modules(work)) / on.device.flops


def all_reduce_seconds(work: Workload, on: Cluster) -> float:
    count = sum(m.parameters for m in modules(work)) * work.dtype_bytes
    return collective_seconds("all_reduce", count, on, range(work.split.dp))


def average_seconds(work: Workload, on: Cluster) -> float:
    """An average of the parameters is in full precision, whatever they are held in; a few numbers travel beside it."""
    count = 4 * (sum(m.parameters for m in modules(work)) + STATE)
    return collective_seconds("all_reduce", count, on, range(work.split.dp))


@LIMIT
@given(st.integers(2, 8), st.floats(1e-10, 1e-6), st.floats(0, 1e-3))
def test_ddp_with_one_bucket_exposes_the_whole_all_reduce(n: int, beta: float, alpha: float) -> None:
    work, on = workload(dp=n), cluster(n, alpha, beta)
    found = measured("ddp", work, on, bucket_mb=1000)
    assert found.exposed_comm_s == pytest.approx(all_reduce_seconds(work, on), rel=1e-5, abs=1e-8)
    assert found.step_s == pytest.approx(compute_seconds(work, on) + all_reduce_seconds(work, on), rel=1e-5, abs=1e-8)


@LIMIT
@given(st.floats(0.01, 0.5), st.floats(1e-10, 1e-7))
def test_ddp_buckets_leave_in_mid_backward(bucket_mb: float, beta: float) -> None:
    """The oracle keeps two clocks: the backward pass's, and that of the link."""
    work, on = workload(dp=4), cluster(4, 0.0, beta)
    bucket, pending, link = bucket_mb * 2**20, 0.0, 0.0
    now = sum(m.flops for m in modules(work)) / on.device.flops
    for module in reversed(modules(work)):
        now += module.backward_flops / on.device.flops
        pending += module.parameters * work.dtype_bytes
        while pending >= bucket:
            link, pending = max(link, now) + collective_seconds("all_reduce", bucket, on, range(4)), pending - bucket
    if pending:
        link = max(link, now) + collective_seconds("all_reduce", pending, on, range(4))
    assert measured("ddp", work, on, bucket_mb=bucket_mb).step_s == pytest.approx(max(now, link), rel=1e-4, abs=1e-8)


def test_ddp_sends_everything_at_once_first_and_then_a_small_bucket_before_the_large_ones() -> None:
    """torch cuts buckets after the first step, whose order of gradients it then knows: 1 MiB, then 25 MiB each."""
    large = Transformer("large", layers=8, hidden=1024, heads=8, kv_heads=8, head_dim=128, ffn=4096, vocabulary=512)
    work = Workload(large, sequence=32, split=Split(dp=2))
    total, mib = 2 * sum(m.parameters for m in modules(work)), 2**20

    def sent(step: int, **knobs: Any) -> list[int]:
        tasks = plan("ddp", work, cluster(2), **knobs).graph.tasks
        return [task.bytes for task in tasks if task.step == step and task.kind is Kind.COMM]

    assert sent(0) == sent(0, bucket_mb=25) == [total]
    whole = (total - mib) // (25 * mib)
    assert sent(1) == sent(2) == [mib, *[25 * mib] * whole, total - mib - whole * 25 * mib]
    assert sent(1, bucket_mb=25)[:2] == [25 * mib, 25 * mib]


def test_tuned_ddp_takes_the_best_of_its_sizes() -> None:
    large = Transformer("large", layers=8, hidden=1024, heads=8, kv_heads=8, head_dim=128, ffn=4096, vocabulary=512)
    work = Workload(large, sequence=512, split=Split(dp=2))
    for alpha, beta in ((0.0, 1e-9), (1e-3, 1e-10)):
        on = cluster(2, alpha, beta)
        steps = {size: measured("ddp", work, on, bucket_mb=size).step_s for size in BUCKETS_MB}
        assert measured("ddp-tuned", work, on).step_s == min(steps.values()) < max(steps.values())
    free, dear = ({size: measured("ddp", work, cluster(2, alpha), bucket_mb=size).step_s for size in (0.5, 8.0)}
                  for alpha in (0.0, 1e-3))  # fmt: skip
    assert free[0.5] < free[8.0] and dear[0.5] > dear[8.0]


def test_where_the_link_is_slow_a_co2_round_is_its_average_and_what_comes_between_two() -> None:
    """One buffer: the next average starts once the last one has been applied and the parameters copied."""
    work = workload(dp=2)
    parameters = sum(m.parameters for m in modules(work))
    on = cluster(2, beta=1e-6).change(device=Device("toy", 1e12, 1e9))
    round_s = 2 * measured("co2", work, on, tau=2).step_s
    # The outer step moves average and weight, and anchor and momentum twice; the copy reads weights of two bytes.
    between = parameters * ((4 + 2 + 16) + (2 + 4)) / 1e9
    assert round_s == pytest.approx(average_seconds(work, on) + 4 / 1e6 + between, rel=1e-6)


@LIMIT
@given(st.integers(1, 12), st.floats(0.05, 20))
def test_co2_exposes_what_tau_steps_do_not_cover(tau: int, ratio: float) -> None:
    work = workload(dp=2)
    step = compute_seconds(work, cluster(2))
    on = cluster(2, beta=1e-9 * ratio * step / average_seconds(work, cluster(2)))
    found = measured("co2", work, on, tau=tau)
    exposed = max(0.0, ratio * step - tau * step)
    assert found.exposed_comm_s * tau == pytest.approx(exposed, rel=1e-3, abs=2e-3 * step)
    assert found.step_s * tau == pytest.approx(max(tau, ratio) * step, rel=1e-3)
    assert found.exposed_comm_s == pytest.approx(0.0, abs=1e-8) or tau < ratio * 1.001


@pytest.mark.parametrize("name", ["co2", "local-sgd", "slowmo", "diloco", "fedft", "spafl"])
def test_steps_within_a_round_are_repeated_as_they_would_be_planned(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    work, on = workload(dp=2, tp=2, pp=2, batch=4, micro_batches=2), cluster(8, 1e-5, 1e-9, per_node=2)
    quick = plan(name, work, on, tau=7).graph.tasks
    monkeypatch.setattr(Rounds, "repeats", False)
    assert quick == plan(name, work, on, tau=7).graph.tasks


@LIMIT
@given(st.integers(1, 12), st.floats(0.05, 20), st.sampled_from(["local-sgd", "slowmo", "diloco"]))
def test_local_sgd_exposes_one_all_reduce_per_round(tau: int, ratio: float, name: str) -> None:
    work = workload(dp=2)
    step = compute_seconds(work, cluster(2))
    on = cluster(2, beta=1e-9 * ratio * step / average_seconds(work, cluster(2)))
    found = measured(name, work, on, tau=tau)
    assert found.exposed_comm_s == pytest.approx(ratio * step / tau, rel=1e-3)
    assert found.step_s == pytest.approx(step + ratio * step / tau, rel=1e-3)


def test_least_tau_that_hides_all_is_all_reduce_over_step() -> None:
    work = workload(dp=4)
    step = compute_seconds(work, cluster(4))
    on = cluster(4, beta=1e-9 * 5.5 * step / average_seconds(work, cluster(4)))
    exposed = {tau: measured("co2", work, on, tau=tau).exposed_comm_s for tau in range(1, 9)}
    hidden = [tau for tau, seconds in exposed.items() if seconds < 1e-8]
    assert hidden == [6, 7, 8]
    assert min(hidden) == math.ceil(average_seconds(work, on) / step)


def test_co2_is_steady_from_its_second_round_on() -> None:
    work = workload(dp=2)
    step = compute_seconds(work, cluster(2))
    on = cluster(2, beta=1e-9 * 7 * step / average_seconds(work, cluster(2)))
    found = plan("co2", work, on, tau=4)
    timeline = simulate(found.graph, found.ranks).timeline
    ends = [each.end / 1e9 for each in timeline.ranks[0].steps]
    assert found.warmup == 8 and len(ends) == 12
    assert ends[7] - ends[3] == pytest.approx(ends[11] - ends[7], rel=1e-4) == pytest.approx(7 * step, rel=1e-3)
    assert ends[3] == pytest.approx(4 * step, rel=1e-4)


def test_co2_within_inner_groups_all_reduces_gradients_each_step_and_masters_average_once() -> None:
    work, on = workload(dp=8), cluster(8, per_node=4)
    found = plan("co2", work, on, tau=2, inner=4)
    steady = [task for task in found.graph.tasks if task.step >= found.warmup]
    names = Counter(task.name for task in steady if task.kind is Kind.COMM)
    assert names == {"all_reduce gradients": 2, "all_reduce parameters": 1, "broadcast parameters": 1}
    groups = {task.name: task.comm.ranks for task in steady if task.comm}
    assert groups["all_reduce gradients"] == groups["broadcast parameters"] == (0, 1, 2, 3)
    assert groups["all_reduce parameters"] == (0, 4)


def test_rounds_keep_their_copies_in_full_precision() -> None:
    work = workload(dp=2)
    parameters = sum(m.parameters for m in modules(work))
    assert plan("co2", work, cluster(2), tau=1).memory["technique"] == parameters * 16
    assert plan("co2", work, cluster(2), tau=1, inner=2).memory["technique"] == parameters * 20
    assert plan("slowmo", work, cluster(2), tau=1).memory["technique"] == parameters * 12
    assert plan("local-sgd", work, cluster(2), tau=1).memory["technique"] == parameters * 4
    assert plan("ddp", work, cluster(2)).memory["technique"] == 0
    with_zero = [sum(plan(name, work, cluster(2)).memory.values()) for name in ("ddp", "zero1", "zero2", "zero3")]
    assert with_zero == sorted(with_zero, reverse=True) and len(set(with_zero)) == 4


def volume(found: Plan) -> float:
    """Bytes each rank sends per step."""
    return (
        sum(
            wire_bytes(task.comm.op, _full(task.comm.op, task.bytes, task.comm.group_size), task.comm.group_size)
            for task in found.graph.tasks
            if task.comm is not None and task.step >= found.warmup
        )
        / found.steps
    )


def _full(op: str, sent: int, n: int) -> float:
    return sent * n if op == "all_gather" else sent


@LIMIT
@given(st.integers(2, 16), st.floats(0.01, 100))
def test_zero_sends_as_much_as_ddp_and_with_parameters_split_half_as_much_again(n: int, bucket_mb: float) -> None:
    """Volumes of Rajbhandari et al. 2020, section 7: 2 psi, 2 psi, 3 psi (recalled)."""
    work, on = workload(dp=n), cluster(n)
    base = volume(plan("ddp", work, on, bucket_mb=bucket_mb))
    weights = sum(m.parameters for m in modules(work)) * work.dtype_bytes
    assert base == pytest.approx(2 * (n - 1) / n * weights, rel=1e-4)
    for name in ("zero1", "zero2"):
        assert volume(plan(name, work, on, bucket_mb=bucket_mb)) == pytest.approx(base, rel=1e-3)
    assert volume(plan("zero3", work, on)) == pytest.approx(1.5 * base, rel=1e-3)
    # Gradients are of two bytes here, averages of parameters always of four.
    assert volume(plan("co2", work, on, tau=4)) == pytest.approx(base / 2, rel=1e-4)


def test_gradients_split_are_exchanged_after_every_micro_batch() -> None:
    work, on = workload(dp=2, batch=4, micro_batches=4), cluster(2)
    counts = {}
    for name in ("ddp", "zero1", "zero2", "zero3"):
        found = plan(name, work, on)
        names = Counter(task.name.split()[0] for task in found.graph.tasks if task.step == 1 and task.comm)
        counts[name] = names["all_reduce"] + names["reduce_scatter"]
    assert counts == {"ddp": 1, "zero1": 1, "zero2": 4, "zero3": 4 * (TOY.layers + 2)}


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_zero3_gathers_a_layer_before_its_compute_and_so_many_ahead(prefetch: int) -> None:
    work, on = workload(dp=2), cluster(2, beta=1e-8)
    found = plan("zero3", work, on, prefetch=prefetch)
    result = simulate(found.graph, found.ranks)
    tasks = list(enumerate(found.graph.tasks))
    gathers = [number for number, task in tasks if task.name == "all_gather parameters" and task.step == 1]
    assert len(gathers) == 2 * (TOY.layers + 2)
    forward = [number for number, task in tasks if task.name.startswith("forward") and task.step == 1]
    for at, number in enumerate(forward[1:-1], 1):
        ahead = [each for each in gathers if result.start[each] < result.start[number]]
        assert at + 1 <= len(ahead) <= at + 1 + prefetch


def test_zero3_with_room_ahead_hides_what_one_without_exposes() -> None:
    work, on = workload(dp=2), cluster(2, beta=1e-10)
    exposed = [measured("zero3", work, on, prefetch=many).exposed_comm_s for many in (0, 1, 2)]
    assert exposed[0] > 2 * exposed[1] and exposed[1] >= exposed[2]


@LIMIT
@given(st.integers(2, 3), st.integers(1, 8))
def test_one_forward_one_backward_has_the_known_bubble(stages: int, micro_batches: int) -> None:
    """Narayanan et al. 2021: a step takes (m + p - 1) turns of forward and backward (equal stages, free links)."""
    even = Transformer("even", layers=stages, hidden=64, heads=8, kv_heads=8, head_dim=8, ffn=256, vocabulary=1)
    work = Workload(even, batch=micro_batches, sequence=64, split=Split(pp=stages), micro_batches=micro_batches)
    on = cluster(stages, beta=0.0)
    found = plan("pipeline", work, on)
    turn = 0.0
    for stage in range(stages):
        mine = [t for t in found.graph.tasks if t.step == 0 and t.kind is Kind.COMPUTE and t.ranks == (stage,)]
        turn = max(turn, sum(t.seconds for t in mine) / micro_batches)
    step = measure(found, on).step_s
    # Embedding and head make the outer stages a little longer.
    assert step == pytest.approx((micro_batches + stages - 1) * turn, rel=0.05)


def test_a_pipeline_hands_on_each_micro_batch_once_in_either_direction() -> None:
    work, on = workload(pp=3, dp=2, batch=4, micro_batches=4), cluster(6)
    found = plan("pipeline", work, on)
    sends = Counter((task.name, task.ranks) for task in found.graph.tasks if task.name.startswith("send"))
    assert sends == {
        **{("send activations", (stage,)): 4 * 3 for stage in (0, 1)},
        **{("send gradients", (stage,)): 4 * 3 for stage in (1, 2)},
    }
    activation = modules(work)[1].activation
    assert {task.bytes for task in found.graph.tasks if task.name.startswith("send")} == {activation}
    assert found.ranks == 3 and found.stands_for == {0: 2, 1: 2, 2: 2}


def test_a_pipelines_codec_weighs_in_plans_what_it_weighs_in_runs() -> None:
    work, on = workload(pp=3, batch=4, micro_batches=4), cluster(3, per_node=1)
    count = modules(work)[1].activation // work.dtype_bytes
    rows, width = count // work.model.hidden, work.model.hidden
    for codec, share, refresh in (("int8", "1.0", 1), ("topk", "0.1,0.02", 1), ("threshold", "0.2", 5)):
        tasks = plan("pipeline", work, on, codec=codec, share=share, refresh=refresh).graph.tasks
        for edge, own in enumerate(codings(2, codec, [float(each) for each in share.split(",")], refresh)):
            there, back = own.bytes(rows, width, work.dtype_bytes)
            sent = {(task.name, task.bytes) for task in tasks if task.name.startswith("send") and task.ranks == (edge,)}
            assert ("send activations", there) in sent
            assert (("send length", 8) in sent) == (refresh > 1)
            assert {task.bytes for task in tasks if task.name == "send gradients" and task.ranks == (edge + 1,)} == {
                back
            }
        work_s = {task.name: task.seconds for task in tasks if task.name.startswith(("encode", "decode"))}
        assert work_s.keys() == {f"{do} {what}" for do in ("encode", "decode") for what in ("activations", "gradients")}
        assert all(seconds > 0 for seconds in work_s.values())


def test_what_a_middle_stage_sends_both_ways_passes_one_interface() -> None:
    # Free computation, and links that take a second for a micro-batch's activations.
    work = workload(pp=3, batch=8, micro_batches=8)
    beta = 1 / modules(work)[1].activation
    free = cluster(3, 0.0, beta, per_node=1)
    free = free.change(device=Device("free", 1e30, 1e30))
    # The middle one sends every micro-batch on and back; between the chips of one node each pair has its own link.
    assert measured("pipeline", work, free).step_s == pytest.approx(2 * 8, rel=0.3)
    inside = free.change(per_node=3, intra=Link(0.0, beta))
    assert measured("pipeline", work, inside).step_s < 0.8 * measured("pipeline", work, free).step_s


def test_cuts_as_a_knob_are_the_splits() -> None:
    on = cluster(2)
    toy = Transformer("toy", layers=4, hidden=64, heads=8, kv_heads=8, head_dim=8, ffn=256, vocabulary=128)
    deep = Workload(toy, split=Split(pp=2), sequence=32, batch=2, micro_batches=2)
    cut = Workload(toy, split=Split(pp=2, cuts=(3,)), sequence=32, batch=2, micro_batches=2)
    assert plan("pipeline", deep, on, cuts="3").graph.tasks == plan("pipeline", cut, on).graph.tasks
    with pytest.raises(InputError, match="without layers"):
        plan("pipeline", deep, on, cuts="4")
    with pytest.raises(InputError, match="none of dense"):
        plan("pipeline", deep, on, codec="zip")


REPLICATED = ["sequential", "ddp", "zero1", "zero2", "zero3"]


@LIMIT
@given(st.sampled_from(REPLICATED[1:]), st.integers(2, 6), st.floats(1e-11, 1e-7), st.floats(0.01, 1))
def test_between_no_communication_and_sequential(name: str, n: int, beta: float, bucket_mb: float) -> None:
    work, on = workload(dp=n), cluster(n, 0.0, beta)
    knobs = {} if name == "zero3" else {"bucket_mb": bucket_mb}
    least = measured(name, work, on.change(inter=Link(0, 0))).step_s
    most = measured("sequential", work, on, bucket_mb=bucket_mb).step_s * (1.5 if name == "zero3" else 1)
    assert least * (1 - 1e-6) - 1e-8 <= measured(name, work, on, **knobs).step_s <= most * (1 + 1e-6) + 1e-8


def test_sequential_hides_nothing() -> None:
    found = measured("sequential", workload(dp=2, tp=2), cluster(4, 1e-5, 1e-9, per_node=2), bucket_mb=0.05)
    assert found.overlap_ratio == 0 and found.exposed_comm_s > 0

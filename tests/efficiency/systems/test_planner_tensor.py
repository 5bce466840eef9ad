"""Plans of the tensor-parallel techniques, through the simulator, against closed forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from densing.efficiency.simulation.cluster import Cluster, Device, Link
from densing.efficiency.simulation.engine import simulate
from densing.efficiency.simulation.tasks import Graph
from densing.efficiency.simulation.workload import Module, Split, Transformer, Workload, modules
from densing.efficiency.systems.iso.technique import Halves, best_share
from densing.efficiency.systems.ladder_residual.technique import Late
from densing.efficiency.systems.plan import Plan, measure
from densing.efficiency.systems.planner.base import plan_steps
from densing.efficiency.systems.planner.collectives import CostModel, Use
from densing.efficiency.systems.planner.exchange import Blocking, TensorSchedule
from densing.efficiency.systems.planner.stage import product_share
from densing.efficiency.systems.registry import get_technique
from densing.efficiency.systems.t3.technique import Hardware, sublayer
from densing.efficiency.timeline.timeline import Kind

TOY = Transformer("toy", layers=4, hidden=64, heads=8, kv_heads=8, head_dim=8, ffn=256, vocabulary=128)
SCHEDULES = ("tensor-parallel", "parallel-attention", "ladder", "iso", "t3")
LIMIT = settings(max_examples=30)
TIMES = st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 1000)), min_size=2, max_size=12)


def cluster(n: int, alpha: float = 0.0, beta: float = 1e-9, flops: float = 1e12, mem_bw: float = 1e30) -> Cluster:
    link = Link(alpha, beta)
    return Cluster("toy", n, n, Device("toy", flops, mem_bw), intra=link, inter=link, host=link)


def workload(mode: str = "train", tp: int = 4, **fields: Any) -> Workload:
    return Workload(TOY, mode, sequence=64, split=Split(tp=tp, **fields))


def step(name: str, work: Workload, on: Cluster, **knobs: Any) -> float:
    return measure(get_technique(name).plan(work, on, **knobs), on).step_s


def given_times(times: Sequence[tuple[int, int]], schedule: TensorSchedule) -> Plan:
    """Plan one pass over modules of so many milliseconds of compute and of all-reduce."""
    found = [
        Module(("attention", "mlp")[at % 2], at // 2, compute, 0.0, 0.0, 0.0, 0, activation)
        for at, (compute, activation) in enumerate(times)
    ]
    on = cluster(2, beta=1e-3, flops=1e3)
    return plan_steps(workload("prefill", 2), on, schedule, modules=[found], warmup=0, steps=1)


def makespan(plan: Plan) -> float:
    return simulate(plan.graph, plan.ranks).makespan


@LIMIT
@given(TIMES)
def test_blocking_sums_take_compute_and_communication(times: list[tuple[int, int]]) -> None:
    assert makespan(given_times(times, Blocking())) == pytest.approx(sum(c + r for c, r in times) / 1e3)


@LIMIT
@given(TIMES)
def test_ladder_follows_the_published_loop(times: list[tuple[int, int]]) -> None:
    """The oracle runs the loop of the paper's released code with a clock for compute and one for the link."""
    now = link = 0.0
    pa = pm = 0.0
    for at, (compute, reduce) in enumerate(times):
        now = max(now, pa if at % 2 == 0 else pm) + compute
        link = max(link, now) + reduce
        done = link if reduce else now
        pa, pm = (done, pm) if at % 2 == 0 else (pa, done)
    assert makespan(given_times(times, Late())) == pytest.approx(max(now, pa, pm) / 1e3)


@LIMIT
@given(st.integers(1, 1000), st.integers(1, 1000), st.integers(2, 20))
def test_ladder_takes_the_longer_of_compute_and_communication_per_module(c: int, r: int, count: int) -> None:
    expected = (count - 1) * max(c, r) + c + r
    assert makespan(given_times([(c, r)] * count, Late())) == pytest.approx(expected / 1e3)


@LIMIT
@given(TIMES)
def test_ladder_lies_between_no_communication_and_blocking(times: list[tuple[int, int]]) -> None:
    least = max(sum(c for c, _ in times), sum(r for _, r in times)) / 1e3
    found = makespan(given_times(times, Late()))
    assert least - 1e-9 <= found <= makespan(given_times(times, Blocking())) + 1e-9


def test_a_ladder_over_some_layers_lies_between_none_and_all() -> None:
    work, on = workload(), cluster(4, beta=1e-8)
    steps = [step("ladder", work, on, ladder_layers=many) for many in (1, 2, 3, 4)]
    assert step("tensor-parallel", work, on) > steps[0] > steps[1] > steps[2] > steps[3]
    assert steps[3] == step("ladder", work, on)


@pytest.mark.parametrize("mode", ["prefill", "train"])
@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9, 1.5, 4.0])
def test_ladder_backward_hides_as_much_as_forward(mode: str, ratio: float) -> None:
    """Every module's compute and sum are in the same ratio in the backward pass if its sums take twice as long."""
    work, on = workload(mode, 2), cluster(2)
    found = modules(work)[1]
    on = cluster(2, beta=ratio * found.flops / on.device.flops / found.activation)
    hidden = measure(get_technique("ladder").plan(work, on), on)
    blocking = measure(get_technique("tensor-parallel").plan(work, on), on)
    assert blocking.overlap_ratio == 0 and hidden.overlap_ratio is not None
    assert hidden.overlap_ratio > 0.8 * min(1, 1 / ratio) * (1 - 1 / (2 * TOY.layers) if mode == "prefill" else 0.7)
    assert hidden.step_s < blocking.step_s


@pytest.mark.parametrize(
    ("mode", "vocabulary", "more"), [("train", True, 2), ("train", False, 0), ("prefill", True, 0)]
)
def test_a_split_vocabulary_adds_two_sums_in_training(mode: str, vocabulary: bool, more: int) -> None:
    found = get_technique("ladder").plan(workload(mode, vocabulary=vocabulary), cluster(4))
    sums = [task for task in found.graph.tasks if task.kind is Kind.COMM and task.step == 1]
    assert len(sums) == 2 * TOY.layers * (2 if mode == "train" else 1) + more


def test_parallel_attention_sums_once_per_layer() -> None:
    work, on = workload("prefill"), cluster(4)
    counts = {}
    for name in ("tensor-parallel", "parallel-attention", "ladder", "iso"):
        found = get_technique(name).plan(work, on)
        sums = [task for task in found.graph.tasks if task.kind is Kind.COMM and task.step == 1]
        counts[name] = len(sums), sum(task.bytes for task in sums)
    activation, layers = modules(work)[1].activation, TOY.layers
    assert counts == {
        "tensor-parallel": (2 * layers, 2 * layers * activation),
        "parallel-attention": (layers, layers * activation),
        "ladder": (2 * layers, 2 * layers * activation),
        "iso": (4 * layers, 2 * layers * activation),
    }


@LIMIT
@given(st.floats(1e-12, 1e-6), st.sampled_from(["prefill", "train"]), st.floats(0.2, 0.8))
def test_iso_gains_no_more_than_the_smaller_of_compute_and_communication(beta: float, mode: str, split: float) -> None:
    work, on = workload(mode), cluster(4, beta=beta)
    serial = step("tensor-parallel", work, on)
    fraction = 1 - step("tensor-parallel", work, cluster(4, beta=0.0)) / serial
    gain = 1 - step("iso", work, on, split=split) / serial
    assert -1e-5 <= gain <= min(fraction, 1 - fraction) + 1e-5


def test_iso_gains_most_where_compute_and_communication_balance_and_loses_where_latency_rules() -> None:
    work, on = workload("prefill"), cluster(4)
    compute = sum(m.flops for m in modules(work)) / on.device.flops
    each = compute / (2 * TOY.layers)

    def gain(alpha: float, beta: float) -> float:
        there = cluster(4, alpha, beta)
        return 1 - step("iso", work, there) / step("tensor-parallel", work, there)

    volume = 1.5 * modules(work)[1].activation
    balanced = gain(0.0, each / volume)
    assert balanced > 0.35
    assert gain(0.0, 0.1 * each / volume) < balanced > gain(0.0, 10 * each / volume)
    # Six messages of a ring of four: latency alone takes twice the compute, and is paid for either half.
    assert gain(2 * each / 6, 0.0) < -0.1


def test_iso_gains_where_latency_rules_if_two_sums_wait_for_answers_at_once() -> None:
    """Per module: half of its compute, then one latency, beside which the other half computes and its sum begins."""
    work = workload("prefill", 2)
    compute = step("tensor-parallel", work, cluster(2, beta=0.0))
    blocks = 2 * TOY.layers
    latency = 2 * 3 * compute / blocks
    serial = cluster(2, alpha=latency / 2, beta=0.0)
    pipelined = serial.change(pipelined=1.0)
    assert step("tensor-parallel", work, serial) == pytest.approx(compute + blocks * latency, rel=1e-4)
    assert step("tensor-parallel", work, pipelined) == pytest.approx(compute + blocks * latency, rel=1e-4)
    assert step("iso", work, serial) == pytest.approx(2 * blocks * latency, rel=0.02)
    # Of the last part everything shows; later tokens attend to more, so halves of attention are not quite equal.
    assert step("iso", work, pipelined) == pytest.approx(blocks * latency + compute / 2, rel=0.02)
    assert step("iso", work, pipelined) < step("tensor-parallel", work, pipelined) < step("iso", work, serial)


@LIMIT
@given(st.sampled_from(SCHEDULES), st.floats(0, 1), st.floats(1e-12, 1e-8), st.floats(0, 1e-4))
def test_latencies_that_overlap_shorten_only_what_has_several_sums_under_way(
    name: str, share: float, beta: float, alpha: float
) -> None:
    serial = cluster(4, alpha, beta)
    pipelined = step(name, workload(), serial.change(pipelined=share))
    if name in ("tensor-parallel", "parallel-attention"):
        assert pipelined == pytest.approx(step(name, workload(), serial), rel=1e-6, abs=1e-8)
    else:
        assert pipelined <= step(name, workload(), serial) * (1 + 1e-6) + 1e-8


@LIMIT
@given(st.integers(1, 9), st.floats(0, 1))
def test_two_collectives_are_under_way_at_once_and_their_bytes_one_after_the_other(many: int, share: float) -> None:
    """Six seconds of latency and one of transfer each, all started at once; the oracle keeps two threads and a wire."""
    on = cluster(2, alpha=3.0, beta=1.0).change(pipelined=share)
    graph, model = Graph(), CostModel(on, Use("tp"))
    for _ in range(many):
        model.add(graph, "sum", "all_reduce", 1.0, (0, 1), (0,), "comm", ())
    threads, wire = [0.0, 0.0], 0.0
    for number in range(many):
        wire = max(threads[number % 2] + 6 * share, wire) + 6 * (1 - share) + 1
        threads[number % 2] = wire
    assert simulate(graph).makespan == pytest.approx(wire if share else 7.0 * many)


def test_iso_reads_all_weights_for_either_half() -> None:
    """Where memory bounds a module, its halves together take longer than it does."""
    work = workload("prefill")
    slow = cluster(4, beta=0.0, mem_bw=1e9)
    assert step("iso", work, slow) > 1.1 * step("tensor-parallel", work, slow)
    quick = cluster(4, beta=0.0)
    assert step("iso", work, quick) == pytest.approx(step("tensor-parallel", work, quick), rel=1e-4)


@pytest.mark.parametrize("beta", [1e-10, 1e-9, 1e-8])
def test_an_adaptive_split_is_no_worse_than_half(beta: float) -> None:
    work, on = workload("prefill"), cluster(4, beta=beta)
    assert step("iso", work, on, split="auto") <= step("iso", work, on) * (1 + 1e-3)
    assert 0.3 <= best_share(work, on) <= 0.7


def test_in_iso_the_second_half_attends_to_more_and_goes_first_backward() -> None:
    work, on = workload("train"), cluster(4)
    found = plan_steps(work, on, Halves(0.5), warmup=0, steps=1)
    attention = [task for task in found.graph.tasks if "attention" in task.name and task.kind is Kind.COMPUTE]
    first = {task.name: task.seconds for task in attention}
    assert first["forward attention A 0"] < first["forward attention B 0"]
    assert sum(task.seconds for task in attention if task.name.startswith("forward")) == pytest.approx(
        sum(m.flops for m in modules(work) if m.name == "attention") / on.device.flops
    )
    names = [task.name for task in attention]
    assert names.index("forward attention A 0") < names.index("forward attention B 0")
    assert names.index("backward attention B 0") < names.index("backward attention A 0")


SECONDS = st.floats(1e-6, 1.0)


@LIMIT
@given(SECONDS, SECONDS, SECONDS, st.integers(1, 64), st.floats(0, 0.5), st.floats(0, 0.5))
def test_t3_takes_what_its_formula_says(
    gemm: float, scatter: float, gather: float, stages: int, nmc: float, kappa: float
) -> None:
    """Formula of the reading note on the paper; the product bounds it, the last stage's transfer is exposed."""
    gemm, scatter = max(gemm, scatter), min(gemm, scatter)
    found = simulate(sublayer(gemm, scatter, gather, Hardware(stages, nmc, kappa))).makespan
    expected = gemm * (1 + kappa) + scatter * (1 - nmc) / stages + gather
    assert found == pytest.approx(expected)


@LIMIT
@given(SECONDS, SECONDS, SECONDS, st.integers(1, 256))
def test_t3_is_bounded_by_half_as_fast_again(gemm: float, scatter: float, gather: float, stages: int) -> None:
    """1.5 at most where reduce-scatter and all-gather take as long as each other, as in a ring."""
    gather = scatter
    ideal = max(gemm, scatter) + gather
    serial = simulate(sublayer(gemm, scatter, gather)).makespan
    found = simulate(sublayer(gemm, scatter, gather, Hardware(stages))).makespan
    assert ideal - 1e-9 <= found <= serial + 1e-9
    assert serial / found <= 1.5 + 1e-9


def test_t3_reaches_its_bound_with_many_stages_and_arbitration_helps() -> None:
    serial = simulate(sublayer(1.0, 1.0, 1.0)).makespan
    assert serial / simulate(sublayer(1.0, 1.0, 1.0, Hardware(1000))).makespan == pytest.approx(1.5, rel=1e-3)
    work, on = workload("prefill"), cluster(4, beta=3e-10)
    knobs = {"n_stages": 16, "kappa": 0.3, "kappa_mca": 0.1}
    ideal = step("t3", work, on, n_stages=200)
    steps = [ideal, step("t3", work, on, mca=True, **knobs), step("t3", work, on, mca=False, **knobs)]
    assert steps[0] < steps[1] < steps[2] < step("tensor-parallel", work, on)
    assert step("t3", work, on, nmc=0.5) < step("t3", work, on)


def test_t3_with_one_stage_overlaps_nothing() -> None:
    work, on = workload("train"), cluster(4, 1e-6, 1e-9)
    assert step("t3", work, on, n_stages=1) == pytest.approx(step("tensor-parallel", work, on), rel=1e-5)


def test_share_of_the_product_that_is_summed() -> None:
    """A quarter of attention's projections, a third of a gated MLP; backward the other matrices, of twice the work."""
    work = workload("train", 2)
    attention, mlp = modules(work)[1:3]
    scores = 4 * 64 * 64 * 64 / 2
    projection = 2 * 64 * 64 * 64 / 2
    assert product_share(work, attention, "forward") == pytest.approx(projection / (4 * projection + scores), rel=1e-3)
    assert product_share(work, mlp, "forward") == pytest.approx(1 / 3, rel=2e-2)
    assert product_share(work, mlp, "backward") == pytest.approx(1 / 3, rel=2e-2)


@LIMIT
@given(st.sampled_from(SCHEDULES), st.floats(1e-12, 1e-7), st.sampled_from(["prefill", "train"]), st.booleans())
def test_between_no_communication_and_sequential(name: str, beta: float, mode: str, sequence: bool) -> None:
    work, on = workload(mode, sequence=sequence), cluster(4, 0.0, beta)
    least = step("sequential", work, on.change(intra=Link(0, 0)))
    assert least * (1 - 1e-5) <= step(name, work, on) <= step("sequential", work, on) * (1 + 1e-5)


@pytest.mark.parametrize("name", ["tensor-parallel", "ladder"])
def test_a_split_sequence_replaces_each_sum_by_two_halves(name: str) -> None:
    on = cluster(4, 1e-6, 1e-9)
    split, whole = workload("prefill", sequence=True), workload("prefill")
    plans = [get_technique(name).plan(work, on) for work in (split, whole)]
    ops = [{task.comm.op for task in plan.graph.tasks if task.comm} for plan in plans]
    assert ops == [{"reduce_scatter", "all_gather"}, {"all_reduce"}]


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "iso"])
def test_decoding_waits_for_the_last_token(name: str) -> None:
    work, on = workload("decode"), cluster(4, 1e-6, 1e-9)
    found = get_technique(name).plan(work, on)
    result = simulate(found.graph, found.ranks)
    ends = [max(result.end[at] for at, task in enumerate(found.graph.tasks) if task.step == step) for step in range(3)]
    starts = [min(result.start[at] for at, task in enumerate(found.graph.tasks) if task.step == s) for s in range(3)]
    assert all(starts[at + 1] >= ends[at] - 1e-12 for at in range(2))


@LIMIT
@given(st.floats(0.0, 2.0), st.floats(1e-10, 1e-8))
def test_contention_only_costs_what_runs_side_by_side(kappa: float, beta: float) -> None:
    work, on = workload("prefill"), cluster(4, 0.0, beta)
    crowded = on.change(kappa=kappa)
    assert step("tensor-parallel", work, crowded) == pytest.approx(step("tensor-parallel", work, on), rel=1e-6)
    assume(kappa > 0.01)
    plain, slowed = step("ladder", work, on), step("ladder", work, crowded)
    assert plain <= slowed * (1 + 1e-6) and slowed <= plain * (1 + kappa) * (1 + 1e-6)

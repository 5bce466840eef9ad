"""The planner's parts: groups, knobs, refusals, merging, other providers of collectives, what a run is handed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from inspect import signature
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densing.core.errors import InputError, UnknownNameError
from densing.efficiency.parallel import one_forward_one_backward
from densing.efficiency.simulation.cluster import Cluster, Device, Link
from densing.efficiency.simulation.engine import simulate
from densing.efficiency.simulation.tasks import Graph
from densing.efficiency.simulation.workload import Split, Transformer, Workload
from densing.efficiency.systems.planner.base import DataParallelRun, TensorParallelRun, merged, plan_steps, run_knobs
from densing.efficiency.systems.planner.collectives import CostModel, Use
from densing.efficiency.systems.planner.exchange import Blocking, Buckets, cut
from densing.efficiency.systems.planner.stage import NOTHING, Edge, Layout, join
from densing.efficiency.systems.prox_csl.technique import Convex
from densing.efficiency.systems.registry import BUILT_IN, get_technique, settle
from densing.efficiency.timeline.timeline import Kind

TOY = Transformer("toy", layers=2, hidden=64, heads=8, kv_heads=8, head_dim=8, ffn=256, vocabulary=128)
NAMES = [name for name in BUILT_IN if name != "taccl"]
SUMS = ("uc-mmc", "gradient-coding", "gc-mmc", "backup-workers")
"""Rules for sums of gradients, whatever they are gradients of."""
CONVEX = ("naive-average", "owa", "csl", "prox-csl", "owl-qn")
TABLES = ("device-table", "host-gather", "pinned-gather", "zero-copy")


def cluster(n: int, per_node: int = 4, shared: str = "", **fields: Any) -> Cluster:
    link = Link(1e-6, 1e-9)
    inter = Link(1e-5, 1e-8, shared)
    return Cluster("toy", n, per_node, Device("toy", 1e12, 1e12), intra=link, inter=inter, host=link, **fields)


def workload(mode: str = "train", micro_batches: int = 1, batch: int = 4, **split: int) -> Workload:
    return Workload(TOY, mode, batch=batch, sequence=32, split=Split(**split), micro_batches=micro_batches)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_groups_partition_the_ranks(dp: int, tp: int, pp: int) -> None:
    layout = Layout(Split(dp=dp, tp=tp, pp=pp), cluster(dp * tp * pp))
    for kind, size in (("tp", tp), ("dp", dp)):
        groups = [group for stage in range(pp) for group in layout.real(kind, stage)]
        assert sorted(rank for group in groups for rank in group) == list(range(dp * tp * pp))
        assert {len(group) for group in groups} == {size}
    tensor = [set(group) for stage in range(pp) for group in layout.real("tp", stage)]
    data = [set(group) for stage in range(pp) for group in layout.real("dp", stage)]
    assert all(len(one & other) <= 1 for one in tensor for other in data)


@pytest.mark.parametrize(
    ("split", "per_node", "tp", "dp", "level", "exclusive"),
    [
        (Split(dp=2, tp=4), 4, 1, 4, "inter", False),
        (Split(dp=2, tp=2), 4, 2, 2, "intra", True),
        (Split(dp=4, tp=2), 4, 2, 2, "inter", False),
        (Split(dp=2, tp=4), 2, 1, 2, "inter", True),
        (Split(dp=8), 4, 4, 1, "inter", False),
    ],
)
def test_groups_of_a_node_share_its_links(
    split: Split, per_node: int, tp: int, dp: int, level: str, exclusive: bool
) -> None:
    layout = Layout(split, cluster(8, per_node))
    assert (layout.concurrent("tp"), layout.concurrent("dp")) == (tp, dp)
    assert layout.level("dp") == level
    assert layout.exclusive("dp") is layout.exclusive("tp") is exclusive


def test_groups_that_share_an_interface_take_their_turns() -> None:
    """Four data-parallel groups leave a node at once: through one interface each takes four times as long."""
    work = workload(dp=2, tp=4)
    steps = []
    for shared in ("", "nic"):
        found = get_technique("ddp").plan(work, cluster(8, shared=shared), bucket_mb=1000)
        steps.append(next(task.seconds for task in found.graph.tasks if task.name == "all_reduce gradients"))
    latency = 2 * 1e-5
    assert steps[1] - latency == pytest.approx(4 * (steps[0] - latency), rel=1e-6)


def test_one_link_serves_tensor_and_data_parallel_groups_one_at_a_time() -> None:
    work, on = workload(dp=2, tp=2), cluster(4)
    found = get_technique("ddp").plan(work, on, bucket_mb=0.05)
    result = simulate(found.graph, found.ranks)
    comm = sorted((result.start[at], result.end[at]) for at, t in enumerate(found.graph.tasks) if t.kind is Kind.COMM)
    assert all(later[0] >= sooner[1] - 1e-12 for sooner, later in pairwise(comm))
    averages = get_technique("local-sgd").plan(work, on, tau=1, bucket_mb=0.05).graph.tasks
    assert sum(task.name == "all_reduce parameters" for task in averages) > 2


@given(st.integers(1, 6), st.integers(1, 10), st.data())
def test_each_stage_passes_each_micro_batch_once_each_way(stages: int, micros: int, data: st.DataObject) -> None:
    stage = data.draw(st.integers(0, stages - 1))
    turns = one_forward_one_backward(stage, stages, micros)
    for phase in ("forward", "backward"):
        assert [turn.micro for turn in turns if turn.phase == phase] == list(range(micros))
    open_, most = 0, 0
    for turn in turns:
        open_ += 1 if turn.phase == "forward" else -1
        most = max(most, open_)
        assert open_ >= 0
    assert most == min(stages - stage, micros)


@given(st.floats(0, 1e12), st.floats(1, 1e10))
@settings(max_examples=50)
def test_buckets_hold_what_is_to_be_sent(total: float, bucket: float) -> None:
    if total / bucket > 1e4:
        return
    sizes = cut(total, bucket)
    assert sum(sizes) == pytest.approx(total) and all(0 < size <= bucket for size in sizes)


def test_joined_events_name_each_task_once() -> None:
    assert join() == join(NOTHING, NOTHING) == NOTHING
    assert join(((1,),), NOTHING) == ((1,),)
    with pytest.raises(ValueError, match="zip"):
        join(((1,),), ((1,), (2,)))


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 5), st.lists(st.integers(0, 40), max_size=2), st.integers(0, 1)),
        min_size=1,
        max_size=40,
    ),
    st.floats(0, 1),
)
@settings(max_examples=60)
def test_merging_changes_no_time(rows: list[tuple[bool, int, list[int], int]], kappa: float) -> None:
    graph = Graph()
    for at, (compute, seconds, waits, rank) in enumerate(rows):
        after = sorted({wait % at for wait in waits}) if at else []
        graph.step = at // 15
        if compute:
            graph.add(f"forward {at}", Kind.COMPUTE, (rank,), "compute", float(seconds), after=after)
        else:
            graph.add("all_reduce", Kind.COMM, (rank,), "comm", float(seconds), after=after)
    slim = merged(graph)
    assert len(slim) <= len(graph)
    before, after_ = simulate(graph, 2, kappa=kappa), simulate(slim, 2, kappa=kappa)
    assert before.makespan == pytest.approx(after_.makespan, abs=1e-9)
    sums = [
        [end for task, end in zip(each.tasks, run.end, strict=True) if task.kind is Kind.COMM]
        for each, run in ((graph, before), (slim, after_))
    ]
    assert sums[0] == pytest.approx(sums[1], abs=1e-9)


class Slow(CostModel):
    """Another provider: everything in two tasks of a second each."""

    def add(
        self,
        graph: Graph,
        name: str,
        op: str,
        count: float,
        ranks_real: Sequence[int],
        simulated_ranks: Sequence[int],
        stream: str,
        after: Iterable[int],
        share: float = 1.0,
        speed: float = 1.0,
    ) -> int:
        first = graph.add(f"{name} 1", Kind.COMM, simulated_ranks, stream, 1.0, count=0, after=after)
        return graph.add(f"{name} 2", Kind.COMM, simulated_ranks, stream, 1.0, count=round(count), after=[first])


def test_collectives_can_come_from_another_provider() -> None:
    seen: list[Use] = []

    def make(on: Cluster, use: Use) -> Slow:
        seen.append(use)
        return Slow(on, use)

    work, on = workload(dp=2, tp=4), cluster(8)
    found = plan_steps(work, on, Blocking(), Buckets, collectives=make, warmup=0, steps=1)
    assert {use.kind: use.concurrent for use in seen} == {"tp": 1, "dp": 4}
    sums = 4 * TOY.layers + 2 + 1
    assert sum(task.kind is Kind.COMM for task in found.graph.tasks) == 2 * sums
    assert simulate(found.graph, found.ranks).makespan == pytest.approx(2 * sums, abs=0.1)


@pytest.mark.parametrize(
    ("name", "work", "words"),
    [
        ("ladder", workload(dp=8), "tensor-parallel group: tp >= 2"),
        ("iso", workload(dp=8), "tp >= 2"),
        ("t3", workload(dp=8), "tp >= 2"),
        ("tensor-parallel", workload(dp=8), "tp >= 2"),
        ("parallel-attention", workload(dp=8), "tp >= 2"),
        ("co2", workload(tp=8), "replicas that communicate: dp >= 2"),
        ("ddp", workload(tp=8), "dp >= 2"),
        ("zero1", workload(), "dp >= 2"),
        ("pipeline", workload(dp=4), "pp >= 2"),
        ("ddp", workload("decode", dp=8), "mode is decode; it works in train only"),
        ("co2", workload("prefill", dp=8), "mode is prefill"),
        ("iso", workload("decode", tp=8), "mode is decode; it works in train, prefill only"),
        ("ddp", workload(dp=16), "needs 16 devices, but cluster toy has 8"),
        ("ddp", workload(dp=0), "dp = 0"),
        ("ddp", workload(dp=8, batch=3, micro_batches=2), "3"),
    ],
)
def test_what_cannot_work_is_refused_in_words(name: str, work: Workload, words: str) -> None:
    with pytest.raises(InputError, match=words):
        get_technique(name).plan(work, cluster(8))


@pytest.mark.parametrize(
    ("name", "knobs", "words"),
    [
        ("co2", {"tau": 0}, "co2: tau = 0 is out of range; give a whole number from 1 up"),
        ("co2", {"tau": 2.5}, "is not a whole number"),
        ("co2", {"tau": "many"}, "'many' is not a whole number"),
        ("co2", {"inner": 3}, "does not divide the 4 data-parallel ranks"),
        ("co2", {"outer_momentum": 1}, "out of range"),
        ("co2", {"clip": float("nan")}, "out of range"),
        ("co2", {"gap": "paper"}, "none of aware, constant"),
        ("ddp", {"bucket_mb": 0}, "above 0"),
        ("ddp", {"bucket_mb": float("inf")}, "out of range"),
        ("iso", {"split": 1.0}, "from 0.05 to 0.95"),
        ("ladder", {"ladder_layers": 5}, "the model has 2 layers"),
        ("t3", {"nmc": 1.0}, "from 0 to 0.99"),
        ("t3", {"mca": "maybe"}, "neither yes nor no"),
    ],
)
def test_knobs_that_make_no_sense_are_refused_in_words(name: str, knobs: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        get_technique(name).plan(workload(dp=4, tp=2), cluster(8), **knobs)


def test_an_unknown_knob_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'tau'"):
        get_technique("co2").plan(workload(dp=8), cluster(8), taus=3)


@pytest.mark.parametrize("speed", [(1.0, 1.0), (1.0,) * 7])
def test_speeds_must_fit_the_ranks(speed: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="give one speed per rank"):
        get_technique("ddp").plan(workload(dp=8), cluster(8, speed=speed))


@pytest.mark.parametrize("name", NAMES)
def test_every_technique_introduces_itself(name: str) -> None:
    technique = get_technique(name)
    assert (
        technique.name == name
        and technique.summary
        and technique.role in ("baseline", "exchange", "schedule", "loading", "serving")
    )
    assert settle(name, technique.knobs, {}) == settle(name, technique.knobs, settle(name, technique.knobs, {}))
    assert len({knob.name for knob in technique.knobs}) == len(technique.knobs)
    assert hasattr(technique, "run") is (name not in ("sequential", "zero3", "device-table", "owl-qn"))
    assert hasattr(technique, "run") is hasattr(technique, "stand_in")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in (*CONVEX, *TABLES, *SUMS, "sac-d")])
def test_what_plans_transformers_refuses_a_sparse_classifier_in_words(name: str) -> None:
    with pytest.raises(InputError, match=r"transformer|least squares"):
        get_technique(name).plan(Convex(100, 10, 500, 4), cluster(4))  # type: ignore[arg-type]


def test_three_are_run_as_something_else() -> None:
    told = {name: getattr(get_technique(name), "stand_in", "") for name in NAMES}
    assert {name for name, words in told.items() if words} == {"t3", "lcc", "host-gather"}
    assert told["t3"] == "tile-wise decomposition in software, not T3"


CLIENTS = ("fedavg", "fedprox", "topk-delta", "int8-delta", "fedft")


@pytest.mark.parametrize("name", [name for name in NAMES if isinstance(get_technique(name), DataParallelRun)])
def test_a_run_is_handed_the_knobs_that_its_method_takes(name: str) -> None:
    torch = pytest.importorskip("torch")
    from densing.efficiency.parallel import Replica

    technique: Any = get_technique(name)
    handed = run_knobs(name, technique.knobs, technique.plan_only, {})
    replica = Replica(torch.nn.Linear(2, 2), torch.optim.AdamW, nullcontext, lambda model: torch.zeros(()))
    method = technique.method(replica, **handed)
    lent = {"model", "make", "optimizer", "waiting", "stage", "group", "inner_group", "link", "options", "seed"}
    if name in CLIENTS:
        # The technique is the codec, and only fedprox pulls.
        lent |= {"codec"} | (set() if name == "fedprox" else {"mu"})
    tried = {"bucket_mb"} if name == "ddp-tuned" else set()
    taken = [set(signature(kind).parameters) - lent for kind in type(method).__mro__[:-1] if "__init__" in vars(kind)]
    # Of a family's options those of the method itself are knobs, and others may be; a codec brings its share along.
    own = taken[0] if "__init__" in vars(type(method)) else set()
    brought = {"share"} if "codec" in handed else set()
    assert own <= set(handed) | tried
    assert set(handed) - brought <= set().union(*taken)


@pytest.mark.parametrize("name", [name for name in NAMES if isinstance(get_technique(name), TensorParallelRun)])
def test_a_sliced_run_is_handed_what_its_schedule_takes(name: str) -> None:
    pytest.importorskip("torch")
    technique: Any = get_technique(name)
    handed = run_knobs(name, technique.knobs, technique.plan_only, {})
    mode = handed.pop("mode")
    schedule = technique.schedule(**handed)
    assert mode == "train"
    own = signature(type(schedule)).parameters if type(schedule).__init__ is not object.__init__ else ()
    assert set(handed) == set(own)


def test_an_adaptive_split_is_no_knob_of_a_run() -> None:
    technique: Any = get_technique("iso")
    with pytest.raises(InputError, match="give a real run a share"):
        technique.run(None, split="auto")


@given(st.integers(1, 3), st.integers(1, 2), st.permutations(range(3)), st.booleans())
def test_an_order_moves_whole_blocks(dp: int, tp: int, order: list[int], unequal: bool) -> None:
    n = 3 * dp * tp
    made = cluster(n, per_node=2, speed=tuple(1.0 + rank for rank in range(n)) if unequal else ())
    plain, moved = (Layout(Split(dp=dp, tp=tp, pp=3, order=chosen), made) for chosen in ((), tuple(order)))
    for stage, block in enumerate(order):
        assert moved.block(stage) == plain.block(block)
        for kind in ("tp", "dp"):
            assert moved.real(kind, stage) == plain.real(kind, block)
            if unequal:
                assert moved.groups(kind, stage) == plain.groups(kind, block)
    if unequal:
        assert sorted(rank for stage in range(3) for rank in moved.ranks(stage)) == list(range(n))


def test_a_slow_device_is_given_fewer_layers() -> None:
    """Two devices, one three times as fast: three layers of four and one are done at once; two and two are not."""
    free = Link(0.0, 0.0)
    made = cluster(2, 2, speed=(3.0, 1.0)).change(intra=free)
    toy = Transformer("toy", layers=4, hidden=64, heads=8, kv_heads=8, head_dim=8, ffn=256, vocabulary=1)
    step = Workload(toy, "prefill", batch=8, sequence=32, micro_batches=8)
    seconds = {}
    for cuts, order in (((3,), ()), ((1,), (1, 0)), ((), ())):
        split = Split(pp=2, cuts=cuts, order=order)
        plan = plan_steps(msgspec.structs.replace(step, split=split), made, Blocking(), warmup=0, steps=1)
        seconds[cuts] = simulate(plan.graph, 2, speed=made.speed).makespan
    # Of eight micro-batches the second stage sees the first one's end: nine turns of a layer, or of two layers.
    assert seconds[(3,)] == pytest.approx(9 / 17 * seconds[()], rel=0.05)
    assert seconds[(1,)] == pytest.approx(seconds[(3,)], rel=0.01)


def test_a_codec_between_stages_sends_less_and_computes_more() -> None:
    made = cluster(2, 1)
    step = workload(micro_batches=2, pp=2)
    bare, coded = (
        plan_steps(step, made, Blocking(), warmup=0, steps=1, edges=edges) for edges in ((), (Edge(0.25, 1e-3, 2e-3),))
    )
    plain, packed = bare.graph.tasks, coded.graph.tasks
    sent = [task for task in plain if task.name.startswith("send")]
    less = [task for task in packed if task.name.startswith("send")]
    assert len(sent) == len(less) == 4
    assert [task.bytes for task in less] == [task.bytes / 4 for task in sent]
    work = {name: [task for task in packed if task.name.startswith(name)] for name in ("encode", "decode")}
    assert [task.seconds for task in work["encode"]] == [1e-3] * 4 and [task.seconds for task in work["decode"]] == [
        2e-3
    ] * 4
    names = {number: task.name for number, task in enumerate(packed)}
    assert all(names[each].startswith("send") for task in work["decode"] for each in task.after)
    assert all(names[each].startswith("encode") for task in less for each in task.after)
    # A packet that has come early does not hold up what is done before it is needed.
    slow = plan_steps(step, made, Blocking(), warmup=0, steps=1, edges=(Edge(1.0, 0.0, 1e-9),))
    assert simulate(slow.graph, 2).makespan == pytest.approx(simulate(bare.graph, 2).makespan, rel=1e-3)

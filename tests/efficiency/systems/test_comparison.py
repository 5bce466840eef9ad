"""Measuring plans and comparing techniques: against a count of ticks, closed forms, and the profiler."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from densing.core.errors import InputError, UnknownNameError
from densing.efficiency.profile.run import profile_run
from densing.efficiency.simulation.cluster import Cluster, Device, Link, cluster_names, load_cluster
from densing.efficiency.simulation.engine import simulate
from densing.efficiency.simulation.models import load_workload, workload_names
from densing.efficiency.simulation.tasks import Graph
from densing.efficiency.simulation.workload import Split, Transformer, Workload
from densing.efficiency.systems.comparison import compare, timelines, title
from densing.efficiency.systems.plan import Plan, measure, timeline_of
from densing.efficiency.systems.registry import get_technique, technique_names
from densing.efficiency.systems.splits import remedy, split_over
from densing.efficiency.throughput import frozen
from densing.efficiency.timeline.overlap import partition, select
from densing.efficiency.timeline.timeline import Comm, Kind

LINK = Link(1e-5, 1e-9)
TOY = Cluster("toy", 8, 4, Device("toy", 1e12, 1e11, memory=1e9), intra=LINK.faster(10), inter=LINK, host=LINK)
SMALL = Transformer("small", layers=3, hidden=256, heads=8, kv_heads=8, head_dim=32, ffn=1024, vocabulary=1000)
WORK = Workload(SMALL, batch=2, sequence=128, split=Split(dp=2, tp=4))
TICK = 1e-3


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Steps of compute and communication on two streams, in whole milliseconds."""
    graph = Graph()
    steps = draw(st.integers(3, 5))
    for step in range(steps):
        graph.step = step
        ends: list[int] = []
        for _ in range(draw(st.integers(1, 4))):
            kind = draw(st.sampled_from(("compute", "comm")))
            after = draw(st.sampled_from([(), tuple(ends[-1:])]))
            seconds = draw(st.integers(1, 9)) * TICK
            if kind == "compute":
                ends.append(graph.add("work", Kind.COMPUTE, (0,), "compute", seconds, after=after))
            else:
                comm = Comm("all_reduce", ranks=draw(st.sampled_from([(0, 1), (0, 4), ()])))
                ends.append(graph.add("sum", Kind.COMM, (0,), "comm", seconds, count=8, after=after, comm=comm))
        # A step ends with its last compute.
        graph.add("update", Kind.COMPUTE, (0,), "compute", TICK, after=ends)
    return Plan(graph, 1, 1, steps - 2, {"parameters": 1.0})


def ticks(plan: Plan) -> dict[str, float]:
    """Count milliseconds one by one: a second, naive way to the same figures."""
    done = simulate(plan.graph, plan.ranks)
    tasks = plan.graph.tasks
    updates = [round(end / TICK) for end, task in zip(done.end, tasks, strict=True) if task.name == "update"]
    first, last = updates[plan.warmup - 1], updates[plan.warmup + plan.steps - 1]
    busy = {kind: set() for kind in (Kind.COMPUTE, Kind.COMM)}
    sent = 0
    for start, end, task in zip(done.start, done.end, tasks, strict=True):
        busy[task.kind].update(range(max(round(start / TICK), first), min(round(end / TICK), last)))
        sent += task.bytes if task.kind == Kind.COMM and first < round(end / TICK) <= last else 0
    compute, comm = busy[Kind.COMPUTE], busy[Kind.COMM]
    each = TICK / plan.steps
    return {
        "step_s": (last - first) * each,
        "exposed_comm_s": len(comm - compute) * each,
        "comm_s": len(comm) * each,
        "compute_s": len(compute) * each,
        "bytes": sent / plan.steps,
    }


@settings(max_examples=60)
@given(plans())
def test_measured_equals_a_count_of_ticks(plan: Plan) -> None:
    found = measure(plan, TOY)
    for key, value in ticks(plan).items():
        assert getattr(found, key) == pytest.approx(value, abs=1e-8), key
    assert sum(found.bytes_per_link.values()) == pytest.approx(found.bytes)
    assert set(found.bytes_per_link) <= {"intra", "inter", "unknown"}
    if found.overlap_ratio is not None:
        assert 0 <= found.overlap_ratio <= 1
        assert found.exposed_comm_s == pytest.approx((1 - found.overlap_ratio) * found.comm_s, abs=1e-8)


def test_a_simulated_rank_counts_as_many_as_it_stands_for() -> None:
    graph = Graph()
    for step in range(2):
        graph.step = step
        for rank, seconds in ((0, 1.0), (1, 3.0)):
            graph.add("work", Kind.COMPUTE, (rank,), "compute", seconds)
            sent = graph.add("sum", Kind.COMM, (rank,), "comm", 1.0, count=8 * rank, after=[len(graph) - 1])
            graph.add("update", Kind.COMPUTE, (rank,), "compute", 0.5, after=[sent])
    found = measure(Plan(graph, 2, 1, 1, stands_for={0: 3, 1: 1}), TOY)
    assert found.step_s == pytest.approx(4.5)
    assert found.compute_s == pytest.approx((3 * 1.5 + 3.5) / 4)
    assert found.bytes == pytest.approx(8 / 4)


def test_a_plan_that_promises_too_many_steps_is_refused() -> None:
    graph = Graph()
    graph.step = 0
    graph.add("work", Kind.COMPUTE, (0,), "compute", 1.0)
    with pytest.raises(InputError, match=r"1 \+ 2 steps and simulated rank 0 has 1"):
        measure(Plan(graph, 1, 1, 2), TOY)


@pytest.mark.parametrize("name", ["sequential", "ddp", "ladder", "co2", "zero3"])
def test_the_profiler_says_the_same_of_the_timeline(name: str) -> None:
    plan = get_technique(name).plan(WORK, TOY)
    whole = Plan(plan.graph, plan.ranks, 0, plan.warmup + plan.steps, plan.memory, plan.stands_for)
    found = measure(whole, TOY)
    run = profile_run(timeline_of(plan, TOY), window="steps")
    rank = run.ranks[0].partition
    assert found.exposed_comm_s * whole.steps == pytest.approx(rank.exposed_comm_ns / 1e9, rel=1e-9)
    assert found.step_s * whole.steps == pytest.approx(rank.window_ns / 1e9, rel=1e-9)


def test_rows_speedups_and_order() -> None:
    found = compare(WORK, TOY, ["ddp", "sequential", "ladder"], baseline="sequential")
    rows = {row.technique: row for row in found.rows}
    assert [row.technique for row in found.rows] == ["ddp", "sequential", "ladder"]
    assert found.baseline == "sequential"
    assert rows["sequential"].speedup == 1
    for row in found.rows:
        assert row.step_s is not None and row.speedup is not None
        assert row.speedup == pytest.approx(rows["sequential"].step_s / row.step_s)
        assert row.memory_bytes == pytest.approx(sum(row.memory.values()))
    # Without contention hiding never costs.
    assert rows["ladder"].step_s <= rows["ddp"].step_s <= rows["sequential"].step_s
    assert rows["sequential"].overlap_ratio == 0
    assert rows["ddp"].bytes == pytest.approx(rows["sequential"].bytes)


def test_a_baseline_beside_the_rows_and_the_first_as_default() -> None:
    alone = compare(WORK, TOY, ["ladder"], baseline="sequential")
    assert [row.technique for row in alone.rows] == ["ladder"]
    assert alone.rows[0].speedup > 1
    assert compare(WORK, TOY, ["ladder", "ddp"]).rows[0].speedup == 1


def test_one_that_does_not_apply_is_a_row_with_its_reason() -> None:
    single = replace(WORK, split=Split(dp=8))
    found = compare(single, TOY, ["ddp", "ladder"])
    row = found.rows[1]
    assert (row.status, row.step_s, row.speedup) == ("does not apply", None, None)
    assert "tp >= 2" in row.reason
    assert [note.code for note in found.notes if note.severity == "warning"] == ["does-not-apply"]
    swapped = compare(single, TOY, ["ddp"], baseline="ladder")
    assert swapped.rows[0].speedup is None
    assert "no-baseline" in [note.code for note in swapped.notes]


@pytest.mark.parametrize(
    ("names", "more", "told"),
    [
        ([], {}, "no technique"),
        (["ddp", "ddp"], {}, "twice"),
        (["ddp", "laddr"], {}, "did you mean 'ladder'"),
        (["ddp"], {"baseline": "co3"}, "did you mean 'co2'"),
        (["co2"], {"knobs": {"co2": {"tou": 3}}}, "did you mean 'tau'"),
        (["co2"], {"knobs": {"ddp": {"bucket_mb": 3}}}, "among those compared"),
    ],
)
def test_bad_requests_are_refused(names: list[str], more: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        compare(WORK, TOY, names, **more)


def test_knobs_reach_the_plan() -> None:
    quick, slow = (compare(WORK, TOY, ["co2"], knobs={"co2": {"tau": tau}}).rows[0] for tau in (16, 1))
    assert quick.bytes < slow.bytes
    # The parameters' average travels once per round.
    tensor = get_technique("tensor-parallel").plan(replace(WORK, split=Split(dp=1, tp=4)), TOY)
    inner = measure(tensor, TOY).bytes
    assert (slow.bytes - inner) / (quick.bytes - inner) == pytest.approx(16, rel=1e-6)


def test_too_little_memory_and_other_training_are_said() -> None:
    tight = TOY.change(device=replace(TOY.device, memory=1e6))
    codes = [note.code for note in compare(WORK, tight, ["ddp", "co2"]).notes]
    assert codes == ["memory", "no-contention", "other-training"]


def rooms(*names: str) -> dict[str, float]:
    return {row.technique: row.memory_bytes or 0.0 for row in compare(WORK, TOY, names).rows}


def with_room(room: float) -> Cluster:
    return TOY.change(device=replace(TOY.device, memory=room))


def test_the_fastest_that_does_not_fit_is_an_error_and_ranks_last() -> None:
    need = rooms("co2", "ddp")
    assert need["co2"] > need["ddp"]
    found = compare(WORK, with_room((need["co2"] + need["ddp"]) / 2), ["co2", "ddp", "sequential"], baseline="ddp")
    assert [(row.technique, row.status) for row in found.rows] == [
        ("ddp", "simulated"), ("sequential", "simulated"), ("co2", "does not fit"),
    ]  # fmt: skip
    assert found.rows[-1].speedup > 1
    assert found.title == "No technique that fits is faster than ddp; co2 does not fit in memory"
    [note] = [note for note in found.notes if note.code == "memory"]
    assert note.severity == "error"
    assert "co2" in note.message and "at batch 2" in note.message and "ddp" not in note.message


def test_a_slower_one_that_does_not_fit_is_a_warning() -> None:
    need = rooms("sequential", "zero1")
    assert need["sequential"] > need["zero1"]
    found = compare(WORK, with_room((need["sequential"] + need["zero1"]) / 2), ["sequential", "zero1"])
    assert [row.technique for row in found.rows] == ["zero1", "sequential"]
    assert found.title.startswith("zero1 is ") and "sequential, which does not fit, per step" in found.title
    [note] = [note for note in found.notes if note.code == "memory"]
    assert note.severity == "warning"


@pytest.mark.parametrize("technique", ["ddp", "co2", "ladder", "zero1", "tensor-parallel", "slowmo"])
@pytest.mark.parametrize(("model", "nodes"), [("llama3-70b", 2), ("llama-8b", 1), ("qwen3-32b", 4), ("gpt3", 4)])
def test_what_is_said_to_make_it_fit_does_and_no_part_of_it_alone(technique: str, model: str, nodes: int) -> None:
    machines = load_cluster("a100x8-tcp", n=8 * nodes)
    if model == "llama-8b":
        machines = machines.change(device=replace(machines.device, memory=12e9))
    step = split_over(load_workload(model, mode="train", batch=16), machines)
    words = remedy(get_technique(technique), step, machines, {})
    if "nothing tried" in words:
        return
    parts = re.fullmatch(r"(?:needs \d+ more devices: )?fits(?: as (\S+))?(?: with (.+))?", words)
    assert parts, words
    options = dict(re.findall(r"--(\S+)(?: (?!--)(\S+))?", parts[2] or ""))

    def fits(given: dict[str, str], name: str) -> bool:
        cluster = load_cluster("a100x8-tcp", n=8 * int(given.get("nodes", nodes))).change(device=machines.device)
        axes = {axis: int(given[axis]) if axis in given else None for axis in ("tp", "pp", "dp")}
        axes["tp"] = axes["tp"] or step.split.tp
        changed = load_workload(
            model, mode="train", batch=16, recompute=given.get("recompute"),
            sequence_parallel="sequence-parallel" in given or None,
            micro_batches=int(given["micro-batches"]) if "micro-batches" in given else None,
        )  # fmt: skip
        chosen = get_technique(name)
        try:
            divided = split_over(changed, cluster, **axes)
            chosen.check(divided)
        except InputError:
            return False
        # The plan's memory, without simulating the plan.
        knobs = {knob.name: knob.default for knob in chosen.knobs}
        return sum(chosen.memory(divided, knobs).values()) <= cluster.device.memory

    name = parts[1] or technique
    assert fits(options, name), words
    for left_out in options:
        if left_out != "dp" and (left_out, options[left_out]) != ("tp", str(step.split.tp)):
            rest = {key: value for key, value in options.items() if key != left_out}
            assert not fits(rest, name), (words, left_out)


def test_recomputation_takes_less_memory_and_one_more_forward_pass() -> None:
    plain, full = (compare(replace(WORK, recompute=how), TOY, ["ddp"]) for how in ("none", "full"))
    assert full.rows[0].memory_bytes < plain.rows[0].memory_bytes
    assert full.rows[0].step_s > plain.rows[0].step_s
    codes = [note.code for note in compare(replace(WORK, recompute="selective"), TOY, ["ddp"]).notes]
    assert "nothing-to-recompute" in codes and "times-without-scores" not in codes
    unfused = compare(replace(WORK, fused_attention=False), TOY, ["ddp"])
    told = [note.message for note in unfused.notes if note.code == "times-without-scores"]
    assert len(told) == 1 and "memory only" in told[0]


def test_sequence_parallelism_changes_memory_and_plan() -> None:
    split = replace(WORK, split=replace(WORK.split, sequence=True))
    plain, along = (compare(work, TOY, ["tensor-parallel"]).rows[0] for work in (WORK, split))
    assert along.memory["activations"] < plain.memory["activations"]
    names = {task.name.split()[0] for task in get_technique("tensor-parallel").plan(split, TOY).graph.tasks}
    assert {"reduce_scatter", "all_gather"} <= names
    assert along.bytes == pytest.approx(plain.bytes, rel=1e-6)


@pytest.mark.parametrize("name", technique_names())
def test_a_technique_says_itself_whether_it_changes_the_loss(name: str) -> None:
    changes = {
        "local-sgd",
        "slowmo",
        "diloco",
        "co2",
        "topk",
        "dct",
        "powersgd",
        "ladder",
        "parallel-attention",
        "fusion",
    }
    changes |= {
        "fedavg",
        "fedprox",
        "topk-delta",
        "int8-delta",
        "fedft",
        "local-only",
        "spafl",
        "backup-workers",
        "naive-average",
        "owa",
        "csl",
        "prox-csl",
        "sac-d",
    }
    assert bool(get_technique(name).changes_loss) == (name in changes)


def test_one_that_does_not_say_is_not_taken_to_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("densing.efficiency.systems.registry.BuiltIn.changes_loss")
    found = compare(WORK, TOY, ["ddp"])
    assert found.rows[0].changes_loss is None
    assert "loss-not-said" in [note.code for note in found.notes]


def test_a_faster_one_says_in_the_title_that_it_changes_the_loss() -> None:
    assert compare(WORK, TOY, ["ddp", "co2"]).title.endswith("as fast as ddp per step, but may change the loss")
    early = compare(WORK, TOY, ["sequential", "ddp"], knobs={"ddp": {"bucket_mb": 0.1}})
    assert early.title.endswith("as fast as sequential per step")


@pytest.mark.parametrize("name", workload_names())
def test_training_takes_a_step_that_trains(name: str) -> None:
    step = load_workload(name, mode="train")
    assert step.batch >= 4 and step.sequence >= 1024
    own = load_workload(name)
    if own.mode == "train":
        assert own == step
    else:
        assert load_workload(name, mode=own.mode) == own
        assert (step.batch, step.split) == (8, own.split)


def test_timelines_of_what_applies() -> None:
    found = compare(WORK, TOY, ["ddp", "pipeline"])
    [(name, timeline)] = timelines(WORK, TOY, found)
    assert (name, len(timeline.ranks)) == ("ddp", 1)


@pytest.mark.parametrize("cluster", cluster_names())
@pytest.mark.parametrize("model", workload_names())
def test_every_preset_is_split_so_that_both_kinds_have_work(model: str, cluster: str) -> None:
    machines = load_cluster(cluster)
    split = split_over(load_workload(model, mode="train"), machines).split
    assert split.ranks <= machines.n
    assert split.dp >= min(2, machines.n)
    if machines.n >= 4:
        assert split.tp >= 2
    assert split.tp <= max(machines.per_node, 2)


def test_a_split_that_was_said_is_kept_or_refused() -> None:
    machines = load_cluster("a100x8-tcp")
    work = load_workload("llama-8b")
    assert split_over(work, machines, tp=2, dp=3).split == Split(3, 2, 1)
    piped = split_over(work, machines, pp=2).split
    assert (piped.pp, piped.ranks) == (2, 16)
    assert min(piped.tp, piped.dp) >= 2
    with pytest.raises(InputError, match="needs 64 devices"):
        split_over(work, machines, tp=8, dp=8)
    with pytest.raises(InputError, match="cannot be divided"):
        split_over(work, machines, tp=3)
    with pytest.raises(InputError, match="dp 0"):
        split_over(work, machines, dp=0)


def test_unknown_names_are_of_their_kind() -> None:
    with pytest.raises(UnknownNameError):
        compare(WORK, TOY, ["nothing"])


def test_bytes_are_those_on_the_wire() -> None:
    """ZeRO-1 and 2 send as much as data parallelism, ZeRO-3 half as much again (Rajbhandari et al., 1910.02054, 7)."""
    rows = {
        row.technique: row
        for row in compare(replace(WORK, split=Split(dp=8)), TOY, ["ddp", "zero1", "zero2", "zero3"]).rows
    }
    sent = {name: row.bytes for name, row in rows.items()}
    assert sent["zero1"] == pytest.approx(sent["ddp"], rel=1e-6)
    assert sent["zero2"] == pytest.approx(sent["ddp"], rel=1e-6)
    assert sent["zero3"] == pytest.approx(1.5 * sent["ddp"], rel=1e-3)


@pytest.mark.parametrize("name", ["ddp", "co2", "ladder"])
def test_what_is_drawn_is_what_was_measured(name: str) -> None:
    """The page once told two steps of one technique: the warm-up was in one of them."""
    machines = load_cluster("a100x8-tcp")
    work = split_over(load_workload("llama-8b", mode="train"), machines)
    found = compare(work, machines, [name])
    [(_, timeline)] = timelines(work, machines, found)
    [rank], [row] = timeline.ranks, found.rows
    part = partition(select(rank))
    assert part.window_ns / len(rank.steps) / 1e9 == pytest.approx(row.step_s, rel=1e-9)
    assert part.exposed_comm_ns / len(rank.steps) / 1e9 == pytest.approx(row.exposed_comm_s, rel=1e-9)
    assert part.overlap_pct == pytest.approx(100 * row.overlap_ratio, rel=1e-9)


def test_a_comparison_and_its_timelines_are_tables() -> None:
    found = compare(WORK, TOY, ["ddp", "co2"])
    assert list(found.table()["technique"]) == ["ddp", "co2"]
    (_, timeline), _ = timelines(WORK, TOY, found)
    assert set(timeline.table()["kind"]) >= {"compute", "comm"}


def test_the_baseline_alone_that_fits_is_not_one_of_those_that_are_not_faster() -> None:
    rows = [{"technique": "ddp", "speedup": 1.0, "status": "simulated"},
            {"technique": "co2", "speedup": 2.0, "status": "does not fit"}]  # fmt: skip
    assert title(rows) == "Only ddp fits in memory; co2 does not fit in memory"


def test_a_device_whose_memory_is_not_known_is_not_said_to_hold_a_run() -> None:
    machines = load_cluster("cpu2")
    found = compare(split_over(load_workload("llama-8b", mode="train", batch=2), machines), machines, ["ddp"])
    assert found.rows[0].room_bytes is None and "memory-unknown" in {note.code for note in found.notes}


def test_a_training_step_takes_what_published_runs_reach_unless_ideal_figures_are_asked_for() -> None:
    machines = load_cluster("a100x8-tcp")
    work = load_workload("llama-8b", mode="train", dp=2, tp=8)
    found, ideal = (compare(work, machines, ["ddp", "co2"], ideal=each) for each in (False, True))
    assert {note.code for note in found.notes} >= {"fitted-figures", "no-contention"}
    assert "fitted-figures" not in {note.code for note in ideal.notes}
    for row, other in zip(found.rows, ideal.rows, strict=True):
        assert row.low_s and row.step_s and row.high_s and row.low_s < row.step_s < row.high_s
        assert other.low_s is None and other.step_s
    # Twice the bytes per gradient over the same network, of which collectives reach a share.
    plain, other = (each.rows[0] for each in (found, ideal))
    sent = [(row.exposed_comm_s or 0.0) / (1 - (row.overlap_ratio or 0.0)) for row in (plain, other)]
    assert sent[0] / sent[1] == pytest.approx(2 / frozen().constants["A100"].nic, rel=0.1)
    drawn = dict(timelines(work, machines, found))["ddp"].ranks[0]
    assert (drawn.steps[-1].end - drawn.steps[0].start) / len(drawn.steps) / 1e9 == pytest.approx(found.rows[0].step_s)


def test_a_step_that_no_published_run_is_like_follows_from_the_clusters_own_figures() -> None:
    machines = load_cluster("h100x8-nvlink")
    found = compare(load_workload("llama-8b", mode="prefill", tp=8), machines, ["tensor-parallel"])
    assert "own-figures" in {note.code for note in found.notes}
    assert found.rows[0].low_s is None

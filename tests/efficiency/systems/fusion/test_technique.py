"""FusionLLM's plans: what is sent, the closed form where it holds, monotone in the links' skew, and its claims."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from densing.core.errors import InputError
from densing.efficiency.parallel import LmShape, RunSpec
from densing.efficiency.simulation import sizes
from densing.efficiency.simulation.cluster import Cluster, Device, Link, load_cluster
from densing.efficiency.simulation.engine import simulate
from densing.efficiency.simulation.models import load_workload
from densing.efficiency.simulation.workload import Split, Transformer, Workload, modules
from densing.efficiency.systems.claims import MUTATIONS, PHYSICS
from densing.efficiency.systems.comparison import compare, regime
from densing.efficiency.systems.fusion import technique
from densing.efficiency.systems.fusion.chain import cut_at
from densing.efficiency.systems.fusion.technique import CLAIMS, FUSION, placement
from densing.efficiency.systems.planner.base import plan_steps
from densing.efficiency.systems.planner.exchange import Blocking
from densing.efficiency.systems.planner.stage import Edge, module_seconds
from densing.efficiency.systems.splits import split_over
from densing.efficiency.systems.validation import verdict

TOY = Transformer("toy", layers=8, hidden=512, heads=8, kv_heads=8, head_dim=64, ffn=2048, vocabulary=2000)
DEVICE = Device("toy", 1e12, 1e12, memory=16e9)
DEFAULTS = {knob.name: knob.default for knob in FUSION.knobs}


def cluster(wide: float = 1e-6, **fields: object) -> Cluster:
    """Three sites of two devices; two pairs of sites are as fast as the slowest times 4 and 16."""
    made = Cluster("three", 6, 2, DEVICE, Link(1e-6, 1e-10), Link(1e-5, 1e-9), Link(0, 1e-10), 2, Link(1e-3, wide),
                   pairs={"0-2": 4.0, "1-2": 16.0}, speed=(1.0, 1.0, 0.5, 0.5, 0.25, 0.25))  # fmt: skip
    return made.change(**fields)


def step(mode: str = "train", pp: int = 6, **fields: object) -> Workload:
    return replace(Workload(TOY, mode, 8, 256, Split(pp=pp), micro_batches=8), **fields)


def free(n: int, speed: tuple[float, ...], links: Link) -> Cluster:
    return Cluster("row", n, 1, DEVICE, links, links, links, speed=speed)


@given(st.data())
def test_the_closed_form_is_the_simulators_where_no_edge_competes(data: st.DataObject) -> None:
    """Forward passes through a row of stages: sum + (M - 1) max, whatever the cuts, speeds and edges."""
    pp, micro = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    cuts = tuple(sorted(data.draw(st.sets(st.integers(1, 7), min_size=pp - 1, max_size=pp - 1))))
    order = tuple(data.draw(st.permutations(range(pp))))
    speed = tuple(data.draw(st.lists(st.floats(0.1, 2), min_size=pp, max_size=pp)))
    shares = data.draw(st.lists(st.floats(0.01, 1), min_size=pp - 1, max_size=pp - 1))
    made = free(pp, speed, Link(1e-4, data.draw(st.sampled_from([0.0, 1e-9, 1e-7]))))
    work = step("prefill", pp, split=Split(pp=pp, cuts=cuts, order=order), batch=micro, micro_batches=micro)
    plan = plan_steps(work, made, Blocking(), warmup=0, steps=1, edges=[Edge(share) for share in shares])
    seconds = [0.0] * TOY.layers
    for module in modules(work):
        seconds[min(max(module.layer, 0), 7)] += module_seconds(work, DEVICE, module, "forward")
    count = modules(work)[1].activation
    crossing = [[made.inter.seconds(share * count)] * (TOY.layers + 1) for share in shares]
    reckoned = cut_at(cuts, seconds, [speed[block] for block in order], crossing).step(micro)
    assert simulate(plan.graph, pp, speed=speed).makespan == pytest.approx(reckoned, rel=1e-6)


def test_shares_are_adatopks_and_bytes_are_packets() -> None:
    made = cluster()
    placed = placement(step(), made, DEFAULTS)
    split = placed.workload.split
    count = modules(step())[1].activation
    seconds = [made.link(*pair).seconds(count) for pair in pairwise(split.order)]
    assert list(placed.shares) == sizes.edge_shares(seconds, 100)
    # The slowest pair of sites is avoided, and edges within a site send everything.
    assert max(seconds) == pytest.approx(1e-3 + count * 1e-6 / 4)
    assert sorted(placed.shares)[0] == 0.01 and placed.shares.count(1.0) == 3
    elements = count // 2
    for share, edge in zip(placed.shares, placed.edges, strict=True):
        # Of every token as many; a packet begins with whether all is well. Gradients come back without places.
        packet = 4 + sizes.sparse_bytes(elements, elements // TOY.hidden * sizes.kept(TOY.hidden, share), 2)
        assert edge[:3] == (1.0, 0.0, 0.0) if share == 1 else edge.share * count == pytest.approx(packet)
    sent = [task for task in FUSION.plan(step(), made).graph.tasks if task.name.startswith("send") and task.step == 0]
    expected = sum(8 * (edge.share + (edge.back or edge).share) * count for edge in placed.edges)
    assert sum(task.bytes for task in sent) == pytest.approx(expected, abs=len(sent))


def test_a_ratio_of_one_sends_everything_and_is_a_pipeline_otherwise() -> None:
    made = cluster()
    plain = compare(step(), made, ["pipeline", "fusion"],
                    knobs={"fusion": {"r": 1.0, "cuts": "equal", "order": "numbered"}}).rows  # fmt: skip
    assert plain[0].step_s == plain[1].step_s and plain[0].bytes == plain[1].bytes


def test_each_choice_pays_on_unequal_devices() -> None:
    made = cluster()
    steps = [
        PHYSICS.measure(FUSION, step(), made, **knobs).step_s
        for knobs in ({}, {"r": 1.0}, {"r": 1.0, "order": "numbered"}, {"r": 1.0, "order": "numbered", "cuts": "equal"})
    ]
    assert steps == sorted(steps) and steps[0] < 0.5 * steps[-1]
    ranks = {
        placement(step(), made, DEFAULTS | {"order": "random", "seed": seed}).workload.split.order for seed in (1, 2)
    }
    assert len(ranks) == 2
    # On equal devices behind equal links there is an order and a cut, too.
    alike = made.change(speed=(), pairs={}, per_site=0, wide=None)
    assert placement(step(), alike, DEFAULTS).workload.split.order == (0, 1, 2, 3, 4, 5)


def test_the_advantage_grows_as_the_wide_links_get_slower() -> None:
    """A map over the skew of bandwidths; ratios of the pairs of sites stay."""
    rates = [0.01, 0.1, 1.0, 10.0]
    grid = regime(step(), cluster(), ["pipeline", "fusion"], link="wide", bandwidths_gbps=rates, batches=[8])
    gains = [cell.speedup or 0.0 for cell in grid.cells if cell.technique == "fusion"]
    assert len(gains) == 4 and all(slow > fast for slow, fast in pairwise(gains))
    assert gains[-1] > 1


def test_what_does_not_fit_is_simulated_and_said() -> None:
    small = cluster(device=replace(DEVICE, memory=60e6))
    row = compare(step(), small, ["fusion"]).rows[0]
    assert row.status == "does not fit" and row.step_s
    # With a little less room than it would take, fewer layers go to the fast devices than their speed asks for.
    two = step(batch=2, micro_batches=2)
    roomy = compare(two, cluster(), ["fusion"]).rows[0]
    assert roomy.memory_bytes is not None
    tight = cluster(device=replace(DEVICE, memory=0.99 * roomy.memory_bytes))
    assert compare(two, tight, ["fusion"]).rows[0].status == "simulated"
    assert placement(two, tight, DEFAULTS).workload.split != placement(two, cluster(), DEFAULTS).workload.split


@pytest.mark.parametrize(
    ("work", "knobs", "told"),
    [
        (step(pp=6), {"r": 0.5}, "r = 0.5 is out of range; give a number from 1"),
        (step(pp=6), {"cuts": "some"}, "is none of fitted, equal"),
        (step(pp=6), {"seed": -1}, "seed"),
        (step(pp=1), {}, "several pipeline stages: pp >= 2"),
        (step(pp=3), {}, "give one speed per rank"),
        (step(pp=12), {}, "12 stages for 8 layers|needs 12 devices"),
        (step("decode"), {}, "train, prefill only"),
    ],
)
def test_what_it_cannot_do_is_said(work: Workload, knobs: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        FUSION.plan(work, cluster(), **knobs)


def test_stages_are_found_where_all_that_is_compared_needs_them() -> None:
    geo, small = load_cluster("geo48"), load_cluster("rtx4090x4-pcie")
    gpt2 = load_workload("gpt2")
    for names, chosen in (
        (["fusion"], (8, 1, 6)),
        (["pipeline", "fusion"], (8, 1, 6)),
        (["ddp", "fusion"], (12, 4, 1)),
    ):
        split = split_over(gpt2, geo, techniques=names).split
        assert (split.dp, split.tp, split.pp) == chosen
    assert split_over(gpt2, small, techniques=["fusion"]).split.pp == 4
    assert split_over(gpt2, geo, pp=12, techniques=["fusion"]).split.pp == 12
    assert split_over(gpt2, geo.change(n=1, per_node=1, speed=(), pairs={}), techniques=["fusion"]).split.pp == 1


CLAIM = {claim.id: claim for claim in CLAIMS}


def test_the_judge_of_cuts_finds_them_exact_and_would_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdict(CLAIM["FUS-4"], CLAIM["FUS-4"].check(PHYSICS)) == "agrees"
    monkeypatch.setattr(
        technique, "best_cuts", lambda work, speed, crossing: cut_at(range(1, len(speed)), work, speed, crossing)
    )
    answer = CLAIM["FUS-4"].check(PHYSICS)
    assert verdict(CLAIM["FUS-4"], answer) == "differs" and "missed" in str(answer.value)


@pytest.mark.slow
def test_the_papers_range_is_met_where_the_baselines_compress_alike_and_left_far_behind_where_they_do_not() -> None:
    """The abstract names no baselines, so neither reading is a verdict; dense, both readings are one."""
    for letter in "abc":
        claim = CLAIM[f"FUS-1{letter}"]
        answer = claim.check(PHYSICS)
        dense, alike = (float(part.split(" times over ")[0]) for part in str(answer.value).split(" and "))
        assert technique.LOW <= alike <= technique.HIGH < dense
        assert verdict(claim, answer) == "not answerable" and "weak" in answer.note and "reconstructed" in answer.note
        assert any(claim.check(laws).value != answer.value for laws in MUTATIONS.values())
    for name in ("b", "c"):
        assert CLAIM[f"FUS-1{name}"].assumptions["r = 1 (dense)"]().value == CLAIM["FUS-1b"].published


def placed_run(link: str, nproc: int = 3, **knobs: object) -> RunSpec:
    return RunSpec("fusion", knobs, nproc=nproc, model=LmShape(layers=6), batch=8, link=link)


def test_a_run_is_placed_by_its_links() -> None:
    """The rank behind the slow link goes to an end of the row, where one edge alone is slow; it is thinned."""
    for slow in range(3):
        links = ",".join("50mbit" if rank == slow else "1gbit" for rank in range(3))
        options = FUSION.options(placed_run(links))
        assert slow in (options["order"][0], options["order"][-1])
        at = 0 if options["order"][0] == slow else 1
        assert options["shares"][at] == pytest.approx(0.01) and options["shares"][1 - at] > 0.1
        assert options["codec"] == "threshold" and len(options["cuts"]) == 2
    assert FUSION.options(placed_run("1gbit", r=1.0))["shares"] == (1.0, 1.0)


def test_what_is_predicted_of_a_run_is_placed_as_the_run_is() -> None:
    """The cluster's own links, which say otherwise, change seconds and no place."""
    spec = placed_run("1gbit,50mbit,1gbit")
    plan = FUSION.plan_of_run(spec, load_cluster("cpu2", n=3).change(speed=(1.0, 0.1, 1.0)))
    shares = FUSION.options(spec)["shares"]
    count = modules(FUSION.place(spec).workload)[1].activation
    sends = [task.bytes for task in plan.graph.tasks if task.name.startswith("send") and task.step == 0]
    hidden = spec.model.hidden
    assert min(sends) == pytest.approx(4 + 4 * (count // 4 // hidden) * sizes.kept(hidden, min(shares)), abs=1)
    assert max(sends) == pytest.approx(count if max(shares) == 1 else max(sends))


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (placed_run("1gbit,50mbit"), "2 links for 3 ranks"),
        (placed_run("none", nproc=7), "7 stages for 6 layers"),
        (placed_run("none", micro_batches=3), "micro_batches 3"),
    ],
)
def test_a_run_that_does_not_fit_is_refused_before_it_starts(spec: RunSpec, told: str) -> None:
    with pytest.raises(InputError, match=told):
        FUSION.check_run(spec)


def test_convergence_is_what_a_ladder_of_ours_measured() -> None:
    answer = CLAIM["FUS-3"].check(PHYSICS)
    assert verdict(CLAIM["FUS-3"], answer) in ("agrees", "differs")
    assert "pairs of d8" in answer.note and "fusion:r=100 beside plain" in answer.note

"""FusionLLM: a pipeline cut for unequal devices at several sites, whose slow edges are compressed.

Communities of well-connected devices follow one another (OP-Fence), the chain of layers is cut for the shortest step,
and slower edges keep a smaller share of activations and gradients (AdaTopK). The operators' graph is the chain of
layers: all of a transformer's activations have the same size, so the place of a cut changes no edge.

Source: Tang et al., arXiv 2410.12707; abstract first-hand, formulas reconstructed from summaries.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations, pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from densing.core import InputError, Note
from densing.efficiency.parallel import Coding, LmShape, RunSpec, workload_of
from densing.efficiency.simulation import load_cluster, load_workload, modules, sizes, stage_bytes, stages
from densing.efficiency.systems.claims import PHYSICS, Answer, Claim, Physics, recorded
from densing.efficiency.systems.experiments import experiment
from densing.efficiency.systems.fusion.chain import best_cuts, cut_at, every_cut
from densing.efficiency.systems.fusion.devices import orders
from densing.efficiency.systems.links import of_links
from densing.efficiency.systems.pipeline import MICRO_BATCHES, PIPELINE, Pipeline, coded
from densing.efficiency.systems.planner import BUCKET, Edge, Layout, module_seconds, plan_steps, run_knobs
from densing.efficiency.systems.registry import Knob, choice, number, settle, whole
from densing.efficiency.systems.splits import split_over

if TYPE_CHECKING:
    from densing.efficiency.simulation import Cluster, Device, Workload
    from densing.efficiency.systems.plan import Plan

CUTS = ("fitted", "equal")
CODEC = "threshold"
"""Of every token's activations the largest, and the gradients of the same entries: the rule is ours. The largest of a
whole micro-batch leave some tokens nothing at all, and what a norm makes of nothing is not what should be learnt."""
ORDERS = ("fitted", "numbered", "random")


class Placement(NamedTuple):
    """Layers of each stage, and the compression between stages.

    Attributes
    ----------
    workload : Workload
        Its split has cuts and order.
    shares : tuple of float
        By edge: the share of activations and gradients that is kept; 1 sends all, without indices.
    edges : tuple of Edge
    reckoned_s : float
        Seconds of a step, forward and backward, by the reconstructed formula; reported times are simulated instead.
    """

    workload: Workload
    shares: tuple[float, ...]
    edges: tuple[Edge, ...]
    reckoned_s: float


class Fusion(Pipeline):
    """Cuts and order fitted to the devices, edges compressed by their slowness.

    A real run is fitted to the links that it is given (``--link 1gbit,1gbit,50mbit``), and to equal processors.
    """

    name = "fusion"
    plain = False
    role = "schedule"
    paper = "Tang et al. 2024, arXiv 2410.12707"
    summary = (
        "a pipeline for unequal devices: cuts and order follow speeds and links, and slow "
        "edges send only the largest values"
    )
    modes = ("train", "prefill")
    knobs = (
        BUCKET,
        MICRO_BATCHES,
        Knob(
            "r",
            100.0,
            "compression on the slowest edge, others in proportion to their time (reconstructed formula)",
            number(1.0),
        ),
        Knob("cuts", "fitted", "how layers are divided into stages: fitted to the devices, or equally", choice(CUTS)),
        Knob("order", "fitted", "order of the devices: fitted to their links, as numbered, or random", choice(ORDERS)),
        Knob("seed", 0, "seed of a random order", whole(0)),
    )
    codec = CODEC
    changes_loss = "slow edges send only the largest activations of a token, and the gradients of these (r = 1: all)"
    not_available = (
        "the formulas of AdaTopK and OP-Fence (ours are reconstructed from summaries)",
        "the testbeds: devices, links and the figures of each",
    )
    claims_in = __name__

    def plan(self, workload: Workload, cluster: Cluster, **knobs: Any) -> Plan:
        """Return the tasks of some steps.

        Parameters
        ----------
        workload : Workload
            Where its split says cuts or an order, they are replaced.
        cluster : Cluster
        **knobs
            Those of :attr:`knobs`; the defaults of the others.

        Raises
        ------
        InputError
            When it cannot work on this workload or cluster, or a knob makes no sense.
        """
        settings = settle(self.name, self.knobs, knobs)
        self.check(workload)
        return self._plan(placement(workload, cluster, settings), cluster, settings)

    def plan_of_run(self, spec: RunSpec, cluster: Cluster) -> Plan:
        """Return the tasks of some steps of a run: placed as the run will be, whatever the cluster."""
        placed = self.place(spec)
        settings = settle(self.name, self.knobs, spec.knobs)
        placed = placed._replace(edges=_edges(placed.workload, cluster.device, placed.shares))
        return self._plan(placed, cluster, settings)

    def place(self, spec: RunSpec) -> Placement:
        """Return where a run puts the layers: all ranks compute it, and come to the same."""
        settings = run_knobs(self.name, self.knobs, self.plan_only, spec.knobs)
        workload = workload_of(
            spec.model, spec.batch, spec.sequence, pp=spec.nproc, micro_batches=settings["micro_batches"]
        )
        return placement(workload, of_links(load_cluster("cpu2", n=spec.nproc), spec), settings)

    def options(self, spec: RunSpec) -> dict[str, Any]:
        """Return what a run is given."""
        placed = self.place(spec)
        split = placed.workload.split
        return {
            "micro_batches": placed.workload.micro_batches,
            "cuts": split.cuts,
            "codec": CODEC,
            "shares": placed.shares or (1.0,),
            "order": split.order,
        }

    def _plan(self, placed: Placement, cluster: Cluster, settings: Mapping[str, Any]) -> Plan:
        warmup, steps = self.window(settings)
        return plan_steps(
            placed.workload,
            cluster,
            self.tensor(placed.workload, cluster, settings),
            self.exchange(settings),
            warmup=warmup,
            steps=steps,
            memory=self.memory(placed.workload, settings),
            edges=placed.edges,
        )

    def remarks(self, workload: Workload, cluster: Cluster, **knobs: Any) -> tuple[Note, ...]:
        """Return which layers are on which ranks, and what the edges keep."""
        placed = placement(workload, cluster, settle(self.name, self.knobs, knobs))
        split = placed.workload.split
        layers = [end - begin for begin, end in pairwise((0, *split.cuts, workload.model.layers))]
        layout = Layout(split, cluster)
        blocks = [layout.block(stage) for stage in range(split.pp)]
        ranks = [str(block[0]) if len(block) == 1 else f"{block[0]}-{block[-1]}" for block in blocks]
        message = (
            f"fusion puts {', '.join(map(str, layers))} layers on ranks {', '.join(ranks)}, whose edges keep "
            f"{', '.join(f'{100 * share:.3g}' for share in placed.shares)} % of the values (formulas reconstructed)"
        )
        details = {"technique": self.name, "cuts": split.cuts, "order": split.order, "shares": placed.shares}
        return (Note("placement", "info", message, details),)


FUSION = Fusion()


def placement(workload: Workload, cluster: Cluster, knobs: Mapping[str, Any]) -> Placement:
    """Choose order, cuts and shares.

    Of the orders tried the one whose step is reckoned shortest. A stage's replicas go at the speed of its slowest
    device. Not weighed: the stage's own sums over tensor-parallel ranks and its exchange between replicas. Where no cut
    fits the devices' memory, memory is left out: what does not fit is simulated, and said not to fit.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
    knobs : mapping
        ``r``, ``cuts``, ``order``, ``seed`` of :class:`Fusion`.

    Raises
    ------
    InputError
        As :func:`densing.efficiency.systems.fusion.devices.orders` and
        :func:`densing.efficiency.systems.fusion.chain.best_cuts`, and when the split does not fit the cluster.

    Examples
    --------
    >>> cluster = load_cluster("geo48")
    >>> step = split_over(load_workload("gpt2"), cluster, techniques=["fusion"])
    >>> placed = placement(step, cluster, {"r": 100.0, "cuts": "fitted", "order": "fitted"})
    >>> placed.workload.split.order, placed.workload.split.cuts
    ((3, 2, 5, 4, 1, 0), (1, 2, 3, 4, 5))
    """
    if workload.split.virtual > 1:
        raise InputError(f"fusion places one stage per device; leave out virtual = {workload.split.virtual}")
    bare = replace(workload, split=replace(workload.split, cuts=(), order=()))
    layout = Layout(bare.split, cluster)
    blocks = range(bare.split.pp)
    speed = [min(cluster.speed[rank] for rank in layout.block(each)) if cluster.speed else 1.0 for each in blocks]
    if knobs["order"] == "random":
        tried = [tuple(random.Random(knobs["seed"]).sample(blocks, len(blocks)))]
    elif knobs["order"] == "numbered":
        tried = [tuple(blocks)]
    else:
        count = _handed_on(bare)
        seconds = np.array([[_edge_seconds(layout, a, b, count) if a != b else 0.0 for b in blocks] for a in blocks])
        # Latency counts: an edge is as fast as it is for what this model hands on. A link that costs nothing is fast.
        tried = list(orders(count / np.maximum(seconds, 1e-12), speed))
    placed = [_placed(bare, layout, order, [speed[block] for block in order], knobs) for order in tried]
    return min(placed, key=lambda each: each.reckoned_s)


def _placed(
    workload: Workload, layout: Layout, order: tuple[int, ...], speed: Sequence[float], knobs: Mapping[str, Any]
) -> Placement:
    device, split, count = layout.cluster.device, workload.split, _handed_on(workload)
    pairs = list(pairwise(order))
    shares = sizes.edge_shares([_edge_seconds(layout, a, b, count) for a, b in pairs], knobs["r"])
    edges = _edges(workload, device, shares)
    # What an index would cost more than it saves is sent as it is.
    shares = [share if edge.share < 1 else 1.0 for share, edge in zip(shares, edges, strict=True)]
    crossing = [_edge_seconds(layout, a, b, count * edge.share) for (a, b), edge in zip(pairs, edges, strict=True)]
    layers = workload.model.layers
    table = np.repeat(np.array(crossing).reshape(-1, 1), layers + 1, axis=1)
    work = _work(workload, device)
    if knobs["cuts"] == "equal":
        even = [stage[0].layer for stage in stages(workload)[1:]]
        cuts = cut_at(even, work, speed, table)
    else:
        room = layout.cluster.device.memory or math.inf
        try:
            cuts = best_cuts(work, speed, table, _need(workload), room, micro_batches=workload.micro_batches)
        except InputError:
            cuts = best_cuts(work, speed, table, micro_batches=workload.micro_batches)
    back = sum(crossing) if workload.mode == "train" else 0.0
    return Placement(
        replace(workload, split=replace(split, cuts=cuts.first, order=order)),
        tuple(shares),
        edges,
        cuts.step(workload.micro_batches) + back,
    )


def _edges(workload: Workload, device: Device, shares: Sequence[float]) -> tuple[Edge, ...]:
    """Return what becomes of each edge, where a share of its values is kept."""
    rows = round(_handed_on(workload) / (workload.dtype_bytes * workload.model.hidden))
    edges = [coded(Coding(CODEC, share), rows, workload, device) if share < 1 else Edge() for share in shares]
    return tuple(edge if edge.share < 1 else Edge() for edge in edges)


def _handed_on(workload: Workload) -> float:
    """Bytes that a rank hands on of a micro-batch: after any layer of a transformer the same."""
    split = workload.split
    return modules(workload)[1].activation / (split.tp if split.sequence else 1)


def _edge_seconds(layout: Layout, one: int, other: int, count: float) -> float:
    return max(layout.handing_on(count, *pair) for pair in layout.neighbours(one, other))


def _work(workload: Workload, device: Device) -> list[float]:
    """Seconds of each layer at speed 1, there and back; the first brings the embedding along, the last the head."""
    phases = ("forward", "backward") if workload.mode == "train" else ("forward",)
    seconds = [0.0] * workload.model.layers
    for module in modules(workload):
        at = min(max(module.layer, 0), len(seconds) - 1)
        seconds[at] += sum(module_seconds(workload, device, module, phase) for phase in phases)
    return seconds


def _need(workload: Workload) -> NDArray[np.float64]:
    """Bytes of layers k to l as stage i: 1F1B has more micro-batches under way in the first stages."""
    sequence, layers, pp = modules(workload), workload.model.layers, workload.split.pp
    need = np.full((pp, layers + 1, layers + 1), math.inf)
    known: dict[tuple[int, int, bool, bool], float] = {}
    for stage in range(pp):
        for begin, end in combinations(range(layers + 1), 2):
            key = (stage, end - begin, begin == 0, end == layers)
            if key not in known:
                # Two modules a layer, between embedding and head.
                part = sequence[0 if begin == 0 else 1 + 2 * begin : len(sequence) if end == layers else 1 + 2 * end]
                known[key] = stage_bytes(workload, part, pp - stage)
            need[stage, begin, end] = known[key]
    return need


BAND, LOW, HIGH = "1.45 to 9.39 times", 1.45, 9.39
ABSTRACT = "abstract of arXiv 2410.12707"
WEAK = "weak: the testbeds are not published"
SEEDS = range(5)
VARIANTS: Mapping[str, Callable[[Cluster], Cluster]] = {
    "geo48": lambda cluster: cluster,
    "geo48 with links between sites ten times as fast": lambda cluster: cluster.change(
        wide=cluster.wide.faster(10) if cluster.wide else None
    ),
    "geo48 with equal devices": lambda cluster: cluster.change(speed=()),
}
"""Chosen before they were simulated."""


def _gain(variant: str, physics: Physics, model: str = "gpt2", pp: int | None = None, **knobs: Any) -> Answer:
    """Return how many times shorter a step is than that of equal stages in random order, dense and compressed alike.

    The abstract names no baselines: dense, all of the compression counts as gain, beside it scheduling alone.
    """
    cluster = VARIANTS[variant](load_cluster("geo48"))
    work = split_over(load_workload(model), cluster, pp=pp, techniques=("fusion",))

    def step(**chosen: Any) -> float:
        return physics.measure(FUSION, work, cluster, **chosen).step_s

    ours = step(**knobs)
    rate = {"r": knobs["r"]} if "r" in knobs else {}
    gains, texts = {}, []
    for name, codec in (("dense baselines", {"r": 1.0}), ("baselines that compress alike", rate)):
        equal = [step(cuts="equal", order="random", seed=seed, **codec) / ours for seed in SEEDS]
        numbered = step(cuts="equal", order="numbered", **codec) / ours
        gains[name] = median(equal)
        texts.append(
            f"over {name} {min(equal):.3g} to {max(equal):.3g} in {len(SEEDS)} random orders (median "
            f"{gains[name]:.3g}), {numbered:.3g} with the devices as numbered"
        )
    note = f"{WEAK}, nor are the baselines; {'; '.join(texts)}; formulas reconstructed"
    inside = [LOW <= gain <= HIGH for gain in gains.values()]
    words = " and ".join(f"{gain:.3g} times over {name}" for name, gain in gains.items())
    return Answer(BAND if all(inside) else words, note, readings=any(inside) and not all(inside))


def _exact(_: Physics) -> Answer:
    """Compare the cuts with every cut there is, on random chains of up to 12 layers and 4 devices."""
    chosen = random.Random(0)
    missed = 0
    for _trial in range(TRIALS):
        devices = chosen.randint(1, 4)
        layers = chosen.randint(devices, 12)
        work = [chosen.random() for _ in range(layers)]
        speed = [chosen.uniform(0.1, 1.0) for _ in range(devices)]
        crossing = [[chosen.random() for _ in range(layers + 1)] for _ in range(devices - 1)]
        least = min(every_cut(work, speed, crossing), key=lambda cuts: (cuts.slowest, cuts.through))
        missed += best_cuts(work, speed, crossing).slowest != least.slowest
    return Answer(
        EXACT if not missed else f"{missed} of {TRIALS} missed",
        f"{TRIALS} random chains, compared with every possible cut",
    )


LINKS, RATIO, STEPS, TRIED_SEEDS = "1gbit,1gbit,50mbit", 100.0, 250, range(10, 16)
"""The technique's own default ratio; seeds 0 and 1 were looked at while the codec was chosen."""
TRIED_RUN = RunSpec(
    "pipeline", nproc=3, model=LmShape(layers=3, hidden=32, heads=2, ffn=88), batch=8, sequence=32, lr=5e-3
)


@experiment(float)
def trained(seed: int, shares: tuple[float, float], steps: int) -> float:
    """Return the mean loss of the last 20 steps in three stages, each edge keeping its share."""
    from densing.efficiency.parallel import train_stages

    spec = replace(TRIED_RUN, steps=steps, seed=seed)
    return fmean(train_stages(spec, cuts=(1, 2), codec=CODEC, shares=shares).losses[-20:])


def _slow_edges_only(physics: Physics, ratio: float = RATIO, links: str = LINKS) -> Answer:
    """Train with one slow edge of two compressed, and with both, the slow one alike: whose loss is lower?"""
    spec = replace(TRIED_RUN, link=links)
    shares = {"slow edge": (1.0, 1 / ratio), "all edges": (1 / ratio, 1 / ratio)}
    losses = {name: [trained(seed, kept, STEPS) for seed in TRIED_SEEDS] for name, kept in shares.items()}
    work = workload_of(TRIED_RUN.model, spec.batch, spec.sequence, pp=3, micro_batches=4)
    there = of_links(load_cluster("cpu2", n=3), spec)
    steps = {
        name: physics.measure(PIPELINE, work, there, codec=CODEC, share=",".join(map(str, kept))).step_s
        for name, kept in shares.items()
    }
    wins = sum(one < other for one, other in zip(*losses.values(), strict=True))
    told = "; ".join(f"{name}: loss {fmean(losses[name]):.3f}, step {1e3 * steps[name]:.3g} ms" for name in shares)
    note = f"r = {ratio:g}, {links}; {told}; lower loss in {wins} of {len(TRIED_SEEDS)} seeds (steps simulated)"
    better = wins == len(TRIED_SEEDS) and steps["slow edge"] <= steps["all edges"]
    return Answer("better" if better else "not decided" if 0 < wins < len(TRIED_SEEDS) else "no", note)


EXACT, TRIALS = "optimal every time", 200
ASSUMED = (
    "GPT-2 of 124e6 parameters, 8 sequences of 1024 tokens per replica in micro-batches of one, 6 "
    "stages of 8 devices, r = 100 "
    "(all assumed)"
)


def _claims() -> tuple[Claim, ...]:
    return (
        *(
            Claim(
                f"FUS-1{letter}", "step time of equal stages in random order, over fusion's", f"{variant}; {WEAK}",
                BAND, "", "first-hand", ABSTRACT, partial(_gain, variant), inputs=ASSUMED,
                assumptions={
                    "r = 1 (dense)": partial(_gain, variant, PHYSICS, r=1.0),
                    "r = 10": partial(_gain, variant, PHYSICS, r=10.0),
                    "12 stages of 4 devices": partial(_gain, variant, PHYSICS, pp=12),
                },
            )
            for letter, variant in zip("abc", VARIANTS, strict=True)
        ),
        Claim(
            "FUS-2", "compressing only slow edges, against Top-K on all, at equal bytes on the "
                     "slowest edge", "pipeline",
            "better", "", "first-hand", ABSTRACT, _slow_edges_only, grade="measured",
            inputs="small language model of 3 layers in 3 stages, one of two edges slow",
            assumptions={
                "r = 10": partial(_slow_edges_only, PHYSICS, 10.0),
                "r = 1000": partial(_slow_edges_only, PHYSICS, 1000.0),
                "a slow link of 10 Mbit/s, not 50": partial(_slow_edges_only, PHYSICS, RATIO, "1gbit,1gbit,10mbit"),
            },
        ),
        Claim(
            "FUS-3", "convergence with compressed edges", "ResNet-101, GPT-2", "no loss", "", "first-hand", ABSTRACT,
            lambda _: recorded("less-to-send", "fusion:r=100"), grade="measured",
            assumptions={f"r = {r}": partial(recorded, "less-to-send", f"fusion:r={r}") for r in (4, 10)},
            inputs="a ladder of small models, one layer per stage, all edges alike",
        ),
        Claim(
            "FUS-4", "cuts that minimise the slowest stage or edge",
            "up to 12 layers on 4 unequal devices", EXACT, "", "measured",
            "ours: exhaustive search over contiguous cuts", _exact, inputs="random work, speeds and edges",
            grade="own measurement",
        ),
    )  # fmt: skip


CLAIMS: tuple[Claim, ...] = _claims()

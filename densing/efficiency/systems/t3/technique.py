"""The plan of T3 and its claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from statistics import geometric_mean
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from densing.core import InputError
from densing.efficiency.simulation import (
    Cluster,
    Graph,
    Module,
    Split,
    Transformer,
    Workload,
    collective_seconds,
    load_cluster,
    load_workload,
)
from densing.efficiency.systems.baselines import TENSOR_PARALLEL
from densing.efficiency.systems.claims import PHYSICS, Answer, Claim, Grade, Physics, Published, constant_share, over
from densing.efficiency.systems.planner import (
    BLOCK,
    BUCKET,
    MODE,
    Event,
    Pass,
    Sliced,
    TensorParallelRun,
    TensorSchedule,
    module_seconds,
    product_share,
)
from densing.efficiency.systems.registry import Knob, flag, number, whole
from densing.efficiency.timeline import Kind

if TYPE_CHECKING:
    from densing.efficiency.parallel import Schedule


class Hardware(NamedTuple):
    """What T3's hardware does.

    Attributes
    ----------
    stages : int
        In which the product writes its output; 0: one per rank of the group, the ring's chunks.
    nmc : float
        Share of the reduce-scatter that near-memory reduction saves.
    kappa : float
        The product takes ``1 + kappa`` times as long beside its reduce-scatter.
    """

    stages: int = 0
    nmc: float = 0.0
    kappa: float = 0.0


class Triggered:
    """Reduce-scatters that follow a product's stages; the all-gather blocks.

    Parameters
    ----------
    hardware : Hardware
    """

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware

    def lay(self, run: Pass, after: Event) -> Event:
        """Add the pass's tasks, and return when its output is there."""
        for module in run.modules:
            if run.reduces(module) and module.name in BLOCK:
                after = self._module(run, module, after)
            else:
                after = run.compute(module, after)
                if run.reduces(module):
                    after = run.reduce(module, after)
        return after

    def _module(self, run: Pass, module: Module, after: Event) -> Event:
        """The module up to its last product, the product in stages with their transfers, the all-gather."""
        stage, again = run.stage, run.recomputes(module)
        total_s = run.seconds(module)
        product_s = total_s * product_share(stage.workload, module, run.phase)
        if again:
            # What is recomputed has a product of its own, and its sum.
            forward_s = module_seconds(stage.workload, stage.device, module, "forward")
            summed_s = forward_s * product_share(stage.workload, module, "forward")
            after = self._triggered(run, module, after, forward_s - summed_s, summed_s, closes=False)
            total_s -= forward_s
        return self._triggered(run, module, after, total_s - product_s, product_s, opens=not again)

    def _triggered(
        self,
        run: Pass,
        module: Module,
        after: Event,
        before_s: float,
        product_s: float,
        *,
        opens: bool = True,
        closes: bool = True,
    ) -> Event:
        stages = self.hardware.stages or run.stage.size("tp")
        each = product_s * (1 + self.hardware.kappa) / stages
        done = run.compute(module, after, before_s, opens=opens, closes=False)
        # The product's stages follow one another; each one's transfer runs beneath the stages after it.
        for stage in range(stages):
            last = closes and stage == stages - 1
            done = run.compute(module, done, each, opens=False, closes=last, label=" stage")
            scattered = run.stage.part(
                f"reduce_scatter {module.name}",
                "reduce_scatter",
                module.activation,
                1 / stages,
                done,
                saved=self.hardware.nmc,
            )
        return run.stage.collective(f"all_gather {module.name}", "all_gather", module.activation, "tp", scattered)


class T3(TensorParallelRun, Sliced):
    """Sums that begin while the product still computes."""

    name = "t3"
    paper = "Pati et al., ASPLOS 2024, arXiv 2401.16677"
    summary = "hardware starts a product's reduce-scatter as its stages complete and reduces near memory (simulated)"
    stand_in = "tile-wise decomposition in software, not T3"
    not_available = ("figures per sub-layer", "official code")
    knobs: tuple[Knob, ...] = (
        Knob("n_stages", 0, "stages of a product's output; 0: one per rank of the group", whole(0, 4096)),
        Knob("nmc", 0.0, "share of the reduce-scatter that near-memory reduction saves", number(0, 0.99)),
        Knob("kappa", 0.0, "the product takes 1 + kappa times as long beside its reduce-scatter", number(0)),
        Knob("mca", False, "memory-controller arbitration: kappa_mca in place of kappa", flag),
        Knob("kappa_mca", 0.0, "contention that remains with arbitration", number(0)),
        Knob("tiles", 4, "tiles of a product in a real run (a software stand-in)", whole(1, 4096)),
        BUCKET,
        MODE,
    )
    plan_only = ("bucket_mb", "n_stages", "nmc", "kappa", "mca", "kappa_mca")
    claims_in = __name__

    def tensor(self, workload: Workload, cluster: Cluster, knobs: Mapping[str, Any]) -> TensorSchedule:
        """Return sums that follow the product's stages."""
        kappa = knobs["kappa_mca"] if knobs["mca"] else knobs["kappa"]
        return Triggered(Hardware(knobs["n_stages"], knobs["nmc"], kappa))

    def schedule(self, **knobs: Any) -> Schedule:
        """Return tiles whose sums begin while the next tile is computed."""
        from densing.efficiency.systems.t3.run import Tiled

        return Tiled(**knobs)


def sublayer(gemm_s: float, scatter_s: float, gather_s: float, hardware: Hardware | None = None) -> Graph:
    """Return a single matrix product, its reduce-scatter and its all-gather on one rank: what T3's paper times.

    Parameters
    ----------
    gemm_s, scatter_s, gather_s : float
        Seconds of each alone.
    hardware : Hardware, optional
        T3 with so many stages (at least 1); left out: one after the other.

    Raises
    ------
    InputError
        For hardware without stages.

    Examples
    --------
    >>> [task.name for task in sublayer(1.0, 1.0, 1.0).tasks]
    ['gemm', 'reduce_scatter', 'all_gather']
    """
    hardware = hardware or Hardware(1)
    if hardware.stages < 1:
        raise InputError("t3: a single product needs a number of stages; give 1 or more")
    graph = Graph()
    graph.step = 0
    for _ in range(hardware.stages):
        done = graph.add("gemm", Kind.COMPUTE, (0,), "compute", gemm_s * (1 + hardware.kappa) / hardware.stages)
        seconds = scatter_s * (1 - hardware.nmc) / hardware.stages
        scattered = graph.add("reduce_scatter", Kind.COMM, (0,), "comm", seconds, after=[done])
    graph.add("all_gather", Kind.COMM, (0,), "comm", gather_s, after=[scattered])
    return graph


T3_TECHNIQUE = T3()


NOTE = "a reading note on arXiv 2401.16677"
MODELS = ("mega-gpt2", "t-nlg")
WIDTHS = (8, 16)
SHARES = {"OP": 1, "FC-2": 4, "FC-1": 4, "IP": 3}
"""Inner width of each product in hidden widths, before it is sliced."""

FINE = 256
"""Stages of the ideal overlap: so many that the first takes almost no time."""

GEOMEAN = {"ideal": 1.35, "t3": 1.20, "mca": 1.30}
LARGEST = {"ideal": 1.50, "t3": 1.39, "mca": 1.47}
NMC = {8: 0.07, 16: 0.03}
"""Share of the reduce-scatter that near-memory reduction saves, by devices; published, used as an input."""


class Sub(NamedTuple):
    """A sub-layer: seconds of the product, and of the reduce-scatter (the all-gather takes as long); devices."""

    gemm_s: float
    scatter_s: float
    devices: int


class Shape(NamedTuple):
    """A sub-layer's bytes: what the product reads, what it writes on each device, and over how many devices it goes."""

    flops: float
    read: float
    written: float
    devices: int


def shapes() -> tuple[Shape, ...]:
    """Return the products of both models over both widths."""
    products = []
    for model in MODELS:
        work = load_workload(model, tp=1)
        hidden, tokens = work.model.hidden, work.batch * work.sequence
        for devices in WIDTHS:
            for width in SHARES.values():
                inner = width * hidden / devices
                read, written = tokens * inner + hidden * inner, tokens * hidden
                size = work.dtype_bytes
                products.append(Shape(2 * tokens * hidden * inner, size * read, size * written, devices))
    return tuple(products)


@cache
def mix(physics: Physics, rate: float) -> tuple[Sub, ...]:
    """Return the sub-layers on a device with so many times the preset's rate."""
    cluster = physics.cluster(load_cluster("t3-sim"))
    return tuple(
        Sub(
            cluster.device.seconds(shape.flops, shape.read + shape.written) / rate,
            collective_seconds("reduce_scatter", shape.written, cluster, range(shape.devices)),
            shape.devices,
        )
        for shape in shapes()
    )


def speedup(physics: Physics, sub: Sub, hardware: Hardware) -> float:
    """Return the simulated gain of a sub-layer over one thing after the other."""
    laws = hardware._replace(kappa=hardware.kappa * physics.contention)
    before, after = sublayer(*sub[:2], sub.scatter_s), sublayer(*sub[:2], sub.scatter_s, laws)
    return physics.simulate(before).makespan / physics.simulate(after).makespan


def gains(physics: Physics, rate: float, kappa: float | None) -> list[float]:
    """Return the gain of every sub-layer; ideal where no contention is given."""
    return [
        speedup(physics, sub, Hardware(FINE) if kappa is None else Hardware(sub.devices, NMC[sub.devices], kappa))
        for sub in mix(physics, rate)
    ]


@cache
def fitted_rate(physics: Physics) -> float:
    """Return the rate, in the preset's, that gives the ideal geometric mean (the best there is if none does)."""
    from scipy.optimize import minimize_scalar

    # The ideal mean has a peak in the rate (compute as long as communication), so the distance is minimised, no root.
    fit = minimize_scalar(
        lambda rate: abs(geometric_mean(gains(physics, float(rate), None)) - GEOMEAN["ideal"]),
        bounds=(0.3, 2.0),
        method="bounded",
        options={"xatol": 1e-2},
    )
    return float(fit.x)


MOST_KAPPA = 5.0


@cache
def fitted_kappa(physics: Physics, kind: str) -> float:
    """Return the contention that gives a geometric mean; 0 where even none of it, or nothing at all, does."""
    from scipy.optimize import brentq

    def excess(kappa: float) -> float:
        return geometric_mean(gains(physics, fitted_rate(physics), kappa)) - GEOMEAN[kind]

    if excess(0.0) <= 0 or excess(MOST_KAPPA) > 0:
        return 0.0
    root: float = brentq(excess, 0.0, MOST_KAPPA, xtol=1e-4)
    return root


def _gains(physics: Physics, kind: str) -> list[float]:
    return gains(physics, fitted_rate(physics), None if kind == "ideal" else fitted_kappa(physics, kind))


def _largest(kind: str, physics: Physics) -> Answer:
    note = "" if kind == "ideal" else f"kappa {fitted_kappa(physics, kind):.2f}"
    return Answer(max(_gains(physics, kind)), note)


def _largest_null(kind: str) -> Answer:
    """Free is the ideal overlap, blocking is none; the share is that of the geometric means."""
    mean = Published(1 / GEOMEAN["ideal"], 1.0, 1 / GEOMEAN[kind])
    note = "the share of the ideal saving that the geometric mean implies"
    return Answer(1 / constant_share(1 / LARGEST["ideal"], 1.0, [mean]), note)


def _order(physics: Physics) -> Answer:
    means = {kind: geometric_mean(_gains(physics, kind)) for kind in ("t3", "mca", "ideal")}
    rises = 1 < means["t3"] < means["mca"] < means["ideal"]
    order = "sequential < T3 < MCA < ideal" if rises else "another order"
    return Answer(order, "geometric means " + " < ".join(f"{mean:.2f}" for mean in means.values()))


def _cu_split(slower_gemm: float, slower_sum: float, physics: Physics) -> Answer:
    """A product beside an independent all-reduce of 1.5 times its length, each slowed by its share of the device."""
    graph = Graph()
    graph.add("gemm", Kind.COMPUTE, (0,), "compute", slower_gemm)
    graph.add("all_reduce", Kind.COMM, (0,), "comm", 1.5 * slower_sum)
    return Answer(2.5 / physics.simulate(graph).makespan)


def _nmc(physics: Physics, devices: int, tokens: float = 1.0) -> float:
    """Return the saving over so many devices if reducing costs what makes it 7 % over 8, times the tokens."""
    cluster, work = physics.cluster(load_cluster("t3-sim")), load_workload("t-nlg", tp=1)
    count = tokens * work.batch * work.sequence * work.model.hidden * work.dtype_bytes
    seconds = {n: collective_seconds("reduce_scatter", count, cluster, range(n)) for n in WIDTHS}
    per_byte = NMC[8] * seconds[8] / (1 - NMC[8]) / (7 / 8 * count)
    reducing = per_byte * (devices - 1) / devices * count
    return 100 * reducing / (seconds[devices] + reducing)


def _nmc_direction(physics: Physics, tokens: float = 1.0) -> Answer:
    tp8, tp16 = _nmc(physics, 8, tokens), _nmc(physics, 16, tokens)
    direction = "TP 8 > TP 16" if tp8 > 1.1 * tp16 else "no clear difference" if tp8 > tp16 else "TP 8 <= TP 16"
    return Answer(direction, f"{tp8:.2f} and {tp16:.2f} %; published 7 and 3 %")


def _step(
    mode: str, kind: str, largest: bool, physics: Physics, kappa: float | None = None, rate: float = 1.0
) -> Answer:
    """Return per cent gained; with another contention, or another rate in the fitted one."""
    used = fitted_kappa(physics, kind) if kappa is None else kappa
    steps = [_step_gain(physics, mode, used, width, rate) for width in WIDTHS]
    return Answer(100 * ((max(steps) if largest else geometric_mean(steps)) - 1), f"kappa {used:.2f}")


@cache
def _step_gain(physics: Physics, mode: str, kappa: float, width: int, rate: float) -> float:
    work, cluster = load_workload("mega-gpt2", mode=mode, tp=width), _device(rate * fitted_rate(physics))
    knobs = {"nmc": NMC[width], "kappa": kappa * physics.contention}
    blocking = physics.measure(TENSOR_PARALLEL, work, cluster).step_s
    return blocking / physics.measure(T3_TECHNIQUE, work, cluster, **knobs).step_s


@cache
def _device(rate: float) -> Cluster:
    cluster = load_cluster("t3-sim")
    device = cluster.device
    return cluster.change(device=replace(device, flops=device.flops * rate, mem_bw=device.mem_bw * rate))


STEPS = (
    ("T3-3a", "train", "mca", False, 10.0),
    ("T3-3b", "train", "mca", True, 12.0),
    ("T3-3c", "prefill", "mca", False, 12.0),
    ("T3-3d", "prefill", "mca", True, 15.0),
    ("T3-3e", "train", "t3", False, 7.0),
    ("T3-3f", "prefill", "t3", False, 9.0),
)
"""Claim, mode, hardware, whether the largest gain (else the mean), and the gain in percent."""


def _as_published(name: str) -> Published:
    """A step: free as if all of it were sub-layers of the gain published for these, blocking at none of it."""
    _, _, kind, largest, gain = next(row for row in STEPS if row[0] == name)
    return Published(1 / (LARGEST if largest else GEOMEAN)[kind], 1.0, 1 / (1 + gain / 100))


def _step_null(name: str) -> Answer:
    own, peers = _as_published(name), [_as_published(row[0]) for row in STEPS if row[0] != name]
    note = f"a constant share of a sub-layer's saving, from the other {len(peers)} rows of whole steps"
    return Answer(100 * (1 / constant_share(own.free, own.blocking, peers) - 1), note)


MT_NLG = Transformer(
    "mt-nlg", layers=105, hidden=20_480, heads=128, kv_heads=128, head_dim=160, ffn=81_920, vocabulary=50_257,
    gated=False, tied=True, source="Megatron-Turing NLG, arXiv 2201.11990 (530e9 parameters)", evidence="recalled",
)  # fmt: skip
TOKENS = "batches and sequences of the presets"


def _share(model: str, physics: Physics, rate: float) -> float:
    """Return the largest share of a step, training or prefill, in tensor-parallel communication, percent."""
    percents = []
    for width in (32,) if model == "mt-nlg" else WIDTHS:
        for mode in ("train", "prefill"):
            if model == "mt-nlg":
                work = Workload(MT_NLG, mode, 1, 2048, Split(tp=width))
            else:
                work = load_workload(model, mode=mode, tp=1 if model == "t-nlg" else width)
            if model == "t-nlg":
                # 32 heads of 133 in place of 28 of 152 (the same width), which 8 and 16 devices can divide.
                shape = replace(work.model, heads=32, kv_heads=32, head_dim=133)
                work = replace(work, model=shape, split=replace(work.split, tp=width))
            cluster = _device(rate).change(n=width, per_node=width)
            step = physics.measure(TENSOR_PARALLEL, work, cluster)
            percents.append(100 * step.exposed_comm_s / step.step_s)
    return max(percents)


PUBLISHED_SHARES = {"T3-4a": 34.0, "T3-4b": 43.0, "T3-4c": 46.0}
FALLS = (
    "the machine of the sub-layers; on any one machine the share falls from Mega-GPT-2 over T-NLG to MT-NLG, with the "
    "width per device, and the published one rises"
)


def _shares(models: tuple[str, ...], physics: Physics, rate: float = 1.0) -> Answer:
    percents = {model: _share(model, physics, rate * fitted_rate(physics)) for model in models}
    note = ", ".join(f"{model} {value:.0f} %" for model, value in percents.items())
    return Answer(max(percents.values()), note if len(percents) > 1 else FALLS)


def _shares_null(name: str) -> Answer:
    """Return the mean of the other rows' shares; of products twice as fast, what halving the rest makes of it."""
    shares = [share for other, share in PUBLISHED_SHARES.items() if other != name]
    mean = sum(shares) / len(shares)
    if name in PUBLISHED_SHARES:
        return Answer(mean, "the mean of the other rows' shares")
    return Answer(100 * mean / (mean + (100 - mean) / 2), "the mean of the rows' shares, the rest of a step halved")


def scatter_traffic(devices: int) -> tuple[float, float, float, float]:
    """Return what one product's output costs the memory of a device, in outputs: reads and writes before, and with T3.

    Before: the product writes its output. A ring's first step reads a chunk to send it; each later one reads what came
    and the own chunk, and sends their sum; the last sum is written. With T3 the first chunk is stored at the neighbour,
    what comes is added where it lies, and each chunk but the first and last is read once to be sent.
    """
    chunk = 1 / devices
    before = (2 * devices - 1) * chunk, 1 + (devices - 1) * chunk + chunk
    after = (devices - 2) * chunk, 2 * (devices - 1) * chunk
    return *before, *after


def _fewer_writes(*devices: int) -> float:
    """Return per cent of the writes of a product and its reduce-scatter that T3 saves, mean over numbers of devices."""
    traffic = map(scatter_traffic, devices)
    return 100 * (1 - geometric_mean([writes_t3 / writes for _, writes, _, writes_t3 in traffic]))


def _less_traffic(largest: bool, _: Physics, operands: float = 1.0) -> Answer:
    """Product, reduce-scatter and all-gather (which reads and writes as much either way), every operand read once."""
    ratios = []
    for shape in shapes():
        read, written, read_t3, written_t3 = scatter_traffic(shape.devices)
        fixed = operands * shape.read / shape.written + 2 * (shape.devices - 1) / shape.devices
        ratios.append((fixed + read_t3 + written_t3) / (fixed + read + written))
    note = "operands counted once; the cache space that T3's stores leave to them is not modelled"
    return Answer(100 * (1 - (min(ratios) if largest else geometric_mean(ratios))), note)


RING = "ring chunks read and written, mean over 8 and 16 devices"
RATE = (
    "ratio of compute to link speed fitted to the geometric mean of the ideal overlap (1.35; "
    "no ratio gives more than 1.34)"
)
KAPPAS = f"{RATE}, kappa of T3 to 1.20 and with arbitration to 1.30; near-memory savings of 7 and 3 % as published"
TOKENS_TIMES = (0.125, 4)
SUBLAYERS = "sub-layers of Mega-GPT-2 and T-NLG, TP 8 and 16"
HARDWARE = f"the note's ring of 150 GB/s and 500 ns, {RATE}, as for the sub-layers; {TOKENS} (assumed)"


def _claim(name: str, quantity: str, setup: str, figure: float | str, check: Callable[[Physics], Answer],
           inputs: str = "", unit: str = "times", tolerance: float | None = 0.05, grade: Grade = "predicted",
           null: Callable[[], Answer] | None = None,
           assumptions: Mapping[str, Callable[[], Answer]] = MappingProxyType({})) -> Claim:  # fmt: skip
    direction = isinstance(figure, str)
    return Claim(name, quantity, setup, figure, "" if direction else unit, "second-hand", NOTE, check,
                 None if direction else tolerance, inputs, grade=grade, null=null, assumptions=assumptions)  # fmt: skip


CALIBRATED: Grade = "calibrated on other rows"


def _sublayers() -> list[Claim]:
    split = "product and all-reduce in parallel"
    ratio = "all-reduce of 1.5 times the product (fitted to 1.67); slow-downs as published"
    saving = "cost of reducing fitted to 7 % over 8 devices"
    return [
        _claim("T3-1a", "largest gain of ideal overlap", "any product", LARGEST["ideal"],
               # Reached where the product takes about as long as its reduce-scatter.
               lambda physics: Answer(
                   max(speedup(physics, Sub(percent / 100, 1.0, 8), Hardware(FINE)) for percent in range(25, 401, 5))
               ), grade="algebraic"),
        _claim("T3-1b", "potential of overlap", split, 1.67, partial(_cu_split, 1.0, 1.0), ratio, grade="fitted"),
        _claim("T3-1c", "8 CUs for the all-reduce", split, 1.18, partial(_cu_split, 1.0, 1.41), ratio,
               grade="algebraic"),
        _claim("T3-1d", "16 CUs for the all-reduce", split, 1.49, partial(_cu_split, 1.21, 1.07), ratio,
               grade="algebraic"),
        _claim("T3-1e", "order of the geometric means", SUBLAYERS, "sequential < T3 < MCA < ideal", _order,
               f"{KAPPAS}: fitted, not predicted", grade="fitted"),
        # Some product of the mix takes about as long as its reduce-scatter: T3-1a again.
        _claim("T3-1f", "largest gain, ideal", SUBLAYERS, LARGEST["ideal"], partial(_largest, "ideal"), RATE,
               grade="algebraic"),
        _claim("T3-1g", "largest gain, T3", SUBLAYERS, LARGEST["t3"], partial(_largest, "t3"), KAPPAS,
               grade=CALIBRATED, null=partial(_largest_null, "t3")),
        _claim("T3-1h", "largest gain, T3-MCA", SUBLAYERS, LARGEST["mca"], partial(_largest, "mca"), KAPPAS,
               grade=CALIBRATED, null=partial(_largest_null, "mca")),
        _claim("T3-2a", "near-memory saving by devices", "reduce-scatter of T-NLG", "TP 8 > TP 16", _nmc_direction,
               saving, grade=CALIBRATED, null=lambda: Answer("no clear difference", "the same saving over 16 devices"),
               assumptions={
                   f"{times:g} times the tokens": partial(_nmc_direction, PHYSICS, times) for times in TOKENS_TIMES
               }),
        _claim("T3-2b", "near-memory saving over 16 devices", "reduce-scatter of T-NLG", 3.0,
               lambda physics: Answer(_nmc(physics, 16)), saving, "%", 0.25, CALIBRATED,
               lambda: Answer(100 * NMC[8], "the same saving over 16 devices"),
               {f"any tokens from {TOKENS_TIMES[0]} to {TOKENS_TIMES[-1]} times as many": over(
                   lambda times: Answer(_nmc(PHYSICS, 16, times)), *TOKENS_TIMES)}),
    ]  # fmt: skip


def _traffic() -> list[Claim]:
    """Shares of communication, five points allowed as for ISO's; traffic to memory as its parts above."""
    share, widths = "largest share of communication, training or prefill", "TP 8 and 16"
    every = (*MODELS, "mt-nlg")
    traffic = [scatter_traffic(devices) for devices in WIDTHS]
    own = PUBLISHED_SHARES
    rows = (
        ("T3-4a", share, f"Mega-GPT-2, {widths}", own["T3-4a"], ("mega-gpt2",), 1.0, HARDWARE),
        ("T3-4b", share, f"T-NLG, {widths}", own["T3-4b"], ("t-nlg",), 1.0, f"{HARDWARE}; 32 heads in place of 28"),
        ("T3-4c", share, "PALM and MT-NLG, TP 32", own["T3-4c"], ("mt-nlg",), 1.0,
         f"{HARDWARE}; MT-NLG's shape alone (recalled), one sequence of 2048: PALM's 48 heads do not divide over 32"),
        ("T3-4d", f"{share}, products twice as fast", "our sources do not say which model", 75.0, every, 2.0, HARDWARE),
    )  # fmt: skip

    return [
        *(
            _claim(name, quantity, setup, figure, partial(_shares, models, rate=rate), inputs, "%", 5 / figure,
                   grade=CALIBRATED, null=partial(_shares_null, name),
                   assumptions={"any compute from 0.5 to 2 times as fast as fitted": over(
                       partial(_shares, models, PHYSICS), rate / 2, rate, 2 * rate)})
            for name, quantity, setup, figure, models, rate, inputs in rows
        ),
        _claim("T3-4e", share, "models of 1e12 and 10e12 parameters", 44.0,
               lambda _: Answer(None, "their shapes are not in our sources"), unit="%"),
        _claim("T3-5a", "reads of the reduce-scatter, before over T3", "TP 8 and 16", 2.4,
               lambda _: Answer(geometric_mean([reads / reads_t3 for reads, _, reads_t3, _ in traffic]), RING),
               grade="counted"),
        _claim("T3-5b", "writes saved, product and reduce-scatter", "TP 8 and 16", 10.0,
               lambda _: Answer(_fewer_writes(*WIDTHS), RING), unit="%",
               grade="counted", assumptions={"any devices from 8 to 16": over(
                   lambda devices: Answer(_fewer_writes(int(devices))), 8, 16)}),
        _claim("T3-5c", "memory traffic saved, mean", SUBLAYERS, 22.0, partial(_less_traffic, False),
               unit="%", tolerance=0.25, grade="counted"),
        _claim("T3-5d", "memory traffic saved, largest", SUBLAYERS, 36.0, partial(_less_traffic, True),
               unit="%", tolerance=0.25, grade="counted",
               assumptions={"any operands read from 0 to 2 times": over(
                   partial(_less_traffic, True, PHYSICS), 0.0, 1.0, 2.0)}),
        _claim("T3-5e", "reads of the product, before over T3", SUBLAYERS, 1.56,
               lambda _: Answer(None, "T3's stores leave more cache to the product's operands, "
                                      "and no cache is modelled")),
    ]  # fmt: skip


CLAIMS: tuple[Claim, ...] = (
    *_sublayers(),
    *(
        _claim(
            name,
            f"{'largest' if largest else 'mean'} gain of a {mode} step, {'T3-MCA' if kind == 'mca' else 'T3'}",
            "Mega-GPT-2, TP 8 and 16 (the paper's mean is over more models)",
            figure,
            partial(_step, mode, kind, largest),
            KAPPAS,
            "%",
            0.25,
            CALIBRATED,
            partial(_step_null, name),
            {
                "any contention (kappa) from 0 to 0.6": over(
                    partial(_step, mode, kind, largest, PHYSICS), 0.0, 0.3, 0.6
                ),
                "any compute from 0.5 to 2 times as fast as fitted": over(
                    partial(_step, mode, kind, largest, PHYSICS, None), 0.5, 2.0
                ),
            },
        )
        for name, mode, kind, largest, figure in STEPS
    ),
    *_traffic(),
)

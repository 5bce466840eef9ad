"""The plan of ISO and its claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from densing.core import InputError
from densing.efficiency.simulation import (
    Cluster,
    Device,
    Link,
    Module,
    Workload,
    collective_seconds,
    load_cluster,
    load_workload,
    simulate,
)
from densing.efficiency.systems.baselines import TENSOR_PARALLEL
from densing.efficiency.systems.claims import (
    FREE,
    PHYSICS,
    Answer,
    Claim,
    Evidence,
    Physics,
    Published,
    constant_share,
    device_taking,
    link_taking,
    over,
)
from densing.efficiency.systems.ladder_residual import data_sheet, kappa_of, published, same_link
from densing.efficiency.systems.planner import (
    BLOCK,
    BUCKET,
    MODE,
    Event,
    Pass,
    Piece,
    Sliced,
    TensorParallelRun,
    TensorSchedule,
    join,
    plan_steps,
)
from densing.efficiency.systems.registry import Knob, number

if TYPE_CHECKING:
    from densing.efficiency.parallel import RunEnv, RunRecord, Schedule


AUTO = "auto"
SHARES = tuple(share / 100 for share in range(30, 75, 5))
"""Splits tried when the split is adaptive."""


class Halves:
    """Parts A and B of the tokens, module by module in turn; backward B goes first.

    Parameters
    ----------
    share : float
        Of the tokens in A, between 0 and 1.
    """

    def __init__(self, share: float = 0.5) -> None:
        self.parts = {" A": Piece(0.0, share), " B": Piece(share, 1.0)}

    def lay(self, run: Pass, after: Event) -> Event:
        """Add the pass's tasks, and return when its output is there."""
        ready = dict.fromkeys(self.parts, after)
        for module in run.modules:
            if module.name in BLOCK:
                self._turns(run, module, ready)
            else:
                done = run.compute(module, join(*ready.values()))
                ready = dict.fromkeys(self.parts, run.reduce(module, done) if run.reduces(module) else done)
        return join(*ready.values())

    def _turns(self, run: Pass, module: Module, ready: dict[str, Event]) -> None:
        # Forward, B attends to the keys and values of A; backward, A's gradients need B's. The parts follow one
        # another on the same stream, which sees to it.
        order = list(self.parts) if run.phase == "forward" else list(self.parts)[::-1]
        for part in order:
            piece = self.parts[part]
            flags = {"opens": part == order[0], "closes": part == order[-1]}
            done = run.compute(module, ready[part], run.seconds(module, piece), label=part, **flags)
            ready[part] = run.reduce(module, done, piece.share, part) if run.reduces(module) else done


class Iso(TensorParallelRun, Sliced):
    """Sums of one half of a sequence under the compute of the other.

    Source: Xiao and Su, arXiv 2409.11155.
    """

    name = "iso"
    paper = "Xiao and Su 2024, arXiv 2409.11155"
    summary = "the sequence is split in two parts that alternate: each part's all-reduce overlaps the other's compute"
    modes = ("train", "prefill")
    not_available = ("the paper's per-size tables", "official code")
    claims_in = __name__

    @staticmethod
    def _share(text: str) -> float | str:
        if text == AUTO:
            return AUTO
        return number(0.05, 0.95)(text)

    knobs: tuple[Knob, ...] = (
        Knob("split", 0.5, "share of the tokens in the first part; auto: the best of several (plans only)", _share),
        BUCKET,
        MODE,
    )

    def tensor(self, workload: Workload, cluster: Cluster, knobs: Mapping[str, Any]) -> TensorSchedule:
        """Return two parts of the tokens."""
        share = knobs["split"]
        return Halves(best_share(workload, cluster) if share == AUTO else share)

    def schedule(self, **knobs: Any) -> Schedule:
        """Return parts of the sequence in turns."""
        from densing.efficiency.systems.iso.run import Interleaved

        return Interleaved(**knobs)

    def run(self, env: RunEnv, **knobs: Any) -> RunRecord:
        """Train ``env.spec.steps`` steps on this rank, and return its record."""
        if knobs.get("split") == AUTO:
            raise InputError("iso: split = auto is for plans; give a real run a share, such as 0.5")
        return super().run(env, **knobs)


def best_share(workload: Workload, cluster: Cluster) -> float:
    """Return the share of the first part for which two layers are fastest.

    Raises
    ------
    InputError
        As a plan does.
    """
    short = replace(workload, model=replace(workload.model, layers=2), split=replace(workload.split, pp=1, dp=1))
    few = cluster.change(speed=())

    def seconds(share: float) -> float:
        plan = plan_steps(short, few, Halves(share), warmup=0, steps=1)
        return simulate(plan.graph, plan.ranks, kappa=cluster.kappa, kappa_comm=cluster.kappa_comm).makespan

    return min(SHARES, key=seconds)


ISO = Iso()


ABSTRACT = "arXiv 2409.11155, abstract"
DATA_SHEETS = "bandwidths and rates from data sheets (see the presets' sources), nothing fitted"
MODELS = ("infer-30b", "infer-70b")
CONTENTION_LIMIT = 50.0
SLOW, QUICK = "rtx4090x4-pcie", "a800x4-nvlink"
POINTS = 5.0
"""Tolerance of a share or a reduction, in percentage points."""

Change = Callable[[Workload, Cluster], tuple[Workload, Cluster]]
"""A changed assumption about what was run, and on what."""


def workload(model: str) -> Workload:
    """Return a prefill over four devices."""
    return load_workload(model, mode="prefill", tp=4, dp=1)


def reduction(physics: Physics, work: Workload, cluster: Cluster) -> float:
    """Return by which share of the blocking step ISO is shorter; negative where it is longer."""
    blocking = physics.measure(TENSOR_PARALLEL, work, cluster).step_s
    return 1 - physics.measure(ISO, work, cluster).step_s / blocking


def share(physics: Physics, work: Workload, cluster: Cluster) -> float:
    """Return the share of the blocking step that its communication takes."""
    step = physics.measure(TENSOR_PARALLEL, work, cluster)
    return step.exposed_comm_s / step.step_s


def _tokens(count: int) -> Change:
    return lambda work, cluster: (replace(work, sequence=count), cluster)


def _link(factor: float) -> Change:
    return lambda work, cluster: (work, cluster.change(intra=cluster.intra.faster(factor)))


def _efficiency(value: float) -> Change:
    return lambda work, cluster: (work, cluster.change(device=replace(cluster.device, efficiency=value)))


CHANGES: Mapping[str, Change] = {
    "link at half its data-sheet rate": _link(0.5),
    "half the bytes on the wire (int8)": _link(2.0),
    "products at 0.4 of the peak, not 0.6": _efficiency(0.4),
    "products at 0.8 of the peak": _efficiency(0.8),
    "prompt of 1024 tokens, not 4096": _tokens(1024),
    "prompt of 16384 tokens": _tokens(16384),
    "contention kappa 0.35 (Ladder's over NVLink), not 0": lambda work, cluster: (work, cluster.change(kappa=0.35)),
}
"""What neither the paper nor a data sheet states, varied by about a factor of two either way."""


@cache
def mean_reduction(physics: Physics, preset: str, changed: str = "") -> float:
    """Return the mean over both sizes of model, percent; ``changed`` names one of ``CHANGES``."""
    change = CHANGES.get(changed, lambda work, cluster: (work, cluster))
    return 100 * fmean(reduction(physics, *change(workload(model), load_cluster(preset))) for model in MODELS)


def _of_preset(preset: str, physics: Physics) -> Answer:
    shares = [100 * share(physics, workload(model), load_cluster(preset)) for model in MODELS]
    note = f"communication is {shares[0]:.0f} and {shares[1]:.0f} % of the blocking step"
    return Answer(mean_reduction(physics, preset), note)


def _direction(physics: Physics, changed: str = "") -> Answer:
    slow, quick = mean_reduction(physics, SLOW, changed), mean_reduction(physics, QUICK, changed)
    return Answer("4090 > A800" if slow > quick else "4090 <= A800", f"{slow:.1f} and {quick:.1f} %")


def _reachable(preset: str, published: float, physics: Physics) -> Answer:
    """Whether a share of communication up to a half, beyond which less is saved, gives the published reduction."""
    work, cluster = workload("infer-70b"), load_cluster(preset)
    blocking = physics.measure(TENSOR_PARALLEL, work, cluster.change(intra=FREE)).step_s

    def saved(share: float) -> float:
        fitted = link_taking(physics, blocking / (1 - share), "intra", TENSOR_PARALLEL, work, cluster)
        return 100 * reduction(physics, work, fitted)

    # Up to a half the reduction grows with the share: what overlaps is the smaller of compute and communication.
    low, high = 0.01, 0.5
    if saved(high) < published:
        return Answer("not possible", f"at most {saved(high):.0f} %")
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (middle, high) if saved(middle) < published else (low, middle)
    return Answer("possible", f"{100 * high:.0f} % of the blocking step")


def _latency_bound(physics: Physics) -> Answer:
    """All-reduces of latency alone, three times as long as a module: halving the message does not halve them."""
    work, quiet = workload("infer-70b"), load_cluster(SLOW).change(intra=FREE)
    compute = physics.measure(TENSOR_PARALLEL, work, quiet).step_s
    latency = quiet.change(intra=Link(1e-6, 0.0))
    slow = link_taking(physics, 4 * compute, "intra", TENSOR_PARALLEL, work, latency)
    saved = 100 * reduction(physics, work, slow)
    return Answer("slower" if saved < 0 else "faster", f"{-saved:+.0f} % of the blocking step")


STEP_S, REDUCED_S, SUMS_S = 1.110, 1.047, 0.248
"""vLLM pull request 44677: blocking step, step with two micro-batches, and all-reduces of the blocking step."""


@cache
def vllm(physics: Physics) -> Cluster:
    """Return devices and a link fitted to the blocking step of the pull request."""
    work = workload("qwen3-32b")
    preset = load_cluster("h100x8-nvlink").change(n=4, per_node=4, kappa=0.0, kappa_comm=0.0)
    fast = device_taking(physics, STEP_S - SUMS_S, TENSOR_PARALLEL, work, preset.change(intra=FREE))
    return link_taking(physics, STEP_S, "intra", TENSOR_PARALLEL, work, fast.change(intra=preset.intra))


@cache
def _two_batches(physics: Physics, kappa: float, slower: float = 1.0) -> float:
    fitted = vllm(physics)
    device = replace(fitted.device, flops=fitted.device.flops / slower, mem_bw=fitted.device.mem_bw / slower)
    return physics.measure(ISO, workload("qwen3-32b"), fitted.change(kappa=kappa, device=device)).step_s


def _step(kappa: Callable[[Physics], float], physics: Physics) -> Answer:
    used = kappa(physics)
    needed = _kappa_needed(physics)
    note = f"no kappa up to {CONTENTION_LIMIT:g} meets" if needed is None else f"{needed:.1f} would meet"
    return Answer(1e3 * _two_batches(physics, used), f"kappa {used:.2f}; {note} the figure")


def _hidden(kappa: Callable[[Physics], float], physics: Physics) -> Answer:
    used = kappa(physics)
    return Answer(100 * (STEP_S - _two_batches(physics, used)) / SUMS_S, f"kappa {used:.2f}")


@cache
def _kappa_needed(physics: Physics) -> float | None:
    from scipy.optimize import brentq

    def excess(kappa: float) -> float:
        return _two_batches(physics, kappa) - REDUCED_S

    if excess(0.0) * excess(CONTENTION_LIMIT) > 0:
        return None
    root: float = brentq(excess, 0.0, CONTENTION_LIMIT, xtol=1e-2)
    return root


def _null_step(peers: Callable[[], list[Published]]) -> float:
    return constant_share(STEP_S - SUMS_S, STEP_S, peers())


LLAMA = ("llama3-70b", 8)
LENGTHS = (1024, 4096, 16384)


def _prefill(model: str, tp: int, tokens: int) -> Workload:
    return load_workload(model, mode="prefill", batch=1, sequence=tokens, tp=tp, dp=1)


def _weave_share(physics: Physics, tokens: int = 4096) -> Answer:
    percent = 100 * share(physics, _prefill(*LLAMA, tokens), data_sheet("nvlink"))
    return Answer(
        "9 to 23 %" if 9 <= percent <= 23 else f"{percent:.0f} %", f"{percent:.1f} % of a prefill of {tokens} tokens"
    )


def _weave_saved(physics: Physics, tokens: int = 4096) -> Answer:
    percent = 100 * reduction(physics, _prefill(*LLAMA, tokens), data_sheet("nvlink"))
    return Answer(percent, "ours is ISO; TokenWeave also fuses the norm into the all-reduce, which no plan here does")


def _halves(physics: Physics) -> Answer:
    """An all-reduce of 164 KB against one of half of it."""
    cluster = physics.cluster(data_sheet("nvlink"))
    full, half = (collective_seconds("all_reduce", count, cluster, range(8)) for count in (164e3, 82e3))
    ratio = half / full
    direction = "more than half as long" if ratio > 0.75 else "about half as long"
    return Answer(direction, f"{100 * ratio:.0f} % as long on eight H100 ({1e6 * full:.0f} us whole; published 49)")


GAUDI = {
    "Gaudi 2": (Device("Gaudi 2", 432e12, 2.46e12, 96e9, 0.6, 0.8), Link(1e-5, 1 / 262.5e9)),
    "Gaudi 3": (Device("Gaudi 3", 1835e12, 3.7e12, 128e9, 0.6, 0.8), Link(1e-5, 1 / 525e9)),
}
"""Peak, memory and links as recalled from the data sheets (bf16, per direction); not looked up."""


def _habana(physics: Physics) -> Answer:
    work = _prefill("llama3-405b", 8, 16384)
    tried = [
        f"{100 * reduction(physics, work, data_sheet('nvlink').change(device=device, intra=link)):.0f} % on {name}"
        for name, (device, link) in GAUDI.items()
    ]
    return Answer(
        None,
        "our sources do not say which Gaudi, which precision and how the sequence was divided; "
        f"with rates and links recalled from the data sheets and two halves, ISO saves {' and '.join(tried)}",
    )


def _reductions() -> list[Claim]:
    setup = {SLOW: "30b and 70b, 4 × RTX 4090", QUICK: "30b and 70b, 4 × A800"}
    published = {SLOW: 35.0, QUICK: 15.0}
    fitted = "the link is fitted to the figure itself, so this shows that the figure is possible and predicts nothing"

    def changed(preset: str, name: str) -> Callable[[], Answer]:
        return lambda: Answer(mean_reduction(PHYSICS, preset, name))

    return [
        *(
            Claim(
                name, "prefill time saved", setup[preset], published[preset], "%", "first-hand", ABSTRACT,
                partial(_of_preset, preset), POINTS / published[preset], DATA_SHEETS,
                assumptions={name: changed(preset, name) for name in CHANGES},
            )
            for name, preset in (("ISO-1a", SLOW), ("ISO-1b", QUICK))
        ),
        Claim(
            "ISO-1c", "which saves more", "30b and 70b, RTX 4090 against A800", "4090 > A800", "", "first-hand",
            ABSTRACT, _direction, None, DATA_SHEETS,
            assumptions={name: partial(_direction, PHYSICS, name) for name in CHANGES},
        ),
        *(
            Claim(
                name, f"{published[preset]:g} % saved for some share of communication", setup[preset], "possible", "",
                "derived", ABSTRACT, partial(_reachable, preset, published[preset]), None, fitted, grade="fitted",
            )
            for name, preset in (("ISO-1d", SLOW), ("ISO-1e", QUICK))
        ),
        Claim(
            "ISO-1f", "all-reduces that are pure latency", "70b, latency three times the compute", "slower", "",
            "derived", "direction from vLLM issue 56126 (half of a latency-bound sum takes as "
                       "long); set-up ours",
            _latency_bound, grade="algebraic",
        ),
    ]  # fmt: skip


def _pull_request() -> list[Claim]:
    source, setup = "vLLM pull request 44677", "Qwen3-32B, TP 4, two micro-batches"
    fit = "compute and all-reduce fitted to the blocking step (1110 ms, of which 248)"
    borrowed = f"{fit}; kappa fitted to Ladder's rows over NVLink"
    kappas = (
        ("ISO-2a", "ISO-2c", "no contention", lambda _: 0.0, fit, list, "all communication hidden"),
        ("ISO-2b", "ISO-2d", "contention from another paper",
         lambda physics: kappa_of(physics, same_link("nvlink"), "equal"), borrowed,
         lambda: [published(row) for row in same_link("nvlink")],
         "the share exposed in Ladder's NVLink rows"),
    )  # fmt: skip

    def step(peers: Callable[[], list[Published]], note: str) -> Callable[[], Answer]:
        return lambda: Answer(1e3 * _null_step(peers), note)

    def hidden(peers: Callable[[], list[Published]], note: str) -> Callable[[], Answer]:
        return lambda: Answer(100 * (STEP_S - _null_step(peers)) / SUMS_S, note)

    def varied(answer: Callable[[float], float]) -> dict[str, Callable[[], Answer]]:
        def contended(kappa: float) -> Answer:
            return Answer(answer(_two_batches(PHYSICS, kappa)))

        def slower(factor: float) -> Answer:
            return Answer(answer(_two_batches(PHYSICS, 0.0, factor)))

        return {
            "any contention (kappa) from 0 to 0.6": over(contended, 0.0, 0.3, 0.6),
            "halves computed 1 to 1.25 times as long per token": over(slower, 1.0, 1.1, 1.25),
        }

    step_ms, hidden_percent = varied(lambda step: 1e3 * step), varied(lambda step: 100 * (STEP_S - step) / SUMS_S)
    steps = [
        Claim(
            name, f"step with two alternating parts, {condition}", setup, 1e3 * REDUCED_S, "ms", "first-hand", source,
            partial(_step, kappa), 0.1, inputs, grade="calibrated on other rows", null=step(peers, note),
            assumptions=step_ms,
        )
        for name, _, condition, kappa, inputs, peers, note in kappas
    ]  # fmt: skip
    shares = [
        Claim(
            name, f"share of the all-reduces hidden, {condition}", setup, 100 * (STEP_S - REDUCED_S) / SUMS_S, "%",
            "derived", f"arithmetic on the times of {source}", partial(_hidden, kappa), 0.1, inputs,
            grade="calibrated on other rows", null=hidden(peers, note), assumptions=hidden_percent,
        )
        for _, name, condition, kappa, inputs, peers, note in kappas
    ]  # fmt: skip
    return [*steps, *shares]


def _elsewhere() -> list[Claim]:
    """Rows of others about the same schedule, or about the communication it hides."""
    lists, trap = "TokenWeave, as quoted in a list of papers", "vLLM issue 56126"
    ascend, shapes = "vllm-ascend issue 5591", "the model and the number of devices are not in our sources"
    decode = "micro-batches in decoding: ISO's plan divides a prompt, and the device is not in our sources"
    sheets = f"{DATA_SHEETS}; products at 0.6 of the peak (assumed)"
    setup = "Llama 70B, TP 8, 8 × H100 over NVSwitch"
    habana = "HabanaAI vllm-fork pull request 735"

    def row(name: str, quantity: str, setup: str, figure: float | str, unit: str, source: str, why: str) -> Claim:
        return Claim(name, quantity, setup, figure, unit, "first-hand", source, lambda _: Answer(None, why))

    quoted: Evidence = "second-hand"
    return [
        row("ISO-2e", "largest saving", "Qwen3-32B, TP 4, two micro-batches", 7.5, "%", "vLLM pull request 44677",
            "our sources do not say at which batch and prompt it was reached"),
        Claim("ISO-3a", "share of tensor-parallel all-reduces", setup, "9 to 23 %", "", quoted, lists, _weave_share,
              None, sheets,
              assumptions={f"prompt of {n} tokens": partial(_weave_share, PHYSICS, n) for n in LENGTHS if n != 4096}),
        Claim("ISO-3b", "latency saved by TokenWeave", setup, 18.0, "%", quoted, lists, _weave_saved, POINTS / 18,
              sheets,
              assumptions={f"prompt of {n} tokens": partial(_weave_saved, PHYSICS, n) for n in LENGTHS if n != 4096}),
        Claim("ISO-4", "time to first token saved by splitting the sequence", "Llama 405B, TP 8, Gaudi, 16 k tokens",
              6.0, "%", "first-hand", habana, _habana),
        row("ISO-5a", "share of communication in prefill", "Ascend 910B", 55.0, "%", ascend, shapes),
        row("ISO-5b", "share of communication in prefill", "Ascend 910C", 35.0, "%", ascend, shapes),
        Claim("ISO-6a", "half of an all-reduce of 164 KB", "decoding, 32 sequences", "more than half as long", "",
              "first-hand", trap, _halves, None, sheets, grade="algebraic"),
        row("ISO-6b", "inter-token latency (p99) with micro-batches", "decoding, 32 sequences", 26.0, "% more",
            trap, decode),
        row("ISO-6c", "batch from which micro-batches pay off", "decoding", "between 64 and 128 sequences",
            "", trap, decode),
    ]  # fmt: skip


CLAIMS: tuple[Claim, ...] = (*_reductions(), *_pull_request(), *_elsewhere())

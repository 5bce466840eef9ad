"""The plan of Ladder-Residual and its claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from densing.core import InputError
from densing.efficiency.simulation import (
    Cluster,
    Link,
    Split,
    Transformer,
    Workload,
    load_cluster,
    load_workload,
    modules,
)
from densing.efficiency.systems.baselines import PARALLEL_ATTENTION, TENSOR_PARALLEL
from densing.efficiency.systems.claims import (
    FREE,
    PHYSICS,
    Answer,
    Claim,
    Grade,
    Physics,
    Published,
    constant_share,
    device_taking,
    link_taking,
    over,
)
from densing.efficiency.systems.planner import (
    BLOCK,
    BUCKET,
    MODE,
    NOTHING,
    Event,
    Pass,
    Sliced,
    TensorParallelRun,
    TensorSchedule,
)
from densing.efficiency.systems.registry import Knob, optional, whole
from densing.efficiency.throughput import fitted_step

if TYPE_CHECKING:
    from densing.efficiency.parallel import Schedule
    from densing.efficiency.systems.plan import SteadyStep


class Late:
    """Each module waits for all sums but the newest; backward likewise, for the gradient skips a module too.

    Parameters
    ----------
    first : int
        Layers from this one on are of this kind; those before sum as usual.
    """

    def __init__(self, first: int = 0) -> None:
        self.first = first

    def lay(self, run: Pass, after: Event) -> Event:
        """Add the pass's tasks, and return when its output is there."""
        # A sum runs after those before it on the same stream: waiting for one is waiting for all up to it.
        ready, newest = after, NOTHING
        for module in run.modules:
            late = module.name in BLOCK and module.layer >= self.first
            if not late:
                ready, newest = newest or ready, NOTHING
            done = run.compute(module, ready)
            summed = run.reduce(module, done) if run.reduces(module) else done
            if late:
                ready, newest = newest or ready, summed
            else:
                ready = summed
        return newest or ready


class Ladder(TensorParallelRun, Sliced):
    """Sums one module late.

    Source: Zhang et al., ICML 2025, arXiv 2501.06589.
    """

    name = "ladder"
    paper = "Zhang et al., ICML 2025, arXiv 2501.06589"
    summary = (
        "each module reads the residual without its predecessor's output, whose all-reduce "
        "overlaps it (another architecture)"
    )
    changes_loss = "another architecture: a module reads the residual without its predecessor's output"
    knobs: tuple[Knob, ...] = (
        Knob("ladder_layers", None, "number of last layers that are ladder layers; none: all", optional(whole(1))),
        BUCKET,
        MODE,
    )
    claims_in = __name__

    def tensor(self, workload: Workload, cluster: Cluster, knobs: Mapping[str, Any]) -> TensorSchedule:
        """Return sums one module late, in the layers asked for."""
        count, layers = knobs["ladder_layers"], workload.model.layers
        if count and count > layers:
            raise InputError(
                f"ladder: ladder_layers = {count} but the model has {layers} layers; give at most that many"
            )
        return Late(layers - count if count else 0)

    def schedule(self, **knobs: Any) -> Schedule:
        """Return sums one module late, in the layers asked for."""
        from densing.efficiency.systems.ladder_residual.run import Late

        return Late(**knobs)


LADDER = Ladder()


Row = tuple[str, int]
"""Link and batch."""

PUBLISHED: dict[Row, tuple[float, float, float, float]] = {
    ("nvlink", 1): (77.39, 101.22, 94.22, 110.59),
    ("nvlink", 4): (258.56, 331.45, 307.34, 355.8),
    ("nvlink", 16): (843.15, 1003.52, 973.74, 1109.65),
    ("nvlink", 64): (1940.99, 2242.1, 2259.38, 2474.49),
    ("no-p2p", 1): (51.66, 82.59, 72.36, 110.59),
    ("no-p2p", 4): (173.62, 271.82, 241.08, 355.8),
    ("no-p2p", 16): (546.68, 738.56, 744.33, 1109.65),
    ("no-p2p", 64): (1454.42, 1864.05, 1873.71, 2474.49),
}
"""Tokens per second at TP 8: standard, ladder, parallel attention, no communication."""

NARROW = {2: (35.42, 36.69, 38.24), 4: (59.41, 67.51, 69.04)}
"""The same at batch 1 over NVLink by TP: standard, ladder, no communication."""

LARGE = {"nvlink": (1.364, 1.308, 1.393, 1.349), "no-p2p": (1.490, 1.566, 1.434, 1.461)}
"""Ladder over standard, 405B at TP 16, batch 1, 4, 8, 16."""

LARGE_BOUND = {"nvlink": (1.52, 1.66), "no-p2p": (2.11, 2.27)}
"""Range of no communication over standard at these batches."""

SCRIPT = "plot scripts of the authors' repository (tools/plot-70b.py, tools/plot-405b.py)"
SUMMARY = "a summary of arXiv 2501.06589"
SLOWED = np.linspace(0.0, 0.6, 13)
"""Grid of kappa / (1 + kappa), the slowdown of compute; step time is roughly proportional to it."""


@cache
def workload(batch: int, shares: str = "equal", model: str = "llama3-70b", tp: int = 8) -> Workload:
    """Return a decoding step half way through 512 tokens after a prompt of 1024."""
    work = load_workload(model, mode="decode", batch=batch, sequence=1280, tp=tp, dp=1)
    return work if shares == "own" else _halved(work)


def _halved(work: Workload) -> Workload:
    """Change the MLP's width until attention and MLP move the same bytes; the device is fitted to the whole anyway."""

    def excess(width: int) -> float:
        attention, mlp = modules(_widened(work, width))[1:3]
        return mlp.moved - attention.moved

    # Moved bytes rise with the width, so bisection finds the last one at which the MLP moves no more.
    low, high = 1, 10**6
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    return _widened(work, low)


def _widened(work: Workload, width: int) -> Workload:
    return replace(work, model=replace(work.model, ffn=width * work.split.tp))


def fitted(physics: Physics, work: Workload, standard: float, bound: float) -> Cluster:
    """Return a cluster on which the standard model and the bound take the seconds given."""
    quiet = load_cluster("h100x8-nvlink").change(n=16, per_node=16, intra=FREE, kappa=0.0, kappa_comm=0.0)
    fast = device_taking(physics, bound, TENSOR_PARALLEL, work, quiet)
    linked = fast.change(intra=load_cluster("h100x8-nvlink").intra)
    return link_taking(physics, standard, "intra", TENSOR_PARALLEL, work, linked)


@cache
def _cluster(physics: Physics, row: Row, shares: str) -> Cluster:
    standard, _, _, bound = PUBLISHED[row]
    return fitted(physics, workload(row[1], shares), row[1] / standard, row[1] / bound)


def ladder(physics: Physics, row: Row, shares: str, kappa: float) -> float:
    """Return tokens per second of ladder under a contention."""
    cluster = _cluster(physics, row, shares).change(kappa=kappa)
    return row[1] / physics.measure(LADDER, workload(row[1], shares), cluster).step_s


@cache
def _steps(physics: Physics, row: Row, shares: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([row[1] / ladder(physics, row, shares, slowed / (1 - slowed)) for slowed in SLOWED.tolist()])


@cache
def kappa_of(physics: Physics, rows: tuple[Row, ...], shares: str) -> float:
    """Return the contention, to 0.001, that makes the relative errors of ladder's throughput least squares.

    0 where the laws know no contention: then none fits better than another.
    """
    if not physics.contention:
        return 0.0
    # A step is simulated at the grid's points only; between them it is near enough to a line.
    fine = np.arange(0.0, SLOWED[-1] / (1 - SLOWED[-1]), 0.001)
    steps = [np.interp(fine / (1 + fine), SLOWED, _steps(physics, row, shares)) for row in rows]
    errors = [row[1] / step / PUBLISHED[row][1] - 1 for row, step in zip(rows, steps, strict=True)]
    return float(fine[np.argmin(np.square(errors).sum(axis=0))])


def same_link(link: str, *left_out: int) -> tuple[Row, ...]:
    """Return the rows of a link, but for some batches."""
    return tuple(row for row in PUBLISHED if row[0] == link and row[1] not in left_out)


def published(row: Row) -> Published:
    """Return seconds per step of a row: without communication, standard, and ladder."""
    standard, ladder, _, bound = PUBLISHED[row]
    return Published(row[1] / bound, row[1] / standard, row[1] / ladder)


def _null(row: Row, peers: tuple[Row, ...] = ()) -> Answer:
    """Return tokens per second where a share of the communication stays exposed that other rows say, or none."""
    own = published(row)
    note = f"a constant exposed share, from {len(peers)} other rows" if peers else "all communication hidden"
    return Answer(row[1] / constant_share(own.free, own.blocking, [published(other) for other in peers]), note)


def _without_contention(shares: str, row: Row, physics: Physics) -> Answer:
    return Answer(ladder(physics, row, shares, 0.0))


def _with_contention(shares: str, peers: Callable[[Row], tuple[Row, ...]], row: Row, physics: Physics) -> Answer:
    kappa = kappa_of(physics, peers(row), shares)
    return Answer(ladder(physics, row, shares, kappa), f"kappa {kappa:.2f}")


MOST_KAPPA = 0.6
"""The largest contention that is tried in place of a fitted one: the fits to all four rows of a link lie below."""


def _contentions(shares: str, row: Row) -> Callable[[], Answer]:
    """Return what any contention up to :data:`MOST_KAPPA` gives, between simulated points as in :func:`kappa_of`."""

    def at(kappa: float) -> Answer:
        return Answer(row[1] / float(np.interp(kappa / (1 + kappa), SLOWED, _steps(PHYSICS, row, shares))))

    return over(at, 0.0, MOST_KAPPA / 4, MOST_KAPPA / 2, MOST_KAPPA)


def _varied(shares: str, peers: Callable[[Row], tuple[Row, ...]] | None, row: Row) -> dict[str, Callable[[], Answer]]:
    """Return what a row of ladder assumes, changed: the contention, and how a layer's time divides."""
    other, called = (
        ("own", "modules timed by their shapes") if shares == "equal" else ("equal", "modules of equal time")
    )
    check = partial(_with_contention, other, peers) if peers else partial(_without_contention, other)
    return {
        f"any contention (kappa) from 0 to {MOST_KAPPA}": _contentions(shares, row),
        called: partial(check, row, PHYSICS),
    }


def _others(row: Row) -> tuple[Row, ...]:
    return same_link(row[0], row[1])


def _small(row: Row) -> tuple[Row, ...]:
    return same_link(row[0], 16, 64)


def _parallel(row: Row, physics: Physics) -> Answer:
    step = physics.measure(PARALLEL_ATTENTION, workload(row[1], "own"), _cluster(physics, row, "own"))
    return Answer(row[1] / step.step_s, "half the all-reduces: the harmonic mean of the standard model and the bound")


def _narrow(tp: int, physics: Physics) -> Answer:
    standard, _, bound = NARROW[tp]
    work = workload(1, "equal", tp=tp)
    kappa = kappa_of(physics, same_link("nvlink"), "equal")
    cluster = fitted(physics, work, 1 / standard, 1 / bound).change(kappa=kappa)
    return Answer(1 / physics.measure(LADDER, work, cluster).step_s, f"kappa {kappa:.2f}")


def _narrow_null(tp: int) -> Answer:
    standard, _, bound = NARROW[tp]
    peers = [published(row) for row in same_link("nvlink")]
    return Answer(
        1 / constant_share(1 / bound, 1 / standard, peers),
        f"a constant exposed share, from {len(peers)} rows at TP 8",
    )


@cache
def _large(link: str, physics: Physics) -> Answer:
    work = workload(1, "equal", "llama3-405b", 16)
    kappa = kappa_of(physics, same_link(link), "equal")
    low, high = LARGE_BOUND[link]
    gains = []
    for bound in (low, (low + high) / 2, high):
        cluster = fitted(physics, work, bound, 1.0).change(kappa=kappa)
        gains.append(bound / physics.measure(LADDER, work, cluster).step_s)
    return Answer(gains[1], f"kappa {kappa:.2f}; {gains[0]:.2f} to {gains[2]:.2f} over the range of the bound")


def _large_null(link: str) -> Answer:
    peers = [published(row) for row in same_link(link)]
    bound = sum(LARGE_BOUND[link]) / 2
    return Answer(
        bound / constant_share(1.0, bound, peers), f"a constant exposed share, from {len(peers)} rows of the 70B"
    )


@cache
def data_sheet(link: str) -> Cluster:
    """Return H100s whose links owe nothing to the paper (the presets' latencies are derived from its figures)."""
    preset = load_cluster("h100x8-nvlink")
    nvlink = replace(preset.intra, alpha_s=load_cluster("a100x8-rdma").intra.alpha_s, ring=False)
    # Without P2P a message is written to the host's memory and read from there, over PCIe 5.0 x16 (63 GB/s) twice.
    host = Link(load_cluster("rtx4090x4-pcie").intra.alpha_s, 2 / 63e9)
    return preset.change(intra=nvlink if link == "nvlink" else host)


AS_PUBLISHED = ("compute", "all-reduces")
"""Parts of a decoding step whose time the paper's throughputs imply."""


@cache
def _decoding(physics: Physics, row: Row, replaced: str = "") -> tuple[SteadyStep, SteadyStep, str]:
    """Return the step of the standard model and of ladder from data sheets, and how far its parts are off.

    ``replaced`` names a part of :data:`AS_PUBLISHED` that is to take as long as published.
    """
    work, cluster = workload(row[1], "own"), data_sheet(row[0])
    standard = physics.measure(TENSOR_PARALLEL, work, cluster)
    free, blocking, _ = published(row)
    sums = 2 * work.model.layers
    note = (
        f"compute {1e3 * standard.compute_s:.1f} ms (by the paper's throughputs {1e3 * free:.1f}), an all-reduce "
        f"{1e6 * standard.exposed_comm_s / sums:.0f} us ({1e6 * (blocking - free) / sums:.0f})"
    )
    if replaced == "compute":
        slower, device = free / standard.compute_s, cluster.device
        cluster = cluster.change(device=replace(device, flops=device.flops / slower, mem_bw=device.mem_bw / slower))
    elif replaced == "all-reduces":
        slower, link = (blocking - free) / standard.exposed_comm_s, cluster.intra
        cluster = cluster.change(
            intra=replace(link, alpha_s=link.alpha_s * slower, beta_s_per_byte=link.beta_s_per_byte * slower)
        )
    return physics.measure(TENSOR_PARALLEL, work, cluster), physics.measure(LADDER, work, cluster), note


def _headline(link: str, physics: Physics, batch: int = 1, replaced: str = "") -> Answer:
    standard, ladder, note = _decoding(physics, (link, batch), replaced)
    return Answer(standard.step_s / ladder.step_s, note)


def _sums(physics: Physics, batch: int = 4, replaced: str = "") -> Answer:
    standard, _, note = _decoding(physics, ("nvlink", batch), replaced)
    return Answer(100 * standard.exposed_comm_s / standard.step_s, note)


def _contradicted(physics: Physics) -> Answer:
    # To come near a figure that the paper's own throughputs contradict would reproduce nothing.
    note = (
        f"the paper's own throughputs imply 27, not this; ours, {_sums(physics).value:.0f} %, is nearer to this figure"
    )
    return Answer(None, note)


SMALL = Transformer(
    "3.2B", layers=28, hidden=3072, heads=24, kv_heads=8, head_dim=128, ffn=8192, vocabulary=128_256, tied=True,
    source="Llama-3.2-3B instead of the paper's 3.5B, whose shape is not in our sources", evidence="recalled",
)  # fmt: skip


WIDE = (8, 4, 2)
"""Tensor-parallel widths of training; the paper's is in no source of ours."""


def _training(physics: Physics) -> Answer:
    """Per cent gained, over what is not published: width, sequence, and how the baseline hides its own sums."""
    ways = {
        "beside weights' gradients (asynchronous, the usual choice)": True,
        "in pieces beside products, forward too (tp_comm_overlap)": False,
    }
    bands = {
        name: {tp: [_gain(physics, tp, sequence, beside) for sequence in (2048, 8192)] for tp in WIDE}
        for name, beside in ways.items()
    }
    gains = [gain for band in bands.values() for pair in band.values() for gain in pair]
    texts = [
        f"{', '.join(f'{min(pair):.0f} to {max(pair):.0f}' for pair in band.values())} % where the baseline's sums run "
        f"{name}"
        for name, band in bands.items()
    ]
    note = (
        f"at TP {', '.join(map(str, WIDE))} over sequences of 2,048 and 8,192: {'; '.join(texts)}; which of them the "
        "figure is about is in no source of ours"
    )
    return Answer(f"{min(gains):.0f} to {max(gains):.0f}", note, (min(gains), max(gains)))


def _gain(physics: Physics, tp: int, sequence: int, beside: bool) -> float:
    """Return per cent gained over a baseline whose sums of input gradients run beside products, in one of two ways."""
    work = Workload(SMALL, "train", batch=4, sequence=sequence, split=Split(tp=tp), overlap_weight_gradients=beside)
    found = fitted_step(work, data_sheet("nvlink"))
    assert found is not None
    steps = [physics.measure(each, found.workload, found.cluster).step_s for each in (TENSOR_PARALLEL, LADDER)]
    return 100 * (steps[0] / steps[1] - 1)


FIT = "compute fitted to this row's bound, the all-reduce to its standard model"
EQUAL = "attention and MLP take equal time (assumed)"
OWN = "attention and MLP timed by their shapes"
SHEETS = (
    "rates and bandwidths of data sheets, latencies of the order of magnitude of NVLink and host memory (assumed), "
    "products at 0.6 and streaming at 0.8 of the peak (assumed); nothing fitted, no contention"
)


def _series(
    prefix: str,
    quantity: str,
    check: Callable[[Row, Physics], Answer],
    inputs: str,
    *,
    rows: tuple[Row, ...] = tuple(PUBLISHED),
    column: int = 1,
    tolerance: float = 0.1,
    grade: Grade = "calibrated on other rows",
    peers: Callable[[Row], tuple[Row, ...]] = lambda _: (),
    varied: Callable[[Row], Mapping[str, Callable[[], Answer]]] = lambda _: {},
    way: str = "",
) -> list[Claim]:
    return [
        Claim(
            f"{prefix}-{row[0]}-{row[1]}",
            quantity,
            f"Llama-3 70B, TP 8, H100, {'NVLink' if row[0] == 'nvlink' else 'no P2P'}, batch {row[1]}",
            PUBLISHED[row][column],
            "tokens/s",
            "first-hand",
            SCRIPT,
            partial(check, row),
            tolerance,
            inputs,
            grade=grade,
            null=partial(_null, row, peers(row)) if grade == "calibrated on other rows" else None,
            assumptions=varied(row),
            series="LAD-1" if way else prefix,
            way=way or quantity,
        )
        for row in rows
    ]


def _throughputs() -> list[Claim]:
    loo = "kappa fitted to the other three ladder rows of this link"
    every = "kappa fitted to all four ladder rows of this link, including this one: a fit, not a prediction"
    small = "kappa fitted to ladder at batch 1 and 4 of this link"
    large = tuple(row for row in PUBLISHED if row[1] >= 16)
    quiet, contended = "ladder, no contention", "ladder, contention"
    return [
        *_series("LAD-1a", "parallel attention", _parallel, FIT, column=2, grade="algebraic"),
        *_series("LAD-1b", quiet, partial(_without_contention, "equal"), f"{FIT}; {EQUAL}",
                 varied=partial(_varied, "equal", None), way="b: no contention, modules of equal time"),
        *_series("LAD-1c", contended, partial(_with_contention, "equal", _others), f"{FIT}; {EQUAL}; {loo}",
                 peers=_others, varied=partial(_varied, "equal", _others),
                 way="c: contention of the link's other rows, modules of equal time"),
        *_series("LAD-1d", quiet, partial(_without_contention, "own"), f"{FIT}; {OWN}",
                 varied=partial(_varied, "own", None), way="d: no contention, modules by their shapes"),
        *_series("LAD-1e", contended, partial(_with_contention, "own", _others), f"{FIT}; {OWN}; {loo}",
                 peers=_others, varied=partial(_varied, "own", _others),
                 way="e: contention of the link's other rows, modules by their shapes"),
        *_series("LAD-1f", "ladder, contention of small batches", partial(_with_contention, "equal", _small),
                 f"{FIT}; {EQUAL}; {small}", rows=large, tolerance=0.15, peers=_small,
                 varied=partial(_varied, "equal", _small),
                 way="f: contention of batches 1 and 4, modules of equal time"),
        *_series("LAD-1h", "ladder, one contention per link",
                 partial(_with_contention, "equal", lambda row: same_link(row[0])),
                 f"{FIT}; {EQUAL}; {every}", grade="fitted",
                 way="h: contention fitted to all rows of the link, this one too"),
    ]  # fmt: skip


def _other_sizes() -> list[Claim]:
    narrow = [
        Claim(
            f"LAD-1g-tp{tp}",
            "ladder, contention",
            f"Llama-3 70B, TP {tp}, H100, NVLink, batch 1",
            NARROW[tp][1],
            "tokens/s",
            "first-hand",
            SCRIPT,
            partial(_narrow, tp),
            0.1,
            f"{FIT}; {EQUAL}; kappa fitted to the four NVLink rows at TP 8",
            grade="calibrated on other rows",
            null=partial(_narrow_null, tp),
            series="LAD-1",
            way="g: contention of the link's rows at TP 8, modules of equal time",
        )
        for tp in NARROW
    ]
    inputs = f"the middle of the bound's published range; {EQUAL}; kappa fitted to the four 70B rows of this link"
    large = [
        Claim(
            f"LAD-2-{link}-{batch}",
            "ladder over standard",
            f"Llama-3 405B, TP 16, H100, {'P2P' if link == 'nvlink' else 'no P2P'}, batch {batch}",
            gain,
            "times",
            "first-hand",
            SCRIPT,
            partial(_large, link),
            0.15,
            inputs,
            grade="calibrated on other rows",
            null=partial(_large_null, link),
        )
        for link, gains in LARGE.items()
        for batch, gain in zip((1, 4, 8, 16), gains, strict=True)
    ]
    return [*narrow, *large]


def _predictions() -> list[Claim]:
    """The paper's headlines, from data sheets alone."""
    setup = "Llama-3 70B, TP 8, H100, {}"
    share, arithmetic = "share of a decoding step in all-reduces", f"arithmetic on the throughputs of {SCRIPT}"
    batches = (1, 4, 16, 64)
    shape = "a 3.2B model instead of the 3.5B, 4 sequences (assumed: not in our sources)"
    return [
        *(
            Claim(
                name, "ladder over standard", setup.format(f"{note}, batch 1"), figure, "times", "first-hand", SCRIPT,
                partial(_headline, link), 0.1, SHEETS,
                assumptions={
                    **{f"batch {n}": partial(_headline, link, PHYSICS, n) for n in batches[1:]},
                    **{f"{part} as long as published": partial(_headline, link, PHYSICS, 1, part)
                       for part in AS_PUBLISHED},
                },
            )
            for name, link, note, figure in (
                # The abstract's 29 %, and 59 to 60 % with NCCL_P2P_DISABLE=1.
                ("LAD-4a", "nvlink", "NVLink", 1.29),
                ("LAD-4b", "no-p2p", "no P2P", 1.595),
            )
        ),
        Claim(
            "LAD-5a", share, setup.format("NVLink, batch 4"), 27.0, "%", "derived", arithmetic, _sums, 5 / 27, SHEETS,
            assumptions={
                **{f"batch {n}": partial(_sums, PHYSICS, n) for n in batches if n != 4},
                **{f"{part} as long as published": partial(_sums, PHYSICS, 4, part) for part in AS_PUBLISHED},
            },
        ),
        Claim(
            "LAD-5b", "the same share according to a summary (LAD-5a: 27)", setup.format("NVLink, batch 4"), 38.0, "%",
            "second-hand", SUMMARY, _contradicted, 5 / 38, SHEETS,
        ),
        Claim(
            "LAD-6", "training speed-up, middle of 5 to 7", "3.5B", 6.0, "%", "second-hand", SUMMARY, _training,
            1 / 6, f"times of modules and shares of links of published runs on H100, nothing of this paper; {shape}",
        ),
    ]  # fmt: skip


QUALITY = (
    ("LAD-3a", "mean score of ladder (standard: 64.11)", "3.5B, trained from scratch", 63.03, "%"),
    ("LAD-3b", "mean score, half of the layers changed", "Llama-3.1 8B, 3e9 tokens", 56.24, "%"),
)

CLAIMS: tuple[Claim, ...] = (
    *_throughputs(),
    *_other_sizes(),
    *(
        Claim(
            name,
            quantity,
            setup,
            figure,
            unit,
            "second-hand",
            SUMMARY,
            lambda _: Answer(None, "the simulator predicts times, not quality"),
        )
        for name, quantity, setup, figure, unit in QUALITY
    ),
    *_predictions(),
)

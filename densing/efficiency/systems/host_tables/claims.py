"""What is claimed of reading tables in the host's memory directly, and what we find.

The bars of the README are read off to 0.1 s. Two of them, those of the direct reads without overlap, go in; three
others should come out of the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from msgspec.structs import replace

from densing.core import formatting
from densing.efficiency.simulation import Cluster, Gather, Link, load_cluster, load_gather
from densing.efficiency.systems.claims import PHYSICS, Answer, Claim, Physics
from densing.efficiency.systems.host_tables.requests import requests_per_row
from densing.efficiency.systems.registry import get_technique

README = "bar chart in the README of K-Wu/pytorch-direct_dgl, read to 0.1 s"
SETUP = "GraphSAGE on Reddit, an epoch on an RTX 3090"
BARS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"host": (7.8, 7.4), "direct": (5.9, 4.0), "direct+MPS": (4.4, 2.7), "all-GPU": (2.1, 2.1)}
)
"""Seconds per epoch over PCIe 3 and over PCIe 4."""
REQUESTS: Mapping[int, tuple[float, float]] = MappingProxyType(
    {602: (36.625, 19.75), 100: (6.625, 4.0), 128: (4.0, 4.0), 200: (11.5, 7.0)}
)
"""Requests per row by width, without and with alignment; counted by a second program of ours."""


def _count(width: int) -> str:
    return f"{requests_per_row(width, align=False):g} to {requests_per_row(width):g}"


def machine(rate: float) -> Cluster:
    """Return the RTX 3090's cluster with a link of so many times PCIe 3's bandwidth, without latency."""
    cluster = load_cluster("rtx3090-pcie3")
    return cluster.change(host=Link(0.0, cluster.host.beta_s_per_byte / rate, cluster.host.shared))


def epoch(physics: Physics, technique: str, step: Gather, rate: float, **knobs: object) -> float:
    """Return the simulated seconds of an epoch."""
    return step.steps * physics.measure(get_technique(technique), step, machine(rate), **knobs).step_s  # type: ignore[arg-type]


def calibrated(physics: Physics = PHYSICS, faster: float = 2.0) -> Gather:
    """Return Reddit's step with the rows and the training time with which both bars of direct reads come out.

    An epoch of direct reads without overlap is a + b / rate: linear in two unknowns, so two simulated epochs of each
    unknown give the line, and the two bars the point on it. A rate of ``faster`` is that of PCIe 4.

    Examples
    --------
    >>> step = calibrated()
    >>> round(step.steps * step.train_s, 3)
    2.1
    """
    step = load_gather("sage-reddit")
    slow, fast = BARS["direct"]
    wire = (slow - fast) / (1 - 1 / faster)

    def taken(candidate: Gather) -> float:
        return epoch(physics, "zero-copy", candidate, 1.0, overlap=False)

    # Rows are in proportion to the wire's time where training takes none.
    alone = replace(step, train_s=0.0)
    rows = round(step.rows * wire / taken(alone))
    compute = slow - taken(replace(alone, rows=rows))
    return replace(step, rows=rows, train_s=compute / step.steps)


def _all_gpu(physics: Physics, faster: float = 2.0) -> Answer:
    step = calibrated(physics, faster)
    wire = epoch(physics, "zero-copy", replace(step, train_s=0.0), 1.0, overlap=False)
    ours = epoch(physics, "device-table", step, 1.0)
    return Answer(ours, f"transfer {formatting.number(wire)} s an epoch over PCIe 3, {step.rows:,} rows a step")


def _overlapped(rate: float, physics: Physics, share: float = 0.1, faster: float = 2.0) -> Answer:
    step = calibrated(physics, faster)
    return Answer(epoch(physics, "zero-copy", step, rate, overlap=True, sm_share=share))


def _perfect(rate: float) -> Answer:
    """What no simulator says: the longer of transfer and computation, both from the two bars."""
    slow, fast = BARS["direct"]
    wire = 2 * (slow - fast)
    return Answer(max(wire / rate, slow - wire), "the longer of transfer and training; reads occupy no processors")


LESS = "the host's gather gains less from PCIe 4 than direct reads"


def _host(physics: Physics, staged: bool = True) -> Answer:
    """Say whether a gather on the host, as fast as its PCIe 3 bar says, gains less from PCIe 4 than direct reads do."""
    step, technique = calibrated(physics), "host-gather" if staged else "pinned-gather"
    slow, fast = BARS["host"]

    def taken(gbs: float, rate: float = 1.0) -> float:
        return epoch(physics, technique, step, rate, overlap=False, host_gbs=gbs)

    low, high = 1.0, 1000.0
    for _ in range(40):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if taken(middle) > slow else (low, middle)
    ours = taken(high, 2.0)
    direct = BARS["direct"][0] / BARS["direct"][1]
    note = (
        f"the host gathers at {formatting.number(high)} GB/s, read and written; "
        f"{formatting.number(ours)} s with PCIe 4, where the chart has {fast} s: a gain of "
        f"{slow / ours:.2f}, in the chart {slow / fast:.2f}, and "
        f"{direct:.2f} of direct reads; the direction alone is compared"
    )
    return Answer(LESS if slow / ours < direct else f"not: {LESS}", note)


def _tables(physics: Physics) -> Answer:
    return Answer(None, "the tables per data set and for several devices are in no source that we could read")


BOTH = (
    "the two bars of direct reads without overlap, 5.9 s (PCIe 3) and 4.0 s (PCIe 4), and that PCIe 4 is twice as fast"
)


def _counted(width: int) -> Claim:
    plain, aligned = REQUESTS[width]
    return Claim(
        f"GCN-1-{width}", "read requests per row, without and with alignment", f"{width} columns of 4 bytes",
        f"{plain:g} to {aligned:g}", "", "derived",
        "counted by a second program of ours from DGL's kernel",
        lambda physics: Answer(_count(width)), grade="counted",
    )  # fmt: skip


CLAIMS: tuple[Claim, ...] = (
    *(_counted(width) for width in REQUESTS),
    Claim(
        "GCN-2", "table in the device's memory", SETUP, BARS["all-GPU"][0], "s", "first-hand", README, _all_gpu,
        tolerance=0.1, inputs=f"{BOTH}: two equations in two unknowns, transfer and training", grade="algebraic",
        assumptions={"PCIe 4 1.8 times as fast": lambda: _all_gpu(PHYSICS, 1.8)},
    ),
    *(
        Claim(
            f"GCN-3{letter}", "direct reads during training, with a tenth of the processors",
            f"{SETUP}, PCIe {generation}", BARS["direct+MPS"][generation - 3], "s", "first-hand", README,
            partial(_overlapped, rate), tolerance=0.2, inputs=BOTH, grade="calibrated on other rows",
            null=partial(_perfect, rate),
            assumptions={
                "PCIe 4 1.8 times as fast": partial(_overlapped, rate, PHYSICS, 0.1, 1.8),
                "15 % of the processors": partial(_overlapped, rate, PHYSICS, 0.15),
            },
        )
        for letter, generation, rate in (("a", 3, 1.0), ("b", 4, 2.0))
    ),
    Claim(
        "GCN-4", "training on several devices, against the usual transfer", "graphs of up to 111 million nodes",
        "65 to 92 % faster", "", "first-hand", "abstract of arXiv 2103.03330", _tables,
    ),
    Claim(
        "GCN-5", "PCIe 4 against PCIe 3", SETUP, LESS, "", "first-hand", README, _host,
        inputs=f"{BOTH}; the host's bar with PCIe 3, 7.8 s", grade="calibrated on other rows",
        null=lambda: Answer("as much", "whatever is limited by the link gains as much"),
        assumptions={"page-locked staging": lambda: _host(PHYSICS, staged=False)},
    ),
)  # fmt: skip

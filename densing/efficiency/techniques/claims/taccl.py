"""TACCL (Shah et al., NSDI 2023, arXiv 2111.04867): routing optima, schedules and their lead over a ring.

The figures in microseconds are a pilot's, measured once with a first implementation on the profile of NDv2 that the
authors ship: they are no figures of the paper. The paper's own are against NCCL on real machines, and have no answer
here.
None of the rows goes through the simulator's laws: the programs are solved on the link costs as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from densing.efficiency.techniques.physics import Physics
from densing.efficiency.techniques.protocol import Answer, Claim
from densing.efficiency.techniques.taccl import TOGETHER, Sketch, Synthesis, synthesise

PILOT = "pilot with scipy's HiGHS; costs of the NDv2 profile in github.com/microsoft/taccl"
PAPER = "arXiv 2111.04867, as summarised by others"
PROFILE = "link costs of the NDv2 profile"
QUICKER = "the pilot ordered its routes by one rule; four times 107 on the wire and a hop of 23, 451, are the least"


@cache
def all_gather(profile: str, nodes: int, per_node: int, sketch: str, together: int = 1) -> Synthesis:
    """Return the all-gather of a row of the pilot's table, by default one chunk per message, as the pilot had it.

    ``sk1``: one sender and one receiver per node. ``sk2``: every device may send, through one shared NIC.
    """
    from densing.efficiency.techniques.taccl import profile_topology

    n = nodes * per_node
    symmetry = ((per_node, n),) if nodes > 1 else ((1, n),)
    relays = ((0, 1),) if sketch == "sk1" else ()
    topology = profile_topology(profile, nodes, per_node, "full")
    return synthesise(topology, "all_gather", Sketch(sketch, relays, symmetry), together=together)


def _bound(nodes: int, per_node: int, sketch: str) -> Callable[[Physics], Answer]:
    def check(_: Physics) -> Answer:
        found = all_gather("ndv2-1mb", nodes, per_node, sketch)
        note = f"{found.binaries} binaries, {found.status}, gap {100 * found.gap:.2g} %, {found.solve_s:.1f} s here"
        return Answer(found.bound, note)

    return check


def _schedule(nodes: int, per_node: int) -> Callable[[Physics], Answer]:
    return lambda _: Answer(all_gather("ndv2-1mb", nodes, per_node, "sk1").makespan)


def _relay(_: Physics) -> Answer:
    merged = all_gather("ndv2-1mb", 2, 4, "sk1", TOGETHER).makespan
    note = f"{QUICKER}; with two chunks as one message {merged:g} us"
    return Answer(all_gather("ndv2-1mb", 2, 4, "sk1").makespan, note)


def _at_most(limit: float) -> Callable[[Physics], Answer]:
    def check(_: Physics) -> Answer:
        found = all_gather("ndv2-1mb", 2, 4, "sk2").makespan
        words = f"at most {limit:g} us" if found <= limit else f"{found:g} us"
        return Answer(words, f"{found:g} us: {QUICKER}")

    return check


def _lead(_: Physics) -> Answer:
    found = all_gather("ndv2-1mb", 2, 4, "sk1")
    lead = found.ring / found.makespan
    words = "at least 1.5x" if lead >= 1.5 else f"{lead:.2f}x"
    return Answer(words, f"{lead:.2f}x: {found.ring:g} us against {found.makespan:g}; the pilot had 1.58x and 1.51x")


def _small(_: Physics) -> Answer:
    merged, alone = (all_gather("ndv2-1kb", 2, 4, "sk1", together) for together in (TOGETHER, 1))
    note = f"{merged.ring:g} against {merged.makespan:g} (scaled units); one chunk per message "
    return Answer(merged.ring / merged.makespan, note + f"{alone.ring / alone.makespan:.2f}x")


def _nccl(_: Physics) -> Answer:
    lead = all_gather("ndv2-1kb", 2, 4, "sk1", TOGETHER)
    return Answer(
        None,
        f"measured against NCCL on real machines; the simulator has no NCCL. Ours over a ring of the same costs is "
        f"{lead.ring / lead.makespan:.1f}x at 1 KB: it says where the lead comes from, not how large it is over NCCL",
    )


def _not_here(_: Physics) -> Answer:
    return Answer(None, "end-to-end times of models whose share of communication is not published")


def _pilot(
    number: str, what: str, setup: str, published: float | str, check: Callable[[Physics], Answer], unit: str = "us"
) -> Claim:
    tolerance = None if isinstance(published, str) else 0.05
    return Claim(f"TAC-1{number}", what, setup, published, unit, "measured", PILOT, check, tolerance, PROFILE,
                 grade="own measurement")  # fmt: skip


def _paper(number: str, what: str, setup: str, published: float, check: Callable[[Physics], Answer]) -> Claim:
    return Claim(f"TAC-{number}", what, setup, published, "x", "second-hand", PAPER, check)


OPTIMUM, SCHEDULE = "optimum of the routing MILP", "all-gather schedule"

CLAIMS: tuple[Claim, ...] = (
    _pilot("a", OPTIMUM, "1 node x 4, 1 MB", 23.0, _bound(1, 4, "sk2")),
    _pilot("b", SCHEDULE, "1 node x 4, 1 MB", 23.0, _schedule(1, 4)),
    _pilot("c", OPTIMUM, "2 x 2, relay, 1 MB", 214.0, _bound(2, 2, "sk1")),
    _pilot("d", SCHEDULE, "2 x 2, relay, 1 MB", 237.0, _schedule(2, 2)),
    _pilot("e", OPTIMUM, "2 x 4, relay, 1 MB", 428.0, _bound(2, 4, "sk1")),
    _pilot("f", SCHEDULE, "2 x 4, relay, 1 MB", 474.0, _relay),
    _pilot("g", OPTIMUM, "2 x 4, shared NIC, 1 MB", 428.0, _bound(2, 4, "sk2")),
    _pilot("h", SCHEDULE, "2 x 4, shared NIC, 1 MB", "at most 497 us", _at_most(497.0), ""),
    _pilot("i", "lead over a ring", "2 x 4, relay, 1 MB", "at least 1.5x", _lead, ""),
    Claim(
        "TAC-1j",
        "lead over a ring where chunks travel together",
        "2 x 4, relay, 1 KB",
        5.2,
        "x",
        "derived",
        "arithmetic on the NDv2 1 KB profile: 7 x 270 over 260 + 4 x 10.25 + 2 x 32",
        _small,
        0.05,
        PROFILE,
        grade="algebraic",
    ),
    _paper("2", "largest lead over NCCL in micro-benchmarks", "DGX-2 and NDv2", 6.7, _nccl),
    _paper("3", "largest end-to-end gain", "Transformer-XL and BERT", 2.36, _not_here),
)

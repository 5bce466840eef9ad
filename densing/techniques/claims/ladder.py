"""Ladder-Residual (Zhang et al., ICML 2025, arXiv 2501.06589): tokens per second of Llama models in decoding.

The authors' plot script gives, per link and batch, the standard model, ladder, parallel attention, and a bound without
communication. Compute is fitted to the bound and the all-reduce to the standard model; ladder and parallel attention
are predicted. How the compute of a layer divides between attention and MLP is not published: ``equal`` halves it,
``own`` takes what the shapes of the matrices say.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np
from msgspec.structs import replace

from densing.cluster.cluster import Cluster
from densing.cluster.presets import load_cluster
from densing.techniques.claims.calibrating import FREE, device_taking, link_taking, measured
from densing.techniques.protocol import Answer, Claim
from densing.workload.modules import modules
from densing.workload.presets import load_workload
from densing.workload.workload import Workload

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
"""Range over these batches of no communication over standard."""

SCRIPT = "plot scripts of the authors' repository (tools/plot-70b.py, tools/plot-405b.py)"
SLOWED = np.linspace(0.0, 0.6, 13)
"""Grid of kappa / (1 + kappa), the share by which compute is slowed: a step grows about in proportion to it."""


@cache
def workload(batch: int, shares: str = "equal", model: str = "llama3-70b", tp: int = 8) -> Workload:
    """Return a decoding step half way through 512 tokens after a prompt of 1024."""
    found = load_workload(model, mode="decode", batch=batch, sequence=1280, tp=tp, dp=1)
    return found if shares == "own" else _halved(found)


def _halved(found: Workload) -> Workload:
    """Change the MLP's width until attention and MLP move the same bytes; the device is fitted to the whole anyway."""

    def excess(width: int) -> float:
        attention, mlp = modules(_widened(found, width))[1:3]
        return mlp.moved - attention.moved

    low, high = 1, 10**6
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    return _widened(found, low)


def _widened(found: Workload, width: int) -> Workload:
    return replace(found, model=replace(found.model, ffn=width * found.split.tp))


def fitted(asked: Workload, standard: float, bound: float) -> Cluster:
    """Return a cluster on which the standard model and the bound take the seconds given."""
    quiet = load_cluster("h100x8-nvlink").change(n=16, per_node=16, intra=FREE, kappa=0.0, kappa_comm=0.0)
    fast = device_taking(bound, "tensor-parallel", asked, quiet)
    linked = fast.change(intra=load_cluster("h100x8-nvlink").intra)
    return link_taking(standard, "intra", "tensor-parallel", asked, linked)


@cache
def _cluster(row: Row, shares: str) -> Cluster:
    standard, _, _, bound = PUBLISHED[row]
    return fitted(workload(row[1], shares), row[1] / standard, row[1] / bound)


def ladder(row: Row, shares: str, kappa: float) -> float:
    """Return tokens per second of ladder under a contention."""
    return row[1] / measured("ladder", workload(row[1], shares), _cluster(row, shares).change(kappa=kappa)).step_s


@cache
def _steps(row: Row, shares: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([row[1] / ladder(row, shares, slowed / (1 - slowed)) for slowed in SLOWED.tolist()])


def kappa_of(rows: tuple[Row, ...], shares: str) -> float:
    """Return the contention, to 0.001, that makes the relative errors of ladder's throughput least squares."""
    fine = np.arange(0.0, SLOWED[-1] / (1 - SLOWED[-1]), 0.001)
    steps = [np.interp(fine / (1 + fine), SLOWED, _steps(row, shares)) for row in rows]
    errors = [row[1] / step / PUBLISHED[row][1] - 1 for row, step in zip(rows, steps, strict=True)]
    return float(fine[np.argmin(np.square(errors).sum(axis=0))])


def _same_link(link: str, *left_out: int) -> tuple[Row, ...]:
    return tuple(row for row in PUBLISHED if row[0] == link and row[1] not in left_out)


def _without_contention(row: Row, shares: str) -> Answer:
    return Answer(ladder(row, shares, 0.0))


def _from_others(row: Row, shares: str) -> Answer:
    kappa = kappa_of(_same_link(row[0], row[1]), shares)
    return Answer(ladder(row, shares, kappa), f"kappa {kappa:.2f}")


def _from_all(row: Row) -> Answer:
    kappa = kappa_of(_same_link(row[0]), "equal")
    return Answer(ladder(row, "equal", kappa), f"kappa {kappa:.2f}")


def _from_small(row: Row) -> Answer:
    kappa = kappa_of(_same_link(row[0], 16, 64), "equal")
    return Answer(ladder(row, "equal", kappa), f"kappa {kappa:.2f}")


def _parallel(row: Row) -> Answer:
    found = measured("parallel-attention", workload(row[1], "own"), _cluster(row, "own"))
    return Answer(row[1] / found.step_s)


def _narrow(tp: int) -> Answer:
    standard, _, bound = NARROW[tp]
    asked = workload(1, "equal", tp=tp)
    kappa = kappa_of(_same_link("nvlink"), "equal")
    cluster = fitted(asked, 1 / standard, 1 / bound).change(kappa=kappa)
    return Answer(1 / measured("ladder", asked, cluster).step_s, f"kappa {kappa:.2f}")


@cache
def _large(link: str) -> Answer:
    asked = workload(1, "equal", "llama3-405b", 16)
    kappa = kappa_of(_same_link(link), "equal")
    low, high = LARGE_BOUND[link]
    gains = [_gain(asked, bound, kappa) for bound in (low, (low + high) / 2, high)]
    return Answer(gains[1], f"kappa {kappa:.2f}; {gains[0]:.2f} to {gains[2]:.2f} over the range of the bound")


def _gain(asked: Workload, bound: float, kappa: float) -> float:
    cluster = fitted(asked, bound, 1.0)
    return bound / measured("ladder", asked, cluster.change(kappa=kappa)).step_s


def _setup(row: Row) -> str:
    link = "NVLink" if row[0] == "nvlink" else "no P2P"
    return f"Llama-3 70B, TP 8, H100, {link}, batch {row[1]}"


FIT = "compute fitted to the bound and the all-reduce to the standard model of this row"
EQUAL = "attention and MLP of equal time (assumed)"
OWN = "attention and MLP as their shapes say"


def _series(
    prefix: str,
    what: str,
    check: Callable[[Row], Answer],
    inputs: str,
    *,
    rows: tuple[Row, ...] = tuple(PUBLISHED),
    column: int = 1,
    tolerance: float = 0.1,
) -> list[Claim]:
    return [
        Claim(
            f"{prefix}-{row[0]}-{row[1]}",
            what,
            _setup(row),
            PUBLISHED[row][column],
            "tokens/s",
            "first-hand",
            SCRIPT,
            partial(check, row),
            tolerance,
            inputs,
            fitted=check is _from_all,
        )
        for row in rows
    ]


def _throughputs() -> list[Claim]:
    others = "kappa fitted to the other three ladder rows of this link"
    every = "kappa fitted to all four ladder rows of this link, this one among them: a fit, no prediction"
    small = tuple(row for row in PUBLISHED if row[1] >= 16)
    return [
        *_series("LAD-1a", "parallel attention", _parallel, FIT, column=2),
        *_series("LAD-1b", "ladder, no contention", partial(_without_contention, shares="equal"), f"{FIT}; {EQUAL}"),
        *_series("LAD-1c", "ladder, contention", partial(_from_others, shares="equal"), f"{FIT}; {EQUAL}; {others}"),
        *_series("LAD-1d", "ladder, no contention", partial(_without_contention, shares="own"), f"{FIT}; {OWN}"),
        *_series("LAD-1e", "ladder, contention", partial(_from_others, shares="own"), f"{FIT}; {OWN}; {others}"),
        *_series(
            "LAD-1f",
            "ladder, contention of small batches",
            _from_small,
            f"{FIT}; {EQUAL}; kappa fitted to ladder at batch 1 and 4 of this link",
            rows=small,
            tolerance=0.15,
        ),
        *_series("LAD-1h", "ladder, one contention per link", _from_all, f"{FIT}; {EQUAL}; {every}"),
    ]


def _others() -> list[Claim]:
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
        )
        for link, gains in LARGE.items()
        for batch, gain in zip((1, 4, 8, 16), gains, strict=True)
    ]
    return [*narrow, *large]


def _quality() -> list[Claim]:
    summary = "a summary of arXiv 2501.06589"
    silent = "the simulator tells times, not quality"
    rows = (
        ("LAD-3a", "mean score of ladder (standard: 64.11)", "3.5B, trained from scratch", 63.03, "%"),
        ("LAD-3b", "mean score, half of the layers changed", "Llama-3.1 8B, 3e9 tokens", 56.24, "%"),
    )
    return [
        Claim(name, what, setup, figure, unit, "second-hand", summary, lambda: Answer(None, silent))
        for name, what, setup, figure, unit in rows
    ]


CLAIMS: tuple[Claim, ...] = (*_throughputs(), *_others(), *_quality())

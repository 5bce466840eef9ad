"""Scaling efficiency over runs of different size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from densing.core import InputError, Record, UnknownNameError

ScalingKind = Literal["strong", "weak", "throughput"]
SAME_WORK = 1e-3


class Run(Record, frozen=True):
    """One run of a scaling study.

    Attributes
    ----------
    devices : int
        N.
    seconds : float
        T_N: time of one step.
    definition : str
        What ``seconds`` is (``median step time, window steps``); all runs of a table must say the same.
    work : float or None
        Samples or tokens per step, all devices together; None if unknown.
    name : str
    """

    devices: int
    seconds: float
    definition: str
    work: float | None = None
    name: str = ""


class ScalingRow(Record, frozen=True):
    """One run against the smallest.

    Attributes
    ----------
    name : str
    devices : int
    seconds : float
    throughput : float or None
        Work per second; None without work.
    speedup : float
        T₀/T_N for strong and weak scaling, X_N/X₀ for throughput.
    efficiency : float
        1 is perfect.
    """

    name: str
    devices: int
    seconds: float
    throughput: float | None
    speedup: float
    efficiency: float


class Scaling(Record, frozen=True):
    """A scaling table: which efficiency, of what, and a row per run in order of size."""

    kind: ScalingKind
    equation: str
    definition: str
    rows: tuple[ScalingRow, ...]


EQUATIONS: dict[str, str] = {
    "strong": "(N₀·T₀)/(N·T_N)",
    "weak": "T₀/T_N",
    "throughput": "X_N/((N/N₀)·X₀)",
}


def scaling(runs: Iterable[Run], kind: ScalingKind) -> Scaling:
    r"""Compare runs of different size with the smallest (N₀ devices).

    .. math:: E_{strong} = \frac{N_0 T_0}{N T_N}, \quad E_{weak} = \frac{T_0}{T_N}, \quad
              E_{throughput} = \frac{X_N}{(N / N_0) X_0}

    Strong: the same work per step on more devices. Weak: the same work per device. Throughput: any work, X = work/T.

    Raises
    ------
    UnknownNameError
        For another kind.
    InputError
        For fewer than two sizes, a size twice, mixed definitions of step time, or work that does not fit the kind.

    Notes
    -----
    Source: the usual definitions, with N₀ = 1 as in T₁/(N·T_N) and T₁/T_N.

    Examples
    --------
    >>> runs = [Run(1, 8.0, "step time"), Run(4, 2.5, "step time")]
    >>> scaling(runs, "strong").rows[1].efficiency
    0.8
    """
    if kind not in EQUATIONS:
        raise UnknownNameError("kind of scaling", str(kind), EQUATIONS)
    runs = list(runs)
    _check(runs, kind)
    ordered = sorted(runs, key=lambda run: run.devices)
    base, rows = ordered[0], []
    for run in ordered:
        rate = run.work / run.seconds if run.work is not None else None
        speedup = base.seconds / run.seconds
        if kind == "throughput" and rate is not None and base.work is not None:
            speedup = rate / (base.work / base.seconds)
        efficiency = speedup if kind == "weak" else speedup / (run.devices / base.devices)
        rows.append(ScalingRow(run.name, run.devices, run.seconds, rate, speedup, efficiency))
    return Scaling(kind, EQUATIONS[kind], base.definition, tuple(rows))


def _check(runs: Sequence[Run], kind: ScalingKind) -> None:
    """Refuse runs that make no sense, cannot be compared, or whose work does not fit the kind of scaling."""
    for run in runs:
        where = run.name or f"run on {run.devices} devices"
        if run.devices < 1:
            raise InputError(f"{where}: {run.devices} devices; at least one is needed")
        if not math.isfinite(run.seconds) or run.seconds <= 0:
            raise InputError(f"{where}: step time {run.seconds!r} s is not a positive number")
        if run.work is not None and (not math.isfinite(run.work) or run.work <= 0):
            raise InputError(f"{where}: work per step {run.work!r} is not a positive number")
    sizes = [run.devices for run in runs]
    if len(set(sizes)) < 2:
        raise InputError("scaling needs runs of at least two sizes; add a run on another number of devices")
    repeated = sorted({size for size in sizes if sizes.count(size) > 1})
    if repeated:
        raise InputError(f"two runs on {repeated[0]} devices; keep one of them, or their median")
    definitions = sorted({run.definition for run in runs})
    if len(definitions) > 1:
        raise InputError(
            f"step times of different definitions ({'; '.join(definitions)}); measure all runs in the same way"
        )
    # Strong and weak scaling say what must stay the same; known work is held to it.
    known = [run for run in runs if run.work is not None]
    if kind == "throughput":
        if len(known) < len(runs):
            raise InputError("throughput needs the work per step of every run; add it, or ask for strong or weak")
        return
    shares = [(run.work or 0.0) / (run.devices if kind == "weak" else 1) for run in known]
    if shares and max(shares) - min(shares) > SAME_WORK * max(shares):
        quantity = "work per step" if kind == "strong" else "work per device and step"
        raise InputError(
            f"{kind} scaling needs constant {quantity}, but it ranges from {min(shares):g} to "
            f"{max(shares):g}; "
            "ask for throughput"
        )

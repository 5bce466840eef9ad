"""Fit a link's latency and bandwidth, and contention, to measured communications and computations.

A communication of V bytes over n ranks takes ``w = m alpha + v V beta`` alone (m, v by operation, see
:mod:`densing.efficiency.simulation.cluster.costs`), and ``d = w / (1 - o k/(1 + k))`` where a share o of its duration
d ran beside compute, with k ``kappa_comm``: beside compute it moves at 1/(1 + k) of its speed. A computation likewise,
with ``kappa``. Residuals are relative (differences of logarithms), the loss is robust (soft L1): shared machines make
outliers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from densing.core import InputError, Note, Record, UnknownNameError
from densing.efficiency.simulation.cluster.costs import OPS, Terms, ring_terms, tree_terms
from densing.efficiency.simulation.cluster.least_squares import Estimate, Floats, Residuals, fit, rms, stretch

LEAST_SPREAD = 0.1
"""Shares beside other work must differ by so much to tell contention."""
LEAST_SIZES = 1.5
"""The largest message must be so many times the smallest (by ratio of bytes to messages)."""


class Observation(Record, frozen=True):
    """One communication, from when its last rank had come.

    Parameters
    ----------
    op : str
    count : float
        Bytes of the full buffer, see :mod:`densing.efficiency.simulation.cluster.costs`.
    n : int
        Ranks.
    seconds : float
    overlapped : float
        Share of its duration, 0 to 1, that ran beside compute.
    """

    op: str
    count: float
    n: int
    seconds: float
    overlapped: float = 0.0


class Computation(Record, frozen=True):
    """One computation; ``work`` names what is the same amount of it (a module, a kernel's place in the step)."""

    work: str
    seconds: float
    overlapped: float = 0.0


class Calibration(Record, frozen=True):
    """What measured runs tell of a link; None where they cannot.

    Parameters
    ----------
    alpha_s, beta_s_per_byte, kappa, kappa_comm : Estimate or None
    residual : float or None
        Root mean square of the communications' relative residuals.
    compute_residual : float or None
        The same of the computations.
    observations, computations : int
        How many were used.
    algorithm : {"ring", "tree"}
    notes : tuple of Note
        Why a figure is missing: ``code``, ``severity``, ``message``, ``details``.
    """

    alpha_s: Estimate | None
    beta_s_per_byte: Estimate | None
    kappa: Estimate | None
    kappa_comm: Estimate | None
    residual: float | None
    compute_residual: float | None
    observations: int
    computations: int
    algorithm: str = "ring"
    notes: tuple[Note, ...] = msgspec.field(default_factory=tuple)


def calibrate(
    observations: Sequence[Observation], computations: Sequence[Computation] = (), algorithm: str = "ring"
) -> Calibration:
    """Fit alpha, beta, kappa and kappa_comm.

    Parameters
    ----------
    observations : sequence of Observation
        Of one level of links.
    computations : sequence of Computation
    algorithm : {"ring", "tree"}
        How the communications are done.

    Raises
    ------
    InputError
        When there are none, or one is not possible (no duration, a single rank, a share outside 0 to 1).

    Notes
    -----
    Standard errors: see :func:`densing.efficiency.simulation.cluster.least_squares.fit`.

    Examples
    --------
    >>> truth = [Observation("all_reduce", size, 2, 2 * 1e-3 + size * 4e-8) for size in (1e4, 1e5, 1e6, 1e7)]
    >>> found = calibrate(truth)
    >>> round(found.alpha_s.value, 6), round(found.beta_s_per_byte.value, 12), found.kappa, found.notes[0].code
    (0.001, 4e-08, None, 'kappa-comm-unknown')
    """
    if not observations and not computations:
        raise InputError("calibrate: nothing was measured; give runs that communicate")
    if algorithm not in _TERMS:
        raise UnknownNameError("algorithm", algorithm, _TERMS)
    everything: list[Observation | Computation] = [*observations, *computations]
    for one in everything:
        _check(one)
    used = [one for one in observations if one.count > 0 and one.n > 1]
    link = _link(used, algorithm)
    kappa, kappa_residual, kappa_notes = _kappa(computations)
    return Calibration(
        link.alpha,
        link.beta,
        kappa,
        link.kappa,
        link.residual,
        kappa_residual,
        len(used),
        len(computations),
        algorithm,
        (*link.notes, *kappa_notes),
    )


_TERMS: dict[str, Callable[[str, int], Terms]] = {"ring": ring_terms, "tree": tree_terms}


def _check(one: Observation | Computation) -> None:
    if isinstance(one, Observation):
        if one.op not in OPS:
            raise UnknownNameError("collective", one.op, OPS)
        if not (math.isfinite(one.count) and one.count >= 0):
            raise InputError(f"{one.op}: count: {one.count} is no number of bytes; give a finite one from 0 up")
        if one.n < 1:
            raise InputError(f"{one.op}: n: {one.n} is no number of ranks; give 1 or more")
    name = one.op if isinstance(one, Observation) else one.work
    if not (math.isfinite(one.seconds) and one.seconds > 0):
        raise InputError(f"{name}: seconds: {one.seconds} is no duration; give a positive number")
    if not 0 <= one.overlapped <= 1:
        raise InputError(f"{name}: overlapped: {one.overlapped} is no share; give a number from 0 to 1")


class _Link(Record, frozen=True):
    alpha: Estimate | None = None
    beta: Estimate | None = None
    kappa: Estimate | None = None
    residual: float | None = None
    notes: tuple[Note, ...] = ()


def _link(used: Sequence[Observation], algorithm: str) -> _Link:
    """Fit a link to communications, without the parameters that they cannot tell apart."""
    notes: list[Note] = []
    if len(used) < 3:
        text = f"{len(used)} communications: too few to fit a link; record more"
        return _Link(notes=(Note("link-unknown", "error", text, {"observations": len(used)}),))
    terms = [_TERMS[algorithm](one.op, one.n) for one in used]
    messages = np.array([term.messages for term in terms])
    volume = np.array([term.volume * one.count for term, one in zip(terms, used, strict=True)])
    ratios = volume / messages
    if ratios.max() < LEAST_SIZES * ratios.min():
        text = f"all messages are of about {ratios.mean():.3g} bytes: latency and bandwidth cannot be told apart"
        remedy = "; record messages of several sizes"
        return _Link(notes=(Note("one-size", "error", text + remedy, {"bytes": float(ratios.mean())}),))
    beside = np.array([one.overlapped for one in used])
    contended = np.ptp(beside) >= LEAST_SPREAD and len(used) > 3
    if not contended:
        text = "all communications ran beside compute to about the same share: kappa_comm is unknown; "
        remedy = "record a run with and one without overlap"
        notes.append(Note("kappa-comm-unknown", "warning", text + remedy, {"spread": float(np.ptp(beside))}))
    seconds = np.array([one.seconds for one in used])
    residuals, scales = _residuals(messages, volume, beside, seconds)
    fitted = fit(residuals, [0.5, 0.9, 0.2][: 3 if contended else 2], scales[: 3 if contended else 2])
    left = rms(residuals(np.array([one.value / scale for one, scale in zip(fitted, scales, strict=False)])))
    notes += _undetermined(fitted[:2])
    return _Link(fitted[0], fitted[1], fitted[2] if contended else None, left, tuple(notes))


def _undetermined(fitted: Sequence[Estimate]) -> list[Note]:
    """Say which of alpha and beta the data leave open: the value stands, with its interval."""
    notes = []
    for name, one, remedy in zip(("alpha", "beta"), fitted, ("smaller", "larger"), strict=True):
        if one.low <= 0 or not math.isfinite(one.high):
            text = f"{name}: {one.value:.3g} with an interval up to {one.high:.3g}: not told apart from 0"
            notes.append(Note(f"{name}-open", "warning", f"{text}; record {remedy} messages", {}))
    return notes


def _residuals(messages: Floats, volume: Floats, beside: Floats, seconds: Floats) -> tuple[Residuals, list[float]]:
    """The residuals of parameters near 1, and the parameters' scales."""
    small, large = np.argmin(volume / messages), np.argmax(volume / messages)
    scales = [float(seconds[small] / messages[small]), float(seconds[large] / volume[large]), 1.0]
    target = np.log(seconds)

    def residuals(x: Floats) -> Floats:
        alone = messages * x[0] * scales[0] + volume * x[1] * scales[1]
        stretched = stretch(beside, float(x[2])) if len(x) > 2 else 0.0
        return np.log(np.maximum(alone, 1e-300)) + stretched - target

    return residuals, scales


def _kappa(computations: Sequence[Computation]) -> tuple[Estimate | None, float | None, tuple[Note, ...]]:
    """Fit kappa to computations of which the same work was done with and without communication beside it."""
    groups: dict[str, list[Computation]] = {}
    for one in computations:
        groups.setdefault(one.work, []).append(one)
    spread = [group for group in groups.values() if _spread(group) >= LEAST_SPREAD]
    used = sum(map(len, spread))
    if used < len(spread) + 2:
        text = "no work was recorded often enough both beside communication and alone: kappa is unknown"
        return None, None, (Note("kappa-unknown", "warning", text, {"computations": len(computations)}),)
    # The time of the work alone is each group's own parameter: its mean is taken out.
    number = np.repeat(np.arange(len(spread)), [len(group) for group in spread])
    beside = np.array([one.overlapped for group in spread for one in group])
    target = np.log([one.seconds for group in spread for one in group])
    counts = np.bincount(number)

    def residuals(x: Floats) -> Floats:
        left = target - stretch(beside, float(x[0]))
        return left - (np.bincount(number, left) / counts)[number]

    found = fit(residuals, [0.2], [1.0], lost=len(spread))[0]
    return found, rms(residuals(np.array([found.value]))), ()


def _spread(group: Sequence[Computation]) -> float:
    shares = [one.overlapped for one in group]
    return max(shares) - min(shares)

"""Fit a link's latency and bandwidth, and contention, to measured communications and computations.

A communication of V bytes over n ranks takes ``w = m alpha + v V beta`` alone (m, v by operation, see
:mod:`densing.efficiency.simulation.costs`), and ``d = w / (1 - o k/(1 + k))`` where a share o of its duration
d ran beside compute, with k ``kappa_comm``: beside compute it moves at 1/(1 + k) of its speed. A computation likewise,
with ``kappa``. Residuals are relative (differences of logarithms), the loss is robust (soft L1): shared machines make
outliers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from densing.core import InputError, Note, Record, UnknownNameError
from densing.efficiency.simulation.cluster import RANGES, Cluster, Figure, Link
from densing.efficiency.simulation.costs import OPS, Terms, ring_terms, tree_terms

LEAST_SPREAD = 0.1
"""Least spread of the shares of overlapped work that identifies contention."""
MOST_KAPPA = next(high for field, _, high, _ in RANGES if field == "kappa_comm")
"""Largest slowdown of a link that a cluster accepts."""
LEAST_SIZES = 1.5
"""Least ratio of the largest to the smallest message."""


class Observation(Record, frozen=True):
    """One communication, timed from the arrival of its last rank.

    Parameters
    ----------
    op : str
    count : float
        Bytes of the full buffer, see :mod:`densing.efficiency.simulation.costs`.
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
    """One computation; the same ``work`` (a module, a kernel's place in the step) is the same amount of computation."""

    work: str
    seconds: float
    overlapped: float = 0.0


class Calibration(Record, frozen=True):
    """Parameters of a link estimated from measured runs; None where not identifiable.

    Parameters
    ----------
    alpha_s, beta_s_per_byte, kappa, kappa_comm : Estimate or None
    residual : float or None
        Root mean square of the communications' relative residuals.
    compute_residual : float or None
        The same for the computations.
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
        Collective algorithm of the communications.

    Raises
    ------
    InputError
        Without observations, or for an impossible one (no duration, a single rank, a share outside 0 to 1).

    Notes
    -----
    Standard errors: see :func:`densing.efficiency.simulation.calibration.fit`.

    Examples
    --------
    >>> truth = [Observation("all_reduce", size, 2, 2 * 1e-3 + size * 4e-8) for size in (1e4, 1e5, 1e6, 1e7)]
    >>> link = calibrate(truth)
    >>> round(link.alpha_s.value, 6), round(link.beta_s_per_byte.value, 12), link.kappa, link.notes[0].code
    (0.001, 4e-08, None, 'kappa-comm-unknown')
    """
    if not observations and not computations:
        raise InputError("calibrate: nothing was measured; give runs that communicate")
    if algorithm not in _TERMS:
        raise UnknownNameError("algorithm", algorithm, _TERMS)
    for each in observations:
        if each.op not in OPS:
            raise UnknownNameError("collective", each.op, OPS)
        if not (math.isfinite(each.count) and each.count >= 0):
            raise InputError(
                f"{each.op}: count: {each.count} is not a number of bytes; give a finite number of 0 or more"
            )
        if each.n < 1:
            raise InputError(f"{each.op}: n: {each.n} is not a number of ranks; give 1 or more")
        _check_duration(each.op, each)
    for computation in computations:
        _check_duration(computation.work, computation)
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


def _check_duration(name: str, one: Observation | Computation) -> None:
    if not (math.isfinite(one.seconds) and one.seconds > 0):
        raise InputError(f"{name}: seconds: {one.seconds} is not a duration; give a positive number")
    if not 0 <= one.overlapped <= 1:
        raise InputError(f"{name}: overlapped: {one.overlapped} is not a share; give a number from 0 to 1")


class _Link(Record, frozen=True):
    alpha: Estimate | None = None
    beta: Estimate | None = None
    kappa: Estimate | None = None
    residual: float | None = None
    notes: tuple[Note, ...] = ()


def _link(used: Sequence[Observation], algorithm: str) -> _Link:
    """Fit a link to communications, leaving out the parameters that they do not identify."""
    notes: list[Note] = []
    if len(used) < 3:
        text = f"{len(used)} communications: too few to fit a link; record more"
        return _Link(notes=(Note("link-unknown", "error", text, {"observations": len(used)}),))
    terms = [_TERMS[algorithm](one.op, one.n) for one in used]
    messages = np.array([term.messages for term in terms])
    volume = np.array([term.volume * one.count for term, one in zip(terms, used, strict=True)])
    ratios = volume / messages
    if ratios.max() < LEAST_SIZES * ratios.min():
        text = f"all messages are of about {ratios.mean():.3g} bytes: latency and bandwidth cannot be separated"
        remedy = "; record messages of several sizes"
        return _Link(notes=(Note("one-size", "error", text + remedy, {"bytes": float(ratios.mean())}),))
    beside = np.array([one.overlapped for one in used])
    contended = np.ptp(beside) >= LEAST_SPREAD and len(used) > 3
    if not contended:
        text = "all communications overlapped compute by about the same share, so kappa_comm is unknown; "
        remedy = "record one run with overlap and one without"
        notes.append(Note("kappa-comm-unknown", "warning", text + remedy, {"spread": float(np.ptp(beside))}))
    seconds = np.array([one.seconds for one in used])
    # The smallest messages are about latency alone, the largest about bandwidth: so the parameters are near 1.
    small, large = np.argmin(ratios), np.argmax(ratios)
    scales = [float(seconds[small] / messages[small]), float(seconds[large] / volume[large]), 1.0]
    target = np.log(seconds)

    def residuals(x: Floats) -> Floats:
        quiet = messages * x[0] * scales[0] + volume * x[1] * scales[1]
        stretched = stretch(beside, float(x[2])) if len(x) > 2 else 0.0
        return np.log(np.maximum(quiet, 1e-300)) + stretched - target

    start = [0.5, 0.9, 0.2]
    fitted = fit(residuals, start[: 3 if contended else 2], scales[: 3 if contended else 2])
    if contended and fitted[2].value > MOST_KAPPA:
        # As if nothing moved beside compute at all: no machine does that, and the link would be told wrong with it.
        text = (
            f"kappa_comm: {fitted[2].value:.3g}, more than {MOST_KAPPA:g}: communications that "
            "overlapped compute took longer "
        )
        remedy = "for another reason, perhaps late ranks; the link is fitted without kappa_comm"
        notes.append(Note("kappa-comm-absurd", "warning", text + remedy, {"kappa_comm": fitted[2].value}))
        contended = False
        fitted = fit(residuals, start[:2], scales[:2])
    residual = rms(residuals(np.array([one.value / scale for one, scale in zip(fitted, scales, strict=False)])))
    # Where the data leave one of both open, its value stands, with its interval.
    for name, one, remedy in zip(("alpha", "beta"), fitted[:2], ("smaller", "larger"), strict=True):
        if one.low <= 0 or not math.isfinite(one.high):
            text = f"{name}: {one.value:.3g} with an interval up to {one.high:.3g}: not distinguishable from 0"
            notes.append(Note(f"{name}-open", "warning", f"{text}; record {remedy} messages", {}))
    return _Link(fitted[0], fitted[1], fitted[2] if contended else None, residual, tuple(notes))


def _kappa(computations: Sequence[Computation]) -> tuple[Estimate | None, float | None, tuple[Note, ...]]:
    """Fit kappa to work that was computed both with and without concurrent communication."""
    groups: dict[str, list[Computation]] = {}
    for one in computations:
        groups.setdefault(one.work, []).append(one)
    spread = [group for group in groups.values() if np.ptp([one.overlapped for one in group]) >= LEAST_SPREAD]
    used = sum(map(len, spread))
    if used < len(spread) + 2:
        text = "no work was recorded often enough both with and without overlapping communication, so kappa is unknown"
        return None, None, (Note("kappa-unknown", "warning", text, {"computations": len(computations)}),)
    # The time of the work alone is each group's own parameter: its mean is taken out.
    number = np.repeat(np.arange(len(spread)), [len(group) for group in spread])
    beside = np.array([one.overlapped for group in spread for one in group])
    target = np.log([one.seconds for group in spread for one in group])
    counts = np.bincount(number)

    def residuals(x: Floats) -> Floats:
        quiet = target - stretch(beside, float(x[0]))
        return quiet - (np.bincount(number, quiet) / counts)[number]

    estimate = fit(residuals, [0.2], [1.0], lost=len(spread))[0]
    if estimate.value > MOST_KAPPA:
        # No cluster accepts it: what slowed the work down was not the communication beside it.
        text = (
            f"kappa: {estimate.value:.3g}, more than {MOST_KAPPA:g}: work that overlapped communication took longer "
            "for another reason; kappa stays as it was"
        )
        return None, None, (Note("kappa-absurd", "warning", text, {"kappa": estimate.value}),)
    return estimate, rms(residuals(np.array([estimate.value]))), ()


Floats: TypeAlias = NDArray[np.float64]
Residuals: TypeAlias = Callable[[Floats], Floats]
SOFT = 0.1
"""Relative residual above which the robust loss grows linearly."""


class Estimate(Record, frozen=True):
    """A fitted figure with its standard error and 95 % interval (cut at 0)."""

    value: float
    standard_error: float
    low: float
    high: float


def fit(residuals: Residuals, begin: Sequence[float], scales: Sequence[float], lost: int = 0) -> list[Estimate]:
    """Fit non-negative parameters.

    Parameters
    ----------
    residuals : callable
        Parameters (p,) to residuals (n,).
    begin : sequence of float
        Initial values; parameters are scaled to be near 1.
    scales : sequence of float
        Units of the parameters.
    lost : int
        Degrees of freedom used before the fit.

    Notes
    -----
    Loss: soft L1. Standard errors: from the Jacobian and the variance at the minimum, both weighted as the loss does;
    interval: Student's t with n - p degrees of freedom.

    Examples
    --------
    >>> import numpy as np
    >>> seen = np.log([2.0, 2.0, 2.2, 1.8])
    >>> estimate = fit(lambda x: np.log(x[0]) - seen, [1.0], [1.0])[0]
    >>> round(estimate.value, 2), estimate.low < 2 < estimate.high
    (2.0, True)
    """
    from scipy.optimize import least_squares
    from scipy.stats import t

    # In units near 1 the solver's steps suit every parameter; the scales are put back at the end.
    solution = least_squares(residuals, begin, bounds=(0, np.inf), loss="soft_l1", f_scale=SOFT, x_scale="jac")
    last = residuals(solution.x)
    free = max(len(last) - len(begin) - lost, 1)
    # The weight that the slope of soft L1 gives a residual: outliers count for less in the variance too.
    weight = 1 / np.sqrt(1 + (last / SOFT) ** 2)
    jacobian = _jacobian(residuals, solution.x)
    covariance = (weight * last**2).sum() / free * np.linalg.pinv(jacobian.T @ (weight[:, None] * jacobian))
    wide = float(t.ppf(0.975, free))
    estimates = []
    for at, (value, scale) in enumerate(zip(solution.x, scales, strict=True)):
        error = math.sqrt(max(float(covariance[at, at]), 0.0))
        low, high = max(float(value) - wide * error, 0.0), float(value) + wide * error
        estimates.append(Estimate(float(value) * scale, error * scale, low * scale, high * scale))
    return estimates


def stretch(beside: Floats, kappa: float) -> Floats:
    """Return the log of the slowdown of work that ran at 1/(1 + kappa) for a share of its duration.

    Examples
    --------
    >>> import numpy as np
    >>> np.exp(stretch(np.array([0.0, 1.0]), 0.5)).round(6).tolist()
    [1.0, 1.5]
    """
    return -np.log1p(-beside * kappa / (1 + kappa))


def rms(residuals: Floats) -> float:
    """Return the root mean square."""
    return float(np.sqrt(np.mean(residuals**2)))


def _jacobian(residuals: Residuals, x: Floats) -> Floats:
    """Central differences; one-sided at 0."""
    columns = []
    for at in range(len(x)):
        step = 1e-6 * max(abs(float(x[at])), 1e-3)
        up, down = x.copy(), x.copy()
        up[at] += step
        down[at] = max(down[at] - step, 0.0)
        columns.append((residuals(up) - residuals(down)) / (up[at] - down[at]))
    return np.stack(columns, axis=1)


LEVELS = ("intra", "inter", "wide")


def calibrated(cluster: Cluster, calibration: Calibration, level: str, source: str) -> Cluster:
    """Return the cluster with measured figures; those that could not be measured stay.

    Parameters
    ----------
    cluster : Cluster
    calibration : Calibration
    level : {"intra", "inter", "wide"}
        Which link was measured.
    source : str
        What was measured, for :attr:`Cluster.sources`.

    Raises
    ------
    InputError
        When the cluster has no such link, or neither latency nor bandwidth was found.

    Examples
    --------
    >>> from densing.efficiency.simulation import Observation, calibrate, load_cluster
    >>> seen = [Observation("all_reduce", size, 2, 2 * 1e-3 + size * 4e-8) for size in (1e4, 1e5, 1e6, 1e7)]
    >>> cluster = calibrated(load_cluster("cpu2"), calibrate(seen), "inter", "an example")
    >>> round(cluster.inter.alpha_s, 6), cluster.sources["inter.alpha_s"].evidence
    (0.001, 'measured')
    """
    if level not in LEVELS:
        raise UnknownNameError("level", level, LEVELS)
    link: Link | None = getattr(cluster, level)
    if link is None:
        raise InputError(f"cluster {cluster.name} has no link {level}; measure another level")
    if calibration.alpha_s is None or calibration.beta_s_per_byte is None:
        text = "; ".join(note.message for note in calibration.notes) or "nothing was measured"
        raise InputError(f"cannot write a link: {text}")
    alpha, beta = calibration.alpha_s.value, calibration.beta_s_per_byte.value
    measured = replace(link, alpha_s=alpha, beta_s_per_byte=beta, ring=calibration.algorithm == "ring")
    sources = dict(cluster.sources)
    sources[f"{level}.alpha_s"] = _figure(source, calibration.alpha_s, calibration.residual)
    sources[f"{level}.beta_s_per_byte"] = _figure(source, calibration.beta_s_per_byte, calibration.residual)
    changes: dict[str, object] = {level: measured}
    for name, residual in (("kappa", calibration.compute_residual), ("kappa_comm", calibration.residual)):
        estimate: Estimate | None = getattr(calibration, name)
        if estimate is not None:
            changes[name] = estimate.value
            sources[name] = _figure(source, estimate, residual)
    return cluster.change(**changes, sources=sources)


def _figure(source: str, estimate: Estimate, residual: float | None) -> Figure:
    about = f"{source}; 95 % interval {estimate.low:.3g} to {estimate.high:.3g}"
    return Figure(about + ("" if residual is None else f", relative residual {residual:.2g}"), "measured")

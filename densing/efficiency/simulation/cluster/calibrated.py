"""A cluster with what a calibration found in place of what it said."""

from __future__ import annotations

from msgspec.structs import replace

from densing.core import InputError, UnknownNameError
from densing.efficiency.simulation.cluster.calibrate import Calibration
from densing.efficiency.simulation.cluster.cluster import Cluster, Figure, Link
from densing.efficiency.simulation.cluster.least_squares import Estimate

LEVELS = ("intra", "inter", "wide")


def calibrated(cluster: Cluster, found: Calibration, level: str, source: str) -> Cluster:
    """Put measured figures into a cluster; what could not be measured stays.

    Parameters
    ----------
    cluster : Cluster
    found : Calibration
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
    >>> from densing.efficiency.simulation.cluster.calibrate import Observation, calibrate
    >>> from densing.efficiency.simulation.cluster.presets import load_cluster
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
    if found.alpha_s is None or found.beta_s_per_byte is None:
        told = "; ".join(note.message for note in found.notes) or "nothing was measured"
        raise InputError(f"no link can be written: {told}")
    measured = replace(link, alpha_s=found.alpha_s.value, beta_s_per_byte=found.beta_s_per_byte.value)
    sources = dict(cluster.sources)
    sources[f"{level}.alpha_s"] = _figure(source, found.alpha_s, found.residual)
    sources[f"{level}.beta_s_per_byte"] = _figure(source, found.beta_s_per_byte, found.residual)
    changes: dict[str, object] = {level: measured}
    for name, residual in (("kappa", found.compute_residual), ("kappa_comm", found.residual)):
        estimate: Estimate | None = getattr(found, name)
        if estimate is not None:
            changes[name] = estimate.value
            sources[name] = _figure(source, estimate, residual)
    return cluster.change(**changes, sources=sources)


def _figure(source: str, estimate: Estimate, residual: float | None) -> Figure:
    about = f"{source}; 95 % interval {estimate.low:.3g} to {estimate.high:.3g}"
    return Figure(about + ("" if residual is None else f", relative residual {residual:.2g}"), "measured")

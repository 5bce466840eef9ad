"""Scaling efficiency of profiled runs."""

from __future__ import annotations

from collections.abc import Mapping

from densing.errors import InputError
from densing.profile.run import RunProfile
from densing.timeline.scaling import Run, Scaling, scaling


def scaling_of(runs: Mapping[str, RunProfile], kind: str, work: Mapping[str, float]) -> Scaling:
    """Compare profiled runs of different size.

    Parameters
    ----------
    runs : mapping of str to RunProfile
        By name.
    kind : {"strong", "weak", "throughput"}
    work : mapping of str to float
        Samples or tokens per step by run; needed for throughput.

    Raises
    ------
    InputError
        When a run marks no steps, or the runs cannot be compared.
    """
    rows = []
    for name, run in runs.items():
        if not run.figures["steps"]:
            raise InputError(f"{name}: marks no steps, so the time of one is unknown; record with step() calls")
        devices = max(run.ranks[0].world_size, len(run.ranks))
        seconds = float(run.figures["step_ms"] or 0) / 1e3
        rows.append(Run(devices, seconds, f"median step time, window {run.window}", work.get(name), name))
    return scaling(rows, kind)  # type: ignore[arg-type]

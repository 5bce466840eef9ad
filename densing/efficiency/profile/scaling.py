"""Scaling efficiency of profiled runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from densing.core import InputError, Note
from densing.efficiency.profile.run import RunProfile
from densing.efficiency.timeline import Run, Scaling, scaling


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
        seconds = float(run.figures["step_ms"] or 0) / 1e3
        rows.append(Run(run.world_size, seconds, f"median step time, window {run.window}", work.get(name), name))
    return scaling(rows, kind)  # type: ignore[arg-type]


def scaling_notes(runs: Mapping[str, RunProfile]) -> Iterator[Note]:
    """Say where runs differ in more than their size.

    Parameters
    ----------
    runs : mapping of str to RunProfile
        By name.
    """
    # What a run ran on; nothing where its traces name no accelerator although they hold work of one.
    devices = {
        name: ", ".join(run.devices) or "processor"
        for name, run in runs.items()
        if run.devices or all(rank.on_host for rank in run.ranks)
    }
    if len(set(devices.values())) > 1:
        listed = "; ".join(f"{name}: {device}" for name, device in devices.items())
        text = f"runs on different devices ({listed}): the efficiency is also that of the devices"
        yield Note("different-devices", "warning", text, devices)
    for name, run in runs.items():
        if all(rank.world_size < 1 for rank in run.ranks):
            text = f"{name}: no trace tells the number of ranks; counted are the {run.world_size} profiled"
            yield Note("size-assumed", "warning", text, {"run": name, "devices": run.world_size})

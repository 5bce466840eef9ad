"""Which device there is, and why a stage cannot have it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

FIGURES = "driver_version,mig.mode.current,power.limit"
SMI = ("nvidia-smi", f"--query-gpu={FIGURES}", "--format=csv,noheader,nounits", "-i", "0")


@dataclass(frozen=True)
class Device:
    """The first device.

    Attributes
    ----------
    name : str
    memory_gb, free_gb : float
    driver, cuda : str
        Versions: of the driver, and of the CUDA that torch was built for.
    units : int
        Multiprocessors.
    watts : float or None
        Limit of its power.
    slice : bool
        Whether it is a part of a device (MIG).
    problem : str
        Why torch cannot use one, in torch's words; empty where it can.
    """

    name: str = ""
    memory_gb: float = 0.0
    free_gb: float = 0.0
    driver: str = ""
    cuda: str = ""
    units: int = 0
    watts: float | None = None
    slice: bool = False
    problem: str = ""


def query() -> Device:
    """Ask the driver and torch."""
    import torch

    try:
        asked = subprocess.run(SMI, capture_output=True, text=True, check=False, timeout=30)
        cells = [cell.strip() for cell in asked.stdout.splitlines()[0].split(",")] if asked.returncode == 0 else []
    except (OSError, IndexError, subprocess.TimeoutExpired):
        cells = []
    driver, mig, watts = cells if len(cells) == 3 else ("", "", "")
    try:
        torch.cuda.init()
        found = torch.cuda.get_device_properties(0)
        free, total = torch.cuda.mem_get_info(0)
    except (RuntimeError, AssertionError) as error:
        return Device(driver=driver, cuda=torch.version.cuda or "", problem=str(error).splitlines()[0])
    return Device(
        found.name, total / 1e9, free / 1e9, driver, torch.version.cuda or "", found.multi_processor_count,
        float(watts) if watts.replace(".", "", 1).isdigit() else None, mig == "Enabled" or " MIG " in found.name,
    )  # fmt: skip


def no_device(device: Device) -> str:
    """Return why no stage can run, as a sentence; empty where one can."""
    if not device.problem:
        return ""
    if "driver" in device.problem and "too old" in device.problem:
        remedy = f"update the driver, or install a torch built for a CUDA older than {device.cuda}"
    else:
        remedy = "--dry runs every stage on a processor"
    return f"no CUDA device can be used ({device.problem.rstrip('.')}); {remedy}"


def refusal(device: Device, stage: str, memory_gb: float, whole: bool) -> str:
    """Return why a stage cannot run on a device, as a sentence; empty where it can.

    Parameters
    ----------
    memory_gb : float
        Free memory that it takes.
    whole : bool
        Whether its figures are of a whole device.
    """
    if whole and device.slice:
        return f"{stage}: its figures are of a whole device, and {device.name} is a slice (MIG); run it on a whole one"
    if device.free_gb < memory_gb:
        return (
            f"{stage}: takes {memory_gb:g} GB of the device's memory, and {device.free_gb:.0f} of "
            f"{device.memory_gb:.0f} are free; end what else runs there, or take a larger device"
        )
    return ""

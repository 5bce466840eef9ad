"""Energy in joules from the processor's counters (RAPL), this process's share of it, and what others compute."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import ClassVar


class Meter:
    """Energy that this process has used since it was last asked: the package's, times its share of the busy time.

    The counters hold for a whole processor with all that runs on it. A process's share is its processor time over all
    processors' busy time; what an idle machine draws is thus shared out among those that work.

    Source: Linux kernel, Documentation/power/powercap/powercap.rst (``energy_uj``, ``max_energy_range_uj``), and
    proc(5) (``/proc/stat``).

    Examples
    --------
    >>> Meter().joules() >= 0
    True
    """

    powercap: ClassVar[Path] = Path("/sys/class/powercap")
    stat: ClassVar[Path] = Path("/proc/stat")
    # USER_HZ; 100 on every platform that has RAPL.
    ticks: ClassVar[float] = 100.0

    def __init__(self) -> None:
        self._last = self._read()

    @classmethod
    def readable(cls) -> bool:
        """Whether counters of processor packages can be read here."""
        return bool(cls._packages())

    def joules(self) -> float:
        """Return joules since the last call; 0 where there are no counters."""
        before, self._last = self._last, self._read()
        # A counter that has begun anew since then is left out rather than guessed.
        energy = sum(max(0.0, now - before[0][name]) for name, now in self._last[0].items() if name in before[0])
        busy, own = self._last[1] - before[1], self._last[2] - before[2]
        return energy * min(1.0, own / busy) if busy > 0 and own > 0 else 0.0

    def _read(self) -> tuple[dict[str, float], float, float]:
        packages = self._packages()
        return packages, self._busy() if packages else 0.0, time.process_time()

    @classmethod
    def _packages(cls) -> dict[str, float]:
        counters = {}
        try:
            for folder in sorted(cls.powercap.glob("intel-rapl:*")):
                # Sub-zones (cores, memory) are part of their package.
                if folder.name.count(":") == 1:
                    counters[folder.name] = int((folder / "energy_uj").read_text()) / 1e6
        except (OSError, ValueError):
            return {}
        return counters

    @classmethod
    def _busy(cls) -> float:
        try:
            user, nice, system, *_ = map(float, cls.stat.read_text().split("\n", 1)[0].split()[1:])
        except (OSError, ValueError):
            return 0.0
        return (user + nice + system) / cls.ticks


class OtherWork:
    """Processor time that other processes of the machine have used since this was made.

    Source: proc(5) (``/proc/stat``), and times(2) for this process and its children that have ended.

    Examples
    --------
    >>> OtherWork().cores() != -1.0
    True
    """

    def __init__(self) -> None:
        self._began = self._read()

    def cores(self) -> float | None:
        """Return how many cores others kept busy on average; None where the kernel does not say."""
        busy, own, clock = (now - then for now, then in zip(self._read(), self._began, strict=True))
        return max(0.0, busy - own) / clock if busy > 0 else None

    def _read(self) -> tuple[float, float, float]:
        return Meter._busy(), sum(os.times()[:4]), time.monotonic()

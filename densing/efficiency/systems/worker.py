"""Entry point of each rank of ``densing train``; started as a module, with ``OUT/spec.json``."""

from __future__ import annotations

import sys
from functools import partial

from densing.core import InputError
from densing.efficiency.parallel import Part, RunSpec, run_rank

DELAYED = ("dp", "server")
"""Parallel axes whose ranks can have injected delays; see :class:`~densing.efficiency.systems.registry.Technique`."""
PROBE = "probe"
"""Not a technique: measures the link and the processor, for ``densing calibrate``."""


def find(spec: RunSpec) -> Part:
    """Return what a rank of a run does.

    Raises
    ------
    UnknownNameError
        When there is no such technique.
    InputError
        When it has a plan for the simulator only, or refuses such a run.
    """
    if spec.technique == PROBE:
        from densing.efficiency.parallel import probe

        return probe.run
    from densing.efficiency.systems.registry import Runnable, axis_of, get_technique

    technique = get_technique(spec.technique)
    if not isinstance(technique, Runnable):
        raise InputError(f"{spec.technique}: can only be simulated (densing techniques compare), not run")
    if spec.delay and axis_of(technique) not in DELAYED:
        raise InputError(
            f"{spec.technique}: delays can only be injected into data-parallel ranks and a "
            "server's workers; leave --delay out"
        )
    if (check := getattr(technique, "check_run", None)) is not None:
        check(spec)
    return partial(technique.run, **spec.knobs)


if __name__ == "__main__":
    run_rank(sys.argv[1], find)

"""Tensor-parallel schedules by the name of the technique that brings them."""

from __future__ import annotations

from typing import Any

from densing.efficiency.parallel import Schedule
from densing.efficiency.systems.registry import get_technique


def schedule_of(name: str, **knobs: Any) -> Schedule:
    """Return the schedule of a technique's real run."""
    technique: Any = get_technique(name)
    found: Schedule = technique.schedule(**knobs)
    return found

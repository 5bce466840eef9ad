"""Who computed what, when, and which bytes crossed which link: one rank's facts and metrics.

Names are imported on first use: a command that reads one trace loads no more than that takes.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "Kind": "spans",
    "Lane": "spans",
    "Comm": "spans",
    "Spans": "spans",
    "Partition": "overlap",
    "RankTimeline": "timeline",
    "Step": "timeline",
    "Timeline": "timeline",
    "find_traces": "readers",
    "partition": "overlap",
    "read_timeline": "readers",
    "record": "recording",
    "select": "windows",
}

__all__ = [
    "Comm",
    "Kind",
    "Lane",
    "Partition",
    "RankTimeline",
    "Spans",
    "Step",
    "Timeline",
    "find_traces",
    "partition",
    "read_timeline",
    "record",
    "select",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'densing.efficiency.timeline' has no attribute {name!r}")
    value = getattr(import_module(f"densing.efficiency.timeline.{_HOMES[name]}"), name)
    globals()[name] = value
    return value

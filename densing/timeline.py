"""Timelines for notebooks and training scripts: read traces, record them, cut a window, take its partition."""

from densing.efficiency.timeline import (
    Comm,
    Kind,
    Lane,
    Partition,
    RankTimeline,
    Spans,
    Step,
    Timeline,
    partition,
    select,
)
from densing.efficiency.traces import find_traces, read_timeline, record

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

"""Readers of trace files: Kineto and Chrome JSON, plain, gzip or zip, to timelines."""

from densing.timeline.readers.files import TraceFile, Traces, find_traces
from densing.timeline.readers.kineto import read_rank
from densing.timeline.readers.run import check_ranks, read_timeline
from densing.timeline.readers.source import Limits

__all__ = ["Limits", "TraceFile", "Traces", "check_ranks", "find_traces", "read_rank", "read_timeline"]

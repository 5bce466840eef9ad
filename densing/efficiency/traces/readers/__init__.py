"""Readers of trace files: Kineto and Chrome JSON, plain, gzip or zip, to timelines."""

from densing.efficiency.traces.readers.files import TraceFile, Traces, find_traces
from densing.efficiency.traces.readers.kineto import read_rank
from densing.efficiency.traces.readers.run import check_ranks, read_timeline
from densing.efficiency.traces.readers.source import Limits

__all__ = ["Limits", "TraceFile", "Traces", "check_ranks", "find_traces", "read_rank", "read_timeline"]

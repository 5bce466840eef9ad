"""A format of traces to copy: a folder ``densing/efficiency/traces/NAME/``, named in ``FORMATS`` of ``run.py``."""

import json

from densing.efficiency.timeline import Kind, Origin, RankTimeline, Spans
from densing.efficiency.traces.source import Limits, Source

SUFFIXES = (".spans.json",)


def recognise(head):
    """Return whether a file that begins so is of this format: ``{"spans": [[kind, name, start_ns, end_ns], ...]}``."""
    return head.lstrip().startswith(b'{"spans"')


def read_rank(trace, *, classifier=None, detail="auto", limits=None, progress=None):
    """Read one rank."""
    with Source(trace.path, trace.member, trace.label, limits or Limits()) as source:
        rows = json.load(source)["spans"]
    spans = [{"kind": Kind[kind], "name": name, "start": start, "end": end} for kind, name, start, end in rows]
    return RankTimeline(trace.rank_in_name() or 0, Spans.build(spans), Spans.empty(), origin=Origin(trace.label))

"""Traces written back with what a profile found in them: exposed communication, idle time, the critical path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from densing.efficiency.profile.rank import ProfileOptions, read_trace
from densing.efficiency.timeline import RankTimeline, critical_path, select, unions
from densing.efficiency.traces import (
    RankTracks,
    TraceFile,
    Track,
    overlays,
    write_overlay,
    write_timelines,
)


def write_profiled(
    traces: Sequence[TraceFile],
    out: Path | str,
    options: ProfileOptions | None = None,
    offsets: Mapping[int, int] | None = None,
) -> int:
    """Write traces back with overlay tracks, readable by Perfetto.

    One trace keeps its own text, byte for byte, where it is undamaged; several become one file on a common clock.

    Parameters
    ----------
    traces : sequence of TraceFile
    out : path
        Compressed if it ends in ``.gz``.
    options : ProfileOptions, optional
    offsets : mapping of int to int, optional
        Per rank, what to subtract from its clock.

    Returns
    -------
    int
        Ranks written.

    Raises
    ------
    InputError
        When a trace cannot be read, or ``out`` cannot be written.
    """
    options = options or ProfileOptions()
    if len(traces) == 1:
        rank = read_trace(traces[0], options)
        write_overlay(traces[0], out, _tracks(rank, options), rank)
        return 1
    shift = offsets or {}
    ranks = (read_trace(trace, options) for trace in traces)
    return write_timelines((RankTracks(rank, _tracks(rank, options), -shift.get(rank.rank, 0)) for rank in ranks), out)


def write_slice(
    trace: TraceFile, out: Path | str, start_ns: int, end_ns: int, options: ProfileOptions | None = None
) -> None:
    """Write a stretch of one trace and its surroundings, operators too, with a row that marks it.

    Parameters
    ----------
    trace : TraceFile
    out : path
        Compressed if it ends in ``.gz``.
    start_ns, end_ns : int
        Of the stretch; as much as its length, but at least 1 ms, is written before and after.
    options : ProfileOptions, optional

    Raises
    ------
    InputError
        When the trace cannot be read, or ``out`` cannot be written.
    """
    rank = read_trace(trace, replace(options or ProfileOptions(), detail="host"))
    margin = max(end_ns - start_ns, 1_000_000)
    cut = (start_ns - margin, end_ns + margin)
    part = replace(rank, work=rank.work.touching(*cut), host=rank.host.touching(*cut), steps=())
    mark = Track("gap", np.array([start_ns], np.int64), np.array([end_ns], np.int64))
    write_timelines([RankTracks(part, (mark,))], out)


def _tracks(rank: RankTimeline, options: ProfileOptions) -> tuple[Track, ...]:
    window = select(rank, options.window)
    return overlays(window, unions(window.work), critical_path(rank, window))

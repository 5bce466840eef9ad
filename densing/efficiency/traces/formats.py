"""The formats of traces: what each must offer, and which are known.

A format is one folder beside this file, ``traces/NAME/``, whose face offers what :class:`Format` asks, and one line
here: the folder in :data:`FORMATS`. A rank of any format becomes the same
:class:`densing.efficiency.timeline.RankTimeline`, so that nothing else has to know of it; finding the files of a run
(:mod:`densing.efficiency.traces.run`), archives, packing and limits (:mod:`densing.efficiency.traces.source`) are
common to all. ``traces/kineto`` is the example to read.
"""

from __future__ import annotations

from typing import Protocol

from densing.efficiency.timeline import Classifier, RankTimeline
from densing.efficiency.traces import kineto
from densing.efficiency.traces.source import HEAD_BYTES, Detail, Limits, Progress, Source, TraceFile


class Format(Protocol):
    """What the face of a format's folder offers."""

    SUFFIXES: tuple[str, ...]
    """How the names of such files end, before they are packed (``.gz``, ``.zip``)."""

    def recognise(self, head: bytes) -> bool:
        """Return whether a file whose content, inflated, begins so is of this format; at most 64 KiB are shown."""

    def read_rank(
        self,
        trace: TraceFile,
        *,
        classifier: Classifier | None = None,
        detail: Detail = "auto",
        limits: Limits | None = None,
        progress: Progress | None = None,
    ) -> RankTimeline:
        """Read one file; parameters and errors are those of :func:`read_rank`."""


# What none recognises goes to the first, whose messages say what is wrong with it.
FORMATS: tuple[Format, ...] = (kineto,)


def read_rank(
    trace: TraceFile,
    *,
    classifier: Classifier | None = None,
    detail: Detail = "auto",
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> RankTimeline:
    """Read one trace of any format that is known; what is damaged is repaired or left out, counted and noted.

    Parameters
    ----------
    trace : TraceFile
    classifier : Classifier, optional
        What names mean; the built-in rules if not given.
    detail : {"auto", "device", "host"}
        ``device``: device work, launches, ranges. ``host``: operators too. ``auto``: ``device``, or ``host`` where the
        trace is of no device; the processor's work is then the timeline's. A trace of a device that holds no kernel
        is :attr:`densing.efficiency.timeline.RankTimeline.blind`.
    limits : Limits, optional
    progress : callable, optional
        Called with the bytes of the file consumed so far.

    Raises
    ------
    InputError
        When the file cannot be read, is no trace, holds no events or passes a limit.
    """
    kind = FORMATS[0]
    if len(FORMATS) > 1:
        head = bytearray(HEAD_BYTES)
        with Source(trace.path, trace.member, trace.label, limits or Limits()) as source, memoryview(head) as view:
            size = 0
            while size < len(head) and (count := source.readinto(view[size:])):
                size += count
        kind = next((each for each in FORMATS if each.recognise(bytes(head[:size]))), kind)
    return kind.read_rank(trace, classifier=classifier, detail=detail, limits=limits, progress=progress)

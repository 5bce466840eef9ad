"""Inputs of a calibration from recorded runs: bytes and transfer time of communications, times of computations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from densing.core import InputError, Note, Record
from densing.efficiency.profile.alignment import observations
from densing.efficiency.profile.own_steps import OwnSteps, own_seconds
from densing.efficiency.profile.rank import ProfileOptions, profile_timeline
from densing.efficiency.profile.run import merge_run
from densing.efficiency.simulation import Computation, Observation
from densing.efficiency.timeline import Kind, RankTimeline, Timeline, covered, nth, select, union
from densing.efficiency.traces import find_traces, read_rank

LEAST_NS = 20_000
"""Shorter computations are mostly the recorder's overhead."""
MOST_COMPUTATIONS = 50_000


class Recorded(Record, frozen=True):
    """Observations from recorded runs.

    Attributes
    ----------
    collectives : tuple of Observation
    computations : tuple of Computation
    ranks : int
        Of the largest run.
    on_host : bool
        Without accelerators.
    notes : tuple of Note
    own : tuple of OwnSteps
        Own step times of each run's ranks.
    steps : tuple of Computation
        What each rank computed in each step, and the share of it beside communication; ``work`` is the run's number.
    """

    collectives: tuple[Observation, ...]
    computations: tuple[Computation, ...]
    ranks: int
    on_host: bool
    notes: tuple[Note, ...] = ()
    own: tuple[OwnSteps, ...] = ()
    steps: tuple[Computation, ...] = ()


def recorded(paths: Sequence[Path]) -> Recorded:
    """Read runs: every folder or archive is one, and all single files together are another.

    Raises
    ------
    InputError
        When nothing is found or a file cannot be read.
    """
    runs = [[path] for path in paths if path.is_dir()]
    if files := [path for path in paths if not path.is_dir()]:
        runs.append(files)
    if not runs:
        raise InputError("calibrate: no traces given; name folders of recorded runs")
    parts = []
    for number, files in enumerate(runs):
        traces = find_traces(files)
        timeline = Timeline(tuple(read_rank(trace) for trace in traces))
        part = of_timeline(timeline, str(number))
        parts.append(replace(part, notes=(*traces.notes, *part.notes)))
    return Recorded(
        tuple(one for part in parts for one in part.collectives),
        tuple(one for part in parts for one in part.computations),
        max(part.ranks for part in parts),
        all(part.on_host for part in parts),
        tuple(note for part in parts for note in part.notes),
        tuple(one for part in parts for one in part.own),
        tuple(one for part in parts for one in part.steps),
    )


def of_timeline(timeline: Timeline, label: str = "") -> Recorded:
    """Take observations from a run that was read or simulated; ``label`` distinguishes its work from another run's.

    Examples
    --------
    >>> from densing.efficiency.timeline import Comm, Spans
    >>> comm = Comm("all_reduce", "0", group_size=2, in_elems=1000, dtype="float", seq=1)
    >>> def rank(number, start):
    ...     row = {"start": start, "end": 90, "kind": Kind.COMM, "name": "gloo:all_reduce", "comm": comm}
    ...     return RankTimeline(number, Spans.build([row]), Spans.empty())
    >>> of_timeline(Timeline((rank(0, 10), rank(1, 50)))).collectives
    (Observation(op='all_reduce', count=4000.0, n=2, seconds=4e-08, overlapped=0.0),)
    """
    run = merge_run([profile_timeline(rank, ProfileOptions()) for rank in timeline.ranks])
    # Ranks replayed each on its own do not tell when a transfer had the link to itself.
    share = None if run.replay.apart else run.replay.alone_share
    collectives = () if run.together is None else observations(run.together.matched, share)
    notes = list(run.notes)
    if not collectives:
        text = (
            f"no communication of {len(timeline.ranks)} rank(s) could be matched, so transfer and "
            "waiting cannot be separated"
        )
        notes.append(Note("nothing-matched", "warning", f"{text}; give the traces of all ranks"))
    computations = [one for rank in timeline.ranks for one in _computations(rank, label)]
    return Recorded(
        collectives,
        tuple(computations[:MOST_COMPUTATIONS]),
        max(max(len(timeline.ranks), rank.origin.world_size) for rank in timeline.ranks),
        all(rank.on_host for rank in timeline.ranks),
        tuple(notes),
        (own_seconds(run.ranks),),
        tuple(
            Computation(label, part.compute_ns / 1e9, part.overlap_ns / part.compute_ns)
            for rank in run.ranks
            for part in (step.partition for step in rank.steps)
            if part.compute_ns
        ),
    )


def _computations(rank: RankTimeline, label: str) -> Iterable[Computation]:
    """Computations of a rank; the n-th of its name in every step is the same work."""
    window = select(rank)
    work, comm = window.work.of(Kind.COMPUTE), window.work.of(Kind.COMM)
    work = work.take(work.end - work.start >= LEAST_NS)
    if not len(work) or not len(comm):
        return
    overlapped = covered(union(comm.start, comm.end), work.start, work.end) / (work.end - work.start)
    starts = np.array([step.start for step in rank.steps] or [0], np.int64)
    step = np.searchsorted(starts, work.start, side="right")
    order = nth(work.start, work.name.astype(np.int64), step)
    columns = (work.name, order, work.end - work.start)
    for name, nth_of_name, duration, share in zip(
        *(column.tolist() for column in columns), overlapped.tolist(), strict=True
    ):
        yield Computation(f"{label}:{rank.rank}:{work.names[name]}:{nth_of_name}", duration / 1e9, min(share, 1.0))

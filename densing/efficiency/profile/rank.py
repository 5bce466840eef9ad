"""What each rank spent, from its trace alone; and the figures of a run: its ranks' sums, as shares and per step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import astuple, replace

from densing.core import Note, Record
from densing.efficiency.timeline import (
    Classifier,
    Collectives,
    CollectiveSummary,
    CriticalPath,
    Dependencies,
    Fused,
    IdleCauses,
    Kind,
    ModuleTime,
    NameTotal,
    Origin,
    Partition,
    Picture,
    RankTimeline,
    Spans,
    StepPartition,
    StepTimes,
    Transfers,
    WindowName,
    bandwidth,
    blocks,
    collectives_of,
    condense,
    critical_path,
    fuse,
    graph,
    idle_causes,
    longest,
    module_times,
    partition,
    picture,
    select,
    step_partitions,
    step_times,
    totals,
    transfers,
    unions,
    used,
)
from densing.efficiency.traces import Detail, TraceFile, read_rank

Figures = dict[str, int | float | str | None]

KEPT_NAMES = 100
"""Names of a rank that are kept, the longest; the rest is one row per kind."""
METRICS = {
    "ranks": "ranks profiled",
    "steps": "steps in the window, summed over ranks",
    "step_ms": "median step time over ranks and steps, ms; without steps, the mean window",
    "step_p95_over_median": "95th percentile of step times over their median",
    "compute_pct": "time computing, % of the windows of all ranks",
    "comm_pct": "time communicating, %",
    "overlap_pct": "share of communication hidden behind compute, %; null without communication, or where most of it "
    "lies beyond the window",
    "achievable_pct": "ceiling of that share: min(compute, communication) / communication, %",
    "exposed_pct": "exposed communication, % of the windows",
    "exposed_memcpy_pct": "copies hidden by neither compute nor communication, %",
    "idle_pct": "neither compute, communication nor copies, %",
    "exposed_ms_per_step": "exposed communication per step, ms (without steps, per window)",
    "idle_ms_per_step": "idle time per step, ms",
    "skipped_events": "damaged events left out",
    "repaired_events": "damaged events kept after repair",
}
_SHARES = {
    "compute_pct": "compute_ns",
    "comm_pct": "comm_ns",
    "exposed_pct": "exposed_comm_ns",
    "exposed_memcpy_pct": "exposed_memcpy_ns",
    "idle_pct": "idle_ns",
}
WAIT_COLUMNS: tuple[str, ...] = ("matched_ns", "transfer_ns", "wait_ns", "exposed_wait_ns")
"""What matched ranks add to the run's communications, by operation and group."""
# What of a kind of communication adds up over the ranks.
_SUMS = ("count", "count_sized", "bytes", "total_ns", "hidden_ns", "exposed_ns", "sum_ns")


class ProfileOptions(Record, frozen=True):
    """How traces are profiled.

    Parameters
    ----------
    window : {"steps", "all", "hta"}, optional
        None: ``steps`` where the trace marks steps, else ``all``.
    comm_patterns : tuple of str
        Regular expressions; names they match are communication.
    detail : {"auto", "device", "host"}
        ``host`` reads operators too: slower, and names what the host did.
    """

    window: WindowName | None = None
    comm_patterns: tuple[str, ...] = ()
    detail: Detail = "auto"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, equal to what a store gives back."""
        return {**super().to_dict(), "comm_patterns": list(self.comm_patterns)}


class RankProfile(msgspec.Struct, frozen=True, eq=False):
    """What one rank spent in a window.

    Attributes
    ----------
    rank : int
    source, rank_from : str
        File, and how the rank was known.
    window : {"steps", "all", "hta"}
    start_ns, end_ns : int
        Ends of the window.
    partition : Partition
    steps : tuple of StepPartition
    collectives : Collectives
    idle : IdleCauses
    transfers : Transfers
    path : CriticalPath
    dependencies : Dependencies
        What its work waited for, to be replayed.
    picture : Picture
        The middle step, to be drawn.
    names : tuple of NameTotal
        What took longest, by name; the last rows, without a name, are all others.
    unrecognised : tuple of NameTotal
        Names no rule knows: kernels among them count as compute, other device work counts as nothing.
    world_size : int
        -1 unknown.
    backend, host : str
        Empty if unknown.
    devices : tuple of str
    on_host : bool
        True for a run without accelerator.
    detail : str
    events, skipped, repaired : int
    notes : tuple of Note
    recorder : str
        Version of :func:`densing.timeline.record` that made the trace; empty if something else did.
    modules : tuple of ModuleTime
        Time by module and named range; empty where none was recorded.
    """

    rank: int
    source: str
    rank_from: str
    window: str
    start_ns: int
    end_ns: int
    partition: Partition
    steps: tuple[StepPartition, ...]
    collectives: Collectives
    idle: IdleCauses
    transfers: Transfers
    path: CriticalPath
    dependencies: Dependencies
    picture: Picture
    names: tuple[NameTotal, ...]
    unrecognised: tuple[NameTotal, ...]
    world_size: int
    backend: str
    host: str
    devices: tuple[str, ...]
    on_host: bool
    detail: str
    events: int
    skipped: int
    repaired: int
    notes: tuple[Note, ...]
    recorder: str = ""
    modules: tuple[ModuleTime, ...] = ()

    def __repr__(self) -> str:
        """Return one line: all fields would be megabytes in a notebook."""
        return f"RankProfile(rank={self.rank}, window={self.window!r}, steps={len(self.steps)}, {self.partition})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; the partition's figures stand beside the rest."""
        row = {name: _plain(getattr(self, name)) for name in self.__struct_fields__ if name != "partition"}
        return {**row, **self.partition.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RankProfile:
        """Rebuild what :meth:`to_dict` gave."""
        row = {name: data[name] for name in cls.__struct_fields__ if name in data}
        row["partition"] = Partition.from_dict(data)
        for name, part in _SINGLE.items():
            row[name] = part.from_dict(data[name])
        for name, part in _MANY.items():
            row[name] = tuple(part.from_dict(item) for item in data[name])
        return cls(**{**row, "devices": tuple(data["devices"])})


_SINGLE: dict[str, Any] = {
    "collectives": Collectives,
    "idle": IdleCauses,
    "transfers": Transfers,
    "path": CriticalPath,
    "dependencies": Dependencies,
    "picture": Picture,
}
_MANY: dict[str, Any] = {
    "steps": StepPartition,
    "names": NameTotal,
    "unrecognised": NameTotal,
    "modules": ModuleTime,
    "notes": Note,
}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.to_dict() if hasattr(value, "to_dict") else value


def profile_trace(
    trace: TraceFile, options: ProfileOptions | None = None, progress: Callable[[int], None] | None = None
) -> RankProfile:
    """Read one rank's trace and profile it.

    Raises
    ------
    densing.core.InputError
        When the file cannot be read as a trace, or marks no steps and the window is ``steps``.
    """
    options = options or ProfileOptions()
    return profile_timeline(read_trace(trace, options, progress), options)


def read_trace(
    trace: TraceFile, options: ProfileOptions, progress: Callable[[int], None] | None = None
) -> RankTimeline:
    """Read one rank's trace as its profile asks."""
    return read_rank(trace, classifier=Classifier(options.comm_patterns), detail=options.detail, progress=progress)


def read_ranks(traces: Iterable[TraceFile], options: ProfileOptions) -> Iterator[RankTimeline]:
    """Read traces one by one; a trace that is alone gives a rank per device (:func:`by_device`)."""
    files = list(traces)
    for trace in files:
        rank = read_trace(trace, options)
        yield from by_device(rank) if len(files) == 1 else (rank,)


def by_device(rank: RankTimeline) -> tuple[RankTimeline, ...]:
    """Return a rank per device where one process drove several; the rank itself where it has one or is one of others.

    The host's program is that of each of them. Devices that did nothing but copy count to the first.

    Examples
    --------
    >>> from densing.efficiency.timeline import Lane
    >>> work = Spans.build([{"start": 0, "end": 60, "kind": Kind.COMPUTE, "name": "gemm", "lane": Lane("GPU 0", "7")},
    ...                     {"start": 40, "end": 90, "kind": Kind.COMM, "name": "nccl", "lane": Lane("GPU 1", "7")}])
    >>> [(one.rank, one.work.end.tolist()) for one in by_device(RankTimeline(0, work, Spans.empty()))]
    [(0, [60]), (1, [90])]
    """
    work = rank.work
    process = np.array([lane.process for lane in work.lanes])
    working = used(work.lane[np.isin(work.kind, (int(Kind.COMPUTE), int(Kind.COMM)))])
    devices = sorted({str(process[lane]) for lane in working}, key=lambda name: (len(name), name))
    if rank.on_host or rank.origin.world_size > 1 or len(devices) < 2:
        return (rank,)
    of_device = np.array([devices.index(name) if name in devices else 0 for name in process.tolist()])[work.lane]
    text = f"{rank.origin.source}: {len(devices)} devices in one trace are read as ranks, one each"
    note = Note("device-ranks", "info", f"{text} ({', '.join(devices)})", {"devices": devices})
    origin = replace(rank.origin, world_size=len(devices), rank_from="device")
    first = replace(rank, rank=0, work=work.take(of_device == 0), origin=origin, notes=(*rank.notes, note))
    # What the file says of its events counts once.
    alike = replace(first, events=0, skipped=0, repaired=0, notes=())
    others = range(1, len(devices))
    return (first, *(replace(alike, rank=number, work=work.take(of_device == number)) for number in others))


def fused(timelines: Iterable[RankTimeline], window: str, text: str) -> Iterator[tuple[int, Fused]]:
    """Yield the rows of each rank with adjacent kernels whose names hold a text launched at once."""
    for rank in timelines:
        cut = select(rank, window)  # type: ignore[arg-type]
        yield rank.rank, fuse(rank, cut, graph(rank, cut), text)


def profile_timeline(rank: RankTimeline, options: ProfileOptions | None = None) -> RankProfile:
    """Profile a timeline, recorded or simulated.

    Examples
    --------
    >>> from densing.efficiency.timeline import Kind, Spans
    >>> work = Spans.build([{"start": 10, "end": 60, "kind": Kind.COMPUTE, "name": "gemm"},
    ...                     {"start": 40, "end": 80, "kind": Kind.COMM, "name": "ncclDevKernel_AllReduce_Sum_f32"}])
    >>> profile_timeline(RankTimeline(0, work, Spans.empty())).partition.overlap_pct
    50.0
    """
    options = options or ProfileOptions()
    window = select(rank, options.window)
    merged = unions(window.work)
    names = totals(window.work, (window.start, window.end) if window.name == "steps" else None)
    unrecognised: tuple[NameTotal, ...] = ()
    if not rank.on_host:
        # Names no rule knows: of unknown kind, or compute only because nothing says otherwise.
        classifier = Classifier(options.comm_patterns)
        by_default = [row for row in names if row.kind == "compute" and not classifier.knows(row.name)]
        unrecognised = (
            *longest(totals(rank.work.of(Kind.UNKNOWN)), KEPT_NAMES),
            *longest([replace(row, kind="compute by default") for row in by_default], KEPT_NAMES),
        )
    origin = rank.origin
    # What takes most memory comes first, the largest result last.
    idle, moved = idle_causes(rank, window, merged), transfers(rank, window, merged)
    edges = graph(rank, window)
    condensed, path = condense(rank, window, edges), critical_path(rank, window, edges)
    del edges
    return RankProfile(
        rank=rank.rank,
        source=origin.source,
        rank_from=origin.rank_from,
        window=window.name,
        start_ns=window.start,
        end_ns=window.end,
        partition=partition(window, merged),
        steps=step_partitions(rank, window, merged),
        idle=idle,
        transfers=moved,
        path=path,
        dependencies=condensed,
        picture=picture(rank, window),
        collectives=collectives_of(rank, window, merged),
        names=longest(names, KEPT_NAMES),
        unrecognised=unrecognised,
        world_size=origin.world_size,
        backend=origin.backend,
        host=origin.host,
        devices=tuple(origin.devices),
        on_host=rank.on_host,
        detail=rank.detail,
        events=rank.events,
        skipped=rank.skipped,
        repaired=rank.repaired,
        notes=rank.notes if rank.on_host else (*rank.notes, *_several_devices(origin, window.work)),
        recorder=origin.recorder,
        modules=module_times(rank, window),
    )


def _several_devices(origin: Origin, work: Spans) -> list[Note]:
    """Say so where a union is of more than one device."""
    lanes = {lane for part in blocks(len(work)) for lane in used(work.lane[part][work.kind[part] <= Kind.MEMSET])}
    devices = sorted({work.lanes[lane].process for lane in lanes})
    if len(devices) < 2:
        return []
    message = (
        f"{origin.source}: {len(devices)} devices in one trace are treated as one ({', '.join(devices)}), so work on "
        "one hides communication on another; record one trace per rank and device to separate them"
    )
    if origin.world_size <= 1:
        message += ", or give this one alone and without --out: then every device is a rank"
    return [Note("several-devices", "warning", message, {"devices": devices})]


# The figures of a run.


def pooled(parts: Sequence[Partition]) -> Partition:
    """Add partitions up: the time of all ranks, as if one device had lived it all.

    Examples
    --------
    >>> one = Partition(100, 70, 50, 40, 0, 20, 20, 0, 30)
    >>> pooled([one, one]).exposed_pct
    20.0
    """
    table = np.array([astuple(part) for part in parts], np.int64)
    return Partition(*table.sum(axis=0).tolist()) if len(parts) else Partition(*[0] * 9)


def figures(ranks: Sequence[RankProfile]) -> Figures:
    """Return the run's figures, the keys of :data:`METRICS`; undefined ones are None."""
    total = pooled([rank.partition for rank in ranks])
    times = all_step_times(ranks)
    steps = times.count or len(ranks)
    # What was recorded of no device, or of no time, has no length that could be judged.
    known = total.window_ns > 0
    shares = {key: 100 * getattr(total, name) / total.window_ns if known else None for key, name in _SHARES.items()}
    step_ns = total.window_ns / max(len(ranks), 1) if times.median_ns is None else times.median_ns
    return {
        "ranks": len(ranks),
        "steps": times.count,
        "step_ms": step_ns / 1e6 if known else None,
        "step_p95_over_median": times.p95_over_median,
        "overlap_pct": None if cut_short(ranks) else total.overlap_pct,
        "achievable_pct": total.achievable_pct,
        **shares,
        "exposed_ms_per_step": total.exposed_comm_ns / steps / 1e6 if known else None,
        "idle_ms_per_step": total.idle_ns / steps / 1e6 if known else None,
        "skipped_events": sum(rank.skipped for rank in ranks),
        "repaired_events": sum(rank.repaired for rank in ranks),
    }


def cut_short(ranks: Sequence[RankProfile]) -> tuple[int, int] | None:
    """Return the communication inside the windows and in all, ns, where less than half lies inside; else None.

    Then what was hidden of the part inside says nothing of the whole: a late all-reduce that begins with the last
    recorded step has hardly begun to be hidden.
    """
    inside = sum(int(rank.collectives.inside_ns.sum()) for rank in ranks)
    total = sum(int(rank.collectives.duration_ns.sum()) for rank in ranks)
    return (inside, total) if 2 * inside < total else None


def all_step_times(ranks: Sequence[RankProfile]) -> StepTimes:
    """Describe the step times of all ranks together."""
    return step_times([step.end_ns - step.start_ns for rank in ranks for step in rank.steps])


def per_step(ranks: Sequence[RankProfile]) -> int:
    """Return by how many steps totals over the ranks divide: all ranks' steps, or one window each without steps."""
    return sum(len(rank.steps) for rank in ranks) or max(len(ranks), 1)


def run_collectives(parts: Sequence[Sequence[CollectiveSummary]]) -> tuple[CollectiveSummary, ...]:
    """Sum the ranks' communications by operation and process group, most exposed first."""
    kinds: dict[tuple[str, str], list[CollectiveSummary]] = {}
    for part in parts:
        for row in part:
            # Without a name of the group its description (the stream) keeps apart what may run at the same time.
            kinds.setdefault((row.op, row.group or row.group_label), []).append(row)
    rows = []
    for same in kinds.values():
        total: dict[str, Any] = {key: sum(getattr(row, key) for row in same) for key in _SUMS}
        # Rates are of the sized spans, so they add as bytes over the time these took.
        nanoseconds = sum(row.bytes / row.algbw_gbps for row in same if row.algbw_gbps)
        moved = sum(row.bytes for row in same if row.algbw_gbps)
        sizes = {row.group_size for row in same if row.group_size > 0} or {-1}
        # Groups of one name and different sizes have no common factor of bus bandwidth.
        size = max(sizes) if len(sizes) == 1 else -1
        speed = bandwidth(same[0].op, size, moved if moved else -1, round(nanoseconds))
        rates = {"algbw_gbps": speed.algbw_gbps, "busbw_gbps": speed.busbw_gbps}
        rows.append(replace(same[0], **total, **rates, group_size=max(sizes)))
    return tuple(sorted(rows, key=lambda row: (-row.exposed_ns, row.op, row.group)))

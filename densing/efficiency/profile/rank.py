"""What one rank spent: everything that is computed from its trace alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from densing.core import Note, Record
from densing.efficiency.timeline import (
    Classifier,
    Collectives,
    CriticalPath,
    IdleCauses,
    Kind,
    NameTotal,
    Partition,
    Picture,
    RankTimeline,
    Spans,
    StepPartition,
    Transfers,
    WindowName,
    blocks,
    collectives_of,
    critical_path,
    idle_causes,
    partition,
    picture,
    select,
    step_partitions,
    totals,
    transfers,
    unions,
    used,
)
from densing.efficiency.traces import Detail, TraceFile, read_rank

SHOWN_NAMES = 30


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
    picture : Picture
        The middle step, to be drawn.
    names : tuple of NameTotal
        What took longest, by name.
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
    "picture": Picture,
}
_MANY: dict[str, Any] = {
    "steps": StepPartition,
    "names": NameTotal,
    "unrecognised": NameTotal,
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
    classifier = Classifier(options.comm_patterns)
    rank = read_rank(trace, classifier=classifier, detail=options.detail, progress=progress)
    return profile_timeline(rank, options)


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
    names = totals(window.work)
    unplaced = totals(rank.work.of(Kind.UNKNOWN))
    unrecognised = [] if rank.on_host else _unrecognised([*unplaced, *names], Classifier(options.comm_patterns))
    origin = rank.origin
    return RankProfile(
        rank=rank.rank,
        source=origin.source,
        rank_from=origin.rank_from,
        window=window.name,
        start_ns=window.start,
        end_ns=window.end,
        partition=partition(window, merged),
        steps=step_partitions(rank, window, merged),
        # What takes most memory comes first, the largest result last.
        idle=idle_causes(rank, window, merged),
        transfers=transfers(rank, window, merged),
        path=critical_path(rank, window),
        picture=picture(rank, window),
        collectives=collectives_of(rank, window, merged),
        names=tuple(names[:SHOWN_NAMES]),
        unrecognised=tuple(unrecognised[:SHOWN_NAMES]),
        world_size=origin.world_size,
        backend=origin.backend,
        host=origin.host,
        devices=tuple(origin.devices),
        on_host=rank.on_host,
        detail=rank.detail,
        events=rank.events,
        skipped=rank.skipped,
        repaired=rank.repaired,
        notes=rank.notes if rank.on_host else (*rank.notes, *_several_devices(origin.source, window.work)),
        recorder=origin.recorder,
    )


def _several_devices(source: str, work: Spans) -> list[Note]:
    """Say so where a union is of more than one device."""
    lanes = {lane for part in blocks(len(work)) for lane in used(work.lane[part][work.kind[part] <= Kind.MEMSET])}
    devices = sorted({work.lanes[lane].process for lane in lanes})
    if len(devices) < 2:
        return []
    message = (
        f"{source}: {len(devices)} devices in one trace are taken as one ({', '.join(devices)}): work on one hides "
        f"communication on another; one trace per rank and device tells them apart"
    )
    return [Note("several-devices", "warning", message, {"devices": devices})]


def _unrecognised(names: list[NameTotal], classifier: Classifier) -> list[NameTotal]:
    """Names no rule knows: of unknown kind, or compute only because nothing says otherwise."""
    rows = []
    for row in names:
        if row.kind == "unknown":
            rows.append(row)
        elif row.kind == "compute" and not classifier.knows(row.name):
            rows.append(replace(row, kind="compute by default"))
    return rows

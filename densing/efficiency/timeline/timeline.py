"""The timeline of a run: one table of spans per rank, the same whether recorded or simulated.

Times are integer nanoseconds, intervals are half-open ``[start, end)``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from densing.core import SHOWN_ROWS, Card, Note, Readable, Record, formatting
from densing.efficiency.timeline.intervals import Int, blocks

if TYPE_CHECKING:
    import pandas as pd


class Kind(IntEnum):
    """What a span is.

    ``COMPUTE`` to ``SYNC`` occupy a device (or, in a run without one, the processor). ``CALL`` is a processor inside
    a communication call: nothing during the call counts as compute. ``LAUNCH``, ``ANNOTATION``, ``OP`` and
    ``FRAME`` are the host's side: runtime calls, named ranges, operators and Python frames.
    """

    COMPUTE = 0
    COMM = 1
    MEMCPY = 2
    MEMSET = 3
    SYNC = 4
    CALL = 5
    UNKNOWN = 6
    LAUNCH = 7
    ANNOTATION = 8
    OP = 9
    FRAME = 10


BUSY = (Kind.COMPUTE, Kind.COMM, Kind.MEMCPY, Kind.MEMSET)
"""Kinds of span that keep a device busy."""


class Lane(NamedTuple):
    """A sequence of spans: a stream of a device, or a thread of a process."""

    process: str
    thread: str
    label: str = ""

    @property
    def text(self) -> str:
        """Process and thread in one, as far as they are known."""
        return " ".join(filter(None, (self.process, self.thread)))


class Comm(NamedTuple):
    """The record of one communication; unknown figures are -1, unknown texts empty.

    Attributes
    ----------
    op : str
        ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``, ``broadcast``, ``reduce``, ``send``,
        ``recv``, ``send_recv``, ``barrier``; empty where neither name nor arguments tell.
    group, group_name : str
        Process group as the trace numbers and describes it.
    group_size : int
    ranks : tuple of int
        Members, in group order; empty if unknown or elided.
    in_elems, out_elems : int
        Elements this rank put in and got out.
    dtype : str
        As recorded (``float``, ``BFloat16``, ...).
    seq : int
        Number of the collective within its group.
    src, dst : int
        Peers of a point-to-point transfer.
    """

    op: str = ""
    group: str = ""
    group_name: str = ""
    group_size: int = -1
    ranks: tuple[int, ...] = ()
    in_elems: int = -1
    out_elems: int = -1
    dtype: str = ""
    seq: int = -1
    src: int = -1
    dst: int = -1


class Product(NamedTuple):
    """What one call of a product or of attention computes, by its recorded shapes.

    Attributes
    ----------
    flops : int
        Floating-point operations.
    bytes : int
        Least bytes: operands and result, each moved once.
    dtype : str
        Of the operands, as recorded (``float``, ``c10::BFloat16``, ...).
    """

    flops: int
    bytes: int
    dtype: str


_DTYPES: dict[str, Any] = {"start": np.int64, "end": np.int64, "kind": np.int8, "name": np.int32, "lane": np.int32,
           "bytes": np.int64, "correlation": np.int64, "comm": np.int32, "product": np.int32}  # fmt: skip
_DEFAULTS = {"bytes": -1, "correlation": -1, "comm": -1, "product": -1, "lane": 0}


class Spans(msgspec.Struct, frozen=True, eq=False):
    """A table of spans, sorted by start (ties: longer first).

    Parameters
    ----------
    start, end : int64 (n,)
        Nanoseconds; ``end >= start``.
    kind : int8 (n,)
        A :class:`Kind`.
    name, lane : int32 (n,)
        Index into ``names`` and ``lanes``.
    bytes : int64 (n,)
        Bytes moved (copies) or put into a communication; -1 unknown.
    correlation : int64 (n,)
        Joins a device span with the host call that launched it; -1 none.
    comm : int32 (n,)
        Index into ``comms``; -1 where the span is not a communication or says nothing of itself.
    product : int32 (n,)
        Index into ``products``; -1 where no shapes tell what the span computes. Of a call's kernels the longest has it.
    names : tuple of str
    lanes : tuple of Lane
    comms : tuple of Comm
    products : tuple of Product

    Examples
    --------
    >>> spans = Spans.build([{"start": 10, "end": 60, "kind": Kind.COMPUTE, "name": "gemm"},
    ...                      {"start": 40, "end": 80, "kind": Kind.COMM, "name": "ncclDevKernel_AllReduce"}])
    >>> len(spans.of(Kind.COMM)), spans.names[spans.name[0]]
    (1, 'gemm')
    """

    start: Int
    end: Int
    kind: NDArray[np.int8]
    name: NDArray[np.int32]
    lane: NDArray[np.int32]
    bytes: Int
    correlation: Int
    comm: NDArray[np.int32]
    product: NDArray[np.int32]
    names: tuple[str, ...] = ()
    lanes: tuple[Lane, ...] = (Lane("", ""),)
    comms: tuple[Comm, ...] = ()
    products: tuple[Product, ...] = ()

    def __len__(self) -> int:
        return len(self.start)

    @classmethod
    def columns(
        cls,
        data: Mapping[str, Any],
        names: Sequence[str],
        lanes: Sequence[Lane] = (Lane("", ""),),
        comms: Sequence[Comm] = (),
        products: Sequence[Product] = (),
    ) -> Spans:
        """Build a table from columns in any order of time; missing optional columns cost no memory."""
        n = len(data["start"])
        table: dict[str, Any] = {
            key: np.asarray(data[key], dtype) if key in data else np.broadcast_to(dtype(_DEFAULTS[key]), n)
            for key, dtype in _DTYPES.items()
        }
        spans = cls(**table, names=tuple(names), lanes=tuple(lanes), comms=tuple(comms), products=tuple(products))
        # Simulations and most readers give sorted columns: then nothing is copied.
        order = np.lexsort((-spans.end, spans.start))
        return spans if np.array_equal(order, np.arange(n)) else spans.take(order)

    @classmethod
    def build(cls, rows: Iterable[Mapping[str, Any]]) -> Spans:
        """Build a table from one mapping per span: start, end, kind, name; all else is optional.

        ``lane`` is a :class:`Lane`, ``comm`` a :class:`Comm`, ``product`` a :class:`Product`. For tests and
        simulations; readers fill columns.
        """
        rows = list(rows)
        names = list(dict.fromkeys(row["name"] for row in rows))
        lanes = list(dict.fromkeys(row.get("lane", Lane("", "")) for row in rows)) or [Lane("", "")]
        name_of, lane_of = {n: i for i, n in enumerate(names)}, {n: i for i, n in enumerate(lanes)}
        data = {key: [row.get(key, -1) for row in rows] for key in ("start", "end", "kind", "bytes", "correlation")}
        data["name"] = [name_of[row["name"]] for row in rows]
        data["lane"] = [lane_of[row.get("lane", Lane("", ""))] for row in rows]
        tables: dict[str, list[Any]] = {"comm": [], "product": []}
        for key, table in tables.items():
            data[key] = [-1] * len(rows)
            for at, row in enumerate(rows):
                if row.get(key) is not None:
                    data[key][at] = len(table)
                    table.append(row[key])
        return cls.columns(data, names, lanes, tables["comm"], tables["product"])

    @classmethod
    def empty(cls) -> Spans:
        """Return a table without spans."""
        return cls.columns({"start": [], "end": [], "kind": [], "name": []}, ())

    def take(self, index: NDArray[Any] | slice) -> Spans:
        """Select spans by a mask, positions or a slice; names, lanes and comms stay.

        Neighbours are not copied: a mask that selects a single run gives views.
        """
        rows = index
        if isinstance(index, np.ndarray) and index.dtype == np.bool_:
            count = np.count_nonzero(index)
            first = int(index.argmax()) if count else 0
            if index[first : first + count].all():
                rows = slice(first, first + count)
            elif 8 * count < len(index):
                # For few spans, positions are faster than the mask.
                rows = np.flatnonzero(index)
        columns: dict[str, Any] = {key: getattr(self, key) for key in _DTYPES}
        for key, column in columns.items():
            if column.strides == (0,) and not isinstance(rows, slice):
                # A column that repeats a single value stays one.
                repeats = int(rows.sum()) if rows.dtype == np.bool_ else len(rows)
                columns[key] = np.broadcast_to(column[:1], repeats)
            else:
                columns[key] = column[rows]
        return replace(self, **columns)

    def of(self, *kinds: Kind) -> Spans:
        """Select the spans of some kinds."""
        return self.take(np.isin(self.kind, [int(kind) for kind in kinds]))

    def touching(self, start: int, end: int) -> Spans:
        """Select what intersects ``[start, end)``, uncut; spans without length count if they start inside."""
        inside = (self.end > start) | ((self.end == self.start) & (self.start >= start))
        return self.take((self.start < end) & inside)

    def within(self, start: int, end: int) -> Spans:
        """Select what intersects ``[start, end)``, cut to it; see :meth:`touching`."""
        chosen = self.touching(start, end)
        early, late = chosen.start[:1] < start, chosen.end.max(initial=end) > end
        starts = np.maximum(chosen.start, start) if early.any() else chosen.start
        return replace(chosen, start=starts, end=np.minimum(chosen.end, end) if late else chosen.end)


class NameTotal(Record, frozen=True):
    """All spans of one name: how many, and the sum of their durations (not of their union), nanoseconds.

    A row without a name stands for several, ``names`` of them.

    Attributes
    ----------
    name, kind : str
    count, total_ns, names : int
    flops, least_bytes : float
        Of those spans whose shapes were recorded, as :class:`Product` has them.
    flop_ns : int
        What these spans took.
    dtype : str
        Of their operands; empty where nothing is known.
    moved_bytes, moved_ns : int
        Of copies and fills whose sizes were recorded.
    """

    name: str
    kind: str
    count: int
    total_ns: int
    names: int = 1
    flops: float = 0.0
    least_bytes: float = 0.0
    flop_ns: int = 0
    dtype: str = ""
    moved_bytes: int = 0
    moved_ns: int = 0

    def plus(self, other: NameTotal, names: int) -> NameTotal:
        """Return the sums of two rows under the name and kind of the first, and how many names they stand for."""
        sums = {key: getattr(self, key) + getattr(other, key) for key in _ADDED}
        return replace(self, **sums, names=names, dtype=self.dtype or other.dtype)


_ADDED = ("count", "total_ns", "flops", "least_bytes", "flop_ns", "moved_bytes", "moved_ns")


def totals(work: Spans, cut: tuple[int, int] | None = None) -> list[NameTotal]:
    """Return one row per name and kind, the longest first.

    Parameters
    ----------
    work : Spans
    cut : (int, int), optional
        Ends of the window that the spans were cut to: what touches them may have lasted longer, and counts in no rate.

    Examples
    --------
    >>> work = Spans.build([{"start": 0, "end": 5, "kind": Kind.COMPUTE, "name": "gemm"},
    ...                     {"start": 7, "end": 9, "kind": Kind.COMPUTE, "name": "gemm"}])
    >>> totals(work)
    [NameTotal(name='gemm', kind='compute', count=2, total_ns=7, names=1, flops=0.0, least_bytes=0.0, flop_ns=0,
     dtype='', moved_bytes=0, moved_ns=0)]
    """
    if not len(work):
        return []
    counts = np.zeros(len(work.names) * len(Kind), np.int64)
    sums = np.zeros(len(counts), np.int64)
    for part in blocks(len(work)):
        key = work.name[part].astype(np.int64) * len(Kind) + work.kind[part]
        counts += np.bincount(key, minlength=len(counts))
        np.add.at(sums, key, work.end[part] - work.start[part])
    rated = _rated(work, cut)
    rows = [
        NameTotal(work.names[k // len(Kind)], Kind(k % len(Kind)).name.lower(), int(counts[k]), int(sums[k]),
                  **rated.get(k, {}))
        for k in np.flatnonzero(counts).tolist()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (-row.total_ns, row.name))


def _rated(work: Spans, cut: tuple[int, int] | None) -> dict[int, dict[str, Any]]:
    """What the whole spans of each name and kind computed and moved, by their number as in :func:`totals`."""
    is_copy = np.isin(work.kind, (int(Kind.MEMCPY), int(Kind.MEMSET))) & (work.bytes >= 0)
    rows = np.flatnonzero((work.product >= 0) | is_copy)
    if cut is not None:
        rows = rows[(work.start[rows] > cut[0]) & (work.end[rows] < cut[1])]
    keys, first, of_key = np.unique(
        work.name[rows].astype(np.int64) * len(Kind) + work.kind[rows], return_index=True, return_inverse=True
    )
    product, took = work.product[rows], work.end[rows] - work.start[rows]
    counted = np.array([*((one.flops, one.bytes) for one in work.products), (0, 0)], float)[product]
    columns = {
        "flops": counted[:, 0],
        "least_bytes": counted[:, 1],
        "flop_ns": np.where(product >= 0, took, 0),
        "moved_bytes": np.where(product >= 0, 0, work.bytes[rows]),
        "moved_ns": np.where(product >= 0, 0, took),
    }
    sums = {
        name: np.bincount(of_key, column, len(keys)).astype(float if column.dtype == float else int).tolist()
        for name, column in columns.items()
    }
    dtypes = [work.products[number].dtype if number >= 0 else "" for number in product[first].tolist()]
    table = zip(*sums.values(), dtypes, strict=True)
    return {key: dict(zip((*sums, "dtype"), row, strict=True)) for key, row in zip(keys.tolist(), table, strict=True)}


def longest(rows: Sequence[NameTotal], most: int) -> tuple[NameTotal, ...]:
    """Return the first rows, and one per kind for all that follow: nothing is lost of their sums.

    Examples
    --------
    >>> rows = [NameTotal(name, "compute", 1, ns) for name, ns in (("a", 9), ("b", 5), ("c", 4))]
    >>> rest = longest(rows, 1)[1]
    >>> rest.name, rest.count, rest.total_ns, rest.names
    ('', 2, 9, 2)
    """
    rest: dict[str, NameTotal] = {}
    for row in rows[most:]:
        sums = rest.get(row.kind, NameTotal("", row.kind, 0, 0, 0))
        rest[row.kind] = sums.plus(row, sums.names + row.names)
    return (*rows[:most], *rest.values())


RECORDER = "densing_recorder"
"""Key of the version that :func:`densing.timeline.record` writes into a trace's header."""

MARK = "densing::wait"
"""Name of the annotation that :func:`densing.timeline.record` puts around a wait that has no event of its own."""

NO_DEVICE_WORK = "no-device-work"
"""Code of the note on a device's trace without kernels."""


class Step(NamedTuple):
    """One training step as the host marked it (``ProfilerStep#number``), nanoseconds."""

    number: int
    start: int
    end: int


class Marks(NamedTuple):
    """All step marks together, including those of other threads and nested ones; windows are cut by them.

    Attributes
    ----------
    start, end : int
        From the first start to the last end, ns.
    last : int
        Start of the last mark, ns.
    names : int
        Number of different names among the marks.
    """

    start: int
    end: int
    last: int
    names: int

    @classmethod
    def of(cls, steps: Sequence[Step], names: Iterable[Hashable]) -> Marks | None:
        """Combine the marks of all threads; None if there are none."""
        if not steps:
            return None
        starts, ends = [step.start for step in steps], [step.end for step in steps]
        return cls(min(starts), max(ends), max(starts), len(set(names)))


class Origin(msgspec.Struct, frozen=True):
    """Origin of a rank's timeline, and its header.

    Parameters
    ----------
    source : str
        File, or file and member of an archive; ``simulated`` for a simulation.
    rank_from : {"distributedInfo", "file name", "option", "default"}
        How the rank was known.
    world_size : int
        -1 unknown.
    backend : str
        ``nccl``, ``gloo``, ...; empty if unknown.
    devices : tuple of str
        Names of the accelerators the header lists.
    host : str
        Machine name; empty if unknown.
    groups : mapping of str to tuple of int
        Process groups by name, with their members.
    simulated : bool
    recorder : str
        Version of :func:`densing.timeline.record` that made it; empty if something else did.
    """

    source: str = "simulated"
    rank_from: str = "default"
    world_size: int = -1
    backend: str = ""
    devices: tuple[str, ...] = ()
    host: str = ""
    groups: Mapping[str, tuple[int, ...]] = msgspec.field(default_factory=dict)
    simulated: bool = False
    recorder: str = ""


class RankTimeline(msgspec.Struct, frozen=True, eq=False):
    """What one rank did.

    Parameters
    ----------
    rank : int
    work : Spans
        What occupies the device (kinds COMPUTE, COMM, MEMCPY, MEMSET, SYNC, UNKNOWN), or the processor in a run
        without one (COMPUTE, COMM, CALL).
    host : Spans
        Launches, annotations and, where they were asked for or needed, operators and frames.
    steps : tuple of Step
        In order of time, each step once; empty where the trace marks none.
    origin : Origin
    on_host : bool
        True if ``work`` is the processor's (a run over gloo without accelerator).
    detail : {"device", "host"}
        ``host`` if operators were read too.
    events, skipped, repaired : int
        Events of the file; left out because damaged; kept after repair.
    notes : tuple of Note
    marks : Marks or None
        What the steps were taken from; None where every mark is a step (see :attr:`marked`).
    self_launched : Spans
        Device spans whose own record counts as their launch in window ``hta`` (MTIA's).
    """

    rank: int
    work: Spans
    host: Spans
    steps: tuple[Step, ...] = ()
    origin: Origin = msgspec.field(default_factory=Origin)
    on_host: bool = False
    detail: str = "device"
    events: int = 0
    skipped: int = 0
    repaired: int = 0
    notes: tuple[Note, ...] = ()
    marks: Marks | None = None
    self_launched: Spans = msgspec.field(default_factory=Spans.empty)

    @property
    def blind(self) -> bool:
        """Whether the device's work is unknown: its windows have no length, and no figure counts them."""
        return any(note.code == NO_DEVICE_WORK for note in self.notes)

    @property
    def marked(self) -> Marks | None:
        """All marks of steps together; None where the trace marks none."""
        return self.marks or Marks.of(self.steps, (step.number for step in self.steps))

    def table(self) -> pd.DataFrame:
        """Return work and host spans: rank, kind, process, stream, name, start_ns, end_ns, bytes, group."""
        import pandas as pd

        frames = []
        for spans in (self.work, self.host):
            lanes = np.array([lane.thread for lane in spans.lanes], dtype=object)
            processes = np.array([lane.process for lane in spans.lanes], dtype=object)
            names = np.array(spans.names, dtype=object)
            # Index -1, a span that is not a communication, takes the last: no group.
            groups = np.array([*(comm.group for comm in spans.comms), ""], dtype=object)
            kinds = np.array([kind.name.lower() for kind in Kind], dtype=object)
            columns: dict[str, NDArray[np.int64] | NDArray[np.object_] | int] = {
                "rank": self.rank,
                "kind": kinds[spans.kind],
                "process": processes[spans.lane],
                "stream": lanes[spans.lane],
                "name": names[spans.name] if len(spans) else np.empty(0, object),
                "start_ns": spans.start,
                "end_ns": spans.end,
                "bytes": spans.bytes,
                "group": groups[spans.comm],
            }
            frames.append(pd.DataFrame(columns))
        return pd.concat(frames, ignore_index=True)


class Timeline(Readable, msgspec.Struct, frozen=True, eq=False):
    """The ranks of one run, by rank.

    Examples
    --------
    >>> from densing.efficiency.timeline import Kind, Spans
    >>> work = Spans.build([{"start": 0, "end": 5, "kind": Kind.COMPUTE, "name": "gemm"}])
    >>> Timeline((RankTimeline(0, work, Spans.empty()),)).table()[["rank", "kind", "name", "start_ns", "end_ns"]]
       rank     kind  name  start_ns  end_ns
    0     0  compute  gemm         0       5

    See Also
    --------
    read_timeline, profile_run
    """

    ranks: tuple[RankTimeline, ...]

    def card(self) -> Card:
        """Return what is shown: how many spans each rank has."""
        spans = {f"rank {rank.rank}": f"{len(rank.work)} spans" for rank in self.ranks[:SHOWN_ROWS]}
        if len(self.ranks) > len(spans):
            spans["..."] = f"{len(self.ranks) - len(spans)} more ranks"
        return Card(f"Timeline of {formatting.plural(len(self.ranks), 'rank')}", spans)

    def table(self) -> pd.DataFrame:
        """Return every span of every rank as one table."""
        import pandas as pd

        return pd.concat([rank.table() for rank in self.ranks], ignore_index=True)

"""Traffic of one rank: its communications one by one and summed, its copies by direction, and data loading.

With S the bytes of a collective over n ranks that took t:

.. math:: algbw = S / t, \\qquad busbw = algbw \\cdot f(n)

S counts output bytes for all-gather and receive, input bytes otherwise. f is 2(n−1)/n for all-reduce, (n−1)/n for
all-gather, reduce-scatter and all-to-all, 1 for broadcast and reduce.

Source: NVIDIA nccl-tests, doc/PERFORMANCE.md (recalled, not re-read).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from densing.core import Record
from densing.efficiency.timeline.classifier import Classifier, any_case
from densing.efficiency.timeline.host import is_range, launch_of, named, uncut
from densing.efficiency.timeline.intervals import (
    Int,
    Union,
    covered,
    distinct,
    intersect,
    length,
    subtract,
    union,
    used,
)
from densing.efficiency.timeline.overlap import Unions, Window, counted_steps
from densing.efficiency.timeline.timeline import Comm, Kind, RankTimeline, Spans, Step

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "send",
       "recv", "send_recv", "barrier", "p2p_copy", "")  # fmt: skip


class Group(Record, frozen=True):
    """A process group: its name and description as recorded, its size (-1 unknown) and members (empty if unknown)."""

    name: str
    label: str = ""
    size: int = -1
    ranks: tuple[int, ...] = ()


class Collectives(msgspec.Struct, frozen=True, eq=False):
    """Communications of one rank inside a window, one row each, in order of start.

    Attributes
    ----------
    rank : int
    window : str
        Name of the window.
    window_start_ns, window_end_ns : int
    groups : tuple of Group
    names, lanes, dtypes : tuple of str
    op : int64 (n,)
        Index into :data:`OPS`.
    name, lane, group, dtype : int64 (n,)
        Index into ``names``, ``lanes``, ``groups``, ``dtypes``.
    seq : int64 (n,)
        Number within the group as recorded; -1 unknown.
    step : int64 (n,)
        Number of the step in which it was launched (or, without a launch record, in which it starts); -1 none.
    order : int64 (n,)
        n-th of its group, operation and step on this rank, in order of launch. Groups the trace does not name are
        told apart by stream, numbered by first use.
    start_ns, end_ns : int64 (n,)
        Whole span, also where the window cuts it.
    inside_ns, hidden_ns, exposed_ns : int64 (n,)
        Part inside the window; of that, what compute covers and what it does not. Communications that run at the same
        time each count their own part, so sums over rows may exceed the partition's.
    union_ns, union_hidden_ns : int64 (n,)
        Of ``inside_ns`` what no earlier one of its group and operation covers, and of that what compute covers: sums
        over the rows of a group and operation are lengths of unions.
    in_elems, out_elems, bytes : int64 (n,)
        Elements put in and got out; S (see :mod:`densing.efficiency.timeline.traffic`); -1 unknown.
    src, dst : int64 (n,)
        Global ranks of a point-to-point transfer; -1 unknown.
    """

    rank: int
    window: str
    window_start_ns: int
    window_end_ns: int
    groups: tuple[Group, ...]
    names: tuple[str, ...]
    lanes: tuple[str, ...]
    dtypes: tuple[str, ...]
    op: Int
    name: Int
    lane: Int
    group: Int
    dtype: Int
    seq: Int
    step: Int
    order: Int
    start_ns: Int
    end_ns: Int
    inside_ns: Int
    hidden_ns: Int
    exposed_ns: Int
    union_ns: Int
    union_hidden_ns: Int
    in_elems: Int
    out_elems: Int
    bytes: Int
    src: Int
    dst: Int

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def duration_ns(self) -> Int:
        """Length of the whole spans."""
        return self.end_ns - self.start_ns

    def ops(self) -> list[str]:
        """Return the operation of each row."""
        return [OPS[code] for code in self.op]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: tables of names, and ``columns`` as equally long lists."""
        return {
            "rank": self.rank,
            "window": self.window,
            "window_start_ns": self.window_start_ns,
            "window_end_ns": self.window_end_ns,
            "groups": [{**group.to_dict(), "ranks": list(group.ranks)} for group in self.groups],
            "names": list(self.names),
            "lanes": list(self.lanes),
            "dtypes": list(self.dtypes),
            "columns": {key: getattr(self, key).tolist() for key in COLUMNS},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Collectives:
        """Rebuild what :meth:`to_dict` wrote."""
        flat = {**data, **data["columns"]}
        return msgspec.convert(flat, cls, dec_hook=lambda _, column: np.asarray(column, np.int64))


COLUMNS = tuple(name for name, kind in Collectives.__annotations__.items() if kind == "Int")


def collectives_of(rank: RankTimeline, window: Window, merged: Unions) -> Collectives:
    """List the communications of a rank inside a window.

    Parameters
    ----------
    rank : RankTimeline
    window : Window
        Cut from the same rank.
    merged : Unions
        Unions of the window's work; their compute decides what is hidden.

    Examples
    --------
    >>> from densing.efficiency.timeline import select, unions
    >>> comm = Comm("all_reduce", "0", in_elems=10, dtype="float")
    >>> work = Spans.build([{"start": 10, "end": 60, "kind": Kind.COMPUTE, "name": "gemm"},
    ...                     {"start": 40, "end": 80, "kind": Kind.COMM, "name": "ncclDevKernel", "comm": comm}])
    >>> window = select(RankTimeline(0, work, Spans.empty()))
    >>> rows = collectives_of(RankTimeline(0, work, Spans.empty()), window, unions(window.work))
    >>> rows.ops(), rows.bytes.tolist(), rows.hidden_ns.tolist(), rows.exposed_ns.tolist()
    (['all_reduce'], [40], [20], [20])
    """
    inside = window.work.of(Kind.COMM)
    spans = uncut(rank, window).of(Kind.COMM)
    records = _records(rank, spans)
    inside_ns = inside.end - inside.start
    hidden = covered(merged.compute, inside.start, inside.end)
    fresh = _fresh(inside, records.columns["group"], records.columns["op"])
    # Time of launch; the start where the trace does not record it.
    call, launched = launch_of(spans, rank.host), np.full(len(spans), -1, np.int64)
    launched[call >= 0] = rank.host.start[call[call >= 0]]
    when = np.where(launched < 0, spans.start, launched)
    step = _steps(rank, when)
    lanes, lane = _used(spans.lanes, spans.lane)
    names, name = _used(spans.names, spans.name)
    columns = {
        **records.columns,
        "name": name,
        "lane": lane,
        "step": step,
        "order": nth(when, records.columns["group"], records.columns["op"], step),
        "start_ns": spans.start,
        "end_ns": spans.end,
        "inside_ns": inside_ns,
        "hidden_ns": hidden,
        "exposed_ns": inside_ns - hidden,
        "union_ns": inside.end - fresh,
        "union_hidden_ns": covered(merged.compute, fresh, inside.end),
    }
    columns = {key: np.asarray(column, np.int64) for key, column in columns.items()}
    return Collectives(
        rank.rank,
        window.name,
        window.start,
        window.end,
        records.groups,
        tuple(names),
        tuple(lane.text for lane in lanes),
        records.dtypes,
        **columns,
    )


def _used(table: tuple[Any, ...], index: NDArray[np.int32]) -> tuple[list[Any], Int]:
    codes, dense = np.unique(index, return_inverse=True)
    return [table[code] for code in codes], dense.astype(np.int64)


def _fresh(comm: Spans, group: Int, op: Int) -> Int:
    """Return from when on each span is the only one of its group and operation; its end where it never is."""
    fresh = comm.start.copy()
    for code in distinct(group * len(OPS) + op).tolist():
        rows = np.flatnonzero(group * len(OPS) + op == code)
        # Rows are ordered by start: the end of all earlier ones is a running maximum.
        reach = np.maximum.accumulate(comm.end[rows])[:-1]
        fresh[rows[1:]] = np.maximum(fresh[rows[1:]], reach)
    return np.minimum(fresh, comm.end)


def _steps(rank: RankTimeline, when: Int) -> Int:
    """Number of the step each moment lies in; -1 outside."""
    if not rank.steps:
        return np.full(len(when), -1, np.int64)
    numbers, starts, ends = (np.array(column, np.int64) for column in zip(*rank.steps, strict=True))
    at = np.searchsorted(starts, when, side="right") - 1
    inside = (at >= 0) & (when < ends[np.maximum(at, 0)])
    return np.where(inside, numbers[np.maximum(at, 0)], -1)


def nth(when: Int, *keys: Int) -> Int:
    """Number the rows that share all keys, in order of ``when``, from 0.

    Examples
    --------
    >>> nth(np.array([30, 10, 20]), np.array([5, 5, 6])).tolist()
    [1, 0, 0]
    """
    order = np.lexsort((when, *keys))
    sorted_keys = np.stack(keys)[:, order]
    # Rows of one key are now adjacent, in order of time: their number is the distance from the key's first row.
    first = np.ones(len(order), bool)
    first[1:] = np.any(sorted_keys[:, 1:] != sorted_keys[:, :-1], axis=0)
    begins = np.flatnonzero(first)
    result = np.empty(len(order), np.int64)
    result[order] = np.arange(len(order)) - np.repeat(begins, np.diff(np.append(begins, len(order))))
    return result


class _Records(NamedTuple):
    columns: dict[str, Any]
    groups: tuple[Group, ...]
    dtypes: tuple[str, ...]


def _records(rank: RankTimeline, comm: Spans) -> _Records:
    """Columns from the communications' records, looked up once per distinct record."""
    classifier, streams = Classifier(), dict[str, str]()
    groups = _Groups()
    dtypes: dict[str, int] = {}
    columns = {key: np.empty(len(comm), np.int64) for key in _RECORDED}
    known: dict[tuple[int, int, int, int], tuple[int, ...]] = {}
    quads = zip(comm.comm.tolist(), comm.name.tolist(), comm.lane.tolist(), comm.bytes.tolist(), strict=True)
    for at, key in enumerate(quads):
        if key not in known:
            index, name, lane, recorded = key
            record = comm.comms[index] if index >= 0 else Comm()
            op = op_of(record, comm.names[name], classifier)
            group = _group(rank, record, streams, comm.lanes[lane].thread)
            numbers = (groups.number(group), dtypes.setdefault(record.dtype, len(dtypes)))
            known[key] = (OPS.index(op), *numbers, record.seq, record.in_elems, record.out_elems,
                          comm_bytes(op, record, recorded), *_peers(rank.rank, op, record, group))  # fmt: skip
        for column, value in zip(columns.values(), known[key], strict=True):
            column[at] = value
    return _Records(columns, groups.all(), tuple(dtypes))


_RECORDED = ("op", "group", "dtype", "seq", "in_elems", "out_elems", "bytes", "src", "dst")


class _Groups:
    """Numbers groups; a named one is the same whether or not every record describes it."""

    def __init__(self) -> None:
        self._labels: dict[Group, str] = {}
        self._numbers: dict[Group, int] = {}

    def number(self, group: Group) -> int:
        """Return a group's number; a new one for a new group."""
        plain = replace(group, label="") if group.name or group.ranks else group
        self._labels[plain] = self._labels.get(plain, "") or group.label
        return self._numbers.setdefault(plain, len(self._numbers))

    def all(self) -> tuple[Group, ...]:
        """Return the groups by number, each with the description of some record."""
        return tuple(replace(group, label=self._labels[group]) for group in self._numbers)


def op_of(record: Comm, name: str, classifier: Classifier) -> str:
    """Return the operation: as recorded, else from the record's spelling or the span's name; else empty.

    Examples
    --------
    >>> op_of(Comm("_allgather_base"), "ncclDevKernel_Generic", Classifier())
    'all_gather'
    """
    if record.op in OPS[:-1]:
        return record.op
    return classifier.op(record.op) or classifier.op(name)


def _group(rank: RankTimeline, record: Comm, streams: dict[str, str], thread: str) -> Group:
    """The group as recorded; the run's only group where there is one; else one per stream, numbered by first use."""
    known = rank.origin.groups
    if record.group or record.ranks:
        # Members may be elided in the record and listed in the header.
        members = record.ranks or tuple(known.get(record.group, ()))
        return Group(record.group, record.group_name, max(record.group_size, len(members), -1), members)
    if len(known) == 1:
        name, members = next(iter(known.items()))
        return Group(name, "", len(members) or -1, tuple(members))
    label = "" if rank.on_host else streams.setdefault(thread, f"stream#{len(streams)}")
    return Group("", label, record.group_size)


def _peers(own: int, op: str, record: Comm, group: Group) -> tuple[int, int]:
    """Global ranks of sender and receiver: a trace numbers peers within their group; in a pair there is one other."""
    if op not in ("send", "recv"):
        return -1, -1
    peer = record.dst if op == "send" else record.src
    partners = [rank for rank in group.ranks if rank != own]
    if peer < 0:
        peer = partners[0] if len(partners) == 1 and len(group.ranks) == 2 else -1
    elif peer < len(group.ranks):
        peer = group.ranks[peer]
    return (own, peer) if op == "send" else (peer, own)


class CollectiveSummary(Record, frozen=True):
    """Time of one operation in one process group on one rank.

    Attributes
    ----------
    op : str
        Empty where neither name nor arguments tell.
    group, group_label : str
        Name and description of the process group.
    group_size : int
        -1 unknown.
    count : int
    count_sized : int
        How many of them have known bytes.
    bytes : int
        S over those (see :mod:`densing.efficiency.timeline.traffic`).
    total_ns, hidden_ns, exposed_ns : int
        Lengths of unions on each rank, of the parts inside the window: all, covered by compute, not covered. Calls at
        the same time count once, as in the :class:`~densing.efficiency.timeline.overlap.Partition`.
    sum_ns : int
        The same without taking unions: calls that run at the same time count each.
    algbw_gbps, busbw_gbps : float or None
        Σ S / Σ t over communications with known bytes, whole spans; t holds the wait for other ranks, so these are
        lower bounds of what the network gave. None where bytes (or, for busbw, group size or factor) are unknown.
    """

    op: str
    group: str
    group_label: str
    group_size: int
    count: int
    count_sized: int
    bytes: int
    total_ns: int
    hidden_ns: int
    exposed_ns: int
    sum_ns: int
    algbw_gbps: float | None
    busbw_gbps: float | None

    @property
    def hidden_pct(self) -> float | None:
        """Share hidden behind compute, 100·hidden/total of the unions; None where the total is 0."""
        return 100 * self.hidden_ns / self.total_ns if self.total_ns else None

    def to_dict(self) -> dict[str, Any]:
        """Return every figure, the share included, as plain data."""
        return {**super().to_dict(), "hidden_pct": self.hidden_pct}


def summary(collectives: Collectives) -> tuple[CollectiveSummary, ...]:
    """Sum a rank's communications by operation and process group, most exposed first.

    Parameters
    ----------
    collectives : Collectives

    Returns
    -------
    tuple of CollectiveSummary

    Examples
    --------
    >>> from densing.efficiency.timeline import select, unions
    >>> comm = Comm("all_reduce", "0", group_size=2, in_elems=1000, dtype="float")
    >>> work = Spans.build([{"start": 0, "end": 80, "kind": Kind.COMM, "name": "ncclDevKernel", "comm": comm}])
    >>> rank = RankTimeline(0, work, Spans.empty())
    >>> [row] = summary(collectives_of(rank, select(rank), unions(work)))
    >>> row.op, row.count, row.bytes, row.exposed_ns, row.busbw_gbps
    ('all_reduce', 1, 4000, 80, 50.0)
    """
    pairs = np.stack((collectives.op, collectives.group), axis=1)
    kinds, kind = np.unique(pairs, axis=0, return_inverse=True)
    kind = kind.reshape(-1)  # numpy 2.0 keeps a second axis here
    rows = []
    for number, (op, at) in enumerate(kinds.tolist()):
        group, chosen = collectives.groups[at], kind == number
        sized = chosen & (collectives.bytes >= 0)
        moved = int(collectives.bytes[sized].sum())
        took = int(collectives.duration_ns[sized].sum())
        speed = bandwidth(OPS[op], group.size, moved if sized.any() else -1, took)
        row = CollectiveSummary(
            op=OPS[op],
            group=group.name,
            group_label=group.label,
            group_size=group.size,
            count=int(chosen.sum()),
            count_sized=int(sized.sum()),
            bytes=moved,
            total_ns=int(collectives.union_ns[chosen].sum()),
            hidden_ns=int(collectives.union_hidden_ns[chosen].sum()),
            exposed_ns=int((collectives.union_ns - collectives.union_hidden_ns)[chosen].sum()),
            sum_ns=int(collectives.inside_ns[chosen].sum()),
            algbw_gbps=speed.algbw_gbps,
            busbw_gbps=speed.busbw_gbps,
        )
        rows.append(row)
    return tuple(sorted(rows, key=lambda row: (-row.exposed_ns, row.op, row.group)))


# Bytes and bandwidth.

MOST_BYTES = 1 << 44
"""Largest plausible size of a communication or copy: no device holds more. Sums stay exact."""

_SIZES: dict[int, str] = {
    1: "bool byte char schar uchar int8 int8_t uint8 uint8_t s8 u8 qint8 quint8 signedchar unsignedchar float8_e4m3fn"
    " float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float8 fp8 fp8_e4m3 fp8_e5m2 float8e4m3 float8e5m2"
    " float8_e4m3 float4_e2m1fn_x2 hif8",
    2: "half bfloat16 float16 fp16 bf16 f16 short shortint int16 int16_t uint16 uint16_t unsignedshort s16 u16"
    " __half __nv_bfloat16 hip_bfloat16",
    4: "float float32 fp32 f32 int int32 int32_t uint32 uint32_t unsignedint unsigned s32 u32 qint32 complexhalf"
    " complex<half> complex32",
    8: "double float64 fp64 f64 long longint int64 int64_t uint64 uint64_t unsignedlong unsignedlongint longlong"
    " longlongint s64 u64 complexfloat complex<float> complex64",
    16: "complexdouble complex<double> complex128",
}
_SIZE_OF = {name: size for size, text in _SIZES.items() for name in text.split()}


def dtype_bytes(dtype: str) -> int:
    """Return the size of an element type as traces and frameworks write it; -1 if unknown.

    Source: ScalarType names of PyTorch (c10/core/ScalarType.h), C++ type names as record_shapes writes
    them, NCCL names.

    Examples
    --------
    >>> [dtype_bytes(text) for text in ("c10::BFloat16", "long int", "Float8_e4m3fn", "torch.float32", "blob")]
    [2, 8, 1, 4, -1]
    """
    text = dtype.lower().replace(" ", "")
    for prefix in ("c10::", "at::", "torch.", "nccl", "std::"):
        text = text.replace(prefix, "")
    return _SIZE_OF.get(text, -1)


def comm_bytes(op: str, comm: Comm, recorded: int = -1) -> int:
    """Return S of one communication on one rank; -1 if the trace does not record it, or records more than
    :data:`MOST_BYTES`.

    Parameters
    ----------
    op : str
        Operation, as :class:`~densing.efficiency.timeline.timeline.Comm` names it.
    comm : Comm
    recorded : int
        Bytes the trace itself records for the span; used where elements or type are unknown.

    Examples
    --------
    >>> comm_bytes("all_gather", Comm(in_elems=10, out_elems=40, dtype="float"))
    160
    """
    # Output elements count for all-gather and receive, input elements otherwise; where only the other side is known,
    # it is as many times larger or smaller as the group has members.
    count, opposite = comm.in_elems, comm.out_elems
    if op in ("all_gather", "recv"):
        count, opposite = opposite, count
    scale = max(comm.group_size, len(comm.ranks)) if op in ("all_gather", "reduce_scatter") else 1
    elements = opposite * scale if count < 0 <= opposite and scale > 0 else count
    size = dtype_bytes(comm.dtype)
    moved = elements * size if size > 0 and elements >= 0 else recorded
    return moved if moved <= MOST_BYTES else -1


def _of_ring(n: int) -> float:
    return (n - 1) / n


_FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * _of_ring(n),
    "all_gather": _of_ring,
    "reduce_scatter": _of_ring,
    "all_to_all": _of_ring,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
}


def bus_factor(op: str, group_size: int) -> float | None:
    """Return busbw / algbw; None for operations without an agreed factor and groups of unknown size or of one.

    Source: nccl-tests, doc/PERFORMANCE.md (recalled).

    Examples
    --------
    >>> bus_factor("all_reduce", 8), bus_factor("all_gather", 8), bus_factor("send", 2)
    (1.75, 0.875, None)
    """
    factor = _FACTORS.get(op)
    return factor(group_size) if factor is not None and group_size > 1 else None


class Bandwidth(Record, frozen=True):
    """Algorithm and bus bandwidth in GB/s (10⁹ bytes per second); None where they are not known."""

    algbw_gbps: float | None
    busbw_gbps: float | None


def bandwidth(op: str, group_size: int, moved: int, took_ns: int) -> Bandwidth:
    """Return the bandwidths of ``moved`` bytes in ``took_ns`` nanoseconds.

    Examples
    --------
    >>> bandwidth("all_reduce", 8, 1_000_000, 10_000)
    Bandwidth(algbw_gbps=100.0, busbw_gbps=175.0)
    """
    if moved < 0 or took_ns <= 0:
        return Bandwidth(None, None)
    algorithm = moved / took_ns
    factor = bus_factor(op, group_size)
    return Bandwidth(algorithm, None if factor is None else algorithm * factor)


# Copies and data loading.

DIRECTIONS = ("host_to_device", "device_to_host", "device_to_device", "peer", "host_to_host", "fill", "unknown")

# Tried in this order. CUPTI writes HtoD, roctracer CopyHostToDevice, Intel's runtimes M2D (malloc to device), MTIA
# MEMORY_COPY_HOST_TO_DEVICE; "Array" is device memory. Other names have an unknown direction.
_LETTERS = {"host": "hm", "device": "das"}
_WORDS = {"host": ("host",), "device": ("device", "array")}
# Of each direction the words that stand alone (``htod``), and the texts within longer words (``host_to_device``).
_FORMS = {
    f"{source}_to_{target}": (
        frozenset(a + to + b for a in _LETTERS[source] for to in ("to", "2") for b in _LETTERS[target]),
        tuple(map("".join, product(_WORDS[source], ("_", ""), ("to", "2"), ("_", ""), _WORDS[target]))),
    )
    for source, target in (("host", "device"), ("device", "host"), ("device", "device"), ("host", "host"))
}
_PEER = any_case("ptop|peer")
LOADING = any_case(r"^enumerate\(dataloader\)|dataloader\w*iter\.__next__|^dataloader(\b|_)")
_PAGEABLE, _MEMORY = any_case("pageable"), any_case("pageable|pinned")


class Copies(Record, frozen=True):
    """The copies of one direction within a window.

    Attributes
    ----------
    direction : str
        One of :data:`DIRECTIONS`; ``fill`` is memset.
    count : int
        Copies that touch the window.
    unsized : int
        Those whose size the trace does not give, or gives as more than a device holds.
    bytes : int
        Of the others, whole copies.
    busy_ns, hidden_ns, exposed_ns : int
        Within the window: the union of these copies; the part under compute; the part under neither compute nor
        communication. The rest is hidden under communication.
    gb_per_s : float or None
        Bytes ÷ sum of the whole durations of the copies of known size, 10⁹ bytes per second.
    pageable : int or None
        Copies from or to pageable host memory; None where no name says what memory it is.
    """

    direction: str
    count: int
    unsized: int
    bytes: int
    busy_ns: int
    hidden_ns: int
    exposed_ns: int
    gb_per_s: float | None
    pageable: int | None

    @property
    def hidden_pct(self) -> float | None:
        """Share of the copying hidden under compute, in percent; None without copies."""
        return 100 * self.hidden_ns / self.busy_ns if self.busy_ns else None

    def to_dict(self) -> dict[str, Any]:
        """Return every figure, the share included, as plain data."""
        return {**super().to_dict(), "hidden_pct": self.hidden_pct}


class Loading(Record, frozen=True):
    """Time that host threads spend fetching the next batch (``enumerate(DataLoader)…__next__``).

    Attributes
    ----------
    count : int
        Ranges that touch the window.
    total_ns, idle_ns : int
        Their union within the window; the part of it in which the device was idle.
    per_step_ns, per_step_idle_ns : tuple of int
        The same in each step that the window counts, cut to the window.
    """

    count: int
    total_ns: int
    idle_ns: int
    per_step_ns: tuple[int, ...]
    per_step_idle_ns: tuple[int, ...]


class Transfers(Record, frozen=True):
    """Copies by direction, and data loading; ``loading`` is None where no range of the trace names it."""

    copies: tuple[Copies, ...]
    loading: Loading | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {**super().to_dict(), "copies": [row.to_dict() for row in self.copies]}


def direction(name: str) -> str:
    """Return the direction in the name of a copy.

    Examples
    --------
    >>> [direction(name) for name in ("Memcpy HtoD (Pinned -> Device)", "CopyDeviceToHost", "Memcpy PtoP", "dma")]
    ['host_to_device', 'device_to_host', 'peer', 'unknown']
    """
    text = name[:1000].lower()
    if _PEER(text):
        return "peer"
    words = set("".join(letter if letter.isalnum() or letter == "_" else " " for letter in text).split())
    for code, (single, within) in _FORMS.items():
        if not words.isdisjoint(single) or any(form in text for form in within):
            return code
    return "unknown"


def transfers(rank: RankTimeline, window: Window, merged: Unions) -> Transfers:
    """Measure the copies of a window by direction, and its data loading.

    Parameters
    ----------
    rank : RankTimeline
    window : Window
    merged : Unions
        Of the window's work.

    Examples
    --------
    >>> from densing.efficiency.timeline import select, unions
    >>> work = Spans.build([{"start": 0, "end": 40, "kind": Kind.COMPUTE, "name": "gemm"},
    ...                     {"start": 30, "end": 50, "kind": Kind.MEMCPY, "name": "Memcpy HtoD (Pageable -> Device)",
    ...                      "bytes": 240}])
    >>> rank = RankTimeline(0, work, Spans.empty())
    >>> window = select(rank)
    >>> row = transfers(rank, window, unions(window.work)).copies[0]
    >>> row.direction, row.hidden_ns, row.exposed_ns, row.gb_per_s, row.pageable
    ('host_to_device', 10, 10, 12.0, 1)
    """
    work = uncut(rank, window).of(Kind.MEMCPY, Kind.MEMSET)
    # Direction of each copy, as a position in DIRECTIONS; each name is looked at once.
    by_name = np.zeros(len(work.names), np.int64)
    for at in used(work.name):
        by_name[at] = DIRECTIONS.index(direction(work.names[at]))
    code = np.where(work.kind == Kind.MEMSET, DIRECTIONS.index("fill"), by_name[work.name])
    rows = []
    for at in used(code):
        copies = work.take(code == at)
        inside = union(np.maximum(copies.start, window.start), np.minimum(copies.end, window.end))
        sized = (copies.bytes >= 0) & (copies.bytes <= MOST_BYTES)
        moved, time = int(copies.bytes[sized].sum()), int((copies.end - copies.start)[sized].sum())
        row = Copies(
            direction=DIRECTIONS[at],
            count=len(copies),
            unsized=int(np.sum(~sized)),
            bytes=moved,
            busy_ns=length(inside),
            hidden_ns=length(intersect(inside, merged.compute)),
            exposed_ns=length(subtract(subtract(inside, merged.compute), merged.comm)),
            gb_per_s=moved / time if time else None,
            pageable=int(named(copies, _PAGEABLE).sum()) if named(copies, _MEMORY).any() else None,
        )
        rows.append(row)
    return Transfers(tuple(rows), _loading(rank, window, merged))


def _loading(rank: RankTimeline, window: Window, merged: Unions) -> Loading | None:
    rows = rank.host.take(named(rank.host, LOADING) & is_range(rank.host))
    if len(rows) == 0:
        return None
    rows = rows.within(window.start, window.end)
    total = union(rows.start, rows.end)
    idle = subtract(total, merged.busy)
    steps = counted_steps(rank, window)
    return Loading(len(rows), length(total), length(idle), _per_step(steps, total), _per_step(steps, idle))


def _per_step(steps: tuple[Step, ...], time: Union) -> tuple[int, ...]:
    starts = np.array([step.start for step in steps], np.int64)
    ends = np.array([step.end for step in steps], np.int64)
    return tuple(covered(time, starts, ends).tolist())

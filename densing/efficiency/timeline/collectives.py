"""The communications of one rank, one by one: what, how much, how long, how much of it hidden."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from densing.core import Record
from densing.efficiency.timeline.arrays import Int, distinct
from densing.efficiency.timeline.classifier import Classifier
from densing.efficiency.timeline.collective_bytes import bandwidth, comm_bytes
from densing.efficiency.timeline.intervals import covered
from densing.efficiency.timeline.launches import launch_of, uncut
from densing.efficiency.timeline.overlap import Unions
from densing.efficiency.timeline.spans import Comm, Kind, Spans
from densing.efficiency.timeline.timeline import RankTimeline
from densing.efficiency.timeline.windows import Window

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "send",
       "recv", "send_recv", "barrier", "p2p_copy", "")  # fmt: skip


class Group(NamedTuple):
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
        Elements put in and got out; S (see :mod:`densing.efficiency.timeline.collective_bytes`); -1 unknown.
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
            "groups": [{**group._asdict(), "ranks": list(group.ranks)} for group in self.groups],
            "names": list(self.names),
            "lanes": list(self.lanes),
            "dtypes": list(self.dtypes),
            "columns": {key: getattr(self, key).tolist() for key in COLUMNS},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Collectives:
        """Rebuild what :meth:`to_dict` wrote."""
        given: dict[str, Any] = {key: data[key] for key in ("rank", "window", "window_start_ns", "window_end_ns")}
        given |= {key: tuple(data[key]) for key in ("names", "lanes", "dtypes")}
        given["groups"] = tuple(Group(**{**group, "ranks": tuple(group["ranks"])}) for group in data["groups"])
        given |= {key: np.asarray(data["columns"][key], np.int64) for key in COLUMNS}
        return cls(**given)


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
    >>> from densing.efficiency.timeline.overlap import unions
    >>> from densing.efficiency.timeline.windows import select
    >>> comm = Comm("all_reduce", "0", in_elems=10, dtype="float")
    >>> work = Spans.build([{"start": 10, "end": 60, "kind": Kind.COMPUTE, "name": "gemm"},
    ...                     {"start": 40, "end": 80, "kind": Kind.COMM, "name": "ncclDevKernel", "comm": comm}])
    >>> window = select(RankTimeline(0, work, Spans.empty()))
    >>> found = collectives_of(RankTimeline(0, work, Spans.empty()), window, unions(window.work))
    >>> found.ops(), found.bytes.tolist(), found.hidden_ns.tolist(), found.exposed_ns.tolist()
    (['all_reduce'], [40], [20], [20])
    """
    inside = window.work.of(Kind.COMM)
    whole = uncut(rank, window).of(Kind.COMM)
    launched = _launches(rank.host, whole)
    records = _records(rank, whole)
    length = inside.end - inside.start
    hidden = covered(merged.compute, inside.start, inside.end)
    fresh = _fresh(inside, records.columns["group"], records.columns["op"])
    when = np.where(launched < 0, whole.start, launched)
    step = _steps(rank, when)
    lanes, lane = _used(whole.lanes, whole.lane)
    names, name = _used(whole.names, whole.name)
    columns = {
        **records.columns,
        "name": name,
        "lane": lane,
        "step": step,
        "order": nth(when, records.columns["group"], records.columns["op"], step),
        "start_ns": whole.start,
        "end_ns": whole.end,
        "inside_ns": length,
        "hidden_ns": hidden,
        "exposed_ns": length - hidden,
        "union_ns": inside.end - fresh,
        "union_hidden_ns": covered(merged.compute, fresh, inside.end),
    }
    texts = tuple(" ".join(part for part in (lane.process, lane.thread) if part) for lane in lanes)
    columns = {key: np.asarray(column, np.int64) for key, column in columns.items()}
    return Collectives(
        rank.rank, window.name, window.start, window.end, records.groups, tuple(names), texts, records.dtypes, **columns
    )


def _used(table: tuple[Any, ...], index: NDArray[np.int32]) -> tuple[list[Any], Int]:
    codes, dense = np.unique(index, return_inverse=True)
    return [table[code] for code in codes], dense.astype(np.int64)


def _fresh(comm: Spans, group: Int, op: Int) -> Int:
    """From when on each span is the only one of its group and operation so far; its end where it never is."""
    fresh = comm.start.copy()
    for code in distinct(group * len(OPS) + op).tolist():
        rows = np.flatnonzero(group * len(OPS) + op == code)
        reach = np.maximum.accumulate(comm.end[rows])[:-1]
        fresh[rows[1:]] = np.maximum(fresh[rows[1:]], reach)
    return np.minimum(fresh, comm.end)


def _launches(host: Spans, comm: Spans) -> Int:
    """Start of the host call that launched each span; -1 where the trace has none."""
    call = launch_of(comm, host)
    start = np.full(len(comm), -1, np.int64)
    start[call >= 0] = host.start[call[call >= 0]]
    return start


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
    """What the trace says of each communication, looked up once per different record."""
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
        plain = group._replace(label="") if group.name or group.ranks else group
        self._labels[plain] = self._labels.get(plain, "") or group.label
        return self._numbers.setdefault(plain, len(self._numbers))

    def all(self) -> tuple[Group, ...]:
        """Return the groups in order of their numbers, each with what some record calls it."""
        return tuple(group._replace(label=self._labels[group]) for group in self._numbers)


def op_of(record: Comm, name: str, classifier: Classifier) -> str:
    """Return the operation: as recorded, else as the record's own spelling or the span's name tells; else empty.

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
        members = record.ranks or tuple(known.get(record.group, ()))
        return Group(record.group, record.group_name, max(record.group_size, len(members), -1), members)
    if len(known) == 1:
        name, members = next(iter(known.items()))
        return Group(name, "", len(members) or -1, tuple(members))
    label = "" if rank.on_host else streams.setdefault(thread, f"stream#{len(streams)}")
    return Group("", label, record.group_size)


def _peers(own: int, op: str, record: Comm, group: Group) -> tuple[int, int]:
    """Global ranks of sender and receiver: a trace numbers peers within their group; in a pair there is one other."""
    others = [rank for rank in group.ranks if rank != own]

    def everywhere(peer: int) -> int:
        if peer < 0:
            return others[0] if len(others) == 1 and len(group.ranks) == 2 else -1
        return group.ranks[peer] if peer < len(group.ranks) else peer

    if op == "send":
        return own, everywhere(record.dst)
    return (everywhere(record.src), own) if op == "recv" else (-1, -1)


class CollectiveSummary(Record, frozen=True):
    """What one operation in one process group took on one rank.

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
        S over those (see :mod:`densing.efficiency.timeline.collective_bytes`).
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
    >>> from densing.efficiency.timeline.collectives import collectives_of
    >>> from densing.efficiency.timeline.overlap import unions
    >>> from densing.efficiency.timeline.spans import Comm, Kind, Spans
    >>> from densing.efficiency.timeline.timeline import RankTimeline
    >>> from densing.efficiency.timeline.windows import select
    >>> comm = Comm("all_reduce", "0", group_size=2, in_elems=1000, dtype="float")
    >>> work = Spans.build([{"start": 0, "end": 80, "kind": Kind.COMM, "name": "ncclDevKernel", "comm": comm}])
    >>> rank = RankTimeline(0, work, Spans.empty())
    >>> [row] = summary(collectives_of(rank, select(rank), unions(work)))
    >>> row.op, row.count, row.bytes, row.exposed_ns, row.busbw_gbps
    ('all_reduce', 1, 4000, 80, 50.0)
    """
    pairs = np.stack((collectives.op, collectives.group), axis=1)
    kinds, which = np.unique(pairs, axis=0, return_inverse=True)
    which = which.reshape(-1)  # numpy 2.0 keeps a second axis here
    rows = [
        _row(collectives, OPS[op], collectives.groups[group], which == number)
        for number, (op, group) in enumerate(kinds.tolist())
    ]
    return tuple(sorted(rows, key=lambda row: (-row.exposed_ns, row.op, row.group)))


def _row(
    collectives: Collectives, op: str, group: Group, chosen: np.ndarray[Any, np.dtype[np.bool_]]
) -> CollectiveSummary:
    sized = chosen & (collectives.bytes >= 0)
    moved = int(collectives.bytes[sized].sum())
    took = int(collectives.duration_ns[sized].sum())
    speed = bandwidth(op, group.size, moved if sized.any() else -1, took)
    return CollectiveSummary(
        op=op,
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

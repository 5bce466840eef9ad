"""What a trace says of each communication, and which words belong to one that says nothing of itself.

In order: the arguments of the kernel; ``record_param_comms``, the operator whose ``External id`` the kernel or its
launch carries; the range such as ``nccl:all_reduce`` inside which the launch lies; the kernel's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densing.efficiency.timeline import Classifier, Comm, Int, Kind, distinct
from densing.efficiency.traces.kineto.events import CommArgs

Table = Mapping[str, NDArray[Any]]
# Ranges of communications nest two or three deep (coalesced calls).
_DEPTH = 8
_DIGITS = 9
_MEMBERS = re.compile(rf"\[?\s*\d{{1,{_DIGITS}}}(\s*,\s*\d{{1,{_DIGITS}}})*\s*\]?")
_COMM_RANGE = re.compile(r"(?i)(nccl|rccl|gloo|xccl|oneccl|hccl|mpi|ucc|mccl|c10d)\w*:")
_INT64 = 2**63


def members(ranks: str | Sequence[Any]) -> tuple[int, ...]:
    """Return the members of a process group; none where the list is elided or odd, or names ranks that no job has.

    Examples
    --------
    >>> members("[0, 1]"), members("[0, 1, ..., 7]"), members([2, 3])
    ((0, 1), (), (2, 3))
    """
    if isinstance(ranks, str):
        return tuple(int(n) for n in re.findall(r"\d+", ranks)) if _MEMBERS.fullmatch(ranks.strip()) else ()
    return tuple(int(n) for n in ranks) if all(type(n) is int and 0 <= n < 10**_DIGITS for n in ranks) else ()


def comm_of(args: CommArgs) -> Comm:
    """Return what the arguments of a kernel or of ``record_param_comms`` say; ``op`` is its name as recorded.

    A kernel may tell its process group and not its collective: ``op`` is then empty, until its name tells it.

    Examples
    --------
    >>> comm = comm_of(CommArgs(group="3", group_size=4))
    >>> comm.op, comm.group, comm.group_size
    ('', '3', 4)
    """
    return Comm(
        op=args.collective,
        group=str(args.group),
        group_name=args.group_name,
        group_size=small(args.group_size),
        ranks=members(args.ranks),
        in_elems=small(args.in_elems),
        out_elems=small(args.out_elems),
        dtype=args.dtype,
        seq=small(args.seq),
        src=small(args.src),
        dst=small(args.dst),
    )


def small(value: int) -> int:
    """Return a number that int64 holds, or -1."""
    return value if -_INT64 <= value < _INT64 else -1


def comm_of_range(name: str, dims: Any, types: Any) -> Comm | None:
    """Return what a range such as ``nccl:all_reduce`` with recorded shapes says of its first input.

    Examples
    --------
    >>> comm = comm_of_range("nccl:all_reduce", [[4, 8]], ["float"])
    >>> comm.in_elems, comm.dtype
    (32, 'float')
    >>> comm_of_range("forward", [[4, 8]], ["float"]) is None
    True
    """
    if not _COMM_RANGE.match(name):
        return None
    first = dims[0] if isinstance(dims, list) and dims else None
    kind = types[0] if isinstance(types, list) and types and isinstance(types[0], str) else ""
    return Comm(in_elems=small(_elements(first)), dtype=kind)


def _elements(dims: Any) -> int:
    """Number of elements of a tensor's shape, or of a list of shapes; -1 if there is none."""
    if not isinstance(dims, list) or not dims:
        return -1
    if all(isinstance(part, list) for part in dims):
        parts = [_elements(part) for part in dims]
        return -1 if -1 in parts else sum(parts)
    total = 1
    for length in dims:
        if type(length) is not int or length < 0 or total >= _INT64:
            return -1
        total *= length
    return total


def groups_of(header: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the process groups of ``distributedInfo`` by name, with their members.

    Examples
    --------
    >>> groups_of({"pg_config": [{"pg_name": "0", "ranks": [0, 1]}]})
    {'0': (0, 1)}
    """
    config = header.get("pg_config")
    if not isinstance(config, list):
        return {}
    groups = [group for group in config if isinstance(group, dict) and "pg_name" in group]
    return {
        str(group["pg_name"]): members(group["ranks"]) if isinstance(group.get("ranks"), str | list) else ()
        for group in groups
    }


class Comms:
    """Numbers communications, their operation in one spelling.

    Examples
    --------
    >>> comms = Comms(Classifier())
    >>> comms.number(Comm(op="allreduce", seq=4), "ncclDevKernel_Generic"), comms.table[0].op
    (0, 'all_reduce')
    """

    def __init__(self, classifier: Classifier) -> None:
        self._classifier = classifier
        self._numbers: dict[Comm, int] = {}
        self._ops: dict[str, str] = {}

    @property
    def table(self) -> tuple[Comm, ...]:
        """All communications by number."""
        return tuple(self._numbers)

    def number(self, comm: Comm, *names: str) -> int:
        """Return the number of a communication; its operation is told by its own word, else by the first name."""
        op = next((op for op in map(self._op, (comm.op, *names)) if op), comm.op)
        return self._numbers.setdefault(comm._replace(op=op), len(self._numbers))

    def _op(self, name: str) -> str:
        if name not in self._ops:
            self._ops[name] = self._classifier.op(name) if name else ""
        return self._ops[name]


def complete(
    device: Table,
    host: Table,
    names: Sequence[str],
    comms: Sequence[Comm],
    announced: Mapping[int, Comm],
    classifier: Classifier,
) -> tuple[NDArray[np.int32], tuple[Comm, ...]]:
    """Find what each communication of a device is.

    Parameters
    ----------
    device : mapping
        Columns kind, name, comm (index into ``comms``, -1 none), correlation, external.
    host : mapping
        Columns start, duration, name, lane, correlation, external, comm.
    names, comms
        Names; communications as kernels and ranges tell them.
    announced : mapping of int to Comm
        What ``record_param_comms`` tells, by its External id.
    classifier : Classifier

    Returns
    -------
    int32 (n,), tuple of Comm
        Index into the communications per device row, -1 where it is none.
    """
    numbers = Comms(classifier)
    index = np.full(len(device["kind"]), -1, np.int32)
    rows = np.flatnonzero((device["kind"] == Kind.COMM) | (device["comm"] >= 0))
    launches = _launches(host, device["correlation"][rows]) if len(rows) else {}
    ranges = _Ranges(host)
    for row in rows.tolist():
        name, correlation = names[device["name"][row]], int(device["correlation"][row])
        own = comms[device["comm"][row]] if device["comm"][row] >= 0 else Comm()
        if own.op:
            index[row] = numbers.number(own, name)
            continue
        launch = launches.get(correlation, -1)
        operators = [int(device["external"][row])] + ([int(host["external"][launch])] if launch >= 0 else [])
        # An External id equal to the correlation is not an operator's.
        comm = next((announced[id_] for id_ in operators if id_ != correlation and id_ in announced), None)
        around = ranges.around(launch) if comm is None else -1
        if around >= 0:
            index[row] = numbers.number(_with(comms[host["comm"][around]], own), names[host["name"][around]], name)
        else:
            index[row] = numbers.number(_with(comm or Comm(), own), name)
    return index, numbers.table


def _with(comm: Comm, own: Comm) -> Comm:
    """Complete what an operator or a range tells by what the kernel itself tells; the kernel's word counts."""
    unknown = Comm()
    return comm._replace(**{k: v for k, v in own._asdict().items() if v != getattr(unknown, k)})


def _launches(host: Table, correlations: Int) -> dict[int, int]:
    """First host row of each of some correlations."""
    correlations = distinct(correlations[correlations >= 0])
    if not len(correlations):
        return {}
    of_host = host["correlation"]
    nearest = correlations[np.minimum(np.searchsorted(correlations, of_host), len(correlations) - 1)]
    # The last entry of a dictionary counts: backwards, so that it is the first row.
    rows = np.flatnonzero(nearest == of_host)[::-1]
    return dict(zip(of_host[rows].tolist(), rows.tolist(), strict=True))


class _Ranges:
    """Host ranges that tell of a communication, by thread and start."""

    def __init__(self, host: Table) -> None:
        self._host = host
        rows = np.flatnonzero(host["comm"] >= 0)
        self._rows = rows[np.lexsort((host["start"][rows], host["lane"][rows]))]
        self._lanes = host["lane"][self._rows]
        self._starts = host["start"][self._rows]
        self._ends = self._starts.astype(np.int64) + host["duration"][self._rows]

    def around(self, launch: int) -> int:
        """Host row of the innermost range around a launch, -1 if there is none."""
        if launch < 0 or not len(self._rows):
            return -1
        lane, moment = int(self._host["lane"][launch]), int(self._host["start"][launch])
        first, stop = np.searchsorted(self._lanes, [lane, lane + 1])
        last = first + int(np.searchsorted(self._starts[first:stop], moment, side="right"))
        for i in range(last - 1, max(first, last - _DEPTH) - 1, -1):
            if self._ends[i] >= moment:
                return int(self._rows[i])
        return -1

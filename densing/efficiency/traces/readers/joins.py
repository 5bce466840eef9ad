"""Which words of a trace belong to a communication that says nothing of itself.

In order: the arguments of the kernel; ``record_param_comms``, the operator whose ``External id`` the kernel or its
launch carries; the range such as ``nccl:all_reduce`` inside which the launch lies; the kernel's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from densing.efficiency.timeline import Comm, Kind

Table = Mapping[str, NDArray[Any]]
# Ranges of communications nest two or three deep (coalesced calls).
_DEPTH = 8


class Namer(Protocol):
    """Tells which collective a name means."""

    def op(self, name: str) -> str:
        """Return ``all_reduce``, ...; empty if the name does not tell."""


class Comms:
    """Numbers communications, their operation in one spelling.

    Examples
    --------
    >>> class Rules:
    ...     def op(self, name): return "all_reduce" if "allreduce" in name.lower() else ""
    >>> comms = Comms(Rules())
    >>> comms.number(Comm(op="allreduce", seq=4), "ncclDevKernel_Generic"), comms.table[0].op
    (0, 'all_reduce')
    """

    def __init__(self, rules: Namer) -> None:
        self._rules = rules
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
            self._ops[name] = self._rules.op(name) if name else ""
        return self._ops[name]


def complete(
    device: Table, host: Table, names: Sequence[str], told: list[Comm], announced: Mapping[int, Comm], rules: Namer
) -> tuple[NDArray[np.int32], tuple[Comm, ...]]:
    """Find what each communication of a device is.

    Parameters
    ----------
    device : mapping
        Columns kind, name, comm (index into ``told``, -1 none), correlation, external.
    host : mapping
        Columns start, duration, name, lane, correlation, external, comm.
    names, told
        Names; communications as kernels and ranges tell them.
    announced : mapping of int to Comm
        What ``record_param_comms`` tells, by its External id.
    rules : Namer

    Returns
    -------
    int32 (n,), tuple of Comm
        Index into the communications per device row, -1 where it is none.
    """
    comms = Comms(rules)
    found = np.full(len(device["kind"]), -1, np.int32)
    rows = np.flatnonzero((device["kind"] == Kind.COMM) | (device["comm"] >= 0))
    launches = _launches(host, device["correlation"][rows]) if len(rows) else {}
    ranges = _Ranges(host)
    for row in rows.tolist():
        name = names[device["name"][row]]
        own = told[device["comm"][row]] if device["comm"][row] >= 0 else Comm()
        if own.op:
            found[row] = comms.number(own, name)
            continue
        launch = launches.get(int(device["correlation"][row]), -1)
        comm = _announced(device, host, row, launch, announced)
        around = ranges.around(launch) if comm is None else -1
        if around >= 0:
            found[row] = comms.number(_with(told[host["comm"][around]], own), names[host["name"][around]], name)
        else:
            found[row] = comms.number(_with(comm or Comm(), own), name)
    return found, comms.table


def _with(comm: Comm, own: Comm) -> Comm:
    """Complete what an operator or a range tells by what the kernel itself tells; the kernel's word counts."""
    unknown = Comm()
    return comm._replace(**{k: v for k, v in own._asdict().items() if v != getattr(unknown, k)})


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Return values in order, each once (as ``np.unique``, which loads numpy's masked arrays for it).

    Examples
    --------
    >>> distinct(np.array([3, 1, 3]))
    array([1, 3])
    """
    values = np.sort(values)
    return values[np.concatenate(([True], values[1:] != values[:-1]))] if len(values) else values


def _launches(host: Table, wanted: NDArray[np.int64]) -> dict[int, int]:
    """First host row of each wanted correlation."""
    wanted = distinct(wanted[wanted >= 0])
    if not len(wanted):
        return {}
    correlation = host["correlation"]
    nearest = wanted[np.minimum(np.searchsorted(wanted, correlation), len(wanted) - 1)]
    rows = np.flatnonzero(nearest == correlation)[::-1]
    return dict(zip(host["correlation"][rows].tolist(), rows.tolist(), strict=True))


def _announced(device: Table, host: Table, row: int, launch: int, announced: Mapping[int, Comm]) -> Comm | None:
    """What the operator that led to a kernel tells; an External id equal to the correlation is no operator's."""
    correlation = int(device["correlation"][row])
    candidates = [int(device["external"][row])] + ([int(host["external"][launch])] if launch >= 0 else [])
    return next((announced[i] for i in candidates if i != correlation and i in announced), None)


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

"""What a trace says of each communication: arguments of the kernel, of its operator, or of the range around it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from densing.efficiency.timeline import Comm
from densing.efficiency.traces.readers.structs import CommArgs

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
    named = [group for group in config if isinstance(group, dict) and "pg_name" in group]
    return {
        str(group["pg_name"]): members(group["ranks"]) if isinstance(group.get("ranks"), str | list) else ()
        for group in named
    }

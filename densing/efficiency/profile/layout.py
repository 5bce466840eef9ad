"""How a run's ranks are laid out: tensor, pipeline, data, context and expert parallelism, read off its process groups.

A process group is one line of a grid of ranks; lines with the same step between members (stride) and the same length
are of one dimension. What a dimension is stands in the groups' description where a framework writes one: ``mesh_tp``
(PyTorch's DeviceMesh, so torchtitan), ``TENSOR_MODEL_PARALLEL_GROUP`` (Megatron-LM). Else membership and traffic tell:
messages between two ranks are a pipeline's, all-to-alls are of experts, and of two dimensions that remain the one of
nearer ranks is tensor parallelism, since it communicates in every layer. DeepSpeed describes none of its groups. What
neither tells is left open.

Source: names as in pytorch/pytorch (``torch/distributed/device_mesh.py``: ``mesh_`` and the dimension) and
NVIDIA/Megatron-LM (``megatron/core/parallel_state.py``: ``group_desc``).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

from msgspec.structs import replace

from densing.core import Record
from densing.efficiency.timeline import CollectiveSummary, Group

KINDS = {"dp": "data", "cp": "context", "sp": "sequence", "tp": "tensor", "pp": "pipeline", "ep": "expert"}
"""Kinds of parallelism, and the adjective of each."""
_WORDS = {
    **{kind: kind for kind in KINDS},
    **{word: kind for kind, word in KINDS.items()},
    **dict.fromkeys(("fsdp", "efsdp", "ddp", "shard", "replicate"), "dp"),
    **dict.fromkeys(("etp",), "tp"),
    "pipe": "pp",
}
_MESSAGES = {"send", "recv", "send_recv", "p2p_copy"}


class Dimension(Record, frozen=True):
    """The process groups of one dimension of a run's grid of ranks, and what went over them.

    Attributes
    ----------
    kind : str
        A key of :data:`KINDS`, several with plus signs, ``dp or tp``, or empty where nothing tells.
    known_by : {"name", "members", ""}
    names : tuple of str
        Descriptions of the groups, else their names; some of them.
    size, stride, groups : int
        Members of a group, step from one to the next (-1 unknown or uneven), and how many such groups.
    ops : tuple of str
        Operations, the longest first.
    count, bytes : int
        Calls and bytes, summed over ranks.
    total_ns, exposed_ns : int
        Lengths of unions by operation and group, summed over ranks.
    """

    kind: str
    known_by: Literal["name", "members", ""]
    names: tuple[str, ...]
    size: int
    stride: int
    groups: int
    ops: tuple[str, ...]
    count: int
    bytes: int
    total_ns: int
    exposed_ns: int


MOST_NAMES = 4
Part = tuple[int, Sequence[Group], Sequence[CollectiveSummary]]


def find_layout(parts: Iterable[Part]) -> tuple[Dimension, ...]:
    """Find the dimensions of a run's grid of ranks.

    Parameters
    ----------
    parts : iterable of (rank, groups, summaries)
        Of each rank the groups of its communications, and these by operation and group.

    Returns
    -------
    tuple of Dimension
        Most exposed first; groups of one rank are left out.

    Examples
    --------
    >>> def row(op, group):
    ...     return CollectiveSummary(op, group.name, group.label, group.size, 4, 4, 4000, 90, 30, 60, 90, None, None)
    >>> near, far = Group("1", "mesh_tp", 2, (0, 1)), Group("2", "", 2, (0, 2))
    >>> found = find_layout([(0, (near, far), (row("all_reduce", near), row("send", far)))])
    >>> [(one.kind, one.known_by, one.stride) for one in found]
    [('pp', 'members', 2), ('tp', 'name', 1)]
    """
    rows: defaultdict[tuple[str, int, int], list[tuple[Group, CollectiveSummary]]] = defaultdict(list)
    world = 1
    for rank, groups, summaries in parts:
        known = {(group.name, group.label, group.size): group for group in groups}
        world = max(world, rank + 1, *(group.size for group in groups), 1)
        for row in summaries:
            group = known[row.group, row.group_label, row.group_size]
            kind = kind_of(group.label) or kind_of(group.name)
            if group.size != 1:
                rows[kind, group.size, stride_of(group.ranks)].append((group, row))
    found = [_dimension(*key, members) for key, members in rows.items()]
    return tuple(sorted(_inferred(found, world), key=lambda one: (-one.exposed_ns, -one.total_ns, one.kind)))


def kind_of(name: str) -> str:
    """Return the kind of parallelism that a group's name or description tells; empty where it tells none.

    Examples
    --------
    >>> [kind_of(name) for name in ("mesh_dp_shard_cp", "TENSOR_MODEL_PARALLEL_GROUP", "DATA_PARALLEL_GROUP_WITH_CP")]
    ['dp+cp', 'tp', 'dp+cp']
    >>> [kind_of(name) for name in ("EXPERT_DATA_PARALLEL_GROUP", "MODEL_PARALLEL_GROUP", "default_pg", "mesh_dim_0")]
    ['dp', 'tp+pp', '', '']
    """
    words = re.split(r"[\W_]+", name.lower())
    kinds = {_WORDS[word] for word in words if word in _WORDS}
    if "expert" in words and len(kinds) > 1:
        # The experts' own data or tensor parallelism.
        kinds.remove("ep")
    if not kinds and "model" in words:
        kinds = {"tp", "pp"}
    return "+".join(kind for kind in KINDS if kind in kinds)


def stride_of(ranks: Sequence[int]) -> int:
    """Return the step between the members of a group; -1 where they are unknown or unevenly apart.

    Examples
    --------
    >>> stride_of((0, 4, 8)), stride_of((0, 1, 4, 5)), stride_of(())
    (4, -1, -1)
    """
    ordered = sorted(ranks)
    steps = {after - before for before, after in pairwise(ordered)}
    return steps.pop() if len(steps) == 1 else -1


def _dimension(kind: str, size: int, stride: int, rows: Sequence[tuple[Group, CollectiveSummary]]) -> Dimension:
    longest: defaultdict[str, int] = defaultdict(int)
    for _, row in rows:
        longest[row.op] += row.total_ns
    # Ranks number their groups each on its own: members tell them apart, where known.
    groups = {group.ranks or group.name for group, _ in rows}
    names = dict.fromkeys(group.label or group.name for group, _ in rows)
    return Dimension(
        kind,
        "name" if kind else "",
        tuple(names)[:MOST_NAMES],
        size,
        stride,
        len(groups),
        tuple(sorted(longest, key=lambda op: -longest[op])),
        sum(row.count for _, row in rows),
        sum(row.bytes for _, row in rows),
        sum(row.total_ns for _, row in rows),
        sum(row.exposed_ns for _, row in rows),
    )


def _inferred(found: Sequence[Dimension], world: int) -> list[Dimension]:
    """Tell the kinds of dimensions without a telling name by traffic, then by what remains."""
    named = [one for one in found if one.kind]
    open_: list[Dimension] = []
    for one in found:
        if not one.kind:
            kind = "pp" if one.ops[0] in _MESSAGES else "ep" if one.ops[0] == "all_to_all" else ""
            (named if kind else open_).append(replace(one, kind=kind, known_by="members" if kind else ""))
    # Groups of all ranks beside others carry what is common to all: a loss, a flag.
    lines = [one for one in open_ if one.stride > 0 and one.size < world]
    if not lines and not named:
        lines = [one for one in open_ if one.size in (world, -1)]
    taken = {kind for one in named for kind in one.kind.split("+")}
    left = [kind for kind in ("tp", "dp") if kind not in taken]
    lines.sort(key=lambda one: one.stride)
    if len(lines) == 1 and (lines[0].size == world or left == ["dp"]):
        kinds = ["dp"]
    elif len(lines) == 1:
        kinds = [" or ".join(reversed(left))]
    else:
        kinds = left if len(lines) == len(left) else []
    told = dict(zip(map(id, lines), kinds, strict=False))
    return named + [replace(one, kind=told[id(one)], known_by="members") if told.get(id(one)) else one for one in open_]

"""Ranks in equal groups that shard among themselves, and the groups across them."""

from __future__ import annotations

import torch.distributed as dist

from densing.core import InputError


def members(world_size: int, inner: int) -> tuple[list[list[int]], list[list[int]]]:
    """Return the ranks of the groups of ``inner`` neighbours, and of the groups across: the i-th of each.

    Raises
    ------
    InputError
        When the ranks do not fall into such groups.

    Examples
    --------
    >>> members(4, 2)
    ([[0, 1], [2, 3]], [[0, 2], [1, 3]])
    """
    if inner < 1 or world_size % inner:
        raise InputError(f"inner={inner}: {world_size} ranks do not fall into groups of that size")
    within = [list(range(begin, begin + inner)) for begin in range(0, world_size, inner)]
    return within, [list(range(first, world_size, inner)) for first in range(inner)]


def split_groups(inner: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """Make this rank's group of ``inner`` neighbours (a node, say), and its group of peers in the other ones.

    Every rank must call it. Hand them to ``CO2(..., inner_group=..., group=...)``.

    Returns
    -------
    within, across : ProcessGroup

    Raises
    ------
    InputError
        When the ranks do not fall into such groups.
    """
    rank = dist.get_rank()
    mine = []
    for side in members(dist.get_world_size(), inner):
        made = [(ranks, dist.new_group(ranks)) for ranks in side]
        mine.append(next(group for ranks, group in made if rank in ranks))
    return mine[0], mine[1]

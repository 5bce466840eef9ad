"""The group a rank averages over, also where there is none (a process alone), and groups within groups."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from densing.core import InputError
from densing.efficiency.parallel.data_parallel.flat import Flat, local
from densing.efficiency.parallel.distributed import comm

Waiting = Callable[[], AbstractContextManager[None]]
"""Context manager around every wait; see :class:`densing.efficiency.parallel.distributed.loop.Clock`."""

Combine = Callable[[Sequence[torch.Tensor]], torch.Tensor]
"""Gathers every rank's row of bytes into one tensor."""


class Link:
    """Communication of a rank with the others of its group.

    Parameters
    ----------
    group : ProcessGroup or DeviceMesh, optional
        A mesh has one dimension. None: all ranks; without ``torch.distributed`` this process alone.
    waiting : callable
        Gives a context for the time in which this thread stands still.
    within : Link, optional
        Ranks that are equal to this one: only the first of them takes part, and hands on what came of it.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | DeviceMesh | None = None,
        waiting: Waiting = nullcontext,
        within: Link | None = None,
    ) -> None:
        group = group.get_group() if isinstance(group, DeviceMesh) else group
        self.group, self.waiting = group, waiting
        self.within: Link | None = within if within is not None and within.size > 1 else None
        grouped = dist.is_available() and dist.is_initialized()
        if group is not None and not grouped:
            raise InputError("a process group was given, but torch.distributed is not initialised in this process")
        self.size: int = dist.get_world_size(group) if grouped else 1
        if self.size < 1:
            raise InputError("this rank is not in the process group it was given")
        self.rank = dist.get_rank(group) if grouped else 0

    @property
    def speaks(self) -> bool:
        """Whether this rank itself takes part in the group's agreements."""
        return self.size > 1 and (self.within is None or self.within.rank == 0)

    def start(self, tensor: torch.Tensor, op: comm.Op | Literal["rows"] = "mean") -> comm.Handle:
        """Start to replace ``tensor`` by its mean or sum; it belongs to the operation until :meth:`arrive`.

        ``rows``: it is as many equal rows as there are ranks, one after the other, and each rank's own comes from it.
        """
        if not self.speaks:
            return comm.Handle(None)
        if op == "rows":
            own = tensor.view(self.size, -1)[self.rank].clone()
            return comm.all_gather_into(tensor, own, group=self.group)
        return comm.all_reduce(tensor, op=op, group=self.group)

    def wait(self, handle: comm.Handle) -> None:
        """Wait until an operation is done."""
        with self.waiting():
            handle.wait()

    def arrive(self, handle: comm.Handle, tensor: torch.Tensor) -> None:
        """Wait until the operation on ``tensor`` is done and its result delivered."""
        self.wait(handle)
        if self.size > 1 and self.within is not None:
            with self.waiting():
                self.within.copy_first([tensor])

    def mean(self, tensor: torch.Tensor) -> comm.Handle:
        """Replace ``tensor`` by its mean; return when done."""
        handle = self.start(tensor)
        self.arrive(handle, tensor)
        return handle

    def gathered(self, data: torch.Tensor, combine: Combine) -> torch.Tensor:
        """Return ``combine`` of every rank's row of bytes.

        It sees the rows alone, and makes the same of them on every rank: ranks of one process do it once.
        """
        return combine(self.gather(data))

    def gather(self, data: torch.Tensor) -> list[torch.Tensor]:
        """Return every rank's row of bytes, in the order of the ranks; they may be of different lengths.

        Parameters
        ----------
        data : Tensor of uint8
        """
        rows, lengths = self.rows(data)
        return [row[:count] for row, count in zip(rows, lengths.tolist(), strict=True)]

    def rows(self, data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return every rank's row of bytes, with zeros to the length of the longest, and their lengths.

        Lengths travel first, then rows as long as the longest.

        Parameters
        ----------
        data : Tensor of uint8

        Returns
        -------
        rows : Tensor of uint8, shape (ranks, longest)
        lengths : Tensor of int64, shape (ranks,)
        """
        length = torch.tensor([len(data)], dtype=torch.int64, device=data.device)
        if self.size == 1:
            return data[None], length
        lengths = length.new_empty(self.size)
        self.wait(comm.all_gather_into(lengths, length, group=self.group))
        longest = int(lengths.max())
        padded = torch.zeros(longest, dtype=torch.uint8, device=data.device)
        padded[: len(data)] = data
        rows = padded.new_empty(self.size * longest)
        if longest:
            self.wait(comm.all_gather_into(rows, padded, group=self.group))
        return rows.view(self.size, longest), lengths

    def exchange(self, words: str) -> list[str]:
        """Return every rank's words, in the order of the ranks: what they must agree on before and between steps."""
        # Where tensors of the CPU cannot travel.
        device = "cuda" if self.size > 1 and dist.get_backend(self.group) == "nccl" else "cpu"
        rows = self.gather(torch.tensor(list(words.encode()), dtype=torch.uint8, device=device))
        return [bytes(row.tolist()).decode() for row in rows]

    def agree(self, problem: str) -> str:
        """Return this rank's problem, or else the first one of another rank; empty where none has any."""
        problems = self.exchange(problem)
        other = next((rank for rank, each in enumerate(problems) if each), None)
        return problem or ("" if other is None else f"rank {self.everywhere(other)}: {problems[other]}")

    def members(self) -> list[int]:
        """Return the numbers among all ranks of those of this group."""
        return [self.everywhere(rank) for rank in range(self.size)]

    def everywhere(self, rank: int) -> int:
        """Return the number among all ranks of one of this group."""
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def copy_first(self, tensors: list[torch.Tensor]) -> None:
        """Give every rank the tensors of the group's first rank."""
        if self.size == 1:
            return
        source = dist.get_global_rank(self.group, 0) if self.group is not None else 0
        for tensor in tensors:
            # Collectives take neither truth values nor gaps between elements (convolutions in channels-last).
            buffer = tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor.contiguous()
            comm.broadcast(buffer, source, group=self.group).wait()
            tensor.copy_(buffer)


def start_alike(
    name: str,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    links: Sequence[Link],
    *,
    sharded: bool = False,
) -> Flat:
    """Return the parameters as a vector, once all ranks have the same of them; give all those of the first rank.

    Every rank must call it. Whatever is wrong on one rank ends all of them, before the first step.

    Parameters
    ----------
    name : str
        Of the method, for messages.
    model, optimizer
        This rank's; None where the optimizer is made later.
    links : sequence of Link
        Over all of which ranks must agree, and buffers and parameters are copied, in this order.
    sharded : bool
        Whether the model may be sharded over ranks of other groups.

    Raises
    ------
    InputError
        On all ranks: when a model cannot be averaged, an optimizer is not its model's, or ranks differ in the shapes or
        types of their trainable parameters.
    """
    problem, flat = "", None
    try:
        flat = Flat(model, links[-1].members() if sharded else None)
        if optimizer is not None:
            flat.check_optimizer(optimizer)
    except InputError as error:
        problem = str(error)
    named = [(each, p) for each, p in model.named_parameters() if p.requires_grad]
    mine = [f"{each} {tuple(p.shape)} of {str(p.dtype).removeprefix('torch.')}" for each, p in named]
    for link in links:
        problem = link.agree(problem)
        # Who has a problem stays until all others know.
        kinds = [json.loads(words) for words in link.exchange(json.dumps(mine))]
        odd = next((rank for rank, each in enumerate(kinds) if each != kinds[0]), None)
        if odd is not None and not problem:
            theirs, first = kinds[odd], kinds[0]
            at = next((at for at, (a, b) in enumerate(zip(theirs, first, strict=False)) if a != b), None)
            pair = (f"{len(theirs)} tensors", str(len(first))) if at is None else (theirs[at], first[at])
            problem = (
                f"ranks have different trainable parameters: rank {link.everywhere(odd)} has {pair[0]}, "
                f"rank {link.everywhere(0)} has {pair[1]}; build the same model on every rank"
            )
    if problem or flat is None:
        raise InputError(f"{name}: {problem}")
    everything = [*(local(p) for p in model.parameters()), *(b for b in model.buffers() if b.numel())]
    for link in links:
        link.copy_first(everything)
    return flat


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
        raise InputError(f"inner={inner}: {world_size} ranks cannot be divided into groups of that size")
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
        groups = [(ranks, dist.new_group(ranks)) for ranks in side]
        mine.append(next(group for ranks, group in groups if rank in ranks))
    return mine[0], mine[1]

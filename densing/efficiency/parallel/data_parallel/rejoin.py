"""Checkpoints at the ends of rounds, from which any number of ranks may go on: for ranks that leave and come back."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp

from densing.core import InputError
from densing.efficiency.parallel.data_parallel.rounds import Rounds
from densing.efficiency.parallel.data_parallel.state import RankState, unpacked

_ITEM = "progress"


class RoundCheckpoints:
    """Saves the states of all ranks at the end of a round, and resumes from the newest one on any number of ranks.

    Who is there is torch's business: its elastic agent (``torchrun --nnodes 2:4 --max-restarts 3``) ends *all* workers
    when one fails, or an agent joins or leaves, forms a new group of those that are there, and starts all workers
    again. They come here, and go on from the last round that had ended.

    At that place all ranks have the same anchor and outer momentum. What is a rank's own (the inner optimizer's state,
    residuals, the generator of random numbers) goes to the rank of the same number; numbers that were not there take a
    copy of those of rank modulo the old number of ranks, and what a rank that is gone had for its own is dropped. On as
    many ranks as before, training is the unbroken one to the last bit.

    Parameters
    ----------
    method : Rounds
        A wrapper of :mod:`densing.training` that works in rounds.
    folder : path
        On a disk that all ranks see.
    keep : int
        Newest checkpoints that stay.
    **more
        Whatever else has ``state_dict`` and ``load_state_dict``.

    Raises
    ------
    InputError
        When the method does not work in rounds, or its model is sharded.

    Examples
    --------
    >>> import tempfile, torch
    >>> from densing.efficiency.systems import LocalSGD
    >>> def local():
    ...     model = torch.nn.Linear(2, 1)
    ...     return LocalSGD(model, torch.optim.SGD(model.parameters(), lr=0.1), tau=2)
    >>> folder, first = tempfile.mkdtemp(), local()
    >>> checkpoints = RoundCheckpoints(first, folder)
    >>> for _ in range(5):
    ...     first.model(torch.ones(1, 2)).sum().backward()
    ...     _ = first.step()
    ...     _ = checkpoints.save()
    >>> again = local()
    >>> RoundCheckpoints(again, folder).load(), again.count
    (2, 0)
    """

    def __init__(self, method: Rounds, folder: str | Path, *, keep: int = 2, **more: Any) -> None:
        if not isinstance(method, Rounds):
            raise InputError(
                f"{type(method).__name__} has no rounds, so there is no place where ranks are alike; save a RankState, "
                "and resume on as many ranks"
            )
        if method.flat.sharded:
            raise InputError(
                f"{type(method).__name__}: the model is sharded, and shards fit as many ranks as before only; save a "
                "RankState"
            )
        self.method, self.folder, self.keep = method, Path(folder), keep
        self.progress = RankState(method, **more)

    def save(self) -> bool:
        """Save if a round has just ended; every rank must call it after every step.

        Returns
        -------
        bool
            Whether it has.
        """
        if self.method.count:
            return False
        place = self.folder / f"round{self.method.round:08d}"
        with _alone_or_among():
            dcp.save({_ITEM: self.progress}, checkpoint_id=place, process_group=self.method.link.group)
        if self.method.link.rank == 0:
            for older in self._complete()[: -self.keep]:
                shutil.rmtree(older, ignore_errors=True)
        return True

    def load(self) -> int:
        """Go on from the newest complete checkpoint, if there is any; every rank must call it.

        Returns
        -------
        int
            Rounds that have ended.

        Raises
        ------
        InputError
            On all ranks, when it is another method's or model's; or of another number of ranks, where each has weights
            of its own.
        """
        link = self.method.link
        newest = [path.name for path in self._complete()[-1:]]
        # One rank looks, so that all load the same.
        name = link.exchange("".join(newest))[0]
        if not name:
            return 0
        place = self.folder / name
        keys = dcp.FileSystemReader(place).read_metadata().state_dict_metadata
        ranks = sum(key.startswith(f"{_ITEM}.rank") for key in keys)
        if ranks != link.size and getattr(self.method, "personal", False):
            raise InputError(
                f"{place}: written by {ranks} ranks, and this run has {link.size}; every rank of "
                f"{type(self.method).__name__} has weights of its own, so resume on as many"
            )
        part = _Part(f"rank{link.rank % ranks}")
        with _alone_or_among():
            dcp.load({_ITEM: part}, checkpoint_id=place, process_group=link.group)
        saved = unpacked(part.data)
        if ranks != link.size:
            saved["method"] = {**saved["method"], "rank": link.rank, "ranks": link.size}
        self.progress.restore(saved)
        return self.method.round

    def _complete(self) -> list[Path]:
        """Return the checkpoints that all ranks have written, the newest last: torch writes this file at the end."""
        return sorted(path.parent for path in self.folder.glob("round*/.metadata"))


@contextmanager
def _alone_or_among() -> Iterator[None]:
    """Silence torch's warning that a process without torch.distributed saves alone: it means to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield


class _Part:
    """One rank's bytes of a checkpoint."""

    def __init__(self, name: str) -> None:
        self.name, self.data = name, b""

    def state_dict(self) -> dict[str, bytes]:
        return {self.name: self.data}

    def load_state_dict(self, state: Mapping[str, bytes]) -> None:
        self.data = state[self.name]

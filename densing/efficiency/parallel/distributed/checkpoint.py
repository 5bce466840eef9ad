"""Checkpoints of a run with several ranks: a step counts once every rank's file is there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from densing.core import ArtefactError, InputError, replacing
from densing.efficiency.parallel.distributed import folder
from densing.efficiency.parallel.distributed.spec import RunEnv, identity


class Checkpoints:
    """The checkpoints of one rank, under ``OUT/checkpoints/step00000016/rank00000.pt``; ``OUT`` is shared by all ranks.

    Parameters
    ----------
    env : RunEnv
    """

    def __init__(self, env: RunEnv) -> None:
        self.env, self.out = env, Path(env.spec.out)

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Write this rank's state after ``step`` steps, whole or not at all; drop its older ones that nobody needs.

        Raises
        ------
        InputError
            When the place cannot be written to, or the disk is full.
        """
        whole = {"spec": identity(self.env.spec), "world_size": self.env.world_size, "step": step, "state": state}
        with replacing(self._file(step)) as temporary:
            try:
                torch.save(whole, temporary)
            except RuntimeError as error:
                # torch reports a full disk as an error of its own file writer.
                raise InputError(f"{temporary.parent}: cannot write a checkpoint ({error}); check space") from error
        self._drop(self.newest())

    def newest(self) -> int:
        """Return the newest step that every rank has written; -1 if there is none."""
        return folder.newest_checkpoint(self.out, self.env.world_size)

    def load(self, step: int) -> dict[str, Any]:
        """Return this rank's state after ``step`` steps.

        Raises
        ------
        ArtefactError
            When the file is damaged.
        InputError
            When another run wrote it.
        """
        path = self._file(step)
        try:
            # Tensors and plain values only: a checkpoint is data, never code.
            whole = torch.load(path, map_location="cpu", weights_only=True)
            found, world, state = whole["spec"], whole["world_size"], dict(whole["state"])
        except Exception as error:
            raise ArtefactError(
                f"{path}: damaged checkpoint ({type(error).__name__}); delete {path.parent.name} and start anew"
            ) from error
        self._compare(path, {**found, "world_size": world})
        return state

    def _compare(self, path: Path, found: Mapping[str, Any]) -> None:
        ours = {**identity(self.env.spec), "world_size": self.env.world_size}
        other = sorted(name for name in ours if found.get(name) != ours[name])
        if other:
            name = other[0]
            raise InputError(
                f"{path}: written with {name}={found.get(name)!r}, this run has {ours[name]!r}; resume with the same "
                "options, or choose another --out"
            )

    def _drop(self, newest: int) -> None:
        """Remove own files older than the newest complete step; a later one is never complete before it."""
        for step in folder.checkpoint_steps(self.out):
            if step < newest:
                self._file(step).unlink(missing_ok=True)
                try:
                    self._file(step).parent.rmdir()
                except OSError:
                    # Another rank's file is still there; that rank removes the folder.
                    continue

    def _file(self, step: int) -> Path:
        return folder.checkpoint_file(self.out, step, self.env.rank)

"""Where a run stands: written atomically, so that a killed run loses at most one checkpoint interval."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from densing.core import ArtefactError


def save(state: dict[str, Any], path: Path) -> None:
    """Write a state: the file is whole, old or absent, after a loss of power too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            torch.save(state, stream)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def load(path: Path, device: str) -> dict[str, Any] | None:
    """Return the state at ``path``, or None when there is none.

    Raises
    ------
    ArtefactError
        When the file is damaged.
    """
    if not path.exists():
        return None
    try:
        # Tensors and plain values only: a checkpoint is data, never code.
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        raise ArtefactError(f"{path}: damaged checkpoint ({type(error).__name__}); delete it to train again") from error
    return state

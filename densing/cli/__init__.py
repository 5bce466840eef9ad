"""The ``densing`` command: parse, call, show, write."""

from __future__ import annotations

import gc
from typing import Any

# Collecting what is only loaded, every 700 objects and again when leaving, took a tenth of a quick command's time.
gc.set_threshold(50_000)

from densing.cli.output import build, main  # noqa: E402

__all__ = ["app", "main"]


def __getattr__(name: str) -> Any:
    """Build the whole command tree when somebody asks for it; ``densing COMMAND`` loads one command only."""
    if name != "app":
        raise AttributeError(f"module 'densing.cli' has no attribute {name!r}")
    globals()["app"] = tree = build()
    return tree

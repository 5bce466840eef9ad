"""The ``densing`` command: parse, call, show, write."""

from __future__ import annotations

from typing import Any

from densing.cli.tree import build, main

__all__ = ["app", "main"]


def __getattr__(name: str) -> Any:
    """Build the whole command tree when somebody asks for it; ``densing COMMAND`` loads one command only."""
    if name != "app":
        raise AttributeError(f"module 'densing.cli' has no attribute {name!r}")
    globals()["app"] = tree = build()
    return tree

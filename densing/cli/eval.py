"""``densing eval``."""

from __future__ import annotations


def eval_() -> None:
    """To be written."""

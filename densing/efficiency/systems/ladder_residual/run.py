"""Ladder-Residual for real: a module's sum overlaps the next module's computation."""

from __future__ import annotations

from densing.efficiency.parallel import Schedule


class Late(Schedule):
    """A module's sum overlaps the next module's computation.

    Source: Zhang et al., arXiv 2501.06589.

    Parameters
    ----------
    ladder_layers : int, optional
        Only the last so many layers; None: all.
    """

    wiring = "ladder"

    def __init__(self, ladder_layers: int | None = None) -> None:
        self.ladder_layers = ladder_layers

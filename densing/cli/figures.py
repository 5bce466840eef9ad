"""Figures written by commands: pages, pictures, and a table of points for chart services."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from densing.cli.output import say

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@dataclass(frozen=True)
class Pictures:
    """Where a figure goes: the page of ``--html``, the pictures of ``--png`` and ``--svg``; false where nowhere."""

    html: Path | None
    png: Path | None
    svg: Path | None

    def __bool__(self) -> bool:
        return any((self.html, self.png, self.svg))

    def write(self, build: Callable[[Path], Path], draw: Callable[[], go.Figure], points: pd.DataFrame) -> None:
        """Write the page and the pictures that are asked for, and the points once beside the first picture or the page.

        Parameters
        ----------
        build : callable
            Writes the page.
        draw : callable
            Returns the figure of the pictures.
        points : pandas.DataFrame
            What the figure shows.
        """
        from densing.plots import write_figure, write_points

        if self.html is not None:
            say(f"wrote {build(self.html)}")
        files = [path for path in (self.png, self.svg) if path is not None]
        if files:
            figure = draw()
            for path in files:
                say(f"wrote {write_figure(figure, path)}")
        for path in [*files, *([] if self.html is None else [self.html])][:1]:
            say(f"wrote {write_points(points, path)}")

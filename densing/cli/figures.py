"""Figures that commands write: pictures, and the table beside each that a chart service reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from densing.cli.output import say

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


def write_pictures(
    figure: go.Figure | None, points: pd.DataFrame, *pictures: Path | None, page: Path | None = None
) -> None:
    """Write a figure where ``--png`` and ``--svg`` say, and its points once beside the first of these or the page."""
    from densing.plots import write_figure, write_points

    files = [path for path in pictures if path is not None]
    for path in files if figure is not None else ():
        say(f"wrote {write_figure(figure, path)}")
    for path in [*files, *([page] if page is not None else [])][:1]:
        say(f"wrote {write_points(points, path)}")

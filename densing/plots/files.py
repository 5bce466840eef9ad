"""A figure as a file: a picture, and beside it the numbers as a table that a chart service reads (Datawrapper, say)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from densing.core import UnavailableError, install_command, replacing, write_csv

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

WIDTH, SCALE = 1100, 2
"""Of a picture: CSS pixels, and of a .png how many pixels each has in a row."""


def write_figure(figure: go.Figure, path: Path | str) -> Path:
    """Write a figure as .png or .svg, whole or not at all.

    Parameters
    ----------
    figure : plotly.graph_objects.Figure
    path : path
        Its name says the form.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    UnavailableError
        Without the extra ``png`` (kaleido), or without the browser that kaleido draws with.
    """
    target = Path(path)
    try:
        import kaleido  # noqa: F401
    except ImportError as error:
        raise UnavailableError(
            f"{target}: pictures are drawn with kaleido, which is not installed: {install_command('png')}; "
            "--html needs nothing more, and its figures can be saved from the page"
        ) from error
    form = target.suffix.removeprefix(".")
    height = int(figure.layout.height or 480)
    try:
        drawn = figure.to_image(format=form, width=WIDTH, height=height, scale=SCALE if form == "png" else 1)
    except (RuntimeError, ValueError, OSError) as error:
        raise UnavailableError(
            f"{target}: kaleido could not draw it ({' '.join(str(error).split())[:200]}); it needs Chrome, which "
            "`plotly_get_chrome` installs"
        ) from error
    with replacing(target) as temporary:
        temporary.write_bytes(drawn)
    return target


def write_points(points: pd.DataFrame, figure: Path | str) -> Path:
    """Write what a figure shows as a table beside it, ``NAME-points.csv``: a row per mark, dates as ISO.

    Parameters
    ----------
    points : pandas.DataFrame
        Of :func:`density_points`, say.
    figure : path
        The figure's own file.
    """
    path = Path(figure)
    target = path.with_name(f"{path.stem}-points.csv")
    write_csv(points, target)
    return target

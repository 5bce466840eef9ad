"""Tables on a terminal: sizes people can read, names that stay text, and no column squeezed beyond reading.

:func:`emit_table` draws a DataFrame with rich; :func:`columns` aligns plain text, for commands that answer in a
fraction of a second: loading what draws would take longer than they do.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from densing.core import words

if TYPE_CHECKING:
    import pandas as pd

LIMITED = frozenset({"density", "n_eff"})
COUNTS = frozenset({"params", "tokens", "n_params", "n_eff", "n_eff_lo", "n_eff_hi"})
# Text folds, down to this width; figures and dates never do.
TEXT_WIDTH = 16
WIDEST_TEXT = 60
PADDING = 3


def visible(text: str) -> str:
    """Return text with what a terminal would obey (escapes, direction marks, line ends) written out.

    Examples
    --------
    >>> print(visible("\\x1b[31mred"))
    \\x1b[31mred
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def emit_table(frame: pd.DataFrame, title: str, bound: Iterable[object] = ()) -> None:
    """Print a table to stdout, with names kept as text (no markup from data).

    Columns come in order of importance: those that a narrow terminal has no room for are left out, and named.
    ``bound`` holds ``upper``, ``lower`` or nothing per row: densities and effective sizes that are limits say so.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = {str(name): [cell(value, str(name)) for value in frame[name]] for name in frame.columns}
    for name in LIMITED & cells.keys():
        cells[name] = [words.sign(side) + value for side, value in zip_longest(bound, cells[name], fillvalue="")]
    fixed = {str(name): frame[name].dtype.kind in "fiuM" for name in frame.columns}
    widths = {name: max(map(len, [name, *column])) for name, column in cells.items()}
    least = {name: width if fixed[name] else min(width, TEXT_WIDTH) for name, width in widths.items()}
    console = Console()
    if not (console.is_terminal or "COLUMNS" in os.environ):
        # Into a file or a pipe goes the whole table.
        console = Console(width=max(80, sum(min(width, WIDEST_TEXT) + PADDING for width in widths.values())))
    shown = fitting(least, console.width)
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in shown:
        numeric = frame[name].dtype.kind in "fiu"
        table.add_column(
            Text(visible(name)),
            justify="right" if numeric else "left",
            no_wrap=fixed[name],
            min_width=least[name],
            overflow="fold",
        )
    for row in zip(*(cells[name] for name in shown), strict=True):
        table.add_row(*map(Text, row))
    console.print(Text(visible(title), style="italic"))
    console.print(table)
    if hidden := [name for name in cells if name not in shown]:
        named = ", ".join(map(visible, hidden))
        Console(stderr=True).print(Text(f"No room for {named}: widen the terminal, or use --json."), soft_wrap=True)


def fitting(widths: dict[str, int], room: int) -> list[str]:
    """Return the columns that fit beside each other, the first always.

    Examples
    --------
    >>> fitting({"model": 10, "density": 8, "status": 12}, 24)
    ['model', 'density']
    """
    shown: list[str] = []
    used = 0
    for name, width in widths.items():
        if shown and used + width + PADDING > room:
            break
        shown.append(name)
        used += width + PADDING
    return shown


def cell(value: Any, column: str = "") -> str:
    """Return a cell as text: counts with a unit, dates without a time, four digits, a dash for nothing.

    Examples
    --------
    >>> cell(7.24e9, "n_params"), cell(0.61234), cell(float("inf")), cell(None)
    ('7.24 B', '0.6123', '∞', '–')
    """
    import pandas as pd

    if not isinstance(value, str) and words.is_missing(value):
        return words.MISSING
    if isinstance(value, pd.Timestamp):
        return words.day(value)
    if isinstance(value, float) and math.isinf(value):
        return "∞"
    if column in COUNTS and isinstance(value, int | float):
        # What rounds to a million is one; less has no unit.
        return words.size(value) if value >= 1e6 * (1 - 5e-4) else f"{value:.3g}"
    return f"{value:.4g}" if isinstance(value, float) else visible(str(value))


def width(most: int) -> int | None:
    """Return the columns to fold sentences to, at most ``most``; None where the output is no terminal's."""
    if "COLUMNS" in os.environ or (sys.stdout is not None and sys.stdout.isatty()):
        return min(max(shutil.get_terminal_size().columns, 40), most)
    return None


def columns(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Return lines with aligned columns: the first ``left`` to the left, the others to the right.

    Examples
    --------
    >>> print(chr(10).join(columns(("rank", "idle %"), [("0", "12.5"), ("10", "3.1")])))
    rank  idle %
    0       12.5
    10       3.1
    """
    table = [[visible(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[at]) for row in table) for at in range(len(header))]
    return [
        "  ".join(
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]

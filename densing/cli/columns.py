"""Small tables in plain text, for commands that answer in a fraction of a second."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

from densing.cli.table import visible

GAP = "  "


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
        GAP.join(
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def number(value: float | None, digits: int = 1) -> str:
    """Return a figure with fixed digits, a dash for none.

    Examples
    --------
    >>> number(12.345), number(None)
    ('12.3', '–')
    """
    return "–" if value is None else f"{value:,.{digits}f}"


def shortened(text: str, width: int) -> str:
    """Return a text cut to a width, with a mark where it was.

    Examples
    --------
    >>> shortened("ncclDevKernel_AllReduce", 12)
    'ncclDevKern…'
    """
    return text if len(text) <= width else text[: width - 1] + "…"


def middle_cut(text: str, width: int) -> str:
    """Return a sentence cut to a width in its middle: an endless name in it takes neither its subject nor its end.

    Examples
    --------
    >>> middle_cut("all_reduce in group pgpgpgpgpgpgpg: 8 calls", 32)
    'all_reduce in group p…g: 8 calls'
    """
    if len(text) <= width:
        return text
    tail = width // 3
    return f"{text[: width - tail - 1]}…{text[-tail:]}"


def milliseconds(value: float | None) -> str:
    """Return milliseconds with two decimals; below one with three digits, so that what is not zero never reads as zero.

    Examples
    --------
    >>> milliseconds(1234.567), milliseconds(0.0021), milliseconds(0.0), milliseconds(None)
    ('1,234.57', '0.0021', '0.00', '–')
    """
    return number(value, 2) if not value or abs(value) >= 1 else f"{value:.3g}"

"""Small tables in plain text, for commands that answer in a fraction of a second."""

from __future__ import annotations

from collections.abc import Sequence

from densing.cli.table import visible

GAP = "  "


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

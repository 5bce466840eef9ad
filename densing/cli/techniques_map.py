"""The map of where techniques pay off, in text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from densing.cli.table import columns

if TYPE_CHECKING:
    from densing.efficiency.techniques import Cell, RegimeMap

MARKS = {"wins": "+", "ties": "=", "loses": "-", "does not fit": "x", "does not apply": "–"}


def map_lines(found: RegimeMap) -> list[str]:
    """Return a table per technique: bandwidths down, batches across, the speed-up and what it amounts to."""
    names = list(dict.fromkeys(cell.technique for cell in found.cells))
    marks = ", ".join(f"{mark} {verdict}" for verdict, mark in MARKS.items())
    told = f"speed-up over {found.baseline} by bandwidth of the {found.link} link and batch; {marks}"
    parts = [line for name in names if name != found.baseline for line in _table(found, name)]
    return ["", told, *parts]


def _table(found: RegimeMap, name: str) -> Iterator[str]:
    cells = {(cell.bandwidth_gbps, cell.batch): cell for cell in found.cells if cell.technique == name}
    batches = sorted({batch for _, batch in cells})
    header = ("Gbit/s", *(f"batch {batch}" for batch in batches))
    rows = [
        (f"{bandwidth:g}", *(_mark(cells[bandwidth, batch]) for batch in batches))
        for bandwidth in sorted({bandwidth for bandwidth, _ in cells})
    ]
    yield ""
    yield f"{name}:"
    yield from columns(header, rows)


def _mark(cell: Cell) -> str:
    return MARKS[cell.verdict] if cell.speedup is None else f"{cell.speedup:.2f} {MARKS[cell.verdict]}"

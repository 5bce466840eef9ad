"""docs/results/gpu.md, from records: what was measured on a device, and nothing where no stage has run on one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.record import Record
from densing.core import InputError, decode, formatting, read_json, write_text
from densing.efficiency.systems import RECORDS
from densing.report import markdown

COMMITTED = "gpu-*"
"""Folders of committed records, one per device, below those of the systems."""
NOT_RUN = "Not run on a device."
LEFT_OUT = ("packages", "tests")
"""Tables that stay in the record."""
WITHIN = 0.08
"""Share by which the driver's figures may differ from a data sheet's, whose GB of memory are some of 2**30 bytes."""


def committed() -> list[Path]:
    """Return the committed records."""
    return sorted(RECORDS.glob(f"{COMMITTED}/*.json"))


def read_records(paths: Sequence[Path]) -> list[Record]:
    """Read records.

    Raises
    ------
    ArtefactError
        When one is damaged.
    InputError
        When one is of a small size: its figures are of a processor.
    """
    found = []
    for path in paths:
        one = decode(read_json(path), Record, str(path))
        if one.dry:
            raise InputError(f"{path}: a record of --dry, whose figures say nothing of a device; remove it")
        found.append(one)
    return found


def write_page(path: Path, folder: Path | None = None) -> Path:
    """Write the page of a folder's records, of the committed ones when left out."""
    paths = committed() if folder is None else sorted(folder.rglob("*.json"))
    write_text(path, page_text(read_records(paths)))
    return path


def page_text(records: Sequence[Record]) -> str:
    """Return the page."""
    command = "python -m benchmarks.gpu --page docs/results/gpu.md"
    head = f"# On a GPU\n\nWritten by `{command}`; [how to run it](../gpu.md).\n\n"
    if not records:
        return f"{head}{NOT_RUN}\n"
    return head + "\n".join(stage_text(one) for one in records)


def stage_text(one: Record) -> str:
    """Return the section of a stage."""
    device = one.device
    about = [
        f"{device.get('name') or 'no device'}, {formatting.number(device.get('memory_gb') or 0.0)} GB, driver "
        f"{device.get('driver') or 'unknown'}",
        *(f"{name} {version}" for name, version in one.versions.items()),
        f"commit {one.commit[:12] or 'unknown'}", f"{one.began}, {one.seconds:.0f} s",
    ]  # fmt: skip
    lines = [f"## {one.stage}: {one.status}", "", "; ".join(about) + "."]
    if one.reason:
        lines += ["", f"{one.status.capitalize()}: {one.reason}."]
    lines += [part for sentence in sentences(one) for part in ("", sentence)]
    for name, rows in one.figures.items():
        if name not in LEFT_OUT and rows:
            lines += ["", f"### {name.capitalize()}", "", table(rows)]
    return "\n".join(lines) + "\n"


def sentences(one: Record) -> list[str]:
    """Return what a stage's figures come to."""
    found = []
    if doubts := sheet_doubts(one):
        found.append(f"The data sheet of the cost model is contradicted: {'; '.join(doubts)}.")
    elif one.figures.get("data sheet"):
        found.append("The driver and the speeds reached contradict nothing in the cost model's data sheet.")
    if rows := one.figures.get("constants"):
        shares = ", ".join(f"{row['constant']} {row['measured'] / row['fitted']:.2f}" for row in rows if row["fitted"])
        found.append(f"Measured over fitted constants of this generation: {shares}.")
    if rows := one.figures.get("pieces"):
        planted = [row for row in rows if "planted_us" in row]
        if planted:
            worst = max(planted, key=lambda row: abs(row["error_us"]))
            found.append(
                f"Largest error of a profile beside the device's events, of copies and stalls that were planted: "
                f"{worst['error_us']:+.1f} µs a step ({worst['what']}, {worst['scene']})."
            )
    return found


def sheet_doubts(one: Record) -> list[str]:
    """Return in what respects a stage's measurements contradict the cost model's row of the device."""
    doubts = []
    for row in one.figures.get("data sheet", ()):
        if row["driver"] is not None and abs(row["driver"] / row["row"] - 1) > WITHIN:
            doubts.append(f"{row['figure']} is {row['row']:g} there and {row['driver']:g} by the driver")
    for row in one.figures.get("constants", ()):
        if row["constant"] in ("products", "memory", "attention") and row["measured"] > 1:
            doubts.append(f"{row['constant']} reached {100 * row['measured']:.0f} % of its peak")
    return doubts


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a table of all their columns."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return markdown.table(columns, [[cell(row.get(column)) for column in columns] for row in rows])


def cell(value: Any) -> str:
    """Return a value as the page writes it."""
    if value is None or value == "":
        return formatting.MISSING
    return formatting.number(value) if isinstance(value, float) else str(value)

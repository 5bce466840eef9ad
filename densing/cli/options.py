"""Options that several commands share, declared once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import pandas as pd


def finite(value: float) -> float:
    """Refuse NaN and infinity, which no range of an option keeps out.

    Examples
    --------
    >>> finite(0.95)
    0.95
    """
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number")
    return value


JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout and nothing else.")]
Reference = Annotated[
    str,
    typer.Option(
        "--reference",
        "-r",
        help="Reference family (see `densing refs list`) or a fit written by `densing fit --out`.",
    ),
]
Benchmark = Annotated[
    str, typer.Option("--benchmark", "-b", help="Benchmark id, or `mean`: one curve on the mean score.")
]
CatalogFiles = Annotated[
    list[Path] | None,
    typer.Option("--catalog", help="CSV (or folder of CSVs) merged into the embedded catalog; may be repeated."),
]
Since = Annotated[str | None, typer.Option("--since", help="First release date, ISO.", metavar="DATE")]
Until = Annotated[str | None, typer.Option("--until", help="Last release date, ISO.", metavar="DATE")]
Denominator = Annotated[
    str, typer.Option("--denominator", help="Which parameters divide: total, active or non_embedding.")
]
Tokens = Annotated[
    float | None,
    typer.Option("--tokens", help="D0 of a two-step reference, tokens (default 1e12, as arXiv 2412.04315v2)."),
]
Guard = Annotated[
    float,
    typer.Option("--guard", help="Report N_eff inside [Nmin/GUARD, GUARD*Nmax] of the family; inf switches off."),
]
Include = Annotated[
    list[str] | None,
    typer.Option(
        "--include",
        help="Also use: continued, compressed, instruct, moe, domain, unverified. May be repeated.",
    ),
]
Combine = Annotated[
    str,
    typer.Option(
        "--combine", help="mean-score: one curve on the mean, as the paper; per-benchmark: mean of ln density."
    ),
]
Pool = Annotated[
    bool, typer.Option("--pool", help="Also read other evaluators' scores of the same shots (one benchmark only).")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of everything random.")]


def _table_file(path: Path | None) -> Path | None:
    if path is not None and path.suffix not in (".csv", ".json"):
        raise typer.BadParameter(f"{path}: the name must end in .csv or .json")
    return path


def _fit_file(path: Path | None) -> Path | None:
    if path is not None and path.suffix != ".json":
        raise typer.BadParameter(f"{path}: the name must end in .json")
    return path


Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Also write the result to FILE (.csv or .json).", callback=_table_file),
]
FitOut = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Write the fit as JSON, usable as --reference.", callback=_fit_file),
]


def parse_date(text: str | None, option: str) -> pd.Timestamp | None:
    """Parse an ISO date given on the command line."""
    from densing.core import to_date

    if text is None:
        return None
    try:
        return to_date(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a date like 2024-02-29", param_hint=option) from error


def parse_window(since: str | None, until: str | None) -> None:
    """Check the two dates of a window.

    Raises
    ------
    typer.BadParameter
        When one is not an ISO date, or the window is empty.
    """
    first, last = parse_date(since, "--since"), parse_date(until, "--until")
    if first is not None and last is not None and first > last:
        raise typer.BadParameter(f"{since} is after {until}; swap them", param_hint="--since")

"""Options shared by several commands, and the reference and densities they select."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from densing.cli.output import say
from densing.core import InputError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

    from densing.core import Note
    from densing.scores import references
    from densing.scores.catalog import Catalog
    from densing.scores.density import DensityResult

ONE_CURVE, PER_BENCHMARK = "mean-score", "per-benchmark"
FORMS = "CSV, .xlsx, Parquet, JSON lines or JSON"
"""Of a table that somebody brings; docs/how-to/tables.md says how each is read."""


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


JsonFlag = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print one JSON document to stdout and nothing else: "
        '{"schema", "version", "command", "notes", "data"}, and where the command fails "error" and "exit_code". '
        "--json=v0 prints what 0.2 printed, for one more version.",
    ),
]
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
    typer.Option(
        "--catalog",
        help=f"Table ({FORMS}), or folder with models.csv and scores.csv, merged into the embedded catalog; may be "
        "repeated.",
    ),
]
SheetName = Annotated[
    str | None,
    typer.Option(
        "--sheet",
        help="Sheet to read from a workbook (.xlsx); default: the first. For one of several files write "
        "FILE.xlsx#SHEET.",
        metavar="SHEET",
    ),
]
Fetch = Annotated[
    bool,
    typer.Option("--fetch", help="Allow fetching files given by URL (https://...)."),
]
Since = Annotated[str | None, typer.Option("--since", help="First release date, ISO.", metavar="DATE")]
Until = Annotated[str | None, typer.Option("--until", help="Last release date, ISO.", metavar="DATE")]
Denominator = Annotated[
    str, typer.Option("--denominator", help="Parameter count in the denominator: total, active or non_embedding.")
]
Tokens = Annotated[
    float | None,
    typer.Option("--tokens", help="D0 of a two-step reference, tokens (default 1e12, as arXiv 2412.04315v2)."),
]
Guard = Annotated[
    float,
    typer.Option("--guard", help="Report N_eff only within [Nmin/GUARD, GUARD*Nmax] of the family; inf: no limit."),
]
Include = Annotated[
    list[str] | None,
    typer.Option(
        "--include",
        help="Also include: continued, compressed, instruct, moe, domain, unverified, vendors (makers' figures for "
        "their own models). May be repeated.",
    ),
]
Combine = Annotated[
    str,
    typer.Option(
        "--combine", help="mean-score: one curve on the mean score, as in the paper; per-benchmark: mean of ln density."
    ),
]
Pool = Annotated[
    bool, typer.Option("--pool", help="Also use other evaluators' scores with the same shots (one benchmark only).")
]
Level = Annotated[
    float, typer.Option("--level", min=0.5, max=0.999, callback=finite, help="Confidence level of the intervals.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Random seed.")]


def _file_named(*suffixes: str) -> Callable[[Path | None], Path | None]:
    """Return a check that the name of an option's file ends in one of these."""

    def check(path: Path | None) -> Path | None:
        if path is not None and path.suffix not in suffixes:
            raise typer.BadParameter(f"{path}: the name must end in {' or '.join(suffixes)}")
        return path

    return check


Out = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", help="Also write the result to FILE (.csv or .json).", callback=_file_named(".csv", ".json")
    ),
]
FitOut = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Write the fit as JSON, usable as --reference.", callback=_file_named(".json")),
]

Page = Annotated[
    Path | None,
    typer.Option("--page", dir_okay=False, help="Also write a Markdown page (.md).", callback=_file_named(".md")),
]
Html = Annotated[
    Path | None,
    typer.Option(
        "--html",
        dir_okay=False,
        help="Also write a self-contained page with figures (.html).",
        callback=_file_named(".html"),
    ),
]
Report = Annotated[Path | None, typer.Option("--html", help="Write the report: one HTML file.", metavar="FILE")]
Png = Annotated[
    Path | None,
    typer.Option(
        "--png",
        dir_okay=False,
        help="Also write the figure as a picture (.png; needs densing[png]), and its points as a table beside it "
        "(NAME-points.csv), as Datawrapper reads them.",
        callback=_file_named(".png"),
    ),
]
Svg = Annotated[
    Path | None,
    typer.Option(
        "--svg", dir_okay=False, help="Also write the figure as a vector graphic (.svg).", callback=_file_named(".svg")
    ),
]


def brought(path: Path, sheet: str | None, fetch: bool) -> Path:
    """Return where a table lies that somebody names: fetched where it has an address, and on its sheet."""
    from densing.core import as_address, fetch_file, on_sheet, shown_address

    if fetch and (address := as_address(path)):
        path = fetch_file(address)
        say(f"fetched {shown_address(address)} to {path}")
    return on_sheet(path, sheet)


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


def read_densities(
    catalog: Catalog,
    names: tuple[str, str],
    *,
    combine: str,
    tokens: float | None,
    pool: bool,
    **choices: Any,
) -> tuple[references.Reference, DensityResult]:
    """Return the reference and the densities of the catalog's models.

    Parameters
    ----------
    catalog : Catalog
        Embedded, or with a user's rows.
    names : tuple of str
        Reference and benchmark.
    combine : {"mean-score", "per-benchmark"}
        One curve on the mean score, or the mean of the logarithms of single densities.
    tokens, pool, **choices
        As the options of the commands.

    Raises
    ------
    InputError
        When the choices do not go together.
    """
    from densing.scores.density import catalog_densities, combined_densities
    from densing.scores.references import load_reference

    name, benchmark = names
    reference = load_reference(name, benchmark, tokens=tokens, catalog=catalog)
    if combine == ONE_CURVE:
        return reference, catalog_densities(catalog, reference, pool=pool, **choices)
    if combine != PER_BENCHMARK:
        raise UnknownNameError("--combine", combine, (ONE_CURVE, PER_BENCHMARK))
    if len(reference.benchmarks) < 2 or pool:
        raise InputError(
            "--combine per-benchmark needs --benchmark mean (or a skill of several benchmarks), and no --pool"
        )
    parts = [load_reference(name, part, tokens=tokens, catalog=catalog) for part in reference.benchmarks]
    return reference, combined_densities(catalog, reference, parts, **choices)


def curve_name(benchmark: str, combine: str) -> str:
    """Return what densities were read on, for titles.

    Examples
    --------
    >>> curve_name("mean", PER_BENCHMARK)
    'mean, per benchmark'
    """
    return f"{benchmark}, per benchmark" if combine == PER_BENCHMARK else benchmark


def read_measured(paths: list[Path], params: dict[str, float]) -> tuple[pd.DataFrame, pd.DataFrame, tuple[Note, ...]]:
    """Return measurements, models and notes of runs of ``densing eval`` or folders of foreign results.

    Parameters
    ----------
    paths : list of path
        Runs, results files or folders of them.
    params : dict
        Sizes by model; the others are those of the results, else of the catalog by name.

    Raises
    ------
    InputError
        When a path holds no result that is known.
    """
    import pandas as pd

    from densing.scores.catalog import with_sizes
    from densing.scores.evals import read_results

    results = [read_results(path) for path in paths]
    models, notes = with_sizes(pd.concat([result.models for result in results], ignore_index=True), params)
    measurements = pd.concat([result.measurements for result in results], ignore_index=True)
    return measurements, models, (*(note for result in results for note in result.notes), *notes)


Filters = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        metavar="BENCHMARK=FILTER",
        help="Which reading of generated answers counts where results hold several, e.g. gsm8k=strict-match; may be "
        "repeated. Without it such a benchmark is left out.",
    ),
]


def parse_filters(texts: list[str] | None) -> dict[str, str]:
    """Return the filters of ``--filter BENCHMARK=FILTER``.

    Raises
    ------
    InputError
        When one is not a benchmark and a filter.

    Examples
    --------
    >>> parse_filters(["gsm8k=strict-match"])
    {'gsm8k': 'strict-match'}
    """
    pairs = [text.partition("=") for text in texts or []]
    if bad := next(("".join(pair) for pair in pairs if not (pair[0] and pair[2])), None):
        raise InputError(f"--filter {bad}: write BENCHMARK=FILTER, for example gsm8k=strict-match")
    return {benchmark: name for benchmark, _, name in pairs}


def parse_params(texts: list[str]) -> dict[str, float]:
    """Return the sizes of ``--params NAME=COUNT``.

    Raises
    ------
    InputError
        When one is not a name and count.

    Examples
    --------
    >>> parse_params(["meta-llama/Llama-2-13b-hf=13e9"])
    {'meta-llama/Llama-2-13b-hf': 13000000000.0}
    """
    sizes: dict[str, float] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            size = float(number)
        except ValueError:
            size = 0.0
        if not name or not 1e3 <= size <= 1e15:
            raise InputError(f"--params {text}: write NAME=COUNT with a count of parameters, 13e9 for 13 billion")
        if sizes.setdefault(name, size) != size:
            raise InputError(f"--params {text}: {name} has {sizes[name]:g} already; give one size")
    return sizes

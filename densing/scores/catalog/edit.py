"""Rows added to a user's own tables, checked against the catalog before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from densing.core import DensingError, Note, TableError, TableLike, UnknownNameError, read_cells, write_csv
from densing.scores.catalog.catalog import Catalog
from densing.scores.catalog.extras import parts_of
from densing.scores.catalog.schema import MODELS, SCORES, cell_text
from densing.scores.catalog.scores import measurements
from densing.scores.catalog.union import load_catalog, merge

FIRST_ROW = 2  # below the header
# Two evaluators that differ by more than this about one model deserve a second look.
WIDE_SPREAD = 0.10


def add_model(path: Path | str, *, extra: Sequence[Path | str] = (), **fields: Any) -> list[Note]:
    """Add a model to a user's table, which is made when it is missing.

    Parameters
    ----------
    path : path
        A CSV file, or a folder whose ``models.csv`` is meant.
    extra : sequence of path
        Further tables that the new row may refer to.
    **fields
        Columns of ``densing.scores.catalog.schema.MODELS``; also ``params`` (a count) or ``params_b`` for the
        size.

    Returns
    -------
    list of Note
        What the catalog says about the table as it is now.

    Raises
    ------
    DensingError
        When the row does not fit; nothing is written then.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     notes = add_model(folder, model="Tiny-1B", params_b=1.1, released="2024-05-01")
    ...     print((Path(folder) / "models.csv").read_text())
    model,params_b,released
    Tiny-1B,1.1,2024-05-01
    <BLANKLINE>

    See Also
    --------
    add_score, validate_catalog
    """
    return _add(Path(path), "models", [*MODELS.names, "params", "params_b"], extra, fields)


def add_score(path: Path | str, *, extra: Sequence[Path | str] = (), **fields: Any) -> list[Note]:
    """Add a score to a user's table, which is made when it is missing.

    Parameters
    ----------
    path : path
        A CSV file, or a folder whose ``scores.csv`` is meant (its ``models.csv`` then counts too).
    extra : sequence of path
        Further tables that the new row may refer to.
    **fields
        Columns of ``densing.scores.catalog.schema.SCORES``.

    Returns
    -------
    list of Note
        What the catalog says about the table as it is now.

    Raises
    ------
    DensingError
        When the row does not fit; nothing is written then.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     add_score(folder, model="Llama-3-8B", benchmark="mmlu", score=66)
    Traceback (most recent call last):
        ...
    densing.core.errors.TableError: ...scores.csv: row 2, column score: 66 is above 1.0; write 0.45 for 45 %

    See Also
    --------
    add_model, validate_catalog
    """
    return _add(Path(path), "scores", SCORES.names, extra, fields)


def validate_catalog(path: TableLike) -> list[Note]:
    """Check a user's table or folder and return everything there is to say about it, instead of raising.

    Errors carry the code ``invalid-table``; warnings are ``wide-spread`` (a score far from what others
    measured) and ``no-parent`` (a model from other weights without a parent); the notes of the merge follow.

    Examples
    --------
    >>> [note.severity for note in validate_catalog("no/such/file.csv")]
    ['error']

    See Also
    --------
    load_catalog, add_score
    """
    try:
        catalog = load_catalog(path)
    except TableError as error:
        return [Note("invalid-table", "error", f"{error.where}: {problem}") for problem in error.problems]
    except DensingError as error:
        return [Note("invalid-table", "error", str(error))]
    return [*_spread_notes(catalog), *_parent_notes(catalog), *catalog.notes]


def _add(path: Path, name: str, allowed: list[str], extra: Sequence[Path | str], fields: dict[str, Any]) -> list[Note]:
    folder = path if path.suffix.lower() != ".csv" else None
    file = path if folder is None else path / f"{name}.csv"
    row = {column: cell_text(value) for column, value in fields.items() if value is not None}
    cells: dict[str, list[Any]] = {}
    if file.exists():
        raw = read_cells(file)
        cells = {str(column): raw[column].tolist() for column in raw.columns}
    for column in row:
        if column not in allowed and column not in cells:
            raise UnknownNameError(f"column of {name}", column, allowed)
    length = len(next(iter(cells.values()), []))
    columns = [*cells, *(column for column in row if column not in cells)]
    table = pd.DataFrame({c: [*cells.get(c, [""] * length), row.get(c, "")] for c in columns}, dtype=object)
    table.index = table.index + FIRST_ROW
    # The other tables of the folder; models first, because scores refer to them.
    siblings = [] if folder is None else [folder / "models.csv", folder / "scores.csv"]
    catalog = load_catalog(*extra, *(other for other in siblings if other != file and other.exists()))
    merged = merge(catalog, parts_of(table, str(file)))
    write_csv(table, file)
    return list(merged.notes)


def _spread_notes(catalog: Catalog) -> list[Note]:
    mine = catalog.scores[catalog.scores["source"].str.startswith("user:")]
    notes = []
    for benchmark in sorted(mine["benchmark"].unique()):
        measured = measurements(catalog, benchmark)
        for row in mine[mine["benchmark"] == benchmark].itertuples():
            values = measured[(measured["model"] == row.model) & (measured["evaluator"] != row.evaluator)]["score"]
            if len(values) and abs(row.score - values.median()) > WIDE_SPREAD:
                message = (
                    f"{row.model} {benchmark}: {row.score:g} is more than {WIDE_SPREAD:g} from the median "
                    f"{values.median():.3f} of {len(values)} other measurements; check protocol and unit"
                )
                notes.append(Note("wide-spread", "warning", message, {"model": row.model, "benchmark": benchmark}))
    return notes


def _parent_notes(catalog: Catalog) -> list[Note]:
    models = catalog.models
    silent = models[(models["kind"] != "base") & models["derived_from"].isna() & models["notes"].isna()]
    return [
        Note(
            "no-parent",
            "warning",
            f"{row.model}: is {row.kind} but names no parent; fill in derived_from or notes",
        )
        for row in silent.itertuples()
    ]

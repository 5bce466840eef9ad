"""A user's own tables: which of the accepted forms a file has, and its rows in the catalog's columns.

Accepted are a folder with ``models.csv`` and/or ``scores.csv`` (and ``benchmarks.csv``, ``evaluators.csv``,
``sources.csv``), a table of models, a table of scores, and a *combined* table with one row per score that
also states the model's size (``params`` as a count, or ``params_b`` in billions) and release date.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from densing.core import Column, InputError, Table, TableError, TableLike, read_cells, text_cells, validate
from densing.scores.catalog.catalog import FRAMES
from densing.scores.catalog.schema import BENCHMARKS, EVALUATORS, SCORES, SOURCES, cell_text, models_table

_SIZE_COLUMNS = ("params", "params_b", "params_total_b")
_SIZES = Table(
    "sizes",
    (
        Column(
            "params",
            "number",
            "number of parameters",
            low=1e5,
            high=1e13,
            remedy="params is a count: write 7e9, or use params_b",
        ),
        Column(
            "params_b",
            "number",
            "number of parameters in billions",
            low=1e-5,
            high=1e4,
            remedy="billions: write 7 for 7e9 parameters",
        ),
    ),
)
_FORMS = (
    "a table of models (model, released, params_b, ...), of scores (model, benchmark, score, ...) "
    "or both in one (model, params, released, benchmark, score)"
)


@dataclass(frozen=True)
class Part:
    """One table of a user: rows indexed by row number, and the columns that the file states."""

    where: str
    rows: pd.DataFrame
    stated: tuple[str, ...]


IN_MEMORY = "the table"
"""Name of a table that is no file, in messages."""


def read_extra(source: TableLike) -> dict[str, Part]:
    """Read a user's table into parts named like the catalog's tables.

    Parameters
    ----------
    source : path, DataFrame or records
        A folder, a CSV file or a table in memory, in one of the accepted forms.

    Raises
    ------
    InputError, TableError
        When nothing readable is there or a cell is wrong; the message names file, row, column, value and
        remedy.
    """
    if not isinstance(source, (str, Path)):
        return parts_of(text_cells(source), IN_MEMORY)
    path = Path(source)
    try:
        is_folder = path.is_dir()
    except (OSError, ValueError):
        # Reading it says what is wrong with the name.
        is_folder = False
    if not is_folder:
        return parts_of(read_cells(path), str(path))
    files = {name: path / f"{name}.csv" for name in FRAMES if (path / f"{name}.csv").is_file()}
    if not files:
        raise InputError(f"{path}: holds neither models.csv nor scores.csv; put {_FORMS} there")
    parts: dict[str, Part] = {}
    for name, file in files.items():
        raw = read_cells(file)
        if name in ("models", "scores"):
            of_file = parts_of(raw, str(file))
        else:
            table = {"benchmarks": BENCHMARKS, "evaluators": EVALUATORS, "sources": SOURCES}[name]
            of_file = {name: Part(str(file), _checked(raw, table, str(file)), tuple(map(str, raw.columns)))}
        if set(of_file) & set(parts) or (name == "models" and "scores" in of_file):
            raise InputError(f"{file}: repeats what another file of the folder holds; keep models and scores apart")
        parts |= of_file
    return parts


def parts_of(raw: pd.DataFrame, where: str) -> dict[str, Part]:
    """Return the parts of a table of raw cells, told apart by its columns.

    Parameters
    ----------
    raw : pandas.DataFrame
        Cells as text, indexed by row number (:func:`densing.core.read_cells`).
    where : str
        Name of the table in messages.

    Examples
    --------
    >>> raw = pd.DataFrame({"model": ["tiny"], "params": ["7e8"], "benchmark": ["mmlu"], "score": ["0.3"]})
    >>> {name: len(part.rows) for name, part in parts_of(raw, "mine.csv").items()}
    {'models': 1, 'scores': 1}
    """
    if "n_shot" in raw.columns and "shots" not in raw.columns:
        # Harnesses' name of the column.
        raw = raw.rename(columns={"n_shot": "shots"})
    columns = set(raw.columns)
    sized = bool(columns & set(_SIZE_COLUMNS))
    if "model" in columns and {"benchmark", "score"} <= columns:
        own = raw[[column for column in raw.columns if column in SCORES.names]]
        scores = {"scores": Part(where, _checked(own, SCORES, where), tuple(map(str, own.columns)))}
        return {"models": _models_part(raw, where, repeated=True), **scores} if sized else scores
    if "model" in columns and (sized or "released" in columns):
        return {"models": _models_part(raw, where, repeated=False)}
    raise InputError(f"{where}: columns {', '.join(map(str, raw.columns))} fit no known form; give {_FORMS}")


def _models_part(raw: pd.DataFrame, where: str, repeated: bool) -> Part:
    table = models_table()
    sized = _with_total(raw, where)
    own = sized[[column for column in sized.columns if column in table.names]]
    if repeated:
        own = own[[column for column in own.columns if column not in ("notes", "licence")]]
        table = replace(table, key=())
    rows = _checked(own, table, where)
    return Part(where, _one_per_model(rows, where) if repeated else rows, tuple(map(str, own.columns)))


def _with_total(raw: pd.DataFrame, where: str) -> pd.DataFrame:
    stated = [column for column in _SIZE_COLUMNS if column in raw.columns]
    if len(stated) > 1:
        raise TableError(where, [f"columns {' and '.join(stated)} both give the size; keep one"])
    if stated in ([], ["params_total_b"]):
        return raw
    sizes = validate(raw[stated], _SIZES, where)[stated[0]]
    billions = sizes / 1e9 if stated == ["params"] else sizes
    return raw.drop(columns=stated).assign(params_total_b=billions.to_numpy())


def _one_per_model(rows: pd.DataFrame, where: str) -> pd.DataFrame:
    facts = [column for column in rows.columns if column != "model"]
    counts = rows.groupby("model")[facts].nunique()
    problems = []
    for model, row in counts[(counts > 1).any(axis=1)].iterrows():
        for column in row.index[row > 1]:
            cells = rows.loc[rows["model"] == model, column].dropna().drop_duplicates()
            values = " and ".join(f"{cell_text(value)} (row {number})" for number, value in cells.items())
            problems.append(f"column {column}: model {model} has {values}; give one value per model")
    if problems:
        raise TableError(where, problems)
    # `first` takes the first filled cell of each column, so later rows of a model may leave its facts blank.
    filled = rows.groupby("model", sort=False)[facts].first().reset_index()[list(rows.columns)]
    filled.index = rows.index[~rows["model"].duplicated()]
    return filled


def _checked(raw: pd.DataFrame, table: Table, where: str) -> pd.DataFrame:
    return validate(raw, table, where).set_axis(raw.index, axis=0)

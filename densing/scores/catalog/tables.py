"""The catalog's tables: the embedded ones, and a user's own read, joined to them, checked and added to.

A user's tables may have several forms: a folder with ``models.csv`` and/or ``scores.csv`` (and ``benchmarks.csv``,
``evaluators.csv``, ``sources.csv``), a table of models, a table of scores, and a *combined* table with one row per
score that also states the model's size (``params`` as a count, or ``params_b`` in billions) and release date. What they
leave out is filled in (source, series, family, active size of dense models); repeated rows are dropped, other values
refused or taken instead; and everything that a row refers to must exist. A release date may name a month (``2026-03``):
the month's middle stands for it, and ``released_precision`` says so. Scores may stand in one column per benchmark
(``model, params, MMLU, GSM8K``), and headers, benchmarks, numbers and dates be spelled as people do
(:data:`densing.scores.catalog.schema.ALSO`, :func:`densing.core.as_declared`); notes say what was read as what. What
the names of models say (:mod:`densing.scores.catalog.identity`) fills blank cells, and a model has one row however it
is spelled.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from densing.core import (
    SHOWN_PROBLEMS,
    SLIP,
    SUFFIXES,
    Column,
    DensingError,
    InputError,
    Note,
    Sheet,
    Table,
    TableError,
    TableLike,
    UnknownNameError,
    as_declared,
    cell_text,
    check_sheet,
    each_once,
    formatting,
    gathered,
    nearest,
    plain_name,
    read_sheet,
    read_table,
    write_csv,
)
from densing.scores.catalog.catalog import DATA, FRAMES, Catalog
from densing.scores.catalog.identity import identify, same_size, told_by_names
from densing.scores.catalog.schema import (
    ALSO,
    BENCHMARKS,
    BENCHMARKS_ALSO,
    EVALUATORS,
    MODELS,
    SCORES,
    SOURCES,
)
from densing.scores.catalog.scores import measurements

LOG = logging.getLogger(__name__)
IN_MEMORY = "the table"
"""Name of a table without a file, in messages."""
_TABLES: dict[str, Table] = {t.name: t for t in (MODELS, SCORES, BENCHMARKS, EVALUATORS, SOURCES)}
# A second value of one of these is a contradiction; other columns keep what is there.
_FACTS: dict[str, tuple[str, ...]] = {
    "models": (
        "family",
        "released",
        "params_total_b",
        "params_active_b",
        "params_non_embedding_b",
        "tokens_t",
        "architecture",
        "kind",
        "derivation",
        "domain",
    ),
    "scores": ("score",),
    "benchmarks": ("chance", "items", "scale"),
    "evaluators": (),
    "sources": (),
}
# What a user may state otherwise of a model that is there, which stays the same one; of another size or kind it is not.
_STATED_FREELY = ("family", "released")
_DERIVATION = {"base": "scratch", "continued": "continued", "instruct": "instruct_tuned"}
_SOURCE_OF = {
    "released": "released_source",
    "params_total_b": "params_source",
    "params_non_embedding_b": "non_embedding_source",
    "tokens_t": "tokens_source",
}
# Sizes without embeddings are often rounded up in vendors' tables, totals rounded down.
ROUNDING = 1.02
# Two evaluators that differ by more than this about one model deserve a second look.
WIDE_SPREAD = 0.10
FIRST_ROW = 2  # below the header
# A thousand draws of each stay in memory, and nobody has so many.
MAX_MODELS = 10_000
# The number of examples behind a benchmark's name: MMLU 5-shot, GSM8K (8 shot).
_SHOTS = re.compile(r"(?P<name>.+?)[\s_,(\[-]+(?P<shots>\d{1,3})[\s_-]?shots?\b", re.IGNORECASE)
_MONTH = re.compile(r"\d{4}-(?:0[1-9]|1[0-2])")
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
            unit="count",
        ),
        Column(
            "params_b",
            "number",
            "number of parameters in billions",
            low=1e-5,
            high=1e4,
            remedy="billions: write 7 for 7e9 parameters",
            unit="billions",
        ),
    ),
)
_SCORE = next(column for column in SCORES.columns if column.name == "score")
_STATED = {column.name: column for table in (SCORES, MODELS, _SIZES) for column in table.columns}
"""Columns of user tables, each once."""
_FORMS = (
    "a table of models (model, released, params_b, ...), of scores (model, benchmark, score, ...) "
    "or both in one (model, params, released, benchmark, score)"
)


def load_catalog(*extra: TableLike, replace: bool = False, embedded: bool = True) -> Catalog:
    """Return the embedded catalog with a user's tables joined to it.

    Parameters
    ----------
    *extra : path, DataFrame or records
        Folders, files or tables in memory: models, scores, or both in one (see
        :func:`densing.scores.catalog.read_extra`). Rows without an evaluator count as measured by ``user``; release
        dates count as sourced, by the user.
    replace : bool
        Let a user's row with another value replace ours; otherwise it is refused.
    embedded : bool
        Whether our models and scores are part of the result. Without them only benchmarks, evaluators and
        sources are, and the user's tables must hold every model they score.

    Raises
    ------
    InputError, TableError
        When a table cannot be read or used; the message names file, row, column, value and remedy.

    Examples
    --------
    >>> load_catalog().models.set_index("model").loc["Llama-3-8B", "params_total_b"].item()
    8.03

    See Also
    --------
    validate_catalog, score_table
    """
    catalog = _embedded()
    keep = slice(None) if embedded else slice(0, 0)
    catalog = Catalog(
        catalog.models.iloc[keep].copy(),
        catalog.scores.iloc[keep].copy(),
        catalog.benchmarks.copy(),
        catalog.evaluators.copy(),
        catalog.sources.copy(),
    )
    for source in extra:
        catalog = merge(catalog, read_extra(source), replace)
    LOG.info("catalog: %d models, %d scores", len(catalog.models), len(catalog.scores))
    return catalog


@cache
def _embedded() -> Catalog:
    tables = (models_table(), SCORES, BENCHMARKS, EVALUATORS, SOURCES)
    frames: dict[str, pd.DataFrame] = {
        table.name: read_table(DATA / f"{table.name}.csv", table, f"{table.name}.csv") for table in tables
    }
    return Catalog(**frames)


def models_table(today: pd.Timestamp | None = None) -> Table:
    """Return the declaration of models whose release dates end today: none may lie in the future.

    Parameters
    ----------
    today : pandas.Timestamp, optional
        Last date allowed; the present day by default.

    Examples
    --------
    >>> next(c.high for c in models_table(pd.Timestamp("2025-11-30")).columns if c.name == "released")
    '2025-11-30'
    """
    last = str((today if today is not None else pd.Timestamp.now()).date())
    columns = (dataclasses.replace(c, high=last) if c.name == "released" else c for c in MODELS.columns)
    return dataclasses.replace(MODELS, columns=tuple(columns))


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


def _spread_notes(catalog: Catalog) -> list[Note]:
    mine = catalog.scores[catalog.scores["source"].str.startswith("user:")]
    notes = []
    for benchmark in sorted(mine["benchmark"].unique()):
        measured = measurements(catalog, benchmark)
        for row in mine[mine["benchmark"] == benchmark].itertuples():
            values = measured[(measured["model"] == row.model) & (measured["evaluator"] != row.evaluator)]["score"]
            if len(values) and abs(row.score - values.median()) > WIDE_SPREAD:
                message = (
                    f"{row.model} {benchmark}: {row.score:g} differs by more than {WIDE_SPREAD:g} from the median "
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
            f"{row.model}: is {row.kind}, but has no parent; fill in derived_from or notes",
        )
        for row in silent.itertuples()
    ]


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
    densing.core.errors.TableError: ...scores.csv: row 2, column score: 66 is above 1.0; write 0.66 ...

    See Also
    --------
    add_model, validate_catalog
    """
    return _add(Path(path), "scores", SCORES.names, extra, fields)


def _add(path: Path, name: str, allowed: list[str], extra: Sequence[Path | str], fields: dict[str, Any]) -> list[Note]:
    folder = path if path.suffix.lower() != ".csv" else None
    file = path if folder is None else path / f"{name}.csv"
    # A NaN is not a blank cell: as its text it is refused below.
    row = {column: cell_text(value) or str(value) for column, value in fields.items() if value is not None}
    cells: dict[str, list[Any]] = {}
    if file.exists():
        sheet = read_sheet(file)
        if otherwise := as_declared(sheet, _STATED.values(), ALSO).notes:
            raise InputError(
                "rows can only be added to a table with commas and declared spellings, because it "
                "is rewritten: " + otherwise[0].message
            )
        cells = {str(column): sheet.cells[column].tolist() for column in sheet.cells.columns}
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
    merged = merge(catalog, parts_of(Sheet(str(file), table)))
    write_csv(table, file)
    return list(merged.notes)


@dataclass(frozen=True)
class Part:
    """One table of a user: rows indexed by row number, the columns that the file states, and how it was read.

    ``known`` holds the embedded catalog's name of every model that it knows, ``titles`` what the file calls a column.
    """

    title: str
    rows: pd.DataFrame
    stated: tuple[str, ...]
    notes: tuple[Note, ...] = ()
    known: Mapping[str, str] = field(default_factory=dict)
    titles: Mapping[str, str] = field(default_factory=dict)


def read_extra(source: TableLike) -> dict[str, Part]:
    """Read a user's table into parts named like the catalog's tables.

    Parameters
    ----------
    source : path, DataFrame or records
        A folder, a file or a table in memory, in one of the accepted forms.

    Raises
    ------
    InputError, TableError
        When nothing readable is there or a cell is wrong; the message names file, row, column, value and
        remedy.
    """
    known = _embedded().benchmarks
    if not isinstance(source, (str, Path)):
        return parts_of(_understood(read_sheet(source, IN_MEMORY), known))
    path = Path(source)
    try:
        is_folder = path.is_dir()
    except (OSError, ValueError):
        # Reading it says what is wrong with the name.
        is_folder = False
    if not is_folder:
        return parts_of(_understood(read_sheet(path), known))
    files: dict[str, Path] = {}
    for file in sorted(path.iterdir()):
        name, _, suffix = file.name.partition(".")
        if name in FRAMES and f".{suffix}".removesuffix(".gz") in SUFFIXES:
            if name in files:
                raise InputError(f"{file}: {files[name].name} holds {name} too; keep one")
            files[name] = file
    if not files:
        raise InputError(f"{path}: contains neither models.csv nor scores.csv; put {_FORMS} there")
    parts: dict[str, Part] = {}
    # Benchmarks that the folder declares may be columns of its scores.
    for name in sorted(files, key=("sources", "evaluators", "benchmarks", "models", "scores").index):
        sheet, table = read_sheet(files[name]), _TABLES[name]
        if name in ("models", "scores"):
            of_file = parts_of(_understood(sheet, known))
        else:
            sheet = as_declared(sheet, table.columns)
            rows = _checked(sheet, table)
            of_file = {name: Part(sheet.name, rows, tuple(map(str, sheet.cells.columns)), sheet.notes)}
            known = pd.concat([known, rows[["id", "name"]]]) if name == "benchmarks" else known
        if set(of_file) & set(parts) or (name == "models" and "scores" in of_file):
            raise InputError(
                f"{sheet.name}: repeats the content of another file in the folder; keep models and scores apart"
            )
        parts |= of_file
    return parts


def _understood(sheet: Sheet, benchmarks: pd.DataFrame) -> Sheet:
    """Return a sheet in declared columns, one row per score, benchmarks by their ids; refuse too many models early."""
    sheet = as_declared(sheet, _STATED.values(), ALSO)
    cells, notes = sheet.cells, list(sheet.notes)
    if "model" in cells and (count := cells["model"].nunique()) > MAX_MODELS:
        raise InputError(
            f"{sheet.name}: {count} models exceed the limit of {MAX_MODELS} per table; split the "
            "table or leave some out"
        )
    ids = dict.fromkeys(benchmarks["id"])
    also: dict[str, list[str]] = {name: list(BENCHMARKS_ALSO.get(name, ())) for name in ids}
    for row in benchmarks.dropna(subset="name").itertuples():
        also[row.id].append(row.name)
    if "benchmark" in cells:
        spelled = _by_spelling(also)
        given = each_once(cells["benchmark"], str.strip)
        distinct = [text for text in pd.unique(given) if text not in ids]
        if changed := {text: spelled[plain_name(text)] for text in distinct if plain_name(text) in spelled}:
            renamed = formatting.listed(f"{text} as {name}" for text, name in changed.items())
            notes.append(Note("benchmarks-matched", "info", f"{sheet.name}: benchmarks recognised: {renamed}"))
            cells = cells.assign(benchmark=each_once(given, lambda text: changed.get(text, text)))
        sheet = dataclasses.replace(sheet, cells=cells)
    elif "model" in cells:
        shares = [dataclasses.replace(_SCORE, name=name, required=False) for name in ids if name not in _STATED]
        shots = _shots_in_headers(sheet, also)
        wide = as_declared(sheet, shares, also)
        # Words may be names of benchmarks too (drop, include): a column without any number holds no scores.
        held = [name for name in wide.cells if name in ids and wide.cells[name].str.contains(r"\d").any()]
        if held:
            table = Table("scores", tuple(share for share in shares if share.name in held))
            sheet = _long(wide, table, {name: shots.get(wide.titles.get(name, "")) for name in held})
            notes = list(sheet.notes)
        elif held := [name for name in wide.problems if name in ids]:
            # Nothing else would speak of them.
            raise TableError(sheet.name, [problem for name in held for problem in wide.problems[name]])
    notes += _not_read(sheet, also)
    return dataclasses.replace(sheet, notes=tuple(notes))


def _not_read(sheet: Sheet, benchmarks: Mapping[str, Sequence[str]]) -> list[Note]:
    """Say which columns are not read, and what those may mean that look like something that is."""
    stated = {*_STATED, *_SIZE_COLUMNS}
    unread = [name for name in map(str, sheet.cells.columns) if name not in stated]
    names = _by_spelling(benchmarks)
    hints: dict[str, str] = {}
    for header in unread:
        # Other columns are other things, most of them: asked about are a slip, a date, and a benchmark with more to it.
        near = nearest(header, _STATED, most=1, likeness=SLIP)
        begins = [name for name in names if len(name) > 2 and plain_name(header).startswith(name)]
        if plain_name(header) == "date" and "released" not in sheet.cells:
            hints[header] = "name it released if it is the models' release date"
        elif near:
            hints[header] = f"did you mean {near[0]}?"
        elif begins and "score" not in sheet.titles and sheet.cells[header].str.contains(r"\d").any():
            hints[header] = f"did you mean {names[max(begins, key=len)]}?"
    if not unread:
        return []
    shown = formatting.listed((f"{name!r} ({hints[name]})" if name in hints else repr(name) for name in unread), 20)
    message = f"{sheet.name}: columns that are not used: {shown}"
    return [Note("columns-not-read", "warning" if hints else "info", message, {"columns": unread, "hints": hints})]


def _by_spelling(benchmarks: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return what each plain spelling of a benchmark means, its id among them."""
    return {plain_name(other): name for name, others in benchmarks.items() for other in (*others, name)}


def _shots_in_headers(sheet: Sheet, also: dict[str, list[str]]) -> dict[str, str]:
    """Return the shots that headers state behind a benchmark (``MMLU 5-shot``), and add these to what it is called."""
    names = _by_spelling(also)
    shots = {}
    for header in map(str, sheet.cells.columns):
        # Some benchmarks are called so (mmlu_0shot).
        match = None if plain_name(header) in names else _SHOTS.match(header)
        if match and (name := names.get(plain_name(match["name"]))):
            also[name].append(match[0])
            shots[header] = match["shots"]
    return shots


def _long(wide: Sheet, scores: Table, shots: Mapping[str, str | None]) -> Sheet:
    """Return a sheet with a row per score of one with a column per benchmark; an empty cell is not a score.

    Parameters
    ----------
    wide : Sheet
        In declared columns.
    scores : Table
        The benchmarks that have columns.
    shots : mapping of str to str or None
        By benchmark, where its header states them.
    """
    names, cells, problems = scores.names, wide.cells, dict(wide.problems)
    try:
        # Checked as they stand, so that messages name their columns.
        check_sheet(_about(wide, names), scores, cells[names])
    except TableError as error:
        problems = {name: each for name, each in problems.items() if name not in names} | {"score": error.problems}
    texts = cells[names].apply(lambda column: column.str.strip()).to_numpy(dtype=object)
    row, column = np.nonzero(texts != "")
    # A model without any score keeps its row for the message that says so.
    rest = cells.drop(columns=[name for name in (*names, "score") if name in cells])
    long = rest.iloc[row].assign(benchmark=np.array(names, dtype=object)[column], score=texts[row, column])
    if any(shots.values()):
        stated = pd.Series([shots[name] or "" for name in long["benchmark"]], index=long.index, dtype=object)
        own = long["shots"].str.strip() if "shots" in long else pd.Series("", index=long.index, dtype=object)
        if (other := stated.ne("") & own.ne("") & own.ne(stated)).any():
            number, title = long.index[other][0], wide.titles.get("shots", "shots")
            said = f"row {number}, column {title}: {own[other].iloc[0]!r}, where a header says {stated[other].iloc[0]}"
            problems["shots"] = (f"{said} shots; keep one",)
        long["shots"] = own.where(own.ne(""), stated)
    wide = dataclasses.replace(wide, problems=problems)
    shown = formatting.listed(wide.titles.get(name, name) for name in names)
    message = f"{wide.name}: one column per benchmark ({shown}) was read as one row per score, {len(long)} in all"
    note = Note("wide-table", "info", message, {"benchmarks": names, "scores": len(long)})
    return dataclasses.replace(wide, cells=long, notes=(*wide.notes, note))


def parts_of(sheet: Sheet) -> dict[str, Part]:
    """Return the parts of a table, told apart by its columns.

    Parameters
    ----------
    sheet : Sheet
        Cells as text in declared columns, indexed by row number (:func:`densing.core.read_sheet`).

    Examples
    --------
    >>> sheet = read_sheet([{"model": "tiny", "params": "7e8", "benchmark": "mmlu", "score": "0.3"}], "mine.csv")
    >>> {name: len(part.rows) for name, part in parts_of(sheet).items()}
    {'models': 1, 'scores': 1}
    """
    cells = sheet.cells
    columns = {*cells.columns, *sheet.problems}
    sized = bool(columns & set(_SIZE_COLUMNS))
    if "model" in columns and {"benchmark", "score"} <= columns:
        own = cells[[column for column in cells.columns if column in SCORES.names]]

        def scores() -> Part:
            return Part(sheet.name, _checked(sheet, SCORES, own), tuple(map(str, own.columns)), sheet.notes)

        if not sized:
            return {"scores": scores()}
        parts = gathered(sheet.name, lambda: _models_part(sheet, repeated=True), scores)
        return dict(zip(("models", "scores"), parts, strict=True))
    if "model" in columns and (sized or "released" in columns):
        return {"models": _models_part(sheet, repeated=False)}
    shown = ", ".join(map(str, cells.columns))
    hint = "; separate cells by commas, semicolons or tabs" if len(columns) == 1 else ""
    raise InputError(f"{sheet.name}: columns {shown} match no known form{hint}; give {_FORMS}")


def _models_part(sheet: Sheet, repeated: bool) -> Part:
    table, title = models_table(), sheet.name
    names = {*table.names, *_SIZE_COLUMNS} - ({"notes", "licence"} if repeated else set())
    own = sheet.cells[[column for column in sheet.cells.columns if column in names]]
    if repeated:
        table = dataclasses.replace(table, key=())
        own = own.drop_duplicates()
    size = next((column for column in _SIZE_COLUMNS if column in own), "params_total_b")
    titles = {**sheet.titles, "params_total_b": sheet.titles.get(size, size)}
    problems = dict(sheet.problems)
    for column, step in (("params_total_b", _with_total), ("released", _with_days)):
        try:
            own = step(own, sheet)
        except TableError as error:
            problems[column] = error.problems
    stated = tuple(map(str, own.columns))
    told = told_by_names(own, _embedded(), title, sheet.titles)
    rows = _checked(dataclasses.replace(sheet, problems=problems), table, told.cells)
    # Of a combined table the scores bring the notes on how it was read.
    notes = told.notes if repeated else (*sheet.notes, *told.notes)
    return Part(title, _one_per_model(rows, title, titles) if repeated else rows, stated, notes, told.known, titles)


def _with_total(raw: pd.DataFrame, sheet: Sheet) -> pd.DataFrame:
    stated = [column for column in _SIZE_COLUMNS if column in raw.columns]
    if len(stated) > 1:
        shown = " and ".join(sheet.titles.get(column, column) for column in stated)
        raise TableError(sheet.name, [f"columns {shown} both state the size; keep one"])
    if stated in ([], ["params_total_b"]):
        return raw
    sizes = check_sheet(_about(sheet, stated), _SIZES, raw[stated])[stated[0]]
    billions = sizes / 1e9 if stated == ["params"] else sizes
    return raw.drop(columns=stated).assign(params_total_b=billions.to_numpy())


def _about(sheet: Sheet, names: Sequence[str]) -> Sheet:
    """Return a sheet whose problems are those of some columns."""
    return dataclasses.replace(sheet, problems={n: each for n, each in sheet.problems.items() if n in names})


def _with_days(raw: pd.DataFrame, sheet: Sheet) -> pd.DataFrame:
    """Put the middle of a month where a release date names only that, and say so in ``released_precision``."""
    if "released" not in raw.columns:
        return raw
    dates = raw["released"].map(lambda cell: cell_text(cell).strip())
    months = dates.map(lambda text: bool(_MONTH.fullmatch(text)))
    if not months.any():
        return raw
    stated = raw.get("released_precision", pd.Series("", index=raw.index))
    problems = [
        f"row {number}, column released_precision: 'day', where released names the month {dates[number]}; give its day"
        for number in raw.index[months & (stated == "day")]
    ]
    if problems:
        raise TableError(sheet.name, problems)
    # The present month may not have reached its middle.
    today = str(pd.Timestamp.now().date())
    middles = dates.map(lambda text: min(f"{text}-15", today) if today.startswith(text) else f"{text}-15")
    return raw.assign(
        released=raw["released"].where(~months, middles), released_precision=stated.where(~months, "month")
    )


def _one_per_model(rows: pd.DataFrame, title: str, titles: Mapping[str, str]) -> pd.DataFrame:
    facts = [column for column in rows.columns if column != "model"]
    counts = rows.groupby("model")[facts].nunique()
    problems = []
    for model, row in counts[(counts > 1).any(axis=1)].iterrows():
        for column in row.index[row > 1]:
            cells = rows.loc[rows["model"] == model, column].dropna().drop_duplicates()
            values = " and ".join(f"{cell_text(value)} (row {number})" for number, value in cells.items())
            shown = titles.get(column, column)
            problems.append(f"column {shown}: model {model} has {values}; give one value per model")
    if problems:
        raise TableError(title, problems)
    # `first` takes the first filled cell of each column, so later rows of a model may leave its facts blank.
    filled = rows.groupby("model", sort=False)[facts].first().reset_index()[list(rows.columns)]
    filled.index = rows.index[~rows["model"].duplicated()]
    return filled


def _checked(sheet: Sheet, table: Table, cells: pd.DataFrame | None = None) -> pd.DataFrame:
    cells = sheet.cells if cells is None else cells
    return check_sheet(sheet, table, cells).set_axis(cells.index, axis=0)


def merge(catalog: Catalog, parts: dict[str, Part], replace: bool = False) -> Catalog:
    """Return the catalog with a user's parts joined to it.

    Parameters
    ----------
    catalog : Catalog
        What is there already.
    parts : dict of str to Part
        The user's tables, from :func:`densing.scores.catalog.read_extra`.
    replace : bool
        Whether a user's row with another value replaces the existing one instead of being refused.

    Returns
    -------
    Catalog
        With a note for every kind of thing that was dropped, filled in or replaced.

    Raises
    ------
    TableError
        For a second value under an existing key, or a reference to something unknown.
    """
    notes = [note for part in parts.values() for note in part.notes]
    catalog = dataclasses.replace(catalog, notes=(*catalog.notes, *notes))
    for name in ("sources", "evaluators", "benchmarks"):
        if name in parts:
            catalog = _join(catalog, name, parts[name], replace)
    parts, matched = _by_known_names(parts, catalog)
    catalog = dataclasses.replace(catalog, notes=(*catalog.notes, *matched))
    completers = {"models": complete_models, "scores": complete_scores}
    completed = {name: fill(parts[name], catalog) for name, fill in completers.items() if name in parts}
    catalog = _register(catalog, completed)
    for name, part in completed.items():
        catalog = _join(catalog, name, part, replace)
    checks = {"benchmarks": check_benchmarks, "models": check_models, "scores": check_scores}
    joined = parts | completed
    by_title: dict[str, list[Callable[[], None]]] = {}
    for name, check in checks.items():
        if name in joined:
            part = joined[name]
            by_title.setdefault(part.title, []).append(partial(check, part.rows, catalog, part.title))
    for title, steps in by_title.items():
        gathered(title, *steps)
    return catalog


def _by_known_names(parts: dict[str, Part], catalog: Catalog) -> tuple[dict[str, Part], list[Note]]:
    """Call every model as the catalog does where it is there already, whatever its spelling, so that it counts once."""
    names: dict[str, str] = {}
    ours = set(catalog.models["model"])
    for name in ("models", "scores"):
        if name not in parts:
            continue
        rows, known = parts[name].rows, parts[name].known
        sizes = rows.get("params_total_b", pd.Series(np.nan, index=rows.index))
        for model, size in zip(rows["model"], sizes, strict=True):
            if model in names:
                continue
            there = known.get(model)
            if there not in ours:
                there = identify(catalog, model, params_b=size if size > 0 else None, ask=False).model
            names[model] = there or model
    renamed = {name: known for name, known in names.items() if known != name}
    if not renamed:
        return parts, []
    result, problems = dict(parts), []
    for name in ("models", "scores"):
        if name not in parts:
            continue
        part = parts[name]
        rows = part.rows.assign(model=each_once(part.rows["model"], lambda model: names[model]))
        key = list(_TABLES[name].key)
        first = rows.drop_duplicates(key).reset_index(names="_row").set_index(key)["_row"]
        for number, row in rows[rows.duplicated(key)].iterrows():
            before = first.loc[tuple(row[key]) if len(key) > 1 else row["model"]]
            one, two = part.rows.loc[number, "model"], part.rows.loc[before, "model"]
            problems.append(
                f"row {number}, column model: {one!r} is {row['model']}, which row {before} already has "
                f"as {two!r}; delete one"
            )
        result[name] = dataclasses.replace(part, rows=rows)
    if problems:
        raise TableError(next(iter(parts.values())).title, problems)
    said = {name for part in parts.values() for name in part.known}
    if new := {name: known for name, known in renamed.items() if name not in said}:
        title = next(part.title for part in result.values() if part.title)
        shown = formatting.listed((f"{name} as {known}" for name, known in new.items()), 8)
        return result, [Note("names-matched", "info", f"{title}: models recognised by name: {shown}", {"models": new})]
    return result, []


def _register(catalog: Catalog, parts: dict[str, Part]) -> Catalog:
    """Add the user's files to the sources, and evaluators that only the user names to the evaluators."""
    notes = list(catalog.notes)
    files = {user_source(part.title): part.title for part in parts.values()}
    new_sources = [
        {"id": mine, "title": f"the user's table {mine.removeprefix('user:')}", "facts": "as the user states"}
        for mine in files
        if mine not in set(catalog.sources["id"])
    ]
    new_evaluators: list[dict[str, Any]] = []
    if "scores" in parts:
        part = parts["scores"]
        for name in sorted(set(part.rows["evaluator"]) - set(catalog.evaluators["id"])):
            new_evaluators.append({"id": name, "role": "user", "who": user_source(part.title), "preference": 1000.0})
            if name != "user":
                message = f"{part.title}: evaluator {name!r} is new; its scores form their own series"
                notes.append(Note("new-evaluator", "info", message, {"evaluator": name}))
    return dataclasses.replace(
        catalog,
        sources=_append(catalog.sources, pd.DataFrame(new_sources)),
        evaluators=_append(catalog.evaluators, pd.DataFrame(new_evaluators)),
        notes=tuple(notes),
    )


def _join(catalog: Catalog, name: str, part: Part, replace: bool) -> Catalog:
    old: pd.DataFrame = getattr(catalog, name)
    key = list(_TABLES[name].key)
    at = pd.MultiIndex.from_frame(old[key]).get_indexer(pd.MultiIndex.from_frame(part.rows[key]))
    new, mine, at = part.rows[at < 0], part.rows[at >= 0], at[at >= 0]
    before = old.iloc[at].set_axis(mine.index, axis=0)
    facts = [column for column in _FACTS[name] if column in part.stated and column in old.columns]
    differs = pd.DataFrame({column: _differs(before, mine, column) for column in facts}, index=mine.index)
    changed = differs.any(axis="columns").to_numpy(dtype=bool)
    labels = mine[key[0]].astype(str).str.cat([mine[column].astype(str) for column in key[1:]], sep=" ")
    if name == "models" and (rounded := _rounded(before, mine, part)):
        catalog = dataclasses.replace(catalog, notes=(*catalog.notes, *rounded))
    changes = [
        (number, label, row, one, [column for column, differing in cells.items() if differing])
        for number, label, row, one, cells in zip(
            mine.index[changed],
            labels[changed],
            *(frame[changed].to_dict("records") for frame in (mine, before, differs)),
            strict=True,
        )
    ]
    problems = [
        _refusal(number, column, row, one, label, name, part.titles)
        for number, label, row, one, columns in changes
        for column in columns
        if not (replace or (name == "models" and column in _STATED_FREELY))
    ]
    if problems:
        raise TableError(part.title, problems)
    notes = list(catalog.notes)
    if repeated := labels[~changed].tolist():
        message = f"{part.title}: {len(repeated)} rows repeat the catalog's {name} and change nothing"
        notes.append(Note("repeated-rows", "info", message, {"table": name, "rows": repeated}))
    if changes:
        replaced = []
        for _, label, row, one, columns in changes:
            pairs = (f"{column} {cell_text(one[column])} → {cell_text(row[column])}" for column in columns)
            replaced.append(f"{label} ({', '.join(pairs)})")
        message = (
            f"{part.title}: {len(replaced)} rows replace the catalog's {name}: "
            f"{formatting.listed(replaced, joint='; ')}"
        )
        notes.append(Note("replaced-rows", "warning", message, {"table": name, "rows": replaced}))
    result = _updated(old, mine, at, changed, part.stated) if len(mine) else old
    return dataclasses.replace(catalog, **{name: _append(result, new)}, notes=tuple(notes))


def _differs(before: pd.DataFrame, mine: pd.DataFrame, column: str) -> pd.Series:
    """Return in which rows both sides state a fact, and not the same."""
    one, two = before[column], mine[column]
    if column.startswith("params_"):
        labels = before["params_label_b"] if column == "params_total_b" else one
        pairs = zip(one, labels, two, strict=True)
        same = pd.Series(
            [same_size(b, a) or same_size(b, label) for a, label, b in pairs], index=mine.index, dtype=bool
        )
    elif one.dtype.kind == "f" and two.dtype.kind == "f":
        same = pd.Series(np.isclose(one, two, rtol=1e-9, atol=0.0), index=mine.index)
    else:
        same = one.eq(two)
    if column == "released":
        # One of the dates names a month and the other lies in it: no contradiction.
        by_month = before["released_precision"].eq("month") | mine["released_precision"].eq("month")
        same |= by_month & one.dt.to_period("M").eq(two.dt.to_period("M"))
    return one.notna() & two.notna() & ~same


def _rounded(before: pd.DataFrame, mine: pd.DataFrame, part: Part) -> list[Note]:
    """Say which sizes of a user are the catalog's, rounded or counted otherwise, and that its own ones stand."""
    size = "params_total_b"
    both = before[size].notna() & mine[size].notna() & ~np.isclose(before[size], mine[size], rtol=1e-9, atol=0.0)
    both &= ~_differs(before, mine, size)
    if size not in part.stated or not both.any():
        return []
    pairs = zip(mine.loc[both, "model"], mine.loc[both, size], before.loc[both, size], strict=True)
    shown = formatting.listed((f"{model} ({own:g} B, there {listed:g} B)" for model, own, listed in pairs), 8)
    message = (
        f"{part.title}, column {part.titles.get(size, size)}: sizes that match the catalog's up "
        f"to rounding, label or way of counting: {shown}; the catalog's are used"
    )
    return [Note("sizes-agree", "info", message, {"models": mine.loc[both, "model"].tolist()})]


def _updated(
    old: pd.DataFrame, mine: pd.DataFrame, at: np.ndarray, changed: np.ndarray, stated: tuple[str, ...]
) -> pd.DataFrame:
    """Fill blank cells from the user's rows; in changed ones the stated cells and their sources are overwritten."""
    result = old.copy()
    for column in result.columns.intersection(mine.columns):
        with_facts = column == "source" or column.endswith(("_source", "_basis", "_precision"))
        overwritten = changed & (column in stated or with_facts)
        cells = result[column].to_numpy(dtype=object, copy=True)
        take = mine[column].notna().to_numpy() & (overwritten | pd.isna(cells[at]))
        cells[at[take]] = mine[column].to_numpy(dtype=object)[take]
        result[column] = pd.Series(cells, index=result.index, dtype=result[column].dtype)
    return result


def _refusal(
    number: int, column: str, row: dict[Any, Any], old: dict[Any, Any], label: str, name: str, titles: Mapping[str, str]
) -> str:
    source = str(old.get("source") or old.get("params_source") or "")
    origin = source_id(source).removeprefix("user:") if source.startswith("user:") else "the embedded catalog"
    remedies = {
        "scores": "state who measured yours in a column evaluator",
        "models": "leave the cell blank or rename it",
    }
    remedy = remedies.get(name, "drop the row or rename it")
    unit = " B" if column.startswith("params_") else ""
    return (
        f"row {number}, column {titles.get(column, column)}: {cell_text(row[column])}{unit} for {label}, "
        f"where {origin} has {cell_text(old[column])}{unit}; {remedy}"
    )


def _append(old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    if new.empty:
        return old.reset_index(drop=True)
    columns = {}
    for name, cells in old.items():
        if cells.dtype != object:
            added = new.get(name, pd.Series(index=new.index, dtype=cells.dtype)).astype(cells.dtype)
            columns[name] = pd.concat([cells, added], ignore_index=True)
            continue
        texts = np.full(len(new), None, dtype=object)
        if name in new.columns:
            known = new[name].notna().to_numpy()
            texts[known] = new[name].to_numpy(dtype=object)[known]
        columns[name] = pd.Series(np.concatenate([cells.to_numpy(), texts]), dtype=object)
    return pd.DataFrame(columns)


def user_source(title: str) -> str:
    """Return the source id of a user's file.

    Examples
    --------
    >>> user_source("runs/my scores.csv")
    'user:my scores.csv'
    """
    return "user:" + title.replace("\\", "/").rsplit("/", 1)[-1].replace("#", "_")


def complete_scores(part: Part, catalog: Catalog) -> Part:
    """Return the scores with source and series filled in; a known (benchmark, evaluator) keeps its series."""
    rows = part.rows.copy()
    rows["source"] = _sources(rows["source"], part, catalog)
    pair = ["benchmark", "evaluator"]
    known = rows[pair].merge(catalog.scores.drop_duplicates(pair)[[*pair, "series"]], on=pair, how="left")["series"]
    new = rows["benchmark"] + ":" + rows["evaluator"]
    rows["series"] = _filled(rows["series"], known.set_axis(rows.index).fillna(new))
    return dataclasses.replace(part, rows=rows)


def complete_models(part: Part, catalog: Catalog) -> Part:
    """Return the models with family, label, active size, derivation, basis and sources filled in."""
    rows = part.rows.copy()
    rows["family"] = _filled(rows["family"], rows["model"])
    rows["params_label_b"] = rows["params_label_b"].fillna(rows["params_total_b"])
    stated = rows["params_active_b"].notna() | (rows["architecture"] != "dense")
    rows["params_active_b"] = rows["params_active_b"].where(stated, rows["params_total_b"])
    rows["derivation"] = _filled(rows["derivation"], [_DERIVATION.get(kind) for kind in rows["kind"]])
    basis = _filled(rows["released_basis"], ["vendor"] * len(rows))
    rows["released_basis"] = basis.where(rows["released"].notna(), None)
    rows["released_precision"] = rows["released_precision"].where(rows["released"].notna(), None)
    for fact, column in _SOURCE_OF.items():
        rows[column] = _sources(rows[column], part, catalog).where(rows[fact].notna(), None)
    return dataclasses.replace(part, rows=rows)


def _sources(cells: pd.Series, part: Part, catalog: Catalog) -> pd.Series:
    """Put the file's own id before every source that does not start with a known id."""
    mine, known = user_source(part.title), set(catalog.sources["id"])
    full = {cell: cell if source_id(cell) in known else f"{mine}#{cell}" for cell in cells.dropna().unique()}
    return each_once(cells, lambda cell: full.get(cell, mine))


def _filled(cells: pd.Series, default: Any) -> pd.Series:
    return cells.astype(object).where(cells.notna(), pd.Series(list(default), index=cells.index, dtype=object))


def check_models(rows: pd.DataFrame, catalog: Catalog, title: str) -> None:
    """Refuse models whose sizes contradict each other or whose parent is unknown.

    Parameters
    ----------
    rows : pandas.DataFrame
        Models as declared; the index holds row numbers for messages.
    catalog : Catalog
        The catalog that the rows refer to (and are part of).
    title : str
        Name of the table in messages.

    Raises
    ------
    TableError
        With every problem: row, column, value, remedy.
    """
    problems = [
        *_above(rows, "params_active_b", 1.0),
        *_above(rows, "params_non_embedding_b", ROUNDING),
        *_unknown(
            rows,
            "derived_from",
            catalog.models["model"],
            "leave it blank and name the parent in notes, or add the parent to the table",
        ),
    ]
    for column in (name for name in rows.columns if name.endswith("_source")):
        problems += _unknown_sources(rows, column, catalog)
    if problems:
        raise TableError(title, problems)


def check_scores(rows: pd.DataFrame, catalog: Catalog, title: str) -> None:
    """Refuse scores whose model, benchmark, evaluator or source is unknown.

    Parameters
    ----------
    rows, catalog, title
        As in :func:`check_models`.

    Raises
    ------
    TableError
        With every problem: row, column, value, nearest known name, remedy.
    """
    problems = [
        *_unknown(rows, "model", catalog.models["model"], "add it to a table of models first"),
        *_unknown(rows, "benchmark", catalog.benchmarks["id"], "declare it in benchmarks.csv beside the scores"),
        *_unknown(rows, "evaluator", catalog.evaluators["id"], "declare it in evaluators.csv beside the scores"),
        *_unknown_sources(rows, "source", catalog),
    ]
    if problems:
        raise TableError(title, problems)


def check_benchmarks(rows: pd.DataFrame, catalog: Catalog, title: str) -> None:
    """Refuse benchmarks whose sources are unknown; arguments as in :func:`check_models`."""
    problems = [
        *_unknown_sources(rows, "chance_source", catalog),
        *_unknown_sources(rows, "items_source", catalog),
    ]
    if problems:
        raise TableError(title, problems)


def source_id(source: str) -> str:
    """Return the id in front of ``#``.

    Examples
    --------
    >>> source_id("obsscaling#eval_results/base_llm_benchmark_eval.csv")
    'obsscaling'
    """
    return source.split("#", 1)[0]


def _above(rows: pd.DataFrame, column: str, factor: float) -> list[str]:
    wrong = rows[rows[column] > rows["params_total_b"] * factor]
    return [
        f"row {number}, column {column}: {row[column]:g} is above the total of {row['params_total_b']:g}; "
        "the total includes everything, in billions"
        for number, row in wrong.iterrows()
    ]


def _unknown(rows: pd.DataFrame, column: str, known: Iterable[str], remedy: str) -> list[str]:
    names = set(known)
    cells = rows[column].dropna()
    return [
        f"row {number}, column {column}: {value!r} is not in the catalog{hint}; {remedy}"
        for number, value, hint in _strangers(cells[~cells.isin(names)], names)
    ]


def _unknown_sources(rows: pd.DataFrame, column: str, catalog: Catalog) -> list[str]:
    if column not in rows.columns:
        return []
    names = set(catalog.sources["id"])
    cells = rows[column].dropna()
    return [
        f"row {number}, column {column}: {value!r} is not a known source{hint}; declare it in "
        "sources.csv beside the table"
        for number, value, hint in _strangers(
            cells[~cells.map({cell: source_id(cell) for cell in cells.unique()}).isin(names)], names
        )
    ]


def _strangers(cells: pd.Series, known: set[str]) -> Iterator[tuple[int, str, str]]:
    """Yield row, value and the nearest known name; a search through all names only for problems that are shown."""
    for i, (number, value) in enumerate(cells.items()):
        near = nearest(source_id(value), known, most=1) if i < SHOWN_PROBLEMS else []
        yield number, value, f" (nearest: {near[0]!r})" if near else ""

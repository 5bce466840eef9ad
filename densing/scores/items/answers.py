"""Answers to items: tables, stores of ``densing eval`` and logs of lm-eval become one table of models by items."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from densing.core import Array, InputError, TableError, TableLike, read_sheet, short
from densing.scores.evals import ANSWERS, read_results

ANSWER_COLUMNS = ("answer", "correct")
KINDS = ("model", "item")
NOT_AN_ANSWER = "is not between 0 and 1; write 1 for right, 0 for wrong, nothing where there is no answer"
Answers: TypeAlias = "Mapping[str, float] | pd.Series | Array | TableLike"
"""One model's answers: item to value, an array in the bank's order (NaN where there is none), or a table."""


@dataclass(frozen=True)
class AnswerTable:
    """What models answered.

    Parameters
    ----------
    answers : pandas.DataFrame
        One row per model, one column per item: in [0, 1], NaN where there is no answer.
    released : pandas.Series
        Date of each model, NaT where it is not known.
    items : pandas.DataFrame
        Per item: ``task`` and ``text_hash``, empty where they are not known.
    """

    answers: pd.DataFrame
    released: pd.Series
    items: pd.DataFrame


def read_answers(*sources: TableLike | Array) -> AnswerTable:
    """Read one table of answers, or several that are set one beside the other.

    Parameters
    ----------
    *sources : path, table or array
        A table with a row per model (columns ``model``, ``released`` if known, and one per item) or with a row per
        answer (``model``, ``item``, ``answer`` or ``correct``, and ``task``, ``text_hash``, ``released`` if known); a
        DataFrame with the models as its index; an array (models, items); a run of ``densing eval`` or a folder of
        lm-eval's results with samples, of which the items that are right or wrong are taken.

    Raises
    ------
    InputError, TableError
        When a source is no such table, an answer is outside 0 to 1, or a model answers an item twice.

    Examples
    --------
    >>> read_answers(np.array([[1, 0], [1, np.nan]])).answers.shape
    (2, 2)
    >>> read_answers([{"model": "a", "item": "x", "answer": 45}])
    Traceback (most recent call last):
        ...
    densing.core.errors.TableError: the table: row 2, column answer: '45' is not between 0 and 1; write 1 for right, 0 for wrong, nothing where there is no answer
    """  # noqa: E501
    parts = [_one(source) for source in sources]
    rows = pd.concat(parts, ignore_index=True)
    if rows.empty:
        raise InputError("no answers: the sources hold no item that a model got right or wrong")
    twice = rows.duplicated(["model", "item"])
    if twice.any():
        first = rows[twice].iloc[0]
        count = f"{int(twice.sum())} answers are there twice"
        raise InputError(f"{count}, first item {first['item']!r} of model {first['model']!r}; leave one of them out")
    table = rows.set_index(["model", "item"])["answer"].unstack()  # noqa: PD010
    table = table.reindex(index=rows["model"].unique(), columns=rows["item"].unique()).astype(float)
    released = pd.to_datetime(rows.groupby("model", sort=False)["released"].first()).reindex(table.index)
    items = rows.groupby("item", sort=False)[["task", "text_hash"]].first().reindex(table.columns)
    return AnswerTable(table, released, items)


def one_model(source: Answers, items: Iterable[str], model: str | None = None) -> pd.DataFrame:
    """Return one model's answers as a table: item, answer, text_hash.

    Parameters
    ----------
    source : mapping, series, array or table
        An array has the bank's length and order.
    items : iterable of str
        Of the bank.
    model : str, optional
        Which one, where a table holds several.

    Raises
    ------
    InputError, TableError
        As :func:`read_answers`; or an array of another length, or a table of several models and none named.
    """
    names = list(items)
    if isinstance(source, np.ndarray):
        if source.shape != (len(names),):
            raise InputError(f"answers of shape {source.shape}: the bank has {len(names)} items, in its order")
        source = dict(zip(names, source.tolist(), strict=True))
    if isinstance(source, pd.Series):
        source = source.to_dict()
    if isinstance(source, Mapping):
        given = {str(item): answer for item, answer in source.items() if not pd.isna(answer)}
        if wrong := [(item, answer) for item, answer in given.items() if not _in_range(answer)]:
            raise TableError("answers", [f"item {item}: {short(answer)} {NOT_AN_ANSWER}" for item, answer in wrong])
        return pd.DataFrame({"item": list(given), "answer": list(given.values()), "text_hash": ""})
    rows = _one(source, "model")
    models = rows["model"].unique()
    if model is not None:
        if model not in models:
            raise InputError(f"no model {model!r} among these answers; there are {', '.join(map(str, models[:10]))}")
        rows = rows[rows["model"].eq(model)]
    elif len(models) > 1:
        raise InputError(f"answers of {len(models)} models ({', '.join(map(str, models[:5]))}, ...); name one")
    twice = rows["item"].duplicated()
    if twice.any():
        raise InputError(f"item {rows['item'][twice].iloc[0]!r} is answered twice; leave one of the answers out")
    return rows.reset_index(drop=True)


def _in_range(answer: Any) -> bool:
    return isinstance(answer, numbers.Real) and 0 <= float(answer) <= 1


def _one(source: Any, model: str = "") -> pd.DataFrame:
    """Return a source as rows of model, item, answer, task, text_hash, released, without empty answers."""
    if isinstance(source, str | Path) and Path(source).is_dir():
        return _of_results(Path(source))
    if isinstance(source, np.ndarray):
        if source.ndim != 2:
            raise InputError(f"an array of answers has models as rows and items as columns, not shape {source.shape}")
        models, items = (
            [f"{kind}{at + 1}" for at in range(size)] for kind, size in zip(KINDS, source.shape, strict=True)
        )
        source = pd.DataFrame(source, models, items)
    if isinstance(source, pd.DataFrame) and not {"model", "item"} & set(map(str, source.columns)):
        source = source.rename_axis(index="model").reset_index()
    if isinstance(source, pd.DataFrame):
        name, cells = "the table", source.rename(columns=str)
        cells.index = pd.RangeIndex(2, len(cells) + 2)
    else:
        sheet = read_sheet(source)
        name, cells = sheet.name, sheet.cells
    if "model" not in cells:
        if not model:
            raise TableError(name, ["no column model; write the model's name in a column of that name"])
        cells = cells.assign(model=model)
    if "item" in cells:
        value = next((column for column in ANSWER_COLUMNS if column in cells), None)
        if value is None:
            raise TableError(name, ["no column answer; write 1 for right and 0 for wrong in a column of that name"])
        rows = cells.rename(columns={value: "answer"}).assign(column=value, row=cells.index)
    else:
        labels = [column for column in ("model", "released") if column in cells]
        rows = cells.assign(row=cells.index).melt([*labels, "row"], var_name="item", value_name="answer")
        rows["column"] = rows["item"]
    known = rows["answer"].notna() & rows["answer"].ne("")
    rows = rows[known].reset_index(drop=True)
    rows["item"] = rows["item"].astype(str)
    values = pd.to_numeric(rows["answer"], errors="coerce")
    wrong = rows[~values.between(0, 1)]
    if len(wrong):
        found = zip(wrong["row"], wrong["column"], wrong["answer"], strict=True)
        raise TableError(name, [f"row {row}, column {at}: {short(cell)} {NOT_AN_ANSWER}" for row, at, cell in found])
    rows["answer"] = values.astype(float)
    for column in ("task", "text_hash"):
        rows[column] = rows[column].fillna("").astype(str) if column in rows else ""
    if "released" in rows:
        dates = pd.to_datetime(rows["released"].replace("", None), errors="coerce")
        bad = rows[dates.isna() & rows["released"].notna() & rows["released"].ne("")]
        if len(bad):
            first = bad.iloc[0]
            raise TableError(name, [f"row {first['row']}, column released: {first['released']!r} is not a date"])
        rows["released"] = dates
    else:
        rows["released"] = pd.NaT
    return rows[["model", "item", "answer", "task", "text_hash", "released"]]


def _of_results(folder: Path) -> pd.DataFrame:
    items = read_results(folder).items
    if not len(items):
        raise InputError(f"{folder}: these results have no samples; evaluate with --log_samples")
    return answer_rows(items)


def answer_rows(items: pd.DataFrame) -> pd.DataFrame:
    """Return items of results as answers, those that are right or wrong; by a suite's own accuracy where it is stored.

    Parameters
    ----------
    items : pandas.DataFrame
        Of :func:`densing.read_results`, or of a store.
    """
    columns = [name for name in ANSWERS if name in items]
    right = items[columns].astype(float).bfill(axis=1).iloc[:, 0]
    rows = items.assign(correct=right)[right.notna()]
    return pd.DataFrame(
        {
            "model": rows["model"],
            "item": rows["task"].astype(str) + "/" + rows["doc_id"].astype(str),
            "answer": rows["correct"].astype(float),
            "task": rows["task"],
            "text_hash": rows["doc_hash"],
            "released": pd.NaT,
        }
    )

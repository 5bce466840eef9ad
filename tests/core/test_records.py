"""Plain data of results, and documents against their declared types."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core import ArtefactError, Note, Record, decode, plain, short

NOTE = Note("few", "warning", "5 families", {"families": 5})


class Point(Record, frozen=True):
    x: float
    label: str = ""


@dataclass(frozen=True)
class Part:
    kind: Literal["loss", "score"]
    ends: tuple[float, float]
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0
    delta: Annotated[float, msgspec.Meta(gt=0)] | None = None


@dataclass(frozen=True)
class Document:
    name: str
    scores: list[float]
    parts: dict[str, Part]
    draws: list[list[float]]
    fine: bool = True
    more: Any = None


GOOD: dict[str, Any] = {
    "name": "a",
    "scores": [1, 2.5],
    "parts": {"first": {"kind": "loss", "ends": [0, 1]}},
    "draws": [[1.0], [2.0]],
}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float64(2.5), 2.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (float("nan"), None),
        (np.float32("inf"), None),
        (pd.NaT, None),
        (pd.NA, None),
        (pd.Timestamp("2024-02-29 13:00"), "2024-02-29"),
        (np.datetime64("2024-02-29T13"), "2024-02-29"),
        (np.array([[1.0, math.nan]]), [[1.0, None]]),
        (pd.Series({"a": 1.5, "b": math.nan}), {"a": 1.5, "b": None}),
        ({1: (True, None)}, {"1": [True, None]}),
        (NOTE, {"code": "few", "severity": "warning", "message": "5 families", "details": {"families": 5}}),
        (Point(1.0), {"x": 1.0, "label": ""}),
        ("\udcff", "\\udcff"),
        (ValueError("no data"), "no data"),
    ],
    ids=repr,
)
def test_results_of_any_kind_become_plain_data(value: Any, expected: Any) -> None:
    assert plain(value) == expected
    assert type(plain(value)) is type(expected)


def test_a_table_becomes_rows() -> None:
    table = pd.DataFrame({"model": ["a", None], "score": [0.5, math.nan], "n": [1, 2]})
    assert plain(table) == [{"model": "a", "score": 0.5, "n": 1}, {"model": None, "score": None, "n": 2}]


@given(st.recursive(st.none() | st.floats() | st.text() | st.dates(), lambda x: st.lists(x) | st.sets(st.integers())))
def test_plain_data_are_always_json(value: Any) -> None:
    text = json.dumps(plain(value), allow_nan=False, ensure_ascii=False)
    assert json.loads(text.encode()) == plain(plain(value))


def test_a_document_becomes_its_type() -> None:
    document = decode(GOOD, Document)
    assert document.parts == {"first": Part("loss", (0.0, 1.0))}
    assert [type(value) for value in document.scores] == [float, float]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("name",), 3, "$.name: 3 is not text"),
        (("scores",), None, "$.scores: None is not a list of numbers"),
        (("scores", 1), True, "$.scores[1]: True is not a finite number"),
        (("scores", 0), 10**400, f"$.scores[0]: {short(10**400)} is not a finite number"),
        (("draws", 1), 5, "$.draws[1]: 5 is not a list of numbers"),
        (("parts",), [], "$.parts: [] is not an object"),
        (("parts", "first"), "x", "$.parts.first: 'x' is not an object"),
        (("parts", "first", "kind"), "lost", "$.parts.first.kind: 'lost' is not one of loss, score"),
        (("parts", "first", "ends"), [1], "$.parts.first.ends: 1 numbers where 2 belong"),
        (("parts", "first", "seed"), -1, "$.parts.first.seed: -1 is not a whole number, 0 or more"),
        (("parts", "first", "delta"), 0, "$.parts.first.delta: 0 is not above 0"),
        (("fine",), 1, "$.fine: 1 is not true or false"),
    ],
    ids=str,
)
def test_what_does_not_belong_is_named_with_its_place(path: tuple[Any, ...], value: Any, message: str) -> None:
    document = json.loads(json.dumps(GOOD))
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    with pytest.raises(ArtefactError) as caught:
        decode(document, Document)
    assert str(caught.value) == message


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ArtefactError, match=r"^\$\.parts\.first\.ends: missing$"):
        decode({**GOOD, "parts": {"first": {"kind": "loss"}}}, Document)
    with pytest.raises(ArtefactError, match=r"^\$\.meta: \[\] is not an object$"):
        decode([], Document, "$.meta")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.sampled_from(["kind", "ends", "seed", "x"]), x, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(sorted(GOOD)), JSON)
def test_any_change_is_read_or_refused_with_a_path(key: str, value: Any) -> None:
    try:
        document = decode({**GOOD, key: value}, Document)
    except ArtefactError as error:
        assert str(error).startswith(f"$.{key}")
    else:
        assert getattr(document, key) is not None


class Inner(Record, frozen=True):
    value: int


class Outer(Record, frozen=True):
    name: str
    parts: tuple[Inner, ...]
    share: float | None = None


def test_a_record_is_plain_and_comes_back() -> None:
    record = Outer("a", (Inner(1), Inner(2)), 0.5)
    stored = json.loads(json.dumps(record.to_dict()))
    assert stored == {"name": "a", "parts": [{"value": 1}, {"value": 2}], "share": 0.5}
    assert Outer.from_dict({**stored, "more": 1}) == record
    with pytest.raises(AttributeError):
        record.name = "b"  # type: ignore[misc]

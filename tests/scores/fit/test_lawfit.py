"""Stored fits: exact round trips, and no document, however damaged, that gives anything but an ArtefactError."""

from __future__ import annotations

import copy
import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import densing
from densing.core.errors import ArtefactError, InputError
from densing.core.notes import Note
from densing.scores.fit import LawFit, fit_law
from tests.support.frozen import changeable
from tests.support.law_cases import LOSS_CASES, SCORE_CASES, TWO_STEP_CASES, noisy


def small_fit(case=SCORE_CASES[3], **options):
    law, x, y = noisy(case, 3, 0.004)
    return fit_law(law, x, y, **{"bootstrap": 5, "meta": {"licence": "MIT", "family": "toy"}, **options})


FIT = small_fit(weights=np.linspace(1, 2, 60), scheme="cluster", clusters=np.arange(60) // 4)
DOCUMENT = json.loads(FIT.to_json())


@pytest.mark.parametrize("case", LOSS_CASES + SCORE_CASES, ids=str)
def test_round_trip_is_exact(case):
    fit = small_fit(case)
    again = LawFit.from_json(fit.to_json())
    assert again.law == fit.law
    for name in ("theta", "y", "residuals"):
        assert_array_equal(getattr(again, name), getattr(fit, name))
    for name, values in fit.x.items():
        assert_array_equal(again.x[name], values)
    assert_allclose(again.draws, fit.draws, rtol=1e-8)
    for name in ("objective", "status", "options", "meta", "data_hash", "notes"):
        assert getattr(again, name) == getattr(fit, name)
    assert dict(again.domain) == dict(fit.domain)
    assert again.to_json() == fit.to_json()


def test_two_step_round_trip():
    case = TWO_STEP_CASES[0]
    law, x = case.law, case.table(20, 5)
    loss = law.loss_law.predict(law.split(case.theta)[0], x)
    fit = fit_law(law, {**x, "loss": loss}, law.predict(case.theta, x), bootstrap=3)
    again = LawFit.from_json(fit.to_json())
    assert again.to_json() == fit.to_json()
    assert [step["law"] for step in again.options["steps"]] == ["densing-loss", "sigmoid"]


def test_document_names_version_law_licence_and_hash():
    assert DOCUMENT["schema"] == "densing-lawfit"
    assert DOCUMENT["version"] == 1
    assert DOCUMENT["densing"] == densing.__version__
    assert DOCUMENT["law"]["name"] == "logistic"
    assert DOCUMENT["meta"]["licence"] == "MIT"
    assert len(DOCUMENT["data_hash"]) == 64
    assert len(DOCUMENT["options"]["weights"]) == len(DOCUMENT["options"]["clusters"]) == 60


def test_a_reread_fit_predicts_and_inverts():
    again = LawFit.from_json(FIT.to_json())
    assert again.invert([0.5])["status"].tolist() == ["ok"]
    assert_array_equal(again.predict(again.x), FIT.predict(FIT.x))
    assert again.summary() == FIT.summary()


@pytest.mark.parametrize("change", ["y", "x", "weights", "clusters"])
def test_changed_data_are_noticed(change):
    document = copy.deepcopy(DOCUMENT)
    if change == "y":
        document["data"]["y"][3] += 1e-9
    elif change == "x":
        document["data"]["x"]["params"][3] += 1.0
    elif change == "weights":
        document["options"]["weights"][0] = 1.5
    else:
        document["options"]["clusters"][0] = "other"
    with pytest.raises(ArtefactError, match="does not match the data"):
        LawFit.from_json(json.dumps(document))


MESSAGES = [
    (["version"], 99, r"\$\.version: 99 is not 1"),
    (["schema"], None, r"\$\.schema"),
    (["theta"], [1.0], r"\$\.theta: 1 numbers where 3 belong"),
    (["theta", 1], "a", r"\$\.theta\[1\]: 'a' is not a finite number"),
    (["theta", 1], True, r"\$\.theta\[1\]: True is not a finite number"),
    (["theta", 1], 10**400, r"\$\.theta\[1\]"),
    (["draws", 2], 5, r"\$\.draws\[2\]: 5 is not a list of numbers"),
    (["law", "name"], "logistik", r"\$\.law: unknown law 'logistik'; did you mean 'logistic'"),
    (["law", "options"], {"floor": "x"}, r"\$\.law: law logistic: floor x"),
    (["status"], "fine", r"\$\.status: 'fine' is not one of"),
    (["notes"], [3], r"\$\.notes\[0\]"),
    (["domain"], {}, r"\$\.domain\.params: missing"),
    (["data", "y"], None, r"\$\.data\.y: None is not a list of numbers"),
    (["meta"], [], r"\$\.meta: \[\] is not an object"),
    (["objective"], None, r"\$\.objective"),
    (["theta", 0], -1.0, r"\$\.theta: c outside \[0, 0\.75\]"),
    (["options", "loss"], [], r"\$\.options\.loss: \[\] is not one of huber"),
    (["options", "delta"], [None], r"\$\.options\.delta"),
    (["options", "seed"], 1.5, r"\$\.options\.seed: 1\.5 is not a whole number"),
]


@pytest.mark.parametrize(("path", "value", "message"), MESSAGES, ids=lambda v: str(v)[:30])
def test_damage_is_located(path, value, message):
    document = copy.deepcopy(DOCUMENT)
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ArtefactError, match=message):
        LawFit.from_json(json.dumps(document))


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "3", "{", "[" * 100_000, '{"a": NaN}', '{"version": Infinity}', "\x00", b"\xff", 7],
)
def test_what_is_not_a_fit_is_refused(text):
    with pytest.raises(ArtefactError):
        LawFit.from_json(text)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def nodes(value, path=()):
    """Paths of every node, long lists of numbers sampled at their ends."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        if not isinstance(key, int) or key in (0, 1, len(value) - 1):
            yield from nodes(inner, (*path, key))


PATHS = [path for path in nodes(DOCUMENT) if path]


@settings(max_examples=300)
@given(path=st.sampled_from(PATHS), value=VALUES, drop=st.booleans())
def test_fuzzed_documents_load_or_are_refused(path, value, drop):
    document = copy.deepcopy(DOCUMENT)
    place = document
    for key in path[:-1]:
        place = place[key]
    if drop:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    load_or_refuse(json.dumps(document))


@settings(max_examples=150)
@given(seed=st.integers(0, 2**32))
def test_fuzzed_bytes_load_or_are_refused(seed):
    rng = random.Random(seed)
    text = list(FIT.to_json())
    for _ in range(rng.randint(1, 4)):
        where = rng.randrange(len(text))
        text[where : where + rng.randint(0, 30)] = rng.choice(["", "}", "]", '"', "1e999", "-", "\\u0000", "null", "é"])
    load_or_refuse("".join(text))


def load_or_refuse(text):
    try:
        fit = LawFit.from_json(text)
    except ArtefactError as error:
        assert str(error)
        return
    assert isinstance(fit.summary(), str)
    assert isinstance(fit._repr_html_(), str)
    assert LawFit.from_json(fit.to_json()).to_json() == fit.to_json()


def test_meta_that_json_cannot_hold_is_refused_on_writing():
    fit = small_fit(meta={"when": object()})
    with pytest.raises(InputError, match="cannot be written as JSON"):
        fit.to_json()


def test_notes_survive():
    note = Note("toy", "warning", "a sentence", {"n": 1})
    document = copy.deepcopy(DOCUMENT)
    document["notes"] = [note.to_dict()]
    assert LawFit.from_json(json.dumps(document)).notes == (note,)


def test_no_result_can_be_changed_by_who_reads_it():
    assert changeable("densing.scores.fit") == set()

"""Stored fits: exact round trips, and no document, however damaged, that gives anything but an ArtefactError."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import densing
from densing.core.errors import ArtefactError, InputError
from densing.core.notes import Note
from densing.scores.fit import LawFit, fit_law
from densing.scores.fit.lawfit import hash_data, spread
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


def test_a_fit_is_one_thing_and_two_fits_are_two():
    again = LawFit.from_json(FIT.to_json())
    assert again != FIT and len({FIT, again, FIT}) == 2


def test_what_is_not_a_number_is_refused_on_writing():
    with pytest.raises(InputError, match="cannot be written as JSON"):
        replace(FIT, objective=float("nan")).to_json()


@pytest.mark.parametrize("level", [0.95, 0.5])
def test_intervals_are_quantiles_of_the_draws(level):
    fit = small_fit(bootstrap=60)
    tail = (1 - level) / 2
    lo, hi = np.quantile(fit.draws, [tail, 1 - tail], axis=0)
    assert_array_equal(fit.intervals(level)[["lo", "hi"]], np.column_stack([lo, hi]))
    x = {"params": [1e9, 3e10]}
    lo, hi = np.quantile(fit.law.predict(fit.draws, x), [tail, 1 - tail], axis=0)
    assert_array_equal(fit.band(x, level), np.column_stack([lo, fit.predict(x), hi]))
    sizes = fit.law.invert(fit.draws, 0.5)[0]
    assert_array_equal(fit.invert(0.5, level=level)[["lo", "hi"]].iloc[0], np.quantile(sizes, [tail, 1 - tail]))
    if level == 0.95:
        assert_array_equal(fit.intervals(), fit.intervals(0.95))
        assert_array_equal(fit.band(x), fit.band(x, 0.95))
        assert_array_equal(fit.invert(0.5)[["lo", "hi"]], fit.invert(0.5, level=0.95)[["lo", "hi"]])


def test_an_end_between_a_number_and_infinity_is_the_next_draw_outwards():
    draws = np.array([[1.0], [2.0], [3.0], [4.0], [np.inf]])
    assert [float(end[0]) for end in spread(draws, 0.9)] == [1.0, np.inf]
    assert [float(end[0]) for end in spread(draws[:4], 0.4)] == [pytest.approx(1.9), pytest.approx(3.1)]
    draws[0] = 0.0
    draws[-1] = -np.inf
    assert [float(end[0]) for end in spread(draws, 0.7)] == [-np.inf, 4.0]
    assert np.isnan(spread(np.empty((0, 2)), 0.9)).all() and spread(np.empty((0, 2)), 0.9)[0].shape == (2,)


@pytest.mark.parametrize(("factor", "status"), [(0.34, "ok"), (0.33, "extrapolated"), (1, "ok")])
def test_sizes_beyond_a_third_and_three_times_the_fitted_ones_are_extrapolated(factor, status):
    size = np.geomspace(1e8, 1e11, 12)
    fit = fit_law("power", {"params": size}, 9 * size**-0.1, bootstrap=2)
    assert fit.invert(9 * (factor * 1e8) ** -0.1)["status"].tolist() == [status]
    assert fit.invert(9 * (1e11 / factor) ** -0.1)["status"].tolist() == [status]
    n, d = (values.ravel() for values in np.meshgrid(np.geomspace(1e8, 1e10, 6), np.geomspace(1e9, 1e13, 6)))
    # With equal exponents and coefficients as many tokens as parameters are best.
    fit = fit_law(
        "chinchilla", {"params": n, "tokens": 1e-2 * d}, 1.8 + 400 * n**-0.35 + 400 * (1e-2 * d) ** -0.35, bootstrap=2
    )
    found = fit.optimal([6 * (factor * 1e8) ** 2, 6 * (1e10 / factor) ** 2])
    assert found["params"].to_numpy() == pytest.approx([factor * 1e8, 1e10 / factor])
    assert found["status"].tolist() == [status, status]
    lo, hi = np.quantile(fit.law.optimal(fit.draws, [1e19])[1][:, 0], [0.1, 0.9])
    assert fit.optimal(1e19, level=0.8)[["tokens_lo", "tokens_hi"]].to_numpy().tolist() == [[lo, hi]]


@pytest.mark.parametrize("place", ["theta", "draws"])
@pytest.mark.parametrize(
    ("value", "ok"), [(0.75 * (1 + 9e-9), True), (0.75 * (1 + 2e-8), False), (-1e-9, False), (0.0, True)]
)
def test_stored_parameters_lie_within_their_bounds_to_a_rounding(place, value, ok):
    document = copy.deepcopy(DOCUMENT)
    row = document["theta"] if place == "theta" else document["draws"][-1]
    row[0] = value
    if ok:
        LawFit.from_json(json.dumps(document))
    else:
        with pytest.raises(ArtefactError, match=rf"\$\.{place}: c outside \[0, 0\.75\]"):
            LawFit.from_json(json.dumps(document))


def test_the_hash_is_of_every_number_and_of_no_names_order():
    x, y = {"a": np.array([1.0, 2.0]), "b": np.array([3.0, 4.0])}, np.array([5.0, 6.0])
    plain = hash_data(x, y, None)
    assert plain == hash_data(dict(reversed(x.items())), y, None, None) == hash_data(x, y, None)
    text = (
        '{"clusters": null, "weights": null, "x": {"a": ["0x1.0000000000000p+0", "0x1.0000000000000p+1"], '
        '"b": ["0x1.8000000000000p+1", "0x1.0000000000000p+2"]}, "y": ["0x1.4000000000000p+2", "0x1.8000000000000p+2"]}'
    )
    assert plain == hashlib.sha256(text.encode()).hexdigest()
    assert (
        len({plain, hash_data(x, y, y), hash_data(x, y, None, np.array(["1", "2"])), hash_data(x, y[::-1], None)}) == 4
    )


def test_summary_and_card_say_how_it_was_fitted():
    size = np.geomspace(1e8, 1e11, 12)
    loss = 12 * size**-0.08 * np.exp(-0.01 * (np.log(size) - 21) ** 2)
    fit = fit_law("power-offset", {"params": size}, loss, bootstrap=3, seed=4)
    lines = fit.summary().splitlines()
    assert lines[0] == "power-offset: L = E + A N^-alpha"
    assert lines[1] == f"12 points, loss huber, delta 0.001 (sum {fit.objective:.6g}), bound_hit; 3 case draws, seed 4"
    assert lines[2].split() == ["Parameter", "Estimate", "95", "%", "interval"] and len(lines) == 6 + len(fit.notes)
    assert lines[6] == f"{fit.notes[0].severity}: {fit.notes[0].message}"
    facts = {
        "points": "12",
        "status": "bound_hit",
        "loss": f"huber (sum {fit.objective:.6g})",
        "draws": "3 case, seed 4",
    }
    assert fit.card().facts == facts
    assert "delta" not in fit_law("power", {"params": size}, loss, loss="log", bootstrap=0).summary()


def test_lengths_that_do_not_belong_together_are_located():
    for path, name in (
        (("data", "x", "params"), "data.x.params"),
        (("residuals",), "residuals"),
        (("options", "weights"), "options.weights"),
    ):
        document = copy.deepcopy(DOCUMENT)
        place = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = place[path[-1]][:-1]
        with pytest.raises(ArtefactError, match=f"{re.escape(name)}: 59 numbers where 60 belong"):
            LawFit.from_json(json.dumps(document))


def ends_at(value):
    """Ranges of fitted sizes whose guard ends exactly at a value, or a rounding inside: below, and above."""
    low, high = 3.0 * value, value / 3.0
    while low / 3.0 > value:
        low = np.nextafter(low, 0)
    while high * 3.0 < value:
        high = np.nextafter(high, np.inf)
    return (low, 9 * value), (value / 9, high)


def test_a_size_at_the_very_end_of_the_guard_is_not_beyond_it():
    size = np.geomspace(1e8, 1e11, 12)
    fit = fit_law("power", {"params": size}, 9 * size**-0.1, bootstrap=2)
    for domain in ends_at(float(fit.invert(1.0)["estimate"].iloc[0])):
        assert replace(fit, domain={"params": domain}).invert(1.0)["status"].tolist() == ["ok"]
    n, d = (values.ravel() for values in np.meshgrid(np.geomspace(1e8, 1e10, 6), np.geomspace(1e9, 1e13, 6)))
    fit = fit_law("chinchilla", {"params": n, "tokens": d}, 1.8 + 400 * n**-0.35 + 400 * d**-0.35, bootstrap=2)
    params, tokens = (float(fit.optimal(1e21)[name].iloc[0]) for name in ("params", "tokens"))
    for domain in ends_at(params):
        whole = {"params": domain, "tokens": (tokens / 2, tokens * 2)}
        assert replace(fit, domain=whole).optimal(1e21)["status"].tolist() == ["ok"]


def test_the_first_input_without_a_range_is_named():
    law, x, y = noisy(LOSS_CASES[0], 3, 0.004)
    document = json.loads(fit_law(law, x, y, bootstrap=2).to_json())
    document["domain"] = {}
    with pytest.raises(ArtefactError, match=rf"\$\.domain\.{law.inputs[0]}: missing"):
        LawFit.from_json(json.dumps(document))

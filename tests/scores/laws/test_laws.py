"""Laws: derivatives, inverses, refusals, units."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime, brentq

from densing.core.errors import DensingError, DomainError, InputError, UnknownNameError
from densing.scores.laws import D0_PAPER, Law, get_law, invert_one, law_names
from densing.scores.laws.base import BaseLaw
from tests.support.law_cases import CASES, SCORE_CASES, Case

each_law = pytest.mark.parametrize("case", CASES, ids=str)
UNIT = st.floats(0.0, 1.0)


def sizes(case: Case, n: int = 40) -> np.ndarray:
    """First inputs across the law's domain: losses, or sizes from 1e6 to 1e12."""
    return np.linspace(0.05, 1.5, n) if case.law.inputs[0] == "loss" else np.geomspace(1e6, 1e12, n)


def others(case: Case, n: int) -> dict[str, np.ndarray]:
    return {"tokens": np.full(n, 1e12)} if "tokens" in case.law.inputs else {}


def test_every_named_law_has_a_case():
    assert {case.name for case in CASES} == set(law_names())


@pytest.mark.parametrize("name", law_names())
def test_a_law_is_registered_under_its_own_name_and_knows_plausible_parameters(name):
    law = get_law(name)
    assert law.name == name
    assert len(law.typical) == len(law.parameters)


def test_names_of_laws_need_no_numpy():
    code = "import sys; from densing.scores.laws import law_names; law_names(); print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_every_loss_law_may_be_the_first_step():
    for case in CASES:
        if case.law.output == "loss":
            assert get_law("two-step", loss=case.name).loss_law == case.law


@each_law
def test_law_satisfies_the_protocol(case):
    law = case.law
    assert isinstance(law, Law)
    assert len(law.parameters) == len(case.theta) == len(law.space)
    assert law.output in ("loss", "score", "ability")
    assert law.equation
    assert "arXiv" in law.source or law.output == "ability"


@each_law
def test_jacobian_is_the_derivative(case):
    law, x, theta = case.law, case.table(5), np.array(case.theta)
    ours = law.jacobian(theta, x)
    assert ours.shape == (5, theta.size)
    for run in range(5):
        one = {name: values[[run]] for name, values in x.items()}
        numeric = approx_fprime(np.ones(theta.size), lambda u, one=one: law.predict(u * theta, one)[0], 1e-7)
        np.testing.assert_allclose(ours[run] * theta, numeric, rtol=2e-5, atol=2e-7)


@each_law
def test_inverse_undoes_prediction_over_the_domain(case):
    law, first = case.law, sizes(case)
    value = law.predict(case.theta, {law.inputs[0]: first, **others(case, first.size)})
    inverted, status = law.invert(case.theta, value)
    assert (status == "ok").all()
    np.testing.assert_allclose(inverted, first, rtol=1e-6)


@each_law
@settings(max_examples=60)
@given(shift=st.lists(UNIT, min_size=10, max_size=10), place=UNIT)
def test_inverse_undoes_prediction_for_random_parameters(case, shift, place):
    law = case.law
    theta = np.array(case.theta) * (0.8 + 0.4 * np.array(shift[: len(case.theta)]))
    theta = np.minimum(theta, [p.high for p in law.space])
    first = sizes(case)
    x0 = first[0] * (first[-1] / first[0]) ** place
    value = law.predict(theta, {law.inputs[0]: [x0], **others(case, 1)})
    inverted, status = law.invert(theta, value)
    # Where the curve is flat, rounding of the value is what limits the inverse.
    slope = abs(float(log_slope(law, theta, x0, case)))
    tolerance = 1e-9 + 1e-14 * max(abs(float(value[0])), 1e-3) / max(slope, 1e-300)
    if tolerance < 1e-3:
        assert status[0] == "ok"
        assert math.isclose(float(inverted[0]), x0, rel_tol=tolerance)


def log_slope(law, theta, x0, case):
    pair = x0 * np.exp([-1e-4, 1e-4])
    values = law.predict(theta, {law.inputs[0]: pair, **others(case, 2)})
    return (values[1] - values[0]) / 2e-4


@each_law
def test_prediction_is_strictly_monotone(case):
    law, first = case.law, sizes(case, 200)
    steps = np.diff(law.predict(case.theta, {law.inputs[0]: first, **others(case, 200)}))
    grows = law.output in ("score", "ability") and law.inputs[0] == "params"
    assert (steps > 0).all() if grows else (steps < 0).all()


@each_law
def test_inverse_of_monotone_values_is_monotone(case):
    law, first = case.law, sizes(case)
    value = law.predict(case.theta, {law.inputs[0]: first, **others(case, first.size)})
    order = np.argsort(value)
    assert (np.diff(law.invert(case.theta, value[order])[0] * (1 if value[0] < value[-1] else -1)) > 0).all()


@each_law
def test_batched_parameters_broadcast_against_values(case):
    law, rng = case.law, np.random.default_rng(1)
    theta = np.array(case.theta) * rng.uniform(0.97, 1.03, size=(7, len(case.theta)))
    x = case.table(4)
    assert law.predict(theta, x).shape == (7, 4)
    assert law.jacobian(theta, x).shape == (7, 4, len(case.theta))
    value = law.predict(case.theta, {law.inputs[0]: sizes(case, 4), **others(case, 4)})
    together, status = law.invert(theta[:, None, :], value[None, :])
    assert together.shape == status.shape == (7, 4)
    np.testing.assert_array_equal(together[3], law.invert(theta[3], value)[0])
    np.testing.assert_array_equal(law.predict(theta, x)[2], law.predict(theta[2], x))


@each_law
def test_options_rebuild_the_law(case):
    again = get_law(case.law.name, **case.law.options)
    assert again == case.law
    assert hash(again) == hash(case.law)
    np.testing.assert_array_equal(again.predict(case.theta, case.table()), case.law.predict(case.theta, case.table()))
    assert eval(repr(again), {"get_law": get_law}) == again


@each_law
@given(factor=st.floats(1e-9, 1e9))
@settings(max_examples=25)
def test_change_of_units_leaves_the_curve_in_place(case, factor):
    law, x = case.law, case.table(10)
    factors = dict.fromkeys(law.log_inputs, factor)
    moved = {name: values * factors.get(name, 1.0) for name, values in x.items()}
    theta = law.rescale(case.theta, factors)
    np.testing.assert_allclose(law.predict(theta, moved), law.predict(case.theta, x), rtol=1e-9)
    back = law.rescale(theta, {name: 1 / value for name, value in factors.items()})
    np.testing.assert_allclose(back, case.theta, rtol=1e-9)


def test_a_law_that_is_fitted_in_other_units_must_say_how_its_parameters_move():
    # The identity would leave the fit's curve in the fit's units, in silence.
    class Line(BaseLaw):
        name, log_inputs, space = "line", ("params",), ()

    assert Line().rescale([1.0, 2.0], {"params": 1.0}).tolist() == [1.0, 2.0]
    with pytest.raises(NotImplementedError, match="law line: write rescale, or leave params out of log_inputs"):
        Line().rescale([1.0, 2.0], {"params": 2.0})


@each_law
def test_values_outside_the_domain_are_refused_by_name(case):
    law = case.law
    # A loss, a score, a logit that no size reaches; a line of logits only leaves what a float holds.
    low, high = {"loss": (-1.0, 1e9), "score": (1.5, -0.5), "ability": (1e4, -1e4)}[law.output]
    _, above = law.invert(case.theta, low)
    assert str(above) == "above_ceiling"
    with pytest.raises(DomainError, match="above_ceiling"):
        invert_one(law, case.theta, low)
    if law.output != "loss":
        x0, below = law.invert(case.theta, high)
        assert str(below) == "below_floor"
        assert float(x0) == (math.inf if law.inputs[0] == "loss" else 0.0)
        with pytest.raises(DomainError, match="below_floor"):
            invert_one(law, case.theta, high)


@pytest.mark.parametrize("case", SCORE_CASES, ids=str)
def test_floor_and_ceiling_themselves_have_no_inverse(case):
    law = case.law
    theta = dict(zip(law.parameters, case.theta, strict=True))
    floor = theta.get("d", law.options.get("floor"))
    ceiling = floor + theta["c"] if "c" in theta else law.options["ceiling"]
    size, status = law.invert(case.theta, [floor, ceiling])
    assert status.tolist() == ["below_floor", "above_ceiling"]
    assert size.tolist() == ([math.inf, 0.0] if law.inputs[0] == "loss" else [0.0, math.inf])


def test_irreducible_loss_has_no_inverse():
    law = get_law("chinchilla")
    theta = np.array([1.7, 400.0, 500.0, 0.34, 0.30])
    limit = 1.7 + 500.0 * 1e12**-0.30
    size, status = law.invert(theta, [limit - 1e-9, limit + 1e-3])
    assert status.tolist() == ["above_ceiling", "ok"]
    assert size[0] == math.inf


@pytest.mark.parametrize("case", [c for c in CASES if c.name in ("broken", "two-step", "chinchilla")], ids=str)
def test_inverse_agrees_with_bracketing(case):
    """scipy.optimize.brentq knows nothing of closed forms or Newton's method."""
    law = case.law
    value = float(law.predict(case.theta, {"params": [3.3e9], **others(case, 1)})[0])

    def gap(log_n):
        return law.predict(case.theta, {"params": [math.exp(log_n)], **others(case, 1)})[0] - value

    root = math.exp(brentq(gap, math.log(1e5), math.log(1e14), xtol=1e-14))
    assert math.isclose(invert_one(law, case.theta, value), root, rel_tol=1e-9)


@pytest.mark.parametrize("width", [0.01, 0.1, 1.0, 10.0])
@pytest.mark.parametrize(("before", "after"), [(0.05, 0.6), (0.6, 0.05), (0.2, 0.2)])
def test_broken_law_inverts_whatever_the_bend(before, after, width):
    law, size = get_law("broken"), np.geomspace(1e5, 1e13, 50)
    theta = [0.0, 20.0, before, after, 1e9, width]
    np.testing.assert_allclose(law.invert(theta, law.predict(theta, {"params": size}))[0], size, rtol=1e-8)


def test_tokens_default_to_the_papers_and_shift_the_inverse():
    law, theta = get_law("densing-loss"), [6.0, 9.0, 0.16, 0.18]
    assert D0_PAPER == 1e12
    assert law.invert(theta, 0.3)[0] == law.invert(theta, 0.3, tokens=1e12)[0]
    assert law.invert(theta, 0.3, tokens=5e12)[0] < law.invert(theta, 0.3, tokens=1e12)[0]


def test_equation_4_of_the_paper():
    """Eq. 4 written out: N = ((L(S) - b D0^-beta) / a)^(-1/alpha), L(S) = l - ln(c / (S - d) - 1) / gamma."""
    a, b, alpha, beta, c, gamma, mid, d = theta = (8.0, 12.0, 0.13, 0.13, 0.6, -9.0, 0.9, 0.25)
    score = 0.52
    loss = mid - math.log(c / (score - d) - 1) / gamma
    by_hand = ((loss - b * 1e12**-beta) / a) ** (-1 / alpha)
    assert math.isclose(invert_one(get_law("two-step"), theta, score), by_hand, rel_tol=1e-12)


def test_score_falls_as_loss_rises_with_the_printed_sign():
    law = get_law("sigmoid")
    scores = law.predict([0.6, -9.0, 0.6, 0.25], {"loss": [0.0, 10.0]})
    assert scores[0] == pytest.approx(0.85, abs=0.005)
    assert scores[1] == pytest.approx(0.25, abs=1e-12)
    assert next(p for p in law.space if p.name == "gamma").high < 0


def test_a_score_beyond_that_at_zero_loss_is_above_the_ceiling():
    size, status = get_law("sigmoid").invert([0.6, -9.0, 0.6, 0.25], [0.8473, 0.8499])
    assert status.tolist() == ["ok", "above_ceiling"]
    assert size[1] == 0.0


def test_mistakes_get_sentences():
    with pytest.raises(UnknownNameError, match="did you mean 'chinchilla'"):
        get_law("chinchila")
    with pytest.raises(InputError, match="unknown option 'flor'"):
        get_law("logistic", flor=0.25)
    with pytest.raises(InputError, match="must satisfy 0 <= floor < ceiling <= 1"):
        get_law("logistic", floor=25)
    with pytest.raises(InputError, match="no loss law 'sigmoid'"):
        get_law("two-step", loss="sigmoid")
    with pytest.raises(DomainError, match=r"its last axis must hold 2 parameters \(A, alpha\)"):
        get_law("power").predict([1.0], {"params": [1.0]})
    with pytest.raises(DomainError, match="input 'tokens' is missing"):
        get_law("densing-loss").predict([1.0, 1.0, 0.1, 0.1], {"params": [1.0]})
    with pytest.raises(DomainError, match="no input 'tokens' to hold fixed"):
        get_law("power").invert([1.0, 0.1], 1.0, tokens=1e12)
    with pytest.raises(DomainError, match="value 1 to invert is NaN"):
        get_law("power").invert([1.0, 0.1], [1.0, math.nan])


@pytest.mark.parametrize("options", [{"floor": "a"}, {"floor": []}, {"ceiling": {}}, {"floor": math.nan}])
def test_options_of_any_type_are_refused_not_crashed_on(options):
    with pytest.raises(DensingError):
        get_law("logistic", **options)


def test_laws_need_numpy_only():
    code = (
        "import sys; from densing.scores.laws import get_law; get_law('power');"
        "print([m for m in ('pandas', 'scipy', 'statsmodels', 'plotly') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

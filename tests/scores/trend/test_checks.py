"""The checks: exact where they can be, calibrated where they are random."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st

from densing.core.errors import FitError
from densing.scores.trend import TrendData, estimate_trend
from densing.scores.trend.checks import diagnose, record_setter_bias, simulate_envelope
from densing.scores.trend.coverage import Scenario, simulate
from densing.scores.trend.estimators import envelope_slopes
from densing.scores.trend.significance import block_shuffles, breakpoint_test, permutation_test

TREND = simulate(Scenario(n=60, families=20), 5)
FLAT = Scenario(n=40, families=14, doubling_months=np.inf, ceilings=(0.5, 3.0))


def test_record_setters_without_a_trend_rise_as_the_design_notes_say() -> None:
    """densing-law.md section 5: 5000 draws, sd 1, 29 uniform dates in 590 days: median slope .0058, R2 .78.

    Also 5-95 % range .0017-.039 and R2 > .912 in 23 %.
    """
    rng = np.random.default_rng(8)
    slopes, r2 = simulate_envelope(rng.uniform(0, 590, (5000, 29)), 1.0, draws=5000, seed=8)
    assert np.median(slopes) == pytest.approx(0.0058, abs=2e-4)
    assert np.median(r2) == pytest.approx(0.78, abs=0.01)
    np.testing.assert_allclose(np.quantile(slopes, [0.05, 0.95]), [0.0017, 0.039], rtol=0.08)
    assert np.mean(r2 > 0.912) == pytest.approx(0.23, abs=0.02)


@pytest.mark.parametrize(
    ("slope", "n", "span", "found"),
    [(0.005, 29, 590, 0.0065), (0.005, 51, 790, 0.0059), (0.0066, 29, 590, 0.0078), (0.0066, 51, 790, 0.0074)],
)
def test_record_setters_exaggerate_a_true_slope_as_the_design_notes_say(
    slope: float, n: int, span: int, found: float
) -> None:
    """densing-law.md section 5: true A .005 and .0066 with sd .8."""
    rng = np.random.default_rng(9)
    slopes, _ = simulate_envelope(rng.uniform(0, span, (5000, n)), 0.8, slope=slope, draws=5000)
    assert np.median(slopes) == pytest.approx(found, abs=1.5e-4)


def test_bias_check_uses_the_data_sets_own_dates() -> None:
    bias = record_setter_bias(TREND, 1.0, 0.0065, 0.008)
    days = TREND.days[TREND.observed]
    again, _ = simulate_envelope(days, 1.0)
    assert bias.n == len(days)
    assert bias.no_trend is not None and bias.with_trend is not None
    assert bias.no_trend.median_slope == pytest.approx(float(np.median(again)))
    assert bias.no_trend.share_at_least_observed == pytest.approx(float(np.mean(again >= 0.008)))
    assert bias.with_trend.median_doubling_months < bias.with_trend.true_doubling_months


def test_permutation_finds_a_real_trend_and_counts_honestly() -> None:
    tests = permutation_test(TREND, permutations=199)
    assert tests.headline.p == pytest.approx(1 / 200)
    assert tests.headline_family_blocks.p < 0.05
    null = np.array(tests.envelope.null_slopes)
    reached = np.sum(null >= tests.envelope.slope)
    assert tests.envelope.p == pytest.approx((1 + reached) / (1 + len(null)))


def test_permuted_slopes_match_refits_on_shuffled_rows() -> None:
    data = simulate(Scenario(n=25, families=8, ceilings=None), 0)
    null = permutation_test(data, permutations=400, seed=1).headline.null_slopes
    # Least squares under all permutations: mean 0, variance var(y) / sum (t - mean)^2 (n / (n - 1) form).
    spread = np.var(data.log_density, ddof=1) / np.sum((data.days - data.days.mean()) ** 2)
    assert np.mean(null) == pytest.approx(0, abs=4 * np.sqrt(spread / 400))
    assert np.var(null) == pytest.approx(spread, rel=0.25)


def test_permutation_p_values_are_uniform_without_a_trend() -> None:
    """60 worlds: the number of block p-values at or below .2 stays within the 99.9 % binomial range of 60 x .2."""
    values = [
        permutation_test(simulate(FLAT, seed), permutations=49, seed=seed).headline_family_blocks.p
        for seed in range(60)
    ]
    assert 3 <= np.sum(np.array(values) <= 0.2) <= 23


def test_block_shuffles_keep_families_together() -> None:
    codes = TREND.clusters()
    shuffled = block_shuffles(TREND.days, codes, 5, np.random.default_rng(0))
    np.testing.assert_allclose(shuffled[0], TREND.days)
    for row in shuffled:
        for code in np.unique(codes):
            own = codes == code
            np.testing.assert_allclose(np.diff(row[own]), np.diff(TREND.days[own]), atol=1e-9)
    assert not np.allclose(shuffled[1], shuffled[0])


def bent(seed: int, before: float, after: float) -> TrendData:
    """Sixty models around ChatGPT's release with a kink there."""
    rng = np.random.default_rng(seed)
    days = np.sort(rng.uniform(-700, 500, 60))
    split = float((pd.Timestamp("2022-11-30") - pd.Timestamp("2023-02-24")).days)
    values = before * np.minimum(days - split, 0) + after * np.maximum(days - split, 0) + rng.normal(0, 0.4, 60)
    names = [f"m{k}" for k in range(60)]
    return TrendData.from_arrays(
        names, [f"f{k // 2}" for k in range(60)], pd.Timestamp("2023-02-24") + pd.to_timedelta(days, "D"), values
    )


def test_stated_break_recovers_two_slopes_and_the_paper_rates_stand_beside() -> None:
    data = bent(0, 0.001, 0.008)
    tests = breakpoint_test(data, bootstrap=99)
    split = -86.0
    early = data.days < split
    expected = [np.polyfit(data.days[side], data.log_density[side], 1)[0] for side in (early, ~early)]
    stated = tests.stated
    np.testing.assert_allclose([stated.slope_before, stated.slope_after], expected, rtol=1e-7)
    assert (stated.n_before, stated.n_after) == (int(early.sum()), int((~early).sum()))
    assert stated.p <= 0.02
    assert tests.searched.p <= 0.02
    assert abs((pd.Timestamp(tests.searched.date) - pd.Timestamp("2022-11-30")).days) < 200
    assert (tests.paper.before, tests.paper.after) == (0.0048, 0.0073)


def test_stated_break_statistic_is_the_likelihood_ratio() -> None:
    """Without bounds 2 (l1 - l0) = n ln(RSS0 / RSS1)."""
    data = bent(1, 0.004, 0.006)
    late = (data.days >= -86.0).astype(float)
    narrow = sm.OLS(data.log_density, sm.add_constant(data.days)).fit().ssr
    wide = sm.OLS(data.log_density, np.column_stack([np.ones(60), data.days, late, late * data.days])).fit().ssr
    assert breakpoint_test(data, bootstrap=19).stated.statistic == pytest.approx(60 * np.log(narrow / wide))


def test_break_p_values_are_uniform_without_a_break() -> None:
    """80 worlds: rejections at .2 within the 99.9 % binomial range of 80 x .2, for both tests."""
    tests = [breakpoint_test(bent(seed, 0.005, 0.005), bootstrap=39, seed=seed) for seed in range(80)]
    for kind in ("stated", "searched"):
        rejected = sum(getattr(test, kind).p <= 0.2 for test in tests)
        assert 5 <= rejected <= 29


def test_a_break_outside_the_window_says_why_it_was_not_tested() -> None:
    stated = breakpoint_test(TREND, bootstrap=19).stated
    assert stated.p is None
    assert "0 observed models of 0 families before the date" in stated.reason


def test_diagnostics_see_curvature_and_uneven_scatter() -> None:
    rng = np.random.default_rng(0)
    days = np.linspace(0, 700, 80)
    names = [f"m{k}" for k in range(80)]
    dates = pd.Timestamp("2023-02-24") + pd.to_timedelta(days, "D")

    def data(values: np.ndarray) -> TrendData:
        return TrendData.from_arrays(names, names, dates, values)

    straight = diagnose(data(0.005 * days + rng.normal(0, 0.5, 80)))
    curved = diagnose(data(2e-5 * (days - 350) ** 2 + rng.normal(0, 0.5, 80)))
    fanned = diagnose(data(0.005 * days + rng.normal(0, 1, 80) * days / 350))
    assert straight.reset_p > 0.01 > curved.reset_p
    assert straight.breusch_pagan_p > 0.01 > fanned.breusch_pagan_p
    assert 1 < straight.durbin_watson < 3 and curved.durbin_watson < 1
    assert diagnose(TREND.take(np.arange(4))).reset_p is None


def test_leave_one_family_out_holds_every_family_and_its_range() -> None:
    trend = estimate_trend(TREND, permutations=19, worlds=0, bootstrap=30)
    check = trend.checks.leave_one_family_out
    assert check is not None
    assert set(check.table["name"]) == set(TREND.family)
    assert check.table["n"].sum() == len(TREND)
    months = check.table["doubling_months"].tolist()
    assert (check.doubling_min, check.doubling_max) == (min(months), max(months))
    assert trend.to_dict()["checks"]["leave_one_family_out"]["table"][0].keys() >= {"family", "n", "doubling_months"}
    assert min(months) < trend.headline["doubling_months"] < max(months)


def test_what_was_not_tested_is_not_in_the_document_and_what_was_is() -> None:
    """The keys that programs read: absent where a test could not run or its power was not simulated, null elsewhere."""
    plain, rated = (
        estimate_trend(TREND, permutations=19, worlds=worlds, bootstrap=30).to_dict()["checks"] for worlds in (0, 5)
    )
    assert list(plain["breakpoint"]["stated"]) == ["date", "n_before", "n_after", "p", "reason"]
    tested = ["date", "p", "reason", "candidates", "slope_before", "slope_after", "statistic"]
    assert list(plain["breakpoint"]["searched"]) == tested
    assert list(rated["breakpoint"]["searched"]) == [*tested, "size", "power"]
    assert list(plain["permutation"]["headline"])[-1] == "null_slopes"
    assert list(rated["permutation"]["headline"])[-2:] == ["size", "power"]
    assert plain["organisations"] is None and plain["simulation"] is None
    few = estimate_trend(TREND, permutations=19, worlds=0, bootstrap=30, groups={"all": TREND.family}).to_dict()
    assert list(few["checks"]["without_groups"][0]) == ["group", "families", "n", "reason"]


def test_everything_is_valid_json_and_reads_as_text() -> None:
    trend = estimate_trend(TREND, permutations=19, worlds=0, bootstrap=30)
    document = json.loads(json.dumps(trend.to_dict(), allow_nan=False))
    assert {"estimates", "checks", "headline", "notes", "options"} <= set(document)
    assert [row["method"] for row in document["estimates"]].count("envelope") == 1
    text = trend.summary()
    assert text.startswith("Capability density doubled every") and " between June 2023 and February 2025 " in text
    assert "whole families shuffled" in text and "Without one family" in text
    assert text.index("whole families shuffled") < text.index("Details") < text.index("record-setters: p =")
    page = trend._repr_html_()
    assert "<table" in page and trend.title in page
    assert page.index("whole families shuffled") < page.index("<details>") < page.index("record-setters: p =")
    assert (
        "<b>x"
        not in estimate_trend(
            TREND.replace(family=np.char.add("<b>x", TREND.family)), permutations=19, worlds=0, bootstrap=30
        )._repr_html_()
    )


def test_same_seed_same_result_other_seed_other_draws() -> None:
    first, again, other = (
        estimate_trend(TREND, permutations=49, worlds=0, bootstrap=50, seed=seed) for seed in (1, 1, 2)
    )
    assert first.to_dict() == again.to_dict()
    assert first.to_dict() != other.to_dict()
    np.testing.assert_array_equal(first.draws, again.draws)


def test_predict_passes_through_the_line() -> None:
    trend = estimate_trend(TREND, permutations=19, worlds=0, bootstrap=30)
    band = trend.predict(["2023-02-24", "2024-02-24"])
    intercept, slope = trend.fit.slope.intercept, trend.headline["slope_per_day"]
    np.testing.assert_allclose(band["mid"], [intercept, intercept + 365 * slope])
    assert (band["lo"] < band["mid"]).all() and (band["mid"] < band["hi"]).all()
    narrow = trend.predict("2024-02-24", level=0.5)
    assert narrow["hi"].iloc[0] - narrow["lo"].iloc[0] < band["hi"].iloc[1] - band["lo"].iloc[1]


ROW = st.tuples(st.integers(0, 60), st.integers(-3, 3), st.sampled_from([-1, 0, 0, 0, 1]), st.sampled_from("abcd"))


@given(st.lists(ROW, min_size=1, max_size=14))
@settings(max_examples=60)
def test_any_small_table_gives_a_result_or_a_reason(rows: list[tuple[int, int, int, str]]) -> None:
    days, values, censor, family = zip(*rows, strict=True)
    released = pd.Timestamp("2023-02-24") + pd.to_timedelta(np.array(days), unit="D")
    names = [f"m{number}" for number in range(len(rows))]
    data = TrendData.from_arrays(names, family, released, np.array(values, dtype=float), censor)
    try:
        trend = estimate_trend(data, permutations=9, worlds=0, bootstrap=10)
    except FitError as error:
        assert str(error)
        return
    json.dumps(trend.to_dict(), allow_nan=False)
    assert trend.summary()
    assert np.isfinite(trend.headline["slope_per_day"])


def test_envelope_slopes_need_three_records() -> None:
    slope, r2, records = envelope_slopes(np.arange(3.0), np.array([[3.0, 2.0, 1.0]]))
    assert np.isnan(slope[0]) and np.isnan(r2[0]) and records[0] == 1

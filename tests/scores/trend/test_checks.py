"""The checks: exact where they can be, calibrated where they are random."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densing.core.errors import FitError
from densing.scores.trend import TrendData, TrendResult, estimate_trend
from densing.scores.trend.checks import Checks, diagnose, record_setter_bias, simulate_envelope
from densing.scores.trend.coverage import Scenario, simulate
from densing.scores.trend.estimators import envelope_slopes
from densing.scores.trend.sentences import shuffled
from densing.scores.trend.significance import PermutationTests, ShuffleTest
from tests.support.trend_data import dated

pytestmark = pytest.mark.usefixtures("few_sweeps")
TREND = simulate(Scenario(n=60, families=20), 5)
FEW: dict[str, int] = {"permutations": 19, "worlds": 0, "bootstrap": 30}


@pytest.fixture(scope="module")
def trend(few_sweeps: None) -> TrendResult:
    """Estimated with few draws."""
    return estimate_trend(TREND, **FEW)


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


def test_diagnostics_see_curvature_and_uneven_scatter() -> None:
    rng = np.random.default_rng(0)
    days = np.linspace(0, 700, 80)

    def data(values: np.ndarray) -> TrendData:
        return dated(days.tolist(), values.tolist())

    straight = diagnose(data(0.005 * days + rng.normal(0, 0.5, 80)))
    curved = diagnose(data(2e-5 * (days - 350) ** 2 + rng.normal(0, 0.5, 80)))
    fanned = diagnose(data(0.005 * days + rng.normal(0, 1, 80) * days / 350))
    assert straight.reset_p > 0.01 > curved.reset_p
    assert straight.breusch_pagan_p > 0.01 > fanned.breusch_pagan_p
    assert 1 < straight.durbin_watson < 3 and curved.durbin_watson < 1
    assert diagnose(TREND.take(np.arange(4))).reset_p is None


def test_leave_one_family_out_holds_every_family_and_its_range(trend: TrendResult) -> None:
    check = trend.checks.leave_one_family_out
    assert check is not None
    assert set(check.table["name"]) == set(TREND.family)
    assert check.table["n"].sum() == len(TREND)
    months = check.table["doubling_months"].tolist()
    assert (check.doubling_min, check.doubling_max) == (min(months), max(months))
    assert trend.to_dict()["checks"]["leave_one_family_out"]["table"][0].keys() >= {"family", "n", "doubling_months"}
    assert min(months) < trend.line["doubling_months"] < max(months)


def test_what_was_not_tested_is_not_in_the_document_and_what_was_is(trend: TrendResult) -> None:
    """The keys that programs read: absent where a test could not run or its power was not simulated, null elsewhere."""
    plain, rated = (
        each.to_dict()["checks"] for each in (trend, estimate_trend(TREND, permutations=19, worlds=5, bootstrap=30))
    )
    assert list(plain["breakpoint"]["stated"]) == ["date", "n_before", "n_after", "p", "reason"]
    tested = ["date", "p", "reason", "candidates", "slope_before", "slope_after", "statistic"]
    assert list(plain["breakpoint"]["searched"]) == tested
    assert list(rated["breakpoint"]["searched"]) == [*tested, "size", "power"]
    assert list(plain["permutation"]["headline"])[-1] == "null_slopes"
    assert list(rated["permutation"]["headline"])[-2:] == ["size", "power"]
    assert plain["organisations"] is None and plain["simulation"] is None
    few = estimate_trend(TREND, **FEW, groups={"all": TREND.family}).to_dict()
    assert list(few["checks"]["without_groups"][0]) == ["group", "families", "n", "reason"]


def test_everything_is_valid_json_and_reads_as_text(trend: TrendResult) -> None:
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
    hostile = estimate_trend(TREND.replace(family=np.char.add("<b>x", TREND.family)), **FEW)
    assert "<b>x" not in hostile._repr_html_()


def test_same_seed_same_result_other_seed_other_draws(trend: TrendResult) -> None:
    again, other = (estimate_trend(TREND, **FEW, seed=seed) for seed in (0, 1))
    assert trend.to_dict() == again.to_dict()
    assert trend.to_dict() != other.to_dict()
    np.testing.assert_array_equal(trend.draws, again.draws)


def test_predict_follows_the_pace_and_without_one_the_line(trend: TrendResult) -> None:
    straight = replace(trend, varying=None)
    band = straight.predict(["2023-02-24", "2024-02-24"])
    intercept, slope = trend.fit.slope.intercept, trend.line["slope_per_day"]
    np.testing.assert_allclose(band["mid"], [intercept, intercept + 365 * slope])
    assert trend.varying is not None and straight.pace().empty and straight.now == ""
    band = trend.predict(["2023-02-24", "2024-02-24"])
    assert band["mid"].tolist() == np.median(trend.varying.curve([0.0, 365.0]), axis=0).tolist()
    assert (band["lo"] < band["mid"]).all() and (band["mid"] < band["hi"]).all()
    narrow = trend.predict("2024-02-24", level=0.5)
    assert narrow["hi"].iloc[0] - narrow["lo"].iloc[0] < band["hi"].iloc[1] - band["lo"].iloc[1]


ROW = st.tuples(st.integers(0, 60), st.integers(-3, 3), st.sampled_from([-1, 0, 0, 0, 1]), st.sampled_from("abcd"))


@given(st.lists(ROW, min_size=1, max_size=14))
@settings(max_examples=30)
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


def labelled() -> TrendData:
    """Four families of two makers, one of the families a declared group's."""
    days = np.arange(24) * 25.0
    family = np.array(["Pythia", "b", "c", "d"])[np.arange(24) % 4]
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "model": [f"m{row}" for row in range(24)],
            "family": family,
            "released": pd.Timestamp("2023-02-24") + pd.to_timedelta(days, unit="D"),
            "log_density": 0.004 * days + rng.normal(0, 0.3, 24) - 0.8 * (family == "Pythia") * (days < 300),
        }
    )
    makers = np.where(np.isin(family, ["Pythia", "b"]), "one", "two")
    return TrendData.from_frame(table).replace(organisation=makers)


def test_leave_out_runs_over_families_organisations_and_named_groups() -> None:
    data = labelled()
    trend = estimate_trend(data, **FEW)
    assert trend.checks.leave_one_organisation_out is not None
    makers = trend.checks.leave_one_organisation_out.rows
    assert [row.name for row in makers] == ["one", "two"]
    for row in makers:
        rest = data.take(data.organisation != row.name)
        assert row.slope_per_day == pytest.approx(np.polyfit(rest.days, rest.log_density, 1)[0], rel=1e-6)
    (group,) = trend.checks.without_groups
    assert (group.group, group.families, group.n) == ("research suites", ("Pythia",), 6)
    rest = data.take(data.family != "Pythia")
    alone = estimate_trend(rest, **FEW)
    assert group.doubling_months == pytest.approx(alone.line["doubling_months"])
    assert (group.lo, group.hi) == pytest.approx((alone.line["lo"], alone.line["hi"]))
    assert any("Without research suites (Pythia)" in sentence for sentence in trend.sentences())
    assert alone.checks.without_groups == ()


def test_groups_of_ones_own_can_be_left_out() -> None:
    trend = estimate_trend(labelled(), **FEW, groups={"the rest": ["b", "c", "d"]})
    (group,) = trend.checks.without_groups
    assert "at least 2 needed" in group.reason
    assert any("nothing can be estimated" in sentence for sentence in trend.sentences())


def test_a_shuffle_that_could_not_run_says_nothing() -> None:
    unknown = ShuffleTest(None, 0.006, 0.0, None, ())
    assert shuffled(Checks()) == shuffled(Checks(permutation=PermutationTests(999, unknown, unknown, unknown))) == ""

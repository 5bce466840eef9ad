"""Density for facts: IKP's regressions to their printed digits, and its question in densing's terms.

Golden numbers are from the description of the verdicts (``shared/data/ikp_2026/README.md``: "the files here" and
"sensitivity of M1"), which were computed from single verdicts with a solver of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from densing.core import Array, read_table
from densing.core.errors import InputError
from densing.scores.catalog import TIERS, FactualRecall, load_recall
from densing.scores.trend import (
    DAYS_PER_MONTH,
    ESTIMATORS,
    VARIANTS,
    RecallReplication,
    RecallTrend,
    fact_fits,
    recall_trend,
    replicate_recall,
)
from densing.scores.trend.fact_fits import FITS, ikp_months, mean_accuracy, published_fits
from densing.scores.trend.facts import _line, _pace, _sample, family_jackknife, mean_logit, rasch_ability
from tests.support.budget import FULL

LEAD = VARIANTS[0]


@pytest.fixture(scope="module")
def recall() -> FactualRecall:
    return load_recall()


@pytest.fixture(scope="module")
def replication(recall: FactualRecall) -> RecallReplication:
    return replicate_recall(recall)


@pytest.fixture(scope="module")
def trend(recall: FactualRecall) -> RecallTrend:
    return recall_trend(recall)


HERE = {  # "the files here": n, R2 and slope of log10 N; slope per month, its classical error and p
    ("cohort", "log_size"): (65, 0.9112, 0.14971, None, None),
    ("M0", "log_size"): (70, 0.7736, 0.13311, None, None),
    ("M1", "log_size"): (70, 0.7811, 0.13727, None, None),
    ("M1", "months"): (70, 0.7811, -0.00228, 0.00151, 0.135),
    ("M2", "log_size"): (70, 0.7872, 0.13474, None, None),
    ("M2", "months"): (70, 0.7872, -0.00304, 0.00160, 0.061),
    ("M3", "log_size"): (70, 0.7887, 0.13922, None, None),
    ("M3", "months"): (70, 0.7887, -0.00286, 0.00163, 0.083),
    ("residual", "months"): (70, 0.0300, -0.00207, 0.00143, 0.151),
}
SENSITIVITY = {  # "Sensitivity of M1 with the files here (months, SE)"
    "M1_cohort": (65, -0.00101, 0.00102),
    "equal_items": (65, -0.00088, 0.00104),
    "blanks_wrong": (65, -0.00088, 0.00100),
    "dates_by_id": (65, -0.00026, 0.00098),
    "no_twins": (64, -0.00110, 0.00103),
    "no_researchers": (65, -0.00264, 0.00102),
}


@pytest.mark.parametrize(("fit", "coefficient"), list(HERE))
def test_regressions_have_the_printed_digits(replication: RecallReplication, fit: str, coefficient: str) -> None:
    models, r2, estimate, error, p = HERE[fit, coefficient]
    row = replication.row(fit, coefficient)
    assert (row["models"], row["status"]) == (models, "ok")
    assert (round(row["r2"], 4), round(row["estimate"], 5)) == (r2, estimate)
    if error is not None:
        assert (round(row["se"], 5), round(row["p"], 3)) == (error, p)


@pytest.mark.parametrize("fit", list(SENSITIVITY))
def test_sensitivity_of_m1_has_the_printed_digits(replication: RecallReplication, fit: str) -> None:
    models, estimate, error = SENSITIVITY[fit]
    row = replication.row(fit)
    assert (row["models"], round(row["estimate"], 5), round(row["se"], 5)) == (models, estimate, error)


def test_published_figures_are_ikps_with_models_and_place() -> None:
    table = published_fits().set_index(["fit", "coefficient"])
    # The description's table of findings, and the abstract of arXiv 2604.24827 (in issue 13's words).
    assert table.loc[("M1", "months"), ["estimate", "se", "p", "models"]].tolist() == [0.00131, 0.00099, 0.188, 100]
    assert table.loc[("abstract", "months"), ["estimate", "lo", "hi", "models"]].tolist() == [
        -0.0010,
        -0.0031,
        0.0008,
        96,
    ]
    assert table.loc[("cohort", "log_size"), ["estimate", "r2", "models"]].tolist() == [0.15878, 0.9105, 93]
    assert table["place"].str.len().min() > 10


def test_the_pace_that_ikp_rejects_follows_from_m0(replication: RecallReplication) -> None:
    size, date = replication.row("M0", "log_size"), replication.row("M1")
    expected, gap = replication.row("expected"), replication.row("gap")
    np.testing.assert_allclose(expected["estimate"], size["estimate"] * math.log10(2) / 3.5)
    # The published figure by the same rule from the published slope.
    np.testing.assert_allclose(size["published"] * math.log10(2) / 3.5, expected["published"], atol=5e-6)
    np.testing.assert_allclose(gap["estimate"], date["estimate"] - expected["estimate"])
    assert gap["p"] < 1e-8 and gap["family_p"] < 1e-5


def test_errors_by_family_are_the_jackknife_written_out(recall: FactualRecall, replication: RecallReplication) -> None:
    models = recall.models[recall.models["open_weights"].eq(True)].reset_index(drop=True)
    accuracy = models["model"].map(mean_accuracy(recall.answers(), empty=0.0)).to_numpy()
    design = np.column_stack([np.ones(len(models)), np.log10(models["params_total_b"]), ikp_months(models["released"])])
    whole = np.linalg.lstsq(design, accuracy, rcond=None)[0]
    names = models["family"].unique()
    others = [models["family"].to_numpy() != name for name in names]
    deviations = [np.linalg.lstsq(design[rows], accuracy[rows], rcond=None)[0] - whole for rows in others]
    errors = np.sqrt((len(names) - 1) / len(names) * np.sum(np.square(deviations), axis=0))
    for coefficient, at in (("log_size", 1), ("months", 2)):
        row = replication.row("M1", coefficient)
        np.testing.assert_allclose(row["family_se"], errors[at], rtol=1e-6)
        assert row["families"] == len(names)
        assert row["lo"] < row["estimate"] < row["hi"]


def test_the_replication_says_how_many_models_are_behind_it(replication: RecallReplication) -> None:
    assert [note.code for note in replication.notes] == ["fewer-models"]
    assert "70 models; the published figures were made from all 100" in replication.notes[0].message
    assert "from 100 models" in replication.sentence() and "70 models here" in replication.sentence()
    assert replication.row("abstract")["status"].startswith("an earlier run")
    assert len(replication.table) == len(published_fits().merge(replication.table[["fit", "coefficient"]], "right"))


def test_lead_is_the_ratio_of_the_joint_regression(recall: FactualRecall, trend: RecallTrend) -> None:
    # s = ln 10 c / b, from one regression of accuracy on size and date (equal items, no twins), by statsmodels.
    sample = _sample(recall, LEAD)
    fit = sm.OLS(sample["score"], sm.add_constant(sample[["log_size", "days"]])).fit()
    ratio = math.log(10) * fit.params["days"] / fit.params["log_size"]
    np.testing.assert_allclose(trend.lead.slope.slope, ratio, rtol=1e-8)
    assert fit.nobs == trend.lead.slope.n == 64


def test_lead_is_the_line_that_other_estimators_see(trend: RecallTrend) -> None:
    slope = ESTIMATORS["ols-crv3"].fit(trend.data)
    np.testing.assert_allclose(slope.slope, trend.lead.slope.slope, rtol=1e-8)
    np.testing.assert_allclose(slope.intercept, trend.lead.slope.intercept, rtol=1e-8)
    # A reference fitted to the models themselves is less certain than one that is known.
    assert slope.hi - slope.lo < trend.lead.slope.hi - trend.lead.slope.lo


def test_the_jackknife_of_a_line_on_a_known_reference_is_crv3() -> None:
    rng = np.random.default_rng(3)
    days, codes = rng.uniform(0, 900, 40), np.arange(40) % 9
    values = 0.001 * days + rng.standard_normal(9)[codes]
    design = sm.add_constant(days)
    theirs = sm.OLS(values, design).fit(cov_type="cluster-crv3", cov_kwds={"groups": codes}, use_t=True)
    ours, errors = family_jackknife(lambda rows: np.linalg.lstsq(design[rows], values[rows], rcond=None)[0], codes)
    np.testing.assert_allclose(ours, theirs.params, rtol=1e-9)
    np.testing.assert_allclose(errors, theirs.bse, rtol=1e-7)


def test_variants_change_what_they_name(recall: FactualRecall, trend: RecallTrend) -> None:
    table = trend.table.set_index("variant")
    assert table["models"].to_dict() | {"lead": 64} == table["models"].to_dict()
    assert table.loc["twins", "models"] == 65 and table.loc["open", "models"] == 68
    assert table.loc["organisations", "clusters"] < table.loc["lead", "clusters"]
    assert table.loc["organisations", "slope_per_month"] == table.loc["lead", "slope_per_month"]
    changed = table.drop(index=["lead", "organisations"])["slope_per_month"]
    assert (changed != table.loc["lead", "slope_per_month"]).all()
    assert (table["status"] == "ok").all()


def test_ends_of_the_doubling_time_are_those_of_the_slope_inverted(trend: RecallTrend) -> None:
    for row in trend.table.itertuples():
        np.testing.assert_allclose(row.doubling_lo, math.log(2) / row.hi if row.hi > 0 else math.inf)
        np.testing.assert_allclose(row.doubling_hi, math.log(2) / row.lo if row.lo > 0 else math.inf)
        # The test and the interval agree, on either side of the tested pace.
        assert (row.p_no_trend <= 0.05) == (not row.lo <= 0 <= row.hi)
        assert (row.p_pace <= 0.05) == (not row.lo <= math.log(2) / 3.5 <= row.hi)


# Worlds whose growth is known -------------------------------------------------------------------------------------


def world(
    seed: int = 0,
    *,
    models: int = 40,
    families: int = 10,
    growth: float = 0.02,
    noise: float = 0.0,
    items: int = 10**7,
    larger_later: float = 0.0,
    logistic: bool = False,
    heavy: bool = False,
    **facts: Any,
) -> FactualRecall:
    """Return models whose density for facts grows by ``growth`` per month, tier by tier, with noise per family."""
    rng = np.random.default_rng(seed)
    months = rng.uniform(0, 30, models)
    log_size = rng.uniform(-0.5, 3, models) + larger_later * (months - 15)
    codes = np.arange(models) % families
    draw = (lambda size: rng.standard_t(3, size) / math.sqrt(3)) if heavy else rng.standard_normal
    scatter = noise * (draw(families)[codes] + draw(models)) / math.sqrt(2)
    effective = log_size + growth * months / math.log(10) + scatter
    rows = []
    for rank, tier in enumerate(TIERS):
        middle = 0.6 - 0.07 * rank + 0.06 * effective
        share = 1 / (1 + np.exp(-1.4 * (effective - 0.5 * rank + 0.6))) if logistic else np.clip(middle, 0, 1)
        right = rng.binomial(items, share) if items < 10**6 else np.round(items * share).astype(int)
        rows += [
            {"model": f"m{at}", "tier": tier, "part": "common", "right": r, "wrong": items - r, "refused": 0}
            for at, r in enumerate(right)
        ]
    frame = pd.DataFrame(
        {
            "model": [f"m{at}" for at in range(models)],
            "family": [f"f{code}" for code in codes],
            "released": (pd.Timestamp("2023-06-01") + pd.to_timedelta(np.round(months * 30.44), unit="D")),
            "params_total_b": 10**log_size,
            "params_active_b": 10**log_size,
            "architecture": "dense",
            "open_weights": True,
            "cohort": True,
        }
        | facts
    )
    return load_recall(frame, pd.DataFrame(rows))


def lead_of(recall: FactualRecall, **changes: Any) -> Any:
    return _pace(recall, replace(LEAD, **changes), 0.95, 3.5)


@given(growth=st.floats(-0.1, 0.3), seed=st.integers(0, 99), larger_later=st.floats(-0.03, 0.06))
@settings(max_examples=15)
def test_a_planted_growth_comes_back_whatever_sizes_do(growth: float, seed: int, larger_later: float) -> None:
    result = lead_of(world(seed, growth=growth, larger_later=larger_later))
    # Days are rounded and so are counts; nothing else differs.
    np.testing.assert_allclose(result.slope.slope * DAYS_PER_MONTH, growth, atol=2e-4)
    if growth > 0.01:
        np.testing.assert_allclose(result.slope.doubling_months, math.log(2) / growth, rtol=0.03)


def test_a_reference_without_the_date_takes_part_of_the_trend_where_newer_models_are_larger() -> None:
    recall = world(1, growth=0.1, larger_later=0.06)
    sample = _sample(recall, LEAD)
    shared = np.corrcoef(sample["log_size"], sample["days"])[0, 1] ** 2
    joint, alone = lead_of(recall).slope.slope, lead_of(recall, dated_reference=False).slope.slope
    assert shared > 0.1
    slope = np.polyfit(sample["log_size"], sample["score"], 1)[0]
    rise = _line(sample)[2]
    # Frisch and Waugh: what size leaves of the dates carries the slope; the reference is steeper besides.
    np.testing.assert_allclose(alone / joint, (1 - shared) * rise / slope, rtol=1e-6)


def test_order_of_rows_does_not_matter(recall: FactualRecall, trend: RecallTrend) -> None:
    models = recall.models.sample(frac=1, random_state=1)
    counts = recall.counts.sample(frac=1, random_state=2)
    again = recall_trend(FactualRecall(models.reset_index(drop=True), counts.reset_index(drop=True)))
    pd.testing.assert_frame_equal(again.table, trend.table, rtol=1e-8)


def test_rasch_abilities_are_those_of_the_model_that_made_the_counts() -> None:
    ability, difficulty = np.linspace(-2, 2, 9), np.linspace(-1.5, 1.5, 7)
    share = 1 / (1 + np.exp(-(ability[:, None] - difficulty)))
    answers = answers_of({f"m{at}": 1e6 * row for at, row in enumerate(share)}, asked=1e6)
    result = rasch_ability(answers)
    np.testing.assert_allclose(result - result.mean(), ability - ability.mean(), atol=1e-6)
    # The mean logit is the same scale where all tiers were put to all models.
    np.testing.assert_allclose(mean_logit(answers).diff().iloc[1:], np.diff(ability), atol=1e-4)


def answers_of(right: Mapping[str, Array], asked: float) -> pd.DataFrame:
    index = pd.MultiIndex.from_product([list(right), list(TIERS)], names=["model", "tier"])
    return pd.DataFrame({"right": np.concatenate(list(right.values())), "asked": asked, "items": asked}, index=index)


def test_a_model_that_knows_all_or_nothing_has_no_rasch_ability_and_disturbs_none() -> None:
    some = {"a": np.full(7, 40.0), "b": np.array([90.0, 80, 70, 60, 50, 40, 30]), "c": np.arange(10.0, 80, 10)}
    extremes = {"none": np.zeros(7), "all": np.full(7, 100.0)}
    result = rasch_ability(answers_of(some | extremes, 100.0))
    assert result[["none", "all"]].isna().all()
    pd.testing.assert_series_equal(
        result[["a", "b", "c"]], rasch_ability(answers_of(some, 100.0)), check_index_type=False
    )
    assert rasch_ability(answers_of(extremes, 100.0)).isna().all()
    assert mean_logit(answers_of(extremes, 100.0)).is_monotonic_increasing


def test_noise_of_the_items_is_seen_where_there_are_few() -> None:
    many, few = (recall_trend(world(2, noise=0.3, items=items)) for items in (10**6 - 1, 20))
    assert many.noise_share < 0.01
    assert few.noise_share > 0.1 and "item-noise" in [note.code for note in few.notes]
    # Where the noise of all models is alike, weights by it change hardly anything.
    rows = many.table.set_index("variant")["slope_per_month"]
    np.testing.assert_allclose(rows["weighted"], rows["lead"], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("logistic", [False, True])
def test_the_interval_holds_the_truth_in_worlds_of_another_kind(logistic: bool) -> None:
    # Heavy-tailed errors of families and models, a logistic in place of a line, few items: none of it is in the fit.
    growth, held, worlds = math.log(2) / 8, 0, 300 if FULL else 100
    for seed in range(worlds):
        recall = world(seed, growth=growth, noise=0.25, items=180, heavy=True, logistic=logistic, families=13)
        slope = lead_of(recall, scale="rasch" if logistic else "accuracy").slope
        held += slope.lo <= growth / DAYS_PER_MONTH <= slope.hi
    if FULL:
        assert 0.90 <= held / worlds <= 0.995
    # The small budget fails when even the 99.9 % band around the measured share misses it.
    band = stats.binomtest(held, worlds).proportion_ci(0.999)
    assert band.high >= 0.90 and band.low <= 0.995


# What cannot be decided ---------------------------------------------------------------------------------------------

HOPELESS: dict[str, tuple[dict[str, Any], str]] = {
    "no dates": ({"released": None}, "no model with open weights has a release date"),
    "no sizes": ({"params_total_b": None}, "no model with open weights has a size"),
    "nothing open": ({"open_weights": False}, "0 models, at least 5 needed"),
    "few models": ({"models": 4}, "4 models, at least 5 needed"),
    "two families": ({"families": 2}, "2 families, at least 3 needed"),
    "one date": ({"released": "2024-01-01"}, "all models share one release date"),
    "one size": ({"params_total_b": 7}, "all models share one size"),
}


@pytest.mark.parametrize("case", list(HOPELESS))
def test_what_cannot_be_estimated_says_so_in_every_output(case: str) -> None:
    facts, reason = HOPELESS[case]
    recall = world(**facts)
    trend, replication = recall_trend(recall), replicate_recall(recall)
    assert trend.lead.slope.reason == reason == trend.text
    assert math.isnan(trend.lead.slope.slope) and math.isnan(trend.lead.p_pace)
    assert trend.title == f"No trend of density for facts could be estimated: {reason}"
    assert trend.table.loc[0, "status"] == reason == trend.answer
    assert math.isnan(trend.detectable_months)
    for text in (trend.caution(replication), repr(trend), repr(replication), trend._repr_html_(), repr(trend.data)):
        assert "nan" not in text.lower().replace("anan", "")
    assert math.isnan(trend.contrast.p) and trend.contrast.reason


def test_scores_that_do_not_rise_with_size_are_no_reference() -> None:
    recall = world(5, noise=0.2)
    shuffled = recall.counts.assign(model=recall.counts["model"].map(lambda name: f"m{(int(name[1:]) * 7 + 3) % 40}"))
    trend = recall_trend(FactualRecall(recall.models, shuffled))
    assert trend.text == "no reference: these scores do not surely rise with size"
    assert trend.contrast.reason.startswith("no reference")


def test_everything_right_is_no_scale() -> None:
    recall = world(6)
    right = recall.counts["right"] + recall.counts["wrong"]
    ceiling = FactualRecall(recall.models, recall.counts.assign(right=right, wrong=0))
    trend = recall_trend(ceiling)
    assert trend.text == "all models share one score"
    assert set(trend.table["status"]) == {"all models share one score", "0 models, at least 5 needed"}
    assert (replicate_recall(ceiling).table["estimate"].dropna().abs() < 1).all()


def test_a_slope_that_one_family_carries_has_no_interval_and_says_so() -> None:
    recall = world(7, noise=0.1)
    first = recall.models["family"] == "f0"
    dates = recall.models["released"].where(first, pd.Timestamp("2024-01-01"))
    trend = recall_trend(FactualRecall(recall.models.assign(released=dates), recall.counts))
    assert trend.text == "one family alone tells sizes and dates of these models apart"
    assert trend.contrast.reason and math.isnan(trend.contrast.difference)


def test_a_model_without_an_answer_on_a_tier_is_left_out_and_named_in_a_note() -> None:
    recall = world(8)
    counts = recall.counts[~((recall.counts["model"] == "m0") & (recall.counts["tier"] == "T7"))]
    trend = recall_trend(FactualRecall(recall.models, counts))
    assert trend.lead.slope.n == 39
    assert trend.notes[0].details == {"a tier without an answer": 1}
    # IKP's own score takes such a tier for zero, and so does the replication.
    assert replicate_recall(FactualRecall(recall.models, counts)).row("M1")["models"] == 40


def test_few_families_are_a_warning() -> None:
    trend = recall_trend(world(9, families=4, noise=0.1))
    assert "few-families" in [note.code for note in trend.notes if note.severity == "warning"]


@pytest.mark.parametrize(
    ("growth", "start"), [(0.15, "doubled every 4.6 months"), (-0.15, "did not grow"), (0.0, "no sure")]
)
def test_the_title_follows_the_interval(growth: float, start: str) -> None:
    trend = recall_trend(world(10, growth=growth, noise=0.02))
    assert start in trend.title
    assert trend.sentences()[0].startswith("Among 40 models of 10 families, no growth ")


@pytest.mark.parametrize("families", [8, 20])
def test_what_could_be_found_is_found_so_often(families: int) -> None:
    trend = recall_trend(world(13, growth=0.0, noise=0.2, families=families))
    lead, freedom = trend.lead, families - 1
    slope = math.log(2) / trend.detectable_months / DAYS_PER_MONTH
    # The power of a t test at that slope is a tail of the noncentral t.
    power = stats.nct.sf(stats.t.ppf(0.975, freedom), freedom, slope / lead.error)
    assert power == pytest.approx(0.8, abs=0.02)


def test_the_tested_pace_is_an_argument(recall: FactualRecall) -> None:
    trend = recall_trend(recall, pace_months=40)
    assert trend.lead.p_pace > 0.05
    assert "a doubling every 40.0 months is compatible with the data" in trend.sentences()[0]
    assert trend.answer.startswith("at least 23.6 months (95 % interval, upper end unbounded); no growth: p = 0.49, ")


@pytest.mark.parametrize(
    "options", [{"level": 0}, {"level": 1.0}, {"level": math.nan}, {"pace_months": 0.0}, {"pace_months": math.inf}]
)
def test_options_out_of_range_are_refused(recall: FactualRecall, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"level=|pace_months="):
        recall_trend(recall, **options)


@pytest.mark.parametrize("growth", [0.0, 0.05])
def test_rare_facts_that_grow_faster_are_told_from_well_known_ones(growth: float) -> None:
    recall = world(11, growth=growth, noise=0.02)
    months = (recall.models.set_index("model")["released"] - pd.Timestamp("2023-06-01")).dt.days / 30.44
    rare = recall.counts["tier"].isin(TIERS[3:])
    gain = (0.06 * 0.1 / math.log(10) * 10**7 * recall.counts["model"].map(months)).round().where(rare, 0)
    counts = recall.counts.assign(right=recall.counts["right"] + gain, wrong=recall.counts["wrong"] - gain)
    contrast = recall_trend(FactualRecall(recall.models, counts)).contrast
    assert contrast.lo < 0.1 < contrast.hi and contrast.p < 1e-6
    assert contrast.difference == pytest.approx(0.1, abs=0.01)


def test_hostile_names_are_written_and_not_run() -> None:
    recall = world(12, noise=0.1)
    name = "<script>alert(1)</script>"
    models = recall.models.replace({"model": {"m0": name}}).assign(date_doubt="doubtful")
    trend = recall_trend(FactualRecall(models, recall.counts.replace({"model": {"m0": name}})))
    assert name not in trend._repr_html_() and trend.lead.slope.n == 40
    assert trend.table.loc[trend.table["variant"] == "sure_dates", "status"].item() == "0 models, at least 5 needed"


def test_every_fit_and_variant_has_its_name_once() -> None:
    assert len({fit.name for fit in FITS}) == len(FITS)
    assert len({variant.name for variant in VARIANTS}) == len(VARIANTS)
    assert VARIANTS[0].name == "lead"


def test_a_published_figure_names_its_models_and_place(tmp_path: Path) -> None:
    whole = pd.read_csv(fact_fits.FILE, dtype=str).head(3)
    optional = ["estimate", "se", "lo", "hi", "p", "r2"]
    for name in whole.columns:
        path = tmp_path / f"{name}.csv"
        whole.assign(**{name: [*whole[name][:2], None]}).to_csv(path, index=False)
        if name in optional:
            assert len(read_table(path, fact_fits.SCHEMA)) == 3
        else:
            with pytest.raises(InputError, match=name):
                read_table(path, fact_fits.SCHEMA)


def test_accuracy_is_the_mean_share_over_tiers() -> None:
    rows = [("a", 4, 8, 10), ("a", 1, 1, 2), ("b", 3, 6, 12), ("b", 0, 0, 5)]
    answers = pd.DataFrame(rows, columns=["model", "right", "asked", "items"]).set_index("model")
    assert mean_accuracy(answers).to_dict() == pytest.approx({"a": 0.75, "b": math.nan}, nan_ok=True)
    assert mean_accuracy(answers, empty=0.0).to_dict() == {"a": 0.75, "b": 0.25}
    assert mean_accuracy(answers, blanks_wrong=True).to_dict() == {"a": 0.45, "b": 0.125}

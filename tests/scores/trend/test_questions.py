"""Questions of the trend: planted truths, intervals that hold them, and answers that say when there is none."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from densing.core import Array, InputError, UnknownNameError, formatting
from densing.scores.catalog import load_catalog
from densing.scores.fit import holm
from densing.scores.trend import QUESTIONS, TrendData, answer_questions, experts, languages, questions
from densing.scores.trend.answers import ROW_COLUMNS, Answer, Answers
from densing.scores.trend.compute import answer_compute, compute_growth, token_share
from densing.scores.trend.contrasts import Contrast, Regression, estimate_contrast
from densing.scores.trend.experts import answer_experts, expert_exponent
from densing.scores.trend.languages import LanguageData, TableStep, answer_language
from densing.scores.trend.periods import PARTED, answer_pace, front_makers, pace_change, quantile_change
from densing.scores.trend.questions import JointData, Question
from densing.scores.trend.significance import MIN_FAMILIES, MIN_ROWS
from densing.scores.trend.skills import answer_skill, slope_difference, too_few
from densing.scores.trend.tables import table_data, table_pace
from tests.support.command import densing

YEAR = 365.25
PARTED_DAY = float((PARTED - pd.Timestamp("2023-02-24")).days)


def world(
    seed: int,
    path: Any,
    families: int = 30,
    size: int = 3,
    spread: tuple[float, float] = (0.5, 0.4),
    makers: int = 12,
    heavy: bool = False,
) -> TrendData:
    """Families released on one day each between 2023-02 and 2026-03, ln densities on a path of the day."""
    rng = np.random.default_rng(seed)
    day = rng.uniform(0, 1100, families).round()
    codes = np.repeat(np.arange(families), size)
    shock = rng.standard_t(4, families) / math.sqrt(2) if heavy else rng.standard_normal(families)
    values = path(day[codes]) + spread[0] * shock[codes] + spread[1] * rng.standard_normal(families * size)
    names = [f"m{i}" for i in range(len(codes))]
    organisation = np.array([f"o{code % makers}" for code in codes])
    released = np.datetime64("2023-02-24") + day[codes].astype("m8[D]")
    return TrendData.from_arrays(names, [f"f{code}" for code in codes], released, values, organisation=organisation)


def bent(before: float, after: float) -> Any:
    """Return a path in ln per year that bends where the periods part."""
    return lambda day: (before * np.minimum(day - PARTED_DAY, 0) + after * np.maximum(day - PARTED_DAY, 0)) / YEAR


def line_of(data: TrendData) -> Regression:
    return Regression(data, np.column_stack([np.ones(len(data)), data.days / YEAR]))


def test_error_is_that_of_statsmodels() -> None:
    data = world(0, bent(1, 1))
    slope = estimate_contrast([line_of(data)], lambda b: b[:, 1])
    fit = sm.OLS(data.log_density, line_of(data).design).fit()
    error = fit.get_robustcov_results("cluster-crv3", groups=data.clusters()).bse[1]
    assert slope.estimate == pytest.approx(fit.params[1], rel=1e-6)
    assert slope.error == pytest.approx(error, rel=1e-6)


def test_draws_widen_and_common_shifts_do_not() -> None:
    data = world(1, bent(1, 1))
    rng = np.random.default_rng(0)
    years = data.days / YEAR
    shifts, tilts = rng.normal(0, 3, (400, 1)), rng.normal(0, 0.5, (400, 1))
    plain = estimate_contrast([line_of(data)], lambda b: b[:, 1])
    shifted = estimate_contrast([line_of(data.replace(draws=data.log_density + shifts))], lambda b: b[:, 1])
    tilted = estimate_contrast([line_of(data.replace(draws=data.log_density + tilts * years))], lambda b: b[:, 1])
    assert shifted.error == pytest.approx(plain.error, rel=1e-6)
    picks = np.linspace(0, 399, 200).astype(int)
    assert tilted.error == pytest.approx(math.hypot(plain.error, tilts[picks].std(ddof=1)), rel=1e-4)
    # The same draw on both sides is no uncertainty of their difference.
    both = [(data.replace(draws=data.log_density + tilts * years), 1.0, name) for name in ("a", "b")]
    assert slope_difference(both[:1], both[1:]).estimate == pytest.approx(0, abs=1e-9)
    assert slope_difference(both[:1], both[1:]).error == pytest.approx(0, abs=1e-9)


def test_bounds_count_as_bounds() -> None:
    data = world(2, bent(1.5, 1.5), spread=(0.1, 0.1))
    limit = np.quantile(data.log_density, 0.35)
    low = data.log_density < limit
    limits = np.tile([limit, np.inf], (len(data), 1))
    seen = data.replace(
        log_density=np.maximum(data.log_density, limit), censor=np.where(low, -1, 0).astype(np.int8), log_limits=limits
    )
    assert pace_change(data).estimate == pytest.approx(pace_change(seen).estimate, abs=0.3)
    naive = pace_change(seen.replace(censor=np.zeros(len(data), dtype=np.int8)))
    assert abs(naive.estimate) > abs(pace_change(seen).estimate)


@given(st.integers(0, 50), st.floats(-5, 5), st.floats(0.2, 4))
@settings(max_examples=15, deadline=None)
def test_change_of_pace_knows_no_level_and_no_order(seed: int, level: float, factor: float) -> None:
    data = world(seed, bent(2, 0.5))
    order = np.random.default_rng(seed).permutation(len(data))
    change = pace_change(data)
    moved = pace_change(data.replace(log_density=level + factor * data.log_density).take(order))
    assert moved.estimate == pytest.approx(factor * change.estimate, rel=1e-5, abs=1e-7)
    assert moved.error == pytest.approx(factor * change.error, rel=1e-5)


def test_a_planted_change_is_found_and_said() -> None:
    data = world(3, bent(2.5, 0.0), families=80, spread=(0.3, 0.3))
    answer = answer_pace(data, makers={"o1", "o2", "o3", "o4"})
    assert answer.lo < -2.5 / math.log(2) < answer.hi
    assert answer.p < 0.05 and "slower" in answer.answer
    assert list(answer.rows.columns) == list(ROW_COLUMNS)
    assert answer.rows["models"].iloc[:2].sum() == len(data)
    estimate, lo, hi, p = quantile_change(data)
    assert lo < estimate < hi and lo < -2.5 < hi and p < 0.05


def test_makers_that_differ_are_no_change_of_pace_within_organisations() -> None:
    # Every maker grows alike; those of the later period stand lower.
    rng = np.random.default_rng(4)
    day = np.concatenate([rng.uniform(0, 600, 60), rng.uniform(680, 1100, 60)]).round()
    maker = np.where(day < 676, rng.integers(0, 8, 120), rng.integers(4, 8, 120))
    late = np.clip((day - 676) / 424, 0, 1)
    # Later and later, weak newcomers take the place of the old makers.
    maker = np.where((day > 676) & (rng.uniform(size=120) < late), rng.integers(8, 12, 120), maker)
    values = 1.5 * day / YEAR - 3.0 * (maker >= 8) + rng.normal(0, 0.2, 120)
    names = [f"m{i}" for i in range(120)]
    released = np.datetime64("2023-02-24") + day.astype("m8[D]")
    data = TrendData.from_arrays(names, names, released, values, organisation=np.array([f"o{m}" for m in maker]))
    pooled, within = pace_change(data), pace_change(data, within=True, cluster="organisation")
    assert pooled.hi < 0
    rows = answer_pace(data).rows.set_index("label")
    assert (
        rows.loc["makers of both periods", "models"] == np.isin(maker, sorted(set(maker[:60]) & set(maker[60:]))).sum()
    )
    assert within.lo < 0 < within.hi
    assert abs(within.estimate) < abs(pooled.estimate) / 3


def test_front_makers_need_an_able_model_of_their_day() -> None:
    models = pd.DataFrame(
        {
            "ability": [5.0, 4.0, 1.0, 6.0],
            "released": pd.to_datetime(["2022-01-01", "2023-05-01", "2023-06-01", "2024-01-01"]),
            "organisation": ["old", "second", "weak", "best"],
        }
    )
    assert front_makers(models, front=1) == {"best"}
    assert front_makers(models, front=2) == {"best", "second"}


def mixtures(seed: int, a: float, families: int = 30, heavy: bool = False) -> tuple[TrendData, Array]:
    """Dense families and ten of mixtures, ln(effective / active) with a planted exponent."""
    data = world(seed, bent(1.2, 1.2), families=families + 10, size=2, makers=20, heavy=heavy)
    rng = np.random.default_rng([seed, 1])
    family = np.char.lstrip(data.family, "f").astype(int)
    ratio = np.where(family >= families, rng.uniform(1.0, 3.0, len(data)), 0.0)
    return data.replace(log_density=data.log_density + a * ratio), ratio


def test_exponent_of_experts() -> None:
    data, ratio = mixtures(5, 0.6, families=60)
    a = expert_exponent(data, ratio)
    # How often the interval holds the truth is simulated below; one world may miss it.
    assert abs(a.estimate - 0.6) < 3 * a.error and a.p(0) < 0.05
    answer = answer_experts(data, ratio)
    assert answer.estimate == a.estimate and answer.p == a.p(0)
    # Every maker of mixtures is left out once.
    left = [label for label in answer.rows["label"] if label.startswith("without ")]
    assert len(left) == len(np.unique(data.organisation[ratio > 0]))
    assert math.isnan(answer_experts(data, np.zeros(len(data))).estimate)


def test_an_exponent_needs_mixtures_of_several_families_and_dense_models() -> None:
    data, ratio = mixtures(5, 0.6, families=60)
    mixed = np.flatnonzero(data.observed & (ratio > 0))
    dense = np.flatnonzero(data.observed & (ratio == 0))
    names = {name: [at for at in mixed if data.family[at] == name] for name in dict.fromkeys(data.family[mixed])}

    def reason(rows: Any) -> str:
        return expert_exponent(data.take(np.sort(rows)), ratio[np.sort(rows)]).reason

    least, makers = experts.MIN_MIXTURES, experts.MIN_MAKERS
    firsts = [rows[0] for rows in names.values()]
    more = [at for at in mixed if at not in firsts]
    enough = (firsts + more)[: max(least, makers)]
    assert reason([*enough, *dense]) == ""
    few = enough[: least - 1]
    assert reason([*few, *dense]).startswith(
        f"{least - 1} mixtures of experts of {len(set(data.family[few]))} families"
    )
    one = [at for rows in list(names.values())[: makers - 1] for at in rows]
    assert f"of {makers - 1} famil" in reason([*one, *dense])
    assert reason([*mixed, *dense[:least]]) == ""
    assert reason([*mixed, *dense[: least - 1]]) == f"fewer than {least} dense models to compare mixtures with"
    # A mixture known as a limit alone is not counted.
    hidden = data.replace(censor=np.where(np.isin(np.arange(len(data)), enough[:1]), 1, data.censor).astype(np.int8))
    rows = np.sort([*enough, *dense])
    assert expert_exponent(hidden.take(rows), ratio[rows]).reason.startswith(f"{len(enough) - 1} mixtures")


def test_the_exponent_is_that_of_least_squares_with_makers_held_or_not() -> None:
    data, ratio = mixtures(5, 0.6, families=60)
    years = (data.days - data.days.mean()) / YEAR
    for within in (True, False):
        levels = (
            [data.organisation == name for name in np.unique(data.organisation)] if within else [np.ones(len(data))]
        )
        design = np.column_stack([ratio, years, *levels]).astype(float)
        beta = np.linalg.lstsq(design, data.log_density, rcond=None)[0]
        assert data.observed.all()
        assert expert_exponent(data, ratio, within=within).estimate == pytest.approx(beta[0], abs=1e-5)
    nobody = expert_exponent(data.replace(organisation=None), ratio, within=True)
    assert nobody.reason == "the rows do not say who trained the models"


def test_shares_of_tokens_and_growth_of_compute() -> None:
    data = world(6, bent(0.6, 0.6), families=60, spread=(0.2, 0.2))
    rng = np.random.default_rng(6)
    tokens = 28 + 0.8 * data.days / YEAR + rng.normal(0, 0.7, len(data))
    size = rng.uniform(20, 25, len(data))
    dense = data.replace(log_density=data.log_density + 0.5 * tokens)
    share = token_share(dense, tokens)
    assert share.lo < 0.4 < share.hi and share.p(0) < 0.05
    free = token_share(dense, tokens, log_size=size)
    assert free.lo < 0.4 < free.hi
    compute = math.log(6) + size + tokens
    able = data.replace(log_density=data.log_density + 0.5 * compute)
    growth = compute_growth(able, compute)
    assert growth.lo < 1.2 < growth.hi
    assert not compute_growth(data, -compute * 0).estimable


def test_compute_without_tokens_says_so() -> None:
    data = world(7, bent(1, 1))
    answer = answer_compute(data, np.full(len(data), 22.0), np.full(len(data), np.nan))
    assert math.isnan(answer.estimate) and math.isnan(answer.p)
    assert "tokens" in answer.answer


def test_skills_are_paired() -> None:
    base = world(8, bent(1, 1), spread=(1.0, 0.1))
    rng = np.random.default_rng(8)
    years = base.days / YEAR
    skills = {
        "knowledge": base,
        "reasoning": base.replace(log_density=base.log_density + rng.normal(0, 0.1, len(base))),
        "code": base.replace(log_density=base.log_density + 0.8 * years + rng.normal(0, 0.1, len(base))),
    }
    answer = answer_skill(skills)
    rows = answer.rows.set_index("label")
    assert "code faster than knowledge" in answer.answer and "reasoning faster" not in answer.answer
    code = rows.loc["code less knowledge"]
    assert code["estimate_lo"] < 0.8 / math.log(2) < code["estimate_hi"]
    # Shocks common to a family's skills cancel: the difference is known far better than either pace.
    slope = estimate_contrast([line_of(base)], lambda b: b[:, 1])
    assert (code["estimate_hi"] - code["estimate_lo"]) * math.log(2) < 0.3 * (slope.hi - slope.lo)
    assert math.isnan(answer_skill({"reasoning": base}).estimate)


def test_languages_on_the_same_models_and_tables_apart() -> None:
    english = world(9, bent(1, 1), spread=(0.3, 0.1))
    years = english.days / YEAR
    abroad = english.replace(log_density=english.log_density - 0.5 * years).take(np.arange(len(english)) % 4 > 0)
    measured = LanguageData([(english, 1.0, "knowledge")], english, abroad, abroad, {"de": abroad, "fr": abroad})
    models = pd.DataFrame(
        {
            "model": english.model,
            "family": english.family,
            "organisation": english.organisation,
            "released": english.released,
            "params_total_b": 7.0 + np.arange(len(english)) % 5,
        }
    )
    index = np.log(models["params_total_b"].to_numpy()) + 1.5 * years
    cells = pd.DataFrame(
        [
            {"model": model, "test": f"t{k}", "score": 1 / (1 + math.exp(-(value - 5 - 0.2 * k))), "floor": 0.0}
            for model, value in zip(english.model, index, strict=True)
            for k in range(4)
        ]
    )
    late = models[models["released"] > "2024-06-01"]
    steps = [
        TableStep("one", cells, models),
        TableStep("two", cells, late),
        TableStep("x", cells, models, "all models"),
    ]
    answer = answer_language(measured, steps)
    assert answer.lo < -0.5 / math.log(2) < answer.hi and answer.p < 0.05
    assert answer.rows["models"].iloc[0] == len(abroad)
    data, log_size = table_data(cells, models)
    assert table_pace(data, log_size).estimate == pytest.approx(1.5, rel=0.01)
    assert "other languages grow slower" in answer.answer


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (world(0, bent(1, 1)).window(until="2024-06-01"), "0 models of 0 families in 2025-26"),
        (world(0, bent(1, 1)).take(np.zeros(90, dtype=bool)), "0 models"),
        (world(0, bent(1, 1), families=2, size=20), "at least 4 of 3"),
    ],
)
def test_too_few_models_give_no_number(data: TrendData, reason: str) -> None:
    answer = answer_pace(data)
    assert math.isnan(answer.estimate) and math.isnan(answer.p) and not answer.estimable
    assert reason in answer.answer and answer.notes[0].severity == "warning"


def test_one_organisation_gives_no_test_by_organisation() -> None:
    data = world(10, bent(1, 1), makers=1)
    rows = answer_pace(data).rows.set_index("label")
    assert "1 organisation, at least 3 needed" in rows.loc["organisations as clusters", "status"]
    assert np.isnan(rows.loc["organisations as clusters", "p"])


def test_a_figure_that_one_family_carries_has_no_end() -> None:
    data = world(11, bent(1, 1), families=8)
    lone = np.where(data.family == "f3", 1.0, 0.0)
    made = estimate_contrast([Regression(data, np.column_stack([line_of(data).design, lone]))], lambda b: b[:, 2])
    assert made.lo == -math.inf and made.hi == math.inf and math.isnan(made.p()) and "f3" in made.reason


def test_power_and_detectable_effect_agree() -> None:
    change = pace_change(world(12, bent(1, 1)))
    assert change.power(change.detectable(0.8)) == pytest.approx(0.8, abs=0.01)
    assert change.power(0.0) < 0.06


def test_holm_against_statsmodels() -> None:
    p = [0.001, 0.02, 0.04, 0.5, 0.013]
    assert holm(p) == pytest.approx(sm.stats.multipletests(p, method="holm")[1].tolist())


def tiny(path: Path, rows: list[dict[str, Any]]) -> Any:
    pd.DataFrame(rows).to_csv(path / "mine.csv", index=False)
    return load_catalog(path / "mine.csv", embedded=False)


@pytest.mark.usefixtures("short_scales")
def test_tiny_catalogs_answer_every_question_with_a_sentence(tmp_path: Path) -> None:
    rows = [
        {"model": f"m{i}", "params": 1e9, "released": "2024-06-01", "benchmark": "mmlu", "score": 0.3 + 0.1 * i}
        for i in range(2)
    ]
    catalog = tiny(tmp_path, rows)
    answers, kept = (answer_questions(catalog, keep=True) for _ in range(2))
    assert repr(kept) == repr(answers) and kept.notes == answers.notes
    assert [answer.key for answer in answers] == list(QUESTIONS)
    for answer in answers:
        assert math.isnan(answer.estimate) and answer.answer.endswith(".") and answer.rows.empty
    assert answers.table["p_holm"].isna().all()
    assert answers["pace"].to_dict()["rows"] == []


@pytest.mark.usefixtures("short_scales")
def test_a_question_is_added_in_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Also one that this catalog cannot answer, which is said in the question's own words.
    def asked(data: JointData, level: float) -> Answer:
        raise InputError("nothing to answer it by.")

    monkeypatch.setitem(QUESTIONS, "mine", Question("How fast is mine?", "months", asked))  # type: ignore[arg-type]
    rows = [{"model": f"m{i}", "params": 1e9, "benchmark": "mmlu", "score": 0.3 + 0.1 * i} for i in range(3)]
    [answer] = answer_questions(tiny(tmp_path, rows), ["mine"])
    assert (answer.key, answer.question, answer.unit) == ("mine", "How fast is mine?", "months")
    assert answer.answer.endswith(".") and math.isnan(answer.estimate)


@pytest.mark.usefixtures("short_scales")
def test_a_catalog_without_dates_tokens_and_languages_says_so(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [
        {
            "model": f"f{family}-{size}",
            "family": f"f{family}",
            "params": 1e9 * 3**size,
            "benchmark": benchmark,
            "score": float(0.3 + 0.05 * family + 0.1 * size + rng.normal(0, 0.02)),
        }
        for family in range(6)
        for size in range(3)
        for benchmark in ("mmlu", "gsm8k", "bbh", "humaneval")
    ]
    answers = answer_questions(tiny(tmp_path, rows))
    assert not any(answer.estimable for answer in answers)
    assert "0 models of 0 families" in answers["pace"].answer
    assert "another language than English" in answers["language"].answer
    assert "mixtures of experts" in answers["experts"].answer
    assert "tokens" in answers["compute"].answer


def test_unknown_questions_and_levels_are_refused() -> None:
    catalog = load_catalog(embedded=False)
    with pytest.raises(UnknownNameError, match="question of the trend"):
        answer_questions(catalog, ["speed"])
    with pytest.raises(InputError, match="level 95"):
        answer_questions(catalog, level=95)
    with pytest.raises(UnknownNameError):
        Answers(())["pace"]


@pytest.mark.slow
def test_intervals_hold_the_truth() -> None:
    """Families with shocks of heavy tails; 95 % intervals of the change of pace and of the exponent."""
    runs = 120
    truths: list[tuple[Contrast, float]] = []
    for seed in range(runs):
        heavy = bool(seed % 2)
        truths.append((pace_change(world(seed, bent(2.0, 1.0), heavy=heavy), seed=seed), -1.0))
    exponents = [(expert_exponent(*mixtures(seed, 0.6, heavy=bool(seed % 2)), seed=seed), 0.6) for seed in range(runs)]
    for name, pairs in (("pace", truths), ("experts", exponents)):
        share = np.mean([contrast.lo < truth < contrast.hi for contrast, truth in pairs])
        error = math.sqrt(0.05 * 0.95 / runs)
        assert 0.95 - 2.5 * error < share < 0.95 + 4 * error, (name, share)
        rejected = np.mean([contrast.p(truth) < 0.05 for contrast, truth in pairs])
        assert rejected == pytest.approx(1 - share, abs=0.02)


@pytest.mark.slow
def test_command(tmp_path: Path) -> None:
    done = densing("trend", "--by", "experts", "--out", str(tmp_path / "answers.csv"))
    assert done.returncode == 0, done.stderr
    assert "total^a" in done.stdout and "Test:" in done.stderr
    assert pd.read_csv(tmp_path / "answers.csv")["key"].tolist() == ["experts"]
    refused = densing("trend", "--by", "speed")
    assert refused.returncode == 1 and "unknown question" in refused.stderr


def test_shares_of_the_gap_between_two_tables_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paces of 2 and 1 doublings; a change of the second to 1.5 closes a half, one of the first to 1.8 a fifth."""
    rates = {"A": 2.0, "B": 1.0, "c": 1.5, "d": 1.8, "e": math.nan, "f": 0.9}
    toy = world(0, bent(1, 1))

    def pace(data: TrendData, log_size: Any, **_: Any) -> Contrast:
        rate = rates[log_size]
        nothing = np.zeros(0)
        return Contrast(rate, 0.1, rate - 0.5, rate + 0.5, nothing, np.array(["x", "y"]), nothing, 9)

    monkeypatch.setattr(languages, "table_data", lambda cells, models: (toy, cells))
    monkeypatch.setattr(languages, "table_pace", pace)
    steps = [
        TableStep("A", "A", toy), TableStep("B", "B", toy), TableStep("C", "c", toy, "other models"),
        TableStep("D", "d", toy, "fewer tests", of_first=True), TableStep("E", "e", toy, "nothing"),
        TableStep("F", "f", toy, "dates"), TableStep("G", "c", toy),
    ]  # type: ignore[arg-type]  # fmt: skip
    rows, brief, full = languages._dissect(steps, 0.95, 0)
    assert [row["label"] for row in rows] == list("ABCDEFG")
    months = [formatting.months(math.log(2) / rate * 365.25 / 30.44) for rate in (2, 1)]
    assert brief == (
        f"of the gap between two tables ({months[0]} months in A and {months[1]} months in B) most goes with "
        "other models 50 %, fewer tests 20 %"
    )
    assert "fewer tests 20 %, dates −10 %" in full[0] and "A holds 9 models of 2 families" in full[1]
    assert "excludes the pace of B" in full[1]
    rates["B"] = 1.6
    assert "includes the pace of B" in languages._dissect(steps, 0.95, 0)[2][1]
    assert languages._dissect(steps[:2], 0.95, 0)[1:] == ("", [])
    rates["B"] = 2.0
    assert languages._dissect(steps, 0.95, 0)[1:] == ("", [])


@pytest.mark.parametrize(("estimate", "word"), [(0.5, "faster"), (-0.5, "slower")])
def test_the_sign_of_the_difference_says_which_languages_grow_faster(estimate: float, word: str) -> None:
    nothing = np.zeros(0)
    change = Contrast(estimate, 0.1, estimate - 0.2, estimate + 0.2, nothing, np.array(["x"]), nothing, 9)
    assert languages._direction(change) == f"other languages grow {word}"


def test_p_values_and_power_of_a_contrast_by_hand() -> None:
    reference = np.sort(np.abs(np.random.default_rng(0).standard_t(4, 999)))
    nothing = np.zeros(0)
    made = Contrast(1.0, 0.4, 0.0, 2.0, reference, nothing, nothing, 9)
    beyond = int((reference >= 2.5).sum())
    assert made.p() == pytest.approx(max((1 + beyond) / 1000, 2 * stats.norm.sf(2.5)))
    assert made.p(1.0) == 1.0 and made.p(0.6) == pytest.approx((1 + (reference >= 1.0).sum()) / 1000)
    assert Contrast(9.0, 0.4, 0.0, 2.0, reference[:99], nothing, nothing, 9).p() == 1 / 100
    limit = np.quantile(reference, 0.95)
    assert made.critical_value() == pytest.approx(limit) and limit > 1.96
    assert Contrast(1.0, 0.4, 0.0, 2.0, reference / 9, nothing, nothing, 9).critical_value(0.9) == pytest.approx(
        1.6449, abs=1e-4
    )
    assert made.power(0.8) == pytest.approx(stats.norm.sf(limit - 2) + stats.norm.cdf(-limit - 2))
    assert made.detectable(0.9) == pytest.approx(0.4 * (limit + stats.norm.ppf(0.9)))
    assert Contrast(1.0, 0.0, 1.0, 1.0, reference, nothing, nothing, 9).p() == 1 / 1000
    assert math.isnan(Contrast(1.0, 0.0, 1.0, 1.0, reference, nothing, nothing, 9).power(1.0))
    for missing in (Contrast.missing("why"), Contrast(1.0, math.inf, -1.0, 1.0, nothing, nothing, nothing, 9)):
        assert math.isnan(missing.p()) and math.isnan(missing.power(1.0)) and not missing.estimable


def test_a_contrast_without_bounds_is_least_squares_with_the_family_jackknife() -> None:
    data = world(5, bent(1, 1), families=12)
    design = line_of(data).design
    found = estimate_contrast([Regression(data, design)], lambda b: b[:, 1])
    fit = sm.OLS(data.log_density, design).fit(cov_type="HC0")
    assert found.estimate == pytest.approx(fit.params[1], rel=1e-6)
    families = np.unique(data.family)
    without = [
        sm.OLS(data.log_density[data.family != name], design[data.family != name]).fit().params[1] for name in families
    ]
    np.testing.assert_allclose(found.leave_out, without, rtol=1e-5)
    error = math.sqrt(11 / 12 * np.sum((np.array(without) - fit.params[1]) ** 2))
    assert found.error == pytest.approx(error, rel=1e-4)
    assert (found.hi - found.estimate, found.estimate - found.lo) == pytest.approx(
        (found.critical * error,) * 2, rel=1e-4
    )
    assert found.scale_share == 0.0 and found.models == len(data) and found.clusters.tolist() == families.tolist()


def test_seven_models_are_too_few_for_a_slope_and_eight_are_not() -> None:
    names = [f"m{i}" for i in range(MIN_ROWS)]
    families = [f"f{i % MIN_FAMILIES}" for i in range(MIN_ROWS)]
    days = np.datetime64("2023-02-24") + (100 * np.arange(MIN_ROWS)).astype("m8[D]")
    data = TrendData.from_arrays(names, families, days, 0.1 * np.arange(MIN_ROWS))
    assert too_few(data) == "" and "models of" in too_few(data.take(np.arange(MIN_ROWS) > 0))
    one_less = data.replace(family=np.array([f"f{i % (MIN_FAMILIES - 1)}" for i in range(MIN_ROWS)]))
    assert "families" in too_few(one_less) and too_few(data.replace(days=np.zeros(MIN_ROWS))) != ""


def test_experts_are_asked_again_of_models_measured_on_enough_skills(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def answer(models: Any, ratio: Any, **options: Any) -> Any:
        given.update(options, ratio=ratio)
        return world_answer

    world_answer = answer_pace(world(1, bent(1, 1)))
    ratios = {(): np.array([0.0, 1.0, 2.0, 0.0])}
    monkeypatch.setattr(questions, "expert_data", lambda data, more=(): ("rows", ratios.get(more, "wider")))
    monkeypatch.setattr(questions.experts, "answer_experts", answer)
    kinds = {"architecture": ["moe", "moe", "dense", "moe"], "kind": ["base", "base", "base", "instruct"]}
    data = SimpleNamespace(
        traits=lambda models, include: np.array([1, 2, 3, 4]),
        catalog=SimpleNamespace(models=pd.DataFrame({"model": list("abcd"), **kinds})),
        scale=SimpleNamespace(models=["a", "c", "d"]),
        seed=5,
    )
    found = questions._experts(data, 0.9)  # type: ignore[arg-type]
    few = questions.FEWEST_SKILLS
    assert given["measured"].tolist() == [count >= few for count in (1, 2, 3, 4)] and 1 < few <= 4
    assert given["wider"] == ("rows", "wider") and (given["level"], given["seed"]) == (0.9, 5)
    assert "Of 2 base mixtures of experts in the catalog 1 are on the joint scale and 2 have" in found.caveats[-1]

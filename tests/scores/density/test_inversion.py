"""Density: inversion, statuses, intervals. Golden values are closed forms of the logistic law, worked out here."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from densing.core import named_stream
from densing.core.errors import InputError
from densing.scores.density import estimate_density, model_scatter
from densing.scores.density.inversion import (
    MAX_GUARD,
    Scatter,
    check_options,
    joint_scatter,
    normals,
    over_sizes,
    size_shifts,
)
from densing.scores.references import Reference
from tests.support.budget import FULL
from tests.support.frozen import changeable
from tests.support.references import FLOOR, LOGISTIC, SIZES, TRUTH, logistic_reference


def make_reference(seed: int | None = None, noise: float = 0.0, draws: int = 200) -> Reference:
    rng = np.random.default_rng(seed)
    score = LOGISTIC.predict(TRUTH, {"params": SIZES}) + noise * rng.standard_normal(len(SIZES))
    return logistic_reference(score, draws=draws, seed=seed or 0)


def targets(score: list[float], params: list[float], se: float = 0.0) -> pd.DataFrame:
    return pd.DataFrame(
        {"model": [f"m{i}" for i in range(len(score))], "score": score, "score_se": se, "params_total": params}
    )


def score_at(n_eff: float) -> float:
    return float(FLOOR + TRUTH[0] / (1 + math.exp(-TRUTH[1] * (math.log(n_eff) - TRUTH[2]))))


def test_density_is_effective_over_actual_size() -> None:
    result = estimate_density(targets([score_at(12e9), score_at(3e9)], [4e9, 6e9]), make_reference())
    assert result.table["n_eff"].to_numpy() == pytest.approx([12e9, 3e9], rel=1e-6)
    assert result.table["density"].to_numpy() == pytest.approx([3.0, 0.5], rel=1e-6)
    assert (result.table["status"] == "ok").all()


@pytest.mark.parametrize(
    ("score", "status", "bound", "n_eff"),
    [
        (0.20, "below_floor", "upper", SIZES[0] / 3),
        (0.25, "below_floor", "upper", SIZES[0] / 3),
        (0.90, "above_ceiling", "lower", SIZES[-1] * 3),
        (0.99, "above_ceiling", "lower", SIZES[-1] * 3),
        (score_at(1e12), "extrapolated", "lower", SIZES[-1] * 3),
        (score_at(1e8), "extrapolated", "upper", SIZES[0] / 3),
    ],
)
def test_outside_the_domain_there_is_a_status_and_a_one_sided_bound(
    score: float, status: str, bound: str, n_eff: float
) -> None:
    row = estimate_density(targets([score], [7e9], se=0.001), make_reference(3, 0.002)).table.iloc[0]
    assert (row["status"], row["bound"]) == (status, bound)
    assert row["n_eff"] == pytest.approx(n_eff)
    assert np.isfinite(row["density"])
    assert row["n_eff_lo"] == 0 if bound == "upper" else math.isinf(row["n_eff_hi"])
    assert row["density_lo"] <= row["density"] <= row["density_hi"]


def test_guard_moves_the_bounds_and_can_be_switched_off() -> None:
    far = targets([score_at(1e12)], [1e9])
    assert estimate_density(far, make_reference(), guard=10).table["status"].item() == "ok"
    free = estimate_density(far, make_reference(), guard=math.inf).table.iloc[0]
    assert (free["status"], free["n_eff"]) == ("ok", pytest.approx(1e12, rel=1e-4))
    ceiling = estimate_density(targets([0.99], [1e9]), make_reference(), guard=math.inf).table.iloc[0]
    assert np.isfinite(ceiling["n_eff"])
    with pytest.raises(InputError, match=r"guard 0\.5 is below 1"):
        estimate_density(far, make_reference(), guard=0.5)
    with pytest.raises(InputError, match="give inf"):
        estimate_density(far, make_reference(), guard=1e300)


def test_rows_without_a_size_are_counted_not_lost_silently() -> None:
    table = targets([0.6, 0.6], [7e9, math.nan])
    result = estimate_density(table, make_reference())
    assert result.table["model"].tolist() == ["m0"]
    assert [note.code for note in result.notes if note.code == "no-size"] == ["no-size"]
    with pytest.raises(InputError, match="none of the 1 models"):
        estimate_density(targets([0.6], [math.nan]), make_reference())


def test_unknown_denominator_is_refused() -> None:
    with pytest.raises(InputError, match="denominator 'both'"):
        estimate_density(targets([0.6], [7e9]), make_reference(), denominator="both")
    with pytest.raises(InputError, match="params_active"):
        estimate_density(targets([0.6], [7e9]), make_reference(), denominator="active")


@settings(max_examples=30)
@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6),
    st.floats(1e6, 1e13),
    st.floats(0.0, 0.1),
)
def test_any_score_gives_a_finite_density_between_its_ends(scores: list[float], size: float, se: float) -> None:
    table = estimate_density(targets(scores, [size] * len(scores), se=se), _NOISY).table
    assert np.isfinite(table["density"]).all()
    assert (table["density"] > 0).all()
    assert (table["density_lo"] <= table["density_hi"]).all()
    assert table["status"].isin(["ok", "extrapolated", "below_floor", "above_ceiling"]).all()


_NOISY = make_reference(5, 0.01)


def test_a_better_score_never_has_less_density() -> None:
    scores = np.linspace(0.0, 1.0, 101).tolist()
    table = estimate_density(targets(scores, [7e9] * 101), _NOISY).table
    assert (np.diff(table["density"]) >= -1e-9).all()


def test_row_order_changes_no_point_and_twice_the_size_is_half_the_density() -> None:
    table = targets([0.4, 0.5, 0.6], [1e9, 2e9, 3e9])
    first = estimate_density(table, _NOISY).table.set_index("model")["density"]
    mixed = estimate_density(table.iloc[[2, 0, 1]], _NOISY).table.set_index("model")["density"]
    pd.testing.assert_series_equal(first, mixed.loc[first.index])
    double = estimate_density(table.assign(params_total=table["params_total"] * 2), _NOISY)
    assert double.table["density"].to_numpy() == pytest.approx(first.to_numpy() / 2)


def test_interval_carries_law_and_score_noise() -> None:
    quiet = estimate_density(targets([0.6], [7e9], se=0.0), _NOISY)
    loud = estimate_density(targets([0.6], [7e9], se=0.02), _NOISY)
    assert quiet.draws.std() == pytest.approx(quiet.law_draws.std())
    assert loud.draws.std() > 1.2 * loud.law_draws.std()


@pytest.mark.slow
def test_density_interval_covers_the_truth() -> None:
    """The interval of the measurement covers the true density of a model on the curve in 93 to 97 % of worlds.

    Each world refits an eight-size family with noise of 0.012 (that of Qwen1.5 on MMLU) and measures a model with
    noise of 0.01.
    """
    worlds = 4000 if FULL else 250
    rng = np.random.default_rng(20241205)
    true_n = np.exp(rng.uniform(math.log(1e9), math.log(60e9), worlds))
    hits = 0
    for world in range(worlds):
        observed = float(np.clip(score_at(true_n[world]) + 0.01 * rng.standard_normal(), 0, 1))
        reference = make_reference(int(rng.integers(1, 2**31)), 0.012, draws=400)
        row = estimate_density(targets([observed], [5e9], se=0.01), reference, seed=world).table.iloc[0]
        hits += row["density_lo"] <= true_n[world] / 5e9 <= row["density_hi"]
    share = hits / worlds
    if FULL:
        assert 0.93 <= share <= 0.97, share
    else:  # 3.3 binomial standard errors around the band
        margin = 3.3 * math.sqrt(0.05 * 0.95 / worlds)
        assert 0.93 - margin <= share <= 0.97 + margin, share


def test_no_result_can_be_changed_by_who_reads_it() -> None:
    assert changeable("densing.scores.density", without="callback") == {"Outcome"}, "counted as worlds are simulated"


@pytest.mark.parametrize("level", [0.95, 0.5])
def test_every_column_is_a_quantile_of_the_draws(level: float) -> None:
    table = targets([0.42, 0.5, 0.7], [2e9, 4e9, 8e9], se=0.01).assign(
        params_lo=[1.5e9, np.nan, 7.9e9], params_hi=[2.5e9, np.nan, 8.1e9]
    )
    result = estimate_density(table, _NOISY, level=level, seed=3)
    tail, size = (1 - level) / 2, table["params_total"].to_numpy()
    found = result.table
    for draws, names in (
        (result.draws, ("density_lo", "density_hi")),
        (result.model_draws, ("density_lo_recipe", "density_hi_recipe")),
    ):
        np.testing.assert_allclose(found[list(names)].T, np.exp(np.quantile(draws, [tail, 1 - tail], axis=0)))
    # A size that is not rounded moves nothing: effective sizes are those of the scores alone.
    assert found["n_eff_lo"][1] == pytest.approx(found["density_lo"][1] * 4e9)
    assert found["n_eff_hi"][0] / size[0] < found["density_hi"][0]
    measured = (result.draws + np.log(size)).var(axis=0)
    law = result.law_draws.var(axis=0)
    assert found["share_ruler"][1] == pytest.approx(law[1] / result.model_draws.var(axis=0)[1])
    assert found["share_ability"][1] == pytest.approx((measured[1] - law[1]) / result.model_draws.var(axis=0)[1])
    np.testing.assert_allclose(found[["share_ability", "share_ruler", "share_scatter"]].sum(axis=1), 1.0)
    # Shifts of sizes are even between the ends, by a stream of the model's own.
    shift = size_shifts(table.assign(n_params=size), len(result.draws), 3)
    low, high = np.exp(shift[:, 0]).min() * 2e9, np.exp(shift[:, 0]).max() * 2e9
    assert 1.5e9 <= low < 1.52e9 and 2.48e9 < high <= 2.5e9 and (shift[:, 1] == 0).all()
    even = np.sort(np.exp(shift[:, 0]) * 2e9)
    assert np.abs((even - 1.5e9) / 1e9 - (np.arange(len(even)) + 0.5) / len(even)).max() < 0.12
    np.testing.assert_allclose(
        np.exp(shift[:, 0]) * 2e9, 1.5e9 + 1e9 * norm.cdf(normals(len(even), 3, ("size",), ["m0"])[:, 0])
    )


def test_what_is_at_a_limit_stays_there_whatever_the_size() -> None:
    draws, limits = np.array([[0.0, 1.0, 2.0, 3.0]]), np.array([0.0, 3.0])
    assert over_sizes(draws, limits, np.array([[0.5, 0.5, 2.5, 0.5]])).tolist() == [[0.0, 0.5, 0.0, 3.0]]
    assert over_sizes(draws, limits, np.array([[-0.5, -0.5, -2.5, -0.5]])).tolist() == [[0.0, 1.5, 3.0, 3.0]]


def test_a_draw_of_the_score_is_the_law_at_the_score_with_its_noise() -> None:
    result = estimate_density(targets([0.5, 0.6], [4e9, 4e9], se=0.01), _NOISY, seed=7)
    noise = normals(len(_NOISY.fit.draws), 7, ("score", "mmlu"), ["m0", "m1"])
    expected = [
        np.log(_NOISY.fit.law.invert(_NOISY.fit.draws, score + 0.01 * z)[0]) - np.log(4e9)
        for score, z in zip((0.5, 0.6), noise.T, strict=True)
    ]
    np.testing.assert_allclose(result.draws, np.column_stack(expected))
    limits = np.log([SIZES[0] / 3, SIZES[-1] * 3]) - np.log(4e9)
    np.testing.assert_allclose(result.log_limits, [limits, limits])
    assert result.options == {"denominator": "total", "guard": 3.0, "level": 0.95, "seed": 7}


@pytest.mark.parametrize(
    ("guard", "ok"), [(1.0, True), (0.999, False), (MAX_GUARD, True), (MAX_GUARD * 1.01, False), (math.inf, True)]
)
def test_the_ends_of_a_guard(guard: float, ok: bool) -> None:
    if ok:
        check_options("total", guard)
    else:
        with pytest.raises(InputError, match="guard"):
            check_options("total", guard)


def test_scatter_is_drawn_with_its_own_and_its_common_part() -> None:
    scatter = Scatter(
        total=4e-4, noise=1e-4, freedom=5.0, relative=False, stream=("toy", "mmlu"), common=0.25, benchmarks=3
    )
    assert scatter.sd == pytest.approx(math.sqrt(3e-4)) and replace(scatter, noise=1.0).sd == 0.0
    own = 4e-4 * 0.75 * 15 / named_stream(2, "scale", "own", "toy", "mmlu").chisquare(15, 50)
    shared = 4e-4 * 0.25 * 5 / named_stream(2, "scale", "common", "toy", "mmlu").chisquare(5, 50)
    expected = np.sqrt(np.maximum(own - 1e-4, 0))[:, None] * normals(50, 2, ("scatter", "mmlu"), ["a", "b"])
    expected = expected + np.sqrt(shared)[:, None] * normals(50, 2, ("scatter",), ["a", "b"])
    np.testing.assert_allclose(scatter.draws(50, 2, ("mmlu",), ["a", "b"]), expected)
    alone = replace(scatter, common=0.0, benchmarks=1)
    own = 4e-4 * 5 / named_stream(2, "scale", "own", "toy", "mmlu").chisquare(5, 50)
    expected = np.sqrt(np.maximum(own - 1e-4, 0))[:, None] * normals(50, 2, ("scatter", "mmlu"), ["a"])
    np.testing.assert_allclose(alone.draws(50, 2, ("mmlu",), ["a"]), expected)


def test_scatter_counts_weights_clusters_and_the_noise_of_items() -> None:
    reference = logistic_reference(
        LOGISTIC.predict(TRUTH, {"params": SIZES}) + 0.01 * np.cos(np.arange(8.0)), score_se=0.004
    )
    plain, residuals = model_scatter(reference), reference.fit.residuals
    assert plain is not None
    assert (plain.total, plain.noise) == pytest.approx((np.sum(residuals**2) / 5, 0.004**2))
    assert (plain.freedom, plain.relative, plain.stream, plain.common) == (5.0, False, ("toy", "mmlu"), 0.0)

    def with_options(**options: object) -> Scatter | None:
        return model_scatter(
            replace(reference, fit=replace(reference.fit, options={**reference.fit.options, **options}))
        )

    weighted = with_options(weights=[2.0] * 8)
    assert weighted is not None and weighted.total == pytest.approx(2 * plain.total)
    clustered = with_options(clusters=list("aabbccdd"))
    assert clustered is not None and (clustered.freedom, clustered.total) == (1.0, plain.total)
    assert with_options(clusters=list("aabbcccc")) is None
    stepped = with_options(steps=[{"options": {"clusters": list("abcdefgg")}}, {"options": {"clusters": None}}])
    assert stepped is not None and stepped.freedom == 4.0


def test_what_benchmarks_have_in_common_is_the_mean_correlation_of_residuals() -> None:
    rng = np.random.default_rng(4)
    shift = 0.02 * rng.standard_normal(8)
    references = [
        logistic_reference(LOGISTIC.predict(TRUTH, {"params": SIZES}) + shift + 0.01 * rng.standard_normal(8), name)
        for name in ("a", "b", "c")
    ]
    scatters = joint_scatter(references)
    standard = [r.fit.residuals / math.sqrt(np.sum(r.fit.residuals**2) / 5) for r in references]
    pairs = [standard[i] @ standard[j] / 5 for i, j in ((0, 1), (0, 2), (1, 2))]
    for found in scatters:
        assert (
            found is not None and found.common == pytest.approx(np.clip(np.mean(pairs), 0, 1)) and 0 < found.common < 1
        )
        assert found.benchmarks == 3 and found.stream == ("toy",)
    (alone,) = joint_scatter(references[:1])
    assert alone is not None and (alone.common, alone.benchmarks) == (0.0, 1)
    against = [
        references[0],
        replace(references[0], fit=replace(references[0].fit, residuals=-references[0].fit.residuals)),
    ]
    assert {found.common for found in joint_scatter(against) if found is not None} == {0.0}


def test_scores_need_a_column_a_size_and_an_error() -> None:
    table = targets([0.6], [7e9])
    for column in ("model", "score", "score_se"):
        with pytest.raises(InputError, match=f"no column {column}"):
            estimate_density(table.drop(columns=column), _NOISY)
    for error in (-0.01, math.nan):
        with pytest.raises(InputError, match="row 0, column score_se"):
            estimate_density(table.assign(score_se=error), _NOISY)
    assert len(estimate_density(table.assign(score_se=0.0), _NOISY)) == 1
    with pytest.raises(InputError, match="none of the 1 models"):
        estimate_density(table.assign(params_total=0.0), _NOISY)

"""Density: inversion, statuses, intervals. Golden values are closed forms of the logistic law, worked out here."""

from __future__ import annotations

import math
import os

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from densing.core.errors import InputError
from densing.scores.density import estimate_density
from densing.scores.references import Reference
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
    full = os.environ.get("DENSING_COVERAGE_BUDGET") == "full"
    worlds = 4000 if full else 250
    rng = np.random.default_rng(20241205)
    true_n = np.exp(rng.uniform(math.log(1e9), math.log(60e9), worlds))
    hits = 0
    for world in range(worlds):
        observed = float(np.clip(score_at(true_n[world]) + 0.01 * rng.standard_normal(), 0, 1))
        reference = make_reference(int(rng.integers(1, 2**31)), 0.012, draws=400)
        row = estimate_density(targets([observed], [5e9], se=0.01), reference, seed=world).table.iloc[0]
        hits += row["density_lo"] <= true_n[world] / 5e9 <= row["density_hi"]
    share = hits / worlds
    if full:
        assert 0.93 <= share <= 0.97, share
    else:  # 3.3 binomial standard errors around the band
        margin = 3.3 * math.sqrt(0.05 * 0.95 / worlds)
        assert 0.93 - margin <= share <= 0.97 + margin, share


def test_no_result_can_be_changed_by_who_reads_it() -> None:
    assert changeable("densing.scores.density", without="callback") == {"Outcome"}, "counted as worlds are simulated"

"""Forecasters in worlds whose truth is known: a line that moves, a world that stands still, makers that differ."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.scores.trend.backtests import crps
from densing.scores.trend.forecasters import (
    FORECASTERS,
    RECENT,
    STILL,
    TREND,
    Forecaster,
    Known,
    Maker,
    Nearest,
    Pool,
    family_donors,
    nearest,
    size_slopes,
)

SLOPE = 0.5
"""What a unit of ln N adds in these worlds."""


def world(seed: int, pace: float, families: int = 40, draws: int = 200) -> tuple[Known, pd.DataFrame, np.ndarray]:
    """Return what is known after two years, the models of the next six months, and their abilities (m, 1).

    x = 0.5 ln N + pace t + family (sd 0.4) + model (sd 0.2), t in years; known to 0.05.
    """
    rng = np.random.default_rng(seed)
    day = rng.uniform(0, 910, families)
    rows = [
        (f"m{f}-{i}", f"f{f}", f"maker{f % 12}", day[f], math.log(7e9) + size)
        for f in range(families)
        for i, size in enumerate(rng.uniform(-2, 2, rng.integers(1, 5)))
    ]
    models = pd.DataFrame(rows, columns=["model", "family", "organisation", "days", "log_params"])
    models = models.sort_values(["days", "model"], ignore_index=True)
    codes = np.unique(models["family"], return_inverse=True)[1]
    truth = SLOPE * models["log_params"] + pace * models["days"] / 365.25
    truth = (truth + 0.4 * rng.standard_normal(families)[codes] + 0.2 * rng.standard_normal(len(models))).to_numpy()
    now = (models["days"] <= 730).to_numpy()
    abilities = truth[now] + 0.05 * rng.standard_normal((draws, int(now.sum())))
    known = Known(
        models=models[now].reset_index(drop=True),
        abilities=abilities[:, :, None],
        slopes=size_slopes(
            abilities[:, :, None], models["family"].to_numpy(str)[now], models["log_params"].to_numpy()[now], seed
        ),
        scores=pd.DataFrame({"model": [], "test": [], "score": []}),
    )
    return known, models[~now].reset_index(drop=True), truth[~now]


def errors(forecaster: Forecaster, pace: float, worlds: int = 40) -> tuple[float, float]:
    """Return mean CRPS and the share inside the 90 % interval over many worlds."""
    scores, inside = [], []
    for seed in range(worlds):
        known, later, truth = world(seed, pace)
        if later.empty:
            continue
        draws = forecaster.abilities(known, later, seed)[:, :, 0]
        low, high = np.quantile(draws, [0.05, 0.95], axis=0)
        scores.append(crps(draws, truth).mean())
        inside.append(((truth >= low) & (truth <= high)).mean())
    return float(np.mean(scores)), float(np.mean(inside))


def test_the_trend_is_calibrated_in_a_world_where_it_is_true() -> None:
    score, inside = errors(TREND, pace=1.0)
    assert 0.84 <= inside <= 0.96
    # CRPS of the true predictive distribution, N(0, 0.4^2 + 0.2^2), is sd / sqrt(pi): no forecast can do better.
    ideal = math.hypot(0.4, 0.2) / math.sqrt(math.pi)
    assert 0.85 * ideal < score < 1.25 * ideal


def test_the_trend_wins_in_a_world_that_moves() -> None:
    moving = {f.name: errors(f, pace=1.5, worlds=20)[0] for f in (STILL, Nearest(), TREND)}
    assert moving["trend"] < 0.6 * moving["standing still"] and moving["trend"] < 0.8 * moving["nearest"]


def test_standing_still_wins_in_a_world_without_progress() -> None:
    still = {f.name: errors(f, pace=0.0)[0] for f in FORECASTERS}
    assert min(still, key=still.__getitem__) in ("standing still", "equal parts")
    assert still["standing still"] < min(still["trend"], still["recent trend"], still["nearest"])


def test_the_makers_trend_wins_where_makers_differ_for_good() -> None:
    known, later, _ = world(3, pace=1.0, families=60)
    lead = known.models["organisation"].eq("maker1").to_numpy() * 2.0
    known = Known(known.models, known.abilities + lead[None, :, None], known.slopes, known.scores)
    later = later.assign(organisation="maker1")
    ahead = Maker().abilities(known, later).mean() - TREND.abilities(known, later).mean()
    assert 1.0 < ahead < 2.6
    # A maker that nobody knows is one of many.
    new = later.assign(organisation="new")
    np.testing.assert_array_equal(Maker().abilities(known, new), TREND.abilities(known, new))


def test_windows_reach_back_as_far_as_they_say() -> None:
    known, _, _ = world(0, pace=1.0)
    days = known.models["days"].to_numpy()
    for line, months in ((STILL, 12), (RECENT, 18)):
        np.testing.assert_array_equal(line.window(known), np.flatnonzero(days >= days.max() - months * 30.44))
    assert len(TREND.window(known)) == len(days)


def test_a_window_of_one_family_is_stretched_into_the_past() -> None:
    models = pd.DataFrame(
        {
            "model": [f"m{i}" for i in range(30)],
            "family": [*[f"f{i}" for i in range(15)], *["last"] * 15],
            "organisation": "o",
            "days": [*range(15), *[900.0] * 15],
            "log_params": math.log(7e9),
        }
    )
    known = Known(models, np.zeros((5, 30, 2)), np.zeros((5, 2)), pd.DataFrame())
    assert models.loc[STILL.window(known), "family"].nunique() == 3


def test_size_slopes_are_those_within_families() -> None:
    # Bigger families are worse here: only a comparison within them sees what size buys.
    sizes = np.log(np.array([1, 2, 4, 10, 20, 40]) * 1e9)
    families = np.array(list("aaabbb"))
    ability = SLOPE * sizes - 3.0 * (families == "b")
    slopes = size_slopes(np.tile(ability[None, :, None], (7, 1, 1)), families, sizes)
    np.testing.assert_allclose(slopes, SLOPE)
    assert (size_slopes(ability[None, :1, None], families[:1], sizes[:1]) == 0).all()


@given(
    st.lists(st.tuples(st.integers(0, 5), st.floats(0, 5)), min_size=1, max_size=12),
    st.floats(0, 5),
    st.integers(0, 6),
)
def test_nearest_is_the_latest_of_similar_size(rows: list[tuple[int, float]], size: float, before: int) -> None:
    days, sizes = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    chosen = nearest(days, sizes, size, before=before)
    allowed = [i for i in range(len(rows)) if days[i] < before]
    similar = [i for i in allowed if abs(sizes[i] - size) <= math.log(1.5)]
    if not allowed:
        assert chosen is None
    elif similar:
        assert chosen in similar and days[chosen] == max(days[i] for i in similar)
    else:
        assert chosen in allowed and abs(sizes[chosen] - size) == min(abs(sizes[i] - size) for i in allowed)


def test_members_of_a_later_family_share_a_donor_family() -> None:
    families, later = np.array(list("aabbbcd")), np.array(["new", "new", "other"])
    donors = family_donors(families, later, 400, 0, "x")
    assert (families[donors[:, 0]] == families[donors[:, 1]]).all()
    assert (families[donors[:, 0]] != families[donors[:, 2]]).any()
    assert (np.bincount(donors[:, 0], minlength=7) > 0).all()


def test_forecasts_do_not_depend_on_who_else_is_forecast() -> None:
    known, later, _ = world(1, pace=1.0)
    for forecaster in (TREND, STILL, Nearest(), Maker()):
        everyone = forecaster.abilities(known, later, 7)
        first = later[later["family"].eq(later["family"].iloc[0])]
        alone = forecaster.abilities(known, first.reset_index(drop=True), 7)
        np.testing.assert_array_equal(everyone[:, first.index], alone)


def test_equal_parts_draw_from_every_member() -> None:
    known, later, _ = world(2, pace=3.0)
    pool = Pool((STILL, TREND)).abilities(known, later)
    middle = (STILL.abilities(known, later).mean() + TREND.abilities(known, later).mean()) / 2
    assert pool.mean() == pytest.approx(middle, abs=0.1)
    assert pool.std() > TREND.abilities(known, later).std()


def test_the_nearest_score_errs_as_successors_did_either_way() -> None:
    models = pd.DataFrame({"model": ["old", "new"], "family": ["a", "b"], "organisation": ["x", "y"],
                           "days": [100.0, 400.0], "log_params": [20.0, 20.0]})  # fmt: skip
    known = Known(
        models=models,
        abilities=np.zeros((400, 2, 1)),
        slopes=np.zeros((400, 1)),
        scores=pd.DataFrame({"model": ["old", "new"], "test": "t", "score": [0.5, 0.6]}),
    )
    later = pd.DataFrame({"model": ["next"], "log_params": [20.0]})
    cells = pd.DataFrame({"model": ["next", "next"], "test": ["t", "unseen"]})
    drawn = Nearest().scores(known, later, cells)
    # The latest of its size has .6, and missed its own predecessor by .1.
    values, counts = np.unique(drawn[:, 0].round(9), return_counts=True)
    assert values.tolist() == [0.5, 0.7] and counts.min() > 150
    assert np.isnan(drawn[:, 1]).all()

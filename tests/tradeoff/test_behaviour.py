"""LCBM's claims beside made measurements, and floors against what is known of them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from densing.core import UnavailableError
from densing.tradeoff import behaviour_claims, film_floors
from densing.tradeoff.behaviour import METER, PAIR

FLOORS = pd.DataFrame({"predictor": ["mean"], "close": [0.10]})


def measured(told: float, plain: float) -> pd.DataFrame:
    rows = [
        {"size": size, "seed": seed, "arm": arm, "tokens": 1000, "task": METER, "params_non_embedding": n,
         "close": close + 0.001 * seed, "bits": 10 - 10 * close, "n_items": 5000}
        for size, n in (("d8", 1384), ("d12", 3084)) for seed in range(3)
        for arm, close in (("behaviour", told), ("plain", plain))
    ]  # fmt: skip
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("told", "plain", "verdict"),
    [(0.3, 0.2, "agrees"), (0.3, 0.05, "differs"), (0.1, 0.2, "differs"), (0.3, 0.101, "not decided")],
)
def test_the_order_of_the_first_claim(told: float, plain: float, verdict: str) -> None:
    claims = behaviour_claims(measured(told, plain), FLOORS).set_index("claim")
    assert claims.loc["LCB-1", "verdict"] == verdict and set(claims["grade"]) == {"measured"}
    assert claims.loc[["LCB-2", "LCB-3", "LCB-4"], "verdict"].eq("not answerable").all()


@pytest.mark.parametrize(
    ("constant", "floor", "verdict"),
    [(0.20, 8.0, "agrees"), (0.40, 8.0, "differs"), (0.305, 8.0, "not decided"), (0.20, 6.0, "differs")],
)
def test_what_needs_no_content_is_a_rival(constant: float, floor: float, verdict: str) -> None:
    """Told 0.3 and 7 bits: beside the constant that holds most often, and the shares of the answers."""
    floors = pd.DataFrame({"predictor": ["mean", "best constant"], "close": [0.10, constant]})
    claims = behaviour_claims(measured(0.3, 0.2).assign(bits_floor=floor), floors).set_index("claim")
    assert claims.loc["LCB-1", "verdict"] == verdict


@pytest.mark.parametrize(
    ("told", "plain", "verdict"), [(0.8, 0.6, "agrees"), (0.45, 0.60, "differs"), (0.6, 0.6, "not decided")]
)
def test_the_choice_between_two_films_is_part_of_the_first_claim(told: float, plain: float, verdict: str) -> None:
    scores = measured(0.3, 0.2)
    pairs = scores.assign(task=PAIR, acc=scores["arm"].map({"behaviour": told, "plain": plain}))
    claims = behaviour_claims(pd.concat([scores, pairs]), FLOORS).set_index("claim")
    assert claims.loc["LCB-1", "verdict"] == verdict


def few_shot(bits: float, items: int, floor: float | None = None) -> pd.DataFrame:
    rows = [("bits", bits), *([] if floor is None else [("bits_floor", floor)])]
    return pd.DataFrame([
        {"model": "large", "task": METER, "metric": metric, "value": value, "stderr": 0.2, "n_items": items}
        for metric, value in rows
    ])  # fmt: skip


@pytest.mark.parametrize(("bits", "verdict"), [(9.0, "agrees"), (5.0, "differs"), (7.1, "not decided")])
def test_a_large_model_is_compared_by_the_loss_of_the_score(bits: float, verdict: str) -> None:
    claims = behaviour_claims(measured(0.3, 0.2), FLOORS, None, few_shot(bits, 5000)).set_index("claim")
    assert claims.loc["LCB-3", "verdict"] == verdict and "first 5000 films" in claims.loc["LCB-3", "found"]


@pytest.mark.parametrize(
    ("bits", "floor", "verdict"),
    [(9.0, None, "not decided"), (9.0, 8.6, "not decided"), (9.0, 8.0, "agrees"), (7.0, 8.0, "differs")],
)
def test_models_asked_other_films_are_compared_beyond_the_floors_of_their_own(
    bits: float, floor: float | None, verdict: str
) -> None:
    """Ours has 7 bits where answers' shares have 6.8; the large one's films are easier or harder by their floor."""
    ours = measured(0.3, 0.2).assign(bits_floor=6.8)
    claims = behaviour_claims(ours, FLOORS, None, few_shot(bits, 9, floor)).set_index("claim")
    assert claims.loc["LCB-3", "verdict"] == verdict and "first 9 films" in claims.loc["LCB-3", "found"]


def test_too_few_pairs_answer_nothing() -> None:
    one = measured(0.3, 0.2).query("seed == 0 and size == 'd8'")
    assert behaviour_claims(one, FLOORS).set_index("claim").loc["LCB-1", "verdict"] == "not answerable"


@pytest.mark.slow
def test_words_know_more_than_the_mean_and_floors_take_the_same_films() -> None:
    pytest.importorskip("sklearn")
    try:
        floors = film_floors("time", boosting=False).set_index("predictor")
    except UnavailableError as error:
        pytest.skip(str(error))
    assert floors.loc["ridge on words", "rmse"] < floors.loc["mean", "rmse"]
    assert floors.loc["best constant", "close"] > floors.loc["mean", "close"]
    from densing.scores.evals import read_films

    true = np.array([film.meter for film in read_films() if film.meter is not None and film.year >= 2005])
    assert floors["n"].eq(len(true)).all()
    before = np.mean([film.meter for film in read_films() if film.meter is not None and film.year < 2005])
    assert floors.loc["mean", "rmse"] == pytest.approx(np.sqrt(np.mean((true - before) ** 2)), rel=1e-12)

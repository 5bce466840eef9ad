"""LCBM's claims beside made measurements, and floors against what is known of them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from densing.core import UnavailableError
from densing.tradeoff import behaviour_claims, film_floors
from densing.tradeoff.behaviour import METER

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


@pytest.mark.parametrize(("bits", "verdict"), [(9.0, "agrees"), (5.0, "differs"), (7.1, "not decided")])
def test_a_large_model_is_compared_by_the_loss_of_the_score(bits: float, verdict: str) -> None:
    few = pd.DataFrame(
        [{"model": "large", "task": METER, "metric": "bits", "value": bits, "stderr": 0.2, "n_items": 9}]
    )
    claims = behaviour_claims(measured(0.3, 0.2), FLOORS, None, few).set_index("claim")
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

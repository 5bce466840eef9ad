"""Suite lcbm-films: films, splits and questions; metrics against scikit-learn; lm-eval's own run of the same files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core import InputError, UnavailableError, UnknownNameError, wheel_folder
from densing.core.films import FILE, INSTALL, PACKAGE
from densing.scores.evals.tasks import films as f
from densing.scores.evals.tasks.films import Film, film_of
from tests.support.served_models import write_deep_model

EMPTY = dict.fromkeys(("Genre", "Director", "Cast", "Country", "Language", "Runtime", "Meter", "Reviews", "BoxOffice"))
BARE = {**EMPTY, "ID": 1, "Title": "A", "Year": 2000}


def made(count: int = 60) -> list[Film]:
    return [
        Film(n, f"Film {n}", 1980 + n, f"D{n % 20}", f"Film {n} ({1980 + n}).", meter=(37 * n) % 101, reviews=5 + n)
        for n in range(count)
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"Meter": 101}, r"film 1 \(A\): Meter 101 is not a whole number from 0 to 100"),
        ({"Meter": -1}, "Meter -1"),
        ({"Meter": 63.5}, "Meter 63.5"),
        ({"Meter": "good"}, "Meter 'good'"),
        ({"Reviews": -2}, "Reviews -2 is not a number of 0 or more"),
    ],
)
def test_a_score_that_is_none_names_its_film(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        film_of({**BARE, **change})


def test_titles_lose_their_html_and_films_without_score_are_asked_nothing() -> None:
    film = film_of({**BARE, "Title": "<b>Tom &amp; Jerry</b>"})
    assert film.content == "Tom & Jerry (2000)." and film.meter is None
    assert f.behaviour_docs([film], made(), "meter") == []
    assert film_of({**BARE, "BoxOffice": 7.386}).box is None


def test_splits_are_apart_and_a_film_on_both_sides_is_refused() -> None:
    films = made()
    for split in f.SPLITS:
        learnt, tested = f.split_films(films, split)
        assert len(learnt) + len(tested) == len(films) and not set(learnt) & set(tested) and learnt and tested
        assert f.split_films(films[::-1], split) == (learnt, tested)
    learnt, tested = f.split_films(films, "director")
    assert not {film.directors for film in learnt} & {film.directors for film in tested}
    with pytest.raises(UnknownNameError, match="split of the films"):
        f.split_films(films, "year")
    twins = [Film(1000 + n, "Twin", 2000, f"D{n // 99}", "") for n in range(60)]
    with pytest.raises(InputError, match=r"Twin \(2000\) is in both the training and the test part"):
        f.split_films(twins, "random")


def test_questions_hold_the_right_film_once_and_no_count_that_gives_the_score_away() -> None:
    films = made()
    for doc in f.content_docs(films):
        film = films[doc["id"]]
        assert len(doc["contexts"]) == f.CANDIDATES == len(set(doc["contexts"]))
        assert doc["contexts"][doc["gold"]] == film.content
        assert doc["continuation"] == f" Score {film.meter}. Reviews {film.reviews}."
    by_text = {film.content: film for film in films}
    pairs = f.pair_docs(films)
    assert {doc["gold"] for doc in pairs} == {0, 1}
    for doc in pairs:
        better, worse = by_text[doc["contexts"][doc["gold"]]], by_text[doc["contexts"][1 - doc["gold"]]]
        assert better.meter - worse.meter >= f.APART and doc["continuation"] == f" Score {better.meter}."
    (doc,) = f.behaviour_docs(films[:1], films, "meter")
    assert doc["query"] == "Film 0 (1980). Score" and not {"fresh", "rotten", "reviews"} & {key.lower() for key in doc}


def test_metrics_are_scikit_learns() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    true, guess = rng.integers(0, 101, 200).astype(float), rng.integers(0, 101, 200).astype(float)
    docs = [{"behaviour": "meter", "truth": t, "mean": 50.0, "constant": 85.0} for t in true]
    scored = [f.score_number(doc, [f" {g:.0f}."]) for doc, g in zip(docs, guess, strict=True)]
    rmse = f.root_mean([row["rmse"] for row in scored])
    assert rmse == pytest.approx(metrics.root_mean_squared_error(true, guess), rel=1e-12)
    assert f.determination([row["r2"] for row in scored]) == pytest.approx(metrics.r2_score(true, guess), rel=1e-12)
    assert np.mean([row["close"] for row in scored]) == np.mean(np.abs(true - guess) <= 5)
    constant = f.root_mean([row["rmse_floor"] for row in scored])
    assert constant == pytest.approx(metrics.root_mean_squared_error(true, np.full(200, 50.0)), rel=1e-12)
    logs = rng.normal(size=(200, 101))
    meter = [{**doc, "low": 0, "high": 100, "floor": 1.0} for doc in docs]
    bits = [f.score_answers(doc, [(x, False) for x in row])["bits"] for doc, row in zip(meter, logs, strict=True)]
    shares = np.exp(logs) / np.exp(logs).sum(axis=1, keepdims=True)
    loss = metrics.log_loss(true, shares, labels=np.arange(101.0)) / math.log(2)
    assert np.mean(bits) == pytest.approx(loss, rel=1e-9)


def test_an_answer_without_a_number_is_counted_and_not_dropped() -> None:
    doc = {"behaviour": "meter", "truth": 63.0, "mean": 60.0, "constant": 85.0}
    row = f.score_number(doc, [" wonderful"])
    assert (row["no_number"], row["close"], row["rmse"]) == (1.0, 0.0, 9.0)
    assert f.score_number(doc, [" 400"])["no_number"] == 1.0


@given(st.integers(0, 100), st.integers(0, 100))
def test_a_sure_distribution_predicts_what_it_is_sure_of(answer: int, truth: int) -> None:
    doc = {"behaviour": "meter", "truth": float(truth), "low": 0, "high": 100, "mean": 0.0, "constant": 0.0, "floor": 1}
    row = f.score_answers(doc, [(0.0 if k == answer else -60.0, False) for k in range(101)])
    assert row["r2"][0] == pytest.approx(answer, abs=1e-9)
    # The heaviest window holds the answer; its middle is at most a window away.
    assert row["close"] == 0.0 or abs(answer - truth) <= 10
    assert (row["bits"] < 1e-6) == (answer == truth)


def test_the_best_constant_is_found() -> None:
    values = np.array([0, 10, 12, 14, 60, 100.0])
    tried = [np.mean(np.abs(values - k) <= 5) for k in range(101)]
    best = f.best_constant(values, "meter")
    assert np.mean(np.abs(values - best) <= 5) == max(tried)


def films_or_skip() -> None:
    pytest.importorskip("lm_eval", reason="needs the extra evals")
    try:
        wheel_folder(PACKAGE, "", INSTALL, FILE)
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("one_thread")
def test_lm_evals_own_run_of_the_files_gives_the_same_numbers(tmp_path: Path) -> None:
    films_or_skip()
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    from densing.scores.evals import RunStore, run_plan
    from densing.scores.evals.plan import plan_of
    from densing.scores.evals.session import suite_folder

    assert len(f.read_films()) == 17_472 and sum(film.meter is None for film in f.read_films()) == 19
    names = ["lcbm_films_meter", "lcbm_films_meter_bits", "lcbm_films_pair", "lcbm_films_content_director"]
    limit = {"limit": 2, "num_fewshot": 0}
    folder = write_deep_model(tmp_path / "model", max_position_embeddings=2048)
    loaded = {"pretrained": str(folder), "dtype": "float32"}
    manager = TaskManager(include_path=[str(suite_folder("lcbm-films"))], include_defaults=False)
    # One task at a time, as the result store keeps them.
    own = {
        name: simple_evaluate(
            "hf", model_args=loaded, device="cpu", tasks=[name], task_manager=manager, **limit, bootstrap_iters=0
        )["results"][name]
        for name in names
    }
    run_plan(
        plan_of({"models": [{"model": "hf", "model_args": loaded}], "tasks": names, **limit}, "plan"), tmp_path / "run"
    )
    ours = RunStore(tmp_path / "run").measurements().set_index(["task", "metric"])["value"]
    for name in names:
        values = {key.split(",")[0]: value for key, value in own[name].items() if key.endswith(",none")}
        compared = {key: value for key, value in values.items() if not key.endswith("_stderr")}
        assert {"bits", "no_number"} & set(compared)
        for metric, value in compared.items():
            if isinstance(value, float) and not math.isnan(value):
                assert ours[name, metric] == pytest.approx(value, rel=1e-5), (name, metric)

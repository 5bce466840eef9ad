"""The sparse classifier's mathematics: two solvers of ours against each other and against scikit-learn's two."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from densing.core import InputError
from densing.efficiency.systems.prox_csl.holders import Here, split_rows
from densing.efficiency.systems.prox_csl.parts import Part
from densing.efficiency.systems.prox_csl.solver import minimise
from densing.efficiency.systems.prox_csl.stores import Store, unite
from densing.efficiency.systems.prox_csl.surrogate import adapted, combine, train_csl
from tests.support.accelerated import fista


def made(items: int = 300, width: int = 120, seed: int = 0) -> tuple[sparse.csr_array, np.ndarray]:
    """Return sparse items whose label ten features decide, with noise."""
    rng = np.random.default_rng(seed)
    features = sparse.random_array((items, width), density=0.1, rng=rng, format="csr")
    features.data[:] = rng.integers(1, 4, size=len(features.data))
    weights = np.zeros(width)
    weights[:10] = rng.normal(size=10) * 3
    return features, (features @ weights + rng.logistic(size=items) > 0).astype(int)


@given(
    seed=st.integers(0, 2**16),
    lam=st.sampled_from([0.1, 0.01, 0.002]),
    alpha=st.sampled_from([0.0, 1e-3, 0.1]),
    tilted=st.booleans(),
)
def test_coordinate_descent_and_accelerated_gradients_find_one_optimum(
    seed: int, lam: float, alpha: float, tilted: bool
) -> None:
    features, labels = made(60, 20, seed)
    part, rng = Part(features, labels), np.random.default_rng(seed)
    tilt = rng.normal(size=20) * lam / 4 if tilted else None
    penalty, anchor = rng.uniform(lam / 2, lam, size=20), rng.normal(size=20)
    options = {"tilt": tilt, "alpha": alpha, "anchor": anchor}
    first = minimise(part, penalty, tol=1e-7, steps=200, **options)
    second = fista(part, penalty, tol=1e-7, steps=20_000, **options)
    assert first.objective == pytest.approx(second.objective, abs=1e-8)
    assert first.violation <= 1e-7


@pytest.mark.parametrize("lam", [0.03, 0.01, 0.003])
def test_the_optimum_is_liblinears(lam: float) -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    features, labels = made()
    part, penalty = Part(features, labels), np.full(120, lam)
    ours = minimise(part, penalty, tol=1e-7)
    theirs = linear.LogisticRegression(
        l1_ratio=1, solver="liblinear", C=1 / (300 * lam), fit_intercept=False, tol=1e-6, max_iter=50_000
    ).fit(features, labels)
    value = part.loss(features @ theirs.coef_[0]) + lam * np.abs(theirs.coef_).sum()
    assert ours.objective == pytest.approx(value, abs=1e-8)
    assert ours.weights == pytest.approx(theirs.coef_[0], abs=1e-4)


def test_a_weight_without_penalty_is_sagas_intercept() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    features, labels = made(200, 20)
    labels[:120] = 1
    part = Part(sparse.hstack([features, np.ones((200, 1))]), labels)
    ours = minimise(part, np.r_[np.full(20, 0.01), 0.0], tol=1e-8)
    theirs = linear.LogisticRegression(
        l1_ratio=1, solver="saga", C=1 / (200 * 0.01), tol=1e-9, max_iter=20_000, random_state=0
    ).fit(features, labels)
    assert ours.weights == pytest.approx(np.r_[theirs.coef_[0], theirs.intercept_], abs=1e-5)


def test_zeros_are_zeros_and_a_large_penalty_leaves_nothing_else() -> None:
    features, labels = made()
    part = Part(features, labels)
    largest = np.abs(part.gradient(np.zeros(120))[1]).max()
    assert not minimise(part, np.full(120, 1.0001 * largest)).weights.any()
    weights = minimise(part, np.full(120, 0.9 * largest), tol=1e-8).weights
    assert np.count_nonzero(weights) in (1, 2)


def test_constant_and_duplicate_features_do_no_harm() -> None:
    features, labels = made(100, 10)
    twice = sparse.hstack([features, features, np.ones((100, 1)), sparse.csr_array((100, 1))]).tocsr()
    once = minimise(Part(sparse.hstack([features, np.ones((100, 1))]), labels), np.full(11, 0.01), tol=1e-7)
    again = minimise(Part(twice, labels), np.full(22, 0.01), tol=1e-7)
    assert again.objective == pytest.approx(once.objective, abs=1e-8)
    assert again.weights[-1] == 0


def test_one_partition_is_the_full_solution_from_any_start() -> None:
    features, labels = made()
    penalty = np.full(120, 0.01)
    full = minimise(Part(features, labels), penalty, tol=1e-7)
    for start in ("naive", "owa", "zeros"):
        trained = train_csl(Here(split_rows(features, labels, 1)), penalty, start=start, tol=1e-7, updates=1)
        assert trained.history[-1] == pytest.approx(full.objective, abs=1e-9)
        assert trained.bytes == 0


def test_two_updates_come_near_the_full_solution_and_the_bytes_are_counted() -> None:
    features, labels = made(4000, 120)
    penalty = np.full(120, 0.01)
    best = minimise(Part(features, labels), penalty, tol=1e-7).objective
    trained = train_csl(Here(split_rows(features, labels, 4, seed=1)), penalty)
    gaps = [(value - best) / best for value in trained.history]
    assert gaps[2] < 0.1 * gaps[0] and 0 <= gaps[2] < 2e-3
    # Solutions from three others; twice weights to them and gradients back, with loss and number of items.
    assert trained.bytes == 3 * 8 * 120 + 2 * 3 * 8 * (2 * 120 + 2)


def test_without_the_proximal_term_updates_move_away() -> None:
    features, labels = made(800, 400)
    penalty, parts = np.full(400, 0.01), split_rows(features, labels, 8)
    best = minimise(Part(features, labels), penalty).objective
    bare = train_csl(Here(parts), penalty, alpha=0.0, updates=2)
    proximal = train_csl(Here(parts), penalty, alpha=0.1, updates=2)
    assert bare.history[0] < bare.history[1] < bare.history[2]
    assert best < proximal.history[2] < proximal.history[1] < proximal.history[0]
    # The rule of the authors has none below a thousand weights; the guard adds it where it is needed, and pays for it.
    assert train_csl(Here(parts), penalty, updates=2).history == bare.history
    guarded = train_csl(Here(parts), penalty, alpha="guarded", updates=2)
    assert list(guarded.history) == sorted(guarded.history, reverse=True)
    assert guarded.bytes > bare.bytes and best < guarded.history[2]


def test_a_guarded_update_is_bounded_by_its_surrogate_and_stops_where_it_is_told() -> None:
    features, labels = made(800, 400)
    penalty, parts = np.full(400, 0.01), split_rows(features, labels, 8)
    best = minimise(Part(features, labels), penalty, tol=1e-8).objective
    trained = train_csl(Here(parts), penalty, alpha="guarded", updates=200, until=0.05)
    assert trained.violation <= 0.05 and len(trained.alphas) < 200
    loss, gradient = Part(features, labels).gradient(trained.weights)
    at_zero = np.maximum(np.abs(gradient) - penalty, 0)
    steep = np.where(trained.weights == 0, at_zero, np.abs(gradient + np.sign(trained.weights) * penalty))
    assert steep.max() / 0.01 == pytest.approx(trained.violation)
    gap = trained.history[-1] - best
    assert trained.history[-1] == pytest.approx(loss + 0.01 * np.abs(trained.weights).sum())
    assert 0 <= gap <= 2 * 0.05 * trained.history[-1]
    assert train_csl(Here(parts), penalty, alpha="guarded", start=trained.weights, until=0.05).alphas == ()


def test_the_rule_of_alpha_acts_from_a_thousand_weights_on() -> None:
    features, labels = made(300, 1200)
    parts = split_rows(features, labels, 8)
    penalty, weights = np.full(1200, 0.01), np.zeros(1200)
    tilt = Here(parts).gradient(weights)[1] - parts[0].gradient(weights)[1]
    weights[:999] = 1e-6
    assert adapted(parts[0], penalty, weights, tilt) == 0
    weights[:1000] = 1e-6
    # The trial is the one of the rule: from 1e-4 on tenfold, and 1e2 at most.
    assert any(math.isclose(adapted(parts[0], penalty, weights, tilt), 10.0**power) for power in range(-4, 3))


def test_a_combination_is_no_worse_than_the_mean_on_the_main_items() -> None:
    features, labels = made(2000, 60)
    parts = split_rows(features, labels, 4)
    solutions = np.array([minimise(part, np.full(60, 0.01)).weights for part in parts])
    fitted = combine(parts[0], solutions)
    # It lies in the span of the solutions, and one alone is left as it is.
    shares = np.linalg.lstsq(solutions.T, fitted, rcond=None)[0]
    assert solutions.T @ shares == pytest.approx(fitted, abs=1e-9)
    assert parts[0].gradient(fitted)[0] < parts[0].gradient(solutions.mean(axis=0))[0] + 1e-3
    assert (combine(parts[0], solutions[:1]) == solutions[0]).all()


def test_partitions_of_one_class_have_no_solution_but_give_gradients() -> None:
    features, labels = made(200, 20)
    order = np.argsort(labels, kind="stable")
    features, labels = features[order], labels[order]
    parts = [Part(features[rows], labels[rows]) for rows in np.array_split(np.arange(200), 5)]
    holders = Here(parts)
    assert holders.skipped == 4 and not holders.main.one_class
    assert len(holders.solutions(np.full(20, 0.01), 1e-4)) == 1
    whole = Part(features, labels).gradient(np.ones(20))
    summed = holders.gradient(np.ones(20))
    assert summed[0] == pytest.approx(whole[0]) and summed[1] == pytest.approx(whole[1])


def test_dealing_out_keeps_every_item_once() -> None:
    features, labels = made(101, 10)
    parts = split_rows(features, labels, 7, seed=3)
    assert sorted(part.items for part in parts) == [14] * 4 + [15] * 3
    rows = np.concatenate([np.column_stack([part.features.toarray(), part.labels]) for part in parts])
    whole = np.column_stack([features.toarray(), labels])
    assert sorted(map(tuple, rows)) == sorted(map(tuple, whole))
    with pytest.raises(InputError, match="102 partitions of 101 items"):
        split_rows(features, labels, 102)


def test_stores_meet_by_name_and_collisions_of_hashed_names_are_counted() -> None:
    first = Store(np.array([[1.0, 2.0], [0.0, 1.0]]), np.array([1, 0]), ["b", "a"])
    second = Store(np.array([[5.0, 7.0]]), np.array([1]), ["c", "b"])
    union = unite([first, second])
    assert union.names == ["a", "b", "c"] and union.collisions == 0 and union.bytes == 2 * (1 + 4)
    assert union.parts[0].features.toarray().tolist() == [[2, 1, 0], [1, 0, 0]]
    assert union.parts[1].features.toarray().tolist() == [[0, 7, 5]]
    hashed = unite([first, second], buckets=1)
    assert hashed.collisions == 2 and hashed.names == ["a|b|c"] and hashed.bytes == 0
    assert hashed.parts[1].features.toarray().tolist() == [[12]]


@pytest.mark.parametrize(
    ("stores", "message"),
    [
        ([], "no stores"),
        ([Store(np.zeros((0, 1)), np.zeros(0), ["a"])], "store 0: no items"),
        ([Store(np.zeros((1, 2)), np.zeros(1), ["a"])], "2 features and 1 names"),
        ([Store(np.zeros((1, 2)), np.zeros(1), ["a", "a"])], "'a' occurs twice"),
        ([Store(np.zeros((2, 1)), np.zeros(1), ["a"])], "2 items have 1 labels"),
    ],
)
def test_what_is_wrong_with_a_store_is_said(stores: list[Store], message: str) -> None:
    with pytest.raises(InputError, match=message):
        unite(stores)

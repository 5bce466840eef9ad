"""Plans of sparse classifiers against closed forms, who takes which workload, and what came of the claims."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from densing.core import InputError, UnavailableError
from densing.efficiency.simulation import ENTRY, Cluster, Device, Link, collective_seconds, load_workload
from densing.efficiency.systems.claims import PHYSICS
from densing.efficiency.systems.experiments import rerun
from densing.efficiency.systems.plan import SteadyStep, measure
from densing.efficiency.systems.prox_csl import technique as prox_csl
from densing.efficiency.systems.prox_csl.corpora import Corpus
from densing.efficiency.systems.prox_csl.technique import CLAIMS, GAIN, Convex, Rounds, cut, told
from densing.efficiency.systems.registry import get_technique

WORK = Convex(n=8000, d=50_000, nnz=400_000, partitions=8)
NAMES = ("naive-average", "owa", "csl", "prox-csl", "owl-qn")


def cluster(ranks: int, alpha: float = 0.0, beta: float = 1e-9, flops: float = 1e30) -> Cluster:
    link = Link(alpha, beta)
    return Cluster("toy", ranks, ranks, Device("toy", flops, 1e30), intra=link, inter=link, host=link)


def measured(name: str, where: Cluster, **knobs: object) -> SteadyStep:
    return measure(get_technique(name).plan(WORK, where, **knobs), where)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_an_update_is_a_broadcast_and_a_vector_from_each_other_rank(ranks: int) -> None:
    found = measured("prox-csl", cluster(ranks))
    # Eight bytes a weight; the main machine's link takes one gradient after the other.
    vector = 8 * WORK.d * 1e-9
    sent = collective_seconds("broadcast", 8 * WORK.d, cluster(ranks), range(ranks)) if ranks > 1 else 0.0
    assert found.step_s == pytest.approx(sent + (ranks - 1) * vector, abs=1e-8)
    # Per rank of a ring's broadcast, and of the gather, (ranks - 1) / ranks of a vector each.
    assert found.bytes == pytest.approx(2 * (ranks - 1) / ranks * 8 * WORK.d)


def test_the_rival_sums_once_an_iteration() -> None:
    found = measured("owl-qn", cluster(4), iterations=10)
    assert found.bytes == pytest.approx(10 * 2 * 3 / 4 * 8 * WORK.d)
    assert found.bytes / measured("prox-csl", cluster(4)).bytes == pytest.approx(10)


def test_compute_follows_the_entries() -> None:
    where = cluster(4, beta=0.0, flops=1e9)
    own = 4.0 * WORK.nnz / 1e9
    assert measured("naive-average", where, passes=10).step_s == pytest.approx(10 * own / 4, rel=1e-6)
    # A gradient of a rank's share, then passes over the main partition's items.
    assert measured("csl", where, passes=10).step_s == pytest.approx(own / 4 + 10 * own / 8, rel=1e-6)
    assert measured("owl-qn", where, iterations=3).step_s == pytest.approx(3 * own / 4, rel=1e-6)
    assert measured("owa", where).step_s > measured("naive-average", where).step_s
    assert measured("csl", where).memory["items"] == ENTRY * WORK.nnz / 4


def test_there_are_no_more_ranks_than_partitions() -> None:
    assert get_technique("prox-csl").plan(WORK, cluster(32)).ranks == 8
    assert Rounds(WORK, cluster(2), 2).all == (0, 1)


@pytest.mark.parametrize("name", NAMES)
def test_a_transformer_is_refused_in_a_sentence(name: str) -> None:
    technique = get_technique(name)
    with pytest.raises(InputError, match=f"{name} trains a sparse linear classifier.*takes a Convex workload"):
        technique.plan(load_workload("llama-8b"), cluster(2))
    with pytest.raises(InputError, match="nnz is 0; give 1 or more"):
        technique.plan(Convex(1, 1, 0, 1), cluster(2))


# The label is the sign of the first feature; of the items held out, that of the second is the other one.
SMALL = Corpus(
    sparse.csr_array(np.array([[1.0, 1.0], [1.0, 1.0], [-1.0, -1.0], [-1.0, -1.0]])),
    np.array([1, 1, 0, 0], dtype=bool),
    sparse.csr_array(np.array([[1.0, -3.0], [-1.0, 3.0], [1.0, 0.0]])),
    np.array([1, 0, 1], dtype=bool),
)


def test_weights_are_cut_to_equal_numbers_and_chosen_by_the_items_learnt_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prox_csl.corpora, "corpus", lambda name: SMALL)
    wrong, both, first = np.array([0.0, -1.0]), np.array([1.0, 2.0]), np.array([2.0, 1.0])
    assert np.array_equal(cut(both, 1), [0, 2]) and np.array_equal(cut(both, 5), both) and not cut(both, 0).any()
    # What tells the items learnt from wrong is never chosen, however few its weights; the first of equals is.
    right, count = told("small", [wrong, first], 1)
    assert right.all() and count == 1
    assert told("small", [wrong, both], 2)[0].tolist() == [False, False, True]
    assert told("small", [wrong], 2)[1] == 1


@pytest.mark.parametrize(("better", "value"), [(True, GAIN), (False, f"not: {GAIN}")])
def test_a_gain_is_large_where_every_one_is_beyond_its_error(
    better: bool, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = np.arange(1000) % 10 > 0
    wrong = np.arange(1000) % 10 > (2 if better else 0)
    paths: list[Any] = []
    monkeypatch.setattr(prox_csl, "tried", lambda *given: prox_csl.Arm((0.5,), (), np.zeros(1)))

    def told_here(data: str, path: list[Any], most: int) -> tuple[Any, int]:
        paths.append((data, most, len(path)))
        return (right, 20) if len(paths) % 2 == 0 else (wrong, most)

    monkeypatch.setattr(prox_csl, "told", told_here)
    with rerun():
        answer = prox_csl._gain()
    assert answer.value == value and f"{8 if better else 0} of 8" in answer.note and "30 (20) " in answer.note
    assert len(paths) == 16 and {count for _, _, count in paths} == {len(prox_csl.LAMBDAS)}


def test_two_updates_come_near_the_solution_of_all_items() -> None:
    answer = CLAIMS[0].check(PHYSICS)
    assert answer.value == CLAIMS[0].published
    assert "by the authors' rule" in answer.note


@pytest.mark.slow
def test_a_solution_of_today_is_as_good_as_shipped() -> None:
    pytest.importorskip("sklearn")
    data, partitions, lam = prox_csl.QUESTIONS
    try:
        history = prox_csl.tried(data, partitions, lam, 0.0, 0).history
    except UnavailableError as error:
        pytest.skip(str(error))
    start, _ = prox_csl.gaps(data, partitions, lam, 2)
    assert history[0] / prox_csl.whole_solution(data, lam)[0] - 1 == pytest.approx(start, rel=1e-3)

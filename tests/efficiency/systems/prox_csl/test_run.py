"""A sparse classifier whose partitions lie on real gloo ranks finds what one process finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from densing.core import InputError
from densing.efficiency.parallel import RunSpec
from densing.efficiency.systems.prox_csl.holders import Here
from densing.efficiency.systems.prox_csl.parts import Part
from densing.efficiency.systems.worker import find
from tests.support import sparse_runs
from tests.support.command import answer
from tests.support.gloo_ranks import ranks_of

HEADER = 8
"""Bytes of an order."""


RANKS = 3
"""As many as do not divide the partitions."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return ranks_of(sparse_runs.__file__, RANKS, tmp_path_factory.mktemp("sparse"))[0]


@pytest.mark.parametrize("name", ["both", "one class"])
def test_ranks_find_what_one_process_finds(results: dict[str, Any], name: str) -> None:
    features, labels = sparse_runs.made(name == "one class")
    rows = np.array_split(np.arange(len(labels)), sparse_runs.PARTITIONS)
    holders = Here([Part(features[own], labels[own]) for own in rows])
    alone = sparse_runs.found(holders, np.full(features.shape[1], sparse_runs.LAM))
    for mine, theirs, case in zip(alone, results[name]["found"], sparse_runs.CASES, strict=True):
        np.testing.assert_allclose(theirs["weights"], mine["weights"], atol=1e-10, err_msg=str(case))
        np.testing.assert_allclose(theirs["history"], mine["history"], rtol=1e-12)
    assert results[name]["items"] == 400
    assert results[name]["skipped"] == holders.skipped == (1 if name == "one class" else 0)


def test_bytes_are_those_of_the_messages(results: dict[str, Any]) -> None:
    width, partitions = 60, sparse_runs.PARTITIONS
    first = np.array_split(np.arange(partitions), RANKS)[0]
    # Of a mean: an order to every other rank, and from each how many solutions there are, and these.
    mean = (RANKS - 1) * (HEADER + 8) + (partitions - len(first)) * 8 * width
    # Of an update: an order and the weights to every other rank, from each a gradient and a loss.
    update = (RANKS - 1) * (HEADER + 8 * width + 8 * (width + 1))
    moved = [case["bytes"] for case in results["both"]["found"]]
    assert moved[:4] == [mean, mean, mean + 2 * update, mean + 2 * update]
    # The guard also asks what the last update came to.
    assert moved[4] >= 3 * update
    assert moved[4] % update == 0


def test_ranks_without_a_partition_and_devices_are_refused() -> None:
    with pytest.raises(InputError, match="3 ranks and 2 partitions"):
        find(RunSpec("prox-csl", {"partitions": 2}, nproc=3))
    with pytest.raises(InputError, match="CPUs only"):
        find(RunSpec("csl", nproc=2, device="cuda"))
    with pytest.raises(InputError, match="leave --delay out"):
        find(RunSpec("owa", nproc=2, delay="shifted-exp:mu=10"))
    with pytest.raises(InputError, match="can only be simulated"):
        find(RunSpec("owl-qn", nproc=2))


@pytest.mark.slow
def test_films_over_two_ranks_from_the_command_line(tmp_path: Path) -> None:
    from densing.efficiency.systems.prox_csl.corpora import corpus
    from densing.efficiency.systems.prox_csl.holders import split_rows
    from densing.efficiency.systems.prox_csl.surrogate import train_csl

    pytest.importorskip("bokeh_sampledata")
    options = [f"--set={option}" for option in ("data=films", "partitions=4", "lam=3e-3", "prox-csl.alpha=0.01")]
    run = answer("train", "-t", "prox-csl", "--nproc", 2, *options, "--predict", "cpu2", "--out", tmp_path, "--json")
    words = corpus("films")
    penalty = np.full(words.features.shape[1], 3e-3)
    holders = Here(split_rows(words.features, words.labels, 4))
    trained = train_csl(holders, penalty, updates=2, alpha=0.01)
    right = np.mean((words.test_features @ trained.weights > 0) == words.test_labels)
    assert run["losses"][-1] == pytest.approx(trained.history[-1], rel=1e-9) and len(run["losses"]) == 2
    assert run["extra"]["weights"] == np.count_nonzero(trained.weights)
    assert run["extra"]["accuracy"] == pytest.approx(right)
    assert run["predicted_step_s"] > 0

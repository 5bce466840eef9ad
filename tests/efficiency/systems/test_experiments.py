"""Shipped outcomes: read where settings are the same, else made; a part of each is made with the code of today."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from densing.efficiency.systems import experiments, offload
from densing.efficiency.systems.experiments import Experiment, experiment, rerun, ship
from densing.efficiency.systems.fedft import technique as federated
from densing.efficiency.systems.fusion import technique as fusion
from densing.efficiency.systems.offload import claims as served
from densing.efficiency.systems.prox_csl import technique as prox_csl
from densing.efficiency.systems.spafl import technique as spafl


class Pair(NamedTuple):
    low: float
    high: float


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Experiment[Pair], list[float]]:
    """An experiment whose outcomes are shipped to a file of its own, and the settings that it was done with."""
    done: list[float] = []

    @experiment(Pair)
    def spread(value: float) -> Pair:
        done.append(value)
        return Pair(value, value + len(done))

    monkeypatch.setattr(experiments, "SHIPPED", tmp_path / "experiments.json")
    monkeypatch.setattr(experiments, "_made", {})
    experiments._shipped.cache_clear()
    spread(1.0), spread(2.0), spread(1.0)
    ship(experiments.SHIPPED)
    experiments._made.clear()
    yield spread, done
    experiments._shipped.cache_clear()


def test_an_outcome_is_made_once_and_read_from_then_on(own: tuple[Experiment[Pair], list[float]]) -> None:
    spread, done = own
    assert done == [1.0, 2.0]
    assert spread(1.0) == Pair(1.0, 2.0) and isinstance(spread(2.0), Pair) and len(done) == 2
    # Settings that nobody shipped.
    assert spread(3.0) == spread(3.0) == Pair(3.0, 6.0) and done[2:] == [3.0]


def test_a_rerun_reads_nothing_and_what_it_makes_is_shipped(own: tuple[Experiment[Pair], list[float]]) -> None:
    spread, done = own
    with rerun():
        assert spread(1.0) == spread(1.0) == Pair(1.0, 4.0) and len(done) == 3
    ship(experiments.SHIPPED)
    rows = json.loads(experiments.SHIPPED.read_text())
    assert [row["inputs"][1:] for row in rows] == [[1.0]] and rows[0]["outcome"] == [1.0, 4.0]
    experiments._made.clear()
    assert spread(1.0) == Pair(1.0, 4.0) and len(done) == 3


def test_nothing_is_shipped_twice_and_every_hash_is_that_of_its_inputs() -> None:
    rows = json.loads(experiments.SHIPPED.read_text())
    assert len({row["sha256"] for row in rows}) == len(rows)
    names = {each.name: each for each in (spafl.tried, federated.tried, fusion.trained, served.rewards, prox_csl.gaps,
                                          prox_csl.histories, prox_csl.accuracies)}  # fmt: skip
    for row in rows:
        name, *settings = row["inputs"]
        assert experiments.hashed(names[name].inputs(*settings)) == row["sha256"]
    assert {row["inputs"][0] for row in rows} == set(names)


@pytest.mark.slow
def test_a_client_trained_today_ends_as_shipped() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    for done, settings in ((spafl.tried, ("spafl", 10, 0.1, 0.01)), (federated.tried, ("prefix", 0.5, 10))):
        assert done.run(*settings) == pytest.approx(done(*settings), rel=1e-3)


@pytest.mark.slow
def test_stages_trained_today_end_as_shipped() -> None:
    pytest.importorskip("torch")
    settings = (10, (1.0, 1 / fusion.RATIO), fusion.STEPS)
    assert fusion.trained.run(*settings) == pytest.approx(fusion.trained(*settings), rel=1e-3)


def test_policies_that_learn_without_torch_are_worth_today_what_is_shipped() -> None:
    """The actor, which takes its time, has tests of its own."""
    times, actions = served.recorded_actions()
    link = offload.Markov()
    deadline = served.SHARE * link.busy * times.split(times.layers, None)[0]
    # Tokens stay on the device: nothing is served by the server alone.
    kept = [name for name in offload.POLICIES if name not in ("sac-d", "edge-only")]
    held = offload.hold_contest(actions, offload.Service(deadline, deadline, 0.01), link, policies=kept)
    shipped = served.rewards(served.ways(), link.stay, 1.0, offload.TRACES, 5, 3000)
    assert set(shipped) == {*kept, "sac-d"}
    for name, own in held.rewards.items():
        np.testing.assert_allclose(own, shipped[name], rtol=1e-9)

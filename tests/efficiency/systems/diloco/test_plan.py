"""The plan of DiLoCo: as many bytes as local SGD, in smaller pieces, hidden when they may arrive late."""

from __future__ import annotations

import pytest

from densing.core import InputError
from densing.efficiency.simulation import load_cluster, load_workload
from densing.efficiency.systems import compare, measure
from densing.efficiency.systems.registry import get_technique

WORK = load_workload("gpt2", dp=16)
SLOW = load_cluster("a100x8-tcp", n=16)


def step(name: str, **knobs: float) -> tuple[float, float, float]:
    found = measure(get_technique(name).plan(WORK, SLOW, **knobs), SLOW)
    return found.bytes, found.exposed_comm_s, found.step_s


def test_fragments_send_what_local_sgd_sends() -> None:
    sent, exposed, _ = step("local-sgd", tau=8)
    for knobs in ({}, {"fragments": 4}, {"fragments": 2, "delay": 3}):
        theirs = step("diloco", tau=8, **knobs)
        # A few numbers go beside every fragment.
        assert theirs[0] == pytest.approx(sent, rel=1e-5)
        assert theirs[1] == pytest.approx(exposed, rel=0.01) or "delay" in knobs


def test_a_late_fragment_is_hidden_behind_the_steps_it_travels() -> None:
    _, whole, slow = step("diloco", tau=8)
    hidden = [step("diloco", tau=8, fragments=2, delay=delay)[1] for delay in (0, 1, 2, 3)]
    assert hidden[0] == pytest.approx(whole, rel=0.01)
    assert hidden == sorted(hidden, reverse=True) and hidden[-1] < 0.3 * whole
    assert step("diloco", tau=8, fragments=2, delay=3)[2] < slow


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"fragments": 3}, "diloco: fragments=3: must divide tau=8"),
        ({"delay": 8}, "diloco: delay=8: must be below the 8 steps"),
    ],
)
def test_cuts_that_do_not_go_are_refused(knobs: dict[str, int], says: str) -> None:
    [row] = compare(WORK, SLOW, ["diloco"], knobs={"diloco": {"tau": 8, **knobs}}).rows
    assert row.status == "does not apply" and says in row.reason
    with pytest.raises(InputError, match=says):
        get_technique("diloco").plan(WORK, SLOW, tau=8, **knobs)

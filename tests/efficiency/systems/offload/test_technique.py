"""Serving on two machines: the queue against the simulator, choices against a MILP, links against their laws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from scipy.optimize import LinearConstraint, milp

from densing.core import InputError, UnknownNameError
from densing.efficiency.simulation import EDGE, Served, Sides, simulate
from densing.efficiency.simulation.cluster import Cluster, Device, Link
from densing.efficiency.systems.offload.actions import Actions, list_actions
from densing.efficiency.systems.offload.channel import MEGABIT, Conditions, Markov, Recorded, read_channel
from densing.efficiency.systems.offload.contest import hold_contest, rank
from densing.efficiency.systems.offload.policies import Expected, last, oracle, play
from densing.efficiency.systems.offload.requests import Requests, Service
from densing.efficiency.systems.offload.technique import request_graph
from densing.efficiency.systems.plan import measure
from densing.efficiency.systems.registry import get_technique

DECODE = Sides((0.003,) * 6, (0.001,) * 6, (0.0002, 0.002), (0.0001, 0.0005))
TIMES = Served(
    "toy", (0.02,) * 6, (0.004,) * 6, (0.001, 0.01), (0.0005, 0.002), tokens=32, width=2048, decode=DECODE
)  # fmt: skip
CHOICES = [(6, None, 16, 1.0), (3, None, 16, 0.6), (6, EDGE, 16, 1.0), (6, 2, 8, 0.99), (6, 2, 2, 0.7), (3, 1, 4, 0.6)]


def actions(choices: Any = CHOICES, output_tokens: int = 1) -> Actions:
    return list_actions(TIMES, choices, output_tokens)


def service(**changes: Any) -> Service:
    return Service(**{"deadline_s": 0.15, "interval_s": 0.1, **changes})


@given(st.lists(st.integers(0, len(CHOICES) - 1), min_size=1, max_size=12), st.integers(0, 99), st.floats(0.01, 0.2),
       st.integers(1, 4))  # fmt: skip
def test_requests_queue_as_on_the_simulator(chosen: list[int], seed: int, interval: float, tokens: int) -> None:
    """The oracle: the event simulator on the same requests as tasks of device, link and server."""
    found = Markov().draw(1, len(chosen), seed)
    offered = actions(output_tokens=tokens)
    requests = Requests(offered, service(interval_s=interval), found)
    requests.reset()
    ours = [float(requests.take(np.array([choice]))[1][0]) for choice in chosen]
    rows = [
        [
            _task(offered if not token else offered.turns, choice, found.load[0, step], found.bandwidth[0, step])
            for token in range(tokens)
        ]
        for step, choice in enumerate(chosen)
    ]
    graph = request_graph(rows, interval)
    ends = simulate(graph, 2).end
    last_of: dict[int, float] = {}
    for number, task in enumerate(graph.tasks):
        if task.name != "request":
            last_of[task.step] = max(last_of.get(task.step, 0.0), float(ends[number]))
    theirs = [last_of[step] - step * interval for step in range(len(chosen))]
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


def _task(each: Any, choice: int, load: float, bandwidth: float) -> tuple[float, int, float, float, float]:
    """Return a pass as the graph takes it."""
    sent = int(each.bytes[choice])
    return float(load * each.device_s[choice]), sent, sent / bandwidth, float(each.edge_s[choice]), 0.0


def test_an_answers_tokens_follow_one_another() -> None:
    """Planted: a pass, then for each token compute, latency and bytes over the rate; one token is the pass alone."""
    rate, load, latency, number = np.array(1e6), np.array(2.0), 0.02, 10
    one, ten = (actions(output_tokens=tokens).seconds(rate, load, latency) for tokens in (1, number))
    device, server, cut = 2 * (6 * 0.003 + 0.0022), 6 * 0.001 + 0.0006, 2 * (2 * 0.003 + 0.0002) + 4 * 0.001 + 0.0005
    wire = (2048 + 8) / 1e6 + latency
    np.testing.assert_allclose((ten - one)[[0, 2, 3]], (number - 1) * np.array([device, server, cut + wire]))
    assert actions(output_tokens=1).turns is None and actions(output_tokens=number).all_bytes[2] == 4 * 32
    assert actions(output_tokens=number).all_bytes[3] == (32 + number - 1) * (2048 + 8)
    with pytest.raises(InputError, match=r"toy: decode is missing.*\[decode\]"):
        list_actions(replace(TIMES, decode=None), CHOICES, 2)
    with pytest.raises(InputError, match="output_tokens=0"):
        actions(output_tokens=0)


def test_a_trace_of_packets_is_the_rate_of_each_interval(tmp_path: Path) -> None:
    path = tmp_path / "lte.up"
    # 12 Mbit/s for a tenth, four times that for a tenth, a pause of two tenths, and a last packet.
    packets = [*range(100), *(each // 4 for each in range(400, 800)), 400, 500, 501]
    path.write_text("".join(f"{1000 + each}\n" for each in packets))
    found = read_channel(path, 0.1)
    np.testing.assert_allclose(found.bandwidth / MEGABIT, [12, 48, 0.012 / 0.201, 0.012 / 0.201, 0.12])
    assert found.load.tolist() == [1.0] * 5 and found.notes[0].details == {"pauses": 2}
    for text, words in (("5\n7\n6\n", "line 3: '6'"), ("5\nx\n", "line 2: 'x'"), ("5\n6\n", "at least two intervals")):
        path.write_text(text)
        with pytest.raises(InputError, match=words):
            read_channel(path, 0.1)


@given(st.floats(0.5, 100), st.floats(1, 4), st.floats(0, 0.3))
def test_enumeration_is_the_milp_of_one_step(mbit: float, load: float, backlog: float) -> None:
    offered = actions()
    requests = Requests(offered, service(), Conditions(np.array([[mbit * MEGABIT]]), np.array([[load]])))
    requests.backlog = np.array([[backlog, backlog / 2, 0.0]])
    view = requests.view()
    worth = requests.worth(view, view.bandwidth)[0]
    every = np.ones(len(worth))
    solved = milp(-worth, integrality=every, bounds=(0, 1), constraints=LinearConstraint(every, 1, 1))
    assert worth[oracle(requests, view)[0]] == pytest.approx(-solved.fun)


@given(st.floats(0.1, 1000), st.floats(1, 5))
def test_a_request_alone_takes_its_parts(mbit: float, load: float) -> None:
    offered = actions(output_tokens=3)
    requests = Requests(offered, service(latency_s=0.02), Conditions(np.array([[mbit * MEGABIT]]), np.array([[load]])))
    alone = requests.latencies(requests.view(), requests.view().bandwidth)[0]
    np.testing.assert_allclose(alone, offered.seconds(np.array(mbit * MEGABIT), np.array(load), 0.02))


def test_the_oracle_is_never_worth_less_where_nothing_waits() -> None:
    requests = Requests(actions(), service(interval_s=10.0), Markov().draw(16, 60, 3))
    best = play(oracle, requests)
    for policy in (last, Expected(Markov().draw(16, 60, 4).bandwidth)):
        assert (play(policy, requests).reward <= best.reward + 1e-12).all()


def test_the_markov_link_has_its_shares_and_its_memory() -> None:
    found = Markov(good_mbit=40, bad_mbit=4, stay=0.9, spread=0.0, busy=3.0, busy_share=0.25).draw(400, 100, 0)
    assert set(np.unique(np.round(found.bandwidth / MEGABIT, 6))) == {4.0, 40.0}
    assert float((found.load == 3.0).mean()) == pytest.approx(0.25, abs=0.02)
    same = found.bandwidth[:, 1:] == found.bandwidth[:, :-1]
    # What is drawn anew is as it was in half of all cases.
    assert float(same.mean()) == pytest.approx(0.95, abs=0.01)


def test_a_trace_is_read_and_goes_round(tmp_path: Path) -> None:
    path = tmp_path / "lte.csv"
    path.write_text("s,mbit,load\n0,8,1\n1,16,2\n2,24,1\n")
    found = read_channel(path)
    assert isinstance(found, Recorded) and found.bandwidth.tolist() == [1e6, 2e6, 3e6]
    drawn = found.draw(5, 7, 0)
    assert set(drawn.bandwidth.ravel()) == {1e6, 2e6, 3e6}
    assert (drawn.load == np.where(drawn.bandwidth == 2e6, 2.0, 1.0)).all()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mbit\n5\n", "1 rows; a trace has at least two"),
        ("mbit\n5\n0\n", "mbit"),
        ("mbit\n5\nnan\n", "mbit"),
        ("rate\n5\n6\n", "mbit"),
        ("s,mbit\n0,5\n1,5\n2,5\n9,5\n", "row 5: 7 s after the row before, others 1 s"),
        ("s,mbit\n0,5\n,5\n", "row 3: s is empty"),
    ],
)
def test_traces_that_are_none_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_channel(path)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ([], "0 ways"),
        ([(3, 4, 8, 1.0)], "cut=4 lies outside 0 to exit=3"),
        ([(7, None, 16, 1.0)], "exit=7"),
        ([(3, 1, 8, 1.0), (3, 1, 8, 0.9)], "occurs twice"),
        ([(3, 1, 8, float("nan"))], "its quality is nan"),
    ],
)
def test_ways_that_go_with_no_model_are_refused(choices: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        actions(choices)


@pytest.mark.parametrize("change", [{"deadline_s": 0}, {"interval_s": float("nan")}, {"penalty": -1}])
def test_services_that_nobody_can_promise_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(change))):
        service(**change)
    with pytest.raises(InputError, match="stay"):
        Markov(stay=1.5)


def test_plans_serve_as_fast_as_the_slowest_part() -> None:
    link = Link(0.001, 1e-6)
    cluster = Cluster("toy", 2, 1, Device("toy", 1e12, 1e12), intra=link, inter=link, host=link)
    technique = get_technique("sac-d")
    # Requests every 20 ms wait for the slowest part, the wire; every 200 ms they do not.
    wire = 0.001 + 1e-6 * TIMES.sent(3, 8)
    for interval, step in ((20.0, wire), (200.0, 0.2)):
        plan = technique.plan(TIMES, cluster, exit=6, cut="3", bits="8", interval_ms=interval)  # type: ignore[arg-type]
        assert measure(plan, cluster).step_s == pytest.approx(step, rel=0.02)
    with pytest.raises(InputError, match="cut"):
        technique.plan(TIMES, cluster, cut="behind")  # type: ignore[arg-type]


def test_a_contest_recommends_the_simplest_that_is_as_good() -> None:
    quick = {"policies": ("oracle", "last", "expected", "fixed", "device-only", "edge-only", "random"), "traces": 4}
    found = hold_contest(actions(), service(), Markov(), **quick)
    assert found.ranking.recommended in ("last", "expected", "fixed", "edge-only") and found.ranking.differences == ()
    assert all(share.sum() == pytest.approx(1) for share in found.shares.values())
    again = hold_contest(actions(), service(), Markov(), **quick)
    assert all((again.rewards[name] == found.rewards[name]).all() for name in found.rewards)
    with pytest.raises(UnknownNameError, match="oracel"):
        hold_contest(actions(), service(), Markov(), policies=("oracel",))
    with pytest.raises(InputError, match="the oracle cannot be deployed"):
        hold_contest(actions(), service(), Markov(), policies=("oracle",))


def test_policies_that_requests_cannot_tell_apart_are_a_tie() -> None:
    """What is as good is named whatever is drawn; one that is worse by far is not among them."""
    for seed in range(3):
        found = hold_contest(
            actions(), service(), Markov(), policies=("last", "expected", "random", "oracle"), traces=6, seed=seed
        )
        assert {found.ranking.recommended, *found.ranking.tied} <= {"last", "expected"}
        assert bool(found.ranking.tied) == found.ranking.reason.startswith("a tie with")
    rewards = {"last": np.array([[0.5, 0.7, 0.6]]), "sac-d": np.array([[0.5, 0.7, 0.6]])}
    assert rank(rewards, 0.95)[1:3] == ("last", ("sac-d",))
    rewards["sac-d"] = rewards["last"] + np.array([[0.2, 0.21, 0.19]])
    assert rank(rewards, 0.95)[1:3] == ("sac-d", ())
    rewards["expected"] = rewards["sac-d"] + np.array([[0.01, -0.01, 0.01]])
    assert rank(rewards, 0.95)[1:3] == ("expected", ("sac-d",))


@pytest.mark.slow
def test_an_actor_beats_what_is_fixed_where_the_link_changes() -> None:
    pytest.importorskip("torch")
    offered = actions([way for way in CHOICES if way[1] != EDGE])
    names = ("oracle", "last", "expected", "fixed", "random", "sac-d")
    found = hold_contest(offered, service(interval_s=0.3), Markov(), policies=names, traces=6, seeds=2, updates=500)
    means = {name: float(own.mean()) for name, own in found.rewards.items()}
    assert means["random"] < means["fixed"] < means["sac-d"] <= means["oracle"]
    gain = {each.rival: each for each in found.ranking.differences}
    assert gain["fixed"].mean == pytest.approx(means["sac-d"] - means["fixed"])
    if gain["expected"].lo <= 0:
        assert found.ranking.recommended != "sac-d"


@pytest.mark.slow
def test_an_actor_looks_ahead_where_requests_wait_for_each_other() -> None:
    """Enumeration sees this request alone, even with the bandwidth to come; what waits behind it is not in its sum."""
    pytest.importorskip("torch")
    offered = actions([way for way in CHOICES if way[1] != EDGE])
    names = ("oracle", "expected", "sac-d")
    found = hold_contest(offered, service(), Markov(), policies=names, traces=6, seeds=2, updates=500)
    means = {name: float(own.mean()) for name, own in found.rewards.items()}
    assert means["sac-d"] > means["oracle"] + 0.05 and means["sac-d"] > means["expected"] + 0.05

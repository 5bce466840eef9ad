"""A server that does not wait: completion against programs of their own and closed forms; links; delays in any plan."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core import InputError
from densing.efficiency.parallel import RunSpec
from densing.efficiency.simulation import (
    Cluster,
    Convex,
    Delay,
    Device,
    Link,
    Workload,
    load_cluster,
    load_convex,
    load_workload,
    parse_delay,
    simulate,
)
from densing.efficiency.systems.comparison import compare
from densing.efficiency.systems.plan import measure
from densing.efficiency.systems.registry import get_technique, settle
from densing.efficiency.systems.stragglers.claims import closed_form
from densing.efficiency.systems.stragglers.plan import Costs, completion, serve, shortest
from densing.efficiency.systems.stragglers.schemes import (
    Scheme,
    backup,
    clustered_code,
    gradient_code,
    lagrange,
    uncoded,
)
from tests.support.plans import cluster

N, A, MU = 20, 0.01, 10.0


def served(scheme: Scheme, delay: Delay, steps: int, message_s: float = 0.0) -> list[float]:
    """Seconds of each step, from update to update."""
    plan = serve(scheme, Costs((0.0,) * scheme.workers, message_s), delay, warmup=0, steps=steps)
    end = simulate(plan.graph).end
    updates = [float(end[n]) for n, task in enumerate(plan.graph.tasks) if task.name == "update"]
    return np.diff([0.0, *updates]).tolist()


def by_definition(kind: str, n: int, r: int, times: np.ndarray) -> float:
    """When a step is complete, written out from each scheme's definition; times (workers, tasks)."""
    done = np.cumsum(times, axis=1)
    if kind == "uncoded":
        return float(done[:, 0].max())
    if kind == "uc-mmc":
        first = [min(done[w, (p - w) % n] for w in range(n) if (p - w) % n < r) for p in range(n)]
        return float(max(first))
    if kind == "gradient-coding":
        return float(np.sort(done[:, r - 1])[n - r])
    if kind == "lcc":
        return float(np.sort(done.ravel())[2 * n - 2])
    return float(np.sort(done[:, r - 1])[2 * math.ceil(n / r) - 2])


SCHEMES = {
    "uncoded": lambda n, r: backup(n, 0),
    "uc-mmc": uncoded,
    "gradient-coding": gradient_code,
    "lcc": lagrange,
    "pcr": lambda n, r: lagrange(n, r, several=False),
}


@pytest.mark.parametrize("kind", SCHEMES)
@pytest.mark.parametrize("lasts", ["task", "step"])
@pytest.mark.parametrize(("n", "r"), [(4, 2), (6, 3), (20, 4), (5, 5)])
def test_a_free_link_leaves_the_order_statistics_of_the_delays(kind: str, lasts: str, n: int, r: int) -> None:
    delay, scheme = Delay("shifted-exp", a=A, mu=MU, lasts=lasts, seed=n), SCHEMES[kind](n, r)
    tasks = len(scheme.tasks[0])
    drawn = [np.stack([delay.draw(n, step, task) for task in range(tasks)], axis=1) for step in range(5)]
    expected = [by_definition(kind, n, r, times) for times in drawn]
    np.testing.assert_allclose(served(scheme, delay, 5), expected, rtol=1e-9)
    np.testing.assert_allclose(shortest(scheme, np.array(drawn)), expected, rtol=1e-12)


@pytest.mark.parametrize(("clusters", "size", "r"), [(1, 6, 3), (2, 4, 2), (3, 3, 3)])
def test_coded_messages_in_clusters_wait_for_the_first_code_complete_in_each(clusters: int, size: int, r: int) -> None:
    n = clusters * size
    delay = Delay("pareto", scale=0.1, shape=2.0, seed=3)
    times = np.stack([delay.draw(n, 0, task) for task in range(r)], axis=1)
    done = np.cumsum(times, axis=1).reshape(clusters, size, r)
    expected = max(min(np.sort(own[:, j])[size - j - 1] for j in range(r)) for own in done)
    assert served(clustered_code(n, r, clusters), delay, 1) == [pytest.approx(expected)]


@pytest.mark.parametrize(
    ("kind", "r", "lasts"),
    [
        ("uncoded", 1, "task"),
        ("gradient-coding", 4, "step"),
        ("gradient-coding", 4, "task"),
        ("gradient-coding", 10, "task"),
    ],
)
def test_many_draws_come_to_the_closed_form(kind: str, r: int, lasts: str) -> None:
    rng = np.random.default_rng(1)
    times = A + rng.exponential(1 / MU, (20_000, N, r if lasts == "task" else 1))
    mean = shortest(SCHEMES[kind](N, r), np.broadcast_to(times, (20_000, N, r)))
    exact = closed_form(kind, r, lasts)
    assert exact is not None
    # Four standard errors.
    assert abs(mean.mean() - exact) < 4 * mean.std() / math.sqrt(len(mean))


def test_the_closed_forms_are_the_designs() -> None:
    # Source: the project's design notes, section 5.1 (.3698, .5395, .7458, .8688), derived there by hand.
    found = [closed_form("gradient-coding", r, "step") for r in (2, 4, 10)]
    assert [closed_form("uncoded", 1, "step"), *found] == pytest.approx([0.3698, 0.5395, 0.7458, 0.8688], abs=5e-5)


@given(st.integers(2, 7), st.integers(1, 7), st.integers(0, 1000), st.floats(0, 0.2))
def test_no_rule_is_quicker_than_its_messages_over_the_servers_link(
    n: int, r: int, seed: int, message_s: float
) -> None:
    delay, scheme = Delay("shifted-exp", mu=MU, seed=seed), uncoded(n, min(n, r))
    free, paid = (served(scheme, delay, 3, each) for each in (0.0, message_s))
    # Every partition's message must have passed, one after the other.
    assert all(seconds >= n * message_s * (1 - 1e-9) for seconds in paid)
    assert paid[0] >= free[0]


def test_messages_queue_at_the_servers_link() -> None:
    # Nobody late, tasks of 1 s, messages of .25 s: four come at once and pass one after the other.
    plan = serve(uncoded(4, 1), Costs((1.0,) * 4, message_s=0.25), warmup=0, steps=1)
    assert completion(plan, simulate(plan.graph)) == (2.0, 4.0)


def test_weights_go_to_one_worker_after_the_other() -> None:
    plan = serve(uncoded(3, 1), Costs((1.0,) * 3, weights_s=0.5), warmup=1, steps=2)
    # The last worker begins 1.5 s after the update, and the others' next step waits for it.
    assert completion(plan, simulate(plan.graph))[0] == pytest.approx(2.5)


def test_what_is_left_is_given_up_when_new_weights_come() -> None:
    late = Delay("empirical", values=(0.0, 5.0), lasts="step", seed=2)
    assert late.draw(3, 0).tolist() == [0.0, 0.0, 5.0]
    plan = serve(backup(3, 1), Costs((1.0,) * 3, weights_s=0.25), late, warmup=0, steps=1)
    found = simulate(plan.graph)
    tasks = plan.graph.tasks
    lost = {(tasks[number].name, tasks[number].ranks, float(found.end[number])) for number in found.given_up
            if tasks[number].step == 0}  # fmt: skip
    # The update is at 1 s, the last worker's weights come three quarters of a second later.
    assert lost == {(name, (2,), 1.75) for name in ("delay", "partition", "send gradients")}


def toy(n: int, delay: Delay | None = None, gbit: float = 8.0) -> Cluster:
    link = Link(1e-5, 1 / (gbit * 1e9 / 8))
    return Cluster("toy", n, 1, Device("toy", 1e13, 1e12), intra=link, inter=link, host=link, delay=delay)


def workload(dp: int) -> Workload:
    return load_workload("gpt2", dp=dp, batch=1, micro_batches=1, sequence=128)


def test_ddp_waits_for_the_latest_of_each_step() -> None:
    delay = Delay("shifted-exp", mu=2.0, seed=1)
    late, quiet = toy(6, delay), toy(6)
    plan = get_technique("ddp").plan(workload(6), late)
    assert plan.steps == 32 and plan.ranks == 6
    worst = [delay.draw(6, step).max() for step in range(1, 33)]
    step = measure(plan, late)
    assert step.step_s == pytest.approx(measure(get_technique("ddp").plan(workload(6), quiet), quiet).step_s
                                        + np.mean(worst), rel=0.02)  # fmt: skip
    # Batch means of four steps: about the standard error of the mean of 32 independent ones.
    assert step.step_se_s == pytest.approx(np.std(worst, ddof=1) / math.sqrt(32), rel=0.6)


def test_delays_for_a_whole_run_are_one_draw_and_have_no_standard_error() -> None:
    cluster = toy(6, Delay("shifted-exp", mu=2.0, lasts="run"))
    assert measure(get_technique("ddp").plan(workload(6), cluster), cluster).step_se_s is None


def test_rounds_wait_for_the_slowest_sum_not_for_the_sum_of_the_slowest() -> None:
    delay = Delay("shifted-exp", mu=2.0, seed=1)
    cluster = toy(6, delay)
    plan = get_technique("local-sgd").plan(workload(6), cluster, tau=16)
    assert plan.steps == 32
    own = np.array([delay.draw(6, step) for step in range(plan.warmup, plan.warmup + plan.steps)])
    rounds = own.reshape(-1, 16, 6).sum(axis=1).max(axis=1).sum() / 32
    quiet = toy(6)
    alone = measure(get_technique("local-sgd").plan(workload(6), quiet, tau=16), quiet).step_s
    assert measure(plan, cluster).step_s == pytest.approx(alone + rounds, rel=0.02)


def test_steps_copied_in_short_are_the_steps_planned_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    from densing.efficiency.systems.planner.base import Rounds

    cluster = toy(3, Delay("shifted-exp", mu=5.0))
    short = get_technique("local-sgd").plan(workload(3), cluster, tau=8)
    monkeypatch.setattr(Rounds, "repeats", property(lambda self: False))
    full = get_technique("local-sgd").plan(workload(3), cluster, tau=8)
    assert len(short.graph) == len(full.graph)
    assert measure(short, cluster) == measure(full, cluster)


def test_a_replica_of_several_devices_is_as_late_as_its_latest() -> None:
    delay = Delay("shifted-exp", mu=1.0, seed=4)
    base = load_cluster("a100x8-rdma", n=8)
    split = load_workload("llama-8b", dp=2, tp=4, batch=1)
    quiet = measure(get_technique("uc-mmc").plan(split, base, r=1), base).step_s
    late = base.change(delay=delay)
    plan = get_technique("uc-mmc").plan(split, late, r=1)
    worst = [delay.draw(8, step).max() for step in range(plan.warmup, plan.warmup + plan.steps)]
    # Two replicas of four: the latest of all eight, but for whose message passes first.
    assert measure(plan, late).step_s == pytest.approx(quiet + np.mean(worst), rel=0.1)


def test_a_comparison_without_delays_says_what_it_is_worth() -> None:
    found = compare(workload(4), toy(4), ["ddp", "uc-mmc", "backup-workers"])
    assert [note.details["technique"] for note in found.notes if note.code == "no-delay"] == [
        "uc-mmc",
        "backup-workers",
    ]
    assert all(row.step_se_s is None for row in found.rows)


def test_a_comparison_with_delays_says_how_sure_its_steps_are() -> None:
    found = compare(workload(4), toy(4, Delay("shifted-exp", mu=5.0)), ["ddp", "uc-mmc"])
    [note] = [note for note in found.notes if note.code == "delays-drawn"]
    worst = max((row.step_se_s or 0) / (row.step_s or 1) for row in found.rows)
    assert f"up to {100 * worst:.1f} % of it" in note.message


def test_least_squares_alone_can_be_interpolated() -> None:
    found = compare(workload(4), toy(4, Delay("shifted-exp", mu=5.0)), ["ddp", "lcc"])
    assert found.rows[-1].status == "does not apply" and "least squares only" in found.rows[-1].reason


@pytest.mark.parametrize(
    ("name", "knobs", "words"),
    [
        ("uc-mmc", {"r": 5}, "r = 5"),
        ("gradient-coding", {"r": 1}, "r = 1"),
        ("gc-mmc", {"clusters": 3}, "clusters"),
        ("backup-workers", {"drop": 4}, "drop = 4"),
        ("uc-mmc", {"server_gbit": 0}, "above 0"),
    ],
)
def test_rules_that_make_no_sense_are_refused_in_words(name: str, knobs: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        get_technique(name).plan(workload(4), toy(4), **knobs)


def test_a_faster_server_is_never_slower() -> None:
    cluster = toy(4, Delay("shifted-exp", mu=5.0), gbit=1.0)
    steps = [
        measure(get_technique("uc-mmc").plan(workload(4), cluster, server_gbit=gbit), cluster).step_s
        for gbit in (1.0, 10.0, 1000.0)
    ]
    assert steps == sorted(steps, reverse=True)


@pytest.mark.parametrize(("name", "r"), [("uc-mmc", 4), ("gradient-coding", 4), ("gc-mmc", 4), ("lcc", 2)])
def test_a_linear_problem_takes_the_schemes_time_over_a_free_link(name: str, r: int) -> None:
    problem = Convex(n=1000, d=100, nnz=100_000, partitions=8, loss="squares", name="toy")
    machine = cluster(8).change(
        intra=Link(0.0, 0.0), inter=Link(0.0, 0.0), delay=parse_delay("shifted-exp:a=0.01,mu=10,lasts=step")
    )
    settings = settle(name, get_technique(name).knobs, {"r": r})
    plan = get_technique(name).plan(problem, machine, r=r)
    rule = {knob: value for knob, value in settings.items() if knob != "server_gbit"}
    # Every entry is multiplied and added twice, and read twice: with its column, or encoded and without one.
    share = problem.nnz / 8
    once = machine.device.seconds(4 * share, 2 * (8 if name == "lcc" else 12) * share)
    own = serve(get_technique(name).scheme(8, **rule), Costs((once,) * 8), machine.delay, warmup=1, steps=plan.steps)
    moved = 3 * machine.device.seconds(0.0, 2.0 * problem.sent)
    expected = completion(own, simulate(own.graph))[0] + moved
    assert completion(plan, simulate(plan.graph))[0] == pytest.approx(expected, rel=1e-9)


def test_a_plan_refuses_the_codes_that_a_run_refuses() -> None:
    technique, machine = get_technique("gradient-coding"), load_cluster("a100x8-rdma", n=24)
    with pytest.raises(InputError, match="condition number"):
        technique.plan(workload(20), machine, r=4)
    with pytest.raises(InputError, match="condition number"):
        technique.check_run(RunSpec("gradient-coding", {"r": 4}, nproc=21))
    assert technique.plan(workload(20), machine, r=2).ranks


def test_the_classifier_is_not_interpolated_and_least_squares_is_no_classifier() -> None:
    words, squares = load_convex("film-words"), load_convex("least-squares")
    with pytest.raises(InputError, match="not the gradient of film-words"):
        get_technique("lcc").plan(words, cluster(4))
    with pytest.raises(InputError, match="least-squares is least squares"):
        get_technique("prox-csl").plan(squares, cluster(4))
    with pytest.raises(InputError, match="does not support delays"):
        get_technique("prox-csl").plan(words, cluster(4).change(delay=parse_delay("shifted-exp:mu=10")))
    assert get_technique("uc-mmc").plan(words, cluster(4), r=2).ranks == 5


@pytest.mark.parametrize(("lasts", "message_s"), [("task", 0.02), ("step", 0.0)])
def test_a_step_under_drawn_delays_is_known_far_better_than_its_draws_tell(lasts: str, message_s: float) -> None:
    """The mean over 32 drawn steps, corrected by what is known on any draw, against 2,000 steps of another seed."""
    quiet = toy(9)
    scheme, costs = gradient_code(8, 3), Costs((0.05,) * 8, message_s)
    found, plain = [], []
    for seed in range(12):
        late = Delay("shifted-exp", a=0.01, mu=4.0, lasts=lasts, seed=seed)
        plan = serve(scheme, costs, late, warmup=1, steps=32)
        found.append(measure(plan, quiet.change(delay=late)))
        plain.append(measure(dataclasses.replace(plan, control=None), quiet.change(delay=late)))
    late = Delay("shifted-exp", a=0.01, mu=4.0, lasts=lasts, seed=99)
    plan = dataclasses.replace(serve(scheme, costs, late, warmup=1, steps=2000), control=None)
    long = measure(plan, quiet.change(delay=late))
    errors = np.array([each.step_s - long.step_s for each in found])
    stated = np.array([each.step_se_s for each in found])
    before = np.array([each.step_se_s for each in plain])
    assert np.median(stated) < 0.3 * np.median(before)
    assert errors.std() < 0.4 * np.std([each.step_s for each in plain])
    # Stated errors are true: the mean of the twelve lies within three of its own, and those of the long run.
    assert abs(errors.mean()) < 3 * np.hypot(stated.mean() / np.sqrt(12), long.step_se_s)
    assert 0.4 < errors.std(ddof=1) / np.sqrt((stated**2).mean()) < 2.5

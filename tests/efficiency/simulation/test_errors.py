"""What the simulator refuses, and that it says which task, which field and which value."""

from __future__ import annotations

from typing import Any

import pytest

from densing.core.errors import InputError
from densing.efficiency.simulation.engine import simulate
from densing.efficiency.simulation.tasks import Graph, Task, busy, critical_path
from densing.efficiency.timeline.timeline import Kind
from tests.support.frozen import changeable

COMPUTE, COMM = Kind.COMPUTE, Kind.COMM


def _task(**change: Any) -> Graph:
    graph = Graph()
    plain: dict[str, Any] = {"name": "a\nb", "kind": COMPUTE, "ranks": (0,), "stream": "compute", "seconds": 1.0}
    graph.tasks += [Task("first", COMPUTE, (0,), "compute", 1.0), Task(**{**plain, **change})]
    return graph


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seconds": float("nan")}, r"task 1 'a\\nb', seconds: nan"),
        ({"seconds": -1.0}, "seconds: -1"),
        ({"seconds": float("inf")}, "seconds: inf"),
        ({"seconds": 5e9}, "runs for 5e\\+09 seconds"),
        ({"ranks": ()}, "ranks: is empty"),
        ({"ranks": (0, 0)}, "names a rank twice"),
        ({"ranks": (-1,)}, "there is no rank -1"),
        ({"ranks": (0.5,)}, "not a whole number"),
        ({"ranks": ((0, 1),)}, "ranks: "),
        ({"after": ("first",)}, "after: a value is not a whole number"),
        ({"seconds": "long"}, "seconds: 'long' is not a number"),
        ({"seconds": None}, "seconds: None is not a number"),
        ({"ranks": ([0],)}, "ranks: .*; use int"),
        ({"step": 0.5}, "step: a value is not a whole number"),
        ({"after": (2**40,)}, "after: a value is not a whole number of 32 bits"),
        ({"kind": Kind.FRAME}, "kind: 10 cannot be simulated"),
        ({"after": (1,)}, r"task 1 'a\\nb', after: waits for task 1 'a\\nb'"),
        ({"after": (2,)}, "task 2, which does not exist"),
        ({"after": (-1,)}, "task -1, which does not exist"),
    ],
)
def test_impossible_tasks_are_refused(change: dict[str, Any], words: str) -> None:
    for check in (simulate, critical_path, busy):
        if "runs for" in words and check is not simulate:
            continue
        with pytest.raises(InputError, match=words):
            check(_task(**change))


def test_two_tasks_that_wait_for_each_other_are_both_named() -> None:
    graph = Graph()
    graph.tasks += [
        Task("recv", COMM, (0,), "comm", 1.0, after=(1,)),
        Task("send", COMM, (0,), "comm", 1.0),
    ]
    with pytest.raises(InputError, match=r"task 0 'recv'.*task 1 'send'"):
        simulate(graph)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kappa": -0.1}, "kappa: -0.1"),
        ({"kappa_comm": float("nan")}, "kappa_comm: nan"),
        ({"speed": (1.0,)}, "speed: 1 values for 2 ranks"),
        ({"speed": (1.0, 0.0)}, "speed of rank 1: 0.0"),
        ({"speed": (1.0, float("inf"))}, "speed of rank 1: inf"),
        ({"ranks": 1}, "no rank 1 among 1 ranks"),
        ({"ranks": -1}, "ranks: -1"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], words: str) -> None:
    pair = Graph()
    pair.add("all_reduce", COMM, (0, 1), "comm", 1.0)
    with pytest.raises(InputError, match=words):
        simulate(pair, **options)


def test_no_result_can_be_changed_by_who_reads_it() -> None:
    assert changeable("densing.efficiency.simulation") == set()

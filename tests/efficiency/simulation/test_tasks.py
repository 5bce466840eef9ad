"""Graphs in columns: tasks come out as they were added, however they were, and memory limits how many there may be."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from densing.core.errors import InputError
from densing.efficiency.simulation import engine, loops, tasks
from densing.efficiency.simulation.engine import Loops, simulate
from densing.efficiency.simulation.tasks import ASK_EVERY, HELD_BYTES, Graph, Operation, Task
from densing.efficiency.timeline.timeline import Comm, Kind

COMPUTE, COMM = Kind.COMPUTE, Kind.COMM
SUM = Comm("all_reduce", "0", group_size=2, ranks=(0, 1))


@st.composite
def listed(draw: st.DrawFn) -> list[Task]:
    """Tasks as a plain list."""
    made: list[Task] = []
    for number in range(draw(st.integers(1, 12))):
        rank, after = draw(st.integers(0, 1)), draw(st.lists(st.integers(0, number - 1), max_size=3)) if number else []
        if draw(st.booleans()):
            one = Task(f"forward {rank}", COMPUTE, (rank,), "compute", draw(st.floats(0, 9)), after=tuple(after))
        else:
            one = Task("sum", COMM, (0, 1), "comm", draw(st.floats(0, 9)), 8, tuple(after), ("nic",) * rank, SUM)
        made.append(one._replace(step=draw(st.integers(-1, 3))))
    return made


@given(listed(), st.data())
def test_tasks_come_out_as_they_were_added(made: list[Task], data: st.DataObject) -> None:
    graph, other = Graph(), Graph()
    graph.tasks = made
    assert list(graph.tasks) == made and graph.tasks == made
    # One by one, and in columns from some place on.
    cut = data.draw(st.integers(0, len(made)))
    other.tasks = made[:cut]
    block = graph.block(cut)
    codes = [other.operation(graph.operations[number]) for number in block.operation.tolist()]
    assert other.extend(codes, block.seconds, block.waits, block.awaited, block.step) == cut
    assert len(other) == len(made) and other.tasks == graph.tasks
    other.step = 7
    last = other.add("forward 0", COMPUTE, (0,), "compute", 1.0, after=range(len(made)))
    assert other.tasks[last] == Task("forward 0", COMPUTE, (0,), "compute", 1.0, after=tuple(range(len(made))), step=7)
    assert other.tasks[:-1] == made and other.tasks[::-2] == [*made, other.tasks[-1]][::-2]
    assert other.tasks != graph.tasks and other.tasks[-2] == made[-1]
    # What is alike is held once.
    assert len(other.operations) == len({(task.name, task.resources) for task in other.tasks})


def test_tasks_of_other_operations_keep_their_times_and_waits() -> None:
    graph = Graph()
    graph.tasks = [Task("a", COMPUTE, (0,), "compute", 1.0), Task("sum", COMM, (0,), "comm", 2.0, after=(0,), step=1)]
    serial = graph.changed(lambda one: one._replace(stream="all"))
    assert serial.tasks == [task._replace(stream="all") for task in graph.tasks]


def test_equal_numbers_of_other_types_stay_what_they_are() -> None:
    graph = Graph()
    graph.add("a", 0, (np.int64(0),), "compute", 1)  # type: ignore[arg-type]
    graph.add("a", COMPUTE, (0,), "compute", 1.0, after=[np.int32(0)])
    assert [task.kind for task in graph.tasks] == [COMPUTE, COMPUTE] and graph.tasks[0].kind is COMPUTE
    assert simulate(graph).makespan == 2.0


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (([0, 0], [1.0], [0], []), "2 operations, 1 seconds and 1 waits"),
        (([0], [1.0], [0, 0], []), "1 operations, 1 seconds and 2 waits"),
        (([0], [1.0], [1], []), "awaited: 0 numbers where waits sum to 1"),
        (([0, 0], [1.0, 1.0], [2, -1], [0]), "no waits below 0"),
        (([1], [1.0], [0], []), "none of the 1 operations"),
        (([-1], [1.0], [0], []), "none of the 1 operations"),
        (([0.5], [1.0], [0], []), "operation: a value is not a whole number"),
        (([0], [1.0], [1], [2**31]), "awaited: a value is not a whole number of 32 bits"),
    ],
)
def test_columns_that_do_not_go_together_are_refused(columns: tuple[list[float], ...], words: str) -> None:
    graph = Graph()
    graph.operation(Operation("a", COMPUTE, (0,), "compute"))
    with pytest.raises(InputError, match=words):
        graph.extend(*columns)
    assert len(graph) == 0


def test_columns_are_checked_as_tasks_are() -> None:
    graph = Graph()
    one = graph.operation(Operation("a", COMPUTE, (0,), "compute"))
    graph.extend([one] * 3, [1.0, 1.0, 1.0], [0, 1, 1], [0, 2])
    with pytest.raises(InputError, match="task 2 'a', after: waits for task 2 'a'"):
        simulate(graph)


def test_a_refused_task_leaves_nothing_behind() -> None:
    graph = Graph()
    for change in ({"after": [0, "a"]}, {"seconds": "a"}, {"resources": "nic"}):
        with pytest.raises(InputError):
            graph.add(**{"name": "a", "kind": COMPUTE, "ranks": (0,), "stream": "compute", "seconds": 1.0, **change})
    graph.add("b", COMPUTE, (0,), "compute", 1.0)
    assert graph.tasks == [Task("b", COMPUTE, (0,), "compute", 1.0)]


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Pretend that so much memory is left, GB, and that Numba is there."""

    def left(gigabytes: float, numba: bool = True) -> None:
        monkeypatch.setattr(tasks, "available_memory_gb", lambda: gigabytes)
        monkeypatch.setattr(tasks, "total_memory_gb", lambda: max(gigabytes, 64.0))
        monkeypatch.setattr(tasks, "has_numba", lambda: numba)

    return left


def test_memory_limits_how_many_tasks_there_may_be(little_memory: Callable[..., None]) -> None:
    graph = Graph()
    graph.add("a", COMPUTE, (0,), "compute", 1.0)
    little_memory(1.0)
    most = int(1e9 / tasks.TASK_BYTES)
    graph.room(most - 1)
    with pytest.raises(InputError, match=r"5,000,001 tasks, which take 1 GB to .*, and 1 GB are free; take fewer"):
        graph.room(most)
    # The loops in Python take more.
    little_memory(1.0, numba=False)
    with pytest.raises(InputError, match="take 2 GB"):
        graph.room(most)
    # So do rules for who comes late, which are theirs.
    little_memory(1.0)
    graph.until[0] = 1
    with pytest.raises(InputError, match="take 2 GB"):
        graph.room(most)
    graph.until.clear()
    # Numbers end before memory does where nobody says how much there is.
    little_memory(float("inf"))
    graph.room(2**31 - 2)
    with pytest.raises(InputError, match=r"2,147,483,648 tasks, more than the 2,147,483,647 that can be numbered"):
        graph.room(2**31 - 1)


def test_a_graph_that_grows_asks_for_memory_now_and_then(little_memory: Callable[..., None]) -> None:
    graph = Graph()
    one = graph.operation(Operation("a", COMPUTE, (0,), "compute"))
    size = ASK_EVERY - 1
    graph.extend(np.full(size, one), np.ones(size), np.zeros(size, np.int32), [])
    little_memory((ASK_EVERY * tasks.TASK_BYTES - size * HELD_BYTES) / 1e9 - 1e-3)
    with pytest.raises(InputError, match="1,048,576 tasks"):
        graph.add("a", COMPUTE, (0,), "compute", 1.0)
    with pytest.raises(InputError, match="1,048,577 tasks"):
        graph.extend([one, one], [1.0, 1.0], [0, 0], [])


def test_small_graphs_stay_with_the_loops_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "WORTH", 1000)
    monkeypatch.setattr(engine, "has_numba", lambda: True)
    monkeypatch.setattr(loops, "READY", True)
    policy = Loops()
    assert policy.compiled(600) is None
    # What many have cost together counts.
    assert policy.compiled(600) is loops and policy.compiled(1) is loops
    monkeypatch.setattr(loops, "READY", False)
    assert policy.compiled(10**6) is None
    monkeypatch.setattr(engine, "has_numba", lambda: False)
    assert policy.compiled(10**6) is None


COMPILED = """
import numba
from densing.efficiency.simulation import engine, loops, simulate, Graph, Operation
from densing.efficiency.timeline import Kind
engine.WORTH = 0
graph = Graph()
codes = [graph.operation(Operation("a", Kind.COMPUTE, (0,), "compute")),
         graph.operation(Operation("b", Kind.COMM, (0,), "comm", resources=("nic",)))]
graph.extend(codes, [1.0, 0.5], [0, 0], [])
print(simulate(graph, kappa=0.5).end.tolist(), numba.config.CACHE_DIR, sum(loops._run.stats.cache_hits.values()))
"""


def test_a_numba_that_cannot_be_loaded_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "numba.py").write_text("raise ImportError('Numba needs NumPy 2.1 or less')")
    code = (
        COMPILED.replace("import numba\n", "")
        .replace("numba.config.CACHE_DIR, ", "")
        .replace("sum(loops._run.stats.cache_hits.values())", "loops.READY")
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.stdout == "[1.1666666666666665, 0.5] False\n", done.stderr


@pytest.mark.slow
def test_loops_are_compiled_once_also_by_processes_at_once_and_cached(tmp_path: Path) -> None:
    pytest.importorskip("numba", reason="needs the extra simulate: pip install 'densing[simulate]'")
    usual = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    own, named = tmp_path / "own" / "numba", tmp_path / "named"

    def hits(processes: int, folder: str = "") -> list[int]:
        """How many loops each of some processes at once found compiled, least first."""
        env = usual | {"DENSING_CACHE": str(tmp_path / "own")} | ({"NUMBA_CACHE_DIR": folder} if folder else {})
        command = [sys.executable, "-c", COMPILED]
        crowd = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) for _ in range(processes)]
        found = []
        for process in crowd:
            # Half a second beside the communication costs the computation a quarter of a second more.
            result, rest = process.communicate()[0].split("] ")
            assert result == "[1.1666666666666665, 0.5"
            *told, count = rest.split()
            assert told == [*filter(None, [folder])]
            found.append(int(count))
        return sorted(found)

    assert hits(2) == [0, 1]
    assert list(own.rglob("*.nbi"))
    # A folder that the user names, filled: what hits there was found there.
    shutil.copytree(own, named)
    assert hits(1, str(named)) == [1]

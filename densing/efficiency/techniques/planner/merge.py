"""Fewer tasks for the same run: computations that follow one another with nothing in between become one."""

from __future__ import annotations

from densing.efficiency.simulation import Graph, Task
from densing.efficiency.timeline import Kind


def merged(graph: Graph) -> Graph:
    """Return the graph with neighbouring computations of a rank joined, where no other task waits between them.

    When anything begins and ends stays as it was, contention included; a phase of a step keeps its name, its modules
    lose theirs.

    Examples
    --------
    >>> graph = Graph()
    >>> first = graph.add("forward mlp 0", Kind.COMPUTE, (0,), "compute", 1.0)
    >>> second = graph.add("forward mlp 1", Kind.COMPUTE, (0,), "compute", 2.0, after=[first])
    >>> [(task.name, task.seconds) for task in merged(graph).tasks]
    [('forward', 3.0)]
    """
    joins = _joins(graph.tasks)
    if not joins:
        return graph
    slim, number = Graph(), dict[int, int]()
    for old, task in enumerate(graph.tasks):
        if old in joins:
            new = number[joins[old]]
            kept = slim.tasks[new]
            slim.tasks[new] = kept._replace(name=_phase(kept), seconds=kept.seconds + task.seconds)
        else:
            new = len(slim.tasks)
            slim.tasks.append(task._replace(after=tuple(dict.fromkeys(number[each] for each in task.after))))
        number[old] = new
    slim.step = graph.step
    return slim


def _joins(tasks: list[Task]) -> dict[int, int]:
    """Which task is a mere continuation of which."""
    before: dict[int, int] = {}
    waited: dict[int, int] = {}
    newest: dict[int, int] = {}
    for number, task in enumerate(tasks):
        if task.kind is Kind.COMPUTE and len(task.ranks) == 1:
            previous = newest.get(task.ranks[0])
            if previous is not None and set(task.after) <= {previous} and _same_phase(tasks[previous], task):
                before[number] = previous
            newest[task.ranks[0]] = number
        for each in task.after:
            if before.get(number) != each:
                waited[each] = number
    return {number: previous for number, previous in before.items() if previous not in waited}


def _same_phase(a: Task, b: Task) -> bool:
    return a.step == b.step and a.stream == b.stream and not (a.resources or b.resources) and _phase(a) == _phase(b)


def _phase(task: Task) -> str:
    return task.name.partition(" ")[0]

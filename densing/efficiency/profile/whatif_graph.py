"""What waits for what within a step of pipeline-parallel training.

Source: rules of the authors' program (ByteDance-Seed/StragglerAnalysis; OSDI'25, arXiv 2505.05713): the plan of the
first data-parallel rank's first step holds for all ranks and steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from densing.core import InputError
from densing.efficiency.profile.whatif_trace import OVER_DP, OVER_STAGES, PAIRS, Op

_TAIL = ("gc", "layernorm-grads-all-reduce", "embedding-grads-all-reduce", "grads-reduce-scatter",
         "optimizer-clip-main-grad", "optimizer")  # fmt: skip
_COMPUTE = ("forward-compute", "backward-compute")
Edge = tuple[int, int]


@dataclass(frozen=True)
class Unit:
    """Operations that end together: one alone, or the members of a communication.

    Attributes
    ----------
    members : tuple of int
        Positions in ``OpTrace.ops``.
    over_dp : bool
        Whether all data-parallel ranks take part.
    collective : bool
        Whether members wait for the latest start among them.
    """

    members: tuple[int, ...]
    over_dp: bool
    collective: bool


@dataclass(frozen=True)
class Graph:
    """A step as units in an order in which each comes after all it waits for.

    Attributes
    ----------
    units : tuple of Unit
    before : tuple of tuple of int
        Per operation, the operations that must have ended.
    """

    units: tuple[Unit, ...]
    before: tuple[tuple[int, ...], ...]


def build_graph(ops: Sequence[Op]) -> Graph:
    """Build the graph of a step.

    Raises
    ------
    InputError
        When operations wait for one another in a circle, so the trace does not follow the known plan.
    """
    before: list[set[int]] = [set() for _ in ops]
    for first, then in _edges(ops):
        before[then].add(first)
    units = _units(ops)
    unit_of = {member: number for number, unit in enumerate(units) for member in unit.members}
    waits = {
        number: {unit_of[first] for member in unit.members for first in before[member]}
        for number, unit in enumerate(units)
    }
    try:
        order = tuple(TopologicalSorter(waits).static_order())
    except CycleError as error:
        raise InputError("operations wait for one another in a circle; the trace follows no known schedule") from error
    return Graph(tuple(units[number] for number in order), tuple(tuple(sorted(found)) for found in before))


def _edges(ops: Sequence[Op]) -> Iterator[Edge]:
    for stage in sorted({op.stage for op in ops}):
        kinds: dict[str, list[int]] = defaultdict(list)
        for number, op in sorted(enumerate(ops), key=lambda pair: pair[1].seq):
            if op.stage == stage:
                kinds[op.optype].append(number)
        compute = sorted((number for kind in _COMPUTE for number in kinds[kind]), key=lambda at: (ops[at].start, at))
        yield from _chain(compute)
        yield from _queues(kinds)
        yield from _gathers(ops, kinds)
        yield from _tail(compute, kinds)
        for direction in ("forward", "backward"):
            yield from _pipeline(ops, kinds, direction)
        yield from _first_backward(ops, compute, kinds)


def _chain(numbers: Sequence[int]) -> Iterator[Edge]:
    yield from pairwise(numbers)


def _queues(kinds: dict[str, list[int]]) -> Iterator[Edge]:
    """Each of the four sends and receives is a queue; all-gathers and reduce-scatters share one."""
    for kind in PAIRS:
        yield from _chain(kinds[kind])
    yield from _chain(kinds["params-all-gather"] + kinds["grads-reduce-scatter"])


def _gathers(ops: Sequence[Op], kinds: dict[str, list[int]]) -> Iterator[Edge]:
    """An all-gather precedes the first forward of its chunk."""
    for gather in kinds["params-all-gather"]:
        chunk = [number for number in kinds["forward-compute"] if ops[number].chunk == ops[gather].chunk]
        yield from ((gather, number) for number in chunk[:1])


def _tail(compute: Sequence[int], kinds: dict[str, list[int]]) -> Iterator[Edge]:
    """After the last compute, everything in a row."""
    yield from _chain([*compute[-1:], *(number for kind in _TAIL for number in kinds[kind])])


def _pipeline(ops: Sequence[Op], kinds: dict[str, list[int]], direction: str) -> Iterator[Edge]:
    """A send waits for its compute, a compute for its receive, receive i for compute i − 1."""
    ends = (min((op.chunk, op.stage) for op in _computes(ops)), max((op.chunk, op.stage) for op in _computes(ops)))
    first, last = ends if direction == "forward" else ends[::-1]
    compute = kinds[f"{direction}-compute"]
    sending = [number for number in compute if (ops[number].chunk, ops[number].stage) != last]
    receiving = [number for number in compute if (ops[number].chunk, ops[number].stage) != first]
    for role, done in (("send", sending), ("recv", receiving)):
        if len(done) != len(kinds[f"{direction}-{role}"]):
            raise InputError(f"{len(kinds[f'{direction}-{role}'])} {direction}-{role} for {len(done)} computes of one "
                             "stage; the trace follows no known pipeline schedule")  # fmt: skip
    receives = kinds[f"{direction}-recv"]
    yield from zip(sending, kinds[f"{direction}-send"], strict=True)
    yield from zip(receives, receiving, strict=True)
    yield from zip(receiving, receives[1:], strict=False)


def _computes(ops: Sequence[Op]) -> list[Op]:
    return [op for op in ops if op.optype in _COMPUTE]


def _first_backward(ops: Sequence[Op], compute: Sequence[int], kinds: dict[str, list[int]]) -> Iterator[Edge]:
    """The first backward send and receive wait for the last but one forward before the first backward."""
    types = [ops[number].optype for number in compute]
    warm_up = types.index("backward-compute") if "backward-compute" in types else 0
    if warm_up >= 2:
        for kind in ("backward-send", "backward-recv"):
            yield from ((compute[warm_up - 2], number) for number in kinds[kind][:1])


def _units(ops: Sequence[Op]) -> list[Unit]:
    at = {(op.stage, op.optype, op.seq): number for number, op in enumerate(ops)}
    stages = sorted({op.stage for op in ops})
    done: set[int] = set()
    units = []
    for number, op in enumerate(ops):
        if number in done:
            continue
        members = tuple(sorted({number, *_partners(op, at, stages)} - done))
        done.update(members)
        over_dp = op.optype in OVER_DP
        units.append(Unit(members, over_dp, over_dp or op.optype in (*PAIRS, *OVER_STAGES)))
    return units


def _partners(op: Op, at: dict[tuple[int, str, int], int], stages: Sequence[int]) -> Iterable[int]:
    """Operations on other stages that take part in the same communication."""
    direction, _, role = op.optype.partition("-")
    keys: list[tuple[int, str, int]] = []
    if op.optype in PAIRS:
        onward = 1 if (direction == "forward") == (role == "send") else -1
        other = stages[(stages.index(op.stage) + onward) % len(stages)]
        keys = [(other, f"{direction}-{'recv' if role == 'send' else 'send'}", op.seq)]
    elif op.optype in OVER_STAGES:
        keys = [(stage, op.optype, op.seq) for stage in stages]
    return [at[key] for key in keys if key in at]

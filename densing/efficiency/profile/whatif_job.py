"""Cost of slow workers to a job: its steps replayed as recorded, and without slowness.

With T the mean step time replayed without launch delays, and T_ideal the same with every operation at its usual time:

.. math:: S = T / T_{ideal}, \\qquad waste = 1 - 1/S

Source: "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25, arXiv 2505.05713) and the
authors' program (ByteDance-Seed/StragglerAnalysis, Apache-2.0), in whose format a job is read (folder ``data``): a
Parquet file of operations, one row each, and a YAML file of group sizes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from densing.core import InputError

Float = NDArray[np.float64]
Mask = NDArray[np.bool_]
Edge = tuple[int, int]
COMPUTE = ("forward-compute", "backward-compute", "optimizer", "gc")
PAIRS = ("forward-send", "forward-recv", "backward-send", "backward-recv")
# Runs on one rank like compute; its usual time is a median, like that of communication.
ALONE = ("layernorm-grads-all-reduce",)
OVER_DP = ("params-all-gather", "grads-reduce-scatter", "optimizer-clip-main-grad")
OVER_STAGES = ("embedding-grads-all-reduce", "optimizer-clip-main-grad")
OP_TYPES = (*COMPUTE, *PAIRS, *ALONE, "params-all-gather", "grads-reduce-scatter", "embedding-grads-all-reduce",
            "optimizer-clip-main-grad")  # fmt: skip
_NEEDED = ("dp_rank", "stage", "step", "optype", "start_ts", "duration", "seq_id", "mc")
# Sends and receives of one direction count as one type.
_POOLED = {"forward-send": "forward-pp-comm", "forward-recv": "forward-pp-comm",
           "backward-send": "backward-pp-comm", "backward-recv": "backward-pp-comm"}  # fmt: skip
WORST_SHARE = 0.03
_TAIL = ("gc", "layernorm-grads-all-reduce", "embedding-grads-all-reduce", "grads-reduce-scatter",
         "optimizer-clip-main-grad", "optimizer")  # fmt: skip
_PASSES = ("forward-compute", "backward-compute")

# Ends held in memory at a time; more choices are replayed in blocks.
_CELLS = 2**20


@dataclass(frozen=True)
class Slowdown:
    """Slowdown with only one part of a job at its recorded times, the rest at the usual ones.

    Attributes
    ----------
    mean : float
        Mean step time ÷ ideal mean step time.
    per_step : tuple of float
        The same step by step, in order of the job's steps.
    """

    mean: float
    per_step: tuple[float, ...]


@dataclass(frozen=True)
class Attribution:
    """How much of the slowdown some operations explain.

    Attributes
    ----------
    explained : float or None
        (T − T_fixed)/(T − T_ideal), T_fixed with those operations at their usual time. M_W for the slowest workers,
        M_S for the last pipeline stage. May leave [0, 1]: slow parts can hide one another. None where T = T_ideal.
    alone : float or None
        (T_only − T_ideal)/(T − T_ideal), T_only with only those operations at their recorded time.
    fixed_s, only_s : float
        T_fixed and T_only, seconds.
    """

    explained: float | None
    alone: float | None
    fixed_s: float
    only_s: float


@dataclass(frozen=True)
class WhatIf:
    """What-if analysis of a job.

    Attributes
    ----------
    job : str
    steps : tuple of int
    recorded_s, replayed_s, ideal_s : tuple of float
        Per step, seconds: as recorded; replayed without launch delays; replayed with every operation at its usual time.
    slowdown : Slowdown
        S, overall and per step.
    launch_slowdown : float
        Mean recorded ÷ mean replayed step time.
    by_optype, by_dp_rank, by_stage : mapping of str to Slowdown
        S with only that operation type, data-parallel rank or pipeline stage at its recorded times; largest first.
    worst_workers : tuple of (int, int)
        (dp rank, stage) of the slowest 3 % of workers, rounded up; a worker's score is the smaller of its dp rank's
        and its stage's slowdown.
    workers, last_stage : Attribution
        M_W and M_S.
    """

    job: str
    steps: tuple[int, ...]
    recorded_s: tuple[float, ...]
    replayed_s: tuple[float, ...]
    ideal_s: tuple[float, ...]
    slowdown: Slowdown
    launch_slowdown: float
    by_optype: Mapping[str, Slowdown]
    by_dp_rank: Mapping[str, Slowdown]
    by_stage: Mapping[str, Slowdown]
    worst_workers: tuple[tuple[int, int], ...]
    workers: Attribution
    last_stage: Attribution

    @property
    def waste(self) -> float:
        """Share of device time lost to slow workers, 1 − 1/S."""
        return 1 - 1 / self.slowdown.mean

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {**msgspec.to_builtins(self), "waste": self.waste}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> WhatIf:
        """Rebuild what :meth:`to_dict` wrote."""
        return msgspec.convert(data, cls)


def is_job(path: Path) -> bool:
    """Return whether a file is a trace of operations in the published format, by its columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return path.suffix == ".parquet" and set(_NEEDED) <= set(pq.read_schema(path).names)
    except (OSError, pa.ArrowInvalid):
        return False


def what_if_job(trace: Path, meta: Path | None = None) -> WhatIf:
    """Analyse a job's trace of operations in the published format (``trace-*.parquet`` beside ``meta-*.yaml``)."""
    return analyse(read_ops(trace, meta))


def analyse(trace: OpTrace) -> WhatIf:
    """Replay a job's steps and estimate what slow operations, ranks and stages cost.

    Examples
    --------
    A step of one forward, on two data-parallel ranks; the second takes three times as long, and both meet.

    >>> import numpy as np
    >>> ops = (Op(0, "forward-compute", 0, 0, 0.0), Op(0, "grads-reduce-scatter", 0, 0, 1.0))
    >>> start = np.array([[[0.0], [0.0]], [[1.0], [3.0]]])
    >>> took = np.array([[[1.0], [3.0]], [[3.0], [1.0]]])
    >>> result = analyse(OpTrace("toy", {}, ops, (0, 1), (0,), (7,), start, took))
    >>> result.slowdown.mean, result.by_dp_rank["1"].mean
    (1.3333333333333333, 1.3333333333333333)
    """
    replay = prepare(trace)
    ranks, everything = np.arange(len(trace.dp_ranks)), np.ones((len(trace.ops), len(trace.dp_ranks)), bool)
    types = np.array([_POOLED.get(op.optype, op.optype) for op in trace.ops])
    stages = np.array([op.stage for op in trace.ops])
    # Parts of the job by kind and name, and the operations (ops, dp_ranks) they consist of.
    parts: dict[tuple[str, str], Mask] = {}
    for name in sorted(set(types.tolist())):
        parts["op", name] = (types == name)[:, None] & everything
    for index, rank in enumerate(trace.dp_ranks):
        parts["dp", str(rank)] = (ranks == index) & everything
    for stage in trace.stages:
        parts["stage", str(stage)] = (stages == stage)[:, None] & everything
    times = replay.step_times(np.stack([everything, ~everything, *parts.values()]))
    replayed, ideal = times[0], times[1]
    if not ideal.min() > 0:
        raise InputError(f"{trace.job}: a step without any duration has no slowdown")
    slow = {part: _slowdown(time, ideal) for part, time in zip(parts, times[2:], strict=True)}
    largest_first = sorted(slow, key=lambda part: -slow[part].mean)
    by = {kind: {name: slow[k, name] for k, name in largest_first if k == kind} for kind in ("op", "dp", "stage")}
    # A worker is as slow as both its rank and its stage are.
    scores = {
        (rank, stage): min(by["dp"][str(rank)].mean, by["stage"][str(stage)].mean)
        for rank in trace.dp_ranks
        for stage in trace.stages
    }
    slowest = sorted(scores, key=lambda worker: -scores[worker])
    worst = tuple(slowest[: math.ceil(WORST_SHARE * len(slowest))])
    of_worst = np.array([[(rank, op.stage) in worst for rank in trace.dp_ranks] for op in trace.ops], bool)
    recorded = (trace.start + trace.duration).max(axis=(0, 1))
    return WhatIf(
        trace.job,
        trace.steps,
        recorded_s=tuple(recorded.tolist()),
        replayed_s=tuple(replayed.tolist()),
        ideal_s=tuple(ideal.tolist()),
        slowdown=_slowdown(replayed, ideal),
        launch_slowdown=float(recorded.mean() / replayed.mean()),
        by_optype=by["op"],
        by_dp_rank=by["dp"],
        by_stage=by["stage"],
        worst_workers=worst,
        workers=_attribution(replay, of_worst, replayed, ideal),
        last_stage=_attribution(replay, parts["stage", str(trace.stages[-1])], replayed, ideal),
    )


def _slowdown(times: Float, ideal: Float) -> Slowdown:
    return Slowdown(float(times.mean() / ideal.mean()), tuple((times / ideal).tolist()))


def _attribution(replay: Replay, mask: Mask, replayed: Float, ideal: Float) -> Attribution:
    fixed, only = replay.step_times(np.stack([~mask, mask])).mean(axis=1).tolist()
    mean, best = float(replayed.mean()), float(ideal.mean())
    if mean == best:
        return Attribution(None, None, fixed, only)
    return Attribution((mean - fixed) / (mean - best), (only - best) / (mean - best), fixed, only)


@dataclass(frozen=True, eq=False)
class Replay:
    """A job ready to be replayed.

    Attributes
    ----------
    trace : OpTrace
    graph : Graph
    recorded : float64 (ops, dp_ranks, steps)
        Own time of each operation: the duration of compute; the transfer of a communication, which is its end minus
        the latest start in its group, or 0 where clocks make that negative.
    usual : float64 (ops,)
        Time without slow workers: per operation type over all ranks, stages and steps, the mean of compute
        and the median of communication.
    """

    trace: OpTrace
    graph: Graph
    recorded: Float
    usual: Float

    def step_times(self, keep: NDArray[np.bool_]) -> Float:
        """Replay every step without launch delays.

        All steps and choices go through the graph at once, an operation at a time. The simulator
        (:func:`densing.efficiency.simulation.simulate`) gives the same times, but runs one choice of one step at a
        time: on the published jobs SE, AR and ST 12.8, 8.6 and 0.7 ms each, 26, 7.9 and 0.5 s for all, against 0.09,
        0.10 and 0.001 s here.

        An operation starts when all it waits for has ended; a communication ends at the latest start in its group
        plus its own transfer; the step ends with the last operation.

        Parameters
        ----------
        keep : bool, broadcastable to (choices, ops, dp_ranks)
            Which operations take their recorded time; the others take their usual one.

        Returns
        -------
        float64 (choices, steps)
            Seconds.
        """
        ops, ranks, steps = self.recorded.shape
        keep = np.broadcast_to(np.asarray(keep, bool), (len(keep), ops, ranks))
        at_once = max(1, _CELLS // (ops * ranks * steps))
        return np.concatenate([self._times(keep[at : at + at_once]) for at in range(0, len(keep), at_once)])

    def _times(self, keep: NDArray[np.bool_]) -> Float:
        ops, ranks, steps = self.recorded.shape
        end = np.zeros((ops, len(keep), ranks, steps))
        for unit in self.graph.units:
            starts = []
            for member in unit.members:
                start = np.zeros(end.shape[1:])
                for first in self.graph.before[member]:
                    np.maximum(start, end[first], out=start)
                starts.append(start)
            if unit.collective:
                latest = starts[0]
                for start in starts[1:]:
                    latest = np.maximum(latest, start)
                starts = [latest.max(axis=1, keepdims=True) if unit.over_dp else latest] * len(starts)
            for member, start in zip(unit.members, starts, strict=True):
                end[member] = start + np.where(keep[:, member, :, None], self.recorded[member], self.usual[member])
        return end.max(axis=(0, 2))


def prepare(trace: OpTrace) -> Replay:
    """Build the graph of a job and the own and usual times of its operations."""
    graph = build_graph(trace.ops)
    recorded = trace.duration.copy()
    for unit in graph.units:
        if unit.collective:
            members = list(unit.members)
            latest = trace.start[members].max(axis=0)
            latest = latest.max(axis=0, keepdims=True) if unit.over_dp else latest
            transfer = trace.start[members] + trace.duration[members] - latest
            recorded[members] = np.maximum(transfer, 0)
    types = np.array([op.optype for op in trace.ops])
    usual = np.zeros(len(types))
    for optype in np.unique(types):
        times = recorded[types == optype]
        usual[types == optype] = times.mean() if optype in COMPUTE else np.median(times)
    return Replay(trace, graph, recorded, usual)


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
    """Dependencies within a step of pipeline-parallel training; units are in topological order.

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

    Source: rules of the authors' program (ByteDance-Seed/StragglerAnalysis): the plan of the first data-parallel rank's
    first step holds for all ranks and steps.

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
        raise InputError("operations wait for each other in a cycle; the trace follows no known schedule") from error
    return Graph(tuple(units[number] for number in order), tuple(tuple(sorted(awaited)) for awaited in before))


def _edges(ops: Sequence[Op]) -> Iterator[Edge]:
    for stage in sorted({op.stage for op in ops}):
        kinds: dict[str, list[int]] = defaultdict(list)
        for number, op in sorted(enumerate(ops), key=lambda pair: pair[1].seq):
            if op.stage == stage:
                kinds[op.optype].append(number)
        compute = sorted((number for kind in _PASSES for number in kinds[kind]), key=lambda at: (ops[at].start, at))
        yield from pairwise(compute)
        # Each of the four sends and receives is a queue; all-gathers and reduce-scatters share one.
        for kind in PAIRS:
            yield from pairwise(kinds[kind])
        yield from pairwise(kinds["params-all-gather"] + kinds["grads-reduce-scatter"])
        # An all-gather precedes the first forward of its chunk.
        for gather in kinds["params-all-gather"]:
            chunk = [number for number in kinds["forward-compute"] if ops[number].chunk == ops[gather].chunk]
            yield from ((gather, number) for number in chunk[:1])
        # After the last compute, everything in a row.
        yield from pairwise([*compute[-1:], *(number for kind in _TAIL for number in kinds[kind])])
        for direction in ("forward", "backward"):
            yield from _pipeline(ops, kinds, direction)
        # The first backward send and receive wait for the last but one forward before the first backward.
        types = [ops[number].optype for number in compute]
        warm_up = types.index("backward-compute") if "backward-compute" in types else 0
        if warm_up >= 2:
            for kind in ("backward-send", "backward-recv"):
                yield from ((compute[warm_up - 2], number) for number in kinds[kind][:1])


def _pipeline(ops: Sequence[Op], kinds: dict[str, list[int]], direction: str) -> Iterator[Edge]:
    """A send waits for its compute, a compute for its receive, receive i for compute i − 1."""
    parts = [(op.chunk, op.stage) for op in ops if op.optype in _PASSES]
    first, last = (min(parts), max(parts)) if direction == "forward" else (max(parts), min(parts))
    compute = kinds[f"{direction}-compute"]
    sending = [number for number in compute if (ops[number].chunk, ops[number].stage) != last]
    receiving = [number for number in compute if (ops[number].chunk, ops[number].stage) != first]
    for role, computes in (("send", sending), ("recv", receiving)):
        if len(computes) != len(kinds[f"{direction}-{role}"]):
            count = len(kinds[f"{direction}-{role}"])
            raise InputError(
                f"{count} {direction}-{role} for {len(computes)} computes of one stage; the trace follows no known "
                "pipeline schedule"
            )
    receives = kinds[f"{direction}-recv"]
    yield from zip(sending, kinds[f"{direction}-send"], strict=True)
    yield from zip(receives, receiving, strict=True)
    yield from zip(receiving, receives[1:], strict=False)


def _units(ops: Sequence[Op]) -> list[Unit]:
    """Group the operations of one communication: pairs of neighbouring stages, or one of every stage."""
    at = {(op.stage, op.optype, op.seq): number for number, op in enumerate(ops)}
    stages = sorted({op.stage for op in ops})
    done: set[int] = set()
    units = []
    for number, op in enumerate(ops):
        if number in done:
            continue
        partners: list[tuple[int, str, int]] = []
        if op.optype in PAIRS:
            direction, _, role = op.optype.partition("-")
            onward = 1 if (direction == "forward") == (role == "send") else -1
            other = stages[(stages.index(op.stage) + onward) % len(stages)]
            partners = [(other, f"{direction}-{'recv' if role == 'send' else 'send'}", op.seq)]
        elif op.optype in OVER_STAGES:
            partners = [(stage, op.optype, op.seq) for stage in stages]
        members = tuple(sorted({number, *(at[key] for key in partners if key in at)} - done))
        done.update(members)
        over_dp = op.optype in OVER_DP
        units.append(Unit(members, over_dp, over_dp or op.optype in (*PAIRS, *OVER_STAGES)))
    return units


class Op(NamedTuple):
    """One operation of the step workers repeat: stage, type, n-th of its type there, model chunk, recorded start."""

    stage: int
    optype: str
    seq: int
    chunk: int
    start: float


@dataclass(frozen=True, eq=False)
class OpTrace:
    """Operations of a job: the same ops on every data-parallel rank and step.

    Attributes
    ----------
    job : str
    sizes : mapping of str to int
        Sizes of the parallel groups.
    ops : tuple of Op
        Operations of the first data-parallel rank in the first step: the plan of all.
    dp_ranks, stages, steps : tuple of int
    start, duration : float64 (ops, dp_ranks, steps)
        Seconds; each step starts at 0.
    left_out : int
        Rows of steps that lack an operation somewhere.
    """

    job: str
    sizes: Mapping[str, int]
    ops: tuple[Op, ...]
    dp_ranks: tuple[int, ...]
    stages: tuple[int, ...]
    steps: tuple[int, ...]
    start: Float
    duration: Float
    left_out: int = 0


def read_ops(trace: Path, meta: Path | None = None) -> OpTrace:
    """Read a job's operations.

    Parameters
    ----------
    trace : Path
        ``trace-*.parquet``: dp_rank, stage, step, optype, start_ts and duration (seconds), seq_id, mc.
    meta : Path, optional
        ``meta-*.yaml``; beside the trace by default.

    Raises
    ------
    InputError
        A file that cannot be read, a missing column, an unknown operation, or no step that is whole.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        columns = pq.read_table(trace, columns=list(_NEEDED))
        table = {name: columns[name].to_numpy() for name in _NEEDED if name != "optype"}
        types = columns["optype"].combine_chunks().dictionary_encode()
    except (OSError, KeyError, pa.ArrowInvalid) as error:
        needed = ", ".join(_NEEDED)
        raise InputError(f"{trace}: not a trace of operations ({error}); it needs columns {needed}") from error
    names, index = types.dictionary.to_pylist(), types.indices.to_numpy()
    # A dictionary may hold types that no row uses.
    unknown = sorted({str(names[used]) for used in np.unique(index).tolist()} - set(OP_TYPES))
    if unknown:
        raise InputError(f"{trace}: unknown operation {unknown[0]!r}; known: {', '.join(OP_TYPES)}")
    codes = np.array([OP_TYPES.index(name) if name in OP_TYPES else -1 for name in names], np.int64)
    table["optype"] = codes[index]
    meta = meta or trace.with_name(trace.name.replace("trace-", "meta-")).with_suffix(".yaml")
    sizes: dict[str, int] = {}
    if meta.exists():
        # Whole numbers of a flat ``key: value`` file.
        pairs = (line.partition(":") for line in meta.read_text(encoding="utf-8").splitlines())
        sizes = {key.strip(): int(value) for key, _, value in pairs if value.strip().isdecimal()}
    return arrange(table, trace.stem.removeprefix("trace-"), sizes)


def arrange(table: Mapping[str, NDArray[Any]], job: str, sizes: Mapping[str, int]) -> OpTrace:
    """Arrange rows (``optype`` as index into :data:`OP_TYPES`) by operation, data-parallel rank and step.

    Raises
    ------
    InputError
        When no step holds every operation on every data-parallel rank.
    """
    dp, dp_at = np.unique(table["dp_rank"], return_inverse=True)
    step, step_at = np.unique(table["step"], return_inverse=True)
    if len(step) == 0:
        raise InputError(f"{job}: the trace contains no operations")
    times = np.stack((table["start_ts"], table["duration"]))
    if not np.all(np.isfinite(times)) or times[1].min() < 0:
        raise InputError(f"{job}: start_ts and duration must be finite, and durations not negative")
    key = np.stack([np.asarray(table[name], np.int64) for name in ("stage", "optype", "seq_id")])
    plan = np.flatnonzero((dp_at == 0) & (step_at == 0))
    plan = plan[np.lexsort((*key[::-1, plan], table["start_ts"][plan]))]
    position = {tuple(key[:, row].tolist()): number for number, row in enumerate(plan)}
    distinct, kind = np.unique(key, axis=1, return_inverse=True)
    number = np.array([position.get(tuple(column), -1) for column in distinct.T.tolist()])[kind.reshape(-1)]
    known = number >= 0
    shape = (len(position), len(dp), len(step))
    filled, start, duration = np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape)
    cell = (number[known], dp_at[known], step_at[known])
    np.add.at(filled, cell, 1)
    start[cell], duration[cell] = table["start_ts"][known], table["duration"][known]
    complete = np.all(filled == 1, axis=(0, 1)) & ~np.isin(np.arange(len(step)), step_at[~known])
    if not complete.any():
        raise InputError(f"{job}: no step has every operation of the first step on every data-parallel rank")
    ops = tuple(
        Op(
            int(key[0, row]),
            OP_TYPES[key[1, row]],
            int(key[2, row]),
            int(table["mc"][row]),
            float(table["start_ts"][row]),
        )
        for row in plan
    )
    left_out = int((~complete[step_at]).sum())
    stages = tuple(sorted({op.stage for op in ops}))
    steps = tuple(step[complete].tolist())
    return OpTrace(
        job, sizes, ops, tuple(dp.tolist()), stages, steps, start[:, :, complete], duration[:, :, complete], left_out
    )

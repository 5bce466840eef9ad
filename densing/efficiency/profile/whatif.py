"""What slow workers cost a job: its steps replayed, and replayed again as if nobody were slow.

With T the mean step time replayed without launch delays, and T_ideal the same with every operation at its usual time:

.. math:: S = T / T_{ideal}, \\qquad waste = 1 - 1/S

Source: "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25, arXiv 2505.05713) and the
authors' program (ByteDance-Seed/StragglerAnalysis).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densing.core import InputError
from densing.efficiency.profile.whatif_replay import Replay, prepare
from densing.efficiency.profile.whatif_trace import Float, OpTrace, read_ops

# Sends and receives of one direction count as one type.
_POOLED = {"forward-send": "forward-pp-comm", "forward-recv": "forward-pp-comm",
           "backward-send": "backward-pp-comm", "backward-recv": "backward-pp-comm"}  # fmt: skip
WORST_SHARE = 0.03


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
        return {**asdict(self), "worst_workers": [list(worker) for worker in self.worst_workers], "waste": self.waste}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> WhatIf:
        """Rebuild what :meth:`to_dict` wrote."""

        def slowdown(part: Mapping[str, Any]) -> Slowdown:
            return Slowdown(part["mean"], tuple(part["per_step"]))

        given = {key: value for key, value in data.items() if key != "waste"}
        given |= {key: tuple(data[key]) for key in ("steps", "recorded_s", "replayed_s", "ideal_s")}
        for key in ("by_optype", "by_dp_rank", "by_stage"):
            given[key] = {name: slowdown(part) for name, part in data[key].items()}
        given |= {key: Attribution(**data[key]) for key in ("workers", "last_stage")}
        worst = tuple((dp_rank, stage) for dp_rank, stage in data["worst_workers"])
        return cls(**{**given, "slowdown": slowdown(data["slowdown"]), "worst_workers": worst})


def what_if_job(trace: Path, meta: Path | None = None) -> WhatIf:
    """Analyse a job's trace of operations in the published format (``trace-*.parquet`` beside ``meta-*.yaml``)."""
    return analyse(read_ops(trace, meta))


def analyse(trace: OpTrace) -> WhatIf:
    """Replay a job's steps and say what slow operations, ranks and stages cost.

    Examples
    --------
    A step of one forward, on two data-parallel ranks; the second takes three times as long, and both meet.

    >>> import numpy as np
    >>> from densing.efficiency.profile.whatif_trace import Op
    >>> ops = (Op(0, "forward-compute", 0, 0, 0.0), Op(0, "grads-reduce-scatter", 0, 0, 1.0))
    >>> start = np.array([[[0.0], [0.0]], [[1.0], [3.0]]])
    >>> took = np.array([[[1.0], [3.0]], [[3.0], [1.0]]])
    >>> found = analyse(OpTrace("toy", {}, ops, (0, 1), (0,), (7,), start, took))
    >>> found.slowdown.mean, found.by_dp_rank["1"].mean
    (1.3333333333333333, 1.3333333333333333)
    """
    replay = prepare(trace)
    parts, masks = _choices(trace)
    times = replay.step_times(np.stack([np.ones_like(masks[0]), np.zeros_like(masks[0]), *masks]))
    replayed, ideal = times[0], times[1]
    if not ideal.min() > 0:
        raise InputError(f"{trace.job}: a step in which nothing takes time has no slowdown")
    slow = {part: _slowdown(time, ideal) for part, time in zip(parts, times[2:], strict=True)}
    by = {kind: _largest({name: slow[kind, name] for k, name in parts if k == kind}) for kind in ("op", "dp", "stage")}
    worst = _worst_workers(trace, by["dp"], by["stage"])
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
        workers=_attribution(replay, _of_workers(trace, worst), replayed, ideal),
        last_stage=_attribution(replay, _of_stage(trace, trace.stages[-1]), replayed, ideal),
    )


Mask = NDArray[np.bool_]


def _choices(trace: OpTrace) -> tuple[list[tuple[str, str]], list[Mask]]:
    """Parts of a job and the operations (ops, dp_ranks) they consist of."""
    types = [_POOLED.get(op.optype, op.optype) for op in trace.ops]
    chosen: dict[tuple[str, str], Mask] = {}
    for name in sorted(set(types)):
        chosen["op", name] = np.array([kind == name for kind in types])[:, None] & _everywhere(trace)
    for at, rank in enumerate(trace.dp_ranks):
        chosen["dp", str(rank)] = (np.arange(len(trace.dp_ranks)) == at) & _everywhere(trace)
    for stage in trace.stages:
        chosen["stage", str(stage)] = _of_stage(trace, stage)
    return list(chosen), list(chosen.values())


def _everywhere(trace: OpTrace) -> Mask:
    return np.ones((len(trace.ops), len(trace.dp_ranks)), bool)


def _of_stage(trace: OpTrace, stage: int) -> Mask:
    return np.array([op.stage == stage for op in trace.ops])[:, None] & _everywhere(trace)


def _of_workers(trace: OpTrace, workers: Sequence[tuple[int, int]]) -> Mask:
    pairs = [[(rank, op.stage) in workers for rank in trace.dp_ranks] for op in trace.ops]
    return np.array(pairs, bool)


def _slowdown(times: Float, ideal: Float) -> Slowdown:
    return Slowdown(float(times.mean() / ideal.mean()), tuple((times / ideal).tolist()))


def _largest(slow: Mapping[str, Slowdown]) -> dict[str, Slowdown]:
    return dict(sorted(slow.items(), key=lambda item: -item[1].mean))


def _worst_workers(
    trace: OpTrace, by_dp: Mapping[str, Slowdown], by_stage: Mapping[str, Slowdown]
) -> tuple[tuple[int, int], ...]:
    scores = {
        (rank, stage): min(by_dp[str(rank)].mean, by_stage[str(stage)].mean)
        for rank in trace.dp_ranks
        for stage in trace.stages
    }
    ordered = sorted(scores, key=lambda worker: -scores[worker])
    return tuple(ordered[: math.ceil(WORST_SHARE * len(ordered))])


def _attribution(replay: Replay, chosen: Mask, replayed: Float, ideal: Float) -> Attribution:
    fixed, only = replay.step_times(np.stack([~chosen, chosen])).mean(axis=1).tolist()
    whole, best = float(replayed.mean()), float(ideal.mean())
    lost = whole - best
    if lost == 0:
        return Attribution(None, None, fixed, only)
    return Attribution((whole - fixed) / lost, (only - best) / lost, fixed, only)

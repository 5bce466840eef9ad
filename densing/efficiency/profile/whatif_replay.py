"""Replaying a step with some operations at their usual instead of their recorded time, for many choices at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from densing.efficiency.profile.whatif_graph import Graph, build_graph
from densing.efficiency.profile.whatif_trace import COMPUTE, Float, OpTrace

# Ends held at a time; more choices are replayed in turns.
_CELLS = 2**20


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
        Time it would take were nobody slow: per operation type over all ranks, stages and steps, the mean of compute
        and the median of communication.
    """

    trace: OpTrace
    graph: Graph
    recorded: Float
    usual: Float

    def step_times(self, keep: NDArray[np.bool_]) -> Float:
        """Replay every step without launch delays.

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
            starts = [self._start(end, member) for member in unit.members]
            if unit.collective:
                latest = starts[0]
                for start in starts[1:]:
                    latest = np.maximum(latest, start)
                starts = [latest.max(axis=1, keepdims=True) if unit.over_dp else latest] * len(starts)
            for member, start in zip(unit.members, starts, strict=True):
                took = np.where(keep[:, member, :, None], self.recorded[member], self.usual[member])
                end[member] = start + took
        return end.max(axis=(0, 2))

    def _start(self, end: Float, member: int) -> Float:
        start = np.zeros(end.shape[1:])
        for first in self.graph.before[member]:
            np.maximum(start, end[first], out=start)
        return start


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

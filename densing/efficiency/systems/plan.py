"""Plans and their cost: simulated, then measured over their steady steps like a recorded run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from densing.core import InputError, Record

if TYPE_CHECKING:
    from densing.efficiency.simulation import Cluster, Graph, Workload
    from densing.efficiency.timeline import Comm, RankTimeline, Timeline


FROM_HOST = "from_host"
"""Operation that moves data between a device and its host's memory."""


class Plans(Protocol):
    """Anything that plans the steps of a workload, as techniques do."""

    def plan(self, workload: Workload, cluster: Cluster, **knobs: Any) -> Plan:
        """Return the tasks of some steps."""


class Control(NamedTuple):
    """Part of a step's time that is known on any draw of the delays without a simulation, and on average.

    Attributes
    ----------
    seconds : float64 (steps,)
        Of the steps of the steady state, on the delays that they were planned with.
    exact : callable
        Returns the mean over many independent draws, and its standard error, seconds: drawn where it is asked for.
    """

    seconds: NDArray[np.float64]
    exact: Callable[[], tuple[float, float]]


@dataclass(frozen=True)
class Plan:
    """Input of the simulator, made by a technique.

    Parameters
    ----------
    graph : Graph
        Its tasks carry their step.
    ranks : int
        Simulated ranks; equal ranks may be represented by one.
    warmup : int
        Steps before the steady state.
    steps : int
        Steps of the steady state: one period or several (CO2: a multiple of tau).
    memory : mapping of str to float
        Bytes per rank by purpose: parameters, gradients, optimizer, activations, technique.
    stands_for : mapping of int to int
        How many real ranks a simulated rank represents; empty: one each.
    control : Control, optional
        What is known of its steps without a simulation, where delays are drawn.
    """

    graph: Graph
    ranks: int
    warmup: int
    steps: int
    memory: Mapping[str, float] = field(default_factory=dict)
    stands_for: Mapping[int, int] = field(default_factory=dict)
    control: Control | None = None


class SteadyStep(Record, frozen=True):
    """A step of the steady state; see :class:`densing.efficiency.systems.comparison.Row`, and besides:

    Parameters
    ----------
    comm_s : float
        Seconds per step in which a rank communicates, hidden or not, mean of the ranks.
    compute_s : float
        Seconds per step in which it computes.
    step_se_s : float, optional
        Standard error of ``step_s`` over the steps, less what a :class:`Control` explains; None where no delay is
        drawn, or one for the whole run.
    """

    step_s: float
    exposed_comm_s: float
    overlap_ratio: float | None
    bytes: float
    comm_s: float
    compute_s: float
    bytes_per_link: Mapping[str, float] = msgspec.field(default_factory=dict)
    memory: Mapping[str, float] = msgspec.field(default_factory=dict)
    step_se_s: float | None = None


def timeline_of(plan: Plan, cluster: Cluster) -> Timeline:
    """Simulate a plan with the contention of a cluster, and its ranks' speeds where every rank is simulated."""
    from densing.efficiency.simulation import simulate

    speed = cluster.speed if plan.ranks == cluster.n else ()
    return simulate(plan.graph, plan.ranks, kappa=cluster.kappa, kappa_comm=cluster.kappa_comm, speed=speed).timeline


def steady_timeline(plan: Plan, cluster: Cluster) -> Timeline:
    """Simulate a plan and mark the steps of its steady state alone: no warm-up, no last step that nothing follows.

    All measurements, figures and tables of a simulation come from it.

    Raises
    ------
    InputError
        When the timeline has fewer steps than the plan says.
    """
    return _steady(plan, timeline_of(plan, cluster))


def _steady(plan: Plan, timeline: Timeline) -> Timeline:
    ranks = []
    for rank in timeline.ranks:
        steps = rank.steps[plan.warmup : plan.warmup + plan.steps]
        if not steps or len(steps) < plan.steps:
            raise InputError(
                f"the plan promises {plan.warmup} + {plan.steps} steps and simulated rank {rank.rank} has "
                f"{len(rank.steps)}; give its tasks their step"
            )
        ranks.append(msgspec.structs.replace(rank, steps=steps))
    return msgspec.structs.replace(timeline, ranks=tuple(ranks))


def measure(plan: Plan, cluster: Cluster) -> SteadyStep:
    """Simulate a plan and return its steady step.

    Raises
    ------
    InputError
        When the timeline has fewer steps than the plan says.
    """
    from densing.efficiency.timeline import Window, partition

    timeline = timeline_of(plan, cluster)
    # Equal ranks are simulated as one: a mean over ranks counts it as often as it stands for.
    weights = np.array([plan.stands_for.get(rank.rank, 1) for rank in timeline.ranks], float)
    windows = [(rank.steps[0].start, rank.steps[-1].end) for rank in _steady(plan, timeline).ranks]
    parts = [
        partition(Window("steps", *window, rank.work.within(*window)))
        for rank, window in zip(timeline.ranks, windows, strict=True)
    ]
    traffic = [_sent(rank, window, cluster) for rank, window in zip(timeline.ranks, windows, strict=True)]

    def mean(values: list[float]) -> float:
        return float(np.average(values, weights=weights)) / plan.steps

    comm = mean([part.comm_ns / 1e9 for part in parts])
    links = {
        link: mean([bytes_by.get(link, 0.0) for bytes_by in traffic])
        for link in sorted({link for bytes_by in traffic for link in bytes_by})
    }
    shift_s, step_se_s = _drawn(timeline, plan, cluster)
    return SteadyStep(
        step_s=max(end - start for start, end in windows) / plan.steps / 1e9 + shift_s,
        exposed_comm_s=mean([part.exposed_comm_ns / 1e9 for part in parts]),
        overlap_ratio=mean([part.overlap_ns / 1e9 for part in parts]) / comm if comm else None,
        bytes=sum(links.values()),
        comm_s=comm,
        compute_s=mean([part.compute_ns / 1e9 for part in parts]),
        bytes_per_link=links,
        memory=plan.memory,
        step_se_s=step_se_s,
    )


BATCHES = 8
"""Batches of steps whose means give the standard error, because neighbouring steps of a round are not independent."""


def _drawn(timeline: Timeline, plan: Plan, cluster: Cluster) -> tuple[float, float | None]:
    """Return what the control adds to the mean step, and the standard error from means over batches of steps.

    Of steps :math:`d_t` and the control's :math:`c_t` on the same draws the mean is
    :math:`\\bar d + b (\\mu_c - \\bar c)`, with the regression's b, and its variance that of :math:`d - b c` and of the
    control's own mean.

    Source: control variates, as in Glasserman, "Monte Carlo Methods in Financial Engineering" (2003), section 4.1
    (recalled).
    """
    # Steps are few, or all held up alike.
    if cluster.delay is None or cluster.delay.lasts == "run" or plan.steps < 2 * BATCHES:
        return 0.0, None
    # When the last rank ends a step.
    ends = np.max(
        [[step.end for step in rank.steps[plan.warmup - 1 :][: plan.steps + 1]] for rank in timeline.ranks], 0
    )
    cuts = np.linspace(0, plan.steps, BATCHES + 1).astype(int)
    seconds, slope, shift, own = np.diff(ends) / 1e9, 0.0, 0.0, 0.0
    if plan.control is not None:
        known = plan.control.seconds
        spread = float(((known - known.mean()) ** 2).sum())
        slope = float(((known - known.mean()) * seconds).sum()) / spread if spread else 0.0
        mean, error = plan.control.exact()
        shift, own = slope * (mean - float(known.mean())), slope * error
        seconds = seconds - slope * known
    means = np.add.reduceat(seconds, cuts[:-1]) / np.diff(cuts)
    return shift, float(np.hypot(means.std(ddof=1) / np.sqrt(BATCHES), own))


def _sent(rank: RankTimeline, window: tuple[int, int], cluster: Cluster) -> dict[str, float]:
    """Bytes sent in communications that end within the window, by link.

    A communication that spans the end of a period is counted where it ends.
    """
    from densing.efficiency.simulation import OPS, wire_bytes
    from densing.efficiency.timeline import Kind

    work = rank.work.of(Kind.COMM)
    inside = (work.end > window[0]) & (work.end <= window[1]) & (work.bytes > 0)
    by_link: dict[str, float] = defaultdict(float)
    sums = np.bincount(work.comm[inside] + 1, weights=work.bytes[inside])
    for number in np.flatnonzero(sums).tolist():
        put_in = float(sums[number])
        if not number:
            by_link["unknown"] += put_in
            continue
        comm = work.comms[number - 1]
        if comm.op in OPS and comm.group_size >= 1:
            # What each rank sends on average, of what it put in: only so are an all-reduce and its two halves alike.
            full = put_in * comm.group_size if comm.op == "all_gather" else put_in
            put_in = wire_bytes(comm.op, full, comm.group_size)
        by_link[link_name(comm, cluster)] += put_in
    return dict(by_link)


def link_name(comm: Comm, cluster: Cluster) -> str:
    """Return the slowest kind of link that a group spans: ``intra``, ``inter``, ``wide``; ``unknown`` without members.

    What comes from the host's memory comes over ``host``.

    Examples
    --------
    >>> from densing.efficiency.simulation import Cluster, Device, Link
    >>> from densing.efficiency.timeline import Comm
    >>> link = Link(0, 0)
    >>> cluster = Cluster("toy", n=4, per_node=2, device=Device("toy", 1, 1), intra=link, inter=link, host=link)
    >>> link_name(Comm("all_reduce", ranks=(0, 1)), cluster), link_name(Comm("all_reduce", ranks=(0, 2)), cluster)
    ('intra', 'inter')
    """
    from densing.efficiency.simulation import span_of

    if comm.op == FROM_HOST:
        return "host"
    ranks = comm.ranks or tuple(rank for rank in (comm.src, comm.dst) if rank >= 0)
    return span_of(cluster, ranks) if ranks else "unknown"

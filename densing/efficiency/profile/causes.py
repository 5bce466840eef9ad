"""The main causes of lost time, the cost of each per step, and the usual remedy.

They are ordered by what removing them can gain: the part of a cost that lies on the critical path, and for waiting the
run's gain if all ranks did equal work, T - T_balanced of the what-if analysis. That is an upper bound, since removing
one cause may expose the next. Where a trace records no synchronisation calls, what the path counts as the host's while
the device was busy may have been waits for it, and the bound of communication and copies is as much higher.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from densing.core import Record, formatting
from densing.efficiency.profile.joint import JointProfile
from densing.efficiency.profile.rank import RankProfile, cut_short, per_step, pooled, run_collectives
from densing.efficiency.timeline import UNSYNCHRONISED, CollectiveSummary, Copies

SHOWN = 3
SMALL_MESSAGE = 1_000_000
WAITING = "waiting-for-ranks"
_OUTSIDE = ("host", "launch", "idle")
"""Kinds of segment of the critical path in which a device is idle."""
_COPY_REMEDIES = {
    "host_to_device": "pin host memory, copy with non_blocking=True on a separate stream, prefetch the next batch",
    "device_to_host": "log and checkpoint less often, or copy with non_blocking=True into pinned memory",
    "device_to_device": "avoid copies between layouts (contiguous, channels_last, concatenation)",
}


class Cause(Record, frozen=True):
    """A cause of lost time.

    Attributes
    ----------
    code : str
        Stable short name.
    ms_per_step : float
        What it costs per step and rank (per window where no step is marked).
    share_pct : float
        The same as a share of the windows.
    recoverable_ms_per_step : float
        The most that can be gained, by the critical path (for waiting, by the what-if analysis).
    rank : int or None
        The rank with the largest cost; for waiting, the rank that the others wait for. None for a single rank, where
        ranks are alike (within a tenth), and where the rank waited for is unknown.
    title, message, remedy : str
        A short title, a sentence, and what usually helps.
    """

    code: str
    ms_per_step: float
    share_pct: float
    recoverable_ms_per_step: float
    rank: int | None
    title: str
    message: str
    remedy: str


class _Lost(Record, frozen=True):
    """A cause before division by steps: nanoseconds over all ranks and per rank, and its kind on the path."""

    code: str
    ns: int
    of_rank: Mapping[int, float]
    on_path: str
    title: str
    message: str
    remedy: str


def find_causes(
    ranks: Sequence[RankProfile], parts: Sequence[Sequence[CollectiveSummary]], joint: JointProfile | None = None
) -> tuple[Cause, ...]:
    """Rank the causes of lost time by what can be gained.

    Parameters
    ----------
    ranks : sequence of RankProfile
    parts : sequence of sequence of CollectiveSummary
        Of each rank.
    joint : JointProfile, optional
        Results that need several ranks.
    """
    total, steps = pooled([rank.partition for rank in ranks]), per_step(ranks)
    losses = [*_communication(ranks, parts, total.exposed_comm_ns, joint), *_idle(ranks)]
    losses += _copies(ranks, total.exposed_memcpy_ns)
    losses = [loss for loss in losses if loss.ns > 0]
    if not losses:
        return ()
    claimed: dict[str, int] = {}
    for loss in losses:
        claimed[loss.on_path] = claimed.get(loss.on_path, 0) + loss.ns
    limits = _recoverable(ranks, joint)
    # Losses of one kind share that kind's time on the path.
    shares = {kind: min(1.0, limits.get(kind, ns) / ns) for kind, ns in claimed.items()}
    causes = []
    for loss in losses:
        rank = _stands_out(loss.of_rank)
        # For waiting, the message itself names the rank.
        suffix = "" if rank is None or loss.code == WAITING else f"; most on rank {rank}"
        causes.append(
            Cause(
                loss.code,
                loss.ns / steps / 1e6,
                100 * loss.ns / total.window_ns,
                shares[loss.on_path] * loss.ns / steps / 1e6,
                rank,
                loss.title,
                loss.message + suffix,
                loss.remedy,
            )
        )
    return tuple(sorted(causes, key=lambda cause: (-cause.recoverable_ms_per_step, -cause.ms_per_step)))


def _recoverable(ranks: Sequence[RankProfile], joint: JointProfile | None) -> dict[str, float]:
    """Return the most that can be gained by kind of loss, in nanoseconds over all ranks, like the costs.

    From the run's critical path where there is one, times the number of ranks; else from each rank's own.
    """
    path = None if joint is None else joint.path
    if path is not None:
        totals = {kind: len(ranks) * ns for kind, ns in path.by_kind.items()}
    else:
        totals = {kind: sum(rank.path.totals[kind] for rank in ranks) for kind in ranks[0].path.totals}
    limits: dict[str, float] = {kind: totals.get(kind, 0) for kind in ("communication", "memcpy")}
    limits["idle"] = sum(totals.get(kind, 0) for kind in _OUTSIDE)
    if any(note.code == UNSYNCHRONISED for rank in ranks for note in rank.path.notes):
        unknown = max(limits["idle"] - sum(rank.partition.idle_ns for rank in ranks), 0.0)
        limits |= {kind: limits[kind] + unknown for kind in ("communication", "memcpy")}
    replayed = None if joint is None else joint.what_if
    if replayed is not None and replayed.transfer_slowdown is not None:
        balanced = replayed.transfer_slowdown * replayed.ideal_ns
        limits["waiting"] = len(ranks) * max(replayed.replayed_ns - balanced, 0.0)
    return limits


def _stands_out(of_rank: Mapping[int, float]) -> int | None:
    """Return the rank that loses most, if it loses at least a tenth more than the mean."""
    if len(of_rank) < 2:
        return None
    rank = max(of_rank, key=lambda key: (of_rank[key], -key))
    return rank if of_rank[rank] * len(of_rank) > 1.1 * sum(of_rank.values()) else None


def _scale(rows: Sequence[CollectiveSummary | Copies], exposed: int) -> float:
    """Return the share of its exposed time that each part costs: concurrent parts cost no more than their union."""
    claimed = sum(row.exposed_ns for row in rows)
    return min(1.0, exposed / claimed) if claimed else 0.0


def _communication(
    ranks: Sequence[RankProfile],
    parts: Sequence[Sequence[CollectiveSummary]],
    exposed: int,
    joint: JointProfile | None,
) -> Iterator[_Lost]:
    """Exposed communication by operation and group, split into waiting and transfer where that is known."""
    rows, cut = run_collectives(parts), cut_short(ranks)
    scale = _scale(rows, exposed)
    by_name = Counter[tuple[str, str]]()
    for row in rows:
        by_name[row.op, row.group] += row.exposed_ns
    for row in rows:
        cost, key = row.exposed_ns * scale, (row.op, row.group or row.group_label)
        known = None if joint is None else joint.waiting.get((row.op, row.group))
        # Waiting is known per operation and group name; rows with the same key share it in proportion to their cost.
        share = row.exposed_ns / by_name[row.op, row.group] if by_name[row.op, row.group] else 0.0
        waited = known.exposed_ns * scale * share if known else 0.0
        name = f"{row.op or 'communication'}{f' in group {row.group}' if row.group else ''}"
        calls, size = formatting.plural(row.count, "call"), "unknown size"
        if row.count_sized:
            speed = f" at {row.busbw_gbps:.3g} GB/s bus bandwidth" if row.busbw_gbps else ""
            size = f"{row.bytes / row.count_sized / 1e6:.3g} MB on average{speed}"
        hidden = f", {row.hidden_pct:.0f} % hidden behind compute" if row.hidden_pct else ", nothing hidden"
        if waited and joint is not None:
            last = joint.stragglers.worst
            latecomer = "the last" if last is None else joint.worst
            yield _Lost(
                WAITING,
                round(waited),
                # The rank that is waited for; the second entry, which loses nothing, makes it stand out.
                {} if last is None else {last: 1.0, -1: 0.0},
                "waiting",
                f"ranks wait for {'each other' if last is None else f'rank {last}'} in {name}",
                f"stragglers: ranks enter {name} at different times and wait for {latecomer}",
                "balance the ranks' work (sequence lengths, stages, data loading); check the slow rank's host",
            )
        yield _Lost(
            "exposed-communication",
            round(cost - waited),
            {
                rank.rank: sum(own.exposed_ns for own in part if (own.op, own.group or own.group_label) == key)
                for rank, part in zip(ranks, parts, strict=True)
            },
            "communication",
            f"{name} is not hidden",
            f"{name}: {calls} of {size}{'' if cut else hidden}",
            _remedy(row),
        )


def _remedy(row: CollectiveSummary) -> str:
    if row.op == "barrier":
        return "remove the barrier, or replace it by the collective that follows"
    if row.count_sized and row.bytes / row.count_sized < SMALL_MESSAGE:
        return "send fewer, larger messages (gradient buckets, fused or coalesced collectives)"
    if not row.hidden_pct:
        return "start it earlier and wait later (async_op=True, bucketed gradients, prefetched parameters)"
    return "hide more of it (smaller, earlier buckets), or send less (local steps)"


_IDLE = {
    "host_bound": (
        "devices wait for the host",
        "the host launches work too late{names}",
        "fewer and larger kernels (torch.compile, CUDA graphs, larger batches), no synchronising calls in the loop",
    ),
    "communication": (
        "devices idle until a communication is waited for",
        "the device idles until a communication is waited for{names}",
        "wait later, or on a stream (work.wait() in stream order) instead of on the host",
    ),
    "kernel_wait": (
        "launched work does not start immediately",
        "launched work does not start immediately (dependencies between streams, launch latency)",
        "fuse small kernels; look at what the streams wait for",
    ),
    "no_launch_record": (
        "devices are idle before work whose launch is not recorded",
        "idle before work whose launch is not in the trace",
        "record more steps, including host activity (ProfilerActivity.CPU)",
    ),
    "before_first": (
        "devices are idle before the first work",
        "idle at the start of the window, before any recorded work",
        "warm up before the recorded steps",
    ),
    "after_last": (
        "devices are idle after the last work",
        "idle at the end of the window, after the last work",
        "look at what the host does between steps",
    ),
    "unknown": (
        "idle for an unknown reason",
        "the device neither computes nor communicates, for an unknown reason",
        "record waits (densing.timeline.record marks them) or Python stacks",
    ),
}

_RECORDED = (
    "record Python stacks (stacks=True) or more ranges (torch.profiler.record_function) to see what the host did"
)
"""Used instead of the advice to mark waits, which a trace of :func:`densing.timeline.record` already does."""


def _idle(ranks: Sequence[RankProfile]) -> Iterator[_Lost]:
    # What the host mostly did while the device waited.
    total = Counter[str]()
    for rank in ranks:
        for row in rank.idle.meanwhile:
            if row.name:
                total[row.name] += row.ns
    longest = sorted(total, key=lambda name: -total[name])[:2]
    names = f"; meanwhile the host is in {', '.join(longest)}" if longest else ""
    for code, (title, message, remedy) in _IDLE.items():
        loading = dict.fromkeys((rank.rank for rank in ranks), 0)
        for rank in ranks:
            # The part of host-bound idle time (without a device, of unexplained time) spent fetching data.
            if rank.transfers.loading is not None and code == ("unknown" if rank.on_host else "host_bound"):
                loading[rank.rank] = min(rank.transfers.loading.idle_ns, rank.idle.causes.get(code, 0))
        idle = {rank.rank: rank.idle.causes.get(code, 0) - loading[rank.rank] for rank in ranks}
        if code == "unknown" and all(rank.recorder for rank in ranks):
            remedy = _RECORDED
        text = message.format(names=names)
        yield _Lost(f"idle-{code.replace('_', '-')}", sum(idle.values()), idle, "idle", title, text, remedy)
        if any(loading.values()):
            text = "compute waits for the next batch (DataLoader)"
            remedy = "more workers, prefetch_factor, cheaper transforms, pinned memory"
            yield _Lost("data-loading", sum(loading.values()), loading, "idle", text, text, remedy)


def _copies(ranks: Sequence[RankProfile], exposed: int) -> Iterator[_Lost]:
    """Exposed copies by direction."""
    rows = [row for rank in ranks for row in rank.transfers.copies]
    scale = _scale(rows, exposed)
    for direction in dict.fromkeys(row.direction for row in rows):
        same = [row for row in rows if row.direction == direction]
        pageable = sum(row.pageable or 0 for row in same)
        text = f"copies {direction.replace('_', ' ')}: {sum(row.count for row in same)}"
        text += f", {pageable} of them from pageable memory" if pageable else ""
        remedy = _COPY_REMEDIES.get(direction, "find the operator that issues them")
        of_rank = {rank.rank: sum(row.exposed_ns for row in rank.transfers.copies if row.direction == direction)
                   for rank in ranks}  # fmt: skip
        title = f"copies {direction.replace('_', ' ')} are not hidden"
        yield _Lost("exposed-copies", round(scale * sum(of_rank.values())), of_rank, "memcpy", title, text, remedy)
